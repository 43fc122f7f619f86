//! Trying out a backend: how fast it is, and whether it keeps the contract.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use blocker::conformance::{CaseReport, Options, Plain, Verdict, run_with};
use blocker::executor::{block_on, thread_waker};
use blocker::{DeleteRequest, ObjectId, ReadRequest, Segments, WriteRequest};
use bytes::Bytes;
use clap::Args;
use serde_json::json;

use crate::command::Context;
use crate::exit::{About, Failure};
use std::task::Context as TaskContext;

/// The largest number of latencies that are kept; later ones do not count.
const SAMPLES_MAX: usize = 4 << 20;

#[derive(Args)]
pub(crate) struct Bench {
    /// Bytes per request.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..=64 << 20))]
    size: u64,
    /// Requests under way at a time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1024))]
    depth: u64,
    /// The duration in seconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// The number of writes in 100 requests.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100))]
    writes: u64,
    /// The number of objects; they are made first and removed afterwards.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    objects: u64,
    /// Bytes per object.
    #[arg(long, default_value_t = 1 << 20)]
    object_size: u64,
    /// The seed of the offsets.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

type Pending = Pin<Box<dyn Future<Output = blocker::Result<()>>>>;

impl Bench {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let limits = context.opened.backend.capabilities();
        let most = limits.object_bytes_max.min(limits.request_bytes_max);
        if self.size > self.object_size || self.object_size > most {
            let text = format!("--size must be at most --object-size, and that at most {most}");
            return Err(Failure::Usage(text));
        }
        let objects = (0..self.objects).map(|n| context.object(&format!("cachectl-bench/{n:08}")));
        let objects = objects.collect::<Result<Vec<_>, _>>()?;
        for object in &objects {
            let data = Bytes::from(vec![0x5a; self.object_size as usize]);
            block_on(context.opened.backend.write(WriteRequest::new(object.clone(), 0, data)))
                .about(object)?;
        }
        let measured = self.measure(context, &objects);
        // Removed even after a failure; the first failure is reported.
        let mut removed = Ok(());
        for object in &objects {
            let gone =
                block_on(context.opened.backend.delete(DeleteRequest::new(object.clone()))).about(object);
            removed = removed.and(gone.map(drop));
        }
        let (mut latencies, count, took) = measured?;
        removed?;
        latencies.sort_unstable();
        let at = |permille: usize| {
            latencies.get(latencies.len().saturating_sub(1) * permille / 1000).copied().unwrap_or(0)
        };
        let rate = count as f64 / took.as_secs_f64();
        let mib = rate * self.size as f64 / f64::from(1 << 20);
        let (half, most, nearly_all) = (at(500), at(990), at(999));
        let text = format!(
            "{rate:.0} requests/s, {mib:.1} MiB/s; latency µs: median {half}, 99 % {most}, 99.9 % {nearly_all}, \
             worst {}",
            at(1000)
        );
        let value = json!({
            "requests": count, "seconds": took.as_secs_f64(), "requests_per_s": rate, "mib_per_s": mib,
            "latency_us": { "p50": half, "p99": most, "p999": nearly_all, "max": at(1000) },
            "size_bytes": self.size, "depth": self.depth, "writes_percent": self.writes, "seed": self.seed,
        });
        context.output.write(text, &value)
    }

