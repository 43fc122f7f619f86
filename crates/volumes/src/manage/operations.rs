//! Snapshots, clones and deletion: what concerns more than one open volume.

use std::sync::Arc;

use blocker::{Condition, Scope};

use crate::catalog::{check_new_name, now_unix_seconds};
use crate::error::{Error, Result};
use crate::format::entry::{Kind, VolumeId};
use crate::format::map::Map;
use crate::format::{Head, Origin};
use crate::limits;
use crate::manage::attach::{Access, attach, look};
use crate::manage::{Volumes, check_size};
use crate::settings::{Change, Settings, Usage};
use crate::space::{Space, load_node, load_root};
use crate::volume::{Inner, changes, overlaid, snapshot_all, usage};

/// The largest number of volumes with a snapshot at one instant.
const TOGETHER_MAX: usize = 256;

/// A volume for one operation: one that is open, or attached for as long as it takes, or looked at.
pub(crate) struct Lease {
    pub(crate) inner: Arc<Inner>,
    is_attached: bool,
    /// Whether it was not taken: another owner may attach it meanwhile.
    pub(crate) is_looked_at: bool,
    _turn: async_lock::MutexGuardArc<()>,
}

impl Lease {
    /// Ends the operation, and returns its result. A volume that was attached for it is given up.
    pub(crate) async fn end<T>(self, result: Result<T>) -> Result<T> {
        if !self.is_attached {
            return result;
        }
        let closed = self.inner.close().await;
        let value = result?;
        closed.map(|()| value)
    }
}

/// Runs an operation, again whenever it has met a volume that was just being closed: the next attempt attaches it.
pub(crate) async fn steadily<T, F>(operation: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    loop {
        match operation().await {
            // What is closed now is not found open any more, so each attempt needs another close to fail.
            Err(Error::Closed) => {}
            other => return other,
        }
    }
}

impl Volumes {
    pub(crate) async fn lease(&self, volume: VolumeId, deleted: bool) -> Result<Lease> {
        // What is done to one that may be deleted needs no limits.
        self.lease_as(volume, Access { deleted, is_limited: !deleted, ..Access::default() }).await
    }

    async fn lease_as(&self, volume: VolumeId, access: Access) -> Result<Lease> {
        let turn = self.turn(volume).lock_arc().await;
        if let Some(inner) = self.opened(volume) {
            return Ok(Lease { inner, is_attached: false, is_looked_at: false, _turn: turn });
        }
        let inner = attach(&self.pool, &self.options, self.writer, volume, access).await?;
        Ok(Lease { inner: Arc::new(inner), is_attached: true, is_looked_at: false, _turn: turn })
    }

    /// As [`Self::lease`], for what changes nothing: a volume that no owner has is only looked at, which costs reads alone.
    pub(crate) async fn lease_to_look(&self, volume: VolumeId) -> Result<Lease> {
        let turn = self.turn(volume).lock_arc().await;
        if self.opened(volume).is_none() {
            match look(&self.pool, &self.options, volume).await {
                Ok(Some(inner)) => {
                    let inner = Arc::new(inner);
                    return Ok(Lease { inner, is_attached: false, is_looked_at: true, _turn: turn });
                }
                // Another owner may have attached it since the look at its head: attaching it tells.
                Ok(None) | Err(Error::Damaged(_)) => {}
                Err(error) => return Err(error),
            }
        }
        drop(turn);
        self.lease(volume, true).await
    }

    /// Makes a snapshot of a volume.
    ///
    /// # Errors
    /// See [`Volumes`]; `NoSuchVolume`, `Exists`, `Limit`.
    pub async fn snapshot(&self, name: &str, snapshot: &str) -> Result<()> {
        self.snapshot_together(&[name], snapshot).await
    }

    /// Makes a snapshot of several volumes at one instant: none of them has a change that was begun after a
    /// change that another one lacks was acknowledged.
    ///
    /// # Errors
    /// As [`Self::snapshot`]. Either all have the snapshot or none, unless the store fails while it is
    /// undone.
    pub async fn snapshot_together(&self, names: &[&str], snapshot: &str) -> Result<()> {
        check_new_name(snapshot)?;
        if names.len() > TOGETHER_MAX {
            return Err(Error::Limit(format!(
                "at most {TOGETHER_MAX} volumes have a snapshot at one instant"
            )));
        }
        let mut volumes = Vec::new();
        for name in names {
            volumes.push(self.find(name).await?);
        }
        volumes.sort_unstable();
        volumes.dedup();
        steadily(|| self.snapshot_leased(&volumes, snapshot)).await
    }

