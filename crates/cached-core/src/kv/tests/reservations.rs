//! Reservations for values that have not arrived completely: what they hold, and what they must not
//! prevent.

use super::{store, store_with, value_of};
use crate::kv::*;

fn set(kv: &Kv, n: u32, bytes: usize) -> StoreOutcome {
    let key = n.to_le_bytes();
    kv.store(&key, kv.hash(&key), &value_of(n.into(), bytes), &StoreOptions::default())
}

fn is_stored(outcome: StoreOutcome) -> bool {
    matches!(outcome, StoreOutcome::Stored { .. })
}

/// Reserves space for a value of which only one byte has arrived.
fn begin(kv: &Kv, n: u32, bytes: usize) -> Result<Reservation, StoreOutcome> {
    let key = (1_000_000 + n).to_le_bytes();
    let mut reservation = kv.reserve(&key, kv.hash(&key), bytes, &StoreOptions::default())?;
    assert!(reservation.write(&[1]));
    Ok(reservation)
}

#[test]
fn incomplete_values_do_not_refuse_complete_ones() {
    let (kv, _) = store(64 << 20, 1 << 20);
    set(&kv, 0, 100);
    let half_sent: Vec<_> = (0..36).map(|n| begin(&kv, n, 1_000_000)).collect();
    let held = half_sent.iter().filter(|reservation| reservation.is_ok()).count();
    assert_eq!(held, 16, "a quarter of the memory");
    assert_eq!(kv.reserved_bytes(), 16_000_000);
    for n in 0..300 {
        let bytes = [100, 5_000, 20_000, 300_000, 1_000_000][n as usize % 5];
        assert!(is_stored(set(&kv, n, bytes)), "{bytes} bytes");
    }
    let newest = 299u32.to_le_bytes();
    assert!(kv.append(&newest, &[1; 100]).unwrap());
    assert_eq!(kv.get(&newest).unwrap().len(), 1_000_100);
    kv.set(b"n", b"9").unwrap();
    assert_eq!(kv.increment(b"n", 1), Ok(10));
    drop(half_sent);
    kv.validate();
}

#[test]
fn incomplete_values_leave_most_regions_to_others() {
    let (kv, _) = store(64 << 20, 1 << 20);
    let regions = kv.stats().regions;
    let (mut half_sent, mut refused) = (Vec::new(), 0);
    for n in 0..600 {
        // Between two reservations enough is stored that each reservation is in a region of its
        // own.
        match begin(&kv, n, if n % 2 == 0 { 5_000 } else { 20_000 }) {
            Ok(reservation) => half_sent.push(reservation),
            Err(outcome) => {
                assert_eq!(outcome, StoreOutcome::OutOfMemory);
                refused += 1;
            }
        }
        for at in 0..30 {
            assert!(is_stored(set(&kv, n * 30 + at, 10_000)));
        }
        assert!(is_stored(set(&kv, n * 30, 300_000)));
        assert!(kv.stats().reserved_regions <= regions / 4);
    }
    assert!(refused > 300, "only {refused} were refused");
    for n in 0..200 {
        assert!(is_stored(set(&kv, n, 100)));
    }
    // The accepted reservations can be completed.
    for mut reservation in half_sent {
        let rest = vec![1; reservation.remaining()];
        assert!(reservation.write(&rest));
        assert!(is_stored(reservation.commit()));
    }
    kv.validate();
}

#[test]
fn one_value_of_any_size_may_be_reserved() {
    for (arena, item) in [(1 << 20, 512 << 10), (2 << 20, 1 << 20), (64 << 20, 32 << 20)] {
        let (kv, _) = store(arena, item);
        let value = value_of(7, item - 100);
        let mut reservation = kv.reserve(b"k", kv.hash(b"k"), value.len(), &StoreOptions::default()).unwrap();
        for part in value.chunks(10_000) {
            assert!(reservation.write(part));
        }
        assert!(is_stored(reservation.commit()));
        assert!(kv.get(b"k").unwrap() == value);
        kv.validate();
    }
}

#[test]
fn a_value_completed_after_a_flush_is_stored() {
    for bytes in [100, 10_000, 1_000_000] {
        let (kv, _) = store(64 << 20, 2 << 20);
        kv.set(b"k", b"old").unwrap();
        let value = value_of(3, bytes);
        let mut reservation = kv.reserve(b"k", kv.hash(b"k"), bytes, &StoreOptions::default()).unwrap();
        assert!(reservation.write(&value[..bytes / 2]));
        kv.flush_all();
        assert!(kv.get(b"k").is_none());
        assert!(reservation.write(&value[bytes / 2..]));
        assert!(is_stored(reservation.commit()));
        assert!(kv.get(b"k").unwrap() == value, "{bytes} bytes");
        while kv.maintain() {}
        assert!(kv.get(b"k").unwrap() == value, "{bytes} bytes, after the clean-up");
        assert_eq!(kv.stats().items, 1);
        kv.validate();
    }
}

#[test]
fn upkeep_does_not_wait_for_an_incomplete_value() {
    let (kv, _) = store_with(KvConfig { arena_bytes: 8 << 20, ..KvConfig::default() });
    assert!((0..1_000).all(|n| is_stored(set(&kv, n, 100))));
    let reservation = begin(&kv, 0, 3_000).unwrap();
    assert!((1_000..2_000).all(|n| is_stored(set(&kv, n, 100))));
    kv.flush_all();
    assert!((0..1_000).any(|_| !kv.maintain()), "it reports more work and does none");
    drop(reservation);
    while kv.maintain() {}
    assert_eq!(kv.stats().items, 0);
    kv.validate();
}
