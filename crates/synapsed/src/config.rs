//! The configuration file, and the server's settings made of it.
//!
//! Every key has its default here and its comment in `deploy/synapsed.toml`; an unknown key prevents the
//! start. The keys, their units and their values are those of `cached`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use blocker::Memory;
use blocker::memory::MemoryConfig;
use cached_config::{
    BackendTable, ConfigError, ConfigFileError, ObjectsTable, Size, check_exposure, invalid, parse_config,
    read_config, secret, secret_warning, within,
};
use cached_core::object::ObjectCache;
use serde::{Deserialize, Deserializer, Serialize};
use synapse::{Address, AddressError, Secret, Server, ServerConfig, SettingError};

/// The content of the file.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// The backend to serve: one line, or a table with `cached`'s keys.
    #[serde(deserialize_with = "backend")]
    pub(crate) backend: BackendTable,
    /// The addresses to listen on.
    #[serde(default = "listen")]
    pub(crate) listen: Vec<String>,
    /// The file with the secret that clients must know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) secret_file: Option<PathBuf>,
    #[serde(default)]
    pub(crate) allow_exposed: bool,
    #[serde(default = "threads")]
    pub(crate) threads: usize,
    #[serde(default = "log_level")]
    pub(crate) log_level: String,
    #[serde(default = "shutdown_timeout_secs")]
    pub(crate) shutdown_timeout_secs: u64,
    #[serde(default)]
    pub(crate) limits: Limits,
    #[serde(default)]
    pub(crate) times: Times,
    /// The cache before the backend, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cache: Option<ObjectsTable>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    connections_max: u32,
    sessions_max: u32,
    session_requests_max: u32,
    session_bytes_max: Size,
    bytes_max: Size,
    request_bytes_max: Size,
    list_entries_max: u32,
    payload_pool_bytes_max: Size,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Times {
    peer_timeout_ms: u64,
    handshake_timeout_ms: u64,
    session_linger_secs: u64,
}

fn backend<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BackendTable, D::Error> {
    use serde::de::{Error, IntoDeserializer};
    match toml::Value::deserialize(deserializer)? {
        toml::Value::String(text) => text.parse().map_err(D::Error::custom),
        table @ toml::Value::Table(_) => BackendTable::deserialize(table.into_deserializer())
            .map_err(|error: toml::de::Error| D::Error::custom(error.message())),
        _ => Err(D::Error::custom("must be text, as in \"file:/var/lib/synapsed\", or a table with a kind")),
    }
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

fn shutdown_timeout_secs() -> u64 {
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
            session_bytes_max: Size(server.session_bytes_max),
            bytes_max: Size(server.bytes_max),
            request_bytes_max: Size(server.request_bytes_max),
            list_entries_max: server.list_entries_max,
            payload_pool_bytes_max: server.payload_pool_bytes_max.into(),
        }
    }
}

impl Default for Times {
    fn default() -> Self {
        let server = ServerConfig::default();
        let ms = |time: Duration| time.as_millis() as u64;
        Self {
            peer_timeout_ms: ms(server.peer_timeout),
            handshake_timeout_ms: ms(server.handshake_timeout),
            session_linger_secs: server.session_linger.as_secs(),
        }
    }
}

impl Config {
    /// Reads a file, and checks all that can be checked without opening the backend or a socket.
    ///
    /// # Errors
    /// One line: what is wrong where, and what would be right.
    pub(crate) fn read(path: &Path) -> Result<Self, ConfigFileError> {
        Self::parse(path, &read_config(path)?)
    }

