//! `[objects.backend]`: the store behind the object cache. `kind` selects the store, and thereby
//! the other keys.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ::synapse::{Address, Addresses, AddressesError, ClientConfig, Secret};
use blocker::file::FileConfig;
use blocker::memory::MemoryConfig;
#[cfg(feature = "rados")]
use blocker_rados::RadosConfig;
use serde::{Deserialize, Deserializer, Serialize};

use crate::config_file::{ConfigError, read, require};
use crate::config_keys;
use crate::kind::of_kind;
use crate::quantity::{Size, parse_quantity};
use crate::s3_table::S3Table;

/// The table `[objects.backend]`, by kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum BackendTable {
    /// In this process's memory; this is for trials.
    Memory(MemoryTable),
    /// In a directory.
    File(FileTable),
    /// On a RADOS cluster.
    Rados(RadosTable),
    /// In a bucket of S3.
    S3(S3Table),
    /// On a synapse server.
    Synapse(RemoteTable),
}

config_keys! {
    /// The keys of `kind = "memory"`.
    pub struct MemoryTable over MemoryConfig = MemoryConfig::default();

    /// The maximum memory use of all objects together.
    pub bytes_max: Size = size(bytes_max), in Size(1 << 20)..=Size(1 << 50);
}

config_keys! {
    /// The keys of `kind = "file"`.
    pub struct FileTable over FileConfig = FileConfig::default();

    /// The directory; required.
    pub path: PathBuf = own(PathBuf::new());
    /// Whether to create the directory and the store in it if they are missing.
    pub create: bool = own(false);
    /// Whether to bypass the page cache.
    pub direct: bool = same(direct);
    /// The number of threads for blocking work.
    pub threads: usize = same(threads), in 1..=1024;
    /// The approximate maximum number of open files.
    pub open_files_max: usize = same(open_files_max), in 16..=1 << 20;
}

config_keys! {
    /// The keys of `kind = "rados"`. An empty text means librados' own default. The defaults are
    /// those of `blocker-rados`; a test compares them.
    pub struct RadosTable over RadosConfig, if "rados";

    /// The pool; required.
    pub pool: String = same(pool) or String::new();
    /// Ceph's configuration file.
    pub conf: PathBuf = optional(conf_file) or PathBuf::new();
    /// The user without `client.`; `id` is an alias.
    #[serde(alias = "id")]
    pub user: String = same(user) or "admin".into();
    /// The file with the user's key.
    pub keyring: PathBuf = optional(keyring) or PathBuf::new();
    /// The RADOS namespace that contains everything.
    pub root: String = same(root) or String::new();
    /// The prefix of the name of every RADOS object.
    pub prefix: String = same(prefix) or String::new();
    /// The maximum time to wait for a monitor when connecting.
    pub connect_timeout_secs: u64 = secs(connect_timeout) or 10;
    /// The maximum time for which an operation waits for the reply of an OSD before it fails; 0
    /// means no limit.
    pub op_timeout_secs: u64 = secs(op_timeout) or 30;
    /// The maximum number of operations in flight.
    pub ops_in_flight_max: u32 = same(ops_in_flight_max) or 512;
    /// The maximum payload in flight.
    pub bytes_in_flight_max: Size = size(bytes_in_flight_max) or Size(64 << 20);
    /// The maximum number of objects whose heads are cached between changes.
    pub heads_remembered_max: usize = same(heads_remembered_max) or 65_536;
    /// Whether to receive the claims and invalidations of other clients.
    pub watch: bool = same(watch) or false;
    /// The maximum size of an object, if no other key sets it.
    pub object_bytes_max: Option<Size> = own(None);
    /// Settings that are passed to librados unchanged.
    pub librados: BTreeMap<String, String> = own(BTreeMap::new());
}

#[cfg(feature = "rados")]
impl RadosTable {
    /// Returns the configuration of the store.
    #[must_use]
    pub fn store(&self, object_bytes_max: u64) -> RadosConfig {
        let mut config = RadosConfig::default();
        self.apply(&mut config);
        config.object_bytes_max = self.object_bytes_max.map_or(object_bytes_max, |size| size.0);
        config.librados = self.librados.clone().into_iter().collect();
        config
    }
}

