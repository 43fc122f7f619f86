//! The head of a record within a batch.

use std::borrow::Cow;

use super::Fields;
use crate::record::{Head, Kind, NAME_BYTES_MAX, Object, Scope};

/// The bytes of a head without its name.
pub(crate) const HEAD_BYTES: usize = 80;

/// A record's payload, as its head describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PayloadSum {
    pub(crate) bytes: u32,
    pub(crate) crc: u32,
}

const fn padded(name_bytes: usize) -> usize {
    name_bytes.next_multiple_of(8)
}

/// Returns the bytes that a head takes.
pub(crate) fn encoded_bytes(head: &Head<'_>) -> usize {
    match &head.object {
        Object::Name(name) => HEAD_BYTES + padded(name.len()),
        Object::None | Object::Number(_) => HEAD_BYTES,
    }
}

/// Returns the fixed part of a head. The name follows it, padded to 8 bytes with zeros.
pub(crate) fn encode(head: &Head<'_>, payload: PayloadSum) -> [u8; HEAD_BYTES] {
    let (tag, number, name_bytes) = match &head.object {
        Object::None => (0, 0, 0),
        Object::Number(number) => (1, *number, 0),
        Object::Name(name) => (2, 0, name.len()),
    };
    let scope = match head.scope {
        Scope::Object => 0,
        Scope::Domain => 1,
        Scope::Namespace => 2,
        Scope::All => 3,
    };
    let mut out = [0; HEAD_BYTES];
    let mut fields = super::FieldsMut::new(&mut out);
    fields.put(&[head.kind.0, scope, tag, 0]).put(&(name_bytes as u16).to_le_bytes()).put(&[0, 0]);
    fields.u32(payload.bytes).u32(payload.crc).u64(head.namespace).u64(head.domain).u64(number);
    fields.u64(head.offset).u64(head.len).u64(head.sequence).u64(head.epoch).u64(head.generation);
    out
}

/// Takes the next head off `heads`; nothing if the bytes are no head.
pub(crate) fn decode<'a>(heads: &mut &'a [u8]) -> Option<(Head<'a>, PayloadSum)> {
    let (fixed, rest) = heads.split_first_chunk::<HEAD_BYTES>()?;
    let mut fields = Fields(fixed);
    let (kind, scope, tag, _) = (Kind(fields.u8()), fields.u8(), fields.u8(), fields.u8());
    let name_bytes = usize::from(fields.u16());
    let _reserved = fields.u16();
    let payload = PayloadSum { bytes: fields.u32(), crc: fields.u32() };
    let (namespace, domain, number) = (fields.u64(), fields.u64(), fields.u64());
    let scope = match scope {
        0 => Scope::Object,
        1 => Scope::Domain,
        2 => Scope::Namespace,
        3 => Scope::All,
        _ => return None,
    };
    let (name, rest) = rest.split_at_checked(padded(name_bytes))?;
    let object = match tag {
        0 if name_bytes == 0 => Object::None,
        1 if name_bytes == 0 => Object::Number(number),
        2 if name_bytes <= NAME_BYTES_MAX => Object::Name(Cow::Borrowed(&name[..name_bytes])),
        _ => return None,
    };
    let head = Head {
        kind,
        scope,
        namespace,
        domain,
        object,
        offset: fields.u64(),
        len: fields.u64(),
        sequence: fields.u64(),
        epoch: fields.u64(),
        generation: fields.u64(),
    };
    *heads = rest;
    Some((head, payload))
}

/// Reads all heads of a batch; nothing if they do not make up the batch that its header describes.
pub(crate) fn decode_all(
    header: &super::batch::BatchHeader,
    mut heads: &[u8],
) -> Option<Vec<(Head<'static>, PayloadSum)>> {
    let mut found = Vec::with_capacity((header.count as usize).min(heads.len() / HEAD_BYTES));
    let mut payload_bytes = 0;
    for _ in 0..header.count {
        let (head, payload) = decode(&mut heads)?;
        payload_bytes += u64::from(payload.bytes);
        found.push((head.into_owned(), payload));
    }
    (heads.is_empty() && payload_bytes == u64::from(header.payload_bytes)).then_some(found)
}
