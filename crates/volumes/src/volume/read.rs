//! Reads data, reports on the map, and provides the view for a check.

use std::sync::Arc;

use async_lock::{MutexGuard, RwLockWriteGuard};
use blocker::{Error as Store, ObjectId, ReadRequest, Reply, Segments};

use super::runs::Source;
use super::{Answer, Inner, Piece, Recorder, Volume, pieces};
use crate::error::{Error, Result};
use crate::format::entry::{Entry, Kind, VolumeId};
use crate::format::map::{Map, page_of};
use crate::format::{Head, PAGES_MAX};
use crate::settings::{Change, Extent, ExtentKind, Usage};
use crate::space::load_node;

/// The maximum number of lookups of an index whose object was removed in the meantime.
const TRIES: u32 = 64;

impl Volume {
    /// Reads as [`Self::read`] does. The answer is ready at once if the store has the bytes
    /// immediately available.
    pub fn start_read(&self, offset: u64, length: u64) -> Answer<Segments> {
        self.inner.try_read(offset, length).unwrap_or_else(|| {
            let inner = Arc::clone(&self.inner);
            Answer::Pending(Box::pin(async move { inner.read(offset, length).await }))
        })
    }
}

impl Inner {
    fn try_read(self: &Arc<Self>, offset: u64, length: u64) -> Option<Answer<Segments>> {
        let piece = self.only_piece(offset, length)?;
        let entry = {
            let state = self.state.lock();
            state.check_range(offset, length).ok()?;
            if state.overlays.has_overlay(piece.index) {
                return None;
            }
            state.live.get(piece.index)
        };
        if entry.is_hole() {
            return None;
        }
        let object = self.object_of(entry, piece.index);
        match self.space.store().read(ReadRequest::new(object, piece.within, length)) {
            Reply::Ready(Ok(reply)) => Some(Answer::Ready(Ok(padded(reply.data, length)))),
            // The object may have been replaced and removed since the map was read.
            Reply::Ready(Err(Store::Missing)) => None,
            Reply::Ready(Err(error)) => Some(Answer::Ready(Err(self.noted(error)))),
            Reply::Pending(future) => {
                let inner = Arc::clone(self);
                Some(Answer::Pending(Box::pin(async move {
                    match future.await {
                        Ok(reply) => Ok(padded(reply.data, length)),
                        Err(Store::Missing) => inner.read(offset, length).await,
                        Err(error) => Err(inner.noted(error)),
                    }
                })))
            }
        }
    }

    pub(super) async fn read(&self, offset: u64, length: u64) -> Result<Segments> {
        self.state.lock().check_range(offset, length)?;
        let mut pieces = pieces(self.object_bytes, offset, length);
        let Some(first) = pieces.next() else { return Ok(Segments::new()) };
        if first.length == length {
            return self.read_piece(first).await;
        }
        let all = std::iter::once(first).chain(pieces).map(|piece| self.read_piece(piece));
        let mut data = Segments::new();
        for part in futures_util::future::join_all(all).await {
            data.append(part?);
        }
        Ok(data)
    }

    /// Returns the object that a map entry names.
    pub(super) fn object_of(&self, entry: Entry, index: u32) -> ObjectId {
        let kind = Kind::Data(entry.allocation(), index);
        match entry.volume() == self.space.volume {
            true => self.space.object(kind),
            false => self.space.pool.object(entry.volume(), kind),
        }
    }

    async fn read_piece(&self, piece: Piece) -> Result<Segments> {
        let mut before = None;
        for _ in 0..TRIES {
            let (entry, parts) = {
                let state = self.state.lock();
                state.check()?;
                let parts = state.overlays.parts(piece.index, piece.within, piece.length);
                (state.live.get(piece.index), parts)
            };
            if entry.is_hole() {
                return Ok(zeros(piece.length));
            }
            let object = self.object_of(entry, piece.index);
            if before == Some(entry) {
                return Err(Error::Damaged(format!("object {object} of the volume is missing")));
            }
            let read = match parts {
                None => self.read_object(object, piece.within, piece.length).await,
                Some(parts) => self.read_overlaid(object, piece.within, parts).await,
            };
            match read {
                Ok(data) => return Ok(data),
                // The object may have been replaced and removed since the map was read.
                Err(Store::Missing) => before = Some(entry),
                Err(error) => return Err(self.noted(error)),
            }
        }
        Err(Error::Io(Store::Retryable("the range is discarded faster than it can be read".into())))
    }

    async fn read_object(&self, object: ObjectId, within: u64, length: u64) -> Result<Segments, Store> {
        let reply = self.space.store().read(ReadRequest::new(object, within, length)).await?;
        Ok(padded(reply.data, length))
    }

