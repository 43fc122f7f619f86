//! A pair of hosts with the store and the registry that they share, each behind relays.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cached_tests::ceph::Cluster;
use cached_tests::daemon::{Daemon, wait_for, write_secret};
use cached_tests::outside::{find_program, kill_with_thread, skip};
use cached_tests::pair::Pair;
use cached_tests::s3::endpoint::{Endpoint, Kind, User};
use cached_tests::s3::wire::{Connection, Request};
use cached_tests::server::{bring_up, free_port, is_up};

use super::relay::Relay;

/// The lease.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// The store that the hosts share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Store {
    Synapsed,
    Rados,
    Versitygw,
}

/// The registry by which they elect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    Store,
    Etcd,
}

/// The running store.
enum Behind {
    Synapsed { address: SocketAddr, _daemon: Daemon },
    Rados(Cluster),
    Versitygw { _endpoint: Endpoint, address: SocketAddr, keys: tempfile::TempDir },
}

/// The hosts, and all that they use.
pub(crate) struct Hosts {
    pub(crate) pair: Pair,
    behind: Behind,
    /// Each host's way to the store, unless it is a cluster.
    to_store: Option<[Relay; 2]>,
    _etcd: Option<Etcd>,
    to_etcd: Option<[Relay; 2]>,
}

/// One etcd.
struct Etcd {
    child: Child,
    address: SocketAddr,
    _dir: tempfile::TempDir,
}

impl Etcd {
    fn start(test: &str) -> Option<Self> {
        if find_program("etcd").is_none() {
            skip(test, "etcd is not installed (Debian: etcd-server)");
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let (child, address) = bring_up("etcd", |port| {
            let url = format!("http://127.0.0.1:{port}");
            let log = std::fs::File::create(dir.path().join("log")).expect("a log");
            let mut command = Command::new("etcd");
            command.arg("--data-dir").arg(dir.path().join("data"));
            command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
            command.args(["--listen-peer-urls", "http://127.0.0.1:0"]);
            command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
            kill_with_thread(&mut command);
            let mut child = command.spawn().expect("etcd runs");
            is_up(&mut child, port).then(|| (child, SocketAddr::from(([127, 0, 0, 1], port))))
        });
        Some(Self { child, address, _dir: dir })
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a program's address on loopback.
fn address_of(url: &str) -> SocketAddr {
    let text = url.trim_start_matches("http://");
    text.parse().unwrap_or_else(|error| panic!("{url}: {error}"))
}

impl Behind {
    fn start(store: Store, test: &str) -> Option<Self> {
        let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
        Some(match store {
            Store::Synapsed => {
                let address = free_port();
                let daemon = Daemon::start("synapsed", |place| {
                    format!(
                        "backend = {{ kind = \"file\", path = \"{place}/store\", create = true }}\n\
                         [synapse]\nlisten = [\"{address}\"]\n"
                    )
                });
                Self::Synapsed { address, _daemon: daemon }
            }
            Store::Rados => Self::Rados(Cluster::in_memory(test, parent)?),
            Store::Versitygw => {
                let endpoint = Endpoint::start(Kind::Versitygw, test, parent)?;
                let user = User::new(Kind::Versitygw, "owner", 0);
                endpoint.add(&user);
                let bucket = Request { method: "PUT", path: "/objects".into(), ..Request::default() };
                let made = Connection::to(endpoint.url()).ask(&bucket, &user).expect("an answer");
                assert_eq!(made.status, 200, "{made:?}");
                let keys = tempfile::tempdir().expect("a directory");
                let (id, secret) = (&user.access_key, &user.secret_key);
                let text = format!("[default]\naws_access_key_id = {id}\naws_secret_access_key = {secret}\n");
                write_secret(&keys.path().join("credentials"), &text);
                Self::Versitygw { address: address_of(endpoint.url()), _endpoint: endpoint, keys }
            }
        })
    }

    fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Synapsed { address, .. } | Self::Versitygw { address, .. } => Some(*address),
            Self::Rados(_) => None,
        }
    }

    /// Returns the lines of `[objects.backend]`.
    fn keys(&self, to: Option<&Relay>) -> String {
        let to = to.map(|relay| relay.address.to_string()).unwrap_or_default();
        match self {
            Self::Synapsed { .. } => format!(
                "kind = \"synapse\"\naddress = \"{to}\"\nkeep_alive_ms = 500\npeer_timeout_ms = 1500\n\
                 connect_timeout_ms = 1500\nbackoff_ms_max = 200\n"
            ),
            Self::Rados(cluster) => format!(
                "kind = \"rados\"\npool = \"cached\"\nconf = \"{}\"\nroot = \"pair\"\n",
                cluster.conf().display()
            ),
            Self::Versitygw { keys, .. } => format!(
                "kind = \"s3\"\nbucket = \"objects\"\nprefix = \"pair\"\nendpoint = \"http://{to}\"\n\
                 credentials_file = \"{}\"\nallow_http = true\n",
                keys.path().join("credentials").display()
            ),
        }
    }
}

impl Hosts {
    /// Starts both hosts. Returns `None`, and prints that `test` is skipped, if a program is not
    /// installed.
    ///
    /// # Panics
    /// If something does not start.
    pub(crate) fn start(store: Store, by: By, test: &str) -> Option<Self> {
        let behind = Behind::start(store, test)?;
        let etcd = match by {
            By::Etcd => Some(Etcd::start(test)?),
            By::Store => None,
        };
        let relays = |to: SocketAddr| [Relay::to(to), Relay::to(to)];
        let to_store = behind.address().map(relays);
        let to_etcd = etcd.as_ref().map(|etcd| relays(etcd.address));
        let tables = |host: usize| {
            let backend = behind.keys(to_store.as_ref().map(|relays| &relays[host]));
            let registry = match &to_etcd {
                Some(relays) => format!(
                    "kind = \"etcd\"\nendpoints = [\"http://{}\"]\nprefix = \"pair/\"\ntimeout_ms = 1000\n",
                    relays[host].address
                ),
                None => "kind = \"store\"\ntimeout_ms = 1000\npoll_ms = 200\n".into(),
            };
            (backend, registry)
        };
        let pair =
            Pair::start_each("cached", LEASE.as_secs(), tables, "write = \"back\"\ndirty_age_ms_max = 300\n");
        Some(Self { pair, behind, to_store, _etcd: etcd, to_etcd })
    }

