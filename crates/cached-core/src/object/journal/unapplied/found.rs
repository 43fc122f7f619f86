//! The records to apply, by object: 12 bytes per record, about 50 per object.
//!
//! Objects are identified by the hash of their names. Two objects with the same hash are recovered
//! together.

use std::collections::{BTreeMap, HashMap};

use blocker::{Error, Namespace};
use cached_journal::{Hold, RecordPlace};

use crate::object::lock_ranks;
use crate::sync::{Mutex, lock};

/// A namespace that has records to apply, or the record of an epoch.
pub(crate) struct FoundNamespace {
    pub(crate) name: Namespace,
    /// The namespace's number in the journal.
    pub(crate) number: u64,
    /// The highest epoch under which the namespace was changed or was about to be changed.
    pub(crate) epoch: u64,
    /// The highest epoch under which the namespace was changed: the journal's writer has held it.
    pub(crate) changed_epoch: u64,
    /// The number of objects that still have records to apply.
    pub(crate) left: u32,
    /// The reason why one of the namespace's objects cannot be recovered.
    failure: Option<Error>,
}

/// The recovery stage of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Stage {
    /// The object's records have not been applied.
    #[default]
    Waiting,
    /// A task is applying the object's records.
    Busy,
    /// The object has no records to apply.
    Recovered,
    /// The object cannot be recovered.
    Failed,
}

#[derive(Default)]
struct FoundObject {
    namespace: u32,
    start: u32,
    end: u32,
    /// The first record that has not been applied.
    next: u32,
    stage: Stage,
    /// Whether a task will recover the object out of turn.
    is_requested: bool,
}

/// The records to apply, by object.
#[derive(Default)]
pub(crate) struct Found {
    places: Vec<RecordPlace>,
    objects: Vec<FoundObject>,
    by_hash: HashMap<u64, u32>,
    pub(crate) namespaces: Vec<FoundNamespace>,
    /// The reasons why objects cannot be recovered, by object.
    failures: HashMap<u32, Error>,
    /// Whether a namespace has been recovered, or has failed, since tasks that wait for it were last
    /// woken.
    pub(super) has_news: bool,
}

/// Collects the records.
#[derive(Default)]
pub(crate) struct Collector {
    records: Vec<(u32, RecordPlace)>,
    found: Found,
    namespaces: HashMap<Namespace, u32>,
}

impl Collector {
    /// Records a namespace with this number, which was changed under `epoch` or, unless
    /// `is_changed`, was about to be; returns its index.
    pub(crate) fn namespace(&mut self, name: &Namespace, number: u64, epoch: u64, is_changed: bool) -> u32 {
        let all = &mut self.found.namespaces;
        let at = match self.namespaces.get(name) {
            Some(at) => *at,
            None => {
                let at = all.len() as u32;
                self.namespaces.insert(name.clone(), at);
                let (name, failure) = (name.clone(), None);
                all.push(FoundNamespace { name, number, epoch, changed_epoch: 0, left: 0, failure });
                at
            }
        };
        let found = &mut all[at as usize];
        found.epoch = found.epoch.max(epoch);
        if is_changed {
            found.changed_epoch = found.changed_epoch.max(epoch);
        }
        found.number = number;
        at
    }

    /// Adds a record of the object with this hash. Records must be added in the order of the log.
    pub(crate) fn record(&mut self, hash: u64, namespace: u32, place: RecordPlace) {
        let objects = &mut self.found.objects;
        let object = *self.found.by_hash.entry(hash).or_insert_with(|| {
            objects.push(FoundObject { namespace, ..FoundObject::default() });
            objects.len() as u32 - 1
        });
        self.records.push((object, place));
    }

