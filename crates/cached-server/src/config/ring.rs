//! `[ring]`: the ring of nodes to which the server belongs. The table names this node, its addresses
//! in a ring whose map is in the registry or else a file with the map, and the files with the secrets and
//! certificates by which the nodes recognise each other.

#[cfg(test)]
mod tests;

use super::{File, memcached};
use cached_config::{
    BackendTable, ConfigError, Listening, ObjectsTable, exposure, invalid, load_peer_tls, require, secret,
    secret_warning, with_defaults, within,
};
use cached_memcached::settings::{
    ClientCertificates, ListenAddress, ListenTls, RingSecrets, RingSettings, ServerTls, Settings, TlsSettings,
};
use cached_objects::is_elected;
use cached_process::Exit;
use cached_registry::{Error, RegistryTable, documents};
use cached_ring::{Map, Node, WEIGHT_MAX, check_name, host_and_port, planned};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use synapse::Secret;

with_defaults! {
    /// The table `[ring]`. An empty string means none, or the default.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields, expecting = "a table")]
    pub struct RingTable {
        /// The name of this node in the map; if empty, the host's name.
        pub node: String = String::new(),
        /// The name of the ring, of which the registry or the file may contain several.
        pub name: String = "main".into(),
        /// The address at which other nodes reach this one, `host:port`, in a ring whose map is in the
        /// registry. Here and in `clients`, `{node}` stands for the name of this node.
        pub address: String = String::new(),
        /// The address at which clients reach this node, in a ring whose map is in the registry; if
        /// empty, the first address of memcached's listeners that names a host.
        pub clients: String = String::new(),
        /// This node's share of the slots relative to other nodes', when it joins.
        pub weight: u32 = 1,
        /// The file with the map; if empty, the map is in the registry.
        pub map_file: PathBuf = PathBuf::new(),
        /// The addresses at which other nodes are accepted, `host:port`; if empty, the address at
        /// which they reach this node.
        pub listen: Vec<String> = Vec::new(),
        /// The file with the secret that all nodes share.
        pub secret_file: PathBuf = PathBuf::new(),
        /// The file with a second secret that is also accepted, for use during a rotation.
        pub secret_file_previous: PathBuf = PathBuf::new(),
        /// The time, in milliseconds, after which a node that does not answer is considered away.
        pub peer_timeout_ms: u64 = 2000,
        /// The maximum time, in milliseconds, for connecting to a node.
        pub connect_timeout_ms: u64 = 1000,
        /// The maximum number of connections that one other node may open; each opens one for every
        /// thread.
        pub peer_lanes_max: u32 = 16,
        /// The duration of the nodes' leases, in seconds, in a ring whose map is in the registry: a
        /// node that does not renew its lease in this time is replaced.
        pub lease_secs: u32 = 10,
        /// TLS between nodes; `None` without it.
        pub tls: Option<RingTlsTable> = None,
    }
}

with_defaults! {
    /// The table `[ring.tls]`: the certificate that this node shows to all others.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields, expecting = "a table")]
    pub struct RingTlsTable {
        /// The certificate chain: PEM, the node's own certificate first.
        pub chain_file: PathBuf = PathBuf::new(),
        /// The private key; if empty, it is in the file of the chain.
        pub key_file: PathBuf = PathBuf::new(),
        /// The certificates of the authorities that sign the nodes' certificates.
        pub ca_file: PathBuf = PathBuf::new(),
    }
}

/// The number of nodes above which a warning is logged: each thread has a connection to every node.
const NODES_WITHOUT_WARNING: usize = 64;

/// The content of the files that the table names.
#[derive(Debug)]
pub(crate) struct RingFiles {
    pub(crate) map: Map,
    current: Option<Secret>,
    previous: Option<Secret>,
}

impl RingFiles {
    /// Puts the secrets in force. Returns whether they differ from the earlier ones.
    pub(crate) fn put_secrets_in_force(&self, secrets: &RingSecrets) -> bool {
        secrets.set(self.current.clone(), self.previous.clone())
    }
}

impl RingTable {
    /// Returns the name of this node.
    pub(crate) fn node(&self) -> String {
        if self.node.is_empty() { synapse::host_name() } else { self.node.clone() }
    }

    /// Returns whether the map is in the registry, where nodes and operators change it.
    pub(crate) fn is_in_registry(&self) -> bool {
        self.map_file.as_os_str().is_empty()
    }

