//! Rings of nodes: the map that says which node owns which slots, and the servers that read it.
//!
//! Each process of the tests has its own loopback address, and each node its own port for the other
//! nodes, so that the map can name the ports before the nodes start.

use crate::conn::Conn;
use crate::daemon::{wait_for, write_secret};
use crate::server::{Address, Server, Start, own_address};
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
        self.write_for("main", version, runs);
    }

    /// Replaces the map by one of the ring `ring`.
    ///
    /// # Panics
    /// Panics if the file cannot be written.
    pub fn write_for(&self, ring: &str, version: u64, runs: &[(&str, &str)]) {
        let mut text = format!("\"ring/{ring}/meta\" = {{ format = 1, version = {version} }}\n");
        for (number, (name, address)) in (1..).zip(&self.nodes) {
            // No client of the tests asks for the addresses of the nodes.
            let node = format!("{{ ring = \"{address}\", address = \"192.0.2.{number}:11211\" }}");
            writeln!(text, "\"ring/{ring}/nodes/{name}\" = {node}").expect("text");
        }
        let runs: Vec<String> = runs.iter().map(|(slots, owner)| format!("\"{slots}\" = \"{owner}\"")).collect();
        writeln!(text, "\"ring/{ring}/map\" = {{ {} }}", runs.join(", ")).expect("text");
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
    /// Starts a node for each name, each with the arguments `args` and the further keys `more` of
    /// its table `[ring]`. `runs` are the slots of each owner.
    ///
    /// # Panics
    /// Panics if a node does not start. The message contains its log.
    pub fn start(names: &[&str], runs: &[(&str, &str)], args: &str, more: &str) -> Fleet {
        let map = MapFile::new(names, runs);
        let start = |name: &&str| Upgradable::start(args, &map.configuration(name, more));
        let nodes = names.iter().map(start).collect();
        Fleet { map, nodes }
    }

    /// Returns a new connection to a node.
    ///
    /// # Panics
    /// Panics if the node cannot be reached.
    pub fn connect(&self, node: usize) -> Conn {
        let address = SocketAddr::from(([127, 0, 0, 1], self.nodes[node].port));
        Conn::open(&Address::Tcp(address)).expect("a connection")
    }

    /// Waits until each node answers for every other one.
    ///
    /// # Panics
    /// Panics if a node does not in time.
    pub fn wait_until_whole(&self) {
        for node in 0..self.nodes.len() {
            self.wait_until_answered(node, b"flush_all\r\n", b"OK");
        }
    }

    /// Repeats a request at a node until the first line of the reply is the expected one.
    ///
    /// # Panics
    /// Panics if it is not in time.
    pub fn wait_until_answered(&self, node: usize, request: &[u8], line: &[u8]) {
        let mut conn = self.connect(node);
        let mut last = Vec::new();
        wait_for("the expected reply", || {
            conn.send(request);
            last = conn.read_line();
            (last == line).then_some(())
        });
    }
}
