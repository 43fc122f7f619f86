//! Signatures of chunks: each follows from the one before, the first from the request's.

use super::canonical::{EMPTY_SHA256, push_hex};
use super::signing_key::SigningKey;

/// Verifies the signatures of chunks in order.
#[derive(Debug)]
pub(crate) struct Chain {
    key: SigningKey,
    /// The time and the scope, a line each.
    lines: Vec<u8>,
    previous: [u8; 32],
}

impl Chain {
    /// Returns the chain that begins with a request's signature.
    pub(crate) fn new(key: SigningKey, stamp: &[u8], scope: &str, signature: &[u8; 32]) -> Chain {
        let lines = [stamp, b"\n", scope.as_bytes(), b"\n"].concat();
        Chain { key, lines, previous: *signature }
    }

    /// Returns whether a signature is that of the next chunk, whose bytes have this hash.
    pub(crate) fn is_next(&mut self, hash: &[u8; 32], signature: &[u8; 32]) -> bool {
        let mut text = self.begin(b"AWS4-HMAC-SHA256-PAYLOAD\n");
        text.extend_from_slice(EMPTY_SHA256.as_bytes());
        text.push(b'\n');
        self.check(text, hash, signature)
    }

    /// Returns whether a signature is that of the trailer, whose lines have this hash.
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
