//! The latency of writes while snapshots are created.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::cached::{Cached, Configuration};
use crate::writer::Writer;
use crate::{Arguments, Bar, print};

const DISK_MIB: u64 = 256;
const WRITERS: u64 = 4;

/// The start and the end of an operation.
type Span = (Instant, Instant);

/// Measures a cache over `store`, without a journal and with one.
pub(crate) fn run(arguments: &Arguments, directory: &Path, store: &str, backend: &str) -> Result<()> {
    for has_journal in [false, true] {
        let with = if has_journal { "with" } else { "without" };
        let wanted = Configuration {
            memory_mib: 768,
            dirty_mib: 512,
            backend: backend.to_owned(),
            has_journal,
            more: "",
        };
        let cached = Cached::start(arguments, directory, &wanted)?;
        measure(arguments, cached, &format!("pause: over {store} {with} a journal"))?;
    }
    Ok(())
}

fn measure(arguments: &Arguments, cached: Cached, name: &str) -> Result<()> {
    let (before, snapshots) = if arguments.quick { (3, 6) } else { (10, 12) };
    cached.create("disk", DISK_MIB << 20)?;
    fill(&cached)?;
    let is_over = AtomicBool::new(false);
    let (begun, made, writes) = thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|seed| {
                let (cached, is_over) = (&cached, &is_over);
                scope.spawn(move || write(cached, is_over, seed))
            })
            .collect();
        thread::sleep(Duration::from_secs(before));
        let begun = Instant::now();
        let mut snapshot = |number: u32| -> Result<Span> {
            let begun = Instant::now();
            let body = format!("{{\"volumes\": [\"disk\"], \"snapshot\": \"s{number}\"}}");
            cached.post("/volumes/snapshot", &body)?;
            let made = (begun, Instant::now());
            // By then the work that follows a snapshot has ended.
            thread::sleep(Duration::from_secs(2));
            Ok(made)
        };
        let made: Result<Vec<Span>> = (0..snapshots).map(&mut snapshot).collect();
        is_over.store(true, Ordering::Relaxed);
        let mut writes = Vec::new();
        for writer in writers {
            writes.extend(writer.join().map_err(|_| anyhow!("a writer panicked"))??);
        }
        anyhow::Ok((begun, made?, writes))
    })?;
    let meets = |(begun, ended): &Span, other: &Span| *begun < other.1 && *ended > other.0;
    let second = Duration::from_secs(1);
    let of = |is_wanted: &dyn Fn(&Span) -> bool| {
        let spans = writes.iter().filter(|span| is_wanted(span));
        p99_us(spans.map(|(begun, ended)| ended.duration_since(*begun)).collect())
    };
    let quiet = of(&|span| span.1 < begun).context("no writes before the snapshots")?;
    let during =
        of(&|span| made.iter().any(|made| meets(span, made))).context("no writes beside snapshots")?;
    let after = of(&|span| made.iter().any(|made| meets(span, &(made.1, made.1 + second))));
    let lasted = made.iter().map(|(begun, ended)| ended.duration_since(*begun).as_secs_f64());
    let longest = lasted.fold(0.0, f64::max);
    print(format!("{name}, the longest snapshot"), longest * 1e3, "ms", None);
    print(format!("{name}, p99 of writes before"), quiet, "us", None);
    print(format!("{name}, p99 beside a snapshot"), during, "us", None);
    print(
        format!("{name}, p99 in the second after"),
        after.context("no writes after snapshots")?,
        "us",
        None,
    );
    print(format!("{name}, p99 beside, of that before"), during / quiet, "x", Some(Bar::AtMost(2.0)));
    cached.wait_until_detached("disk")?;
    cached.post("/volumes/delete", "{\"name\": \"disk\"}")?;
    cached.server.end()
}

/// Writes the disk from start to end, and waits until the data are stored.
fn fill(cached: &Cached) -> Result<()> {
    let mut writer = Writer::connect(&cached.server.socket, "disk")?;
    let data = vec![0xa5; 1 << 20];
    for mebibyte in 0..DISK_MIB {
        writer.write(mebibyte << 20, &data)?;
    }
    writer.flush()
}

/// Writes until `is_over`; returns the start and the end of each write.
fn write(cached: &Cached, is_over: &AtomicBool, seed: u64) -> Result<Vec<Span>> {
    let mut writer = Writer::connect(&cached.server.socket, "disk")?;
    let (mut random, data) = (SmallRng::seed_from_u64(seed), [0x5a; 4096]);
    let mut spans = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        writer.write(random.random_range(0..DISK_MIB << 8) << 12, &data)?;
        spans.push((begun, Instant::now()));
    }
    Ok(spans)
}

fn p99_us(mut times: Vec<Duration>) -> Option<f64> {
    times.sort_unstable();
    let at = times.len() * 99 / 100;
    times.get(at).map(|time| time.as_secs_f64() * 1e6)
}
