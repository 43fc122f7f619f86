//! The head of a remembered object, taken from a response; and the generation, which shows whether
//! two responses describe the same bytes.

use std::ops::Range;

use blocker::Namespace;
use bytes::BytesMut;
use hyper::header::{
    AGE, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, DATE, ETAG, HeaderName, HeaderValue, LAST_MODIFIED,
    SET_COOKIE, TRAILER, VARY,
};
use hyper::{HeaderMap, Response, StatusCode};
use sha2::{Digest, Sha256};

use crate::http::read::{Read, has_directive, parse_content_range};
use crate::http::target::ObjectKey;

/// The identity of an object's bytes: a hash of its key, `ETag`, size and `Last-Modified`.
pub(crate) type GenerationId = [u8; 24];

/// The head of a remembered object.
#[derive(Debug)]
pub(crate) struct Head {
    /// The object, under the exact name that was requested.
    pub(crate) object: ObjectKey,
    pub(crate) generation: GenerationId,
    /// The namespace of the object's bytes in the object cache, which is the namespace of its
    /// bucket.
    pub(crate) namespace: Namespace,
    pub(crate) etag: HeaderValue,
    pub(crate) last_modified: Option<HeaderValue>,
    pub(crate) size: u64,
    /// Headers that every response repeats. They belong neither to a single response nor to a
    /// single connection. `Age` is among them, for each response to set or remove: a copy of a map
    /// has no space for one more header, and would be copied again.
    pub(crate) headers: HeaderMap,
    /// Whether the headers come from a response with the whole object.
    pub(crate) is_of_whole: bool,
    /// Whether only a HEAD has stated that the object is empty. Some endpoints describe the HEAD's
    /// own empty body.
    pub(crate) is_claimed_empty: bool,
    /// Whether the response had `Cache-Control: no-cache`.
    pub(crate) is_always_verified: bool,
}

/// Headers of one answer only.
static OF_ONE_ANSWER: [HeaderName; 4] = [AGE, CONTENT_RANGE, DATE, TRAILER];

/// Headers that identify the answered request.
static REQUEST_IDS: [HeaderName; 2] =
    [HeaderName::from_static("x-amz-request-id"), HeaderName::from_static("x-amz-id-2")];

impl Head {
    /// Returns the head of the object in the response to a read, and the range of the object's
    /// bytes that follow. Returns `None` if the head must not be kept. `is_head` states that this
    /// is the response to a HEAD.
    pub(crate) fn of<T>(read: &Read, is_head: bool, answer: &Response<T>) -> Option<(Head, Range<u64>)> {
        let headers = answer.headers();
        let (bytes, size) = match answer.status() {
            StatusCode::OK => {
                let size = one(headers, &CONTENT_LENGTH)?.to_str().ok()?.parse().ok()?;
                (0..size, size)
            }
            StatusCode::PARTIAL_CONTENT => parse_content_range(one(headers, &CONTENT_RANGE)?.to_str().ok()?)?,
            _ => return None,
        };
        let etag = one(headers, &ETAG)?;
        let namespace = Namespace::copy_from(read.bucket.as_bytes()).ok()?;
        // A weak tag does not promise the same bytes.
        let is_strong = etag.as_bytes().starts_with(b"\"") && etag.len() > 2;
        if !is_strong || has_directive(headers, "no-store") || is_kept_apart(headers) {
            return None;
        }
        if headers.contains_key("x-amz-server-side-encryption-customer-algorithm") {
            return None;
        }
        let mut kept = repeated(headers);
        // The ETag is missing if it was declared a connection header.
        let etag = kept.get(ETAG)?.clone();
        let last_modified = kept.get(LAST_MODIFIED).cloned();
        if bytes != (0..size) {
            // With a part's bytes AWS states the checksums of that part of a multipart upload.
            remove_checksums(&mut kept);
        }
        // In the response to a range, this header states the length of the part.
        kept.insert(CONTENT_LENGTH, HeaderValue::from(size));
        kept.insert(AGE, HeaderValue::from_static("0"));
        let head = Head {
            object: read.key,
            generation: id(&read.key, &etag, size, last_modified.as_ref()),
            namespace,
            etag,
            last_modified,
            size,
            headers: kept,
            is_of_whole: answer.status() == StatusCode::OK,
            is_claimed_empty: is_head && size == 0,
            is_always_verified: has_directive(headers, "no-cache"),
        };
        Some((head, bytes))
    }

