//! The operating system's disk.

use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::disk::{Disk, DiskFile, Kind, Open, WriteFailed, copy_by_hand, zero_by_hand};
use crate::file::directory::Access;
use crate::file::directory::{Owner, kind_of, open_regular};
use crate::segment::buffer::{BUFFER_BYTES, Buffer};
use crate::{Segment, Segments};

/// The alignment of offset, length and memory that O_DIRECT needs on any common disk.
const DIRECT_ALIGN_BYTES: u64 = 4096;

/// The operating system's file system.
pub(super) struct RealDisk {
    /// Whether to bypass the page cache where a range allows it.
    direct: bool,
    root: PathBuf,
    /// The store's directory, if `syncfs` can be trusted there. The directory stays open, because
    /// the kernel reports to a descriptor only the failures since the descriptor was opened.
    whole: Option<File>,
    access: Access,
    owner: Owner,
}

impl RealDisk {
    pub(super) fn new(direct: bool, root: &Path, access: Access) -> io::Result<Self> {
        let dir = File::open(root)?;
        let is_trusted = syncs_report_failures() && syncs_reach_the_medium(&dir);
        let owner = Owner::of(&dir.metadata()?);
        Ok(Self { direct, root: root.to_path_buf(), whole: is_trusted.then_some(dir), access, owner })
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.access == Access::Read { Err(Errno::ROFS.into()) } else { Ok(()) }
    }
}

/// Returns whether this kernel's `syncfs` reports a failed write-back, as it does since Linux 5.8.
fn syncs_report_failures() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>());
    matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (5, 8))
}

/// Returns whether `syncfs` makes this file system's files durable. A file system that only passes
/// pages to a server, or to a file system below, may not.
fn syncs_reach_the_medium(dir: &File) -> bool {
    const EXT4: u32 = 0xef53;
    const XFS: u32 = 0x5846_5342;
    const BTRFS: u32 = 0x9123_683e;
    const TMPFS: u32 = 0x0102_1994;
    // The type of this field differs between platforms; the magic numbers have 32 bits on all.
    let kind = rustix::fs::fstatfs(dir).map(|found| found.f_type as u32);
    kind.is_ok_and(|kind| [EXT4, XFS, BTRFS, TMPFS].contains(&kind))
}

impl Disk for RealDisk {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn DiskFile>> {
        let is_created = how == Open::Create;
        let mut denied = None;
        let buffered = match how {
            Open::Read => open_regular(path, OFlags::RDONLY)?,
            Open::ReadWrite if self.access == Access::Read => {
                denied = Some(Errno::ROFS);
                open_regular(path, OFlags::RDONLY)?
            }
            Open::ReadWrite => match open_regular(path, OFlags::RDWR) {
                Err(error) => {
                    denied = Errno::from_io_error(&error)
                        .filter(|errno| [Errno::ACCESS, Errno::PERM, Errno::ROFS].contains(errno));
                    if denied.is_none() {
                        return Err(error);
                    }
                    open_regular(path, OFlags::RDONLY)?
                }
                opened => opened?,
            },
            Open::Create => {
                self.check_writable()?;
                let file = open_regular(path, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)?;
                self.owner.give(&file)?;
                file
            }
        };
        let mut direct = None;
        if self.direct && (is_created || (how == Open::ReadWrite && denied.is_none())) {
            direct = Some(open_regular(path, OFlags::RDWR | OFlags::DIRECT)?);
        }
        let never_at_once = AtomicBool::new(self.direct);
        Ok(Arc::new(RealFile { buffered, direct, denied, never_at_once }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check_writable()?;
        fs::rename(from, to)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        self.check_writable()?;
        fs::remove_file(path)
    }

    fn make_dir(&self, path: &Path) -> io::Result<bool> {
        self.check_writable()?;
        match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(false),
            made => made.and_then(|()| self.owner.give(&File::open(path)?)).map(|()| true),
        }
    }

