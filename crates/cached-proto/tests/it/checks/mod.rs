//! Properties that hold for all bytes, shared by the tests and the fuzz targets (which include this
//! file by its path).
//!
//! The *events* of a stream are what a connection receives: requests with their bodies, refusals,
//! and closing. They must not depend on how the bytes were cut into pieces, and a request that is
//! encoded again must decode to the same request.

#![allow(dead_code, reason = "each user takes what it needs")]

mod write;

use std::fmt::Debug;

use cached_proto::limits::{BINARY_FRAME_HEAD_LEN_MAX, LINE_LEN_MAX};
use cached_proto::meta::{self, KeyBuffer, MetaItem, Status};
use cached_proto::text::{self, BodyHeader, check_terminator};
use cached_proto::{Decoded, Limits, Refused, binary};

/// One event of a stream, and its length in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A request with its body, or an announced body that never arrived completely.
    Request(String),
    /// A reply to malformed input.
    Refused { reply: Vec<u8>, swallow: usize, close: bool },
    /// A close without a reply.
    Close,
    /// The connection is closed while more bytes wait than a line or a frame's head may have. If
    /// the bytes arrive in other pieces, this may happen earlier or not at all.
    Overlong,
    /// Bytes at the end that are not a complete request.
    Rest(usize),
}

/// Decodes a text stream that arrives in pieces of the given lengths, repeated.
pub(crate) fn text_events(input: &[u8], pieces: &[usize]) -> Vec<Event> {
    events_of(
        input,
        pieces,
        LINE_LEN_MAX + 1,
        |bytes, scanned| text::decode(bytes, scanned, &Limits::DEFAULT),
        |request| {
            exercise_text(request);
            let bytes = write::text(request);
            let again = text::decode(&bytes, 0, &Limits::DEFAULT);
            let Decoded::Request { request: read, consumed } = again else {
                panic!(
                    "{request:?} was written as {:?}, which is {again:?}",
                    bytes.escape_ascii().to_string()
                );
            };
            assert_eq!(consumed, bytes.len());
            assert_eq!(format!("{read:?}"), format!("{request:?}"));
        },
        |header, body| {
            let request = match header {
                BodyHeader::Store(header) => text::Request::Store(text::Store { header, body }),
                BodyHeader::MetaSet(header) => text::Request::MetaSet(meta::Set { header, body }),
            };
            format!("{request:?}")
        },
        |reply| reply.to_vec(),
    )
}

/// Decodes a binary stream that arrives in pieces of the given lengths, repeated.
pub(crate) fn binary_events(input: &[u8], pieces: &[usize]) -> Vec<Event> {
    events_of(
        input,
        pieces,
        BINARY_FRAME_HEAD_LEN_MAX,
        |bytes, _| binary::decode(bytes),
        |request| {
            let bytes = write::binary(request);
            let again = binary::decode(&bytes);
            assert_eq!(again, Decoded::Request { request: *request, consumed: bytes.len() });
        },
        |header, value| {
            let command = binary::Command::Store(binary::Store { header, value });
            format!("{:?}", binary::Request { head: header.head, command })
        },
        |reply| {
            let mut out = Vec::new();
            reply.encode(&mut out);
            assert_eq!(out[0], binary::MAGIC_RESPONSE);
            out
        },
    )
}

/// Checks arbitrary bytes as a text stream; the first byte determines how they are cut.
pub(crate) fn text(data: &[u8]) {
    let Some((cut, input)) = data.split_first() else { return };
    let whole = text_events(input, &[usize::MAX]);
    let cut = text_events(input, &pieces(*cut));
    assert_same(&whole, &cut);
}

/// Checks arbitrary bytes as flags and arguments of each meta command.
pub(crate) fn meta(data: &[u8]) {
    text(data);
    let Some((_, rest)) = data.split_first() else { return };
    for verb in ["mg ", "ms ", "md ", "ma ", "me ", "mg key ", "ms key 2 "] {
        let input = [verb.as_bytes(), rest, b"\r\nhi\r\n"].concat();
        text_events(&input, &[usize::MAX]);
    }
}

/// Checks arbitrary bytes as a binary stream; the first byte determines how they are cut.
pub(crate) fn binary(data: &[u8]) {
    let Some((cut, input)) = data.split_first() else { return };
    let whole = binary_events(input, &[usize::MAX]);
    let cut = binary_events(input, &pieces(*cut));
    assert_same(&whole, &cut);
}

/// Asserts that the events are the same regardless of how the stream was cut.
pub(crate) fn assert_same(whole: &[Event], cut: &[Event]) {
    let plain = |event: &Event| if *event == Event::Overlong { Event::Close } else { event.clone() };
    let same = whole.iter().zip(cut).take_while(|(one, other)| plain(one) == plain(other)).count();
    let same_end = same == whole.len() && same == cut.len();
    assert!(same_end || cut.get(same) == Some(&Event::Overlong), "\n{whole:#?}\nbut cut in pieces\n{cut:#?}");
}

