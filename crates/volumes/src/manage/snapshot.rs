//! Reads a snapshot, and a volume's stored map, without attaching the volume.

use std::fmt;

use blocker::{ObjectId, ReadRequest, Scope, Segments};

use crate::error::{Error, Result};
use crate::format::entry::{Entry, Kind, VolumeId};
use crate::format::map::Map;
use crate::format::{Head, Origin};
use crate::manage::Volumes;
use crate::settings::{Change, Extent, ExtentKind, Usage};
use crate::space::{Pool, load_node};
use crate::volume::{changes, overlaid, padded, pieces, usage};

/// A snapshot for reading. It needs no owner, and holds no resources: once the snapshot is deleted,
/// reads may fail with `Damaged`, or return later data of the volume. If [`Self::confirm`] succeeds
/// after a read, the data read are those of the snapshot.
#[derive(Clone)]
pub struct Snapshot {
    pool: Pool,
    volume: VolumeId,
    node: u64,
    name: String,
    size_bytes: u64,
    object_bytes: u64,
    map: Map,
}

impl Volumes {
    /// Opens a snapshot of a volume for reading.
    ///
    /// # Errors
    /// See [`Volumes`]; `NoSuchVolume`, `NoSuchSnapshot`.
    pub async fn open_snapshot(&self, name: &str, snapshot: &str) -> Result<Snapshot> {
        let volume = self.find(name).await?;
        let head = self.current_head(volume).await?;
        let node = head.named(snapshot).ok_or_else(|| Error::NoSuchSnapshot(snapshot.to_owned()))?;
        self.pool.refresh(Some(Origin { volume, node: node.id })).await?;
        let (_, map) = load_node(&self.pool, volume, node.id, (&[], &Map::default())).await?;
        let (pool, name, node) = (self.pool.clone(), node.name.clone(), node.clone());
        let (size_bytes, object_bytes) = (node.size_bytes, head.object_bytes);
        let snapshot = Snapshot { pool, volume, node: node.id, name, size_bytes, object_bytes, map };
        snapshot.confirm().await?;
        Ok(snapshot)
    }

    /// Returns the objects with the data of a volume's stored state or, with `snapshot`, of a
    /// snapshot, in the order of their place in the volume. Objects that are shared with other
    /// volumes are included.
    ///
    /// # Errors
    /// See [`Volumes`]; `NoSuchVolume`, `NoSuchSnapshot`. Never `InUse`.
    pub async fn objects(&self, name: &str, snapshot: Option<&str>) -> Result<Vec<ObjectId>> {
        let map = match snapshot {
            Some(snapshot) => self.open_snapshot(name, snapshot).await?.map,
            None => self.live_map(&self.current_head(self.find(name).await?).await?).await?,
        };
        let object =
            |(index, at): (u32, Entry)| self.pool.object(at.volume(), Kind::Data(at.allocation(), index));
        Ok(map.objects().map(object).collect())
    }

    /// Returns a volume's usage. If the volume is not open here, its stored state is used.
    ///
    /// # Errors
    /// See [`Volumes`]; `NoSuchVolume`. Never `InUse`.
    pub async fn usage(&self, name: &str) -> Result<Usage> {
        let volume = self.find(name).await?;
        if let Some(inner) = self.opened(volume) {
            match inner.usage() {
                Err(Error::Closed | Error::HandedOver) => {}
                answer => return answer,
            }
        }
        let mut head = self.current_head(volume).await?;
        loop {
            match self.stored_usage(&head).await {
                // The owner may have replaced a page in the meantime. Each attempt fails only if
                // the head has changed again.
                Err(Error::Damaged(why)) => {
                    let newer = self.current_head(volume).await?;
                    if newer.sequence == head.sequence {
                        return Err(Error::Damaged(why));
                    }
                    head = newer;
                }
                answer => return answer,
            }
        }
    }

    async fn stored_usage(&self, head: &Head) -> Result<Usage> {
        let live = self.live_map(head).await?;
        let parent = match head.parent {
            0 => Map::default(),
            node => {
                self.pool.refresh(Some(Origin { volume: head.volume, node })).await?;
                load_node(&self.pool, head.volume, node, (&head.root, &live)).await?.1
            }
        };
        let live = overlaid(&self.pool, head.volume, &head.logs, (live, head.object_bytes)).await?;
        Ok(usage(head.volume, head.size_bytes, head.object_bytes, (&live, &parent)))
    }

    /// Returns a volume's stored map.
    async fn live_map(&self, head: &Head) -> Result<Map> {
        self.pool.refresh(head.origin).await?;
        if self.opened(head.volume).is_none() {
            // The owner may have written these pages in place.
            for (page, at) in head.root.iter().enumerate().filter(|(_, at)| at.volume() == head.volume) {
                // A map has at most 65 536 pages.
                let page = self.pool.object(head.volume, Kind::Page(at.allocation(), page as u32));
                self.pool.invalidate(Scope::Object(page)).await?;
            }
        }
        self.pool.load(&head.root, None).await
    }

