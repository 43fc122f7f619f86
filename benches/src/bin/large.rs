//! Compares values of 1 MiB with values of 1 GiB, in process and after churn: does a value in a
//! thousand pieces cost more per byte?
//!
//! `cargo run --release --manifest-path benches/Cargo.toml --bin large`. The store is first filled
//! with values of mixed sizes several times over, so that free memory is fragmented. Then values of
//! each size are stored and read (copied out piece by piece), the same number of bytes each time,
//! in rounds that alternate between the sizes; the median of the rounds is printed.

use cached_core::kv::{Kv, KvConfig};
use clap::Parser;
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(about = "Throughput of large values, by size, after churn")]
struct Args {
    /// Memory of the store, MiB; at least 2100
    #[arg(long, default_value_t = 3072, value_parser = clap::value_parser!(u64).range(2100..=1_000_000))]
    arena_mib: u64,
    /// Rounds; the median is printed
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
}

const MIB: usize = 1 << 20;
/// Bytes moved per size and round.
const ROUND_BYTES: usize = 1 << 30;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let kv = Kv::new(KvConfig {
        arena_bytes: usize::try_from(args.arena_mib)? * MIB,
        item_bytes_max: 1 << 30,
        ..KvConfig::default()
    })?;
    churn(&kv)?;
    // The sizes are slightly below round numbers, because the key counts towards the size too.
    let sizes = [MIB - 64, 16 * MIB - 64, 256 * MIB - 64, 1024 * MIB - 64];
    let value = vec![7u8; sizes[sizes.len() - 1]];
    let mut into = vec![0u8; MIB];
    let mut spans = vec![(Vec::new(), Vec::new()); sizes.len()];
    for _ in 0..args.rounds {
        for (size, (sets, gets)) in sizes.iter().zip(&mut spans) {
            sets.push(store(&kv, *size, &value)?);
            gets.push(fetch(&kv, *size, &mut into)?);
        }
    }
    let rate = |span: Duration| ROUND_BYTES as f64 / span.as_secs_f64() / 1e9;
    let base = (rate(median(&mut spans[0].0.clone())), rate(median(&mut spans[0].1.clone())));
    for (size, (mut sets, mut gets)) in sizes.iter().zip(spans) {
        let (set, get) = (rate(median(&mut sets)), rate(median(&mut gets)));
        println!(
            "{:>5} MiB values after churn: set {set:.2} GB/s ({:.2} x that of 1 MiB), get {get:.2} GB/s ({:.2} x)",
            size.div_ceil(MIB),
            set / base.0,
            get / base.1
        );
    }
    Ok(())
}

/// Stores three times the arena's size in values of 0 to 200 kB, and deletes a third of them.
fn churn(kv: &Kv) -> Result<(), Box<dyn std::error::Error>> {
    let bytes = kv.limits().arena_bytes * 3;
    let value = vec![1u8; 200_000];
    let (mut stored, mut n) = (0, 0u64);
    while stored < bytes {
        let size = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % value.len();
        kv.set(&n.to_le_bytes(), &value[..size])?;
        stored += size;
        if n % 3 == 0 {
            kv.remove(&(n / 2).to_le_bytes());
        }
        n += 1;
    }
    Ok(())
}

fn names(size: usize) -> impl Iterator<Item = String> {
    (0..ROUND_BYTES / (size + 64)).map(move |n| format!("large-{size}-{n}"))
}

/// For every size, each round reads the same gigabyte of source data: a value that stays in the CPU
/// cache would make small sizes look faster.
fn store(kv: &Kv, size: usize, source: &[u8]) -> Result<Duration, Box<dyn std::error::Error>> {
    let start = Instant::now();
    for (name, value) in names(size).zip(source.chunks(size)) {
        kv.set(name.as_bytes(), value)?;
    }
    Ok(start.elapsed())
}

fn fetch(kv: &Kv, size: usize, into: &mut [u8]) -> Result<Duration, Box<dyn std::error::Error>> {
    let start = Instant::now();
    for name in names(size) {
        let pin = kv
            .read(name.as_bytes(), kv.hash(name.as_bytes()), |item| item.pin())
            .map_err(|miss| format!("{name} was just stored, and yet: {miss:?}"))?;
        for chunk in pin.chunks() {
            into[..chunk.len()].copy_from_slice(chunk);
            std::hint::black_box(&into);
        }
    }
    Ok(start.elapsed())
}

fn median(spans: &mut [Duration]) -> Duration {
    spans.sort_unstable();
    spans[spans.len() / 2]
}
