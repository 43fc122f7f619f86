//! The frame of a datagram: eight bytes before the request or the reply.
//!
//! ```text
//!   0       2       4       6       8
//!  +-------+-------+-------+-------+----------
//!  | id    | number| count | 0     | bytes …
//!  +-------+-------+-------+-------+----------
//! ```
//! All numbers are big-endian. The client chooses the ID. Each datagram of the reply repeats it;
//! these datagrams are numbered from 0. A request is one datagram.

/// The length of the frame.
pub const UDP_HEADER_LEN: usize = 8;

/// The maximum length of a datagram of a reply.
pub const UDP_DATAGRAM_LEN_MAX: usize = 1400;

/// The maximum number of reply bytes in one datagram.
pub const UDP_DATA_LEN_MAX: usize = UDP_DATAGRAM_LEN_MAX - UDP_HEADER_LEN;

/// The maximum length of a reply: the count of its datagrams has 16 bits.
pub const UDP_REPLY_LEN_MAX: usize = UDP_DATA_LEN_MAX * u16::MAX as usize;

/// Returns the ID and the request in a datagram. Returns `None` if the datagram has to be dropped
/// because it is too short, empty, or part of a longer request.
pub fn decode_datagram(datagram: &[u8]) -> Option<(u16, &[u8])> {
    let (header, request) = datagram.split_first_chunk::<UDP_HEADER_LEN>()?;
    let [id, number, count] = [0, 2, 4].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
    (number == 0 && count == 1 && !request.is_empty()).then_some((id, request))
}

/// Returns the datagrams of the reply to the request `id`, each as its frame header and its bytes.
/// There are none if the reply is empty.
///
/// # Panics
/// Panics if the reply is longer than [`UDP_REPLY_LEN_MAX`].
pub fn encode_datagrams(id: u16, reply: &[u8]) -> impl Iterator<Item = ([u8; UDP_HEADER_LEN], &[u8])> {
    let count =
        u16::try_from(reply.len().div_ceil(UDP_DATA_LEN_MAX)).expect("at most UDP_REPLY_LEN_MAX bytes");
    reply.chunks(UDP_DATA_LEN_MAX).zip(0u16..).map(move |(bytes, number)| {
        let mut header = [0; UDP_HEADER_LEN];
        header[..2].copy_from_slice(&id.to_be_bytes());
        header[2..4].copy_from_slice(&number.to_be_bytes());
        header[4..6].copy_from_slice(&count.to_be_bytes());
        (header, bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_datagram() {
        assert_eq!(decode_datagram(b"\x01\x02\0\0\0\x01\0\0get k\r\n"), Some((0x0102, &b"get k\r\n"[..])));
        assert_eq!(decode_datagram(b"\0\0\0\0\0\x01\xff\xffx"), Some((0, &b"x"[..])), "reserved bytes");
        let wrong: [&[u8]; 8] = [
            b"",
            b"get k\r\n",
            b"\0\x07\0\0\0\x01\0",
            b"\0\x07\0\0\0\x01\0\0",
            b"\0\x07\0\0\0\0\0\0get k\r\n",
            b"\0\x07\0\0\0\x02\0\0get k\r\n",
            b"\0\x07\0\x01\0\x01\0\0get k\r\n",
            b"\0\x07\0\0\x01\x01\0\0get k\r\n",
        ];
        for datagram in wrong {
            assert_eq!(decode_datagram(datagram), None, "{datagram:?}");
        }
    }

    #[test]
    fn datagrams_of_a_reply_are_numbered() {
        assert_eq!(encode_datagrams(7, b"").count(), 0);
        for len in [1usize, 1391, 1392, 1393, 2784, 2785, 100_000] {
            let reply: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let count = len.div_ceil(1392);
            let mut joined = Vec::new();
            for (number, (header, bytes)) in encode_datagrams(0xabcd, &reply).enumerate() {
                let [a, b] = (number as u16).to_be_bytes();
                let [c, d] = (count as u16).to_be_bytes();
                assert_eq!(header, [0xab, 0xcd, a, b, c, d, 0, 0]);
                assert!(bytes.len() + header.len() <= 1400);
                joined.extend_from_slice(bytes);
            }
            assert_eq!(joined, reply);
        }
        let longest = vec![0; UDP_REPLY_LEN_MAX];
        assert_eq!(encode_datagrams(0, &longest).count(), 65535);
    }
}
