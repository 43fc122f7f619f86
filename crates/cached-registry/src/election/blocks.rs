//! Election by agreement on plain blocks: a shared disk, or a file on one host.
//!
//! The leader enters a new epoch of the [agreement](crate::agreement) in every *epoch time* T, with
//! its own number as the value. This is its renewal, which costs one write and one read of all
//! blocks. A standby that has seen no change of another node's block for 3 T, on its own clock,
//! enters the next epoch. The leader serves for 2 T from the moment before a renewal began.
//!
//! The agreement makes sure that an epoch has one leader, but two nodes may enter different epochs at
//! the same time, one of them with outdated knowledge. So a node gives up its attempt if, after its
//! ballot was written, another node's block is no longer as it was during the wait: that node may have
//! become the leader of an earlier epoch in between. (If it reads the blocks only after the ballot was
//! written, it finds the later epoch and gives up itself.) Only changes within the epoch that both
//! were in before do not matter, because the agreement decides there. For the same reason a leader
//! whose renewal has failed enters the same epoch again, not the next one.
//!
//! A leadership keeps, for the claim in the store, the epoch in which it began: the store is claimed
//! when the leader changes, not with each renewal. A leader steps down by entering an epoch with its
//! successor's number as the value. A node that starts is suspended: it waits like any other standby,
//! even if its previous process was the leader.

use std::time::Duration;

use blocker::{Epoch, Timestamp};

use super::elector::Cause;
use super::tenure::{Claim, Leaderships, Tenure};
use super::{Action, Claimed, LeaseRule, NEVER, Role};
use crate::agreement::{Agreement, Block, Step, Usurped, highest_vote, latest_epoch};

/// The value of an epoch in which the leader has stepped down in favour of any other node.
const NOBODY: u64 = u64::MAX;

/// The value of an epoch in which the leader has stepped down in favour of the next process of its
/// own node.
const SUCCESSOR: u64 = u64::MAX - 1;

/// The number of epoch times in a lease.
const LEASE_EPOCHS: u32 = 3;

/// The number of different times at which standbys begin.
const TURNS: u32 = 16;

/// The number of restarts after which a node leaves an epoch to the others.
const RESTARTS_MAX: u32 = 8;

/// The minimum epoch time, as a multiple of the time that an epoch takes.
const MARGIN: u32 = 10;

/// Returns the minimum epoch time for `nodes` nodes, if a read or a write of one block takes
/// `block_time`: ten times the duration of three phases, each of which accesses all blocks.
#[must_use]
pub(crate) fn epoch_time_min(nodes: usize, block_time: Duration) -> Duration {
    let blocks = u32::try_from(nodes).unwrap_or(u32::MAX).saturating_mul(3 * MARGIN);
    block_time.saturating_mul(blocks)
}

/// Checks an epoch time against the minimum.
///
/// # Errors
/// Returns one line if the time is too short.
pub(crate) fn check_epoch_time(time: Duration, nodes: usize, block_time: Duration) -> Result<(), String> {
    let least = epoch_time_min(nodes, block_time);
    if time >= least {
        return Ok(());
    }
    Err(format!(
        "is {}; with {nodes} nodes and {:.1} ms for a block it must be at least {}",
        time.as_millis(),
        block_time.as_secs_f64() * 1e3,
        least.as_micros().div_ceil(1000),
    ))
}

/// An operation on the blocks. The driver waits for its end: a write on which the kernel is still
/// working has not ended.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum BlockOp {
    /// Read the blocks of all nodes, and call [`BlockElection::read`] or [`BlockElection::failed`].
    Read,
    /// Write the node's own block. When it is stored, call [`BlockElection::written`], otherwise
    /// [`BlockElection::failed`].
    Write(Block),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum UnderWay {
    /// A read of the other nodes' blocks, which began at this time.
    Look(Timestamp),
    /// A step of the agreement.
    Step,
}

