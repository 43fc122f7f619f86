//! The elections' machines as subjects of the model checker and of the simulator: one interface to
//! both, and the places where they meet, a document and a disk.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;

use blocker::admission::{Claims, Head, admit};
use blocker::{DeleteRequest, Epoch, Error, Name, Namespace, ObjectId, Scope, Stamp, Timestamp, WriterId};

use super::*;
use crate::agreement::Block;
use crate::document::{Expect, Revision};

pub(super) trait Value: Clone + PartialEq + Eq + Hash + Debug + Send + Sync + 'static {}
impl<T: Clone + PartialEq + Eq + Hash + Debug + Send + Sync + 'static> Value for T {}

/// An election's machine with its place.
pub(super) trait Subject: Value {
    type Op: Value;
    type Place: Value;
    type Reply: Value;
    /// Whether a write whose reply is lost may take effect later.
    const STRAYS: bool;

    fn place(nodes: usize) -> Self::Place;
    fn start(node: usize, writer: WriterId, lease: Duration) -> Self;
    fn next(&mut self, now: Timestamp) -> Action<Self::Op>;
    /// Returns the number of atomic steps of an operation.
    fn steps(op: &Self::Op, nodes: usize) -> usize;
    /// Executes one step at the place of the election; the reply of the last step completes the
    /// operation. `clock` is the time on the host's clock when it began the operation.
    fn apply(
        place: &mut Self::Place,
        node: usize,
        op: &Self::Op,
        step: usize,
        clock: Timestamp,
        reply: Option<Self::Reply>,
    ) -> Self::Reply;
    fn is_write(op: &Self::Op) -> bool;
    /// Handles the reply to an operation; `None` if the reply is lost.
    fn reply(&mut self, now: Timestamp, op: &Self::Op, reply: Option<Self::Reply>);
    fn claimed(&mut self, now: Timestamp, outcome: Claimed);
    fn role(&self, now: Timestamp) -> Role;
    fn step_down(&mut self, to: Option<usize>);
}

/// The election by a document.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct ByDocument {
    pub(super) machine: DocumentElection,
    /// Breaks the rule that a lease is measured by the host's own clock: the standby counts from
    /// the time that the writer's clock showed.
    pub(super) counts_by_others_clock: bool,
}

/// The document with its revision, and the time on the clock of its writer.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Cell {
    found: Option<(Revision, LeaderDocument)>,
    written_at: Timestamp,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum DocumentReply {
    Found(Cell),
    Written(Written),
}

fn node_name(node: usize) -> String {
    char::from(b'a' + node as u8).into()
}

impl Subject for ByDocument {
    type Op = DocumentOp;
    type Place = Cell;
    type Reply = DocumentReply;
    const STRAYS: bool = true;

    fn place(_: usize) -> Cell {
        Cell::default()
    }

    fn start(node: usize, writer: WriterId, lease: Duration) -> Self {
        let me = Candidate { node: node_name(node), address: String::new(), writer };
        Self { machine: DocumentElection::new(me, lease), counts_by_others_clock: false }
    }

    fn next(&mut self, now: Timestamp) -> Action<DocumentOp> {
        self.machine.next(now)
    }

    fn steps(_: &DocumentOp, _: usize) -> usize {
        1
    }

    fn apply(
        cell: &mut Cell,
        _: usize,
        op: &DocumentOp,
        _: usize,
        clock: Timestamp,
        _: Option<DocumentReply>,
    ) -> DocumentReply {
        let DocumentOp::Write(document, expect) = op else { return DocumentReply::Found(cell.clone()) };
        let revision = cell.found.as_ref().map(|(revision, _)| *revision);
        let is_met = match expect {
            Expect::Absent => revision.is_none(),
            Expect::At(expected) => revision == Some(*expected),
        };
        if !is_met {
            return DocumentReply::Written(Written::Conflict);
        }
        let next = Revision(revision.map_or(1, |revision| revision.0 + 1));
        *cell = Cell { found: Some((next, document.clone())), written_at: clock };
        DocumentReply::Written(Written::Done(next))
    }

    fn is_write(op: &DocumentOp) -> bool {
        matches!(op, DocumentOp::Write(..))
    }

