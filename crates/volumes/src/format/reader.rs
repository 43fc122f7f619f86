//! Reading numbers and texts from bytes that nothing is known about, and sealing what is written.

use std::ops::RangeInclusive;

/// Bytes with a checksum: what is left to read of them.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

/// Returns `bytes` with their checksum after them.
pub(super) fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// Appends a text with its length before it.
pub(super) fn put_text(into: &mut Vec<u8>, text: &str) {
    let len = u16::try_from(text.len()).expect("names have at most 200 bytes");
    into.extend_from_slice(&len.to_le_bytes());
    into.extend_from_slice(text.as_bytes());
}

impl<'a> Reader<'a> {
    /// Returns a reader of what [`sealed`] has made, after its magic and version.
    pub(super) fn open(bytes: &'a [u8], magic: &[u8; 8], version: u32) -> Result<Self, String> {
        Self::open_one_of(bytes, magic, version..=version).map(|(reader, _)| reader)
    }

    /// As [`Self::open`], of several versions; returns the one that it is.
    pub(super) fn open_one_of(
        bytes: &'a [u8],
        magic: &[u8; 8],
        versions: RangeInclusive<u32>,
    ) -> Result<(Self, u32), String> {
        let (content, sum) = bytes.split_last_chunk::<4>().ok_or("it is too short")?;
        let (found, rest) = content.split_first_chunk::<8>().ok_or("it is too short")?;
        if found != magic {
            return Err("it begins with other bytes".into());
        }
        let mut reader = Self { rest };
        let found = reader.u32()?;
        if !versions.contains(&found) {
            return Err(format!(
                "it has format {found}; this program knows formats up to {}",
                versions.end()
            ));
        }
        if crc32fast::hash(content) != u32::from_le_bytes(*sum) {
            return Err("its checksum is wrong".into());
        }
        Ok((reader, found))
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or("it ends too early")?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, String> {
        Ok(self.take::<1>()?[0])
    }

    pub(super) fn u32(&mut self) -> Result<u32, String> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, String> {
        self.take().map(u64::from_le_bytes)
    }

    pub(super) fn u128(&mut self) -> Result<u128, String> {
        self.take().map(u128::from_le_bytes)
    }

    /// Returns a text of at most `NAME_BYTES_MAX` bytes.
    pub(super) fn text(&mut self) -> Result<String, String> {
        let len = usize::from(u16::from_le_bytes(self.take()?));
        if len > super::NAME_BYTES_MAX || len > self.rest.len() {
            return Err("a name in it is too long".into());
        }
        let (text, rest) = self.rest.split_at(len);
        self.rest = rest;
        String::from_utf8(text.to_vec()).map_err(|_| "a name in it is no UTF-8".into())
    }

    /// Returns a number of things, at most `max`, each of which takes at least `bytes_min` of what follows.
    pub(super) fn count(&mut self, max: usize, bytes_min: usize) -> Result<usize, String> {
        let count = self.u32()? as usize;
        if count > max || count.saturating_mul(bytes_min) > self.rest.len() {
            return Err("it has a count beyond its length".into());
        }
        Ok(count)
    }

    /// Checks that nothing is left.
    pub(super) fn end(self) -> Result<(), String> {
        if self.rest.is_empty() { Ok(()) } else { Err("it has bytes after its end".into()) }
    }
}
