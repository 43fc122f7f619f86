//! The configuration file, and how it becomes the server's settings.
//!
//! Every key has its default here and its comment in `deploy/synapsed.toml`; a key that is not known stops
//! the start. Units are part of the names.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cached_objects::{Mistake, ObjectsTable};
use serde::{Deserialize, Serialize};
use synapse::{Address, Secret, ServerConfig};

use crate::backend::BackendSpec;

/// What is written in the file.
///
/// The keys of the cache are `cached`'s, by the same code; the store before which it stands is named by `backend`.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// What is served.
    pub(crate) backend: String,
    /// Where clients connect.
    #[serde(default = "listen")]
    pub(crate) listen: Vec<String>,
    /// Whose content clients must know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) secret_file: Option<PathBuf>,
    #[serde(default)]
    pub(crate) allow_exposed: bool,
    #[serde(default = "threads")]
    pub(crate) threads: usize,
    #[serde(default = "log_level")]
    pub(crate) log_level: String,
    #[serde(default = "shutdown_patience_s")]
    pub(crate) shutdown_patience_s: u64,
    #[serde(default)]
    pub(crate) limits: Limits,
    #[serde(default)]
    pub(crate) times: Times,
    /// Before the backend, if there is to be one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cache: Option<ObjectsTable>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    connections_max: u32,
    sessions_max: u32,
    session_requests_max: u32,
    session_bytes_max: u64,
    bytes_max: u64,
    request_bytes_max: u64,
    list_entries_max: u32,
    payload_pool_bytes_max: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Times {
    peer_timeout_ms: u64,
    greeting_timeout_ms: u64,
    session_linger_s: u64,
}

fn listen() -> Vec<String> {
    vec![format!("127.0.0.1:{}", synapse::PORT_DEFAULT)]
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX)
}

fn log_level() -> String {
    "info".into()
}

fn shutdown_patience_s() -> u64 {
    10
}

const THREADS_MAX: usize = 64;

impl Default for Limits {
    fn default() -> Self {
        let server = ServerConfig::default();
        Self {
            connections_max: server.connections_max,
            sessions_max: server.sessions_max,
            session_requests_max: server.session_slots_max,
            session_bytes_max: server.session_bytes_max,
            bytes_max: server.bytes_max,
            request_bytes_max: server.request_bytes_max,
            list_entries_max: server.list_entries_max,
            payload_pool_bytes_max: server.payload_pool_bytes_max as u64,
        }
    }
}

impl Default for Times {
    fn default() -> Self {
        let server = ServerConfig::default();
        let ms = |time: Duration| time.as_millis() as u64;
        Self {
            peer_timeout_ms: ms(server.peer_timeout),
            greeting_timeout_ms: ms(server.greeting_timeout),
            session_linger_s: server.session_linger.as_secs(),
        }
    }
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// One line: where it is wrong, and how to mend it.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Self::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// One line: where it is wrong, and how to mend it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| 1 + text[..span.start.min(text.len())].matches('\n').count());
            let place = line.map_or(String::new(), |line| format!("line {line}: "));
            // Of several lines the first says what, the others show where.
            let what = error.message().lines().collect::<Vec<_>>().join(", ");
            format!("{place}{what}")
        })
    }

    /// The file's text for these settings, defaults filled in.
    ///
    /// # Panics
    /// Never: the structure has a text.
    pub(crate) fn effective(&self) -> String {
        let filled = Self { cache: self.cache.clone().map(ObjectsTable::filled_in), ..self.clone() };
        toml::to_string_pretty(&filled).expect("a configuration has a text")
    }

    /// What is served.
    ///
    /// # Errors
    /// One line that says what to mend.
    pub(crate) fn backend(&self) -> Result<BackendSpec, String> {
        self.backend.parse().map_err(|text| format!("backend: {text}"))
    }

    /// Where to listen.
    ///
    /// # Errors
    /// One line that says what to mend.
    pub(crate) fn addresses(&self) -> Result<Vec<Address>, String> {
        if self.listen.is_empty() {
            return Err("listen: name at least one address".into());
        }
        let addresses = self.listen.iter().map(|text| text.parse().map_err(|why| format!("listen: {why}")));
        addresses.collect()
    }

    /// The server's settings.
    ///
    /// # Errors
    /// One line that says what to mend.
    pub(crate) fn server(&self) -> Result<ServerConfig, String> {
        if !(1..=THREADS_MAX).contains(&self.threads) {
            return Err(format!("threads: must be 1 to {THREADS_MAX}"));
        }
        let mut server = ServerConfig::default();
        let secret = self.secret_file.as_deref().map(Secret::from_file).transpose();
        server.secret = secret.map_err(|why| format!("secret_file: {why}"))?;
        server.allow_exposed = self.allow_exposed;
        let limits = &self.limits;
        server.connections_max = limits.connections_max;
        server.sessions_max = limits.sessions_max;
        server.session_slots_max = limits.session_requests_max;
        server.session_bytes_max = limits.session_bytes_max;
        server.bytes_max = limits.bytes_max;
        server.request_bytes_max = limits.request_bytes_max;
        server.list_entries_max = limits.list_entries_max;
        let pool = usize::try_from(limits.payload_pool_bytes_max);
        server.payload_pool_bytes_max =
            pool.map_err(|_| "limits.payload_pool_bytes_max: too large".to_owned())?;
        server.peer_timeout = Duration::from_millis(self.times.peer_timeout_ms);
        server.greeting_timeout = Duration::from_millis(self.times.greeting_timeout_ms);
        server.session_linger = Duration::from_secs(self.times.session_linger_s);
        // The server knows its settings by its own names; one of them has another here.
        let check = server.check().map_err(|why| why.replace("session_slots_max", "session_requests_max"));
        check.map(|()| server)
    }

    /// The cache before the backend, if there is to be one.
    ///
    /// # Errors
    /// One line that says what to mend.
    pub(crate) fn cache(&self) -> Result<Option<&ObjectsTable>, String> {
        let Some(table) = &self.cache else { return Ok(None) };
        if table.backend.is_some() {
            return Err(
                "cache.backend: is not for here; what the cache stands before is named by backend, at the \
                        top"
                .into(),
            );
        }
        table.check_cache().map_err(line)?;
        Ok(Some(table))
    }

    /// Everything at once, as `--check-config` does.
    ///
    /// # Errors
    /// One line that says what to mend.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.backend()?;
        self.addresses()?;
        self.server()?;
        self.cache()?;
        crate::logging::level(&self.log_level)?;
        Ok(())
    }
}

