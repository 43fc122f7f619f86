//! `config`, `reload`, `drain`, `flush-prefix`: what an operator changes in a running server, by its admin listener.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use crate::admin::{Admin, AdminArguments};
use crate::exit::Failure;
use crate::output::Output;

#[derive(Args)]
pub(crate) struct Config {
    /// Show only keys that contain this.
    key: Option<String>,

    /// Show only what the file or flags set.
    #[arg(long)]
    changed: bool,
}

#[derive(Args)]
pub(crate) struct Reload {}

#[derive(Args)]
pub(crate) struct Drain {}

#[derive(Args)]
pub(crate) struct FlushPrefix {
    /// What the keys begin with: 1 to 250 bytes.
    prefix: String,
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

impl Config {
    pub(crate) fn run(
        &self,
        arguments: &AdminArguments,
        timeout: Option<Duration>,
        output: &Output,
    ) -> Result<(), Failure> {
        let mut answer = Admin::new(arguments, timeout)?.get("/config.json")?;
        if let Some(entries) = answer.get_mut("entries").and_then(Value::as_array_mut) {
            let wanted = self.key.as_deref().unwrap_or_default();
            entries.retain(|entry| {
                text(&entry["key"]).contains(wanted)
                    && (!self.changed || entry["changed"] == Value::Bool(true))
            });
        }
        let mut shown = String::new();
        for entry in list(&answer["entries"]) {
            let change = if entry["live"] == Value::Bool(true) { "live" } else { "restart" };
            let [key, value, origin] = ["key", "value", "origin"].map(|name| text(&entry[name]));
            // Writing to a String cannot fail.
            let _ = writeln!(shown, "{key} = {value}  # {origin}, {change}");
        }
        output.write(shown.trim_end(), &answer)
    }
}

impl Reload {
    pub(crate) fn run(
        &self,
        arguments: &AdminArguments,
        timeout: Option<Duration>,
        output: &Output,
    ) -> Result<(), Failure> {
        let answer = Admin::new(arguments, timeout)?.post("/reload", &json!({}))?;
        output.write(text(&answer["text"]).trim_end(), &answer)
    }
}

impl Drain {
    pub(crate) fn run(
        &self,
        arguments: &AdminArguments,
        timeout: Option<Duration>,
        output: &Output,
    ) -> Result<(), Failure> {
        let answer = Admin::new(arguments, timeout)?.post("/drain", &json!({}))?;
        output.write("the end was requested: the server is not ready any more", &answer)
    }
}

impl FlushPrefix {
    pub(crate) fn run(
        &self,
        arguments: &AdminArguments,
        timeout: Option<Duration>,
        output: &Output,
    ) -> Result<(), Failure> {
        let body = json!({ "prefix": self.prefix });
        let answer = Admin::new(arguments, timeout)?.post("/flush-prefix", &body)?;
        let line = format!("no item of a key that begins with {:?} is served any more", self.prefix);
        output.write(&line, &answer)
    }
}
