//! `fsck`: checks the directory of a file store, and repairs it. The one command that opens no backend.

use std::path::PathBuf;
use std::process::ExitCode;

use blocker::file::{Finding, FindingKind, check};
use clap::Args;
use serde_json::json;

use crate::exit::{About, Failure};
use crate::output::Output;

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