    /// Checks the table; the files that it names are not read.
    ///
    /// # Errors
    /// Returns the first key with an invalid value.
    pub(crate) fn check(
        &self,
        registry: Option<&RegistryTable>,
        objects: Option<&ObjectsTable>,
    ) -> Result<(), ConfigError> {
        check_name(&self.name).map_err(|error| ConfigError::new("ring.name", error))?;
        check_name(&self.node()).map_err(|error| {
            let default = if self.node.is_empty() { "is the host's name by default: " } else { "" };
            ConfigError::new("ring.node", format!("{default}{error}"))
        })?;
        match self.is_in_registry() {
            true => check_registry(registry, objects)?,
            false => {
                let own = [("ring.address", &self.address), ("ring.clients", &self.clients)];
                let set = own.into_iter().find(|(_, text)| !text.is_empty()).map(|(key, _)| key);
                let set = set.or((self.weight != 1).then_some("ring.weight"));
                set.map_or(Ok(()), |key| {
                    invalid(key, "is set with map_file, whose map says it; set one of the two")
                })?;
                require(self.lease_secs == RingTable::default().lease_secs, "ring.lease_secs", || {
                    "is set with map_file; only a map in the registry has leases, so set one of the two"
                        .into()
                })?;
            }
        }
        within("ring.weight", self.weight, 0..=WEIGHT_MAX)?;
        within("ring.lease_secs", self.lease_secs, 2..=120)?;
        self.listen.iter().try_for_each(|text| listen_address(text).map(drop))?;
        within("ring.peer_timeout_ms", self.peer_timeout_ms, 100..=60_000)?;
        within("ring.connect_timeout_ms", self.connect_timeout_ms, 10..=60_000)?;
        within("ring.peer_lanes_max", self.peer_lanes_max, 1..=1024).map(drop)
    }

    /// Reads the files for the node `node`. `settings` are those of memcached's listeners.
    ///
    /// # Errors
    /// Returns the problem with a file: a mistake in the map, a map without this node, a secret that
    /// is too short or missing.
    fn read(&self, node: &str, settings: &Settings) -> Result<RingFiles, ConfigError> {
        let map = match self.is_in_registry() {
            true => self.alone(node, settings)?,
            false => self.read_map(node)?,
        };
        let current = secret("ring.secret_file", &self.secret_file)?;
        let previous = secret("ring.secret_file_previous", &self.secret_file_previous)?;
        if current.is_none() && previous.is_some() {
            return invalid("ring.secret_file_previous", "is set without secret_file; set both");
        }
        let files = RingFiles { map, current, previous };
        let is_open = files.current.is_none() && self.tls.is_none();
        match self.why_secret(node, &files.map, settings).filter(|_| is_open) {
            None => Ok(files),
            Some(why) => invalid(
                "ring.secret_file",
                format!(
                    "is missing; {why}, so the nodes must share a secret, for example the output of: openssl rand \
                     -hex 32; or show certificates, which [ring.tls] names"
                ),
            ),
        }
    }

    /// Returns why the nodes must share a secret or show certificates, if they must: nodes read and change everything.
    fn why_secret(&self, node: &str, map: &Map, settings: &Settings) -> Option<String> {
        // A node also sends requests and values to the addresses of all others.
        let nodes = map.nodes().iter().map(|node| node.ring.clone());
        let exposed = self.listen_texts(node, map).into_iter().chain(nodes).find_map(|text| exposure(&text));
        let certificates = |address: &ListenAddress| settings.client_certificates(address.tls);
        let has_certificates =
            settings.listen.iter().any(|one| certificates(one) == Some(ClientCertificates::Require));
        exposed
            .or_else(|| settings.auth.is_required().then(|| "clients need a password".into()))
            .or_else(|| has_certificates.then(|| "clients need a certificate".into()))
    }

    /// Returns the map of a ring with this node only, for use until the registry is read.
    fn alone(&self, node: &str, settings: &Settings) -> Result<Map, ConfigError> {
        require(!self.address.is_empty(), "ring.address", || {
            "is missing; without map_file it must be HOST:PORT, as other nodes reach this one".into()
        })?;
        let named = |text: &str| text.replace("{node}", node);
        let ring = reachable("ring.address", &named(&self.address))?;
        let address = match self.clients.is_empty() {
            false => reachable("ring.clients", &named(&self.clients))?,
            true => {
                let addresses = settings.listen.iter().map(memcached::plain_address);
                addresses.into_iter().find_map(|text| reachable("ring.clients", &text).ok()).ok_or_else(|| {
                    let why = "is missing; no listener of memcached names a host, so it must be HOST:PORT, as \
                               clients reach this node";
                    ConfigError::new("ring.clients", why)
                })?
            }
        };
        let (weight, lease_ms) = (self.weight, self.lease_secs * 1000);
        let node = Node { weight, lease_ms, ..Node::new(node, ring, address) };
        planned(&self.name, 1, vec![node], None).map_err(|error| ConfigError::new("ring", error))
    }

