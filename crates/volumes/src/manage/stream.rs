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
        let mut expect = Expect::Magic;
        let mut header = Header::default();
        let mut rest = &bytes[..bytes.len().min(Self::BYTES_MAX)];
        loop {
            // Refused as soon as its tag is known, because the rest may take long to arrive.
            if let Expect::Range { .. } | Expect::Data { .. } | Expect::End = expect {
                return Err(Error::Invalid(SIZE_MISSING.into()));
            }
            let record = match expect.length(rest)? {
                length if length <= rest.len() => rest.split_off(..length).unwrap_or_default(),
                _ => return Ok(None),
            };
            expect = match expect {
                Expect::Magic => magic(record)?,
                Expect::Tag => tag(record)?,
                Expect::Text { is_from } => header.take_name(is_from, record)?,
                Expect::Size => {
                    let Header { from, to, .. } = header;
                    return Ok(Some(Self { from, to, size_bytes: number(record, 0) }));
                }
                Expect::Range { .. } | Expect::Data { .. } | Expect::End => {
                    return Err(Error::Invalid(SIZE_MISSING.into()));
                }
            };
        }
    }
}

const SIZE_MISSING: &str = "the stream has a range, or its end, before the size";

/// The state of reading a stream.
#[derive(Default, Debug)]
struct Header {
    from: Option<String>,
    to: Option<String>,
    size_bytes: Option<u64>,
}

impl Header {
    /// Reads the record of a name.
    fn take_name(&mut self, is_from: bool, record: &[u8]) -> Result<Expect> {
        let name = String::from_utf8(record[4..].to_vec());
        let name = name.map_err(|_| Error::Invalid("a name in the stream is no UTF-8".into()))?;
        if is_from {
            check_name(&name)?;
        } else {
            check_new_name(&name)?;
        }
        let place = if is_from { &mut self.from } else { &mut self.to };
        if place.is_some() || self.size_bytes.is_some() {
            return Err(Error::Invalid("the stream has a name twice, or after the size".into()));
        }
        *place = Some(name);
        Ok(Expect::Tag)
    }
}

/// Returns the number at an offset of a record, which must be long enough.
fn number(record: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(record[at..at + 8].try_into().expect("8 bytes"))
}

fn magic(record: &[u8]) -> Result<Expect> {
    if record == MAGIC {
        return Ok(Expect::Tag);
    }
    Err(Error::Invalid("this is no stream of rbd export-diff, format 1".into()))
}

fn tag(record: &[u8]) -> Result<Expect> {
    Ok(match record[0] {
        b'f' => Expect::Text { is_from: true },
        b't' => Expect::Text { is_from: false },
        b's' => Expect::Size,
        b'w' => Expect::Range { is_data: true },
        b'z' => Expect::Range { is_data: false },
        b'e' => Expect::End,
        tag => return Err(Error::Invalid(format!("the stream has an unknown record, {tag:#04x}"))),
    })
}

/// The next expected part of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expect {
    Magic,
    Tag,
    Text { is_from: bool },
    Size,
    Range { is_data: bool },
    Data { offset: u64, left: u64 },
    End,
}

impl Expect {
    /// Returns the length of the expected part, as far as it is known from the available bytes.
    fn length(self, have: &[u8]) -> Result<usize> {
        Ok(match self {
            Self::Magic => MAGIC.len(),
            Self::Tag => 1,
            Self::Size => 8,
            Self::Range { .. } => 16,
            Self::Text { .. } => match have.first_chunk::<4>() {
                None => 4 + NAME_BYTES_MAX,
                Some(len) => match u32::from_le_bytes(*len) as usize {
                    len @ 1..=NAME_BYTES_MAX => 4 + len,
                    len => return Err(Error::Invalid(format!("the stream has a name of {len} bytes"))),
                },
            },
            // Data are consumed as they arrive.
            Self::Data { .. } => 0,
            Self::End => return Err(Error::Invalid("the stream has bytes after its end".into())),
        })
    }
}

/// Writes a stream into a volume, which must have the state at which the stream begins.
#[derive(Debug)]
pub struct Import {
    volume: Volume,
    expect: Expect,
    /// An incomplete record, no longer than a name.
    rest: Vec<u8>,
    header: Header,
}

impl Import {
    /// Returns an import into `volume`.
    #[must_use]
    pub fn new(volume: Volume) -> Self {
        Self { volume, expect: Expect::Magic, rest: Vec::new(), header: Header::default() }
    }

    /// Returns the snapshot from which the stream starts, once its name has been read. The volume
    /// must have the state of that snapshot.
    #[must_use]
    pub fn from(&self) -> Option<&str> {
        self.header.from.as_deref()
    }

    /// Returns the snapshot at which the stream ends, once its name has been read.
    #[must_use]
    pub fn to(&self) -> Option<&str> {
        self.header.to.as_deref()
    }

    /// Processes the next bytes of the stream.
    ///
    /// # Errors
    /// `Invalid` if the bytes are not a stream, or the stream is of a larger volume; the errors of
    /// [`Volume::write`].
    pub async fn take(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if let Expect::Data { offset, left } = self.expect {
                let (now, later) =
                    bytes.split_at(bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
                self.volume.write(offset, now.to_vec().into(), Durability::Cached).await?;
                let now = now.len() as u64;
                self.expect = Expect::Data { offset: offset + now, left: left - now };
                if left == now {
                    self.expect = Expect::Tag;
                }
                bytes = later;
                continue;
            }
            self.rest.push(bytes[0]);
            bytes = &bytes[1..];
            if self.rest.len() == self.expect.length(&self.rest)? {
                let record = std::mem::take(&mut self.rest);
                self.record(&record).await?;
            }
        }
        Ok(())
    }

    /// Completes the import by flushing the volume.
    ///
    /// # Errors
    /// `Invalid` if the stream is incomplete; the errors of [`Volume::flush`].
    pub async fn finish(self) -> Result<()> {
        if self.expect != Expect::End {
            return Err(Error::Invalid("the stream ends too early".into()));
        }
        self.volume.flush().await
    }

    async fn record(&mut self, record: &[u8]) -> Result<()> {
        self.expect = match self.expect {
            Expect::Magic => magic(record)?,
            Expect::Tag => match tag(record)? {
                Expect::Range { .. } | Expect::End if self.header.size_bytes.is_none() => {
                    return Err(Error::Invalid(SIZE_MISSING.into()));
                }
                next => next,
            },
            Expect::Text { is_from } => self.header.take_name(is_from, record)?,
            Expect::Size => {
                let size_bytes = number(record, 0);
                if size_bytes != self.volume.size_bytes() {
                    let has = self.volume.size_bytes();
                    let why = format!(
                        "the stream is from a volume of {size_bytes} bytes, but this volume has {has}: resize it first"
                    );
                    return Err(Error::Invalid(why));
                }
                self.header.size_bytes = Some(size_bytes);
                Expect::Tag
            }
            Expect::Range { is_data } => {
                let (offset, length) = (number(record, 0), number(record, 8));
                if offset.checked_add(length).is_none_or(|end| end > self.volume.size_bytes()) {
                    return Err(Error::Invalid(format!(
                        "the stream has a range of {length} bytes at {offset}"
                    )));
                }
                if !is_data {
                    self.volume.write_zeroes(offset, length, true, false).await?;
                }
                if is_data && length > 0 { Expect::Data { offset, left: length } } else { Expect::Tag }
            }
            Expect::Data { .. } | Expect::End => unreachable!("not gathered"),
        };
        Ok(())
    }
}
