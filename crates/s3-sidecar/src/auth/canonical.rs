//! The canonical form of a request, from which signatures are computed: independent of encoding,
//! order and spaces.

use hyper::HeaderMap;
use percent_encoding::percent_decode;
use sha2::{Digest, Sha256};

/// The SHA-256 of the empty string, in hexadecimal digits.
pub(crate) const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
const LOWER_DIGITS: &[u8; 16] = b"0123456789abcdef";

/// The bytes that remain unchanged in an encoded text.
const UNRESERVED: [bool; 256] = {
    let mut table = [false; 256];
    let mut at = 0;
    while at < 256 {
        let byte = at as u8;
        table[at] = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
        at += 1;
    }
    table
};

/// Appends a decoded text in canonical encoding. In paths, slashes remain unchanged.
pub(crate) fn push_encoded(into: &mut Vec<u8>, bytes: impl IntoIterator<Item = u8>, is_path: bool) {
    for byte in bytes {
        if UNRESERVED[usize::from(byte)] || is_path && byte == b'/' {
            into.push(byte);
        } else {
            into.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
    }
}

/// Appends a path that is decoded once and encoded again. Dot segments stay, because keys in S3 may
/// contain them.
pub(crate) fn push_path(into: &mut Vec<u8>, path: &str) {
    push_encoded(into, percent_decode(path.as_bytes()), true);
}

/// Returns a query's parameters in their original form.
pub(crate) fn parameters(query: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    query.split('&').filter(|part| !part.is_empty()).map(|part| match part.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (part, None),
    })
}

/// Returns the decoded bytes of a part of a query, where a plus is a space.
pub(crate) fn decoded(text: &str) -> impl Iterator<Item = u8> {
    // An encoded plus consists of `%`, `2` and `B`, so it is not split.
    let parts = text.split('+').enumerate();
    parts.flat_map(|(at, part)| (at > 0).then_some(b' ').into_iter().chain(percent_decode(part.as_bytes())))
}

/// Appends the parameters of a query, encoded again and sorted, without the signature itself.
pub(crate) fn push_query(into: &mut Vec<u8>, query: &str) {
    if query.is_empty() {
        return;
    }
    let mut all: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for (name, value) in parameters(query) {
        let (mut encoded_name, mut encoded_value) = (Vec::new(), Vec::new());
        push_encoded(&mut encoded_name, decoded(name), false);
        push_encoded(&mut encoded_value, decoded(value.unwrap_or_default()), false);
        if encoded_name != b"X-Amz-Signature" {
            all.push((encoded_name, encoded_value));
        }
    }
    all.sort_unstable();
    for (at, (name, value)) in all.iter().enumerate() {
        if at > 0 {
            into.push(b'&');
        }
        into.extend_from_slice(name);
        into.push(b'=');
        into.extend_from_slice(value);
    }
}

/// Appends a header with all its values. Returns false if the header is missing.
pub(crate) fn push_header(into: &mut Vec<u8>, headers: &HeaderMap, name: &str) -> bool {
    into.extend_from_slice(name.as_bytes());
    into.push(b':');
    let mut count = 0;
    // `HeaderMap` has names in lower case. A lookup by text is slower than comparing it with the
    // few headers of a request.
    for (_, value) in headers.iter().filter(|(own, _)| own.as_str() == name) {
        if count > 0 {
            into.push(b',');
        }
        push_value(into, value.as_bytes());
        count += 1;
    }
    into.push(b'\n');
    count > 0
}

/// Appends a header's value, with each run of spaces reduced to one, and none at the ends.
fn push_value(into: &mut Vec<u8>, value: &[u8]) {
    let begin = into.len();
    for word in value.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty()) {
        if into.len() > begin {
            into.push(b' ');
        }
        into.extend_from_slice(word);
    }
}

/// Appends bytes in hexadecimal digits.
pub(crate) fn push_hex(into: &mut Vec<u8>, bytes: &[u8]) {
    let begin = into.len();
    into.resize(begin + 2 * bytes.len(), 0);
    for (pair, byte) in into[begin..].as_chunks_mut().0.iter_mut().zip(bytes) {
        *pair = [LOWER_DIGITS[usize::from(byte >> 4)], LOWER_DIGITS[usize::from(byte & 15)]];
    }
}

