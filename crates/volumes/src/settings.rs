//! What callers set, and what they are given to read.

use blocker::{Durability, NamespaceKey, WriteMode};

use crate::error::{Error, Result};

/// How a volume is treated. Kept with the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Settings {
    /// Whether every change is refused.
    pub is_read_only: bool,
    /// The write mode of the volume's namespace, set when it is opened; `None` leaves what the cache has. Not
    /// `ReadOnly`: see `is_read_only`.
    pub write: Option<WriteMode>,
    /// The quota of the volume's namespace in bytes, set when it is opened; `None` leaves what there is.
    pub quota_bytes_max: Option<u64>,
    /// The rates of the volume's namespace, set when it is opened.
    pub rates: Rates,
    /// The size of the objects that the volume is cut into: a power of two from 4 096 to what the store
    /// takes. Fixed when the volume is made; `None` means 4 MiB, or the largest that the store takes.
    pub object_bytes: Option<u64>,
}

impl Settings {
    /// Checks that a volume can have them.
    pub(crate) fn check(&self) -> Result<()> {
        if self.write == Some(WriteMode::ReadOnly) {
            let why = "the volume could not be released, set or deleted: set is_read_only for that";
            return Err(Error::Invalid(format!("the write mode \"read-only\" is none of a volume: {why}")));
        }
        self.rates.check()
    }

    /// Sets whether every change is refused.
    #[must_use]
    pub fn read_only(mut self, is_read_only: bool) -> Self {
        self.is_read_only = is_read_only;
        self
    }

    /// Sets the write mode.
    #[must_use]
    pub fn write(mut self, write: WriteMode) -> Self {
        self.write = Some(write);
        self
    }

    /// Sets the quota in bytes.
    #[must_use]
    pub fn quota_bytes_max(mut self, bytes: u64) -> Self {
        self.quota_bytes_max = Some(bytes);
        self
    }

    /// Sets the rates.
    #[must_use]
    pub fn rates(mut self, rates: Rates) -> Self {
        self.rates = rates;
        self
    }

    /// Sets the size of the objects in bytes.
    #[must_use]
    pub fn object_bytes(mut self, bytes: u64) -> Self {
        self.object_bytes = Some(bytes);
        self
    }
}

/// How much a volume may ask of the store below its cache: what a namespace of the cache can have. `None` leaves
/// what there is. Without a cache below they have no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Rates {
    /// Requests a second.
    pub store_requests_per_second_max: Option<u64>,
    /// Bytes a second, to and from the store.
    pub store_bytes_per_second_max: Option<u64>,
    /// For how long the volume can save up what it has not used of its rates, in milliseconds.
    pub store_burst_ms: Option<u64>,
}

impl Rates {
    /// Returns the rates by the keys that a cache has for them.
    pub(crate) fn by_key(&self) -> [(NamespaceKey, Option<u64>); 3] {
        [
            (NamespaceKey::StoreRequestsPerSecondMax, self.store_requests_per_second_max),
            (NamespaceKey::StoreBytesPerSecondMax, self.store_bytes_per_second_max),
            (NamespaceKey::StoreBurstMs, self.store_burst_ms),
        ]
    }

    /// Checks that a cache takes them: else the volume could not be opened.
    fn check(&self) -> Result<()> {
        let ranges = [1..=10_000_000, 4096..=u64::MAX - 1, 0..=60_000];
        for ((key, value), range) in self.by_key().into_iter().zip(ranges) {
            if let Some(value) = value.filter(|value| !range.contains(value)) {
                let (from, to) = (range.start(), range.end());
                return Err(Error::Invalid(format!("{key} is {value}, and must be from {from} to {to}")));
            }
        }
        Ok(())
    }
}

/// How one writer at a time is enforced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fencing {
    /// By the layer below: a cache that is the writer of its store, or a store that one process opens. The
    /// volume is attached there when it is opened.
    #[default]
    Below,
    /// By the volumes: each is claimed with an epoch of its own when it is opened, and every change is
    /// stamped. For a store that several hosts write to without a cache that is the writer.
    Stamps,
}

