//! Export and import, in the stream format of `rbd export-diff`, version 1.
//!
//! A stream has a size, ranges of data, and ranges of zeros; it starts from a snapshot, or from an
//! empty volume. So a full stream is a sparse copy, and a stream between two snapshots carries the
//! changes.

use blocker::{Durability, Segments};

use crate::catalog::{check_name, check_new_name};
use crate::error::{Error, Result};
use crate::format::NAME_BYTES_MAX;
use crate::manage::snapshot::Snapshot;
use crate::settings::Change;
use crate::volume::Volume;

const MAGIC: &[u8] = b"rbd diff v1\n";
/// The maximum length of a range of data in one record.
const DATA_BYTES_MAX: u64 = 4 << 20;

/// The stream of a snapshot, returned piece by piece.
#[derive(Debug)]
pub struct Export {
    of: Snapshot,
    from: Option<Snapshot>,
    /// The bytes before the ranges; empty once they have been returned.
    begin: Vec<u8>,
    /// The remaining ranges, the last one first.
    changes: Vec<Change>,
    is_ended: bool,
}

impl Export {
    /// Returns the stream that turns `from`, or an empty volume, into `to`. Each is given as the
    /// name of a snapshot and the snapshot. The stream contains the names, which RBD checks on
    /// import.
    #[must_use]
    pub fn new(from: Option<(&str, &Snapshot)>, to: (&str, &Snapshot)) -> Self {
        let mut begin = MAGIC.to_vec();
        let mut text = |tag: u8, text: &str| {
            begin.push(tag);
            // Names have at most 200 bytes.
            begin.extend_from_slice(&(text.len() as u32).to_le_bytes());
            begin.extend_from_slice(text.as_bytes());
        };
        if let Some((name, _)) = from {
            text(b'f', name);
        }
        text(b't', to.0);
        begin.push(b's');
        begin.extend_from_slice(&to.1.size_bytes().to_le_bytes());
        let mut changes = to.1.changed_extents(from.map(|(_, before)| before));
        changes.reverse();
        let from = from.map(|(_, before)| before.clone());
        Self { of: to.1.clone(), from, begin, changes, is_ended: false }
    }

    /// Returns the number of data bytes that remain to be read for the stream. Ranges of zeros
    /// among these bytes take less space in the stream.
    #[must_use]
    pub fn left_bytes(&self) -> u64 {
        self.changes.iter().filter(|change| change.is_data).map(|change| change.length).sum()
    }

    /// Returns the next piece of the stream, or `None` after the last piece. The last piece is
    /// returned only if both snapshots still exist, so that the stream is correct.
    ///
    /// # Errors
    /// The errors of [`Snapshot::read`] and [`Snapshot::confirm`]. After an error the same piece
    /// can be requested again.
    pub async fn next(&mut self) -> Result<Option<Segments>> {
        if !self.begin.is_empty() {
            return Ok(Some(std::mem::take(&mut self.begin).into()));
        }
        let Some(change) = self.changes.last().copied() else {
            if self.is_ended {
                return Ok(None);
            }
            // A stream without its end record does not count as complete.
            self.of.confirm().await?;
            if let Some(from) = &self.from {
                from.confirm().await?;
            }
            self.is_ended = true;
            return Ok(Some(b"e".into()));
        };
        let range = |tag: u8, length: u64| -> Segments {
            let mut head = vec![tag];
            head.extend_from_slice(&change.offset.to_le_bytes());
            head.extend_from_slice(&length.to_le_bytes());
            head.into()
        };
        let length = if change.is_data { change.length.min(DATA_BYTES_MAX) } else { change.length };
        let piece = if change.is_data {
            let data = self.of.read(change.offset, length).await?;
            let is_zero = data.iter().all(|segment| segment.as_slice().iter().all(|byte| *byte == 0));
            let mut piece = range(if is_zero { b'z' } else { b'w' }, length);
            if !is_zero {
                piece.append(data);
            }
            piece
        } else {
            range(b'z', length)
        };
        self.changes.pop();
        if length < change.length {
            let rest = Change { offset: change.offset + length, length: change.length - length, ..change };
            self.changes.push(rest);
        }
        Ok(Some(piece))
    }
}

/// The header of a stream: everything before its ranges.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StreamHeader {
    /// The snapshot at which the stream begins; `None` for an empty volume.
    pub from: Option<String>,
    /// The snapshot at which the stream ends, or `None` if the stream was exported without one.
    pub to: Option<String>,
    /// The size of the volume at the end of the stream, in bytes.
    pub size_bytes: u64,
}

impl StreamHeader {
    /// The number of bytes that always contain a stream's complete header.
    pub const BYTES_MAX: usize = MAGIC.len() + 2 * (1 + 4 + NAME_BYTES_MAX) + 1 + 8;

