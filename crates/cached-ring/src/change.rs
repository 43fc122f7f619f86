//! Changes of a ring whose map is in a registry: each returns the next map, with the next version.
//!
//! A change is written as a whole, and only if the map that it was made from is still in force. So
//! it is enough that each change is right for that one map.

use std::cmp::Reverse;

use crate::map::{Map, MapError, Move, Node, NodeIndex, Owners, VERSION_MAX};
use crate::plan::{spread, wanted_owners};
use crate::slots::{SLOTS, Slot, SlotSet};

/// The maximum number of slots of a move.
pub const MOVE_SLOTS_MAX: usize = 1024;
/// The maximum number of moves whose source is the same node.
pub const SOURCE_MOVES_MAX: usize = 2;
/// The maximum number of runs of a move that [`Map::next_move`] returns: the documents of a ring
/// have limits.
const MOVE_RUNS_MAX: usize = 64;

impl Map {
    /// Returns the first map of a ring: the node owns all slots.
    ///
    /// # Errors
    /// Returns the errors of [`Map::new`].
    pub fn first(ring: &str, node: Node) -> Result<Map, MapError> {
        let owners: Owners = Box::new([NodeIndex(0); SLOTS]);
        Map::new(ring, 1, vec![Node { term: 1, ..node }], owners)
    }

    /// Adds a node, which owns nothing yet. Its term is the version of the new map: it is above every
    /// term that a node with this name has had.
    ///
    /// # Errors
    /// Returns a line if there is a node with this name, or the errors of [`Map::new`].
    pub fn join(&self, node: Node) -> Result<Map, MapError> {
        let Err(at) = self.nodes.binary_search_by(|other| other.name.cmp(&node.name)) else {
            return Err(MapError::new(format_args!("the ring has a node {}", node.name)));
        };
        let mut next = self.next()?;
        next.nodes.insert(at, Node { term: next.version, ..node });
        next.renumber(|index| if index.index() < at { index } else { NodeIndex(index.0 + 1) });
        next.checked()
    }

    /// Changes the addresses of a node to those of `node`, which has the same name.
    ///
    /// # Errors
    /// Returns a line if there is no such node, or the errors of [`Map::new`].
    pub fn set_addresses(&self, node: &Node) -> Result<Map, MapError> {
        let index = self.known(&node.name)?;
        let mut next = self.next()?;
        let Node { ring, address, .. } = node.clone();
        let own = &mut next.nodes[index.index()];
        (own.ring, own.address) = (ring, address);
        next.checked()
    }

    /// Sets a node's weight. With weight 0 its slots go to the other nodes, move by move.
    ///
    /// # Errors
    /// Returns a line if there is no such node, the weight is too large, or no node would have a
    /// weight above 0.
    pub fn set_weight(&self, node: &str, weight: u32) -> Result<Map, MapError> {
        let index = self.known(node)?;
        let mut next = self.next()?;
        next.nodes[index.index()].weight = weight;
        if next.nodes.iter().all(|node| node.weight == 0) {
            return Err(MapError::new(format_args!(
                "node {node}: weight: would be 0, as that of all other nodes; one node must have a weight above 0 to \
                 receive the slots"
            )));
        }
        next.checked()
    }

    /// Sets whether no further move may begin. Moves that have begun go on.
    ///
    /// # Errors
    /// Returns a line if the version cannot be raised any more.
    pub fn set_paused(&self, is_paused: bool) -> Result<Map, MapError> {
        Map { is_paused, ..self.next()? }.checked()
    }

    /// Removes a node, which owns nothing and is part of no move.
    ///
    /// # Errors
    /// Returns a line if there is no such node, it owns slots or is part of a move, or it is the only
    /// node.
    pub fn remove(&self, node: &str) -> Result<Map, MapError> {
        let index = self.known(node)?;
        let owned = self.slots_of(index).count();
        if owned > 0 {
            return Err(MapError::new(format_args!(
                "node {node} owns {owned} slots; drain it first, or strike it off if it is lost"
            )));
        }
        if let Some(Move { id, .. }) = self.moves.iter().find(|one| one.from == index || one.to == index) {
            return Err(MapError::new(format_args!(
                "node {node} is part of move {id}; drain it first, or strike it off if it is lost"
            )));
        }
        let mut next = self.next()?;
        next.nodes.remove(index.index());
        next.renumber(|other| if other < index { other } else { NodeIndex(other.0 - 1) });
        next.checked()
    }

    /// Strikes off a node that is lost: its slots go to the other nodes at once, without their items.
    /// Its moves end, its weight becomes 0, and its term rises, so that the node itself keeps nothing
    /// of what it holds.
    ///
    /// # Errors
    /// Returns a line if there is no such node, or no other one.
    pub fn fail(&self, node: &str) -> Result<Map, MapError> {
        let index = self.known(node)?;
        let mut next = self.next()?;
        next.moves.retain(|one| one.from != index && one.to != index);
        next.nodes[index.index()].weight = 0;
        next.nodes[index.index()].term = next.version;
        next.owners = spread(&next, index).ok_or_else(|| {
            MapError::new(format_args!("node {node} is the only node; no other one can own its slots"))
        })?;
        next.checked()
    }

