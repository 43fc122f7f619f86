//! The reply to a hit of a classic retrieval, the most frequent reply, written at once.
//!
//! `cached_proto` has the same encoder made of appends. Each append checks for room and calls `memcpy` for a
//! few bytes, which together is a third of the cost of a key in a multiget. Here the room is made once and
//! the pieces are stored in their places; a test compares the two encoders.

/// The length of `VALUE `, flags, length and CAS value with a space each, two CRLFs, `END`, and the slack of
/// the copies below.
const OVERHEAD_BYTES: usize = 6 + 1 + 10 + 1 + 20 + 1 + 20 + 2 + 2 + 5 + 32;

/// Appends `VALUE key flags len[ cas]`, CRLF, the value, CRLF, and with `LAST` the reply's `END`.
/// Keys have at most 250 bytes.
#[inline(always)]
pub(super) fn encode_value<const LAST: bool>(
    out: &mut Vec<u8>,
    key: &[u8],
    flags: u32,
    value: &[u8],
    cas: Option<u64>,
) {
    out.reserve(OVERHEAD_BYTES + key.len() + value.len());
    let start = out.len();
    // SAFETY: `reserve` has made room for everything that is written from `start` on: the key, the value and
    // `OVERHEAD_BYTES` for all else, of which `put_short`'s and `put_number`'s slack is a part. So every
    // pointer stays within the vector's allocation. All bytes up to `at` have been written when the length is
    // set.
    unsafe {
        let mut at = out.as_mut_ptr().add(start);
        at = put(at, *b"VALUE ");
        at = put_short(at, key);
        if flags == 0 {
            at = put(at, *b" 0 ");
        } else {
            at = put(at, *b" ");
            at = put_number(at, u64::from(flags));
            at = put(at, *b" ");
        }
        at = put_number(at, value.len() as u64);
        if let Some(cas) = cas {
            at = put(at, *b" ");
            at = put_number(at, cas);
        }
        at = put(at, *b"\r\n");
        at = put_value(at, value);
        at = if LAST { put(at, *b"\r\nEND\r\n") } else { put(at, *b"\r\n") };
        let end = at.offset_from_unsigned(out.as_ptr());
        out.set_len(end);
    }
}

/// Writes a constant; returns the next place.
///
/// # Safety
/// `N` bytes can be written at `at`.
#[inline(always)]
unsafe fn put<const N: usize>(at: *mut u8, bytes: [u8; N]) -> *mut u8 {
    // SAFETY: guaranteed by the caller.
    unsafe {
        at.cast::<[u8; N]>().write_unaligned(bytes);
        at.add(N)
    }
}

/// Copies a short text without a call; returns the next place.
///
/// # Safety
/// `text.len() + 32` bytes can be written at `at`, which is not within `text`.
#[inline(always)]
unsafe fn put_short(at: *mut u8, text: &[u8]) -> *mut u8 {
    let len = text.len();
    // SAFETY: reads stay within `text`: each is of `N` bytes at its front or at its end, and `len >= N`.
    // Writes stay within `len` bytes, or are covered by the caller's guarantee.
    unsafe {
        let from = text.as_ptr();
        match len {
            16..=32 => {
                at.cast::<[u8; 16]>().write(from.cast::<[u8; 16]>().read());
                at.add(len - 16).cast::<[u8; 16]>().write(from.add(len - 16).cast::<[u8; 16]>().read());
            }
            8..16 => {
                at.cast::<[u8; 8]>().write(from.cast::<[u8; 8]>().read());
                at.add(len - 8).cast::<[u8; 8]>().write(from.add(len - 8).cast::<[u8; 8]>().read());
            }
            _ => std::ptr::copy_nonoverlapping(from, at, len),
        }
        at.add(len)
    }
}

