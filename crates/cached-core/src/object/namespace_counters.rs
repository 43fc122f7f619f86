//! The counters that a cache shows by namespace.

use std::time::Duration;

use blocker::{BUCKET_BYTES, Namespace, Timestamp, WriteMode};

use super::control::namespace_table::NamespaceRecord;
use super::control::quotas::QuotaUse;
use super::control::store_metrics::StoreCounters;
use super::memory::slots::State;
use super::read_ahead::FlowCounters;
use super::shared::Shared;
use crate::sync::{AtomicU64, Ordering};

/// What one namespace has of a cache, and what has been done with it. Sizes are in bytes; reads and writes
/// count since the start.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NamespaceCounters {
    /// Its name; `None` for all that are not counted apart.
    pub namespace: Option<Namespace>,
    /// Whether it is named in the configuration in force.
    pub is_configured: bool,
    /// How writes to it are treated, while the cache is attached.
    pub write_mode: WriteMode,
    /// Whether something of an earlier write mode is left: a change under way, or data to be stored.
    pub is_mode_changing: bool,
    /// Objects that the index has.
    pub objects: u64,
    /// Data in memory.
    pub cached_bytes: u64,
    /// Data that wait to be stored, or are being written, as [`Counters::dirty_bytes`](super::Counters)
    /// counts them.
    pub dirty_bytes: u64,
    /// The most data that may, if the namespace has a limit of its own.
    pub dirty_bytes_max: Option<u64>,
    /// The age of the oldest change that is not stored; at most that, where very many objects are dirty.
    pub dirty_age: Duration,
    /// The memory that is meant for it, if it has a share of its own.
    pub memory_target_bytes: Option<u64>,
    /// Data that it had to load again so soon after their eviction that a quarter more of all memory would
    /// have kept them, if it has a share of its own.
    pub ghost_hit_bytes: Option<u64>,
    /// The time of loads that more memory might have saved it lately, multiplied by its weight: memory moves
    /// to the namespace with the most. If it has a share of its own.
    pub memory_gain: Option<Duration>,
    /// Changes that waited for room for dirty data.
    pub writes_throttled: u64,
    /// Reads answered from the cache.
    pub read_hits: u64,
    /// Reads that had to read the store.
    pub read_misses: u64,
    /// Data that were read from the store before a caller had asked for them.
    pub read_ahead_bytes: u64,
    /// Of these, data that a caller then has asked for.
    pub read_ahead_used_bytes: u64,
    /// Of these, data that were evicted, overwritten or dropped before.
    pub read_ahead_wasted_bytes: u64,
    /// Data that were read in order for long, and not kept.
    pub bypassed_read_bytes: u64,
    /// Data that were written in order for long, and went around the cache.
    pub bypassed_write_bytes: u64,
    /// Changes by the durability with which they are acknowledged, least first: *cached*, *journaled*,
    /// *replicated*, *stored*.
    pub writes: [u64; 4],
    /// Its requests to the store.
    pub store: StoreCounters,
    /// Its quota, if it has one.
    pub quota: Option<QuotaUse>,
    /// Changes refused because the quota was used up.
    pub quota_refusals: u64,
}

/// The names of [`NamespaceCounters::writes`].
pub const DURABILITIES: [&str; 4] = ["cached", "journaled", "replicated", "stored"];

/// Returns the counters of every namespace that has been used, and of the others together.
pub(crate) fn namespace_counters(shared: &Shared) -> Vec<NamespaceCounters> {
    let metrics = &shared.metrics;
    let oldest = shared.dirty_queue.oldest_of_each();
    let now = shared.clock.now();
    let age = |since: Option<Timestamp>| since.map_or(Duration::ZERO, |since| now.since(since));
    let of = |record: &NamespaceRecord| {
        let (space, namespace) = (&record.metrics, record.name.clone());
        let flow = |of: fn(&FlowCounters) -> &AtomicU64| {
            let counters = shared.read_ahead.counters(record.number);
            counters.map_or(0, |counters| of(counters).load(Ordering::Relaxed))
        };
        let bytes =
            |states: &[State]| states.iter().map(|state| space.count_of(*state)).sum::<u64>() * BUCKET_BYTES;
        let dirty = [State::Dirty, State::DirtyWhole, State::Writing];
        let dirty_bytes = bytes(&dirty) + space.bucketless() * BUCKET_BYTES;
        let share = shared.shares.report(&shared.queues, record.number);
        NamespaceCounters {
            is_configured: record.is_configured.load(Ordering::Relaxed),
            write_mode: record.write_phases.set_mode(),
            is_mode_changing: record.write_phases.is_changing(),
            objects: record.objects.load(Ordering::Relaxed),
            cached_bytes: bytes(&[State::Clean]) + bytes(&dirty),
            dirty_bytes,
            // The last of it may have been stored since.
            dirty_age: if dirty_bytes > 0 {
                age(oldest.get(&record.number).copied())
            } else {
                Duration::ZERO
            },
            dirty_bytes_max: metrics.dirty_room.own_max(record.number).map(|max| max * BUCKET_BYTES),
            memory_target_bytes: share.as_ref().map(|share| share.target_buckets * BUCKET_BYTES),
            ghost_hit_bytes: share.as_ref().map(|share| share.ghost_hits * BUCKET_BYTES),
            memory_gain: share.map(|share| Duration::from_nanos(share.gain_nanos)),
            writes_throttled: space.throttled(),
            read_hits: space.hits(),
            read_misses: space.misses(),
            read_ahead_bytes: flow(|counters| &counters.ahead) * BUCKET_BYTES,
            read_ahead_used_bytes: flow(|counters| &counters.used) * BUCKET_BYTES,
            read_ahead_wasted_bytes: flow(|counters| &counters.wasted) * BUCKET_BYTES,
            bypassed_read_bytes: flow(|counters| &counters.bypassed_read_bytes),
            bypassed_write_bytes: flow(|counters| &counters.bypassed_write_bytes),
            writes: space.writes(),
            store: space.store.counters(),
            quota: shared.quotas.get(record.number),
            quota_refusals: space.quota_refusals.load(Ordering::Relaxed),
            namespace,
        }
    };
    let is_used = |one: &NamespaceCounters| {
        one.objects > 0
            || one.read_misses > 0
            || one.read_hits > 0
            || one.writes.iter().any(|count| *count > 0)
    };
    shared.namespaces.records().map(of).filter(|one| one.namespace.is_some() || is_used(one)).collect()
}
