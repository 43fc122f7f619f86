//! A pair of hosts with the store and the registry that they share, each behind relays.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cached_tests::ceph::Cluster;
use cached_tests::daemon::{DEADLINE, Daemon, wait_for, write_secret};
use cached_tests::etcd::Etcd;
use cached_tests::outside::{run, text};
use cached_tests::pair::{Host, NODES, Pair};
use cached_tests::relay::Relay;
use cached_tests::s3::endpoint::{Endpoint, Kind, User};
use cached_tests::s3::wire::{Connection, Request};
use cached_tests::server::free_port;
use cached_tests::small_disk::SmallDisk;
use cached_tests::time_of_day::TimeOfDay;

/// The lease where faults wait for its end.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// The lease of hosts that must not lose it, however slow the machine is.
pub(crate) const LONG_LEASE: Duration = Duration::from_secs(60);
/// The volume of the hosts.
pub(crate) const VOLUME: &str = "disk";
/// The size of the file system that contains the store.
const DISK_MIB: u64 = 96;

/// The store that the hosts share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Store {
    Synapsed,
    Rados,
    Versitygw,
}

/// The registry by which the hosts elect a leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    Store,
    Etcd,
}

/// The running store. A store in files has a file system of its own, if this machine lets tests mount
/// one.
enum Behind {
    Synapsed {
        address: SocketAddr,
        _daemon: Daemon,
        disk: Option<SmallDisk>,
        _dir: tempfile::TempDir,
    },
    Rados(Cluster),
    /// The file system is mounted in the directory of the keys, and therefore dropped before it.
    Versitygw {
        address: SocketAddr,
        _endpoint: Endpoint,
        disk: Option<SmallDisk>,
        keys: tempfile::TempDir,
    },
}

/// The hosts, and the programs that they use.
pub(crate) struct Hosts {
    pub(crate) pair: Pair,
    /// Where the hosts serve objects over HTTP while they lead.
    http: [SocketAddr; 2],
    times_of_day: [TimeOfDay; 2],
    behind: Behind,
    /// Each host's relay to the store, unless the store is a cluster.
    to_store: Option<[Relay; 2]>,
    etcd: Option<Etcd>,
    to_etcd: Option<[Relay; 2]>,
}

