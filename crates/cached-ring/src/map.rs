//! A map: the nodes of a ring, and the node that owns each slot.

use std::fmt;

use crate::moves::Move;
use crate::node::{Node, NodeIndex, Wardship, check_nodes};
use crate::slots::{SLOTS, Slot};
use crate::wishes::Wish;

/// The largest version: that of a whole number in TOML.
pub(crate) const VERSION_MAX: u64 = i64::MAX as u64;

/// A mistake in a map, as one line that begins with its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MapError(Box<str>);

impl MapError {
    /// Returns the error with this line.
    pub fn new(line: impl fmt::Display) -> MapError {
        MapError(line.to_string().into())
    }
}

/// The owner of each slot, by the slot's number.
pub type Owners = Box<[NodeIndex; SLOTS]>;

/// Successive slots with one owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first slot.
    pub first: Slot,
    /// The last slot, which belongs to the run.
    pub last: Slot,
    /// The owner of the slots.
    pub owner: NodeIndex,
}

/// The nodes of a ring, the owner of each slot, and the moves that are in progress.
#[derive(Clone, PartialEq, Eq)]
pub struct Map {
    pub(crate) ring: String,
    pub(crate) version: u64,
    pub(crate) is_paused: bool,
    /// The nodes in the order of their names.
    pub(crate) nodes: Vec<Node>,
    pub(crate) owners: Owners,
    /// The moves in the order of their ids.
    pub(crate) moves: Vec<Move>,
    /// The wishes in the order of their nodes.
    pub(crate) wishes: Vec<Wish>,
    /// The version in which a node was struck off last; 0 if none was.
    pub(crate) struck: u64,
    pub(crate) digest: u64,
}

impl Map {
    /// Returns the map of the ring `ring` with these nodes, in the order of their names.
    ///
    /// # Errors
    /// Returns the first mistake: no or too many nodes, nodes not in order, an invalid name or
    /// address, an address that occurs twice, a weight above [`WEIGHT_MAX`](crate::WEIGHT_MAX), or an
    /// owner that is not among the nodes.
    pub fn new(ring: &str, version: u64, nodes: Vec<Node>, owners: Owners) -> Result<Map, MapError> {
        let (ring, moves, wishes) = (ring.to_owned(), Vec::new(), Vec::new());
        Map { ring, version, is_paused: false, nodes, owners, moves, wishes, struck: 0, digest: 0 }.checked()
    }

    /// Checks all fields, and sets the digest.
    pub(crate) fn checked(mut self) -> Result<Map, MapError> {
        check_nodes(&self.ring, &self.nodes)?;
        if self.owners.iter().any(|owner| owner.index() >= self.nodes.len()) {
            return Err(MapError::new("a slot's owner is not among the nodes"));
        }
        self.check_moves()?;
        self.check_wardens()?;
        self.check_wishes()?;
        self.digest = self.computed_digest();
        Ok(self)
    }

    fn check_wardens(&self) -> Result<(), MapError> {
        for Node { name, warden, .. } in &self.nodes {
            let Some(Wardship { warden, since }) = warden else { continue };
            let wrong =
                |line: fmt::Arguments<'_>| Err(MapError::new(format_args!("nodes/{name}: warden: {line}")));
            if warden == name || self.find(warden).is_none() {
                return wrong(format_args!("is {warden:?}; it must be another node of the ring"));
            }
            if !(1..=self.version).contains(since) {
                let version = self.version;
                return wrong(format_args!(
                    "since: is {since}; it must be 1 to {version}, the map's version"
                ));
            }
        }
        Ok(())
    }

    /// Returns the name of the ring.
    #[must_use]
    pub fn ring(&self) -> &str {
        &self.ring
    }

    /// Returns the version, which each change of the map raises.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns whether no further move may begin.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Returns the nodes in the order of their names.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns a node.
    ///
    /// # Panics
    /// Panics if the index is that of another map with more nodes.
    #[must_use]
    pub fn node(&self, index: NodeIndex) -> &Node {
        &self.nodes[index.index()]
    }

