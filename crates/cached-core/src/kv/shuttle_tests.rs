//! The store under a scheduler that tries many interleavings: `RUSTFLAGS="--cfg shuttle" cargo test -p
//! cached-core`.

use super::{DeleteOptions, DeleteOutcome, FetchOptions, Kv, KvConfig, Miss, StoreOptions};
use crate::clock::{Expiry, TickClock};
use crate::sync::{Arc, AtomicU32, Ordering};
use std::time::Duration;

fn store() -> Kv {
    Kv::new(KvConfig {
        arena_bytes: 1 << 20,
        item_bytes_max: 64 << 10,
        lanes: 1,
        clock: Arc::new(TickClock::new()),
        hash_seed: Some(7),
        ..KvConfig::default()
    })
    .unwrap()
}

fn uniform(value: &[u8]) -> bool {
    value.iter().all(|byte| *byte == value[0])
}

/// Returns whether a value was written by a single writer, or is empty, apart from pairs of bytes
/// that any writers have appended.
fn is_whole(value: &[u8]) -> bool {
    let set = [9_000, 40, 0].into_iter().find(|bytes| value.len() >= *bytes).unwrap_or(0);
    uniform(&value[..set])
        && value.len() <= set + 4
        && value[set..].chunks(2).all(|pair| pair.len() == 2 && uniform(pair))
}

/// Writers, a deleter and a pin on one key: readers see whole values, and the pinned value does not change.
#[test]
fn values_of_one_key_are_whole() {
    shuttle::check_random(
        || {
            let kv = store();
            kv.set(b"k", &[1; 40]).unwrap();
            let pin = kv.peek(b"k", kv.hash(b"k"), |item| item.pin()).unwrap();
            let writers: Vec<_> = (2..4u8)
                .map(|n| {
                    let kv = kv.clone();
                    shuttle::thread::spawn(move || {
                        kv.set(b"k", &[n; 40]).unwrap();
                        kv.append(b"k", &[n; 2]).unwrap();
                        kv.set(b"k", &vec![n; 9_000]).unwrap();
                    })
                })
                .collect();
            let deleter = {
                let kv = kv.clone();
                shuttle::thread::spawn(move || kv.remove(b"k"))
            };
            for _ in 0..3 {
                if let Some(value) = kv.get(b"k") {
                    assert!(is_whole(&value), "{value:?}");
                }
                assert_eq!(pin.to_vec(), [1; 40]);
            }
            writers.into_iter().for_each(|thread| thread.join().unwrap());
            deleter.join().unwrap();
            drop(pin);
            kv.validate();
        },
        400,
    );
}

/// Two threads increment while a third pins and unpins: no increment is lost.
#[test]
fn no_increment_is_lost() {
    shuttle::check_random(
        || {
            let kv = store();
            kv.set(b"n", b"98").unwrap();
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let kv = kv.clone();
                    shuttle::thread::spawn(move || {
                        kv.increment(b"n", 1).unwrap();
                        kv.increment(b"n", 1).unwrap();
                    })
                })
                .collect();
            for _ in 0..2 {
                drop(kv.peek(b"n", kv.hash(b"n"), |item| item.pin()));
            }
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(kv.increment(b"n", 0), Ok(102));
            kv.validate();
        },
        400,
    );
}

/// An append or an increment does not undo an expiry that a concurrent touch has set.
#[test]
fn a_touch_survives_appends_and_increments() {
    shuttle::check_random(
        || {
            let kv = store();
            kv.set_for(b"a", b"1", Duration::from_secs(50)).unwrap();
            kv.set(b"n", b"99").unwrap();
            let writer = {
                let kv = kv.clone();
                shuttle::thread::spawn(move || {
                    assert!(kv.append(b"a", b"2").unwrap());
                    assert_eq!(kv.increment(b"n", 1), Ok(100));
                })
            };
            assert!(kv.touch_for(b"a", Duration::from_secs(1_000)));
            assert!(kv.touch_for(b"n", Duration::from_secs(1_000)));
            writer.join().unwrap();
            for key in [&b"a"[..], b"n"] {
                let expiry = kv.peek(key, kv.hash(key), |item| item.expiry()).unwrap();
                assert_eq!(expiry, Expiry::after(kv.now_secs(), 1_000), "{key:?}");
            }
            assert_eq!(kv.get(b"a").unwrap(), b"12");
            kv.validate();
        },
        500,
    );
}