    fn read_map(&self, node: &str) -> Result<Map, ConfigError> {
        let documents = documents(&self.map_file).map_err(|error| {
            let is_mistake = !matches!(error, Error::Unavailable(_));
            let exit = if is_mistake { Exit::Configuration } else { Exit::Trouble };
            let why = match error {
                Error::Unavailable(why) | Error::Invalid(why) => why.into_owned(),
                other => other.to_string(),
            };
            ConfigError { exit, ..ConfigError::new("ring.map_file", why) }
        })?;
        let documents = documents.iter().map(|(key, value)| (key.as_str(), &value[..]));
        let read = cached_ring::from_file(&self.name, documents);
        let map = read.and_then(|map| map.check_node(node).map(|()| map));
        map.map_err(|error| self.wrong_map(error))
    }

    /// Returns the error for a mistake in the map's file.
    fn wrong_map(&self, why: impl std::fmt::Display) -> ConfigError {
        ConfigError::new("ring.map_file", format!("{}: {why}", self.map_file.display()))
    }

    /// Reads the files, and returns the settings. `settings` are those of memcached's listeners.
    ///
    /// # Errors
    /// Returns the errors of [`read`](Self::read), and the key whose value does not allow a ring.
    pub(crate) fn load(&self, settings: &Settings, file: &File) -> Result<RingSettings, ConfigError> {
        if self.is_in_registry() {
            let backend = file.objects.as_ref().and_then(|objects| objects.backend.as_ref());
            check_store(file.registry.as_ref(), backend)?;
        }
        let has_listener = !settings.listen.is_empty() || settings.unix_path.is_some();
        require(has_listener, "ring", || {
            "requires a listener for memcached's clients; set memcached.listen (-p, -l)".into()
        })?;
        require(self.peer_lanes_max as usize >= settings.threads, "ring.peer_lanes_max", || {
            format!(
                "is {}; it must be at least the number of threads ({}), because each thread of a node has a \
                 connection to every other node",
                self.peer_lanes_max, settings.threads
            )
        })?;
        let node = self.node();
        let files = self.read(&node, settings)?;
        let listen: Result<Vec<ListenAddress>, ConfigError> =
            self.listen_texts(&node, &files.map).iter().map(|text| listen_address(text)).collect();
        Ok(RingSettings {
            node,
            listen: listen?,
            map: Arc::new(files.map),
            secrets: RingSecrets::new(files.current, files.previous),
            tls: self.tls.as_ref().map(RingTlsTable::load).transpose()?,
            peer_timeout: Duration::from_millis(self.peer_timeout_ms),
            connect_timeout: Duration::from_millis(self.connect_timeout_ms),
            peer_lanes_max: self.peer_lanes_max,
            has_leases: self.is_in_registry(),
        })
    }

    /// Reads the files for the running node `node`, whose map is `in_force`. A map in the registry is
    /// not read.
    ///
    /// # Errors
    /// Returns the errors of [`read`](Self::read), and the reason why the map cannot replace the one
    /// in force.
    pub(crate) fn read_again(
        &self,
        node: &str,
        in_force: &Map,
        settings: &Settings,
    ) -> Result<RingFiles, ConfigError> {
        let files = self.read(node, settings)?;
        if self.is_in_registry() {
            return Ok(RingFiles { map: in_force.clone(), ..files });
        }
        files.map.check_successor(in_force, node).map_err(|error| self.wrong_map(error))?;
        let (now, after) = (self.listen_texts(node, in_force), self.listen_texts(node, &files.map));
        match now == after {
            true => Ok(files),
            false => Err(self.wrong_map(format!(
                "ring/{}/nodes/{node}: ring: changes from {} to {}, which requires a restart",
                self.name,
                now.join(", "),
                after.join(", ")
            ))),
        }
    }

    /// Returns the addresses to listen on.
    fn listen_texts(&self, node: &str, map: &Map) -> Vec<String> {
        let own = map.find(node).map(|node| map.node(node).ring.clone());
        if self.listen.is_empty() { own.into_iter().collect() } else { self.listen.clone() }
    }

    /// Returns the addresses for a check of all listeners.
    pub(crate) fn listening(&self, ring: &RingSettings) -> Vec<Listening> {
        let key = match (self.listen.is_empty(), self.is_in_registry()) {
            (false, _) => "ring.listen",
            (true, true) => "ring.address",
            (true, false) => "ring.map_file",
        };
        let of = |address: &ListenAddress| Listening::tcp(key, address.host.as_deref(), address.port);
        ring.listen.iter().map(of).collect()
    }