/// Where clients reach the hosts.
pub(crate) struct Ways {
    pub(crate) objects: [String; 2],
    pub(crate) http: [String; 2],
    pub(crate) volumes: [PathBuf; 2],
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
                let (address, dir) = (free_port(), tempfile::tempdir().expect("a directory"));
                let place = dir.path().join("disk");
                let disk = SmallDisk::mount(&place, DISK_MIB);
                let daemon = Daemon::start("synapsed", |_| {
                    let place = place.display();
                    format!(
                        "backend = {{ kind = \"file\", path = \"{place}/store\", create = true }}\n\
                         [synapse]\nlisten = [\"{address}\"]\n"
                    )
                });
                Self::Synapsed { address, _daemon: daemon, disk, _dir: dir }
            }
            Store::Rados => Self::Rados(Cluster::in_memory(test, parent)?),
            Store::Versitygw => {
                let keys = tempfile::tempdir().expect("a directory");
                let place = keys.path().join("disk");
                let disk = SmallDisk::mount(&place, DISK_MIB);
                let endpoint = Endpoint::versitygw_in(&place, test, parent)?;
                let user = User::new(Kind::Versitygw, "owner", 0);
                endpoint.add(&user);
                let bucket = Request { method: "PUT", path: "/objects".into(), ..Request::default() };
                let made = Connection::to(endpoint.url()).ask(&bucket, &user).expect("an answer");
                assert_eq!(made.status, 200, "{made:?}");
                let (id, secret) = (&user.access_key, &user.secret_key);
                let text = format!("[default]\naws_access_key_id = {id}\naws_secret_access_key = {secret}\n");
                write_secret(&keys.path().join("credentials"), &text);
                Self::Versitygw { address: address_of(endpoint.url()), _endpoint: endpoint, disk, keys }
            }
        })
    }

    fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Synapsed { address, .. } | Self::Versitygw { address, .. } => Some(*address),
            Self::Rados(_) => None,
        }
    }

    /// Returns the lines of `[objects.backend]`, with time limits below the lease.
    fn keys(&self, to: Option<&Relay>, lease: Duration) -> String {
        let to = to.map(|relay| relay.address.to_string()).unwrap_or_default();
        match self {
            Self::Synapsed { .. } => format!(
                "kind = \"synapse\"\naddress = \"{to}\"\nkeep_alive_ms = {}\npeer_timeout_ms = {limit}\n\
                 connect_timeout_ms = {limit}\nbackoff_ms_max = 200\n",
                lease.as_millis() / 4,
                limit = lease.as_millis() * 3 / 4
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
    /// Starts both hosts, whose time limits follow the lease. If a program is not installed, returns
    /// `None`, and prints that `test` is skipped.
    ///
    /// # Panics
    /// Panics if something does not start.
    pub(crate) fn start(store: Store, by: By, lease: Duration, test: &str) -> Option<Self> {
        let behind = Behind::start(store, test)?;
        let etcd = match by {
            By::Etcd => Some(Etcd::start(test)?),
            By::Store => None,
        };
        let relays = |to: SocketAddr| [Relay::to(to), Relay::to(to)];
        let to_store = behind.address().map(relays);
        let to_etcd = etcd.as_ref().map(|etcd| relays(SocketAddr::from(([127, 0, 0, 1], etcd.port))));
        let http = [free_port(), free_port()];
        let times_of_day = [TimeOfDay::new(), TimeOfDay::new()];
        let registry_ms = lease.as_millis() / 2;
        let host = |host: usize| {
            let backend = behind.keys(to_store.as_ref().map(|relays| &relays[host]), lease);
            let registry = match &to_etcd {
                Some(relays) => format!(
                    "kind = \"etcd\"\nendpoints = [\"http://{}\"]\nprefix = \"pair/\"\ntimeout_ms = {registry_ms}\n",
                    relays[host].address
                ),
                None => format!("kind = \"store\"\ntimeout_ms = {registry_ms}\npoll_ms = 200\n"),
            };
            // As on two machines, each host has a name of its own as the owner of volumes.
            let more = format!(
                "[objects.http]\nlisten = [\"{}\"]\nthreads = 1\nrequest_timeout_ms = {}\n[volumes]\nowner = \"{}\"\n\
                 [nbd]\nlisten = [\"unix:PLACE/nbd\"]\nthreads = 1\n",
                http[host],
                lease.as_millis(),
                NODES[host]
            );
            Host { backend, registry, more, environment: times_of_day[host].environment() }
        };
        let pair =
            Pair::start_each("cached", lease.as_secs(), host, "write = \"back\"\ndirty_age_ms_max = 300\n");
        // The leader may lose a short lease before it answers.
        wait_for("the volume", || {
            let (code, said) = pair.host(pair.leader()).cachectl(&["volume", "create", VOLUME, "1M"]);
            (code == 0 || said.contains("exists already")).then_some(())
        });
        Some(Self { pair, http, times_of_day, behind, to_store, etcd, to_etcd })
    }

    /// Returns where clients reach the hosts.
    pub(crate) fn ways(&self) -> Ways {
        Ways {
            objects: self.pair.addresses.map(|address| address.to_string()),
            http: self.http.map(|address| address.to_string()),
            volumes: [0, 1].map(|host| self.pair.host(host).path("nbd")),
        }
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

    /// Waits until a host leads; returns its number and its epoch.
    ///
    /// # Panics
    /// If none leads in time, with the logs.
    pub(crate) fn leader(&self) -> (usize, u64) {
        let begun = Instant::now();
        loop {
            for host in (0..2).filter(|host| self.pair.serves(*host)) {
                let report = self.pair.report(host);
                // It may have lost the lead in the meantime.
                if let Some(epoch) = report["epoch"].as_u64().filter(|_| report["role"] == "leader") {
                    return (host, epoch);
                }
            }
            assert!(begun.elapsed() < DEADLINE, "no host leads\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(20));
        }
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

    /// Returns the file system of the store, if it has one of its own.
    pub(crate) fn disk(&self) -> Option<&SmallDisk> {
        match &self.behind {
            Behind::Synapsed { disk, .. } | Behind::Versitygw { disk, .. } => disk.as_ref(),
            Behind::Rados(_) => None,
        }
    }

    /// Returns the time of day of a host.
    pub(crate) fn time_of_day(&self, host: usize) -> &TimeOfDay {
        &self.times_of_day[host]
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

    /// Ends the registry, and starts it again after `time`; if it is in the store, the store is
    /// unreachable during that time.
    pub(crate) fn restart_registry(&mut self, time: Duration) {
        let Some(etcd) = &mut self.etcd else { return self.without_registry(time) };
        etcd.kill();
        std::thread::sleep(time);
        etcd.restart();
    }

    /// Stops the cluster's OSD for `time`.
    pub(crate) fn pause_cluster(&self, time: Duration) {
        let cluster = self.cluster().expect("a cluster");
        cluster.dev("osd", &["0", "pause"]);
        std::thread::sleep(time);
        cluster.dev("osd", &["0", "resume"]);
        // The OSDs of a larger cluster would report a paused OSD as down. Without that report, it
        // sometimes delays all requests for ever, because it assumes that its right to answer reads
        // has lapsed.
        let mut command = Command::new("ceph");
        let output = run(command.arg("--conf").arg(cluster.conf()).args(["osd", "down", "0"]), DEADLINE);
        assert!(output.status.success(), "{}", text(&output));
    }
}
