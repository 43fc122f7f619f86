//! Searching for spaces and the words between them: the inner loops of the text decoders.

/// Returns the start and the end of the first word at or after `at`, skipping spaces.
///
/// Keys are short, so inlined code for eight bytes at a time is faster than a call of `memchr`.
#[inline]
pub(crate) fn next_word(line: &[u8], mut at: usize) -> Option<(usize, usize)> {
    while *line.get(at)? == b' ' {
        at += 1;
    }
    Some((at, at + word_len(&line[at..])))
}

/// Returns the number of bytes before the first space, or of all bytes if there is no space.
#[inline]
pub(crate) fn word_len(text: &[u8]) -> usize {
    let mut rest = text;
    while let Some((chunk, tail)) = rest.split_first_chunk() {
        let spaces = spaces(chunk);
        if spaces != 0 {
            return text.len() - rest.len() + spaces.trailing_zeros() as usize;
        }
        rest = tail;
    }
    while let Some((chunk, tail)) = rest.split_first_chunk() {
        if let Some(at) = first_zero(u64::from_le_bytes(*chunk) ^ SPACES) {
            return text.len() - rest.len() + at;
        }
        rest = tail;
    }
    match text.last_chunk() {
        // Fewer than eight bytes remain: the last eight are checked again; the overlap contains no
        // space.
        Some(chunk) => {
            first_zero(u64::from_le_bytes(*chunk) ^ SPACES).map_or(text.len(), |at| text.len() - 8 + at)
        }
        None => text.iter().position(|byte| *byte == b' ').unwrap_or(text.len()),
    }
}

/// Fills `into` with the words that start at or after `at`. Returns their number and the position
/// to continue from.
///
/// Each block of 64 bytes becomes a bit mask of its spaces, and each bit ends a word. Per word,
/// that takes a fifth of the instructions of [`next_word`].
#[inline]
pub(crate) fn words<'a>(line: &'a [u8], at: usize, into: &mut [&'a [u8]]) -> (usize, usize) {
    let (mut count, mut start, mut base) = (0, at, at);
    while base < line.len() {
        let mut mask = mask_at(line, base, spaces);
        while mask != 0 {
            let end = base + mask.trailing_zeros() as usize;
            if end > start {
                let Some(place) = into.get_mut(count) else { return (count, start) };
                *place = &line[start..end];
                count += 1;
            }
            mask &= mask - 1;
            start = end + 1;
        }
        base += BLOCK;
    }
    if count < into.len() && start < line.len() {
        into[count] = &line[start..];
        return (count + 1, line.len());
    }
    (count, start)
}

/// Like [`words`], but only up to CRLF, and only if the words are plain (without control
/// characters) and fit. Returns their number and the position of the CRLF.
#[inline]
pub(crate) fn words_before_crlf<'a>(
    line: &'a [u8],
    at: usize,
    into: &mut [&'a [u8]],
) -> Option<(usize, usize)> {
    let (mut count, mut start, mut base) = (0, at, at);
    while base < line.len() {
        let mut mask = mask_at(line, base, blanks);
        while mask != 0 {
            let end = base + mask.trailing_zeros() as usize;
            if end > start {
                *into.get_mut(count)? = &line[start..end];
                count += 1;
            }
            if line[end] != b' ' {
                return line[end..].starts_with(b"\r\n").then_some((count, end));
            }
            mask &= mask - 1;
            start = end + 1;
        }
        base += BLOCK;
    }
    None
}

const BLOCK: usize = 64;

/// Returns a bit for each byte of the block at `base`, which lies before the line's end. `bits`
/// returns those of sixteen bytes.
#[inline(always)]
fn mask_at(line: &[u8], base: usize, bits: impl Fn(&[u8; 16]) -> u32) -> u64 {
    let mask_of = |block: &[u8; BLOCK]| {
        let (chunks, _) = block.as_chunks();
        chunks.iter().rev().fold(0, |mask, chunk| mask << 16 | u64::from(bits(chunk)))
    };
    let rest = &line[base..];
    if let Some(block) = rest.first_chunk() {
        return mask_of(block);
    }
    if let Some(block) = line.last_chunk() {
        // Less than a block remains, so the last block is used without the bytes before `base`.
        return mask_of(block) >> (BLOCK - rest.len());
    }
    // Bits after the end do not end a word.
    let mut block = [u8::MAX; BLOCK];
    block[..rest.len()].copy_from_slice(rest);
    mask_of(&block)
}

