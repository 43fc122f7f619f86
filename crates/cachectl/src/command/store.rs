//! A store as a whole: creating, checking and repairing a directory; sweeping a bucket; and testing
//! how fast a backend is and whether it conforms to the contract.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blocker::conformance::{CaseReport, Options, Plain, Verdict, run_with};
use blocker::executor::block_on;
use blocker::file::{Finding, FindingKind, check};
use blocker::{BlockerExt, DeleteRequest, FileStore, ObjectId, ReadRequest, Segments, WriteRequest};
use bytes::Bytes;
use cached_config::{Store, SweepCounts};
use clap::Args;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use serde_json::json;

use crate::command::{Context, seconds, size, within};
use crate::output::{About, Failure, Output, Progress};

/// Exit codes: 0 the store is in order, 1 it is damaged (or, with --repair, has been repaired as
/// reported), 2 it could not be checked, or the repair could not continue. Without --repair nothing
/// is written.
#[derive(Args)]
pub(crate) struct Fsck {
    /// The directory of the store. No process may have it open.
    dir: PathBuf,

    /// Repair the damage, as the check without this option reports. Replaced files are kept in
    /// DIR/damaged. Nothing is repaired if some file cannot be read.
    #[arg(long)]
    repair: bool,
}

impl Fsck {
    pub(crate) fn run(&self, output: &Output) -> ExitCode {
        output.verdict(self.check(output))
    }

    /// Checks the store. Returns whether it is in order.
    fn check(&self, output: &Output) -> Result<bool, Failure> {
        let mut written = Ok(());
        let mut on_finding = |finding: &Finding| {
            let text = self.text(finding);
            let value = json!({
                "path": finding.path.to_string_lossy(),
                "what": finding.what,
                "remedy": finding.remedy,
                "damage": finding.kind == FindingKind::Damage,
                "unread": finding.kind == FindingKind::Unread,
            });
            let done = output.write(text, &value);
            written = std::mem::replace(&mut written, Ok(())).and(done);
        };
        let report = check(&self.dir, self.repair, &mut on_finding)
            .about(format_args!("{} could not be checked", self.dir.display()))?;
        written?;
        if report.unread > 0 {
            let text = format!(
                "{} could not be checked: {} files or directories could not be read, and nothing was changed",
                self.dir.display(),
                report.unread
            );
            return Err(Failure::unread(text));
        }
        let (objects, tombstones) = (report.objects, report.tombstones);
        let verdict = match (report.damaged, self.repair) {
            (0, _) => "in order".to_owned(),
            (damaged, false) => format!("{damaged} damaged; run again with --repair"),
            (damaged, true) => format!("{damaged} were damaged, and are repaired as reported above"),
        };
        let text = format!("{objects} objects, {tombstones} remembered deletions: {verdict}");
        let value = json!({
            "objects": objects,
            "tombstones": tombstones,
            "damaged": report.damaged,
            "notes": report.notes,
        });
        output.write(text, &value)?;
        Ok(report.damaged == 0)
    }

    fn text(&self, finding: &Finding) -> String {
        let Finding { path, what, remedy, kind, .. } = finding;
        let kind = match kind {
            FindingKind::Damage => "damage",
            FindingKind::Unread => return format!("could not be checked: {}: {what}", path.display()),
            _ => "note",
        };
        let remedy_is = if self.repair { "done" } else { "repair" };
        format!("{kind}: {} {what} ({remedy_is}: {remedy})", path.display())
    }
}

#[derive(Args)]
pub(crate) struct Init {
    /// The directory of the store. It is created with its parents if it is missing, and must be
    /// empty otherwise.
    dir: PathBuf,
}

impl Init {
    pub(crate) fn run(&self, output: &Output) -> Result<(), Failure> {
        let shown = self.dir.display();
        FileStore::create(&self.dir).about(&shown)?;
        output.write(format!("created a store in {shown}"), &json!({ "dir": self.dir.to_string_lossy() }))
    }
}

#[derive(Args)]
pub(crate) struct Sweep {
    /// Count the leftovers without removing them.
    #[arg(long)]
    dry_run: bool,
    /// The minimum age of a leftover to be removed, by the server's clock, in seconds or with a
    /// unit, as in 2h: at least 15min, unless --alone is given. All programs that use the bucket
    /// should have the same age.
    #[arg(long, value_name = "DURATION", default_value_t = 3600, value_parser = seconds)]
    age: u64,
    /// Allow any --age, because no other program uses the bucket and prefix.
    #[arg(long)]
    alone: bool,
}