    /// Returns whether a response describes the same bytes, as far as its headers show.
    pub(crate) fn agrees(&self, headers: &HeaderMap) -> bool {
        headers.get(ETAG).is_none_or(|etag| *etag == self.etag)
            && headers.get(LAST_MODIFIED).is_none_or(|time| Some(time) == self.last_modified.as_ref())
    }

    /// Returns the approximate memory use of the head in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 64);
        size_of::<Head>() + 256 + headers.sum::<usize>()
    }

    /// Returns the headers that can be repeated after a 304 that does not contain them, because
    /// they cannot change without `ETag` or `Last-Modified`.
    pub(crate) fn settled_headers(&self) -> HeaderMap {
        let kept = self.headers.iter().filter(|(name, _)| is_settled(name));
        kept.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// Returns whether the headers that are not settled are equal in both heads.
    pub(crate) fn has_same_unsettled_headers(&self, other: &Head) -> bool {
        let (own, others) = (&self.headers, &other.headers);
        let unsettled = |headers: &HeaderMap| headers.keys().filter(|name| !is_settled(name)).count();
        let is_same = |name| is_settled(name) || own.get_all(name) == others.get_all(name);
        unsettled(own) == unsettled(others) && own.keys().all(is_same)
    }
}

/// Removes headers that apply only to the whole object.
pub(crate) fn remove_checksums(headers: &mut HeaderMap) {
    let of_whole: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("x-amz-checksum-")).cloned().collect();
    of_whole.into_iter().for_each(|name| drop(headers.remove(name)));
}

/// Returns whether a header changes only with the object's bytes: changes of tags, a lock, the
/// storage class, a restoration, a replication, encryption or an expiry keep `ETag` and
/// `Last-Modified`. An unknown header counts as one of these.
fn is_settled(name: &HeaderName) -> bool {
    const SETTLED: [&str; 6] = [
        "x-amz-checksum-",
        "x-amz-delete-marker",
        "x-amz-meta-",
        "x-amz-missing-meta",
        "x-amz-mp-parts-count",
        "x-amz-version-id",
    ];
    !name.as_str().starts_with("x-") || SETTLED.iter().any(|start| name.as_str().starts_with(start))
}

/// Returns the headers that belong to the response, and not to the object.
pub(crate) fn of_this_answer(headers: &HeaderMap) -> HeaderMap {
    let own = REQUEST_IDS.iter().chain([&DATE]);
    own.filter_map(|name| Some((name.clone(), headers.get(name)?.clone()))).collect()
}

/// Returns the headers that every response repeats. They belong neither to a single response nor to
/// a single connection.
pub(crate) fn repeated(headers: &HeaderMap) -> HeaderMap {
    copied_without(headers, OF_ONE_ANSWER.iter().chain(&REQUEST_IDS))
}

/// Returns the [`repeated`] headers and those that identify the answered request, for a response
/// whose document also contains the IDs: clients expect the same IDs in both.
pub(crate) fn repeated_with_ids(headers: &HeaderMap) -> HeaderMap {
    copied_without(headers, &OF_ONE_ANSWER)
}

