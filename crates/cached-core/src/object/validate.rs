//! The figures, and the walk over every invariant.

use std::collections::HashMap;

use blocker::BUCKET_BYTES;

use super::gauges::Counters;
use super::shared::Shared;
use super::slots::{STATES, Slot, State};
use crate::sync::{AtomicU64, Ordering};

impl Shared {
    pub(crate) fn counters(&self) -> Counters {
        let gauges = &self.gauges;
        let read = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        let bytes =
            |states: &[State]| states.iter().map(|state| gauges.count_of(*state)).sum::<u64>() * BUCKET_BYTES;
        Counters {
            objects: self.index.count(),
            memory_bytes: u64::from(self.pool.count()) * BUCKET_BYTES,
            free_bytes: u64::from(self.pool.free()) * BUCKET_BYTES,
            clean_bytes: bytes(&[State::Clean]),
            dirty_bytes: bytes(&[State::Dirty, State::DirtyWhole, State::Writing])
                + gauges.room() * BUCKET_BYTES,
            writing_bytes: bytes(&[State::Writing]),
            zero_bytes: bytes(&[State::ZeroClean, State::ZeroDirty, State::ZeroWriting]),
            landing_bytes: u64::from(self.pool.landed()) * BUCKET_BYTES,
            landed_bytes: read(&gauges.landed) * BUCKET_BYTES,
            loading_bytes: read(&gauges.loading) * BUCKET_BYTES,
            read_hits: gauges.hits(),
            read_misses: read(&gauges.misses),
            writes_back: gauges.writes_back(),
            writes_through: read(&gauges.writes_through),
            writes_throttled: read(&gauges.throttled),
            flushes: read(&gauges.flushes),
            flush_failures: read(&gauges.flush_failures),
            flush_requests: read(&gauges.flush_requests),
            flush_bytes: read(&gauges.flush_bytes),
            lost_bytes: read(&gauges.lost_bytes),
            lost_objects: self.losses.objects(),
            bucket_evictions: read(&gauges.bucket_evictions),
            object_evictions: read(&gauges.object_evictions),
        }
    }

    pub(crate) fn validate(&self) -> Result<(), String> {
        self.index.validate()?;
        let mut states = [0; STATES];
        let mut pointed: HashMap<u32, u32> = HashMap::new();
        let mut clean = Vec::new();
        let mut dirty = 0;
        let mut problem = Ok(());
        self.index.for_each(|in_use| {
            let id = self.index.id(in_use);
            let looked: Option<Result<_, String>> = self.try_enter(in_use, |object, env| {
                let counts = object.validate(env)?;
                for (_, slot) in object.slots.known_from(0).filter(|(_, slot)| slot.state().has_bucket()) {
                    *pointed.entry(slot.bucket()).or_default() += 1;
                    if slot.state() == State::Clean {
                        clean.push(slot.bucket());
                    }
                    dirty += u64::from(matches!(slot.state(), State::Dirty | State::DirtyWhole));
                }
                dirty += u64::from(object.pending.room);
                if object.pending.room > 0 && !object.has_pending() {
                    return Err("room is held for nothing".into());
                }
                Ok(counts)
            });
            match looked {
                Some(Ok(counts)) => states.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count),
                Some(Err(what)) => problem = Err(format!("{id}: {what}")),
                None => problem = Err(format!("{id}: somebody is inside")),
            }
        });
        problem?;
        for state in State::ALL.into_iter().skip(1) {
            let (counted, found) = (self.gauges.count_of(state), states[state as usize]);
            if counted != found {
                return Err(format!("{found} slots are {state:?}, the gauge says {counted}"));
            }
        }
        if dirty > self.gauges.dirty() {
            return Err(format!("{dirty} buckets are dirty, room was taken for {}", self.gauges.dirty()));
        }
        let free = self.pool.free_list();
        if free.len() as u64 != u64::from(self.pool.free()) {
            return Err(format!("{} buckets are free, counted {}", free.len(), self.pool.free()));
        }
        if let Some(bucket) = free.iter().find(|bucket| pointed.contains_key(bucket)) {
            return Err(format!("bucket {bucket} is free and in use"));
        }
        let landed = self.pool.landed_list();
        // Room may be claimed this very moment for buckets that are not marked yet.
        if landed.len() as u64 > u64::from(self.pool.landed()) {
            return Err(format!("{} buckets are landed in, counted {}", landed.len(), self.pool.landed()));
        }
        let is_free = |bucket: &u32| self.pool.meta(*bucket).refs() == 0 || free.contains(bucket);
        if let Some(bucket) = landed.iter().find(|bucket| pointed.contains_key(bucket) || is_free(bucket)) {
            return Err(format!("bucket {bucket} is landed in, and free or in use"));
        }
        for (bucket, slots) in &pointed {
            let refs = u32::from(self.pool.meta(*bucket).refs());
            if refs < *slots {
                return Err(format!("{slots} slots point at bucket {bucket}, counted {refs}"));
            }
        }
        let mut queued = self.queues.all(&self.pool)?;
        queued.sort_unstable();
        clean.sort_unstable();
        if queued != clean {
            return Err(format!("{} buckets are clean, {} are in queues", clean.len(), queued.len()));
        }
        debug_assert_eq!(Slot::ABSENT.state(), State::Absent);
        Ok(())
    }
}
