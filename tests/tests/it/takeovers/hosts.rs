//! Two hosts that elect one of them, with the store and the registry that they share.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cached_tests::ceph::Cluster;
use cached_tests::daemon::{DEADLINE, Daemon, wait_for};
use cached_tests::outside::{find_program, skip};
use cached_tests::s3::endpoint::{Endpoint, Kind, User};
use cached_tests::s3::wire::{Connection, Request};
use cached_tests::server::bring_up;

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
    Synapsed(Daemon),
    Rados(Cluster),
    Versitygw(Endpoint, User),
}

/// The hosts, and all that they use.
pub(crate) struct Hosts {
    /// The hosts; `None` only while one restarts.
    daemons: [Option<Daemon>; 2],
    /// The addresses at which they serve objects.
    pub(crate) addresses: [String; 2],
    behind: Behind,
    /// Each host's way to the store, unless it is a cluster.
    to_store: Option<[Relay; 2]>,
    etcd: Option<Etcd>,
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
            // SAFETY: prctl is async-signal-safe and touches no memory of ours.
            unsafe {
                command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                });
            }
            let mut child = command.spawn().expect("etcd runs");
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            let is_up = wait_for("etcd", || match child.try_wait().expect("its state") {
                Some(_) => Some(false),
                None => std::net::TcpStream::connect(address).is_ok().then_some(true),
            });
            is_up.then_some((child, address))
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
            Store::Synapsed => Self::Synapsed(Daemon::start("synapsed", |place| {
                format!(
                    "backend = {{ kind = \"file\", path = \"{place}/store\", create = true }}\n\
                     [synapse]\nlisten = [\"127.0.0.1:0\"]\n"
                )
            })),
            Store::Rados => Self::Rados(Cluster::in_memory(test, parent)?),
            Store::Versitygw => {
                let endpoint = Endpoint::start(Kind::Versitygw, test, parent)?;
                let user = User::new(Kind::Versitygw, "owner", 0);
                endpoint.add(&user);
                let bucket = Request { method: "PUT", path: "/objects".into(), ..Request::default() };
                let made = Connection::to(endpoint.url()).ask(&bucket, &user).expect("an answer");
                assert_eq!(made.status, 200, "{made:?}");
                Self::Versitygw(endpoint, user)
            }
        })
    }

    fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Synapsed(daemon) => Some(address_of(&daemon.announced("listening on "))),
            Self::Versitygw(endpoint, _) => Some(address_of(endpoint.url())),
            Self::Rados(_) => None,
        }
    }

    /// Returns the keys of `[objects.backend]`; `place` is the host's directory.
    fn keys(&self, to: Option<&Relay>, place: &str) -> String {
        let to = to.map(|relay| relay.address.to_string()).unwrap_or_default();
        match self {
            Self::Synapsed(_) => format!(
                "kind = \"synapse\"\naddress = \"{to}\"\nkeep_alive_ms = 500\npeer_timeout_ms = 1500\n\
                 connect_timeout_ms = 1500\nbackoff_ms_max = 200\n"
            ),
            Self::Rados(cluster) => format!(
                "kind = \"rados\"\npool = \"cached\"\nconf = \"{}\"\nroot = \"pair\"\n",
                cluster.conf().display()
            ),
            Self::Versitygw(_, user) => {
                let path = format!("{place}/credentials");
                let keys = format!(
                    "[default]\naws_access_key_id = {}\naws_secret_access_key = {}\n",
                    user.access_key, user.secret_key
                );
                cached_tests::daemon::write_secret(path.as_ref(), &keys);
                format!(
                    "kind = \"s3\"\nbucket = \"objects\"\nprefix = \"pair\"\nendpoint = \"http://{to}\"\n\
                     credentials_file = \"{path}\"\nallow_http = true\n"
                )
            }
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
        let (to_store, to_etcd) =
            (behind.address().map(relays), etcd.as_ref().map(|etcd| relays(etcd.address)));
        // Loopback addresses of this run, because clients know the ports before the hosts listen.
        let [high, low] = (std::process::id() as u16).to_be_bytes();
        let addresses = [0, 1].map(|host| format!("127.{high}.{low}.{}:11311", 10 + host));
        let mut hosts = Self { daemons: [None, None], addresses, behind, to_store, etcd, to_etcd };
        for host in 0..2 {
            hosts.daemons[host] = Some(Daemon::spawn("cached", |place| hosts.configuration(host, place)));
        }
        Some(hosts)
    }

    fn configuration(&self, host: usize, place: &str) -> String {
        let backend = self.behind.keys(self.to_store.as_ref().map(|relays| &relays[host]), place);
        let registry = match &self.to_etcd {
            Some(relays) => format!(
                "kind = \"etcd\"\nendpoints = [\"http://{}\"]\nprefix = \"pair/\"\ntimeout_ms = 1000\n",
                relays[host].address
            ),
            None => "kind = \"store\"\nnamespace = \"registry\"\ntimeout_ms = 1000\npoll_ms = 200\n".into(),
        };
        let address = &self.addresses[host];
        format!(
            "[objects]\nwrite = \"back\"\nwriter = \"elected\"\nmemory_bytes_max = \"16 MiB\"\n\
             dirty_bytes_max = \"4 MiB\"\nobject_bytes_max = \"64 KiB\"\ndirty_age_ms_max = 300\n\
             shutdown_flush_secs = 20\n[objects.backend]\n{backend}\
             [objects.election]\nnode = \"host-{host}\"\nlease_secs = {}\n[registry]\n{registry}\
             [synapse]\nlisten = [\"{address}\"]\nthreads = 1\n",
            LEASE.as_secs()
        )
    }

    fn daemon(&self, host: usize) -> &Daemon {
        self.daemons[host].as_ref().expect("it runs")
    }

    /// Returns the logs of both hosts, to be shown if a round fails.
    pub(crate) fn logs(&self) -> String {
        let log = |host| {
            let log = self.daemon(host).log();
            let lines: Vec<&str> = log.lines().collect();
            format!("host {host}:\n{}", lines[lines.len().saturating_sub(30)..].join("\n"))
        };
        format!("{}\n{}", log(0), log(1))
    }

    /// Returns the host that leads and its epoch, if one says so.
    pub(crate) fn leader(&self) -> Option<(usize, u64)> {
        let epoch = |host| {
            let leads = self.daemon(host).metric("cached_leader") == Some(1.0);
            let epoch = self.daemon(host).metric("cached_leader_epoch");
            epoch.filter(|_| leads).map(|epoch| (host, epoch as u64))
        };
        // A host that has been stopped is asked first after it continues.
        (0..2).filter_map(epoch).max_by_key(|(_, epoch)| *epoch)
    }

    /// Waits until a host leads; returns it and its epoch.
    ///
    /// # Panics
    /// If none leads in time.
    pub(crate) fn wait_for_leader(&self) -> (usize, u64) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(leader) = self.leader() {
                return leader;
            }
            assert!(Instant::now() < deadline, "no host leads:\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn signal(&self, host: usize, signal: i32) {
        self.daemon(host).signal(signal);
    }

    /// Kills a host, waits for `pause`, and starts it again.
    pub(crate) fn kill_and_restart(&mut self, host: usize, pause: Duration) {
        self.signal(host, libc::SIGKILL);
        std::thread::sleep(pause);
        let daemon = self.daemons[host].take().expect("it runs");
        self.daemons[host] = Some(daemon.restart("cached", libc::SIGKILL));
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

    /// Ends both hosts in order.
    ///
    /// # Panics
    /// If one ends with an error.
    pub(crate) fn end(mut self) {
        let leader = self.wait_for_leader().0;
        for host in [1 - leader, leader] {
            let (status, log) = self.daemons[host].take().expect("it runs").end();
            assert!(status.success(), "{status}: {log}");
        }
        drop(self.etcd.take());
    }
}
