//! Responses: one header, then the body that the status requires.

use super::{HEADER_LEN, Head, MAGIC_RESPONSE, opcode};

/// The status of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// Success.
    Ok = 0x00,
    /// The key does not exist.
    NotFound = 0x01,
    /// The item exists already, or the CAS value differs.
    Exists = 0x02,
    /// The item exceeds the item size limit.
    TooLarge = 0x03,
    /// A malformed request; the connection is closed.
    InvalidArguments = 0x04,
    /// The item to which to append does not exist.
    NotStored = 0x05,
    /// The value is not a number.
    NonNumeric = 0x06,
    /// The client is not authenticated, or lacks the permission.
    AuthError = 0x20,
    /// Authentication continues.
    AuthContinue = 0x21,
    /// The command does not exist.
    UnknownCommand = 0x81,
    /// No memory.
    OutOfMemory = 0x82,
    /// The server cannot execute the request at the moment: the client may try again.
    TemporaryFailure = 0x86,
}

impl Status {
    /// Returns the text in the body of an error.
    pub fn words(self) -> &'static str {
        match self {
            Status::Ok | Status::AuthContinue => "",
            Status::NotFound => "Not found",
            Status::Exists => "Data exists for key.",
            Status::TooLarge => "Too large.",
            Status::InvalidArguments => "Invalid arguments",
            Status::NotStored => "Not stored.",
            Status::NonNumeric => "Non-numeric server-side value for incr or decr",
            Status::AuthError => "Auth failure.",
            Status::UnknownCommand => "Unknown command",
            Status::OutOfMemory => "Out of memory",
            Status::TemporaryFailure => "Temporary failure",
        }
    }
}

/// The response to malformed input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorReply {
    /// The opcode and opaque of the request.
    pub head: Head,
    /// The status.
    pub status: Status,
}

impl ErrorReply {
    /// Appends the response.
    pub fn encode(&self, out: &mut Vec<u8>) {
        encode_error(out, &self.head, self.status);
    }
}

/// Appends a response up to its value, of which `value_len` bytes follow.
#[inline]
pub fn encode_response(
    out: &mut Vec<u8>,
    head: &Head,
    status: Status,
    cas: u64,
    extras: &[u8],
    key: &[u8],
    value_len: usize,
) {
    let body_len = (extras.len() + key.len() + value_len) as u32;
    let mut header = [0; HEADER_LEN];
    header[0] = MAGIC_RESPONSE;
    header[1] = head.opcode;
    header[2..4].copy_from_slice(&(key.len() as u16).to_be_bytes());
    header[4] = extras.len() as u8;
    header[6..8].copy_from_slice(&(status as u16).to_be_bytes());
    header[8..12].copy_from_slice(&body_len.to_be_bytes());
    header[12..16].copy_from_slice(&head.opaque.to_be_bytes());
    header[16..24].copy_from_slice(&cas.to_be_bytes());
    out.reserve(HEADER_LEN + extras.len() + key.len());
    out.extend_from_slice(&header);
    out.extend_from_slice(extras);
    out.extend_from_slice(key);
}

/// Appends an error with its usual text, also for a quiet request.
pub fn encode_error(out: &mut Vec<u8>, head: &Head, status: Status) {
    encode_error_text(out, head, status, status.words());
}

/// Appends an error with another text (`Out of memory allocating item`).
pub fn encode_error_text(out: &mut Vec<u8>, head: &Head, status: Status, words: &str) {
    encode_response(out, head, status, 0, b"", b"", words.len());
    out.extend_from_slice(words.as_bytes());
}

/// Appends a success without a body, unless the request was quiet.
#[inline]
pub fn encode_done(out: &mut Vec<u8>, head: &Head, cas: u64) {
    if !head.quiet {
        encode_response(out, head, Status::Ok, cas, b"", b"", 0);
    }
}

/// Appends a hit, also for a quiet request, up to its value: the client's flags, and the key if it
/// was requested. TOUCH has no value.
#[inline]
pub fn encode_value_head(
    out: &mut Vec<u8>,
    head: &Head,
    cas: u64,
    flags: u32,
    key: Option<&[u8]>,
    value_len: usize,
) {
    encode_response(out, head, Status::Ok, cas, &flags.to_be_bytes(), key.unwrap_or(b""), value_len);
}