    pub(crate) fn finish(mut self) -> Found {
        // Places increase in the order of the log.
        self.records.sort_unstable();
        let objects = &mut self.found.objects;
        for (at, (object, _)) in self.records.iter().enumerate() {
            let object = &mut objects[*object as usize];
            if object.end == 0 {
                (object.start, object.next) = (at as u32, at as u32);
            }
            object.end = at as u32 + 1;
        }
        for object in objects {
            self.found.namespaces[object.namespace as usize].left += 1;
        }
        self.found.places = self.records.into_iter().map(|(_, place)| place).collect();
        self.found.places.shrink_to_fit();
        self.found
    }
}

impl Found {
    /// Returns the number of the object with this hash, if the replay has records of it.
    pub(crate) fn object(&self, hash: u64) -> Option<u32> {
        self.by_hash.get(&hash).copied()
    }

    pub(crate) fn stage(&self, object: u32) -> Stage {
        // `finish` removes all objects; a task that was to recover one of them may still look it
        // up.
        self.objects.get(object as usize).map_or(Stage::Recovered, |object| object.stage)
    }

    /// Returns the reason why an object cannot be recovered.
    pub(crate) fn failure(&self, object: u32) -> Error {
        let why = self.failures.get(&object).cloned();
        why.unwrap_or_else(|| Error::Corrupt("not recovered".into()))
    }

    /// Drops the records of a namespace that has been voided. Returns their number.
    pub(crate) fn leave_out(&mut self, namespace: usize) -> u64 {
        self.namespaces[namespace].left = 0;
        let mut records = 0;
        for object in self.objects.iter_mut().filter(|object| object.namespace as usize == namespace) {
            records += u64::from(object.end - object.next);
            (object.stage, object.next) = (Stage::Recovered, object.end);
        }
        records
    }

    /// Returns whether the records of a namespace are applied; with `None`, the records of all
    /// namespaces.
    ///
    /// # Errors
    /// The reason why one of its objects cannot be recovered.
    pub(crate) fn is_recovered(&self, namespace: Option<&Namespace>) -> Result<bool, Error> {
        let asked = self.namespaces.iter().filter(|it| namespace.is_none_or(|name| it.name == *name));
        let mut is_recovered = true;
        for each in asked {
            if let Some(why) = &each.failure {
                return Err(why.clone());
            }
            is_recovered &= each.left == 0;
        }
        Ok(is_recovered)
    }

    /// Records that a task will recover the object out of turn; returns false if another task
    /// already will.
    pub(crate) fn request(&mut self, object: u32) -> bool {
        !std::mem::replace(&mut self.objects[object as usize].is_requested, true)
    }

    /// Records that no task will recover the object out of turn.
    pub(crate) fn end_request(&mut self, object: u32) {
        if let Some(object) = self.objects.get_mut(object as usize) {
            object.is_requested = false;
        }
    }

    /// Marks a waiting object as busy. Returns the object's previous stage.
    pub(crate) fn begin(&mut self, object: u32) -> Stage {
        let before = self.stage(object);
        if before == Stage::Waiting {
            self.objects[object as usize].stage = Stage::Busy;
        }
        before
    }

    /// Marks a busy object as waiting again.
    pub(crate) fn end(&mut self, object: u32) {
        let Some(object) = self.objects.get_mut(object as usize) else { return };
        if object.stage == Stage::Busy {
            object.stage = Stage::Waiting;
        }
    }

    /// Returns the number and the place of an object's next record.
    pub(crate) fn next(&self, object: u32) -> Option<(u32, RecordPlace)> {
        let object = self.objects.get(object as usize)?;
        let is_left = object.next < object.end && object.stage != Stage::Failed;
        is_left.then(|| (object.next, self.places[object.next as usize]))
    }

    /// Returns the places of an object's record `last` and of up to `count - 1` records before it.
    pub(crate) fn places_up_to(&self, object: u32, last: u32, count: u32) -> Vec<RecordPlace> {
        let start = self.objects[object as usize].start.max((last + 1).saturating_sub(count));
        self.places[start as usize..=last as usize].to_vec()
    }

