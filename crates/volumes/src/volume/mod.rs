//! An open volume: its reads and writes, its snapshots, and the order in which its changes reach
//! the store so that they survive a crash. `format` has the names and encodings of objects;
//! `manage` has operations on several volumes.

mod commit;
mod log;
mod merge;
mod overlay;
mod read;
mod record;
mod runs;
mod state;
mod tree;
mod write;
mod zero;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use async_lock::{Mutex as AsyncMutex, RwLock};
use blocker::{Durability, Namespace, Segments, Version};
use log::part_bytes;
use overlay::Overlays;
use parking_lot::Mutex;
use state::{Drops, State, Status};
use tree::Frozen;
use zero::Wish;

use crate::error::{Error, Result};
use crate::format::Head;
use crate::format::entry::Entry;
use crate::format::map::Map;
use crate::settings::{Settings, Usage};
use crate::space::Space;

pub(crate) use log::{load_logs, overlaid};
pub(crate) use read::{View, changes, padded, usage};
pub(crate) use state::next_limit;
pub(crate) use tree::snapshot_all;

/// The number of allocation IDs reserved together.
pub(crate) const ALLOCATIONS_RESERVED: u64 = 4096;
/// The number of object locks. Indexes that are equal modulo this number share a lock.
const LOCKS: u32 = 256;

/// The result of an operation on a volume, ready or pending.
pub type Answer<T> = blocker::Reply<T, Error>;

/// An open volume, shared by all its handles.
///
/// Locks are taken in the order of the fields `recorder`, `merging`, `merges`, `barrier`, `objects`, `removing`, `state`.
pub(crate) struct Inner {
    space: Space,
    pub(crate) object_bytes: u64,
    pub(crate) settings: Settings,
    promises: Promises,
    /// The owner's identity, as in the head.
    writer: u128,
    /// The number of this attachment: the sequence number of the head when the attachment began.
    attachment: u64,
    /// The stored structure of the volume, and the right to change it: see [`Self::recorder`].
    recorder: AsyncMutex<Recorder>,
    /// Serialises the merges of an object.
    merging: Box<[AsyncMutex<()>]>,
    /// Held shared by merges, and exclusively by operations that must not see a copy that no map
    /// names yet.
    merges: RwLock<()>,
    /// Held shared by changes of content, and exclusively by operations that need an instant
    /// without any change in progress.
    barrier: Arc<RwLock<()>>,
    /// The locks of the objects: held shared by in-place changes, unless these are stamped, and
    /// exclusively by allocations.
    objects: Box<[Arc<RwLock<()>>]>,
    /// Held shared by operations that remove objects.
    removing: RwLock<()>,
    state: Mutex<State>,
    /// The number and the map of the snapshot that was compared last. This lock is the innermost in
    /// the lock order.
    compared: Mutex<Option<(u64, Map)>>,
}

/// The stored structure of a volume.
pub(crate) struct Recorder {
    head: Head,
    head_version: Version,
    /// The pages of the map of `head.parent`.
    parent_root: Vec<Entry>,
    /// The versions of the volume's own pages, where known.
    page_versions: HashMap<u32, Version>,
    /// The snapshot for which the volume was frozen, if the snapshot is not stored yet or its
    /// outcome is unknown.
    frozen: Option<Frozen>,
    /// A head written before the one in flight, if its late write may still be executed.
    earlier: Option<Vec<u8>>,
    /// A snapshot to delete, because the common snapshot of several volumes has failed.
    unwanted: Option<u64>,
}

/// The initial state of an open volume.
pub(crate) struct Opened {
    pub(crate) space: Space,
    pub(crate) head: Head,
    pub(crate) head_version: Version,
    pub(crate) live: Map,
    pub(crate) parent_root: Vec<Entry>,
    pub(crate) parent: Map,
    /// The lowest allocation ID that was never used.
    pub(crate) allocation: u64,
    pub(crate) promises: Promises,
}

/// The guarantees of the volume's acknowledgements: see [`Options`](crate::Options).
#[derive(Clone, Copy)]
pub(crate) struct Promises {
    pub(crate) flush_durability: Durability,
    pub(crate) records_at_once: bool,
}