/// Appends a miss of a get, with the key if it was requested; nothing if the request was quiet.
#[inline]
pub fn encode_miss(out: &mut Vec<u8>, head: &Head, key: Option<&[u8]>) {
    match key {
        _ if head.quiet => {}
        Some(key) => encode_response(out, head, Status::NotFound, 0, b"", key, 0),
        None => encode_error(out, head, Status::NotFound),
    }
}

/// Appends the new number, unless the request was quiet.
pub fn encode_number(out: &mut Vec<u8>, head: &Head, cas: u64, number: u64) {
    if !head.quiet {
        encode_response(out, head, Status::Ok, cas, b"", b"", 8);
        out.extend_from_slice(&number.to_be_bytes());
    }
}

/// Appends the version, a bare number.
pub fn encode_version(out: &mut Vec<u8>, head: &Head, version: &str) {
    encode_response(out, head, Status::Ok, 0, b"", b"", version.len());
    out.extend_from_slice(version.as_bytes());
}

/// Appends one statistic; [`encode_stat_end`] follows the last.
pub fn encode_stat(out: &mut Vec<u8>, head: &Head, name: &[u8], value: &[u8]) {
    let head = Head { opcode: opcode::STAT, ..*head };
    encode_response(out, &head, Status::Ok, 0, b"", name, value.len());
    out.extend_from_slice(value);
}

/// Appends the end of the statistics.
pub fn encode_stat_end(out: &mut Vec<u8>, head: &Head) {
    encode_stat(out, head, b"", b"");
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: Head = Head { opcode: 0, opaque: 0xdead_beef, cas: 1, quiet: false };

    fn hex(encode: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        encode(&mut out);
        out.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn responses_as_memcached_sends_them() {
        assert_eq!(
            hex(|out| encode_done(out, &Head { opcode: 1, ..HEAD }, 0x94)),
            "810100000000000000000000deadbeef0000000000000094"
        );
        assert_eq!(
            hex(|out| encode_miss(out, &HEAD, None)),
            "810000000000000100000009deadbeef00000000000000004e6f7420666f756e64"
        );
        assert_eq!(
            hex(|out| encode_miss(out, &Head { opcode: 0x0c, ..HEAD }, Some(b"k"))),
            "810c00010000000100000001deadbeef00000000000000006b"
        );
        assert_eq!(
            hex(|out| {
                encode_value_head(out, &HEAD, 0xa2, 0, None, 3);
                out.extend_from_slice(b"abc");
            }),
            "810000000400000000000007deadbeef00000000000000a200000000616263"
        );
        assert_eq!(
            hex(|out| encode_number(out, &Head { opcode: 6, ..HEAD }, 0x9d, 3)),
            "810600000000000000000008deadbeef000000000000009d0000000000000003"
        );
        assert_eq!(
            hex(|out| encode_version(out, &Head { opcode: 0x0b, ..HEAD }, "1.6.45")),
            "810b00000000000000000006deadbeef0000000000000000312e362e3435"
        );
        let head = Head { opcode: 1, ..HEAD };
        assert_eq!(
            hex(|out| ErrorReply { head, status: Status::InvalidArguments }.encode(out)),
            "810100000000000400000011deadbeef0000000000000000496e76616c696420617267756d656e7473"
        );
        let head = Head { opcode: 0x10, ..HEAD };
        assert_eq!(
            hex(|out| {
                encode_stat(out, &head, b"pid", b"1");
                encode_stat_end(out, &head);
            }),
            "811000030000000000000004deadbeef000000000000000070696431\
             811000000000000000000000deadbeef0000000000000000"
        );
    }

    #[test]
    fn quiet_requests_have_responses_to_errors_only() {
        let head = Head { quiet: true, ..HEAD };
        assert_eq!(hex(|out| encode_done(out, &head, 1)), "");
        assert_eq!(hex(|out| encode_number(out, &head, 1, 2)), "");
        assert_eq!(hex(|out| encode_miss(out, &head, Some(b"k"))), "");
        assert_ne!(hex(|out| encode_error(out, &head, Status::NotFound)), "");
    }
}
