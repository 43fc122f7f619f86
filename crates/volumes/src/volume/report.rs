//! What a volume's map says, without reading data.

use super::Inner;
use crate::error::{Error, Result};
use crate::format::PAGES_MAX;
use crate::format::entry::{Entry, VolumeId};
use crate::format::map::{Map, page_of};
use crate::settings::{Change, Extent, ExtentKind, Usage};
use crate::space::load_node;

impl Inner {
    pub(super) fn extents(&self, offset: u64, length: u64) -> Result<Vec<Extent>> {
        let state = self.state.lock();
        state.check_range(offset, length)?;
        let mut all: Vec<Extent> = Vec::new();
        for piece in self.pieces(offset, length) {
            let is_hole = state.live.get(piece.index).is_hole();
            let kind = if is_hole { ExtentKind::Hole } else { ExtentKind::Data };
            match all.last_mut().filter(|last| last.kind == kind) {
                Some(last) => last.length += piece.length,
                None => all.push(Extent { offset: offset + piece.at, length: piece.length, kind }),
            }
        }
        Ok(all)
    }

    /// Returns where the volume may differ from the snapshot `since`; from holes for `None`. Only pages of the map are looked
    /// at that have a part of the range, so what lies beyond it may be missing.
    pub(super) async fn changed_extents(
        &self,
        since: Option<&str>,
        (offset, length): (u64, u64),
    ) -> Result<Vec<Change>> {
        let last = offset.saturating_add(length.saturating_sub(1)) / self.object_bytes;
        // No map has a place beyond.
        let page = |object: u64| page_of(u32::try_from(object).unwrap_or(u32::MAX));
        let pages = page(offset / self.object_bytes)..page(last).min(PAGES_MAX) + 1;
        let old = match since {
            None => Map::default(),
            Some(name) => self.map_of_snapshot(name).await?.within(pages.clone()),
        };
        let (live, size_bytes) = {
            let state = self.state.lock();
            state.check()?;
            (state.live_with_overlays(pages), state.size_bytes)
        };
        Ok(changes(&old, &live, size_bytes, self.object_bytes))
    }

    /// Returns the map of a snapshot, which never changes. The last one is kept: clients ask for the changes of a
    /// disk range by range.
    async fn map_of_snapshot(&self, name: &str) -> Result<Map> {
        let mut before = None;
        loop {
            let (node, root, recorded) = {
                let recorder = self.recorder().await?;
                let node = recorder.head.named(name).ok_or_else(|| Error::NoSuchSnapshot(name.to_owned()))?;
                // Both of one instant: they change under the recorder's lock.
                (node.id, recorder.head.root.clone(), self.state.lock().recorded.clone())
            };
            if let Some((_, map)) = self.compared.lock().as_ref().filter(|(id, _)| *id == node) {
                return Ok(map.clone());
            }
            // Without the recorder's lock: flushes do not wait for it.
            match load_node(&self.space.pool, self.space.volume, node, (&root, &recorded)).await {
                Ok((_, map)) => {
                    // Its pages may be written in place once it is deleted: then it has no name.
                    if self.recorder().await?.head.named(name).is_none_or(|found| found.id != node) {
                        continue;
                    }
                    *self.compared.lock() = Some((node, map.clone()));
                    return Ok(map);
                }
                // It may have been deleted meanwhile: then it is not found by its name any more.
                Err(Error::Damaged(_)) if before != Some(node) => before = Some(node),
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn usage(&self) -> Result<Usage> {
        // Not under the lock: a map may be large.
        let (size_bytes, live, parent) = {
            let state = self.state.lock();
            state.check()?;
            // What has an overlay is about to be copied.
            (state.size_bytes, state.live_with_overlays(0..PAGES_MAX), state.parent.clone())
        };
        Ok(usage(self.space.volume, size_bytes, self.object_bytes, (&live, &parent)))
    }
}

/// Returns what a volume uses with this map, after a snapshot with the map `parent`.
pub(crate) fn usage(
    volume: VolumeId,
    size_bytes: u64,
    object_bytes: u64,
    (live, parent): (&Map, &Map),
) -> Usage {
    let own = live.objects_not_in(parent).filter(|(_, entry)| entry.volume() == volume);
    Usage {
        size_bytes,
        referenced_bytes: live.objects().count() as u64 * object_bytes,
        exclusive_bytes: own.count() as u64 * object_bytes,
    }
}

/// Returns where `new` differs from `old`. Pages that they share are not looked at.
pub(crate) fn changes(old: &Map, new: &Map, size_bytes: u64, object_bytes: u64) -> Vec<Change> {
    let mut all: Vec<Change> = Vec::new();
    let mut places: Vec<(u32, Entry)> = new.objects_not_in(old).collect();
    let gone = old.objects_not_in(new).filter(|(index, _)| new.get(*index).is_hole());
    places.extend(gone.map(|(index, _)| (index, Entry::HOLE)));
    places.sort_unstable();
    for (index, entry) in places {
        let offset = u64::from(index) * object_bytes;
        if offset >= size_bytes {
            break;
        }
        let (length, is_data) = (object_bytes.min(size_bytes - offset), !entry.is_hole());
        match all.last_mut().filter(|last| last.offset + last.length == offset && last.is_data == is_data) {
            Some(last) => last.length += length,
            None => all.push(Change { offset, length, is_data }),
        }
    }
    all
}
