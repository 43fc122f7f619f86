//! Agreement on one value per epoch, through blocks that each node writes and all nodes read.
//!
//! This is the protocol of proactive leader election on a shared disk, a relative of Disk Paxos. A
//! disk offers no compare-and-set, only atomic reads and writes of a block. Each node owns one
//! block, which only it writes:
//!
//! | field | in the literature | meaning |
//! |---|---|---|
//! | `counter` | counter | the epoch in which the node takes part |
//! | `promised` | pbal | the ballot with which the node has entered the epoch |
//! | `voted` | bal | the ballot of the node's last proposal in this epoch; 0 for none |
//! | `value` | val | the value of that proposal |
//!
//! An epoch has three phases:
//!
//! - *Phase 0*: read all blocks; give up if another node is in a later epoch.
//! - *Phase 1*: write a ballot above all others, and read again. Give up on a later epoch; start
//!   again with a higher ballot if another node has a higher one.
//! - *Phase 2*: propose the value of the highest vote in this epoch, or the node's own if there is
//!   none; write the vote, and read again. Give up or start again as in phase 1; otherwise the
//!   value is decided.
//!
//! All nodes that decide in an epoch decide the same value. A node whose own ballot has decided the
//! previous epoch goes straight to phase 2 of the next one, because every other node must choose a
//! higher ballot there: that costs one write and one read, and keeps a leader in office.
//!
//! Ballots of different nodes are compared together with the node's number, so no two are equal. A
//! ballot of an *earlier* epoch counts as well. Otherwise a node could enter an epoch with a ballot
//! below the previous leader's, which skips phase 1, and both would decide.
//!
//! The machine does no I/O. It assumes that a block is written whole or not at all, that a written
//! block is stored, and that a write of a process that has ended takes effect before the next
//! process of this node reads, or never.

/// The content of one node's block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Block {
    /// The epoch in which the node takes part; 0 if it has not taken part in any epoch.
    pub counter: u64,
    /// The ballot with which the node has entered the epoch.
    pub promised: u64,
    /// The ballot of the node's last proposal in this epoch; 0 if it has proposed nothing.
    pub voted: u64,
    /// The value of that proposal.
    pub value: u64,
}

/// Returns the vote that a node must adopt: the one with the highest ballot in epoch `counter`, as
/// the node that cast it and the value.
#[must_use]
pub(crate) fn highest_vote(blocks: &[Block], counter: u64) -> Option<(usize, u64)> {
    let votes = blocks.iter().enumerate().filter(|(_, block)| block.counter == counter && block.voted > 0);
    votes.max_by_key(|(node, block)| (block.voted, *node)).map(|(node, block)| (node, block.value))
}

/// Returns the latest epoch of any node.
#[must_use]
pub(crate) fn latest_epoch(blocks: &[Block]) -> u64 {
    blocks.iter().map(|block| block.counter).max().unwrap_or(0)
}

/// The next step of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Step {
    /// Write the node's block, and call [`Agreement::written`] when it is stored.
    Write(Block),
    /// Read the blocks of all nodes after this step was returned, and pass them to
    /// [`Agreement::read`].
    Read,
    /// The epoch has decided this value.
    Decided(u64),
    /// Another node is in a later epoch.
    Suspended {
        /// That epoch.
        counter: u64,
    },
}

/// The error that the node's own block on the disk is not the one that it wrote: another process
/// writes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("another process writes the block of node {node}: every process needs a node number of its own")]
pub(crate) struct Usurped {
    /// The node.
    pub node: usize,
}

/// The rules of the protocol, each of which a test can break.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Rule {
    /// After a ballot was written, all blocks are read again.
    ReadAfterPromise,
    /// After a vote was written, all blocks are read again.
    ReadAfterVote,
    /// A node adopts a value that another node has voted for.
    Adopt,
    /// The adopted value is the one with the highest ballot.
    AdoptHighest,
    /// A node whose ballot is not the highest one starts again.
    HighestBallot,
    /// Ballots of earlier epochs count too.
    EarlierEpochs,
    /// Only a node whose own ballot decided the previous epoch skips phase 1.
    ShortPath,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    /// The node takes part in no epoch, or its last epoch was not decided by its ballot.
    Idle,
    /// Phase 0: waiting for the blocks.
    Entering,
    /// Phase 1: waiting for the write, then for the blocks.
    Promising,
    Promised,
    /// Phase 2: waiting for the write, then for the blocks.
    Voting,
    Voted,
    /// The epoch was decided by this node's ballot.
    Won,
}

/// The state of one node in the agreement.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Agreement {
    me: usize,
    /// The node's block on the disk, or the block that is being written.
    block: Block,
    /// Whether the block on the disk may be an older one, because a write has failed.
    is_uncertain: bool,
    /// The epoch to enter, and the value to propose in it.
    counter: u64,
    proposal: u64,
    phase: Phase,
    /// The number of restarts in this epoch.
    restarts: u32,
    #[cfg(test)]
    pub(crate) broken: Option<Rule>,
}

