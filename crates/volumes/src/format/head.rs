//! The head of a volume: everything except its maps. Every change of a volume's structure is one
//! conditional write of its head, so after a crash the structure is either the old or the new one.
//! This file also has two small records: the root of a snapshot's map, and a name in the catalog.

use blocker::WriteMode;

use super::entry::{ALLOCATION_MAX, Entry, VOLUME_MAX, VolumeId};
use super::{LOGS_MAX, NODES_MAX, PAGES_MAX, Reader, pages_of, put_text, sealed};
use crate::settings::{Rates, Settings};

const MAGIC: &[u8; 8] = b"cvolhead";
const VERSION_WITHOUT_RATES: u32 = 1;
const VERSION_WITH_RATES: u32 = 2;
const VERSION_WITH_LOGS: u32 = 3;
/// The encoded length of a log.
const LOG_BYTES: usize = 24;
/// The smallest encoded length of a node.
const NODE_BYTES_MIN: usize = 34;

/// The owner that has attached a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    /// The epoch with which the owner has claimed the volume, or 0 if the layer below is the
    /// writer.
    pub(crate) epoch: u64,
    /// The owner's identity.
    pub(crate) writer: u128,
    /// The owner's name.
    pub(crate) name: String,
}

/// The snapshot from which a clone was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    pub(crate) volume: VolumeId,
    pub(crate) node: u64,
}

/// A snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Node {
    /// The allocation ID that was current when the snapshot was made. It is also the number of the
    /// snapshot's root.
    pub(crate) id: u64,
    /// The volume's previous snapshot; 0 if there is none.
    pub(crate) parent: u64,
    pub(crate) size_bytes: u64,
    /// The time of the snapshot, in seconds since 1970.
    pub(crate) made_unix_seconds: u64,
    /// Empty after the deletion of a snapshot that others still depend on.
    pub(crate) name: String,
}

/// The beginning of the names of snapshots that exist only while a clone is made. No other snapshot
/// has such a name, because "/" is not allowed in names.
const FOR_CLONE: &str = "clone/";

impl Node {
    /// Returns the name of the snapshot from which this clone is made.
    pub(crate) fn name_for_clone(clone: VolumeId) -> String {
        format!("{FOR_CLONE}{clone}")
    }

    /// Returns whether the snapshot exists only while a clone is made from it.
    pub(crate) fn is_for_clone(&self) -> bool {
        self.name.starts_with(FOR_CLONE)
    }

    /// Returns whether users see the snapshot.
    pub(crate) fn is_shown(&self) -> bool {
        !self.name.is_empty() && !self.is_for_clone()
    }
}

/// A log of a volume's overlays: of writes to objects that are not copied yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OverlayLog {
    /// The allocation ID in the names of the log's parts, unique to this log.
    pub(crate) allocation: u64,
    /// The key in each of the log's records. No client of the volume knows the key, so no client
    /// can forge a record.
    pub(crate) key: u128,
}

/// The head of a volume; see the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) volume: VolumeId,
    /// The number of times the head has been written; different heads have different numbers.
    pub(crate) sequence: u64,
    pub(crate) size_bytes: u64,
    pub(crate) object_bytes: u64,
    /// An upper bound, exclusive, of every allocation ID ever used.
    pub(crate) allocation_limit: u64,
    /// The owner that has attached the volume, or `None`.
    pub(crate) owner: Option<Owner>,
    /// Whether the volume was deleted and only the parts that clones need remain.
    pub(crate) is_deleted: bool,
    pub(crate) origin: Option<Origin>,
    /// The volume's last snapshot; 0 if it has none.
    pub(crate) parent: u64,
    pub(crate) settings: Settings,
    pub(crate) nodes: Vec<Node>,
    /// The entries of the map's pages. A page with only holes is a hole itself.
    pub(crate) root: Vec<Entry>,
    /// The logs, the oldest first. Empty if the maps contain everything, as after a release.
    pub(crate) logs: Vec<OverlayLog>,
}

impl Head {
    /// Returns the head of a new volume without snapshots.
    pub(crate) fn new(
        volume: VolumeId,
        (size_bytes, object_bytes): (u64, u64),
        settings: Settings,
        root: Vec<Entry>,
    ) -> Self {
        Self {
            volume,
            sequence: 1,
            size_bytes,
            object_bytes,
            allocation_limit: 1,
            owner: None,
            is_deleted: false,
            origin: None,
            parent: 0,
            settings: Settings { object_bytes: Some(object_bytes), ..settings },
            nodes: Vec::new(),
            root,
            logs: Vec::new(),
        }
    }

