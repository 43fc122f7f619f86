//! Finding spaces, and words between them: the inner loops of the text decoders.

use memchr::memchr;

/// The word that starts at or after `at`, past any spaces: where it begins and where it ends.
///
/// Keys are short, so eight bytes at a time inline beat a call of `memchr`.
#[inline]
pub(crate) fn next_word(line: &[u8], mut at: usize) -> Option<(usize, usize)> {
    while *line.get(at)? == b' ' {
        at += 1;
    }
    Some((at, at + word_len(&line[at..])))
}

/// Bytes before the first space, or all of them.
#[inline]
pub(crate) fn word_len(text: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const SPACES: u64 = ONES * b' ' as u64;
    let mut chunks = text.chunks_exact(8);
    let mut len = 0;
    for chunk in &mut chunks {
        let word = u64::from_le_bytes(chunk.try_into().expect("chunks of eight")) ^ SPACES;
        // The lowest set bit marks the first zero byte, that is, the first space.
        let zero = word.wrapping_sub(ONES) & !word & (ONES << 7);
        if zero != 0 {
            return len + zero.trailing_zeros() as usize / 8;
        }
        len += 8;
        if len >= 64 {
            // A long word after all.
            return memchr(b' ', &text[len..]).map_or(text.len(), |more| len + more);
        }
    }
    let tail = chunks.remainder();
    len + tail.iter().position(|byte| *byte == b' ').unwrap_or(tail.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_end_at_the_first_space() {
        for len in 0..200 {
            let mut text = vec![b'!'; len];
            assert_eq!(word_len(&text), len);
            text.extend_from_slice(b" x ");
            assert_eq!(word_len(&text), len, "a space at {len}");
        }
        assert_eq!(next_word(b"  ab c", 0), Some((2, 4)));
        assert_eq!(next_word(b"  ab c", 4), Some((5, 6)));
        assert_eq!(next_word(b"  ab c", 6), None);
        assert_eq!(next_word(b"   ", 0), None);
    }
}