/// The state of one node in the election.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct BlockElection {
    me: usize,
    /// The leaderships, whose successor is named by the value of an epoch.
    pub(super) own: Leaderships<u64>,
    epoch_time: Duration,
    /// The agreement; `None` until the node's own block was read.
    agreement: Option<Agreement>,
    /// The latest epoch.
    latest: u64,
    /// The blocks of the other nodes, and the time at which this node noticed their last change, on
    /// its own clock.
    seen: Option<(Vec<Block>, Timestamp)>,
    /// The last value that was voted for in that epoch, and the node that cast the vote.
    vote: Option<(usize, u64)>,
    look_at: Timestamp,
    renew_at: Timestamp,
    under_way: Option<UnderWay>,
    /// The next step of the agreement, and when the node entered the epoch.
    step: Option<BlockOp>,
    began: Timestamp,
    /// The number of this node's failed attempts to lead since another node last led.
    given_up: u32,
}

impl BlockElection {
    /// Returns the state of node `me`, counted from 0, with this epoch time, which must be the same
    /// on all nodes.
    #[must_use]
    pub(crate) fn new(me: usize, epoch_time: Duration) -> Self {
        Self {
            me,
            own: Leaderships::new(epoch_time * LEASE_EPOCHS),
            epoch_time,
            agreement: None,
            latest: 0,
            seen: None,
            vote: None,
            look_at: Timestamp(0),
            renew_at: NEVER,
            under_way: None,
            step: None,
            began: Timestamp(0),
            given_up: 0,
        }
    }

    /// Returns the number of this node.
    #[must_use]
    pub(crate) fn node(&self) -> usize {
        self.me
    }

    /// Returns this node's part at `now`.
    #[must_use]
    pub(crate) fn role(&self, now: Timestamp) -> Role {
        self.own.role(now)
    }

    /// Returns the other node that leads, unless this node has noticed no renewal for the duration
    /// of the lease.
    #[must_use]
    pub(crate) fn leader(&self, now: Timestamp) -> Option<usize> {
        let (_, value) = self.vote?;
        let (seen, at) = self.seen.as_ref()?;
        let leader = usize::try_from(value).ok().filter(|leader| *leader != self.me)?;
        let block = seen.get(leader)?;
        // An earlier leader that has offered it the epoch may have voted after it, for the same value.
        let has_voted = block.counter == self.latest && block.voted > 0 && block.value == value;
        (has_voted && now < *at + self.own.lease).then_some(leader)
    }

    /// Makes the leader step down in favour of node `to`, of any other node if `to` is `None`, or
    /// of the next process of this node if `to` is this node. The leader stops serving as soon as
    /// this returns, so it must have stored its changes before. Without leadership, this does
    /// nothing.
    pub(crate) fn step_down(&mut self, to: Option<usize>) {
        let value = |to: usize| if to == self.me { SUCCESSOR } else { to as u64 };
        self.own.step_down(to.map_or(NOBODY, value));
    }

    /// Returns whether a release must be written.
    #[must_use]
    pub(crate) fn is_releasing(&self) -> bool {
        self.own.release.is_some()
    }

    /// Returns why this standby may take the lease when the lease is free; `None` before the first
    /// read.
    #[must_use]
    pub(crate) fn vacancy(&self) -> Option<Cause> {
        self.agreement.as_ref()?;
        Some(match self.vote {
            None if self.latest == 0 => Cause::Vacant,
            Some(_) if self.is_offered() => Cause::Offered,
            _ => Cause::Expired,
        })
    }

    /// Ends a leadership because the store has `epoch` in force. After a while this node takes part
    /// again, with a higher epoch. Returns whether there was such a leadership.
    pub(crate) fn fenced(&mut self, now: Timestamp, epoch: Epoch) -> bool {
        let is_refused = self.own.is_fenced(epoch);
        if is_refused {
            self.lose(now);
            self.own.rest(now + self.epoch_time);
        }
        is_refused
    }

