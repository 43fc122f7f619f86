//! `sweep`: removes what unfinished changes and deleted objects have left in a bucket.

use std::sync::Mutex;
use std::time::Duration;

use blocker::executor::block_on;
use cached_config::{SweepCounts, SweepOptions};
use clap::Args;
use serde_json::json;

use super::Context;
use crate::exit::{About, Failure};
use crate::progress::Progress;

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
