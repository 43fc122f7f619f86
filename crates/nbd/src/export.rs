//! The exports of a server: named disks, and a disk in memory. The larger functions of that disk are
//! inlined, so that servers of other disks do not compile them.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blocker::{Error, ReceiveBuffer, Reply, Segment, Segments};
use parking_lot::{Mutex, RwLock};

use crate::protocol::wire::state;
use crate::protocol::{Context, Description, Extent, NoExport, Zeroes};

/// The maximum memory, in bytes, that an export uses to read ahead for one request. This memory
/// counts against the connection's limit of outstanding bytes.
pub const READ_AHEAD_BYTES: u32 = 1 << 20;

/// The future of a lookup among the exports.
pub type Lookup<T> = Pin<Box<dyn Future<Output = Result<T, NoExport>> + Send>>;

/// The exports of a server, by name.
///
/// The futures own their data. Dropping a future at the end of a connection must leave nothing half
/// done.
pub trait Exports: Send + Sync {
    /// Returns the names of all exports that clients may see.
    fn list(&self) -> Lookup<Vec<String>>;

    /// Returns the description of an export, without opening it. The empty name means the default
    /// export.
    fn describe(&self, name: &str) -> Lookup<Description>;

    /// Opens an export for one connection, and returns its handle. It is called for each
    /// connection, and several connections may use one export at the same time. The export is
    /// released when its last handle is dropped.
    fn open(&self, name: &str) -> Lookup<Arc<dyn Export>>;
}

/// A disk.
///
/// The server has checked each request against [`Self::description`]: the range lies inside the
/// disk, the export offers the command, and payloads are at most 32 MiB. Replies may be ready or
/// pending, and may complete in any order. A pending reply's future is polled until it completes,
/// even if its client has disconnected.
///
/// Several connections may use one export at the same time, because the server promises it to
/// clients: a change that was acknowledged on one of them must be visible on all, and a flush on
/// one must cover the changes that were acknowledged on any of them.
pub trait Export: Send + Sync {
    /// Returns the description of the disk, which does not change.
    fn description(&self) -> &Description;

    /// Reads `len_bytes` from `offset`. Holes may be returned as such.
    fn read(&self, offset: u64, len_bytes: u32) -> Reply<Segments>;

    /// Writes at `offset`. With `fua`, the change is durable when it is acknowledged.
    fn write(&self, offset: u64, data: Segments, fua: bool) -> Reply<()>;

    /// Returns memory for the payload of a write that is about to arrive, of at least 32 KiB.
    /// `None` if no memory is available at once; the server then uses a buffer of its own. It must
    /// not block. The write follows unless the client disconnects before.
    fn receive_buffer(&self, offset: u64, len_bytes: u32) -> Option<Box<dyn ReceiveBuffer>> {
        let _ = (offset, len_bytes);
        None
    }

    /// Makes every change durable that was acknowledged before the call.
    fn flush(&self) -> Reply<()>;

    /// Discards bytes, which then keep their content or read as zeros.
    fn trim(&self, offset: u64, len_bytes: u32, fua: bool) -> Reply<()>;

    /// Writes zeros. With [`Zeroes::fast`], it fails with
    /// [`Unsupported`](blocker::Error::Unsupported) and changes nothing if zeroing would take as
    /// long as a write.
    fn write_zeroes(&self, offset: u64, len_bytes: u32, zeroes: Zeroes) -> Reply<()>;

    /// Reads ahead, as far as that is useful, with at most [`READ_AHEAD_BYTES`] in memory at a
    /// time.
    fn cache(&self, offset: u64, len_bytes: u32) -> Reply<()>;

    /// Returns the states of the extents from `offset` on, in order and without gaps, for one of
    /// the description's contexts. If they do not cover all of `len_bytes`, the client asks again.
    /// With `is_one`, the client needs only the first extent.
    fn block_status(
        &self,
        context: &Context,
        offset: u64,
        len_bytes: u32,
        is_one: bool,
    ) -> Reply<Vec<Extent>>;
}

