//! What is measured: servers that together answer for all keys, and the address that clients use.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cached_benches::protocol::Protocol;
use cached_benches::server::{Greeting, Server, ServerSpec, free_address};
use tempfile::TempDir;

/// The maximum wait for slots to have an owner, or to arrive.
const SETTLED_LIMIT: Duration = Duration::from_secs(300);

/// The programs, and the core to which all of their processes are pinned.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) cached: PathBuf,
    pub(crate) memcached: PathBuf,
    pub(crate) nutcracker: PathBuf,
    pub(crate) valkey: PathBuf,
    pub(crate) cpu: usize,
}

/// Servers that answer together.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    /// The first one is the one to which clients connect.
    pub(crate) servers: Vec<Server>,
    pub(crate) protocol: Protocol,
    _directory: TempDir,
}

impl Subject {
    fn new(name: &'static str, servers: Vec<Server>, protocol: Protocol, directory: TempDir) -> Self {
        Self { name, servers, protocol, _directory: directory }
    }

    /// Returns the PIDs of all servers.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.servers.iter().map(Server::pid).collect()
    }
}

impl Programs {
    fn spec(&self, name: &str, program: &Path) -> ServerSpec {
        ServerSpec { cpu: Some(self.cpu), ..ServerSpec::new(name, program) }
    }

    /// Starts a `cached` with a configuration file.
    fn cached(&self, name: &str, directory: &TempDir, configuration: &str) -> Result<Server> {
        let path = directory.path().join(format!("{name}.toml"));
        fs::write(&path, configuration).with_context(|| format!("writing {}", path.display()))?;
        let mut spec = self.spec(name, &self.cached);
        spec.extra = vec!["--config".into(), path.into()];
        spec.start()
    }

    /// Starts one `cached` that owns all keys.
    pub(crate) fn alone(&self) -> Result<Subject> {
        let server = self.spec("cached", &self.cached).start()?;
        Ok(Subject::new("cached", vec![server], Protocol::Text, tempfile::tempdir()?))
    }

    /// Starts a ring of an entry that owns nothing, and the owner of everything.
    pub(crate) fn entry(&self) -> Result<Subject> {
        let directory = tempfile::tempdir()?;
        let map = directory.path().join("ring.toml");
        let mut text = "\"ring/main/meta\" = { format = 1, version = 1 }\n".to_owned();
        for name in ["entry", "owner"] {
            // No client is told the address for clients.
            let (ring, clients) = (free_address()?, free_address()?);
            let node = format!("{{ ring = \"{ring}\", address = \"{clients}\" }}");
            text += &format!("\"ring/main/nodes/{name}\" = {node}\n");
        }
        text += "\"ring/main/map\" = { \"0-16383\" = \"owner\" }\n";
        fs::write(&map, text).with_context(|| format!("writing {}", map.display()))?;
        let start = |name: &str| {
            let table = format!("[ring]\nnode = \"{name}\"\nmap_file = \"{}\"\n", map.display());
            self.cached(name, &directory, &table)
        };
        let owner = start("owner")?;
        Ok(Subject::new("ring", vec![start("entry")?, owner], Protocol::Text, directory))
    }

    /// Starts twemproxy in front of one memcached.
    pub(crate) fn twemproxy(&self) -> Result<Subject> {
        let directory = tempfile::tempdir()?;
        let memcached = self.spec("memcached", &self.memcached).start()?;
        let (address, statistics) = (free_address()?, free_address()?);
        let pool = format!(
            "pool:\n  listen: {address}\n  hash: fnv1a_64\n  distribution: ketama\n  preconnect: true\n  servers:\n   - {}:1\n",
            memcached.address()
        );
        let path = directory.path().join("nutcracker.yml");
        fs::write(&path, pool).with_context(|| format!("writing {}", path.display()))?;
        let mut words = vec![self.nutcracker.clone().into_os_string(), "-c".into(), path.into()];
        words.extend(["-a", "127.0.0.1", "-s", &statistics.port().to_string()].map(OsString::from));
        let proxy = Server::spawn("twemproxy", &words, Some(self.cpu), address, Greeting::MEMCACHED)?;
        Ok(Subject::new("twemproxy", vec![proxy, memcached], Protocol::Text, directory))
    }

    /// Starts a cluster of one Valkey that owns all keys: what a client sees that knows the owner of
    /// each key.
    pub(crate) fn valkey(&self) -> Result<Subject> {
        let directory = tempfile::tempdir()?;
        let server = self.valkey_node("valkey", &directory)?;
        give_all_slots(&server)?;
        Ok(Subject::new("valkey", vec![server], Protocol::Resp, directory))
    }

    /// Starts a node of a Valkey cluster that owns nothing.
    pub(crate) fn valkey_node(&self, name: &str, directory: &TempDir) -> Result<Server> {
        let (address, bus) = (free_address()?, free_address()?);
        let own = directory.path().join(name);
        fs::create_dir(&own)?;
        let mut words = vec![self.valkey.clone().into_os_string()];
        let mut add = |flag: &str, value: &str| words.extend([flag, value].map(OsString::from));
        add("--port", &address.port().to_string());
        add("--bind", "127.0.0.1");
        add("--cluster-enabled", "yes");
        add("--cluster-port", &bus.port().to_string());
        add("--dir", &own.display().to_string());
        add("--save", "");
        add("--appendonly", "no");
        add("--maxmemory", "1gb");
        Server::spawn(name, &words, Some(self.cpu), address, Greeting::RESP)
    }

    /// Starts a node of a ring whose map is on a disk that both nodes share; the first one owns all
    /// slots, and the second one is given half of them.
    pub(crate) fn ring_node(&self, number: usize, directory: &TempDir) -> Result<Server> {
        let name = ["a", "b"][number];
        let table = format!(
            "[ring]\nnode = \"{name}\"\naddress = \"{}\"\n[registry]\nkind = \"disk\"\npath = \"{}\"\nnodes = 2\n\
             node = {number}\ncreate = true\npoll_ms = 100\n",
            free_address()?,
            directory.path().join("registry").display()
        );
        self.cached(name, directory, &table)
    }
}

/// Gives a Valkey all slots, and waits until it answers for them.
pub(crate) fn give_all_slots(server: &Server) -> Result<()> {
    let mut client = server.client()?;
    let reply = client.ask("CLUSTER ADDSLOTSRANGE 0 16383")?;
    ensure!(reply == "+OK", "{} answers `{reply}`", server.name());
    until("the cluster of Valkey is up", || {
        Ok(server.client()?.bulk("CLUSTER INFO")?.lines().any(|line| line == "cluster_state:ok"))
    })
}

/// Waits until a condition holds.
pub(crate) fn until(what: &str, mut is_true: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !is_true().with_context(|| format!("waiting until {what}"))? {
        ensure!(start.elapsed() < SETTLED_LIMIT, "not within {} s: {what}", SETTLED_LIMIT.as_secs());
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
