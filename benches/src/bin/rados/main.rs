//! The main comparison: `cached` in front of a real Ceph, and that Ceph alone, in one run on one
//! machine.
//!
//! Starts a one-node cluster (`deploy/dev/ceph-dev`), measures RADOS alone through `blocker-rados`
//! (and for comparison fio's rados engine and `rados bench`, so that the baseline can be checked),
//! then the same loads through an `ObjectCache` over the same store. Prints a table and draws a
//! plot.
//!
//! ```text
//! cargo run --release --manifest-path benches/Cargo.toml --bin rados              # about 12 minutes
//! cargo run --release --manifest-path benches/Cargo.toml --bin rados -- --quick   # about 3
//! ```

mod ceph;
mod load;
mod plot;
mod synapse;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use blocker::executor::block_on;
use blocker::{Blocker, BlockerExt, FlushRequest, Memory, Scope, SystemClock, WriteMode};
use blocker_rados::{RadosConfig, RadosStore};
use cached_benches::machine::Machine;
use cached_benches::statistics::Spread;
use cached_core::object::{ObjectCache, ObjectCacheConfig};
use clap::Parser;

use load::{Load, OBJECT_BYTES, Outcome};
use plot::Pair;

/// Compare cached over RADOS with RADOS alone.
#[derive(Parser)]
struct Arguments {
    /// Short runs, for a first impression only.
    #[arg(long)]
    quick: bool,
    /// The object store of the OSD: memstore or bluestore.
    #[arg(long, default_value = "bluestore")]
    store: String,
    /// The directory of the cluster's state, which is removed afterwards (default: beside the
    /// build).
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Write the plot here.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Only parts whose name contains this: alone, within, throttled, twice, threads, index, synapse.
    #[arg(long, default_value = "")]
    only: String,
    /// The `synapsed` for the part `synapse` (default: the one beside this program).
    #[arg(long)]
    synapsed: Option<PathBuf>,
    /// The seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A working set that fits into the cache.
const WITHIN_OBJECTS: u64 = 64;
/// Twice the small cache.
const TWICE_OBJECTS: u64 = 128;

struct Bench {
    arguments: Arguments,
    ceph: ceph::Ceph,
    store: Arc<dyn Blocker>,
    pairs: Vec<Pair>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let machine = Machine::read();
    println!("{machine}");
    let default_dir = || {
        let exe = std::env::current_exe().unwrap_or_default();
        exe.parent()
            .map_or_else(std::env::temp_dir, PathBuf::from)
            .join(format!("ceph-{}", std::process::id()))
    };
    let dir = arguments.dir.clone().unwrap_or_else(default_dir);
    let ceph = ceph::Ceph::up(dir, &arguments.store)?;
    let mut config = RadosConfig::new("cached");
    config.conf_file = Some(ceph.conf.clone());
    let rados = Arc::new(RadosStore::open(config)?);
    let start = Instant::now();
    load::preload(&*rados, TWICE_OBJECTS)?;
    println!(
        "ceph 16.2 on {}, preloaded in {:.1} s; seed {}\n",
        arguments.store,
        start.elapsed().as_secs_f64(),
        arguments.seed
    );
    let mut bench = Bench { arguments, ceph, store: Arc::clone(&rados) as _, pairs: Vec::new() };
    bench.run(&machine)?;
    drop(bench);
    // Dropping the last reference closes the connection.
    if let Some(rados) = Arc::into_inner(rados) {
        rados.close(Duration::from_secs(10));
    }
    Ok(())
}

fn line(name: &str, outcome: &Outcome, ratio: Option<f64>, bar: Option<f64>) {
    let ratio_text = ratio.map_or(String::new(), |ratio| format!("{ratio:9.2} x"));
    let verdict = match (ratio, bar) {
        (Some(ratio), Some(bar)) => format!("  bar {bar}: {}", if ratio >= bar { "pass" } else { "MISS" }),
        _ => String::new(),
    };
    println!(
        "{name:<44} {:>10.0} op/s {:>8.1} MiB/s  p50 {:>9.1} p99 {:>9.1} p99.9 {:>9.1} us {ratio_text}{verdict}",
        outcome.ops_per_s,
        outcome.mib_per_s,
        outcome.latency_us(0.5),
        outcome.latency_us(0.99),
        outcome.latency_us(0.999),
    );
}

fn verb(write: bool) -> &'static str {
    if write { "write" } else { "read" }
}

