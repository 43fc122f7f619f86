//! Response bodies: streams from the endpoint, and cached buckets, which are sent without a copy.

use std::error::Error;
use std::io::IoSlice;

use blocker::Segments;
use bytes::{Buf, Bytes};
use futures_util::stream::Stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};

/// The reason why a body ends early. The connection is then aborted, so that no client mistakes the
/// body for complete.
pub(crate) type BodyError = Box<dyn Error + Send + Sync>;

/// The body of a response.
pub(crate) type Body = UnsyncBoxBody<Data, BodyError>;

/// A part of a body.
pub(crate) enum Data {
    /// Bytes from the endpoint.
    Bytes(Bytes),
    /// Bytes in the cache, which stay there until this is dropped.
    Cached(Cursor),
}

/// A position in segments.
pub(crate) struct Cursor {
    segments: Segments,
    /// The index of the first unfinished segment, and the number of its bytes that are done.
    at: (usize, usize),
    left: usize,
}

impl From<Segments> for Data {
    fn from(segments: Segments) -> Self {
        let left = segments.len_bytes();
        Data::Cached(Cursor { segments, at: (0, 0), left })
    }
}

impl Buf for Cursor {
    fn remaining(&self) -> usize {
        self.left
    }

    fn chunk(&self) -> &[u8] {
        self.segments.as_slice().get(self.at.0).map_or(&[], |segment| &segment.as_slice()[self.at.1..])
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let (first, done) = self.at;
        let segments = self.segments.as_slice().iter().skip(first);
        let mut count = 0;
        for (place, segment) in into.iter_mut().zip(segments) {
            let from = if count == 0 { done } else { 0 };
            *place = IoSlice::new(&segment.as_slice()[from..]);
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.left, "advanced past the end");
        self.left -= count;
        while count > 0 {
            let here = self.segments.as_slice()[self.at.0].len_bytes() - self.at.1;
            if count < here {
                self.at.1 += count;
                return;
            }
            count -= here;
            self.at = (self.at.0 + 1, 0);
        }
    }
}

impl Buf for Data {
    fn remaining(&self) -> usize {
        match self {
            Data::Bytes(bytes) => bytes.remaining(),
            Data::Cached(cursor) => cursor.remaining(),
        }
    }

    fn chunk(&self) -> &[u8] {
        match self {
            Data::Bytes(bytes) => bytes.chunk(),
            Data::Cached(cursor) => cursor.chunk(),
        }
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        match self {
            Data::Bytes(bytes) => bytes.chunks_vectored(into),
            Data::Cached(cursor) => cursor.chunks_vectored(into),
        }
    }

    fn advance(&mut self, count: usize) {
        match self {
            Data::Bytes(bytes) => bytes.advance(count),
            Data::Cached(cursor) => cursor.advance(count),
        }
    }
}

/// Returns a body of these bytes.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    let never = |never: std::convert::Infallible| match never {};
    Full::new(bytes.into()).map_frame(|frame| frame.map_data(Data::Bytes)).map_err(never).boxed_unsync()
}

/// Returns a body of bytes in the cache.
pub(crate) fn cached(segments: Segments) -> Body {
    let never = |never: std::convert::Infallible| match never {};
    Full::new(Data::from(segments)).map_err(never).boxed_unsync()
}

/// Returns a body of the frames of a stream.
pub(crate) fn streamed(frames: impl Stream<Item = Result<Frame<Data>, BodyError>> + Send + 'static) -> Body {
    StreamBody::new(frames).boxed_unsync()
}

/// Returns an error response with S3's `code` and a sentence. The sentence must not contain XML's
/// special characters.
pub(crate) fn failure(status: StatusCode, code: &str, message: &str) -> Response<Body> {
    let text = escaped(message);
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{text}</Message></Error>\n"
    );
    let mut response = Response::new(full(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}

/// Returns the response to an unintelligible request, after which nothing on its connection can be
/// trusted.
pub(crate) fn refused(status: StatusCode, message: &str) -> Response<Body> {
    let code = match status {
        StatusCode::NOT_IMPLEMENTED => "NotImplemented",
        StatusCode::LENGTH_REQUIRED => "MissingContentLength",
        _ => "InvalidRequest",
    };
    let mut response = failure(status, code, message);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocker::Segment;

    #[test]
    fn a_cursor_gives_every_byte_once_in_any_steps() {
        let mut segments = Segments::from(b"abc");
        segments.push(Segment::copied(b"defg"));
        segments.push(Segment::copied(b"h"));
        for step in 1..=8 {
            let mut data = Data::from(segments.clone());
            let mut read = Vec::new();
            while data.has_remaining() {
                let mut places = [IoSlice::new(&[]); 4];
                let count = data.chunks_vectored(&mut places);
                let total: usize = places[..count].iter().map(|place| place.len()).sum();
                assert_eq!(total, data.remaining());
                assert_eq!(&*places[0], data.chunk());
                let take = step.min(data.chunk().len());
                read.extend_from_slice(&data.chunk()[..take]);
                data.advance(take);
            }
            assert_eq!(read, b"abcdefgh");
        }
    }
}
