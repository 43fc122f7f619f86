//! Changes in doubt: the caller knows no outcome, because the deadline has passed or it has dropped
//! the call, but the server may still execute the change.
//!
//! What a caller asks for afterwards must not overtake such a change, on whichever lane: a read
//! would return data that change later, and a newer change would be overwritten by the older one.
//! So requests that concern the object are held until the doubt is settled: the server has answered
//! the change or its cancellation, or the session has ended. They are held on the lane of the
//! change, whose connection settles the doubt; if it cannot, they fail as that lane's requests do.
//!
//! A doubt occupies a slot of its lane, so there are at most as many as slots.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use blocker::{Change, ObjectId};
use parking_lot::Mutex;

use crate::codec::Request;

/// The changes in doubt of all lanes.
#[derive(Default)]
pub(super) struct Doubts {
    /// The number of objects with doubts, which is 0 most of the time.
    count: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The lanes of the changes in doubt of each object, one entry for each change.
    objects: BTreeMap<ObjectId, Vec<u16>>,
    /// The tasks of lanes that hold requests.
    holding: Vec<Waker>,
}

impl Doubts {
    /// Records that a change of `object` is in doubt on a lane.
    pub(super) fn begin(&self, object: ObjectId, lane: u16) {
        let mut state = self.state.lock();
        state.objects.entry(object).or_default().push(lane);
        self.count.store(state.objects.len(), Ordering::SeqCst);
    }

    /// Records that a change of `object` on a lane is no longer in doubt. Returns the wakers of
    /// lanes that may send requests now.
    pub(super) fn settle(&self, object: &ObjectId, lane: u16) -> Vec<Waker> {
        let mut state = self.state.lock();
        if let Some(lanes) = state.objects.get_mut(object) {
            if let Some(index) = lanes.iter().position(|known| *known == lane) {
                lanes.swap_remove(index);
            }
            if lanes.is_empty() {
                state.objects.remove(object);
            }
        }
        self.count.store(state.objects.len(), Ordering::SeqCst);
        std::mem::take(&mut state.holding)
    }

    /// Returns the lane of a change in doubt that a request must not overtake.
    pub(super) fn lane_of(&self, request: &Request) -> Option<u16> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        self.state.lock().lane_of(request)
    }

    /// Returns whether a request must be held. If so, wakes `task` when a doubt is settled.
    pub(super) fn holds(&self, request: &Request, task: Option<&Waker>) -> bool {
        if self.count.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let mut state = self.state.lock();
        let is_held = state.lane_of(request).is_some();
        if is_held
            && let Some(task) = task
            && !state.holding.iter().any(|known| known.will_wake(task))
        {
            state.holding.push(task.clone());
        }
        is_held
    }
}

impl State {
    fn lane_of(&self, request: &Request) -> Option<u16> {
        let of = |object: &ObjectId| self.objects.get(object).and_then(|lanes| lanes.first().copied());
        match request {
            Request::Read(r) => of(&r.object),
            Request::Info(r) => of(&r.object),
            Request::Change(r) => of(&r.object).or_else(|| match &r.change {
                Change::Copy { from, .. } => of(from),
                _ => None,
            }),
            Request::List(_)
            | Request::Flush(_)
            | Request::Claim(_)
            | Request::Invalidate(_)
            | Request::RemoveNamespace(..) => {
                let [namespace, _] = request.namespaces();
                let is_in = |object: &ObjectId| namespace.is_none_or(|name| *name == object.namespace);
                let concerned = self.objects.iter().find(|&(object, _)| is_in(object));
                concerned.and_then(|(_, lanes)| lanes.first().copied())
            }
            _ => None,
        }
    }
}
