//! Reloading the configuration while `cached` runs: the same command line, and the current content
//! of the file.

use super::sidecar::LiveSidecar;
use crate::cli::{self, Request};
use crate::config::{Config, File, SidecarSecrets};
use blocker::trace::Tracer;
use cached_admin::{Tokens, TokensRead};
use cached_config::{ConfigError, HttpTable, LIVE_KEYS, parse_config, read_config};
use cached_memcached::LiveServer;
use cached_memcached::settings::RingSettings;
use cached_objects::ReloadObjects;
use cached_process::reload::{Program, Source};
use cached_ring::Map;
use parking_lot::Mutex;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::Table;

/// The configuration keys, of `cached` only, whose values can change at run time.
const SERVER_LIVE_KEYS: [&str; 17] = [
    "memcached.connections_max",
    "memcached.connections_excess",
    "memcached.connection_bytes_max",
    "memcached.idle_timeout_secs",
    "memcached.batches_per_wake",
    "memcached.requests_per_wake",
    "memcached.flush_command",
    "memcached.dump_commands",
    "memcached.watch_command",
    "memcached.shutdown_command",
    "ring.secret_file",
    "ring.secret_file_previous",
    "insight.slow_request_ms",
    "s3.fresh_secs",
    "s3.stale_if_error_secs",
    "s3.negative_secs",
    "s3.buckets",
];

/// The `cached` program, for changes of its configuration.
pub struct Cached {
    arguments: Vec<OsString>,
    path: Option<PathBuf>,
    in_force: Mutex<File>,
    /// The settings at the start of a node of a ring, if the server belongs to one.
    ring: Option<Arc<RingSettings>>,
    /// The map of the ring.
    map: Mutex<Option<Arc<Map>>>,
    /// The descriptors for connections of the object cache's listener and between nodes.
    descriptors_at_start: usize,
    parts: LiveParts,
}

/// The parts of the program that a reload changes.
pub struct LiveParts {
    /// The server of memcached's protocols.
    pub server: LiveServer,
    /// The object cache, if there is one.
    pub objects: Option<ReloadObjects>,
    /// The keys of the HTTP listener for objects.
    pub http_keys: Option<object_http::Keys>,
    /// The tokens of the admin listener.
    pub tokens: Option<Tokens>,
    /// The tracer, whose sampling rate can change.
    pub tracer: Option<Tracer>,
    /// The secrets of the sidecar.
    pub sidecar_secrets: SidecarSecrets,
    /// The settings of the sidecar, if there is one.
    pub sidecar: Option<LiveSidecar>,
}

impl Cached {
    /// Returns the program that was started with `arguments` and runs with `config`.
    pub fn new(arguments: Vec<OsString>, config: &Config, parts: LiveParts) -> Cached {
        let in_force = Mutex::new(File::from(config));
        let ring = config.settings.ring.clone();
        let map = ring.as_ref().map(|ring| Arc::clone(&ring.map));
        let descriptors_at_start = descriptors(&config.file, map.as_deref(), config.settings.threads);
        let (path, map) = (config.path.clone(), Mutex::new(map));
        Cached { arguments, path, in_force, ring, map, descriptors_at_start, parts }
    }

    /// Returns the name of the configuration file, for errors.
    fn name(&self) -> &Path {
        self.path.as_deref().unwrap_or(Path::new("the command line"))
    }
}

/// Returns the number of descriptors for connections of the object cache's listener and between
/// nodes.
fn descriptors(file: &File, map: Option<&Map>, threads: usize) -> usize {
    let synapse = file.synapse.as_ref().map_or(0, |table| table.connections_max as usize);
    let ring = file.ring.as_ref().zip(map);
    synapse + ring.map_or(0, |(table, map)| table.descriptors_max(map, threads))
}

