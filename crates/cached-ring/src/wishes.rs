//! Wishes of operators: slots that a node is to have whatever the weights are, for example hot ones.
//!
//! A wish holds until it is cancelled, or another one names the same slots. A node takes the slots that
//! are wished for it first. The planner counts wished slots as a part of the node's share and moves
//! others instead, so that every node still has its share, unless a share becomes smaller than a wish.

use crate::map::{Map, MapError};
use crate::node::NodeIndex;
use crate::plan::shares;
use crate::slots::SlotSet;

/// The maximum number of nodes for which slots are wished.
pub const WISHES_MAX: usize = 16;

/// The slots that one node is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// The node.
    pub to: NodeIndex,
    /// The slots, at least one. No other wish has any of them.
    pub slots: SlotSet,
}

impl Map {
    /// Returns the wishes in the order of their nodes.
    #[must_use]
    pub fn wishes(&self) -> &[Wish] {
        &self.wishes
    }

    /// Wishes for slots at a node; earlier wishes for the same slots end.
    ///
    /// # Errors
    /// Returns a line if there is no such node, it has weight 0, there are no slots, there would be more
    /// than [`WISHES_MAX`] wishes, or more slots wished for the node than its share.
    pub fn wish(&self, to: &str, slots: &SlotSet) -> Result<Map, MapError> {
        let index = self.known(to)?;
        if self.node(index).weight == 0 {
            return Err(MapError::new(format_args!(
                "node {to} has weight 0 and is given no slots; set a weight first"
            )));
        }
        let mut next = self.next()?;
        next.forget(slots);
        let at = next.wishes.partition_point(|wish| wish.to < index);
        if next.wishes.get(at).is_none_or(|wish| wish.to != index) {
            next.wishes.insert(at, Wish { to: index, slots: SlotSet::new() });
        }
        let wish = &mut next.wishes[at];
        wish.slots.extend(slots.iter());
        let wished = wish.slots.len();
        let share = shares(&next)[index.index()];
        if wished > share {
            return Err(MapError::new(format_args!(
                "{wished} slots would be wished for node {to}, whose share is {share} slots; name fewer, or raise its \
                 weight"
            )));
        }
        next.checked()
    }

    /// Cancels the wishes for these slots, or all wishes. The slots stay where they are until the weights
    /// move them.
    ///
    /// # Errors
    /// Returns a line if no such slot is wished.
    pub fn cancel_wishes(&self, slots: Option<&SlotSet>) -> Result<Map, MapError> {
        let mut next = self.next()?;
        match slots {
            Some(slots) => next.forget(slots),
            None => next.wishes.clear(),
        }
        match next.wishes == self.wishes {
            true => Err(MapError::new("no wish has any of these slots; `cluster map` shows the wishes")),
            false => next.checked(),
        }
    }

    /// Checks the wishes of a map whose other fields are right.
    pub(crate) fn check_wishes(&self) -> Result<(), MapError> {
        let count = self.wishes.len();
        if count > WISHES_MAX {
            return Err(MapError::new(format_args!(
                "wishes: are {count}; slots may be wished for {WISHES_MAX} nodes at most"
            )));
        }
        let (mut all, mut previous) = (SlotSet::new(), None);
        for Wish { to, slots } in &self.wishes {
            let node = match self.nodes.get(to.index()) {
                Some(node) if previous < Some(*to) => &node.name,
                _ => return Err(MapError::new("wishes: each must be for another node of the ring")),
            };
            if slots.is_empty() {
                return Err(MapError::new(format_args!(
                    "wishes: {node}: is empty; a wish has one slot at least"
                )));
            }
            if let Some(slot) = slots.iter().find(|slot| !all.insert(*slot)) {
                let slot = slot.number();
                return Err(MapError::new(format_args!(
                    "wishes: {node}: slot {slot} is in two wishes; a slot must be in one at most"
                )));
            }
            previous = Some(*to);
        }
        Ok(())
    }

    /// Ends the wishes for a node, which is given no slots any more.
    pub(crate) fn drop_wishes(&mut self, node: NodeIndex) {
        self.wishes.retain(|wish| wish.to != node);
    }