/// Returns the length of the word at the start of `text`, if it is plain (without control
/// characters) and followed by CRLF.
///
/// This decodes the usual `get key` without searching for the end of the line first. `None` says
/// nothing about the input.
#[inline]
pub(crate) fn word_before_crlf(text: &[u8]) -> Option<usize> {
    let at = first_blank(text)?;
    text[at..].starts_with(b"\r\n").then_some(at)
}

/// Returns the word at the start of `text`, if `text` consists of that word only.
#[inline]
pub(crate) fn plain_word(text: &[u8]) -> Option<&[u8]> {
    let len = first_blank(text)?;
    (len > 0).then(|| &text[..len])
}

/// Returns the position of the first byte that is a space or has a smaller value.
#[inline]
fn first_blank(text: &[u8]) -> Option<usize> {
    let mut rest = text;
    while let Some((chunk, tail)) = rest.split_first_chunk() {
        let blanks = blanks(chunk);
        if blanks != 0 {
            return Some(text.len() - rest.len() + blanks.trailing_zeros() as usize);
        }
        rest = tail;
    }
    match text.last_chunk() {
        // Fewer than sixteen bytes remain: the last sixteen are checked again; the overlap contains
        // no blank.
        Some(chunk) => match blanks(chunk) {
            0 => None,
            blanks => Some(text.len() - 16 + blanks.trailing_zeros() as usize),
        },
        None => text.iter().position(|byte| *byte <= b' '),
    }
}

/// Returns a bit for each of sixteen bytes that is a space or has a smaller value, the first in the
/// lowest bit.
#[inline]
fn blanks(chunk: &[u8; 16]) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{
            _mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set1_epi8, _mm_setzero_si128, _mm_subs_epu8,
        };
        // SAFETY: these need SSE2, which every x86-64 has, and touch no memory.
        unsafe {
            let above = _mm_subs_epu8(vector(chunk), _mm_set1_epi8(b' ' as i8));
            _mm_movemask_epi8(_mm_cmpeq_epi8(above, _mm_setzero_si128())) as u32
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        chunk.iter().enumerate().fold(0, |mask, (at, byte)| mask | u32::from(*byte <= b' ') << at)
    }
}

/// Loads sixteen bytes into a register.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn vector(chunk: &[u8; 16]) -> std::arch::x86_64::__m128i {
    let all = u128::from_le_bytes(*chunk);
    // SAFETY: it needs SSE2, which every x86-64 has, and touches no memory.
    unsafe { std::arch::x86_64::_mm_set_epi64x((all >> 64) as i64, all as i64) }
}

/// Returns a bit for each of sixteen bytes that is a space, the first in the lowest bit.
#[inline]
fn spaces(chunk: &[u8; 16]) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set1_epi8};
        // SAFETY: these need SSE2, which every x86-64 has, and touch no memory.
        unsafe { _mm_movemask_epi8(_mm_cmpeq_epi8(vector(chunk), _mm_set1_epi8(b' ' as i8))) as u32 }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        chunk.iter().enumerate().fold(0, |mask, (at, byte)| mask | u32::from(*byte == b' ') << at)
    }
}

const ONES: u64 = u64::MAX / 255;
const HIGH_BITS: u64 = ONES << 7;
const SPACES: u64 = ONES * b' ' as u64;

