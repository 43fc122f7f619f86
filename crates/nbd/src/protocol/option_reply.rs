//! Replies to options.

use super::context::Context;
use super::description::Description;
use super::wire::{LIST_BYTES_MAX, OPTION_REPLY_MAGIC, TEXT_BYTES_MAX, info, option_reply};

/// Appends a reply of type `kind` to `option`, with these pieces of data.
pub(super) fn encode(out: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    let len_bytes: usize = data.iter().map(|piece| piece.len()).sum();
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    // Data are a few texts of limited length.
    out.extend_from_slice(&(len_bytes as u32).to_be_bytes());
    data.iter().for_each(|piece| out.extend_from_slice(piece));
}

pub(super) fn ack(out: &mut Vec<u8>, option: u32) {
    encode(out, option, option_reply::ACK, &[]);
}

/// Appends an error with its reason.
pub(super) fn error(out: &mut Vec<u8>, option: u32, kind: u32, why: &str) {
    encode(out, option, kind, &[truncated(why).as_bytes()]);
}

/// Appends the names of all exports, or an error if they do not fit into a reply.
pub(super) fn list(out: &mut Vec<u8>, option: u32, names: &[String]) {
    let start = out.len();
    for name in names {
        let name = name.as_bytes();
        if name.len() > TEXT_BYTES_MAX {
            // Cannot be asked for by any client.
            continue;
        }
        let length = (name.len() as u32).to_be_bytes();
        encode(out, option, option_reply::SERVER, &[&length, name]);
        if out.len() - start > LIST_BYTES_MAX {
            out.truncate(start);
            error(out, option, option_reply::ERR_TOO_BIG, "there are too many exports to list");
            return;
        }
    }
    ack(out, option);
}

/// Appends what is known about the export `name`: always its size, flags and block sizes, the rest where it
/// is requested.
pub(super) fn infos(
    out: &mut Vec<u8>,
    option: u32,
    name: &str,
    export: &Description,
    is_structured: bool,
    requested: &[u16],
) {
    let mut reply = |kind: u16, data: &[&[u8]]| {
        let kind = kind.to_be_bytes();
        let mut all: Vec<&[u8]> = vec![&kind];
        all.extend_from_slice(data);
        encode(out, option, option_reply::INFO, &all);
    };
    let flags = export.transmission_flags(is_structured).to_be_bytes();
    reply(info::EXPORT, &[&export.size_bytes.to_be_bytes(), &flags]);
    if requested.contains(&info::NAME) {
        reply(info::NAME, &[name.as_bytes()]);
    }
    if requested.contains(&info::DESCRIPTION) && !export.text.is_empty() {
        reply(info::DESCRIPTION, &[truncated(&export.text).as_bytes()]);
    }
    let [least, preferred] = [export.block_bytes_min, export.block_bytes_preferred].map(u32::to_be_bytes);
    reply(info::BLOCK_SIZE, &[&least, &preferred, &export.payload_bytes_max().to_be_bytes()]);
    ack(out, option);
}

/// Appends contexts with their ids.
pub(super) fn contexts<'a>(
    out: &mut Vec<u8>,
    option: u32,
    contexts: impl Iterator<Item = (u32, &'a Context)>,
) {
    for (id, context) in contexts {
        let name = context.to_string();
        encode(out, option, option_reply::META_CONTEXT, &[&id.to_be_bytes(), name.as_bytes()]);
    }
    ack(out, option);
}

/// Returns the beginning of a text that the protocol allows as a string.
pub(super) fn truncated(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}
