//! Changes of the nodes of a ring whose map is in a registry: joins, weights, wardens, and nodes that are
//! struck off. Each returns the next map, with the next version, as those of moves and wishes do.
//!
//! A change is written as a whole, and only if the map that it was made from is still in force. So
//! it is enough that each change is right for that one map.

use crate::map::{Map, MapError, Owners, VERSION_MAX};
use crate::moves::Move;
use crate::node::{Node, NodeIndex, ProcessState, Wardship};
use crate::plan::spread;
use crate::slots::SLOTS;

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
    /// addresses, the length of its lease, its host, and whether it joins or claims the node. Without a
    /// lease it has no warden. On another host than before the term rises: promises to an earlier process
    /// there do not count any more, and what it has kept in a memory file is not used again.
    ///
    /// # Errors
    /// Returns a line if there is no such node, or the errors of [`Map::new`].
    pub fn set_own(&self, node: &Node) -> Result<Map, MapError> {
        let index = self.known(&node.name)?;
        let mut next = self.next()?;
        let Node { ring, address, lease_ms, host, process, .. } = node.clone();
        let own = &mut next.nodes[index.index()];
        if own.is_elsewhere(&host) {
            own.term = next.version;
        }
        (own.ring, own.address, own.lease_ms) = (ring, address, lease_ms);
        (own.host, own.process) = (host, process);
        own.warden.take_if(|_| lease_ms == 0);
        next.checked()
    }

    /// Notes that the process of a node has ended in order: the next one, on whichever host, need not wait
    /// for its end.
    ///
    /// # Errors
    /// Returns a line if there is no such node.
    pub fn sign_off(&self, node: &str) -> Result<Map, MapError> {
        let index = self.known(node)?;
        let mut next = self.next()?;
        next.nodes[index.index()].process = ProcessState::Ended;
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
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::node::tests::node;
    use crate::slots::{Slot, SlotSet};

    pub(crate) fn slots(range: std::ops::Range<u16>) -> SlotSet {
        range.filter_map(Slot::new).collect()
    }

    pub(crate) fn error<T>(result: Result<T, MapError>) -> String {
        result.err().expect("a mistake").to_string()
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
}
