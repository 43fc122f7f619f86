//! Changes of a ring whose map is in a registry: each returns the next map, with the next version.
//!
//! A change is written as a whole, and only if the map that it was made from is still in force. So
//! it is enough that each change is right for that one map.

use std::cmp::Reverse;

use crate::map::{Map, MapError, Move, Owners, VERSION_MAX};
use crate::node::{Node, NodeIndex, Wardship};
use crate::plan::{spread, wanted_owners};
use crate::slots::{SLOTS, Slot, SlotSet};

/// The total size that the items of a move should not exceed, in bytes, because a move that is given up
/// begins anew. A move of [`MOVE_SLOTS_MIN`] slots may exceed it.
const MOVE_BYTES: u64 = 512 << 20;
/// The number of slots that a move may have whatever they hold: the source visits all of its items for
/// each move.
const MOVE_SLOTS_MIN: usize = 1024;
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

    /// Changes what the process of a node says of it, to that of `node`, which has the same name: its
    /// addresses, and the length of its lease. Without a lease it has no warden.
    ///
    /// # Errors
    /// Returns a line if there is no such node, or the errors of [`Map::new`].
    pub fn set_own(&self, node: &Node) -> Result<Map, MapError> {
        let index = self.known(&node.name)?;
        let mut next = self.next()?;
        let Node { ring, address, lease_ms, .. } = node.clone();
        let own = &mut next.nodes[index.index()];
        (own.ring, own.address, own.lease_ms) = (ring, address, lease_ms);
        own.warden.take_if(|_| lease_ms == 0);
        next.checked()
    }

    /// Returns the name of the node that is to be the warden of `node`: the next one in the order of
    /// names, from the last one on to the first, that has a lease, and is alive according to `is_alive`,
    /// or owns slots and has a warden. `None` if there is none.
    ///
    /// So each node that joins or returns changes the warden of one other. A node that has gone and owns
    /// slots stays the warden: it returns, or is struck off, which gives its wards another one. So no
    /// warden changes because all leases have ended while the registry was away.
    #[must_use]
    pub fn warden_for(&self, node: &str, is_alive: &dyn Fn(&str) -> bool) -> Option<&str> {
        let at = self.find(node)?.index();
        let others = self.indexed().skip(at + 1).chain(self.indexed().take(at));
        let stays = |index, other: &Node| other.warden.is_some() && self.has_slots(index);
        let mut others = others.filter(|(_, other)| other.lease_ms > 0);
        let found = others.find(|(index, other)| is_alive(&other.name) || stays(*index, other));
        found.map(|(_, other)| &*other.name)
    }

    /// Sets the warden of a node. Only the node itself does this: it must know whose promises count.
    ///
    /// # Errors
    /// Returns a line if there is no such node, or the warden is not another node of the ring.
    pub fn set_warden(&self, node: &str, warden: Option<&str>) -> Result<Map, MapError> {
        let index = self.known(node)?;
        let mut next = self.next()?;
        let since = next.version;
        next.nodes[index.index()].warden = warden.map(|warden| Wardship { warden: warden.into(), since });
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
        if weight == 0 {
            next.drop_wishes(index);
        }
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

    /// Removes a node, which owns nothing and is part of no move. Nodes whose warden it is have none
    /// until they choose another one: this node may still promise them something.
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
        next.drop_wishes(index);
        next.set_wardens(node, None);
        next.renumber(|other| if other < index { other } else { NodeIndex(other.0 - 1) });
        next.checked()
    }

    /// Strikes off a node of which an operator says that its process has ended. This is as
    /// [`strike`](Self::strike), but the node's weight becomes 0, and nodes whose warden it is have none
    /// until they choose another one.
    ///
    /// # Errors
    /// Returns a line if there is no such node, or no other one that is alive.
    pub fn fail(&self, node: &str, is_alive: &dyn Fn(&str) -> bool) -> Result<Map, MapError> {
        let mut next = self.without(node, is_alive)?;
        let index = next.known(node)?;
        next.nodes[index.index()].weight = 0;
        next.set_wardens(node, None);
        next.checked()
    }

    /// Strikes off a node whose lease is over, by its warden `by`: its slots go at once, without their
    /// items, to those other nodes for which `is_alive` returns true, or which have no lease. Its moves
    /// end, and its term rises, so that the node itself keeps nothing of what it holds. `by` becomes the
    /// warden of those whose warden it was.
    ///
    /// # Errors
    /// Returns a line if there is no such node, `by` is not its warden, or no other node is alive.
    pub fn strike(&self, node: &str, by: &str, is_alive: &dyn Fn(&str) -> bool) -> Result<Map, MapError> {
        let warden = self.node(self.known(node)?).warden.as_ref().map(|of| of.warden.as_str());
        if warden != Some(by) {
            let warden = warden.unwrap_or("nobody");
            return Err(MapError::new(format_args!(
                "node {node}: {warden} is its warden; {by} cannot strike it off"
            )));
        }
        let mut next = self.without(node, is_alive)?;
        next.set_wardens(node, Some(by));
        next.checked()
    }

    /// Returns the next map, in which the node owns nothing, and has another term.
    fn without(&self, node: &str, is_alive: &dyn Fn(&str) -> bool) -> Result<Map, MapError> {
        let index = self.known(node)?;
        let mut next = self.next()?;
        next.moves.retain(|one| one.from != index && one.to != index);
        next.drop_wishes(index);
        next.nodes[index.index()].term = next.version;
        next.struck = next.version;
        next.owners = spread(&next, index, is_alive).ok_or_else(|| {
            MapError::new(format_args!("node {node}: no other node is alive, which could own its slots"))
        })?;
        Ok(next)
    }

    /// Gives another warden to the nodes whose warden is `warden`; that one itself then has none.
    fn set_wardens(&mut self, warden: &str, other: Option<&str>) {
        let since = self.version;
        for node in &mut self.nodes {
            if node.warden.as_ref().is_some_and(|of| of.warden == warden) {
                let other = other.filter(|other| *other != node.name);
                node.warden = other.map(|other| Wardship { warden: other.into(), since });
            }
        }
    }

    /// Begins a move, whose id is the version of the new map.
    ///
    /// # Errors
    /// Returns a line if there is no such node, `from` does not own all of the slots, a slot is in a
    /// move, there are no slots, the ring is paused, `to` is the target of another move, or `from` the
    /// source of [`SOURCE_MOVES_MAX`].
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
    /// weights: its source and its slots. `None` if there is nothing to move, or not now: the ring is
    /// paused, or a move to this node is in progress. `held` returns the size of all items of a node, in
    /// bytes, and `None` for one that cannot be a source now.
    ///
    /// Moves that are in progress count as done. Slots that are wished for the node come first. The less
    /// the source holds, the more slots move at once.
    pub fn next_move(&self, to: &str, held: &dyn Fn(&str) -> Option<u64>) -> Option<(String, SlotSet)> {
        let target = self.find(to)?;
        if self.is_paused || self.moves.iter().any(|one| one.to == target) {
            return None;
        }
        let wanted = wanted_owners(self)?;
        let is_free = |slot: Slot| self.move_of(slot).is_none();
        let is_missing = |slot: &Slot| {
            wanted[usize::from(slot.number())] == target && self.owner(*slot) != target && is_free(*slot)
        };
        let most = |slots: &mut dyn Iterator<Item = Slot>| {
            let mut by_source = vec![Vec::new(); self.nodes.len()];
            slots.filter(is_missing).for_each(|slot| by_source[self.owner(slot).index()].push(slot));
            let sources = (0..).map(NodeIndex).zip(by_source).filter_map(|(source, slots)| {
                let may_give = !slots.is_empty() && !self.is_busy(source);
                let bytes = may_give.then(|| held(&self.node(source).name))??;
                Some((source, slots, bytes))
            });
            sources.max_by_key(|(source, slots, _)| (slots.len(), Reverse(*source)))
        };
        let wished = self.wishes.iter().find(|wish| wish.to == target);
        let wished = wished.and_then(|wish| most(&mut wish.slots.iter()));
        let (source, slots, bytes) = wished.or_else(|| most(&mut Slot::all()))?;
        // Slots hold about as much as each other.
        let share = MOVE_BYTES * self.slots_of(source).count() as u64 / bytes.max(1);
        let slots_max = (share as usize).max(MOVE_SLOTS_MIN);
        let (mut taken, mut runs, mut previous) = (SlotSet::new(), 0, None);
        for slot in slots.into_iter().take(slots_max) {
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
    pub(crate) fn next(&self) -> Result<Map, MapError> {
        let version = self.version.checked_add(1).filter(|version| *version <= VERSION_MAX);
        let version = version.ok_or_else(|| MapError::new("the version cannot be raised any more"))?;
        Ok(Map { version, ..self.clone() })
    }

    fn renumber(&mut self, index: impl Fn(NodeIndex) -> NodeIndex) {
        self.owners.iter_mut().for_each(|owner| *owner = index(*owner));
        self.moves.iter_mut().for_each(|one| (one.from, one.to) = (index(one.from), index(one.to)));
        self.wishes.iter_mut().for_each(|wish| wish.to = index(wish.to));
    }

    pub(crate) fn known(&self, node: &str) -> Result<NodeIndex, MapError> {
        self.find(node).ok_or_else(|| self.missing(node))
    }

    fn known_move(&self, id: u64) -> Result<&Move, MapError> {
        self.find_move(id).ok_or_else(|| MapError::new(format_args!("there is no move {id}; it has ended")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node(name: &str, weight: u32) -> Node {
        Node {
            name: name.into(),
            ring: format!("{name}:1"),
            address: format!("{name}:2"),
            weight,
            term: 0,
            lease_ms: 0,
            warden: None,
        }
    }

    fn slots(range: std::ops::Range<u16>) -> SlotSet {
        range.filter_map(Slot::new).collect()
    }

    fn error<T>(result: Result<T, MapError>) -> String {
        result.err().expect("a mistake").to_string()
    }

    #[test]
    fn a_ring_grows_from_one_node_and_shrinks_again() {
        let one = Map::first("main", node("b", 1)).unwrap();
        assert_eq!((one.version(), one.nodes()[0].term, one.counts()), (1, 1, vec![SLOTS]));
        let two = one.join(node("a", 1)).unwrap();
        assert_eq!((two.version(), two.nodes()[0].term, two.counts()), (2, 2, vec![0, SLOTS]));
        assert_eq!(error(two.join(node("a", 1))), "the ring has a node a");

        // Some gigabytes are moved in parts; a source that is away is waited for.
        assert_eq!(two.next_move("a", &|_| None), None);
        let slots_moved = |held| two.next_move("a", &|_| Some(held)).map(|(_, slots)| slots.len());
        assert_eq!([0, MOVE_BYTES * 2].map(slots_moved), [Some(SLOTS / 2); 2]);
        assert_eq!(slots_moved(MOVE_BYTES * 4), Some(SLOTS / 4));
        assert_eq!(slots_moved(u64::MAX), Some(MOVE_SLOTS_MIN));
        let (source, batch) = two.next_move("a", &|_| Some(u64::MAX)).unwrap();
        assert_eq!(source, "b");
        assert_eq!(two.next_move("b", &|_| Some(0)), None);
        let moving = two.begin_move("b", "a", batch.clone()).unwrap();
        assert_eq!(moving.next_move("a", &|_| Some(0)), None, "one at a time");
        assert_eq!(moving.moves()[0].id, 3);
        let aborted = moving.abort_move(3).unwrap();
        assert_eq!((aborted.moves(), aborted.counts()), (&[][..], vec![0, SLOTS]));
        let committed = moving.commit_move(3).unwrap();
        assert_eq!(committed.counts(), [MOVE_SLOTS_MIN, SLOTS - MOVE_SLOTS_MIN]);
        assert_eq!(error(committed.commit_move(3)), "there is no move 3; it has ended");
        assert_eq!(error(committed.abort_move(3)), "there is no move 3; it has ended");
        assert!(committed.follows(&two, "a") && committed.is_whole_since(&two));

        // A drained node gives all of it back.
        let owns = "node a owns 1024 slots; drain it first, or strike it off if it is lost";
        assert_eq!(error(committed.remove("a")), owns);
        let drained = committed.set_weight("a", 0).unwrap();
        let line = error(drained.set_weight("b", 0));
        assert!(line.starts_with("node b: weight: would be 0, as that of all other nodes"), "{line}");
        let (source, batch) = drained.next_move("b", &|_| Some(0)).unwrap();
        assert_eq!((source.as_str(), batch.len()), ("a", MOVE_SLOTS_MIN));
        let back = drained.begin_move("a", "b", batch).unwrap();
        let back = back.commit_move(back.version()).unwrap();
        assert_eq!(back.next_move("b", &|_| Some(0)), None);
        let alone = back.remove("a").unwrap();
        assert_eq!((alone.nodes().len(), alone.counts()), (1, vec![SLOTS]));
        assert!(alone.join(node("a", 1)).unwrap().nodes()[0].term > 2, "a term is never used again");
    }

    #[test]
    fn a_move_that_cannot_begin_is_told() {
        let map = Map::first("main", node("b", 1)).unwrap().join(node("a", 1)).unwrap();
        let map = map.join(node("c", 1)).unwrap().join(node("d", 1)).unwrap();
        let begin = |map: &Map, from: &str, to: &str, slots| error(map.begin_move(from, to, slots));
        assert!(begin(&map, "x", "a", slots(0..1)).starts_with("ring/main/nodes/x: is missing"));
        assert!(begin(&map, "b", "b", slots(0..1)).ends_with("from and to must be two nodes of the ring"));
        assert!(
            begin(&map, "b", "a", slots(0..0)).ends_with("slots: is empty; a move has one slot at least")
        );
        assert!(
            begin(&map, "a", "c", slots(7..9)).ends_with("slot 7 belongs to b; it must belong to the source")
        );
        let paused = map.set_paused(true).unwrap();
        assert_eq!(begin(&paused, "b", "a", slots(0..1)), "the ring is paused; no move may begin");
        assert_eq!(paused.next_move("a", &|_| Some(0)), None);
        assert!(paused.set_paused(false).unwrap().next_move("a", &|_| Some(0)).is_some());
        let moving = map.begin_move("b", "a", slots(0..5)).unwrap();
        assert_eq!(
            begin(&moving, "b", "a", slots(9..10)),
            "node a is the target of move 5; it must end first"
        );
        assert!(
            begin(&moving, "b", "c", slots(4..9))
                .ends_with("slot 4 is in two moves; a slot must be in one at most")
        );
        assert_eq!(
            error(moving.remove("a")),
            "node a is part of move 5; drain it first, or strike it off if it is lost"
        );
        let busy = moving.begin_move("b", "c", slots(9..10)).unwrap();
        let line = "node b is the source of 2 moves; one of them must end first";
        assert_eq!(begin(&busy, "b", "d", slots(20..21)), line);
        assert_eq!(busy.next_move("d", &|_| Some(0)), None);
        // Nodes join and leave while slots move: the moves are the same.
        let other = busy.remove("d").unwrap().join(node("aa", 1)).unwrap();
        let names = |map: &Map| -> Vec<(u64, String, String, SlotSet)> {
            let name = |index| map.node(index).name.clone();
            map.moves().iter().map(|one| (one.id, name(one.from), name(one.to), one.slots.clone())).collect()
        };
        assert_eq!(names(&other), names(&busy));
    }

    #[test]
    fn a_node_that_is_struck_off_loses_everything_and_others_only_gain() {
        let mut map = Map::first("main", node("b", 1)).unwrap().join(node("a", 1)).unwrap();
        map = map.join(node("c", 3)).unwrap();
        map = map.begin_move("b", "c", slots(0..100)).unwrap();
        map = map.commit_move(map.version()).unwrap();
        map = map.begin_move("b", "a", slots(200..300)).unwrap();
        let before = map.clone();
        let struck = map.fail("b", &|_| true).unwrap();
        assert_eq!((struck.moves(), struck.nodes()[1].weight), (&[][..], 0));
        assert_eq!(struck.nodes()[1].term, struck.version());
        // Shares of 1 to 3; no slot of c has moved.
        assert_eq!(struck.counts(), [SLOTS / 4, 0, SLOTS * 3 / 4]);
        assert_eq!(struck.lost(&before, "c").count() + struck.lost(&before, "a").count(), 0);
        assert!(!struck.is_whole_since(&before) && struck.follows(&before, "c"));
        let later = struck.set_paused(true).unwrap();
        assert!(!later.follows(&before, "b") && later.follows(&before, "a"));
        // Also if the node is removed, and others join and leave.
        let removed = later.remove("b").unwrap();
        assert!(!removed.is_whole_since(&before) && removed.is_whole_since(&struck));
        assert!(!later.follows(&map_of_file(1), "a") && map_of_file(2).follows(&map_of_file(1), "a"));
        assert!(!map_of_file(3).follows(&map_of_file(1), "a"));
        let alone = Map::first("main", node("b", 1)).unwrap();
        assert_eq!(
            error(alone.fail("b", &|_| true)),
            "node b: no other node is alive, which could own its slots"
        );
        // Even if no weight is left.
        let idle = alone.join(node("a", 0)).unwrap();
        assert_eq!(idle.fail("b", &|_| true).unwrap().counts(), [SLOTS, 0]);
        assert_eq!(idle.fail("b", &|_| true).unwrap().next_move("a", &|_| Some(0)), None);
    }

    /// Returns the wardens of the nodes, and the versions in which they became that.
    fn wardens(map: &Map) -> Vec<Option<(&str, u64)>> {
        let wardens = map.nodes().iter().map(|node| node.warden.as_ref());
        wardens.map(|of| of.map(|of| (of.warden.as_str(), of.since))).collect()
    }

    #[test]
    fn a_warden_strikes_its_ward_off_and_takes_its_place() {
        let leased = |name: &str, weight| Node { lease_ms: 9, ..node(name, weight) };
        let mut map = Map::first("main", leased("a", 1)).unwrap();
        for name in ["b", "c", "d"] {
            map = map.join(leased(name, 1)).unwrap();
        }
        assert_eq!(map.warden_for("c", &|_| true), Some("d"));
        assert_eq!(map.warden_for("c", &|name| name != "d"), Some("a"));
        assert_eq!(map.warden_for("a", &|name| name == "a"), None);
        for (name, warden) in [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")] {
            assert_eq!(map.warden_for("c", &|name| name == "b"), Some(if name == "a" { "b" } else { "a" }));
            map = map.set_warden(name, Some(warden)).unwrap();
        }
        assert_eq!(wardens(&map), [Some(("b", 5)), Some(("c", 6)), Some(("d", 7)), Some(("a", 8))]);
        for (wrong, node) in [("a", "a"), ("x", "a")] {
            let line = error(map.set_warden(node, Some(wrong)));
            assert_eq!(line, format!("nodes/a: warden: is {wrong:?}; it must be another node of the ring"));
        }
        let line = error(map.strike("a", "d", &|_| true));
        assert_eq!(line, "node a: b is its warden; d cannot strike it off");
        assert_eq!(
            error(map.strike("a", "b", &|_| false)),
            "node a: no other node is alive, which could own its slots"
        );

        // Slots go to nodes that are alive, others keep theirs.
        for (name, first) in [("b", 0), ("c", 1000), ("d", 2000)] {
            map = map.begin_move("a", name, slots(first..first + 1000)).unwrap();
            map = map.commit_move(map.version()).unwrap();
        }
        assert_eq!(map.counts(), [SLOTS - 3000, 1000, 1000, 1000]);
        let struck = map.strike("a", "b", &|name| name != "c").unwrap();
        assert_eq!(struck.counts(), [0, (SLOTS - 1000) / 2, 1000, (SLOTS - 1000) / 2]);
        let (version, a) = (struck.version(), &struck.nodes()[0]);
        assert_eq!((a.weight, a.term, struck.struck), (1, version, version));
        assert_eq!(wardens(&struck), [Some(("b", 5)), Some(("c", 6)), Some(("d", 7)), Some(("b", version))]);
        // A node without a lease needs no sign of life.
        let old = map.set_own(&Node { lease_ms: 0, ..leased("c", 1) }).unwrap();
        assert_eq!(wardens(&old)[2], None);
        let line = old.strike("a", "b", &|_| false).unwrap().counts();
        assert_eq!(line, [0, 1000, SLOTS - 2000, 1000]);

        // Two nodes that watch each other: the one that is left has no warden.
        let pair = Map::first("main", leased("a", 1)).unwrap().join(leased("b", 0)).unwrap();
        let pair = pair.set_warden("a", Some("b")).unwrap().set_warden("b", Some("a")).unwrap();
        let alone = pair.strike("a", "b", &|name| name == "b").unwrap();
        assert_eq!((wardens(&alone), alone.counts()), (vec![Some(("b", 3)), None], vec![0, SLOTS]));
        // Nobody but the nodes themselves follows one that an operator has taken out.
        let failed = map.fail("a", &|_| true).unwrap();
        assert_eq!(wardens(&failed), [Some(("b", 5)), Some(("c", 6)), Some(("d", 7)), None]);
        assert_eq!(wardens(&failed.remove("a").unwrap()), [Some(("c", 6)), Some(("d", 7)), None]);
        let drained = struck.remove("a").unwrap();
        assert_eq!(wardens(&drained), [Some(("c", 6)), Some(("d", 7)), Some(("b", version))]);
        assert_eq!(wardens(&drained.fail("c", &|_| true).unwrap().remove("c").unwrap())[0], None);
    }

    fn map_of_file(version: u64) -> Map {
        Map::new("main", version, vec![node("a", 1)], Box::new([NodeIndex(0); SLOTS])).unwrap()
    }

    /// What happens next, to the node with this number.
    #[derive(Debug, Clone)]
    enum Step {
        Move(usize),
        /// The first move ends, committed or not.
        End(bool),
        Weight(usize, u32),
        /// The node cannot be reached, or can again.
        Reach(usize),
        /// The node is to have 16 slots from this one on.
        Wish(usize, u16),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..4_usize).prop_map(Step::Move),
            4 => prop::bool::weighted(0.8).prop_map(Step::End),
            1 => (0..4_usize, 0..4_u32).prop_map(|(node, weight)| Step::Weight(node, weight)),
            1 => (0..4_usize).prop_map(Step::Reach),
            1 => (0..4_usize, 0..1024_u16).prop_map(|(node, at)| Step::Wish(node, at * 16)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]

        #[test]
        fn moves_of_all_nodes_in_any_order_end_with_the_shares(steps in prop::collection::vec(step(), 10..40)) {
            const NAMES: [&str; 4] = ["a", "b", "c", "d"];
            let mut map = Map::first("main", node("a", 1)).unwrap();
            for name in &NAMES[1..] {
                map = map.join(node(name, 1)).unwrap();
            }
            let mut away = [false; 4];
            let run = |map: &mut Map, step: &Step, away: &mut [bool; 4]| match step {
                Step::Move(at) => {
                    let away = &*away;
                    let is_away = |name: &str| away[NAMES.iter().position(|other| *other == name).unwrap()];
                    let held = |name: &str| (!is_away(name)).then_some(u64::MAX);
                    let Some((from, slots)) = map.next_move(NAMES[*at], &held) else { return false };
                    assert!(!is_away(&from) && slots.runs().count() <= MOVE_RUNS_MAX);
                    *map = map.begin_move(&from, NAMES[*at], slots).unwrap();
                    true
                }
                Step::End(is_committed) => {
                    let Some(id) = map.moves().first().map(|one| one.id) else { return false };
                    *map = if *is_committed { map.commit_move(id) } else { map.abort_move(id) }.unwrap();
                    true
                }
                Step::Weight(at, weight) => map.set_weight(NAMES[*at], *weight).is_ok_and(|next| {
                    *map = next;
                    true
                }),
                Step::Reach(at) => {
                    away[*at] ^= true;
                    true
                }
                Step::Wish(at, first) => map.wish(NAMES[*at], &slots(*first..first + 16)).is_ok_and(|next| {
                    *map = next;
                    true
                }),
            };
            for step in &steps {
                run(&mut map, step, &mut away);
            }
            let mut begun = 0;
            loop {
                let mut goes_on = false;
                for at in 0..NAMES.len() {
                    begun += usize::from(run(&mut map, &Step::Move(at), &mut [false; 4]));
                }
                while run(&mut map, &Step::End(true), &mut [false; 4]) {
                    goes_on = true;
                }
                if !goes_on {
                    break;
                }
            }
            // Everything moves at most once, in batches of which few are small; wished slots in their own.
            prop_assert!(begun <= SLOTS / MOVE_SLOTS_MIN + 32, "{begun} moves");
            for wish in map.wishes() {
                prop_assert!(wish.slots.iter().all(|slot| map.owner(slot) == wish.to), "{wish:?}");
            }
            let total: u64 = map.nodes().iter().map(|node| u64::from(node.weight)).sum();
            for (node, count) in map.nodes().iter().zip(map.counts()) {
                let share = SLOTS as u64 * u64::from(node.weight);
                let (count, exact) = (count as u64, share / total);
                prop_assert!(count == exact || count == exact + 1 && !share.is_multiple_of(total), "{}", node.name);
            }
        }
    }
}
