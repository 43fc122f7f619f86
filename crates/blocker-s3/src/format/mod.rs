//! The keys and bodies in the bucket. This module does no I/O: bytes are decoded or refused, never
//! trusted.

pub(crate) mod content;
pub(crate) mod head;
pub(crate) mod layout;

use bytes::{BufMut, Bytes, BytesMut};

/// Writes a number in groups of seven bits.
fn put_number(to: &mut BytesMut, mut number: u64) {
    while number >= 0x80 {
        to.put_u8(number as u8 | 0x80);
        number >>= 7;
    }
    to.put_u8(number as u8);
}

/// Sets the checksum of a body that begins with a magic number and four bytes for the checksum.
pub(crate) fn seal(mut body: BytesMut) -> Bytes {
    let crc = crc32fast::hash(&body[8..]);
    body[4..8].copy_from_slice(&crc.to_le_bytes());
    body.freeze()
}

/// Returns the bytes after the magic number and the checksum, if both are correct.
fn open(magic: &[u8; 4], bytes: &Bytes) -> Option<Reader> {
    let mut from = Reader(bytes.clone());
    let is_ours = from.bytes(4)? == magic[..];
    let crc = from.u32()?;
    (is_ours && crc == crc32fast::hash(&from.0)).then_some(from)
}

/// Reads values from the front of untrusted bytes.
struct Reader(Bytes);

impl Reader {
    fn bytes(&mut self, len: usize) -> Option<Bytes> {
        (len <= self.0.len()).then(|| self.0.split_to(len))
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.as_ref().try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn u128(&mut self) -> Option<u128> {
        self.array().map(u128::from_le_bytes)
    }

    /// Reads a number in groups of seven bits, at most 63 bits.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..63).step_by(7) {
            let byte = self.u8()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn count(&mut self, max: usize) -> Option<usize> {
        self.u16().map(usize::from).filter(|count| *count <= max)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
