//! Rings of nodes: the map that says which node owns which slots, and the servers that read it.
//!
//! Each process of the tests has its own loopback address, and each node its own port for the other
//! nodes, so that the map can name the ports before the nodes start.

use crate::conn::Conn;
use crate::daemon::{wait_for, write_secret};
use crate::server::{Server, Start, own_address};
use crate::upgrade::Upgradable;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The number of slots.
pub const SLOTS: u16 = 16_384;

/// Returns the slot of a key.
pub fn slot_of(key: &str) -> u16 {
    let slot = crc32fast::hash(key.as_bytes()) >> 16;
    slot as u16 % SLOTS
}

/// Returns `count` keys that begin with `name` and whose slots are in `slots`.
pub fn keys_in(slots: std::ops::RangeInclusive<u16>, name: &str, count: usize) -> Vec<String> {
    let all = (0..).map(|number| format!("{name}-{number}"));
    all.filter(|key| slots.contains(&slot_of(key))).take(count).collect()
}

/// The map file of a ring called `main`, and the address of each node for the other nodes.
#[derive(Debug)]
pub struct MapFile {
    dir: tempfile::TempDir,
    nodes: Vec<(String, SocketAddr)>,
}

impl MapFile {
    /// Returns version 1 of a map of these nodes. `runs` are the slots of each owner, such as
    /// `("0-8191", "a")`.
    ///
    /// # Panics
    /// Panics if the file cannot be written.
    pub fn new(names: &[&str], runs: &[(&str, &str)]) -> MapFile {
        let nodes = names.iter().map(|name| ((*name).to_owned(), own_address())).collect();
        let map = MapFile { dir: tempfile::tempdir().expect("a temporary directory"), nodes };
        map.write(1, runs);
        map
    }

    /// Replaces the map.
    ///
    /// # Panics
    /// Panics if the file cannot be written.
    pub fn write(&self, version: u64, runs: &[(&str, &str)]) {
        let mut text = format!("\"ring/main/meta\" = {{ format = 1, version = {version} }}\n");
        for (name, address) in &self.nodes {
            // No test connects to the address for clients.
            let clients = SocketAddr::new(address.ip(), address.port() + 20_000);
            let node = format!("{{ ring = \"{address}\", address = \"{clients}\" }}");
            writeln!(text, "\"ring/main/nodes/{name}\" = {node}").expect("text");
        }
        let runs: Vec<String> =
            runs.iter().map(|(slots, owner)| format!("\"{slots}\" = \"{owner}\"")).collect();
        writeln!(text, "\"ring/main/map\" = {{ {} }}", runs.join(", ")).expect("text");
        std::fs::write(self.path("new.toml"), text).expect("a map");
        std::fs::rename(self.path("new.toml"), self.path("ring.toml")).expect("a map");
    }

    /// Returns the path of a file in the map's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the address of a node for the other nodes.
    ///
    /// # Panics
    /// Panics if the map has no such node.
    pub fn address(&self, node: &str) -> SocketAddr {
        let found = self.nodes.iter().find(|(name, _)| name == node);
        found.unwrap_or_else(|| panic!("no node {node}")).1
    }

    /// Returns the configuration of a node; `more` are further keys of the table `[ring]`.
    pub fn configuration(&self, node: &str, more: &str) -> String {
        format!("[ring]\nnode = \"{node}\"\nmap_file = \"{}\"\n{more}\n", self.path("ring.toml").display())
    }

    /// Writes a secret, and returns the key that names its file.
    pub fn secret(&self, key: &str, text: &str) -> String {
        let path = self.path(key);
        write_secret(&path, text);
        format!("{key} = \"{}\"", path.display())
    }
}

/// A time limit for nodes of which none is expected to be lost: the machine may be busy.
pub const PATIENT: &str = "peer_timeout_ms = 60000\nconnect_timeout_ms = 60000";

/// A node that owns nothing, and the node that owns everything.
#[derive(Debug)]
pub struct Entry {
    /// The node to which clients connect.
    pub server: Server,
    /// The node that executes their requests.
    pub owner: Server,
    _map: MapFile,
}