    /// Reads and checks the text of a file; `path` is for errors.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, ConfigFileError> {
        let config: Self = parse_config(path, text)?;
        config.check().map_err(|error| ConfigFileError::of_key(path, error))?;
        Ok(config)
    }

    /// Returns the file's text for these settings, with the defaults filled in.
    pub(crate) fn effective(&self) -> String {
        let filled = Self { cache: self.cache.clone().map(ObjectsTable::filled_in), ..self.clone() };
        toml::to_string_pretty(&filled).expect("every configuration can be written")
    }

    /// Returns the addresses to listen on.
    ///
    /// # Errors
    /// The text that is not an address.
    pub(crate) fn addresses(&self) -> Result<Vec<Address>, ConfigError> {
        if self.listen.is_empty() {
            return invalid("listen", "is empty; it must name an address to listen on");
        }
        let wrong = |error: AddressError| ConfigError { key: "listen".into(), why: error.to_string() };
        self.listen.iter().map(|text| text.parse().map_err(wrong)).collect()
    }

    /// Returns the secret, if one is configured; reads its file.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub(crate) fn secret(&self) -> Result<Option<Secret>, ConfigError> {
        self.secret_file.as_deref().map_or(Ok(None), |path| secret("secret_file", path))
    }

    /// Returns the secret of the server that is the backend, if it is one; reads its file.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub(crate) fn backend_secret(&self) -> Result<Option<Secret>, ConfigError> {
        match &self.backend {
            BackendTable::Synapse(table) => table.secret().map_err(in_this_file),
            _ => Ok(None),
        }
    }

    /// Returns warnings to log at the start.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let backend = match &self.backend {
            BackendTable::Synapse(table) => Some(&table.secret_file),
            _ => None,
        };
        self.secret_file.iter().chain(backend).filter_map(|path| secret_warning(path)).collect()
    }

    /// Returns the server's settings.
    ///
    /// # Errors
    /// The key that is wrong.
    pub(crate) fn server(&self) -> Result<ServerConfig, ConfigError> {
        within("threads", self.threads, 1..=THREADS_MAX)?;
        within("shutdown_timeout_secs", self.shutdown_timeout_secs, 0..=24 * 60 * 60)?;
        let mut server = ServerConfig::default();
        server.secret = self.secret()?;
        server.allow_exposed = self.allow_exposed;
        let limits = &self.limits;
        server.connections_max = limits.connections_max;
        server.sessions_max = limits.sessions_max;
        server.session_slots_max = limits.session_requests_max;
        server.session_bytes_max = limits.session_bytes_max.0;
        server.bytes_max = limits.bytes_max.0;
        server.request_bytes_max = limits.request_bytes_max.0;
        server.list_entries_max = limits.list_entries_max;
        server.payload_pool_bytes_max = limits.payload_pool_bytes_max.to_usize();
        server.peer_timeout = Duration::from_millis(self.times.peer_timeout_ms);
        server.handshake_timeout = Duration::from_millis(self.times.handshake_timeout_ms);
        server.session_linger = Duration::from_secs(self.times.session_linger_secs);
        server.check().map_err(|error| of_server(&error))?;
        Ok(server)
    }

    /// Returns the table of the cache before the backend, if there is one.
    ///
    /// # Errors
    /// The key that is wrong.
    pub(crate) fn cache(&self) -> Result<Option<&ObjectsTable>, ConfigError> {
        let Some(table) = &self.cache else { return Ok(None) };
        if table.backend.is_some() {
            return invalid(
                "cache.backend",
                "is not a key here; the top-level key backend names what the cache stands before",
            );
        }
        table.check_cache().map_err(in_this_file)?;
        Ok(Some(table))
    }

    /// Returns the size of the largest object that the backend is opened for, in bytes.
    pub(crate) fn object_bytes_max(&self) -> u64 {
        let default = blocker::OBJECT_BYTES_MAX_DEFAULT;
        self.cache.as_ref().map_or(default, |cache| cache.object_bytes_max.0.max(default))
    }

    /// Returns the number of file descriptors that connections and the backend may need.
    pub(crate) fn descriptors_max(&self) -> u64 {
        u64::from(self.limits.connections_max) + self.backend.descriptors_max() + 3 * self.threads as u64 + 32
    }

    /// Checks all that can be checked without opening the backend or a socket.
    fn check(&self) -> Result<(), ConfigError> {
        self.backend.check().map_err(in_this_file)?;
        let addresses = self.addresses()?;
        let server = self.server()?;
        check_exposure("listen", &addresses, server.secret.is_some(), self.allow_exposed)?;
        crate::logging::level(&self.log_level).map_err(|why| ConfigError { key: "log_level".into(), why })?;
        self.try_construction(server)
    }

    /// Constructs the server, and the cache if there is one, over an empty memory backend with the same
    /// limits.
    fn try_construction(&self, server: ServerConfig) -> Result<(), ConfigError> {
        let clock = std::sync::Arc::clone(&server.clock);
        let limits = MemoryConfig { object_bytes_max: self.object_bytes_max(), ..MemoryConfig::default() };
        let memory = std::sync::Arc::new(Memory::new(limits, std::sync::Arc::clone(&clock)));
        let Some(table) = self.cache()? else {
            return Server::new(memory, server).map(drop).map_err(|error| of_server(&error));
        };
        let mut cache = table.cache().map_err(in_this_file)?;
        // As small as possible: nothing is stored in it.
        let capabilities = blocker::Blocker::capabilities(&*memory);
        cache.check(&capabilities).map_err(|error| in_this_file((&error).into()))?;
        cache.memory_bytes_max = 1 << 20;
        cache.dirty_bytes_max = cache.dirty_bytes_max.min(1 << 19);
        cache.objects_count_max = cache.objects_count_max.min(64);
        cache.huge_pages = false;
        // Constructed only: its background task does not run.
        let (cache, _background) =
            ObjectCache::new(memory, cache, clock).map_err(|error| in_this_file((&error).into()))?;
        Server::new(std::sync::Arc::new(cache), server).map(drop).map_err(|error| of_server(&error))
    }
}

