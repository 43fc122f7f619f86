//! Objects that wait for a flush, a line for each namespace: so a namespace whose turn it is not holds up no other.

use std::collections::{BTreeMap, BTreeSet};

use blocker::Timestamp;
use cached_journal::Position;

/// How many objects are looked at to find one of many: some ten microseconds.
pub(crate) const WALKED_MAX: usize = 1024;

/// An object with something pending.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) node: u32,
    /// The time since when it has had something pending.
    pub(crate) since: Timestamp,
    /// The number of its namespace.
    pub(crate) namespace: u16,
}

/// See the module.
#[derive(Default)]
pub(crate) struct DirtyLine {
    /// Those of each namespace, by the number of which the line has its place: by the time since when they
    /// wait, then by the number that the object got when it was inserted.
    of_each: Vec<BTreeMap<(Timestamp, u64), u32>>,
    /// The time since when each of them waits, and its namespace.
    since: BTreeMap<u64, (Timestamp, u16)>,
    /// The one of each namespace that has waited longest: since when, its number, its namespace.
    first_of_each: BTreeSet<(Timestamp, u64, u16)>,
    /// Those that keep something of the log, by the position of their oldest record.
    held: BTreeSet<(u64, u64)>,
}

impl DirtyLine {
    /// Adds an object; `held` is the position of its oldest record, if it keeps something of the log.
    pub(crate) fn add(&mut self, number: u64, entry: Entry, held: Option<u64>) {
        let Entry { node, since, namespace } = entry;
        let place = usize::from(namespace);
        if self.of_each.len() <= place {
            self.of_each.resize_with(place + 1, BTreeMap::new);
        }
        let line = &mut self.of_each[place];
        match line.first_key_value().map(|((since, number), _)| (*since, *number)) {
            Some(first) if first < (since, number) => {}
            first => {
                if let Some((since, number)) = first {
                    self.first_of_each.remove(&(since, number, namespace));
                }
                self.first_of_each.insert((since, number, namespace));
            }
        }
        line.insert((since, number), node);
        self.since.insert(number, (since, namespace));
        self.held.extend(held.map(|position| (position, number)));
    }

    /// Takes an object out, with the same `held`.
    pub(crate) fn take(&mut self, number: u64, held: Option<u64>) -> Option<Entry> {
        let (since, namespace) = self.since.remove(&number)?;
        held.map(|position| self.held.remove(&(position, number)));
        let line = &mut self.of_each[usize::from(namespace)];
        let node = line.remove(&(since, number))?;
        if self.first_of_each.remove(&(since, number, namespace))
            && let Some(((since, number), _)) = line.first_key_value()
        {
            self.first_of_each.insert((*since, *number, namespace));
        }
        Some(Entry { node, since, namespace })
    }

    /// Notes that an object's oldest record is at `position` now, if it is in a line.
    pub(crate) fn set_held(&mut self, number: u64, before: Option<u64>, position: u64) {
        if self.since.contains_key(&number) {
            before.map(|before| self.held.remove(&(before, number)));
            self.held.insert((position, number));
        }
    }

    /// Returns the number of the object that has waited longest of those that are the first of their
    /// namespace and for which `is_meant` returns true.
    pub(crate) fn first(&self, is_meant: impl Fn(u16, Timestamp) -> bool) -> Option<u64> {
        let mut firsts = self.first_of_each.iter();
        firsts.find(|(since, _, namespace)| is_meant(*namespace, *since)).map(|(_, number, _)| *number)
    }

    /// Returns the number of the object with the oldest record.
    pub(crate) fn first_held(&self) -> Option<u64> {
        self.held.first().map(|(_, number)| *number)
    }

    /// Returns the position and number of the object with the oldest record before `end`, of the namespaces
    /// for which `is_meant` returns true. Many are looked at and not all.
    pub(crate) fn first_held_before(
        &self,
        end: Position,
        is_meant: impl Fn(u16) -> bool,
    ) -> Option<(u64, u64)> {
        let mut held = self.held.range(..(end.0, 0)).take(WALKED_MAX).copied();
        held.find(|(_, number)| self.since.get(number).is_some_and(|(_, namespace)| is_meant(*namespace)))
    }

    /// Returns the node of an object.
    pub(crate) fn node(&self, number: u64) -> Option<u32> {
        let (since, namespace) = *self.since.get(&number)?;
        self.of_each.get(usize::from(namespace))?.get(&(since, number)).copied()
    }

    /// Returns, for each namespace that has some, since when the one waits that has waited longest; the
    /// longest time first.
    pub(crate) fn firsts(&self) -> impl Iterator<Item = (u16, Timestamp)> {
        self.first_of_each.iter().map(|(since, _, namespace)| (*namespace, *since))
    }

    /// Returns the number of objects of a namespace.
    pub(crate) fn count_of(&self, namespace: u16) -> usize {
        self.of_each.get(usize::from(namespace)).map_or(0, BTreeMap::len)
    }

    /// Returns the nodes of all of them.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = u32> {
        self.of_each.iter().flat_map(BTreeMap::values).copied()
    }
}
