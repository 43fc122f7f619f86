//! The counters that a cache shows.

use blocker::BUCKET_BYTES;
use blocker::metrics::{Collect, Families};

use super::memory::slots::State;
use super::shared::Shared;
use crate::sync::{AtomicU64, Ordering};

/// What a cache holds and has done. Sizes are in bytes; the rest counts since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// The number of objects that the index has.
    pub objects: u64,
    /// Memory of all buckets.
    pub memory_bytes: u64,
    /// Memory of free buckets.
    pub free_bytes: u64,
    /// Data that the store has as well.
    pub clean_bytes: u64,
    /// Data that wait to be stored, or are being written: data by whole buckets, zeros by what they cover,
    /// and 4 KiB for each object that is to be cut, removed, or created.
    pub dirty_bytes: u64,
    /// Dirty data on their way to the store.
    pub writing_bytes: u64,
    /// Known zeros, which take no memory.
    pub zero_bytes: u64,
    /// Data being read from the store.
    pub loading_bytes: u64,
    /// Buckets reserved for payloads that are received, or that no write has taken over yet.
    pub receive_buffer_bytes: u64,
    /// Payload that writes have taken over from receive buffers without a copy.
    pub zero_copy_bytes: u64,
    /// Reads answered from the cache.
    pub read_hits: u64,
    /// Reads that had to read the store.
    pub read_misses: u64,
    /// Changes applied in the cache.
    pub writes_back: u64,
    /// Changes forwarded to the store.
    pub writes_through: u64,
    /// Changes that waited because the limit of dirty data was reached.
    pub writes_throttled: u64,
    /// Flushes of objects that succeeded.
    pub flushes: u64,
    /// Flushes of objects that failed and are tried again.
    pub flush_failures: u64,
    /// Requests that flushes have sent.
    pub flush_requests: u64,
    /// Bytes that flushes have sent.
    pub flush_bytes: u64,
    /// Acknowledged data that the store has refused for good (`Fenced`).
    pub lost_bytes: u64,
    /// Objects with losses that have not been repaired: [`super::ObjectCache::lost`] lists them.
    pub lost_objects: u64,
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
    /// Buckets that have been evicted.
    pub bucket_evictions: u64,
    /// Objects that have been evicted.
    pub object_evictions: u64,
}

impl Collect for Counters {
    fn collect(&self, into: &mut Families) {
        into.gauge("cache_objects", "Objects that the index knows.", self.objects);
        into.gauge("cache_memory_bytes", "Memory of all buckets.", self.memory_bytes);
        into.gauge("cache_free_bytes", "Memory of free buckets.", self.free_bytes);
        into.gauge("cache_clean_bytes", "Data that the store has as well.", self.clean_bytes);
        into.gauge("cache_dirty_bytes", "Data that the store does not have yet.", self.dirty_bytes);
        into.gauge("cache_writing_bytes", "Dirty data on their way to the store.", self.writing_bytes);
        into.gauge("cache_zero_bytes", "Known zeros, which take no memory.", self.zero_bytes);
        into.gauge("cache_loading_bytes", "Data being read from the store.", self.loading_bytes);
        let help = "Buckets reserved for payloads that are received, or that no write has taken over yet.";
        into.gauge("cache_receive_buffer_bytes", help, self.receive_buffer_bytes);
        let help = "Payload that writes have taken over from receive buffers without a copy.";
        into.counter("cache_received_bytes_total", help, self.zero_copy_bytes);
        into.counter("cache_read_hits_total", "Reads answered from the cache.", self.read_hits);
        into.counter("cache_read_misses_total", "Reads that had to read the store.", self.read_misses);
        into.counter("cache_writes_back_total", "Changes applied in the cache.", self.writes_back);
        into.counter("cache_writes_through_total", "Changes forwarded to the store.", self.writes_through);
        let help = "Changes that waited because the limit of dirty data was reached.";
        into.counter("cache_writes_throttled_total", help, self.writes_throttled);
        into.counter("cache_flushes_total", "Flushes of objects that succeeded.", self.flushes);
        let help = "Flushes of objects that failed and are tried again.";
        into.counter("cache_flush_failures_total", help, self.flush_failures);
        into.counter(
            "cache_flush_requests_total",
            "Changes that flushes sent to the store.",
            self.flush_requests,
        );
        into.counter("cache_flush_bytes_total", "Bytes that flushes sent.", self.flush_bytes);
        let help = "Acknowledged data that the store refused for good.";
        into.counter("cache_lost_bytes_total", help, self.lost_bytes);
        let help = "Objects with losses that have not been repaired.";
        into.gauge("cache_lost_objects", help, self.lost_objects);
        let help = "Data read from the store before a client asked for them.";
        into.counter("cache_read_ahead_bytes_total", help, self.read_ahead_bytes);
        let help = "Data read ahead that a client then asked for.";
        into.counter("cache_read_ahead_used_bytes_total", help, self.read_ahead_used_bytes);
        let help = "Data read ahead that were gone before a client asked for them, or lay between what was expected.";
        into.counter("cache_read_ahead_wasted_bytes_total", help, self.read_ahead_wasted_bytes);
        let help = "Data read in order for long, and not kept.";
        into.counter("cache_bypassed_read_bytes_total", help, self.bypassed_read_bytes);
        let help = "Data written in order for long, around the cache.";
        into.counter("cache_bypassed_write_bytes_total", help, self.bypassed_write_bytes);
        into.counter("cache_bucket_evictions_total", "Buckets evicted.", self.bucket_evictions);
        into.counter("cache_object_evictions_total", "Objects evicted.", self.object_evictions);
    }
}