impl Entry {
    /// Starts both: the owner with the arguments of `owner`, the entry as `entry`.
    ///
    /// # Panics
    /// Panics if a server does not start. The message contains its output.
    pub fn start(entry: Start, owner: Start) -> Entry {
        let map = MapFile::new(&["entry", "owner"], &[("0-16383", "owner")]);
        let begin = |start: Start, node: &str| {
            let file = map.path(&format!("{node}.toml"));
            std::fs::write(&file, map.configuration(node, PATIENT)).expect("a configuration");
            start.args(&format!("--config={}", file.display())).start()
        };
        // The entry connects at its start. Until then its clients wait.
        let owner = begin(owner, "owner");
        Entry { server: begin(entry, "entry"), owner, _map: map }
    }
}

/// The nodes of a ring, each of which can be killed, stopped, started again and upgraded.
#[derive(Debug)]
pub struct Fleet {
    /// The map of the ring.
    pub map: MapFile,
    /// The nodes, in the order of the names.
    pub nodes: Vec<Upgradable>,
}

impl Fleet {
    /// Starts a node for each name, each with the further keys `more` of its table `[ring]`, and waits
    /// until they are connected. `runs` are the slots of each owner.
    ///
    /// # Panics
    /// Panics if a node does not start. The message contains its log.
    pub fn start(names: &[&str], runs: &[(&str, &str)], more: &str) -> Fleet {
        let map = MapFile::new(names, runs);
        let args = format!("-m 64 -t {THREADS}");
        let start = |name: &&str| Upgradable::start(&args, &map.configuration(name, more));
        let nodes: Vec<_> = names.iter().map(start).collect();
        nodes.iter().for_each(wait_until_connected);
        Fleet { map, nodes }
    }

    /// Returns a new connection to a node.
    ///
    /// # Panics
    /// Panics if the node cannot be reached.
    pub fn connect(&self, node: usize) -> Conn {
        self.nodes[node].connect()
    }

    /// Waits until each node has this version of the map in force, and executes the requests for all
    /// of its slots; calls `meanwhile` while it waits.
    ///
    /// # Panics
    /// Panics if the map is not in force in time.
    pub fn wait_for_map(&self, version: u64, mut meanwhile: impl FnMut()) {
        for node in 0..self.nodes.len() {
            wait_for("a map", || {
                meanwhile();
                let is_in_force = self.stat(node, "map_version") == version.to_string();
                (is_in_force && self.stat(node, "purging_slots") == "0").then_some(())
            });
        }
    }

    /// Returns a value of `stats ring` of a node.
    ///
    /// # Panics
    /// Panics if there is no such value.
    pub fn stat(&self, node: usize, name: &str) -> String {
        let mut conn = self.connect(node);
        conn.send(b"stats ring\r\n");
        let mut found = None;
        loop {
            let line = String::from_utf8_lossy(&conn.read_line()).into_owned();
            match line.strip_prefix("STAT ").and_then(|line| line.split_once(' ')) {
                Some((key, value)) if key == name => found = Some(value.to_owned()),
                Some(_) => {}
                None => break,
            }
        }
        found.unwrap_or_else(|| panic!("no {name} in stats ring"))
    }
}

/// The threads of each node.
const THREADS: usize = 2;

/// Waits until each thread of a node is connected to all other nodes.
///
/// # Panics
/// Panics if they are not in time.
pub fn wait_until_connected(node: &Upgradable) {
    // A server assigns connections to its threads in turn.
    let mut conns: Vec<_> = (0..THREADS).map(|_| node.connect()).collect();
    for conn in &mut conns {
        wait_for("a flush of all nodes", || {
            conn.send(b"flush_all\r\n");
            let line = conn.read_line();
            assert!(line == b"OK" || line.starts_with(b"SERVER_ERROR flush_all"), "{line:?}");
            (line == b"OK").then_some(())
        });
    }
}
