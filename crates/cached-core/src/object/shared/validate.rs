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
                return Err("room is held for nothing".into());
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
        if counted != found {
            return Err(format!("{found} slots are {state:?}, counted {counted}"));
        }
    }
    if dirty > shared.metrics.dirty_room.dirty() {
        return Err(format!(
            "{dirty} buckets are dirty, bucketless was taken for {}",
            shared.metrics.dirty_room.dirty()
        ));
    }
    shared.metrics.dirty_room.validate()?;
    shared.store.gate.validate()?;
    shared.control.namespaces.validate(&lock(&shared.control.settings).in_force())?;
    if shared.journal.log.is_none() {
        // Recovered changes of an earlier process are written back whatever the mode.
        for record in shared.control.namespaces.records() {
            let (phases, dirty) = (&record.write_phases, record.dirty_taken.load(Ordering::SeqCst));
            let mode = phases.mode();
            if mode != WriteMode::Back && !phases.is_changing() && !phases.is_busy() && dirty > 0 {
                return Err(format!(
                    "{dirty} buckets of namespace {} are dirty in mode {mode}",
                    record.number
                ));
            }
        }
    }
    if shared.control.attaching.is_direct() && dirty > 0 {
        return Err(format!("{dirty} buckets are dirty while reads go straight to the store"));
    }
    let free = shared.memory.pool.free_list();
    if free.len() as u64 != u64::from(shared.memory.pool.free()) {
        return Err(format!("{} buckets are free, counted {}", free.len(), shared.memory.pool.free()));
    }
    if let Some(bucket) = free.iter().find(|bucket| pointed.contains_key(bucket)) {
        return Err(format!("bucket {bucket} is free and in use"));
    }
    let absent = shared.memory.pool.absent_list()?;
    let is_used =
        |bucket: &&u32| pointed.contains_key(bucket) || shared.memory.pool.meta(**bucket).refs() != 0;
    if let Some(bucket) = absent.iter().find(is_used) {
        return Err(format!("bucket {bucket} is absent and in use"));
    }
    let absent: HashSet<u32> = absent.into_iter().collect();
    if let Some(bucket) = free.iter().find(|bucket| absent.contains(bucket)) {
        return Err(format!("bucket {bucket} is absent and free"));
    }
    let receiving = shared.memory.pool.receiving_list();
    // Some buckets may be counted but not marked yet.
    if receiving.len() as u64 > u64::from(shared.memory.pool.receiving()) {
        return Err(format!(
            "{} buckets are receiving in, counted {}",
            receiving.len(),
            shared.memory.pool.receiving()
        ));
    }
    let is_free = |bucket: &u32| shared.memory.pool.meta(*bucket).refs() == 0 || free.contains(bucket);
    if let Some(bucket) = receiving.iter().find(|bucket| pointed.contains_key(bucket) || is_free(bucket)) {
        return Err(format!("bucket {bucket} is receiving in, and free or in use"));
    }
    for (bucket, slots) in &pointed {
        let refs = u32::from(shared.memory.pool.meta(*bucket).refs());
        if refs < *slots {
            return Err(format!("{slots} slots point at bucket {bucket}, counted {refs}"));
        }
    }
    shared.memory.shares.validate(shared.memory.pool.count())?;
    let unread =
        clean.iter().filter(|bucket| shared.memory.pool.meta(**bucket).has_flags(UNREAD)).count() as u64;
    if unread != u64::from(shared.read_ahead.unread()) {
        return Err(format!("{unread} buckets are unread, counted {}", shared.read_ahead.unread()));
    }
    if let Some(bucket) = pointed.keys().find(|bucket| {
        shared.memory.pool.meta(**bucket).is_flagged() && clean.iter().all(|clean| clean != *bucket)
    }) {
        return Err(format!("bucket {bucket} has flags, and is not clean"));
    }
    let mut queued = shared.memory.queues.all(&shared.memory.pool)?;
    queued.sort_unstable();
    clean.sort_unstable();
    if queued != clean {
        return Err(format!("{} buckets are clean, {} are in queues", clean.len(), queued.len()));
    }
    Ok(())
}
