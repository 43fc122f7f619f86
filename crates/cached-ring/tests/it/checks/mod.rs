//! Properties that hold for any bytes. Tests with random bytes and the fuzz targets call these
//! checks.

use std::collections::BTreeMap;

use cached_ring::copy;
use cached_ring::hello::Frame;
use cached_ring::wire::{HEAD_BYTES, Head, Kind, MESSAGE_BYTES_MAX};
use cached_ring::{Answer, Asked, Flags, Inbound, Outbound, Slot, Waiter};

/// The longest request in these checks.
const REQUEST_BYTES_MAX: usize = 4096;

/// Cuts what follows the first byte into pieces, whose lengths depend on that byte.
fn pieces(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (first, rest) = data.split_first().unwrap_or((&0, &[]));
    rest.chunks(if *first == 0 { rest.len().max(1) } else { usize::from(*first) })
}

/// Treats arbitrary bytes as what an entry sends. However they are cut, the owner is asked the same,
/// and each message, encoded again, has the same bytes.
pub(crate) fn requests(data: &[u8]) {
    let run = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut inbound = Inbound::new(REQUEST_BYTES_MAX);
        let (mut input, mut asked) = (Vec::new(), Vec::new());
        for piece in pieces {
            input.extend_from_slice(piece);
            let mut at = 0;
            let mistake = loop {
                match inbound.next(&input[at..]) {
                    Ok(Some((message, used))) => {
                        assert_eq!(encoded(message), input[at..at + used]);
                        asked.extend_from_slice(&input[at..at + used]);
                        at += used;
                    }
                    Ok(None) => break None,
                    Err(mistake) => break Some(mistake),
                }
            };
            if mistake.is_some() {
                return (asked, mistake);
            }
            input.drain(..at);
            assert!(input.len() < HEAD_BYTES + MESSAGE_BYTES_MAX);
        }
        (asked, None)
    };
    let whole = run(&mut std::iter::once(data.get(1..).unwrap_or_default()));
    assert_eq!(run(&mut pieces(data)), whole);
    if let Some(mistake) = whole.1 {
        is_one_line(&mistake.to_string());
    }
}

/// Returns the message that asks this.
fn encoded(asked: Asked<'_>) -> Vec<u8> {
    let token;
    let (id, slot, kind, flags, bytes) = match asked {
        Asked::Request { id, slot, flags, bytes } => (id, slot, Kind::Request, flags, bytes),
        Asked::Part { id, bytes, last } => {
            (id, None, Kind::RequestPart, if last { Flags::NONE } else { Flags::PARTS }, bytes)
        }
        Asked::More(id) => (id, None, Kind::More, Flags::NONE, &[][..]),
        Asked::Forget(id) => (id, None, Kind::Forget, Flags::NONE, &[][..]),
        Asked::Ping(number) => {
            token = number.to_le_bytes();
            (0, None, Kind::Ping, Flags::NONE, &token[..])
        }
        Asked::Bye => (0, None, Kind::RequestsEnd, Flags::NONE, &[][..]),
    };
    let head = Head { id, slot, kind, flags, bytes: bytes.len() as u32 };
    [&head.encode(), bytes].concat()
}

