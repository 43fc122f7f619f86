//! Keys of meta commands, which may be base64.
//!
//! memcached's decoder skips bytes that are not in the alphabet, and so does this one. Replies do not repeat
//! the text that was sent, but encode the key anew.

use crate::limits::KEY_LEN_MAX;

/// Longest key that base64 of 250 bytes can hold.
pub const KEY_DECODED_LEN_MAX: usize = KEY_LEN_MAX / 4 * 3;

/// Room for a decoded key.
#[derive(Clone, Copy, Debug)]
pub struct KeyBuffer([u8; KEY_DECODED_LEN_MAX]);

impl KeyBuffer {
    /// Returns an empty buffer.
    pub const fn new() -> KeyBuffer {
        KeyBuffer([0; KEY_DECODED_LEN_MAX])
    }
}

impl Default for KeyBuffer {
    fn default() -> Self {
        KeyBuffer::new()
    }
}

/// A key as it was sent, and whether that is base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaKey<'a> {
    text: &'a [u8],
    binary: bool,
}

impl<'a> MetaKey<'a> {
    /// Returns a key of at most 250 bytes; if `binary`, its base64 is well-formed.
    pub(super) fn new(text: &'a [u8], binary: bool) -> MetaKey<'a> {
        MetaKey { text, binary }
    }

    /// Returns the key as it was sent, in base64 or not.
    #[inline]
    pub fn as_sent(&self) -> &'a [u8] {
        self.text
    }

    /// Returns whether the key was sent as base64. `ms` stores this with the item, so that later replies show
    /// it in base64 too.
    #[inline]
    pub fn is_binary(&self) -> bool {
        self.binary
    }

    /// Returns the key itself, 1 to 250 bytes; `buffer` is used for a key in base64.
    #[inline]
    pub fn bytes<'b>(&self, buffer: &'b mut KeyBuffer) -> &'b [u8]
    where
        'a: 'b,
    {
        if self.binary { decode(self.text, buffer) } else { self.text }
    }

    /// Appends ` k` and the key; in base64, followed by ` b`, if it was sent so.
    #[inline]
    pub(super) fn encode_flag(&self, out: &mut Vec<u8>) {
        let mut buffer = KeyBuffer::new();
        encode_flag(out, self.bytes(&mut buffer), self.binary);
    }

    /// Returns the length of the key whose base64 is `text`, if it is base64.
    pub(super) fn base64_len(text: &[u8]) -> Option<usize> {
        let mut buffer = KeyBuffer::new();
        let len = decode(text, &mut buffer).len();
        (len > 0).then_some(len)
    }
}

/// Appends ` k` and a key as an item holds it.
pub(super) fn encode_flag(out: &mut Vec<u8>, key: &[u8], binary: bool) {
    out.extend_from_slice(b" k");
    if binary {
        encode(out, key);
        out.extend_from_slice(b" b");
    } else {
        out.extend_from_slice(key);
    }
}

/// Decodes `text`; the result is empty if it is not base64.
fn decode<'b>(text: &[u8], buffer: &'b mut KeyBuffer) -> &'b [u8] {
    let digits = text.iter().filter(|byte| value(**byte).is_some()).count();
    if digits == 0 || digits % 4 != 0 {
        return &[];
    }
    let (mut len, mut block, mut count, mut pads) = (0, 0u32, 0, 0);
    for byte in text {
        let Some(value) = value(*byte) else { continue };
        pads += usize::from(*byte == b'=');
        block = block << 6 | value;
        count += 1;
        if count % 4 != 0 {
            continue;
        }
        let [_, bytes @ ..] = block.to_be_bytes();
        let Some(room) = buffer.0.get_mut(len..len + 3) else { return &[] };
        room.copy_from_slice(&bytes);
        block = 0;
        if pads > 2 {
            return &[];
        }
        len += 3 - pads;
        if pads > 0 {
            break;
        }
    }
    &buffer.0[..len]
}

/// Appends the base64 of a key.
pub fn encode(out: &mut Vec<u8>, key: &[u8]) {
    for chunk in key.chunks(3) {
        let mut bytes = [0; 4];
        bytes[1..=chunk.len()].copy_from_slice(chunk);
        let block = u32::from_be_bytes(bytes);
        for digit in 0..4 {
            out.push(if digit <= chunk.len() {
                ALPHABET[(block >> (18 - 6 * digit) & 63) as usize]
            } else {
                b'='
            });
        }
    }
}

/// Returns the six bits of a digit; padding counts as zero.
fn value(byte: u8) -> Option<u32> {
    Some(u32::from(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        b'=' => 0,
        _ => return None,
    }))
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_memcached_reads_it() {
        for (text, key) in [
            (&b"Zm9v"[..], &b"foo"[..]),
            (b"Zm9vYg==", b"foob"),
            (b"Zm9vYmE=", b"fooba"),
            (b"Z!m9.v", b"foo"),
            (b"AA==ignored=", b"\0"),
            (b"=AAA", b"\0\0"),
            (b"+/+/", b"\xfb\xff\xbf"),
        ] {
            assert_eq!(decode(text, &mut KeyBuffer::new()), key, "{text:?}");
        }
        for bad in [&b"Zm9"[..], b"", b"!", b"A===", b"====", b"k", b"Zm9vZ"] {
            assert_eq!(MetaKey::base64_len(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_longest_key_fits() {
        let text = [b'A'; KEY_LEN_MAX];
        assert_eq!(MetaKey::base64_len(&text), None);
        assert_eq!(MetaKey::base64_len(&text[..248]), Some(KEY_DECODED_LEN_MAX));
    }

    #[test]
    fn keys_are_shown_as_they_were_sent() {
        let mut out = Vec::new();
        MetaKey::new(b"Zm!9v", true).encode_flag(&mut out);
        MetaKey::new(b"Zm9v", false).encode_flag(&mut out);
        assert_eq!(out, b" kZm9v b kZm9v");
    }

    #[test]
    fn base64_round_trips() {
        for len in 1..=KEY_DECODED_LEN_MAX {
            let key: Vec<u8> = (0..len).map(|at| (at * 89 + len) as u8).collect();
            let mut text = Vec::new();
            encode(&mut text, &key);
            assert_eq!(decode(&text, &mut KeyBuffer::new()), key);
        }
    }
}
