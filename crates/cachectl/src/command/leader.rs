//! `leader`: the election of the host that writes to the store, through the admin listener of one
//! of the hosts.

use clap::Subcommand;
use serde_json::{Value, json};

use crate::command::Call;
use crate::command::volume::date;
use crate::output::Failure;
use std::fmt::Write as _;

#[derive(Subcommand)]
pub(crate) enum Leader {
    /// Show which host leads, and this host's role: since when, and why.
    Status,
    /// Make this host, the leader, store everything and leave the lead to any other host.
    ///
    /// Refused, with the reason, if the store does not accept all dirty data: this host then leads
    /// as before. The host does not take the lead back for the duration of the lease, unless it is
    /// the only one.
    StepDown,
    /// Make this host, the leader, store everything and leave the lead to another host.
    ///
    /// If that host does not take it, the others do when the lease has lapsed.
    Prefer {
        /// The name of the other host: its objects.election.node, or its host name.
        node: String,
    },
}

impl Leader {
    pub(crate) fn run(&self, call: &Call<'_>) -> Result<(), Failure> {
        let admin = call.admin()?;
        let answer = match self {
            Self::Status => {
                let status = admin.get("/leader.json")?;
                return call.output.write(part(&status), &status);
            }
            Self::StepDown => admin.post("/leader/step-down", &json!({}))?,
            Self::Prefer { node } => admin.post("/leader/prefer", &json!({ "node": node }))?,
        };
        if answer["done"] == Value::Bool(true) {
            return call.output.write("this host has stepped down: everything is stored", &answer);
        }
        let why = answer["why"].as_str().unwrap_or("it has not stepped down yet");
        call.output.write(why, &answer)?;
        Err(Failure::admin(admin.url(), None, why))
    }
}

fn part(of: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut shown = match text(&of["role"]).as_str() {
        "leader" => format!(
            "{} is the leader, with epoch {}, for {} ms without a renewal",
            text(&of["node"]),
            of["epoch"],
            of["lease_remaining_ms"]
        ),
        "taking" => {
            format!("{} takes the lead, and claims the store with epoch {}", text(&of["node"]), of["epoch"])
        }
        _ => match &of["leader"] {
            Value::Null => format!("{} is a standby; no host leads", text(&of["node"])),
            leader => format!(
                "{} is a standby; {} at {} is the leader, with epoch {}",
                text(&of["node"]),
                text(&leader["node"]),
                text(&leader["address"]),
                leader["epoch"]
            ),
        },
    };
    // Writing to a String cannot fail.
    let since = date(of["since_unix_ms"].as_u64().unwrap_or(0) / 1000);
    let _ = write!(shown, "\nsince {since}: {}", text(&of["reason"]));
    if let Some(error) = of["registry_error"].as_str() {
        let _ = write!(shown, "\nthe registry: {error}");
    }
    if of["lost_bytes"].as_u64().is_some_and(|bytes| bytes > 0) {
        let _ = write!(shown, "\n{} acknowledged bytes were lost with earlier leaderships", of["lost_bytes"]);
    }
    for kept in of["overtaken_journals"].as_array().into_iter().flatten().map(text) {
        let _ = write!(
            shown,
            "\na journal that another host has overtaken: `cachectl journal export {kept} TO` saves what was not \
             stored, then remove {kept}"
        );
    }
    shown
}
