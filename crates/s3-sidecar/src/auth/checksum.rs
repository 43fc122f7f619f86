//! Checksums of bodies that come in trailers.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use crc_fast::CrcAlgorithm;
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// A checksum that is being made.
pub(crate) enum Checksum {
    /// CRC-32, CRC-32C or CRC-64/NVME.
    Crc {
        /// The header's name.
        name: &'static str,
        /// Its length in bytes.
        len: usize,
        /// The bytes until now.
        digest: Box<crc_fast::Digest>,
    },
    /// SHA-1.
    Sha1(Sha1),
    /// SHA-256.
    Sha256(Sha256),
}

impl Checksum {
    /// Returns the checksum with this header, in lower case. `None` if it is not known.
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

    /// Takes the next bytes.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The check values of the CRC catalogue, and of RFC 3174 and FIPS 180, for "123456789" and "abc".
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
}