/// Returns the source of the configuration that results from `arguments`; `file` is the absolute
/// path and the text of the configuration file.
///
/// # Errors
/// Returns a one-line message with the location of the mistake, the mistake and the remedy.
pub fn source(arguments: &[OsString], file: Option<(&Path, &str)>) -> Result<Source, String> {
    let table = |arguments: &[OsString]| match cli::read(arguments, file) {
        Ok(Request::Serve(config)) => {
            Table::try_from(File::with_derived_values_absent(&config)).map_err(|error| error.to_string())
        }
        Ok(Request::Print(_)) => Err("these arguments do not start a server".into()),
        Err(error) => Err(error.to_string()),
    };
    let program: Vec<OsString> = arguments.iter().take(1).cloned().collect();
    // This is called first, because its errors name the line.
    let (effective, without_flags) = (table(arguments)?, table(&program)?);
    let file = match file {
        None => Table::new(),
        Some((path, text)) => parse_config(path, text).map_err(|error| error.to_string())?,
    };
    Ok(Source { effective, without_flags, file })
}

impl Program for Cached {
    fn read(&self) -> Result<Source, String> {
        let Some(path) = &self.path else { return source(&self.arguments, None) };
        let text = read_config(path).map_err(|error| error.to_string())?;
        source(&self.arguments, Some((path, &text)))
    }

    fn file(&self) -> Option<PathBuf> {
        self.path.clone()
    }

    fn is_live(&self, key: &str) -> bool {
        LIVE_KEYS.contains(&key) || SERVER_LIVE_KEYS.contains(&key)
    }

    fn apply(&self, table: &Table) -> Result<Vec<String>, String> {
        let line = |error: ConfigError| error.in_file(self.name()).to_string();
        let text = toml::to_string(table).map_err(|error| error.to_string())?;
        let after = File::parse(self.name(), &text).map_err(|error| error.to_string())?;
        let (settings, secrets) = (after.settings().map_err(line)?, after.secrets().map_err(line)?);
        let (mut in_force, mut map) = (self.in_force.lock(), self.map.lock());
        let objects = after.objects.as_ref();
        let LiveParts { server, tracer, sidecar, .. } = &self.parts;
        // Steps that can fail come first: all files are read, then the object cache changes, or
        // nothing does.
        let tokens = self.parts.tokens.as_ref().map(Tokens::read_again).transpose()?;
        let sidecar_secrets = self.parts.sidecar_secrets.read_again()?;
        let http_keys = HttpTable::keys_again(self.parts.http_keys.as_ref())?;
        let ring = match (&after.ring, &self.ring, map.as_deref()) {
            (Some(table), Some(ring), Some(map)) => {
                Some((ring, table.read_again(&ring.node, map, &settings).map_err(line)?))
            }
            _ => None,
        };
        let mut files = server.refresh_files(|| match &self.parts.objects {
            None => Ok(Vec::new()),
            Some(live) => live.change(objects, after.synapse.as_ref(), secrets).map_err(line),
        })?;
        if let Some((ring, read)) = ring {
            if read.put_secrets_in_force(&ring.secrets) {
                files.push("ring.secret_file".into());
            }
            if map.as_deref() != Some(&read.map) {
                // The map was compared with the one in force.
                server.set_map(read.map.clone())?;
                *map = Some(Arc::new(read.map));
                files.push("ring.map_file".into());
            }
        }
        // These settings were checked with the file.
        if let Some(sidecar) = sidecar {
            sidecar.change(&after)?;
        }
        if tokens.is_some_and(TokensRead::put_in_force) {
            files.push("admin.token_file".into());
        }
        let descriptors = descriptors(&after, map.as_deref(), settings.threads);
        files.extend(sidecar_secrets.put_in_force().into_iter().map(String::from));
        files.extend(http_keys.map(|put_in_force| put_in_force()));
        server.change(&settings, descriptors.saturating_sub(self.descriptors_at_start));
        if let (Some(tracer), Some(table)) = (tracer, &after.tracing) {
            tracer.set_ratio(table.sample_ratio);
        }
        *in_force = after;
        Ok(files)
    }

