//! Operations of other threads between the parts of one operation: between a look-up and its
//! commit, and between a commit and its end.

use super::{secs, store};
use crate::arena::RegionState;
use crate::clock::{Clock, Expiry, FIRST_SECOND};
use crate::kv::*;
use std::sync::{Arc, Mutex};

type Act = Box<dyn FnOnce() + Send>;
type Operation = fn(&Kv);

/// A clock that stands still, and runs a closure at one of its readings. Operations read the clock
/// while they hold no lock, also between a look-up and the commit that relies on the look-up.
#[derive(Default)]
struct Interrupting {
    /// The number of readings before the closure runs, and the closure.
    pending: Mutex<Option<(usize, Act)>>,
}

impl Interrupting {
    fn interrupt_at(&self, reading: usize, act: Act) {
        *self.pending.lock().unwrap() = Some((reading, act));
    }

    /// Returns whether the closure has run. If it has not run by now, it never will.
    fn has_interrupted(&self) -> bool {
        self.pending.lock().unwrap().take().is_none()
    }
}

impl Clock for Interrupting {
    fn now_secs(&self) -> u32 {
        let mut pending = self.pending.lock().unwrap();
        let due = match &mut *pending {
            Some((left, _)) if *left > 0 => {
                *left -= 1;
                None
            }
            _ => pending.take(),
        };
        drop(pending);
        if let Some((_, act)) = due {
            act();
        }
        FIRST_SECOND
    }
}

/// Runs `operation` on a key with the value `before`, with `meanwhile` at the first reading of the
/// clock, then on a new store with `meanwhile` at the second reading, and so on until there is no
/// such reading. `check` gets each outcome.
fn at_each_reading<T>(
    config: impl Fn() -> KvConfig,
    before: &[u8],
    meanwhile: fn(&Kv),
    operation: impl Fn(&Kv) -> T,
    check: impl Fn(&Kv, T),
) {
    let mut readings = 0;
    loop {
        let clock = Arc::new(Interrupting::default());
        let kv = Kv::new(KvConfig { arena_bytes: 4 << 20, clock: clock.clone(), ..config() }).unwrap();
        kv.set(b"k", before).unwrap();
        let other = kv.clone();
        clock.interrupt_at(readings, Box::new(move || meanwhile(&other)));
        let outcome = operation(&kv);
        if !clock.has_interrupted() {
            break;
        }
        check(&kv, outcome);
        kv.validate();
        readings += 1;
    }
    assert!(readings >= 3, "the clock was read {readings} times: not between a look-up and its commit");
}

fn with_cas(cas: bool) -> impl Fn() -> KvConfig {
    move || KvConfig { cas, ..KvConfig::default() }
}

#[test]
fn an_append_loses_no_concurrent_store() {
    // The concurrent stores: a value of the same size, a longer value, and an append.
    let stores: [(Operation, &[u8]); 3] = [
        (|kv| kv.set(b"k", b"new").unwrap(), b"new"),
        (|kv| kv.set(b"k", b"longer than before").unwrap(), b"longer than before"),
        (|kv| assert!(kv.append(b"k", b"new").unwrap()), b"oldnew"),
    ];
    for cas in [true, false] {
        // One value is contiguous, the other is stored in several pieces.
        for added in [vec![b'+'; 1], vec![b'+'; 10_000]] {
            for (meanwhile, between) in stores {
                let append = |kv: &Kv| kv.append(b"k", &added).unwrap();
                at_each_reading(with_cas(cas), b"old", meanwhile, append, |kv, is_stored| {
                    assert!(is_stored);
                    assert_eq!(kv.get(b"k").unwrap(), [between, &added].concat());
                });
            }
            let prepend = |kv: &Kv| kv.prepend(b"k", &added).unwrap();
            let set = |kv: &Kv| kv.set(b"k", b"new").unwrap();
            at_each_reading(with_cas(cas), b"old", set, prepend, |kv, is_stored| {
                assert!(is_stored);
                assert_eq!(kv.get(b"k").unwrap(), [&added, &b"new"[..]].concat());
            });
        }
    }
}

