//! The open file or device: its layout, and reads and writes of whole blocks.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use crate::agreement::Block;
use crate::error::{Error, Result};
use crate::table::TABLE_BYTES_MAX;

/// The maximum number of nodes of a disk.
pub const NODES_MAX: usize = 16;

/// The unit of all reads and writes: the largest block of common disks, in bytes.
const BLOCK_BYTES: usize = 4096;
/// A slot: a block with the slot's header, then the table.
const SLOT_BYTES: usize = BLOCK_BYTES + TABLE_BYTES_MAX;

const HEADER_MAGIC: u64 = u64::from_le_bytes(*b"cachedRD");
const RECORD_MAGIC: u64 = u64::from_le_bytes(*b"cachedRB");
const SLOT_MAGIC: u64 = u64::from_le_bytes(*b"cachedRT");
const FORMAT: u64 = 1;

/// The number of words in a slot's header before those of the nodes: magic, version, length, and
/// checksum.
const SLOT_WORDS: usize = 4;

/// The version of the table that a node knows to be decided, and the node whose slot contains it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Noted {
    pub(super) version: u64,
    pub(super) node: u64,
}

/// A proposal for one version of the table, in the form that a slot contains.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Slot {
    pub(super) table: Vec<u8>,
    /// For each node, the last version, up to this one, that is the node's own proposal if this
    /// proposal is decided.
    pub(super) applied: [u64; NODES_MAX],
}

/// A disk that hosts share.
#[derive(Debug)]
pub(crate) struct Disk {
    file: File,
    path: PathBuf,
    nodes: usize,
}

impl Disk {
    /// Opens a disk for `nodes` nodes. If `creates`, a missing file is created, and a file or device
    /// that contains only zeros is prepared.
    ///
    /// # Errors
    /// Fails if the disk cannot be opened, is not a registry's disk, or has a different number of
    /// nodes.
    pub(crate) fn open(path: &Path, nodes: usize, creates: bool) -> Result<Self> {
        if !(1..=NODES_MAX).contains(&nodes) {
            return Err(Error::Invalid(format!("{nodes} nodes; a disk has 1 to {NODES_MAX}").into()));
        }
        let file = open(path, creates).map_err(|error| unusable(path, &error.to_string()))?;
        let disk = Self { file, path: path.to_owned(), nodes };
        let header = disk.header();
        let mut found = Aligned::new(BLOCK_BYTES);
        let len = disk.file.metadata().map_err(|error| disk.error("examined", &error))?.len();
        // The length of a device is not in its metadata.
        if len > 0 || !is_regular(&disk.file) {
            disk.read_at(0, found.bytes_mut())?;
        }
        if found.bytes().iter().all(|byte| *byte == 0) {
            if !creates {
                return Err(unusable(path, "it is not prepared: set create = true once"));
            }
            disk.prepare(&header)?;
            return Ok(disk);
        }
        let word = |index: usize| word(found.bytes(), index);
        if word(0) != HEADER_MAGIC {
            return Err(unusable(path, "it contains something else: fill it with zeros to use it"));
        }
        if word(1) != FORMAT {
            return Err(unusable(
                path,
                &format!("it has format {}; this program reads format {FORMAT}", word(1)),
            ));
        }
        if found.bytes() != header.bytes() {
            return Err(unusable(path, &format!("it was prepared for {} nodes, not for {nodes}", word(2))));
        }
        Ok(disk)
    }

    /// Returns the number of nodes.
    #[must_use]
    pub(crate) fn nodes(&self) -> usize {
        self.nodes
    }

    /// Returns the election's blocks of all nodes.
    ///
    /// # Errors
    /// Returns [`Error::Unavailable`], or [`Error::Corrupt`] if a block is damaged.
    pub(crate) fn read_blocks(&self) -> Result<Vec<Block>> {
        let records = self.read_records(1 + self.nodes)?;
        Ok(records.into_iter().map(|(block, _)| block).collect())
    }

    /// Writes the election's block of `node`, which is stored when this returns.
    ///
    /// # Errors
    /// Returns [`Error::OutcomeUnknown`].
    pub(crate) fn write_block(&self, node: usize, block: Block) -> Result<()> {
        self.write_record(1 + self.nodes, node, block, Noted::default())
    }