/// Returns the index of the first of eight bytes that is zero, counted from the lowest.
#[inline]
fn first_zero(word: u64) -> Option<usize> {
    let zero = word.wrapping_sub(ONES) & !word & HIGH_BITS;
    (zero != 0).then(|| zero.trailing_zeros() as usize / 8)
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
        for len in 0..40 {
            for start in 0..9 {
                // A leading space is not part of the word for any of the functions.
                let text = [&vec![b' '; start][..], &vec![b'!'; len], b" "].concat();
                assert_eq!(word_len(&text[start..]), len);
            }
        }
        assert_eq!(next_word(b"  ab c", 0), Some((2, 4)));
        assert_eq!(next_word(b"  ab c", 4), Some((5, 6)));
        assert_eq!(next_word(b"  ab c", 6), None);
        assert_eq!(next_word(b"   ", 0), None);
    }

    #[test]
    fn words_in_batches_are_the_words_one_by_one() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut below = |limit: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % limit
        };
        for round in 0..2000 {
            let mut line = Vec::new();
            for _ in 0..below(40) {
                line.resize(line.len() + below(4) + usize::from(round % 3 == 0), b' ');
                let len = if below(10) == 0 { below(250) } else { below(30) };
                line.resize(line.len() + len, b'k');
                line.push(b' ');
            }
            line.truncate(line.len().saturating_sub(below(3)));
            let mut one_by_one = Vec::new();
            let mut at = below(line.len() + 2);
            let from = at;
            while let Some((start, end)) = next_word(&line, at) {
                one_by_one.push(&line[start..end]);
                at = end;
            }
            let (mut batches, mut at) = (Vec::new(), from);
            let mut into = [&b""[..]; 16];
            let batch = 1 + below(16);
            loop {
                let (count, next) = words(&line, at, &mut into[..batch]);
                batches.extend_from_slice(&into[..count]);
                if count < batch {
                    break;
                }
                at = next;
            }
            assert_eq!(
                batches,
                one_by_one,
                "{batch} at once of {:?} from {from}",
                line.escape_ascii().to_string()
            );
        }
    }

    #[test]
    fn plain_words_are_the_words_of_their_line() {
        for len in 0..150 {
            for parts in [1, 2, 7, 20, 33] {
                // The text has words of `parts - 1` bytes, each followed by a space.
                let mut text: Vec<u8> =
                    (0..len).map(|at| if at % parts == parts - 1 { b' ' } else { b'k' }).collect();
                text.extend_from_slice(b"\r\nget next\r\n");
                for from in [0, len.min(3), len] {
                    let (mut into, mut expected) = ([&b""[..]; 16], [&b""[..]; 17]);
                    let found = words_before_crlf(&text, from, &mut into);
                    let (count, _) = words(&text[..len], from, &mut expected);
                    assert_eq!(found, (count <= 16).then_some((count, len)), "{len} {parts} {from}");
                    assert!(found.is_none() || into[..count] == expected[..count]);
                    assert_eq!(words_before_crlf(&text[..len], from, &mut into), None, "no end");
                    assert_eq!(words_before_crlf(&text[..len + 1], from, &mut into), None, "half an end");
                }
                for bad in [b'\n', b'\t', 0] {
                    let mut text = text.clone();
                    text[len / 2] = bad;
                    assert_eq!(words_before_crlf(&text, 0, &mut [&b""[..]; 200]), None);
                }
            }
        }
    }

    #[test]
    fn plain_words_before_crlf() {
        for len in 0..60 {
            let word = vec![b'k'; len];
            for (end, plain) in [(&b"\r\nget"[..], true), (b"\r\n", true), (b"\n", false), (b" a\r\n", false)]
            {
                let text = [&word, end].concat();
                assert_eq!(word_before_crlf(&text), plain.then_some(len), "{len} and {end:?}");
            }
            assert_eq!(word_before_crlf(&word), None);
            assert_eq!(word_before_crlf(&[&word[..], b"\r"].concat()), None);
            assert_eq!(word_before_crlf(&[&word[..], b"\x01k\r\n"].concat()), None);
            assert_eq!(word_before_crlf(&[&word[..], b"\xff\x80\r\n"].concat()), Some(len + 2));
            for byte in 0..=255u8 {
                let text = [&word[..], &[byte], b"!\r\n"].concat();
                assert_eq!(word_before_crlf(&text), (byte > b' ').then_some(len + 2), "{byte:#x} at {len}");
            }
        }
    }
}