/// Two readers find a stale item whose number is being incremented: one of them wins the right to
/// refresh it.
#[test]
fn one_reader_wins_while_a_number_grows() {
    shuttle::check_random(
        || {
            let kv = store();
            let hash = kv.hash(b"n");
            kv.set(b"n", b"99").unwrap();
            let stale = DeleteOptions { invalidate: true, ..DeleteOptions::default() };
            assert_eq!(kv.delete(b"n", hash, &stale), DeleteOutcome::Done);
            let counter = {
                let kv = kv.clone();
                shuttle::thread::spawn(move || assert_eq!(kv.increment(b"n", 1), Ok(100)))
            };
            let tokens = FetchOptions { tokens: true, ..FetchOptions::default() };
            let wins = (0..2).filter(|_| kv.fetch(b"n", hash, &tokens, |_, fetched| fetched.won).unwrap());
            let wins = wins.count();
            counter.join().unwrap();
            let late = kv.fetch(b"n", hash, &tokens, |_, fetched| fetched.won).unwrap();
            assert_eq!(wins + usize::from(late), 1);
            kv.validate();
        },
        500,
    );
}

/// Values stored during a flush and its cleanup are intact.
#[test]
fn a_flush_leaves_later_values_whole() {
    // A priority scheduler, under which one thread may run to its end within another's short
    // window.
    shuttle::check_pct(
        || {
            let kv = store();
            (0..40u32).for_each(|n| kv.set(&n.to_le_bytes(), &[n as u8; 3_500]).unwrap());
            let writer = {
                let kv = kv.clone();
                shuttle::thread::spawn(move || {
                    for n in 100..104u32 {
                        kv.set(&n.to_le_bytes(), &[n as u8; 3_500]).unwrap();
                    }
                })
            };
            let flusher = {
                let kv = kv.clone();
                shuttle::thread::spawn(move || {
                    kv.flush_all();
                    kv.maintain();
                    (200..230u32).for_each(|n| kv.set(&n.to_le_bytes(), &[n as u8; 3_500]).unwrap());
                })
            };
            writer.join().unwrap();
            flusher.join().unwrap();
            kv.validate();
            for n in (0..230u32).filter_map(|n| kv.get(&n.to_le_bytes()).map(|value| (n, value))) {
                assert!(n.0 >= 100 && n.1 == [n.0 as u8; 3_500], "key {}", n.0);
            }
        },
        600,
        3,
    );
}

/// A value stored after a flush has returned stays, even if regions are opened while the flush sets
/// its boundary.
#[test]
fn a_value_stored_after_a_flush_stays() {
    shuttle::check_pct(
        || {
            let kv = Kv::new(KvConfig {
                arena_bytes: 4 << 20,
                lanes: 2,
                clock: Arc::new(TickClock::new()),
                hash_seed: Some(7),
                ..KvConfig::default()
            })
            .unwrap();
            let writer = {
                let kv = kv.clone();
                // Every few values, the thread opens a region.
                shuttle::thread::spawn(move || {
                    (0..40u32).for_each(|n| kv.set(&n.to_le_bytes(), &[1; 4_000]).unwrap());
                })
            };
            kv.flush_all();
            kv.set(b"after", b"1").unwrap();
            writer.join().unwrap();
            assert!(kv.get(b"after").is_some());
            (0..40u32).for_each(|n| kv.set(&n.to_le_bytes(), &[2; 4_000]).unwrap());
            assert!((0..40u32).all(|n| kv.get(&n.to_le_bytes()).is_some_and(|value| value[0] == 2)));
            kv.flush_all();
            assert!((0..40u32).all(|n| kv.get(&n.to_le_bytes()).is_none()));
            kv.validate();
        },
        300,
        3,
    );
}

