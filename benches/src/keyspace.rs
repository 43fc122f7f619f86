//! The existing keys and their values. Both are derived from an index, so that every reply can be
//! checked without a table.
//!
//! ```text
//! key    k 0000…index            one letter, then the index in decimal, zero-padded to key_bytes
//! value  ssssssssssssssss fff…   16 hex digits drawn from (salt, index), then filler from an offset drawn alike
//! ```
//! A value's length is drawn from (salt, index) as well, so a set rewrites the same value, and
//! mixed loads can be checked.

use std::sync::Arc;

use anyhow::{Result, ensure};

/// The longest key that memcached accepts.
pub const KEY_BYTES_MAX: usize = 250;
/// The largest value for which memcached can be configured.
pub const VALUE_BYTES_MAX: usize = 1 << 30;
/// The length of the index-derived start of every value.
const STAMP_BYTES: usize = 16;
/// The number of positions in the filler at which a value may start.
const FILLER_OFFSETS: usize = 1024;

/// Smallest and largest value; equal for a fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueBytes {
    /// Smallest value.
    pub min: usize,
    /// Largest value.
    pub max: usize,
}

impl ValueBytes {
    /// Returns a range for values of one size.
    pub const fn fixed(bytes: usize) -> Self {
        Self { min: bytes, max: bytes }
    }
}

/// How thoroughly a value is compared with the stored one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Verify {
    /// Only the value's length, for the canned server, whose values have no meaning.
    Length,
    /// The value's length, and its first and last 16 bytes: the stamp derived from the index, and
    /// the end.
    Ends,
    /// Every byte.
    Full,
}

/// All keys and values of a run.
#[derive(Clone, Debug)]
pub struct KeySpace {
    first: u64,
    count: u64,
    key_bytes: usize,
    value_bytes: ValueBytes,
    salt: u64,
    filler: Arc<[u8]>,
}

impl KeySpace {
    /// Returns keys with the indexes `first..first + count`; `salt` determines sizes and contents.
    ///
    /// # Errors
    /// Fails if there are no keys, a key is too short for its index, or a size exceeds memcached's
    /// limits.
    pub fn new(first: u64, count: u64, key_bytes: usize, value_bytes: ValueBytes, salt: u64) -> Result<Self> {
        ensure!(count > 0, "a load needs at least one key");
        let last = first.checked_add(count - 1).filter(|&last| last < 1 << 60);
        let Some(last) = last else { anyhow::bail!("key indexes from {first} on overflow") };
        let key_bytes_min = last.to_string().len() + 1;
        ensure!(key_bytes >= key_bytes_min, "{count} keys need at least {key_bytes_min} bytes each");
        ensure!(key_bytes <= KEY_BYTES_MAX, "a key has at most {KEY_BYTES_MAX} bytes");
        ensure!(value_bytes.min <= value_bytes.max, "the smallest value is larger than the largest");
        ensure!(value_bytes.max <= VALUE_BYTES_MAX, "a value has at most {VALUE_BYTES_MAX} bytes");
        let filler = (0..value_bytes.max as u64 + FILLER_OFFSETS as u64)
            .map(|place| b'a' + (mix(place ^ salt) % 26) as u8)
            .collect();
        Ok(Self { first, count, key_bytes, value_bytes, salt, filler })
    }

    /// Returns the lowest index.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Returns the number of keys.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the length of every key.
    pub fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// Returns the range of value sizes.
    pub fn value_bytes_bounds(&self) -> ValueBytes {
        self.value_bytes
    }

