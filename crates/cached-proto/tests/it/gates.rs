//! Arbitrary bytes, and the committed corpus, from clients that are not authenticated.

use proptest::prelude::*;

#[test]
fn the_corpus_passes() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/auth");
    let files: Vec<_> = std::fs::read_dir(corpus).expect("the corpus").collect();
    assert!(files.len() >= 6);
    for file in files {
        crate::auth::gates(&std::fs::read(file.expect("a file").path()).expect("a stream"));
    }
}

proptest! {
    #[test]
    fn any_bytes(data in proptest::collection::vec(any::<u8>(), 0..3000)) {
        crate::auth::gates(&data);
    }

    #[test]
    fn lines_of_authentication(len in prop_oneof![0usize..40, Just(16_384), Just(16_385)], token in "[a-z :\r\n]{0,40}", cut in 1u8..60) {
        let mut data = vec![cut];
        data.extend_from_slice(format!("set x 0 0 {len}\r\n{token}\r\n").as_bytes());
        crate::auth::gates(&data);
    }

    #[test]
    fn frames(opcode in any::<u8>(), key in 0u16..300, extras in 0u8..3, body in any::<u32>(), rest in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut data = vec![7, 0x80, opcode];
        data.extend_from_slice(&key.to_be_bytes());
        data.extend_from_slice(&[extras, 0, 0, 0]);
        data.extend_from_slice(&(body >> (body % 32)).to_be_bytes());
        data.extend_from_slice(&[0; 12]);
        data.extend_from_slice(&rest);
        crate::auth::gates(&data);
    }
}