/// A full store: writers reclaim regions while other threads pin and flush.
#[test]
fn pinned_values_survive_reclaiming_and_flushes() {
    shuttle::check_random(
        || {
            let kv = store();
            for n in 0..240u32 {
                kv.set(&n.to_le_bytes(), &[n as u8; 3_500]).unwrap();
            }
            let writers: Vec<_> = (0..2u32)
                .map(|thread| {
                    let kv = kv.clone();
                    shuttle::thread::spawn(move || {
                        for n in 0..25 {
                            let key = 1_000 * (thread + 1) + n;
                            let value = [key as u8; 3_500];
                            let options = StoreOptions::default();
                            kv.store(&key.to_le_bytes(), kv.hash(&key.to_le_bytes()), &value, &options);
                        }
                    })
                })
                .collect();
            let flusher = {
                let kv = kv.clone();
                shuttle::thread::spawn(move || {
                    kv.flush_all();
                    kv.maintain();
                })
            };
            let mut pins = Vec::new();
            for n in (0..240u32).step_by(40) {
                let key = n.to_le_bytes();
                match kv.peek(&key, kv.hash(&key), |item| item.pin()) {
                    Ok(pin) => pins.push((n, pin)),
                    Err(miss) => assert!(matches!(miss, Miss::Absent | Miss::Flushed)),
                }
            }
            writers.into_iter().for_each(|thread| thread.join().unwrap());
            flusher.join().unwrap();
            for (n, pin) in pins {
                assert_eq!(pin.to_vec(), [n as u8; 3_500]);
            }
            kv.validate();
        },
        100,
    );
}

/// Threads that miss a key together: in every interleaving, all of them get a value created by one
/// of them, even if the first one fails, and no flight remains.
#[test]
fn one_flight_per_key() {
    shuttle::check_random(
        || {
            let kv = store();
            let made = Arc::new(AtomicU32::new(0));
            let threads: Vec<_> = (0..3u8)
                .map(|n| {
                    let (kv, made) = (kv.clone(), made.clone());
                    shuttle::thread::spawn(move || {
                        kv.try_get_or_insert_with(b"k", || {
                            if n == 0 {
                                return Err("the first fails");
                            }
                            made.fetch_add(1, Ordering::SeqCst);
                            Ok([n; 40])
                        })
                    })
                })
                .collect();
            let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            assert_eq!(made.load(Ordering::SeqCst), 1);
            let value = kv.get(b"k").expect("one of them has made it");
            assert!(results[1..].iter().all(|result| result.as_ref() == Ok(&value)));
            assert!(results[0] == Err("the first fails") || results[0] == Ok(value));
            kv.validate();
        },
        500,
    );
}

/// A prefix flush, its sweep, and stores of one key run concurrently: values stored after the flush
/// stay, and values stored before it are never seen after it.
#[test]
fn a_prefix_ends_what_was_stored_before_and_nothing_else() {
    shuttle::check_random(
        || {
            let kv = store();
            kv.set(b"a:1", b"old").unwrap();
            kv.set(b"a:2", b"old").unwrap();
            kv.set(b"b:1", b"stays").unwrap();
            let sweeper = {
                let kv = kv.clone();
                shuttle::thread::spawn(move || {
                    for _ in 0..3 {
                        kv.sweep_prefixes();
                    }
                })
            };
            let writer = {
                let kv = kv.clone();
                shuttle::thread::spawn(move || {
                    kv.set(b"a:1", b"meanwhile").unwrap();
                    assert_eq!(kv.get(b"b:1").as_deref(), Some(&b"stays"[..]));
                })
            };
            kv.flush_prefix(b"a:").unwrap();
            assert_ne!(kv.get(b"a:1").as_deref(), Some(&b"old"[..]));
            assert_eq!(kv.get(b"a:2"), None);
            kv.set(b"a:2", b"new").unwrap();
            assert_eq!(kv.get(b"a:2").as_deref(), Some(&b"new"[..]));
            sweeper.join().unwrap();
            writer.join().unwrap();
            while kv.sweep_prefixes() {}
            assert_eq!(kv.get(b"a:2").as_deref(), Some(&b"new"[..]));
            assert_ne!(kv.get(b"a:1").as_deref(), Some(&b"old"[..]));
            assert_eq!(kv.get(b"b:1").as_deref(), Some(&b"stays"[..]));
            kv.validate();
        },
        300,
    );
}
