//! `stats` and `policy`: what is not data path.

use blocker::{Policy, WritePolicy};
use clap::{Args, ValueEnum};
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
pub(crate) struct SetPolicy {
    /// How writes to the namespace are treated from now on; without it the policy is shown.
    write: Option<Write>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Write {
    /// Acknowledged from the cache, stored later.
    Back,
    /// Stored before it is acknowledged, and kept.
    Through,
    /// Stored, not kept.
    Around,
}

impl SetPolicy {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let (control, namespace) = (&context.opened.control, context.namespace);
        if let Some(write) = self.write {
            let mut policy = Policy::default();
            policy.write = match write {
                Write::Back => WritePolicy::Back,
                Write::Through => WritePolicy::Through,
                Write::Around => WritePolicy::Around,
            };
            control.set_policy(namespace, policy).about(namespace)?;
        }
        let policy = control.policy(namespace).about(namespace)?;
        let word = match policy.write {
            WritePolicy::Back => "back",
            WritePolicy::Through => "through",
            WritePolicy::Around => "around",
        };
        context.output.say(format!("write-{word}"), &json!({ "write": word }))
    }
}
