//! The configuration file, and the server's settings that it gives.
//!
//! `deploy/synapsed.toml` describes every key; an unknown key prevents the start. The tables are
//! those of `cached`, with the same keys, units, defaults and values, except that `backend`, which
//! `cached` has in `[objects]`, is at the top level, because here it can be served without a cache.

use std::path::Path;
use std::sync::Arc;

use blocker::memory::MemoryConfig;
use blocker::{Durability, Memory, NamespaceKey, OBJECT_BYTES_MAX_DEFAULT};
use cached_admin::{AdminTable, Tokens};
use cached_config::{
    BackendTable, ConfigError, DrainTimes, HttpTable, InsightTable, Listening, ObjectsTable, Secrets,
    SynapseTable, check_addresses, invalid, parse_config, secret_warning,
};
use cached_core::object::{ObjectCache, Writer};
use cached_objects::{ListenerFiles, ServiceConfig, check_election, is_elected};
use cached_process::log::LogTable;
use cached_registry::RegistryTable;
use cached_tls::ServerTls;
use cached_tracing::TracingTable;
use serde::{Deserialize, Deserializer, Serialize};
use synapse::{Server, ServerConfig};

/// The content of the file.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// The backend to serve: a single line, or a table with `cached`'s keys.
    #[serde(deserialize_with = "backend")]
    pub(crate) backend: BackendTable,
    #[serde(default)]
    pub(crate) process: DrainTimes,
    #[serde(default)]
    pub(crate) log: LogTable,
    /// The listener.
    #[serde(default)]
    pub(crate) synapse: SynapseTable,
    /// The cache in front of the backend, if there is one.
    pub(crate) objects: Option<ObjectsTable>,
    /// The registry by which hosts elect the writer, if there is one.
    pub(crate) registry: Option<RegistryTable>,
    /// Statistics about the requests of the cache.
    #[serde(default)]
    pub(crate) insight: InsightTable,
    /// The admin listener, if there is one.
    pub(crate) admin: Option<AdminTable>,
    /// The settings of the tracing of requests, if it is on.
    pub(crate) tracing: Option<TracingTable>,
}

/// The contents of the files that a configuration names.
pub(crate) struct Loaded {
    pub(crate) secrets: Secrets,
    /// The tokens of the admin listener, and its certificates.
    pub(crate) tokens: Option<Tokens>,
    pub(crate) admin_tls: Option<Arc<ServerTls>>,
    /// The keys and certificates of the HTTP listener for objects.
    pub(crate) listeners: ListenerFiles,
}

fn backend<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BackendTable, D::Error> {
    use serde::de::Error;
    use serde_json::Value;
    match Value::deserialize(deserializer)? {
        Value::String(text) => text.parse().map_err(D::Error::custom),
        table @ Value::Object(_) => BackendTable::deserialize(table).map_err(D::Error::custom),
        _ => Err(D::Error::custom("must be text, as in \"file:/var/lib/synapsed\", or a table with a kind")),
    }
}

