//! Arbitrary bytes, and slightly damaged requests: nothing panics, every call makes progress, and
//! all ways of cutting the stream decode to the same events.

use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::sample::Index;

static TEXT: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| seeds(&["text", "meta"]));
static BINARY: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| seeds(&["binary"]));

fn seeds(targets: &[&str]) -> Vec<Vec<u8>> {
    targets.iter().flat_map(|target| crate::recorded::corpus(target)).map(|(_, data)| data).collect()
}

/// A small change.
#[derive(Clone, Debug)]
enum Damage {
    Replace(Index, u8),
    Insert(Index, u8),
    Remove(Index),
    Repeat(Index, Index),
    Truncate(Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let byte = prop_oneof![
        4 => proptest::sample::select(&b" \r\n\t-+0129kOTvbqNM=\0\x80\xff"[..]),
        1 => any::<u8>(),
    ];
    prop_oneof![
        (any::<Index>(), byte.clone()).prop_map(|(at, byte)| Damage::Replace(at, byte)),
        (any::<Index>(), byte).prop_map(|(at, byte)| Damage::Insert(at, byte)),
        any::<Index>().prop_map(Damage::Remove),
        (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Damage::Repeat(from, to)),
        any::<Index>().prop_map(Damage::Truncate),
    ]
}

/// Returns a few consecutive seeds, damaged.
fn damaged(seeds: &'static LazyLock<Vec<Vec<u8>>>) -> impl Strategy<Value = Vec<u8>> {
    let row = proptest::collection::vec(any::<Index>(), 1..4);
    let damages = proptest::collection::vec(damage(), 0..6);
    (any::<u8>(), row, damages).prop_map(|(cut, row, damages)| {
        let mut data: Vec<u8> = row.iter().flat_map(|index| &index.get(&seeds[..])[1..]).copied().collect();
        for damage in damages {
            if data.is_empty() {
                break;
            }
            match damage {
                Damage::Replace(at, byte) => *at.get_mut(&mut data) = byte,
                Damage::Insert(at, byte) => data.insert(at.index(data.len()), byte),
                Damage::Remove(at) => drop(data.remove(at.index(data.len()))),
                Damage::Repeat(from, to) => {
                    let (from, to) = (from.index(data.len()), to.index(data.len()));
                    data.extend_from_within(from.min(to)..from.max(to).min(from.min(to) + 600));
                }
                Damage::Truncate(at) => data.truncate(at.index(data.len())),
            }
        }
        data.insert(0, cut);
        data
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_text(data in proptest::collection::vec(any::<u8>(), 0..400)) {
        crate::checks::meta(&data);
    }

    #[test]
    fn arbitrary_words(line in "[a-z0-9 OTMNqvbk\\-\r\n]{0,200}") {
        crate::checks::meta(line.as_bytes());
    }

    #[test]
    fn arbitrary_binary(data in proptest::collection::vec(any::<u8>(), 0..400)) {
        crate::checks::binary(&data);
    }

    #[test]
    fn damaged_text(data in damaged(&TEXT)) {
        crate::checks::text(&data);
    }

    #[test]
    fn damaged_binary(data in damaged(&BINARY)) {
        crate::checks::binary(&data);
    }
}
