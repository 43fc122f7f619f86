//! Importing images and streams into volumes: reading them in pieces, and writing several pieces at
//! a time.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;

use blocker::Durability;
use blocker::executor::block_on;
use bytes::Bytes;
use clap::Args;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use rustix::io::Errno;
use serde_json::json;
use volumes::{Error, Volume, Volumes};

use crate::command::object::named;
use crate::command::size;
use crate::command::volume::name::{Setting, StoreArguments, TakeOver, ended, made, removed, shown_size};
use crate::command::volume::{Context, Name};
use crate::output::{About, Failure, Interrupt, Progress};

/// The maximum run of zeros that is written as data.
const GRAIN_BYTES: u64 = 64 << 10;
/// The initial size of a volume whose image has no known size; it grows as needed.
const SIZE_BYTES: u64 = 64 << 20;

#[derive(Args)]
pub(crate) struct Import {
    #[command(flatten)]
    name: Name,
    /// The raw image; standard input if it is `-` or omitted.
    file: Option<PathBuf>,
    /// Create a volume larger than the image, for example 20G. The rest reads as zeros.
    #[arg(long, value_parser = size)]
    size: Option<u64>,
    /// A setting of the new volume, as for `volume create`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<Setting>,
    /// Overwrite an existing volume. Ranges that are missing in the image become zeros. After a
    /// failure the volume contains a mixture of both.
    #[arg(long, conflicts_with_all = ["size", "settings"])]
    existing: bool,
    /// Import the bytes unchanged even if they look like another image format.
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    take_over: TakeOver,
    #[command(flatten)]
    store: StoreArguments,
}

/// The volume that is being filled.
struct Target<'a> {
    volumes: &'a Volumes,
    volume: &'a Volume,
    name: &'a str,
    /// Whether the whole volume still reads as zeros.
    is_new: bool,
    /// Whether the volume grows with the image, whose size is unknown.
    grows: bool,
    /// Whether anything has been written.
    is_touched: Cell<bool>,
}

impl Import {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let interrupt = Interrupt::watch()?;
        let name = self.name.name.as_str();
        let mut input = Input::open(self.file.as_deref(), true)?;
        let first = input.next(&interrupt)?;
        if !self.raw {
            check_raw(&input.name, first.as_ref())?;
        }
        let volumes = self.store.volumes(context)?;
        let known = self.size.max(input.len);
        if input.len.is_some_and(|len| self.size.is_some_and(|size| size < len)) {
            return Err(Failure::usage(format!("{} is larger than --size", input.name)));
        }
        Setting::check_writable(&self.settings).map_err(Failure::usage)?;
        let volume = if self.existing {
            block_on(volumes.open(name, self.take_over.options())).about(name)?
        } else {
            if known == Some(0) || (known.is_none() && first.is_none()) {
                return Err(Failure::usage(format!(
                    "{} is empty, but a volume must not be empty",
                    input.name
                )));
            }
            made(&volumes, name, known.unwrap_or(SIZE_BYTES), Setting::settings(&self.settings))?
        };
        let target = Target {
            volumes: &volumes,
            volume: &volume,
            name,
            is_new: !self.existing,
            grows: !self.existing && known.is_none(),
            is_touched: Cell::new(false),
        };
        let mut data_bytes = 0;
        let done = target.fill(&mut input, first, &interrupt, &mut data_bytes);
        let undo = || {
            if self.existing {
                block_on(volume.close()).about(name)?;
                return Ok(match target.is_touched.get() {
                    true => format!("{name} is a mixture of its old content and the image"),
                    false => format!("{name} is unchanged"),
                });
            }
            removed(&volumes, &volume, name)
        };
        ended(&volume, name, done, undo)?;
        let size = volume.size_bytes();
        let text =
            format!("{name} is a volume of {}, {} of it data", shown_size(size), shown_size(data_bytes));
        let value = json!({ "name": name, "size_bytes": size, "data_bytes": data_bytes });
        context.output.write(text, &value)
    }
}