    /// Reads an object's overlay, and the ranges between its runs from the object itself.
    async fn read_overlaid(
        &self,
        object: ObjectId,
        within: u64,
        parts: Vec<(u64, Source)>,
    ) -> Result<Segments, Store> {
        let (mut data, mut at) = (Segments::new(), within);
        for (length, source) in parts {
            data.append(match source {
                Source::Data(data) => data,
                Source::Zeroes => zeros(length),
                Source::Base => self.read_object(object.clone(), at, length).await?,
            });
            at += length;
        }
        Ok(data)
    }
}

/// Returns the bytes of a part of an object, with zeros where the object ends and the volume
/// continues.
pub(crate) fn padded(mut data: Segments, length: u64) -> Segments {
    let found = data.len_bytes() as u64;
    if found < length {
        data.append(zeros(length - found));
    }
    data
}

fn zeros(length: u64) -> Segments {
    // At most an object.
    Segments::zeros(length as usize)
}

// ---- reports from the map, without reading data

impl Volume {
    /// Returns the extents of the range, in order and without gaps, by whole objects.
    ///
    /// # Errors
    /// See [`Volume`].
    pub async fn extents(&self, offset: u64, length: u64) -> Result<Vec<Extent>> {
        let state = self.inner.state.lock();
        state.check_range(offset, length)?;
        let mut all: Vec<Extent> = Vec::new();
        for piece in pieces(self.inner.object_bytes, offset, length) {
            let is_hole = state.live.get(piece.index).is_hole();
            let kind = if is_hole { ExtentKind::Hole } else { ExtentKind::Data };
            match all.last_mut().filter(|last| last.kind == kind) {
                Some(last) => last.length += piece.length,
                None => all.push(Extent { offset: offset + piece.at, length: piece.length, kind }),
            }
        }
        Ok(all)
    }

    /// Returns the ranges, by whole objects, in which the volume may differ from its snapshot
    /// `since`. If `since` is `None`, the volume is compared with one that has only holes. Ranges
    /// beyond the end of either are omitted.
    ///
    /// # Errors
    /// See [`Volume`]; `NoSuchSnapshot`.
    pub async fn changed_extents(&self, since: Option<&str>) -> Result<Vec<Change>> {
        self.changed_extents_in(since, 0, u64::MAX).await
    }

    /// Returns the same as [`Self::changed_extents`] for a range; changes outside the range may be
    /// omitted.
    ///
    /// # Errors
    /// The errors of [`Self::changed_extents`].
    pub async fn changed_extents_in(
        &self,
        since: Option<&str>,
        offset: u64,
        length: u64,
    ) -> Result<Vec<Change>> {
        let inner = &*self.inner;
        let last = offset.saturating_add(length.saturating_sub(1)) / inner.object_bytes;
        // No map has an index beyond.
        let page = |object: u64| page_of(u32::try_from(object).unwrap_or(u32::MAX));
        let pages = page(offset / inner.object_bytes)..page(last).min(PAGES_MAX) + 1;
        let old = match since {
            None => Map::default(),
            Some(name) => inner.map_of_snapshot(name).await?.within(pages.clone()),
        };
        let (live, size_bytes) = {
            let state = inner.state.lock();
            state.check()?;
            (state.live_with_overlays(pages), state.size_bytes)
        };
        Ok(changes(&old, &live, size_bytes, inner.object_bytes))
    }
}

