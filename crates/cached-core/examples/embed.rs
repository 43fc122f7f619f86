//! The store inside another program: `cargo run --release -p cached-core --example embed`.
//!
//! Threads share one handle, and a hook counts the evicted items.

use cached_core::kv::{CasError, Change, ChangeHook, Kv, KvConfig, NewValue};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Default)]
struct CountEvictions(AtomicU64);

impl ChangeHook for CountEvictions {
    fn on_change(&self, change: Change, _key: &[u8], _version: u64) {
        if change == Change::Evicted {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let evictions = Arc::new(CountEvictions::default());
    let kv = Kv::new(KvConfig {
        arena_bytes: 16 << 20,
        change_hook: Some(evictions.clone()),
        ..KvConfig::default()
    })?;

    // Values, expiries and counters.
    kv.set(b"greeting", b"hello")?;
    kv.append(b"greeting", b", world")?;
    assert_eq!(kv.get(b"greeting").as_deref(), Some(&b"hello, world"[..]));
    kv.set_for(b"session:42", b"{}", Duration::from_secs(300))?;
    kv.set(b"visits", b"0")?;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    kv.increment(b"visits", 1).expect("it is a number");
                }
            });
        }
    });
    assert_eq!(kv.increment(b"visits", 0)?, 2000);

    // A value that is created on a miss: of the threads that request it simultaneously, one creates
    // it and the others wait.
    let page = kv.get_or_insert_with(b"page:home", || {
        NewValue::new("<html>an expensive page</html>").ttl(Duration::from_secs(60))
    });
    assert_eq!(kv.get(b"page:home"), Some(page));

    // An optimistic change: reads the value with its CAS value, and stores the new value only if no
    // other thread has stored in the meantime.
    let (_, cas) = kv.get_with_cas(b"greeting").expect("set above");
    kv.compare_and_set(b"greeting", b"bonjour", cas)?;
    assert_eq!(kv.compare_and_set(b"greeting", b"too late", cas), Err(CasError::Changed));

    // If the data exceed the memory, the eviction policy keeps items that are read again, and
    // evicts the others.
    for n in 0..200_000u32 {
        kv.set(&n.to_le_bytes(), &[0; 100])?;
        kv.get(b"greeting");
    }
    assert!(kv.keys().count() as u64 >= kv.stats().items);
    let stats = kv.stats();
    println!(
        "{} items in {} bytes of memory, {} evicted (the hook counted {})",
        stats.items,
        stats.arena_bytes,
        stats.evictions,
        evictions.0.load(Ordering::Relaxed)
    );
    assert_eq!(kv.get(b"greeting").as_deref(), Some(&b"bonjour"[..]), "it was read all the time");
    Ok(())
}
