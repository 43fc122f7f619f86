//! Checksums of bodies, as sent in trailers.

use std::collections::VecDeque;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use crc_fast::CrcAlgorithm;
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// A checksum in progress.
pub(crate) enum Checksum {
    /// CRC-32, CRC-32C or CRC-64/NVME.
    Crc {
        /// The header's name.
        name: &'static str,
        /// Its length in bytes.
        len: usize,
        /// The digest so far.
        digest: Box<crc_fast::Digest>,
    },
    /// SHA-1.
    Sha1(Sha1),
    /// SHA-256.
    Sha256(Sha256),
}

impl Checksum {
    /// Returns the checksum for this header name, in lower case; `None` if it is unknown.
    pub(crate) fn named(name: &str) -> Option<Checksum> {
        let crc = |name, len, algorithm| Checksum::Crc {
            name,
            len,
            digest: Box::new(crc_fast::Digest::new(algorithm)),
        };
        Some(match name {
            "x-amz-checksum-crc32" => crc("x-amz-checksum-crc32", 4, CrcAlgorithm::Crc32IsoHdlc),
            "x-amz-checksum-crc32c" => crc("x-amz-checksum-crc32c", 4, CrcAlgorithm::Crc32Iscsi),
            "x-amz-checksum-crc64nvme" => crc("x-amz-checksum-crc64nvme", 8, CrcAlgorithm::Crc64Nvme),
            "x-amz-checksum-sha1" => Checksum::Sha1(Sha1::new()),
            "x-amz-checksum-sha256" => Checksum::Sha256(Sha256::new()),
            _ => return None,
        })
    }

    /// Returns the header's name.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Checksum::Crc { name, .. } => name,
            Checksum::Sha1(_) => "x-amz-checksum-sha1",
            Checksum::Sha256(_) => "x-amz-checksum-sha256",
        }
    }

    /// Returns the length of the header's value in bytes.
    pub(crate) fn text_len(&self) -> usize {
        let len: usize = match self {
            Checksum::Crc { len, .. } => *len,
            Checksum::Sha1(_) => 20,
            Checksum::Sha256(_) => 32,
        };
        len.div_ceil(3) * 4
    }

    /// Adds bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Checksum::Crc { digest, .. } => digest.update(bytes),
            Checksum::Sha1(hash) => hash.update(bytes),
            Checksum::Sha256(hash) => hash.update(bytes),
        }
    }

    /// Returns the header's value.
    pub(crate) fn text(&self) -> String {
        match self {
            Checksum::Crc { len, digest, .. } => {
                BASE64_STANDARD.encode(&digest.finalize().to_be_bytes()[8 - len..])
            }
            Checksum::Sha1(hash) => BASE64_STANDARD.encode(hash.clone().finalize()),
            Checksum::Sha256(hash) => BASE64_STANDARD.encode(hash.clone().finalize()),
        }
    }
}

impl std::fmt::Debug for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Checksum").field(&self.name()).finish()
    }
}

/// The length of a chunk in bytes: endpoints accept 8 KiB to 16 MiB.
const CHUNK_BYTES: u64 = 1 << 20;

/// Encodes a body in chunks.
#[derive(Debug)]
pub(crate) struct Encoder {
    /// The remaining bytes of the body, and of the current chunk.
    left: (u64, u64),
}

impl Encoder {
    /// Returns an encoder for a body of this length.
    pub(crate) const fn new(len: u64) -> Encoder {
        Encoder { left: (len, 0) }
    }

    /// Returns the encoded length of a body of this length.
    pub(crate) fn encoded_len(len: u64, checksum: &Checksum) -> u64 {
        let framed = |chunk: u64| format!("{chunk:x}").len() as u64 + chunk + 4;
        let rest = match len % CHUNK_BYTES {
            0 => 0,
            rest => framed(rest),
        };
        let trailer = "0\r\n:\r\n\r\n".len() + checksum.name().len() + checksum.text_len();
        (len / CHUNK_BYTES).saturating_mul(framed(CHUNK_BYTES)).saturating_add(rest + trailer as u64)
    }

    /// Encodes the next bytes of the body, which must not exceed its announced length.
    pub(crate) fn push(&mut self, mut bytes: Bytes, into: &mut VecDeque<Bytes>) {
        while !bytes.is_empty() {
            let (body, chunk) = &mut self.left;
            if *chunk == 0 {
                *chunk = CHUNK_BYTES.min(*body);
                into.push_back(format!("{chunk:x}\r\n").into());
            }
            let here = usize::try_from(*chunk).unwrap_or(usize::MAX).min(bytes.len());
            into.push_back(bytes.split_to(here));
            *chunk -= here as u64;
            *body -= here as u64;
            if *chunk == 0 {
                into.push_back(Bytes::from_static(b"\r\n"));
            }
        }
    }

    /// Encodes the end.
    pub(crate) fn finish(checksum: &Checksum, into: &mut VecDeque<Bytes>) {
        into.push_back(format!("0\r\n{}:{}\r\n\r\n", checksum.name(), checksum.text()).into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::chunked::Decoder;

    /// The check values of the CRC catalogue, and of RFC 3174 and FIPS 180, for "123456789" and
    /// "abc".
    #[test]
    fn checksums_are_the_documented_ones() {
        for (name, bytes, text) in [
            ("x-amz-checksum-crc32", "123456789", "y/Q5Jg=="),
            ("x-amz-checksum-crc32c", "123456789", "4waSgw=="),
            ("x-amz-checksum-crc64nvme", "123456789", "rosUhgp5mIg="),
            ("x-amz-checksum-sha1", "abc", "qZk+NkcGgWq6PiVxeFDCbJzQ2J0="),
            ("x-amz-checksum-sha256", "abc", "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0="),
        ] {
            let mut checksum = Checksum::named(name).unwrap();
            let (first, rest) = bytes.as_bytes().split_at(2);
            checksum.update(first);
            checksum.update(rest);
            assert_eq!((checksum.name(), checksum.text().as_str()), (name, text));
            assert_eq!(checksum.text_len(), text.len());
        }
        assert!(Checksum::named("x-amz-checksum-md5").is_none());
    }

    #[test]
    fn what_is_written_is_as_long_as_announced_and_is_read_again() {
        for (len, step) in [(0, 1), (1, 1), (100_000, 7), (1 << 20, 65_536), ((2 << 20) + 5, 100_001)] {
            let body: Vec<u8> = (0..len).map(|at: usize| (at ^ (at >> 8)) as u8).collect();
            let mut checksum = Checksum::named("x-amz-checksum-crc32c").unwrap();
            checksum.update(&body);
            let (mut encoder, mut encoded) = (Encoder::new(len as u64), VecDeque::new());
            body.chunks(step).for_each(|part| encoder.push(Bytes::copy_from_slice(part), &mut encoded));
            Encoder::finish(&checksum, &mut encoded);
            let total: usize = encoded.iter().map(Bytes::len).sum();
            assert_eq!(total as u64, Encoder::encoded_len(len as u64, &checksum));
            let checksum = Checksum::named("x-amz-checksum-crc32c");
            let (mut decoder, mut read) = (Decoder::new(len as u64, false, None, checksum), VecDeque::new());
            encoded.into_iter().for_each(|part| decoder.push(part, &mut read).unwrap());
            decoder.finish().unwrap();
            assert_eq!(read.iter().flatten().copied().collect::<Vec<u8>>(), body);
        }
    }
}
