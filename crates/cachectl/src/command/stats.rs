//! `stats` and `policy`: what is not data path.

use blocker::WriteMode;
use clap::Args;
use serde_json::{Map, Value, json};

use super::Context;
use crate::exit::{About, Failure};

#[derive(Args)]
pub(crate) struct Stats {
    /// Only figures whose name contains this.
    #[arg(default_value = "")]
    filter: String,
}

impl Stats {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let mut figures = context.opened.control.statistics()?;
        figures.retain(|(name, _)| name.contains(&self.filter));
        let width = figures.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let lines: Vec<_> = figures.iter().map(|(name, value)| format!("{name:width$}  {value}")).collect();
        let values: Map<_, _> = figures.into_iter().map(|(name, value)| (name, json!(value))).collect();
        context.output.say(lines.join("\n"), &Value::Object(values))
    }
}

#[derive(Args)]
pub(crate) struct ShowPolicy {
    /// Not taken: what becomes of writes is set in the server's configuration.
    #[arg(hide = true)]
    write: Option<String>,
}

impl ShowPolicy {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let namespace = context.namespace;
        if let Some(write) = &self.write {
            let text = format!(
                "{write} is not taken: a cache has its policies from its configuration, and keeps them while it \
                 runs; set write under [[objects.namespaces]] there ([[cache.namespaces]] for synapsed)"
            );
            return Err(Failure::Usage(text));
        }
        let policy = context.opened.control.policy(namespace).about(namespace)?;
        let word = match policy.write {
            WriteMode::Back => "back",
            WriteMode::Through => "through",
            WriteMode::Around => "around",
        };
        context.output.say(format!("write-{word}"), &json!({ "write": word }))
    }
}
