//! The records to apply, by object: 12 bytes for each record, about 50 for each object.
//!
//! Objects are identified by the hash of their names. Two with the same hash are recovered together.

use std::collections::{BTreeMap, HashMap};

use blocker::{Error, Namespace};
use cached_journal::{Hold, RecordPlace};

use crate::object::lock_ranks;
use crate::sync::{Mutex, lock};

/// A namespace that has records to apply, or an epoch.
pub(crate) struct FoundNamespace {
    pub(crate) name: Namespace,
    /// Its number in the journal.
    pub(crate) number: u64,
    /// The highest epoch under which it was changed, or was about to be.
    pub(crate) epoch: u64,
    /// The objects of which records are left to apply.
    left: u32,
    /// Why one of its objects cannot be recovered.
    failure: Option<Error>,
}

/// What is left to do for an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Waiting,
    /// One task applies its records.
    Busy,
    Recovered,
    Failed,
}

struct FoundObject {
    namespace: u32,
    start: u32,
    end: u32,
    /// The first record that is not applied.
    next: u32,
    stage: Stage,
    /// Whether a task is to recover it out of turn.
    is_requested: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Found {
    places: Vec<RecordPlace>,
    objects: Vec<FoundObject>,
    by_hash: HashMap<u64, u32>,
    pub(crate) namespaces: Vec<FoundNamespace>,
    /// Why objects cannot be recovered.
    failures: HashMap<u32, Error>,
    /// Whether more than one object may be recovered, or may not, that was not before.
    has_news: bool,
}

/// What is known of an object when its records are asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// It has no records to apply.
    Recovered,
    /// It never will be recovered.
    Failed(Error),
    /// A task applies its records.
    Busy,
    /// Its records are not applied.
    Waiting,
}

/// Collects the records.
#[derive(Default)]
pub(crate) struct Collector {
    records: Vec<(u32, RecordPlace)>,
    found: Found,
    namespaces: HashMap<Namespace, u32>,
}

impl Collector {
    /// Takes note of a namespace with this number, changed under `epoch`; returns its place.
    pub(crate) fn namespace(&mut self, name: &Namespace, number: u64, epoch: u64) -> u32 {
        let all = &mut self.found.namespaces;
        let at = match self.namespaces.get(name) {
            Some(at) => *at,
            None => {
                let at = all.len() as u32;
                self.namespaces.insert(name.clone(), at);
                let (name, failure) = (name.clone(), None);
                all.push(FoundNamespace { name, number, epoch, left: 0, failure });
                at
            }
        };
        let found = &mut all[at as usize];
        found.epoch = found.epoch.max(epoch);
        found.number = number;
        at
    }

    /// Takes note of a record of the object with this hash, later than all before.
    pub(crate) fn record(&mut self, hash: u64, namespace: u32, place: RecordPlace) {
        let objects = &mut self.found.objects;
        let object = *self.found.by_hash.entry(hash).or_insert_with(|| {
            objects.push(FoundObject {
                namespace,
                start: 0,
                end: 0,
                next: 0,
                stage: Stage::Waiting,
                is_requested: false,
            });
            objects.len() as u32 - 1
        });
        self.records.push((object, place));
    }