    /// Returns the last lines of both logs, to be shown if a round fails.
    pub(crate) fn logs(&self) -> String {
        let log = |host| {
            let log = self.pair.host(host).log();
            let lines: Vec<&str> = log.lines().collect();
            format!("host {host}:\n{}", lines[lines.len().saturating_sub(30)..].join("\n"))
        };
        format!("{}\n{}", log(0), log(1))
    }

    /// Waits until a host leads; returns it and its epoch.
    ///
    /// # Panics
    /// If none leads in time.
    pub(crate) fn leader(&self) -> (usize, u64) {
        wait_for("a leader with an epoch", || {
            let leader = self.pair.leader();
            let report = self.pair.report(leader);
            // It may have lost the lead meanwhile.
            report["epoch"].as_u64().filter(|_| report["role"] == "leader").map(|epoch| (leader, epoch))
        })
    }

    /// Returns the relays between a host and its store or registry.
    pub(crate) fn relays(&self, host: usize) -> Vec<&Relay> {
        let all = [&self.to_store, &self.to_etcd];
        all.into_iter().flatten().map(|relays| &relays[host]).collect()
    }

    /// Returns a host's relay to the store.
    pub(crate) fn relay_to_store(&self, host: usize) -> Option<&Relay> {
        self.to_store.as_ref().map(|relays| &relays[host])
    }

    /// Returns the cluster, if the store is one.
    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        match &self.behind {
            Behind::Rados(cluster) => Some(cluster),
            _ => None,
        }
    }

    /// Makes the registry, and the store if it is in the store, unreachable for `time`.
    pub(crate) fn without_registry(&self, time: Duration) {
        match (&self.to_etcd, &self.to_store) {
            (Some(relays), _) | (None, Some(relays)) => {
                relays.iter().for_each(|relay| relay.cut(true, true));
                std::thread::sleep(time);
                relays.iter().for_each(Relay::repair);
            }
            (None, None) => self.pause_cluster(time),
        }
    }

    /// Stops the cluster's OSD for `time`.
    pub(crate) fn pause_cluster(&self, time: Duration) {
        let cluster = self.cluster().expect("a cluster");
        cluster.dev("osd", &["0", "pause"]);
        std::thread::sleep(time);
        cluster.dev("osd", &["0", "resume"]);
    }
}
