//! Replies of the transmission, simple and structured.
//!
//! A success without data is a simple reply either way, as the protocol allows; errors and data are
//! structured where that was negotiated.

use blocker::{Segment, Segments};

use super::errno::Errno;
use super::option_reply::truncated;
use super::wire::{
    CHUNK_HEAD_BYTES, EXTENTS_MAX, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, chunk,
    state,
};

/// The least length of a run of zeros that is described instead of sent, in bytes.
const HOLE_BYTES_MIN: usize = 4096;

/// A run of bytes of one state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The number of bytes.
    pub len_bytes: u64,
    /// The state, see [`state`].
    pub flags: u32,
}

impl Extent {
    /// Returns an extent with data, in `base:allocation`.
    #[must_use]
    pub fn data(len_bytes: u64) -> Self {
        Self { len_bytes, flags: 0 }
    }

    /// Returns an extent that takes up no space and reads as zeros, in `base:allocation`.
    #[must_use]
    pub fn hole(len_bytes: u64) -> Self {
        Self { len_bytes, flags: state::HOLE | state::ZERO }
    }
}

/// Appends a simple reply without data.
pub fn encode_done(out: &mut Vec<u8>, cookie: u64) {
    encode_simple(out, cookie, 0);
}

fn encode_simple(out: &mut Vec<u8>, cookie: u64, error: u32) {
    let mut reply = [0; SIMPLE_REPLY_BYTES];
    reply[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    reply[4..8].copy_from_slice(&error.to_be_bytes());
    reply[8..].copy_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&reply);
}

fn encode_chunk(out: &mut Vec<u8>, cookie: u64, flags: u16, kind: u16, len_bytes: usize) {
    let mut head = [0; CHUNK_HEAD_BYTES];
    head[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    head[4..6].copy_from_slice(&flags.to_be_bytes());
    head[6..8].copy_from_slice(&kind.to_be_bytes());
    head[8..16].copy_from_slice(&cookie.to_be_bytes());
    // Payloads are at most 32 MiB, by the checks.
    head[16..].copy_from_slice(&(len_bytes as u32).to_be_bytes());
    out.extend_from_slice(&head);
}

/// Appends an error; `why` is for people.
pub fn encode_error(out: &mut Vec<u8>, cookie: u64, is_structured: bool, errno: Errno, why: &str) {
    if !is_structured {
        return encode_simple(out, cookie, errno.value());
    }
    let why = truncated(why).as_bytes();
    encode_chunk(out, cookie, chunk::DONE, chunk::ERROR, 6 + why.len());
    out.extend_from_slice(&errno.value().to_be_bytes());
    // At most 4096.
    out.extend_from_slice(&(why.len() as u16).to_be_bytes());
    out.extend_from_slice(why);
}

/// Passes the parts of a read's reply to `send`, in order.
///
/// Holes of 4 KiB and more are described instead of sent, where replies are structured and may be in several
/// chunks.
pub fn encode_read(
    cookie: u64,
    is_structured: bool,
    is_unfragmented: bool,
    offset: u64,
    data: Segments,
    mut send: impl FnMut(&mut dyn FnMut(&mut Vec<u8>), Segments),
) {
    if !is_structured {
        return send(&mut |out| encode_done(out, cookie), data);
    }
    let len_bytes = data.len_bytes();
    if len_bytes == 0 {
        return send(&mut |out| encode_chunk(out, cookie, chunk::DONE, chunk::NONE, 0), Segments::new());
    }
    if is_unfragmented || !data.iter().any(Segment::is_hole) {
        return send(&mut |out| encode_data_head(out, cookie, chunk::DONE, offset, len_bytes), data);
    }
    let mut at = 0;
    for (run, is_hole) in runs(data) {
        let run_bytes = run.len_bytes();
        let from = offset + at as u64;
        at += run_bytes;
        let flags = if at == len_bytes { chunk::DONE } else { 0 };
        if !is_hole {
            send(&mut |out| encode_data_head(out, cookie, flags, from, run_bytes), run);
            continue;
        }
        let mut head = |out: &mut Vec<u8>| {
            encode_chunk(out, cookie, flags, chunk::OFFSET_HOLE, 12);
            out.extend_from_slice(&from.to_be_bytes());
            out.extend_from_slice(&(run_bytes as u32).to_be_bytes());
        };
        send(&mut head, Segments::new());
    }
}

fn encode_data_head(out: &mut Vec<u8>, cookie: u64, flags: u16, offset: u64, len_bytes: usize) {
    encode_chunk(out, cookie, flags, chunk::OFFSET_DATA, 8 + len_bytes);
    out.extend_from_slice(&offset.to_be_bytes());
}

/// Splits a payload into runs of data and of holes; a hole that is too short to be described counts as data.
fn runs(data: Segments) -> Vec<(Segments, bool)> {
    let mut holes: Vec<(Segments, bool)> = Vec::new();
    for segment in &data {
        let is_hole = segment.is_hole();
        match holes.last_mut() {
            Some((run, of_holes)) if *of_holes == is_hole => run.push(segment.clone()),
            _ => holes.push((segment.clone().into(), is_hole)),
        }
    }
    let mut runs: Vec<(Segments, bool)> = Vec::with_capacity(holes.len());
    for (run, is_hole) in holes {
        let is_hole = is_hole && run.len_bytes() >= HOLE_BYTES_MIN;
        match runs.last_mut() {
            Some((before, false)) if !is_hole => before.append(run),
            _ => runs.push((run, is_hole)),
        }
    }
    runs
}

/// Appends the extents of every selected context.
///
/// Neighbours of one state are joined; what lies beyond `len_bytes`, or beyond [`EXTENTS_MAX`] extents, is
/// left out, and the client asks again from there. A context without an extent is described by one of state
/// 0.
pub fn encode_block_status(
    out: &mut Vec<u8>,
    cookie: u64,
    len_bytes: u32,
    is_one: bool,
    contexts: &[(u32, Vec<Extent>)],
) {
    for (index, (id, extents)) in contexts.iter().enumerate() {
        let joined = sent_extents(extents, len_bytes, is_one);
        let flags = if index + 1 == contexts.len() { chunk::DONE } else { 0 };
        encode_chunk(out, cookie, flags, chunk::BLOCK_STATUS, 4 + 8 * joined.len());
        out.extend_from_slice(&id.to_be_bytes());
        for extent in joined {
            // Within the request, whose length is 32 bits.
            out.extend_from_slice(&(extent.len_bytes as u32).to_be_bytes());
            out.extend_from_slice(&extent.flags.to_be_bytes());
        }
    }
}

/// Returns the extents of one context that [`encode_block_status`] sends.
#[must_use]
pub fn sent_extents(extents: &[Extent], len_bytes: u32, is_one: bool) -> Vec<Extent> {
    let extents_max = if is_one { 1 } else { EXTENTS_MAX };
    let mut joined: Vec<Extent> = Vec::new();
    let mut left = u64::from(len_bytes);
    for extent in extents.iter().filter(|extent| extent.len_bytes > 0) {
        if left == 0 {
            break;
        }
        let part = extent.len_bytes.min(left);
        let is_full = joined.len() == extents_max;
        match joined.last_mut() {
            Some(last) if last.flags == extent.flags => last.len_bytes += part,
            _ if is_full => break,
            _ => joined.push(Extent { len_bytes: part, flags: extent.flags }),
        }
        left -= part;
    }
    if joined.is_empty() {
        joined.push(Extent::data(len_bytes.into()));
    }
    joined
}
