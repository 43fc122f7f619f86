//! The table `[registry]` of a configuration file.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use cached_config::{ConfigError, of_kind, require, within};
use cached_http::http::Uri;
use serde::{Deserialize, Deserializer, Serialize};

use crate::disk::NODES_MAX;
use crate::document::Key;
use crate::store::is_namespace;

/// The table: the key `kind`, and the keys of that kind.
///
/// ```
/// use cached_registry::RegistryTable;
///
/// let table: RegistryTable = toml::from_str("kind = \"etcd\"\nendpoints = [\"http://10.0.0.1:2379\"]")?;
/// table.check()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum RegistryTable {
    /// A file that a person writes.
    File(FileKeys),
    /// An object of the store.
    Store(StoreKeys),
    /// etcd.
    Etcd(EtcdKeys),
    /// A block device that the hosts share, or a file on one host.
    Disk(DiskKeys),
}

/// The keys of `kind = "file"`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FileKeys {
    /// The file; required.
    pub path: PathBuf,
}

/// The keys of `kind = "store"`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreKeys {
    /// The namespace of the registry's object. No other data should use it.
    pub namespace: String,
    /// The time between two reads by a watch, in milliseconds.
    pub poll_ms: u64,
    /// The maximum time for which a request waits for the store, in milliseconds.
    pub timeout_ms: u64,
}

impl Default for StoreKeys {
    fn default() -> Self {
        Self { namespace: "registry".into(), poll_ms: 1000, timeout_ms: 2000 }
    }
}

/// The keys of `kind = "etcd"`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EtcdKeys {
    /// The URLs of the cluster's members; at least one.
    pub endpoints: Vec<String>,
    /// The common prefix of etcd's keys.
    pub prefix: String,
    /// The user who logs in; empty for nobody.
    pub user: String,
    /// The file with the user's password.
    pub password_file: PathBuf,
    /// The certificates of the authorities that sign the members' certificates, in PEM; if empty,
    /// those of the system.
    pub ca_file: PathBuf,
    /// The maximum time for which a request waits for one member, in milliseconds.
    pub timeout_ms: u64,
}

impl Default for EtcdKeys {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            prefix: "cached/".into(),
            user: String::new(),
            password_file: PathBuf::new(),
            ca_file: PathBuf::new(),
            timeout_ms: 2000,
        }
    }
}

/// The keys of `kind = "disk"`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DiskKeys {
    /// The block device or the file; required.
    pub path: PathBuf,
    /// The number of processes that use the disk; required. It must be the same for all of them.
    pub nodes: usize,
    /// The number of this process, counted from 0. It must be unique.
    pub node: usize,
    /// Whether to create a missing file, and to prepare a disk that contains only zeros.
    pub create: bool,
    /// The time between two reads by a watch, in milliseconds.
    pub poll_ms: u64,
}

impl Default for DiskKeys {
    fn default() -> Self {
        Self { path: PathBuf::new(), nodes: 0, node: 0, create: false, poll_ms: 1000 }
    }
}

/// One minute, in milliseconds.
const MINUTE_MS: u64 = 60_000;

impl RegistryTable {
    /// The kinds.
    pub const KINDS: [&str; 4] = ["file", "store", "etcd", "disk"];

    /// Checks the values. The files that they name are not read.
    ///
    /// # Errors
    /// Returns the first key with an invalid value.
    pub fn check(&self) -> Result<(), ConfigError> {
        match self {
            Self::File(keys) => require(!keys.path.as_os_str().is_empty(), "registry.path", || {
                "is missing; it must name a file with the documents".into()
            }),
            Self::Store(keys) => {
                require(is_namespace(&keys.namespace), "registry.namespace", || {
                    format!("is {:?}; it must be the name of a namespace", keys.namespace)
                })?;
                within("registry.poll_ms", keys.poll_ms, 10..=MINUTE_MS).map(drop)?;
                within("registry.timeout_ms", keys.timeout_ms, 100..=MINUTE_MS).map(drop)
            }
            Self::Etcd(keys) => keys.check(),
            Self::Disk(keys) => {
                require(!keys.path.as_os_str().is_empty(), "registry.path", || {
                    "is missing; it must name a block device that the hosts share, or a file".into()
                })?;
                require((1..=NODES_MAX).contains(&keys.nodes), "registry.nodes", || {
                    format!("is {}; it must be the number of processes, 1 to {NODES_MAX}", keys.nodes)
                })?;
                require(keys.node < keys.nodes, "registry.node", || {
                    format!("is {}; nodes are counted from 0, so it must be below {}", keys.node, keys.nodes)
                })?;
                within("registry.poll_ms", keys.poll_ms, 10..=MINUTE_MS).map(drop)
            }
        }
    }

    /// Returns the file with the password, if there is one. Other users should not be able to read
    /// it.
    #[must_use]
    pub fn secret_file(&self) -> Option<&std::path::Path> {
        match self {
            Self::Etcd(keys) => Some(&*keys.password_file).filter(|path| !path.as_os_str().is_empty()),
            _ => None,
        }
    }
}