    fn read_dir(&self, path: &Path, each: &mut dyn FnMut(&[u8], Kind)) -> io::Result<()> {
        let entries = match fs::read_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            each(entry.file_name().as_bytes(), kind_of(entry.file_type()?));
        }
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn head(&self, path: &Path, buffer: &mut [u8]) -> io::Result<(usize, u64)> {
        let file = open_regular(path, OFlags::RDONLY)?;
        let mut done = 0;
        while done < buffer.len() {
            match file.read_at(&mut buffer[done..], done as u64) {
                // The read has reached the end of the file.
                Ok(0) => return Ok((done, done as u64)),
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok((done, file.metadata()?.len()))
    }

    fn sync_all(&self) -> io::Result<bool> {
        let Some(dir) = &self.whole else { return Ok(false) };
        rustix::fs::syncfs(dir)?;
        // Not every file system flushes the medium's cache when its own journal has nothing to
        // write; the sync of a file always does.
        open_regular(&self.root.join("superblock"), OFlags::RDONLY)?.sync_data()?;
        Ok(true)
    }
}

struct RealFile {
    buffered: File,
    /// A second descriptor for aligned ranges. The kernel keeps both coherent, unless they access
    /// one range simultaneously, which the object's lock prevents for writes.
    direct: Option<File>,
    /// The reason why the file is open for reading only.
    denied: Option<Errno>,
    /// Whether the file system does not support RWF_NOWAIT, or there is no page cache to read from.
    never_at_once: AtomicBool,
}

impl RealFile {
    fn direct_for(&self, offset: u64, len: u64) -> Option<&File> {
        let is_aligned = offset.is_multiple_of(DIRECT_ALIGN_BYTES) && len.is_multiple_of(DIRECT_ALIGN_BYTES);
        self.direct.as_ref().filter(|_| is_aligned && len > 0)
    }

    fn check_writable(&self) -> io::Result<()> {
        self.denied.map_or(Ok(()), |errno| Err(errno.into()))
    }

    fn write_slices(&self, mut offset: u64, slices: &mut [IoSlice<'_>]) -> Result<(), WriteFailed> {
        let start = offset;
        let failed = |error: io::Error, at: u64| WriteFailed { written_bytes: at - start, error };
        let mut left = slices;
        while !left.is_empty() {
            // The kernel accepts at most 1 024 slices at a time.
            let count = left.len().min(1024);
            match rustix::io::pwritev(&self.buffered, &left[..count], offset) {
                Ok(0) => return Err(failed(io::ErrorKind::WriteZero.into(), offset)),
                Ok(written) => {
                    offset += written as u64;
                    IoSlice::advance_slices(&mut left, written);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno.into(), offset)),
            }
        }
        Ok(())
    }
}

impl DiskFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.buffered.metadata()?.len())
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        if let Some(direct) = self.direct_for(offset, len as u64) {
            let (mut buffer, skip) = aligned_buffer(len);
            let mut done = 0;
            while done < len {
                match direct.read_at(&mut buffer[skip + done..skip + len], offset + done as u64) {
                    Ok(0) => break,
                    Ok(read) => done += read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
                if !(done as u64).is_multiple_of(DIRECT_ALIGN_BYTES) {
                    break;
                }
            }
            buffer.truncate(skip + done);
            buffer.drain(..skip);
            return Ok(buffer);
        }
        let mut buffer = Vec::with_capacity(len);
        while buffer.len() < len {
            let at = offset + buffer.len() as u64;
            match rustix::io::pread(&self.buffered, rustix::buffer::spare_capacity(&mut buffer), at) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        // The allocator may have provided more capacity than requested.
        buffer.truncate(len);
        Ok(buffer)
    }

    fn read_at_once(&self, offset: u64, len: usize) -> Option<Segment> {
        if self.never_at_once.load(Ordering::Relaxed) {
            return None;
        }
        let fill = |target: &mut [u8]| {
            let mut slices = [IoSliceMut::new(target)];
            match rustix::io::preadv2(&self.buffered, &mut slices, offset, ReadWriteFlags::NOWAIT) {
                // After a short read, the rest is on disk or beyond the end. The blocking path
                // handles both.
                Ok(read) => read == len,
                Err(Errno::AGAIN | Errno::INTR) => false,
                Err(_) => {
                    self.never_at_once.store(true, Ordering::Relaxed);
                    false
                }
            }
        };
        if len <= BUFFER_BYTES {
            return Buffer::filled(len, fill).map(Segment::from);
        }
        let mut bytes = vec![0; len];
        fill(&mut bytes).then(|| Bytes::from(bytes).into())
    }

    fn write_at(&self, offset: u64, data: &Segments) -> Result<(), WriteFailed> {
        self.check_writable().map_err(|error| WriteFailed { written_bytes: 0, error })?;
        let len = data.len_bytes();
        if let Some(direct) = self.direct_for(offset, len as u64) {
            let (mut buffer, skip) = aligned_buffer(len);
            data.copy_to(&mut buffer[skip..skip + len]);
            // A failed write does not report its progress, so none of it counts as written.
            let failed = |error| WriteFailed { written_bytes: len as u64, error };
            return direct.write_all_at(&buffer[skip..skip + len], offset).map_err(failed);
        }
        let mut inline = [IoSlice::new(&[])];
        if let [one] = data.as_slice() {
            inline[0] = IoSlice::new(one.as_slice());
            return self.write_slices(offset, &mut inline);
        }
        let mut slices: Vec<_> = data.iter().map(|segment| IoSlice::new(segment.as_slice())).collect();
        self.write_slices(offset, &mut slices)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_writable()?;
        self.buffered.set_len(len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_writable()?;
        if len == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        loop {
            match rustix::fs::fallocate(&self.buffered, flags, offset, len) {
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return zero_by_hand(self, offset, len),
                punched => return Ok(punched?),
            }
        }
    }

    fn copy_from(&self, from: &dyn DiskFile, from_at: u64, to_at: u64, len: u64) -> io::Result<()> {
        self.check_writable()?;
        let Some(source) = from.raw() else { return copy_by_hand(self, from, from_at, to_at, len) };
        let (mut from_at, mut to_at, end) = (from_at, to_at, to_at + len);
        while to_at < end {
            let (left, out) = ((end - to_at) as usize, self.buffered.as_fd());
            match rustix::fs::copy_file_range(source, Some(&mut from_at), out, Some(&mut to_at), left) {
                Ok(0) => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => {
                    return copy_by_hand(self, from, from_at, to_at, end - to_at);
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.buffered.sync_data()
    }

    fn raw(&self) -> Option<BorrowedFd<'_>> {
        Some(self.buffered.as_fd())
    }
}

/// Returns a buffer, and the number of bytes to skip to reach an aligned address with `len` bytes
/// behind it.
fn aligned_buffer(len: usize) -> (Vec<u8>, usize) {
    let align = DIRECT_ALIGN_BYTES as usize;
    let buffer = vec![0; len + align];
    let skip = buffer.as_ptr().align_offset(align);
    (buffer, skip)
}

/// Returns a whole buffer as a payload.
pub(super) fn payload(buffer: Vec<u8>) -> Segments {
    Segment::from(Bytes::from(buffer)).into()
}
