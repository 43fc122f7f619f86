//! `namespace`: the namespaces of a running server's object cache, by its admin listener.

use std::time::Duration;

use blocker::WriteMode;
use cached_config::Size;
use cached_core::object::NamespaceKey;
use clap::{Args, Subcommand};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::StrDeserializer;
use serde_json::{Map, Value, json};

use super::until_done::until_done;
use crate::admin::{Admin, AdminArguments};
use crate::exit::Failure;
use crate::output::Output;

#[derive(Args)]
pub(crate) struct Namespaces {
    #[command(subcommand)]
    command: NamespaceCommand,
}

#[derive(Subcommand)]
enum NamespaceCommand {
    /// List the namespaces that are configured or have been used, those with the most dirty data first.
    List,
    /// Show one namespace: its write mode, what the cache has of it, and what has been done with it.
    Show(Name),
    /// Set the write mode of a namespace, or other settings; ends when nothing of the mode before is left.
    ///
    /// Settings have the names that they have in the configuration ([[objects.namespaces]]): quota_bytes_max=10GiB,
    /// store_requests_per_second_max=500, memory_weight=none. Mode and settings hold until the server restarts, or until
    /// its configuration is read again with another mode, or that setting, of the namespace: write them into the file to
    /// keep them. They are in force at once. If --timeout passes before what was written back is stored, the exit code is
    /// not 0, and the rest is stored in the background.
    Set(Set),
    /// Drop what the cache has of a namespace, and the write mode that was set for it. The store keeps its objects.
    ///
    /// Refused while data of it are not stored, unless --flush stores them first, or --discard-dirty drops them.
    Remove(Remove),
}

#[derive(Args)]
struct Name {
    /// The name of the namespace.
    #[arg(value_name = "NAME")]
    name: String,
}

#[derive(Args)]
struct Set {
    #[command(flatten)]
    name: Name,

    /// How writes are treated: back, through, around or read-only.
    #[arg(long, required_unless_present = "settings")]
    write: Option<WriteMode>,

    /// Settings, each with its value: a number, a size (64MiB), or none.
    #[arg(value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<(NamespaceKey, Option<u64>)>,
}

/// Returns a setting that is given as `KEY=VALUE`.
fn setting(text: &str) -> Result<(NamespaceKey, Option<u64>), String> {
    let (key, value) = text.split_once('=').ok_or("give KEY=VALUE, or KEY=none")?;
    let key: NamespaceKey = key.parse().map_err(|error: blocker::Error| error.to_string())?;
    if value == "none" {
        return Ok((key, None));
    }
    let number = value.parse::<u64>().ok();
    let size = || {
        let deserializer: StrDeserializer<'_, serde::de::value::Error> = value.into_deserializer();
        Size::deserialize(deserializer).ok().filter(|_| key.is_bytes()).map(|size| size.0)
    };
    let kind = if key.is_bytes() { "a number of bytes, a size as in 64MiB," } else { "a whole number" };
    let value = number.or_else(size).ok_or_else(|| format!("{key} takes {kind} or none, not {value:?}"))?;
    Ok((key, Some(value)))
}

#[derive(Args)]
struct Remove {
    #[command(flatten)]
    name: Name,

    /// Store first what is not stored.
    #[arg(long)]
    flush: bool,

    /// Drop what is not stored: acknowledged writes are lost.
    #[arg(long, conflicts_with = "flush")]
    discard_dirty: bool,
}

