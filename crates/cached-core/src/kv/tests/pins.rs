//! Pinned values: their bytes do not change and do not move.

use super::{store, store_with};
use crate::kv::*;

fn pin(kv: &Kv, key: &[u8]) -> PinnedValue {
    kv.read(key, kv.hash(key), |item| item.pin()).unwrap()
}

/// Returns where the bytes of the key's value are.
fn place(kv: &Kv, key: &[u8]) -> *const u8 {
    kv.peek(key, kv.hash(key), |item| item.inline_value().unwrap().as_ptr()).unwrap()
}

#[test]
fn a_store_over_a_pinned_value_uses_another_entry() {
    for (evict, cas) in [(true, true), (true, false), (false, true)] {
        let (kv, _) = store_with(KvConfig { arena_bytes: 4 << 20, evict, cas, ..KvConfig::default() });
        kv.set(b"k", b"first").unwrap();
        let before = place(&kv, b"k");
        let pinned = pin(&kv, b"k");
        kv.set(b"k", b"other").unwrap();
        assert_eq!(pinned.to_vec(), b"first");
        assert_eq!(kv.get(b"k").unwrap(), b"other");
        assert_ne!(place(&kv, b"k"), before);
        drop(pinned);
        // Where no value is pinned it goes to the same place.
        let before = place(&kv, b"k");
        kv.set(b"k", b"third").unwrap();
        assert_eq!((kv.get(b"k").unwrap(), place(&kv, b"k")), (b"third".to_vec(), before));
        kv.validate();
    }
}

#[test]
fn an_increment_of_a_pinned_number_uses_another_entry() {
    for cas in [true, false] {
        let (kv, _) = store_with(KvConfig { arena_bytes: 4 << 20, cas, ..KvConfig::default() });
        kv.set(b"n", b"5").unwrap();
        let before = place(&kv, b"n");
        let pinned = pin(&kv, b"n");
        assert_eq!(kv.increment(b"n", 1), Ok(6));
        assert_eq!(pinned.to_vec(), b"5");
        assert_eq!(kv.get(b"n").unwrap(), b"6");
        assert_ne!(place(&kv, b"n"), before);
        drop(pinned);
        // Where no value is pinned it is counted in its place.
        let before = place(&kv, b"n");
        assert_eq!(kv.decrement(b"n", 2), Ok(4));
        assert_eq!((kv.get(b"n").unwrap(), place(&kv, b"n")), (b"4".to_vec(), before));
        kv.validate();
    }
}

/// Its memory could not be used again before the pin is gone, so that walking it would free nothing and copy
/// all of it.
#[test]
fn a_region_with_a_pinned_value_is_not_walked_while_others_can_be() {
    let (kv, _) = store(4 << 20, 1 << 20);
    kv.set(b"pinned", &[7; 100]).unwrap();
    kv.set(b"beside", &[8; 100]).unwrap();
    let places = [place(&kv, b"pinned"), place(&kv, b"beside")];
    let pinned = pin(&kv, b"pinned");
    for n in 0..100_000u32 {
        kv.set(&n.to_le_bytes(), &[1; 100]).unwrap();
    }
    assert!(kv.stats().evictions > 50_000);
    assert_eq!([place(&kv, b"pinned"), place(&kv, b"beside")], places, "nothing of it was copied or evicted");
    drop(pinned);
    for n in 0..100_000u32 {
        kv.set(&n.to_le_bytes(), &[2; 100]).unwrap();
    }
    assert!(kv.peek(b"beside", kv.hash(b"beside"), |_| ()).is_err(), "it is walked like any other then");
    kv.validate();
}
