//! Turns: changes of one object by callers of one store go one after the other.
//!
//! Without them each would put its head on the condition that it is still the one it has seen, one would win, and all
//! others would begin anew: the more callers and the slower the server, the longer until the last is through. Turns
//! decide nothing, the server does; so a caller that has waited for long goes ahead without, and one that holds a turn
//! and is not polled stops no other call.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use blocker::{Clock, ObjectId};
use futures_util::future::{Either, select};
use tokio::sync::OwnedMutexGuard;

/// How long a caller waits for its turn.
const WAIT_MAX: Duration = Duration::from_secs(10);

type Lock = Arc<tokio::sync::Mutex<()>>;

/// The objects that are being changed.
#[derive(Default)]
pub(crate) struct Turns {
    objects: parking_lot::Mutex<HashMap<ObjectId, Lock>>,
}

/// A turn, or the place of a caller that has none; it ends with this.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    object: &'a ObjectId,
    lock: Option<Lock>,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Waits for the caller's turn to change `object`, in order.
    pub(crate) async fn turn<'a>(&'a self, object: &'a ObjectId, clock: &dyn Clock) -> Turn<'a> {
        let lock = Arc::clone(self.objects.lock().entry(object.clone()).or_default());
        // From here on it is given up even if the caller stops waiting.
        let mut turn = Turn { turns: self, object, lock: Some(Arc::clone(&lock)), guard: None };
        turn.guard = match Arc::clone(&lock).try_lock_owned() {
            Ok(guard) => Some(guard),
            Err(_) => match select(Box::pin(lock.lock_owned()), clock.sleep(WAIT_MAX)).await {
                Either::Left((guard, _)) => Some(guard),
                Either::Right(_) => None,
            },
        };
        turn
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.guard = None;
        let mut objects = self.turns.objects.lock();
        // Handles are made and given up under this lock, so the last one finds itself alone.
        self.lock = None;
        if objects.get(self.object).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            objects.remove(self.object);
        }
    }
}

#[cfg(test)]
mod tests {
    use blocker::executor::{block_on, poll_times};
    use blocker::{ManualClock, Name, Namespace};

    use super::*;

    #[test]
    fn turns_come_in_order_and_leave_nothing_behind() {
        let (turns, clock) = (Turns::default(), ManualClock::new());
        let name = |text| ObjectId::new(Namespace::new("vm").unwrap(), Name::new(text).unwrap());
        let (one, two) = (name("one"), name("two"));
        let first = block_on(turns.turn(&one, &clock));
        let other = block_on(turns.turn(&two, &clock));
        let mut waiting = Box::pin(turns.turn(&one, &clock));
        assert!(poll_times(&mut waiting, 1, Duration::ZERO).is_none());
        {
            let mut given_up = Box::pin(turns.turn(&one, &clock));
            assert!(poll_times(&mut given_up, 1, Duration::ZERO).is_none());
        }
        drop(first);
        let second = block_on(waiting);
        assert!(second.guard.is_some());
        let mut late = Box::pin(turns.turn(&one, &clock));
        assert!(poll_times(&mut late, 1, Duration::ZERO).is_none());
        clock.advance(WAIT_MAX);
        let late = block_on(late);
        assert!(late.guard.is_none(), "it goes ahead without");
        drop((second, other, late));
        assert!(turns.objects.lock().is_empty());
    }
}
