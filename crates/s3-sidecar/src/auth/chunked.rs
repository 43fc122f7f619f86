//! Bodies in S3's chunked encoding (`aws-chunked`), decoded and encoded as they arrive, without
//! copies and with constant memory; and the checksums in their trailers.

use std::collections::VecDeque;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::{Buf, Bytes};
use crc_fast::{CrcParams, checksum_with_params};
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::denial::Denial;
use super::signature::{EMPTY_SHA256, SigningKey, parse_hex, push_hex};

/// The maximum length, in bytes, of a line before a chunk or in the trailer. A length and a
/// signature take about 100 bytes.
const LINE_BYTES_MAX: usize = 512;

/// Decodes a body.
#[derive(Debug)]
pub(crate) struct Decoder {
    state: State,
    /// The line being read.
    line: Vec<u8>,
    /// The remaining bytes of the body.
    left: u64,
    chain: Option<Chain>,
    /// Whether each chunk has a signature, verified or not.
    is_signed: bool,
    checksum: Option<Checksum>,
    hash: Sha256,
    /// The signature of the current chunk.
    signature: [u8; 32],
    /// The value of the trailer's checksum, once read.
    trailer: Option<Vec<u8>>,
    /// Whether the checksum's line ended with only LF, as MinIO's SDK for Go sends it. In that case
    /// an extra empty line follows.
    has_extra_line: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In the line before a chunk.
    Length,
    /// In a chunk, with this many bytes left.
    Data(u64),
    /// Before the line end after a chunk.
    DataEnd,
    /// In a line of the trailer, or in the empty line after the trailer.
    Trailer,
    /// After the trailer's signature.
    TrailerEnd,
    /// After the end.
    End,
}

impl Decoder {
    /// Returns a decoder for a body of this length. `chain` verifies the signatures of chunks; with
    /// `is_signed` but without `chain`, signatures are read but not verified. `checksum` is the
    /// checksum in the trailer, if a trailer is expected.
    pub(crate) fn new(
        len: u64,
        is_signed: bool,
        chain: Option<Chain>,
        checksum: Option<Checksum>,
    ) -> Decoder {
        Decoder {
            state: State::Length,
            line: Vec::new(),
            left: len,
            chain,
            is_signed,
            checksum,
            hash: Sha256::new(),
            signature: [0; 32],
            trailer: None,
            has_extra_line: false,
        }
    }

