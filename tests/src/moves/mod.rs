//! Rings whose map is in a registry, whose slots move with their items between running nodes, under
//! clients that must not notice.
//!
//! [`Cluster`] starts, kills and replaces nodes, and gives the operator's commands; [`registers`] knows
//! what each key may show; [`clients`] are the load.

pub mod clients;
pub mod registers;

use crate::daemon::{TOKEN, wait_for, write_secret};
use crate::etcd::Etcd;
use crate::http;
use crate::network::Network;
use crate::outside::{run, text};
use crate::program::workspace_programs;
use crate::relay::Relay;
use crate::ring::SLOTS;
use crate::server::own_address;
use crate::upgrade::Upgradable;
use registers::Registers;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use test_kit::memory_directory;

/// The maximum number of processes over one disk.
const NODES_MAX: usize = 8;
/// The time limit for slots to be where they belong. It is generous, because the machine may be busy.
const SETTLED: Duration = Duration::from_secs(240);

/// The interval of looks at the nodes.
const LOOK: Duration = Duration::from_millis(10);

/// Time limits and leases of nodes of which none is expected to be lost: the machine may be busy.
pub const PATIENT: &str = "peer_timeout_ms = 60000\nconnect_timeout_ms = 60000\nlease_secs = 120";

/// The registry of a cluster.
#[derive(Debug)]
pub enum By {
    /// A file that all processes share.
    Disk,
    /// etcd, behind a relay.
    Etcd(Etcd, Relay),
    /// etcd on the first host of a network, whose other hosts have a node each.
    Network(Etcd, Network),
}

impl By {
    /// Starts an etcd and a relay to it; `None` if it is not installed.
    ///
    /// # Panics
    /// Panics if the program does not start.
    #[must_use]
    pub fn etcd(test: &str) -> Option<By> {
        let etcd = Etcd::start(test)?;
        let relay = Relay::to(([127, 0, 0, 1], etcd.port).into());
        Some(By::Etcd(etcd, relay))
    }

    /// Starts an etcd in a network with room for `nodes` nodes; `None` if it is not installed, or this
    /// process may not create a network.
    ///
    /// # Panics
    /// Panics if the network cannot be set up, or the program does not start.
    #[must_use]
    pub fn network(test: &str, nodes: usize) -> Option<By> {
        let network = Network::enter(test, 1 + nodes)?;
        let etcd = network.within(0, || Etcd::start_at(Ipv4Addr::UNSPECIFIED, test))?;
        Some(By::Network(etcd, network))
    }

    /// Returns the host of a node.
    #[must_use]
    pub fn host(node: usize) -> usize {
        1 + node
    }

    /// Calls `f` where a node runs.
    fn at<T>(&self, node: usize, f: impl FnOnce() -> T) -> T {
        match self {
            By::Network(_, network) => network.within(By::host(node), f),
            By::Disk | By::Etcd(..) => f(),
        }
    }
}

/// How the nodes of a cluster are started.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Arguments of each node.
    pub args: &'static str,
    /// Further lines of the table `[ring]`.
    pub ring: &'static str,
    /// Whether each node has a memory file.
    pub has_memory: bool,
    /// Whether nodes reach each other through relays.
    pub is_relayed: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { args: "-m 128 -t 2", ring: PATIENT, has_memory: false, is_relayed: false }
    }
}

/// A node of a cluster.
#[derive(Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its process.
    pub process: Upgradable,
    /// The relay through which other nodes reach it, if there is one.
    pub relay: Option<Relay>,
    /// Where other nodes reach it, behind the relay.
    pub ring: SocketAddr,
    admin: SocketAddr,
    _memory: Option<tempfile::TempDir>,
}

/// The nodes of a ring whose map is in a registry.
#[derive(Debug)]
pub struct Cluster {
    /// The nodes that were started, in this order.
    pub nodes: Vec<Node>,
    /// The registry.
    pub by: By,
    options: Options,
    /// The weights that an operator has given to nodes.
    weights: Mutex<BTreeMap<String, u64>>,
    dir: tempfile::TempDir,
}

/// Returns the lines of `[registry]` for an etcd at this address.
fn by_etcd(address: SocketAddr) -> String {
    format!("kind = \"etcd\"\nendpoints = [\"http://{address}\"]\nprefix = \"ring-test/\"\ntimeout_ms = 500")
}