impl Target<'_> {
    fn fill(
        &self,
        input: &mut Input,
        first: Option<Piece>,
        interrupt: &Interrupt,
        data_bytes: &mut u64,
    ) -> Result<(), Failure> {
        if input.len.is_some_and(|len| len > self.volume.size_bytes()) {
            return Err(self.too_small(input));
        }
        // A grain is at most 64 KiB.
        let grain = self.volume.object_bytes().min(GRAIN_BYTES) as usize;
        let mut progress = Progress::new(input.len);
        let mut writes = Writes::new(self.volume);
        // Everything before this offset has been written or zeroed.
        let mut written = 0;
        let (mut next, mut end) = (first, 0);
        while let Some(Piece { offset, data }) = next {
            let data = Bytes::from(data);
            progress.add(offset - end);
            end = offset + data.len() as u64;
            if end > self.volume.size_bytes() {
                if !self.grows {
                    return Err(self.too_small(input));
                }
                writes.wait().about(self.name)?;
                self.grow(end)?;
            }
            for run in runs(&data, grain) {
                let begin = offset + run.start as u64;
                self.zero(written, begin)?;
                written = offset + run.end as u64;
                *data_bytes += run.len() as u64;
                self.is_touched.set(true);
                writes.begin(begin, data.slice(run)).about(self.name)?;
            }
            progress.add(data.len() as u64);
            next = input.next(interrupt)?;
        }
        writes.wait().about(self.name)?;
        if self.grows {
            block_on(self.volumes.resize(self.name, end)).about(self.name)?;
        }
        self.zero(written, self.volume.size_bytes())
    }

    /// Zeroes the range, unless it is known to read as zeros.
    fn zero(&self, begin: u64, end: u64) -> Result<(), Failure> {
        if self.is_new || begin >= end {
            return Ok(());
        }
        self.is_touched.set(true);
        block_on(self.volume.write_zeroes(begin, end - begin, true, false)).about(self.name)
    }

    /// Grows the volume at least up to `end`, with room for what follows.
    fn grow(&self, end: u64) -> Result<(), Failure> {
        let ample = self.volume.size_bytes().saturating_mul(2).max(end);
        match block_on(self.volumes.resize(self.name, ample)) {
            // The end is near the maximum size.
            Err(volumes::Error::Invalid(_)) if ample > end => block_on(self.volumes.resize(self.name, end)),
            done => done,
        }
        .about(self.name)
    }

    fn too_small(&self, input: &Input) -> Failure {
        let has = shown_size(self.volume.size_bytes());
        Failure::usage(format!("{} is larger than {}, which has {has}", input.name, self.name))
    }
}

/// Refuses images of other formats, which are recognised by their first bytes.
fn check_raw(name: &str, first: Option<&Piece>) -> Result<(), Failure> {
    const CONVERT: &str = "qemu-img convert -O raw makes a raw image of it";
    const FORMATS: [(&[u8], &str, &str); 6] = [
        (b"QFI\xfb", "qcow2", CONVERT),
        (b"KDMV", "VMDK", CONVERT),
        (b"vhdxfile", "VHDX", CONVERT),
        (b"\xfd7zXZ\0", "xz", "decompress it first"),
        (b"\x1f\x8b\x08", "gzip", "decompress it first"),
        (b"rbd diff v1\n", "a stream of export-diff", "import-diff takes it"),
    ];
    let begin = first.filter(|piece| piece.offset == 0).map_or(&[][..], |piece| &piece.data);
    match FORMATS.iter().find(|(magic, ..)| begin.starts_with(magic)) {
        Some((_, format, remedy)) => Err(Failure::usage(format!(
            "{name} looks like {format}: {remedy}; --raw takes the bytes as they are"
        ))),
        None => Ok(()),
    }
}

/// The maximum size of a read: usually the size of a volume's object. A piece does not cross a
/// multiple of this size.
pub(super) const PIECE_BYTES: u64 = 4 << 20;

