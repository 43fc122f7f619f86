//! The binary protocol: frames with a fixed header.
//!
//! A frame is decoded once its header, extras and key have arrived; the value may follow later. A
//! malformed frame gets a reply with status 04 and the connection is closed; inconsistent lengths
//! get status 81. Three oddities of memcached are kept, because without them a client would lose
//! the frame boundaries of its stream: an unknown opcode discards `body length` bytes *after*
//! extras and key; `STAT`, `TOUCH` and `GAT` leave a value that they should not have in the stream,
//! where it is read as the next header; and a frame whose extras and key exceed a 16 KiB buffer
//! closes the connection once that buffer is full.

pub mod opcode;
mod request;
mod response;
pub mod sasl;

pub use request::{Arithmetic, Command, Request, Store, StoreHeader, StoreVerb};
pub use response::{
    ErrorReply, Status, encode_done, encode_error, encode_error_text, encode_miss, encode_number,
    encode_response, encode_stat, encode_stat_end, encode_value_head, encode_version,
};

/// The result of [`decode`].
pub type Decoded<'a> = crate::Decoded<Request<'a>, StoreHeader<'a>, ErrorReply>;

/// Decodes the frame at the start of `input`.
#[inline]
pub fn decode(input: &[u8]) -> Decoded<'_> {
    match Header::read(input) {
        Some(header) => request::decode(&header, input),
        None => Decoded::Incomplete,
    }
}

// The header: 24 bytes at the start of every frame, in requests and in responses.
//
// ```text
//       0               1               2               3
//      +---------------+---------------+---------------+---------------+
//    0 | magic 80 | 81 | opcode        | key length                    |
//      +---------------+---------------+---------------+---------------+
//    4 | extras length | data type     | vbucket (request) | status    |
//      +---------------+---------------+---------------+---------------+
//    8 | body length = extras + key + value                            |
//      +---------------+---------------+---------------+---------------+
//   12 | opaque, repeated as sent                                      |
//      +---------------+---------------+---------------+---------------+
//   16 | CAS value                                                     |
//      |                                                               |
//      +---------------+---------------+---------------+---------------+
//   24 | extras … | key … | value …
// ```
// All numbers are big-endian. Data type and vbucket are ignored.

/// The first byte of a request.
pub const MAGIC_REQUEST: u8 = 0x80;

/// The first byte of a response.
pub const MAGIC_RESPONSE: u8 = 0x81;

/// The length of a header.
pub const HEADER_LEN: usize = 24;

/// A request's header, in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// [`MAGIC_REQUEST`]; any other value closes the connection.
    pub magic: u8,
    /// The command.
    pub opcode: u8,
    /// The length of the key.
    pub key_len: u16,
    /// The length of the extras.
    pub extras_len: u8,
    /// The length of extras, key and value together.
    pub body_len: u32,
    /// An id that the response repeats.
    pub opaque: u32,
    /// The CAS value to compare with, or 0.
    pub cas: u64,
}

impl Header {
    /// Reads the header at the start of `input`, if it has arrived.
    #[inline]
    pub fn read(input: &[u8]) -> Option<Header> {
        let bytes: &[u8; HEADER_LEN] = input.first_chunk()?;
        Some(Header {
            magic: bytes[0],
            opcode: bytes[1],
            key_len: u16::from_be_bytes([bytes[2], bytes[3]]),
            extras_len: bytes[4],
            body_len: u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]),
            opaque: u32::from_be_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]),
            cas: u64::from_be_bytes([
                bytes[16], bytes[17], bytes[18], bytes[19], bytes[20], bytes[21], bytes[22], bytes[23],
            ]),
        })
    }

    /// Returns the header as a client sends it.
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = self.magic;
        bytes[1] = self.opcode;
        bytes[2..4].copy_from_slice(&self.key_len.to_be_bytes());
        bytes[4] = self.extras_len;
        bytes[8..12].copy_from_slice(&self.body_len.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.opaque.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.cas.to_be_bytes());
        bytes
    }

    /// Returns the length of header, extras and key.
    #[inline]
    fn head_len(&self) -> usize {
        HEADER_LEN + usize::from(self.extras_len) + usize::from(self.key_len)
    }
}

/// The parts of a request that its response repeats or depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The opcode as it was sent, quiet or not. The response repeats it.
    pub opcode: u8,
    /// An id that the response repeats.
    pub opaque: u32,
    /// The CAS value to compare with, or 0.
    pub cas: u64,
    /// Whether there is no response on success (for a get: on a miss). Errors are always sent,
    /// including `Not found` of a quiet delete.
    pub quiet: bool,
}

/// Requests for the tests of this module and its children.
#[cfg(test)]
mod test_frame {
    use super::{Header, MAGIC_REQUEST};

    /// The opaque and the CAS value of all these requests.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_as_it_was_written() {
        let header = Header {
            magic: MAGIC_REQUEST,
            opcode: 1,
            key_len: 0x0203,
            extras_len: 4,
            body_len: 0x0506_0708,
            opaque: 0x090a_0b0c,
            cas: 0x0d0e_0f10_1112_1314,
        };
        let bytes = header.to_bytes();
        assert_eq!(bytes[..12], [0x80, 1, 2, 3, 4, 0, 0, 0, 5, 6, 7, 8]);
        assert_eq!(Header::read(&bytes), Some(header));
        assert_eq!(Header::read(&bytes[..23]), None);
        assert_eq!(header.head_len(), 24 + 4 + 0x0203);
    }
}