    /// Removes slots from all wishes.
    fn forget(&mut self, slots: &SlotSet) {
        for wish in &mut self.wishes {
            slots.iter().for_each(|slot| _ = wish.slots.remove(slot));
        }
        self.wishes.retain(|wish| !wish.slots.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::form::{documents, from_documents, from_file};
    use crate::node::tests::node;
    use crate::slots::{SLOTS, Slot};

    /// Returns a map in which a has the slots up to 8191, and b the others.
    fn halves() -> Map {
        let owners: Vec<NodeIndex> = (0..SLOTS).map(|slot| NodeIndex(u16::from(slot >= SLOTS / 2))).collect();
        Map::new("main", 1, vec![node("a", 1), node("b", 1)], owners.try_into().unwrap()).unwrap()
    }

    fn slots(text: &str) -> SlotSet {
        text.parse().unwrap()
    }

    fn error(result: Result<Map, MapError>) -> String {
        result.expect_err("a mistake").to_string()
    }

    /// Lets a node take what it is due, and returns it.
    fn take(map: &mut Map, to: &str) -> Option<(String, String)> {
        let (from, moved) = map.next_move(to, &|_| Some(0))?;
        *map = map.begin_move(&from, to, moved.clone()).unwrap();
        *map = map.commit_move(map.version()).unwrap();
        Some((from, moved.to_string()))
    }

    #[test]
    fn wished_slots_come_first_and_others_go_back() {
        let mut map = halves().wish("a", &slots("8200-8209,9000")).unwrap();
        assert_eq!(take(&mut map, "a"), Some(("b".into(), "8200-8209,9000".into())));
        let (from, swapped) = take(&mut map, "b").unwrap();
        assert_eq!((from.as_str(), slots(&swapped).len()), ("a", 11));
        assert!(slots(&swapped).iter().all(|slot| slot.number() < 8192), "{swapped}");
        assert_eq!(
            (take(&mut map, "a"), take(&mut map, "b"), map.counts()),
            (None, None, vec![SLOTS / 2; 2])
        );
        // They stay if the shares change, and before others if the node owes some.
        let map = map.set_weight("b", 3).unwrap();
        let (_, given) = map.next_move("b", &|_| Some(0)).unwrap();
        assert!(given.iter().all(|slot| !map.wishes()[0].slots.contains(slot)));
        let map = map.wish("b", &slots("9000")).unwrap();
        assert_eq!(map.next_move("b", &|_| Some(0)), Some(("a".into(), slots("9000"))));
        assert_eq!(map.next_move("b", &|node| (node != "a").then_some(0)), None);
        // A wish at the owner replaces one that was not fulfilled.
        let map = map.wish("a", &slots("9000")).unwrap();
        assert!(map.next_move("b", &|_| Some(0)).unwrap().1.iter().all(|slot| slot.number() != 9000));
    }

    #[test]
    fn wishes_end_when_they_are_cancelled_or_their_node_is_given_nothing() {
        let map = halves().wish("a", &slots("9000-9009")).unwrap().wish("b", &slots("5,7")).unwrap();
        let part = map.cancel_wishes(Some(&slots("7,9000-9004"))).unwrap();
        let shown = |map: &Map| -> Vec<(u16, String)> {
            map.wishes().iter().map(|wish| (wish.to.0, wish.slots.to_string())).collect()
        };
        assert_eq!(shown(&part), [(0, "9005-9009".into()), (1, "5".into())]);
        assert_eq!(shown(&part.cancel_wishes(None).unwrap()), []);
        let none = "no wish has any of these slots; `cluster map` shows the wishes";
        assert_eq!(error(part.cancel_wishes(Some(&slots("7")))), none);
        assert_eq!(error(halves().cancel_wishes(None)), none);
        for without in [part.set_weight("a", 0), part.fail("a", &|_| true)] {
            assert_eq!(shown(&without.unwrap()), [(1, "5".into())]);
        }
        // Nodes that come and go change the numbers of others.
        let joined = part.join(node("0", 1)).unwrap();
        assert_eq!(shown(&joined), [(1, "9005-9009".into()), (2, "5".into())]);
        assert_eq!(shown(&joined.remove("0").unwrap()), shown(&part));
    }

    #[test]
    fn a_wish_that_cannot_be_is_told() {
        let map = halves();
        assert!(error(map.wish("c", &slots("1"))).starts_with("ring/main/nodes/c: is missing"));
        assert_eq!(
            error(map.wish("a", &slots("0-8192"))),
            "8193 slots would be wished for node a, whose share is 8192 slots; name fewer, or raise its weight"
        );
        assert_eq!(
            error(map.set_weight("a", 0).unwrap().wish("a", &slots("1"))),
            "node a has weight 0 and is given no slots; set a weight first"
        );
        assert!(error(map.wish("a", &SlotSet::new())).starts_with("wishes: a: is empty"));
        let mut many = map;
        for number in 0..=WISHES_MAX {
            many = many.join(node(&format!("n{number}"), 1)).unwrap();
        }
        let wish = |map: &Map, number: u16| {
            map.wish(&format!("n{number}"), &[Slot::new(number).unwrap()].into_iter().collect())
        };
        for number in 0..WISHES_MAX as u16 {
            many = wish(&many, number).unwrap();
        }
        let told = error(wish(&many, WISHES_MAX as u16));
        assert_eq!(told, "wishes: are 17; slots may be wished for 16 nodes at most");
        for wrong in ["", "1-", "7-3", "16384", "1,,2", "1, 2"] {
            let told = wrong.parse::<SlotSet>().unwrap_err().to_string();
            assert!(told.ends_with("is not a run; expected FIRST-LAST, slots from 0 to 16383"), "{told}");
        }
    }

    #[test]
    fn wishes_are_a_document_of_their_own() {
        let map = halves().wish("b", &slots("5,7-9")).unwrap().wish("a", &slots("9000")).unwrap();
        assert_ne!(map.digest(), map.cancel_wishes(Some(&slots("9000"))).unwrap().digest());
        let all = documents(&map).unwrap();
        let document = r#"[{"to":"a","slots":"9000"},{"to":"b","slots":"5,7-9"}]"#;
        assert_eq!(all["ring/main/wishes"], document);
        let read = |wishes: &str| {
            let texts = all.iter().map(|(key, text)| match key.ends_with("wishes") {
                true => (key.as_str(), wishes.as_bytes()),
                false => (key.as_str(), text.as_bytes()),
            });
            let file = from_file("main", texts.clone()).map_err(|error| error.to_string());
            assert!(file.is_err());
            from_documents("main", texts).map_err(|error| error.to_string())
        };
        assert_eq!(read(document), Ok(map));
        for (wrong, line) in [
            (r#"[{"to":"c","slots":"1"}]"#, "\"c\" is not a node of the ring"),
            (r#"[{"to":"a","slots":"x"}]"#, "a: \"x\" is not a run"),
            (r#"[{"to":"a","slots":"1"},{"to":"b","slots":"1"}]"#, "b: slot 1 is in two wishes"),
            (r#"[{"to":"a","slots":"1"},{"to":"a","slots":"2"}]"#, "each must be for another node"),
        ] {
            let told = read(wrong).unwrap_err();
            assert!(told.starts_with(&format!("ring/main/wishes: {line}")), "{told}");
        }
    }
}
