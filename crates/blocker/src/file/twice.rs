//! The small files of a store, superblock and claims: their formats, and their two copies, `NAME`
//! and `NAME.copy`, so that one copy survives damage to the other.
//!
//! Every change replaces both, the first before the second, each stored as a whole before the next
//! begins. So both have every acknowledged change, and the second is behind by at most the one
//! interrupted change.

use std::io;
use std::path::{Path, PathBuf};

use crate::admission::{CLAIMS_COUNT_MAX, Claims};
use crate::file::disk::{Disk, Found, Open, found};
use crate::{Epoch, Error, Name, Namespace, ObjectId, OrderDomain, Result, Scope, WriterId};

/// The unit that a disk writes as a whole or not at all.
const SECTOR_BYTES: usize = 512;

pub(super) const SUPERBLOCK: &str = "superblock";
pub(super) const CLAIMS: &str = "claims";

/// Returns the file name of the second copy of `name`.
pub(super) fn copy_name(name: &str) -> String {
    format!("{name}.copy")
}

/// The content of one of the two files.
#[derive(Debug)]
pub(super) enum Copy<T> {
    Whole(T),
    Absent,
    /// The file is readable, but its bytes cannot be decoded, or it is not a regular file. A system
    /// error is never reported as damage.
    Damaged(String),
    /// The system could not read the file: its content is unknown.
    Unread(io::Error),
}

impl<T> Copy<T> {
    fn whole(&self) -> Option<&T> {
        match self {
            Self::Whole(value) => Some(value),
            _ => None,
        }
    }
}

/// The contents of both files.
pub(super) struct Twice<T> {
    pub(super) first: Copy<T>,
    pub(super) second: Copy<T>,
}

impl<T: PartialEq> Twice<T> {
    /// # Errors
    /// Returns `Unsupported` if another version of this program wrote one of them.
    pub(super) fn read(
        disk: &dyn Disk,
        root: &Path,
        name: &str,
        decode: fn(&[u8]) -> Result<T>,
    ) -> Result<Self> {
        let read = |name: &str| match found(read_small(disk, &root.join(name))) {
            Ok(Found::Absent) => Ok(Copy::Absent),
            Ok(Found::Foreign(kind)) => Ok(Copy::Damaged(format!("it is {kind}, not a regular file"))),
            Ok(Found::File(bytes)) => match decode(&bytes) {
                Ok(value) => Ok(Copy::Whole(value)),
                Err(error @ Error::Unsupported(_)) => Err(error),
                Err(error) => Ok(Copy::Damaged(error.to_string())),
            },
            Err(error) => Ok(Copy::Unread(error)),
        };
        Ok(Self { first: read(name)?, second: read(&copy_name(name))? })
    }

    /// Returns the value in force: the first file's, or the second's if the first is lost.
    pub(super) fn value(&self) -> Option<&T> {
        self.first.whole().or(self.second.whole())
    }

    /// Returns [`value`](Self::value), or `None` if both files are absent or damaged. `name` is
    /// that of the first file.
    ///
    /// # Errors
    /// Fails if a file that may hold the value could not be read.
    pub(super) fn in_force(&self, root: &Path, name: &str) -> Result<Option<&T>> {
        let value = self.value();
        match self.unread(name).next().filter(|_| value.is_none()) {
            Some((name, error)) => {
                Err(Error::from_io(error, &format!("reading {}", root.join(name).display())))
            }
            None => Ok(value),
        }
    }

    /// Returns both files with their names; `name` is the first file's.
    pub(super) fn files(&self, name: &str) -> [(String, &Copy<T>); 2] {
        [(name.to_owned(), &self.first), (copy_name(name), &self.second)]
    }

    /// Returns the unreadable files, with the reasons.
    pub(super) fn unread(&self, name: &str) -> impl Iterator<Item = (String, &io::Error)> {
        self.files(name).into_iter().filter_map(|(name, copy)| match copy {
            Copy::Unread(error) => Some((name, error)),
            _ => None,
        })
    }

    /// Returns whether the second file replaces a lost first one.
    pub(super) fn is_from_copy(&self) -> bool {
        self.first.whole().is_none() && self.second.whole().is_some()
    }

    /// Returns whether both files hold the value in force.
    pub(super) fn is_in_both(&self) -> bool {
        self.first.whole().is_some() && self.first.whole() == self.second.whole()
    }

    /// Returns whether one of the files is damaged.
    pub(super) fn is_damaged(&self) -> bool {
        matches!(self.first, Copy::Damaged(_)) || matches!(self.second, Copy::Damaged(_))
    }

    /// Returns whether both files are missing.
    pub(super) fn is_absent(&self) -> bool {
        matches!((&self.first, &self.second), (Copy::Absent, Copy::Absent))
    }
}