    /// Returns whether the leader has stepped down for this node, or for any.
    fn is_offered(&self) -> bool {
        self.vote.is_some_and(|(voter, value)| match voter == self.me {
            true => value == SUCCESSOR,
            false => value == self.me as u64 || value == NOBODY,
        })
    }

    /// Makes the node read the blocks immediately.
    pub(crate) fn look(&mut self, now: Timestamp) {
        self.look_at = self.look_at.min(now);
    }

    /// Returns what to do now.
    pub(crate) fn next(&mut self, now: Timestamp) -> Action<BlockOp> {
        if self.own.has_lapsed(now) {
            self.lose(now);
        }
        if let Some(epoch) = self.own.begin_claim(now) {
            return Action::Claim(epoch);
        }
        let wake_at = self.own.wake_at();
        if self.under_way.is_some() {
            return Action::Wait(wake_at);
        }
        if self.step.is_none() {
            match self.entry_at() {
                _ if now >= self.look_at => {
                    self.under_way = Some(UnderWay::Look(now));
                    return Action::Do(BlockOp::Read);
                }
                at if now >= at => self.enter(now),
                at => return Action::Wait(at.min(self.look_at).min(wake_at)),
            }
        }
        match self.step.take() {
            Some(op) => {
                self.under_way = Some(UnderWay::Step);
                Action::Do(op)
            }
            None => Action::Wait(self.look_at.min(wake_at)),
        }
    }

    /// Handles the blocks of all nodes, in the order of their numbers.
    ///
    /// # Errors
    /// Returns [`Usurped`]. This node must stop.
    ///
    /// # Panics
    /// Panics if `blocks` lacks the block of this node.
    pub(crate) fn read(&mut self, now: Timestamp, blocks: &[Block]) -> Result<(), Usurped> {
        let under_way = self.under_way.take();
        let is_step = under_way == Some(UnderWay::Step);
        let own = blocks[self.me];
        let agreement = self.agreement.get_or_insert_with(|| Agreement::new(self.me, own));
        let target = agreement.counter();
        let is_outdated = is_step
            && agreement.is_entering()
            && self.seen.as_ref().is_some_and(|(seen, _)| {
                let mut pairs = blocks.iter().zip(seen).enumerate().filter(|(node, _)| *node != self.me);
                pairs.any(|(_, (now, seen))| now != seen && (now.counter, seen.counter) != (target, target))
            });
        let is_outdated = is_outdated && self.own.keeps(LeaseRule::GiveUp);
        let Some(agreement) = self.agreement.as_mut().filter(|_| is_step) else {
            self.agreement.as_ref().map_or(Ok(()), |agreement| agreement.check(own))?;
            self.note(now, blocks);
            self.look_at = match under_way {
                _ if self.own.tenure.is_some() => NEVER,
                // A read that was slow, or that began before this host was suspended, is too old to
                // act on.
                Some(UnderWay::Look(began)) if now.since(began) > self.epoch_time / 2 => now,
                _ => now + self.epoch_time / 2,
            };
            return Ok(());
        };
        if is_outdated {
            agreement.failed();
            self.note(now, blocks);
            self.given_up = self.given_up.wrapping_add(1);
            self.stand_by(now);
            return Ok(());
        }
        let step = agreement.read(blocks)?;
        self.note(now, blocks);
        self.follow(now, step);
        Ok(())
    }

    /// Continues after the node's own block was stored.
    pub(crate) fn written(&mut self, now: Timestamp) {
        self.under_way = None;
        if let Some(agreement) = &mut self.agreement {
            let step = agreement.written();
            self.follow(now, step);
        }
    }

    /// Records that the operation in progress has failed. A write may have been executed.
    pub(crate) fn failed(&mut self, now: Timestamp) {
        let is_step = self.under_way.take() == Some(UnderWay::Step);
        if let Some(agreement) = self.agreement.as_mut().filter(|_| is_step) {
            agreement.failed();
        }
        self.retry(now);
    }

