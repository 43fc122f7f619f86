//! The server's own locks: each has a name and a place in the order in which a thread may take several.
//!
//! | lock | level | held while |
//! |---|---|---|
//! | table of connections | 5 | mail is left for a worker |
//! | figures of the last `stats reset` | 6 | they are copied |
//! | lines for watchers | 60 | a line is put in a queue; the store's hook takes it below the store's locks |
//! | prefixes of `stats detail` | 61 | one is counted |
//! | a worker's mail | 300 | a message is put in or taken out |
//!
//! The store's locks lie between (10 to 59). Builds with debug assertions check the order at run time.

use lock_order::{Held, Rank};
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) static CONNECTIONS: Rank = Rank::new("server: table of connections", 5);
pub(crate) static BASELINE: Rank = Rank::new("server: figures of the last reset", 6);
pub(crate) static WATCHERS: Rank = Rank::new("server: lines for watchers", 60);
pub(crate) static PREFIXES: Rank = Rank::new("server: prefixes", 61);
pub(crate) static MAIL: Rank = Rank::new("server: a worker's mail", 300);

/// A lock with a rank.
#[derive(Debug)]
pub(crate) struct Lock<T> {
    rank: &'static Rank,
    mutex: Mutex<T>,
}

impl<T> Lock<T> {
    pub(crate) fn new(rank: &'static Rank, value: T) -> Lock<T> {
        Lock { rank, mutex: Mutex::new(value) }
    }

    /// Takes the lock. Nothing that it guards is left half-done by a panic, so one that is poisoned is as good as any.
    #[track_caller]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        let order = self.rank.enter();
        Guard { guard: self.mutex.lock().unwrap_or_else(PoisonError::into_inner), _order: order }
    }
}

/// The lock, held.
pub(crate) struct Guard<'a, T> {
    // First, so that it is let go before the record of it.
    guard: MutexGuard<'a, T>,
    _order: Held,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_order_is_noticed_by_the_first_thread_that_takes_it() {
        let (table, mail) = (Lock::new(&CONNECTIONS, 1), Lock::new(&MAIL, 2));
        let both = *table.lock() + *mail.lock();
        assert_eq!(both, 3);
        let wrong = std::panic::catch_unwind(|| {
            let _mail = mail.lock();
            let _table = table.lock();
        });
        assert!(wrong.is_err());
    }
}
