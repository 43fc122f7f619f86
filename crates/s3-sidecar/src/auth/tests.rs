//! The examples in AWS's documentation ("Signature Calculations for the Authorization Header",
//! "Using query parameters", "Transferring payload in multiple chunks"), and the effects of
//! changing them.

use std::collections::VecDeque;

use bytes::Bytes;
use hyper::Request;
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::request::Parts;

use super::chunked::{Checksum, Decoder};
use super::denial::Denial;
use super::keys::{Ring, parse};
use super::payload::Payload;
use super::signature::parse_time;
use super::verify::{Verified, verify};

const KEYS: &str = "[[keys]]\naccess_key = \"AKIAIOSFODNN7EXAMPLE\"\nsecret_key = \"wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY\"\n\
                    write = [\"*\"]\nread = [\"*\"]\n";
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn ring() -> Ring {
    parse(KEYS).unwrap()
}

fn now() -> u64 {
    parse_time(b"20130524T000000Z").unwrap()
}

/// A request as text: its first line, and its headers.
type Text = (String, Vec<(String, String)>);

fn head((line, headers): &Text) -> Option<Parts> {
    let (method, uri) = line.split_once(' ')?;
    let mut builder = Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        builder = builder.header(name, HeaderValue::from_bytes(value.as_bytes()).ok()?);
    }
    Some(builder.body(()).ok()?.into_parts().0)
}

fn verified(text: &Text) -> Result<Option<Verified>, Denial> {
    verify(&ring(), "us-east-1", &head(text).expect("a request"), now())
}

fn code(text: &Text) -> &'static str {
    verified(text).map(|_| "accepted").unwrap_or_else(|denial| denial.code())
}

fn request(line: &str, signature: &str, payload: &str, others: &[(&str, &str)]) -> Text {
    let mut headers: Vec<(String, String)> = [
        ("host", "examplebucket.s3.amazonaws.com"),
        ("x-amz-content-sha256", payload),
        ("x-amz-date", "20130524T000000Z"),
    ]
    .iter()
    .filter(|(name, _)| others.iter().all(|(other, _)| other != name))
    .chain(others)
    .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
    .collect();
    headers.sort();
    let names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
    let value = format!(
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,SignedHeaders={},Signature={signature}",
        names.join(";")
    );
    headers.push(("authorization".into(), value));
    (line.into(), headers)
}

fn get_object() -> Text {
    let signature = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41";
    request("GET /test.txt", signature, EMPTY, &[("range", "bytes=0-9")])
}

fn presigned() -> Text {
    let query = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request\
                 &X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host\
                 &X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404";
    let headers = vec![("host".into(), "examplebucket.s3.amazonaws.com".into())];
    (format!("GET /test.txt?{query}"), headers)
}

#[test]
fn the_documented_requests_are_accepted() {
    let welcome = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
    let put = request(
        "PUT /test$file.text",
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        welcome,
        &[("date", "Fri, 24 May 2013 00:00:00 GMT"), ("x-amz-storage-class", "REDUCED_REDUNDANCY")],
    );
    let found = verified(&put).unwrap().unwrap();
    assert!(matches!(found.payload, Payload::Hash(hash) if hash[0] == 0x44));
    for text in [
        get_object(),
        presigned(),
        request(
            "GET /?lifecycle",
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            EMPTY,
            &[],
        ),
        request(
            "GET /?max-keys=2&prefix=J",
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            EMPTY,
            &[],
        ),
    ] {
        assert!(verified(&text).unwrap().is_some(), "{text:?}");
    }
    // Another order, encoding or spacing does not change the request.
    let (line, mut headers) = get_object();
    headers.reverse();
    let spaced = |(name, value): (String, String)| (name, format!("  {value} "));
    let headers: Vec<_> = headers.into_iter().map(spaced).collect();
    let trimmed: Vec<_> =
        headers.iter().map(|(name, value)| (name.clone(), value.trim().to_owned())).collect();
    assert!(verified(&(line.replace("test", "te%73t"), trimmed)).unwrap().is_some());
    let (line, headers) = request(
        "GET /?prefix=J&max-keys=2",
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        EMPTY,
        &[],
    );
    assert!(verified(&(line, headers)).unwrap().is_some());
}

