//! Requests for this module's tests.

use super::{Header, MAGIC_REQUEST};

/// The opaque and the CAS value of all of them.
pub(super) const OPAQUE: u32 = 0xdead_beef;
pub(super) const CAS: u64 = 7;

/// Returns a request.
pub(super) fn frame(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let header = Header {
        magic: MAGIC_REQUEST,
        opcode,
        key_len: key.len() as u16,
        extras_len: extras.len() as u8,
        body_len: (extras.len() + key.len() + value.len()) as u32,
        opaque: OPAQUE,
        cas: CAS,
    };
    [&header.to_bytes()[..], extras, key, value].concat()
}