#[test]
fn an_increment_loses_no_concurrent_store() {
    // Each concurrent store is followed by the result of the increment. The first store makes the
    // number longer than the one that was looked up; the others change the number in place.
    let stores: [(Operation, u64); 4] = [
        (|kv| kv.set(b"k", b"20").unwrap(), 21),
        (|kv| kv.set(b"k", b"8").unwrap(), 9),
        (|kv| assert_eq!(kv.increment(b"k", 1), Ok(10)), 11),
        (|kv| assert_eq!(kv.decrement(b"k", 5), Ok(4)), 5),
    ];
    for cas in [true, false] {
        for (meanwhile, result) in stores {
            let increment = |kv: &Kv| kv.increment(b"k", 1);
            at_each_reading(with_cas(cas), b"9", meanwhile, increment, |kv, counted| {
                assert_eq!(counted, Ok(result));
                assert_eq!(kv.get(b"k").unwrap(), result.to_string().as_bytes());
            });
        }
    }
}

#[test]
fn an_item_deleted_meanwhile_stays_deleted() {
    let delete = |kv: &Kv| assert!(kv.remove(b"k"));
    let append = |kv: &Kv| kv.append(b"k", b"+").unwrap();
    at_each_reading(KvConfig::default, b"9", delete, append, |kv, is_stored| {
        assert!(!is_stored);
        assert_eq!(kv.get(b"k"), None);
    });
    let increment = |kv: &Kv| kv.increment(b"k", 1);
    at_each_reading(KvConfig::default, b"9", delete, increment, |kv, counted| {
        assert_eq!(counted, Err(CountError::NotFound));
        assert_eq!(kv.get(b"k"), None);
    });
}

#[test]
fn an_expiry_given_meanwhile_stays() {
    let touch = |kv: &Kv| assert!(kv.touch_for(b"k", secs(100)));
    let expiry = |kv: &Kv| kv.peek(b"k", kv.hash(b"k"), |item| item.expiry()).unwrap();
    for evict in [true, false] {
        let config = || KvConfig { evict, ..KvConfig::default() };
        let append = |kv: &Kv| assert!(kv.append(b"k", b"9").unwrap());
        at_each_reading(config, b"9", touch, append, |kv, ()| {
            assert_eq!(kv.get(b"k").unwrap(), b"99");
            assert_eq!(expiry(kv), Expiry::after(FIRST_SECOND, 100));
        });
        let increment = |kv: &Kv| assert_eq!(kv.increment(b"k", 1), Ok(10));
        at_each_reading(config, b"9", touch, increment, |kv, ()| {
            assert_eq!(kv.get(b"k").unwrap(), b"10");
            assert_eq!(expiry(kv), Expiry::after(FIRST_SECOND, 100));
        });
    }
}

/// The pieces of a large value are published after its item is in the index. Another thread may
/// delete the item in between, so that all of a sealed region's bytes are garbage while one of its
/// entries still has a writer.
#[test]
fn a_region_is_not_freed_before_the_last_writer_in_it_has_finished() {
    let (kv, _) = store(4 << 20, 1 << 20);
    let inner = &kv.inner;
    let (piece, _) = inner.log.alloc_piece(&**inner, 20_000, inner.now()).unwrap();
    inner.log.seal_lanes();
    let region = inner.log.arena.region(piece.region);
    inner.log.entry_died(piece.location, piece.bytes, Expiry::NEVER);
    assert_eq!((region.live_bytes(), region.writers()), (0, 1));
    assert_eq!(region.state(), RegionState::Sealed, "its writer has not finished");
    inner.log.publish(piece);
    inner.log.free_if_dead(piece.region);
    assert_eq!(region.state(), RegionState::Free);
    kv.validate();
}
