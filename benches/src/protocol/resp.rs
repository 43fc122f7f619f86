//! RESP2, the protocol of Valkey and Redis: `GET` and `SET`.
//!
//! A get of many keys is one `GET` for each, as a client of a cluster sends them, because a cluster
//! refuses `MGET` of keys in different slots.

use super::{Head, HeadError, decimal, line, push_decimal};
use crate::keyspace::KeySpace;

pub(super) fn push_get(keys: &KeySpace, indexes: &[u64], out: &mut Vec<u8>) {
    for &index in indexes {
        out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
        push_key(keys, index, out);
    }
}

pub(super) fn push_set(keys: &KeySpace, index: u64, expiry_s: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(if expiry_s > 0 { b"*5\r\n$3\r\nSET\r\n" } else { b"*3\r\n$3\r\nSET\r\n" });
    push_key(keys, index, out);
    out.push(b'$');
    push_decimal(keys.value_bytes(index), out);
    out.extend_from_slice(b"\r\n");
    keys.push_value(index, out);
    out.extend_from_slice(b"\r\n");
    if expiry_s > 0 {
        let seconds = expiry_s.to_string();
        out.extend_from_slice(format!("$2\r\nEX\r\n${}\r\n{seconds}\r\n", seconds.len()).as_bytes());
    }
}

fn push_key(keys: &KeySpace, index: u64, out: &mut Vec<u8>) {
    out.push(b'$');
    push_decimal(keys.key_bytes(), out);
    out.extend_from_slice(b"\r\n");
    keys.push_key(index, out);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn parse_head(bytes: &[u8]) -> Result<Option<(Head<'_>, usize)>, HeadError> {
    let Some((line, used)) = line(bytes)? else { return Ok(None) };
    let head = match line {
        b"$-1" => Head::Miss,
        b"+OK" => Head::Stored,
        [b'$', digits @ ..] => {
            let value_bytes = decimal(digits).ok_or_else(|| HeadError::unexpected(line))?;
            Head::Value { key: None, value_bytes }
        }
        _ if line.starts_with(b"-OOM ") => Head::Refused(line),
        _ => return Err(HeadError::unexpected(line)),
    };
    Ok(Some((head, used)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::ValueBytes;

    #[test]
    fn requests() {
        let keys = KeySpace::new(0, 10, 4, ValueBytes::fixed(0), 1).unwrap();
        let mut out = Vec::new();
        push_get(&keys, &[1, 2], &mut out);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$4\r\nk001\r\n*2\r\n$3\r\nGET\r\n$4\r\nk002\r\n");
        out.clear();
        push_set(&keys, 7, 0, &mut out);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$4\r\nk007\r\n$0\r\n\r\n");
        out.clear();
        push_set(&keys, 7, 15, &mut out);
        assert_eq!(out, b"*5\r\n$3\r\nSET\r\n$4\r\nk007\r\n$0\r\n\r\n$2\r\nEX\r\n$2\r\n15\r\n");
    }

    #[test]
    fn heads() {
        let value = Head::Value { key: None, value_bytes: 5 };
        assert_eq!(parse_head(b"$5\r\nhello\r\n"), Ok(Some((value, 4))));
        assert_eq!(parse_head(b"$-1\r\n"), Ok(Some((Head::Miss, 5))));
        assert_eq!(parse_head(b"+OK\r\n$5"), Ok(Some((Head::Stored, 5))));
        assert_eq!(parse_head(b"$5"), Ok(None));
        assert!(matches!(parse_head(b"-OOM command not allowed\r\n"), Ok(Some((Head::Refused(_), 26)))));
        for wrong in ["-MOVED 7 127.0.0.1:1\r\n", "$x\r\n", "$\r\n", ":1\r\n", "+OK\n"] {
            assert!(parse_head(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }
}
