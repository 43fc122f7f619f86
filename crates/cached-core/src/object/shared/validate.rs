//! Checks of every invariant of a cache.

use std::collections::{HashMap, HashSet};

use blocker::WriteMode;

use super::Shared;
use crate::object::memory::queue::UNREAD;
use crate::object::memory::slots::{STATES, State};
use crate::sync::{Ordering, lock};

/// Checks every invariant; see [`ObjectCache::validate`](crate::object::ObjectCache::validate).
pub(crate) fn validate(shared: &Shared) -> Result<(), String> {
    shared.objects.index.validate()?;
    let mut states = [0; STATES];
    let mut pointed: HashMap<u32, u32> = HashMap::new();
    let mut clean = Vec::new();
    let mut dirty = 0;
    let mut problem = Ok(());
    shared.objects.index.for_each(|in_use| {
        let id = shared.objects.index.id(in_use);
        let looked: Option<Result<_, String>> = shared.try_enter(in_use, |object, env| {
            let counts = object.validate(env)?;
            for (_, slot) in object.slots.known_from(0).filter(|(_, slot)| slot.state().has_bucket()) {
                *pointed.entry(slot.bucket()).or_default() += 1;
                if slot.state() == State::Clean {
                    clean.push(slot.bucket());
                }
                dirty += u64::from(matches!(slot.state(), State::Dirty | State::DirtyWhole));
            }
            dirty += u64::from(object.pending.bucketless);
            if object.pending.bucketless > 0 && !object.has_pending() {
                return Err("room is held, but no change is pending".into());
            }
            Ok(counts)
        });
        match looked {
            Some(Ok(counts)) => states.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count),
            Some(Err(what)) => problem = Err(format!("{id}: {what}")),
            None => problem = Err(format!("{id}: a thread is inside")),
        }
    });
    problem?;
    for state in State::ALL.into_iter().skip(1) {
        let (counted, found) = (shared.metrics.total(|of| of.count_of(state)), states[state as usize]);
        ensure(counted == found, || format!("{found} slots are {state:?}, but {counted} are counted"))?;
    }
    let room = shared.metrics.dirty_room.dirty();
    ensure(dirty <= room, || format!("{dirty} buckets are dirty, but room is taken for {room}"))?;
    shared.metrics.dirty_room.validate()?;
    shared.store.gate.validate()?;
    shared.control.namespaces.validate(&lock(&shared.control.settings).in_force())?;
    // Recovered changes of an earlier process are written back whatever the mode.
    let records = shared.control.namespaces.records().filter(|_| shared.journal.log.is_none());
    for record in records {
        let (phases, dirty) = (&record.write_phases, record.dirty_taken.load(Ordering::SeqCst));
        let mode = phases.mode();
        let may_be_dirty = mode == WriteMode::Back || phases.is_changing() || phases.is_busy();
        ensure(may_be_dirty || dirty == 0, || {
            format!("{dirty} buckets of namespace {} are dirty in mode {mode}", record.number)
        })?;
    }
    ensure(!shared.control.attaching.is_direct() || dirty == 0, || {
        format!("{dirty} buckets are dirty while reads go directly to the store")
    })?;
    let pool = &shared.memory.pool;
    let (free, counted) = (pool.free_list(), pool.free());
    ensure(free.len() as u64 == u64::from(counted), || {
        format!("{} buckets are free, but {counted} are counted", free.len())
    })?;
    let absent = pool.absent_list()?;
    let in_use = |bucket: &u32| pointed.contains_key(bucket);
    none(free.iter().find(|bucket| in_use(bucket)), "is free and in use")?;
    let absent_in_use = absent.iter().find(|bucket| in_use(bucket) || pool.meta(**bucket).refs() != 0);
    none(absent_in_use, "is absent and in use")?;
    let absent: HashSet<u32> = absent.into_iter().collect();
    none(free.iter().find(|bucket| absent.contains(bucket)), "is absent and free")?;
    let (receiving, counted) = (pool.receiving_list(), pool.receiving());
    // Some buckets may be counted but not marked yet.
    ensure(receiving.len() as u64 <= u64::from(counted), || {
        format!("{} buckets are receiving, but {counted} are counted", receiving.len())
    })?;
    let is_free = |bucket: &u32| pool.meta(*bucket).refs() == 0 || free.contains(bucket);
    let wrong = receiving.iter().find(|bucket| in_use(bucket) || is_free(bucket));
    none(wrong, "is receiving, and free or in use")?;
    for (bucket, slots) in &pointed {
        let refs = u32::from(pool.meta(*bucket).refs());
        ensure(refs >= *slots, || format!("{slots} slots refer to bucket {bucket}, but {refs} are counted"))?;
    }
    shared.memory.shares.validate(pool.count())?;
    let unread = clean.iter().filter(|bucket| pool.meta(**bucket).has_flags(UNREAD)).count() as u64;
    let counted = shared.read_ahead.unread();
    ensure(unread == u64::from(counted), || {
        format!("{unread} buckets are unread, but {counted} are counted")
    })?;
    let is_clean: HashSet<u32> = clean.iter().copied().collect();
    let flagged =
        pointed.keys().find(|bucket| pool.meta(**bucket).is_flagged() && !is_clean.contains(bucket));
    none(flagged, "has flags, and is not clean")?;
    let mut queued = shared.memory.queues.all(pool)?;
    queued.sort_unstable();
    clean.sort_unstable();
    ensure(queued == clean, || format!("{} buckets are clean, {} are in queues", clean.len(), queued.len()))
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

/// Checks that there is no such bucket.
fn none(bucket: Option<&u32>, what: &str) -> Result<(), String> {
    bucket.map_or(Ok(()), |bucket| Err(format!("bucket {bucket} {what}")))
}