    /// Measures how long a read or a write of one block takes, whichever takes longer: the median of
    /// five, because a busy machine delays single ones. They read the election's block of `node` and
    /// write it back. During this time, the node must not take part in an election.
    ///
    /// # Errors
    /// Returns the errors of [`Self::read_blocks`] and [`Self::write_block`].
    pub(crate) fn block_time(&self, node: usize) -> Result<Duration> {
        let (mut reads, mut writes) = ([Duration::ZERO; 5], [Duration::ZERO; 5]);
        for (read, write) in reads.iter_mut().zip(&mut writes) {
            let begun = Instant::now();
            let block = self.read_blocks()?.get(node).copied().unwrap_or_default();
            *read = begun.elapsed();
            let begun = Instant::now();
            self.write_block(node, block)?;
            *write = begun.elapsed();
        }
        let [read, write] = [reads, writes].map(|mut times| {
            times.sort_unstable();
            times[2]
        });
        Ok(read.max(write))
    }

    /// Returns the blocks of the agreement on the table, and the versions that the nodes have
    /// noted.
    pub(super) fn read_agreement(&self) -> Result<Vec<(Block, Noted)>> {
        self.read_records(1)
    }

    pub(super) fn write_agreement(&self, node: usize, block: Block, noted: Noted) -> Result<()> {
        self.write_record(1, node, block, noted)
    }

    /// Writes a proposal for `version` to a slot of `node`.
    pub(super) fn write_slot(&self, node: usize, version: u64, proposal: &Slot) -> Result<()> {
        let table = &proposal.table;
        let mut slot = Aligned::new(BLOCK_BYTES + table.len().next_multiple_of(BLOCK_BYTES));
        slot.bytes_mut()[BLOCK_BYTES..][..table.len()].copy_from_slice(table);
        put_words(slot.bytes_mut(), &[SLOT_MAGIC, version, table.len() as u64, 0]);
        put_words(&mut slot.bytes_mut()[SLOT_WORDS * 8..], &proposal.applied);
        let crc = slot_crc(slot.bytes(), table.len());
        put_words(&mut slot.bytes_mut()[(SLOT_WORDS - 1) * 8..], &[crc]);
        let at = self.slot_at(node, version);
        self.file.write_all_at(slot.bytes(), at).map_err(|error| self.unwritten(&error))
    }

    /// Returns the proposal for `version` from a slot of `node`; `None` if the slot has another
    /// version.
    pub(super) fn read_slot(&self, node: u64, version: u64) -> Result<Option<Slot>> {
        let node = usize::try_from(node).ok().filter(|node| *node < self.nodes);
        let Some(node) = node else { return Err(self.damage("a block names a node that does not exist")) };
        let at = self.slot_at(node, version);
        let mut header = Aligned::new(BLOCK_BYTES);
        self.read_at(at, header.bytes_mut())?;
        let len = usize::try_from(word(header.bytes(), 2)).ok().filter(|len| *len <= TABLE_BYTES_MAX);
        let Some(len) = len else { return Ok(None) };
        // Most tables are much smaller than their place.
        let mut slot = Aligned::new(BLOCK_BYTES + len.next_multiple_of(BLOCK_BYTES));
        self.read_at(at, slot.bytes_mut())?;
        let word = |index| word(slot.bytes(), index);
        // A slot that is being overwritten has the new header and a part of the new table, or neither.
        let is_whole =
            [SLOT_MAGIC, version, len as u64, slot_crc(slot.bytes(), len)] == [0, 1, 2, 3].map(word);
        Ok(is_whole.then(|| Slot {
            table: slot.bytes()[BLOCK_BYTES..][..len].to_vec(),
            applied: std::array::from_fn(|node| word(SLOT_WORDS + node)),
        }))
    }

    /// Returns the error for a version that a node has noted, but no slot has.
    pub(super) fn lost(&self, noted: Noted) -> Error {
        self.damage(&format!(
            "version {} of the table is missing in the slots of node {}",
            noted.version, noted.node
        ))
    }

    fn header(&self) -> Aligned {
        let mut header = Aligned::new(BLOCK_BYTES);
        put_words(header.bytes_mut(), &[HEADER_MAGIC, FORMAT, self.nodes as u64, TABLE_BYTES_MAX as u64]);
        header
    }

