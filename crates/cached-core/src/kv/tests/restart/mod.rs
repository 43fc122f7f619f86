//! Restarts: what a store takes over from an earlier process.

mod basics;
mod bytes;
mod hand_over;
mod pairs;
mod points;

use crate::arena::{ArenaFile, test_time};
use crate::clock::{Clock, Expiry, TickClock};
use crate::kv::{Kv, KvConfig};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// The Unix time at which the clocks of these tests show 0.
const ZERO_UNIX_SECS: u64 = 1_700_000_000;

/// A directory of memory files.
pub(in crate::kv::tests) struct Lab {
    directory: TempDir,
    files: Cell<u32>,
}

impl Lab {
    pub(in crate::kv::tests) fn new() -> Lab {
        Lab { directory: tempfile::tempdir().unwrap(), files: Cell::new(0) }
    }

    /// Returns the path of a file that does not exist yet.
    pub(in crate::kv::tests) fn path(&self) -> PathBuf {
        self.files.set(self.files.get() + 1);
        self.directory.path().join(self.files.get().to_string())
    }

    /// Copies the store's memory at this moment, as a killed process would leave it, to a new file.
    pub(in crate::kv::tests) fn copy(&self, kv: &Kv) -> PathBuf {
        let path = self.path();
        copy_file(kv.memory_file().unwrap(), &path);
        path
    }
}

fn copy_file(from: &Path, to: &Path) {
    // `fs::copy` is not used, because it may wait until the file has been written to the disk.
    std::fs::write(to, std::fs::read(from).unwrap()).unwrap();
}

/// Opens a store in a file. Its clock continues like the wall clock.
pub(in crate::kv::tests) fn open_with(path: &Path, config: KvConfig) -> (Kv, Arc<TickClock>) {
    let file = ArenaFile::open(path).unwrap();
    let clock = Arc::new(TickClock::starting_at(file.resume_secs()));
    let kv = Kv::new(KvConfig { clock: clock.clone(), file: Some(file), ..config }).unwrap();
    (kv, clock)
}

/// Sets the wall clock to the time of the store's clock.
pub(in crate::kv::tests) fn set_wall_clock(clock: &TickClock) {
    test_time::set(ZERO_UNIX_SECS + u64::from(clock.now_secs()));
}

/// Returns a small store: 16 regions of 64 KiB.
fn small() -> KvConfig {
    KvConfig {
        arena_bytes: 1 << 20,
        item_bytes_max: 256 << 10,
        region_bytes: Some(64 << 10),
        lanes: 1,
        ..KvConfig::default()
    }
}

fn open(path: &Path) -> (Kv, Arc<TickClock>) {
    open_with(path, small())
}

/// The properties of an item that a client can see.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    value: Vec<u8>,
    client_flags: u32,
    expiry: Expiry,
    cas: u64,
    stale: bool,
}

type State = BTreeMap<Vec<u8>, Seen>;

/// All items of a store.
fn state(kv: &Kv) -> State {
    let mut state = State::new();
    let mut cursor = Some(crate::kv::ScanCursor::default());
    while let Some(at) = cursor {
        cursor = kv.scan(at, |item| {
            let seen = Seen {
                value: item.to_vec(),
                client_flags: item.client_flags(),
                expiry: item.expiry(),
                cas: item.cas(),
                stale: item.stale(),
            };
            assert!(state.insert(item.key().to_vec(), seen).is_none(), "a key twice in the index");
        });
    }
    state
}
