//! Counts read-ahead: how much of a load is read in advance, how much of that is used, and how many
//! requests the store gets, compared with the same load without read-ahead.
//!
//! `cargo run --release --manifest-path benches/Cargo.toml --bin readahead [-- --traces DIR]`.
//! Nothing is timed: the background runs to completion after each request, so the results are
//! exactly reproducible.

mod bound;
mod loads;
mod store;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use blocker::{BUCKET_BYTES, Blocker, ReadRequest, WriteMode};
use bound::Bound;
use cached_core::object::{ObjectCache, ObjectCacheConfig};
use clap::Parser;
use loads::{Load, OBJECT_BYTES};
use store::{Counted, Stepped};

#[derive(Parser)]
#[command(about = "Coverage, accuracy and store requests of reading ahead")]
struct Args {
    /// The directory of block traces (`.lis`, plain or `.zst`); without it only synthetic loads run
    #[arg(long)]
    traces: Option<PathBuf>,
    /// The block size of the traces, in bytes
    #[arg(long, default_value_t = 512)]
    block_bytes: u64,
    /// Sizes of the cache in MiB
    #[arg(long, value_delimiter = ',', default_values_t = [8, 32, 64, 128])]
    memory_mib: Vec<u64>,
}

/// The results of a load.
struct Outcome {
    requests: u64,
    store_bytes: u64,
    misses: u64,
    /// The largest possible coverage of a sequence detector.
    bound: f64,
    ahead: u64,
    used: u64,
}

fn run(load: &Load, memory_bytes: u64, read_ahead_bytes_max: u64) -> anyhow::Result<Outcome> {
    let store = Arc::new(Counted::new(load.end_bytes));
    let config = ObjectCacheConfig {
        memory_bytes_max: memory_bytes,
        dirty_bytes_max: memory_bytes / 2,
        objects_count_max: 64 * 1024,
        read_ahead_bytes_max,
        read_ahead_latency_min: Duration::ZERO,
        write: WriteMode::Through,
        hash_seed: Some(1),
        ..ObjectCacheConfig::default()
    };
    let (cache, background) =
        ObjectCache::new(Arc::clone(&store) as _, config, Arc::new(blocker::SystemClock))?;
    let mut background = Stepped::new(background);
    let mut misses = 0;
    let mut bound = Bound::default();
    for (nth, &(start, len)) in (0..).zip(&load.requests) {
        let (mut at, end) = (start, start + len);
        while at < end {
            let within = at % OBJECT_BYTES;
            let part = (end - at).min(OBJECT_BYTES - within);
            let before = store.bytes();
            let read = cache.read(ReadRequest::new(loads::object(at / OBJECT_BYTES), within, part));
            background.finish(read)?;
            let missed = (store.bytes() - before) / BUCKET_BYTES;
            misses += missed;
            if missed > 0 {
                bound.miss(nth, at / BUCKET_BYTES, (at + part).div_ceil(BUCKET_BYTES), missed);
            }
            background.run();
            at += part;
        }
    }
    let counters = cache.counters();
    Ok(Outcome {
        requests: store.requests(),
        store_bytes: store.bytes(),
        misses,
        bound: bound.coverage(),
        ahead: counters.read_ahead_bytes / BUCKET_BYTES,
        used: counters.read_ahead_used_bytes / BUCKET_BYTES,
    })
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut all = loads::made_up();
    match &args.traces {
        Some(directory) => {
            let traces = loads::traces(directory, args.block_bytes)?;
            anyhow::ensure!(!traces.is_empty(), "no traces (.lis) in {}", directory.display());
            all.extend(traces);
        }
        None => eprintln!("SKIPPED: traces; --traces DIR names their directory"),
    }
    println!(
        "| load | cache | requests without | with | ratio | bytes | coverage | at most | accuracy | buckets ahead |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for load in &all {
        for mib in &args.memory_mib {
            let without = run(load, mib << 20, 0)?;
            let with = run(load, mib << 20, 1 << 20)?;
            let share = |part: u64, of: u64| match of {
                0 => "–".to_owned(),
                of => format!("{:.2}", part as f64 / of as f64),
            };
            println!(
                "| {} | {mib} MiB | {} | {} | {:.3} | {:.2} | {} | {:.2} | {} | {} |",
                load.name,
                without.requests,
                with.requests,
                with.requests as f64 / without.requests as f64,
                with.store_bytes as f64 / without.store_bytes as f64,
                share(with.used, with.used + with.misses),
                without.bound,
                share(with.used, with.ahead),
                with.ahead,
            );
        }
    }
    Ok(())
}
