//! The content of a record.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

/// A record's position in the journal: records are numbered from 1 in the order in which they were
/// appended. No two records that became durable have the same position.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Position(pub u64);

/// The kind of a record. The journal interprets only [`Kind::MARK`]; the caller numbers its own
/// kinds from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Kind(pub u8);

impl Kind {
    /// A mark: see [`Head::mark`].
    pub const MARK: Self = Self(0);
}

/// The object that a record changes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Object<'a> {
    /// No object: the record concerns its namespace, its domain, or everything.
    None,
    /// An object that has a number.
    Number(u64),
    /// An object that has a name of at most [`NAME_BYTES_MAX`] bytes.
    Name(Cow<'a, [u8]>),
}

/// The maximum length of an object's name, in bytes.
pub const NAME_BYTES_MAX: usize = 1024;

impl Object<'_> {
    /// Returns the object with owned bytes.
    pub fn into_owned(self) -> Object<'static> {
        match self {
            Self::None => Object::None,
            Self::Number(number) => Object::Number(number),
            Self::Name(name) => Object::Name(Cow::Owned(name.into_owned())),
        }
    }
}

/// The scope of a mark.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scope {
    /// The object named by namespace and object.
    Object,
    /// The order domain named by namespace and domain.
    Domain,
    /// The namespace.
    Namespace,
    /// Everything.
    All,
}

/// A record's description of a change, without the changed bytes. The journal stores these fields
/// and returns them; it reads them only in marks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head<'a> {
    /// The kind of change.
    pub kind: Kind,
    /// The scope: [`Scope::Object`] in all records except marks.
    pub scope: Scope,
    /// The number of the object's namespace.
    pub namespace: u64,
    /// The number of the order domain.
    pub domain: u64,
    /// The object.
    pub object: Object<'a>,
    /// The offset of the first byte of the change. In a mark, the last position that the mark
    /// covers.
    pub offset: u64,
    /// The number of bytes of the change.
    pub len: u64,
    /// The sequence number of the change.
    pub sequence: u64,
    /// The epoch under which the change was made.
    pub epoch: u64,
    /// The generation of the object, which distinguishes it from an earlier one with the same name.
    pub generation: u64,
}

impl<'a> Head<'a> {
    /// Returns the head of a change of `object`, with every number 0.
    pub fn new(kind: Kind, object: Object<'a>) -> Self {
        Self {
            kind,
            scope: Scope::Object,
            namespace: 0,
            domain: 0,
            object,
            offset: 0,
            len: 0,
            sequence: 0,
            epoch: 0,
            generation: 0,
        }
    }

    /// Returns the head of a mark: records in `scope` with positions up to and including `up_to`
    /// are not replayed.
    ///
    /// A change that reaches the store without the journal needs a mark, durable before the change
    /// is acknowledged. Otherwise an old record, kept because another object's data hold its
    /// segment, would be replayed over the newer bytes. Take `up_to` before flushing the scope. Set
    /// `namespace`, `domain` and `object` as the scope needs.
    pub fn mark(scope: Scope, up_to: Position) -> Self {
        Self { scope, offset: up_to.0, ..Self::new(Kind::MARK, Object::None) }
    }

    /// Returns the head with owned bytes.
    pub fn into_owned(self) -> Head<'static> {
        let Self { kind, scope, namespace, domain, object, offset, len, sequence, epoch, generation } = self;
        let object = object.into_owned();
        Head { kind, scope, namespace, domain, object, offset, len, sequence, epoch, generation }
    }
}

/// A record to append: a head, and its payload in any number of slices.
#[derive(Clone, Debug)]
pub struct Record<'a> {
    /// The description of the change.
    pub head: Head<'a>,
    /// The bytes of the payload, which are copied only once, into the batch.
    pub payload: &'a [&'a [u8]],
}

impl Record<'_> {
    /// Returns the number of bytes in the payload.
    pub fn payload_bytes(&self) -> u64 {
        self.payload.iter().map(|slice| slice.len() as u64).sum()
    }
}

/// The marks of a journal, which exclude records from replay.
#[derive(Clone, Default, Debug)]
pub struct Marks {
    all: u64,
    namespaces: HashMap<u64, u64>,
    domains: HashMap<(u64, u64), u64>,
    objects: HashMap<(u64, Object<'static>), u64>,
}

impl Marks {
    /// Adds a record if it is a mark.
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

    /// Adds other marks.
    pub(crate) fn merge(&mut self, other: Self) {
        fn merge<K: Eq + std::hash::Hash>(into: &mut HashMap<K, u64>, from: HashMap<K, u64>) {
            for (key, up_to) in from {
                let known = into.entry(key).or_default();
                *known = up_to.max(*known);
            }
        }
        self.all = self.all.max(other.all);
        merge(&mut self.namespaces, other.namespaces);
        merge(&mut self.domains, other.domains);
        merge(&mut self.objects, other.objects);
    }

    /// Returns the last position that any mark covers; `None` if there are no marks.
    pub(crate) fn last_covered(&self) -> Option<Position> {
        let scoped = self.namespaces.values().chain(self.domains.values()).chain(self.objects.values());
        let last = scoped.copied().chain([self.all]).max();
        last.filter(|up_to| *up_to > 0).map(Position)
    }

    /// Returns whether a mark covers a record. Such a record is not replayed.
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

    pub(crate) fn merge(&mut self, other: Self) {
        for (namespace, (lowest, highest)) in other.0 {
            let range = self.0.entry(namespace).or_insert((lowest, highest));
            *range = (range.0.min(lowest), range.1.max(highest));
        }
    }

    /// Returns each namespace that has records, with the lowest and the highest epoch of these
    /// records.
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