impl EtcdKeys {
    fn check(&self) -> Result<(), ConfigError> {
        require(!self.endpoints.is_empty(), "registry.endpoints", || {
            "is missing; expected the members' URLs, as in [\"http://10.0.0.1:2379\"]".into()
        })?;
        for endpoint in &self.endpoints {
            let wrong = || format!("has {endpoint:?}; expected http://HOST:PORT or https://HOST:PORT");
            let uri = Uri::from_str(endpoint).map_err(|_| ConfigError::new("registry.endpoints", wrong()))?;
            let has_scheme = matches!(uri.scheme_str(), Some("http" | "https"));
            let authority = uri.authority().map_or("", |authority| authority.as_str());
            let is_right =
                has_scheme && !authority.is_empty() && !authority.contains('@') && uri.path() == "/";
            require(is_right && uri.query().is_none(), "registry.endpoints", wrong)?;
        }
        let is_prefix = self.prefix.strip_suffix('/').is_some_and(|prefix| Key::new(prefix).is_ok());
        require(is_prefix, "registry.prefix", || {
            format!(
                "is {:?}; it must be a path without a slash at the front and with one at the end",
                self.prefix
            )
        })?;
        let has_password = !self.password_file.as_os_str().is_empty();
        require(self.user.is_empty() != has_password, "registry.password_file", || match has_password {
            true => "is set without user; set both or neither".into(),
            false => format!("is missing; it must name a file with the password of {}", self.user),
        })?;
        within("registry.timeout_ms", self.timeout_ms, 100..=MINUTE_MS).map(drop)
    }

    /// Returns the endpoints without a slash at the end.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.endpoints.iter().map(|endpoint| endpoint.trim_end_matches('/').to_owned()).collect()
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

impl<'de> Deserialize<'de> for RegistryTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        of_kind(deserializer, &Self::KINDS, |kind, keys| {
            Some(match kind {
                "file" => keys.parse().map(Self::File),
                "store" => keys.parse().map(Self::Store),
                "etcd" => keys.parse().map(Self::Etcd),
                "disk" => keys.parse().map(Self::Disk),
                _ => return None,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<RegistryTable, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| error.message().to_owned())
    }

    #[test]
    fn the_defaults_of_each_kind_are_read_back() {
        for kind in RegistryTable::KINDS {
            let table = parse(&format!("kind = \"{kind}\"")).unwrap();
            let text = toml::to_string(&table).unwrap();
            assert!(text.contains(&format!("kind = \"{kind}\"")), "{text}");
            assert_eq!(parse(&text), Ok(table));
        }
    }

    #[test]
    fn unknown_keys_and_wrong_types_are_named() {
        for (text, why) in [
            ("", "kind: is missing; it must be one of \"file\", \"store\", \"etcd\", \"disk\""),
            ("kind = 7", "kind: must be one of \"file\", \"store\", \"etcd\", \"disk\""),
            ("kind = \"zk\"", "kind: is \"zk\"; it must be one of \"file\", \"store\", \"etcd\", \"disk\""),
            ("kind = \"file\"\nnode = 1", "node: unknown field `node`, expected `path`"),
            ("kind = \"disk\"\nnode = -1", "node: invalid value: integer `-1`, expected usize"),
        ] {
            assert_eq!(parse(text).unwrap_err(), why);
        }
    }

    #[test]
    fn mistakes_are_one_line_with_what_would_be_right() {
        for (text, why) in [
            ("kind = \"file\"", "path: is missing; it must name a file with the documents"),
            ("kind = \"store\"\nnamespace = \"\"", "namespace: is \"\"; it must be the name of a namespace"),
            ("kind = \"store\"\npoll_ms = 1", "poll_ms: is 1; it must be between 10 and 60000"),
            (
                "kind = \"etcd\"",
                "endpoints: is missing; expected the members' URLs, as in [\"http://10.0.0.1:2379\"]",
            ),
            (
                "kind = \"etcd\"\nendpoints = [\"http://h:1/v3\"]",
                "endpoints: has \"http://h:1/v3\"; expected http://HOST:PORT or https://HOST:PORT",
            ),
            (
                "kind = \"etcd\"\nendpoints = [\"h:1\"]",
                "endpoints: has \"h:1\"; expected http://HOST:PORT or https://HOST:PORT",
            ),
            (
                "kind = \"etcd\"\nendpoints = [\"http://h:1\"]\nprefix = \"/a\"",
                "prefix: is \"/a\"; it must be a path without a slash at the front and with one at the end",
            ),
            (
                "kind = \"etcd\"\nendpoints = [\"http://h:1\"]\nuser = \"u\"",
                "password_file: is missing; it must name a file with the password of u",
            ),
            (
                "kind = \"etcd\"\nendpoints = [\"http://h:1\"]\npassword_file = \"/p\"",
                "password_file: is set without user; set both or neither",
            ),
            ("kind = \"disk\"\npath = \"/d\"", "nodes: is 0; it must be the number of processes, 1 to 16"),
            (
                "kind = \"disk\"\npath = \"/d\"\nnodes = 2\nnode = 2",
                "node: is 2; nodes are counted from 0, so it must be below 2",
            ),
        ] {
            assert_eq!(parse(text).unwrap().check().unwrap_err().to_string(), format!("registry.{why}"));
        }
        for right in [
            "kind = \"store\"",
            "kind = \"etcd\"\nendpoints = [\"https://[::1]:2379/\", \"http://h:1\"]\nuser = \"u\"\npassword_file = \"/p\"",
            "kind = \"disk\"\npath = \"/d\"\nnodes = 2\nnode = 1",
        ] {
            parse(right).unwrap().check().unwrap();
        }
    }
}
