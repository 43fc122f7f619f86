//! A store as a whole: a directory that is made, or checked and repaired, and a bucket that is swept.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use blocker::FileStore;
use blocker::executor::block_on;
use blocker::file::{Finding, FindingKind, check};
use cached_config::{SweepCounts, SweepOptions};
use clap::Args;
use serde_json::json;

use crate::command::Context;
use crate::exit::{About, Failure};
use crate::output::{Output, Progress};

/// What the exit code says of a store: 0 in order, 1 damaged (and with --repair repaired as reported), 2 it
/// could not be checked, or the repair could not go on. Without --repair nothing is written.
#[derive(Args)]
pub(crate) struct Fsck {
    /// The directory of the store. No process may have it open.
    dir: PathBuf,

    /// Repair what can be repaired, as the check without this option reports. What is replaced is kept in
    /// DIR/damaged. Nothing is repaired where something cannot be read.
    #[arg(long)]
    repair: bool,
}

impl Fsck {
    pub(crate) fn run(&self, output: &Output) -> ExitCode {
        match self.check(output) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(1),
            Err(failure) => {
                output.failure(&failure);
                failure.code_or(2)
            }
        }
    }

    /// Whether the store is in order.
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
            return Err(Failure::Unread(text));
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
    /// The directory of the store. It is made with its parents if it is missing, and must be empty otherwise.
    dir: PathBuf,
}

impl Init {
    pub(crate) fn run(&self, output: &Output) -> Result<(), Failure> {
        let shown = self.dir.display();
        FileStore::create(&self.dir).about(&shown)?;
        output.write(format!("{shown} is a store by now"), &json!({ "dir": self.dir.to_string_lossy() }))
    }
}

#[derive(Args)]
pub(crate) struct Sweep {
    /// Count what would be removed, and leave it.
    #[arg(long)]
    dry_run: bool,
    /// How old a left-over must be to be removed, in seconds, on the server's clock: 900 at least, unless --alone is
    /// given. All programs on the bucket should use one age.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    age: u64,
    /// No other program uses the bucket and prefix: allows any --age.
    #[arg(long)]
    alone: bool,
}

impl Sweep {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let age = Duration::from_secs(self.age);
        if age < SweepOptions::AGE_MIN && !self.alone {
            let least = SweepOptions::AGE_MIN.as_secs();
            return Err(Failure::Usage(format!(
                "--age takes {least} or more: a younger left-over may be a change under way; with --alone, where no \
                 other program uses the bucket, it takes less"
            )));
        }
        let progress = Mutex::new(Progress::of_steps());
        let watch = move |counts: SweepCounts| {
            let mut progress = progress.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            progress.write(|| {
                let left = counts.orphans + counts.ghosts + counts.probes;
                format!("{} blobs and {} heads met, {left} left-overs", counts.blobs, counts.heads)
            });
        };
        let options = SweepOptions::new(age, self.dry_run);
        let Some(swept) = context.opened.sweep(&options, watch) else {
            let text = "only a store on S3 has a sweep: name one with --backend s3:BUCKET,...; a file store has fsck";
            return Err(Failure::Usage(text.into()));
        };
        let counts =
            block_on(swept).about("the sweep has not come to its end; what it has removed stays so")?;
        context.output.write(self.text(&counts), &self.value(&counts))
    }

    fn text(&self, counts: &SweepCounts) -> String {
        let removed = if self.dry_run { "would be removed" } else { "removed" };
        let SweepCounts { blobs, orphans, orphans_bytes, heads, ghosts, ghosts_kept, probes, .. } = counts;
        let ghosts = if counts.ghosts_can_go {
            format!(
                "{ghosts} of {heads} heads {removed}, of deleted objects; {ghosts_kept} such are still needed"
            )
        } else {
            "heads of deleted objects stay: the server ignores conditions of removals".into()
        };
        format!(
            "{orphans} of {blobs} blobs {removed}, {orphans_bytes} bytes, which no object has\n\
             {ghosts}\n\
             {probes} left-overs of probes {removed}"
        )
    }

    fn value(&self, counts: &SweepCounts) -> serde_json::Value {
        json!({
            "dry_run": self.dry_run,
            "blobs": counts.blobs,
            "orphans": counts.orphans,
            "orphans_bytes": counts.orphans_bytes,
            "heads": counts.heads,
            "ghosts": counts.ghosts,
            "ghosts_kept": counts.ghosts_kept,
            "ghosts_can_go": counts.ghosts_can_go,
            "probes": counts.probes,
        })
    }
}