    /// Writes the header. Several hosts may do this simultaneously.
    fn prepare(&self, header: &Aligned) -> Result<()> {
        let len = self.slot_at(self.nodes, 0);
        if is_regular(&self.file) {
            let found = self.file.metadata().map_err(|error| self.error("examined", &error))?.len();
            if found < len {
                self.file.set_len(len).map_err(|error| self.error("extended", &error))?;
            }
        }
        let mut block = Aligned::new(BLOCK_BYTES);
        for index in 0..=2 * self.nodes as u64 {
            self.read_at(index * BLOCK_BYTES as u64, block.bytes_mut())?;
            let is_ours = index == 0 && block.bytes() == header.bytes();
            if !is_ours && block.bytes().iter().any(|byte| *byte != 0) {
                return Err(unusable(&self.path, "it contains something else: fill it with zeros to use it"));
            }
        }
        // This reads the last block, so that a device that is too small is an error now.
        self.read_at(len - BLOCK_BYTES as u64, block.bytes_mut())?;
        self.file.write_all_at(header.bytes(), 0).map_err(|error| self.error("prepared", &error))
    }

    fn read_records(&self, first: usize) -> Result<Vec<(Block, Noted)>> {
        let mut blocks = Aligned::new(BLOCK_BYTES * self.nodes);
        self.read_at((first * BLOCK_BYTES) as u64, blocks.bytes_mut())?;
        blocks.bytes().chunks_exact(BLOCK_BYTES).map(|record| self.decode(record)).collect()
    }

    fn write_record(&self, first: usize, node: usize, block: Block, noted: Noted) -> Result<()> {
        let Block { counter, promised, voted, value } = block;
        let words = [RECORD_MAGIC, counter, promised, voted, value, noted.version, noted.node];
        let mut record = Aligned::new(BLOCK_BYTES);
        put_words(record.bytes_mut(), &words);
        let crc = u64::from(crc32fast::hash(&record.bytes()[..words.len() * 8]));
        record.bytes_mut()[words.len() * 8..][..8].copy_from_slice(&crc.to_le_bytes());
        let at = ((first + node) * BLOCK_BYTES) as u64;
        self.file.write_all_at(record.bytes(), at).map_err(|error| self.unwritten(&error))
    }

    fn decode(&self, record: &[u8]) -> Result<(Block, Noted)> {
        let word = |index: usize| word(record, index);
        if record[..64].iter().all(|byte| *byte == 0) {
            return Ok(Default::default());
        }
        if word(0) != RECORD_MAGIC || word(7) != u64::from(crc32fast::hash(&record[..56])) {
            return Err(self.damage("a node's block is damaged"));
        }
        let block = Block { counter: word(1), promised: word(2), voted: word(3), value: word(4) };
        Ok((block, Noted { version: word(5), node: word(6) }))
    }

    fn slot_at(&self, node: usize, version: u64) -> u64 {
        let slot = 2 * node + (version % 2) as usize;
        ((1 + 2 * self.nodes) * BLOCK_BYTES + slot * SLOT_BYTES) as u64
    }

    fn read_at(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(bytes, at).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => unusable(&self.path, "it is too small"),
            _ => self.error("read", &error),
        })
    }

    fn error(&self, done: &str, error: &io::Error) -> Error {
        Error::Unavailable(format!("{} cannot be {done}: {error}", self.path.display()).into())
    }

    /// Returns the error for a failed write, of which the disk may have a part, or all.
    fn unwritten(&self, error: &io::Error) -> Error {
        Error::OutcomeUnknown(format!("{} cannot be written: {error}", self.path.display()).into())
    }

    fn damage(&self, why: &str) -> Error {
        Error::Corrupt(format!("{}: {why}", self.path.display()).into())
    }
}

fn unusable(path: &Path, why: &str) -> Error {
    Error::Denied(format!("{} cannot be used as a registry: {why}", path.display()).into())
}

/// Opens the file or device without the page cache, which other hosts do not share, and so that
/// writes are stored. A file on a file system without such access can be used by this host only.
fn open(path: &Path, creates: bool) -> io::Result<File> {
    let direct = OFlags::DIRECT.bits() | OFlags::DSYNC.bits();
    let open = |flags: u32| {
        let mut options = File::options();
        options.read(true).write(true).mode(0o600).custom_flags(flags.cast_signed());
        options.open(path)
    };
    if creates && !path.exists() {
        match File::options().write(true).create_new(true).mode(0o600).open(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    let kind = std::fs::metadata(path)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(io::Error::other("it is neither a file nor a block device"));
    }
    match open(direct) {
        Err(error) if kind.is_file() && error.kind() == io::ErrorKind::InvalidInput => {
            open(OFlags::DSYNC.bits())
        }
        opened => opened,
    }
}

fn is_regular(file: &File) -> bool {
    file.metadata().is_ok_and(|found| found.is_file())
}

/// Returns the word at `index`, little-endian.
fn word(bytes: &[u8], index: usize) -> u64 {
    u64::from_le_bytes(bytes[index * 8..][..8].try_into().expect("8 bytes"))
}

/// Returns the checksum of a slot whose table has `len` bytes.
fn slot_crc(slot: &[u8], len: usize) -> u64 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&slot[SLOT_WORDS * 8..][..NODES_MAX * 8]);
    hasher.update(&slot[BLOCK_BYTES..][..len]);
    hasher.finalize().into()
}