/// The table of the cache has another name in `cached`.
pub(crate) fn line(mistake: Mistake) -> String {
    let Mistake { key, why } = mistake;
    let key = key.strip_prefix("objects.").map_or_else(|| key.clone(), |key| format!("cache.{key}"));
    format!("{key}: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_needs_no_more_than_its_backend() {
        let config = Config::parse("backend = \"memory:\"").unwrap();
        config.check().unwrap();
        assert_eq!(config.listen, ["127.0.0.1:11311"]);
        assert_eq!(Config::parse(&config.effective()), Ok(config));
    }

    #[test]
    fn the_file_that_is_shipped_is_right_and_says_the_defaults() {
        let text = include_str!("../../../deploy/synapsed.toml");
        let config = Config::parse(text).unwrap();
        config.check().unwrap();
        let mut defaults = Config::parse(&format!("backend = {:?}", config.backend)).unwrap();
        // Its own number of threads for each machine.
        defaults.threads = config.threads;
        assert_eq!(config, defaults);
        assert_eq!(config.cache, None, "off unless the table is there");
        // Every key is told of, those commented out included.
        let all = toml::to_string(&Config { secret_file: Some("x".into()), ..config }).unwrap();
        for line in all.lines().filter(|line| line.contains('=')) {
            let key = line.split('=').next().unwrap().trim();
            assert!(text.contains(key), "{key} is not in deploy/synapsed.toml");
        }
    }

    #[test]
    fn what_is_wrong_is_told_in_one_line() {
        let cases = [
            ("", "missing field `backend`"),
            ("backend = \"tape:\"", "no kind of backend"),
            ("backend = \"memory:\"\nlisten = []", "at least one address"),
            ("backend = \"memory:\"\nlisten = [\"a:b\"]", "the port is a number"),
            ("backend = \"memory:\"\nthreads = 0", "threads: must be"),
            ("backend = \"memory:\"\nlogs = 1", "line 2: unknown field `logs`"),
            ("backend = \"memory:\"\n[limits]\nconnections = 1", "line 3: unknown field `connections`"),
            ("backend = \"memory:\"\n[limits]\nsession_requests_max = 0", "session_requests_max must be"),
            ("backend = \"memory:\"\nlog_level = \"loud\"", "log_level"),
            ("backend = \"memory:\"\nsecret_file = \"/no/such/file\"", "secret_file: /no/such/file"),
            ("backend = 5", "line 1: invalid type"),
            ("backend = \"memory:\"\n[cache]\nmemory = 1", "line 3: unknown field `memory`"),
            ("backend = \"memory:\"\n[cache]\nwrite = \"never\"", "line 3: unknown variant `never`"),
            ("backend = \"memory:\"\n[cache]\nmemory_bytes_max = 5", "cache.memory_bytes_max: "),
            (
                "backend = \"memory:\"\n[cache]\neviction_policy = \"best\"",
                "cache.eviction_policy: is \"best\"",
            ),
            ("backend = \"memory:\"\n[cache.backend]\nkind = \"memory\"", "cache.backend: is not for here"),
        ];
        for (text, words) in cases {
            let error = Config::parse(text).and_then(|config| config.check()).unwrap_err();
            assert!(error.contains(words), "{text:?}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    /// The lines of `[cache]` and below, `#` taken away.
    fn cache_shown() -> String {
        let text = include_str!("../../../deploy/synapsed.toml");
        let (_, cache) = text.split_once("#[cache]").expect("the table is shown");
        let settings = cache.lines().filter_map(|line| line.strip_prefix('#'));
        let settings =
            settings.filter(|line| !line.starts_with([' ', '[']) && !line.ends_with("# for example"));
        settings.map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn the_file_that_is_shipped_shows_every_key_of_the_cache_with_its_default() {
        let shown: toml::Table = toml::from_str(&cache_shown()).unwrap();
        let built_in = toml::Table::try_from(ObjectsTable::default().filled_in()).unwrap();
        assert_eq!(shown, built_in, "left: shown, right: built in");
        let text = format!("backend = \"memory:\"\n[cache]\n{}", cache_shown());
        let config = Config::parse(&text).unwrap();
        config.check().unwrap();
        assert_eq!(config.cache.unwrap().filled_in(), ObjectsTable::default().filled_in());
    }
}
