//! Functions for the fuzz targets: decoders of untrusted bytes. Each panics if an invariant is
//! violated.

use std::collections::VecDeque;

use bytes::Bytes;

use super::chunked::{Checksum, Decoder};
use super::signature::{canonical_path, canonical_query, format_time, parse_time};
use super::verify::Claim;
use crate::http::body::keys_to_delete;

/// Decodes a chunked body: the first bytes choose its form, its length, and where it is split.
///
/// # Panics
/// If the result depends on the splits, or is longer than announced.
pub fn chunks(data: &[u8]) {
    let [form, low, high, step, body @ ..] = data else { return };
    let len = u64::from(u16::from_le_bytes([*low, *high]));
    let names = ["", "x-amz-checksum-crc32", "x-amz-checksum-sha1", "x-amz-checksum-crc64nvme"];
    let decode = |step: usize| {
        let checksum = Checksum::named(names[usize::from(form >> 1) % names.len()]);
        let mut decoder = Decoder::new(len, form & 1 == 1, None, checksum);
        let mut parts = VecDeque::new();
        let pushed = body
            .chunks(step.max(1))
            .try_for_each(|part| decoder.push(Bytes::copy_from_slice(part), &mut parts));
        let decoded: Vec<u8> = parts.into_iter().flatten().collect();
        assert!(decoded.len() as u64 <= len, "more came out than was announced");
        match pushed.and_then(|()| decoder.finish()) {
            Ok(()) => {
                assert_eq!(decoded.len() as u64, len, "less came out than was announced");
                Ok(decoded)
            }
            Err(denial) => Err(denial.code()),
        }
    };
    let whole = decode(usize::MAX);
    let cut = decode(usize::from(*step) + 1);
    match (&whole, &cut) {
        (Ok(whole), Ok(cut)) => assert_eq!(whole, cut, "the way in which it is cut matters"),
        (whole, cut) => assert_eq!(whole.is_ok(), cut.is_ok(), "the way in which it is cut matters"),
    }
}

/// Parses a client's identification.
///
/// # Panics
/// If the canonical form of a path or a query is not its own canonical form.
pub fn signatures(data: &[u8]) {
    // Only checks that they return.
    let _ = keys_to_delete(data);
    if let Some(secs) = parse_time(data) {
        assert!(parse_time(format_time(secs).as_bytes()) == Some(secs));
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    for claim in [Claim::of_header(text).ok(), Claim::of_query(text).ok().flatten()].into_iter().flatten() {
        assert!(!claim.access_key.is_empty() && !claim.day().is_empty() && !claim.region().is_empty());
        assert!(claim.signed_headers.split(';').all(|name| claim.covers(name)));
    }
    for canonical in [|path: &str| canonical_path(path).into_owned(), canonical_query] {
        let once = canonical(text);
        assert_eq!(canonical(&once), once);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_or_is_near_what_clients_send_breaks_no_rule() {
        let texts: [&[u8]; 6] = [
            b"\x02\x05\x00\x013\r\nhel\r\n2\r\nlo\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n",
            b"\x00\x05\x00\x025\r\nhello\r\n0\r\n\r\n",
            b"AWS4-HMAC-SHA256 Credential=a/20130524/r/s3/aws4_request,SignedHeaders=host,Signature=00",
            b"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Date=20130524T000000Z&X-Amz-Signature=0&a+b=%2B",
            b"<Delete><Object><Key>a&amp;&#65;</Key></Object></Delete>",
            b"20130524T000000Z",
        ];
        let mut seed = 1_u64;
        for round in 0..20_000 {
            let mut bytes = texts[round % texts.len()].to_vec();
            for _ in 0..round % 4 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (seed >> 33) as usize % bytes.len();
                bytes[at] = (seed >> 56) as u8;
            }
            chunks(&bytes);
            signatures(&bytes);
        }
    }
}