    fn filled_in(&self, table: &Table) -> Table {
        let text = toml::to_string(table).unwrap_or_default();
        let file = File::parse(self.name(), &text).ok();
        file.and_then(|file| Table::try_from(file.filled_in()).ok()).unwrap_or_else(|| table.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use cached_process::reload::keys;
    use std::collections::BTreeMap;
    use toml::Value;

    fn repository(path: &str) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Returns the settings that a shipped file shows, without its examples.
    fn shown(path: &str) -> BTreeMap<String, Value> {
        let text = repository(path);
        let lines = text.lines().map(|line| line.strip_prefix('#').unwrap_or(line));
        let is_setting = |line: &str| {
            let key = line.split('=').next().unwrap_or_default().trim_end();
            let is_key =
                !key.is_empty() && key.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_');
            is_key && line.contains('=') || line.starts_with('[') && !line.starts_with("[[")
        };
        let mut table = String::new();
        let mut all = BTreeMap::new();
        for line in lines.filter(|line| is_setting(line) && !line.ends_with("# for example")) {
            if line.starts_with('[') {
                table = line.trim_matches(['[', ']']).to_owned() + ".";
                continue;
            }
            let one: Table = line.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
            all.extend(one.into_iter().map(|(key, value)| (format!("{table}{key}"), value)));
        }
        all
    }

    /// Both programs have tests that compare their shipped files with the defaults in the code, so
    /// settings that are equal in the files are equal in the programs.
    #[test]
    fn both_programs_have_the_same_keys_with_the_same_defaults() {
        let (cached, synapsed) = (shown("deploy/cached.toml"), shown("deploy/synapsed.toml"));
        assert!(synapsed.len() > 40, "{synapsed:?}");
        for (key, value) in &synapsed {
            if key != "backend" {
                assert_eq!(cached.get(key), Some(value), "{key}");
            }
        }
        // The settings that only `cached` has: the user and terminal of the process, the tables of
        // memcached's listeners, and the memory of both halves; and the tables that only its file
        // shows with all keys.
        let own = [
            "process.",
            "memcached.",
            "ring.",
            "insight.",
            "objects.backend.",
            "objects.election.",
            "objects.journal.",
            "objects.http.",
            "registry.",
            "shared_memory.",
            "volumes.",
            "nbd.",
            "s3.",
        ];
        for key in cached.keys().filter(|key| !own.iter().any(|own| key.starts_with(own))) {
            assert!(synapsed.contains_key(key), "{key} is missing in synapsed");
        }
    }

    #[test]
    fn every_live_key_is_a_key() {
        let shown = shown("deploy/cached.toml");
        let file = File::from(&Config::default());
        let known = keys(&Table::try_from(file).expect("TOML"));
        for key in LIVE_KEYS.iter().chain(&SERVER_LIVE_KEYS) {
            // These are lists of tables, tables that `synapsed` has at another level (its backend
            // is at the top), and a limit whose default follows from another one.
            let is_elsewhere =
                ["backend.secret_file", "objects.namespaces", "s3.buckets", "synapse.peer_connections_max"];
            let is_elsewhere = is_elsewhere.contains(key);
            assert!(known.contains_key(*key) || shown.contains_key(*key) || is_elsewhere, "{key}");
        }
    }

    #[test]
    fn the_documentation_lists_the_live_keys() {
        let text = repository("docs/operations/run.md");
        let (_, table) = text.split_once("| live key |").expect("the table");
        let table = table.split("\n\n").next().unwrap_or_default();
        let listed: Vec<&str> =
            table.split('`').skip(1).step_by(2).filter(|word| word.contains('.')).collect();
        for key in LIVE_KEYS.iter().chain(&SERVER_LIVE_KEYS) {
            assert!(listed.contains(key), "{key} is missing in docs/operations/run.md");
        }
        for key in listed {
            assert!(LIVE_KEYS.contains(&key) || SERVER_LIVE_KEYS.contains(&key), "{key} is not live");
        }
    }
}
