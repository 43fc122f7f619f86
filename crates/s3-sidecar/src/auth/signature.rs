//! Signatures of version 4: the canonical form of a request, which does not depend on encoding,
//! order and spaces; the text that is signed; its time; and the keys.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit, Mac};
use hyper::HeaderMap;
use hyper::http::request::Parts;
use parking_lot::RwLock;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};
use sha2::{Digest, Sha256};

use crate::http::text::split;

/// The SHA-256 of the empty string, in hexadecimal digits.
pub(crate) const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// The bytes that are encoded in queries.
pub(crate) const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The bytes that are encoded in paths.
pub(crate) const PATH: &AsciiSet = &QUERY.remove(b'/');

/// Returns a path that is decoded once and encoded again. Dot segments stay, because keys in S3 may
/// contain them.
pub(crate) fn canonical_path(path: &str) -> Cow<'_, str> {
    if is_plain_path(path.as_bytes()) {
        return Cow::Borrowed(path);
    }
    let decoded: Vec<u8> = percent_decode(path.as_bytes()).collect();
    Cow::Owned(percent_encode(&decoded, PATH).to_string())
}

/// Returns whether [`PATH`] encodes none of these bytes. None of them is a percent sign.
pub(crate) fn is_plain_path(path: &[u8]) -> bool {
    path.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'/'))
}

/// Returns a query's parameters in their original form.
pub(crate) fn parameters(query: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    query.split('&').filter(|part| !part.is_empty()).map(|part| match part.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (part, None),
    })
}

/// Returns the decoded bytes of a part of a query, where a plus is a space.
pub(crate) fn decoded(text: &str) -> Vec<u8> {
    percent_decode(text.replace('+', " ").as_bytes()).collect()
}

