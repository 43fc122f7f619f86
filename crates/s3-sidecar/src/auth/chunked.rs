//! Bodies in S3's chunked encoding (`aws-chunked`), decoded as they arrive, without copies and with
//! constant memory.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};
use sha2::{Digest, Sha256};

use super::canonical::{EMPTY_SHA256, parse_hex, push_hex};
use super::checksum::Checksum;
use super::denial::Denial;
use super::sign::SigningKey;

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
    /// [`Denial`] if the body cannot be decoded, or differs from what was signed. Nothing more can
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
                return Err(Denial::encoding(
                    "the aws-chunked body has a line too long, or goes on after its end",
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
                let line = stripped
                    .ok_or_else(|| Denial::encoding("a line of the aws-chunked body must end with CRLF"))?;
                self.take_line(line)?;
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
            _ => Err(Denial::incomplete("the aws-chunked body ended early")),
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
            _ => Err(Denial::encoding("a chunk of the aws-chunked body is longer than its length")),
        }
    }

    fn begin_chunk(&mut self, line: &[u8]) -> Result<(), Denial> {
        let wrong = || {
            Denial::encoding("a chunk must begin with its length, and its signature where chunks are signed")
        };
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
            return Err(Denial::incomplete("the chunks are longer than x-amz-decoded-content-length"));
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
        if chain.is_next(&hash, &self.signature) { Ok(()) } else { Err(Denial::chunk()) }
    }

    /// Handles a line after the last chunk: the checksum, its signature, or the empty line at the
    /// end.
    fn take_trailer(&mut self, line: &[u8]) -> Result<(), Denial> {
        let wrong = || {
            Denial::trailer(
                "the trailer must contain what x-amz-trailer announces, and a signature if the chunks are signed",
            )
        };
        let Some(checksum) = &self.checksum else {
            self.state = State::End;
            return if line.is_empty() { Ok(()) } else { Err(wrong()) };
        };
        if line.is_empty() && std::mem::take(&mut self.has_extra_line) {
            return Ok(());
        }
        if line.is_empty() {
            self.state = State::End;
            // A signed trailer would have continued in `TrailerEnd`.
            return if self.trailer.is_some() && !self.is_signed { Ok(()) } else { Err(wrong()) };
        }
        let at = line.iter().position(|byte| *byte == b':').ok_or_else(wrong)?;
        let (name, value) = (line[..at].to_ascii_lowercase(), trimmed(&line[at + 1..]));
        match &self.trailer {
            None if name == checksum.name().as_bytes() => {
                if value != checksum.text().as_bytes() {
                    return Err(Denial::checksum());
                }
                self.trailer = Some(value.to_vec());
                Ok(())
            }
            Some(text) if self.is_signed && !self.has_extra_line && name == b"x-amz-trailer-signature" => {
                let signature = parse_hex(value).ok_or_else(wrong)?;
                let canonical = [checksum.name().as_bytes(), b":", text, b"\n"].concat();
                let is_right =
                    |chain: &mut Chain| chain.is_trailer(&Sha256::digest(&canonical).into(), &signature);
                self.state = State::TrailerEnd;
                if self.chain.as_mut().is_none_or(is_right) { Ok(()) } else { Err(Denial::chunk()) }
            }
            _ => Err(wrong()),
        }
    }
}

/// Returns a value without surrounding blanks.
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
        let mut text = self.begin(b"AWS4-HMAC-SHA256-PAYLOAD\n");
        text.extend_from_slice(EMPTY_SHA256.as_bytes());
        text.push(b'\n');
        self.check(text, hash, signature)
    }

    /// Returns whether this is the signature of the trailer, whose lines have this hash.
    pub(crate) fn is_trailer(&mut self, hash: &[u8; 32], signature: &[u8; 32]) -> bool {
        let text = self.begin(b"AWS4-HMAC-SHA256-TRAILER\n");
        self.check(text, hash, signature)
    }

    fn begin(&self, algorithm: &[u8]) -> Vec<u8> {
        let mut text = Vec::with_capacity(320);
        text.extend_from_slice(algorithm);
        text.extend_from_slice(&self.lines);
        push_hex(&mut text, &self.previous);
        text.push(b'\n');
        text
    }

    fn check(&mut self, mut text: Vec<u8>, hash: &[u8; 32], signature: &[u8; 32]) -> bool {
        push_hex(&mut text, hash);
        self.previous = *signature;
        self.key.is_signature(&text, signature)
    }
}
