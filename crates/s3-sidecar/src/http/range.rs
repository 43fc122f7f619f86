//! Ranges of bytes: what a client asks for, and what an answer has.

use std::ops::Range;

/// What a `Range` header asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// From the first byte to the second, inclusive; to the end without one.
    From(u64, Option<u64>),
    /// As many of the last bytes.
    Last(u64),
}

impl Asked {
    /// Reads the value of a `Range` header. `None` if it is not one range of bytes.
    pub(crate) fn parse(value: &str) -> Option<Self> {
        let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
        match (first, last) {
            ("", last) => Some(Asked::Last(number(last)?)),
            (first, "") => Some(Asked::From(number(first)?, None)),
            (first, last) => {
                let (first, last) = (number(first)?, number(last)?);
                (first <= last).then_some(Asked::From(first, Some(last)))
            }
        }
    }

    /// Returns the bytes of an object of `size` bytes; `None` if there are none.
    pub(crate) fn within(self, size: u64) -> Option<Range<u64>> {
        let range = match self {
            Asked::From(first, last) => first..last.map_or(size, |last| last.saturating_add(1).min(size)),
            Asked::Last(count) => size.saturating_sub(count)..size,
        };
        (range.start < range.end).then_some(range)
    }
}

/// Reads `Content-Range: bytes FIRST-LAST/SIZE`: the range and the object's size.
pub(crate) fn parse_content_range(value: &str) -> Option<(Range<u64>, u64)> {
    let (range, size) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last, size) = (number(first)?, number(last)?, number(size)?);
    (first <= last && last < size).then(|| (first..last + 1, size))
}

/// Digits alone: `parse` takes a plus sign as well.
fn number(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_read_and_cut_at_the_end() {
        let within = |text: &str, size| Asked::parse(text).and_then(|asked| asked.within(size));
        assert_eq!(within("bytes=0-9", 100), Some(0..10));
        assert_eq!(within("bytes=90-200", 100), Some(90..100));
        assert_eq!(within("bytes=90-", 100), Some(90..100));
        assert_eq!(within("bytes=-7", 100), Some(93..100));
        assert_eq!(within("bytes=-700", 100), Some(0..100));
        assert_eq!(within("bytes=0-18446744073709551615", 100), Some(0..100));
        for none in ["bytes=100-", "bytes=-0"] {
            assert_eq!(within(none, 100), None, "{none}");
        }
        for wrong in
            ["bytes=", "bytes=-", "bytes=5-4", "bytes=0-1,3-4", "bytes=+1-2", "bytes = 1-2", "items=1-2"]
        {
            assert_eq!(Asked::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_content_range_states_its_place() {
        assert_eq!(parse_content_range("bytes 3-5/10"), Some((3..6, 10)));
        for wrong in [
            "bytes */10",
            "bytes 3-5/*",
            "bytes 5-3/10",
            "bytes 3-10/10",
            "3-5/10",
            "bytes 3-18446744073709551615/18446744073709551615",
        ] {
            assert_eq!(parse_content_range(wrong), None, "{wrong}");
        }
    }
}
