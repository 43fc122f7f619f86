//! `conformance`: the conformance suite on the backend.

use std::sync::Arc;
use std::time::Duration;

use blocker::conformance::{CaseReport, Options, Plain, Verdict, run_with};
use clap::Args;
use serde_json::json;

use super::Context;
use crate::exit::Failure;

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
