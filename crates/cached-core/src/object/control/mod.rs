//! Settings, limits and counters of the cache and of each namespace: the records of namespaces,
//! settings by source, write phases, quotas, room for dirty data, shares of the memory, and the
//! attach state. This chapter holds state and decisions only: nothing here waits for the store or
//! enters an object; `control_impl.rs`, `settings_in_force.rs` and `detach.rs` do.

pub(crate) mod attach_state;
pub(crate) mod dirty_room;
pub(crate) mod namespaces;
pub(crate) mod quotas;
pub(crate) mod records;
pub(crate) mod settings;
mod share_targets;
pub(crate) mod shares;
pub(crate) mod write_phases;

use blocker::metrics::{Counter, Histogram, counters};
use serde::Serialize;

use crate::object::memory::slots::Slot;
use crate::sync::{AtomicU64, Ordering};
use dirty_room::{DirtyLimits, DirtyRoom};
use records::{NamespaceMetrics, NamespaceTable};

counters! {
    /// The state and the counters of a cache. Sizes are in bytes; the rest counts since the start.
    ///
    /// A cache counts in a `Counters<Counter>`, except for values that it obtains from other parts.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
    #[non_exhaustive]
    pub struct Counters<C = u64> {
        /// Objects that the index knows.
        #[serde(rename = "count")]
        objects => "cache_objects",
        /// Memory of all buckets.
        memory_bytes => "cache_memory_bytes",
        /// Memory of free buckets.
        free_bytes => "cache_free_bytes",
        /// Cached data that the store has too.
        clean_bytes => "cache_clean_bytes",
        /// Data that are not stored yet, in whole buckets; zeros count by the range that they
        /// cover, and every object to be truncated, removed or created counts 4 KiB.
        dirty_bytes => "cache_dirty_bytes",
        /// Dirty data in flight to the store.
        writing_bytes => "cache_writing_bytes",
        /// Known zeros, which take no memory.
        zero_bytes => "cache_zero_bytes",
        /// Data being read from the store.
        loading_bytes => "cache_loading_bytes",
        /// Buckets of payloads that are being received, or that no write has taken over yet.
        receive_buffer_bytes => "cache_receive_buffer_bytes",
        /// Payload that writes have taken over from receive buffers without a copy.
        zero_copy_bytes => "cache_received_bytes_total",
        /// 1 if requests go to the cache, 0 while it is detached and they go to the store.
        attached => "cache_attached",
        /// Reads that went directly to the store while the cache was detached.
        direct_reads => "cache_direct_reads_total",
        /// The maximum number of requests in flight to the store; it follows the store's latency
        /// while any namespace has rates or a weight.
        gate_width => "cache_gate_width",
        /// Requests queued before they are sent to the store.
        gate_waiting => "cache_gate_waiting",
        /// Reads answered from the cache.
        read_hits => "cache_read_hits_total",
        /// Reads that had to read the store.
        read_misses => "cache_read_misses_total",
        /// Changes applied in the cache.
        writes_back => "cache_writes_back_total",
        /// Changes forwarded to the store.
        writes_through => "cache_writes_through_total",
        /// Changes that waited because the dirty-data limit was reached.
        writes_throttled => "cache_writes_throttled_total",
        /// Flushes of objects that succeeded.
        flushes => "cache_flushes_total",
        /// Flushes of objects that failed and are retried.
        flush_failures => "cache_flush_failures_total",
        /// Changes that flushes sent to the store, whether or not it accepted them.
        flush_requests => "cache_flush_requests_total",
        /// Bytes that flushes sent.
        flush_bytes => "cache_flush_bytes_total",
        /// Acknowledged data that the store refused permanently.
        lost_bytes => "cache_lost_bytes_total",
        /// Objects with losses that have not been repaired.
        lost_objects => "cache_lost_objects",
        /// Data read from the store before a client asked for them.
        read_ahead_bytes => "cache_read_ahead_bytes_total",
        /// Data read ahead that a client then asked for.
        read_ahead_used_bytes => "cache_read_ahead_used_bytes_total",
        /// Data read ahead that were evicted before a client asked for them, or that only filled
        /// gaps between expected reads.
        read_ahead_wasted_bytes => "cache_read_ahead_wasted_bytes_total",
        /// Data of long sequential reads, which are not cached.
        bypassed_read_bytes => "cache_bypassed_read_bytes_total",
        /// Data of long sequential writes, which bypass the cache.
        bypassed_write_bytes => "cache_bypassed_write_bytes_total",
        /// Buckets evicted.
        bucket_evictions => "cache_bucket_evictions_total",
        /// Objects evicted.
        object_evictions => "cache_object_evictions_total",
    }
}

/// The histogram bounds for the sizes of flush requests: one bucket, then four times the previous
/// bound each.
const FLUSH_SIZES: [f64; 7] = [4096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0];

/// The state of the whole cache in O(1): buckets in each state, room for dirty data, and event
/// counts. Counters of a namespace are in its [record](records); sums over all namespaces are
/// computed on demand.
pub(crate) struct Metrics {
    /// The records hold the counters of each namespace.
    namespaces: NamespaceTable,
    pub(crate) dirty_room: DirtyRoom,
    /// The buckets that are being loaded.
    pub(crate) loading: AtomicU64,
    pub(crate) counts: Counters<Counter>,
    /// The size of each flush request, in bytes.
    pub(crate) flush_sizes: Histogram,
}

impl Metrics {
    pub(crate) fn new(namespaces: &NamespaceTable, limits: &DirtyLimits) -> Self {
        Self {
            namespaces: namespaces.clone(),
            dirty_room: DirtyRoom::new(namespaces, limits),
            loading: AtomicU64::new(0),
            counts: Counters::default(),
            flush_sizes: Histogram::new(FLUSH_SIZES),
        }
    }

    /// Returns the counters of a namespace.
    #[inline]
    pub(crate) fn of(&self, namespace: u16) -> &NamespaceMetrics {
        &self.namespaces.record(namespace).metrics
    }

    /// Counts a change of state of a slot in a namespace.
    pub(crate) fn shift(&self, namespace: u16, from: Slot, to: Slot) {
        if from.state() != to.state() {
            self.of(namespace).shift(from.state(), to.state());
        }
    }

    /// Returns the sum of a count over all namespaces.
    pub(crate) fn total(&self, count: impl Fn(&NamespaceMetrics) -> u64) -> u64 {
        // A slot may change its state between two loads: then the sum of its states may wrap around
        // temporarily.
        self.namespaces.records().fold(0, |sum, record| sum.wrapping_add(count(&record.metrics)))
    }

    /// Records that `count` buckets of dirty room are held for changes that have no bucket.
    pub(crate) fn hold_bucketless(&self, namespace: u16, count: u32) {
        self.of(namespace).bucketless.fetch_add(u64::from(count), Ordering::Relaxed);
    }

    /// Returns dirty room that was held for changes that have no bucket.
    pub(crate) fn return_bucketless(&self, namespace: u16, count: u32) {
        self.of(namespace).bucketless.fetch_sub(u64::from(count), Ordering::Relaxed);
        self.dirty_room.give_back(namespace, count);
    }

    /// Returns the number of reads since the start.
    pub(crate) fn reads(&self) -> u64 {
        self.total(|of| of.hits.get() + of.misses.get())
    }
}
