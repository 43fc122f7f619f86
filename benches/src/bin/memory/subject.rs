//! A server program, and the operations that every part needs: start, fill, count, and measure
//! memory.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cached_benches::keyspace::{KeySpace, ValueBytes, Verify};
use cached_benches::load::{self, EXPIRY_NEVER, Expiry, LoadReport, LoadSpec};
use cached_benches::process::Resident;
use cached_benches::server::{Server, ServerSpec};

/// Length of every key.
pub(crate) const KEY_BYTES: usize = 20;
/// Memory counts as stable if it has changed by less than this share within [`SETTLE_STEP`].
const SETTLED_SHARE: f64 = 0.001;
const SETTLE_STEP: Duration = Duration::from_millis(500);
/// The longest wait for that.
const SETTLE_LIMIT: Duration = Duration::from_secs(15);

/// A server program.
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) version: String,
    program: PathBuf,
}

impl Subject {
    pub(crate) fn new(name: &str, program: &Path) -> Result<Self> {
        let version = ServerSpec::new(name, program).start()?.client()?.version()?;
        Ok(Self { name: name.to_owned(), version, program: program.to_owned() })
    }

    /// Starts a new server.
    pub(crate) fn start(&self, memory_mib: usize, item_bytes_max: Option<usize>) -> Result<Server> {
        ServerSpec { memory_mib, item_bytes_max, ..ServerSpec::new(&self.name, &self.program) }.start()
    }
}

/// Returns the keys `first..first + count`, with values of one size.
pub(crate) fn keys(first: u64, count: u64, value_bytes: usize) -> Result<KeySpace> {
    KeySpace::new(first, count, KEY_BYTES, ValueBytes::fixed(value_bytes), 0)
}

/// Sets all keys once.
pub(crate) fn store(server: &Server, keys: KeySpace, expiry: Option<Expiry>) -> Result<LoadReport> {
    let expiry = expiry.unwrap_or(EXPIRY_NEVER);
    load::store_all(&LoadSpec { expiry, ..LoadSpec::new(server.target(), keys) })
        .with_context(|| format!("filling {}", server.name()))
}

/// Returns how many of the keys are found with their complete values.
pub(crate) fn count_held(server: &Server, keys: KeySpace) -> Result<u64> {
    let spec = LoadSpec { verify: Verify::Full, ..LoadSpec::new(server.target(), keys) };
    Ok(load::read_all(&spec).with_context(|| format!("reading {} back", server.name()))?.hits)
}

/// Returns the resident memory once it is stable: servers grow their tables in the background.
pub(crate) fn resident_settled(server: &Server) -> Result<u64> {
    let start = Instant::now();
    let mut before = Resident::of(server.pid())?.bytes;
    loop {
        thread::sleep(SETTLE_STEP);
        let now = Resident::of(server.pid())?.bytes;
        if (now as f64 / before as f64 - 1.0).abs() < SETTLED_SHARE || start.elapsed() > SETTLE_LIMIT {
            return Ok(now);
        }
        before = now;
    }
}