/// Returns the counters of a cache.
pub(crate) fn counters(shared: &Shared) -> Counters {
    let metrics = &shared.metrics;
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let bytes =
        |states: &[State]| states.iter().map(|state| metrics.count_of(*state)).sum::<u64>() * BUCKET_BYTES;
    Counters {
        objects: shared.index.count(),
        memory_bytes: u64::from(shared.pool.count()) * BUCKET_BYTES,
        free_bytes: u64::from(shared.pool.free()) * BUCKET_BYTES,
        clean_bytes: bytes(&[State::Clean]),
        dirty_bytes: bytes(&[State::Dirty, State::DirtyWhole, State::Writing])
            + metrics.bucketless() * BUCKET_BYTES,
        writing_bytes: bytes(&[State::Writing]),
        zero_bytes: bytes(&[State::ZeroClean, State::ZeroDirty, State::ZeroWriting]),
        receive_buffer_bytes: u64::from(shared.pool.receiving()) * BUCKET_BYTES,
        zero_copy_bytes: read(&metrics.zero_copy) * BUCKET_BYTES,
        loading_bytes: read(&metrics.loading) * BUCKET_BYTES,
        read_hits: metrics.hits(),
        read_misses: metrics.misses(),
        writes_back: metrics.writes_back(),
        writes_through: metrics.writes_through(),
        writes_throttled: metrics.throttled(),
        flushes: read(&metrics.flushes),
        flush_failures: read(&metrics.flush_failures),
        flush_requests: read(&metrics.flush_requests),
        flush_bytes: read(&metrics.flush_bytes),
        lost_bytes: read(&metrics.lost_bytes),
        lost_objects: shared.losses.objects(),
        read_ahead_bytes: shared.read_ahead.total(|counters| &counters.ahead) * BUCKET_BYTES,
        read_ahead_used_bytes: shared.read_ahead.total(|counters| &counters.used) * BUCKET_BYTES,
        read_ahead_wasted_bytes: shared.read_ahead.total(|counters| &counters.wasted) * BUCKET_BYTES,
        bypassed_read_bytes: shared.read_ahead.total(|counters| &counters.bypassed_read_bytes),
        bypassed_write_bytes: shared.read_ahead.total(|counters| &counters.bypassed_write_bytes),
        bucket_evictions: read(&metrics.bucket_evictions),
        object_evictions: read(&metrics.object_evictions),
    }
}