impl Cluster {
    /// Starts the nodes with these names, one after the other. Their slots may still move.
    ///
    /// # Panics
    /// Panics if a node does not start. The message contains its log.
    #[must_use]
    pub fn start(names: &[&str], by: By, options: Options) -> Cluster {
        // A lease on a disk whose syncs take long would end.
        let dir = memory_directory();
        let mut cluster = Cluster { nodes: Vec::new(), by, options, weights: Mutex::default(), dir };
        write_secret(&cluster.dir.path().join("token"), TOKEN);
        write_secret(&cluster.dir.path().join("secret"), TOKEN);
        names.iter().for_each(|name| cluster.add(name, ""));
        cluster
    }

    /// Starts a further node; `more` are further lines of its table `[ring]`.
    ///
    /// # Panics
    /// Panics if the node does not start. The message contains its log.
    pub fn add(&mut self, name: &str, more: &str) {
        let node = self.started(name, more);
        self.nodes.push(node);
    }

    /// Starts a further node as [`add`](Self::add) does, and returns it, while others may use the cluster.
    ///
    /// # Panics
    /// Panics if the node does not start. The message contains its log.
    #[must_use]
    pub fn started(&self, name: &str, more: &str) -> Node {
        let number = self.nodes.len();
        let free = |port| match &self.by {
            By::Network(_, network) => (network.address(By::host(number)), port).into(),
            By::Disk | By::Etcd(..) => own_address(),
        };
        let ring = free(11_311);
        let relay = self.options.is_relayed.then(|| Relay::to(ring));
        let address = relay.as_ref().map_or(ring, |relay| relay.address);
        let (admin, clients) = (free(9_151), free(11_211));
        let listen = format!("listen = [\"{ring}\"]\n{more}");
        let configuration = self.configuration(number, name, [address, clients, admin], &listen);
        let memory = self.options.has_memory.then(memory_directory);
        let file = memory.as_ref().map(|dir| format!("-e {}", dir.path().join("memory").display()));
        let args = format!("{} {}", self.options.args, file.unwrap_or_default());
        let host = match &self.by {
            By::Network(_, network) => network.address(By::host(number)),
            By::Disk | By::Etcd(..) => Ipv4Addr::LOCALHOST.into(),
        };
        let process = self.by.at(number, || Upgradable::start_at(host, &args, &configuration));
        Node { name: name.into(), process, relay, ring, admin, _memory: memory }
    }

    /// Returns the file with the configuration of a node that another process starts, after all others.
    ///
    /// # Panics
    /// Panics if the file cannot be written.
    #[must_use]
    pub fn configuration_outside(&self, name: &str) -> PathBuf {
        let file = self.dir.path().join(format!("{name}.toml"));
        let addresses = [own_address(), own_address(), own_address()];
        std::fs::write(&file, self.configuration(self.nodes.len(), name, addresses, ""))
            .expect("a configuration");
        file
    }

    /// Returns the configuration of a node; `number` is that of its process over a disk, and `more` are further
    /// lines of its table `[ring]`.
    fn configuration(
        &self,
        number: usize,
        name: &str,
        [address, clients, admin]: [SocketAddr; 3],
        more: &str,
    ) -> String {
        let registry = match &self.by {
            By::Disk => format!(
                "kind = \"disk\"\npath = \"{}\"\nnodes = {NODES_MAX}\nnode = {number}\ncreate = true\npoll_ms = 10",
                self.dir.path().join("registry").display()
            ),
            By::Etcd(_, relay) => by_etcd(relay.address),
            By::Network(etcd, network) => by_etcd((network.address(0), etcd.port).into()),
        };
        let file = |name: &str| self.dir.path().join(name).display().to_string();
        let secret = match &self.by {
            By::Network(..) => format!("secret_file = \"{}\"", file("secret")),
            By::Disk | By::Etcd(..) => String::new(),
        };
        // Nodes with memory files are upgraded.
        let process = match self.options.has_memory {
            true => "[process]\nupgrade_timeout_secs = 90\n",
            false => "",
        };
        format!(
            "{process}[ring]\nnode = \"{name}\"\naddress = \"{address}\"\nclients = \"{clients}\"\n{secret}\n{}\n{more}\n\
             [registry]\n{registry}\n[admin]\nlisten = [\"{admin}\"]\ntoken_file = \"{}\"\n",
            self.options.ring,
            file("token")
        )
    }

    /// Tells clients the ports of all nodes that run.
    pub fn tell(&self, registers: &Registers) {
        for (number, node) in self.nodes.iter().enumerate() {
            registers.tell(number, (node.process.pid > 0).then(|| node.process.address()));
        }
    }