/// A part of the input.
#[derive(Debug)]
pub(super) struct Piece {
    /// The offset of the piece, in bytes.
    pub(super) offset: u64,
    pub(super) data: Vec<u8>,
}

pub(super) struct Input {
    file: File,
    /// The name of the input in errors.
    pub(super) name: String,
    /// The length of the input, if it is known in advance.
    pub(super) len: Option<u64>,
    /// Whether holes of the file are skipped; otherwise it is read from start to end.
    skips_holes: bool,
    at: u64,
}

impl Input {
    /// Opens a file, or standard input for `-` and `None`. With `skips_holes`, the holes of a regular
    /// file are skipped; otherwise, as for streams, every byte counts.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub(super) fn open(path: Option<&Path>, skips_holes: bool) -> Result<Self, Failure> {
        let path = named(path);
        let name = path.map_or("standard input".to_owned(), |path| path.display().to_string());
        let open = || {
            let Some(path) = path else {
                // The input is read without the buffer of the standard library, because a wait
                // would not notice bytes in that buffer.
                return Ok((File::from(io::stdin().as_fd().try_clone_to_owned()?), None, false));
            };
            let mut file = File::open(path)?;
            let metadata = file.metadata()?;
            if metadata.is_dir() {
                return Err(io::Error::from(io::ErrorKind::IsADirectory));
            }
            let len = match metadata.file_type() {
                kind if kind.is_file() => Some(metadata.len()),
                kind if kind.is_block_device() => Some(file.seek(SeekFrom::End(0))?),
                _ => return Ok((file, None, false)),
            };
            file.rewind()?;
            Ok((file, len, metadata.is_file()))
        };
        let (file, len, is_file) = open().map_err(Failure::io(&name))?;
        Ok(Self { file, name, len, skips_holes: skips_holes && is_file, at: 0 })
    }

    /// Returns the next piece that is not a hole; `None` at the end.
    ///
    /// # Errors
    /// Fails if the input cannot be read, or a signal has requested the end.
    pub(super) fn next(&mut self, interrupt: &Interrupt) -> Result<Option<Piece>, Failure> {
        interrupt.check()?;
        let piece = if self.skips_holes {
            let next = next_of_file(&self.file, self.at, self.len.unwrap_or(0));
            next.map_err(Failure::io(&self.name))?
        } else {
            let mut data = Vec::new();
            while (data.len() as u64) < PIECE_BYTES {
                interrupt.wait_for(self.file.as_fd())?;
                let left = PIECE_BYTES - data.len() as u64;
                let read = read_once(&mut self.file, left, &mut data);
                if read.map_err(Failure::io(&self.name))? == 0 {
                    break;
                }
            }
            (!data.is_empty()).then_some(Piece { offset: self.at, data })
        };
        if let Some(piece) = &piece {
            self.at = piece.offset + piece.data.len() as u64;
        }
        Ok(piece)
    }
}

/// Appends the data of a single read, at most `most` bytes. Returns the number of bytes; 0 at the
/// end.
fn read_once(file: &mut File, most: u64, data: &mut Vec<u8>) -> io::Result<usize> {
    const STEP_BYTES: u64 = 256 << 10;
    let begin = data.len();
    // The size is at most 256 KiB.
    data.resize(begin + STEP_BYTES.min(most) as usize, 0);
    let read = loop {
        match file.read(&mut data[begin..]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => break read,
        }
    };
    data.truncate(begin + read.as_ref().map_or(0, |read| *read));
    read
}

/// Returns the next piece of a file, from `at` on, that is not a hole.
fn next_of_file(file: &File, at: u64, len: u64) -> io::Result<Option<Piece>> {
    if at >= len {
        return Ok(None);
    }
    let begin = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        Ok(begin) if begin < len => begin,
        // Only a hole remains, or the file has been truncated: the rest reads as zeros.
        Ok(_) | Err(Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let hole = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(begin))?;
    let end = hole.min(len).min((begin / PIECE_BYTES + 1) * PIECE_BYTES);
    // The size is at most 4 MiB.
    let mut data = vec![0; end.saturating_sub(begin) as usize];
    file.read_exact_at(&mut data, begin)?;
    Ok(Some(Piece { offset: begin, data }))
}