    /// Returns the latencies in µs, the number of requests, and the duration.
    fn measure(
        &self,
        context: &Context<'_>,
        objects: &[ObjectId],
    ) -> Result<(Vec<u32>, u64, Duration), Failure> {
        let data = Segments::from(Bytes::from(vec![0xa5; self.size as usize]));
        let mut random = self.seed;
        let mut slots: Vec<Option<(Instant, Pending)>> = (0..self.depth).map(|_| None).collect();
        let (mut latencies, mut count) = (Vec::new(), 0);
        let start = Instant::now();
        let end = start + Duration::from_secs(self.seconds);
        let waker = thread_waker();
        let mut cx = TaskContext::from_waker(&waker);
        loop {
            let mut is_moving = false;
            let mut is_idle = true;
            for slot in &mut slots {
                if slot.is_none() && Instant::now() < end {
                    *slot = Some((Instant::now(), self.request(context, objects, &data, &mut random)));
                }
                let Some((since, pending)) = slot else { continue };
                is_idle = false;
                if let Poll::Ready(done) = pending.as_mut().poll(&mut cx) {
                    if latencies.len() < SAMPLES_MAX {
                        latencies.push(u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX));
                    }
                    (*slot, count, is_moving) = (None, count + 1, true);
                    done?;
                }
            }
            if is_idle {
                return Ok((latencies, count, start.elapsed()));
            }
            if !is_moving {
                std::thread::park();
            }
        }
    }

    fn request(
        &self,
        context: &Context<'_>,
        objects: &[ObjectId],
        data: &Segments,
        random: &mut u64,
    ) -> Pending {
        // SplitMix64.
        *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (*random ^ (*random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let drawn = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 7;
        let object = objects[(drawn % self.objects) as usize].clone();
        let places = self.object_size / self.size;
        let offset = drawn / self.objects % places * self.size;
        let backend = &context.opened.backend;
        if (drawn >> 40) % 100 < self.writes {
            let write = backend.write(WriteRequest::new(object, offset, data.clone())).into_future();
            Box::pin(async move { write.await.map(drop) })
        } else {
            let read = backend.read(ReadRequest::new(object, offset, self.size)).into_future();
            Box::pin(async move { read.await.map(drop) })
        }
    }
}

#[derive(Args)]
pub(crate) struct Conformance {
    /// Run only the cases whose name contains this.
    #[arg(default_value = "")]
    filter: String,
    /// The seed of every random choice.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The amount of random work.
    #[arg(long, default_value_t = 1)]
    effort: u32,
    /// How long an answer may take, in seconds.
    #[arg(long, default_value_t = 60)]
    patience_s: u64,
    /// The suite is the only user of the backend: also claim everything in it, for good.
    #[arg(long)]
    exclusive: bool,
    /// The suite works in namespaces that begin with this, and removes what it finds there.
    #[arg(long, default_value = "conformance")]
    prefix: String,
}

impl Conformance {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        if !(1..=100).contains(&self.prefix.len()) {
            return Err(Failure::Usage("--prefix takes 1 to 100 bytes".into()));
        }
        let mut options = Options::default();
        options.seed = self.seed;
        options.effort = self.effort.max(1);
        options.filter.clone_from(&self.filter);
        options.timeout = Duration::from_secs(self.patience_s);
        options.exclusive = self.exclusive;
        options.namespace_prefix.clone_from(&self.prefix);
        let mut written = Ok(());
        let report = run_with(&Plain::new(Arc::clone(&context.opened.backend)), &options, |case| {
            if written.is_ok() {
                written = context.output.write(case, &value(case));
            }
        });
        written?;
        let (passed, skipped, failed) = report.counts();
        let text = format!("{passed} passed, {skipped} skipped, {failed} failed, seed {}", report.seed);
        let value = json!({ "passed": passed, "skipped": skipped, "failed": failed, "seed": report.seed });
        context.output.write(text, &value)?;
        match (failed, passed) {
            (0, 0) => {
                Err(Failure::Usage(format!("no case is called {:?}, or all were skipped", self.filter)))
            }
            (0, _) => Ok(()),
            (failed, _) => Err(Failure::NotConforming(failed)),
        }
    }
}

fn value(case: &CaseReport) -> serde_json::Value {
    let (verdict, reason) = match &case.verdict {
        Verdict::Pass => ("pass", None),
        Verdict::Skip(reason) => ("skip", Some(reason)),
        Verdict::Fail(reason) => ("fail", Some(reason)),
    };
    json!({ "case": case.name, "verdict": verdict, "reason": reason, "took_us": case.took.as_micros() as u64 })
}
