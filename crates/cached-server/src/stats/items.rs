//! `stats items` and `stats slabs`, as far as an engine without slabs can tell without walking over all items.
//!
//! Items by size class need a walk over the index, which a report must not make. So all items are reported as one
//! class, the one that holds items of the mean size; the sums are right, and dashboards that add classes up show them.

use super::{Sink, classes};
use crate::shared::Shared;

pub(super) fn write_items(shared: &Shared, sink: &mut Sink<'_>) {
    let kv = shared.engine_stats();
    let Some(mean_bytes) = kv.item_bytes.checked_div(kv.items) else { return };
    let totals = shared.totals();
    let class = classes::class_of(mean_bytes as usize);
    let mut put = |name: &str, value: u64| sink.put(&format!("items:{class}:{name}"), value);
    put("number", kv.items);
    put("number_hot", 0);
    put("number_warm", 0);
    put("number_cold", kv.items);
    put("age_hot", 0);
    put("age_warm", 0);
    put("age", 0);
    put("mem_requested", kv.item_bytes);
    put("evicted", kv.evictions);
    put("evicted_nonzero", 0);
    put("evicted_time", 0);
    put("outofmemory", totals.store_no_memory);
    put("tailrepairs", 0);
    put("reclaimed", kv.reclaimed);
    put("expired_unfetched", kv.expired_unfetched);
    put("evicted_unfetched", kv.evicted_unfetched);
    put("evicted_active", 0);
    put("crawler_reclaimed", 0);
    put("crawler_items_checked", 0);
    put("lrutail_reflocked", 0);
    put("moves_to_cold", 0);
    put("moves_to_warm", 0);
    put("moves_within_lru", 0);
    put("direct_reclaims", 0);
    put("hits_to_hot", 0);
    put("hits_to_warm", 0);
    put("hits_to_cold", totals.get_hits);
    put("hits_to_temp", 0);
}

pub(super) fn write_slabs(shared: &Shared, sink: &mut Sink<'_>) {
    let kv = shared.engine_stats();
    let totals = shared.totals();
    let region_bytes = kv.arena_bytes as u64 / u64::from(kv.regions.max(1));
    let regions_used = u64::from(kv.regions - kv.regions_free);
    if let Some(mean_bytes) = kv.item_bytes.checked_div(kv.items) {
        let mean_bytes = mean_bytes.max(1);
        let class = classes::class_of(mean_bytes as usize);
        let chunks_per_page = (region_bytes / mean_bytes).max(1);
        let chunks = (chunks_per_page * regions_used).max(kv.items);
        let mut put = |name: &str, value: u64| sink.put(&format!("{class}:{name}"), value);
        put("chunk_size", mean_bytes);
        put("chunks_per_page", chunks_per_page);
        put("total_pages", regions_used);
        put("total_chunks", chunks);
        put("used_chunks", kv.items);
        put("free_chunks", chunks - kv.items);
        put("free_chunks_end", 0);
        put("get_hits", totals.get_hits);
        put("cmd_set", totals.set_cmds);
        put("delete_hits", totals.delete_hits);
        put("incr_hits", totals.incr_hits);
        put("decr_hits", totals.decr_hits);
        put("cas_hits", totals.cas_hits);
        put("cas_badval", totals.cas_badval);
        put("touch_hits", totals.touch_hits);
    }
    sink.put("active_slabs", u8::from(kv.items > 0));
    sink.put("total_malloced", regions_used * region_bytes);
}
