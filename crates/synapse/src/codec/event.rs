//! Events of the backend, which belong to no request.

use blocker::{Epoch, Error, Event};

use super::error::invalid;
use super::failure::{cut, read_reason};
use super::fields::{put_scope, take_scope};
use super::frame::{Attached, Head, encode};
use super::header::{Header, RequestId};
use super::names::Names;
use super::op::Op;

/// Appends news.
pub fn encode_event(out: &mut Vec<u8>, event: &Event) {
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
        // Missed, and what a later version has: treat everything as changed.
        _ => 6,
    };
    let attached = Attached { names, payload_bytes: reason.len() as u32, ..Attached::default() };
    encode(out, &header, &attached);
    out.extend_from_slice(reason);
}

/// Reads news.
///
/// # Errors
/// [`Error::Invalid`] if they make no sense.
pub fn decode_event(head: &Head<'_>, payload: &[u8], names: &mut Names) -> Result<Event, Error> {
    Ok(match head.header.length {
        1 => Event::Changed(take_scope(head, names)?),
        2 => Event::Fenced(take_scope(head, names)?, Epoch(head.header.epoch)),
        3 => Event::Full,
        4 => Event::Degraded(read_reason(payload)),
        5 => Event::Recovered,
        6 => Event::Missed,
        _ => return Err(invalid("no such news")),
    })
}