    /// Returns the number of descriptors that listeners and connections between nodes may need. To a
    /// ring whose map is in the registry, nodes can be added at any time.
    pub(crate) fn descriptors_max(&self, map: &Map, threads: usize) -> usize {
        let least = if self.is_in_registry() { NODES_WITHOUT_WARNING } else { 1 };
        let peers = map.nodes().len().max(least) - 1;
        self.listen.len().max(1) + peers * (threads + self.peer_lanes_max as usize)
    }

    /// Returns warnings about the files of the secrets.
    pub(crate) fn secret_warnings(&self) -> impl Iterator<Item = String> + '_ {
        [&self.secret_file, &self.secret_file_previous].into_iter().filter_map(|path| secret_warning(path))
    }
}

impl RingTlsTable {
    fn load(&self) -> Result<Arc<ServerTls>, ConfigError> {
        let RingTlsTable { chain_file, key_file, ca_file } = self.clone();
        load_peer_tls("ring.tls", TlsSettings::of_peers(chain_file, key_file, ca_file))
    }
}

/// Checks that the map of a ring can be in the registry.
fn check_registry(
    registry: Option<&RegistryTable>,
    objects: Option<&ObjectsTable>,
) -> Result<(), ConfigError> {
    match registry {
        None => invalid(
            "ring",
            "needs a [registry] that all nodes share, for example kind = \"etcd\", or a map_file",
        ),
        Some(RegistryTable::File(_)) => invalid(
            "registry.kind",
            "is \"file\", which nodes cannot change; a ring needs etcd, disk or store, or ring.map_file",
        ),
        Some(RegistryTable::Disk(_)) if objects.is_some_and(is_elected) => invalid(
            "registry.kind",
            "is \"disk\", which cannot serve both [ring] and the election of the writer in one process; use etcd or store",
        ),
        Some(_) => Ok(()),
    }
}

/// Checks that other nodes reach the store of the registry, if it is in a store.
fn check_store(registry: Option<&RegistryTable>, backend: Option<&BackendTable>) -> Result<(), ConfigError> {
    match (registry, backend) {
        (Some(RegistryTable::Store(_)), None) => {
            invalid("registry.kind", "is \"store\", but there is no [objects.backend]")
        }
        (
            Some(RegistryTable::Store(_)),
            Some(backend @ (BackendTable::Memory(_) | BackendTable::File(_))),
        ) => {
            let why =
                format!("is \"store\", but other nodes do not reach the store {backend}; use etcd or disk");
            invalid("registry.kind", why)
        }
        _ => Ok(()),
    }
}

/// Returns the text if other hosts can connect to the address.
fn reachable(key: &str, text: &str) -> Result<String, ConfigError> {
    let is_told = host_and_port(text)
        .is_some_and(|(host, _)| !host.parse::<IpAddr>().is_ok_and(|host| host.is_unspecified()));
    let expected = "expected HOST:PORT or [V6]:PORT, as others reach this node";
    require(is_told, key, || format!("is {text:?}; {expected}")).map(|()| text.to_owned())
}

/// Returns warnings about the ring.
pub(crate) fn warnings(ring: &RingSettings) -> Vec<String> {
    let exposed = ring.listen.iter().find_map(|address| exposure(&memcached::plain_address(address)));
    let exposed = exposed.filter(|_| ring.tls.is_none());
    let nodes = ring.map.nodes().len();
    let exposed = exposed.map(|exposed| {
        format!("[ring]: {exposed}; the secret keeps strangers out, but nothing between nodes is encrypted: use [ring.tls], or a private network")
    });
    let many = (nodes > NODES_WITHOUT_WARNING).then(|| {
        format!(
            "[ring]: the map has {nodes} nodes; each thread has connections to and from every other node, so fewer \
             and larger nodes or fewer threads would need less memory"
        )
    });
    exposed.into_iter().chain(many).collect()
}

/// Returns the address in a string `host:port`; the host `*` means every interface.
fn listen_address(text: &str) -> Result<ListenAddress, ConfigError> {
    let all = text.strip_prefix("*:").and_then(|port| port.parse().ok()).filter(|port| *port > 0);
    let address = all.map(|port| (None, port)).or_else(|| {
        let (host, port) = host_and_port(text)?;
        Some((Some(host.to_owned()), port))
    });
    match address {
        Some((host, port)) => Ok(ListenAddress { host, port, protocol: None, tls: ListenTls::Off }),
        None => invalid(
            "ring.listen",
            format!("{text:?} is not an address; expected HOST:PORT, [V6]:PORT or *:PORT"),
        ),
    }
}