    async fn snapshot_leased(&self, volumes: &[VolumeId], snapshot: &str) -> Result<()> {
        let mut leases = Vec::new();
        let mut result = Ok(());
        for volume in volumes {
            match self.lease(*volume, false).await {
                Ok(lease) => leases.push(lease),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        if result.is_ok() {
            let inners: Vec<&Inner> = leases.iter().map(|lease| &*lease.inner).collect();
            result = snapshot_all(&inners, snapshot, now_unix_seconds()).await;
        }
        for lease in leases {
            result = lease.end(result).await;
        }
        result
    }

    /// Deletes a snapshot. Clones of it, and snapshots after it, keep what they have.
    ///
    /// # Errors
    /// See [`Volumes`]; `NoSuchVolume`, `NoSuchSnapshot`.
    pub async fn delete_snapshot(&self, name: &str, snapshot: &str) -> Result<()> {
        let volume = self.find(name).await?;
        steadily(|| async move {
            let lease = self.lease(volume, false).await?;
            let result = lease.inner.delete_snapshot(snapshot).await;
            lease.end(result).await
        })
        .await
    }

    /// Makes a volume what a snapshot of it has. What was written since is lost unless another snapshot has
    /// it; later snapshots stay.
    ///
    /// # Errors
    /// See [`Volumes`]; `NoSuchVolume`, `NoSuchSnapshot`, `ReadOnly`.
    pub async fn rollback(&self, name: &str, snapshot: &str) -> Result<()> {
        let volume = self.find(name).await?;
        steadily(|| async move {
            let lease = self.lease(volume, false).await?;
            let result = lease.inner.rollback(snapshot).await;
            lease.end(result).await
        })
        .await
    }

    /// Moves the end of a volume. What is gained reads as zeros.
    ///
    /// # Errors
    /// See [`Volumes`]; `NoSuchVolume`, `ReadOnly`, and `Invalid` with the range of sizes.
    pub async fn resize(&self, name: &str, size_bytes: u64) -> Result<()> {
        self.resize_as(name, size_bytes, true).await.map(drop)
    }

    /// As [`Self::resize`], unless the volume is larger than that. Returns whether it has the size now.
    ///
    /// # Errors
    /// As [`Self::resize`].
    pub async fn grow(&self, name: &str, size_bytes: u64) -> Result<bool> {
        self.resize_as(name, size_bytes, false).await
    }

    async fn resize_as(&self, name: &str, size_bytes: u64, may_shrink: bool) -> Result<bool> {
        let volume = self.find(name).await?;
        steadily(|| async move {
            let lease = self.lease(volume, false).await?;
            let result = match check_size(size_bytes, lease.inner.object_bytes()) {
                Ok(()) => lease.inner.resize(size_bytes, may_shrink).await,
                Err(error) => Err(error),
            };
            lease.end(result).await
        })
        .await
    }

    /// Changes how a volume is treated, from the next time on that it is opened. The size of its objects stays.
    ///
    /// # Errors
    /// See [`Volumes`]; `NoSuchVolume`; `InUse` if it is open, here or at another owner; `Invalid` if another
    /// size of objects is asked for.
    pub async fn set(&self, name: &str, settings: Settings) -> Result<()> {
        settings.check()?;
        let volume = self.find(name).await?;
        // Without its limits, which may be what is wrong with it.
        let lease = self.lease_as(volume, Access::default()).await?;
        if !lease.is_attached {
            return Err(Error::InUse { owner: self.options.owner.clone() });
        }
        let before = lease.inner.settings();
        let result = match lease.inner.set(settings).await {
            Ok(()) => limits::replace(&self.pool, volume, &before, &settings).await,
            error => error,
        };
        lease.end(result).await
    }

    /// Returns what a volume uses: as it is stored, if it is not open here.
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
                // Its owner may have replaced a page meanwhile: each attempt needs another head to fail.
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

    /// Returns the map of a volume as it is stored.
    async fn live_map(&self, head: &Head) -> Result<Map> {
        self.pool.refresh(head.origin).await?;
        if self.opened(head.volume).is_none() {
            // Its owner may have written them in place.
            for (page, at) in head.root.iter().enumerate().filter(|(_, at)| at.volume() == head.volume) {
                // A map has at most 65 536 pages.
                let page = self.pool.object(head.volume, Kind::Page(at.birth(), page as u32));
                self.pool.invalidate(Scope::Object(page)).await?;
            }
        }
        self.pool.load(&head.root, None).await
    }

    /// Returns the ranges, by whole objects, in which `to` may differ from `from`: snapshots of a volume, or,
    /// for `None`, the volume as it is stored for `to` and holes for `from`. No data are read. What lies
    /// beyond the end of `to` is left out.
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

    /// Makes a volume of a snapshot, or of a volume as it is now. No data are copied: it has what its origin
    /// has, and both can be written to, and deleted, from then on.
    ///
    /// # Errors
    /// See [`Volumes`]; `NoSuchVolume`, `NoSuchSnapshot`, `Exists`.
    pub async fn clone_volume(&self, name: &str, snapshot: Option<&str>, new: &str) -> Result<()> {
        check_new_name(new)?;
        let origin = self.find(name).await?;
        if self.exists(new).await? {
            return Err(Error::Exists(new.to_owned()));
        }
        let clone = self.pool.new_volume_id().await?;
        match snapshot {
            Some(snapshot) => self.clone_as(origin, snapshot, new, clone).await,
            None => {
                // For the clone alone: it loses its name at once, and goes with the clone.
                let snapshot = format!("for clone {clone}");
                self.snapshot(name, &snapshot).await?;
                let cloned = self.clone_as(origin, &snapshot, new, clone).await;
                let unnamed = self.delete_snapshot(name, &snapshot).await;
                cloned.and(unnamed)
            }
        }
    }

    async fn clone_as(&self, volume: VolumeId, snapshot: &str, new: &str, clone: VolumeId) -> Result<()> {
        let head = self.current_head(volume).await?;
        let no_snapshot = || Error::NoSuchSnapshot(snapshot.to_owned());
        let node = head.named(snapshot).ok_or_else(no_snapshot)?.clone();
        let origin = Origin { volume, node: node.id };
        self.pool.refresh(Some(origin)).await?;
        self.pool.add_clone(origin, clone).await?;
        let made = async {
            // A deletion takes the name before it looks for clones, so one of the two finds the other.
            let head = self.current_head(volume).await?;
            if head.named(snapshot).is_none_or(|found| found.id != node.id) {
                return Err(no_snapshot());
            }
            let root = load_root(&self.pool, volume, node.id).await?;
            let head = Head {
                volume: clone,
                sequence: 1,
                size_bytes: node.size_bytes,
                object_bytes: head.object_bytes,
                birth_limit: 1,
                owner: None,
                is_deleted: false,
                origin: Some(origin),
                parent: 0,
                settings: head.settings.read_only(false),
                nodes: Vec::new(),
                root,
                logs: Vec::new(),
            };
            self.make(new, &head).await
        };
        let made = made.await;
        if matches!(made, Err(Error::NoSuchSnapshot(_) | Error::Exists(_))) {
            self.pool.remove_clone(origin, clone).await?;
        }
        made
    }

    /// Stores a new volume's head, then its name. A head that stays without a name is removed.
    pub(crate) async fn make(&self, name: &str, head: &Head) -> Result<()> {
        let space = Space::new(self.pool.clone(), head.volume, None);
        space.put(Kind::Head, head.encode(), Condition::Absent).await?;
        let published = self.pool.publish(name, head.volume).await;
        if matches!(published, Err(Error::Exists(_))) {
            space.remove(Kind::Head).await?;
        }
        published?;
        if self.is_kept(head).await? {
            return Ok(());
        }
        self.pool.unpublish(name).await?;
        Err(Error::Io(blocker::Error::Retryable("a check has removed the volume while it was made".into())))
    }

    /// Returns whether a volume that was given its name is there. A check takes one without a name for one that was never
    /// made: it records that, looks for its name, removes what there is, and then its record. So one of the two finds the
    /// other: a record that is gone again was there before the head went.
    async fn is_kept(&self, head: &Head) -> Result<bool> {
        self.pool.refresh_catalog().await?;
        if self.pool.is_in_remains(head.volume).await? {
            return Ok(false);
        }
        let is_marked = match head.origin {
            Some(origin) => self.pool.is_clone(origin, head.volume).await?,
            None => true,
        };
        Ok(is_marked && self.pool.fresh_head(head.volume).await?.is_some())
    }

    pub(crate) async fn exists(&self, name: &str) -> Result<bool> {
        match self.find(name).await {
            Ok(_) => Ok(true),
            Err(Error::NoSuchVolume(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes a clone independent of its origin: what it shares is copied. It may be in use meanwhile.
    ///
    /// # Errors
    /// See [`Volumes`]; `NoSuchVolume`, `ReadOnly`; `Invalid` if it has snapshots.
    pub async fn flatten(&self, name: &str) -> Result<()> {
        self.flatten_with(name, &|_, _| ()).await
    }

    /// As [`Self::flatten`], and calls `progress` with the number of objects that were copied, and of all that are to be.
    ///
    /// # Errors
    /// As [`Self::flatten`].
    pub async fn flatten_with(&self, name: &str, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<()> {
        let volume = self.find(name).await?;
        let flattened = steadily(|| async move {
            let lease = self.lease(volume, false).await?;
            let result = lease.inner.flatten(progress).await;
            lease.end(result).await
        });
        match flattened.await? {
            Some(origin) => self.release(origin, volume).await,
            None => Ok(()),
        }
    }

    /// Deletes a volume and its snapshots. What clones have of them is kept until they are deleted.
    ///
    /// # Errors
    /// See [`Volumes`]; `NoSuchVolume`; `InUse` if it is open, here or at another owner.
    pub async fn delete(&self, name: &str) -> Result<()> {
        let volume = self.find(name).await?;
        let lease = self.lease_as(volume, Access::default()).await?;
        if !lease.is_attached {
            return Err(Error::InUse { owner: self.options.owner.clone() });
        }
        let recorded = async {
            self.pool.add_remains(volume).await?;
            self.pool.unpublish(name).await
        };
        if let Err(error) = recorded.await {
            return lease.end(Err(error)).await;
        }
        self.destroy(lease, volume).await
    }

    /// Removes what is left of a volume without a name, and what was kept for it alone.
    pub(crate) async fn destroy(&self, lease: Lease, volume: VolumeId) -> Result<()> {
        match self.destroy_one(lease, volume).await? {
            Some(origin) => self.release(origin, volume).await,
            None => Ok(()),
        }
    }

    /// Returns what the volume was cloned from, if nothing is left of it.
    async fn destroy_one(&self, lease: Lease, volume: VolumeId) -> Result<Option<Origin>> {
        let is_gone = match lease.inner.destroy().await {
            Ok(is_gone) => is_gone,
            Err(error) => return lease.end(Err(error)).await,
        };
        if !is_gone {
            return lease.end(Ok(None)).await;
        }
        let none = Settings::default();
        let result = match limits::replace(&self.pool, volume, &none, &none).await {
            Ok(()) => lease.inner.remove_head().await,
            Err(error) => Err(error),
        };
        let origin = lease.end(result).await?;
        self.pool.remove_remains(volume).await?;
        Ok(origin)
    }

    /// Ends the dependence of a clone; removes what was kept for it alone, if no other owner has its origin.
    pub(crate) async fn release(&self, origin: Origin, clone: VolumeId) -> Result<()> {
        let mut next = Some((origin, clone));
        while let Some((origin, clone)) = next.take() {
            self.pool.remove_clone(origin, clone).await?;
            let Some(head) = self.pool.fresh_head(origin.volume).await? else { return Ok(()) };
            let is_kept = head.node(origin.node).is_none_or(|node| !node.name.is_empty());
            if is_kept || self.pool.has_clones(origin).await? {
                return Ok(());
            }
            let lease = match self.lease(origin.volume, true).await {
                Ok(lease) => lease,
                // Its owner does it with the next snapshot that it deletes; `check` does it as well.
                Err(Error::InUse { .. }) => return Ok(()),
                Err(error) => return Err(error),
            };
            if head.is_deleted {
                next = self.destroy_one(lease, origin.volume).await?.map(|before| (before, origin.volume));
            } else {
                let result = lease.inner.collect().await;
                lease.end(result).await?;
            }
        }
        Ok(())
    }
}
