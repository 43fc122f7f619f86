//! The bounded queue of read-ahead requests for the background. A request that finds the queue full
//! is dropped: the reads will load the data themselves.

use std::collections::VecDeque;
use std::task::Waker;

use blocker::ObjectId;

use super::progressions::Plan;
use crate::object::lock_ranks;
use crate::sync::{Mutex, lock};

/// The maximum number of waiting requests.
const REQUESTS_MAX: usize = 256;

/// A request to the background.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    /// Read ahead.
    Fetch(Fetch),
    /// Continue after a marked bucket that has been read.
    Marked(Marked),
}

/// The data to be read ahead, and their object.
#[derive(Clone, Debug)]
pub(crate) struct Fetch {
    pub(crate) id: ObjectId,
    pub(crate) plan: Plan,
    /// Whether the data bypass the cache: they are kept only until they have been read.
    pub(crate) is_passing: bool,
}

/// A bucket of the object in a node. The object with this hash may have left the node.
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

    /// Takes the oldest request; if there is none, `waker` is woken when there is.
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