impl Agreement {
    /// Returns the state of node `me`, whose block on the disk is `block`. A node that has never
    /// taken part has an empty block.
    #[must_use]
    pub(crate) fn new(me: usize, block: Block) -> Self {
        Self {
            me,
            block,
            is_uncertain: false,
            counter: block.counter,
            proposal: 0,
            phase: Phase::Idle,
            restarts: 0,
            #[cfg(test)]
            broken: None,
        }
    }

    /// Returns whether this node's own ballot has decided the epoch of its block.
    #[must_use]
    pub(crate) fn has_won(&self) -> bool {
        self.phase == Phase::Won && !self.is_uncertain
    }

    /// Returns the node's block, as it is on the disk after the last successful write.
    #[must_use]
    pub(crate) fn block(&self) -> Block {
        self.block
    }

    /// Returns the epoch that the node has entered last, or tries to enter.
    #[must_use]
    pub(crate) fn counter(&self) -> u64 {
        self.counter
    }

    /// Returns whether the next read decides if the node votes, which is the case in phases 0 and
    /// 1.
    #[must_use]
    pub(crate) fn is_entering(&self) -> bool {
        matches!(self.phase, Phase::Entering | Phase::Promised)
    }

    /// Returns how often the node has started again in this epoch because of another node's ballot.
    #[must_use]
    pub(crate) fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Enters the epoch `counter` with phase 0, to propose `proposal`. In an epoch that the node
    /// has entered before, it keeps its vote.
    pub(crate) fn enter(&mut self, counter: u64, proposal: u64) -> Step {
        if counter < self.block.counter {
            return self.suspend(self.block.counter);
        }
        (self.counter, self.proposal, self.restarts) = (counter, proposal, 0);
        self.phase = Phase::Entering;
        Step::Read
    }

    /// Enters the epoch after the one that the node's own ballot has decided, with phase 2. Returns
    /// `None` if the node has not decided such an epoch; then [`Self::enter`] must be used.
    pub(crate) fn enter_next(&mut self, proposal: u64) -> Option<Step> {
        if !self.has_won() && self.keeps(Rule::ShortPath) {
            return None;
        }
        (self.counter, self.proposal, self.restarts) = (self.counter.checked_add(1)?, proposal, 0);
        self.phase = Phase::Voting;
        self.block = Block {
            counter: self.counter,
            promised: self.block.promised,
            voted: self.block.promised,
            value: proposal,
        };
        Some(Step::Write(self.block))
    }

    /// Continues after the block of [`Step::Write`] was stored.
    pub(crate) fn written(&mut self) -> Step {
        self.phase = match self.phase {
            Phase::Promising => Phase::Promised,
            Phase::Voting => Phase::Voted,
            other => other,
        };
        if self.phase == Phase::Voted && !self.keeps(Rule::ReadAfterVote) {
            self.phase = Phase::Won;
            return Step::Decided(self.block.value);
        }
        if self.phase == Phase::Promised && !self.keeps(Rule::ReadAfterPromise) {
            return self.vote(&[]);
        }
        Step::Read
    }

    /// Ends the node's participation in the epoch after a read or a write has failed. The block on
    /// the disk is the old or the new one; the next [`Self::enter`] determines which.
    pub(crate) fn failed(&mut self) {
        self.is_uncertain |= matches!(self.phase, Phase::Promising | Phase::Voting);
        self.phase = Phase::Idle;
    }

    /// Checks the node's own block on the disk while no write of it is in progress.
    ///
    /// # Errors
    /// Returns [`Usurped`]. The node must stop.
    pub(crate) fn check(&self, own: Block) -> Result<(), Usurped> {
        let is_ours = self.is_uncertain || own == self.block;
        if is_ours { Ok(()) } else { Err(Usurped { node: self.me }) }
    }

    /// Continues with the blocks of all nodes, in the order of their numbers.
    ///
    /// # Errors
    /// Returns [`Usurped`]. The node must stop.
    ///
    /// # Panics
    /// Panics if `blocks` lacks the block of this node.
    pub(crate) fn read(&mut self, blocks: &[Block]) -> Result<Step, Usurped> {
        let own = blocks[self.me];
        if self.is_uncertain && self.phase == Phase::Entering {
            (self.block, self.is_uncertain) = (own, false);
        }
        self.check(own).inspect_err(|_| self.phase = Phase::Idle)?;
        let latest = latest_epoch(blocks);
        if latest > self.counter {
            return Ok(self.suspend(latest));
        }
        let is_outbid = self.highest_ballot(blocks) > (self.block.promised, self.me);
        Ok(match self.phase {
            Phase::Entering => self.promise(blocks),
            Phase::Promised | Phase::Voted if is_outbid && self.keeps(Rule::HighestBallot) => {
                self.restarts += 1;
                self.promise(blocks)
            }
            Phase::Promised => self.vote(blocks),
            Phase::Voted => {
                self.phase = Phase::Won;
                Step::Decided(self.block.value)
            }
            Phase::Idle | Phase::Promising | Phase::Voting | Phase::Won => Step::Read,
        })
    }

