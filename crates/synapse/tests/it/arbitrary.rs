//! Bytes from a peer never cause a panic: random ones, and the fuzzers' corpus.

use std::path::Path;

use proptest::prelude::*;
use synapse::codec::{HEADER_BYTES, Op};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Headers of known operations have arbitrary contents, and arbitrary bytes follow them.
    #[test]
    fn headers_of_anything(
        op in prop::sample::select(Op::ALL),
        header in prop::collection::vec(any::<u8>(), HEADER_BYTES),
        keep in any::<u64>(),
        lengths in prop::array::uniform4(0_u8..8),
        rest in prop::collection::vec(any::<u8>(), 0..96),
    ) {
        let mut bytes = vec![1];
        bytes.extend_from_slice(&header);
        // Half of the fields are zero, because a random value is almost never within its field's
        // range.
        for at in 0..HEADER_BYTES {
            if keep >> (at % 64) & 1 == 0 {
                bytes[1 + at] = 0;
            }
        }
        bytes[1 + 5] = op.code();
        bytes[1 + 20..1 + 24].copy_from_slice(&lengths);
        bytes[1 + 24..1 + 32].copy_from_slice(&[0; 8]);
        bytes[1 + 28] = header[28] % 64;
        bytes[1 + 7] = 0;
        bytes[1 + 17] %= 4;
        bytes[1 + 18] = 0;
        bytes[1 + 19] %= 4;
        bytes[1 + 92] %= 3;
        bytes.extend_from_slice(&rest);
        crate::checks::requests(&bytes);
        crate::checks::answers(&bytes);
    }

    #[test]
    fn bytes_of_anything(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        crate::checks::requests(&bytes);
        crate::checks::answers(&bytes);
    }
}

#[test]
fn the_corpus_again() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (target, check) in [
        ("synapse_requests", crate::checks::requests as fn(&[u8])),
        ("synapse_answers", crate::checks::answers),
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
