//! `stats`, `policy` and `lost`: the control plane.

use blocker::executor::block_on;
use blocker::metrics::{Number, render};
use blocker::{Policy, WriteMode};
use clap::Args;
use serde_json::{Map, Value, json};

use super::Context;
use crate::exit::{About, Failure};

#[derive(Args)]
pub(crate) struct Stats {
    /// Only metrics whose name contains this.
    #[arg(default_value = "")]
    filter: String,
}

impl Stats {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let mut pairs = render::pairs(&block_on(context.opened.backend.control().metrics())?);
        pairs.retain(|pair| pair.name.contains(&self.filter));
        let width = pairs.iter().map(|pair| pair.name.len()).max().unwrap_or(0);
        let lines: Vec<_> =
            pairs.iter().map(|pair| format!("{:width$}  {}", pair.name, pair.value)).collect();
        let number = |number| match number {
            Number::Integer(number) => json!(number),
            Number::Float(number) => json!(number),
        };
        let values: Map<_, _> = pairs.into_iter().map(|pair| (pair.name, number(pair.value))).collect();
        context.output.write(lines.join("\n"), &Value::Object(values))
    }
}

#[derive(Args)]
pub(crate) struct ShowPolicy {
    /// The write mode to set: back, through, around or read-only.
    write: Option<WriteMode>,
}

impl ShowPolicy {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let namespace = context.namespace;
        if let Some(write) = self.write {
            let mut policy = Policy::default();
            policy.write = write;
            let control = context.opened.backend.control();
            block_on(control.set_policy(namespace.clone(), policy)).about(namespace)?;
        }
        let policy = block_on(context.opened.backend.control().policy(namespace.clone())).about(namespace)?;
        let mode = policy.write.to_string();
        context.output.write(format!("write-{mode}"), &json!({ "write": mode }))
    }
}

#[derive(Args)]
pub(crate) struct Lost;

impl Lost {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let mut after = None;
        loop {
            let page = block_on(context.opened.backend.control().losses(after.take()))?;
            for loss in &page.losses {
                let (changes, bytes) = (loss.changes, loss.bytes);
                let text = format!("{}: {changes} changes, {bytes} bytes: {}", loss.object, loss.reason);
                let value = json!({
                    "object": loss.object.to_string(), "changes": changes, "bytes": bytes, "reason": loss.reason,
                });
                context.output.write(text, &value)?;
            }
            after = page.losses.last().filter(|_| page.has_more).map(|loss| loss.object.clone());
            if after.is_none() {
                let (objects, bytes) = (page.unlisted_objects, page.unlisted_bytes);
                if objects == 0 {
                    return Ok(());
                }
                let text = format!("and {objects} objects that are not listed, {bytes} bytes");
                return context
                    .output
                    .write(text, &json!({ "unlisted_objects": objects, "unlisted_bytes": bytes }));
            }
        }
    }
}
