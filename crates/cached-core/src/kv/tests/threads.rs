//! Several threads on few keys, under memory pressure: no torn value, no lost increment, and all
//! invariants hold at the end.

use super::{store, value_of};
use crate::kv::*;
use rand::{Rng, SeedableRng, rngs::SmallRng};

/// Returns a value that contains its key, its length and a checksum.
fn sealed(key: u32, bytes: usize, seed: u64) -> Vec<u8> {
    let mut value = [&key.to_le_bytes()[..], &(bytes as u32).to_le_bytes(), &value_of(seed, bytes)].concat();
    value.extend(crc32fast::hash(&value).to_le_bytes());
    value
}

fn check(key: u32, value: &[u8]) {
    let (body, crc) = value.split_at(value.len() - 4);
    assert_eq!(crc, crc32fast::hash(body).to_le_bytes(), "a torn value of key {key}");
    assert_eq!(body[..4], key.to_le_bytes(), "another key's value");
}

#[test]
fn values_are_never_torn() {
    let seed = std::env::var("CACHED_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0xcac4ed);
    println!("CACHED_TEST_SEED={seed}");
    let (kv, clock) = store(4 << 20, 1 << 20);
    let ops = if cfg!(miri) { 200 } else { 60_000 };
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (kv, clock) = (kv.clone(), clock.clone());
            scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(seed + thread);
                let mut pins = Vec::new();
                for _ in 0..ops {
                    let key = rng.random_range(0..3_000u32);
                    let name = key.to_le_bytes();
                    let hash = kv.hash(&name);
                    match rng.random_range(0..100) {
                        0..50 => {
                            let _ = kv.read(&name, hash, |item| {
                                let mut value = Vec::new();
                                item.copy_value_to(&mut value);
                                check(key, &value);
                            });
                        }
                        50..85 => {
                            let bytes = match rng.random_range(0..100) {
                                0..90 => rng.random_range(0..600),
                                90..98 => rng.random_range(600..20_000),
                                _ => rng.random_range(20_000..200_000),
                            };
                            let value = sealed(key, bytes, rng.random());
                            let expiry = if rng.random_bool(0.3) {
                                crate::clock::Expiry::after(kv.now_secs(), rng.random_range(1..5))
                            } else {
                                crate::clock::Expiry::NEVER
                            };
                            kv.store(
                                &name,
                                hash,
                                &value,
                                &StoreOptions { expiry, ..StoreOptions::default() },
                            );
                        }
                        85..92 => {
                            kv.delete(&name, hash, &DeleteOptions::default());
                        }
                        92..96 => {
                            if let Ok(pin) = kv.peek(&name, hash, |item| item.pin()) {
                                pins.push((key, pin));
                            }
                            if pins.len() > 3 {
                                let (key, pin) = pins.remove(0);
                                check(key, &pin.to_vec());
                            }
                        }
                        96..98 => {
                            let _ = kv.touch(&name, hash, crate::clock::Expiry::after(kv.now_secs(), 3));
                        }
                        98 => {
                            kv.maintain();
                            if rng.random_bool(0.02) {
                                kv.flush_all();
                            }
                        }
                        _ => {
                            if rng.random_bool(0.2) {
                                clock.advance(1);
                            }
                        }
                    }
                }
                pins.drain(..).for_each(|(key, pin)| check(key, &pin.to_vec()));
            });
        }
    });
    println!("{:?}", kv.stats());
    kv.validate();
}

#[test]
fn no_increment_is_lost() {
    let (kv, _) = store(8 << 20, 1 << 20);
    let counts = if cfg!(miri) { 50 } else { 20_000 };
    for key in 0..4u8 {
        kv.set(&[key], b"0").unwrap();
    }
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let kv = kv.clone();
            scope.spawn(move || {
                for n in 0..counts {
                    kv.increment(&[(n % 4) as u8], 1).unwrap();
                    // A pin forces the number to be written to a new entry.
                    let pin = kv.peek(&[1], kv.hash(&[1]), |item| item.pin()).unwrap();
                    assert!(std::str::from_utf8(&pin.to_vec()).unwrap().trim().parse::<u64>().is_ok());
                }
            });
        }
    });
    let total: u64 = (0..4u8).map(|key| kv.increment(&[key], 0).unwrap()).sum();
    assert_eq!(total, 4 * counts);
    kv.validate();
}

#[test]
fn no_append_is_lost() {
    let (kv, _) = store(8 << 20, 1 << 20);
    kv.set(b"list", b"").unwrap();
    let rounds = if cfg!(miri) { 20 } else { 500 };
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let kv = kv.clone();
            scope.spawn(move || {
                for _ in 0..rounds {
                    assert!(kv.append(b"list", &[b'a' + thread]).unwrap());
                }
            });
        }
    });
    let list = kv.get(b"list").unwrap();
    for thread in 0..4u8 {
        assert_eq!(list.iter().filter(|&&byte| byte == b'a' + thread).count(), rounds);
    }
    kv.validate();
}

#[test]
fn readers_find_items_while_the_index_grows() {
    let (kv, _) = store(64 << 20, 1 << 20);
    let items = if cfg!(miri) { 300 } else { 200_000u32 };
    for n in 0..100u32 {
        kv.set(&n.to_le_bytes(), &n.to_le_bytes()).unwrap();
    }
    std::thread::scope(|scope| {
        let writer = kv.clone();
        scope.spawn(move || {
            for n in 100..items {
                writer.set(&n.to_le_bytes(), &n.to_le_bytes()).unwrap();
            }
        });
        for _ in 0..2 {
            let kv = kv.clone();
            scope.spawn(move || {
                for round in 0..items {
                    let n = round % 100;
                    assert_eq!(kv.get(&n.to_le_bytes()).as_deref(), Some(&n.to_le_bytes()[..]));
                }
            });
        }
    });
    assert_eq!(kv.stats().items, u64::from(items));
    kv.validate();
    let mut seen = 0;
    for (key, value) in kv.iter() {
        assert_eq!(key, value);
        seen += 1;
    }
    assert_eq!(seen, items);
}