fn pieces(seed: u8) -> Vec<usize> {
    match seed {
        0..=63 => vec![1],
        64..=127 => vec![usize::from(seed - 63)],
        128..=191 => vec![usize::from(seed - 127), 1],
        _ => vec![1, usize::from(seed - 190), 3, 2],
    }
}

fn events_of<'a, R: Copy + Debug, B: Copy, E>(
    input: &'a [u8],
    pieces: &[usize],
    overlong: usize,
    decode: impl Fn(&'a [u8], usize) -> Decoded<R, B, E>,
    check: impl Fn(&R),
    join: impl Fn(B, &'a [u8]) -> String,
    reply: impl Fn(E) -> Vec<u8>,
) -> Vec<Event> {
    let mut events = Vec::new();
    let (mut at, mut end, mut scanned) = (0, 0usize, 0);
    let mut more = pieces.iter().cycle();
    loop {
        let had = input.len().min(end);
        let have = &input[at.min(had)..had];
        let step = if at > had { Decoded::Incomplete } else { decode(have, scanned) };
        scanned = 0;
        match step {
            Decoded::Request { request, consumed } => {
                assert!((1..=have.len()).contains(&consumed), "{consumed} of {}", have.len());
                check(&request);
                events.push(Event::Request(format!("{request:?}")));
                at += consumed;
            }
            Decoded::Body { header, consumed, body_len } => {
                assert!((1..=have.len()).contains(&consumed));
                assert!(consumed + body_len > have.len(), "a body that is there must not be announced");
                let body = at + consumed..at + consumed + body_len;
                match input.get(body.clone()) {
                    Some(bytes) => events.push(Event::Request(join(header, bytes))),
                    None => {
                        events.push(Event::Request(format!("{} and {body_len} bytes", join(header, &[]))));
                        return events;
                    }
                }
                at = body.end;
            }
            Decoded::Refused(Refused { reply: words, consumed, swallow, close }) => {
                assert!((1..=have.len()).contains(&consumed));
                events.push(Event::Refused { reply: reply(words), swallow, close });
                if close {
                    return events;
                }
                at += consumed + swallow;
            }
            Decoded::Close => {
                events.push(if have.len() >= overlong { Event::Overlong } else { Event::Close });
                return events;
            }
            Decoded::Incomplete => {
                if had == input.len() {
                    events.push(Event::Rest(had.saturating_sub(at)));
                    return events;
                }
                scanned = have.len();
                end = end.saturating_add(*more.next().expect("pieces go round"));
            }
        }
    }
}

/// Calls every function that the server calls for a request.
fn exercise_text(request: &text::Request<'_>) {
    let mut out = Vec::new();
    let mut buffer = KeyBuffer::new();
    let item = MetaItem { key: b"stored", size: 10, ttl: Some(5), ..MetaItem::default() };
    match request {
        text::Request::Get(get) => {
            let mut walk = *get;
            let mut keys = 0;
            while let Some(key) = walk.next_key() {
                keys += 1;
                assert!((1..=250).contains(&key.len()) && !key.contains(&b' '));
                text::encode_value(&mut out, key, 1, b"value", get.with_cas.then_some(2));
                out.clear();
            }
            assert!(keys > 0);
        }
        text::Request::Store(store) => {
            assert!((1..=250).contains(&store.header.key.len()));
            assert_eq!(store.body.len(), store.header.value_len + 2);
            assert_eq!(store.value(), check_terminator(store.body));
        }
        text::Request::MetaGet(get) => {
            assert!((1..=250).contains(&get.key.bytes(&mut buffer).len()));
            get.encode_hit(&mut out, &item);
            meta::encode_status(&mut out, Status::Miss, &get.flags, &get.key);
        }
        text::Request::MetaSet(set) => {
            assert!((1..=250).contains(&set.header.key.bytes(&mut buffer).len()));
            assert_eq!(set.body.len(), set.header.value_len + 2);
            meta::encode_set(&mut out, Status::Done, &set.header.flags, &item);
        }
        text::Request::MetaDelete(delete) => {
            meta::encode_status(&mut out, Status::NotFound, &delete.flags, &delete.key);
        }
        text::Request::MetaArithmetic(arithmetic) => arithmetic.encode_number(&mut out, 42, &item),
        text::Request::MetaDebug(debug) => {
            assert!((1..=250).contains(&debug.key.bytes(&mut buffer).len()));
        }
        _ => {}
    }
    assert!(out.len() < 2048, "a reply without a value is short");
    assert!(out.is_empty() || out.ends_with(b"\r\n"));
}
