//! The volumes of a store: their owner creates, lists, attaches, changes, checks, exports and
//! imports them. Reads, writes and snapshots of an open volume are in `volume`.

mod attach;
pub(crate) mod check;
mod operations;
pub(crate) mod snapshot;
pub(crate) mod stream;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use async_lock::Mutex as AsyncMutex;
use blocker::{BUCKET_BYTES, Blocker, Scope, WriterId};
use parking_lot::Mutex;

use crate::catalog::check_new_name;
use crate::error::{Error, Result};
use crate::format::entry::{Entry, Kind, VolumeId};
use crate::format::{Head, NAME_BYTES_MAX, Origin, PAGE_BYTES, PAGES_MAX, pages_of};
use crate::manage::attach::{Access, attach};
use crate::settings::{
    DamagedVolume, Fencing, Listing, OpenOptions, Options, OriginInfo, Settings, SnapshotInfo, VolumeInfo,
};
use crate::space::{OverlayMemory, Pool};
use crate::volume::{Inner, Volume};

/// The default size of a volume's objects.
const OBJECT_BYTES: u64 = 4 << 20;

/// The volumes of a store, for one owner. All methods can be called concurrently.
///
/// An operation on a volume that is not open attaches the volume for the duration of the operation.
///
/// # Errors
/// Every method may fail with `Io` and `Damaged`. Methods that change a volume may also fail with
/// `InUse` if another owner has it, and with `Fenced`, `NoSpace`, `Interrupted` and `ReadOnly`.
///
/// # Cancel safety
/// Operations that create, change or delete volumes and snapshots should run to completion. If the
/// future is dropped, the operation has been done or not, but objects may remain that
/// [`Self::check`] removes, and operations on an open volume may fail with `Interrupted` until it
/// is closed and opened again.
pub struct Volumes {
    pub(crate) pool: Pool,
    pub(crate) options: Options,
    pub(crate) writer: WriterId,
    /// Volumes stay here until they are closed, even without a handle, because they have unflushed
    /// changes.
    open: Mutex<HashMap<VolumeId, Arc<Inner>>>,
    /// Serialises opening, closing and attached operations, separately for each volume.
    operation_locks: Mutex<HashMap<VolumeId, Arc<AsyncMutex<()>>>>,
    /// Held by a check that repairs.
    pub(crate) repairing: AsyncMutex<()>,
}

impl Volumes {
    /// Returns the volumes of `store` with these options.
    ///
    /// # Errors
    /// `Invalid` if a name is empty or too long, or the prefix begins with a dot. `Unsupported` if
    /// the store lacks conditions, atomic writes of whole objects, objects that can hold a page of
    /// a map, or, with [`Fencing::Stamps`], fencing.
    pub fn new(store: Arc<dyn Blocker>, options: Options) -> Result<Self> {
        for (what, name) in [("prefix", &options.prefix), ("owner", &options.owner)] {
            if name.is_empty() || name.len() > NAME_BYTES_MAX {
                return Err(Error::Invalid(format!(
                    "the {what} {name:?} must have 1 to {NAME_BYTES_MAX} bytes"
                )));
            }
        }
        if options.prefix.starts_with('.') {
            return Err(Error::Invalid(format!(
                "the prefix {:?} is reserved: it begins with a dot",
                options.prefix
            )));
        }
        let can = store.capabilities();
        let smallest = can.object_bytes_max.min(can.request_bytes_max);
        let lacks =
            |what: &str| Err(Error::Unsupported(format!("the store has no {what}, which volumes need")));
        if !can.conditions {
            return lacks("conditions");
        }
        if !can.write_full_atomic {
            return lacks("atomic writes of whole objects");
        }
        if smallest < PAGE_BYTES as u64 {
            return lacks("objects and requests of 32 KiB");
        }
        if options.fencing == Fencing::Stamps && !can.fencing {
            return lacks("fencing");
        }
        let pool = Pool::new(store, &options.prefix, OverlayMemory::new(options.overlay_bytes_max));
        Ok(Self {
            pool,
            options,
            writer: WriterId::random(),
            open: Mutex::default(),
            operation_locks: Mutex::default(),
            repairing: AsyncMutex::default(),
        })
    }

