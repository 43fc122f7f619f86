//! Memory with arbitrary changes: whatever its contents, the resulting store is consistent, and
//! works.

use super::*;
use crate::kv::item::state::LIVE;
use crate::kv::tests::value_of;
use crate::kv::{ArithmeticOptions, StoreOptions};
use proptest::prelude::*;

/// A change of the file.
#[derive(Debug, Clone)]
enum Damage {
    /// A byte of the recorded fields, the table or the arena.
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

/// Returns the file of a killed store: its bytes, the start of the arena, the locations of entries,
/// and the items.
fn killed_store() -> (Vec<u8>, usize, Vec<usize>, State) {
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
    (bytes, arena_at, entries, state(&kv))
}

/// Opens a store in a file with these bytes.
fn open_bytes(bytes: &[u8]) -> Kv {
    let lab = Lab::new();
    let path = lab.path();
    std::fs::write(&path, bytes).unwrap();
    open(&path).0
}

/// Changes each byte of an item and of a piece. Only entries that do not match their checksums are
/// left out.
#[test]
fn a_changed_byte_of_an_entry_is_noticed_after_a_kill() {
    let lab = Lab::new();
    let (kv, _) = open(&lab.path());
    kv.store(
        b"some key",
        kv.hash(b"some key"),
        b"a value",
        &StoreOptions { client_flags: 7, ..Default::default() },
    );
    kv.set(b"large", &value_of(1, 10_000)).unwrap();
    kv.set(b"other", b"1").unwrap();
    kv.arithmetic(b"other", kv.hash(b"other"), &ArithmeticOptions { delta: 1, ..Default::default() });
    let before = state(&kv);
    let bytes = std::fs::read(kv.memory_file().unwrap()).unwrap();
    assert_eq!(state(&open_bytes(&bytes)), before);
    let places = [
        // The range includes the client flags before the key.
        (b"some key".as_slice(), &b"some key"[..], -4..15),
        (b"large", &value_of(1, 10_000)[5_000..5_040], 0..40),
        (b"other", b"other2", 0..6),
    ];
    for (key, content, range) in places {
        let mut found = bytes.windows(content.len()).enumerate().filter(|(_, window)| *window == content);
        let (at, _) = found.next_back().expect("it is in the file");
        for at in range.map(|offset| at.wrapping_add_signed(offset)) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            let kv = open_bytes(&damaged);
            kv.validate();
            let mut expected = before.clone();
            expected.remove(key);
            assert_eq!(state(&kv), expected, "byte {at}");
            assert_eq!(kv.restart().unwrap().damaged_items, 1);
        }
    }
}

#[test]
fn a_deleted_item_does_not_come_back_by_its_mark() {
    let lab = Lab::new();
    let (kv, _) = open(&lab.path());
    let (kept, deleted, replaced) = (b"kept", b"deleted", b"replaced");
    for key in [&kept[..], deleted, replaced] {
        kv.set(key, b"value").unwrap();
    }
    let arena_at =
        std::fs::metadata(kv.memory_file().unwrap()).unwrap().len() as usize - kv.stats().arena_bytes;
    let mut usages = Vec::new();
    let mut cursor = Some(crate::kv::ScanCursor::default());
    while let Some(at) = cursor {
        cursor = kv.scan(at, |item| usages.push(arena_at + item.location as usize * 4 + 4));
    }
    kv.remove(deleted);
    kv.set(replaced, b"a value that is longer").unwrap();
    let before = state(&kv);
    let mut bytes = std::fs::read(kv.memory_file().unwrap()).unwrap();
    usages.iter().for_each(|at| bytes[*at] |= LIVE);
    let kv = open_bytes(&bytes);
    assert_eq!((state(&kv), kv.restart().unwrap().damaged_items), (before, 2));
}

/// A file of an earlier build is taken over, keeps its layout, and can be handed over.
#[test]
fn a_file_without_checksums_is_taken_over() {
    let lab = Lab::new();
    let path = lab.path();
    let (kv, _) = open_with(&path, KvConfig { checksums: false, ..small() });
    for n in 0..200u32 {
        kv.set(&n.to_le_bytes(), &value_of(n.into(), if n % 20 == 0 { 9_000 } else { 100 })).unwrap();
    }
    let version = |path: &Path| std::fs::read(path).unwrap()[8];
    assert_eq!(version(&path), 1);
    let before = state(&kv);
    kv.end_as_killed();
    drop(kv);
    let (kv, _) = open(&path);
    assert_eq!((kv.restart().unwrap().cold.clone(), state(&kv)), (None, before));
    kv.set(b"later", &value_of(7, 9_000)).unwrap();
    kv.validate();
    let before = state(&kv);
    // Ends properly.
    drop(kv);
    let (kv, clock) = open(&path);
    assert!(kv.restart().unwrap().was_clean);
    assert_eq!((version(&path), state(&kv)), (1, before.clone()));
    let handed = kv.hand_over().unwrap();
    let descriptor = handed.file().try_clone().unwrap();
    let file = ArenaFile::handed_over(handed.path(), descriptor, clock.now_secs()).unwrap();
    let new = Kv::new(KvConfig { clock: clock.clone(), file: Some(file), ..small() }).unwrap();
    assert_eq!(state(&new), before);
    handed.resume();
    kv.validate();
    drop(new);
    drop(kv);
    // With other settings, a new file of the present layout is created.
    let (kv, _) = open_with(&path, KvConfig { cas: false, ..small() });
    assert!(kv.restart().unwrap().cold.is_some());
    assert_eq!(version(&path), 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_make_a_store(damages in proptest::collection::vec(damage(), 1..40)) {
        let (mut bytes, arena_at, entries, stored) = killed_store();
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
        let kv = open_bytes(&bytes);
        kv.validate();
        for (key, seen) in &state(&kv) {
            prop_assert_eq!(kv.get(key), Some(seen.value.clone()));
            // Whatever the damage, the value is the stored one, or missing.
            prop_assert_eq!(Some((&seen.value, seen.client_flags)), stored.get(key).map(|seen| (&seen.value, seen.client_flags)));
        }
        // There are enough values that every region is reclaimed.
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