    /// Kills a node, and waits for its end.
    ///
    /// # Panics
    /// Panics if it does not run.
    pub fn kill(&mut self, node: usize) {
        let process = &mut self.nodes[node].process;
        process.signal(libc::SIGKILL);
        assert_eq!(process.wait_exit(), 128 + libc::SIGKILL, "{}", process.log());
        process.pid = 0;
        if let Some(relay) = &self.nodes[node].relay {
            relay.close(true);
        }
    }

    /// Starts a node again that was killed.
    ///
    /// # Panics
    /// Panics if the node does not start. The message contains its log.
    pub fn restart(&mut self, node: usize) {
        if let Some(relay) = &self.nodes[node].relay {
            relay.close(false);
        }
        let process = &mut self.nodes[node].process;
        self.by.at(node, || process.start_again());
    }

    /// Drains a node by commands at another one, takes it out, and waits for the end of its process.
    ///
    /// # Panics
    /// Panics if a command fails.
    pub fn leave(&mut self, at: usize, node: usize) {
        let name = self.nodes[node].name.clone();
        self.order(at, &["drain", &name]);
        self.order(at, &["remove", &name]);
        let process = &mut self.nodes[node].process;
        assert_eq!(process.wait_exit(), 0, "{}", process.log());
        process.pid = 0;
    }

    /// Returns the document `/ring.json` of a node.
    ///
    /// # Panics
    /// Panics if the node does not answer.
    #[must_use]
    pub fn report(&self, node: usize) -> Value {
        let header = format!("Authorization: Bearer {TOKEN}\r\n");
        let admin = self.nodes[node].admin.to_string();
        // A node that has just started does not know its ring yet.
        let body = wait_for("the ring of a node", || {
            let (status, body) = http::get_with(&admin, "/ring.json", &header);
            (status == 200).then_some(body)
        });
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }

    /// Gives an operator's command at a node: the exit status of `cachectl cluster`, and its output.
    #[must_use]
    pub fn command(&self, node: usize, arguments: &[&str]) -> (i32, String) {
        let mut command = Command::new(workspace_programs().join("cachectl"));
        command.args(["--admin", &self.nodes[node].admin.to_string(), "--admin-token-file"]);
        command.arg(self.dir.path().join("token")).arg("cluster").args(arguments);
        let output = run(&mut command, crate::daemon::DEADLINE);
        (output.status.code().unwrap_or(-1), text(&output))
    }

    /// Gives an operator's command that must succeed, again if the registry was late: the machine may be busy.
    /// The registry may have made the change all the same, which the next attempt then finds done.
    ///
    /// # Panics
    /// Panics if it fails, with its output.
    pub fn order(&self, node: usize, arguments: &[&str]) -> String {
        let mut was_late = false;
        let (code, said) = wait_for("an answer of the registry", || {
            let (code, said) = self.command(node, arguments);
            let is_late = code != 0 && said.contains("no response within");
            was_late |= is_late;
            (!is_late).then_some((code, said))
        });
        let is_done = |said: &str| match arguments {
            ["remove", ..] => said.contains("is missing"),
            ["move", "--cancel", ..] => said.contains("no wish has any of these slots"),
            _ => false,
        };
        let succeeded = code == 0 || was_late && is_done(&said);
        assert!(succeeded, "cluster {}: {said}\n{}", arguments.join(" "), self.logs());
        let mut weights = self.weights.lock().unwrap_or_else(PoisonError::into_inner);
        match arguments {
            ["weight", node, weight] => {
                weights.insert((*node).to_owned(), weight.parse().expect("a weight"));
            }
            ["drain" | "fail", node, ..] => drop(weights.insert((*node).to_owned(), 0)),
            ["remove", node] => drop(weights.remove(*node)),
            _ => {}
        }
        said
    }

    /// Sends a line to a node, and returns the first line of the reply.
    pub fn say(&self, node: usize, line: &str) -> String {
        let mut conn = self.nodes[node].process.connect();
        conn.send(format!("{line}\r\n").as_bytes());
        String::from_utf8_lossy(&conn.read_line()).into_owned()
    }

    /// Waits until all nodes that run have the same map, in which no slots move and each node has its
    /// share of the slots by weight.
    ///
    /// # Panics
    /// Panics if this takes too long, with the reports and the logs.
    pub fn settle(&self, context: &str) {
        let deadline = Instant::now() + SETTLED;
        while let Some(why) = self.unsettled() {
            assert!(Instant::now() < deadline, "{context}: not settled: {why}\n{}", self.logs());
            std::thread::sleep(LOOK);
        }
    }

