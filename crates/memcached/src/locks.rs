//! The server's own locks: each has a name and a level in the order in which a thread may take
//! several.
//!
//! | lock | level | held while |
//! |---|---|---|
//! | threads of copy sessions | 2 | one is started, or all are taken |
//! | lanes of a worker | 3 | the worker executes requests that may be other nodes', or reads answers |
//! | changes from outside of requests | 4 | a prefix is swept or flushed by another thread than a worker |
//! | table of connections | 5 | a command is sent to a worker |
//! | counts at the last `stats reset` | 6 | they are copied |
//! | wrong passwords by address | 7 | one is counted |
//! | settings without effect | 8 | they are copied, or a client sets one |
//! | maps of the ring, and its nodes | 9 | they are looked up, or a map is put in force |
//! | lines for watchers | 60 | a line is queued; the store's eviction hook takes it while it holds the store's locks |
//! | sketches of hot keys | 61 | queued keys are counted, or the hottest copied |
//! | changed keys of slots that move | 62 | a key is queued; the store's change hook takes it while it holds the store's locks |
//! | lines on their way to a worker | 63 | they are added, or all are taken |
//! | what a node of the ring has said | 64 | it is copied or replaced |
//! | the node's lease | 65 | it is renewed, or promises are given or taken |
//! | a worker's commands | 300 | a command is added, or all are taken |
//!
//! The store's locks have the levels 10 to 59, which lie in between. Builds with debug assertions
//! check the order at run time. The counts of `stats detail` are in a concurrent map, whose locks
//! are taken last and held for one operation.

pub(crate) use cached_core::sync::{Mutex as Lock, MutexGuard as Guard};

use cached_core::lock_order::Rank;

pub(crate) static SESSIONS: Rank = Rank::new("server: threads of copy sessions", 2);
pub(crate) static LANES: Rank = Rank::new("server: lanes of a worker", 3);
pub(crate) static CHANGES: Rank = Rank::new("server: changes from outside of requests", 4);
pub(crate) static CONNECTIONS: Rank = Rank::new("server: table of connections", 5);
pub(crate) static BASELINE: Rank = Rank::new("server: counts at the last reset", 6);
pub(crate) static ATTEMPTS: Rank = Rank::new("server: wrong passwords by address", 7);
pub(crate) static INERT: Rank = Rank::new("server: settings without effect", 8);
pub(crate) static RING: Rank = Rank::new("server: maps of the ring", 9);
pub(crate) static PEERS: Rank = Rank::new("server: what a node of the ring has said", 64);
pub(crate) static LEASE: Rank = Rank::new("server: the node's lease", 65);
pub(crate) static WATCHERS: Rank = Rank::new("server: lines for watchers", 60);
pub(crate) static RELAY: Rank = Rank::new("server: lines on their way to a worker", 63);
pub(crate) static CHANGED_KEYS: Rank = Rank::new("server: changed keys of slots that move", 62);
pub(crate) static HOT: Rank = Rank::new("server: hot keys", 61);
pub(crate) static COMMANDS: Rank = Rank::new("server: a worker's commands", 300);

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn taking_locks_in_the_wrong_order_panics() {
        let (table, commands) = (Lock::ranked(1, &CONNECTIONS), Lock::ranked(2, &COMMANDS));
        let both = *table.lock() + *commands.lock();
        assert_eq!(both, 3);
        let wrong = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _commands = commands.lock();
            let _table = table.lock();
        }));
        assert!(wrong.is_err());
    }
}
