//! `health`: whether a running server is live, has started, or is ready.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::admin::{Admin, AdminArguments};
use crate::exit::Failure;
use crate::output::Output;

#[derive(Args)]
pub(crate) struct Health {
    /// Ask whether the process makes progress; if not, only a restart helps.
    #[arg(long, conflicts_with = "started")]
    live: bool,

    /// Ask whether the start is complete.
    #[arg(long)]
    started: bool,
}

impl Health {
    pub(crate) fn run(
        &self,
        arguments: &AdminArguments,
        timeout: Option<Duration>,
        output: &Output,
    ) -> Result<(), Failure> {
        let (path, yes, no) = match (self.live, self.started) {
            (true, _) => ("/livez", "live", "not live"),
            (_, true) => ("/startupz", "started", "not started"),
            _ => ("/readyz", "ready", "not ready"),
        };
        let admin = Admin::new(arguments, timeout)?;
        let reasons = admin.probe(path)?;
        let value = json!({ "probe": path, "ok": reasons.is_empty(), "reasons": reasons });
        if reasons.is_empty() {
            return output.write(yes, &value);
        }
        let text: Vec<String> = reasons.iter().map(|reason| format!("{no}: {reason}")).collect();
        output.write(text.join("\n"), &value)?;
        let what = format!("{}{path}", admin.url());
        Err(Failure::Admin { what, status: Some(503), text: no.into() })
    }
}
