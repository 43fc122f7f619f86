//! A connection's part of the memory budget, and the measurement of how fast its client sends and
//! receives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use blocker::Timestamp;

use super::Budget;

/// The bytes that a connection may have outstanding. Dropping the grant returns them to the budget,
/// so drop it after the buffers that it counts.
#[derive(Debug)]
pub struct Grant {
    pub(super) budget: Arc<Budget>,
    pub(super) key: u64,
    pub(super) is_fixed: bool,
    /// Set when the budget has changed the grant.
    pub(super) changed: Arc<AtomicBool>,
    /// The last grant that was sent to the client.
    pub(super) announced_bytes: u64,
    /// The last grant that the client has accepted.
    pub(super) accepted_bytes: u64,
    /// Whether the grant has shrunk below the outstanding bytes, so that bytes which the client may
    /// no longer use are still reserved.
    pub(super) is_draining: bool,
    /// Whether the budget has been told that the client is slow.
    pub(super) is_slow: bool,
    /// The bytes that were still outstanding when the connection stopped taking requests.
    pub(super) retired_bytes: u64,
    /// Whether there were unmet demands at the last call of `is_slowest`.
    pub(super) has_seen_demands: bool,
    /// The present period in which the server waits for the client.
    pub(super) turn: Option<Turn>,
}

impl Grant {
    /// Returns the maximum number of bytes that the client may have outstanding: the larger of the
    /// announced and the accepted grant, because the client may follow either.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.announced_bytes.max(self.accepted_bytes)
    }

    /// Returns whether the client has not yet accepted a change that was announced to it.
    #[must_use]
    pub fn is_unaccepted(&self) -> bool {
        self.announced_bytes != self.accepted_bytes
    }

    /// Returns whether the grant never changes, so that the client cannot request more.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        self.is_fixed
    }

    /// Is ready once a fixed grant is available in full; for other grants, immediately.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
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

    /// Returns the grant to be announced to the client if it has changed. `waker` is woken at the
    /// next change.
    pub fn take_change(&mut self, waker: &Waker) -> Option<u64> {
        // There is at most one unaccepted announcement.
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
            // The grant rose and fell again before it was announced. The bytes reserved in between
            // are returned.
            self.is_draining = true;
            return None;
        }
        self.announced_bytes = bytes;
        Some(bytes)
    }

    /// Registers `waker` to be woken when the grant changes.
    pub fn register(&self, waker: &Waker) {
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

    /// Records that the client has accepted a grant of `bytes` while `cost_bytes` are outstanding.
    ///
    /// # Errors
    /// Returns the client's violation if that is not the announced grant. Close the connection.
    pub fn accept(&mut self, bytes: u64, cost_bytes: u64) -> Result<(), &'static str> {
        if !self.is_unaccepted() || bytes != self.announced_bytes {
            return Err("it has accepted a grant that it was not given");
        }
        self.accepted_bytes = bytes;
        self.is_draining = true;
        self.acknowledge(bytes);
        self.release_unused(cost_bytes);
        Ok(())
    }

    /// Records that the client knows of a grant of `bytes`. If the grant covers the client's
    /// demand, the budget may take it back from now on.
    fn acknowledge(&self, bytes: u64) {
        let mut state = self.budget.state.lock();
        let Some(member) = state.members.get_mut(&self.key) else { return };
        if !member.is_served || bytes < member.target_bytes {
            return;
        }
        member.is_served = false;
        self.budget.redistribute(state);
    }

    /// Returns to the budget the bytes that the connection no longer needs, now that `cost_bytes`
    /// are outstanding.
    pub fn release_unused(&mut self, cost_bytes: u64) {
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
        self.budget.redistribute(state);
    }

    /// Applies the budget's changes immediately, for a protocol that does not announce them.
    /// `cost_bytes` are outstanding; `waker` is woken at the next change.
    pub fn follow(&mut self, waker: &Waker, cost_bytes: u64) {
        while let Some(bytes) = self.take_change(waker) {
            // The accepted value is the announced one, so this cannot fail.
            let _ = self.accept(bytes, cost_bytes);
        }
        self.release_unused(cost_bytes);
    }

    /// Records that the server waits for the client to send or to receive `client_bytes`. So far,
    /// the client has sent and received `moved_bytes` in total. Returns whether the wait begins
    /// with this call: a [`look`](Self::look) is then due [`LOOK_TIME`] later.
    pub fn begin_turn(
        &mut self,
        now: impl FnOnce() -> Timestamp,
        client_bytes: u64,
        moved_bytes: u64,
    ) -> bool {
        let begins = self.turn.is_none();
        self.turn.get_or_insert_with(|| Turn { begun_at: now(), client_bytes, moved_bytes });
        begins
    }

    /// Returns the time for which the client has made too little progress, and whether to close the
    /// connection because others need the memory that it holds for its client. This is the case if
    /// `client_bytes` exceed its share, and it is the slowest of all clients.
    ///
    /// This must be called every [`LOOK_TIME`] while the server waits for the client.
    pub fn look(&mut self, now: Timestamp, client_bytes: u64, moved_bytes: u64) -> (Duration, bool) {
        let turn = self.turn.as_mut();
        let waiting = turn.map_or(Duration::ZERO, |turn| turn.waiting(now, client_bytes, moved_bytes));
        (waiting, self.is_slowest(waiting, client_bytes))
    }

    pub(super) fn is_slowest(&mut self, waiting: Duration, client_bytes: u64) -> bool {
        let mut state = self.budget.state.lock();
        let share_bytes = state.division.share_bytes;
        let Some(member) = state.members.get_mut(&self.key) else { return false };
        let kept_bytes = client_bytes.min(member.reserved_bytes).saturating_sub(share_bytes);
        let is_slow = waiting >= SLOW_TIME && kept_bytes > 0;
        member.slowness = if is_slow { u128::from(kept_bytes) * waiting.as_millis() } else { 0 };
        self.is_slow = is_slow;
        let own = member.slowness;
        let has_demands = !state.demanding.is_empty();
        let had_demands = std::mem::replace(&mut self.has_seen_demands, has_demands);
        if !is_slow || !had_demands || !has_demands || Budget::missing_bytes(&state) == 0 {
            return false;
        }
        if state.members.values().any(|member| !member.is_ending && member.slowness > own) {
            return false;
        }
        if let Some(member) = state.members.get_mut(&self.key) {
            member.is_ending = true;
        }
        true
    }

    /// Records that the connection accepts no more requests. Its outstanding `cost_bytes` stay
    /// reserved until the grant is dropped; the rest is available to others immediately.
    pub fn retire(&mut self, cost_bytes: u64) {
        let mut state = self.budget.state.lock();
        let Some(member) = state.members.remove(&self.key) else { return };
        state.left_bytes += member.reserved_bytes.cast_signed() - state.division.share_bytes.cast_signed();
        if member.is_fixed {
            state.fixed_count -= 1;
        }
        state.retired_bytes += cost_bytes;
        state.left_bytes -= cost_bytes.cast_signed();
        self.retired_bytes = cost_bytes;
        let key = self.key;
        state.demanding.retain(|(_, demanding)| *demanding != key);
        self.budget.redistribute(state);
    }

    /// Records that the server no longer waits for the client.
    pub fn end_turn(&mut self) {
        self.turn = None;
        if std::mem::take(&mut self.is_slow)
            && let Some(member) = self.budget.state.lock().members.get_mut(&self.key)
        {
            member.slowness = 0;
        }
    }

    /// Records that the client no longer has the request for which it [demanded](Self::demand) bytes
    /// that it has not been granted. A fixed grant stays in demand.
    pub fn withdraw(&self) {
        let mut state = self.budget.state.lock();
        let key = self.key;
        let Some(member) = state.members.get_mut(&key).filter(|member| !member.is_fixed) else { return };
        if std::mem::take(&mut member.demand_bytes) == 0 {
            return;
        }
        state.demanding.retain(|(_, demanding)| *demanding != key);
        self.budget.redistribute(state);
    }

    /// Records that the client has a request that costs `bytes`.
    pub fn demand(&self, bytes: u64) {
        let mut state = self.budget.state.lock();
        self.budget.demand(&mut state, self.key, bytes);
        self.budget.redistribute(state);
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.retire(0);
        if self.retired_bytes == 0 {
            return;
        }
        let mut state = self.budget.state.lock();
        state.retired_bytes -= self.retired_bytes;
        state.left_bytes += self.retired_bytes.cast_signed();
        self.budget.redistribute(state);
    }
}

