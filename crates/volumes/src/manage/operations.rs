//! Snapshots, clones and deletion: operations on more than one open volume.

use std::sync::Arc;

use blocker::Condition;

use crate::catalog::{check_new_name, now_unix_seconds};
use crate::error::{Error, Result};
use crate::format::entry::{Kind, VolumeId};
use crate::format::{Head, Node, Origin};
use crate::manage::attach::{Access, attach, attach_below, check_owner, claim, look};
use crate::manage::{Volumes, check_size};
use crate::settings::{Fencing, Settings};
use crate::space::{Space, load_root, replace_limits};
use crate::volume::{Inner, snapshot_all};

/// The maximum number of volumes in one common snapshot.
const TOGETHER_MAX: usize = 256;

/// A volume for the duration of one operation: already open, attached for the operation, or only
/// read.
pub(crate) struct Lease {
    pub(crate) inner: Arc<Inner>,
    is_attached: bool,
    /// Whether the volume is only read and not attached, so that another owner may attach it
    /// meanwhile.
    pub(crate) is_looked_at: bool,
    _lock: async_lock::MutexGuardArc<()>,
}

impl Lease {
    /// Ends the operation, and returns its result. A volume that was attached for the operation is
    /// released.
    pub(crate) async fn end<T>(self, result: Result<T>) -> Result<T> {
        if !self.is_attached {
            return result;
        }
        let closed = self.inner.close().await;
        let value = result?;
        closed.map(|()| value)
    }
}

/// Runs an operation, and retries it if a volume was being closed at the same time: the next
/// attempt attaches the volume.
pub(crate) async fn steadily<T, F>(operation: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    loop {
        match operation().await {
            // A closed volume is no longer found open, so an attempt fails again only if there was
            // another close.
            Err(Error::Closed) => {}
            other => return other,
        }
    }
}

impl Volumes {
    pub(crate) async fn lease(&self, volume: VolumeId, deleted: bool) -> Result<Lease> {
        // A volume that may be deleted is not used, so its limits need not be applied.
        self.lease_as(volume, Access { deleted, is_limited: !deleted, ..Access::default() }).await
    }

    /// Leases a volume that must not be open. Its limits are not applied.
    async fn lease_unused(&self, volume: VolumeId) -> Result<Lease> {
        let lease = self.lease_as(volume, Access::default()).await?;
        if lease.is_attached { Ok(lease) } else { Err(Error::InUse { owner: self.options.owner.clone() }) }
    }

    async fn lease_as(&self, volume: VolumeId, access: Access) -> Result<Lease> {
        let lock = self.operation_lock(volume).lock_arc().await;
        if let Some(inner) = self.opened(volume) {
            return Ok(Lease { inner, is_attached: false, is_looked_at: false, _lock: lock });
        }
        let inner = attach(&self.pool, &self.options, self.writer, volume, access).await?;
        Ok(Lease { inner: Arc::new(inner), is_attached: true, is_looked_at: false, _lock: lock })
    }

    /// Leases a volume as [`Self::lease`] does, for read-only operations: a volume without an owner
    /// is read without attaching it.
    pub(crate) async fn lease_to_look(&self, volume: VolumeId) -> Result<Lease> {
        let lock = self.operation_lock(volume).lock_arc().await;
        if self.opened(volume).is_none() {
            match look(&self.pool, &self.options, volume).await {
                Ok(Some(inner)) => {
                    let inner = Arc::new(inner);
                    return Ok(Lease { inner, is_attached: false, is_looked_at: true, _lock: lock });
                }
                // Another owner may have attached the volume since its head was read; attaching the
                // volume shows whether that is so.
                Ok(None) | Err(Error::Damaged(_)) => {}
                Err(error) => return Err(error),
            }
        }
        drop(lock);
        self.lease(volume, true).await
    }