/// Returns whether a volume has overlay logs, which is the case if every acknowledged change must
/// survive the process. Volumes with stamps have no logs: stamped changes of an object must be sent
/// one after another, and a log receives the changes of all objects.
pub(crate) fn has_log(space: &Space, settings: &Settings, promises: Promises) -> bool {
    let is_wanted = promises.records_at_once && !settings.is_read_only && space.pool.overlay_memory.is_any();
    is_wanted && !space.is_stamped() && part_bytes(&space.pool.capabilities).is_some()
}

/// A part of a range that lies within one object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) index: u32,
    /// The part's offset within the object.
    pub(crate) within: u64,
    pub(crate) length: u64,
    /// The part's offset within the range.
    at: u64,
}

/// Returns the parts of a range, object by object.
pub(crate) fn pieces(object_bytes: u64, offset: u64, length: u64) -> impl Iterator<Item = Piece> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let position = offset + at;
        let within = position % object_bytes;
        let piece = (object_bytes - within).min(length - at);
        // A volume has fewer than 2^32 objects.
        let index = (position / object_bytes) as u32;
        let piece = Piece { index, within, length: piece, at };
        at += piece.length;
        (piece.length > 0).then_some(piece)
    })
}

impl Inner {
    pub(crate) fn new(opened: Opened) -> Self {
        let Opened { space, head, head_version, live, parent_root, parent, allocation, promises } = opened;
        let state = State {
            volume: space.volume,
            status: Status::Open,
            size_bytes: head.size_bytes,
            recorded: live.clone(),
            live,
            parent,
            allocation,
            allocation_limit: head.allocation_limit,
            drops: Drops::default(),
            in_flight: None,
            is_sending: false,
            births_met: 0,
            head_version,
            overlays: Overlays::new(Arc::clone(&space.pool.overlay_memory)),
        };
        let (object_bytes, settings) = (head.object_bytes, head.settings);
        let attachment = head.sequence;
        let writer = head.owner.as_ref().map_or(0, |owner| owner.writer);
        let page_versions = HashMap::new();
        let recorder = Recorder {
            head,
            head_version,
            parent_root,
            page_versions,
            frozen: None,
            earlier: None,
            unwanted: None,
        };
        Self {
            space,
            object_bytes,
            settings,
            promises,
            writer,
            attachment,
            recorder: AsyncMutex::new(recorder),
            merging: (0..LOCKS).map(|_| AsyncMutex::default()).collect(),
            merges: RwLock::default(),
            barrier: Arc::default(),
            objects: (0..LOCKS).map(|_| Arc::default()).collect(),
            removing: RwLock::new(()),
            state: Mutex::new(state),
            compared: Mutex::default(),
        }
    }

    /// Returns the only piece of a range, or `None` if there are several pieces or none.
    fn only_piece(&self, offset: u64, length: u64) -> Option<Piece> {
        let within = offset % self.object_bytes;
        let index = u32::try_from(offset / self.object_bytes).ok()?;
        let is_one = length > 0 && length <= self.object_bytes - within;
        is_one.then_some(Piece { index, within, length, at: 0 })
    }

    /// Returns whether a part covers the whole object, as far as the object lies within the volume.
    fn is_whole(&self, piece: &Piece, size_bytes: u64) -> bool {
        let begin = u64::from(piece.index) * self.object_bytes;
        piece.within == 0 && begin + piece.length >= (begin + self.object_bytes).min(size_bytes)
    }

    fn lock_of(&self, index: u32) -> &Arc<RwLock<()>> {
        &self.objects[(index % LOCKS) as usize]
    }

    fn has_log(&self) -> bool {
        has_log(&self.space, &self.settings, self.promises)
    }

    /// Returns whether the volume shares objects with a snapshot or another volume.
    pub(crate) fn has_shared(&self) -> bool {
        let state = self.state.lock();
        state.live.objects().any(|(index, entry)| !state.owns(index, entry))
    }

    /// Returns whether the volume can be used.
    pub(crate) fn is_open(&self) -> bool {
        self.state.lock().status == Status::Open
    }

    /// Checks that the volume accepts changes.
    fn check_writable(&self) -> Result<()> {
        if self.settings.is_read_only { Err(Error::ReadOnly) } else { self.state.lock().check() }
    }

    /// Converts an error of the store, and records it if it says that this owner was deposed.
    fn noted(&self, error: blocker::Error) -> Error {
        if let blocker::Error::Fenced { epoch } = error {
            self.fence(epoch);
        }
        error.into()
    }

