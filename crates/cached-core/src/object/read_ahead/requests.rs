//! What the background is to read ahead: a bounded queue. What finds it full is left to the reads that will
//! ask for it.

use std::collections::VecDeque;
use std::task::Waker;

use blocker::ObjectId;

use super::progressions::Plan;
use crate::object::lock_ranks;
use crate::sync::{Mutex, lock};

/// The most requests that wait.
const REQUESTS_MAX: usize = 256;

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    /// To read ahead.
    Fetch(Fetch),
    /// To see what comes after a marked bucket that has been read.
    Marked(Marked),
}

/// What is to be read ahead, and of which object.
#[derive(Clone, Debug)]
pub(crate) struct Fetch {
    pub(crate) id: ObjectId,
    pub(crate) plan: Plan,
    /// Whether it bypasses the cache: it is kept until it has been read.
    pub(crate) is_passing: bool,
}

/// A bucket of the object in a node. The object with this hash may have left it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marked {
    pub(crate) node: u32,
    pub(crate) hash: u64,
    pub(crate) bucket: u32,
}

/// See the module.
pub(crate) struct Requests(Mutex<State>);

#[derive(Default)]
struct State {
    queue: VecDeque<Request>,
    waker: Option<Waker>,
}

impl Default for Requests {
    fn default() -> Self {
        Self(Mutex::ranked(State::default(), &lock_ranks::READ_AHEAD))
    }
}

impl Requests {
    pub(crate) fn push(&self, request: Request) {
        let mut state = lock(&self.0);
        if state.queue.len() >= REQUESTS_MAX {
            return;
        }
        state.queue.push_back(request);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Takes the oldest one; without one, `waker` is woken when there is.
    pub(crate) fn take(&self, waker: &Waker) -> Option<Request> {
        let mut state = lock(&self.0);
        let request = state.queue.pop_front();
        if request.is_none() {
            state.waker = Some(waker.clone());
        }
        request
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn requests_come_in_order_and_no_more_than_there_is_room_for() {
        let requests = Requests::default();
        let marked = |bucket| Request::Marked(Marked { node: 1, hash: 2, bucket });
        (0..REQUESTS_MAX as u32 + 3).for_each(|bucket| requests.push(marked(bucket)));
        let taken = std::iter::from_fn(|| requests.take(Waker::noop()));
        let buckets: Vec<u32> = taken
            .map(|request| match request {
                Request::Marked(marked) => marked.bucket,
                Request::Fetch(_) => unreachable!(),
            })
            .collect();
        assert_eq!(buckets, (0..REQUESTS_MAX as u32).collect::<Vec<_>>());
    }
}
