//! The meta commands: `mg`, `ms`, `mn`.

use super::{Head, HeadError, decimal, line, push_decimal};
use crate::keyspace::KeySpace;

pub(super) fn push_get(keys: &KeySpace, indexes: &[u64], out: &mut Vec<u8>) {
    let (flags, end): (&[u8], &[u8]) =
        if indexes.len() == 1 { (b" v\r\n", b"") } else { (b" q k v\r\n", b"mn\r\n") };
    for &index in indexes {
        out.extend_from_slice(b"mg ");
        keys.push_key(index, out);
        out.extend_from_slice(flags);
    }
    out.extend_from_slice(end);
}

pub(super) fn push_set(keys: &KeySpace, index: u64, expiry_s: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(b"ms ");
    keys.push_key(index, out);
    out.push(b' ');
    push_decimal(keys.value_bytes(index), out);
    if expiry_s > 0 {
        out.extend_from_slice(b" T");
        push_decimal(expiry_s as usize, out);
    }
    out.extend_from_slice(b"\r\n");
    keys.push_value(index, out);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn parse_head(bytes: &[u8]) -> Result<Option<(Head<'_>, usize)>, HeadError> {
    let Some((line, used)) = line(bytes)? else { return Ok(None) };
    let head = match line {
        b"EN" => Head::Miss,
        b"MN" => Head::End,
        b"HD" => Head::Stored,
        _ if line.starts_with(b"VA ") => value(line).ok_or_else(|| HeadError::unexpected(line))?,
        _ if line.starts_with(b"SERVER_ERROR") => Head::Refused(line),
        _ => return Err(HeadError::unexpected(line)),
    };
    Ok(Some((head, used)))
}

/// Parses `VA length`, followed by ` kKEY` if the request asked for the key.
fn value(line: &[u8]) -> Option<Head<'_>> {
    let rest = &line[b"VA ".len()..];
    let (digits, flags) = rest.split_at(memchr::memchr(b' ', rest).unwrap_or(rest.len()));
    let key = match flags {
        b"" => None,
        _ => Some(flags.strip_prefix(b" k")?),
    };
    Some(Head::Value { key, value_bytes: decimal(digits)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::ValueBytes;

    #[test]
    fn requests() {
        let keys = KeySpace::new(0, 10, 4, ValueBytes::fixed(0), 1).unwrap();
        let mut out = Vec::new();
        push_get(&keys, &[1], &mut out);
        assert_eq!(out, b"mg k001 v\r\n");
        out.clear();
        push_get(&keys, &[1, 2], &mut out);
        assert_eq!(out, b"mg k001 q k v\r\nmg k002 q k v\r\nmn\r\n");
        out.clear();
        push_set(&keys, 7, 5, &mut out);
        assert_eq!(out, b"ms k007 0 T5\r\n\r\n");
    }

    #[test]
    fn heads() {
        let plain = Head::Value { key: None, value_bytes: 5 };
        assert_eq!(parse_head(b"VA 5\r\nhello"), Ok(Some((plain, 6))));
        let with_key = Head::Value { key: Some(b"kk1".as_slice()), value_bytes: 5 };
        assert_eq!(parse_head(b"VA 5 kkk1\r\n"), Ok(Some((with_key, 11))));
        assert_eq!(parse_head(b"EN\r\n"), Ok(Some((Head::Miss, 4))));
        assert_eq!(parse_head(b"MN\r\n"), Ok(Some((Head::End, 4))));
        assert_eq!(parse_head(b"HD\r\n"), Ok(Some((Head::Stored, 4))));
        assert_eq!(parse_head(b"HD"), Ok(None));
        for wrong in ["NS\r\n", "VA x\r\n", "VA 5 c12\r\n", "CLIENT_ERROR bad\r\n"] {
            assert!(parse_head(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }
}