    /// Returns the header of a stream that begins with these bytes, or `None` if the header is
    /// incomplete.
    ///
    /// # Errors
    /// `Invalid` if the bytes are not a stream, or a name in it is not a valid name of a snapshot.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>> {
        let mut rest = &bytes[..bytes.len().min(Self::BYTES_MAX)];
        match rest.split_off(..MAGIC.len()) {
            None => return Ok(None),
            Some(magic) if magic == MAGIC => {}
            Some(_) => return invalid("this is not a stream of rbd export-diff, format 1"),
        }
        let (mut from, mut to) = (None, None);
        while let Some(tag) = rest.split_off_first() {
            let (place, check): (_, fn(&str) -> Result<()>) = match tag {
                b'f' => (&mut from, check_name),
                b't' => (&mut to, check_new_name),
                b's' => {
                    let size_bytes = rest.first_chunk().map(|size| u64::from_le_bytes(*size));
                    return Ok(size_bytes.map(|size_bytes| Self { from, to, size_bytes }));
                }
                // Refused as soon as its tag is known, because the rest may take long to arrive.
                b'w' | b'z' | b'e' => return invalid("the stream has a range, or its end, before the size"),
                tag => return unknown(*tag),
            };
            let Some((length, after)) = rest.split_first_chunk::<4>() else { return Ok(None) };
            let length = u32::from_le_bytes(*length) as usize;
            if !(1..=NAME_BYTES_MAX).contains(&length) {
                return Err(Error::Invalid(format!("the stream has a name of {length} bytes")));
            }
            let Some((name, after)) = after.split_at_checked(length) else { return Ok(None) };
            rest = after;
            let Ok(name) = std::str::from_utf8(name) else {
                return invalid("a name in the stream is not UTF-8");
            };
            check(name)?;
            if place.replace(name.to_owned()).is_some() {
                return invalid("the stream has a name twice");
            }
        }
        Ok(None)
    }
}

fn invalid<T>(why: &str) -> Result<T> {
    Err(Error::Invalid(why.into()))
}

fn unknown<T>(tag: u8) -> Result<T> {
    Err(Error::Invalid(format!("the stream has an unknown record, {tag:#04x}")))
}

/// The next expected part of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expect {
    Header,
    /// A range without its data, or the end.
    Record,
    Data {
        offset: u64,
        left: u64,
    },
    Nothing,
}

/// Writes a stream into a volume, which must have the state at which the stream begins.
#[derive(Debug)]
pub struct Import {
    volume: Volume,
    expect: Expect,
    /// The beginning of the header or of a record.
    rest: Vec<u8>,
}

impl Import {
    /// Returns an import into `volume`.
    #[must_use]
    pub fn new(volume: Volume) -> Self {
        Self { volume, expect: Expect::Header, rest: Vec::new() }
    }

    /// Processes the next bytes of the stream.
    ///
    /// # Errors
    /// `Invalid` if the bytes are not a stream, or the stream is from a volume of another size; the
    /// errors of [`Volume::write`].
    pub async fn take(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if let Expect::Data { offset, left } = self.expect {
                // Data are written as they arrive.
                let (now, later) =
                    bytes.split_at(bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
                self.volume.write(offset, now.to_vec().into(), Durability::Cached).await?;
                let now = now.len() as u64;
                self.expect = Expect::Data { offset: offset + now, left: left - now };
                if left == now {
                    self.expect = Expect::Record;
                }
                bytes = later;
                continue;
            }
            // Headers and records are short.
            self.rest.push(bytes[0]);
            bytes = &bytes[1..];
            match self.expect {
                Expect::Header => self.take_header()?,
                Expect::Record => self.take_record().await?,
                Expect::Nothing | Expect::Data { .. } => {
                    return invalid("the stream has bytes after its end");
                }
            }
        }
        Ok(())
    }

    fn take_header(&mut self) -> Result<()> {
        let Some(StreamHeader { size_bytes, .. }) = StreamHeader::decode(&self.rest)? else { return Ok(()) };
        let has = self.volume.size_bytes();
        if size_bytes != has {
            let why = format!(
                "the stream is from a volume of {size_bytes} bytes, but this volume has {has}: resize it first"
            );
            return Err(Error::Invalid(why));
        }
        self.rest.clear();
        self.expect = Expect::Record;
        Ok(())
    }

    async fn take_record(&mut self) -> Result<()> {
        let is_data = match self.rest[0] {
            b'w' => true,
            b'z' => false,
            b'e' => {
                self.expect = Expect::Nothing;
                return Ok(());
            }
            b'f' | b't' | b's' => return invalid("the stream has a name or a size after its size"),
            tag => return unknown(tag),
        };
        let Some((offset, length)) = self.rest[1..].split_first_chunk() else { return Ok(()) };
        let Some(length) = length.first_chunk() else { return Ok(()) };
        let (offset, length) = (u64::from_le_bytes(*offset), u64::from_le_bytes(*length));
        self.rest.clear();
        if offset.checked_add(length).is_none_or(|end| end > self.volume.size_bytes()) {
            return Err(Error::Invalid(format!("the stream has a range of {length} bytes at {offset}")));
        }
        if is_data && length > 0 {
            self.expect = Expect::Data { offset, left: length };
        } else if !is_data {
            self.volume.write_zeroes(offset, length, true, false).await?;
        }
        Ok(())
    }

    /// Completes the import by flushing the volume.
    ///
    /// # Errors
    /// `Invalid` if the stream is incomplete; the errors of [`Volume::flush`].
    pub async fn finish(self) -> Result<()> {
        if self.expect != Expect::Nothing {
            return invalid("the stream ends too early");
        }
        self.volume.flush().await
    }
}
