//! `top`: watches a running server through its admin listener.
//!
//! | module | content |
//! |---|---|
//! | `model` | rates, ratios, risks; the parts of `/status.json` |
//! | `view` | figures and tables as text |
//! | `storage` | the tables of volumes and of S3 |
//! | `screen` | draws them; the terminal, its keys, and the thread that asks |

mod model;
mod screen;
mod storage;
#[cfg(test)]
mod tests;
mod view;

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::admin::Admin;
use crate::command::{Call, seconds, within};
use crate::output::{Failure, Output};

/// The maximum wait after a failure, unless figures are requested less often.
const FAILED_DELAY_MAX: Duration = Duration::from_secs(5);
/// The time for which the screen waits for a response, unless --timeout is less.
const ANSWER_TIMEOUT_MAX: Duration = Duration::from_secs(5);

#[derive(Args)]
pub(crate) struct Top {
    /// Write the figures once and exit, for scripts: as text or, with --json, the server's status.json
    /// as one line.
    #[arg(long)]
    once: bool,

    /// The interval between two updates, in seconds or with a unit.
    #[arg(long, value_name = "DURATION", default_value_t = 2, value_parser = within(seconds, 1..=3600))]
    every: u64,
}

impl Top {
    pub(crate) fn run(&self, call: &Call<'_>) -> Result<(), Failure> {
        if self.once {
            return once(&call.admin()?, call.output);
        }
        if !std::io::stdout().is_terminal() || call.output.is_json() {
            let text = "top needs a terminal; use top --once, with or without --json, in scripts";
            return Err(Failure::usage(text));
        }
        let timeout = call.timeout.map_or(ANSWER_TIMEOUT_MAX, |timeout| timeout.min(ANSWER_TIMEOUT_MAX));
        screen::watch(call.admin_within(Some(timeout))?, Duration::from_secs(self.every))
    }
}

fn parse(document: Value) -> Result<Value, Failure> {
    if !document.get("instance").is_some_and(Value::is_string) {
        let why = "the response is not a status: it has no instance";
        return Err(Failure::admin("/status.json", None, why));
    }
    Ok(document)
}

/// Writes the figures once.
fn once(admin: &Admin, output: &Output) -> Result<(), Failure> {
    let document = admin.get("/status.json")?;
    let mut model = model::Model::default();
    model.take(parse(document.clone())?);
    output.write(once_text(&model), &document)
}

/// Returns the overview as text.
fn once_text(model: &model::Model) -> String {
    let mut lines: Vec<String> = model.now().map(view::header).into_iter().collect();
    for risk in model.risks() {
        lines.push(format!("{} {}", if risk.is_bad { "▲" } else { "●" }, risk.text));
    }
    for figure in view::figures(model) {
        lines.push(
            format!("{:<15}  {:<12}  {}", figure.name, figure.value, figure.detail).trim_end().to_owned(),
        );
    }
    for page in [view::Page::Overview, view::Page::Requests, view::Page::S3] {
        for table in view::tables(page, model, &view::Documents::default()) {
            if !table.rows.is_empty() {
                lines.push(String::new());
                lines.extend(screen::lines(&table, usize::from(u16::MAX)).into_iter().map(|(_, line)| line));
            }
        }
    }
    lines.join("\n")
}