/// Treats arbitrary bytes as what an owner sends to an entry that has ten requests. However they are
/// cut, the same answers are delivered, and each request has one outcome when the lane is lost.
pub(crate) fn replies(data: &[u8]) {
    let run = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut outbound = asking();
        let (mut input, mut result) = (Vec::new(), None);
        let mut delivered: BTreeMap<u32, (Vec<u8>, bool)> = BTreeMap::new();
        for piece in pieces {
            input.extend_from_slice(piece);
            let received = outbound.received(&input, &mut |to, _, answer| {
                let (got, is_complete) = delivered.entry(to.place).or_default();
                assert!(!*is_complete, "an answer after the last");
                match answer {
                    Answer::Bytes { bytes, last } => {
                        got.extend_from_slice(bytes);
                        *is_complete = last;
                    }
                    Answer::NotMine { own, .. } => {
                        assert!(got.is_empty() && !own.is_empty());
                        *is_complete = true;
                    }
                }
            });
            match received {
                Ok(used) => drop(input.drain(..used)),
                Err(mistake) => {
                    result = Some(mistake);
                    break;
                }
            }
            assert!(input.len() < HEAD_BYTES + MESSAGE_BYTES_MAX);
        }
        let mut failed = Vec::new();
        let is_ended = outbound.is_ended();
        outbound.resume(&mut |request| failed.push(request.to.place));
        if !is_ended {
            assert_eq!(outbound.in_flight(), 0);
        }
        outbound.lost(&mut |request| failed.push(request.to.place));
        let completed = delivered.iter().filter(|(_, got)| got.1).map(|(place, _)| *place);
        let mut all: Vec<u32> = failed.iter().copied().chain(completed).collect();
        all.sort_unstable();
        // Request 6 was forgotten, and nothing of it is delivered.
        assert_eq!(all, [1, 2, 3, 4, 5, 7, 8, 9, 10]);
        (delivered, result)
    };
    let whole = run(&mut std::iter::once(data.get(1..).unwrap_or_default()));
    let cut = run(&mut pieces(data));
    assert_eq!(cut, whole);
    if let Some(mistake) = whole.1 {
        is_one_line(&mistake.to_string());
    }
}

/// Returns a lane with ten requests, of which 3 misses parts, 4 had some, and 6 was forgotten; the
/// tenth was not sent. The token of its PING is 0.
fn asking() -> Outbound {
    let mut outbound = Outbound::new();
    for place in 1..=10 {
        let flags = if [3, 4].contains(&place) { Flags::PARTS } else { Flags::NONE };
        let id = outbound.request(
            Waiter { place, ..Waiter::default() },
            Slot::new(9),
            flags,
            &[b"set k 0 0 1\r\n"],
        );
        match place {
            4 => outbound.part(id, b"v\r\n", true),
            6 => outbound.forget(id),
            9 => {
                outbound.ping(0);
                let (first, second) = outbound.unsent();
                outbound.sent(first.len() + second.len());
            }
            _ => {}
        }
    }
    outbound
}

/// Treats arbitrary bytes as a frame of the handshake. A valid one, encoded and decoded again, is
/// equal, and what is wrong is told in one line.
pub(crate) fn hello(data: &[u8]) {
    match Frame::decode(data) {
        Ok(frame) => {
            let again = frame.encode();
            let (first, rest) = again.split_first_chunk().expect("a length");
            assert_eq!(Frame::len(*first), Ok(rest.len()));
            assert_eq!(Frame::decode(rest).as_ref(), Ok(&frame));
            let refused = match &frame {
                Frame::Hello(hello) => hello.check(&hello.greeting).err(),
                Frame::Refused(refused) => Some(refused.clone()),
                _ => None,
            };
            refused.iter().for_each(|refused| is_one_line(&refused.text));
        }
        Err(refused) => is_one_line(&refused.text),
    }
}

/// Treats arbitrary bytes as what comes on a copy session. However much of them has come, the same
/// messages are decoded, and each, encoded again, has the same bytes.
pub(crate) fn copies(data: &[u8]) {
    const VALUE_BYTES_MAX: usize = 1024;
    let mut rest = data;
    let mistake = loop {
        match copy::frame(rest, VALUE_BYTES_MAX) {
            Ok(Some((frame, used))) => {
                let mut again = Vec::new();
                frame.encode(&mut again);
                assert_eq!(again, rest[..used]);
                assert_eq!(copy::frame(&rest[..used], VALUE_BYTES_MAX), Ok(Some((frame, used))));
                assert_eq!(copy::frame(&rest[..used - 1], VALUE_BYTES_MAX), Ok(None));
                rest = &rest[used..];
            }
            Ok(None) => break None,
            Err(mistake) => break Some(mistake),
        }
    };
    if let Some(mistake) = mistake {
        is_one_line(&mistake.to_string());
    }
    // The rest is the beginning of a message within the limits.
    assert!(mistake.is_some() || rest.len() < copy::HEAD_BYTES + 512 + VALUE_BYTES_MAX);
}

fn is_one_line(text: &str) {
    assert!(!text.chars().any(char::is_control), "{text:?}");
    // It is sent to the peer, and logged.
    assert!(text.len() < 500, "{text:?}");
}