config_keys! {
    /// The keys of `kind = "synapse"`.
    pub struct RemoteTable over ClientConfig = ClientConfig::new(Address::Tcp(String::new()));

    /// The server's address; required: `host:port`, or `unix:` and a path. With several addresses,
    /// separated by commas, the client uses the one that serves.
    pub address: String = own(String::new());
    /// The file with the secret that client and server share.
    pub secret_file: PathBuf = own(PathBuf::new());
    /// The number of connections.
    pub connections: u16 = same(connections);
    /// The maximum number of requests in flight on each connection.
    pub slots_max: u32 = same(slots);
    /// The maximum number of bytes of requests in flight on each connection.
    pub bytes_max: Size = size(bytes);
    /// The maximum number of calls waiting to be sent, for each connection.
    pub waiting_max: usize = same(waiting_max);
    /// Whether to protect payloads with a CRC-32.
    pub payload_crc: bool = same(payload_crc);
    /// The maximum time for connecting.
    pub connect_timeout_ms: u64 = millis(connect_timeout), in 1..=DAY_MS;
    /// The time of silence after which the server is pinged.
    pub keep_alive_ms: u64 = millis(keep_alive), in 1..=DAY_MS;
    /// The time of silence after which the connection is replaced.
    pub peer_timeout_ms: u64 = millis(peer_timeout), in 1..=DAY_MS;
    /// The delay between two attempts to connect, doubled with each attempt …
    pub backoff_ms_min: u64 = millis(backoff_min), in 1..=DAY_MS;
    /// … up to this maximum delay.
    pub backoff_ms_max: u64 = millis(backoff_max), in 1..=DAY_MS;
    /// The maximum time for which requests wait for a connection before they fail.
    pub reconnect_timeout_ms: u64 = millis(reconnect_timeout), in 1..=DAY_MS;
    /// The maximum size of buffers for large payloads that are kept for reuse.
    pub payload_pool_bytes_max: Size = size(payload_pool_bytes_max);
}

/// One day, in milliseconds.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

impl RemoteTable {
    /// Returns the configuration of the client, without the secret.
    ///
    /// # Errors
    /// Returns [`ConfigError`] if an address is invalid.
    pub fn client(&self) -> Result<ClientConfig, ConfigError> {
        let wrong = |error: AddressesError| ConfigError::new("objects.backend.address", error);
        let addresses: Addresses = self.address.parse().map_err(wrong)?;
        let mut config = ClientConfig::new(addresses);
        self.apply(&mut config);
        Ok(config)
    }

    /// Reads the file of the secret, if one is named.
    ///
    /// # Errors
    /// Returns [`ConfigError`] with the problem of the file.
    pub fn secret(&self) -> Result<Option<Secret>, ConfigError> {
        crate::config_file::secret("objects.backend.secret_file", &self.secret_file)
    }

    fn check(&self) -> Result<(), ConfigError> {
        require(!self.address.is_empty(), "objects.backend.address", || {
            "is missing; expected the server's address, as in \"host:11311\" or \"unix:/path/of/socket\", or the \
             addresses of servers that take over from each other, as in \"host1:11311,host2:11311\""
                .into()
        })?;
        self.check_ranges("objects.backend")?;
        // The text begins with the name of the field.
        self.client()?.check().map_err(|error| ConfigError::new("objects.backend", error))?;
        self.secret().map(drop)
    }
}

impl<'de> Deserialize<'de> for BackendTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        of_kind(deserializer, &Self::KINDS, |kind, keys| {
            Some(match kind {
                "memory" => keys.parse().map(Self::Memory),
                "file" => keys.parse().map(Self::File),
                "rados" => keys.parse().map(Self::Rados),
                "s3" => keys.parse().map(Self::S3),
                "synapse" => keys.parse().map(Self::Synapse),
                _ => return None,
            })
        })
    }
}

/// Checks that `path` is a directory, or that it can become one.
fn is_directory(key: &str, path: &Path) -> Result<(), ConfigError> {
    let Some(there) = path.ancestors().find(|path| path.as_os_str().is_empty() || path.exists()) else {
        return Ok(());
    };
    require(there.as_os_str().is_empty() || there.is_dir(), key, || {
        format!("is {}; {} is not a directory", path.display(), there.display())
    })
}

