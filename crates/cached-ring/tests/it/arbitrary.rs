//! Bytes from a peer never cause a panic: random ones, and the fuzzers' corpus.

use std::path::Path;

use proptest::prelude::*;

use crate::checks;

/// Returns messages with ids and kinds that mostly fit each other, behind the byte that says how they
/// are cut.
fn messages(kinds: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
    let slot = prop_oneof![8 => Just(u16::MAX), 4 => 0..16_384_u16, 1 => any::<u16>()];
    let flags = prop_oneof![6 => Just(0_u8), 3 => Just(2_u8), 1 => any::<u8>()];
    let len = prop_oneof![4 => 0..20_usize, 4 => Just(8_usize), 1 => Just(56_usize)];
    let message = (0..12_u32, slot, prop::sample::select(kinds), flags, len, 0..40_u32);
    (any::<u8>(), prop::collection::vec(message, 0..24)).prop_map(|(cut, messages)| {
        let mut out = vec![cut];
        for (id, slot, kind, flags, len, odd) in messages {
            out.extend_from_slice(&id.to_le_bytes());
            // A request has a slot, and nothing else.
            let slot =
                if (kind == 1) == (slot == u16::MAX) && odd > 0 { u16::from(kind != 1) * slot } else { slot };
            out.extend_from_slice(&slot.to_le_bytes());
            out.extend_from_slice(&[kind, flags]);
            let told = if odd == 1 { u32::MAX } else { len as u32 };
            out.extend_from_slice(&told.to_le_bytes());
            out.resize(out.len() + len, 0);
        }
        out
    })
}

/// Returns messages of a copy session with lengths that mostly fit their kinds.
fn copy_messages() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop::sample::select(&[1_u8, 2, 3, 129, 129, 129, 130, 131, 132, 133, 255, 4][..]);
    let message = (kind, any::<[u8; 28]>(), 0..24_u8, prop::collection::vec(b' '..b'~', 0..40), 0..20_u8);
    prop::collection::vec(message, 1..12).prop_map(|messages| {
        let mut out = Vec::new();
        for (kind, fields, bits, text, odd) in messages {
            let bytes = match kind {
                1 | 3 => fields[..8].to_vec(),
                132 => fields[..16].to_vec(),
                129 => [&fields[..], &[bits, 1 + bits % 8], &text].concat(),
                130 | 133 => text,
                _ => Vec::new(),
            };
            let len = if odd == 0 { u32::from_le_bytes([fields[0]; 4]) } else { bytes.len() as u32 };
            out.extend_from_slice(&len.to_le_bytes());
            out.push(kind);
            out.extend_from_slice(&bytes);
        }
        out
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn messages_to_an_owner(bytes in messages(&[1, 1, 1, 2, 2, 3, 4, 5, 6, 129])) {
        checks::requests(&bytes);
    }

    #[test]
    fn messages_to_an_entry(bytes in messages(&[129, 129, 130, 131, 133, 134, 1])) {
        checks::replies(&bytes);
    }

    #[test]
    fn messages_of_a_copy_session(bytes in copy_messages()) {
        checks::copies(&bytes);
    }

    #[test]
    fn bytes_of_anything(bytes in prop::collection::vec(any::<u8>(), 0..256), kind in 0_u8..10) {
        checks::requests(&bytes);
        checks::replies(&bytes);
        checks::hello(&bytes);
        checks::copies(&bytes);
        checks::hello(&[&[kind], &bytes[..]].concat());
        checks::hello(&[&b"\x01cachring"[..], &bytes].concat());
    }
}

#[test]
fn the_corpus_again() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (target, check) in [
        ("ring_requests", checks::requests as fn(&[u8])),
        ("ring_replies", checks::replies),
        ("ring_hello", checks::hello),
        ("ring_copies", checks::copies),
    ] {
        let files: Vec<_> =
            std::fs::read_dir(root.join(target)).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!files.is_empty(), "the corpus of {target} is empty");
        for file in files {
            println!("{}", file.display());
            check(&std::fs::read(file).unwrap());
        }
    }
}