    /// Appends the key of `index`.
    pub fn push_key(&self, index: u64, out: &mut Vec<u8>) {
        let start = out.len();
        out.push(b'k');
        out.resize(start + self.key_bytes, b'0');
        let mut rest = index;
        for digit in out[start + 1..].iter_mut().rev() {
            if rest == 0 {
                break;
            }
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
    }

    /// Returns whether `key` is the key of `index`.
    pub fn is_key(&self, index: u64, key: &[u8]) -> bool {
        if key.len() != self.key_bytes || key[0] != b'k' {
            return false;
        }
        let mut rest = index;
        key[1..].iter().rev().all(|&digit| {
            let expected = b'0' + (rest % 10) as u8;
            rest /= 10;
            digit == expected
        })
    }

    /// Returns the length of the value of `index`.
    pub fn value_bytes(&self, index: u64) -> usize {
        let ValueBytes { min, max } = self.value_bytes;
        if min == max {
            return min;
        }
        let span = (max - min) as u64 + 1;
        min + (mix(index ^ self.salt.rotate_left(17)) % span) as usize
    }

    /// Appends the value of `index`.
    pub fn push_value(&self, index: u64, out: &mut Vec<u8>) {
        let length = self.value_bytes(index);
        let (stamp, offset) = self.stamp(index);
        let stamp_bytes = length.min(STAMP_BYTES);
        out.extend_from_slice(&stamp[..stamp_bytes]);
        out.extend_from_slice(&self.filler[offset..offset + length - stamp_bytes]);
    }

    /// Returns whether `part`, from `offset` on, equals the value of `index` as written by
    /// [`Self::push_value`].
    pub fn is_value_part(&self, index: u64, offset: usize, part: &[u8], verify: Verify) -> bool {
        let length = self.value_bytes(index);
        if offset + part.len() > length {
            return false;
        }
        match verify {
            Verify::Length => true,
            Verify::Full => self.is_range(index, offset, part),
            Verify::Ends => {
                let head = part.len().min(STAMP_BYTES.saturating_sub(offset));
                let tail_start = (length.saturating_sub(STAMP_BYTES)).saturating_sub(offset).min(part.len());
                self.is_range(index, offset, &part[..head])
                    && self.is_range(index, offset + tail_start, &part[tail_start..])
            }
        }
    }

    fn is_range(&self, index: u64, offset: usize, part: &[u8]) -> bool {
        if part.is_empty() {
            return true;
        }
        let (stamp, filler_offset) = self.stamp(index);
        let in_stamp = part.len().min(STAMP_BYTES.saturating_sub(offset));
        let (head, tail) = part.split_at(in_stamp);
        let stamp_start = offset.min(STAMP_BYTES);
        let filler_start = filler_offset + (offset + in_stamp).saturating_sub(STAMP_BYTES);
        head == &stamp[stamp_start..stamp_start + in_stamp]
            && (tail.is_empty() || tail == &self.filler[filler_start..filler_start + tail.len()])
    }

    /// Returns the head of a value and the start of its filler.
    fn stamp(&self, index: u64) -> ([u8; STAMP_BYTES], usize) {
        let drawn = mix(index.wrapping_add(self.salt));
        let mut stamp = [0; STAMP_BYTES];
        for (place, digit) in stamp.iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[(drawn >> (60 - 4 * place)) as usize & 15];
        }
        (stamp, (drawn % FILLER_OFFSETS as u64) as usize)
    }
}

/// SplitMix64's finalizer: every bit of the result depends on every bit of the input.
fn mix(value: u64) -> u64 {
    let mut x = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_padded_and_recognised() {
        let keys = KeySpace::new(0, 100_000, 20, ValueBytes::fixed(100), 1).unwrap();
        let mut key = Vec::new();
        keys.push_key(4_711, &mut key);
        assert_eq!(key, b"k0000000000000004711");
        assert!(keys.is_key(4_711, &key));
        assert!(!keys.is_key(4_712, &key) && !keys.is_key(4_711, &key[1..]));
        assert!(KeySpace::new(0, 100_000, 5, ValueBytes::fixed(1), 1).is_err());
        assert!(KeySpace::new(0, 0, 20, ValueBytes::fixed(1), 1).is_err());
        assert!(KeySpace::new(0, 1, 251, ValueBytes::fixed(1), 1).is_err());
    }

    #[test]
    fn values_are_recognised_whole_and_in_parts_and_only_then() {
        for bytes in [0, 1, 15, 16, 17, 31, 40, 5_000] {
            let keys = KeySpace::new(0, 10, 20, ValueBytes::fixed(bytes), 3).unwrap();
            let mut value = Vec::new();
            keys.push_value(5, &mut value);
            assert_eq!(value.len(), bytes);
            for verify in [Verify::Length, Verify::Ends, Verify::Full] {
                for cut in 0..=bytes.min(40) {
                    let (head, tail) = value.split_at(cut);
                    assert!(keys.is_value_part(5, 0, head, verify), "{bytes} {cut} {verify:?}");
                    assert!(keys.is_value_part(5, cut, tail, verify), "{bytes} {cut} {verify:?}");
                }
            }
            for verify in [Verify::Ends, Verify::Full] {
                for place in [0, bytes.saturating_sub(1)].into_iter().filter(|_| bytes > 0) {
                    let mut wrong = value.clone();
                    wrong[place] ^= 1;
                    assert!(!keys.is_value_part(5, 0, &wrong, verify));
                }
            }
            assert!(bytes < 16 || !keys.is_value_part(6, 0, &value, Verify::Ends));
        }
    }

    #[test]
    fn sizes_fill_their_range() {
        let keys = KeySpace::new(0, 10_000, 20, ValueBytes { min: 10, max: 19 }, 9).unwrap();
        let mut seen = [0; 20];
        (0..10_000).for_each(|index| seen[keys.value_bytes(index)] += 1);
        assert!(seen[..10].iter().all(|&n| n == 0) && seen[10..].iter().all(|&n| n > 800));
    }
}