    /// Creates a volume of `size_bytes`, which reads as zeros and takes no space.
    ///
    /// # Errors
    /// See [`Volumes`]; `Exists`; `Invalid` for a size or a setting out of its range, with the
    /// range.
    pub async fn create(&self, name: &str, size_bytes: u64, settings: Settings) -> Result<()> {
        check_new_name(name)?;
        let object_bytes = self.object_bytes(&settings)?;
        check_size(size_bytes, object_bytes)?;
        settings.check()?;
        if self.exists(name).await? {
            return Err(Error::Exists(name.to_owned()));
        }
        let volume = self.pool.new_volume_id().await?;
        let root = vec![Entry::HOLE; pages_of(size_bytes, object_bytes)];
        self.make(name, &Head::new(volume, (size_bytes, object_bytes), settings, root)).await
    }

    fn object_bytes(&self, settings: &Settings) -> Result<u64> {
        let can = &self.pool.capabilities;
        let max = can.object_bytes_max.min(can.request_bytes_max).min(1 << 30);
        let largest = 1 << max.ilog2();
        let bytes = settings.object_bytes.unwrap_or(OBJECT_BYTES.min(largest));
        if bytes.is_power_of_two() && (BUCKET_BYTES..=largest).contains(&bytes) {
            return Ok(bytes);
        }
        let range = format!("a power of two from {BUCKET_BYTES} to {largest}");
        Err(Error::Invalid(format!("object_bytes is {bytes}, and must be {range}")))
    }

    /// Opens a volume, or returns it if it is already open. The volume stays open until it is
    /// closed.
    ///
    /// # Errors
    /// See [`Volumes`]; `NoSuchVolume`; `InUse` if another owner has not closed the volume and
    /// `take_over` is not set.
    pub async fn open(&self, name: &str, options: OpenOptions) -> Result<Volume> {
        let volume = self.find(name).await?;
        let lock = self.operation_lock(volume);
        let _lock = lock.lock().await;
        if let Some(inner) = self.opened(volume) {
            return Ok(Volume { inner });
        }
        let access = Access { take_over: options.take_over, is_limited: true, ..Access::default() };
        let inner = attach(&self.pool, &self.options, self.writer, volume, access).await?;
        if inner.has_shared() {
            inner.look_ahead_at_quota().await;
        }
        let inner = Arc::new(inner);
        self.open.lock().insert(volume, Arc::clone(&inner));
        Ok(Volume { inner })
    }

    /// Returns all volumes.
    ///
    /// # Errors
    /// See [`Volumes`], without `Damaged`: damaged volumes are listed separately.
    pub async fn list(&self) -> Result<Listing> {
        self.list_some(usize::MAX, |_| false).await
    }