/// Replaces both files, and stores them before it returns. `temporary` names the file in which each
/// begins.
///
/// On a full disk, content of one sector is written in place: a sector is written as a whole or not
/// at all, and the other file stays unchanged until then.
///
/// # Errors
/// Returns the disk's errors; each file is then the old one or the new one.
pub(super) fn replace(
    disk: &dyn Disk,
    root: &Path,
    name: &str,
    content: &[u8],
    temporary: &mut dyn FnMut() -> PathBuf,
) -> io::Result<()> {
    for name in [name, &copy_name(name)] {
        let temporary = temporary();
        let replaced = (|| {
            let file = disk.open(&temporary, Open::Create)?;
            file.write_all(0, &content.to_vec().into())?;
            file.sync_data()?;
            disk.rename(&temporary, &root.join(name))
        })();
        match replaced {
            Ok(()) => disk.sync_dir(root)?,
            Err(error) => {
                // The next start removes a file that remains.
                let _ = disk.unlink(&temporary);
                if !is_out_of_space(&error) || content.len() > SECTOR_BYTES {
                    return Err(error);
                }
                overwrite(disk, &root.join(name), content).map_err(|_| error)?;
            }
        }
    }
    Ok(())
}

/// Overwrites a file of the same length in place.
fn overwrite(disk: &dyn Disk, path: &Path, content: &[u8]) -> io::Result<()> {
    let file = disk.open(path, Open::ReadWrite)?;
    if file.len()? != content.len() as u64 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    file.write_all(0, &content.to_vec().into())?;
    file.sync_data()
}

/// Returns whether the error means that a disk, or a user's quota of it, is full.
pub(super) fn is_out_of_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn read_small(disk: &dyn Disk, path: &Path) -> io::Result<Vec<u8>> {
    /// The maximum size of a small file, far more than all claims together can need.
    const SMALL_BYTES_MAX: u64 = 64 << 20;
    let file = disk.open(path, Open::Read)?;
    let len = file.len()?.min(SMALL_BYTES_MAX);
    file.read_at(0, len as usize)
}

const SUPERBLOCK_MAGIC: &[u8; 8] = b"cachedFS";
const CLAIMS_MAGIC: &[u8; 8] = b"cachedCL";
/// The format of the store. Format 1 had headers in another place, so such a store is refused.
const FORMAT: u32 = 2;

/// The store's own record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Superblock {
    /// Whether the store was closed, so that every object's header has its last version.
    pub(super) clean: bool,
    /// The number of times that the store has been opened.
    pub(super) boot: u64,
    /// The minimum of all versions of objects; it is raised after a crash.
    pub(super) version_floor: u64,
}

impl Superblock {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = start(SUPERBLOCK_MAGIC);
        bytes.extend(u32::from(self.clean).to_le_bytes());
        bytes.extend(self.boot.to_le_bytes());
        bytes.extend(self.version_floor.to_le_bytes());
        seal(bytes)
    }

    /// # Errors
    /// Returns `Corrupt`, or `Unsupported` if a newer program wrote it.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut input = open(bytes, SUPERBLOCK_MAGIC, "the superblock")?;
        let clean = input.u32()? != 0;
        Ok(Self { clean, boot: input.u64()?, version_floor: input.u64()? })
    }
}

pub(super) fn encode_claims(claims: &Claims) -> Vec<u8> {
    let mut bytes = start(CLAIMS_MAGIC);
    let all: Vec<_> = claims.iter().collect();
    // The count is at most CLAIMS_COUNT_MAX.
    bytes.extend((all.len() as u32).to_le_bytes());
    for (scope, epoch, writer) in all {
        bytes.extend(epoch.0.to_le_bytes());
        bytes.extend(writer.map_or(0, |writer| writer.0).to_le_bytes());
        let mut short = |kind: u8, namespace: &[u8]| {
            bytes.extend([kind, namespace.len() as u8]);
            bytes.extend_from_slice(namespace);
        };
        match scope {
            Scope::All => short(0, b""),
            Scope::Namespace(namespace) => short(1, namespace.as_bytes()),
            Scope::Domain(namespace, domain) => {
                short(2, namespace.as_bytes());
                bytes.extend(domain.0.to_le_bytes());
            }
            Scope::Object(object) => {
                short(3, object.namespace.as_bytes());
                bytes.push(object.name.as_bytes().len() as u8);
                bytes.extend_from_slice(object.name.as_bytes());
            }
        }
    }
    seal(bytes)
}