impl Config {
    /// Parses the text of a file, and checks everything that can be checked without opening the
    /// backend or a socket; `path` is used in errors.
    ///
    /// # Errors
    /// Returns an error of one line: the mistake, its position, and the valid values.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let config: Self = parse_config(path, text)?;
        config.check().map_err(|error| error.in_file(path))?;
        Ok(config)
    }

    /// Returns the file's text for these settings, with the defaults filled in.
    pub(crate) fn effective(&self) -> String {
        let filled = Self { objects: self.objects.clone().map(ObjectsTable::filled_in), ..self.clone() };
        let table = toml::Table::try_from(&filled);
        let text = table.and_then(|table| toml::to_string_pretty(&table));
        text.expect("every configuration can be written")
    }

    /// Reads the files that the configuration names, and checks its other references. Opens no
    /// socket, journal or backend, and takes no lock.
    ///
    /// # Errors
    /// Returns the first mistake.
    pub(crate) fn load(&self) -> Result<Loaded, ConfigError> {
        let mut addresses = self.synapse.listening();
        addresses.extend(self.admin.iter().flat_map(|table| Listening::of("admin.listen", &table.listen)));
        addresses.extend(self.http().iter().flat_map(|table| table.listening()));
        check_addresses(&addresses)?;
        self.backend.check_files().map_err(in_this_file)?;
        self.objects.as_ref().map_or(Ok(()), ObjectsTable::check_files)?;
        Ok(Loaded {
            secrets: self.secrets()?,
            tokens: self.admin.as_ref().map_or(Ok(None), AdminTable::tokens)?,
            admin_tls: self.admin.as_ref().map_or(Ok(None), AdminTable::load_tls)?,
            listeners: ListenerFiles {
                http_keys: self.http().map_or(Ok(None), HttpTable::keys)?,
                http_tls: self.http().map_or(Ok(None), HttpTable::load_tls)?,
                nbd_tls: None,
            },
        })
    }

    /// Reads the files of all secrets.
    ///
    /// # Errors
    /// Returns the file's problem.
    pub(crate) fn secrets(&self) -> Result<Secrets, ConfigError> {
        Secrets::read(Some(&self.synapse), Some(&self.backend)).map_err(in_this_file)
    }

    /// Returns warnings to log at the start.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let backend = self.backend.secret_file().and_then(secret_warning);
        let admin = self.admin.as_ref().and_then(|table| secret_warning(&table.token_file));
        self.synapse.secret_warnings().into_iter().chain(backend).chain(admin).collect()
    }

    /// Returns the server's settings with these secrets.
    fn server(&self, secrets: &Secrets) -> ServerConfig {
        let mut server = self.synapse.server();
        let mut secrets = secrets.listener.iter().cloned();
        (server.secret, server.secret_previous) = (secrets.next(), secrets.next());
        server
    }

    /// Returns the table of the cache in front of the backend, if there is one, with the backend, as
    /// `cached` has it.
    ///
    /// # Errors
    /// The invalid key.
    pub(crate) fn cache(&self) -> Result<Option<ObjectsTable>, ConfigError> {
        let Some(table) = &self.objects else { return Ok(None) };
        if table.backend.is_some() {
            return invalid(
                "objects.backend",
                "is not a key here; the store behind the cache is set by the top-level key backend",
            );
        }
        let table = ObjectsTable { backend: Some(self.backend.clone()), ..table.clone() };
        table.check_cache().map_err(in_this_file)?;
        Ok(Some(table))
    }

    /// Returns the tables of the object service, which serves the backend or the cache over it.
    ///
    /// # Errors
    /// The invalid key.
    pub(crate) fn service(&self) -> Result<ServiceConfig, ConfigError> {
        let cache = self.cache()?;
        Ok(ServiceConfig {
            has_cache: cache.is_some(),
            objects: cache.unwrap_or_else(|| ObjectsTable {
                backend: Some(self.backend.clone()),
                ..ObjectsTable::default()
            }),
            synapse: Some(self.synapse.clone()),
            registry: self.registry.clone(),
            volumes: None,
            nbd: None,
            insight: self.insight.clone(),
        })
    }

    /// Returns the table of the HTTP listener for objects, if there is one.
    pub(crate) fn http(&self) -> Option<&HttpTable> {
        self.objects.as_ref()?.http.as_ref()
    }

    /// Returns the number of file descriptors that connections and the backend may need.
    pub(crate) fn descriptors_max(&self) -> u64 {
        let admin = self.admin.as_ref().map_or(0, AdminTable::descriptors_max);
        let listener = u64::from(self.synapse.connections_max) + 3 * self.synapse.threads as u64;
        let http = self.http().map_or(0, HttpTable::descriptors_max);
        // An election has a connection of its own.
        let stores = 1 + u64::from(self.objects.as_ref().is_some_and(is_elected));
        listener + admin + http + stores * self.backend.descriptors_max() + 32
    }

    /// Checks everything that can be checked without opening the backend or a socket.
    fn check(&self) -> Result<(), ConfigError> {
        self.backend.check().map_err(in_this_file)?;
        self.process.check()?;
        self.insight.check()?;
        self.admin.as_ref().map_or(Ok(()), AdminTable::check)?;
        self.tracing.as_ref().map_or(Ok(()), TracingTable::check)?;
        self.synapse.check()?;
        let cache = self.cache()?;
        check_election(cache.as_ref(), self.registry.as_ref(), Some(&self.synapse))?;
        self.try_construction(cache.as_ref(), self.server(&self.secrets()?))
    }

    /// Constructs the server, and the cache if there is one, over an empty memory backend with the
    /// same limits.
    fn try_construction(
        &self,
        table: Option<&ObjectsTable>,
        server: ServerConfig,
    ) -> Result<(), ConfigError> {
        let clock = Arc::clone(&server.clock);
        let object_bytes_max = table.map_or(OBJECT_BYTES_MAX_DEFAULT, |table| table.object_bytes_max.0);
        let limits = MemoryConfig { object_bytes_max, ..MemoryConfig::default() };
        let memory = Arc::new(Memory::new(limits, Arc::clone(&clock)));
        let Some(table) = table else {
            return Server::new(memory, server).map(drop).map_err(|error| SynapseTable::error(&error));
        };
        let mut cache = table.cache().map_err(in_this_file)?;
        // The cache is as small as possible, because nothing is stored in it.
        let capabilities = blocker::Blocker::capabilities(&*memory);
        cache.check(&capabilities).map_err(|error| in_this_file(error.into()))?;
        cache.memory_bytes_max = 1 << 20;
        cache.dirty_bytes_max = cache.dirty_bytes_max.min(1 << 19);
        cache.objects_count_max = cache.objects_count_max.min(64);
        cache.huge_pages = false;
        if cache.writer == Writer::Elected {
            // A leader has this right.
            cache.writer = Writer::Cache;
        }
        // The keys of the journal have been checked; the journal is opened only at the start.
        (cache.journal, cache.durability) = (None, Durability::Cached);
        for namespace in &mut cache.namespaces {
            (namespace.journal, namespace.durability) = (None, Durability::Cached);
            namespace.settings.unset(NamespaceKey::DirtyBytesMax);
            namespace.settings.unset(NamespaceKey::MemoryBytesMin);
        }
        // The cache is only constructed; its background task does not run.
        let (cache, _background) =
            ObjectCache::new(memory, cache, clock).map_err(|error| in_this_file(error.into()))?;
        Server::new(cache.into(), server).map(drop).map_err(|error| SynapseTable::error(&error))
    }
}