/// Returns headers without those that concern the connection, and without `others`.
///
/// The values are copied. The originals are parts of a connection's buffer, and each would keep all
/// of it: 64 KiB for one object's headers.
fn copied_without<'a>(headers: &HeaderMap, others: impl IntoIterator<Item = &'a HeaderName>) -> HeaderMap {
    let mut kept = headers.clone();
    crate::http::framing::remove(&mut kept);
    others.into_iter().for_each(|name| drop(kept.remove(name)));
    let mut copied = BytesMut::with_capacity(kept.values().map(HeaderValue::len).sum());
    kept.values().for_each(|value| copied.extend_from_slice(value.as_bytes()));
    let mut copied = copied.freeze();
    for value in kept.values_mut() {
        // A copy of a valid value is valid.
        if let Ok(copy) = HeaderValue::from_maybe_shared(copied.split_to(value.len())) {
            *value = copy;
        }
    }
    kept
}

/// Returns whether a response is meant for a single client, or depends on request headers that the
/// sidecar does not examine.
pub(crate) fn is_kept_apart(headers: &HeaderMap) -> bool {
    headers.contains_key(SET_COOKIE) || varies(headers)
}

/// Returns the value of a header, if it occurs exactly once.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).into_iter();
    values.next().filter(|_| values.next().is_none())
}

/// Returns whether the response depends on request headers that the sidecar does not examine.
fn varies(headers: &HeaderMap) -> bool {
    let is_encoded = headers.contains_key(CONTENT_ENCODING);
    let is_known = |name: &str| {
        // Cross-origin requests are not handled here, so these headers make no difference.
        ["origin", "access-control-request-headers", "access-control-request-method"].contains(&name)
            || (name == "accept-encoding" && !is_encoded)
    };
    let values = headers.get_all(VARY).into_iter();
    let mut names = values.flat_map(|value| value.to_str().unwrap_or("*").split(','));
    names.any(|name| !is_known(name.trim().to_ascii_lowercase().as_str()))
}

