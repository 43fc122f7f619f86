//! Counts a volume's requests to the cache below it.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use blocker::executor::block_on;
use blocker::{Blocker, Durability, Measured, Memory, SystemClock, WriteMode};
use cached_core::object::{ObjectCache, ObjectCacheConfig};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use volumes::{OpenOptions, Options, Settings, Volumes};

use crate::{Bar, print};

const DISK_BYTES: u64 = 256 << 20;
const WRITES: u64 = 100_000;
/// The number of writes between two flushes.
const BETWEEN: u64 = 100;

pub(crate) fn run() -> Result<()> {
    let config = ObjectCacheConfig {
        memory_bytes_max: DISK_BYTES * 3,
        dirty_bytes_max: DISK_BYTES * 2,
        dirty_age_max: Duration::from_secs(3600),
        write: WriteMode::Back,
        ..ObjectCacheConfig::default()
    };
    let (cache, background) = ObjectCache::new(Arc::new(Memory::default()), config, Arc::new(SystemClock))?;
    thread::Builder::new().name("cache".into()).spawn(move || block_on(background))?;
    let measured = Measured::new(cache.into(), "cache", Arc::new(SystemClock));
    let measurements = measured.measurements();
    let volumes = Volumes::new(Arc::new(measured) as Arc<dyn Blocker>, Options::new("bench"))?;
    let count = |is_wanted: &dyn Fn(&str) -> bool| {
        let all = measurements.operations();
        all.iter().filter(|one| is_wanted(one.name)).map(|one| one.latency.count()).sum::<u64>()
    };
    let counted = block_on(async {
        volumes.create("disk", DISK_BYTES, Settings::default()).await?;
        let disk = volumes.open("disk", OpenOptions::default()).await?;
        let full = vec![0x5a; 4 << 20];
        for offset in (0..DISK_BYTES).step_by(full.len()) {
            disk.write(offset, full.clone().into(), Durability::Cached).await?;
        }
        disk.flush().await?;
        let all = || (count(&|_| true), count(&|name| name == "write"), count(&|name| name == "flush"));
        let before = all();
        let mut random = SmallRng::seed_from_u64(1);
        for number in 1..=WRITES {
            let offset = random.random_range(0..DISK_BYTES >> 12) << 12;
            disk.write(offset, vec![1; 4096].into(), Durability::Cached).await?;
            if number % BETWEEN == 0 {
                disk.flush().await?;
            }
        }
        let after = all();
        disk.close().await?;
        Ok::<_, volumes::Error>((after.0 - before.0, after.1 - before.1, after.2 - before.2))
    })?;
    let (all, writes, flushes) = counted;
    let beyond = all as f64 - WRITES as f64 - (WRITES / BETWEEN) as f64;
    print("operations: writes asked of the cache, per write", writes as f64 / WRITES as f64, "", None);
    print("operations: flushes asked of it, per flush", flushes as f64 / (WRITES / BETWEEN) as f64, "", None);
    print("operations: beyond these, per write", beyond / WRITES as f64, "", Some(Bar::AtMost(0.0)));
    Ok(())
}
