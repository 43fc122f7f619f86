//! Items and objects that share memory: the hit rates of a load that moves from items to objects
//! and back, compared with those of the best fixed split for each phase.
//!
//! `cargo run --release --manifest-path benches/Cargo.toml --bin arbiter`. Nothing is timed, and
//! the arbiter is stepped between requests, so results are reproducible except for the timing of
//! the object cache's background.
//!
//! A *turnover* means that as many bytes as the whole memory have been stored after misses.

mod halves;

use cached_benches::figure::Figure;
use cached_core::arbiter::Half;
use clap::Parser;
use halves::{Halves, Load};

#[derive(Parser)]
#[command(about = "Hits of items and objects that share memory, beside the best fixed split")]
struct Args {
    /// The total memory in MiB
    #[arg(long, default_value_t = 64)]
    memory_mib: u64,
    /// Requests over which hits are counted
    #[arg(long, default_value_t = 400_000)]
    requests: u64,
    /// The exponent of the Zipf distribution of items and objects
    #[arg(long, default_value_t = 0.9)]
    exponent: f64,
}

/// The phases: the percentage of requests for items.
const PHASES: [u64; 3] = [90, 10, 90];
/// The number of parts into which fixed splits divide the memory. The arbiter's minimum for each
/// half is one part.
const EIGHTHS: u64 = 8;
/// The number of turnovers after which hits count.
const TURNOVERS: f64 = 2.0;

fn print(name: &str, value: f64, unit: &str) {
    println!("{}", Figure::new(name, value, unit));
}

/// Returns the hit rate of each fixed split in a phase once memory is full and stable, and then the
/// best split.
fn best_fixed(args: &Args, items_of_100: u64) -> anyhow::Result<(f64, u64)> {
    let memory = args.memory_mib << 20;
    let mut best = (0.0, 0);
    for eighths in 1..EIGHTHS {
        let mut halves = Halves::fixed(memory, memory / EIGHTHS * eighths)?;
        let mut load = Load::new(memory, args.exponent);
        halves.run_turnovers(&mut load, items_of_100, TURNOVERS + 1.0)?;
        let hits = halves.run(&mut load, items_of_100, args.requests)?;
        print(&format!("{items_of_100} % items, {eighths}/8 of the memory for them: hits"), hits, "");
        if hits > best.0 {
            best = (hits, eighths);
        }
    }
    Ok(best)
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let memory = args.memory_mib << 20;
    let best = [best_fixed(&args, PHASES[0])?, best_fixed(&args, PHASES[1])?];
    let mut halves = Halves::shared(memory)?;
    let mut load = Load::new(memory, args.exponent);
    for (number, items_of_100) in PHASES.into_iter().enumerate() {
        let (wanted, eighths) = best[number % 2];
        let name = |what: &str| format!("phase {}, {items_of_100} % items: {what}", number + 1);
        // At the beginning of the first phase the memory is empty.
        let first = if number == 0 { 1.0 } else { 0.0 };
        halves.run_turnovers(&mut load, items_of_100, TURNOVERS + first)?;
        print(&name("items' share of the memory after two turnovers"), halves.share(Half::Items), "");
        let hits = halves.run(&mut load, items_of_100, args.requests)?;
        print(&name("hits after two turnovers"), hits, "");
        print(&name(&format!("of those of the best fixed split, {eighths}/8")), hits / wanted, "");
        print(&name("memory moved since the start"), halves.moved_bytes() as f64 / f64::from(1 << 20), "MiB");
    }
    Ok(())
}