fn id(key: &ObjectKey, etag: &HeaderValue, size: u64, last_modified: Option<&HeaderValue>) -> GenerationId {
    let mut hash = Sha256::new();
    hash.update(key);
    hash.update(size.to_le_bytes());
    hash.update((etag.len() as u64).to_le_bytes());
    hash.update(etag.as_bytes());
    hash.update(last_modified.map_or(&b""[..], HeaderValue::as_bytes));
    let full: [u8; 32] = hash.finalize().into();
    let mut id = GenerationId::default();
    id.copy_from_slice(&full[..24]);
    id
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::target::Addressing;
    use hyper::Request;
    use hyper::http::response::Builder;

    fn head(answer: Builder) -> Option<(Head, Range<u64>)> {
        let request = Request::get("/b/k").body(()).unwrap().into_parts().0;
        let read = Read::understand(&request, &Addressing::new(&[]).target("localhost", "/b/k")).unwrap();
        Head::of(&read, false, &answer.body(()).unwrap())
    }

    fn whole() -> Builder {
        Response::builder().header("etag", "\"a\"").header("content-length", "5").header("x-amz-meta-m", "1")
    }

    fn part(range: &str) -> Builder {
        Response::builder().status(206).header("etag", "\"a\"").header("content-range", range)
    }

    #[test]
    fn what_is_kept_does_not_keep_the_buffer_that_it_came_in() {
        let buffer = bytes::Bytes::from(b"\"tag\"Thu, 01 Jan 1970 00:00:00 GMT".to_vec());
        let value = |range| HeaderValue::from_maybe_shared(buffer.slice(range)).unwrap();
        let answer = whole().header("x-amz-meta-n", value(0..5)).header("last-modified", value(5..34));
        let answer = answer.header("x-amz-request-id", value(5..8)).header("x-amz-id-2", value(5..8));
        let mut answer = answer.body(()).unwrap();
        answer.headers_mut().insert(ETAG, value(0..5));
        let request = Request::get("/b/k").body(()).unwrap().into_parts().0;
        let read = Read::understand(&request, &Addressing::new(&[]).target("localhost", "/b/k")).unwrap();
        let (head, _) = Head::of(&read, false, &answer).unwrap();
        let absent = crate::memory::tables::Answer::of(answer.headers(), None).unwrap();
        drop(answer);
        assert!(buffer.is_unique(), "something of the connection's buffer is kept");
        for headers in [&head.headers, &absent.headers] {
            assert_eq!((&headers[ETAG], &headers["x-amz-meta-n"]), (&value(0..5), &value(0..5)));
            assert_eq!(headers[LAST_MODIFIED], value(5..34));
        }
        assert_eq!((head.etag, head.last_modified), (value(0..5), Some(value(5..34))));
    }

    #[test]
    fn what_can_be_kept_is() {
        let (of_whole, bytes) = head(whole().header("date", "d").header("connection", "close")).unwrap();
        assert_eq!((bytes, of_whole.size, of_whole.headers.len()), (0..5, 5, 4));
        let (of_part, bytes) = head(part("bytes 1-3/5")).unwrap();
        assert_eq!((bytes, of_part.size, of_part.is_of_whole), (1..4, 5, false));
        assert_eq!(of_part.generation, of_whole.generation);
        let others = [
            head(whole().header("last-modified", "t")),
            head(part("bytes 1-3/6")),
            head(Response::builder().header("etag", "\"b\"").header("content-length", "5")),
        ];
        for other in others {
            assert_ne!(other.unwrap().0.generation, of_whole.generation);
        }
        assert!(head(whole().header("vary", "Origin, Accept-Encoding")).is_some());
    }

    #[test]
    fn what_can_change_without_the_etag_is_not_settled() {
        let headers = [
            "x-amz-tagging-count",
            "x-amz-object-lock-mode",
            "x-amz-object-lock-retain-until-date",
            "x-amz-object-lock-legal-hold",
            "x-amz-restore",
            "x-amz-storage-class",
            "x-amz-replication-status",
            "x-amz-expiration",
            "x-amz-archive-status",
            "x-amz-server-side-encryption",
            "x-amz-of-tomorrow",
            "x-rgw-object-type",
            "x-minio-deployment-id",
        ];
        let answer = headers.iter().fold(whole(), |answer, name| answer.header(*name, "1"));
        let (head, _) =
            head(answer.header("x-amz-version-id", "2").header("cache-control", "max-age=1")).unwrap();
        assert_eq!(head.headers.len(), headers.len() + 6);
        let mut left: Vec<_> = head.settled_headers().keys().map(|name| name.as_str().to_owned()).collect();
        left.sort();
        assert_eq!(
            left,
            ["age", "cache-control", "content-length", "etag", "x-amz-meta-m", "x-amz-version-id"]
        );
    }

    #[test]
    fn a_head_of_length_0_does_not_state_that_the_object_is_empty() {
        let request = Request::get("/b/k").body(()).unwrap().into_parts().0;
        let read = Read::understand(&request, &Addressing::new(&[]).target("localhost", "/b/k")).unwrap();
        let answer = |len: &str| {
            Response::builder().header("etag", "\"a\"").header("content-length", len).body(()).unwrap()
        };
        for (is_head, len, is_claimed) in [(true, "0", true), (true, "1", false), (false, "0", false)] {
            assert_eq!(
                Head::of(&read, is_head, &answer(len)).unwrap().0.is_claimed_empty,
                is_claimed,
                "{is_head} {len}"
            );
        }
    }

    #[test]
    fn what_cannot_is_not() {
        for answer in [
            whole().status(404),
            whole().header("content-length", "6"),
            whole().header("etag", "\"b\""),
            whole().header("cache-control", "no-store"),
            whole().header("set-cookie", "a=b"),
            whole().header("vary", "X-Mine"),
            whole().header("vary", "accept-encoding").header("content-encoding", "gzip"),
            whole().header("x-amz-server-side-encryption-customer-algorithm", "AES256"),
            Response::builder().header("etag", "W/\"a\"").header("content-length", "5"),
            Response::builder().header("etag", "\"a\""),
            Response::builder().header("content-length", "5"),
            part("bytes 0-9/5"),
            part("bytes */5"),
        ] {
            let text = format!("{answer:?}");
            assert!(head(answer).is_none(), "{text}");
        }
    }
}