    /// Begins a move, whose id is the version of the new map.
    ///
    /// # Errors
    /// Returns a line if there is no such node, `from` does not own all of the slots, a slot is in a
    /// move, there are no slots or more than [`MOVE_SLOTS_MAX`], the ring is paused, `to` is the
    /// target of another move, or `from` the source of [`SOURCE_MOVES_MAX`].
    pub fn begin_move(&self, from: &str, to: &str, slots: SlotSet) -> Result<Map, MapError> {
        let (source, target) = (self.known(from)?, self.known(to)?);
        if self.is_paused {
            return Err(MapError::new("the ring is paused; no move may begin"));
        }
        if let Some(Move { id, .. }) = self.moves.iter().find(|one| one.to == target) {
            return Err(MapError::new(format_args!(
                "node {to} is the target of move {id}; it must end first"
            )));
        }
        if self.is_busy(source) {
            return Err(MapError::new(format_args!(
                "node {from} is the source of {SOURCE_MOVES_MAX} moves; one of them must end first"
            )));
        }
        let count = slots.len();
        if count > MOVE_SLOTS_MAX {
            return Err(MapError::new(format_args!(
                "the move would have {count} slots; it must have {MOVE_SLOTS_MAX} at most"
            )));
        }
        let mut next = self.next()?;
        next.moves.push(Move { id: next.version, from: source, to: target, slots });
        next.checked()
    }

    /// Commits a move: its slots are the target's.
    ///
    /// # Errors
    /// Returns a line if there is no such move.
    pub fn commit_move(&self, id: u64) -> Result<Map, MapError> {
        let Move { to, slots, .. } = self.known_move(id)?;
        let mut next = self.abort_move(id)?;
        slots.iter().for_each(|slot| next.owners[usize::from(slot.number())] = *to);
        next.checked()
    }

    /// Aborts a move: its slots remain the source's.
    ///
    /// # Errors
    /// Returns a line if there is no such move.
    pub fn abort_move(&self, id: u64) -> Result<Map, MapError> {
        self.known_move(id)?;
        let mut next = self.next()?;
        next.moves.retain(|one| one.id != id);
        next.checked()
    }

    /// Returns the next move to the node `to` that brings the ring nearer to the shares of the nodes'
    /// weights: its source, for which `is_reachable` returns true, and its slots. `None` if there is
    /// nothing to move, or not now: the ring is paused, or a move to this node is in progress.
    ///
    /// Moves that are in progress count as done.
    pub fn next_move(&self, to: &str, is_reachable: &dyn Fn(&str) -> bool) -> Option<(String, SlotSet)> {
        let target = self.find(to)?;
        if self.is_paused || self.moves.iter().any(|one| one.to == target) {
            return None;
        }
        let wanted = wanted_owners(self)?;
        let is_free = |slot: Slot| self.move_of(slot).is_none();
        let missing = Slot::all().filter(|slot| wanted[usize::from(slot.number())] == target);
        let mut by_source = vec![Vec::new(); self.nodes.len()];
        for slot in missing.filter(|slot| self.owner(*slot) != target && is_free(*slot)) {
            by_source[self.owner(slot).index()].push(slot);
        }
        let sources = (0..).map(NodeIndex).zip(by_source).filter(|(source, slots)| {
            !slots.is_empty() && !self.is_busy(*source) && is_reachable(&self.node(*source).name)
        });
        let (source, slots) = sources.max_by_key(|(source, slots)| (slots.len(), Reverse(*source)))?;
        let (mut taken, mut runs, mut previous) = (SlotSet::new(), 0, None);
        for slot in slots.into_iter().take(MOVE_SLOTS_MAX) {
            runs += usize::from(previous.is_none_or(|previous| previous + 1 != slot.number()));
            if runs > MOVE_RUNS_MAX {
                break;
            }
            previous = Some(slot.number());
            taken.insert(slot);
        }
        Some((self.node(source).name.clone(), taken))
    }

    /// Returns whether the node is the source of as many moves as it may be.
    fn is_busy(&self, source: NodeIndex) -> bool {
        self.moves.iter().filter(|one| one.from == source).count() >= SOURCE_MOVES_MAX
    }

    /// Returns a copy with the next version.
    fn next(&self) -> Result<Map, MapError> {
        let version = self.version.checked_add(1).filter(|version| *version <= VERSION_MAX);
        let version = version.ok_or_else(|| MapError::new("the version cannot be raised any more"))?;
        Ok(Map { version, ..self.clone() })
    }

    fn renumber(&mut self, index: impl Fn(NodeIndex) -> NodeIndex) {
        self.owners.iter_mut().for_each(|owner| *owner = index(*owner));
        self.moves.iter_mut().for_each(|one| (one.from, one.to) = (index(one.from), index(one.to)));
    }

    fn known(&self, node: &str) -> Result<NodeIndex, MapError> {
        self.find(node).ok_or_else(|| self.missing(node))
    }

    fn known_move(&self, id: u64) -> Result<&Move, MapError> {
        self.find_move(id).ok_or_else(|| MapError::new(format_args!("there is no move {id}; it has ended")))
    }
}