/// Returns the ranges of `data` that are not zero, in units of this many bytes.
pub(super) fn runs(data: &[u8], grain_bytes: usize) -> Vec<std::ops::Range<usize>> {
    let mut all: Vec<std::ops::Range<usize>> = Vec::new();
    let mut at = 0;
    for grain in data.chunks(grain_bytes) {
        let end = at + grain.len();
        if !is_zero(grain) {
            match all.last_mut().filter(|last| last.end == at) {
                Some(last) => last.end = end,
                None => all.push(at..end),
            }
        }
        at = end;
    }
    all
}

/// Returns whether all bytes are zero, comparing 64 at a time.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(64).all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
}

/// The maximum number of writes in flight, each of at most 4 MiB.
const WRITES_MAX: usize = 8;

type Write<'a> = Pin<Box<dyn Future<Output = Result<Durability, Error>> + 'a>>;

pub(super) struct Writes<'a> {
    volume: &'a Volume,
    under_way: FuturesUnordered<Write<'a>>,
}

impl<'a> Writes<'a> {
    pub(super) fn new(volume: &'a Volume) -> Self {
        Self { volume, under_way: FuturesUnordered::new() }
    }

    /// Begins a write. If many writes are in flight, waits for another one first.
    ///
    /// # Errors
    /// Returns an error if this write or an earlier one has failed.
    pub(super) fn begin(&mut self, offset: u64, data: Bytes) -> Result<(), Error> {
        while self.under_way.len() >= WRITES_MAX {
            if let Some(done) = block_on(self.under_way.next()) {
                done?;
            }
        }
        self.under_way.push(Box::pin(self.volume.write(offset, data.into(), Durability::Cached)));
        // The write is polled once, so that it is in flight while the next piece is read.
        match self.under_way.next().now_or_never() {
            Some(Some(done)) => done.map(drop),
            _ => Ok(()),
        }
    }

    /// Waits for all writes.
    ///
    /// # Errors
    /// Returns an error if a write has failed.
    pub(super) fn wait(&mut self) -> Result<(), Error> {
        while let Some(done) = block_on(self.under_way.next()) {
            done?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_what_is_not_zero() {
        let mut data = vec![0; 1000];
        assert!(runs(&data, 100).is_empty());
        assert!(runs(&[], 100).is_empty());
        for at in [150, 299, 300, 999] {
            data[at] = 1;
        }
        assert_eq!(runs(&data, 100), [100..400, 900..1000]);
        assert_eq!(runs(&data, 300), [0..600, 900..1000]);
        assert_eq!(runs(&data, 4096), std::slice::from_ref(&(0..1000)));
    }

    #[test]
    fn a_sparse_file_is_read_around_its_holes() {
        let file = tempfile::tempfile().unwrap();
        let len = 40 * PIECE_BYTES + 100;
        file.set_len(len).unwrap();
        let written: [(u64, usize); 3] =
            [(PIECE_BYTES - 4096, 8192), (20 * PIECE_BYTES, 4096), (len - 10, 10)];
        for (offset, length) in written {
            file.write_all_at(&vec![7; length], offset).unwrap();
        }
        let (mut at, mut read, mut found) = (0, 0, 0);
        while let Some(Piece { offset, data }) = next_of_file(&file, at, len).unwrap() {
            assert!(offset >= at && !data.is_empty());
            assert_eq!(
                offset / PIECE_BYTES,
                (offset + data.len() as u64 - 1) / PIECE_BYTES,
                "a piece crosses"
            );
            found += data.iter().filter(|byte| **byte == 7).count();
            read += data.len();
            at = offset + data.len() as u64;
        }
        assert_eq!(found, 8192 + 4096 + 10, "something was passed over");
        // This holds unless the file system does not support holes.
        assert!(read < 1 << 20 || read as u64 == len, "{read} bytes were read");
    }
}
