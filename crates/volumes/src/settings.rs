//! Settings that callers make, and the information that they get.

use blocker::{Durability, NamespaceKey, WriteMode};

use crate::error::{Error, Result};

/// A volume's settings, which are stored with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// Whether every change is refused.
    pub is_read_only: bool,
    /// The write mode of the volume's namespace, set when the volume is opened. `None` keeps the
    /// cache's write mode. `ReadOnly` is not permitted here: see `is_read_only`.
    pub write: Option<WriteMode>,
    /// The quota of the volume's namespace in bytes, set when the volume is opened. `None` keeps
    /// the current quota.
    pub quota_bytes_max: Option<u64>,
    /// The rates of the volume's namespace, set when the volume is opened.
    pub rates: Rates,
    /// The size of the volume's objects: a power of two from 4 096 to the store's limit. Fixed when
    /// the volume is created; `None` means 4 MiB, or the store's limit if that is smaller.
    pub object_bytes: Option<u64>,
}

impl Settings {
    /// Checks that the settings are valid.
    pub(crate) fn check(&self) -> Result<()> {
        if self.write == Some(WriteMode::ReadOnly) {
            let why = "the volume could not be released, set or deleted: set is_read_only for that";
            return Err(Error::Invalid(format!("a volume cannot have the write mode \"read-only\": {why}")));
        }
        self.rates.check()
    }
}

/// The limits on a volume's requests to the store below its cache, like those of a namespace of the
/// cache. `None` keeps the current limit. Without a cache below, these limits have no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Rates {
    /// The maximum number of requests per second.
    pub store_requests_per_second_max: Option<u64>,
    /// The maximum number of bytes per second, to and from the store.
    pub store_bytes_per_second_max: Option<u64>,
    /// For how long the volume can save up unused rate, in milliseconds.
    pub store_burst_ms: Option<u64>,
}

impl Rates {
    /// Returns the rates with the keys that a cache uses for them.
    pub(crate) fn by_key(&self) -> [(NamespaceKey, Option<u64>); 3] {
        [
            (NamespaceKey::StoreRequestsPerSecondMax, self.store_requests_per_second_max),
            (NamespaceKey::StoreBytesPerSecondMax, self.store_bytes_per_second_max),
            (NamespaceKey::StoreBurstMs, self.store_burst_ms),
        ]
    }

    /// Checks that a cache would accept the rates; otherwise the volume could not be opened.
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

/// The way in which one writer at a time is enforced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fencing {
    /// The layer below enforces one writer: a cache that is the writer of its store, or a store
    /// that only one process can open. The volume is attached there when it is opened.
    #[default]
    Below,
    /// The volumes enforce one writer: each volume is claimed with a new epoch when it is opened,
    /// and every change is stamped. For a store to which several hosts write without a cache that
    /// is the writer.
    Stamps,
}

/// Options shared by all volumes of a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// The namespace of the catalog, and the prefix of the volumes' namespaces: 1 to 200 bytes.
    pub prefix: String,
    /// The owner's name, which other owners see: usually a host and a port, from 1 to 200 bytes.
    /// After a crash an owner with the same name may open its volumes again without a takeover.
    pub owner: String,
    /// Whether a volume that another owner has not released is opened all the same, and that owner
    /// fenced off: for a host that leads an election, because the store refuses earlier leaders.
    /// Default: false.
    pub takes_over: bool,
    /// The way in which one writer at a time is enforced.
    pub fencing: Fencing,
    /// The durability of a volume's flushes that record no new object. *Journaled* suffices if the
    /// cache below has a journal. Default: *stored*.
    pub flush_durability: Durability,
    /// Whether a write is acknowledged only once a log has the write, or the map that names its
    /// object is stored. Then acknowledged writes survive a kill of this process, provided that the
    /// layer below keeps acknowledged writes, as a cache with write-through or with a journal does.
    /// This setting is for clients that reconnect and continue, as NBD clients do: they do not
    /// notice that the content of the cache is lost, and their next flush would promise data that
    /// no longer exist. It costs a flush with the first write to each new object. Default: false.
    pub records_at_once: bool,
    /// The maximum memory, in bytes, for the overlays of all open volumes together. An overlay
    /// holds writes to objects that snapshots share and that are not copied yet. When the memory is
    /// full, such a write waits for the copy. With 0 every such write waits, and volumes have no
    /// logs. Default: 64 MiB.
    pub overlay_bytes_max: u64,
}

