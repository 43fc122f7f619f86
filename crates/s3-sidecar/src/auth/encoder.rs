//! Writes a body with a checksum at its end, in unsigned chunks, for an endpoint that is to keep the checksum.

use std::collections::VecDeque;

use bytes::Bytes;

use super::checksum::Checksum;

/// The length of a chunk in bytes: endpoints take from 8 KiB to 16 MiB.
const CHUNK_BYTES: u64 = 1 << 20;

/// Writes a body.
#[derive(Debug)]
pub(crate) struct Encoder {
    /// How many bytes of the body are still to come, and how many of the chunk that is being written.
    left: (u64, u64),
}

impl Encoder {
    /// Returns what writes a body of so many bytes.
    pub(crate) const fn new(len: u64) -> Encoder {
        Encoder { left: (len, 0) }
    }

    /// Returns the length in bytes of what is written for a body of so many.
    pub(crate) fn encoded_len(len: u64, checksum: &Checksum) -> u64 {
        let framed = |chunk: u64| format!("{chunk:x}").len() as u64 + chunk + 4;
        let rest = match len % CHUNK_BYTES {
            0 => 0,
            rest => framed(rest),
        };
        let trailer = "0\r\n:\r\n\r\n".len() + checksum.name().len() + checksum.text_len();
        (len / CHUNK_BYTES).saturating_mul(framed(CHUNK_BYTES)).saturating_add(rest + trailer as u64)
    }

    /// Writes the next bytes of the body, of which no more may come than were announced.
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

    /// Writes the end.
    pub(crate) fn finish(checksum: &Checksum, into: &mut VecDeque<Bytes>) {
        into.push_back(format!("0\r\n{}:{}\r\n\r\n", checksum.name(), checksum.text()).into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::chunked::Decoder;

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