/// The interval at which a server examines a client for which it waits ([`Grant::look`]). It gives
/// connections that release memory by themselves time to meet demands, and limits the time for
/// which replies that a client does not receive pin memory of others.
pub const LOOK_TIME: Duration = Duration::from_secs(1);
/// A client without progress for this time is slow: others may get the memory that it holds.
const SLOW_TIME: Duration = Duration::from_secs(2);
/// The part of the outstanding bytes, as a divisor, that a client has to send or receive within
/// [`SLOW_TIME`].
const MOVED_PART: u64 = 8;

/// A period in which the server waits for the client to send or to receive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    begun_at: Timestamp,
    /// The bytes that the client had to send or receive at the start of the period.
    client_bytes: u64,
    /// The bytes that the client had sent and received before.
    moved_bytes: u64,
}

impl Turn {
    /// Returns the time for which the client has made too little progress, with `client_bytes`
    /// still to be sent or received. Sufficient progress starts a new period.
    fn waiting(&mut self, now: Timestamp, client_bytes: u64, moved_bytes: u64) -> Duration {
        let moved = moved_bytes - self.moved_bytes;
        if moved > 0 && moved >= self.client_bytes.min(client_bytes) / MOVED_PART {
            *self = Self { begun_at: now, client_bytes, moved_bytes };
        }
        now.since(self.begun_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_does_its_part_is_not_slow_and_one_that_dribbles_is() {
        let second = |at: u64| Timestamp(at * 1_000_000_000);
        let begun = |client_bytes| Turn { begun_at: second(0), client_bytes, moved_bytes: 0 };
        let (mut quick, mut dribbling) = (begun(800), begun(800));
        for at in 1..=10 {
            assert_eq!(quick.waiting(second(at), 800, 100 * at), Duration::ZERO);
            assert_eq!(dribbling.waiting(second(at), 800, at), Duration::from_secs(at));
        }
        // If less than the required part remains, the remainder counts instead.
        assert_eq!(dribbling.waiting(second(11), 80, 10), Duration::ZERO);
        // A client that does nothing is slow, however little it has to send or receive.
        assert_eq!(begun(4).waiting(second(3), 4, 0), Duration::from_secs(3));
    }
}
