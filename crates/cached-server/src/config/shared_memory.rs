//! `[shared_memory]`: items and objects have their memory together, and it moves between them.

use super::error::{ConfigError, invalid, require, within};
use crate::config::settings::Settings;
use cached_config::{ObjectsTable, Size};
use cached_core::arbiter::SharedMemory;
use cached_core::arena::MemoryRange;
use cached_core::kv::policy;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The table.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct SharedMemoryTable {
    /// The least memory for items; `None`: an eighth of both, if items have as much at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items_bytes_min: Option<Size>,
    /// The least memory for objects; `None`: an eighth of both, if objects have as much at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects_bytes_min: Option<Size>,
    /// What it costs when an item is missed, in microseconds; 0: as much as the load of a bucket.
    pub item_miss_us: u64,
}

/// A day: beyond, a typing error is more likely.
const MISS_US_MAX: u64 = 24 * 60 * 60 * 1_000_000;
/// With less a half does not work well.
const LEAST_BYTES: Size = Size(2 << 20);

impl SharedMemoryTable {
    /// Returns how `items_bytes` and the memory of `objects` are shared.
    fn memory(&self, items_bytes: usize, objects: &ObjectsTable) -> SharedMemory {
        let (items, objects) = (items_bytes as u64, objects.memory_bytes_max.0);
        let eighth = items.saturating_add(objects) / 8;
        let least = |given: Option<Size>, start: u64| given.map_or(eighth.min(start), |size| size.0);
        SharedMemory {
            items_bytes: items,
            objects_bytes: objects,
            items_bytes_min: least(self.items_bytes_min, items),
            objects_bytes_min: least(self.objects_bytes_min, objects),
            item_miss: Some(self.item_miss_us).filter(|us| *us > 0).map(Duration::from_micros),
        }
    }

    /// Returns the table with the values that follow from the memory of items and of `objects`.
    pub(super) fn filled_in(&self, items_bytes: usize, objects: &ObjectsTable) -> SharedMemoryTable {
        let memory = self.memory(items_bytes, objects);
        SharedMemoryTable {
            items_bytes_min: Some(Size(memory.items_bytes_min)),
            objects_bytes_min: Some(Size(memory.objects_bytes_min)),
            item_miss_us: self.item_miss_us,
        }
    }
}

/// Sets the range of the objects' memory, from which other values follow, if memory is shared. Checks
/// nothing.
pub(super) fn set_range(
    table: Option<&SharedMemoryTable>,
    settings: &Settings,
    objects: Option<&mut ObjectsTable>,
) {
    if let (Some(table), Some(objects)) = (table, objects) {
        objects.memory_range = Some(table.memory(settings.memory_bytes, objects).objects_range());
    }
}

/// Returns how items and objects share their memory, and sets the range of the objects'.
///
/// # Errors
/// What does not allow it.
pub(crate) fn share(
    table: &SharedMemoryTable,
    settings: &Settings,
    objects: Option<&mut ObjectsTable>,
) -> Result<SharedMemory, ConfigError> {
    let Some(objects) = objects else {
        return invalid(
            "shared_memory",
            "is between items and objects; an [objects] table must say what these are",
        );
    };
    within("shared_memory.item_miss_us", table.item_miss_us, 0..=MISS_US_MAX)?;
    let never = [
        (
            settings.memory_file.is_some(),
            "the memory of a file (memory_file, -e) cannot move; one of the two must go",
        ),
        (
            settings.huge_pages || objects.huge_pages,
            "huge pages cannot move; huge_pages (-L) must be false for both",
        ),
        (
            settings.lock_memory,
            "memory that is kept from being paged out (lock_memory, -k) cannot move; one must go",
        ),
        (!settings.evict, "items that are not evicted cannot make room; evict must be true (no -M)"),
    ];
    if let Some((_, why)) = never.iter().find(|(is_so, _)| *is_so) {
        return invalid("shared_memory", *why);
    }
    let policies = [
        ("memcached.eviction_policy", settings.eviction_policy),
        ("objects.eviction_policy", objects.eviction_policy.as_str()),
    ];
    for (key, name) in policies {
        let remembers = policy::by_name(name).is_some_and(|policy| policy.ghost_hits().is_some());
        require(remembers, key, || {
            format!(
                "is {name}, which cannot tell what more memory would save; with [shared_memory] it must be \
                     balanced or s3fifo"
            )
        })?;
    }
    let memory = table.memory(settings.memory_bytes, objects);
    let halves = [
        ("items", memory.items_range(), memory.items_bytes),
        ("objects", memory.objects_range(), memory.objects_bytes),
    ];
    for (half, range, start) in halves {
        let key = format!("shared_memory.{half}_bytes_min");
        within(&key, Size(range.bytes_min), LEAST_BYTES..=Size(start))?;
        let least = range.bytes_max.div_ceil(MemoryRange::RATIO_MAX);
        require(range.bytes_min >= least, &key, || {
            format!(
                "is {}; it must be at least {}, a {}nd of the most that {half} can have",
                Size(range.bytes_min),
                Size(least),
                MemoryRange::RATIO_MAX
            )
        })?;
    }
    require(
        settings.item_bytes_max as u64 <= memory.items_bytes_min / 2,
        "shared_memory.items_bytes_min",
        || format!("is {}; it must be at least twice item_bytes_max", Size(memory.items_bytes_min)),
    )?;
    objects.memory_range = Some(memory.objects_range());
    objects.check_cache()?;
    Ok(memory)
}