/// The value of each byte as a lower-case hexadecimal digit. A value above 15 means that the byte
/// is not such a digit.
const HALVES: [u8; 256] = {
    let mut table = [u8::MAX; 256];
    let mut half = 0;
    while half < 16 {
        table[LOWER_DIGITS[half] as usize] = half as u8;
        half += 1;
    }
    table
};

/// Returns the 32 bytes of 64 lower-case hexadecimal digits; `None` for any other text.
pub(crate) fn parse_hex(text: &[u8]) -> Option<[u8; 32]> {
    let text: &[u8; 64] = text.try_into().ok()?;
    let (mut bytes, mut all) = ([0; 32], 0);
    for (byte, pair) in bytes.iter_mut().zip(text.as_chunks::<2>().0) {
        let (high, low) = (HALVES[usize::from(pair[0])], HALVES[usize::from(pair[1])]);
        *byte = high << 4 | low;
        all |= high | low;
    }
    (all < 16).then_some(bytes)
}

/// Appends the string to sign: the algorithm, the time, the scope, and the hash of the canonical
/// request.
pub(crate) fn push_string_to_sign(into: &mut Vec<u8>, stamp: &[u8], scope: &str, canonical: &[u8]) {
    into.extend_from_slice(b"AWS4-HMAC-SHA256\n");
    into.extend_from_slice(stamp);
    into.push(b'\n');
    into.extend_from_slice(scope.as_bytes());
    into.push(b'\n');
    push_hex(into, &Sha256::digest(canonical));
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn shown(push: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut into = Vec::new();
        push(&mut into);
        String::from_utf8(into).unwrap()
    }

    #[test]
    fn paths_have_one_encoding() {
        for (path, canonical) in [
            ("/", "/"),
            ("/b/a+b", "/b/a%2Bb"),
            ("/b/a%2bb", "/b/a%2Bb"),
            ("/b/%61", "/b/a"),
            ("/b/a%2Fc", "/b/a/c"),
            ("/b/%252F", "/b/%252F"),
            ("/b//./../x", "/b//./../x"),
            ("/b/~-._", "/b/~-._"),
            ("/b/!*'()$@,:=&;", "/b/%21%2A%27%28%29%24%40%2C%3A%3D%26%3B"),
            ("/b/%C3%bc", "/b/%C3%BC"),
        ] {
            assert_eq!(shown(|into| push_path(into, path)), canonical);
        }
    }

    #[test]
    fn queries_are_sorted_and_have_one_encoding() {
        for (query, canonical) in [
            ("", ""),
            ("acl", "acl="),
            ("b=2&a=1&a=0&&A=3", "A=3&a=0&a=1&b=2"),
            ("prefix=a/b+c%20d%2B", "prefix=a%2Fb%20c%20d%2B"),
            ("a==&b=%3d", "a=%3D&b=%3D"),
            ("X-Amz-Signature=00&X-Amz-Date=1", "X-Amz-Date=1"),
            ("a-b=1&a=1", "a=1&a-b=1"),
        ] {
            assert_eq!(shown(|into| push_query(into, query)), canonical);
        }
    }

    #[test]
    fn spaces_of_headers_do_not_count_and_values_are_joined() {
        let mut headers = HeaderMap::new();
        headers.append("x-amz-meta-a", HeaderValue::from_static("  a \t b  "));
        headers.append("x-amz-meta-a", HeaderValue::from_static("c"));
        headers.append("x-amz-meta-b", HeaderValue::from_static(""));
        let name = |name: &'static str| shown(|into| assert!(push_header(into, &headers, name)));
        assert_eq!(name("x-amz-meta-a"), "x-amz-meta-a:a b,c\n");
        assert_eq!(name("x-amz-meta-b"), "x-amz-meta-b:\n");
        assert!(!push_header(&mut Vec::new(), &headers, "x-amz-meta-c"));
    }

    #[test]
    fn only_lower_case_digits_are_a_signature() {
        assert_eq!(parse_hex(EMPTY_SHA256.as_bytes()), Some(Sha256::digest("").into()));
        assert_eq!(shown(|into| push_hex(into, &Sha256::digest(""))), EMPTY_SHA256);
        assert_eq!(parse_hex(EMPTY_SHA256.to_uppercase().as_bytes()), None);
        assert_eq!(parse_hex(&EMPTY_SHA256.as_bytes()[..62]), None);
        assert_eq!(parse_hex(format!("{EMPTY_SHA256}00").as_bytes()), None);
    }
}