/// # Errors
/// Returns `Corrupt`, or `Unsupported` if a newer program wrote it.
pub(super) fn decode_claims(bytes: &[u8]) -> Result<Claims> {
    let mut input = open(bytes, CLAIMS_MAGIC, "the file of claims")?;
    let mut claims = Claims::default();
    let count = input.u32()? as usize;
    if count > CLAIMS_COUNT_MAX {
        return Err(damaged("the file of claims"));
    }
    for _ in 0..count {
        let epoch = Epoch(input.u64()?);
        let writer = u128::from_le_bytes(input.array()?);
        let writer = (writer != 0).then_some(WriterId(writer));
        let kind = input.take(1)?[0];
        let namespace = input.short()?.to_vec();
        let scope = match kind {
            0 => Scope::All,
            1 => Scope::Namespace(Namespace::new(namespace)?),
            2 => Scope::Domain(Namespace::new(namespace)?, OrderDomain(input.u64()?)),
            3 => Scope::Object(ObjectId::new(Namespace::new(namespace)?, Name::copy_from(input.short()?)?)),
            _ => return Err(damaged("the file of claims")),
        };
        claims.record(&scope, epoch, writer)?;
    }
    Ok(claims)
}

fn start(magic: &[u8; 8]) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    bytes.extend(FORMAT.to_le_bytes());
    bytes
}

fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = crc32fast::hash(&bytes);
    bytes.extend(crc.to_le_bytes());
    bytes
}

/// Checks magic number, checksum and format. Returns the fields after them.
fn open<'a>(bytes: &'a [u8], magic: &[u8; 8], what: &'static str) -> Result<Input<'a>> {
    let (body, crc) = bytes.split_last_chunk::<4>().ok_or_else(|| damaged(what))?;
    if !body.starts_with(magic) || crc32fast::hash(body) != u32::from_le_bytes(*crc) {
        return Err(damaged(what));
    }
    let mut input = Input { rest: &body[magic.len()..], what };
    let text = match input.u32()? {
        FORMAT => return Ok(input),
        0 => return Err(damaged(what)),
        format if format > FORMAT => {
            format!("{what} has format {format}; this program reads format {FORMAT}: use a newer one")
        }
        format => format!(
            "{what} has format {format}, of an earlier program; this one reads format {FORMAT}: copy the \
             objects out with the program that wrote them and into an empty directory with this one"
        ),
    };
    Err(Error::Unsupported(text.into()))
}

fn damaged(what: &'static str) -> Error {
    Error::Corrupt(format!("{what} fails its checks").into())
}

struct Input<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or_else(|| damaged(self.what))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or_else(|| damaged(self.what))?;
        self.rest = rest;
        Ok(*taken)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn short(&mut self) -> Result<&'a [u8]> {
        let len = self.take(1)?[0];
        self.take(usize::from(len))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_superblock_comes_back_and_other_formats_are_refused() {
        let superblock = Superblock { clean: true, boot: 7, version_floor: 1 << 41 };
        let mut bytes = superblock.encode();
        assert_eq!(Superblock::decode(&bytes), Ok(superblock));
        bytes.truncate(bytes.len() - 4);
        for (format, way_on) in [(1, "copy the objects out"), (3, "use a newer one")] {
            bytes[8] = format;
            let refused = Superblock::decode(&seal(bytes.clone())).unwrap_err();
            assert_eq!(refused.kind(), "unsupported");
            let text = refused.to_string();
            assert!(text.contains(&format!("format {format}")) && text.contains(way_on), "{text}");
        }
    }

    #[test]
    fn claims_come_back() {
        let namespace = Namespace::new("n").unwrap();
        let object = ObjectId::new(namespace.clone(), Name::new(vec![0; 255]).unwrap());
        let mut claims = Claims::default();
        let writer = Some(WriterId(u128::MAX - 7));
        claims.record(&Scope::Object(object), Epoch(3), writer).unwrap();
        claims.record(&Scope::Domain(namespace.clone(), OrderDomain(5)), Epoch(4), writer).unwrap();
        claims.record(&Scope::Namespace(namespace), Epoch(2), None).unwrap();
        claims.record(&Scope::All, Epoch(u64::MAX), writer).unwrap();
        let back = decode_claims(&encode_claims(&claims)).unwrap();
        let sorted = |claims: &Claims| {
            let mut all: Vec<_> = claims.iter().map(|claim| format!("{claim:?}")).collect();
            all.sort();
            all
        };
        assert_eq!(sorted(&back), sorted(&claims));
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_without_a_panic(
            body in prop::collection::vec(any::<u8>(), 0..300), magic in 0..3,
        ) {
            // Most inputs have a correct magic number and checksum, so that the fields are reached.
            let bytes = match magic {
                0 => body,
                1 => seal([start(CLAIMS_MAGIC), body].concat()),
                _ => seal([start(SUPERBLOCK_MAGIC), body].concat()),
            };
            let _ = decode_claims(&bytes);
            let _ = Superblock::decode(&bytes);
        }
    }
}
