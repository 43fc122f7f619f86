//! The subcommands that are one call each: `cp`, `info`, `ls`, `rm`, `flush`.

use blocker::executor::block_on;
use blocker::{
    Condition, CopyRequest, DeleteRequest, Durability, Error, FlushRequest, InfoRequest, ListEntry,
    ListRequest, Name, Scope,
};
use clap::Args;
use serde_json::{Value, json};

use super::{Context, striped};
use crate::exit::{About, Failure};

#[derive(Args)]
pub(crate) struct Copy {
    /// What to copy.
    from: String,
    /// What to copy it to.
    to: String,
    /// Fail if there is such an object already.
    #[arg(long)]
    new: bool,
}

impl Copy {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let (from, to) = (context.object(&self.from)?, context.object(&self.to)?);
        let condition = if self.new { Condition::Absent } else { Condition::None };
        let request =
            CopyRequest::new(from.clone(), to.clone()).condition(condition).durability(Durability::Stored);
        let reply = block_on(context.opened.backend.copy(request)).about(format!("{from} to {to}"))?;
        let text = format!("{from} copied to {to}, {} bytes, version {}", reply.size_bytes, reply.version);
        let value = json!({ "name": self.to, "size_bytes": reply.size_bytes, "version": reply.version.0 });
        context.output.write(text, &value)
    }
}

#[derive(Args)]
pub(crate) struct Info {
    /// The object's name.
    name: String,
}

impl Info {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let object = context.object(&self.name)?;
        let info = block_on(context.opened.backend.info(InfoRequest::new(object.clone()))).about(&object)?;
        let stamp = info.stamp.map_or("none".to_owned(), |stamp| stamp.to_string());
        let text =
            format!("{object}\nsize {} bytes\nversion {}\nstamp {stamp}", info.size_bytes, info.version);
        let stamp = info.stamp.map(|stamp| json!({ "epoch": stamp.epoch.0, "sequence": stamp.sequence }));
        let value = json!({
            "name": self.name, "size_bytes": info.size_bytes, "version": info.version.0, "stamp": stamp,
        });
        context.output.write(text, &value)
    }
}

#[derive(Args)]
pub(crate) struct List {
    /// Only names that begin with this.
    #[arg(default_value = "")]
    prefix: String,
    /// Names only.
    #[arg(short = '1', long)]
    names: bool,
}

impl List {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let entries_max = context.opened.backend.capabilities().list_entries_max;
        let mut request = ListRequest::new(context.namespace.clone())
            .prefix(self.prefix.clone().into_bytes())
            .entries_max(entries_max);
        loop {
            let page = block_on(context.opened.backend.list(request.clone())).about(context.namespace)?;
            for entry in &page.entries {
                let name = &entry.name;
                let text =
                    if self.names { name.to_string() } else { format!("{:>12}  {name}", entry.size_bytes) };
                context.output.write(text, &value(entry))?;
            }
            let Some(last) = page.entries.last().filter(|_| page.has_more) else { return Ok(()) };
            request = request.after(last.name.clone());
        }
    }
}

fn value(entry: &ListEntry) -> Value {
    let name = name_value(&entry.name);
    json!({ "name": name, "size_bytes": entry.size_bytes, "version": entry.version.0 })
}

/// JSON has no bytes: a name that is text is shown so, any other as a list of its bytes.
fn name_value(name: &Name) -> Value {
    match std::str::from_utf8(name.as_bytes()) {
        Ok(text) => json!(text),
        Err(_) => json!(name.as_bytes()),
    }
}

#[derive(Args)]
pub(crate) struct Remove {
    /// The object's name.
    name: String,
    /// Remove what was stored with `put --stripe`.
    #[arg(long)]
    stripe: bool,
}

impl Remove {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let object = context.object(&self.name)?;
        if self.stripe {
            let count = striped::remove(context, &self.name)?;
            if count == 0 {
                return Err(Error::Missing).about(object);
            }
            let text = format!("{count} stripes of {object} removed");
            return context.output.write(text, &json!({ "name": self.name, "stripes": count }));
        }
        let request = DeleteRequest::new(object.clone()).durability(Durability::Stored);
        block_on(context.opened.backend.delete(request)).about(&object)?;
        context.output.write(format!("{object} removed"), &json!({ "name": self.name }))
    }
}

#[derive(Args)]
pub(crate) struct Flush {
    /// Flush all namespaces.
    #[arg(long)]
    all: bool,
    /// What everything acknowledged must survive before the command ends: stored, or journaled (a crash of
    /// the server and of its host, if the server has a journal). The output states what it got.
    #[arg(long, value_name = "DURABILITY", default_value_t = Durability::Stored)]
    durability: Durability,
}

impl Flush {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let scope = if self.all { Scope::All } else { Scope::Namespace(context.namespace.clone()) };
        let request = FlushRequest::new(scope).durability(self.durability);
        let reply = block_on(context.opened.backend.flush(request))?;
        context.output.write(reply.durability, &json!({ "durability": reply.durability.to_string() }))
    }
}