impl Sweep {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let age = Duration::from_secs(self.age);
        if age < Store::SWEEP_AGE_MIN && !self.alone {
            let least = Store::SWEEP_AGE_MIN.as_secs();
            return Err(Failure::usage(format!(
                "--age must be at least {least}: a younger leftover may belong to a change in progress; --alone allows \
                 less if no other program uses the bucket"
            )));
        }
        let progress = Mutex::new(Progress::of_steps());
        let watch = move |counts: SweepCounts| {
            let mut progress = progress.lock();
            progress.write(|| {
                let left = counts.orphans + counts.ghosts + counts.probes;
                format!("{} blobs and {} heads found, {left} leftovers", counts.blobs, counts.heads)
            });
        };
        let Some(swept) = context.opened.store.sweep(age, self.dry_run, watch) else {
            let text = "only a store on S3 can be swept: name one with --backend s3:BUCKET,...; a file store has fsck";
            return Err(Failure::usage(text));
        };
        let counts =
            block_on(swept).about("the sweep was not completed; what it has removed stays removed")?;
        let mut value = json!(counts);
        value["dry_run"] = self.dry_run.into();
        context.output.write(self.text(&counts), &value)
    }

    fn text(&self, counts: &SweepCounts) -> String {
        let removed = if self.dry_run { "would be removed" } else { "removed" };
        let SweepCounts { blobs, orphans, orphans_bytes, heads, ghosts, ghosts_kept, probes, .. } = counts;
        let ghosts = if counts.ghosts_can_go {
            format!(
                "{ghosts} of {heads} heads, of deleted objects, {removed}; {ghosts_kept} more are still needed"
            )
        } else {
            "heads of deleted objects are kept: the server ignores conditions of removals".into()
        };
        format!(
            "{orphans} of {blobs} blobs, {orphans_bytes} bytes, which belong to no object, {removed}\n\
             {ghosts}\n\
             {probes} leftovers of probes {removed}"
        )
    }
}

/// The maximum number of latencies that are kept; further ones are ignored.
const SAMPLES_MAX: usize = 4 << 20;

#[derive(Args)]
pub(crate) struct Bench {
    /// The size of a request, for example 64KiB.
    #[arg(long, default_value_t = 4096, value_parser = within(size, 1..=64 << 20))]
    size: u64,
    /// The number of requests in flight.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1024))]
    depth: u64,
    /// The duration, in seconds or with a unit.
    #[arg(long, default_value_t = 5, value_parser = within(seconds, 1..=3600))]
    seconds: u64,
    /// The percentage of writes.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100))]
    writes: u64,
    /// The number of objects, which are created first and removed afterwards.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    objects: u64,
    /// The size of an object, for example 4MiB.
    #[arg(long, default_value_t = 1 << 20, value_parser = size)]
    object_size: u64,
    /// The seed of the random offsets.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Bench {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let limits = context.opened.backend.capabilities();
        let most = limits.object_bytes_max.min(limits.request_bytes_max);
        if self.size > self.object_size || self.object_size > most {
            let text = format!("--size must be at most --object-size, which must be at most {most}");
            return Err(Failure::usage(text));
        }
        let objects = (0..self.objects).map(|n| context.object(&format!("cachectl-bench/{n:08}")));
        let objects = objects.collect::<Result<Vec<_>, _>>()?;
        for object in &objects {
            let data = Bytes::from(vec![0x5a; self.object_size as usize]);
            block_on(context.opened.backend.write(WriteRequest::new(object.clone(), 0, data)))
                .about(object)?;
        }
        let measured = self.measure(context, &objects);
        // The objects are removed even after a failure; the first failure is reported.
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
        let mut in_flight = FuturesUnordered::new();
        let (mut latencies, mut count) = (Vec::new(), 0);
        let start = Instant::now();
        let end = start + Duration::from_secs(self.seconds);
        loop {
            while in_flight.len() < self.depth as usize && Instant::now() < end {
                in_flight.push(self.request(context, objects, &data, &mut random));
            }
            let Some(latency) = block_on(in_flight.next()) else {
                return Ok((latencies, count, start.elapsed()));
            };
            let latency = latency?;
            count += 1;
            if latencies.len() < SAMPLES_MAX {
                latencies.push(u32::try_from(latency.as_micros()).unwrap_or(u32::MAX));
            }
        }
    }

    /// Sends a request. The result is its latency.
    fn request(
        &self,
        context: &Context<'_>,
        objects: &[ObjectId],
        data: &Segments,
        random: &mut u64,
    ) -> impl Future<Output = blocker::Result<Duration>> + use<> {
        // SplitMix64.
        *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (*random ^ (*random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let drawn = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 7;
        let object = objects[(drawn % self.objects) as usize].clone();
        let places = self.object_size / self.size;
        let offset = drawn / self.objects % places * self.size;
        let is_write = (drawn >> 40) % 100 < self.writes;
        let (backend, data, size) = (Arc::clone(&context.opened.backend), data.clone(), self.size);
        async move {
            let begun = Instant::now();
            match is_write {
                true => backend.write(WriteRequest::new(object, offset, data)).await.map(drop)?,
                false => backend.read(ReadRequest::new(object, offset, size)).await.map(drop)?,
            }
            Ok(begun.elapsed())
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
    /// The maximum time for a response, in seconds or with a unit.
    #[arg(long, default_value_t = 60, value_parser = seconds)]
    patience_s: u64,
    /// Also claim everything in the backend, permanently, because the suite is its only user.
    #[arg(long)]
    exclusive: bool,
    /// The prefix of the suite's namespaces, whose content it removes.
    #[arg(long, default_value = "conformance")]
    prefix: String,
}

impl Conformance {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        if !(1..=100).contains(&self.prefix.len()) {
            return Err(Failure::usage("--prefix must have 1 to 100 bytes"));
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
            (0, 0) => Err(Failure::usage(format!(
                "no case has a name that contains {:?}, or all were skipped",
                self.filter
            ))),
            (0, _) => Ok(()),
            (failed, _) => Err(Failure::not_conforming(failed)),
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
