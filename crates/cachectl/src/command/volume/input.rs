//! What is imported: a file, read around its holes, or a stream.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use rustix::io::Errno;

use crate::exit::Failure;
use crate::interrupt::Interrupt;

/// The most that is read at once: the object of a volume, as a rule. A piece does not cross a multiple of it.
pub(super) const PIECE_BYTES: u64 = 4 << 20;

/// A part of the input.
#[derive(Debug)]
pub(super) struct Piece {
    /// Where it begins, in bytes.
    pub(super) offset: u64,
    pub(super) data: Vec<u8>,
}

pub(super) struct Input {
    source: Source,
    /// What it is called in errors.
    pub(super) name: String,
    /// Its length, where that is known from the start.
    pub(super) len: Option<u64>,
    is_file: bool,
    at: u64,
}

enum Source {
    /// A regular file, to be read around its holes.
    Sparse(File),
    /// A file, a device or a pipe, to be read from its begin to its end.
    Stream(File),
}

impl Input {
    /// Opens a file, whose holes are passed over, or standard input for `-` and `None`.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let mut input = Self::open_stream(path)?;
        input.source = match input.source {
            Source::Stream(file) if input.is_file => Source::Sparse(file),
            source => source,
        };
        Ok(input)
    }

    /// Opens a file, every byte of which counts, or standard input for `-` and `None`.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn open_stream(path: Option<&Path>) -> Result<Self, Failure> {
        let path = path.filter(|path| path.as_os_str() != "-");
        let name = path.map_or("standard input".to_owned(), |path| path.display().to_string());
        let open = || {
            let Some(path) = path else {
                // Without the buffer of the standard library: what is in that, no wait would see.
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
        let (file, len, is_file) = open().map_err(Failure::io(name.clone()))?;
        Ok(Self { source: Source::Stream(file), name, len, is_file, at: 0 })
    }

    /// Returns the next piece that is not a hole; `None` at the end.
    ///
    /// # Errors
    /// It cannot be read, or a signal has requested the end.
    pub(super) fn next(&mut self, interrupt: &Interrupt) -> Result<Option<Piece>, Failure> {
        interrupt.check()?;
        let failed = || Failure::io(self.name.clone());
        let piece = match &mut self.source {
            Source::Sparse(file) => next_of_file(file, self.at, self.len.unwrap_or(0)).map_err(failed())?,
            Source::Stream(file) => {
                let mut data = Vec::new();
                while (data.len() as u64) < PIECE_BYTES {
                    interrupt.wait_for(file.as_fd())?;
                    let left = PIECE_BYTES - data.len() as u64;
                    if read_once(file, left, &mut data).map_err(failed())? == 0 {
                        break;
                    }
                }
                (!data.is_empty()).then_some(Piece { offset: self.at, data })
            }
        };
        if let Some(piece) = &piece {
            self.at = piece.offset + piece.data.len() as u64;
        }
        Ok(piece)
    }
}

/// Adds what one read gives, `most` bytes at most. Returns how many bytes that is; 0 at the end.
fn read_once(file: &mut File, most: u64, data: &mut Vec<u8>) -> io::Result<usize> {
    const STEP_BYTES: u64 = 256 << 10;
    let begin = data.len();
    // At most 256 KiB.
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

/// Returns the next piece of a file from `at` on that is not a hole.
fn next_of_file(file: &File, at: u64, len: u64) -> io::Result<Option<Piece>> {
    if at >= len {
        return Ok(None);
    }
    let begin = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        Ok(begin) if begin < len => begin,
        // Only a hole is left, or the file has become shorter: the rest reads as zeros.
        Ok(_) | Err(Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let hole = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(begin))?;
    let end = hole.min(len).min((begin / PIECE_BYTES + 1) * PIECE_BYTES);
    // At most 4 MiB.
    let mut data = vec![0; end.saturating_sub(begin) as usize];
    file.read_exact_at(&mut data, begin)?;
    Ok(Some(Piece { offset: begin, data }))
}

/// Returns the runs of `data` that are not zeros, by grains of this many bytes, as ranges.
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

/// Whether all bytes are zero, 64 at a time.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(64).all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
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
        // Unless the file system has no holes.
        assert!(read < 1 << 20 || read as u64 == len, "{read} bytes were read");
    }
}