    /// Returns at most `volumes_max` readable and as many damaged volumes, and the number of the
    /// others. Volumes for which `is_first` returns true precede others.
    ///
    /// # Errors
    /// The errors of [`Self::list`].
    pub async fn list_some(&self, volumes_max: usize, is_first: impl Fn(&str) -> bool) -> Result<Listing> {
        // Another owner may have renamed volumes.
        self.pool.refresh_catalog().await?;
        let (names, damaged) = self.pool.names_and_damaged().await?;
        let mut all = Listing { volumes: Vec::new(), damaged, others: 0 };
        let mut shown: Vec<&(String, VolumeId)> = names.iter().collect();
        if shown.len() > volumes_max {
            shown.sort_by_cached_key(|(name, _)| !is_first(name));
            all.others = shown.len() - volumes_max;
            shown.truncate(volumes_max);
        }
        for (name, volume) in shown {
            let head = match self.pool.head_if_any(*volume).await {
                Ok(Some((head, _))) => head,
                // Deleted meanwhile.
                Ok(None) => continue,
                Err(Error::Damaged(why)) => {
                    all.damaged.push(DamagedVolume { name: name.clone(), why });
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut info = info(name.clone(), &head);
            if let Some(origin) = head.origin {
                info.origin = Some(self.origin_info(origin, &names).await?);
            }
            all.volumes.push(info);
        }
        all.damaged.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        all.others += all.damaged.len().saturating_sub(volumes_max);
        all.damaged.truncate(volumes_max);
        Ok(all)
    }

    /// Returns information about one volume.
    ///
    /// # Errors
    /// See [`Volumes`]; `NoSuchVolume`.
    pub async fn info(&self, name: &str) -> Result<VolumeInfo> {
        let head = self.current_head(self.find(name).await?).await?;
        let mut info = info(name.to_owned(), &head);
        if let Some(origin) = head.origin {
            info.origin = Some(self.origin_info(origin, &self.pool.names_and_damaged().await?.0).await?);
        }
        Ok(info)
    }

    async fn origin_info(&self, origin: Origin, names: &[(String, VolumeId)]) -> Result<OriginInfo> {
        let volume = names.iter().find(|(_, volume)| *volume == origin.volume);
        let volume = volume.map(|(name, _)| name.clone());
        let head = match self.pool.head_if_any(origin.volume).await {
            Ok(Some((head, _))) => head,
            // The clone itself is intact.
            Ok(None) | Err(Error::Damaged(_)) => return Ok(OriginInfo { volume, snapshot: None }),
            Err(error) => return Err(error),
        };
        let snapshot = head.node(origin.node).filter(|node| node.is_shown());
        Ok(OriginInfo { volume, snapshot: snapshot.map(|node| node.name.clone()) })
    }

    /// Returns the snapshots of a volume, oldest first.
    ///
    /// # Errors
    /// See [`Volumes`]; `NoSuchVolume`.
    pub async fn snapshots(&self, name: &str) -> Result<Vec<SnapshotInfo>> {
        let head = self.current_head(self.find(name).await?).await?;
        let named = head.nodes.iter().filter(|node| node.is_shown());
        let snapshots = named.map(|node| {
            let mut parent = head.node(node.parent);
            while let Some(nameless) = parent.filter(|parent| !parent.is_shown()) {
                parent = head.node(nameless.parent);
            }
            SnapshotInfo {
                name: node.name.clone(),
                size_bytes: node.size_bytes,
                made_unix_seconds: node.made_unix_seconds,
                parent: parent.map(|parent| parent.name.clone()),
            }
        });
        Ok(snapshots.collect())
    }

    /// Returns the number of the volume with this name. If another owner may have created or
    /// deleted the volume, the name is read from the store.
    pub(crate) async fn find(&self, name: &str) -> Result<VolumeId> {
        let has_open = !self.open.lock().is_empty();
        if has_open
            && let Ok(volume) = self.pool.find(name).await
            && self.opened(volume).is_some()
        {
            return Ok(volume);
        }
        self.pool.find_fresh(name).await
    }

    /// Returns a volume's head. If another owner may have changed the head, it is read from the
    /// store.
    pub(crate) async fn current_head(&self, volume: VolumeId) -> Result<Head> {
        if self.opened(volume).is_none() {
            self.pool.invalidate(Scope::Object(self.pool.object(volume, Kind::Head))).await?;
        }
        Ok(self.pool.head(volume).await?.0)
    }

    pub(crate) fn operation_lock(&self, volume: VolumeId) -> Arc<AsyncMutex<()>> {
        let mut locks = self.operation_locks.lock();
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry(volume).or_default())
    }

    /// Returns the open volume with this number, unless it was closed, fenced off or interrupted.
    pub(crate) fn opened(&self, volume: VolumeId) -> Option<Arc<Inner>> {
        let mut open = self.open.lock();
        open.retain(|_, inner| inner.is_open());
        open.get(&volume).cloned()
    }
}

fn info(name: String, head: &Head) -> VolumeInfo {
    VolumeInfo {
        name,
        size_bytes: head.size_bytes,
        object_bytes: head.object_bytes,
        owner: head.owner.as_ref().map(|owner| owner.name.clone()),
        snapshots: head.nodes.iter().filter(|node| node.is_shown()).count(),
        is_clone: head.origin.is_some(),
        origin: None,
        settings: head.settings,
    }
}

pub(crate) fn check_size(size_bytes: u64, object_bytes: u64) -> Result<()> {
    if (1..=u64::MAX - object_bytes).contains(&size_bytes) && pages_of(size_bytes, object_bytes) <= PAGES_MAX
    {
        return Ok(());
    }
    let most = (PAGES_MAX * crate::format::PAGE_ENTRIES) as u64 * object_bytes;
    Err(Error::Invalid(format!("a volume with objects of {object_bytes} bytes has 1 to {most} bytes")))
}

impl fmt::Debug for Volumes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volumes").field("options", &self.options).finish_non_exhaustive()
    }
}
