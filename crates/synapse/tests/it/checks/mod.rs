//! Properties that hold for any bytes. Tests with recorded and random bytes and the fuzz targets
//! call these checks.

use blocker::{Capabilities, Segments, Timestamp};
use synapse::codec::*;

/// The longest payload in these checks.
const PAYLOAD_BYTES_MAX: u32 = 4096;

/// Treats arbitrary bytes as a client's stream: it consists of requests, errors, or an incomplete
/// frame. Each decoded request is encoded and decoded again, and must be equal.
pub(crate) fn requests(data: &[u8]) {
    let mut names = Names::default();
    each_frame(data, |head, payload| {
        let _ = Hello::decode(head);
        let _ = decode_proof(head);
        let Ok(request) = Request::decode(head, payload.to_vec().into(), &mut names, Timestamp(0)) else {
            return;
        };
        let mut again = Vec::new();
        let has_crc = head.payload_crc.is_some();
        let sent = request.encode(head.header.id, Timestamp(0), has_crc, &mut again);
        again.extend_from_slice(&sent.to_vec());
        let second = whole(&again);
        let payload = Segments::from(again[second.head_bytes..].to_vec());
        let request_again = Request::decode(&second, payload, &mut names, Timestamp(0)).expect("our own");
        assert_eq!(format!("{request:?}"), format!("{request_again:?}"));
        assert!(
            head.head_bytes > EXTENSION_BYTES_MAX as usize / 2
                || request.cost_bytes(&Capabilities::full(1 << 20)) > 0
        );
    });
}

/// Treats arbitrary bytes as a server's stream. Each valid message is encoded and decoded again,
/// and must be equal.
pub(crate) fn answers(data: &[u8]) {
    let mut names = Names::default();
    each_frame(data, |head, payload| {
        let _ = Welcome::decode(head);
        let _ = Challenge::decode(head);
        if let Ok(event) = decode_event(head, payload, &mut names) {
            let mut again = Vec::new();
            encode_event(&mut again, &event, Features(Features::ALL));
            let second = whole(&again);
            assert_eq!(decode_event(&second, &again[second.head_bytes..], &mut names), Ok(event));
        }
        let why = decode_goodbye(&head.header, payload);
        let mut again = Vec::new();
        encode_goodbye(&mut again, Err(&why));
        let second = whole(&again);
        assert_eq!(decode_goodbye(&second.header, &again[second.head_bytes..]), why);
        let Ok(outcome) = Outcome::decode(head, payload.to_vec().into()) else { return };
        let shown = format!("{outcome:?}");
        let mut again = Vec::new();
        let sent = outcome.encode(head.header.op, head.header.id, false, &mut again);
        again.extend_from_slice(&sent.to_vec());
        let second = whole(&again);
        let payload = Segments::from(again[second.head_bytes..].to_vec());
        let outcome_again = Outcome::decode(&second, payload).expect("our own");
        assert_eq!(shown, format!("{outcome_again:?}"));
    });
}

/// Decodes a frame from our own encoder.
fn whole(frame: &[u8]) -> Head<'_> {
    decode(frame, u32::MAX).expect("our own frame").expect("a whole one")
}

/// Calls `check` for each frame until one is invalid or incomplete. The first byte decides whether
/// checksums are corrected first, because a fuzzer does not find valid checksums.
fn each_frame(data: &[u8], mut check: impl FnMut(&Head<'_>, &[u8])) {
    let Some((mode, rest)) = data.split_first() else { return };
    let mut rest = rest.to_vec();
    loop {
        if mode & 1 == 1 {
            correct(&mut rest);
        }
        let Ok(Some(head)) = decode(&rest, PAYLOAD_BYTES_MAX) else { return };
        let Some(payload) = rest.get(head.head_bytes..head.head_bytes + head.payload_bytes) else { return };
        check(&head, payload);
        let used = head.head_bytes + head.payload_bytes;
        rest.drain(..used);
    }
}

/// Corrects magic, version and checksums of the first frame.
fn correct(bytes: &mut [u8]) {
    if bytes.len() < HEADER_BYTES {
        return;
    }
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4] = VERSION;
    let check = crc32fast::hash(&bytes[..93]).to_le_bytes();
    bytes[93..96].copy_from_slice(&check[..3]);
    let names: usize = bytes[20..24].iter().map(|len| usize::from(*len)).sum();
    let extension = u32::from_le_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]) as usize;
    let Some(rest) = bytes.get(HEADER_BYTES..HEADER_BYTES + names + extension) else { return };
    let mut crc = crc32fast::Hasher::new();
    crc.update(&bytes[..100]);
    crc.update(rest);
    let crc = crc.finalize().to_le_bytes();
    bytes[100..104].copy_from_slice(&crc);
}
