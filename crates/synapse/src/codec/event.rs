//! Events of the backend, which belong to no request.

use blocker::{Epoch, Error, Event};

use super::error::invalid;
use super::failure::{cut, read_reason};
use super::fields::{put_scope, take_scope};
use super::frame::{Attached, Head, encode};
use super::header::{Header, RequestId};
use super::hello::Features;
use super::names::Names;
use super::op::Op;

/// Appends an event, for a peer with these features.
pub fn encode_event(out: &mut Vec<u8>, event: &Event, features: Features) {
    let mut header = Header::new(Op::Event, RequestId::default());
    let mut names: [&[u8]; 4] = [&[]; 4];
    let mut reason: &[u8] = &[];
    header.length = match event {
        Event::Changed(scope) => {
            put_scope(&mut header, &mut names, scope);
            1
        }
        Event::Fenced(scope, epoch) => {
            put_scope(&mut header, &mut names, scope);
            header.epoch = epoch.0;
            2
        }
        Event::Full => 3,
        Event::Degraded(text) => {
            reason = cut(text).as_bytes();
            4
        }
        Event::Recovered => 5,
        Event::WritesLost(scope) if features.has(Features::WRITES_LOST) => {
            put_scope(&mut header, &mut names, scope);
            7
        }
        // Missed, and what the peer has no code for: it treats everything as changed.
        _ => 6,
    };
    let attached = Attached { names, payload_bytes: reason.len() as u32, ..Attached::default() };
    encode(out, &header, &attached);
    out.extend_from_slice(reason);
}

/// Reads an event.
///
/// # Errors
/// [`Error::Invalid`] if it makes no sense.
pub fn decode_event(head: &Head<'_>, payload: &[u8], names: &mut Names) -> Result<Event, Error> {
    Ok(match head.header.length {
        1 => Event::Changed(take_scope(head, names)?),
        2 => Event::Fenced(take_scope(head, names)?, Epoch(head.header.epoch)),
        3 => Event::Full,
        4 => Event::Degraded(read_reason(payload)),
        5 => Event::Recovered,
        6 => Event::Missed,
        7 => Event::WritesLost(take_scope(head, names)?),
        _ => return Err(invalid("no such event")),
    })
}
