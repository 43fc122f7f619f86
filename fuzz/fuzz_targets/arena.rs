//! Memory files with arbitrary changes: opening one never panics, and gives a consistent, working
//! store.
//!
//! The input is a list of changes (position, byte) to the file of a killed store.
#![no_main]

use cached_core::arena::ArenaFile;
use cached_core::clock::TickClock;
use cached_core::kv::{Kv, KvConfig};
use libfuzzer_sys::fuzz_target;
use std::path::Path;
use std::sync::{Arc, OnceLock};

fn open(path: &Path) -> Kv {
    let file = ArenaFile::open(path).expect("a file of our own");
    let clock = Arc::new(TickClock::starting_at(file.resume_secs()));
    Kv::new(KvConfig {
        arena_bytes: 1 << 20,
        item_bytes_max: 128 << 10,
        clock,
        file: Some(file),
        ..KvConfig::default()
    })
    .expect("a store")
}

/// Returns the file of a killed store.
fn killed() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("memory");
        let kv = open(&path);
        for n in 0..300u32 {
            kv.set(&n.to_le_bytes(), &vec![n as u8; n as usize]).expect("room");
            if n % 30 == 0 {
                kv.set(format!("large {n}").as_bytes(), &vec![7; 6_000 + 10 * n as usize]).expect("room");
            }
            if n % 3 == 0 {
                kv.remove(&(n / 2).to_le_bytes());
            }
        }
        std::fs::read(&path).expect("the file")
    })
}

fuzz_target!(|data: &[u8]| {
    let mut bytes = killed().to_vec();
    // Everything may be damaged except the identity, whose checksum detects every change.
    let (first, places) = (1024, bytes.len() - 1024);
    for change in data.chunks_exact(4) {
        let at = usize::from(change[0]) | usize::from(change[1]) << 8 | usize::from(change[2]) << 16;
        bytes[first + at % places] = change[3];
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("memory");
    std::fs::write(&path, &bytes).expect("room");
    let kv = open(&path);
    kv.validate();
    for (key, value) in kv.iter() {
        assert_eq!(kv.get(&key), Some(value));
    }
    for n in 0..2_000u32 {
        kv.set(&n.to_le_bytes(), &[1; 600]).expect("room by eviction");
    }
    kv.validate();
});
