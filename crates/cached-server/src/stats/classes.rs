//! Size classes, for the places where memcached's operators expect them.
//!
//! The engine has no slabs; items are reported by the class that memcached would put their size in, with its
//! default growth factor of 1.25 and smallest item of 48 bytes.

/// The highest class number memcached knows.
pub(crate) const CLASS_MAX: u32 = 63;

/// The largest chunk before values are cut into pieces.
const CHUNK_BYTES_MAX: usize = 512 << 10;

/// The chunk sizes of classes 1, 2, ….
pub(crate) fn chunk_sizes() -> impl Iterator<Item = usize> {
    // memcached: the item header and the smallest value, aligned to 8, times 1.25 each.
    let mut size = 96usize;
    let mut done = false;
    std::iter::from_fn(move || {
        if done {
            return None;
        }
        let this = size;
        if this as f64 > CHUNK_BYTES_MAX as f64 / 1.25 {
            done = true;
            return Some(CHUNK_BYTES_MAX);
        }
        size = ((size as f64 * 1.25) as usize).next_multiple_of(8);
        Some(this)
    })
}

/// The class of an item of so many bytes.
pub(crate) fn class_of(bytes: usize) -> u32 {
    let index = chunk_sizes().position(|size| bytes <= size).unwrap_or(chunk_sizes().count() - 1);
    index as u32 + 1
}

/// Whether a word names classes for a crawler: `all`, `hash`, or numbers parted by commas.
pub(crate) fn is_known(word: &[u8]) -> bool {
    if matches!(word, b"all" | b"hash") {
        return true;
    }
    word.split(|byte| *byte == b',').all(|number| {
        cached_proto::number::token_u32(number).is_some_and(|class| (1..CLASS_MAX).contains(&class))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_memcacheds() {
        let sizes: Vec<usize> = chunk_sizes().collect();
        // From `memcached -vv`.
        assert_eq!(sizes[..6], [96, 120, 152, 192, 240, 304]);
        assert_eq!(sizes.len(), 39);
        assert_eq!(sizes[38], 524_288);
        assert_eq!((class_of(1), class_of(96), class_of(97), class_of(1 << 30)), (1, 1, 2, 39));
        assert!(sizes.len() < CLASS_MAX as usize);
    }

    #[test]
    fn crawlers_know_numbers_and_two_words() {
        for known in ["all", "hash", "1", "1,2,39"] {
            assert!(is_known(known.as_bytes()), "{known}");
        }
        for unknown in ["0", "99999", "64", "x", "", "1,,2", "-1"] {
            assert!(!is_known(unknown.as_bytes()), "{unknown}");
        }
    }
}
