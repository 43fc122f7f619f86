//! Arbitrary bytes as a program of store operations, run alongside a plain map.
//!
//! The fuzz target `store` and the test that replays its corpus share it. Each operation has two
//! bytes and sometimes a third: the operation, the key, and the size or duration.

use cached_core::clock::{Clock, Expiry, TickClock};
use cached_core::kv::*;
use std::collections::HashMap;
use std::sync::Arc;

/// Runs the program. Panics if the store is wrong or an invariant is violated.
pub(crate) fn run(program: &[u8]) {
    let (&head, mut rest) = program.split_first().unwrap_or((&0, &[]));
    let clock = Arc::new(TickClock::new());
    let kv = Kv::new(KvConfig {
        arena_bytes: (1 + usize::from(head & 3)) << 20,
        item_bytes_max: 300 << 10,
        lanes: 1,
        cas: head & 4 == 0,
        evict: head & 8 == 0,
        clock: clock.clone(),
        hash_seed: Some(1),
        ..KvConfig::default()
    })
    .expect("the configuration is right");
    let mut map: HashMap<Vec<u8>, (Vec<u8>, Expiry)> = HashMap::new();
    let mut pins: Vec<(PinnedValue, Vec<u8>)> = Vec::new();
    let mut version = 0u8;
    while let [op, key, tail @ ..] = rest {
        let (size, tail) = tail.split_first().unwrap_or((&0, &[]));
        rest = tail;
        let name = vec![key % 48 + 1; usize::from(key % 48) * 5 + 1];
        let hash = kv.hash(&name);
        let now = clock.now_secs();
        map.retain(|_, (_, expiry)| !expiry.is_past(now));
        let expiry =
            if op & 0x80 == 0 { Expiry::NEVER } else { Expiry::after(now, u32::from(*size % 16) + 1) };
        let bytes = usize::from(*size).pow(2) * if op & 0x40 == 0 { 1 } else { 5 };
        version = version.wrapping_add(1);
        let value = vec![version; bytes];
        match op & 15 {
            0..4 => {
                let options =
                    StoreOptions { expiry, client_flags: u32::from(*size), ..StoreOptions::default() };
                if let StoreOutcome::Stored { .. } = kv.store(&name, hash, &value, &options) {
                    map.insert(name, (value, expiry));
                }
            }
            4 => {
                let options = StoreOptions { mode: StoreMode::Append, ..StoreOptions::default() };
                if let StoreOutcome::Stored { .. } = kv.store(&name, hash, &value, &options) {
                    map.get_mut(&name).expect("appended to nothing").0.extend(value);
                }
            }
            5 => {
                if kv.delete(&name, hash, &DeleteOptions::default()) == DeleteOutcome::Done {
                    assert!(map.remove(&name).is_some(), "deleted what was not there");
                } else {
                    map.remove(&name);
                }
            }
            6 => {
                if kv.touch(&name, hash, expiry).is_ok() {
                    map.get_mut(&name).expect("touched nothing").1 = expiry;
                }
            }
            7 => {
                if pins.len() < 3
                    && let Ok(pin) = kv.peek(&name, hash, |item| item.pin())
                {
                    pins.push((pin, map[&name].0.clone()));
                }
            }
            8 => drop(pins.pop()),
            9 => clock.advance(u32::from(*size % 32)),
            10 => {
                kv.flush_all();
                map.clear();
            }
            11 => drop(kv.maintain()),
            12 => {
                let delete = DeleteOptions { clear_value: true, ..DeleteOptions::default() };
                if kv.delete(&name, hash, &delete) == DeleteOutcome::Done {
                    map.insert(name, (Vec::new(), Expiry::NEVER));
                }
            }
            13 => {
                let count = ArithmeticOptions {
                    delta: u64::MAX / 3,
                    vivify: Some((9, expiry)),
                    ..Default::default()
                };
                match kv.arithmetic(&name, hash, &count) {
                    ArithmeticOutcome::Done { value, created, .. } => {
                        let (text, kept) = map.remove(&name).unwrap_or_default();
                        let width = if created { 0 } else { text.len() };
                        let kept = if created { expiry } else { kept };
                        map.insert(name, (format!("{value:<width$}").into_bytes(), kept));
                    }
                    ArithmeticOutcome::NotFound => panic!("a missing number is created"),
                    _ => {}
                }
            }
            14 => {
                if let Ok(mut reservation) = kv.reserve(&name, hash, value.len(), &StoreOptions::default()) {
                    let (first, second) = value.split_at(value.len() / 3);
                    let whole = reservation.write(first) && op & 0x20 == 0 && reservation.write(second);
                    if whole && matches!(reservation.commit(), StoreOutcome::Stored { .. }) {
                        map.insert(name, (value, Expiry::NEVER));
                    }
                }
            }
            _ => match (kv.read(&name, hash, |item| item.pin().to_vec()), map.get(&name)) {
                (Ok(is), Some((expected, _))) => assert!(&is == expected, "a wrong value"),
                (Ok(_), None) => panic!("an item that must be gone"),
                (Err(_), _) => drop(map.remove(&name)),
            },
        }
        assert!(pins.iter().all(|(pin, value)| &pin.to_vec() == value), "a pinned value changed");
    }
    pins.clear();
    for (name, (value, expiry)) in map {
        let is = kv.get(&name);
        assert!(
            is.is_none_or(|is| is == value && !expiry.is_past(clock.now_secs())),
            "a wrong value at the end"
        );
    }
    kv.validate();
    kv.flush_all();
    while kv.maintain() {}
    kv.validate();
    assert_eq!(kv.stats().items, 0);
}