impl Namespaces {
    pub(crate) fn run(
        &self,
        arguments: &AdminArguments,
        timeout: Option<Duration>,
        output: &Output,
    ) -> Result<(), Failure> {
        // One request waits for 20 seconds at most; `timeout` is for all of them together.
        let admin = Admin::new(arguments, timeout)?;
        match &self.command {
            NamespaceCommand::List => {
                let answer = admin.get("/namespaces.json")?;
                let all = answer["namespaces"].as_array().map_or(&[][..], Vec::as_slice);
                let lines: Vec<String> = all.iter().map(line).collect();
                output.write(lines.join("\n"), &answer)
            }
            NamespaceCommand::Show(Name { name }) => {
                let answer = admin.get(&format!("/namespaces.json?name={}", encoded(name)))?;
                output.write(shown(&answer), &answer)
            }
            NamespaceCommand::Set(Set { name: Name { name }, write, settings }) => {
                let values: Map<String, Value> =
                    settings.iter().map(|(key, value)| (key.name().to_owned(), json!(value))).collect();
                let mode = write.map(|write| write.to_string());
                let body = json!({ "namespace": name, "write": mode, "settings": values });
                let answer = until_done(&admin, "/namespaces/set", &body, timeout)?;
                let mode = mode.map(|mode| format!("write-{mode}")).into_iter();
                let shown = |(key, value): &(NamespaceKey, Option<u64>)| {
                    format!("{key}={}", value.map_or_else(|| "none".to_owned(), |value| value.to_string()))
                };
                let all: Vec<String> = mode.chain(settings.iter().map(shown)).collect();
                output.write(format!("{name} is {} until the next restart", all.join(", ")), &answer)
            }
            NamespaceCommand::Remove(Remove { name: Name { name }, flush, discard_dirty }) => {
                let body = json!({ "namespace": name, "flush": flush, "discard_dirty": discard_dirty });
                let answer = until_done(&admin, "/namespaces/remove", &body, timeout)?;
                let discarded = match answer["discarded_bytes"].as_u64() {
                    None | Some(0) => String::new(),
                    Some(bytes) => format!(", and {bytes} that were not stored were discarded"),
                };
                let line =
                    format!("{name} is removed: {} bytes were dropped{discarded}", answer["dropped_bytes"]);
                output.write(line, &answer)
            }
        }
    }
}

/// Returns a name as a part of a query.
fn encoded(name: &str) -> String {
    let letter = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        other => format!("%{other:02x}"),
    };
    name.bytes().map(letter).collect()
}

fn name_of(of: &Value) -> &str {
    of["namespace"].as_str().unwrap_or("(all others)")
}

fn mode_of(of: &Value) -> String {
    let left = if of["changing"] == Value::Bool(true) { ", changing" } else { "" };
    format!("{}{left}", of["write"].as_str().unwrap_or_default())
}

fn line(of: &Value) -> String {
    format!(
        "{}  {}, {} objects, {} bytes cached, {} dirty",
        name_of(of),
        mode_of(of),
        of["objects"],
        of["cached_bytes"],
        of["dirty_bytes"]
    )
}

fn shown(of: &Value) -> String {
    let mut text = format!("{}\n  write             {}", name_of(of), mode_of(of));
    for key in [
        "configured",
        "objects",
        "cached_bytes",
        "dirty_bytes",
        "dirty_bytes_max",
        "dirty_age_ms",
        "writes_throttled",
        "read_hits",
        "read_misses",
        "writes",
    ] {
        let value = if of[key].is_null() { "none".to_owned() } else { of[key].to_string() };
        text.push_str(&format!("\n  {key:<17} {value}"));
    }
    // Those that are set.
    for (key, value) in of["settings"].as_object().into_iter().flatten().filter(|(_, value)| !value.is_null())
    {
        text.push_str(&format!("\n  {key} = {value}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded_and_namespaces_shown() {
        assert_eq!(encoded("a/b c-1"), "a%2fb%20c-1");
        let of = json!({
            "namespace": "vm", "write": "through", "changing": true, "configured": false, "objects": 2,
            "cached_bytes": 8192, "dirty_bytes": 4096, "dirty_bytes_max": null,
        });
        assert_eq!(line(&of), "vm  through, changing, 2 objects, 8192 bytes cached, 4096 dirty");
        assert!(shown(&of).contains("\n  dirty_bytes_max   none\n"), "{}", shown(&of));
        let set = json!({ "settings": { "quota_bytes_max": 5, "store_weight": null } });
        assert!(shown(&set).ends_with("\n  quota_bytes_max = 5"), "{}", shown(&set));
        assert!(line(&json!({ "namespace": null })).starts_with("(all others)"));
    }

    #[test]
    fn settings_are_numbers_sizes_or_none() {
        assert_eq!(setting("quota_bytes_max=64MiB"), Ok((NamespaceKey::QuotaBytesMax, Some(64 << 20))));
        assert_eq!(setting("quota_bytes_max=4096"), Ok((NamespaceKey::QuotaBytesMax, Some(4096))));
        assert_eq!(setting("store_weight=none"), Ok((NamespaceKey::StoreWeight, None)));
        for (wrong, why) in [
            ("store_weight=64MiB", "a whole number"),
            ("quota_bytes_max=much", "64MiB"),
            ("colour=1", "quota_bytes_max"),
            ("store_weight", "KEY=VALUE"),
        ] {
            let error = setting(wrong).unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