    fn reply(&mut self, now: Timestamp, op: &DocumentOp, reply: Option<DocumentReply>) {
        match (op, reply) {
            (DocumentOp::Read, Some(DocumentReply::Found(cell))) => {
                self.machine.read(now, cell.found);
                if self.counts_by_others_clock {
                    self.machine.count_from(cell.written_at);
                }
            }
            (DocumentOp::Read, _) => self.machine.read_failed(now),
            (DocumentOp::Write(..), Some(DocumentReply::Written(outcome))) => {
                self.machine.written(now, outcome);
            }
            (DocumentOp::Write(..), _) => self.machine.written(now, Written::Unknown),
        }
    }

    fn claimed(&mut self, now: Timestamp, outcome: Claimed) {
        self.machine.claimed(now, outcome);
    }

    fn role(&self, now: Timestamp) -> Role {
        self.machine.role(now)
    }

    fn step_down(&mut self, to: Option<usize>) {
        self.machine.step_down(to.map_or(Release::Anyone, |node| Release::To(node_name(node))));
    }
}

/// The election on plain blocks.
impl Subject for BlockElection {
    type Op = BlockOp;
    type Place = Vec<Block>;
    /// The blocks read so far.
    type Reply = Vec<Block>;
    const STRAYS: bool = false;

    fn place(nodes: usize) -> Vec<Block> {
        vec![Block::default(); nodes]
    }

    fn start(node: usize, _: WriterId, lease: Duration) -> Self {
        Self::new(node, lease / 3)
    }

    fn next(&mut self, now: Timestamp) -> Action<BlockOp> {
        self.next(now)
    }

    fn steps(op: &BlockOp, nodes: usize) -> usize {
        if *op == BlockOp::Read { nodes } else { 1 }
    }

    fn apply(
        disk: &mut Vec<Block>,
        node: usize,
        op: &BlockOp,
        step: usize,
        _: Timestamp,
        reply: Option<Vec<Block>>,
    ) -> Vec<Block> {
        let mut reply = reply.unwrap_or_default();
        match op {
            BlockOp::Read => reply.push(disk[step]),
            BlockOp::Write(block) => disk[node] = *block,
        }
        reply
    }

    fn is_write(op: &BlockOp) -> bool {
        matches!(op, BlockOp::Write(_))
    }

    fn reply(&mut self, now: Timestamp, op: &BlockOp, reply: Option<Vec<Block>>) {
        match (op, reply) {
            (_, None) => self.failed(now),
            (BlockOp::Read, Some(blocks)) => self.read(now, &blocks).expect("a block has one writer"),
            (BlockOp::Write(_), Some(_)) => self.written(now),
        }
    }

    fn claimed(&mut self, now: Timestamp, outcome: Claimed) {
        self.claimed(now, outcome);
    }

    fn role(&self, now: Timestamp) -> Role {
        self.role(now)
    }

    fn step_down(&mut self, to: Option<usize>) {
        self.step_down(to);
    }
}

/// The store that the leader claims and writes to. The functions that all real stores use make its
/// decisions.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Store {
    epoch: u64,
    writer: WriterId,
    /// Breaks the rule that an epoch has one writer.
    pub(super) shares_epochs: bool,
}

impl Store {
    pub(super) fn new() -> Self {
        Self { epoch: 0, writer: WriterId(0), shares_epochs: false }
    }

    fn object() -> ObjectId {
        ObjectId::new(Namespace::new("n").unwrap(), Name::new("o").unwrap())
    }

    fn claims(&self) -> Claims {
        let mut claims = Claims::default();
        claims.record(&Scope::All, Epoch(self.epoch), Some(self.writer)).unwrap();
        claims
    }

    pub(super) fn claim(&mut self, epoch: Epoch, writer: WriterId) -> Claimed {
        if self.shares_epochs && epoch.0 == self.epoch {
            return Claimed::Granted;
        }
        match self.claims().raise(&Scope::All, epoch, writer) {
            Ok(_) => {
                (self.epoch, self.writer) = (epoch.0, writer);
                Claimed::Granted
            }
            Err(Error::Fenced { epoch }) => Claimed::Fenced(epoch),
            Err(other) => panic!("{other}"),
        }
    }

    /// Returns whether a change by the leader of `epoch` takes effect.
    pub(super) fn change(&self, epoch: Epoch) -> bool {
        let stamp = Stamp { epoch, sequence: 1 };
        let request = DeleteRequest::new(Self::object()).stamp(stamp);
        admit(Head::ABSENT, self.claims().in_force(&Self::object(), None), &request.terms).is_ok()
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }
}
