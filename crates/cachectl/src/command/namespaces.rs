//! `namespace`: the namespaces of a running server's object cache, through its admin listener or
//! over synapse.

use std::time::Duration;

use blocker::executor::block_on;
use blocker::{
    Blocker, DirtyData, Error, FlushRequest, Namespace, NamespaceKey, NamespaceSettings, NamespaceState,
    Scope, WriteMode,
};
use cached_config::{parse_number, suggestion};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::admin::{Admin, encoded, list};
use crate::command::Call;
use crate::command::operate::until_done;
use crate::output::{About, Failure, Output};

#[derive(Subcommand)]
pub(crate) enum Namespaces {
    /// List the namespaces that are configured or have been used, in descending order of dirty data.
    List,
    /// Show one namespace: its write mode, its data in the cache, and its counters.
    Show(Name),
    /// Like `set`, for a namespace that is neither configured nor in use. Fails for any other
    /// namespace, and then changes nothing.
    Create(Set),
    /// Set the write mode or other settings of a namespace. The command ends when all data of the
    /// previous mode are stored.
    ///
    /// Settings have the names of the configuration keys ([[objects.namespaces]]):
    /// quota_bytes_max=10GiB, store_requests_per_second_max=500, memory_weight=none. They are in
    /// force immediately, and last until the server restarts, or until it reloads a configuration
    /// in which this value of the namespace has changed: write them into the file to keep them. If
    /// --timeout passes before dirty data are stored, the exit code is not 0, and the rest is stored
    /// in the background.
    Set(Set),
    /// Store all dirty data of a namespace. Clients are not interrupted; the command does not
    /// wait for what they write after it has begun.
    ///
    /// The write mode stays as it is. If --timeout passes before the data are stored, the exit code is
    /// not 0, and the rest is stored in the background.
    Flush(Name),
    /// Drop the data of a namespace from the cache, and the settings that `set` has made. The
    /// objects stay in the store, and the settings of the configuration file stay in force.
    ///
    /// Refused while a volume in the namespace is attached, and while some of its data are not
    /// stored, unless --flush stores them first, or --discard-dirty drops them.
    Remove {
        #[command(flatten)]
        name: Name,
        /// Store dirty data first.
        #[arg(long)]
        flush: bool,
        /// Drop dirty data: acknowledged writes are lost.
        #[arg(long, conflicts_with = "flush")]
        discard_dirty: bool,
    },
}

#[derive(Args)]
pub(crate) struct Name {
    /// The name of the namespace.
    #[arg(value_name = "NAME")]
    name: String,
}

#[derive(Args)]
pub(crate) struct Set {
    #[command(flatten)]
    name: Name,

    /// The write mode: back, through, around or read-only.
    #[arg(long, required_unless_present = "settings")]
    write: Option<WriteMode>,

    /// Settings, each with its value: a number, a size (64MiB), a duration (200ms), or none.
    #[arg(value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<(NamespaceKey, Option<u64>)>,
}

/// Parses a setting of the form `KEY=VALUE`.
fn setting(text: &str) -> Result<(NamespaceKey, Option<u64>), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE or KEY=none")?;
    let unknown = |error: blocker::Error| {
        error.to_string() + &suggestion(key, NamespaceKey::ALL.map(NamespaceKey::name))
    };
    let key: NamespaceKey = key.parse().map_err(unknown)?;
    if value == "none" {
        return Ok((key, None));
    }
    let value =
        parse_number(key.name(), value).map_err(|why| format!("{key}: {why}; none removes the setting"))?;
    Ok((key, Some(value)))
}

/// Access to the namespaces of a running server.
trait Manager {
    /// Returns all namespaces that are configured or used, those with the most dirty data first.
    fn list(&self) -> Result<Value, Failure>;

    /// Returns one namespace; `None` if it is neither configured nor used.
    fn show(&self, name: &str) -> Result<Option<Value>, Failure>;

    fn set(&self, name: &str, settings: &NamespaceSettings) -> Result<Value, Failure>;

    fn flush(&self, name: &str) -> Result<Value, Failure>;

    fn remove(&self, name: &str, dirty_data: DirtyData) -> Result<Value, Failure>;
}

impl Namespaces {
    /// Sends the request to the admin listener, or over synapse if the command line says so.
    pub(crate) fn run(&self, call: &Call<'_>) -> Result<(), Failure> {
        if call.servers.prefer_synapse()? {
            return call.changes(|context| self.run_on(&*context.opened.backend, call.output));
        }
        self.manage(&ByAdmin { admin: call.admin()?, timeout: call.timeout }, call.output)
    }

    /// Sends the request to a backend that is a server.
    fn run_on(&self, backend: &dyn Blocker, output: &Output) -> Result<(), Failure> {
        let done = self.manage(&ByBackend(backend), output);
        done.map_err(|failure| {
            failure.leaves("sent over synapse, because no admin listener is named; --admin names one")
        })
    }

