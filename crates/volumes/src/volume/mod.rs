//! An open volume.

mod append;
mod at_once;
mod commit;
mod drops;
mod handle;
mod logs;
mod merge;
mod over;
mod overlay;
mod read;
mod record;
mod replay;
mod report;
mod resize;
mod runs;
mod state;
mod tree;
mod view;
mod write;
mod zero;

use std::collections::HashMap;
use std::sync::Arc;

use async_lock::{Mutex as AsyncMutex, RwLock};
use blocker::{Durability, Version};
use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::format::Head;
use crate::format::entry::Entry;
use crate::format::map::Map;
use crate::room::Room;
use crate::settings::Settings;
use crate::space::Space;

pub use at_once::Answer;
use drops::Drops;
pub use handle::Volume;
use logs::part_bytes;
use overlay::Overlays;
pub(crate) use replay::{load_logs, overlaid};
pub(crate) use report::{changes, usage};
pub(crate) use state::next_limit;
use state::{State, Status};
use tree::Frozen;
pub(crate) use tree::snapshot_all;
pub(crate) use view::View;

/// Births that are reserved at once.
pub(crate) const BIRTHS_RESERVED: u64 = 4096;
/// Locks of objects; places that are equal modulo this share one.
const LOCKS: u32 = 256;

/// An open volume, shared by all its handles.
///
/// Locks are taken in the order of the fields `recorder`, `merging`, `merges`, `turn`, `objects`, `removing`, `state`.
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
    turn: Arc<RwLock<()>>,
    /// Changes in place share an object, unless they are stamped; births take it alone.
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
    /// The first birth that was never used.
    pub(crate) birth: u64,
    pub(crate) promises: Promises,
    pub(crate) room: Arc<Room>,
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
    let is_wanted = promises.records_at_once && !settings.is_read_only && space.pool.room.is_any();
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
        let Opened { space, head, head_version, live, parent_root, parent, birth, promises, room } = opened;
        let state = State {
            volume: space.volume,
            status: Status::Open,
            size_bytes: head.size_bytes,
            recorded: live.clone(),
            live,
            parent,
            birth,
            birth_limit: head.birth_limit,
            drops: Drops::default(),
            in_flight: None,
            is_sending: false,
            births_met: 0,
            head_version,
            overlays: Overlays::new(room),
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
            turn: Arc::default(),
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