    pub(crate) fn node(&self, id: u64) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.name == name && !name.is_empty())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let put = |into: &mut Vec<u8>, number: u64| into.extend_from_slice(&number.to_le_bytes());
        let rates = self.settings.rates;
        let has_rates = rates != Rates::default();
        let version = match (self.logs.is_empty(), has_rates) {
            (false, _) => VERSION_WITH_LOGS,
            (true, true) => VERSION_WITH_RATES,
            (true, false) => VERSION_WITHOUT_RATES,
        };
        bytes.extend_from_slice(&version.to_le_bytes());
        bytes.extend_from_slice(&self.volume.0.to_le_bytes());
        for number in [self.sequence, self.size_bytes, self.object_bytes, self.allocation_limit] {
            put(&mut bytes, number);
        }
        bytes.push(u8::from(self.owner.is_some()) | u8::from(self.is_deleted) << 1);
        let none = Owner { epoch: 0, writer: 0, name: String::new() };
        let owner = self.owner.as_ref().unwrap_or(&none);
        put(&mut bytes, owner.epoch);
        bytes.extend_from_slice(&owner.writer.to_le_bytes());
        put_text(&mut bytes, &owner.name);
        bytes.extend_from_slice(&self.origin.map_or(0, |origin| origin.volume.0).to_le_bytes());
        put(&mut bytes, self.origin.map_or(0, |origin| origin.node));
        put(&mut bytes, self.parent);
        bytes.push(u8::from(self.settings.is_read_only));
        bytes.push(match self.settings.write {
            None => 0,
            Some(WriteMode::Back) => 1,
            Some(WriteMode::Through) => 2,
            Some(WriteMode::Around) => 3,
            Some(WriteMode::ReadOnly) => 4,
        });
        put(&mut bytes, self.settings.quota_bytes_max.unwrap_or(u64::MAX));
        if version >= VERSION_WITH_RATES {
            rates.by_key().iter().for_each(|(_, value)| put(&mut bytes, value.unwrap_or(u64::MAX)));
        }
        if version >= VERSION_WITH_LOGS {
            bytes.extend_from_slice(&u32::try_from(self.logs.len()).expect("at most 8 logs").to_le_bytes());
            for log in &self.logs {
                put(&mut bytes, log.allocation);
                bytes.extend_from_slice(&log.key.to_le_bytes());
            }
        }
        let count = u32::try_from(self.nodes.len()).expect("at most 4096 nodes");
        bytes.extend_from_slice(&count.to_le_bytes());
        for node in &self.nodes {
            for number in [node.id, node.parent, node.size_bytes, node.made_unix_seconds] {
                put(&mut bytes, number);
            }
            put_text(&mut bytes, &node.name);
        }
        put_pages(&mut bytes, &self.root);
        sealed(bytes)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let (mut reader, version) =
            Reader::open_one_of(bytes, MAGIC, VERSION_WITHOUT_RATES..=VERSION_WITH_LOGS)?;
        let mut head = Self::new(VolumeId(reader.u32()?), (0, 0), Settings::default(), Vec::new());
        (head.sequence, head.size_bytes) = (reader.u64()?, reader.u64()?);
        (head.object_bytes, head.allocation_limit) = (reader.u64()?, reader.u64()?);
        let flags = reader.u8()?;
        let owner = Owner { epoch: reader.u64()?, writer: reader.u128()?, name: reader.text()? };
        (head.owner, head.is_deleted) = ((flags & 1 != 0).then_some(owner), flags & 2 != 0);
        let origin = Origin { volume: VolumeId(reader.u32()?), node: reader.u64()? };
        head.origin = (origin.volume.0 != 0).then_some(origin);
        head.parent = reader.u64()?;
        let settings = &mut head.settings;
        settings.object_bytes = Some(head.object_bytes);
        settings.is_read_only = reader.u8()? != 0;
        settings.write = match reader.u8()? {
            0 => None,
            1 => Some(WriteMode::Back),
            2 => Some(WriteMode::Through),
            3 => Some(WriteMode::Around),
            // Earlier versions of the program allowed this setting, with which the volume could not
            // write its own head.
            4 => {
                settings.is_read_only = true;
                None
            }
            _ => return Err("it has an unknown write mode".into()),
        };
        let mut limit = || Ok::<_, String>(Some(reader.u64()?).filter(|value| *value != u64::MAX));
        settings.quota_bytes_max = limit()?;
        if version >= VERSION_WITH_RATES {
            let rates = &mut settings.rates;
            rates.store_requests_per_second_max = limit()?;
            rates.store_bytes_per_second_max = limit()?;
            rates.store_burst_ms = limit()?;
            if *rates == Rates::default() && version == VERSION_WITH_RATES {
                return Err("its format version is used only with rates, but it has none".into());
            }
        }
        if version >= VERSION_WITH_LOGS {
            for _ in 0..reader.count(LOGS_MAX, LOG_BYTES)? {
                head.logs.push(OverlayLog { allocation: reader.u64()?, key: reader.u128()? });
            }
            if head.logs.is_empty() {
                return Err("its format version is used only with logs, but it has none".into());
            }
        }
        for _ in 0..reader.count(NODES_MAX, NODE_BYTES_MIN)? {
            head.nodes.push(Node {
                id: reader.u64()?,
                parent: reader.u64()?,
                size_bytes: reader.u64()?,
                made_unix_seconds: reader.u64()?,
                name: reader.text()?,
            });
        }
        head.root = pages(&mut reader)?;
        reader.end()?;
        head.check(flags)?;
        Ok(head)
    }

    /// Checks invariants that the rest of the crate relies on.
    fn check(&self, flags: u8) -> Result<(), String> {
        let is_size = self.object_bytes.is_power_of_two() && (4096..=1 << 30).contains(&self.object_bytes);
        let is_volume = |id: VolumeId| (1..=VOLUME_MAX).contains(&id.0);
        let mut known = std::collections::HashSet::from([0]);
        let are_nodes = self.nodes.iter().all(|node| {
            // A parent precedes its children, so there are no cycles.
            let is_node = node.id != 0 && node.id < self.allocation_limit && known.contains(&node.parent);
            is_node && known.insert(node.id)
        });
        let is_whole = flags < 4
            && is_size
            && are_nodes
            && known.contains(&self.parent)
            && is_volume(self.volume)
            && self.origin.is_none_or(|origin| is_volume(origin.volume) && origin.node != 0)
            && (1..=ALLOCATION_MAX + 1).contains(&self.allocation_limit)
            && self.logs.iter().all(|log| (1..self.allocation_limit).contains(&log.allocation))
            && self.logs.is_sorted_by(|one, next| one.allocation < next.allocation)
            && self.root.len() == pages_of(self.size_bytes, self.object_bytes)
            && self.root.len() <= PAGES_MAX;
        if is_whole { Ok(()) } else { Err("its numbers contradict each other".into()) }
    }
}

