//! Compares the embedded store, `cached_core::kv::Kv`, with quick_cache, moka and foyer in the same
//! run.
//!
//! `cargo bench --manifest-path benches/Cargo.toml --bench library [-- key8_value64]` prints, for
//! items of 8 + 64 and 20 + 100 bytes:
//!
//! - time per operation on one thread and on two, measured through criterion, with the ratio to
//!   quick_cache;
//! - the share of gets that hit, for the same requests: a cache that misses more also stores more;
//! - resident bytes per item held.
//!
//! The load (`load.rs`) uses keys from a Zipf distribution with exponent 1 over a million keys,
//! nine gets per set, and space for a hundred thousand items; after a miss the caller stores the
//! value. Every value read is checked against its key. Times are CPU time of the threads, so that
//! other work on the machine does not count; `CACHED_LIBRARY_WALL=1` measures by the wall clock,
//! which also counts waiting for locks.
//!
//! With `CACHED_LIBRARY_THREADS=1,2,4,8,16`, the bench instead prints how the rate grows with the
//! number of threads (`scaling.rs`).

mod load;
mod memory;
mod scaling;
mod subject;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cached_benches::machine::Machine;
use cached_benches::statistics::Spread;
use criterion::Criterion;

use load::{Items, Load, TimedBy};
use subject::{FoyerBorrow, KvBorrow, KvCopy, MokaBorrow, MokaCopy, QuickBorrow, QuickCopy, Subject};

/// Requests that fill a cache and let its policy stabilise before anything is measured.
const SETTLE_OPS: usize = 4_000_000;
/// Requests over which hits are counted.
const COUNTED_OPS: usize = 4_000_000;

/// The measurements of one subject.
struct Row {
    name: &'static str,
    kind: Kind,
    /// Nanoseconds per operation with one thread and with two.
    times: [Spread; 2],
    hit_share: f64,
    entry_bytes: f64,
}

/// The way in which a get returns the value. Only equal ways are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A copy of the value, owned by the caller.
    Copy,
    /// The value in place (or shared by a reference count).
    Borrow,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("library: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    if let Some(result) = memory::child() {
        return result;
    }
    let timed_by =
        if std::env::var_os("CACHED_LIBRARY_WALL").is_some() { TimedBy::Wall } else { TimedBy::ThreadCpu };
    println!("{}; times by {timed_by:?}", Machine::read());
    if let Some(threads) = std::env::var_os("CACHED_LIBRARY_THREADS") {
        return scaling::run(&threads.to_string_lossy());
    }
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(3))
        .sample_size(20)
        .without_plots()
        .configure_from_args();
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    if let Some(wanted) = &wanted
        && !Items::ALL.iter().any(|items| items.name().contains(wanted.as_str()))
    {
        bail!("the one filter there is chooses items: {}", Items::ALL.map(Items::name).join(" or "));
    }
    for items in Items::ALL {
        if wanted.as_ref().is_some_and(|wanted| !items.name().contains(wanted.as_str())) {
            continue;
        }
        let load = Load::new(items);
        let rows = [
            measure::<KvCopy<false>>(&mut criterion, &load, Kind::Copy, timed_by)?,
            measure::<KvCopy<true>>(&mut criterion, &load, Kind::Copy, timed_by)?,
            measure::<QuickCopy>(&mut criterion, &load, Kind::Copy, timed_by)?,
            measure::<MokaCopy>(&mut criterion, &load, Kind::Copy, timed_by)?,
            measure::<KvBorrow<false>>(&mut criterion, &load, Kind::Borrow, timed_by)?,
            measure::<KvBorrow<true>>(&mut criterion, &load, Kind::Borrow, timed_by)?,
            measure::<QuickBorrow>(&mut criterion, &load, Kind::Borrow, timed_by)?,
            measure::<MokaBorrow>(&mut criterion, &load, Kind::Borrow, timed_by)?,
            measure::<FoyerBorrow>(&mut criterion, &load, Kind::Borrow, timed_by)?,
        ];
        print_table(items, &rows)?;
    }
    Ok(())
}

fn measure<S: Subject>(criterion: &mut Criterion, load: &Load, kind: Kind, timed_by: TimedBy) -> Result<Row> {
    let room = S::room(load)?;
    let subject = S::new(load.items, room)?;
    load.run(&subject, 0, SETTLE_OPS)?;
    let hit_share = load.run(&subject, SETTLE_OPS, COUNTED_OPS)?.hit_share();
    let held = subject.entries();
    if !(95_000..=105_000).contains(&held) {
        bail!("{} holds {held} items where a hundred thousand are to be compared", S::NAME);
    }
    let mut group = criterion.benchmark_group(load.items.name());
    let mut times = Vec::new();
    for threads in [1, 2] {
        let mut samples = Vec::new();
        group.bench_function(format!("{} ({kind:?}), {threads} thread(s)", S::NAME), |bencher| {
            bencher.iter_custom(|ops| {
                let spent = load.time(&subject, ops, threads, timed_by).expect("the load runs");
                samples.push((ops, spent));
                spent
            });
        });
        // The first calls are criterion's warm-up, with few operations each.
        let longest =
            samples.iter().map(|(ops, _)| *ops).max().context("criterion has run nothing; a filter?")?;
        let per_op = samples
            .iter()
            .filter(|(ops, _)| *ops * 4 >= longest)
            .map(|(ops, spent)| spent.as_nanos() as f64 / *ops as f64);
        times.push(Spread::of(per_op).context("no samples")?);
    }
    group.finish();
    drop(subject);
    let entry_bytes = memory::entry_bytes::<S>(load.items, room)?;
    Ok(Row { name: S::NAME, kind, times: [times[0], times[1]], hit_share, entry_bytes })
}

fn print_table(items: Items, rows: &[Row]) -> Result<()> {
    let base = |kind| {
        rows.iter()
            .find(|row| row.name == QuickCopy::NAME && row.kind == kind)
            .context("quick_cache was not measured")
    };
    println!("\n{}: ns per operation (median, range), ÷ quick_cache's, two threads ÷ one", items.name());
    println!(
        "{:<14} {:<7} {:>22} {:>6} {:>22} {:>6} {:>6} {:>7} {:>9} {:>6}",
        "", "get", "one thread", "÷", "two threads", "÷", "2 ÷ 1", "hits", "B/item", "÷"
    );
    for row in rows {
        let base = base(row.kind)?;
        let spread = |Spread { median, min, max }: Spread| format!("{median:.0} ({min:.0}–{max:.0})");
        println!(
            "{:<14} {:<7} {:>22} {:>6.2} {:>22} {:>6.2} {:>6.2} {:>6.2}% {:>9.1} {:>6.2}",
            row.name,
            format!("{:?}", row.kind),
            spread(row.times[0]),
            row.times[0].median / base.times[0].median,
            spread(row.times[1]),
            row.times[1].median / base.times[1].median,
            row.times[1].median / row.times[0].median,
            row.hit_share * 100.0,
            row.entry_bytes,
            row.entry_bytes / base.entry_bytes,
        );
    }
    println!("bars for cached: one thread ≤ 1.00, two threads 2 ÷ 1 ≤ 1.25, bytes ≤ 0.60\n");
    Ok(())
}