/// Returns the error with the key of this file: the tables of the cache and its store have other names in
/// `cached`.
pub(crate) fn in_this_file(mistake: ConfigError) -> ConfigError {
    let ConfigError { key, why } = mistake;
    let key = match key.strip_prefix("objects.backend") {
        Some(rest) => format!("backend{rest}"),
        None => key.strip_prefix("objects.").map_or_else(|| key.clone(), |key| format!("cache.{key}")),
    };
    ConfigError { key, why }
}

/// Returns the error with the key of the file: the server has its own names for its settings.
pub(crate) fn of_server(error: &SettingError) -> ConfigError {
    let key = match error.setting() {
        "session_slots_max" => "limits.session_requests_max".into(),
        name @ ("peer_timeout" | "handshake_timeout") => format!("times.{name}_ms"),
        "session_linger" => "times.session_linger_secs".into(),
        name => format!("limits.{name}"),
    };
    ConfigError { key, why: error.problem().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("s.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_needs_nothing_but_its_backend() {
        let config = parse("backend = \"memory:\"").unwrap();
        assert_eq!(config.listen, ["127.0.0.1:11311"]);
        assert_eq!(parse(&config.effective()), Ok(config));
    }

    #[test]
    fn the_backend_is_a_line_or_a_table() {
        let line = parse("backend = \"rados:vm,user=u,op_timeout_secs=5\"").unwrap();
        let table =
            parse("[backend]\nkind = \"rados\"\npool = \"vm\"\nuser = \"u\"\nop_timeout_secs = 5").unwrap();
        assert_eq!(line, table);
        assert_eq!(parse(&line.effective()), Ok(line));
    }

    #[test]
    fn the_shipped_file_is_valid_and_has_the_defaults() {
        let text = include_str!("../../../deploy/synapsed.toml");
        let config = parse(text).unwrap();
        let mut defaults = parse("backend = \"file:/var/lib/synapsed\"").unwrap();
        // The default number of threads depends on the machine.
        defaults.threads = config.threads;
        assert_eq!(config, defaults);
        assert_eq!(config.cache, None, "off unless the table is there");
        // Every key is in the file, those commented out included.
        let all = toml::to_string(&Config { secret_file: Some("x".into()), ..config }).unwrap();
        let (own, _) = all.split_once("[backend]").unwrap_or((&all, ""));
        for line in own.lines().filter(|line| line.contains('=')) {
            let key = line.split('=').next().unwrap().trim();
            assert!(text.contains(key), "{key} is not in deploy/synapsed.toml");
        }
    }

    #[test]
    fn an_error_is_one_line_with_file_and_key() {
        let cases = [
            ("", "s.toml:1: missing field `backend`"),
            ("backend = \"tape:\"", "s.toml:1: backend: \"tape:\" is no kind of backend"),
            ("[backend]\nkind = \"tape\"", "backend: kind: is \"tape\"; it must be one of"),
            ("[backend]\nkind = \"file\"", "s.toml: backend.path: is missing"),
            (
                "backend = \"file:/dev/null/store\"",
                "backend.path: is /dev/null/store; /dev/null is no directory",
            ),
            ("backend = \"rados:vm,keyring=/no/key\"", "backend.keyring: is /no/key, which cannot be read"),
            ("backend = \"memory:\"\nlisten = []", "listen: is empty"),
            ("backend = \"memory:\"\nlisten = [\"a:b\"]", "the port is a number"),
            (
                "backend = \"memory:\"\nlisten = [\"0.0.0.0:0\"]",
                "listen: 0.0.0.0:0 can be reached from other machines",
            ),
            ("backend = \"memory:\"\nthreads = 0", "threads: is 0; it must be between 1 and 64"),
            ("backend = \"memory:\"\nlogs = 1", "s.toml:2: logs: unknown field `logs`"),
            (
                "backend = \"memory:\"\n[limits]\nconnections = 1",
                "s.toml:3: limits.connections: unknown field",
            ),
            (
                "backend = \"memory:\"\n[limits]\nsession_requests_max = 0",
                "limits.session_requests_max: must be",
            ),
            (
                "backend = \"memory:\"\n[limits]\nbytes_max = \"64 MiB\"\nsession_bytes_max = \"1m\"",
                "s.toml:4: limits.session_bytes_max: invalid value",
            ),
            ("backend = \"memory:\"\nlog_level = \"loud\"", "log_level: "),
            ("backend = \"memory:\"\nsecret_file = \"/no/such/file\"", "secret_file: /no/such/file"),
            ("backend = 5", "s.toml:1: backend: must be text"),
            ("backend = \"memory:\"\n[cache]\nmemory = 1", "s.toml:3: cache.memory: unknown field `memory`"),
            (
                "backend = \"memory:\"\n[cache]\nwrite = \"never\"",
                "s.toml:3: cache.write: unknown variant `never`",
            ),
            ("backend = \"memory:\"\n[cache]\nmemory_bytes_max = 5", "cache.memory_bytes_max: "),
            (
                "backend = \"memory:\"\n[cache]\neviction_policy = \"best\"",
                "cache.eviction_policy: is \"best\"",
            ),
            ("backend = \"memory:\"\n[cache.backend]\nkind = \"memory\"", "cache.backend: is not a key here"),
        ];
        for (text, words) in cases {
            let error = parse(text).unwrap_err();
            assert!(error.contains(words) && error.starts_with("s.toml:"), "{text:?}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    /// Returns the lines of `[cache]` and below, without their `#`.
    fn cache_shown() -> String {
        let text = include_str!("../../../deploy/synapsed.toml");
        let (_, cache) = text.split_once("#[cache]").expect("the table is shown");
        let settings = cache.lines().filter_map(|line| line.strip_prefix('#'));
        let settings =
            settings.filter(|line| !line.starts_with([' ', '[']) && !line.ends_with("# for example"));
        settings.map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn the_shipped_file_shows_every_key_of_the_cache_with_its_default() {
        let shown: toml::Table = toml::from_str(&cache_shown()).unwrap();
        let built_in = toml::Table::try_from(ObjectsTable::default().filled_in()).unwrap();
        assert_eq!(shown, built_in, "left: shown, right: built in");
        let text = format!("backend = \"memory:\"\n[cache]\n{}", cache_shown());
        let config = parse(&text).unwrap();
        assert_eq!(config.cache.unwrap().filled_in(), ObjectsTable::default().filled_in());
    }
}
