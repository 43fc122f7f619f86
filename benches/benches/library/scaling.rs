//! Measures how the rate of one cache grows with the number of threads that use it, each on its own
//! core.

use anyhow::{Context, Result};
use cached_benches::statistics::Spread;

use super::SETTLE_OPS;
use super::load::{Items, Load, TimedBy};
use super::subject::{FoyerBorrow, KvBorrow, MokaBorrow, QuickBorrow, Subject};

/// The number of requests per thread and measurement.
const OPS: u64 = 1_500_000;
/// The number of measurements, of which the median counts.
const ROUNDS: usize = 3;

/// Prints a table of the caches with these comma-separated numbers of threads.
///
/// # Errors
/// Fails if the text is not a list of numbers, or a number exceeds the number of cores.
pub(crate) fn run(threads: &str) -> Result<()> {
    let threads = threads
        .split(',')
        .map(|word| word.trim().parse().with_context(|| format!("{word:?} is no number of threads")))
        .collect::<Result<Vec<usize>>>()?;
    let items = Items::Medium;
    let load = Load::new(items);
    println!("{}: millions of operations per second (and ÷ those of {} thread)", items.name(), threads[0]);
    println!("{:<14}{}", "threads", threads.iter().map(|count| format!("{count:>16}")).collect::<String>());
    measure::<KvBorrow<false>>(&load, &threads)?;
    measure::<KvBorrow<true>>(&load, &threads)?;
    measure::<QuickBorrow>(&load, &threads)?;
    measure::<MokaBorrow>(&load, &threads)?;
    measure::<FoyerBorrow>(&load, &threads)
}

fn measure<S: Subject>(load: &Load, threads: &[usize]) -> Result<()> {
    let subject = S::new(load.items, S::room(load)?)?;
    load.run(&subject, 0, SETTLE_OPS)?;
    let mut first = None;
    let mut line = format!("{:<14}", S::NAME);
    for &count in threads {
        let rates = (0..ROUNDS)
            .map(|_| {
                let spent = load.time(&subject, OPS, count, TimedBy::Wall)?;
                Ok(count as f64 * OPS as f64 / spent.as_secs_f64() / 1e6)
            })
            .collect::<Result<Vec<f64>>>()?;
        let rate = Spread::of(rates).context("no rate")?.median;
        let ratio = rate / *first.get_or_insert(rate);
        line.push_str(&format!("{:>16}", format!("{rate:.2} ({ratio:.2})")));
    }
    println!("{line}");
    Ok(())
}
