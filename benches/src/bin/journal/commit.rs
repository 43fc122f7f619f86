//! Group commit compared with an ideal one.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use blocker::executor::block_on;
use cached_journal::{AppendError, Head, Journal, JournalConfig, Kind, Object, Record};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::disk::{BLOCK_BYTES, Ideal};
use crate::{Arguments, measure, median, verdict};

/// Opens a journal, and waits until all of its segments are zeroed: otherwise this work would be
/// measured too.
pub(crate) fn ready(config: &JournalConfig) -> Result<Journal> {
    let (journal, _) = Journal::open(config, Arc::new(|_| {})).context("a journal")?;
    while journal.metrics().capacity_bytes < config.limit_bytes / 100 * 99 {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(journal)
}

pub(crate) fn run(arguments: &Arguments, dir: &Path) -> Result<()> {
    let ideal = Ideal::new(dir)?;
    let config = JournalConfig { limit_bytes: 512 << 20, ..JournalConfig::new(dir.join("commit")) };
    let journal = ready(&config)?;
    println!("writers   ideal blocks/s   journal blocks/s   records in a batch   us CPU per block");
    for (writers, bar) in [(1, 0.85), (4, 0.6), (16, 0.6), (64, 0.6)] {
        let (mut ideals, mut journals, mut ratios, mut cpus) = (vec![], vec![], vec![], vec![]);
        let before = journal.metrics();
        for _ in 0..arguments.rounds {
            let (ideal, _) = measure(|| ideal.run(writers, arguments.seconds))?;
            let (rate, cpu) = measure(|| write(&journal, writers, arguments))?;
            ratios.push(rate / ideal);
            ideals.push(ideal);
            journals.push(rate);
            cpus.push(cpu * 1e6);
        }
        let after = journal.metrics();
        let records = after.batch_records.sum - before.batch_records.sum;
        let batches = (after.batch_records.count - before.batch_records.count).max(1);
        println!(
            "{writers:>7} {:>16.0} {:>18.0} {:>20.1} {:>18.2}",
            median(ideals),
            median(journals),
            records as f64 / batches as f64,
            median(cpus),
        );
        verdict(&format!("group commit of {writers} writers / ideal"), median(ratios), bar, true);
    }
    bytes(&journal)
}

/// Runs `writers` writers in a closed loop, on the number of threads in the arguments.
fn write(journal: &Journal, writers: usize, arguments: &Arguments) -> Result<u64> {
    let threads = arguments.threads.clamp(1, writers);
    std::thread::scope(|scope| {
        let each = |thread: usize| {
            let own = writers / threads + usize::from(thread < writers % threads);
            scope.spawn(move || tasks(journal, own, arguments.seconds))
        };
        let running: Vec<_> = (0..threads).map(each).collect();
        running.into_iter().map(|it| it.join().map_err(|_| anyhow!("a writer has panicked"))?).sum()
    })
}

fn tasks(journal: &Journal, writers: usize, time: Duration) -> Result<u64> {
    let (begun, count, payload) = (Instant::now(), Cell::new(0), [7_u8; BLOCK_BYTES]);
    let one = |writer: u64| {
        let (count, payload) = (&count, &payload);
        async move {
            while begun.elapsed() < time {
                let head = Head::new(Kind(1), Object::Number(writer));
                match journal.append(&Record { head, payload: &[payload] }) {
                    Ok(appended) => {
                        journal.wait(appended.position).await?;
                        count.set(count.get() + 1);
                    }
                    Err(AppendError::Full | AppendError::Busy) => std::thread::yield_now(),
                    Err(error) => return Err(error.into()),
                }
            }
            anyhow::Ok(())
        }
    };
    let mut all: FuturesUnordered<_> = (0..writers as u64).map(one).collect();
    block_on(async {
        while let Some(done) = all.next().await {
            done?;
        }
        Ok(count.get())
    })
}

/// Returns the bytes written per byte of payload, in batches of 16 × 4 KiB, each appended while the
/// disk is busy with the previous batch.
fn bytes(journal: &Journal) -> Result<()> {
    let payload = [7_u8; BLOCK_BYTES];
    let before = journal.metrics();
    for _ in 0..200 {
        let mut last = None;
        for writer in 0..16 {
            let head = Head::new(Kind(1), Object::Number(writer));
            last = Some(journal.append(&Record { head, payload: &[&payload] })?.position);
        }
        journal.wait_blocking(last.context("sixteen records")?)?;
    }
    let after = journal.metrics();
    let written = (after.counts.written_bytes - before.counts.written_bytes) as f64;
    let payload = (after.counts.appended_bytes - before.counts.appended_bytes) as f64;
    let batches = after.batch_records.count - before.batch_records.count;
    let records = (after.batch_records.sum - before.batch_records.sum) as f64 / batches as f64;
    // Besides its payloads, a batch has two blocks, however many payloads it has. The overhead is
    // computed for sixteen payloads per batch.
    let extra = (written - payload) / batches as f64;
    println!("bytes written / payload: {:.3} at {records:.1} records in a batch", written / payload);
    let of_sixteen = 1.0 + extra / (16 * BLOCK_BYTES) as f64;
    verdict("bytes written / payload, batches of 16 x 4 KiB", of_sixteen, 1.10, false);
    Ok(())
}