    /// Returns the node with this name, if there is one.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<NodeIndex> {
        let at = self.nodes.binary_search_by(|node| node.name.as_str().cmp(name));
        at.ok().map(|at| NodeIndex(at as u16))
    }

    /// Returns the owner of a slot.
    #[must_use]
    #[inline]
    pub fn owner(&self, slot: Slot) -> NodeIndex {
        self.owners[usize::from(slot.number())]
    }

    /// Returns the runs in the order of their slots; together, they contain every slot.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        let mut first = 0;
        std::iter::from_fn(move || {
            let owner = *self.owners.get(first)?;
            let len = self.owners[first..].iter().take_while(|other| **other == owner).count();
            let run = Run { first: slot(first), last: slot(first + len - 1), owner };
            first += len;
            Some(run)
        })
    }

    /// Returns the slots that a node owns, in their order.
    pub fn slots_of(&self, node: NodeIndex) -> impl Iterator<Item = Slot> {
        Slot::all().filter(move |slot| self.owner(*slot) == node)
    }

    /// Returns the nodes with their indexes, in the order of their names.
    pub(crate) fn indexed(&self) -> impl Iterator<Item = (NodeIndex, &Node)> {
        (0..).map(NodeIndex).zip(&self.nodes)
    }

    /// Returns whether the node owns slots, or is part of a move.
    pub(crate) fn has_slots(&self, node: NodeIndex) -> bool {
        self.owners.contains(&node) || self.moves.iter().any(|one| one.from == node || one.to == node)
    }

    /// Returns whether the node is the warden of another one.
    pub(crate) fn has_wards(&self, node: NodeIndex) -> bool {
        let name = &self.node(node).name;
        self.nodes.iter().any(|other| other.warden.as_ref().is_some_and(|of| of.warden == *name))
    }

    /// Returns the number of slots that each node owns, by its index.
    #[must_use]
    pub fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.nodes.len()];
        self.owners.iter().for_each(|owner| counts[owner.index()] += 1);
        counts
    }

    /// Returns the slots that the node with this name owns here, and does not own in `before`, in
    /// their order.
    pub fn gained(&self, before: &Map, node: &str) -> impl Iterator<Item = Slot> {
        let (now, earlier) = (self.find(node), before.find(node));
        let owns_now = move |slot: Slot| Some(self.owner(slot)) == now;
        Slot::all().filter(move |slot| owns_now(*slot) && Some(before.owner(*slot)) != earlier)
    }

    /// Returns the slots that the node with this name owns in `before`, and does not own here, in
    /// their order.
    pub fn lost(&self, before: &Map, node: &str) -> impl Iterator<Item = Slot> {
        before.gained(self, node)
    }

    /// Checks that the running node `node` may replace the map `before` by this one.
    ///
    /// # Errors
    /// Returns the reason: another ring, a version that is not higher although the maps differ, or a
    /// map file without the node. In a registry, a node that was removed owns nothing any more.
    pub fn check_successor(&self, before: &Map, node: &str) -> Result<(), MapError> {
        if self == before {
            return Ok(());
        }
        let (ring, new, old) = (&self.ring, self.version, before.version);
        if *ring != before.ring {
            let earlier = &before.ring;
            return Err(MapError::new(format_args!("the ring is {ring}; it must be {earlier}, as before")));
        }
        if new <= old {
            return Err(MapError::new(format_args!(
                "ring/{ring}/meta: version: is {new}; it must be above {old}, the version in force, because the map \
                 differs"
            )));
        }
        let is_in_registry = before.find(node).is_some_and(|index| before.node(index).term != 0);
        if is_in_registry { Ok(()) } else { self.check_node(node) }
    }

    /// Returns whether the running node `node` can keep the items of slots that are its own in
    /// `before`, the map in force, and here: it has missed no map in which they were another node's.
    /// In a ring whose map is in a registry a node's slots become another node's only with its own
    /// part, or its term rises.
    #[must_use]
    pub fn follows(&self, before: &Map, node: &str) -> bool {
        let term = |map: &Map| map.find(node).map_or(0, |index| map.node(index).term);
        self.version == before.version + 1 || (term(self) != 0 && term(self) == term(before))
    }

    /// Returns whether no node was struck off after `before`. Then, slots that a node had sealed and
    /// owns here were at no other node: nobody gives slots back unasked.
    #[must_use]
    pub fn is_whole_since(&self, before: &Map) -> bool {
        self.struck <= before.version
    }

    /// Checks that the node `node` is part of the map.
    ///
    /// # Errors
    /// Returns a line with the nodes of the map.
    pub fn check_node(&self, node: &str) -> Result<(), MapError> {
        self.find(node).map(drop).ok_or_else(|| self.missing(node))
    }

    pub(crate) fn missing(&self, node: &str) -> MapError {
        /// The maximum number of names in the line.
        const SHOWN_MAX: usize = 8;
        let names: Vec<&str> = self.nodes.iter().take(SHOWN_MAX).map(|node| node.name.as_str()).collect();
        let more = if self.nodes.len() > SHOWN_MAX { ", …" } else { "" };
        let (ring, names) = (&self.ring, names.join(", "));
        MapError::new(format_args!(
            "ring/{ring}/nodes/{node}: is missing; the map has the nodes {names}{more}"
        ))
    }
}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Map { ring, version, nodes, moves, .. } = self;
        let mut shown = f.debug_struct("Map");
        shown.field("ring", ring).field("version", version).field("nodes", nodes).field("moves", moves);
        shown.finish_non_exhaustive()
    }
}