    /// Runs an operation on a volume that is open, or that is attached for the operation.
    async fn on_volume<T, F>(&self, volume: VolumeId, operation: impl Fn(Arc<Inner>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let operation = &operation;
        steadily(|| async move {
            let lease = self.lease(volume, false).await?;
            let result = operation(Arc::clone(&lease.inner)).await;
            lease.end(result).await
        })
        .await
    }

    /// Takes a snapshot of a volume.
    ///
    /// # Errors
    /// See [`Volumes`]; `NoSuchVolume`, `Exists`, `Limit`.
    pub async fn snapshot(&self, name: &str, snapshot: &str) -> Result<()> {
        self.snapshot_together(&[name], snapshot).await
    }

    /// Takes a snapshot of several volumes at one instant: if one of the snapshots lacks an
    /// acknowledged change, no other snapshot has a change that began later.
    ///
    /// # Errors
    /// The errors of [`Self::snapshot`]. Either all volumes have the snapshot or none. If the store
    /// fails while an incomplete snapshot is undone, the next operation on each volume undoes it,
    /// unless this process ends before.
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

    /// Deletes a snapshot. Its clones, and later snapshots, keep their data.
    ///
    /// # Errors
    /// See [`Volumes`]; `NoSuchVolume`, `NoSuchSnapshot`.
    pub async fn delete_snapshot(&self, name: &str, snapshot: &str) -> Result<()> {
        let volume = self.find(name).await?;
        self.on_volume(volume, |inner| async move { inner.delete_snapshot(snapshot).await }).await
    }

    /// Restores a volume to the state of a snapshot. Later writes are lost unless another snapshot
    /// has them; later snapshots stay.
    ///
    /// # Errors
    /// See [`Volumes`]; `NoSuchVolume`, `NoSuchSnapshot`, `ReadOnly`.
    pub async fn rollback(&self, name: &str, snapshot: &str) -> Result<()> {
        let volume = self.find(name).await?;
        self.on_volume(volume, |inner| async move { inner.rollback(snapshot).await }).await
    }

    /// Changes the size of a volume. New ranges read as zeros.
    ///
    /// # Errors
    /// See [`Volumes`]; `NoSuchVolume`, `ReadOnly`; `Invalid`, with the permitted range of sizes.
    pub async fn resize(&self, name: &str, size_bytes: u64) -> Result<()> {
        self.resize_as(name, size_bytes, true).await.map(drop)
    }

    /// Resizes a volume as [`Self::resize`] does, unless the volume is already larger. Returns
    /// whether the volume has the requested size now.
    ///
    /// # Errors
    /// The errors of [`Self::resize`].
    pub async fn grow(&self, name: &str, size_bytes: u64) -> Result<bool> {
        self.resize_as(name, size_bytes, false).await
    }

    async fn resize_as(&self, name: &str, size_bytes: u64, may_shrink: bool) -> Result<bool> {
        let volume = self.find(name).await?;
        self.on_volume(volume, |inner| async move {
            check_size(size_bytes, inner.object_bytes)?;
            inner.resize(size_bytes, may_shrink).await
        })
        .await
    }

    /// Changes a volume's settings. The new settings take effect when the volume is opened the next
    /// time. The size of the volume's objects cannot be changed.
    ///
    /// # Errors
    /// See [`Volumes`]; `NoSuchVolume`; `InUse` if the volume is open, here or at another owner;
    /// `Invalid` if the settings have a different object size.
    pub async fn set(&self, name: &str, settings: Settings) -> Result<()> {
        settings.check()?;
        self.set_with(name, |_| Ok(settings)).await
    }

    /// Changes a volume's settings as [`Self::set`] does, to those that `change` makes of the
    /// current ones. Nothing else changes the settings in between.
    ///
    /// # Errors
    /// The errors of [`Self::set`] and of `change`.
    pub async fn set_with(
        &self,
        name: &str,
        change: impl FnOnce(Settings) -> Result<Settings>,
    ) -> Result<()> {
        let volume = self.find(name).await?;
        // The volume's limits are not applied, because they may be the mistake to correct.
        let lease = self.lease_unused(volume).await?;
        let before = lease.inner.settings;
        let set = async {
            let settings = change(before)?;
            settings.check()?;
            lease.inner.set(settings).await?;
            replace_limits(&self.pool, volume, &before, &settings).await
        };
        let result = set.await;
        lease.end(result).await
    }

    /// Creates a volume from a snapshot, or from the current state of a volume. No data are copied,
    /// and afterwards the volume and its clone can be written and deleted independently.
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
                // A snapshot only for the clone: it loses its name immediately, and disappears with
                // the clone.
                let snapshot = Node::name_for_clone(clone);
                let volumes = [origin];
                steadily(|| self.snapshot_leased(&volumes, &snapshot)).await?;
                let cloned = self.clone_as(origin, &snapshot, new, clone).await;
                match self.delete_snapshot(name, &snapshot).await {
                    // A check has removed the name.
                    Err(Error::NoSuchSnapshot(_)) => {}
                    unnamed => return cloned.and(unnamed),
                }
                match cloned {
                    Err(Error::NoSuchSnapshot(_)) => Err(Error::Io(blocker::Error::Retryable(
                        "a check has removed the clone's snapshot during the creation".into(),
                    ))),
                    cloned => cloned,
                }
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
            // A deletion removes the name before it looks for clones, so either the clone or the
            // deletion detects the other.
            let head = self.current_head(volume).await?;
            if head.named(snapshot).is_none_or(|found| found.id != node.id) {
                return Err(no_snapshot());
            }
            let root = load_root(&self.pool, volume, node.id).await?;
            let settings = Settings { is_read_only: false, ..head.settings };
            let made = Head::new(clone, (node.size_bytes, head.object_bytes), settings, root);
            self.make(new, &Head { origin: Some(origin), ..made }).await
        };
        let made = made.await;
        if matches!(made, Err(Error::NoSuchSnapshot(_) | Error::Exists(_))) {
            self.pool.remove_clone(origin, clone).await?;
        }
        made
    }

    /// Stores a new volume's head, then its name. If the name cannot be stored, the head is
    /// removed.
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
        self.pool.unpublish(name, head.volume).await?;
        Err(Error::Io(blocker::Error::Retryable("a check has removed the volume during its creation".into())))
    }

    /// Returns whether a newly named volume still exists. A check assumes that a volume without a
    /// name was never created: it records the deletion, looks for the name again, removes the
    /// objects, and then removes the record. So either the check or the creation detects the other:
    /// if the record is already gone, the record existed before the head was removed.
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

    /// Makes a clone independent of its origin, by copying shared objects. The clone may be in use
    /// meanwhile.
    ///
    /// # Errors
    /// See [`Volumes`]; `NoSuchVolume`, `ReadOnly`; `Invalid` if the clone has snapshots.
    pub async fn flatten(&self, name: &str) -> Result<()> {
        self.flatten_with(name, &|_, _| ()).await
    }

    /// Flattens a clone as [`Self::flatten`] does, and calls `progress` with the number of objects
    /// copied so far and the total number of objects to copy.
    ///
    /// # Errors
    /// The errors of [`Self::flatten`].
    pub async fn flatten_with(&self, name: &str, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<()> {
        let volume = self.find(name).await?;
        let flattened = self.on_volume(volume, |inner| async move { inner.flatten(progress).await });
        match flattened.await? {
            Some(origin) => self.release(origin, volume).await,
            None => Ok(()),
        }
    }

    /// Deletes a volume and its snapshots. Objects that clones share are kept until the clones are
    /// deleted.
    ///
    /// # Errors
    /// See [`Volumes`]; `NoSuchVolume`; `InUse` if the volume is open, here or at another owner.
    pub async fn delete(&self, name: &str) -> Result<()> {
        let volume = self.find(name).await?;
        let lease = self.lease_unused(volume).await?;
        let recorded = async {
            self.pool.add_remains(volume).await?;
            self.pool.unpublish(name, volume).await
        };
        if let Err(error) = recorded.await {
            return lease.end(Err(error)).await;
        }
        self.destroy(lease, volume).await
    }

    /// Removes the remains of a volume without a name, and of origins that were kept only for it.
    pub(crate) async fn destroy(&self, lease: Lease, volume: VolumeId) -> Result<()> {
        match self.destroy_one(lease, volume).await? {
            Some(origin) => self.release(origin, volume).await,
            None => Ok(()),
        }
    }

    /// Removes the remains of one volume. Returns the volume's origin if nothing remains.
    async fn destroy_one(&self, lease: Lease, volume: VolumeId) -> Result<Option<Origin>> {
        let is_gone = match lease.inner.destroy().await {
            Ok(is_gone) => is_gone,
            Err(error) => return lease.end(Err(error)).await,
        };
        if !is_gone {
            return lease.end(Ok(None)).await;
        }
        let none = Settings::default();
        let result = match replace_limits(&self.pool, volume, &none, &none).await {
            Ok(()) => lease.inner.remove_head().await,
            Err(error) => Err(error),
        };
        let origin = lease.end(result).await?;
        self.pool.remove_remains(volume).await?;
        Ok(origin)
    }

    /// Ends a clone's dependence on its origin. If the origin was kept only for this clone and no
    /// other owner has it, the origin is removed.
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
                // The origin's owner removes it when it next deletes a snapshot; `check` removes it
                // as well.
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

// ---- deleting an unreadable volume: by the content of its namespace instead of its map

impl Volumes {
    /// Deletes a volume and its snapshots, even if its head, its map or its record in the catalog
    /// is damaged: then everything in the volume's namespace is removed. If the catalog record is
    /// damaged, only the name is removed, and the next repairing [`Self::check`] removes the rest.
    ///
    /// If the head cannot be read, another owner may have the volume. That owner is fenced off if
    /// the store can do so ([`Fencing::Stamps`]); otherwise the caller must make sure that there is
    /// no such owner.
    ///
    /// # Errors
    /// The errors of [`Self::delete`]; `Invalid` if the volume is damaged and has clones, because
    /// they need objects that can no longer be found: flatten or delete the clones first. If the
    /// volume has already lost its name by then, [`Self::check`] removes the rest.
    pub async fn delete_damaged(&self, name: &str) -> Result<()> {
        let volume = match self.pool.find_fresh(name).await {
            Err(Error::Damaged(_)) => return self.pool.unpublish_damaged(name).await,
            found => found?,
        };
        match self.delete(name).await {
            Err(Error::Damaged(_)) => {}
            done => return done,
        }
        self.check_without_clones(volume).await?;
        self.pool.add_remains(volume).await?;
        // An earlier attempt to delete the volume may already have removed the name.
        self.pool.unpublish(name, volume).await?;
        self.wipe(volume).await
    }

    /// Removes everything of a volume that has no name, whose deletion is recorded, and which is
    /// not open.
    ///
    /// # Errors
    /// `InUse` if the volume's head can be read and another owner has the volume; `Invalid` if the
    /// volume has clones.
    pub(crate) async fn wipe(&self, volume: VolumeId) -> Result<()> {
        let _lock = self.operation_lock(volume).lock_arc().await;
        if self.opened(volume).is_some() {
            return Err(Error::InUse { owner: self.options.owner.clone() });
        }
        self.check_without_clones(volume).await?;
        match self.pool.fresh_head(volume).await {
            Ok(Some(head)) => check_owner(&head, &self.options, false, true)?,
            Ok(None) | Err(Error::Damaged(_)) => {}
            Err(error) => return Err(error),
        }
        let epoch = match self.options.fencing {
            Fencing::Stamps => Some(claim(&self.pool, volume, self.writer, None).await?),
            Fencing::Below => {
                attach_below(&self.pool, volume, false).await?;
                None
            }
        };
        let space = Space::new(self.pool.clone(), volume, epoch);
        space.clear().await?;
        self.pool.left.forget(volume);
        for (origin, clone) in self.pool.clones().await? {
            if clone == volume {
                self.release(origin, volume).await?;
            }
        }
        self.pool.remove_remains(volume).await
    }

    /// Checks that a damaged volume has no clones, since their objects cannot be determined.
    async fn check_without_clones(&self, volume: VolumeId) -> Result<()> {
        let clones = self.pool.clones().await?;
        let mut clones = clones.into_iter().filter(|(origin, _)| origin.volume == volume);
        let Some((_, clone)) = clones.next() else { return Ok(()) };
        let (names, _) = self.pool.names_and_damaged().await?;
        let name = names.into_iter().find(|(_, named)| *named == clone).map(|(name, _)| format!("{name:?}"));
        let (name, more) = (name.unwrap_or_else(|| format!("number {clone}")), clones.count());
        let and = if more == 0 { String::new() } else { format!(" and {more} more") };
        Err(Error::Invalid(format!(
            "the volume is damaged, and clones may need data that cannot be found: flatten or delete them first ({name}{and})"
        )))
    }
}