    /// Handles the outcome of the claim.
    pub(crate) fn claimed(&mut self, now: Timestamp, outcome: Claimed) {
        self.own.claimed(now, outcome, NOBODY);
    }

    /// Records the latest epoch and its vote, and whether another node's block has changed.
    fn note(&mut self, now: Timestamp, blocks: &[Block]) {
        self.latest = latest_epoch(blocks);
        self.vote = highest_vote(blocks, self.latest);
        let mut others = blocks.to_vec();
        others[self.me] = Block::default();
        if self.seen.as_ref().is_none_or(|(seen, _)| *seen != others) {
            self.seen = Some((others, now));
            if self.vote.is_some_and(|(voter, value)| voter as u64 == value) {
                self.given_up = 0;
            }
        }
    }

    /// Returns when to enter an epoch.
    fn entry_at(&self) -> Timestamp {
        match &self.own.tenure {
            Some(tenure) => match tenure.claim {
                _ if self.own.release.is_some() => self.renew_at.min(self.began + self.epoch_time / 8),
                Claim::Fenced(_) => self.renew_at.min(self.began + self.epoch_time / 8),
                _ => self.renew_at,
            },
            None => self.own.resting_until.max(self.take_at()),
        }
    }

    /// Returns the time from which this standby may take the lease.
    fn take_at(&self) -> Timestamp {
        let is_free = self.vote.is_none() && self.latest == 0;
        if is_free || self.is_offered() || !self.own.keeps(LeaseRule::Patience) {
            return Timestamp(0);
        }
        // Standbys do not all begin simultaneously. After a conflict they wait for different times,
        // because their clocks may differ by exactly the previous difference.
        let node = u32::try_from(self.me).unwrap_or(0);
        let turn = node.wrapping_add(self.given_up.wrapping_mul(2 * node + 1)) % TURNS;
        let patience = self.own.lease + self.epoch_time / 8 * turn;
        self.seen.as_ref().map_or(NEVER, |(_, at)| *at + patience)
    }

    /// Enters an epoch, for this leader's renewal or release, or for this standby's attempt.
    fn enter(&mut self, now: Timestamp) {
        let Some(agreement) = &mut self.agreement else { return };
        self.began = now;
        let me = self.me as u64;
        let value = if self.own.tenure.is_some() { self.own.release.unwrap_or(me) } else { me };
        let is_fenced = matches!(&self.own.tenure, Some(Tenure { claim: Claim::Fenced(_), .. }));
        let next = if self.own.tenure.is_some() && !is_fenced { agreement.enter_next(value) } else { None };
        // A leader that has offered this node the lease has voted for it in the latest epoch.
        let is_offered =
            self.own.tenure.is_none() && self.vote.is_some_and(|(voter, to)| voter != self.me && to == me);
        let latest = self.latest.max(agreement.block().counter).max(self.own.used);
        let counter = match &self.own.tenure {
            // Another node may have become the leader in an epoch that this leader has not finished.
            Some(_) if !agreement.has_won() => agreement.counter(),
            None if is_offered && self.latest == latest => latest,
            _ => latest.saturating_add(1),
        };
        let step = next.unwrap_or_else(|| agreement.enter(counter, value));
        self.follow(now, step);
    }

    fn follow(&mut self, now: Timestamp, step: Step) {
        let Some(agreement) = &mut self.agreement else { return };
        match step {
            Step::Write(_) if agreement.restarts() > RESTARTS_MAX => {
                agreement.failed();
                self.retry(now);
            }
            Step::Write(block) => self.step = Some(BlockOp::Write(block)),
            Step::Read => self.step = Some(BlockOp::Read),
            Step::Decided(value) if value == self.me as u64 => {
                let counter = agreement.block().counter;
                self.has_won(now, counter);
            }
            Step::Decided(_) | Step::Suspended { .. } => self.stand_by(now),
        }
    }