/// The unit of allocation, in bytes.
const CHUNK_BYTES: u64 = 64 * 1024;

/// A disk in memory. It starts as one hole; chunks of 64 KiB use memory once they are written.
///
/// ```
/// use blocker::executor::block_on;
/// use nbd::{Export, MemoryExport};
///
/// let disk = MemoryExport::new(1 << 30);
/// block_on(disk.write(4096, b"hello".into(), false))?;
/// assert_eq!(block_on(disk.read(4094, 8))?.to_vec(), b"\0\0hello\0");
/// # Ok::<_, blocker::Error>(())
/// ```
#[derive(Debug)]
pub struct MemoryExport {
    /// The description, which may be changed before the disk is exported.
    pub description: Description,
    chunks: Vec<RwLock<Chunk>>,
    /// The names of the snapshots, each with the generation that was current when it was created.
    snapshots: Vec<(String, u64)>,
    generation: AtomicU64,
}

#[derive(Debug, Default)]
struct Chunk {
    bytes: Option<Box<[u8]>>,
    /// The generation of the last change; 0 if there was none.
    changed_in: u64,
}

impl MemoryExport {
    /// Returns a writable disk of `size_bytes`.
    #[must_use]
    #[inline]
    pub fn new(size_bytes: u64) -> Self {
        let count = usize::try_from(size_bytes.div_ceil(CHUNK_BYTES)).unwrap_or(usize::MAX);
        Self {
            description: Description::new(size_bytes),
            chunks: std::iter::repeat_with(RwLock::default).take(count).collect(),
            snapshots: Vec::new(),
            generation: AtomicU64::new(1),
        }
    }

    /// Creates a snapshot. Later changes are shown in the context `qemu:dirty-bitmap:NAME`.
    #[inline]
    pub fn snapshot(&mut self, name: &str) {
        let ended = self.generation.fetch_add(1, Ordering::Relaxed);
        self.snapshots.push((name.into(), ended));
        self.description.contexts.push(Context::ChangedSince(name.into()));
    }

    /// Calls `visit` for each chunk of a range with the chunk's index, the start and length of the
    /// range's part in that chunk, and the position of that part in the range.
    fn parts(offset: u64, len_bytes: u64, mut visit: impl FnMut(usize, usize, usize, usize)) {
        let mut at = 0;
        while at < len_bytes {
            let index = (offset + at) / CHUNK_BYTES;
            let from = (offset + at) % CHUNK_BYTES;
            let count = (CHUNK_BYTES - from).min(len_bytes - at);
            // Requests are at most 4 GiB, and the number of chunks is a `usize`.
            visit(index as usize, from as usize, count as usize, at as usize);
            at += count;
        }
    }
}

impl Export for MemoryExport {
    fn description(&self) -> &Description {
        &self.description
    }

    #[inline]
    fn read(&self, offset: u64, len_bytes: u32) -> Reply<Segments> {
        let mut data = Segments::new();
        Self::parts(offset, len_bytes.into(), |index, from, count, _| {
            match &self.chunks[index].read().bytes {
                Some(bytes) => data.push(Segment::copied(&bytes[from..from + count])),
                None => data.append(Segments::zeros(count)),
            }
        });
        Reply::ok(data)
    }

    #[inline]
    fn write(&self, offset: u64, data: Segments, _fua: bool) -> Reply<()> {
        let mut at = offset;
        for segment in &data {
            let bytes = segment.as_slice();
            Self::parts(at, bytes.len() as u64, |index, from, count, start| {
                let mut chunk = self.chunks[index].write();
                chunk.changed_in = self.generation.load(Ordering::Relaxed);
                let place = chunk.bytes.get_or_insert_with(|| vec![0; CHUNK_BYTES as usize].into());
                place[from..from + count].copy_from_slice(&bytes[start..start + count]);
            });
            at += bytes.len() as u64;
        }
        Reply::ok(())
    }

    fn flush(&self) -> Reply<()> {
        Reply::ok(())
    }