/// Copies a value, up to 128 bytes without a call; returns the next place.
///
/// # Safety
/// `value.len()` bytes can be written at `at`, which is not within `value`.
#[inline(always)]
unsafe fn put_value(at: *mut u8, value: &[u8]) -> *mut u8 {
    type Chunk = [u8; 16];
    let (len, from) = (value.len(), value.as_ptr());
    // SAFETY: where `N` chunks at the front and `N` at the end are copied there are at least `N` of them, at
    // most twice as many. So all of `value` is copied, nothing else is read, and nothing else is written.
    unsafe {
        let copy = |offset: usize| {
            at.add(offset).cast::<Chunk>().write(from.add(offset).cast::<Chunk>().read());
        };
        match len {
            64..=128 => {
                for offset in [0, 16, 32, 48, len - 64, len - 48, len - 32, len - 16] {
                    copy(offset);
                }
            }
            32..64 => {
                for offset in [0, 16, len - 32, len - 16] {
                    copy(offset);
                }
            }
            16..32 => {
                copy(0);
                copy(len - 16);
            }
            _ => std::ptr::copy_nonoverlapping(from, at, len),
        }
        at.add(len)
    }
}

/// The digits of the numbers below 1000, from the lowest byte, and in the highest byte how many there are.
static DIGITS: [u32; 1000] = {
    let mut table = [0; 1000];
    let mut number = 0;
    while number < 1000 {
        let [a, b, c] = [number / 100, number / 10 % 10, number % 10];
        let (digits, count) = match number {
            0..10 => ([c, 0, 0], 1),
            10..100 => ([b, c, 0], 2),
            _ => ([a, b, c], 3),
        };
        let [a, b, c] = [digits[0] + 48, digits[1] + 48, digits[2] + 48];
        table[number as usize] = count << 24 | c << 16 | b << 8 | a;
        number += 1;
    }
    table
};

/// Writes a number in decimal; returns the next place.
///
/// # Safety
/// 20 bytes can be written at `at`.
#[inline(always)]
unsafe fn put_number(at: *mut u8, number: u64) -> *mut u8 {
    match DIGITS.get(number as usize) {
        // SAFETY: guaranteed by the caller; bytes written after the last digit are overwritten.
        Some(&entry) => unsafe {
            at.cast::<u32>().write_unaligned(entry);
            at.add((entry >> 24) as usize)
        },
        // SAFETY: guaranteed by the caller.
        None => unsafe { put_long_number(at, number) },
    }
}

/// # Safety
/// 20 bytes can be written at `at`.
unsafe fn put_long_number(at: *mut u8, number: u64) -> *mut u8 {
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(number).as_bytes();
    // SAFETY: a 64-bit number has at most 20 digits, for which the caller guarantees room.
    unsafe {
        std::ptr::copy_nonoverlapping(digits.as_ptr(), at, digits.len());
        at.add(digits.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_any_length_are_whole() {
        for len in 0..300 {
            let value: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let (mut ours, mut codecs) = (b"before".to_vec(), b"before".to_vec());
            encode_value::<false>(&mut ours, b"key", 0, &value, None);
            cached_proto::text::encode_value(&mut codecs, b"key", 0, &value, None);
            assert!(ours == codecs, "{len} bytes");
        }
    }

    #[test]
    fn writes_what_the_codec_writes() {
        let numbers = [0, 7, 10, 99, 100, 999, 1000, 9999, 10_000, 12_345_678_901, u64::MAX];
        let (mut ours, mut codecs) = (Vec::new(), Vec::new());
        for key_len in (1..=40).chain([100, 250]) {
            let key: Vec<u8> = (0..key_len).map(|at| b'a' + (at % 26) as u8).collect();
            for (index, number) in numbers.into_iter().enumerate() {
                let value = vec![b'v'; [0, 1, 9, 10, 100, 999, 1000, 5000, 9999, 10_000, 70_000][index]];
                for cas in [None, Some(number)] {
                    encode_value::<false>(&mut ours, &key, number as u32, &value, cas);
                    cached_proto::text::encode_value(&mut codecs, &key, number as u32, &value, cas);
                    encode_value::<true>(&mut ours, &key, number as u32, &value, cas);
                    cached_proto::text::encode_value(&mut codecs, &key, number as u32, &value, cas);
                    codecs.extend_from_slice(b"END\r\n");
                    assert!(ours == codecs, "key of {key_len} bytes, number {number}");
                    if ours.len() > 100_000 {
                        (ours, codecs) = (Vec::new(), Vec::new());
                    }
                }
            }
        }
    }
}
