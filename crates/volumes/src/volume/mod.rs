//! An open volume: its reads and writes, its snapshots, and how its changes reach the store in an order that survives a
//! crash. The names and encodings of objects are in `format`; what concerns more than one volume is in `manage`.

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

use crate::catalog::check_owner_name;
use crate::error::{Error, Result};
use crate::format::Head;
use crate::format::entry::Entry;
use crate::format::map::Map;
use crate::settings::{Change, Extent, Settings, Usage};
use crate::space::Space;

pub(crate) use log::{load_logs, overlaid};
pub(crate) use read::{View, changes, usage};
pub(crate) use state::next_limit;
pub(crate) use tree::snapshot_all;

/// Allocation ids that are reserved together.
pub(crate) const ALLOCATIONS_RESERVED: u64 = 4096;
/// Locks of objects; places that are equal modulo this share one.
const LOCKS: u32 = 256;

/// The answer of a volume, ready or pending.
pub type Answer<T> = blocker::Reply<T, Error>;

/// An open volume, shared by all its handles.
///
/// Locks are taken in the order of the fields `recorder`, `merging`, `merges`, `barrier`, `objects`, `removing`, `state`.
pub(crate) struct Inner {
    space: Space,
    object_bytes: u64,
    settings: Settings,
    promises: Promises,
    /// The identity of the owner, as the head has it.
    writer: u128,
    /// The number of this attachment: that of the head with which it began.
    attachment: u64,
    /// What is stored of the volume's shape, and the right to change it: see [`Self::recorder`].
    recorder: AsyncMutex<Recorder>,
    /// An object is merged once at a time.
    merging: Box<[AsyncMutex<()>]>,
    /// Merges share it: what must not see a copy that nothing names yet takes it alone.
    merges: RwLock<()>,
    /// Changes of content share it; what needs an instant without any takes it alone.
    barrier: Arc<RwLock<()>>,
    /// Changes in place share an object, unless they are stamped; allocations take it alone.
    objects: Box<[Arc<RwLock<()>>]>,
    /// Shared by what removes objects.
    removing: RwLock<()>,
    state: Mutex<State>,
    /// The number and the map of the snapshot that was last compared with. A leaf of the order of locks.
    compared: Mutex<Option<(u64, Map)>>,
}

/// What is stored of a volume's shape.
pub(crate) struct Recorder {
    head: Head,
    head_version: Version,
    /// The pages of the map of `head.parent`.
    parent_root: Vec<Entry>,
    /// The versions of pages that are this volume's own, where they are known.
    page_versions: HashMap<u32, Version>,
    /// What the volume was frozen for: a snapshot that is not stored yet, or of which it is not known.
    frozen: Option<Frozen>,
    /// A head from before the one in flight that may still come.
    earlier: Option<Vec<u8>>,
}

/// What an open volume begins with.
pub(crate) struct Opened {
    pub(crate) space: Space,
    pub(crate) head: Head,
    pub(crate) head_version: Version,
    pub(crate) live: Map,
    pub(crate) parent_root: Vec<Entry>,
    pub(crate) parent: Map,
    /// The first allocation id that was never used.
    pub(crate) allocation: u64,
    pub(crate) promises: Promises,
}

/// What the volume's answers promise: see [`Options`](crate::Options).
#[derive(Clone, Copy)]
pub(crate) struct Promises {
    pub(crate) flush_durability: Durability,
    pub(crate) records_at_once: bool,
}

/// Returns whether a volume has a log of overlays: where every acknowledged change is to outlive the process. Stamped
/// changes of one object come one after the other, and the log takes those of all objects.
pub(crate) fn has_log(space: &Space, settings: &Settings, promises: Promises) -> bool {
    let is_wanted = promises.records_at_once && !settings.is_read_only && space.pool.overlay_memory.is_any();
    is_wanted && !space.is_stamped() && part_bytes(&space.pool.capabilities).is_some()
}

/// A part of a range that lies within one object.
#[derive(Clone, Copy, Debug)]
struct Piece {
    index: u32,
    /// Where it begins within the object.
    within: u64,
    length: u64,
    /// Where it begins within the range.
    at: u64,
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
        let recorder =
            Recorder { head, head_version, parent_root, page_versions, frozen: None, earlier: None };
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