    /// Leaves the lease to other nodes, and begins to wait.
    fn stand_by(&mut self, now: Timestamp) {
        self.lose(now);
        self.look_at = now + self.epoch_time / 2;
        if let Some((_, at)) = &mut self.seen {
            *at = now;
        }
    }

    /// Begins or renews the leadership after the epoch `counter` was decided for this node.
    fn has_won(&mut self, now: Timestamp, counter: u64) {
        if self.own.has_lapsed(now) {
            self.lose(now);
        }
        if self.own.is_resting(now) {
            return;
        }
        let until = self.own.serves_until(self.began, now);
        self.own.lead(counter, until, |tenure| !matches!(tenure.claim, Claim::Fenced(_)));
        (self.renew_at, self.look_at) = (self.began + self.epoch_time, NEVER);
    }

    fn lose(&mut self, now: Timestamp) {
        self.own.end(now);
        (self.renew_at, self.look_at) = (NEVER, now);
    }

    /// Schedules a failed operation to be repeated.
    fn retry(&mut self, now: Timestamp) {
        let at = now + self.epoch_time / 8;
        match self.own.tenure {
            Some(_) => (self.renew_at, self.began) = (at, now),
            None => {
                self.look_at = at;
                self.own.rest(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(8);

    fn at(secs: u64) -> Timestamp {
        Timestamp(secs * 1_000_000_000)
    }

    /// Executes the node's operations at `now` until the node waits. Claims are granted.
    fn run(node: &mut BlockElection, disk: &mut [Block], now: Timestamp) -> Vec<BlockOp> {
        let mut ops = Vec::new();
        loop {
            match node.next(now) {
                Action::Do(op) => {
                    match &op {
                        BlockOp::Read => node.read(now, disk).unwrap(),
                        BlockOp::Write(block) => {
                            disk[node.me] = *block;
                            node.written(now);
                        }
                    }
                    ops.push(op);
                }
                Action::Claim(_) => node.claimed(now, Claimed::Granted),
                Action::Wait(_) => return ops,
            }
        }
    }

    fn nodes() -> (BlockElection, BlockElection, [Block; 2]) {
        (BlockElection::new(0, T), BlockElection::new(1, T), [Block::default(); 2])
    }

    #[test]
    fn a_leader_renews_by_one_write_and_one_read_and_keeps_its_claim() {
        let (mut a, mut b, mut disk) = nodes();
        run(&mut a, &mut disk, at(100));
        assert_eq!(a.role(at(100)), Role::Leader(Epoch(1), at(116)));
        run(&mut b, &mut disk, at(3));
        assert_eq!((b.role(at(3)), b.leader(at(3))), (Role::Standby, Some(0)));
        let ops = run(&mut a, &mut disk, at(108));
        assert!(matches!(ops[..], [BlockOp::Write(_), BlockOp::Read]), "{ops:?}");
        assert_eq!((a.role(at(108)), disk[0].counter), (Role::Leader(Epoch(1), at(124)), 2));
    }

    #[test]
    fn a_standby_takes_over_after_three_epoch_times_without_a_new_epoch() {
        let (mut a, mut b, mut disk) = nodes();
        run(&mut a, &mut disk, at(100));
        run(&mut b, &mut disk, at(3));
        run(&mut b, &mut disk, at(27));
        assert_eq!(b.role(at(27)), Role::Standby);
        run(&mut b, &mut disk, at(28));
        assert_eq!(b.role(at(28)), Role::Leader(Epoch(2), at(44)));
        run(&mut a, &mut disk, at(108));
        assert_eq!(a.role(at(108)), Role::Standby);
    }

    #[test]
    fn a_node_that_returns_is_suspended() {
        let (mut a, _, mut disk) = nodes();
        run(&mut a, &mut disk, at(100));
        let mut returned = BlockElection::new(0, T);
        run(&mut returned, &mut disk, at(101));
        assert_eq!(returned.role(at(101)), Role::Standby);
        run(&mut returned, &mut disk, at(125));
        assert_eq!(returned.role(at(125)), Role::Leader(Epoch(2), at(141)));
    }

    #[test]
    fn a_leader_steps_down_for_its_successor() {
        for to in [Some(1), None] {
            let (mut a, mut b, mut disk) = nodes();
            run(&mut a, &mut disk, at(100));
            run(&mut b, &mut disk, at(3));
            a.step_down(to);
            assert_eq!(a.role(at(102)), Role::Standby);
            run(&mut a, &mut disk, at(102));
            b.look(at(5));
            run(&mut b, &mut disk, at(5));
            assert!(matches!(b.role(at(5)), Role::Leader(Epoch(2 | 3), _)), "{to:?}: {b:?}");
            a.look(at(103));
            run(&mut a, &mut disk, at(103));
            assert_eq!((a.role(at(103)), a.leader(at(103))), (Role::Standby, Some(1)));
        }
    }

    #[test]
    fn a_leader_that_still_steps_down_knows_who_has_taken_its_place() {
        let (mut a, mut b, mut disk) = nodes();
        run(&mut a, &mut disk, at(100));
        run(&mut b, &mut disk, at(3));
        a.step_down(Some(1));
        let Action::Do(BlockOp::Write(offer)) = a.next(at(102)) else { panic!("{a:?}") };
        disk[0] = offer;
        a.written(at(102));
        b.look(at(5));
        run(&mut b, &mut disk, at(5));
        assert!(matches!(b.role(at(5)), Role::Leader(..)), "{b:?}");
        run(&mut a, &mut disk, at(103));
        assert!(disk[0].voted > disk[1].voted, "it votes once more: {disk:?}");
        assert_eq!((a.role(at(103)), a.leader(at(103))), (Role::Standby, Some(1)));
    }

    #[test]
    fn a_leader_steps_down_for_the_next_process_of_its_node() {
        let (mut a, mut b, mut disk) = nodes();
        run(&mut a, &mut disk, at(100));
        run(&mut b, &mut disk, at(3));
        a.step_down(Some(0));
        run(&mut a, &mut disk, at(102));
        b.look(at(5));
        run(&mut b, &mut disk, at(5));
        a.look(at(103));
        run(&mut a, &mut disk, at(103));
        assert_eq!((a.role(at(103)), b.role(at(5))), (Role::Standby, Role::Standby));
        let mut next = BlockElection::new(0, T);
        run(&mut next, &mut disk, at(104));
        assert!(matches!(next.role(at(104)), Role::Leader(Epoch(3), _)), "{next:?}");
    }

    #[test]
    fn a_fenced_leader_returns_with_a_higher_epoch() {
        let (mut a, _, mut disk) = nodes();
        run(&mut a, &mut disk, at(100));
        assert!(a.fenced(at(101), Epoch(7)));
        assert!(!a.fenced(at(101), Epoch(7)));
        run(&mut a, &mut disk, at(101));
        assert_eq!(a.role(at(101)), Role::Standby);
        run(&mut a, &mut disk, at(140));
        assert!(matches!(a.role(at(140)), Role::Leader(Epoch(8), _)), "{a:?}");
    }

    #[test]
    fn the_epoch_time_follows_from_the_time_of_a_block() {
        let block = Duration::from_millis(4);
        assert_eq!(epoch_time_min(5, block), Duration::from_millis(600));
        assert_eq!(epoch_time_min(5, block * 10), Duration::from_secs(6));
        assert_eq!(check_epoch_time(Duration::from_millis(600), 5, block), Ok(()));
        assert_eq!(
            check_epoch_time(Duration::from_millis(100), 5, block).unwrap_err(),
            "is 100; with 5 nodes and 4.0 ms for a block it must be at least 600"
        );
    }
}
