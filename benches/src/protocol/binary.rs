//! The binary protocol: GET, GETKQ with NOOP, SET.
//!
//! ```text
//!  0      1      2         4       5       6         8            12       16      24
//! | magic| code | key len | extra | type  | status  | body length | opaque | cas   | extras, key, value
//! ```

use super::{Head, HeadError};
use crate::keyspace::KeySpace;

const HEADER_BYTES: usize = 24;
const MAGIC_REQUEST: u8 = 0x80;
const MAGIC_REPLY: u8 = 0x81;
const GET: u8 = 0x00;
const SET: u8 = 0x01;
const NOOP: u8 = 0x0a;
const GETKQ: u8 = 0x0d;
/// The maximum length of an error text.
const ERROR_BYTES_MAX: usize = 512;

pub(super) fn push_get(keys: &KeySpace, indexes: &[u64], out: &mut Vec<u8>) {
    let opcode = if indexes.len() == 1 { GET } else { GETKQ };
    for &index in indexes {
        push_header(opcode, keys.key_bytes(), 0, 0, out);
        keys.push_key(index, out);
    }
    if indexes.len() > 1 {
        push_header(NOOP, 0, 0, 0, out);
    }
}

pub(super) fn push_set(keys: &KeySpace, index: u64, expiry_s: u32, out: &mut Vec<u8>) {
    push_header(SET, keys.key_bytes(), 8, keys.value_bytes(index), out);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&expiry_s.to_be_bytes());
    keys.push_key(index, out);
    keys.push_value(index, out);
}

fn push_header(opcode: u8, key_bytes: usize, extras_bytes: u8, value_bytes: usize, out: &mut Vec<u8>) {
    // Keys and values are bounded by `KeySpace::new`, far below these widths.
    let body_bytes = (usize::from(extras_bytes) + key_bytes + value_bytes) as u32;
    let mut header = [0; HEADER_BYTES];
    header[0] = MAGIC_REQUEST;
    header[1] = opcode;
    header[2..4].copy_from_slice(&(key_bytes as u16).to_be_bytes());
    header[4] = extras_bytes;
    header[8..12].copy_from_slice(&body_bytes.to_be_bytes());
    out.extend_from_slice(&header);
}

pub(super) fn parse_head(bytes: &[u8]) -> Result<Option<(Head<'_>, usize)>, HeadError> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let (opcode, status) = (header[1], u16::from_be_bytes([header[6], header[7]]));
    let key_bytes = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let extras_bytes = usize::from(header[4]);
    let body_bytes = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
    let unexpected = || Err(HeadError::unexpected(header));
    if header[0] != MAGIC_REPLY || extras_bytes + key_bytes > body_bytes {
        return unexpected();
    }
    if status == 0 && matches!(opcode, GET | GETKQ) {
        let value_start = HEADER_BYTES + extras_bytes + key_bytes;
        if key_bytes > 250 || extras_bytes != 4 {
            return unexpected();
        }
        if bytes.len() < value_start {
            return Ok(None);
        }
        let key = (key_bytes > 0).then(|| &bytes[value_start - key_bytes..value_start]);
        let value_bytes = body_bytes - extras_bytes - key_bytes;
        return Ok(Some((Head::Value { key, value_bytes }, value_start)));
    }
    // Any other reply has at most an error text, which is consumed together with the header.
    if body_bytes > ERROR_BYTES_MAX {
        return unexpected();
    }
    let used = HEADER_BYTES + body_bytes;
    if bytes.len() < used {
        return Ok(None);
    }
    match (status, opcode) {
        (0, NOOP) => Ok(Some((Head::End, used))),
        (0, SET) => Ok(Some((Head::Stored, used))),
        (0x01, GET) => Ok(Some((Head::Miss, used))),
        (0x03 | 0x82, SET) => Ok(Some((Head::Refused(&bytes[HEADER_BYTES..used]), used))),
        _ => Err(HeadError::unexpected(&bytes[..used])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::ValueBytes;

    fn reply(opcode: u8, status: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut out = vec![MAGIC_REPLY, opcode, 0, key.len() as u8, extras.len() as u8, 0, 0, status];
        out.extend(((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
        out.extend([0; 12]);
        [&out, extras, key, value].concat()
    }

    #[test]
    fn requests() {
        let keys = KeySpace::new(0, 10, 4, ValueBytes::fixed(3), 1).unwrap();
        let mut out = Vec::new();
        push_get(&keys, &[1], &mut out);
        assert_eq!(out.len(), 28);
        assert_eq!(&out[..12], [0x80, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 4]);
        out.clear();
        push_get(&keys, &[1, 2], &mut out);
        assert_eq!((out.len(), out[1], out[29], out[57]), (28 + 28 + 24, GETKQ, GETKQ, NOOP));
        out.clear();
        push_set(&keys, 7, 5, &mut out);
        assert_eq!(&out[..12], [0x80, 1, 0, 4, 8, 0, 0, 0, 0, 0, 0, 15]);
        assert_eq!(&out[24..36], [0, 0, 0, 0, 0, 0, 0, 5, b'k', b'0', b'0', b'7']);
        assert_eq!(out.len(), 24 + 15);
    }

    #[test]
    fn heads() {
        let value = reply(GETKQ, 0, &[0; 4], b"k1", b"hello");
        let head = Head::Value { key: Some(b"k1".as_slice()), value_bytes: 5 };
        assert_eq!(parse_head(&value), Ok(Some((head, 30))));
        assert_eq!(parse_head(&value[..29]), Ok(None));
        let value = reply(GET, 0, &[0; 4], b"", b"hello");
        assert_eq!(parse_head(&value), Ok(Some((Head::Value { key: None, value_bytes: 5 }, 28))));
        assert_eq!(parse_head(&reply(GET, 1, b"", b"", b"Not found")), Ok(Some((Head::Miss, 33))));
        assert_eq!(parse_head(&reply(NOOP, 0, b"", b"", b"")), Ok(Some((Head::End, 24))));
        assert_eq!(parse_head(&reply(SET, 0, b"", b"", b"")), Ok(Some((Head::Stored, 24))));
        assert!(matches!(parse_head(&reply(SET, 0x82, b"", b"", b"no")), Ok(Some((Head::Refused(_), 26)))));
        assert!(parse_head(&reply(SET, 4, b"", b"", b"bad")).is_err());
        assert!(parse_head(&[0; 24]).is_err());
    }
}