impl BackendTable {
    /// Returns the kind, as the key `kind` names it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            BackendTable::Memory(_) => "memory",
            BackendTable::File(_) => "file",
            BackendTable::Rados(_) => "rados",
            BackendTable::S3(_) => "s3",
            BackendTable::Synapse(_) => "synapse",
        }
    }

    /// The kinds.
    pub const KINDS: [&str; 5] = ["memory", "file", "rados", "s3", "synapse"];

    /// Returns the file with the credentials that the store requires, if there is one: no other
    /// users should be able to read it.
    #[must_use]
    pub fn secret_file(&self) -> Option<&Path> {
        match self {
            BackendTable::Synapse(table) => Some(&*table.secret_file),
            BackendTable::S3(table) => Some(&*table.credentials_file),
            _ => None,
        }
    }

    /// Returns the number of file descriptors that the store may need.
    #[must_use]
    pub fn descriptors_max(&self) -> u64 {
        /// The number of descriptors that suffices for the connections to the monitors and OSDs of
        /// most clusters.
        const RADOS_DESCRIPTORS: u64 = 1024;
        match self {
            BackendTable::Memory(_) => 0,
            BackendTable::File(file) => (file.open_files_max + file.threads + 16) as u64,
            BackendTable::Rados(_) => RADOS_DESCRIPTORS,
            BackendTable::S3(table) => u64::from(table.requests_in_flight_max) + 16,
            BackendTable::Synapse(remote) => u64::from(remote.connections) + 8,
        }
    }

    /// Reads the files that the keys name, as opening the store does.
    ///
    /// # Errors
    /// Returns the problem with one of the files.
    pub fn check_files(&self) -> Result<(), ConfigError> {
        match self {
            BackendTable::S3(table) => table.check_files(),
            BackendTable::Synapse(table) => table.secret().map(drop),
            _ => Ok(()),
        }
    }

    /// Checks the values as far as this is possible without opening the store.
    ///
    /// # Errors
    /// Returns the first key with an invalid value.
    pub fn check(&self) -> Result<(), ConfigError> {
        match self {
            BackendTable::Memory(table) => table.check_ranges("objects.backend"),
            BackendTable::File(table) => {
                require(!table.path.as_os_str().is_empty(), "objects.backend.path", || {
                    "is missing; it must name a directory".into()
                })?;
                is_directory("objects.backend.path", &table.path)?;
                table.check_ranges("objects.backend")
            }
            BackendTable::Rados(table) => {
                require(!table.pool.is_empty(), "objects.backend.pool", || {
                    "is missing; it must name a pool".into()
                })?;
                require(
                    !table.user.is_empty() && !table.user.starts_with("client."),
                    "objects.backend.user",
                    || format!("is \"{}\"; it must be a name without \"client.\"", table.user),
                )?;
                // librados reads these files itself.
                read("objects.backend.conf", &table.conf)?;
                read("objects.backend.keyring", &table.keyring)?;
                // In a build without RADOS, the kind itself is invalid.
                require(cfg!(feature = "rados"), "objects.backend.kind", || {
                    "is \"rados\", but this program was built without it; build with --features rados".into()
                })
            }
            BackendTable::S3(table) => table.check(),
            BackendTable::Synapse(table) => table.check(),
        }
    }
}

impl FromStr for BackendTable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory(MemoryTable::default())),
            Some(("memory", _)) => Err("memory: allows nothing after the colon".into()),
            Some(("file", "")) => Err("file: needs a directory".into()),
            Some(("file", dir)) => Ok(Self::File(FileTable { path: dir.into(), ..FileTable::default() })),
            Some(("rados", rest)) => rados(&with_plain_numbers(rest)?).map(Self::Rados),
            Some(("s3", rest)) => s3(&with_plain_numbers(rest)?).map(Self::S3),
            Some(("synapse", "")) => Err("synapse: needs an address".into()),
            Some(("synapse", address)) => {
                Ok(Self::Synapse(RemoteTable { address: address.into(), ..RemoteTable::default() }))
            }
            // The rest of the text may contain a secret.
            kind => Err(format!(
                "{:?} is not a backend; expected memory:, file:DIR, rados:POOL[,KEY=VALUE]..., \
                 s3:BUCKET[,KEY=VALUE]... or synapse:HOST:PORT[,HOST:PORT]...",
                kind.map_or_else(|| text.to_owned(), |(kind, _)| format!("{kind}:")),
            )),
        }
    }
}