/// Every byte of a signed request, replaced by several others, removed and doubled.
#[test]
fn every_change_of_a_signed_request_is_refused() {
    let mut count = 0;
    for right in [get_object(), presigned()] {
        let fields = 1 + 2 * right.1.len();
        for field in 0..fields {
            let value = |text: &Text| match field {
                0 => text.0.clone(),
                at if at % 2 == 1 => text.1[at / 2].0.clone(),
                at => text.1[at / 2 - 1].1.clone(),
            };
            let with = |changed: String| {
                let mut text = right.clone();
                match field {
                    0 => text.0 = changed,
                    at if at % 2 == 1 => text.1[at / 2].0 = changed,
                    at => text.1[at / 2 - 1].1 = changed,
                }
                text
            };
            let original = value(&right);
            for at in 0..original.len() {
                let (before, rest) = original.split_at(at);
                let (byte, after) = rest.split_at(1);
                let flipped = (byte.as_bytes()[0] ^ 1) as char;
                for new in [
                    String::new(),
                    byte.repeat(2),
                    flipped.to_string(),
                    "0".into(),
                    "%".into(),
                    "/".into(),
                    ";".into(),
                ] {
                    if new == byte {
                        continue;
                    }
                    let changed = with(format!("{before}{new}{after}"));
                    // The HTTP library refuses inputs that are not requests.
                    let Some(head) = head(&changed) else { continue };
                    count += 1;
                    let found = verify(&ring(), "us-east-1", &head, now());
                    // Without its header name there is no signature, and the request is anonymous.
                    let is_refused = match &found {
                        Err(_) => true,
                        Ok(None) => !head.headers.contains_key("authorization"),
                        Ok(Some(_)) => is_same_request(&right, &changed),
                    };
                    assert!(is_refused, "{changed:?}: {found:?}");
                }
            }
        }
    }
    assert!(count > 4000, "{count}");
}

/// Returns whether two requests differ only without meaning: capitals of names, spaces, doubled
/// separators.
fn is_same_request(one: &Text, other: &Text) -> bool {
    let plain = |(line, headers): &Text| {
        let line = line.replace("&&", "&").replace("?&", "?");
        let mut headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| {
                let value = value.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
                (name.to_lowercase(), value)
            })
            .collect();
        headers.sort();
        (line, headers)
    };
    plain(one) == plain(other)
}

#[test]
fn what_a_signature_must_cover_is_covered() {
    let with = |name: &str, value: &str| {
        let mut text = get_object();
        text.1.push((name.into(), value.into()));
        code(&text)
    };
    assert_eq!(code(&get_object()), "accepted");
    assert_eq!(with("accept", "*/*"), "accepted");
    assert_eq!(with("x-amz-acl", "public-read"), "AccessDenied");
    assert_eq!(with("X-Amz-Meta-A", "1"), "AccessDenied");
    assert_eq!(with("x-amz-date", "20130524T000000Z"), "InvalidArgument");
    assert_eq!(with("x-amz-content-sha256", EMPTY), "InvalidArgument");
    assert_eq!(with("authorization", "AWS4-HMAC-SHA256 x"), "AuthorizationHeaderMalformed");
    assert_eq!(with("range", "bytes=0-9"), "SignatureDoesNotMatch");
    assert_eq!(with("x-amz-security-token", "t"), "InvalidToken");
    let mut text = presigned();
    text.1.push(("x-amz-acl".into(), "public-read".into()));
    assert_eq!(code(&text), "AccessDenied");
    let (line, mut headers) = presigned();
    headers.push(("authorization".into(), "AWS4-HMAC-SHA256 x".into()));
    assert_eq!(code(&(line, headers)), "InvalidArgument");
    let without = |name: &str| {
        let (line, headers) = get_object();
        code(&(line, headers.into_iter().filter(|(other, _)| other != name).collect()))
    };
    assert_eq!(without("x-amz-date"), "AccessDenied");
    assert_eq!(without("x-amz-content-sha256"), "MissingSecurityHeader");
    assert_eq!(without("range"), "SignatureDoesNotMatch");
    let replaced = |find: &str, replace: &str| {
        let mut text = get_object();
        for (_, value) in &mut text.1 {
            *value = value.replace(find, replace);
        }
        assert_ne!(text, get_object(), "{find}");
        code(&text)
    };
    assert_eq!(replaced("host;range", "range"), "AccessDenied");
    assert_eq!(replaced("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLF"), "InvalidAccessKeyId");
    assert_eq!(replaced("us-east-1", "us-east-2"), "AuthorizationHeaderMalformed");
    assert_eq!(replaced("/s3/", "/iam/"), "AuthorizationHeaderMalformed");
    assert_eq!(replaced("/20130524/", "/20130523/"), "AuthorizationHeaderMalformed");
    assert_eq!(replaced(EMPTY, "UNSIGNED"), "InvalidArgument");
    assert_eq!(replaced(EMPTY, "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"), "NotImplemented");
    assert_eq!(replaced(EMPTY, "UNSIGNED-PAYLOAD"), "SignatureDoesNotMatch");
}