    fn fence(&self, epoch: blocker::Epoch) {
        let mut state = self.state.lock();
        if state.status == Status::Open {
            state.set_status(Status::Fenced(epoch));
        }
    }
}

// ---- the handle

/// An open volume: a disk. All methods can be called concurrently, through any number of handles.
///
/// Ranges may have any alignment. The order of changes that overlap in time is undefined; otherwise
/// the volume behaves like a disk with a volatile cache: [`Self::flush`] makes *cached* changes
/// durable, and a crash before that may lose any subset of them.
///
/// A volume stays open without handles until [`Self::close`]. If its [`Volumes`](crate::Volumes)
/// are dropped before that, unflushed changes may be lost as in a crash.
///
/// # Errors
/// Every method may fail with `Fenced`, `Closed`, `Interrupted` and `Io`. Methods with a range fail
/// with `OutOfRange` if the range ends beyond the volume's end; changes may also fail with
/// `ReadOnly` and `NoSpace`.
///
/// # Cancel safety
/// Dropping the future of a change leaves its range with the old bytes, the new bytes, or a mix of
/// both; a dropped flush may have stored some changes. Neither leaves anything locked.
#[derive(Clone)]
pub struct Volume {
    pub(crate) inner: Arc<Inner>,
}

impl Volume {
    /// Returns the size of the volume in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.inner.state.lock().size_bytes
    }

    /// Returns the size of the volume's objects in bytes. A discard frees space if it covers whole
    /// objects.
    #[must_use]
    pub fn object_bytes(&self) -> u64 {
        self.inner.object_bytes
    }

    /// Returns the namespace in which the volume's objects are.
    #[must_use]
    pub fn namespace(&self) -> Namespace {
        self.inner.space.pool.namespace(self.inner.space.volume)
    }

    /// Returns the volume's settings.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.inner.settings
    }

    /// Reads `length` bytes at `offset`. The segments may pin a cache's memory: drop them soon.
    ///
    /// # Errors
    /// See [`Volume`]; `Damaged` if an object that the map names is missing.
    pub async fn read(&self, offset: u64, length: u64) -> Result<Segments> {
        self.start_read(offset, length).await
    }

    /// Writes `data` at `offset`. Returns the durability reached: at least the requested one.
    ///
    /// # Errors
    /// See [`Volume`].
    pub async fn write(&self, offset: u64, data: Segments, durability: Durability) -> Result<Durability> {
        self.start_write(offset, data, durability).await
    }

    /// Makes everything acknowledged before the call *stored*, or as durable as the options
    /// require.
    ///
    /// # Errors
    /// See [`Volume`]. An error loses nothing: the next flush covers the same changes.
    pub async fn flush(&self) -> Result<()> {
        self.inner.flush_as(self.inner.promises.flush_durability).await
    }

    /// Flushes as [`Self::flush`] does, but makes everything *stored*, whatever the options
    /// require.
    ///
    /// # Errors
    /// The errors of [`Self::flush`].
    pub async fn store(&self) -> Result<()> {
        self.inner.flush_as(Durability::Stored).await
    }

    /// Frees the space of the range as far as possible. Whole objects, and parts of objects that no
    /// snapshot shares, read as zeros afterwards; other parts may keep their bytes.
    ///
    /// # Errors
    /// See [`Volume`].
    pub async fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.inner.zero(offset, length, Wish::Discard).await
    }

    /// Returns the volume's usage.
    ///
    /// # Errors
    /// See [`Volume`].
    pub fn usage(&self) -> Result<Usage> {
        self.inner.usage()
    }

    /// Returns whether both are handles of the same open volume. A volume that was closed and
    /// reopened is a different one.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Stores everything and releases the volume, so that another owner can open it. Changes in
    /// progress complete first. Afterwards no handle can be used.
    ///
    /// # Errors
    /// See [`Volume`]. If the volume could not be flushed, it stays open. A second close succeeds.
    pub async fn close(&self) -> Result<()> {
        self.inner.close().await
    }

    /// Returns whether the volume was released for a specific other owner.
    #[must_use]
    pub fn is_handed_over(&self) -> bool {
        self.inner.state.lock().status == Status::HandedOver
    }
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume").field("size_bytes", &self.size_bytes()).finish_non_exhaustive()
    }
}
