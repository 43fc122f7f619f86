//! A connection's part of the budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use super::Budget;

/// The bytes that a connection may have outstanding. They return to the budget when it is dropped.
pub(in crate::server) struct Grant {
    budget: Arc<Budget>,
    key: u64,
    is_fixed: bool,
    /// Set when the budget has changed the grant.
    changed: Arc<AtomicBool>,
    /// The last grant that was sent to the client.
    pub(super) announced_bytes: u64,
    /// The last grant that the client has accepted.
    accepted_bytes: u64,
    /// Whether bytes are reserved that the client may no longer use, and that what is outstanding still
    /// takes.
    is_draining: bool,
}

impl Grant {
    pub(super) fn new(
        budget: Arc<Budget>,
        key: u64,
        is_fixed: bool,
        changed: Arc<AtomicBool>,
        bytes: u64,
    ) -> Self {
        let (announced_bytes, accepted_bytes) = (bytes, bytes);
        Self { budget, key, is_fixed, changed, announced_bytes, accepted_bytes, is_draining: false }
    }

    /// Returns the most bytes that the client may have outstanding, by any grant that it may still follow.
    pub(in crate::server) fn bytes(&self) -> u64 {
        self.announced_bytes.max(self.accepted_bytes)
    }

    /// Whether a change was announced to the client that it has not accepted yet.
    pub(in crate::server) fn is_unaccepted(&self) -> bool {
        self.announced_bytes != self.accepted_bytes
    }

    /// Whether the grant never changes: the client may not request more.
    pub(in crate::server) fn is_fixed(&self) -> bool {
        self.is_fixed
    }

    /// Ready once a fixed grant is there in full; at once for others.
    pub(in crate::server) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_fixed {
            return Poll::Ready(());
        }
        let mut state = self.budget.state.lock();
        let Some(member) = state.members.get_mut(&self.key) else { return Poll::Ready(()) };
        if member.demand_bytes > 0 {
            member.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        (self.announced_bytes, self.accepted_bytes) = (member.target_bytes, member.target_bytes);
        Poll::Ready(())
    }

    /// Returns the grant to announce to the client, if it has changed. `waker` is woken when it changes
    /// again.
    pub(in crate::server) fn take_change(&mut self, waker: &Waker) -> Option<u64> {
        // One announcement at a time.
        if self.is_unaccepted() {
            return None;
        }
        if !self.changed.load(Ordering::Acquire) {
            return None;
        }
        let mut state = self.budget.state.lock();
        let member = state.members.get_mut(&self.key)?;
        self.changed.store(false, Ordering::Release);
        member.waker = Some(waker.clone());
        let bytes = member.target_bytes;
        drop(state);
        if bytes == self.announced_bytes {
            self.acknowledge(bytes);
            // Raised and lowered again before it was announced: what was reserved in between is returned.
            self.is_draining = true;
            return None;
        }
        self.announced_bytes = bytes;
        Some(bytes)
    }

    /// Has `waker` woken when the grant changes.
    pub(in crate::server) fn register(&self, waker: &Waker) {
        let mut state = self.budget.state.lock();
        let has_changed = self.changed.load(Ordering::Acquire);
        if let Some(member) = state.members.get_mut(&self.key) {
            member.waker = Some(waker.clone());
        }
        drop(state);
        if has_changed {
            waker.wake_by_ref();
        }
    }

    /// Called when the client accepts a grant of `bytes` while `cost_bytes` are outstanding.
    ///
    /// # Errors
    /// The violation, if that is not the grant that was announced: close the connection.
    pub(in crate::server) fn accept(&mut self, bytes: u64, cost_bytes: u64) -> Result<(), &'static str> {
        if !self.is_unaccepted() || bytes != self.announced_bytes {
            return Err("it accepts a grant that it was not given");
        }
        self.accepted_bytes = bytes;
        self.is_draining = true;
        self.acknowledge(bytes);
        self.release_unused(cost_bytes);
        Ok(())
    }

    /// Records that the client knows of a grant of `bytes`. If that is what it requested, it can be taken
    /// back from now on.
    fn acknowledge(&self, bytes: u64) {
        let mut state = self.budget.state.lock();
        let Some(member) = state.members.get_mut(&self.key) else { return };
        if !member.is_served || bytes < member.target_bytes {
            return;
        }
        member.is_served = false;
        let wakers = self.budget.distribute(&mut state);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns to the budget what is no longer needed, now that `cost_bytes` are outstanding.
    pub(in crate::server) fn release_unused(&mut self, cost_bytes: u64) {
        if !self.is_draining {
            return;
        }
        let mut state = self.budget.state.lock();
        let Some(member) = state.members.get_mut(&self.key) else { return };
        let may_use = member.target_bytes.max(self.announced_bytes).max(self.accepted_bytes);
        let needed = may_use.max(cost_bytes);
        let freed = member.reserved_bytes.saturating_sub(needed);
        self.is_draining = member.reserved_bytes - freed > may_use;
        if freed == 0 {
            return;
        }
        member.reserved_bytes -= freed;
        state.left_bytes += freed.cast_signed();
        let wakers = self.budget.distribute(&mut state);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Called when the client has a request that costs `bytes`.
    pub(in crate::server) fn demand(&self, bytes: u64) {
        let mut state = self.budget.state.lock();
        self.budget.demand(&mut state, self.key, bytes);
        let wakers = self.budget.distribute(&mut state);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let mut state = self.budget.state.lock();
        let Some(member) = state.members.remove(&self.key) else { return };
        state.left_bytes += member.reserved_bytes.cast_signed() - state.division.share_bytes.cast_signed();
        if member.is_fixed {
            state.fixed_count -= 1;
        }
        let key = self.key;
        state.demanding.retain(|demanding| *demanding != key);
        let wakers = self.budget.distribute(&mut state);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}