    pub(crate) fn finish(mut self) -> Found {
        // Places rise in the order of the log.
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
    /// Returns the number of the object with this hash, if it has had records.
    pub(crate) fn object(&self, hash: u64) -> Option<u32> {
        self.by_hash.get(&hash).copied()
    }

    pub(crate) fn standing(&self, object: u32) -> Standing {
        // Without objects the recovery is over; a task that was to recover one may still look.
        let Some(found) = self.objects.get(object as usize) else { return Standing::Recovered };
        match found.stage {
            Stage::Recovered => Standing::Recovered,
            Stage::Busy => Standing::Busy,
            Stage::Waiting => Standing::Waiting,
            Stage::Failed => {
                let why = self.failures.get(&object).cloned();
                Standing::Failed(why.unwrap_or_else(|| Error::Corrupt("not recovered".into())))
            }
        }
    }

    /// Whether a namespace has records that change objects, and are not applied.
    pub(crate) fn has_changes(&self, namespace: usize) -> bool {
        self.namespaces[namespace].left > 0
    }

    /// Leaves the records of a namespace unapplied: it has been voided. Returns their number.
    pub(crate) fn leave_out(&mut self, namespace: usize) -> u64 {
        self.namespaces[namespace].left = 0;
        let mut records = 0;
        for object in self.objects.iter_mut().filter(|object| object.namespace as usize == namespace) {
            records += u64::from(object.end - object.next);
            (object.stage, object.next) = (Stage::Recovered, object.end);
        }
        records
    }

    /// Whether the records of a namespace are applied, all of them if `None` is asked for.
    ///
    /// # Errors
    /// Why one of its objects cannot be recovered.
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

    /// Notes that a task is to recover the object out of turn; returns false if one is to already.
    pub(crate) fn request(&mut self, object: u32) -> bool {
        !std::mem::replace(&mut self.objects[object as usize].is_requested, true)
    }

    /// Notes that no task is to recover the object out of turn.
    pub(crate) fn end_request(&mut self, object: u32) {
        if let Some(object) = self.objects.get_mut(object as usize) {
            object.is_requested = false;
        }
    }

    /// Makes a waiting object busy.
    pub(crate) fn begin(&mut self, object: u32) {
        let object = &mut self.objects[object as usize];
        debug_assert_eq!(object.stage, Stage::Waiting);
        object.stage = Stage::Busy;
    }

    /// Lets a busy object wait again.
    pub(crate) fn end(&mut self, object: u32) {
        let Some(object) = self.objects.get_mut(object as usize) else { return };
        if object.stage == Stage::Busy {
            object.stage = Stage::Waiting;
        }
    }

    /// Returns the number of an object's next record and its place.
    pub(crate) fn next(&self, object: u32) -> Option<(u32, RecordPlace)> {
        let object = self.objects.get(object as usize)?;
        let is_left = object.next < object.end && object.stage != Stage::Failed;
        is_left.then(|| (object.next, self.places[object.next as usize]))
    }

    /// Returns the places of the record `last` and of up to `count - 1` before it, of the same object.
    pub(crate) fn places_up_to(&self, object: u32, last: u32, count: u32) -> Vec<RecordPlace> {
        let start = self.objects[object as usize].start.max((last + 1).saturating_sub(count));
        self.places[start as usize..=last as usize].to_vec()
    }

    /// Whether the record at a place has been applied, or never will be.
    pub(crate) fn is_over(&self, object: u32, place: RecordPlace) -> bool {
        let object = &self.objects[object as usize];
        let is_left = object.next < object.end && self.places[object.next as usize] <= place;
        object.stage == Stage::Failed || !is_left
    }

    /// Whether an object cannot be recovered.
    pub(crate) fn has_failed(&self, object: u32) -> bool {
        self.objects.get(object as usize).is_some_and(|object| object.stage == Stage::Failed)
    }

    /// Notes that an object's next record is applied.
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

    /// Notes that an object cannot be recovered.
    pub(crate) fn fail(&mut self, object: u32, why: Error) {
        let found = &mut self.objects[object as usize];
        if matches!(found.stage, Stage::Waiting | Stage::Busy) {
            found.stage = Stage::Failed;
            self.namespaces[found.namespace as usize].failure.get_or_insert_with(|| why.clone());
            self.failures.insert(object, why);
            self.has_news = true;
        }
    }

    /// Notes that no further record can be read; returns the objects that cannot be recovered.
    pub(crate) fn fail_rest(&mut self, why: &Error) -> u64 {
        let before = self.failures.len();
        for object in 0..self.objects.len() as u32 {
            self.fail(object, why.clone());
        }
        (self.failures.len() - before) as u64
    }

    /// Whether a whole namespace is recovered that was not at the last call, or one will never be.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
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

/// What keeps the log from the first part of a state on.
struct Passed {
    /// The number of the object's record that was passed last.
    last: u32,
    /// Of the first one.
    hold: Hold,
}

/// The parts of states whose last part is not applied: their segments must stay, whichever task has passed
/// them.
pub(crate) struct Parts {
    passed: Mutex<BTreeMap<u32, Passed>>,
}

impl Default for Parts {
    fn default() -> Self {
        Self { passed: Mutex::ranked(BTreeMap::new(), &lock_ranks::RECOVERY) }
    }
}

impl Parts {
    /// Keeps an object's record `number`, which is passed without being applied, and those passed just before
    /// it. `hold`: of the record.
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

    /// Releases the parts of the objects for which `is_over` returns true, given the object and the number of
    /// its record that was passed last.
    pub(crate) fn release(&self, is_over: impl Fn(u32, u32) -> bool) {
        let all: Vec<_> = lock(&self.passed).iter().map(|(object, passed)| (*object, passed.last)).collect();
        for (object, last) in all.into_iter().filter(|(object, last)| is_over(*object, *last)) {
            let released = {
                let mut passed = lock(&self.passed);
                // More may have been passed meanwhile.
                let is_same = passed.get(&object).is_some_and(|passed| passed.last == last);
                if is_same { passed.remove(&object) } else { None }
            };
            drop(released);
        }
    }

    /// Returns what keeps all that is kept, and keeps nothing any more.
    pub(crate) fn take(&self) -> Vec<Hold> {
        std::mem::take(&mut *lock(&self.passed)).into_values().map(|passed| passed.hold).collect()
    }
}