    /// Returns the ranges, by whole objects, in which `to` may differ from `from`. Both are
    /// snapshots of the volume; if `to` is `None`, it is the stored state of the volume, and if
    /// `from` is `None`, it consists of holes only. No data are read. Ranges beyond the end of `to`
    /// are omitted.
    ///
    /// # Errors
    /// See [`Volumes`]; `NoSuchVolume`, `NoSuchSnapshot`.
    pub async fn diff(&self, name: &str, from: Option<&str>, to: Option<&str>) -> Result<Vec<Change>> {
        let volume = self.find(name).await?;
        let head = self.current_head(volume).await?;
        let none = (&[][..], &Default::default());
        let node = |name: &str| head.named(name).ok_or_else(|| Error::NoSuchSnapshot(name.to_owned()));
        let (root, new, size_bytes) = match to {
            Some(to) => {
                let node = node(to)?;
                self.pool.refresh(Some(Origin { volume, node: node.id })).await?;
                let (root, map) = load_node(&self.pool, volume, node.id, none).await?;
                (root, map, node.size_bytes)
            }
            None => (head.root.clone(), self.live_map(&head).await?, head.size_bytes),
        };
        let logs = if to.is_none() { &head.logs[..] } else { &[] };
        let overlaid = overlaid(&self.pool, volume, logs, (new.clone(), head.object_bytes)).await?;
        let old = match from {
            Some(from) => {
                let node = node(from)?;
                self.pool.refresh(Some(Origin { volume, node: node.id })).await?;
                load_node(&self.pool, volume, node.id, (&root, &new)).await?.1
            }
            None => Default::default(),
        };
        for name in [from, to].into_iter().flatten() {
            self.pool.check_there(volume, node(name)?.id, name).await?;
        }
        Ok(changes(&old, &overlaid, size_bytes, head.object_bytes))
    }
}

impl Snapshot {
    /// Returns the size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the size of its objects in bytes.
    #[must_use]
    pub fn object_bytes(&self) -> u64 {
        self.object_bytes
    }

    /// Checks that the snapshot has not been deleted, so that all data read so far are those of the
    /// snapshot.
    ///
    /// # Errors
    /// `NoSuchSnapshot` if the snapshot was deleted, even if another snapshot has its name now;
    /// `Io`, `Damaged`.
    pub async fn confirm(&self) -> Result<()> {
        self.pool.check_there(self.volume, self.node, &self.name).await
    }

    /// Reads `length` bytes at `offset`. The bytes are valid only if [`Self::confirm`] succeeds
    /// afterwards.
    ///
    /// # Errors
    /// `OutOfRange`, `Io`, and `Damaged` if an object that the map names is missing.
    pub async fn read(&self, offset: u64, length: u64) -> Result<Segments> {
        if offset.checked_add(length).is_none_or(|end| end > self.size_bytes) {
            return Err(Error::OutOfRange { offset, length, size_bytes: self.size_bytes });
        }
        let mut data = Segments::new();
        for piece in pieces(self.object_bytes, offset, length) {
            let entry = self.map.get(piece.index);
            let mut part = Segments::new();
            if !entry.is_hole() {
                let object = self.pool.object(entry.volume(), Kind::Data(entry.allocation(), piece.index));
                let request = ReadRequest::new(object.clone(), piece.within, piece.length);
                part = match self.pool.store.read(request).await {
                    Err(blocker::Error::Missing) => {
                        return Err(Error::Damaged(format!("object {object} of the snapshot is missing")));
                    }
                    answer => answer?.data,
                };
            }
            data.append(padded(part, piece.length));
        }
        Ok(data)
    }

    /// Returns the extents of the snapshot, in order and without gaps, by whole objects.
    #[must_use]
    pub fn extents(&self) -> Vec<Extent> {
        let mut all = Vec::new();
        let mut end = 0;
        for change in changes(&Map::default(), &self.map, self.size_bytes, self.object_bytes) {
            if change.offset > end {
                all.push(Extent { offset: end, length: change.offset - end, kind: ExtentKind::Hole });
            }
            all.push(Extent { offset: change.offset, length: change.length, kind: ExtentKind::Data });
            end = change.offset + change.length;
        }
        if end < self.size_bytes {
            all.push(Extent { offset: end, length: self.size_bytes - end, kind: ExtentKind::Hole });
        }
        all
    }

    /// Returns the ranges, by whole objects, in which this snapshot may differ from `before`,
    /// another snapshot with objects of the same size. If `before` is `None`, this snapshot is
    /// compared with holes.
    #[must_use]
    pub fn changed_extents(&self, before: Option<&Self>) -> Vec<Change> {
        let none = Map::default();
        let old = before.map_or(&none, |before| &before.map);
        changes(old, &self.map, self.size_bytes, self.object_bytes)
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("size_bytes", &self.size_bytes).finish_non_exhaustive()
    }
}
