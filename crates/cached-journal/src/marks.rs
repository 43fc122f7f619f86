//! Marks found by a recovery, and the epochs of its records.

use std::collections::{BTreeMap, HashMap};

use crate::record::{Head, Kind, Object, Position, Scope};

/// The marks of a journal: which of its records are not replayed.
#[derive(Clone, Default, Debug)]
pub struct Marks {
    all: u64,
    namespaces: HashMap<u64, u64>,
    domains: HashMap<(u64, u64), u64>,
    objects: HashMap<(u64, Object<'static>), u64>,
}

impl Marks {
    /// Takes note of a record, if it is a mark.
    pub fn add(&mut self, head: &Head<'_>) {
        if head.kind != Kind::MARK {
            return;
        }
        let up_to = match head.scope {
            Scope::All => &mut self.all,
            Scope::Namespace => self.namespaces.entry(head.namespace).or_default(),
            Scope::Domain => self.domains.entry((head.namespace, head.domain)).or_default(),
            Scope::Object => {
                self.objects.entry((head.namespace, head.object.clone().into_owned())).or_default()
            }
        };
        *up_to = head.offset.max(*up_to);
    }

    /// Returns whether a mark covers a record, which is not replayed then.
    pub fn covers(&self, position: Position, head: &Head<'_>) -> bool {
        let is_at_or_after = |up_to: Option<&u64>| up_to.is_some_and(|up_to| position.0 <= *up_to);
        is_at_or_after(Some(&self.all))
            || is_at_or_after(self.namespaces.get(&head.namespace))
            || is_at_or_after(self.domains.get(&(head.namespace, head.domain)))
            || (!self.objects.is_empty() && {
                let object = (head.namespace, head.object.clone().into_owned());
                is_at_or_after(self.objects.get(&object))
            })
    }
}

/// The lowest and the highest epoch among the records of each namespace.
#[derive(Clone, Default, Debug)]
pub struct Epochs(BTreeMap<u64, (u64, u64)>);

impl Epochs {
    pub(crate) fn add(&mut self, head: &Head<'_>) {
        if head.kind != Kind::MARK {
            let range = self.0.entry(head.namespace).or_insert((head.epoch, head.epoch));
            *range = (range.0.min(head.epoch), range.1.max(head.epoch));
        }
    }

    /// Returns each namespace that has records, with the lowest and the highest epoch of its records.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        self.0.iter().map(|(namespace, (lowest, highest))| (*namespace, *lowest, *highest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(namespace: u64, domain: u64, object: u64) -> Head<'static> {
        Head { namespace, domain, ..Head::new(Kind(1), Object::Number(object)) }
    }

    #[test]
    fn a_mark_covers_its_scope_up_to_its_position() {
        let cases = [
            (Scope::Object, [true, false, false, false]),
            (Scope::Domain, [true, true, false, false]),
            (Scope::Namespace, [true, true, true, false]),
            (Scope::All, [true, true, true, true]),
        ];
        for (scope, expected) in cases {
            let mut marks = Marks::default();
            let mark = Head::mark(scope, Position(7));
            marks.add(&Head { namespace: 1, domain: 2, object: Object::Number(3), ..mark });
            let heads = [head(1, 2, 3), head(1, 2, 4), head(1, 9, 4), head(9, 2, 9)];
            assert_eq!(heads.each_ref().map(|head| marks.covers(Position(7), head)), expected, "{scope:?}");
            assert!(heads.iter().all(|head| !marks.covers(Position(8), head)));
        }
    }

    #[test]
    fn an_earlier_mark_does_not_narrow_a_later_one() {
        let mut marks = Marks::default();
        marks.add(&Head::mark(Scope::All, Position(7)));
        marks.add(&Head::mark(Scope::All, Position(3)));
        assert!(marks.covers(Position(7), &head(1, 1, 1)));
    }
}
