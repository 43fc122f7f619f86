//! Headers and targets: look-ups, byte ranges, entity tags, percent-encoded names.

use std::borrow::Cow;
use std::net::IpAddr;
use std::ops::Range;

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

/// Returns whether a message has a header.
///
/// The map's own look-up hashes the name byte by byte, which takes several times as long as comparing
/// it with the few names of a message.
#[must_use]
pub fn has(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.keys().any(|own| own == name)
}

/// Returns the values of a header, in order, found as by [`has`].
pub fn values_of<'a>(headers: &'a HeaderMap, name: &'a HeaderName) -> impl Iterator<Item = &'a HeaderValue> {
    headers.iter().filter(move |(own, _)| *own == name).map(|(_, value)| value)
}

/// The content of a `Range` header: one range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteRange {
    /// From the first byte to the second one, inclusive. Without a second one, the range extends to
    /// the end.
    From(u64, Option<u64>),
    /// This number of bytes at the end.
    Last(u64),
}

impl ByteRange {
    /// Parses a `Range` header; returns `None` unless it is one range of bytes.
    #[must_use]
    pub fn parse(value: &str) -> Option<Self> {
        let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
        match (first, last) {
            ("", last) => Some(ByteRange::Last(number(last)?)),
            (first, "") => Some(ByteRange::From(number(first)?, None)),
            (first, last) => {
                let (first, last) = (number(first)?, number(last)?);
                (first <= last).then_some(ByteRange::From(first, Some(last)))
            }
        }
    }

    /// Returns the range within an object of `size` bytes; `None` if the range is empty.
    #[must_use]
    pub fn within(self, size: u64) -> Option<Range<u64>> {
        let range = match self {
            ByteRange::From(first, last) => first..last.map_or(size, |last| last.saturating_add(1).min(size)),
            ByteRange::Last(count) => size.saturating_sub(count)..size,
        };
        (range.start < range.end).then_some(range)
    }
}

/// Parses a number. Only digits are accepted, although `parse` also accepts a plus sign.
#[must_use]
pub fn number(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

/// Returns whether a header that lists entity tags contains `own`, or `*`; `None` if the header is
/// not a list of tags. A weak tag matches unless the comparison `is_strong`.
#[must_use]
pub fn contains_tag(headers: &HeaderMap, name: &HeaderName, own: &str, is_strong: bool) -> Option<bool> {
    let own = opaque(own);
    let mut has_own = false;
    for value in headers.get_all(name) {
        let mut rest = value.to_str().ok()?.trim();
        if rest == "*" {
            has_own = true;
            continue;
        }
        while !rest.is_empty() {
            let (is_weak, tag) = rest.strip_prefix("W/").map_or((false, rest), |tag| (true, tag));
            let (tag, after) = match tag.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"')?,
                // S3 accepts ETags without quotes.
                None => {
                    let end = tag.find(',').unwrap_or(tag.len());
                    (tag[..end].trim(), &tag[end..])
                }
            };
            if tag.is_empty() || tag.contains('"') {
                return None;
            }
            has_own |= tag == own && !(is_strong && is_weak);
            rest = match after.trim_start() {
                "" => "",
                after => after.strip_prefix(',')?.trim_start(),
            };
        }
    }
    Some(has_own)
}

fn opaque(etag: &str) -> &str {
    etag.strip_prefix('"').and_then(|etag| etag.strip_suffix('"')).unwrap_or(etag)
}

/// Returns the bytes of a percent-encoded text; `None` unless each `%` is followed by two hexadecimal
/// digits.
#[must_use]
pub fn percent_decoded(text: &str) -> Option<Cow<'_, [u8]>> {
    if !text.contains('%') {
        return Some(Cow::Borrowed(text.as_bytes()));
    }
    let is_hex = |text: &str| text.len() >= 2 && text.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    text.split('%').skip(1).all(is_hex).then(|| percent_decode_str(text).into())
}

/// Returns whether a `Host` is an IP address or `localhost`, with or without a port.
///
/// A web page may make its own name resolve to this host, so that a browser lets it read the
/// responses. Such a page uses its own name.
#[must_use]
pub fn is_local_host(named: &str) -> bool {
    let host = match named.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(host, _)| host),
        None => named.rsplit_once(':').map_or(named, |(host, _)| host),
    };
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_of_a_header_are_found_in_order() {
        let name = HeaderName::from_static;
        let mut headers = HeaderMap::new();
        for (own, value) in [("accept", "1"), ("x-mine", "2"), ("accept", "3"), ("x-mine", "4")] {
            headers.append(name(own), HeaderValue::from_static(value));
        }
        for (asked, expected) in
            [("accept", &["1", "3"][..]), ("x-mine", &["2", "4"]), ("x-yours", &[]), ("range", &[])]
        {
            assert!(values_of(&headers, &name(asked)).eq(expected), "{asked}");
            assert_eq!(has(&headers, &name(asked)), !expected.is_empty(), "{asked}");
        }
    }

    #[test]
    fn a_range_is_read_and_cut_at_the_end() {
        let within = |text: &str, size| ByteRange::parse(text).and_then(|asked| asked.within(size));
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
            assert_eq!(ByteRange::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_text_is_decoded_or_not_encoded_well() {
        assert_eq!(percent_decoded("a%2Fb%00%ff+").as_deref(), Some(&b"a/b\0\xff+"[..]));
        for wrong in ["%", "a%2", "%%41", "%g0", "%+1"] {
            assert_eq!(percent_decoded(wrong), None, "{wrong}");
        }
    }
}