    /// Returns the parts of a range, object by object.
    fn pieces(&self, offset: u64, length: u64) -> impl Iterator<Item = Piece> + use<> {
        let object_bytes = self.object_bytes;
        let mut at = 0;
        std::iter::from_fn(move || {
            let position = offset + at;
            let within = position % object_bytes;
            let piece = (object_bytes - within).min(length - at);
            // A volume has less than 2^32 objects.
            let index = (position / object_bytes) as u32;
            let piece = Piece { index, within, length: piece, at };
            at += piece.length;
            (piece.length > 0).then_some(piece)
        })
    }

    /// Returns the only piece of a range; `None` if there are several, or none.
    fn only_piece(&self, offset: u64, length: u64) -> Option<Piece> {
        let within = offset % self.object_bytes;
        let index = u32::try_from(offset / self.object_bytes).ok()?;
        let is_one = length > 0 && length <= self.object_bytes - within;
        is_one.then_some(Piece { index, within, length, at: 0 })
    }

    /// Returns whether a part is all that the volume has of its object.
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

    fn merging_of(&self, index: u32) -> &AsyncMutex<()> {
        &self.merging[(index % LOCKS) as usize]
    }

    pub(crate) fn object_bytes(&self) -> u64 {
        self.object_bytes
    }

    /// Returns whether the volume has objects that a snapshot, or another volume, has as well.
    pub(crate) fn has_shared(&self) -> bool {
        let state = self.state.lock();
        state.live.objects().any(|(index, entry)| !state.owns(index, entry))
    }

    pub(crate) fn settings(&self) -> Settings {
        self.settings
    }

    /// Returns whether the volume can be used.
    pub(crate) fn is_open(&self) -> bool {
        self.state.lock().status == Status::Open
    }

    /// Checks that the volume takes changes.
    fn check_writable(&self) -> Result<()> {
        if self.settings.is_read_only { Err(Error::ReadOnly) } else { self.state.lock().check() }
    }

    /// Converts an error of the store, and notes if it says that this owner was deposed.
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
/// Ranges may have any alignment. Changes that overlap in time have no order; all else is as on a disk with a
/// volatile cache: what was acknowledged as *cached* is kept by [`Self::flush`], and a crash before it may
/// lose any part of it.
///
/// A volume stays open without handles until [`Self::close`]. When its [`Volumes`](crate::Volumes) are
/// dropped before, what was not flushed may be lost as in a crash.
///
/// # Errors
/// Every method may fail with `Fenced`, `Closed`, `Interrupted` and `Io`. Those with a range fail with
/// `OutOfRange` if it ends beyond the volume's end; changes also with `ReadOnly` and `NoSpace`.
///
/// # Cancel safety
/// Dropping the future of a change leaves its range with the old bytes, the new ones, or some of both; a
/// dropped flush may have stored something. Neither keeps anything locked.
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

    /// Returns the size in bytes of the objects that the volume is cut into. Ranges that begin and end at its
    /// multiples are discarded wholly.
    #[must_use]
    pub fn object_bytes(&self) -> u64 {
        self.inner.object_bytes
    }

    /// Returns the namespace in which the volume's objects are.
    #[must_use]
    pub fn namespace(&self) -> Namespace {
        self.inner.space.pool.namespace(self.inner.space.volume)
    }

    /// Returns how the volume is treated.
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

    /// As [`Self::read`]. The answer is ready where the store has the bytes at once.
    pub fn start_read(&self, offset: u64, length: u64) -> Answer<Segments> {
        self.inner.start_read(offset, length)
    }

    /// Writes `data` at `offset`. Returns the durability that holds: at least the one asked for.
    ///
    /// # Errors
    /// See [`Volume`].
    pub async fn write(&self, offset: u64, data: Segments, durability: Durability) -> Result<Durability> {
        self.start_write(offset, data, durability).await
    }

    /// As [`Self::write`]. The answer is ready where nothing has to be waited for; one that is pending is to be polled
    /// to its end, or dropped: snapshots wait for it.
    pub fn start_write(&self, offset: u64, data: Segments, durability: Durability) -> Answer<Durability> {
        self.inner.start_write(offset, data, durability)
    }

    /// Makes everything acknowledged before the call *stored*, or what the options say flushes promise.
    ///
    /// # Errors
    /// See [`Volume`]. After an error nothing is lost: the next flush covers the same.
    pub async fn flush(&self) -> Result<()> {
        self.inner.flush().await
    }