// ---- the root of a map: the entries of its pages

const ROOT_MAGIC: &[u8; 8] = b"cvolroot";
const ROOT_VERSION: u32 = 1;

/// Appends the pages of a map.
fn put_pages(into: &mut Vec<u8>, pages: &[Entry]) {
    let count = u32::try_from(pages.len()).expect("at most 65 536 pages");
    into.extend_from_slice(&count.to_le_bytes());
    pages.iter().for_each(|page| into.extend_from_slice(&page.to_bits().to_le_bytes()));
}

/// Decodes the pages that [`put_pages`] has encoded.
fn pages(reader: &mut Reader<'_>) -> Result<Vec<Entry>, String> {
    let count = reader.count(PAGES_MAX, 8)?;
    let page = |_| Entry::from_bits(reader.u64()?).ok_or_else(|| "an entry in it is impossible".to_owned());
    (0..count).map(page).collect()
}

/// Returns the encoded root of a snapshot's map.
pub(crate) fn encode_root(pages: &[Entry]) -> Vec<u8> {
    let mut bytes = ROOT_MAGIC.to_vec();
    bytes.extend_from_slice(&ROOT_VERSION.to_le_bytes());
    put_pages(&mut bytes, pages);
    sealed(bytes)
}

/// Decodes the root that [`encode_root`] has encoded.
pub(crate) fn decode_root(bytes: &[u8]) -> Result<Vec<Entry>, String> {
    let mut reader = Reader::open(bytes, ROOT_MAGIC, ROOT_VERSION)?;
    let pages = pages(&mut reader)?;
    reader.end()?;
    Ok(pages)
}

// ---- the record of a volume in the catalog: its number

const CATALOG_MAGIC: &[u8; 8] = b"cvolname";
const CATALOG_VERSION: u32 = 1;

/// Returns a record of the catalog: the number of the volume with a name, or the number of the next
/// new volume.
pub(crate) fn encode_number(volume: VolumeId) -> Vec<u8> {
    let mut bytes = CATALOG_MAGIC.to_vec();
    bytes.extend_from_slice(&CATALOG_VERSION.to_le_bytes());
    bytes.extend_from_slice(&volume.0.to_le_bytes());
    sealed(bytes)
}

/// Decodes the number that [`encode_number`] has encoded.
pub(crate) fn decode_number(bytes: &[u8]) -> Result<VolumeId, String> {
    let mut reader = Reader::open(bytes, CATALOG_MAGIC, CATALOG_VERSION)?;
    let volume = VolumeId(reader.u32()?);
    reader.end()?;
    if volume.0 == 0 || volume.0 > VOLUME_MAX {
        return Err("its volume number is impossible".into());
    }
    Ok(volume)
}