    /// Looks at the nodes for a time as often as [`settle`](Self::settle) does, so that a rig finds the same
    /// cost of looks with moves and without.
    ///
    /// # Panics
    /// Panics if slots move, with the logs.
    pub fn stay_settled(&self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            assert_eq!(self.unsettled(), None, "nobody has asked for moves\n{}", self.logs());
            std::thread::sleep(LOOK);
        }
    }

    /// Returns why the slots are not where they belong, if so.
    #[must_use]
    pub fn unsettled(&self) -> Option<String> {
        let running = (0..self.nodes.len()).filter(|node| self.nodes[*node].process.pid > 0);
        let reports: Vec<Value> = running.map(|node| self.report(node)).collect();
        let first = &reports[0];
        for report in &reports {
            let node = &report["node"];
            if report["map_digest"] != first["map_digest"] {
                return Some(format!(
                    "{node} has map {}, {} has {}",
                    report["map_version"], first["node"], first["map_version"]
                ));
            }
            if report["moves"].as_array().is_some_and(|moves| !moves.is_empty()) {
                return Some(format!("slots move: {}", report["moves"]));
            }
            let wishes = report["wishes"].as_array().into_iter().flatten();
            if wishes.clone().any(|wish| wish["missing_slots"] != 0) {
                return Some(format!("slots are wished for a node: {}", report["wishes"]));
            }
            let own = report["nodes"].as_array().into_iter().flatten().find(|of| &of["node"] == node);
            let owned = own.map_or(0, |own| own["slots"].as_u64().unwrap_or(0));
            if report["purging_slots"] != 0 || report["own_slots"] != owned {
                return Some(format!("{node} executes {} of its {owned} slots", report["own_slots"]));
            }
        }
        let nodes = first["nodes"].as_array().expect("nodes");
        let number = |node: &Value, key: &str| node[key].as_u64().expect("a number");
        // The nodes may all have a map from before the last command.
        let weight_of = |name: &str| {
            let of = nodes.iter().find(|node| node["node"] == name);
            of.map(|node| number(node, "weight"))
        };
        for (name, weight) in &*self.weights.lock().unwrap_or_else(PoisonError::into_inner) {
            if weight_of(name) != Some(*weight) {
                return Some(format!("{name} has weight {:?} instead of {weight}", weight_of(name)));
            }
        }
        let joined = |node: &Node| node.process.pid <= 0 || weight_of(&node.name).is_some();
        if let Some(node) = self.nodes.iter().find(|node| !joined(node)) {
            return Some(format!("{} has not joined", node.name));
        }
        let weights: u64 = nodes.iter().map(|node| number(node, "weight")).sum();
        nodes.iter().find_map(|node| {
            let (slots, weight) = (number(node, "slots"), number(node, "weight"));
            let share = u64::from(SLOTS) * weight / weights.max(1);
            let is_right = slots.abs_diff(share) <= 2 || weights == 0;
            (!is_right).then(|| format!("{} owns {slots} slots instead of {share}", node["node"]))
        })
    }

    /// Waits until a move of slots has begun at a node that runs.
    ///
    /// # Panics
    /// Panics if none begins in time.
    pub fn wait_for_move(&self, node: usize) {
        wait_for("a move", || {
            let report = self.report(node);
            report["moves"].as_array().is_some_and(|moves| !moves.is_empty()).then_some(())
        });
    }

    /// Waits until all nodes that run are connected with each other, and have the same map.
    ///
    /// # Panics
    /// Panics if this takes too long, with the logs.
    pub fn wait_until_connected(&self) {
        let running = || (0..self.nodes.len()).filter(|node| self.nodes[*node].process.pid > 0);
        let deadline = Instant::now() + SETTLED;
        while let Some(node) = running().find(|node| self.command(*node, &["status"]).0 != 0) {
            let said = || self.command(node, &["status"]).1;
            assert!(Instant::now() < deadline, "not connected: {}\n{}", said(), self.logs());
            std::thread::sleep(LOOK);
        }
    }

    /// Shuts all nodes down.
    ///
    /// # Panics
    /// Panics if a shutdown fails.
    pub fn end(self) {
        for node in self.nodes {
            if node.process.pid > 0 {
                node.process.end();
            }
        }
    }

    /// Returns the last lines of all logs.
    #[must_use]
    pub fn logs(&self) -> String {
        let of = |node: &Node| {
            let log = node.process.log();
            let lines: Vec<&str> = log.lines().collect();
            format!("--- {} ---\n{}\n", node.name, lines[lines.len().saturating_sub(40)..].join("\n"))
        };
        self.nodes.iter().map(of).collect()
    }
}