/// Returns `NAME[,KEY=VALUE]...` with plain numbers for sizes and durations that have units: the
/// stores themselves read only numbers.
fn with_plain_numbers(text: &str) -> Result<String, String> {
    let parts = text.split(',').map(|part| {
        let Some((key, value)) = part.split_once('=') else { return Ok(part.to_owned()) };
        // A key with a dot is passed to librados.
        match parse_quantity(key, value).filter(|_| !key.contains('.')) {
            Some(Ok(number)) => Ok(format!("{key}={number}")),
            Some(Err(why)) => Err(format!("{key}: {why}")),
            None => Ok(part.to_owned()),
        }
    });
    Ok(parts.collect::<Result<Vec<_>, String>>()?.join(","))
}

/// Writes the kind and the location in one line, without the other keys.
impl fmt::Display for BackendTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(_) => f.write_str("memory:"),
            Self::File(table) => write!(f, "file:{}", table.path.display()),
            Self::Rados(table) => write!(f, "rados:{}", table.pool),
            Self::S3(table) => write!(f, "s3:{}", table.bucket),
            Self::Synapse(table) => write!(f, "synapse:{}", table.address),
        }
    }
}

#[cfg(feature = "rados")]
fn rados(text: &str) -> Result<RadosTable, String> {
    let config: RadosConfig = text.parse()?;
    let size =
        Some(config.object_bytes_max).filter(|bytes| *bytes != RadosConfig::default().object_bytes_max);
    let mut table = RadosTable { object_bytes_max: size.map(Size), ..RadosTable::from(&config) };
    table.librados = config.librados.into_iter().collect();
    Ok(table)
}

#[cfg(not(feature = "rados"))]
fn rados(_: &str) -> Result<RadosTable, String> {
    Err("rados: is not built in; build with --features rados".into())
}

#[cfg(feature = "s3")]
fn s3(text: &str) -> Result<S3Table, String> {
    text.parse()
}

#[cfg(not(feature = "s3"))]
fn s3(_: &str) -> Result<S3Table, String> {
    Err("s3: is not built in; build with --features s3".into())
}

#[cfg(all(test, feature = "rados"))]
mod backend_tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_blocker_rados() {
        let own = blocker_rados::RadosConfig::new("p");
        let ours = RadosTable { pool: "p".into(), ..RadosTable::default() };
        assert_eq!(format!("{:?}", ours.store(own.object_bytes_max)), format!("{own:?}"));
    }
}

#[cfg(test)]
mod backend_text_tests {
    use super::*;

    #[test]
    fn a_backend_is_written_as_kind_and_rest() {
        assert!(matches!("memory:".parse(), Ok(BackendTable::Memory(_))));
        assert!(
            matches!("file:/a:b".parse(), Ok(BackendTable::File(table)) if table.path.as_os_str() == "/a:b")
        );
        assert!(matches!("synapse:n:7".parse(), Ok(BackendTable::Synapse(table)) if table.address == "n:7"));
        for wrong in ["", "memory", "memory:x", "file:", "rados:", "s3:", "synapse:", "tape:0"] {
            assert!(wrong.parse::<BackendTable>().is_err(), "{wrong}");
        }
        let wrong = "rado:vm,librados.key=hidden".parse::<BackendTable>().unwrap_err();
        assert!(wrong.starts_with("\"rado:\" is not a backend") && !wrong.contains("hidden"), "{wrong}");
        for text in ["memory:", "file:/a:b", "synapse:n:7", "synapse:n:7,m:8"] {
            assert_eq!(text.parse::<BackendTable>().unwrap().to_string(), text);
        }
    }

    #[cfg(feature = "rados")]
    #[test]
    fn rados_takes_its_keys_behind_the_pool() {
        let Ok(BackendTable::Rados(table)) =
            "rados:vm,id=u,keyring=/k,op_timeout_secs=5 s,librados.a_secs=b,object_bytes_max=8KiB".parse()
        else {
            panic!("not taken for RADOS")
        };
        assert_eq!((table.pool.as_str(), table.user.as_str(), table.op_timeout_secs), ("vm", "u", 5));
        assert_eq!(table.store(1 << 20).object_bytes_max, 8192);
        assert_eq!(table.librados["a_secs"], "b");
    }
}