fn put_words(bytes: &mut [u8], words: &[u64]) {
    for (index, word) in words.iter().enumerate() {
        bytes[index * 8..][..8].copy_from_slice(&word.to_le_bytes());
    }
}

/// Zeroed memory, aligned to the block's size.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Self {
        let memory = vec![0; len + BLOCK_BYTES];
        let start = memory.as_ptr().align_offset(BLOCK_BYTES);
        Self { memory, start, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..][..self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &Path, nodes: usize, creates: bool) -> String {
        Disk::open(path, nodes, creates).unwrap_err().to_string()
    }

    #[test]
    fn a_disk_is_prepared_once_and_only_over_zeros() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        assert!(
            refusal(&path, 2, false)
                .ends_with("cannot be used as a registry: No such file or directory (os error 2)")
        );
        assert!(refusal(&path, 17, true).contains("17 nodes; a disk has 1 to 16"));
        let disk = Disk::open(&path, 2, true).unwrap();
        let block = Block { counter: 1, promised: 2, voted: 3, value: 4 };
        disk.write_block(1, block).unwrap();
        for creates in [false, true] {
            let disk = Disk::open(&path, 2, creates).unwrap();
            assert_eq!(disk.read_blocks().unwrap(), [Block::default(), block]);
        }
        assert!(refusal(&path, 3, true).ends_with("it was prepared for 2 nodes, not for 3"));
        std::fs::write(&path, [1; BLOCK_BYTES]).unwrap();
        assert!(
            refusal(&path, 2, true).ends_with("it contains something else: fill it with zeros to use it")
        );
        std::fs::write(&path, [0; BLOCK_BYTES]).unwrap();
        assert!(refusal(&path, 2, false).ends_with("it is not prepared: set create = true once"));
        assert!(refusal(dir.path(), 2, false).ends_with("it is neither a file nor a block device"));
    }

    #[test]
    fn damaged_bytes_are_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let disk = Disk::open(&path, 2, true).unwrap();
        let block = Block { counter: 1, promised: 2, voted: 3, value: 4 };
        disk.write_agreement(1, block, Noted { version: 1, node: 1 }).unwrap();
        let slot = Slot { table: b"table".to_vec(), applied: std::array::from_fn(|node| node as u64) };
        disk.write_slot(1, 1, &slot).unwrap();
        assert_eq!(disk.read_slot(1, 1).unwrap().unwrap(), slot);
        assert_eq!((disk.read_slot(1, 3).unwrap(), disk.read_slot(1, 2).unwrap()), (None, None));
        assert!(matches!(disk.read_slot(2, 1), Err(Error::Corrupt(_))));
        let flip = |at: u64| {
            let file = File::options().read(true).write(true).open(&path).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
        };
        // The damage is in the table, in a node's words, in the version, and in the length.
        for at in [BLOCK_BYTES as u64 + 2, 42, 8, 17] {
            flip(disk.slot_at(1, 1) + at);
            assert_eq!(disk.read_slot(1, 1).unwrap(), None, "{at}");
            flip(disk.slot_at(1, 1) + at);
        }
        for at in 0..64 {
            let at = 2 * BLOCK_BYTES as u64 + at;
            flip(at);
            assert!(matches!(disk.read_agreement(), Err(Error::Corrupt(_))), "{at}");
            flip(at);
        }
        assert_eq!(disk.read_agreement().unwrap()[1], (block, Noted { version: 1, node: 1 }));
    }

    #[test]
    fn the_time_of_a_block_is_measured_without_changing_it() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::open(&dir.path().join("disk"), 2, true).unwrap();
        let block = Block { counter: 1, promised: 2, voted: 3, value: 4 };
        disk.write_block(0, block).unwrap();
        assert!(disk.block_time(0).unwrap() > Duration::ZERO);
        assert_eq!(disk.read_blocks().unwrap()[0], block);
    }
}