impl Inner {
    /// Returns a snapshot's map, which never changes. The last map is kept, because clients ask for
    /// the changes of a disk range by range.
    async fn map_of_snapshot(&self, name: &str) -> Result<Map> {
        let mut before = None;
        loop {
            let (node, root, recorded) = {
                let recorder = self.recorder().await?;
                let node = recorder.head.named(name).ok_or_else(|| Error::NoSuchSnapshot(name.to_owned()))?;
                // Both belong to the same instant, because they change only under the recorder's
                // lock.
                (node.id, recorder.head.root.clone(), self.state.lock().recorded.clone())
            };
            if let Some((_, map)) = self.compared.lock().as_ref().filter(|(id, _)| *id == node) {
                return Ok(map.clone());
            }
            // Without the recorder's lock, so that flushes do not wait for it.
            match load_node(&self.space.pool, self.space.volume, node, (&root, &recorded)).await {
                Ok((_, map)) => {
                    // After the snapshot's deletion its pages may be written in place. In that case
                    // its name is gone.
                    if self.recorder().await?.head.named(name).is_none_or(|found| found.id != node) {
                        continue;
                    }
                    *self.compared.lock() = Some((node, map.clone()));
                    return Ok(map);
                }
                // The snapshot may have been deleted in the meantime. In that case its name is no
                // longer found.
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
            // Objects with an overlay will be copied.
            (state.size_bytes, state.live_with_overlays(0..PAGES_MAX), state.parent.clone())
        };
        Ok(usage(self.space.volume, size_bytes, self.object_bytes, (&live, &parent)))
    }
}

/// Returns a volume's usage according to this map, after a snapshot with the map `parent`.
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

/// Returns the ranges in which `new` differs from `old`. Shared pages are skipped.
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

// ---- a volume and all its snapshots, frozen for a check

/// A volume and all its snapshots, frozen: as long as this value exists, the volume accepts no
/// changes here.
pub(crate) struct View<'a> {
    inner: &'a Inner,
    /// The pages and map of each node; the live volume comes first.
    nodes: Vec<(Option<u64>, Vec<Entry>, Map)>,
    parent_root: Vec<Entry>,
    recorder: MutexGuard<'a, Recorder>,
    /// Ensures that no copy is being made that no map names yet.
    _merges: RwLockWriteGuard<'a, ()>,
    _barrier: RwLockWriteGuard<'a, ()>,
}

impl Inner {
    /// Returns the volume's stored head.
    pub(crate) async fn head(&self) -> Head {
        self.recorder.lock().await.head.clone()
    }

    /// Records everything, and freezes the volume.
    pub(crate) async fn view(&self) -> Result<View<'_>> {
        let mut recorder = self.recorder().await?;
        let merges = self.merges.write().await;
        let barrier = self.barrier.write().await;
        self.record(&mut recorder).await?;
        self.remove_drops(usize::MAX).await;
        self.removals_ended().await;
        let live = self.state.lock().live.clone();
        let mut nodes = vec![(None, recorder.head.root.clone(), live)];
        for node in &recorder.head.nodes {
            let (root, map) = self.map_of_node(&recorder, node.id).await?;
            nodes.push((Some(node.id), root, map));
        }
        let parent_root = recorder.parent_root.clone();
        Ok(View { inner: self, nodes, parent_root, recorder, _merges: merges, _barrier: barrier })
    }
}

impl View<'_> {
    pub(crate) fn volume(&self) -> VolumeId {
        self.inner.space.volume
    }

    /// Returns the head of the volume.
    pub(crate) fn head(&self) -> &Head {
        &self.recorder.head
    }

    /// Returns how many allocations met an existing object with their name.
    pub(crate) fn births_met(&self) -> u64 {
        self.inner.state.lock().births_met
    }

    /// Calls `each` for every object that a node of the volume names, once for each node.
    pub(crate) fn each_name(&self, mut each: impl FnMut(VolumeId, Kind)) {
        for (id, root, map) in &self.nodes {
            if let Some(id) = id {
                each(self.volume(), Kind::Root(*id));
            }
            for (page, at) in root.iter().enumerate().filter(|(_, at)| !at.is_hole()) {
                each(at.volume(), Kind::Page(at.allocation(), page as u32));
            }
            for (index, entry) in map.objects() {
                each(entry.volume(), Kind::Data(entry.allocation(), index));
            }
        }
    }

    /// Returns whether an object is a part of one of the volume's logs. Not all parts need exist.
    pub(crate) fn is_logged(&self, kind: Kind) -> bool {
        let mut ids = self.recorder.head.logs.iter().map(|log| log.allocation);
        matches!(kind, Kind::Overlay(allocation, _) if ids.any(|log| log == allocation))
    }

    /// Calls `each` for every object that the live volume writes in place.
    pub(crate) fn each_own(&self, mut each: impl FnMut(VolumeId, Kind)) {
        let (_, root, map) = &self.nodes[0];
        let state = self.inner.state.lock();
        for (index, entry) in map.objects().filter(|(index, entry)| state.owns(*index, *entry)) {
            each(entry.volume(), Kind::Data(entry.allocation(), index));
        }
        for (page, at) in root.iter().enumerate() {
            if at.volume() == self.volume() && self.parent_root.get(page) != Some(at) {
                each(at.volume(), Kind::Page(at.allocation(), page as u32));
            }
        }
    }

    /// Removes an object that no map names.
    pub(crate) async fn remove(&self, kind: Kind) -> Result<()> {
        self.inner.space.remove(kind).await.map_err(|error| self.inner.noted(error))
    }

    pub(crate) async fn flush(&self) -> Result<()> {
        self.inner.space.flush(blocker::Durability::Stored).await.map_err(|error| self.inner.noted(error))
    }
}