impl Options {
    /// Returns options for volumes in namespaces that begin with `prefix`.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            owner: "local".to_owned(),
            takes_over: false,
            fencing: Fencing::default(),
            flush_durability: Durability::Stored,
            records_at_once: false,
            overlay_bytes_max: 64 << 20,
        }
    }
}

/// The options of opening a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenOptions {
    /// Whether to take over the volume from an owner that has not closed it. That owner is then
    /// fenced off.
    pub take_over: bool,
}

/// The volumes of a store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Listing {
    /// The readable volumes, in the order of their names; if some are left out, those that were
    /// asked for first precede others.
    pub volumes: Vec<VolumeInfo>,
    /// The volumes with a damaged record or head, in the order of their names.
    pub damaged: Vec<DamagedVolume>,
    /// The number of volumes left out.
    pub others: usize,
}

/// A volume whose record or head is damaged.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DamagedVolume {
    /// The name of the volume.
    pub name: String,
    /// A description of the damage, for users.
    pub why: String,
}

/// A volume in a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct VolumeInfo {
    /// The name of the volume.
    pub name: String,
    /// The size of the volume in bytes.
    pub size_bytes: u64,
    /// The size of the volume's objects in bytes.
    pub object_bytes: u64,
    /// The owner that has attached the volume, or `None`.
    pub owner: Option<String>,
    /// The number of its snapshots.
    pub snapshots: usize,
    /// Whether it is a clone that still depends on its origin.
    pub is_clone: bool,
    /// The clone's origin, if the volume is one.
    pub origin: Option<OriginInfo>,
    /// Its settings.
    pub settings: Settings,
}

/// A clone's origin. The names are given only if they still exist.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct OriginInfo {
    /// The volume, or `None` if the volume was deleted and is kept only for its clones.
    pub volume: Option<String>,
    /// The snapshot, or `None` if the snapshot was deleted or was made only for this clone.
    pub snapshot: Option<String>,
}

/// A snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SnapshotInfo {
    /// The name of the snapshot.
    pub name: String,
    /// The size of the volume in bytes at the time of the snapshot.
    pub size_bytes: u64,
    /// The time of the snapshot, in seconds since 1970.
    pub made_unix_seconds: u64,
    /// The name of the previous snapshot; `None` for the first one.
    pub parent: Option<String>,
}

/// The kind of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentKind {
    /// Written data.
    Data,
    /// Reads as zeros, and takes space.
    Zero,
    /// Reads as zeros, and takes no space.
    Hole,
}

/// A range of a volume of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The offset at which the range begins, in bytes.
    pub offset: u64,
    /// The length of the range in bytes.
    pub length: u64,
    /// Its kind.
    pub kind: ExtentKind,
}

/// A range of a volume that may differ from a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// The offset at which the range begins, in bytes.
    pub offset: u64,
    /// The length of the range in bytes.
    pub length: u64,
    /// Whether the range has data now; otherwise it reads as zeros.
    pub is_data: bool,
}

/// A volume's usage, from its map: whole objects are counted, even if only parts were written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Usage {
    /// The size of the volume in bytes.
    pub size_bytes: u64,
    /// The bytes of all objects of the volume, both its own and shared ones.
    pub referenced_bytes: u64,
    /// The bytes written since the last snapshot, which no snapshot and no clone shares.
    pub exclusive_bytes: u64,
}
