//! A cache with a journal: the CPU time of a journaled write, and its rate compared with
//! write-through over RADOS.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use blocker::executor::block_on;
use blocker::{Blocker, Durability, FlushRequest, Memory, Scope, WriteMode};
use blocker_rados::{RadosConfig, RadosStore};
use cached_core::object::{JournalOptions, ObjectCache, ObjectCacheConfig, OpenJournal, Writer};
use cached_journal::JournalConfig;

use crate::disk::{BLOCK_BYTES, Ideal};
use crate::load::{self, Load};
use crate::{Arguments, measure, median, verdict};

const OBJECTS: u64 = 8;

fn config(write: WriteMode, durability: Durability) -> ObjectCacheConfig {
    ObjectCacheConfig {
        // Nothing is stored while a part of the benchmark runs, so the figures are those of the
        // journal alone.
        memory_bytes_max: 2 << 30,
        dirty_bytes_max: 768 << 20,
        dirty_age_max: Duration::from_secs(86_400),
        writer: Writer::Cache,
        write,
        durability,
        ..ObjectCacheConfig::default()
    }
}

/// Returns a cache over `store`, with a journal if acknowledgements are to be journaled.
pub(crate) fn cache(
    store: Arc<dyn Blocker>,
    write: WriteMode,
    journal: Option<&JournalConfig>,
) -> Result<ObjectCache> {
    let durability = if journal.is_some() { Durability::Journaled } else { Durability::Cached };
    let mut builder = ObjectCache::builder(store).config(config(write, durability));
    if let Some(journal) = journal {
        builder = builder.journal(OpenJournal::open(journal)?, JournalOptions::default());
    }
    let cache = builder.start()?;
    block_on(cache.begin_recovery())?;
    Ok(cache)
}

fn journal_config(dir: &Path) -> Result<JournalConfig> {
    let config = JournalConfig { limit_bytes: 2 << 30, ..JournalConfig::new(dir) };
    // The file is zeroed in advance, so that this time is not charged to the writers.
    crate::commit::ready(&config)?.close().map_err(|error| anyhow!("{error}"))?;
    Ok(config)
}

fn load(depth: usize, arguments: &Arguments) -> Load {
    Load {
        write: true,
        block_bytes: BLOCK_BYTES as u64,
        depth,
        threads: arguments.threads.min(depth),
        objects: OBJECTS,
        skew: None,
        duration: arguments.seconds,
        seed: 1,
    }
}

pub(crate) fn cpu(arguments: &Arguments, dir: &Path) -> Result<()> {
    let ideal = Ideal::new(dir)?;
    let journal = journal_config(&dir.join("cpu"))?;
    for writers in [16, 64] {
        cpu_of(writers, arguments, &ideal, &journal)?;
    }
    Ok(())
}

fn cpu_of(writers: usize, arguments: &Arguments, ideal: &Ideal, journal: &JournalConfig) -> Result<()> {
    let (mut alone, mut by_parts) = (vec![], vec![]);
    for _ in 0..arguments.rounds {
        let cached_store: Arc<dyn Blocker> = Arc::new(Memory::default());
        load::preload(&*cached_store, OBJECTS)?;
        let cached: Arc<dyn Blocker> = cache(cached_store, WriteMode::Back, None)?.into();
        let store: Arc<dyn Blocker> = Arc::new(Memory::default());
        load::preload(&*store, OBJECTS)?;
        let journaled = cache(store, WriteMode::Back, Some(journal))?;
        let logged: Arc<dyn Blocker> = journaled.clone().into();
        let rate = |cache: &Arc<dyn Blocker>| {
            measure(|| {
                let outcome = load::run(cache, &load(writers, arguments))?;
                Ok((outcome.ops_per_s * arguments.seconds.as_secs_f64()) as u64)
            })
        };
        let (cached_rate, cached_cpu) = rate(&cached)?;
        let (logged_rate, logged_cpu) = rate(&logged)?;
        let (_, write_cpu) = measure(|| ideal.run(writers, arguments.seconds))?;
        let crc_cpu = crc_seconds();
        println!(
            "cached {:.2} us at {cached_rate:.0}/s, CRC {:.2} us, its share of a write of {writers} {:.2} us; journaled \
             {:.2} us at {logged_rate:.0}/s",
            cached_cpu * 1e6,
            crc_cpu * 1e6,
            write_cpu * 1e6,
            logged_cpu * 1e6
        );
        alone.push(logged_cpu / cached_cpu);
        by_parts.push(logged_cpu / (cached_cpu + crc_cpu + write_cpu));
        block_on(logged.flush(FlushRequest::new(Scope::All)))?;
        // The next round opens the journal again.
        block_on(journaled.close_journal())?;
    }
    println!("{writers} writers: CPU of a journaled 4 KiB / of a cached one: {:.2}", median(alone));
    let name = format!("CPU of a journaled 4 KiB / (cached + CRC + write), {writers} writers");
    verdict(&name, median(by_parts), 1.5, false);
    Ok(())
}

/// Returns the time that the checksum of a block takes if its bytes are in the CPU cache.
fn crc_seconds() -> f64 {
    const ROUNDS: u32 = 100_000;
    let block = [7_u8; BLOCK_BYTES];
    let begun = Instant::now();
    let sum = (0..ROUNDS).fold(0, |sum, _| sum ^ crc32fast::hash(std::hint::black_box(&block)));
    std::hint::black_box(sum);
    begun.elapsed().as_secs_f64() / f64::from(ROUNDS)
}

pub(crate) fn rados(arguments: &Arguments, dir: &Path) -> Result<()> {
    let ceph = crate::ceph::Ceph::up(dir.join("ceph"), "bluestore")?;
    let mut rados_config = RadosConfig::new("cached");
    rados_config.conf_file = Some(ceph.conf.clone());
    let store = Arc::new(RadosStore::open(rados_config)?);
    load::preload(&*store, OBJECTS)?;
    let journal = journal_config(&dir.join("rados"))?;
    let mut ratios = vec![];
    for _ in 0..arguments.rounds {
        // The runs follow each other, because each cache claims the namespaces that it writes.
        let outcome_of = |write, journal: Option<&JournalConfig>| {
            let cache = cache(Arc::clone(&store) as _, write, journal)?;
            let blocker: Arc<dyn Blocker> = cache.clone().into();
            let outcome = load::run(&blocker, &load(16, arguments))?;
            block_on(cache.flush(FlushRequest::new(Scope::All))).context("the flush at the end")?;
            anyhow::Ok(outcome)
        };
        let through = outcome_of(WriteMode::Through, None)?;
        let journaled = outcome_of(WriteMode::Back, Some(&journal))?;
        println!(
            "write-through {:.0}/s, p50 {:.0} us; journaled {:.0}/s, p50 {:.0} us",
            through.ops_per_s,
            through.latency_us(0.5),
            journaled.ops_per_s,
            journaled.latency_us(0.5)
        );
        ratios.push(journaled.ops_per_s / through.ops_per_s);
    }
    verdict("journaled / write-through over RADOS, 16 writers of 4 KiB", median(ratios), 10.0, true);
    if let Some(store) = Arc::into_inner(store) {
        store.close(Duration::from_secs(10));
    }
    Ok(())
}