#[test]
fn signatures_hold_for_their_time() {
    let at = |text: &Text, now: u64| {
        let found = verify(&ring(), "", &head(text).unwrap(), now);
        found.map(|_| "accepted").unwrap_or_else(|denial| denial.code())
    };
    for (offset, expected) in
        [(-901, "RequestTimeTooSkewed"), (-900, "accepted"), (900, "accepted"), (901, "RequestTimeTooSkewed")]
    {
        assert_eq!(at(&get_object(), now().checked_add_signed(offset).unwrap()), expected, "{offset}");
    }
    for (offset, expected) in
        [(-901, "AccessDenied"), (-900, "accepted"), (86_400, "accepted"), (86_401, "AccessDenied")]
    {
        assert_eq!(at(&presigned(), now().checked_add_signed(offset).unwrap()), expected, "{offset}");
    }
}

/// A body from the documentation: 65 KiB of the letter a, in chunks of 64 KiB.
struct Documented {
    request: Text,
    body: Vec<u8>,
    /// The offsets of the chunks and the trailer.
    starts: Vec<usize>,
}

fn documented(is_trailer: bool) -> Documented {
    let (seed, chunks, payload): (_, [&str; 3], _) = match is_trailer {
        false => (
            "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
            [
                "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
                "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
                "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
            ],
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        ),
        true => (
            "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
            [
                "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
                "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
                "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
            ],
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
        ),
    };
    let mut others = vec![
        ("host", "s3.amazonaws.com"),
        ("content-encoding", "aws-chunked"),
        ("x-amz-decoded-content-length", "66560"),
        ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
    ];
    others.push(if is_trailer {
        ("x-amz-trailer", "x-amz-checksum-crc32c")
    } else {
        ("content-length", "66824")
    });
    let request = request("PUT /examplebucket/chunkObject.txt", seed, payload, &others);
    let (mut body, mut starts) = (Vec::new(), Vec::new());
    for (len, signature) in [65_536, 1024, 0].into_iter().zip(chunks) {
        starts.push(body.len());
        body.extend(format!("{len:x};chunk-signature={signature}\r\n").bytes());
        body.extend(std::iter::repeat_n(b'a', len));
        if len > 0 {
            body.extend(b"\r\n");
        }
    }
    starts.push(body.len());
    if is_trailer {
        body.extend(b"x-amz-checksum-crc32c:sOO8/Q==\r\n");
        body.extend(
            b"x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n",
        );
    }
    body.extend(b"\r\n");
    Documented { request, body, starts }
}

fn decode(request: &Text, body: &[u8], step: usize) -> Result<Vec<u8>, Denial> {
    let Verified { payload, chain, .. } = verified(request)?.expect("a signature");
    let Payload::Chunked { is_signed, has_trailer } = payload else { panic!("{payload:?}") };
    let checksum = has_trailer.then(|| Checksum::named("x-amz-checksum-crc32c").unwrap());
    let mut decoder = Decoder::new(66_560, is_signed, chain, checksum);
    let mut parts = VecDeque::new();
    for part in body.chunks(step) {
        decoder.push(Bytes::copy_from_slice(part), &mut parts)?;
    }
    decoder.finish()?;
    Ok(parts.into_iter().flatten().collect())
}

#[test]
fn the_documented_chunks_are_accepted() {
    for is_trailer in [false, true] {
        let Documented { request, body, .. } = documented(is_trailer);
        if !is_trailer {
            assert_eq!(body.len(), 66_824);
        }
        for step in [1, 7, 1000, 66_824, 100_000] {
            assert_eq!(decode(&request, &body, step).unwrap(), vec![b'a'; 66_560], "{is_trailer} {step}");
        }
    }
}

#[test]
fn trailers_of_minios_sdk_for_go_are_accepted() {
    let Documented { request, body, starts } = documented(true);
    let checksum = b"x-amz-checksum-crc32c:sOO8/Q==";
    let with = |end: &[u8]| {
        let signature = &body[starts[3] + checksum.len() + 2..];
        [&body[..starts[3]], checksum, end, signature].concat()
    };
    assert_eq!(with(b"\r\n"), body);
    assert!(decode(&request, &with(b"\n\r\n"), 7).is_ok());
    for end in [&b"\n"[..], b"\n\n", b"\n\r\n\r\n", b"\r\n\r\n"] {
        assert!(decode(&request, &with(end), 7).is_err(), "{end:?}");
    }
}