fn slot(index: usize) -> Slot {
    Slot::new(index as u16).expect("below SLOTS")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::plan::planned;

    pub(crate) fn node(name: &str, port: u16) -> Node {
        let address = |port: u16| format!("10.0.0.1:{port}");
        Node { ring: address(port), address: address(port + 1000), ..crate::node::tests::node(name, 1) }
    }

    pub(crate) fn map(version: u64, names: &[&str]) -> Map {
        let nodes: Vec<Node> = names.iter().zip(1..).map(|(name, port)| node(name, port)).collect();
        planned("main", version, nodes, None).unwrap()
    }

    #[test]
    fn gained_and_lost_slots_are_those_that_change_their_owner() {
        let (before, after) = (map(1, &["a", "b"]), map(2, &["a", "aa", "b"]));
        let gained: Vec<Slot> = after.gained(&before, "aa").collect();
        assert!(after.slots_of(after.find("aa").unwrap()).eq(gained.iter().copied()));
        assert_eq!(after.lost(&before, "aa").count(), 0);
        let lost: usize = ["a", "b"].map(|node| after.lost(&before, node).count()).iter().sum();
        let gained_by_others: usize = ["a", "b"].map(|node| after.gained(&before, node).count()).iter().sum();
        assert_eq!(lost, gained.len() + gained_by_others);
        // The index of `b` differs between the maps; its last slot does not change its owner.
        assert!(!after.lost(&before, "b").any(|lost| lost == slot(SLOTS - 1)));
        assert!(before.lost(&after, "aa").eq(gained));
        assert_eq!((after.gained(&after, "a").count(), after.gained(&before, "x").count()), (0, 0));
    }

    #[test]
    fn a_map_is_replaced_by_one_of_the_same_ring_with_a_higher_version() {
        let before = map(7, &["a", "b"]);
        let check =
            |after: &Map, node| after.check_successor(&before, node).map_err(|error| error.to_string());
        assert_eq!(check(&before, "a"), Ok(()));
        assert_eq!(check(&map(8, &["a", "c"]), "a"), Ok(()));
        let same = "ring/main/meta: version: is 7; it must be above 7, the version in force, because the map differs";
        assert_eq!(check(&map(7, &["a", "c"]), "a").unwrap_err(), same);
        assert!(check(&map(6, &["a", "b"]), "a").is_err());
        let gone = "ring/main/nodes/b: is missing; the map has the nodes a, c";
        assert_eq!(check(&map(8, &["a", "c"]), "b").unwrap_err(), gone);
        let in_registry = Map::first("main", node("b", 1)).unwrap();
        let removed =
            in_registry.join(node("a", 2)).and_then(|map| map.fail("b", &|_| true)?.remove("b")).unwrap();
        assert_eq!(removed.check_successor(&in_registry, "b"), Ok(()));
        let other = Map { ring: "other".into(), ..map(8, &["a", "b"]) };
        assert_eq!(check(&other, "a").unwrap_err(), "the ring is other; it must be main, as before");
    }

    #[test]
    fn runs_contain_every_slot_once() {
        let map = map(1, &["a", "b", "c"]);
        let runs: Vec<Run> = map.runs().collect();
        assert_eq!(runs.len(), 3);
        let mut next = 0;
        for run in &runs {
            assert_eq!(usize::from(run.first.number()), next);
            let last = usize::from(run.last.number());
            assert!((next..=last).all(|index| map.owner(slot(index)) == run.owner));
            next = last + 1;
        }
        assert_eq!(next, SLOTS);
        assert_eq!(map.counts().iter().sum::<usize>(), SLOTS);
    }

    #[test]
    fn nodes_that_cannot_form_a_ring_are_refused() {
        let error = |nodes: Vec<Node>| {
            let owners = Box::new([NodeIndex(0); SLOTS]);
            Map::new("main", 1, nodes, owners).unwrap_err().to_string()
        };
        assert_eq!(error(vec![]), "the map has 0 nodes; it must have 1 to 1024");
        assert!(error(vec![node("b", 1), node("a", 2)]).starts_with("node a occurs twice"));
        let same = "nodes a and b have the same address 10.0.0.1:1; each address must occur once";
        assert_eq!(error(vec![node("a", 1), node("b", 1)]), same);
        let crossed = error(vec![node("a", 1), node("b", 1001)]);
        assert!(crossed.starts_with("nodes a and b have the same address 10.0.0.1:1001"), "{crossed}");
        let both = Node { address: "10.0.0.1:1".into(), ..node("a", 1) };
        assert_eq!(error(vec![both]), "node a: ring and address are both 10.0.0.1:1; they must differ");
        let heavy = Node { weight: 10_001, ..node("a", 1) };
        assert_eq!(error(vec![heavy]), "node a: weight: is 10001; it must be at most 10000");
        let no_port = Node { ring: "h".into(), ..node("a", 1) };
        assert_eq!(error(vec![no_port]), "node a: ring: is \"h\"; expected HOST:PORT or [V6]:PORT");
        assert!(error(vec![node("a b", 1)]).starts_with("\"a b\" is not a name; expected 1 to 64 letters"));
        let owners = Box::new([NodeIndex(1); SLOTS]);
        assert!(Map::new("main", 1, vec![node("a", 1)], owners).is_err());
    }
}
