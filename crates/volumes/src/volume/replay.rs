//! What an owner finds in the logs of the one before, which has not given the volume up.

use blocker::{Scope, Segments};
use futures_util::{StreamExt, TryStreamExt};

use super::Inner;
use super::logs::PARTS_MAX;
use crate::error::{Error, Result};
use crate::format::entry::{Entry, Kind, VolumeId};
use crate::format::map::Map;
use crate::format::{OverlayLog, OverlayRecord, SECTOR_BYTES, overlay_records};
use crate::space::Pool;

/// Parts that are read at once.
const LOADS_MAX: usize = 4;

/// The records of a log with their bytes, in order.
pub(crate) struct Loaded {
    id: OverlayLog,
    records: Vec<(OverlayRecord, Segments)>,
    /// Behind the last part that is there.
    parts: u32,
}

impl Inner {
    /// Takes over what the logs of the owner before have, and appends to `own` from now on, if that is a log. Nothing is
    /// written: the head names all of them.
    pub(crate) fn take_over_logs(&self, before: Vec<Loaded>, own: Option<OverlayLog>) {
        let mut state = self.state.lock();
        for Loaded { id, records, parts } in before {
            let number = state.overlays.logs.add_before(id, parts);
            for (record, data) in records {
                if counts(&state.live, &record, self.object_bytes) {
                    let data = record.data_sum.map(|_| data);
                    state.overlays.take_over(&record, data.as_ref(), number);
                }
            }
        }
        if let Some(own) = own {
            state.overlays.logs.begin(own, &self.space.pool.capabilities);
        }
    }
}

/// Returns whether a record is over what `map` has in its place.
fn counts(map: &Map, record: &OverlayRecord, object_bytes: u64) -> bool {
    // An object whose copy is recorded has all that its records have, and perhaps what is newer.
    let is_current = !record.base.is_hole() && map.get(record.index) == record.base;
    let fits = record.within.checked_add(record.length).is_some_and(|end| end <= object_bytes);
    is_current && fits && record.length > 0
}

/// Returns `map` as it is with the overlays in logs: an object with an overlay is another one than any map has.
pub(crate) async fn overlaid(
    pool: &Pool,
    volume: VolumeId,
    logs: &[OverlayLog],
    (map, object_bytes): (Map, u64),
) -> Result<Map> {
    let mut all = map.clone();
    for log in logs {
        for (record, _) in load(pool, volume, *log).await?.records {
            if counts(&map, &record, object_bytes) {
                // A log has a birth of its own.
                all.set(record.index, Entry::new(volume, log.birth));
            }
        }
    }
    Ok(all)
}

/// Reads logs, in the order in which they were begun.
pub(crate) async fn load_logs(pool: &Pool, volume: VolumeId, logs: &[OverlayLog]) -> Result<Vec<Loaded>> {
    let mut all = Vec::new();
    for log in logs {
        all.push(load(pool, volume, *log).await?);
    }
    Ok(all)
}

async fn load(pool: &Pool, volume: VolumeId, log: OverlayLog) -> Result<Loaded> {
    // Parts are written side by side: one may be missing before another.
    let parts = (0..PARTS_MAX).map(|part| {
        let (pool, object) = (pool.clone(), pool.object(volume, Kind::Overlay(log.birth, part)));
        async move {
            // Another owner may have appended to it since a cache below has read it.
            pool.invalidate(Scope::Object(object.clone())).await?;
            match pool.get(object).await {
                Ok((bytes, _)) => Ok(Some((part, bytes))),
                Err(blocker::Error::Missing) => Ok(None),
                Err(error) => Err(Error::from(error)),
            }
        }
    });
    let found: Vec<_> = futures_util::stream::iter(parts).buffered(LOADS_MAX).try_collect().await?;
    let mut loaded = Loaded { id: log, records: Vec::new(), parts: 0 };
    for (part, bytes) in found.into_iter().flatten() {
        loaded.parts = part + 1;
        let whole = bytes.to_bytes();
        for (place, record) in overlay_records(&whole, log, volume, part) {
            let begin = place.offset as usize + SECTOR_BYTES;
            // A record is there with all of its bytes.
            let data = bytes.slice(begin..begin + record.data_bytes() as usize);
            loaded.records.push((record, data));
        }
    }
    Ok(loaded)
}