    /// Decodes the next bytes, and appends the body's bytes to `into`.
    ///
    /// # Errors
    /// [`Denial`] if the body cannot be decoded, or differs from the signed body. Nothing more can
    /// be decoded afterwards.
    pub(crate) fn push(&mut self, mut bytes: Bytes, into: &mut VecDeque<Bytes>) -> Result<(), Denial> {
        while !bytes.is_empty() {
            if let State::Data(left) = self.state {
                let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                let data = bytes.split_to(here);
                if self.chain.is_some() {
                    self.hash.update(&data);
                }
                self.checksum.iter_mut().for_each(|checksum| checksum.update(&data));
                self.left -= here as u64;
                self.state = match left - here as u64 {
                    0 => State::DataEnd,
                    left => State::Data(left),
                };
                if self.state == State::DataEnd {
                    self.verify_chunk()?;
                }
                into.push_back(data);
                continue;
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let here = end.map_or(bytes.len(), |at| at + 1);
            if self.state == State::End || self.line.len() + here > LINE_BYTES_MAX {
                return Err(Denial::Encoding(
                    "the aws-chunked body has a line that is too long, or continues after its end",
                ));
            }
            self.line.extend_from_slice(&bytes[..here]);
            bytes.advance(here);
            if end.is_some() {
                let line = std::mem::take(&mut self.line);
                let is_checksum = self.state == State::Trailer && self.trailer.is_none() && line.len() > 1;
                let stripped = line.strip_suffix(b"\r\n").or_else(|| {
                    self.has_extra_line = is_checksum;
                    line.strip_suffix(b"\n").filter(|_| is_checksum)
                });
                let wrong = Denial::Encoding("a line of the aws-chunked body must end with CRLF");
                self.take_line(stripped.ok_or(wrong)?)?;
            }
        }
        Ok(())
    }

    /// Checks that the body is complete.
    ///
    /// # Errors
    /// [`Denial`] if the body is incomplete.
    pub(crate) fn finish(&self) -> Result<(), Denial> {
        match self.state {
            State::End if self.left == 0 => Ok(()),
            _ => Err(Denial::Incomplete("the aws-chunked body ended early")),
        }
    }

    /// Returns the body's checksum, if one was expected.
    pub(crate) fn checksum(&self) -> Option<&Checksum> {
        self.checksum.as_ref()
    }

    fn take_line(&mut self, line: &[u8]) -> Result<(), Denial> {
        match self.state {
            State::Length => self.begin_chunk(line),
            State::DataEnd if line.is_empty() => {
                self.state = State::Length;
                Ok(())
            }
            State::Trailer => self.take_trailer(line),
            State::TrailerEnd if line.is_empty() => {
                self.state = State::End;
                Ok(())
            }
            _ => Err(Denial::Encoding("a chunk of the aws-chunked body is longer than its announced length")),
        }
    }

    fn begin_chunk(&mut self, line: &[u8]) -> Result<(), Denial> {
        let wrong =
            || Denial::Encoding("a chunk must begin with its length, and its signature if chunks are signed");
        let digits = match self.is_signed {
            false => line,
            true => {
                let at = line.iter().position(|byte| *byte == b';').ok_or_else(wrong)?;
                let signature = line[at..].strip_prefix(b";chunk-signature=").ok_or_else(wrong)?;
                self.signature = parse_hex(signature).ok_or_else(wrong)?;
                &line[..at]
            }
        };
        let is_length = (1..=16).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
        let text = std::str::from_utf8(digits).ok().filter(|_| is_length).ok_or_else(wrong)?;
        let len = u64::from_str_radix(text, 16).map_err(|_| wrong())?;
        if len > self.left {
            return Err(Denial::Incomplete("the chunks are longer than x-amz-decoded-content-length"));
        }
        if len > 0 {
            self.state = State::Data(len);
            return Ok(());
        }
        self.verify_chunk()?;
        self.state = State::Trailer;
        Ok(())
    }

    fn verify_chunk(&mut self) -> Result<(), Denial> {
        let Some(chain) = &mut self.chain else { return Ok(()) };
        let hash = self.hash.finalize_reset().into();
        if chain.is_next(&hash, &self.signature) { Ok(()) } else { Err(Denial::Chunk) }
    }

    /// Handles a line after the last chunk: the checksum, its signature, or the empty line at the
    /// end.
    fn take_trailer(&mut self, line: &[u8]) -> Result<(), Denial> {
        const WRONG: Denial = Denial::Trailer(
            "the trailer must contain the checksum that x-amz-trailer announces, and a signature if chunks are signed",
        );
        let Some(checksum) = &self.checksum else {
            self.state = State::End;
            return if line.is_empty() { Ok(()) } else { Err(WRONG) };
        };
        if line.is_empty() && std::mem::take(&mut self.has_extra_line) {
            return Ok(());
        }
        if line.is_empty() {
            self.state = State::End;
            // A signed trailer would have continued in `TrailerEnd`.
            return if self.trailer.is_some() && !self.is_signed { Ok(()) } else { Err(WRONG) };
        }
        let at = line.iter().position(|byte| *byte == b':').ok_or(WRONG)?;
        let (name, value) = (line[..at].to_ascii_lowercase(), trimmed(&line[at + 1..]));
        match &self.trailer {
            None if name == checksum.name().as_bytes() => {
                if value != checksum.text().as_bytes() {
                    return Err(Denial::Checksum);
                }
                self.trailer = Some(value.to_vec());
                Ok(())
            }
            Some(text) if self.is_signed && !self.has_extra_line && name == b"x-amz-trailer-signature" => {
                let signature = parse_hex(value).ok_or(WRONG)?;
                let canonical = [checksum.name().as_bytes(), b":", text, b"\n"].concat();
                let is_right =
                    |chain: &mut Chain| chain.is_trailer(&Sha256::digest(&canonical).into(), &signature);
                self.state = State::TrailerEnd;
                if self.chain.as_mut().is_none_or(is_right) { Ok(()) } else { Err(Denial::Chunk) }
            }
            _ => Err(WRONG),
        }
    }
}

/// Returns a value without surrounding spaces and tabs.
fn trimmed(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Verifies the signatures of chunks in order.
#[derive(Debug)]
pub(crate) struct Chain {
    key: SigningKey,
    /// The time and the scope, one line each.
    lines: Vec<u8>,
    previous: [u8; 32],
}

impl Chain {
    /// Returns the chain that begins with the request's signature.
    pub(crate) fn new(key: SigningKey, stamp: &[u8], scope: &str, signature: &[u8; 32]) -> Chain {
        let lines = [stamp, b"\n", scope.as_bytes(), b"\n"].concat();
        Chain { key, lines, previous: *signature }
    }

    /// Returns whether this is the signature of the next chunk, whose bytes have this hash.
    pub(crate) fn is_next(&mut self, hash: &[u8; 32], signature: &[u8; 32]) -> bool {
        let before_hash = [EMPTY_SHA256.as_bytes(), b"\n"].concat();
        self.check(b"AWS4-HMAC-SHA256-PAYLOAD\n", &before_hash, hash, signature)
    }

    /// Returns whether this is the signature of the trailer, whose lines have this hash.
    pub(crate) fn is_trailer(&mut self, hash: &[u8; 32], signature: &[u8; 32]) -> bool {
        self.check(b"AWS4-HMAC-SHA256-TRAILER\n", b"", hash, signature)
    }

    fn check(&mut self, algorithm: &[u8], before_hash: &[u8], hash: &[u8], signature: &[u8; 32]) -> bool {
        let mut text = [algorithm, &self.lines].concat();
        push_hex(&mut text, &self.previous);
        text.push(b'\n');
        text.extend_from_slice(before_hash);
        push_hex(&mut text, hash);
        self.previous = *signature;
        self.key.is_signature(&text, signature)
    }
}

/// The checksum of a body, in progress.
pub(crate) struct Checksum {
    /// The header's name.
    name: &'static str,
    /// The checksum's length in bytes.
    len: usize,
    digest: ChecksumDigest,
}

enum ChecksumDigest {
    /// CRC-32, CRC-32C or CRC-64/NVME.
    Crc(Box<Crc>),
    Sha1(Sha1),
    Sha256(Sha256),
}

impl Checksum {
    /// Returns the checksum for this header name, in lower case; `None` if it is unknown.
    pub(crate) fn named(name: &str) -> Option<Checksum> {
        let crc = |width, polynomial| ChecksumDigest::Crc(Box::new(Crc::new(width, polynomial)));
        let (name, len, digest) = match name {
            "x-amz-checksum-crc32" => ("x-amz-checksum-crc32", 4, crc(32, 0x04c1_1db7)),
            "x-amz-checksum-crc32c" => ("x-amz-checksum-crc32c", 4, crc(32, 0x1edc_6f41)),
            "x-amz-checksum-crc64nvme" => ("x-amz-checksum-crc64nvme", 8, crc(64, 0xad93_d235_94c9_3659)),
            "x-amz-checksum-sha1" => ("x-amz-checksum-sha1", 20, ChecksumDigest::Sha1(Sha1::new())),
            "x-amz-checksum-sha256" => ("x-amz-checksum-sha256", 32, ChecksumDigest::Sha256(Sha256::new())),
            _ => return None,
        };
        Some(Checksum { name, len, digest })
    }

    /// Returns the header's name.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the length of the header's value in bytes.
    fn text_len(&self) -> usize {
        self.len.div_ceil(3) * 4
    }

    /// Adds bytes.
    fn update(&mut self, bytes: &[u8]) {
        match &mut self.digest {
            ChecksumDigest::Crc(crc) => crc.update(bytes),
            ChecksumDigest::Sha1(hash) => hash.update(bytes),
            ChecksumDigest::Sha256(hash) => hash.update(bytes),
        }
    }

    /// Returns the header's value.
    pub(crate) fn text(&self) -> String {
        match &self.digest {
            ChecksumDigest::Crc(crc) => BASE64_STANDARD.encode(&crc.value().to_be_bytes()[8 - self.len..]),
            ChecksumDigest::Sha1(hash) => BASE64_STANDARD.encode(hash.clone().finalize()),
            ChecksumDigest::Sha256(hash) => BASE64_STANDARD.encode(hash.clone().finalize()),
        }
    }
}

/// A reflected CRC in progress, which begins with ones and is inverted at the end. The state is the initial
/// value of the next bytes: `crc_fast::Digest` would compile all of its algorithms in this crate.
struct Crc(CrcParams);

impl Crc {
    fn new(width: u8, polynomial: u64) -> Crc {
        Crc(CrcParams::new("of a body", width, polynomial, ones(width), true, 0, 0))
    }

    fn update(&mut self, bytes: &[u8]) {
        self.0.init_algorithm = checksum_with_params(self.0, bytes);
    }

    fn value(&self) -> u64 {
        self.0.init_algorithm ^ ones(self.0.width)
    }
}

/// Returns a number of `width` ones.
fn ones(width: u8) -> u64 {
    u64::MAX >> (64 - width)
}

impl std::fmt::Debug for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Checksum").field(&self.name).finish()
    }
}

/// The length of a chunk in bytes: endpoints accept 8 KiB to 16 MiB.
const CHUNK_BYTES: u64 = 1 << 20;

/// Encodes a body in unsigned chunks, with a checksum in the trailer.
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

    /// The check values of the CRC catalogue, and of RFC 3174 and FIPS 180, for "123456789" and
    /// "abc". The CRCs of `many` bytes, which crc-fast computes in another way, are by the definition, bit
    /// by bit.
    #[test]
    fn checksums_are_the_documented_ones() {
        let many = "123456789".repeat(1000);
        for (name, bytes, text) in [
            ("x-amz-checksum-crc32", "123456789", "y/Q5Jg=="),
            ("x-amz-checksum-crc32", many.as_str(), "QHWJzw=="),
            ("x-amz-checksum-crc32c", "123456789", "4waSgw=="),
            ("x-amz-checksum-crc32c", many.as_str(), "1gE1HQ=="),
            ("x-amz-checksum-crc64nvme", "123456789", "rosUhgp5mIg="),
            ("x-amz-checksum-crc64nvme", many.as_str(), "lmQXZ7Clebc="),
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
