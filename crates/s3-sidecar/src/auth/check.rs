//! Verifies a body on its way to the endpoint. Its last bytes are withheld until all of it is verified: the endpoint, which knows how
//! much is to come, keeps nothing of a body that ends before.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use hyper::body::SizeHint;
use sha2::{Digest, Sha256};

use super::chunked::Decoder;
use super::denial::Denial;
use super::encoder::Encoder;

/// What a body is found to be, for the task that waits for the endpoint's answer: nothing while it is right.
pub(crate) type Verdict = Arc<OnceLock<Denial>>;

/// Verifies a body.
#[derive(Debug)]
pub(crate) struct Check {
    kind: Kind,
    /// What may go on, but for the last of it.
    ready: VecDeque<Bytes>,
    has_ended: bool,
    /// The length of what goes on, if it is known.
    len: Option<u64>,
    verdict: Verdict,
}

#[derive(Debug)]
enum Kind {
    /// It has this hash.
    Hash(Box<Sha256>, [u8; 32]),
    /// It comes in chunks, and goes on without them, or in others.
    Chunked(Box<Decoder>, Option<Encoder>),
}

impl Check {
    /// Returns the check of a body with this hash, and this length if it is known.
    pub(crate) fn hash(expected: [u8; 32], len: Option<u64>) -> Check {
        Self::new(Kind::Hash(Box::default(), expected), len)
    }

    /// Returns the check of a body in chunks of so many bytes. Where it has a checksum at its end it goes on with it.
    pub(crate) fn chunked(decoder: Decoder, len: u64) -> Check {
        let encoded = decoder.checksum().map(|checksum| Encoder::encoded_len(len, checksum));
        let encoder = decoder.checksum().map(|_| Encoder::new(len));
        Self::new(Kind::Chunked(Box::new(decoder), encoder), Some(encoded.unwrap_or(len)))
    }

    fn new(kind: Kind, len: Option<u64>) -> Check {
        Check { kind, ready: VecDeque::new(), has_ended: false, len, verdict: Verdict::default() }
    }

    /// Returns where it is stated what was wrong.
    pub(crate) fn verdict(&self) -> Verdict {
        Arc::clone(&self.verdict)
    }

    /// Returns the length in bytes of what goes on, if it is known.
    pub(crate) fn len(&self) -> Option<u64> {
        self.len
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// What is wrong with the body; the verdict states it too.
    pub(crate) fn push(&mut self, bytes: Bytes) -> Result<(), Denial> {
        let taken = match &mut self.kind {
            Kind::Hash(hash, _) => {
                hash.update(&bytes);
                self.ready.push_back(bytes);
                Ok(())
            }
            Kind::Chunked(decoder, None) => decoder.push(bytes, &mut self.ready),
            Kind::Chunked(decoder, Some(encoder)) => {
                let mut body = VecDeque::new();
                let taken = decoder.push(bytes, &mut body);
                body.into_iter().for_each(|part| encoder.push(part, &mut self.ready));
                taken
            }
        };
        taken.map_err(|denial| self.refuse(denial))
    }

    /// Ends the body.
    ///
    /// # Errors
    /// As of `push`.
    pub(crate) fn finish(&mut self) -> Result<(), Denial> {
        let ended = match &mut self.kind {
            Kind::Hash(hash, expected) => match hash.finalize_reset() == *expected {
                true => Ok(()),
                false => Err(Denial::hash()),
            },
            Kind::Chunked(decoder, _) => decoder.finish().inspect(|()| {
                if let Some(checksum) = decoder.checksum() {
                    Encoder::finish(checksum, &mut self.ready);
                }
            }),
        };
        ended.map_err(|denial| self.refuse(denial))?;
        self.has_ended = true;
        Ok(())
    }

    fn refuse(&mut self, denial: Denial) -> Denial {
        self.ready.clear();
        // Only the first is stated.
        let _ = self.verdict.set(denial.clone());
        denial
    }

    /// Returns the next bytes that may go on.
    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        while self.ready.front().is_some_and(Bytes::is_empty) {
            self.ready.pop_front();
        }
        // An empty part behind it would not hold anything back.
        let has_more = self.has_ended || self.ready.iter().skip(1).any(|part| !part.is_empty());
        if has_more { self.ready.pop_front() } else { None }
    }

    /// Returns whether the body was right, and all of it has gone on.
    pub(crate) fn is_done(&self) -> bool {
        self.has_ended && self.ready.iter().all(Bytes::is_empty)
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        match self.len {
            // Only asked for before anything has gone on.
            Some(len) => SizeHint::with_exact(len),
            None => SizeHint::default(),
        }
    }
}
