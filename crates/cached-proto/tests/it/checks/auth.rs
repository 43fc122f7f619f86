//! Properties of authentication and of datagrams that hold for all bytes.

use cached_proto::limits::{AUTH_TOKEN_LEN_MAX, BINARY_FRAME_HEAD_LEN_MAX, LINE_LEN_MAX};
use cached_proto::udp::{UDP_DATAGRAM_LEN_MAX, UDP_HEADER_LEN, decode_datagram, encode_datagrams};
use cached_proto::{Decoded, binary::sasl, text::auth};

/// Decodes arbitrary bytes with both kinds of authentication, as a whole and with one more byte at
/// a time, and as a datagram.
pub(crate) fn gates(data: &[u8]) {
    let Some((&cut, input)) = data.split_first() else { return };
    let step = usize::from(cut).max(1);
    walk(input, step, "text", |rest| match auth::decode(rest) {
        Decoded::Request { request, consumed } => {
            assert!(request.user.len() + request.password.len() < AUTH_TOKEN_LEN_MAX);
            assert!(!request.user.contains(&b' '));
            Some((consumed, false))
        }
        Decoded::Refused(refused) => {
            assert!(refused.swallow == 0 && refused.reply.ends_with(b"\r\n"));
            Some((refused.consumed, refused.close))
        }
        Decoded::Incomplete => None,
        Decoded::Close => Some((1, true)),
    });
    walk(input, step, "SASL", |rest| match sasl::decode(rest) {
        Decoded::Request { request, consumed } => {
            assert!(sasl::is_sasl(request.head.opcode) || request.head.opcode == 0x0b);
            if let sasl::SaslCommand::Start { data, .. } | sasl::SaslCommand::Step { data } = request.command
                && let Some((user, password)) = sasl::plain(data)
            {
                assert!(!user.is_empty() && !user.contains(&0) && !password.contains(&0));
            }
            Some((consumed, false))
        }
        Decoded::Refused(refused) => {
            assert!(refused.close || sasl::is_sasl(refused.reply.head.opcode));
            Some((refused.consumed.saturating_add(refused.swallow), refused.close))
        }
        Decoded::Incomplete => None,
        Decoded::Close => Some((1, true)),
    });
    if let Some((id, request)) = decode_datagram(input) {
        let all: Vec<u8> = encode_datagrams(id, request)
            .flat_map(|(header, bytes)| {
                assert!(header[..2] == id.to_be_bytes());
                assert!(!bytes.is_empty() && UDP_HEADER_LEN + bytes.len() <= UDP_DATAGRAM_LEN_MAX);
                bytes.to_vec()
            })
            .collect();
        assert_eq!(all, request);
    }
}

/// Decodes requests one after the other as they arrive. `one` returns the length of a request, and
/// whether it is the last one. The waiting input has a limited length.
fn walk(input: &[u8], step: usize, gate: &str, one: impl Fn(&[u8]) -> Option<(usize, bool)>) {
    let bound = LINE_LEN_MAX.max(BINARY_FRAME_HEAD_LEN_MAX) + AUTH_TOKEN_LEN_MAX + 2 * LINE_LEN_MAX;
    let (mut start, mut arrived) = (0, 0);
    while start < input.len() {
        arrived = arrived.max(start).saturating_add(step).min(input.len());
        match one(&input[start..arrived]) {
            Some((_, true)) => return,
            Some((used, false)) => {
                assert!(used > 0, "{gate}: no progress");
                start = start.saturating_add(used);
            }
            None if arrived == input.len() => {
                // A line that arrives together with its end may be longer than one without an end.
                assert!(
                    arrived - start <= bound || input[start..].contains(&b'\n'),
                    "{gate}: too much waits"
                );
                return;
            }
            None => {}
        }
    }
}
