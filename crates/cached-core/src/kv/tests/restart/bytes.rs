//! Memory with arbitrary changes: whatever it says, the store that is made of it is consistent, and works.

use super::*;
use crate::kv::tests::value_of;
use proptest::prelude::*;

/// A change of the file.
#[derive(Debug, Clone)]
enum Damage {
    /// A byte of the notes, the table or the arena.
    Notes(u16, u8),
    Table(u16, u8),
    Arena(u32, u8),
    /// The first words of an entry.
    Entry(u16, [u8; 8]),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        1 => (4u16..72, any::<u8>()).prop_map(|(at, to)| Damage::Notes(at, to)),
        2 => (0u16..1024, any::<u8>()).prop_map(|(at, to)| Damage::Table(at, to)),
        3 => (0u32..1 << 20, any::<u8>()).prop_map(|(at, to)| Damage::Arena(at, to)),
        4 => (any::<u16>(), any::<[u8; 8]>()).prop_map(|(at, to)| Damage::Entry(at, to)),
    ]
}

/// The file of a store that was killed: bytes, where the arena starts, and where entries are.
fn killed_store() -> (Vec<u8>, usize, Vec<usize>) {
    let lab = Lab::new();
    let (kv, _) = open(&lab.path());
    for n in 0..400u32 {
        kv.set(&n.to_le_bytes(), &value_of(n.into(), n as usize)).unwrap();
        if n % 40 == 0 {
            kv.set(format!("large {n}").as_bytes(), &value_of(n.into(), 6_000 + 100 * n as usize)).unwrap();
        }
        if n % 3 == 0 {
            kv.remove(&(n / 2).to_le_bytes());
        }
    }
    let bytes = std::fs::read(kv.memory_file().unwrap()).unwrap();
    let arena_at = bytes.len() - kv.stats().arena_bytes;
    let mut entries = Vec::new();
    let mut cursor = Some(crate::kv::ScanCursor::default());
    while let Some(at) = cursor {
        cursor = kv.scan(at, |item| entries.push(arena_at + item.location as usize * 4));
    }
    (bytes, arena_at, entries)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_make_a_store(damages in proptest::collection::vec(damage(), 1..40)) {
        let (mut bytes, arena_at, entries) = killed_store();
        for damage in damages {
            match damage {
                Damage::Notes(at, to) => bytes[1024 + usize::from(at)] = to,
                Damage::Table(at, to) => bytes[4096 + usize::from(at)] = to,
                Damage::Arena(at, to) => {
                    let at = arena_at + at as usize % (bytes.len() - arena_at);
                    bytes[at] = to;
                }
                Damage::Entry(n, to) => {
                    let at = entries[usize::from(n) % entries.len()];
                    bytes[at..at + 8].copy_from_slice(&to);
                }
            }
        }
        let lab = Lab::new();
        let path = lab.path();
        std::fs::write(&path, &bytes).unwrap();
        let (kv, _) = open(&path);
        kv.validate();
        let found = state(&kv);
        for (key, seen) in &found {
            prop_assert_eq!(kv.get(key), Some(seen.value.clone()));
        }
        // Enough to reclaim every region.
        for n in 0..3_000u32 {
            kv.set(&n.to_le_bytes(), &value_of(n.into(), 500)).unwrap();
        }
        kv.validate();
        kv.flush_all();
        while kv.maintain() {}
        kv.validate();
        prop_assert_eq!(kv.stats().items, 0);
    }
}