/// Converts the error to the keys of this file.
pub(crate) fn in_this_file(mistake: ConfigError) -> ConfigError {
    ConfigError { key: key_of_this_file(mistake.key), ..mistake }
}

/// Returns the key of this file for one of `cached`, which has another name for the store's table.
pub(crate) fn key_of_this_file(key: String) -> String {
    match key.strip_prefix("objects.backend") {
        Some(rest) => format!("backend{rest}"),
        None => key,
    }
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
        assert_eq!(config.synapse.listen, ["127.0.0.1:11311"]);
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
        let backend = "backend = { kind = \"file\", path = \"/var/lib/synapsed\", create = true }";
        assert_eq!(config, parse(backend).unwrap());
        assert_eq!(config.objects, None, "off unless the table is there");
    }

    #[test]
    fn an_error_is_one_line_with_file_and_key() {
        let cases = [
            ("", "s.toml:1: missing field `backend`"),
            ("backend = \"tape:\"", "s.toml:1: backend: \"tape:\" is not a backend"),
            ("[backend]\nkind = \"tape\"", "backend: kind: is \"tape\"; it must be one of"),
            ("[backend]\nkind = \"file\"", "s.toml: backend.path: is missing"),
            (
                "backend = \"file:/dev/null/store\"",
                "backend.path: is /dev/null/store; /dev/null is not a directory",
            ),
            ("backend = \"rados:vm,keyring=/no/key\"", "backend.keyring: cannot read /no/key: No such file"),
            ("backend = \"memory:\"\n[synapse]\nlisten = []", "synapse.listen: is empty"),
            ("backend = \"memory:\"\n[synapse]\nlisten = [\"a:b\"]", "\"a:b\" is not an address"),
            (
                "backend = \"memory:\"\n[synapse]\nlisten = [\"0.0.0.0:0\"]",
                "synapse.listen: 0.0.0.0:0 can be reached from other machines",
            ),
            (
                "backend = \"memory:\"\n[synapse]\nthreads = 0",
                "synapse.threads: is 0; it must be between 1 and 1024",
            ),
            ("backend = \"memory:\"\nlogs = 1", "s.toml:2: logs: unknown field `logs`"),
            (
                "backend = \"memory:\"\n[synapse]\nconnections = 1",
                "s.toml:3: synapse.connections: unknown field",
            ),
            (
                "backend = \"memory:\"\n[synapse]\nsession_requests_max = 0",
                "synapse.session_requests_max: must be",
            ),
            (
                "backend = \"memory:\"\n[synapse]\nbytes_max = \"64 MiB\"\nsession_bytes_max = \"1m\"",
                "s.toml:4: synapse.session_bytes_max: invalid value",
            ),
            ("backend = \"memory:\"\n[insight]\nsampled_share = 2.0", "insight.sampled_share: is 2;"),
            ("backend = \"memory:\"\n[log]\nlevel = \"loud\"", "s.toml:3: log.level: unknown variant `loud`"),
            ("backend = \"memory:\"\n[process]\ndrain_timeout_secs = 0", "process.drain_timeout_secs: is 0"),
            (
                "backend = \"memory:\"\n[synapse]\nsecret_file = \"/no/such/file\"",
                "synapse.secret_file: cannot read /no/such/file: ",
            ),
            ("backend = 5", "s.toml:1: backend: must be text"),
            (
                "backend = \"memory:\"\n[objects]\nmemory = 1",
                "s.toml:3: objects.memory: unknown field `memory`",
            ),
            (
                "backend = \"memory:\"\n[objects]\nwrite = \"never\"",
                "s.toml:3: objects.write: unknown variant `never`",
            ),
            ("backend = \"memory:\"\n[objects]\nmemory_bytes_max = 5", "objects.memory_bytes_max: "),
            (
                "backend = \"memory:\"\n[objects]\neviction_policy = \"best\"",
                "objects.eviction_policy: is \"best\"",
            ),
            (
                "backend = \"memory:\"\n[objects.backend]\nkind = \"memory\"",
                "objects.backend: is not a key here",
            ),
        ];
        for (text, words) in cases {
            let error = parse(text).unwrap_err();
            assert!(error.contains(words) && error.starts_with("s.toml:"), "{text:?}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    /// Returns the settings shown in the shipped file, without the leading `#`.
    fn shown() -> toml::Table {
        let text = include_str!("../../../deploy/synapsed.toml");
        let lines = text.lines().map(|line| line.strip_prefix('#').unwrap_or(line));
        // Off unless the table exists; cached.toml shows all of its keys.
        let optional = ["[objects.journal]", "[objects.http]", "[objects.election]", "[registry]"];
        let is_optional = |line: &str| optional.contains(&line);
        let is_setting = |line: &str| {
            let key = line.split('=').next().unwrap_or_default().trim_end();
            let named =
                !key.is_empty() && key.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_');
            named && line.contains('=')
                || line.starts_with('[') && !line.starts_with("[[") && !is_optional(line)
        };
        let settings = lines.filter(|line| is_setting(line) && !line.ends_with("# for example"));
        toml::from_str(&settings.map(|line| format!("{line}\n")).collect::<String>()).unwrap()
    }

    #[test]
    fn the_shipped_file_shows_every_key_with_its_default() {
        let all = "backend = \"file:/var/lib/synapsed\"\n[objects]\n[admin.tls]\nchain_file = \"chain.pem\"\n[tracing]\n";
        let mut built_in: toml::Table = toml::from_str(&parse(all).unwrap().effective()).unwrap();
        // The file shows this table only as an example, without a default.
        built_in["admin"]["tls"].as_table_mut().unwrap().remove("chain_file");
        // The file shows the backend as one line, but it is printed as a table.
        built_in["backend"] = shown()["backend"].clone();
        assert_eq!(shown(), built_in, "left: shown, right: built in");
    }
}