    fn manage(&self, manager: &dyn Manager, output: &Output) -> Result<(), Failure> {
        match self {
            Self::List => {
                let answer = manager.list()?;
                let lines: Vec<String> = list(&answer, "namespaces").iter().map(line).collect();
                output.write(lines.join("\n"), &answer)
            }
            Self::Show(Name { name }) => {
                let answer = manager.show(name)?.ok_or_else(|| missing(name))?;
                output.write(shown(&answer), &answer)
            }
            Self::Create(set) => {
                let name = &set.name.name;
                if manager.show(name)?.is_some() {
                    return Err(Failure::backend(name, &Error::Exists));
                }
                set.run(manager, output)
            }
            Self::Set(set) => set.run(manager, output),
            Self::Flush(Name { name }) => {
                let answer = manager.flush(name)?;
                output.write(format!("{name} is flushed: its data are stored"), &answer)
            }
            Self::Remove { name: Name { name }, flush, discard_dirty } => {
                let dirty_data = match (flush, discard_dirty) {
                    (true, _) => DirtyData::Store,
                    (_, true) => DirtyData::Discard,
                    _ => DirtyData::Refuse,
                };
                let answer = manager.remove(name, dirty_data)?;
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

impl Set {
    fn run(&self, manager: &dyn Manager, output: &Output) -> Result<(), Failure> {
        let Self { name: Name { name }, write, settings } = self;
        let mut all = NamespaceSettings::default();
        all.write = *write;
        settings.iter().for_each(|(key, value)| all.set(*key, *value));
        let answer = manager.set(name, &all)?;
        let mode = write.map(|write| format!("write-{write}")).into_iter();
        let shown = |(key, value): (NamespaceKey, Option<u64>)| {
            format!("{key}={}", value.map_or_else(|| "none".to_owned(), |value| value.to_string()))
        };
        let all: Vec<String> = mode.chain(all.values().map(shown)).collect();
        output.write(format!("{name} is {} until the next restart", all.join(", ")), &answer)
    }
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

/// Returns the source of a value, in parentheses; empty if the server does not state it.
fn source_of(of: &Value, key: &str) -> String {
    of["sources"][key].as_str().map_or_else(String::new, |source| format!(" ({source})"))
}

fn shown(of: &Value) -> String {
    let mut text = format!("{}\n  write             {}{}", name_of(of), mode_of(of), source_of(of, "write"));
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
    // These are the settings that are set, including those set to none.
    for (key, value) in of["settings"].as_object().into_iter().flatten() {
        match (value, source_of(of, key)) {
            (Value::Null, source) if source.is_empty() => {}
            (Value::Null, source) => text.push_str(&format!("\n  {key} = none{source}")),
            (value, source) => text.push_str(&format!("\n  {key} = {value}{source}")),
        }
    }
    text
}

/// A single request waits for at most 20 seconds; `timeout` applies to all requests together.
struct ByAdmin {
    admin: Admin,
    timeout: Option<Duration>,
}

impl ByAdmin {
    /// Repeats the request about an existing namespace until the response reports completion.
    fn until_done(&self, path: &str, name: &str, body: &Value) -> Result<Value, Failure> {
        until_done(&self.admin, path, body, self.timeout).map_err(|failure| match is_missing(&failure) {
            true => missing(name),
            false => failure,
        })
    }
}

impl Manager for ByAdmin {
    fn list(&self) -> Result<Value, Failure> {
        self.admin.get("/namespaces.json")
    }

    fn show(&self, name: &str) -> Result<Option<Value>, Failure> {
        match self.admin.get(&format!("/namespaces.json?name={}", encoded(name))) {
            Err(failure) if is_missing(&failure) => Ok(None),
            shown => shown.map(Some),
        }
    }

    fn set(&self, name: &str, settings: &NamespaceSettings) -> Result<Value, Failure> {
        let mut values = settings.clone();
        let body = json!({ "namespace": name, "write": values.write.take(), "settings": values });
        until_done(&self.admin, "/namespaces/set", &body, self.timeout)
    }

    fn flush(&self, name: &str) -> Result<Value, Failure> {
        self.until_done("/namespaces/flush", name, &json!({ "namespace": name }))
    }

    fn remove(&self, name: &str, dirty_data: DirtyData) -> Result<Value, Failure> {
        let (flush, discard) = (dirty_data == DirtyData::Store, dirty_data == DirtyData::Discard);
        let body = json!({ "namespace": name, "flush": flush, "discard_dirty": discard });
        self.until_done("/namespaces/remove", name, &body)
    }
}

/// Returns the failure of a command about a namespace that is neither configured nor used.
fn missing(name: &str) -> Failure {
    Failure::refused(name, 404, "no such namespace is configured or in use")
}

/// Returns whether the response states that the namespace is neither configured nor used. A server
/// without an object cache does not have the route at all.
fn is_missing(failure: &Failure) -> bool {
    failure.status == Some(404) && failure.to_string().contains("no namespace")
}

struct ByBackend<'a>(&'a dyn Blocker);

impl Manager for ByBackend<'_> {
    fn list(&self) -> Result<Value, Failure> {
        let mut all: Vec<NamespaceState> = Vec::new();
        loop {
            let after = all.last().map(|last| last.namespace.clone());
            let page = block_on(self.0.control().namespace_states(after))?;
            let is_last = !page.has_more || page.states.is_empty();
            all.extend(page.states);
            if is_last {
                break;
            }
        }
        let mut values: Vec<Value> = all.iter().map(value).collect();
        let amount = |of: &Value, key: &str| of[key].as_u64().unwrap_or(0);
        values.sort_by_key(|of| std::cmp::Reverse((amount(of, "dirty_bytes"), amount(of, "cached_bytes"))));
        Ok(json!({ "namespaces": values }))
    }

    fn show(&self, name: &str) -> Result<Option<Value>, Failure> {
        match block_on(self.0.control().namespace_state(namespace(name)?)) {
            Err(Error::Missing) => Ok(None),
            state => Ok(Some(value(&state.about(name)?))),
        }
    }

    fn set(&self, name: &str, settings: &NamespaceSettings) -> Result<Value, Failure> {
        block_on(self.0.control().change_namespace(namespace(name)?, settings.clone())).about(name)?;
        Ok(json!({ "done": true }))
    }

    fn flush(&self, name: &str) -> Result<Value, Failure> {
        let namespace = namespace(name)?;
        // A flush succeeds for any name.
        existing(name, block_on(self.0.control().namespace_state(namespace.clone())))?;
        block_on(self.0.flush(FlushRequest::new(Scope::Namespace(namespace)))).about(name)?;
        Ok(json!({ "done": true }))
    }

    fn remove(&self, name: &str, dirty_data: DirtyData) -> Result<Value, Failure> {
        let removed = block_on(self.0.control().remove_namespace(namespace(name)?, dirty_data));
        let removed = existing(name, removed)?;
        Ok(json!({
            "done": true,
            "dropped_bytes": removed.dropped_bytes,
            "discarded_bytes": removed.discarded_bytes,
        }))
    }
}

/// Returns the result of a request about an existing namespace.
fn existing<T>(name: &str, result: blocker::Result<T>) -> Result<T, Failure> {
    match result {
        Err(Error::Missing) => Err(missing(name)),
        result => result.about(name),
    }
}

fn namespace(name: &str) -> Result<Namespace, Failure> {
    Ok(Namespace::copy_from(name.as_bytes())?)
}

/// Returns a state as the admin listener shows it.
fn value(of: &NamespaceState) -> Value {
    let mut value = json!({
        "namespace": of.namespace.to_string(),
        "write": of.write.to_string(),
        "changing": of.is_changing,
        "configured": of.is_configured,
    });
    for (name, count) in &of.counts {
        value[name.as_str()] = json!(count);
    }
    value["settings"] = json!(of.settings);
    value
}

#[cfg(test)]
mod namespaces_tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn namespaces_are_shown() {
        let of = json!({
            "namespace": "vm", "write": "through", "changing": true, "configured": false, "objects": 2,
            "cached_bytes": 8192, "dirty_bytes": 4096, "dirty_bytes_max": null,
        });
        assert_eq!(line(&of), "vm  through, changing, 2 objects, 8192 bytes cached, 4096 dirty");
        assert!(shown(&of).contains("\n  dirty_bytes_max   none\n"), "{}", shown(&of));
        let set = json!({ "settings": { "quota_bytes_max": 5, "store_weight": null } });
        assert!(shown(&set).ends_with("\n  quota_bytes_max = 5"), "{}", shown(&set));
        let sources = json!({ "write": "file", "memory_weight": "command", "quota_bytes_max": "volume" });
        let settings = json!({ "memory_weight": null, "quota_bytes_max": 5, "store_weight": null });
        let set = json!({ "write": "back", "settings": settings, "sources": sources });
        assert!(shown(&set).contains("  back (file)\n"), "{}", shown(&set));
        let end = "\n  memory_weight = none (command)\n  quota_bytes_max = 5 (volume)";
        assert!(shown(&set).ends_with(end), "{}", shown(&set));
        assert!(line(&json!({ "namespace": null })).starts_with("(all others)"));
    }

    #[test]
    fn settings_are_numbers_sizes_durations_or_none() {
        assert_eq!(setting("quota_bytes_max=64MiB"), Ok((NamespaceKey::QuotaBytesMax, Some(64 << 20))));
        assert_eq!(setting("quota_bytes_max=4096"), Ok((NamespaceKey::QuotaBytesMax, Some(4096))));
        assert_eq!(setting("store_weight=none"), Ok((NamespaceKey::StoreWeight, None)));
        assert_eq!(setting("dirty_age_ms_max=5 s"), Ok((NamespaceKey::DirtyAgeMsMax, Some(5000))));
        for (wrong, why) in [
            ("store_weight=64MiB", "a whole number"),
            ("quota_bytes_max=much", "MiB"),
            ("colour=1", "quota_bytes_max"),
            ("store_wieght=1", "did you mean store_weight?"),
            ("store_weight", "KEY=VALUE"),
        ] {
            let error = setting(wrong).unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
