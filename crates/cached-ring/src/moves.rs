//! Moves: slots on their way from one node to another, with their items. A node copies the items of
//! a move that has begun; a commit then gives it the slots, which otherwise remain where they are. Which
//! slots move next follows from the nodes' weights, and from what operators wish.

use std::cmp::Reverse;
use std::fmt;

use crate::map::{Map, MapError};
use crate::node::NodeIndex;
use crate::plan::wanted_owners;
use crate::slots::{Slot, SlotSet};

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

/// Slots that one node, their owner, is passing to another one with their items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// The version of the map in which the move began: no other move of the ring has it.
    pub id: u64,
    /// The source: it owns the slots until the move is committed.
    pub from: NodeIndex,
    /// The target.
    pub to: NodeIndex,
    /// The slots, at least one.
    pub slots: SlotSet,
}

impl Map {
    /// Returns the moves that are in progress, in the order of their ids.
    #[must_use]
    pub fn moves(&self) -> &[Move] {
        &self.moves
    }

    /// Returns the move with this id, if it is in progress.
    #[must_use]
    pub fn find_move(&self, id: u64) -> Option<&Move> {
        self.moves.iter().find(|one| one.id == id)
    }

    /// Returns the move that the slot is part of, if there is one.
    #[must_use]
    pub fn move_of(&self, slot: Slot) -> Option<&Move> {
        self.moves.iter().find(|one| one.slots.contains(slot))
    }

    /// Checks the moves of a map whose nodes and owners are right.
    pub(crate) fn check_moves(&self) -> Result<(), MapError> {
        let mut moving = SlotSet::new();
        let mut previous = 0;
        for Move { id, from, to, slots } in &self.moves {
            let wrong =
                |line: fmt::Arguments<'_>| Err(MapError::new(format_args!("moves: move {id}: {line}")));
            if *id <= previous || *id > self.version {
                let expected = format_args!("ids must rise, up to {}, the version of the map", self.version);
                return wrong(format_args!("is after move {previous}; {expected}"));
            }
            if from == to || from.index().max(to.index()) >= self.nodes.len() {
                return wrong(format_args!("from and to must be two nodes of the ring"));
            }
            if slots.is_empty() {
                return wrong(format_args!("slots: is empty; a move has one slot at least"));
            }
            for slot in slots.iter() {
                if self.owner(slot) != *from {
                    let (slot, owner) = (slot.number(), &self.node(self.owner(slot)).name);
                    return wrong(format_args!(
                        "slot {slot} belongs to {owner}; it must belong to the source"
                    ));
                }
                if !moving.insert(slot) {
                    let slot = slot.number();
                    return wrong(format_args!("slot {slot} is in two moves; a slot must be in one at most"));
                }
            }
            previous = *id;
        }
        Ok(())
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

    fn known_move(&self, id: u64) -> Result<&Move, MapError> {
        self.find_move(id).ok_or_else(|| MapError::new(format_args!("there is no move {id}; it has ended")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::tests::{error, slots};
    use crate::node::tests::node;
    use crate::slots::SLOTS;
    use proptest::prelude::*;

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