/// What all volumes of a store have in common.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The namespace of the catalog, and the begin of the names of the volumes' namespaces: 1 to 200 bytes.
    pub prefix: String,
    /// What this owner calls itself, for others to find it: a host and a port, as a rule. After a crash the
    /// same owner may open its volumes again without a takeover. 1 to 200 bytes.
    pub owner: String,
    /// How one writer at a time is enforced.
    pub fencing: Fencing,
    /// What a flush of a volume promises, as long as it has no new object to record: *journaled* is enough
    /// where the cache below has a journal. *Stored* unless set.
    pub flush_durability: Durability,
    /// Whether a write is answered only once the map that names its object is stored, or a log has it. Then what
    /// was acknowledged is there after a kill of this process, if the layer below keeps what it has acknowledged: a cache that
    /// writes through, or one with a journal. For clients that reconnect and go on, as those of NBD do: they
    /// do not know that the cache that they had written to is gone, and the flush that follows would promise
    /// what is lost. It costs a flush with the first write to each new object. Not so unless set.
    pub records_at_once: bool,
    /// The memory in bytes, of all open volumes together, for writes to objects that snapshots have and that are not
    /// copied yet. Without room such a write waits for the copy. 64 MiB unless set; with 0 each waits, and volumes
    /// have no logs.
    pub overlay_bytes_max: u64,
}

impl Options {
    /// Returns options for volumes in namespaces that begin with `prefix`.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            owner: "local".to_owned(),
            fencing: Fencing::default(),
            flush_durability: Durability::Stored,
            records_at_once: false,
            overlay_bytes_max: 64 << 20,
        }
    }

    /// Sets what this owner calls itself.
    #[must_use]
    pub fn owner(mut self, owner: &str) -> Self {
        owner.clone_into(&mut self.owner);
        self
    }

    /// Sets how one writer at a time is enforced.
    #[must_use]
    pub fn fencing(mut self, fencing: Fencing) -> Self {
        self.fencing = fencing;
        self
    }

    /// Sets whether a write is answered only once the map that names its object is stored.
    #[must_use]
    pub fn records_at_once(mut self, records_at_once: bool) -> Self {
        self.records_at_once = records_at_once;
        self
    }

    /// Sets the memory for writes to objects that are not copied yet.
    #[must_use]
    pub fn overlay_bytes_max(mut self, bytes: u64) -> Self {
        self.overlay_bytes_max = bytes;
        self
    }

    /// Sets what a flush promises.
    #[must_use]
    pub fn flush_durability(mut self, durability: Durability) -> Self {
        self.flush_durability = durability;
        self
    }
}

/// How a volume is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Whether to take the volume over from an owner that has not closed it. That owner is fenced off.
    pub take_over: bool,
}

impl OpenOptions {
    /// Sets whether to take the volume over from an owner that has not closed it.
    #[must_use]
    pub fn take_over(mut self, take_over: bool) -> Self {
        self.take_over = take_over;
        self
    }
}

/// The volumes of a store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Listing {
    /// Those that can be read, in the order of their names.
    pub volumes: Vec<VolumeInfo>,
    /// Those whose record or head is damaged, in the order of their names.
    pub damaged: Vec<DamagedVolume>,
}

/// A volume whose record or head is damaged.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DamagedVolume {
    /// Its name.
    pub name: String,
    /// What is damaged, for people.
    pub why: String,
}

/// A volume, as a listing has it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct VolumeInfo {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// The size of its objects in bytes.
    pub object_bytes: u64,
    /// The owner that has it attached; `None` if none has.
    pub owner: Option<String>,
    /// The number of its snapshots.
    pub snapshots: usize,
    /// Whether it is a clone that still depends on its origin.
    pub is_clone: bool,
    /// What it was cloned from, if it is one.
    pub origin: Option<OriginInfo>,
    /// How it is treated.
    pub settings: Settings,
}

/// What a clone was made of, by the names that there are still.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct OriginInfo {
    /// The volume; `None` if it was deleted, and is kept for its clones.
    pub volume: Option<String>,
    /// The snapshot; `None` if it was deleted, or was made for this clone alone.
    pub snapshot: Option<String>,
}

/// A snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SnapshotInfo {
    /// Its name.
    pub name: String,
    /// The size of the volume when it was made, in bytes.
    pub size_bytes: u64,
    /// When it was made, in seconds since 1970.
    pub made_unix_seconds: u64,
    /// The name of the snapshot before it, from which it differs; `None` for the first one.
    pub parent: Option<String>,
}

/// What lies at a range of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentKind {
    /// Something was written there.
    Data,
    /// Reads as zeros, and takes space.
    Zero,
    /// Reads as zeros, and takes no space.
    Hole,
}

/// A range of a volume whose parts are of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
    /// What lies there.
    pub kind: ExtentKind,
}

/// A range of a volume that may differ from what a snapshot has there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
    /// Whether something is there now; if not, it reads as zeros.
    pub is_data: bool,
}

/// What a volume uses, from its map: whole objects are counted, also where less of them was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Usage {
    /// The size of the volume in bytes.
    pub size_bytes: u64,
    /// The bytes that it refers to, its own and those it shares.
    pub referenced_bytes: u64,
    /// The bytes that were written since the last snapshot: no snapshot and no clone has them.
    pub exclusive_bytes: u64,
}