/// Returns the parameters of a query, encoded again and sorted, without the signature itself.
pub(crate) fn canonical_query(query: &str) -> String {
    let encoded = |text: &str| percent_encode(&decoded(text), QUERY).to_string();
    let mut all: Vec<(String, String)> = parameters(query)
        .map(|(name, value)| (encoded(name), encoded(value.unwrap_or_default())))
        .filter(|(name, _)| name != "X-Amz-Signature")
        .collect();
    all.sort_unstable();
    all.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

/// Appends a header, whose name is in lower case, with all its values. Returns false if it is missing.
fn push_header(into: &mut Vec<u8>, headers: &HeaderMap, name: &str) -> bool {
    into.extend_from_slice(name.as_bytes());
    into.push(b':');
    let mut count = 0;
    // Requests have few headers, and a lookup would first have to parse the name.
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

/// The length of most canonical requests, in bytes.
const CANONICAL_BYTES: usize = 512;

/// Returns the canonical form of a request with the listed headers (`signed_headers`, separated by
/// semicolons) and the value of `x-amz-content-sha256`. Returns `None` if a listed header is
/// missing.
pub(crate) fn canonical_request(head: &Parts, signed_headers: &str, payload: &[u8]) -> Option<Vec<u8>> {
    let (path, query) = (canonical_path(head.uri.path()), head.uri.query().map(canonical_query));
    let mut text = Vec::with_capacity(CANONICAL_BYTES);
    for part in [head.method.as_str(), "\n", &*path, "\n", query.as_deref().unwrap_or_default(), "\n"] {
        text.extend_from_slice(part.as_bytes());
    }
    for name in split(signed_headers, b';') {
        push_header(&mut text, &head.headers, name).then_some(())?;
    }
    for part in [b"\n", signed_headers.as_bytes(), b"\n", payload] {
        text.extend_from_slice(part);
    }
    Some(text)
}

/// The length of most strings to sign, in bytes.
const TO_SIGN_BYTES: usize = 192;

/// Returns the string to sign: the algorithm, the time, the scope, and the hash of the canonical
/// request.
pub(crate) fn string_to_sign(stamp: &[u8], scope: &str, canonical: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(TO_SIGN_BYTES);
    for part in [&b"AWS4-HMAC-SHA256\n"[..], stamp, b"\n", scope.as_bytes(), b"\n"] {
        text.extend_from_slice(part);
    }
    push_hex(&mut text, &Sha256::digest(canonical));
    text
}

/// Appends bytes in hexadecimal digits.
pub(crate) fn push_hex(into: &mut Vec<u8>, bytes: &[u8]) {
    let begin = into.len();
    into.resize(begin + 2 * bytes.len(), 0);
    for (digits, byte) in into[begin..].as_chunks_mut().0.iter_mut().zip(bytes) {
        *digits = [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
    }
}

/// Returns the 32 bytes of 64 lower-case hexadecimal digits; `None` for any other text.
pub(crate) fn parse_hex(text: &[u8]) -> Option<[u8; 32]> {
    let text: &[u8; 64] = text.try_into().ok()?;
    let (mut bytes, mut all) = ([0; 32], 0);
    for (byte, [high, low]) in bytes.iter_mut().zip(text.as_chunks::<2>().0) {
        let (high, low) = (VALUES[usize::from(*high)], VALUES[usize::from(*low)]);
        all |= high | low;
        *byte = high << 4 | low;
    }
    (all & NO_DIGIT == 0).then_some(bytes)
}

const NO_DIGIT: u8 = 0x80;

/// The value of each lower-case hexadecimal digit. The digits of a signature are random, so that
/// every second branch on one would be mispredicted.
static VALUES: [u8; 256] = {
    let mut values = [NO_DIGIT; 256];
    let mut value = 0;
    while value < 16 {
        values[DIGITS[value] as usize] = value as u8;
        value += 1;
    }
    values
};

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Returns the current time, in seconds since 1970.
pub(crate) fn now() -> u64 {
    // If the clock is before 1970, every signature is refused.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Parses a time, such as `20130524T000000Z`, into seconds since 1970; `None` for any other text.
pub(crate) fn parse_time(text: &[u8]) -> Option<u64> {
    let text: &[u8; 16] = text.try_into().ok()?;
    let mut time = *b"0000-00-00T00:00:00Z";
    for (into, from) in [(0..4, 0..4), (5..7, 4..6), (8..13, 6..11), (14..16, 11..13), (17..20, 13..16)] {
        time[into].copy_from_slice(&text[from]);
    }
    let time = humantime::parse_rfc3339(std::str::from_utf8(&time).ok()?).ok()?;
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

/// Formats a time in seconds since 1970.
pub(crate) fn format_time(secs: u64) -> String {
    // The end of the year 9999, the last one that has this form.
    const SECS_MAX: u64 = 253_402_300_799;
    let time = UNIX_EPOCH + Duration::from_secs(secs.min(SECS_MAX));
    humantime::format_rfc3339_seconds(time).to_string().replace(['-', ':'], "")
}

/// The number of signing keys (for days and regions) kept for each secret key.
const SCOPES_MAX: usize = 4;

/// A secret key, and the signing keys derived from it.
pub(crate) struct SecretKey {
    text: String,
    /// Signing keys that were used before, each with its scope, the oldest first.
    known: RwLock<VecDeque<(String, SigningKey)>>,
}

impl SecretKey {
    pub(crate) fn new(text: String) -> SecretKey {
        SecretKey { text, known: RwLock::default() }
    }

    /// Returns the signing key of a scope, and whether it was [kept](Self::keep) before.
    pub(crate) fn signing_key(&self, scope: &str) -> (SigningKey, bool) {
        let known = self.known.read();
        match known.iter().find(|(own, _)| own == scope) {
            Some((_, key)) => (key.clone(), true),
            None => (SigningKey::derive(&self.text, scope), false),
        }
    }

    /// Keeps the signing key of a scope.
    pub(crate) fn keep(&self, scope: &str, key: SigningKey) {
        let mut known = self.known.write();
        if known.iter().any(|(own, _)| own == scope) {
            return;
        }
        if known.len() == SCOPES_MAX {
            known.pop_front();
        }
        known.push_back((scope.to_owned(), key));
    }
}

/// A key that signs requests for one day and one region. The `Debug` output does not reveal the
/// key.
#[derive(Clone)]
pub(crate) struct SigningKey(Hmac<Sha256>);

impl SigningKey {
    /// Derives the key of a scope: `DAY/REGION/s3/aws4_request`.
    pub(crate) fn derive(secret: &str, scope: &str) -> SigningKey {
        let first = SigningKey::new(&[b"AWS4", secret.as_bytes()].concat());
        scope.split('/').fold(first, |key, part| SigningKey::new(&key.sign(part.as_bytes())))
    }

    fn new(key: &[u8]) -> SigningKey {
        SigningKey(Hmac::new_from_slice(key).expect("HMAC takes keys of any length"))
    }

    /// Returns the signature of a string.
    pub(crate) fn sign(&self, text: &[u8]) -> [u8; 32] {
        self.0.clone().chain_update(text).finalize().into_bytes().into()
    }

    /// Verifies a signature in constant time.
    pub(crate) fn is_signature(&self, text: &[u8], signature: &[u8; 32]) -> bool {
        self.0.clone().chain_update(text).verify_slice(signature).is_ok()
    }
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(a signing key)")
    }
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
            assert_eq!(canonical_path(path), canonical);
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
            assert_eq!(canonical_query(query), canonical);
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

    /// From "Deriving the signing key" in the documentation of AWS.
    #[test]
    fn the_documented_key_is_derived() {
        let secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
        let documented = "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9";
        let derived = SigningKey::derive(secret, "20150830/us-east-1/iam/aws4_request");
        let documented = SigningKey::new(&parse_hex(documented.as_bytes()).unwrap());
        assert_eq!(derived.sign(b"text"), documented.sign(b"text"));
        assert_eq!(format!("{:?}", SigningKey::derive(secret, "a/b")), "(a signing key)");
    }

    #[test]
    fn a_signature_holds_for_its_text_and_key() {
        let key = SigningKey::derive("secret", "20150830/r/s3/aws4_request");
        let signature = key.sign(b"text");
        assert!(key.is_signature(b"text", &signature));
        assert!(!key.is_signature(b"texs", &signature));
        assert!(
            !SigningKey::derive("secret", "20150831/r/s3/aws4_request").is_signature(b"text", &signature)
        );
        for at in 0..32 {
            let mut other = signature;
            other[at] ^= 1;
            assert!(!key.is_signature(b"text", &other));
        }
    }

    #[test]
    fn times_are_read_and_written() {
        for (text, secs) in [
            ("19700101T000000Z", 0),
            ("20000229T235959Z", 951_868_799),
            ("20130524T000000Z", 1_369_353_600),
            ("20241231T235959Z", 1_735_689_599),
            ("20250101T000000Z", 1_735_689_600),
            ("21000228T120000Z", 4_107_499_200),
            ("21000301T000000Z", 4_107_542_400),
        ] {
            assert_eq!(parse_time(text.as_bytes()), Some(secs), "{text}");
            assert_eq!(format_time(secs), text);
        }
        // Each day of eight hundred years.
        for day in 0..292_194 {
            let secs = day * 86_400 + 86_399;
            assert_eq!(parse_time(format_time(secs).as_bytes()), Some(secs));
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "20130524",
            "20130524T000000",
            "20130524T000000z",
            "20130524 000000Z",
            "20130524T0000000Z",
            "20131301T000000Z",
            "20130001T000000Z",
            "20130500T000000Z",
            "20130229T000000Z",
            "21000229T000000Z",
            "20130431T000000Z",
            "20130524T240000Z",
            "20130524T006000Z",
            "19691231T000000Z",
            "+2013524T000000Z",
            "2013052٤T00000Z",
        ] {
            assert_eq!(parse_time(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn the_table_of_signing_keys_is_bounded() {
        let key = SecretKey::new("0123456789abcdef".into());
        for day in 0..100 {
            let scope = format!("{day:08}/r/s3/aws4_request");
            let (signing, is_known) = key.signing_key(&scope);
            assert!(!is_known);
            key.keep(&scope, signing.clone());
            key.keep(&scope, signing);
            assert!(key.signing_key(&scope).1);
            assert!(key.known.read().len() <= SCOPES_MAX);
        }
    }
}