    /// Returns whether the record at a place has been applied, or never will be.
    pub(crate) fn is_over(&self, object: u32, place: RecordPlace) -> bool {
        let object = &self.objects[object as usize];
        let is_left = object.next < object.end && self.places[object.next as usize] <= place;
        object.stage == Stage::Failed || !is_left
    }

    /// Returns whether an object cannot be recovered.
    pub(crate) fn has_failed(&self, object: u32) -> bool {
        self.stage(object) == Stage::Failed
    }

    /// Records that an object's next record has been applied.
    pub(crate) fn applied(&mut self, object: u32) {
        let object = &mut self.objects[object as usize];
        object.next += 1;
        if object.next >= object.end && object.stage != Stage::Failed {
            object.stage = Stage::Recovered;
            let namespace = &mut self.namespaces[object.namespace as usize];
            namespace.left -= 1;
            self.has_news |= namespace.left == 0;
        }
    }

    /// Records that an object cannot be recovered.
    pub(crate) fn fail(&mut self, object: u32, why: Error) {
        let found = &mut self.objects[object as usize];
        if matches!(found.stage, Stage::Waiting | Stage::Busy) {
            found.stage = Stage::Failed;
            self.namespaces[found.namespace as usize].failure.get_or_insert_with(|| why.clone());
            self.failures.insert(object, why);
            self.has_news = true;
        }
    }

    /// Records that no further record can be read; returns the number of objects that fail for this
    /// reason.
    pub(crate) fn fail_rest(&mut self, why: &Error) -> u64 {
        let before = self.failures.len();
        for object in 0..self.objects.len() as u32 {
            self.fail(object, why.clone());
        }
        (self.failures.len() - before) as u64
    }

    /// Returns the number of objects that cannot be recovered.
    pub(crate) fn failed(&self) -> u64 {
        self.failures.len() as u64
    }

    /// Returns the number of objects.
    pub(crate) fn objects(&self) -> u64 {
        self.objects.len() as u64
    }
}

/// Holds the log from the first part of a state on.
struct Passed {
    /// The number of the object's record that was passed last.
    last: u32,
    /// The hold of the first record passed.
    hold: Hold,
}

/// The parts of states whose last part has not been applied: their segments must stay, whichever
/// task has passed them.
pub(crate) struct Parts {
    passed: Mutex<BTreeMap<u32, Passed>>,
}

impl Default for Parts {
    fn default() -> Self {
        Self { passed: Mutex::ranked(BTreeMap::new(), &lock_ranks::RECOVERY) }
    }
}

impl Parts {
    /// Keeps an object's record `number`, which is passed without being applied, and the records
    /// passed just before it. `hold` is the hold of this record.
    pub(crate) fn keep(&self, object: u32, number: u32, hold: Hold) {
        let replaced = {
            let mut passed = lock(&self.passed);
            match passed.get_mut(&object) {
                Some(before) if before.last + 1 == number => {
                    before.last = number;
                    Some(hold)
                }
                _ => passed.insert(object, Passed { last: number, hold }).map(|before| before.hold),
            }
        };
        drop(replaced);
    }

    /// Releases the parts of the objects for which `is_over` returns true, given the object and the
    /// number of its record that was passed last.
    pub(crate) fn release(&self, is_over: impl Fn(u32, u32) -> bool) {
        let all: Vec<_> = lock(&self.passed).iter().map(|(object, passed)| (*object, passed.last)).collect();
        for (object, last) in all.into_iter().filter(|(object, last)| is_over(*object, *last)) {
            let released = {
                let mut passed = lock(&self.passed);
                // More records may have been passed in the meantime.
                let is_same = passed.get(&object).is_some_and(|passed| passed.last == last);
                if is_same { passed.remove(&object) } else { None }
            };
            drop(released);
        }
    }

    /// Removes and returns all holds.
    pub(crate) fn take(&self) -> Vec<Hold> {
        std::mem::take(&mut *lock(&self.passed)).into_values().map(|passed| passed.hold).collect()
    }
}
