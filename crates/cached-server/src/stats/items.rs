//! `stats items`, `stats slabs` and `stats sizes`: items by the size classes that memcached would have.
//!
//! Items are not counted by class while they come and go. A report reads a bounded number of hash buckets of
//! the index; keys are spread over them by a seeded hash, so they are a fair sample. A small cache is read
//! completely and reported exactly; of a large one the share of each class is scaled up. Counts that exist
//! for the whole cache only (hits, evictions) are reported for the class with the most items, so that sums
//! over classes are right.

use super::{Sink, Work};
use crate::config::size_classes::{PAGE_BYTES, item_bytes};
use crate::shared::Shared;
use cached_core::kv::ScanCursor;
use std::collections::BTreeMap;

/// The number of hash buckets that a report reads at most: some ten thousand items, about a millisecond.
const HASH_BUCKETS_MAX: usize = 2048;

/// The step of `stats sizes`.
const SIZE_STEP_BYTES: usize = 32;

/// The items of one class.
#[derive(Debug, Default, Clone, Copy)]
struct Class {
    items: u64,
    bytes: u64,
    idle_secs_max: u32,
}

/// Items by class, and by the size that they would have in memcached.
#[derive(Debug, Default)]
struct Sample {
    classes: BTreeMap<u32, Class>,
    sizes: BTreeMap<usize, u64>,
}

impl Sample {
    fn take(shared: &Shared, work: &mut Work) -> Sample {
        let mut sample = Sample::default();
        let mut seen = 0u64;
        let mut cursor = Some(ScanCursor::default());
        for _ in 0..HASH_BUCKETS_MAX {
            let Some(at) = cursor else { break };
            work.take(1);
            cursor = shared.kv.scan(at, |item| {
                seen += 1;
                let cas = shared.settings.cas;
                let bytes = item_bytes(item.key().len(), item.value_bytes(), item.client_flags(), cas);
                let class = sample.classes.entry(shared.size_classes.class_of(bytes)).or_default();
                class.items += 1;
                class.bytes += item.bytes();
                class.idle_secs_max = class.idle_secs_max.max(item.now().saturating_sub(item.last_access()));
                *sample.sizes.entry(bytes.next_multiple_of(SIZE_STEP_BYTES)).or_default() += 1;
            });
        }
        if cursor.is_some() {
            let items = shared.kv.stats().items;
            let scale = |count: u64| {
                u64::try_from(u128::from(count) * u128::from(items) / u128::from(seen.max(1)))
                    .unwrap_or(count)
            };
            for class in sample.classes.values_mut() {
                class.items = scale(class.items).max(1);
                class.bytes = scale(class.bytes);
            }
            sample.sizes.values_mut().for_each(|count| *count = scale(*count).max(1));
        }
        sample
    }

    /// Returns the class for which counts of the whole cache are reported.
    fn largest(&self) -> Option<u32> {
        self.classes.iter().max_by_key(|(_, class)| class.items).map(|(number, _)| *number)
    }
}

/// `stats items`.
pub(super) fn write_items(shared: &Shared, sink: &mut Sink<'_>) {
    let sample = Sample::take(shared, sink.work);
    let kv = shared.engine_stats();
    let totals = shared.totals();
    let largest = sample.largest();
    let maintained = shared.settings.inert.lru_maintainer;
    for (number, class) in &sample.classes {
        let whole = |count: u64| if largest == Some(*number) { count } else { 0 };
        let mut put = |name: &str, value: u64| sink.put(&format!("items:{number}:{name}"), value);
        put("number", class.items);
        if maintained {
            put("number_hot", 0);
            put("number_warm", 0);
            put("number_cold", class.items);
            put("age_hot", 0);
            put("age_warm", 0);
        }
        put("age", class.idle_secs_max.into());
        put("mem_requested", class.bytes);
        put("evicted", whole(kv.evictions));
        put("evicted_nonzero", 0);
        put("evicted_time", 0);
        put("outofmemory", whole(totals.refused_no_memory));
        put("tailrepairs", 0);
        put("reclaimed", whole(kv.reclaimed));
        put("expired_unfetched", whole(kv.expired_unfetched));
        put("evicted_unfetched", whole(kv.evicted_unfetched));
        if maintained {
            put("evicted_active", 0);
        }
        put("crawler_reclaimed", 0);
        put("crawler_items_checked", 0);
        put("lrutail_reflocked", 0);
        if maintained {
            put("moves_to_cold", 0);
            put("moves_to_warm", 0);
            put("moves_within_lru", 0);
            put("direct_reclaims", 0);
            put("hits_to_hot", 0);
            put("hits_to_warm", 0);
            put("hits_to_cold", whole(totals.get_hits));
            put("hits_to_temp", 0);
        }
    }
}

/// `stats slabs`. Pages are calculated from the class's bytes.
pub(super) fn write_slabs(shared: &Shared, sink: &mut Sink<'_>) {
    let sample = Sample::take(shared, sink.work);
    let kv = shared.engine_stats();
    let totals = shared.totals();
    let largest = sample.largest();
    for (number, class) in &sample.classes {
        let whole = |count: u64| if largest == Some(*number) { count } else { 0 };
        let chunk_bytes = shared.size_classes.chunk_bytes(*number);
        let chunks_per_page = (PAGE_BYTES / chunk_bytes) as u64;
        let pages = class.bytes.div_ceil(PAGE_BYTES as u64).max(1);
        let chunks = (chunks_per_page * pages).max(class.items);
        let mut put = |name: &str, value: u64| sink.put(&format!("{number}:{name}"), value);
        put("chunk_size", chunk_bytes as u64);
        put("chunks_per_page", chunks_per_page);
        put("total_pages", pages);
        put("total_chunks", chunks);
        put("used_chunks", class.items);
        put("free_chunks", chunks - class.items);
        put("free_chunks_end", 0);
        put("get_hits", whole(totals.get_hits));
        put("cmd_set", whole(totals.sets));
        put("delete_hits", whole(totals.delete_hits));
        put("incr_hits", whole(totals.incr_hits));
        put("decr_hits", whole(totals.decr_hits));
        put("cas_hits", whole(totals.cas_hits));
        put("cas_badval", whole(totals.cas_badval));
        put("touch_hits", whole(totals.touch_hits));
    }
    let region_bytes = kv.arena_bytes as u64 / u64::from(kv.regions.max(1));
    sink.put("active_slabs", sample.classes.len());
    sink.put("total_malloced", u64::from(kv.regions - kv.regions_free) * region_bytes);
}

/// `stats sizes`: the number of items of each size, in steps of 32 bytes.
pub(super) fn write_sizes(shared: &Shared, sink: &mut Sink<'_>) {
    if !shared.settings.track_sizes {
        return sink.put("sizes_status", "disabled");
    }
    for (bytes, count) in Sample::take(shared, sink.work).sizes {
        sink.put(&bytes.to_string(), count);
    }
}
