//! What an owner finds in the log of overlays of the one before, which has not given the volume up.

use std::collections::BTreeMap;

use blocker::{Run, Segments};
use futures_util::{StreamExt, TryStreamExt};

use super::PARTS_MAX;
use crate::entry::{Entry, Kind, VolumeId};
use crate::error::Result;
use crate::format::{OverlayLog, OverlayRecord, SECTOR_BYTES, overlay_records};
use crate::map::Map;
use crate::space::Pool;
use crate::volume::{Inner, Recorder};

/// Parts that are read at once.
const LOADS_MAX: usize = 4;

/// The records of a log with their bytes, in order.
struct Loaded {
    records: Vec<(OverlayRecord, Segments)>,
    /// Behind the last part that is there.
    parts: u32,
}

impl Inner {
    /// Gives the volume what the log of the owner before has, and begins a new log.
    pub(crate) async fn replay(&self, recorder: &mut Recorder, log: OverlayLog) -> Result<()> {
        let Loaded { records, parts } = load(&self.space.pool, self.space.volume, log).await?;
        let mut by_object: BTreeMap<u32, Vec<Run>> = BTreeMap::new();
        for (record, data) in records {
            // An object that is recorded has all that its records have, and perhaps what is newer.
            let counts = !record.base.is_hole() && self.live_entry(record.index) == record.base;
            let fits = record.within.checked_add(record.length).is_some_and(|end| end <= self.object_bytes());
            if counts && fits && record.length > 0 {
                let run = match record.data_sum {
                    Some(_) => Run::data(record.within, data),
                    None => Run::zeroes(record.within, record.length),
                };
                by_object.entry(record.index).or_default().push(run);
            }
        }
        for (index, runs) in by_object {
            let births_left = {
                let state = self.state.lock();
                state.birth_limit.saturating_sub(state.birth)
            };
            if births_left < crate::volume::write::BIRTHS_MIN {
                self.reserve_births(recorder).await?;
            }
            let own = self.state.lock().own_birth(index);
            let birth = match own {
                Some(birth) => birth,
                None => self.bear_copy(index, self.live_entry(index)).await?,
            };
            for run in runs {
                self.put_run(index, birth, run).await?;
            }
        }
        self.record(recorder).await?;
        self.begin_log(recorder, parts).await
    }

    fn live_entry(&self, index: u32) -> Entry {
        self.state.lock().live.get(index)
    }
}

/// Returns `map` as it is with the overlays in a log: an object with an overlay is another one than any map has.
pub(crate) async fn overlaid(pool: &Pool, volume: VolumeId, log: OverlayLog, mut map: Map) -> Result<Map> {
    let records = load(pool, volume, log).await?.records;
    let over = records.into_iter().filter(|(record, _)| map.get(record.index) == record.base);
    let over: Vec<u32> = over.filter(|(record, _)| !record.base.is_hole()).map(|it| it.0.index).collect();
    // A log has a birth of its own.
    over.into_iter().for_each(|index| map.set(index, Entry::new(volume, log.birth)));
    Ok(map)
}

async fn load(pool: &Pool, volume: VolumeId, log: OverlayLog) -> Result<Loaded> {
    // Parts are written side by side: one may be missing before another.
    let parts = (0..PARTS_MAX).map(|part| {
        let (pool, object) = (pool.clone(), pool.object(volume, Kind::Overlay(log.birth, part)));
        async move {
            match pool.get(object).await {
                Ok((bytes, _)) => Ok(Some((part, bytes))),
                Err(blocker::Error::Missing) => Ok(None),
                Err(error) => Err(error),
            }
        }
    });
    let found: Vec<_> = futures_util::stream::iter(parts).buffered(LOADS_MAX).try_collect().await?;
    let mut loaded = Loaded { records: Vec::new(), parts: 0 };
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