    #[inline]
    fn trim(&self, offset: u64, len_bytes: u32, fua: bool) -> Reply<()> {
        self.write_zeroes(offset, len_bytes, Zeroes { fua, ..Zeroes::default() })
    }

    #[inline]
    fn write_zeroes(&self, offset: u64, len_bytes: u32, zeroes: Zeroes) -> Reply<()> {
        if zeroes.fast && zeroes.no_hole {
            return Reply::err(Error::Unsupported("zeros that take up space are written one by one".into()));
        }
        Self::parts(offset, len_bytes.into(), |index, from, count, _| {
            let mut chunk = self.chunks[index].write();
            if chunk.bytes.is_none() && !zeroes.no_hole {
                return;
            }
            chunk.changed_in = self.generation.load(Ordering::Relaxed);
            if count == CHUNK_BYTES as usize && !zeroes.no_hole {
                chunk.bytes = None;
            } else {
                let place = chunk.bytes.get_or_insert_with(|| vec![0; CHUNK_BYTES as usize].into());
                place[from..from + count].fill(0);
            }
        });
        Reply::ok(())
    }

    fn cache(&self, _offset: u64, _len_bytes: u32) -> Reply<()> {
        Reply::ok(())
    }

    #[inline]
    fn block_status(
        &self,
        context: &Context,
        offset: u64,
        len_bytes: u32,
        _is_one: bool,
    ) -> Reply<Vec<Extent>> {
        let since = match context {
            Context::Allocation => None,
            Context::ChangedSince(snapshot) => {
                match self.snapshots.iter().rfind(|(name, _)| name == snapshot) {
                    Some((_, generation)) => Some(*generation),
                    None => return Reply::err(Error::Invalid("there is no such snapshot".into())),
                }
            }
        };
        let mut extents = Vec::new();
        Self::parts(offset, len_bytes.into(), |index, _, count, _| {
            let chunk = self.chunks[index].read();
            let flags = match since {
                None if chunk.bytes.is_some() => 0,
                None => state::HOLE | state::ZERO,
                Some(since) if chunk.changed_in > since => state::DIRTY,
                Some(_) => 0,
            };
            extents.push(Extent { len_bytes: count as u64, flags });
        });
        Reply::ok(extents)
    }
}

/// A fixed set of exports. The first export is also the default.
#[derive(Default)]
pub struct NamedExports {
    exports: Mutex<Vec<(String, Arc<dyn Export>)>>,
}

impl NamedExports {
    /// Returns a set with one export.
    #[must_use]
    pub fn one(name: &str, export: Arc<dyn Export>) -> Self {
        let exports = Self::default();
        exports.insert(name, export);
        exports
    }

    /// Adds an export, or replaces the export with this name. Open connections keep the replaced
    /// export.
    pub fn insert(&self, name: &str, export: Arc<dyn Export>) {
        let mut exports = self.exports.lock();
        match exports.iter_mut().find(|(of, _)| of == name) {
            Some((_, before)) => *before = export,
            None => exports.push((name.into(), export)),
        }
    }

    fn find(&self, name: &str) -> Result<Arc<dyn Export>, NoExport> {
        let exports = self.exports.lock();
        let found = exports.iter().find(|(of, _)| of == name || name.is_empty());
        found.map(|(_, export)| Arc::clone(export)).ok_or(NoExport::Unknown)
    }
}

impl std::fmt::Debug for NamedExports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let exports = self.exports.lock();
        f.debug_list().entries(exports.iter().map(|(name, _)| name)).finish()
    }
}

impl Exports for NamedExports {
    fn list(&self) -> Lookup<Vec<String>> {
        let names = self.exports.lock().iter().map(|(name, _)| name.clone()).collect();
        Box::pin(ready(Ok(names)))
    }

    fn describe(&self, name: &str) -> Lookup<Description> {
        Box::pin(ready(self.find(name).map(|export| export.description().clone())))
    }

    fn open(&self, name: &str) -> Lookup<Arc<dyn Export>> {
        Box::pin(ready(self.find(name)))
    }
}