    /// As [`Self::flush`], and everything is *stored*, whatever the options say flushes promise.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub async fn store(&self) -> Result<()> {
        self.inner.flush_as(Durability::Stored).await
    }

    /// Gives the range back where that is possible: whole objects, and parts of objects that no snapshot
    /// shares, read as zeros afterwards. What remains may keep its bytes.
    ///
    /// # Errors
    /// See [`Volume`].
    pub async fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.inner.discard(offset, length).await
    }

    /// Makes the range read as zeros. With `may_punch` its space may be given back. With `fast_only` nothing
    /// is done if that would need the copy of an object.
    ///
    /// # Errors
    /// See [`Volume`]; `NotFast`.
    pub async fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        may_punch: bool,
        fast_only: bool,
    ) -> Result<()> {
        self.inner.write_zeroes(offset, length, may_punch, fast_only).await
    }

    /// Returns what lies in the range, in order and without gaps, by whole objects.
    ///
    /// # Errors
    /// See [`Volume`].
    pub async fn extents(&self, offset: u64, length: u64) -> Result<Vec<Extent>> {
        self.inner.extents(offset, length)
    }

    /// Returns the ranges in which the volume may differ from its snapshot `since`, by whole objects; with
    /// `None`, from a volume of holes. What lies beyond either end is left out.
    ///
    /// # Errors
    /// See [`Volume`]; `NoSuchSnapshot`.
    pub async fn changed_extents(&self, since: Option<&str>) -> Result<Vec<Change>> {
        self.inner.changed_extents(since, (0, u64::MAX)).await
    }

    /// As [`Self::changed_extents`], looking only at what has a part of a range: changes beyond it may be left out.
    ///
    /// # Errors
    /// As [`Self::changed_extents`].
    pub async fn changed_extents_in(
        &self,
        since: Option<&str>,
        offset: u64,
        length: u64,
    ) -> Result<Vec<Change>> {
        self.inner.changed_extents(since, (offset, length)).await
    }

    /// Returns what the volume uses.
    ///
    /// # Errors
    /// See [`Volume`].
    pub fn usage(&self) -> Result<Usage> {
        self.inner.usage()
    }

    /// Returns whether both are handles of one open volume. A volume that was closed and opened again is another one.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Waits until objects are to be merged: see [`Self::merge`].
    ///
    /// # Errors
    /// `Closed`, `HandedOver`, `Fenced` and `Interrupted`, also while it waits. Only one caller may wait at a time.
    pub async fn merge_due(&self) -> Result<()> {
        self.inner.wait_for_overlays().await
    }

    /// Copies the objects that were written to since the last snapshot and are not copied yet. A short write to such an
    /// object is kept in memory, and logged where the options want every write to outlive the process, so that it waits
    /// for no copy. Call this when [`Self::merge_due`] returns, beside all else: memory
    /// ([`Options::overlay_bytes_max`](crate::Options::overlay_bytes_max)) and log have a limit, and when one is full
    /// writes wait again. A snapshot and [`Self::close`] do it as well, and a flush of what is not logged.
    ///
    /// # Errors
    /// See [`Volume`]. After an error nothing is lost: it can be called again.
    ///
    /// # Cancel safety
    /// Dropping the future leaves objects that are not copied; a copy that was under way may stay until
    /// [`Volumes::check`](crate::Volumes::check) removes it.
    pub async fn merge(&self) -> Result<()> {
        self.inner.merge_and_record().await
    }

    /// Stores everything and releases the volume, so that another owner can open it. No handle works
    /// afterwards. Changes under way end first.
    ///
    /// # Errors
    /// See [`Volume`]. If the volume could not be flushed, it stays open. A second close succeeds.
    pub async fn close(&self) -> Result<()> {
        self.inner.close().await
    }

    /// Returns whether the volume was released for another owner.
    #[must_use]
    pub fn is_handed_over(&self) -> bool {
        self.inner.state.lock().status == Status::HandedOver
    }

    /// As [`Self::close`], for the owner that calls itself `to`: it alone can open the volume then, and need not take it
    /// over. Changes wait only for what others have written while most of it was stored.
    ///
    /// # Errors
    /// As [`Self::close`]; `Invalid` if no owner can have this name; `Closed` if it was closed before. It can be called again
    /// for the same owner: what an earlier call has not come to is done then.
    pub async fn hand_over(&self, to: &str) -> Result<()> {
        check_owner_name(to)?;
        self.inner.hand_over(to).await
    }
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume").field("size_bytes", &self.size_bytes()).finish_non_exhaustive()
    }
}
