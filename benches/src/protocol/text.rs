//! The classic text commands: `get` and `set`.

use super::{Head, HeadError, decimal, line, push_decimal};
use crate::keyspace::KeySpace;

pub(super) fn push_get(keys: &KeySpace, indexes: &[u64], out: &mut Vec<u8>) {
    out.extend_from_slice(b"get");
    for &index in indexes {
        out.push(b' ');
        keys.push_key(index, out);
    }
    out.extend_from_slice(b"\r\n");
}

pub(super) fn push_set(keys: &KeySpace, index: u64, expiry_s: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(b"set ");
    keys.push_key(index, out);
    out.extend_from_slice(b" 0 ");
    push_decimal(expiry_s as usize, out);
    out.push(b' ');
    push_decimal(keys.value_bytes(index), out);
    out.extend_from_slice(b"\r\n");
    keys.push_value(index, out);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn parse_head(bytes: &[u8]) -> Result<Option<(Head<'_>, usize)>, HeadError> {
    let Some((line, used)) = line(bytes)? else { return Ok(None) };
    let head = match line {
        b"END" => Head::End,
        b"STORED" => Head::Stored,
        _ if line.starts_with(b"VALUE ") => value(line).ok_or_else(|| HeadError::unexpected(line))?,
        _ if line.starts_with(b"SERVER_ERROR") => Head::Refused(line),
        _ => return Err(HeadError::unexpected(line)),
    };
    Ok(Some((head, used)))
}

/// Parses `VALUE key flags length`. The flags are 0, because the load sets no others.
fn value(line: &[u8]) -> Option<Head<'_>> {
    let rest = &line[b"VALUE ".len()..];
    let (key, rest) = rest.split_at(memchr::memchr(b' ', rest)?);
    Some(Head::Value { key: Some(key), value_bytes: decimal(rest.strip_prefix(b" 0 ")?)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::ValueBytes;

    #[test]
    fn requests() {
        let keys = KeySpace::new(0, 10, 4, ValueBytes::fixed(3), 1).unwrap();
        let mut out = Vec::new();
        push_get(&keys, &[1, 2], &mut out);
        assert_eq!(out, b"get k001 k002\r\n");
        out.clear();
        push_set(&keys, 7, 5, &mut out);
        assert!(out.starts_with(b"set k007 0 5 3\r\n") && out.ends_with(b"\r\n"), "{out:?}");
        assert_eq!(out.len(), 16 + 3 + 2);
    }

    #[test]
    fn heads() {
        let value = Head::Value { key: Some(b"k1".as_slice()), value_bytes: 12 };
        assert_eq!(parse_head(b"VALUE k1 0 12\r\nabc"), Ok(Some((value, 15))));
        assert_eq!(parse_head(b"END\r\nVALUE"), Ok(Some((Head::End, 5))));
        assert_eq!(parse_head(b"STORED\r\n"), Ok(Some((Head::Stored, 8))));
        assert_eq!(parse_head(b"VALUE k1 0 12\r"), Ok(None));
        assert_eq!(parse_head(b""), Ok(None));
        assert!(matches!(parse_head(b"SERVER_ERROR out of memory\r\n"), Ok(Some((Head::Refused(_), 28)))));
        for wrong in ["ERROR\r\n", "END\n", "VALUE k1 7 12\r\n", "VALUE k1 0 x\r\n", "VALUE \r\n", "\n"] {
            assert!(parse_head(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }
}