    /// Returns the highest ballot of all nodes, and its node.
    fn highest_ballot(&self, blocks: &[Block]) -> (u64, usize) {
        let counts = |block: &Block| block.counter == self.counter || self.keeps(Rule::EarlierEpochs);
        let ballots = blocks.iter().enumerate().filter(|(_, block)| counts(block));
        ballots.map(|(node, block)| (block.promised, node)).max().unwrap_or_default()
    }

    /// Begins phase 1.
    fn promise(&mut self, blocks: &[Block]) -> Step {
        let Some(promised) = self.highest_ballot(blocks).0.max(self.block.promised).checked_add(1) else {
            // Only a damaged block has such a ballot.
            return self.suspend(self.counter);
        };
        self.phase = Phase::Promising;
        let vote = if self.block.counter == self.counter { self.block } else { Block::default() };
        self.block = Block { counter: self.counter, promised, ..vote };
        Step::Write(self.block)
    }

    /// Begins phase 2.
    fn vote(&mut self, blocks: &[Block]) -> Step {
        let vote = match self.keeps(Rule::AdoptHighest) {
            true => highest_vote(blocks, self.counter).map(|(_, value)| value),
            false => {
                let votes = blocks.iter().filter(|block| block.counter == self.counter && block.voted > 0);
                votes.min_by_key(|block| block.voted).map(|block| block.value)
            }
        };
        let value = vote.filter(|_| self.keeps(Rule::Adopt)).unwrap_or(self.proposal);
        self.phase = Phase::Voting;
        self.block = Block { voted: self.block.promised, value, ..self.block };
        Step::Write(self.block)
    }

    fn suspend(&mut self, counter: u64) -> Step {
        self.phase = Phase::Idle;
        Step::Suspended { counter }
    }

    #[cfg(test)]
    fn keeps(&self, rule: Rule) -> bool {
        self.broken != Some(rule)
    }

    #[cfg(not(test))]
    fn keeps(&self, _: Rule) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Executes steps on `disk` until the epoch ends.
    fn run(node: &mut Agreement, disk: &mut [Block], mut step: Step) -> Step {
        loop {
            step = match step {
                Step::Write(block) => {
                    disk[node.me] = block;
                    node.written()
                }
                Step::Read => node.read(disk).unwrap(),
                end => return end,
            }
        }
    }

    #[test]
    fn the_first_value_stays_and_the_winner_takes_the_short_path() {
        let mut disk = [Block::default(); 3];
        let mut nodes: Vec<_> = (0..3).map(|me| Agreement::new(me, Block::default())).collect();
        let mut enter = |node: usize, counter, disk: &mut [Block]| {
            let step = nodes[node].enter(counter, 10 + node as u64);
            run(&mut nodes[node], disk, step)
        };
        assert_eq!(enter(1, 1, &mut disk), Step::Decided(11));
        assert_eq!(enter(0, 1, &mut disk), Step::Decided(11));
        assert_eq!(enter(2, 2, &mut disk), Step::Decided(12));
        assert_eq!(enter(0, 1, &mut disk), Step::Suspended { counter: 2 });
        assert_eq!(nodes[0].enter_next(10), None);
        let next = nodes[2].enter_next(12).unwrap();
        assert!(matches!(next, Step::Write(Block { counter: 3, voted: 3.., value: 12, .. })), "{next:?}");
        assert_eq!(run(&mut nodes[2], &mut disk, next), Step::Decided(12));
    }

    #[test]
    fn a_node_whose_write_failed_finds_out_what_is_on_the_disk() {
        for lands in [false, true] {
            let mut disk = [Block::default(); 2];
            let mut node = Agreement::new(0, Block::default());
            assert_eq!(node.enter(1, 7), Step::Read);
            let Ok(Step::Write(block)) = node.read(&disk) else { panic!("a ballot is expected") };
            if lands {
                disk[0] = block;
            }
            node.failed();
            let step = node.enter(1, 7);
            assert_eq!(run(&mut node, &mut disk, step), Step::Decided(7));
        }
    }

    #[test]
    fn a_second_process_with_the_same_number_is_detected() {
        let mut disk = [Block::default(); 2];
        let mut nodes = [Agreement::new(0, Block::default()), Agreement::new(0, Block::default())];
        let step = nodes[0].enter(1, 7);
        run(&mut nodes[0], &mut disk, step);
        assert_eq!(nodes[1].enter(1, 8), Step::Read);
        assert_eq!(nodes[1].read(&disk), Err(Usurped { node: 0 }));
    }
}