impl Bench {
    fn run(&mut self, machine: &Machine) -> Result<()> {
        type Part = fn(&mut Bench) -> Result<()>;
        let parts: [(&str, Part); 7] = [
            ("alone", Self::alone),
            ("within", Self::within),
            ("throttled", Self::throttled),
            ("twice", Self::twice),
            ("threads", Self::threads),
            // This part precedes `index`: after the objects of `index` have been removed, the OSD
            // is busy for a while.
            ("synapse", Self::synapse),
            ("index", Self::index),
        ];
        for (name, part) in parts {
            if name.contains(&self.arguments.only) {
                println!("--- {name}");
                part(self)?;
                println!();
            }
        }
        if let Some(path) = &self.arguments.svg {
            let title = "Random I/O: cached over RADOS, and RADOS alone";
            let text = plot::draw(title, &format!("{}, {machine}", self.arguments.store), &self.pairs);
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// Returns the duration of a run; shorter with `--quick`.
    fn time(&self, seconds: u64) -> Duration {
        Duration::from_secs(if self.arguments.quick { seconds.div_ceil(5).max(2) } else { seconds })
    }

    fn load(&self, write: bool, block_kib: u64, depth: usize, seconds: u64) -> Load {
        Load {
            write,
            block_bytes: block_kib << 10,
            depth,
            threads: 1,
            objects: WITHIN_OBJECTS,
            skew: None,
            duration: self.time(seconds),
            seed: self.arguments.seed,
        }
    }

    /// Measures RADOS alone with the same load, shortly before or after the run with which it is
    /// compared, because the speed of a shared machine changes within minutes.
    fn alone_like(&self, load: &Load, seconds: u64) -> Result<Outcome> {
        load::run(&self.store, &Load { threads: 1, duration: self.time(seconds), ..*load })
    }

    /// Measures the baseline, and checks that it is fair.
    fn alone(&mut self) -> Result<()> {
        self.ceph.fio_preload(WITHIN_OBJECTS);
        for write in [false, true] {
            let load = self.load(write, 4, 16, 10);
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for _ in 0..3 {
                ours.push(load::run(&self.store, &load)?.ops_per_s);
                theirs.extend(self.ceph.fio(
                    write,
                    load.block_bytes,
                    load.depth,
                    load.objects,
                    load.duration,
                )?);
            }
            if !write {
                // This write provides the data that the next line reads.
                self.ceph.rados_bench(true, load.block_bytes, load.depth, load.duration)?;
            }
            let bench = self.ceph.rados_bench(write, load.block_bytes, load.depth, load.duration)?;
            let ours = Spread::of(ours).context("runs")?;
            println!(
                "{:<44} {:>10.0} op/s ({:.0} to {:.0})",
                format!("blocker-rados, random {} 4 KiB x 16", verb(write)),
                ours.median,
                ours.min,
                ours.max
            );
            match Spread::of(theirs) {
                Some(theirs) => println!(
                    "{:<44} {:>10.0} op/s ({:.0} to {:.0})  ours {:.2} of it, bar 0.8: {}",
                    "fio --ioengine=rados, the same",
                    theirs.median,
                    theirs.min,
                    theirs.max,
                    ours.median / theirs.median,
                    if ours.median >= 0.8 * theirs.median { "pass" } else { "MISS" }
                ),
                None => println!("{:<44}        not installed", "fio --ioengine=rados"),
            }
            println!("{:<44} {bench:>10.0} op/s", "rados bench (whole objects of 4 KiB)");
        }
        for write in [false, true] {
            for block_kib in [4, 16, 64] {
                for depth in [4, 16] {
                    let outcome = load::run(&self.store, &self.load(write, block_kib, depth, 5))?;
                    line(&format!("alone: {} {block_kib} KiB x {depth}", verb(write)), &outcome, None, None);
                }
            }
        }
        Ok(())
    }

    fn cache(&self, config: ObjectCacheConfig) -> Result<ObjectCache> {
        over(Arc::clone(&self.store), config)
    }

    /// Measures a working set that fits into the cache and, for writes, into the dirty limit.
    fn within(&mut self) -> Result<()> {
        for write in [true, false] {
            for (block_kib, depth) in [(4, 16), (4, 4), (16, 16), (64, 16)] {
                let is_headline = (block_kib, depth) == (4, 16);
                let load = self.load(write, block_kib, depth, if is_headline { 60 } else { 10 });
                let alone = self.alone_like(&load, 5)?;
                let cache = self.cache(roomy())?;
                let backend: Arc<dyn Blocker> = Arc::new(cache.clone());
                // One pass over all data fills the cache, so that its hits are measured.
                touch(&backend, &load)?;
                let outcome = load::run(&backend, &load)?;
                let ratio = outcome.ops_per_s / alone.ops_per_s;
                let name = format!("within: {} {block_kib} KiB x {depth}", verb(write));
                let bar = is_headline.then_some(if write { 100.0 } else { 40.0 });
                line(&format!("{name}, RADOS alone"), &alone, None, None);
                line(&name, &outcome, Some(ratio), bar);
                if write {
                    let dirty = cache.counters().dirty_bytes;
                    println!(
                        "{:<44} {:>10.1} s for {} MiB",
                        "  time to drain",
                        drain(&backend)?,
                        dirty >> 20
                    );
                }
                self.pairs.push(Pair { name, alone_ops: alone.ops_per_s, cached_ops: outcome.ops_per_s });
            }
        }
        Ok(())
    }

    /// Measures with a dirty limit below the working set, so that writers are limited by the
    /// flushes.
    fn throttled(&mut self) -> Result<()> {
        let load = self.load(true, 4, 16, 60);
        let alone = self.alone_like(&load, 10)?;
        let config = ObjectCacheConfig { dirty_bytes_max: 128 << 20, ..roomy() };
        let cache = self.cache(config)?;
        let backend: Arc<dyn Blocker> = Arc::new(cache.clone());
        // The loop writes until the dirty limit throttles writes.
        let filling = Load { duration: Duration::from_millis(200), ..load };
        let start = Instant::now();
        while cache.counters().writes_throttled == 0 && start.elapsed() < self.time(60) {
            load::run(&backend, &filling)?;
        }
        let before = cache.counters();
        let outcome = load::run(&backend, &load)?;
        let after = cache.counters();
        line("throttled: write 4 KiB x 16, RADOS alone", &alone, None, None);
        let ratio = outcome.ops_per_s / alone.ops_per_s;
        line("throttled: dirty limit half the set", &outcome, Some(ratio), Some(5.0));
        let requests = after.flush_requests - before.flush_requests;
        let bytes = after.flush_bytes - before.flush_bytes;
        println!(
            "{:<44} {requests} requests of {} KiB each",
            "  flushed meanwhile",
            (bytes >> 10) / requests.max(1)
        );
        drain(&backend)?;
        self.pairs.push(Pair {
            name: "throttled: write 4 KiB x 16".into(),
            alone_ops: alone.ops_per_s,
            cached_ops: outcome.ops_per_s,
        });
        Ok(())
    }

    /// Measures with a working set twice as large as the cache.
    fn twice(&mut self) -> Result<()> {
        let modes =
            [("through", WriteMode::Through), ("back", WriteMode::Back), ("around", WriteMode::Around)];
        for (mode, write_mode) in modes {
            for (write, skew) in [(true, None), (false, None), (false, Some(0.99))] {
                if skew.is_some() && write_mode != WriteMode::Through {
                    continue;
                }
                let mut load = self.load(write, 4, 16, 15);
                load.objects = TWICE_OBJECTS;
                load.skew = skew;
                let alone = self.alone_like(&load, 10)?;
                let config = ObjectCacheConfig {
                    memory_bytes_max: TWICE_OBJECTS * OBJECT_BYTES / 2,
                    dirty_bytes_max: TWICE_OBJECTS * OBJECT_BYTES / 8,
                    write: write_mode,
                    ..ObjectCacheConfig::default()
                };
                let cache = self.cache(config)?;
                let backend: Arc<dyn Blocker> = Arc::new(cache.clone());
                // This run fills the cache.
                load::run(&backend, &Load { block_bytes: 64 << 10, write: false, seed: 7, ..load })?;
                load::run(&backend, &Load { duration: self.time(5), seed: 8, ..load })?;
                let outcome = load::run(&backend, &load)?;
                let ratio = outcome.ops_per_s / alone.ops_per_s;
                let kind = if skew.is_some() { "zipf 0.99" } else { "uniform" };
                let name = format!("twice, write-{mode}: {} {kind}", verb(write));
                line(&name, &outcome, Some(ratio), Some(if skew.is_some() { 1.5 } else { 0.9 }));
                drain(&backend)?;
                self.pairs.push(Pair { name, alone_ops: alone.ops_per_s, cached_ops: outcome.ops_per_s });
            }
        }
        Ok(())
    }

    fn threads(&mut self) -> Result<()> {
        for write in [false, true] {
            let cache = self.cache(roomy())?;
            let backend: Arc<dyn Blocker> = Arc::new(cache.clone());
            let mut one = None;
            for threads in [1, 2, 4] {
                let mut load = self.load(write, 4, 16, 10);
                load.threads = threads;
                touch(&backend, &load)?;
                let outcome = load::run(&backend, &load)?;
                let first = *one.get_or_insert(outcome.ops_per_s);
                line(
                    &format!("hits, {}: {threads} threads", verb(write)),
                    &outcome,
                    Some(outcome.ops_per_s / first),
                    None,
                );
            }
            drain(&backend)?;
        }
        Ok(())
    }

    /// Measures the cost of an index of up to a million objects with one bucket each. The store is
    /// in memory, because only the index matters. Cold means each object's first access; warm means
    /// reads in random order.
    fn index(&mut self) -> Result<()> {
        let steps: &[u32] = if self.arguments.quick { &[128, 256] } else { &[128, 256, 512, 1024] };
        for thousands in steps {
            let count = thousands << 10;
            let config = ObjectCacheConfig {
                memory_bytes_max: (u64::from(count) * 4096).next_power_of_two() * 3 / 2,
                dirty_bytes_max: u64::from(count) * 4096,
                objects_count_max: count + count / 8,
                object_bytes_max: 4096,
                dirty_age_max: Duration::from_secs(3600),
                write: WriteMode::Back,
                ..ObjectCacheConfig::default()
            };
            let cache = over(Arc::new(Memory::default()), config)?;
            let backend: Arc<dyn Blocker> = Arc::new(cache.clone());
            let data = bytes::Bytes::from(vec![1; 4096]);
            let ids: Vec<_> = (0..u64::from(count)).map(load::object).collect();
            let mut cold = load::histogram();
            for id in &ids {
                let begun = Instant::now();
                block_on(backend.write(blocker::WriteRequest::new(id.clone(), 0, data.clone())))?;
                cold.saturating_record(begun.elapsed().as_nanos() as u64);
            }
            let mut warm = load::histogram();
            for step in 0..1_u64 << 19 {
                // An odd multiplier modulo a power of two visits all blocks in an irregular order.
                let at = (step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % u64::from(count);
                let begun = Instant::now();
                block_on(backend.read(blocker::ReadRequest::new(ids[at as usize].clone(), 0, 4096)))?;
                warm.saturating_record(begun.elapsed().as_nanos() as u64);
            }
            println!(
                "index of {count:>8} objects: first write p50 {:>6} p99 {:>7} ns; warm read p50 {:>6} p99 {:>7} ns",
                cold.value_at_quantile(0.5),
                cold.value_at_quantile(0.99),
                warm.value_at_quantile(0.5),
                warm.value_at_quantile(0.99)
            );
        }
        Ok(())
    }
}

/// Returns the configuration of a cache with space for the working set, clean and dirty, that does
/// not flush soon.
fn roomy() -> ObjectCacheConfig {
    ObjectCacheConfig {
        memory_bytes_max: 768 << 20,
        dirty_bytes_max: 512 << 20,
        dirty_age_max: Duration::from_secs(120),
        write: WriteMode::Back,
        ..ObjectCacheConfig::default()
    }
}

fn over(store: Arc<dyn Blocker>, config: ObjectCacheConfig) -> Result<ObjectCache> {
    let (cache, background) = ObjectCache::new(store, config, Arc::new(SystemClock))?;
    std::thread::Builder::new().name("cache".into()).spawn(move || block_on(background))?;
    Ok(cache)
}

/// Touches every block of the load once.
fn touch(backend: &Arc<dyn Blocker>, load: &Load) -> Result<()> {
    let data = bytes::Bytes::from(vec![0x5a; 1 << 20]);
    for index in 0..load.objects {
        for part in 0..OBJECT_BYTES >> 20 {
            let id = load::object(index);
            if load.write {
                block_on(backend.write(blocker::WriteRequest::new(id, part << 20, data.clone())))?;
            } else {
                block_on(backend.read(blocker::ReadRequest::new(id, part << 20, 1 << 20)))?;
            }
        }
    }
    Ok(())
}

/// Flushes everything; returns how long that took.
fn drain(backend: &Arc<dyn Blocker>) -> Result<f64> {
    let start = Instant::now();
    block_on(backend.flush(FlushRequest::new(Scope::All)))?;
    Ok(start.elapsed().as_secs_f64())
}
