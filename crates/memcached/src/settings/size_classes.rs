//! memcached's size classes, for reports.
//!
//! The engine has no slabs. Items are reported by the class to which memcached would assign them,
//! according to its calculation of an item's size, its growth factor (`-f`), its smallest chunk
//! (`-n`) and its largest chunk.

use super::{ITEM_ENDS_BYTES, ITEM_HEADER_BYTES, SlabClasses};

/// The highest class number in memcached.
pub(crate) const CLASS_MAX: u32 = 63;

/// The size of one page of chunks in memcached.
pub const PAGE_BYTES: usize = 1 << 20;

/// The chunk sizes of classes 1, 2, ….
#[derive(Debug)]
pub(crate) struct SizeClasses {
    sizes: Vec<usize>,
}

impl SizeClasses {
    pub(crate) fn new(settings: &SlabClasses) -> SizeClasses {
        let aligned = |size: usize| size.next_multiple_of(8);
        if !settings.sizes.is_empty() {
            let mut sizes: Vec<usize> = settings.sizes.iter().map(|size| aligned(*size)).collect();
            sizes.push(settings.chunk_bytes_max);
            return SizeClasses { sizes };
        }
        let mut sizes = Vec::new();
        let mut size = ITEM_HEADER_BYTES + settings.chunk_bytes_min;
        // The last class is for the largest chunk, whatever the growth factor.
        while sizes.len() < CLASS_MAX as usize - 1
            && (size as f64) < settings.chunk_bytes_max as f64 / settings.factor
        {
            size = aligned(size);
            sizes.push(size);
            size = (size as f64 * settings.factor) as usize;
        }
        sizes.push(settings.chunk_bytes_max);
        SizeClasses { sizes }
    }

    /// Returns the class of an item that takes `bytes` in memcached.
    pub(crate) fn class_of(&self, bytes: usize) -> u32 {
        let index = self.sizes.partition_point(|size| *size < bytes).min(self.sizes.len() - 1);
        index as u32 + 1
    }

    /// Returns the class of an item.
    pub(crate) fn class_of_item(&self, key: usize, value: usize, client_flags: u32, cas: bool) -> u32 {
        self.class_of(item_bytes(key, value, client_flags, cas))
    }

    /// Returns the number of the largest class.
    pub(crate) fn largest(&self) -> u32 {
        self.sizes.len() as u32
    }

    /// Returns the chunk size of a class, in bytes.
    pub(crate) fn chunk_bytes(&self, class: u32) -> usize {
        self.sizes[class as usize - 1]
    }
}

/// Returns the bytes that an item would take in memcached.
pub(crate) fn item_bytes(key: usize, value: usize, client_flags: u32, cas: bool) -> usize {
    let flags_bytes = if client_flags == 0 { 0 } else { 4 };
    let cas_bytes = if cas { 8 } else { 0 };
    ITEM_HEADER_BYTES + ITEM_ENDS_BYTES + key + flags_bytes + value + cas_bytes
}

/// Returns whether a word names classes for the crawler: `all`, `hash`, or numbers separated by
/// commas.
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
    fn classes_equal_memcacheds() {
        let classes = SizeClasses::new(&SlabClasses::default());
        // The sizes are those that `memcached -vv` prints.
        assert_eq!(classes.sizes[..6], [96, 120, 152, 192, 240, 304]);
        assert_eq!(classes.largest(), 39);
        assert_eq!((classes.chunk_bytes(25), classes.chunk_bytes(39)), (21_696, 524_288));
        let class_of = |bytes| classes.class_of(bytes);
        assert_eq!((class_of(1), class_of(96), class_of(97), class_of(1 << 30)), (1, 1, 2, 39));
        assert_eq!(item_bytes(3, 20_000, 0, true), 20_062);
        assert_eq!(classes.class_of_item(3, 20_000, 0, true), 25);
    }

    #[test]
    fn growth_factor_and_smallest_chunk_change_the_classes() {
        let settings = SlabClasses { factor: 2.0, chunk_bytes_min: 100, ..SlabClasses::default() };
        let classes = SizeClasses::new(&settings);
        // The sizes are those that `memcached -vv -f 2 -n 100` prints.
        assert_eq!(classes.sizes[..3], [152, 304, 608]);
        assert_eq!(classes.sizes.last(), Some(&524_288));
        let tiny = SizeClasses::new(&SlabClasses { factor: 1.01, ..SlabClasses::default() });
        assert_eq!(tiny.sizes.len(), CLASS_MAX as usize);
    }

    #[test]
    fn crawlers_accept_numbers_and_two_words() {
        for known in ["all", "hash", "1", "1,2,39"] {
            assert!(is_known(known.as_bytes()), "{known}");
        }
        for unknown in ["0", "99999", "64", "x", "", "1,,2", "-1"] {
            assert!(!is_known(unknown.as_bytes()), "{unknown}");
        }
    }
}