#[test]
fn chunks_that_are_changed_left_out_or_in_another_order_are_refused() {
    for is_trailer in [false, true] {
        let Documented { request, body, starts } = documented(is_trailer);
        let refused = |body: &[u8]| assert!(decode(&request, body, 1 << 20).is_err(), "{is_trailer}");
        let edges = starts.iter().flat_map(|start| start.saturating_sub(3)..(start + 90).min(body.len()));
        for at in edges.chain(body.len() - 120..body.len()) {
            for flip in [1, 32, 128] {
                let mut changed = body.clone();
                changed[at] ^= flip;
                // Hexadecimal lengths and trailer names may have capitals.
                let is_same = changed.eq_ignore_ascii_case(&body) && !is_in_signature(&body, at);
                assert!(is_same || decode(&request, &changed, 1 << 20).is_err(), "{is_trailer} {at} {flip}");
            }
            refused(&body[..at]);
        }
        let part = |from: usize, to: usize| &body[starts[from]..starts[to]];
        let end = &body[starts[3]..];
        refused(&[part(1, 2), part(0, 1), part(2, 3), end].concat());
        refused(&[part(0, 1), part(0, 1), part(1, 2), part(2, 3), end].concat());
        refused(&[part(0, 1), part(2, 3), end].concat());
        refused(&[part(0, 2), end].concat());
        refused(&[&body[..], b"x"].concat());
        refused(&[&body[..], &body[..]].concat());
    }
}

fn is_in_signature(body: &[u8], at: usize) -> bool {
    // The value of the checksum and the signatures are case-sensitive.
    let line = body[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    body[line..at].iter().any(|byte| b";:".contains(byte))
}

#[test]
fn bodies_without_signatures_are_held_to_length_and_checksum() {
    let decode = |body: &str| {
        let mut decoder = Decoder::new(5, false, None, Checksum::named("x-amz-checksum-crc32"));
        let mut parts = VecDeque::new();
        decoder.push(Bytes::copy_from_slice(body.as_bytes()), &mut parts)?;
        decoder.finish().map(|()| parts.into_iter().flatten().collect::<Vec<u8>>())
    };
    let right = "3\r\nhel\r\n2\r\nlo\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n";
    assert_eq!(decode(right).unwrap(), b"hello");
    for (find, replace, code) in [
        ("NhCmhg==", "NhCmhh==", "BadDigest"),
        ("NhCmhg==", "", "BadDigest"),
        ("x-amz-checksum-crc32", "x-amz-checksum-crc32c", "MalformedTrailerError"),
        ("x-amz-checksum-crc32:NhCmhg==\r\n", "", "MalformedTrailerError"),
        ("\r\n\r\n", "\r\nother:1\r\n\r\n", "MalformedTrailerError"),
        ("\r\n\r\n", "\r\n", "IncompleteBody"),
        ("\r\n\r\n", "\r\n\r\nx", "InvalidRequest"),
        ("lo", "l", "InvalidRequest"),
        ("lo", "loo", "InvalidRequest"),
        ("2\r\nlo\r\n", "3\r\nloo\r\n", "IncompleteBody"),
        ("2\r\nlo\r\n", "", "BadDigest"),
        ("3\r\n", "3;chunk-signature=0\r\n", "InvalidRequest"),
        ("3\r\n", "+3\r\n", "InvalidRequest"),
        ("3\r\n", "3\n", "InvalidRequest"),
        ("3\r\n", "\r\n", "InvalidRequest"),
        ("3\r\n", "10000000000000003\r\n", "InvalidRequest"),
        ("3\r\n", "ffffffffffffffff\r\n", "IncompleteBody"),
    ] {
        let body = right.replacen(find, replace, 1);
        assert_eq!(decode(&body).map(|_| "accepted").unwrap_err().code(), code, "{body:?}");
    }
    // MinIO's SDK for Go ends the checksum's line like this.
    let of_minio = right.replace("==\r\n\r\n", "==\n\r\n\r\n");
    assert_eq!(decode(&of_minio).unwrap(), b"hello");
    for wrong in [
        of_minio.replace("\n\r\n\r\n", "\n\r\n"),
        of_minio.replace("==\n", "==\x0c\n"),
        of_minio.clone() + "\r\n",
    ] {
        assert!(decode(&wrong).is_err(), "{wrong:?}");
    }
    // The length of a line is limited.
    assert!(decode(&"0".repeat(100_000)).is_err());
}
