//! Hosts of `cached`, or of `synapsed`, that share a store and elect the one that writes to it: a pair
//! over one `synapsed` on files, unless a test brings another store or registry.

use crate::daemon::{Daemon, Environment, wait_for};
use crate::http;
use crate::object_client;
use crate::server::free_port;
use blocker::executor::block_on;
use blocker::{Blocker, BlockerExt, Error, FlushRequest, ObjectId, ReadRequest, Scope, WriteRequest};
use serde_json::Value;
use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use synapse::{Address, SynapseBlocker};
use test_kit::memory_directory;

/// The names of the hosts.
pub const NODES: [&str; 2] = ["one", "two"];

/// Two hosts.
#[derive(Debug)]
pub struct Pair {
    program: &'static str,
    hosts: [Option<Daemon>; 2],
    /// The addresses at which the hosts serve objects while they lead.
    pub addresses: [SocketAddr; 2],
}

/// What differs between the hosts of a pair.
#[derive(Debug, Default)]
pub struct Host {
    /// The lines of the store's table.
    pub backend: String,
    /// The lines of `[registry]`.
    pub registry: String,
    /// Further tables, in which PLACE is the host's directory.
    pub more: String,
    /// Variables of the program's environment.
    pub environment: Environment,
}

/// Starts a `synapsed` on files, the store of a pair. The files are in memory if possible: each renewal
/// of a lease in the store waits for their syncs, and a lease is short.
///
/// # Panics
/// Panics if the store's server does not start.
#[must_use]
pub fn store() -> Daemon {
    Daemon::start_at(memory_directory(), "synapsed", |place| {
        format!(
            "backend = {{ kind = \"file\", create = true, path = \"{place}/store\" }}\n\
             [synapse]\nlisten = [\"unix:{place}/synapse\"]\n"
        )
    })
}

/// Returns the lines of `[objects.backend]` for a store started by [`store`].
#[must_use]
pub fn backend(store: &Daemon) -> String {
    format!("kind = \"synapse\"\naddress = \"unix:{}\"\n", store.path("synapse").display())
}

impl Pair {
    /// Starts two hosts of `cached` over a store, with a lease of `lease_secs` seconds; `backend` and
    /// `registry` are the lines of these tables, and `objects` further lines of `[objects]`. Waits until
    /// one of them leads.
    ///
    /// # Panics
    /// Panics if the hosts do not start, or none of them leads.
    #[must_use]
    pub fn start(lease_secs: u64, backend: &str, registry: &str, objects: &str) -> Pair {
        let host = |_| Host { backend: backend.into(), registry: registry.into(), ..Host::default() };
        Pair::start_each("cached", lease_secs, host, objects)
    }

    /// Starts two hosts like [`start`](Self::start), of `program`, `cached` or `synapsed`, each as
    /// `host` returns it.
    ///
    /// # Panics
    /// Panics if the hosts do not start, or none of them leads.
    #[must_use]
    pub fn start_each(
        program: &'static str,
        lease_secs: u64,
        host: impl Fn(usize) -> Host,
        objects: &str,
    ) -> Pair {
        let store = if program == "synapsed" { "backend" } else { "objects.backend" };
        let addresses = [free_port(), free_port()];
        let start = |number: usize| {
            let (node, address) = (NODES[number], addresses[number]);
            let Host { backend, registry, more, environment } = host(number);
            let daemon = Daemon::start_in(environment, program, |place| {
                let more = more.replace("PLACE", place);
                format!(
                    "[objects]\nwriter = \"elected\"\nmemory_bytes_max = \"16 MiB\"\n\
                     dirty_bytes_max = \"4 MiB\"\nobject_bytes_max = \"256 KiB\"\n{objects}\n\
                     [objects.election]\nnode = \"{node}\"\nlease_secs = {lease_secs}\n\
                     [{store}]\n{backend}\n[registry]\n{registry}\n\
                     [synapse]\nlisten = [\"{address}\"]\nthreads = 1\n{more}"
                )
            });
            Some(daemon)
        };
        let pair = Pair { program, hosts: [start(0), start(1)], addresses };
        pair.leader();
        pair
    }

    /// Returns a pair of hosts of `cached` that run already, or not yet, each at its address.
    #[must_use]
    pub fn of(hosts: [Option<Daemon>; 2], addresses: [SocketAddr; 2]) -> Pair {
        Pair { program: "cached", hosts, addresses }
    }

    /// Adds a host that did not run.
    pub fn add(&mut self, host: usize, daemon: Daemon) {
        self.hosts[host] = Some(daemon);
    }

    /// Returns a host.
    ///
    /// # Panics
    /// Panics if the host does not run.
    #[must_use]
    pub fn host(&self, host: usize) -> &Daemon {
        self.hosts[host].as_ref().expect("the host runs")
    }

    /// Waits until a host leads and serves objects; returns its number.
    ///
    /// # Panics
    /// Panics if no host leads in time.
    pub fn leader(&self) -> usize {
        wait_for("a leader", || (0..2).find(|host| self.serves(*host)))
    }

    /// Waits until this host leads and serves objects.
    ///
    /// # Panics
    /// Panics if the host does not lead in time.
    pub fn wait_for_leader(&self, host: usize) {
        wait_for(&format!("{} leads", NODES[host]), || self.serves(host).then_some(()));
    }

    /// Returns whether a host leads and serves objects, which implies that it runs and is not
    /// stopped.
    #[must_use]
    pub fn serves(&self, host: usize) -> bool {
        let Some(daemon) = &self.hosts[host] else { return false };
        daemon.is_running()
            && is_listening(self.addresses[host])
            && http::get(&daemon.admin, "/readyz").0 == 200
    }

    /// Returns the document `/leader.json` of a host.
    #[must_use]
    pub fn report(&self, host: usize) -> Value {
        self.host(host).json("/leader.json")
    }

    /// Waits until the registry has a host among the candidates. Only then can the leader be asked to
    /// prefer it; the host may know the leader earlier.
    ///
    /// # Panics
    /// Panics if the host is no candidate in time.
    pub fn wait_for_candidate(&self, host: usize) {
        // On a disk, a candidate's number names its document.
        let keys = [format!("\"candidates/{}\"", NODES[host]), format!("\"candidates/{host}\"")];
        wait_for("a candidate", || {
            let (status, body) = http::get(&self.host(host).admin, "/registry.json");
            (status == 200 && keys.iter().any(|key| body.contains(key))).then_some(())
        });
    }

    /// Gives a command of `cachectl leader` at a host, again if the registry was late, because the machine
    /// may be busy. Returns the exit status and the output.
    ///
    /// Meanwhile the lease may have ended, whether or not the host has released it. So the next leader
    /// decides: if that is the other host, there is nothing left to do, and the exit status is 0.
    ///
    /// # Panics
    /// Panics if the registry is always late, or no host leads in time.
    pub fn command(&self, host: usize, arguments: &[&str]) -> (i32, String) {
        wait_for("an answer of the registry", || {
            let (code, text) = self.host(host).cachectl(&[&["leader"][..], arguments].concat());
            let late = ["has not answered within", "does not answer in time"];
            let is_late = code != 0 && late.iter().any(|words| text.contains(words));
            match is_late {
                true => (arguments != ["status"] && self.leader() != host).then_some((0, text)),
                false => Some((code, text)),
            }
        })
    }

    /// Kills a host, and removes its directory.
    pub fn kill(&mut self, host: usize) {
        self.hosts[host] = None;
    }

    /// Ends a host by a signal, and starts it again.
    ///
    /// # Panics
    /// Panics if the host does not exit, or does not start again.
    pub fn restart(&mut self, host: usize, signal: i32) {
        let daemon = self.hosts[host].take().expect("the host runs");
        self.hosts[host] = Some(daemon.restart(self.program, signal));
    }

    /// Returns a client that connects only to this host, and not to the other one.
    ///
    /// # Panics
    /// Panics if the client cannot be created.
    #[must_use]
    pub fn client(&self, host: usize) -> Client {
        let mut config = object_client::config(Address::Tcp(self.addresses[host].to_string()));
        config.reconnect_timeout = Duration::from_secs(1);
        Client(SynapseBlocker::connect_on_thread(config).expect("a client"))
    }
}

/// Returns whether somebody accepts connections at this address.
#[must_use]
pub fn is_listening(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}

/// A client that blocks.
pub struct Client(pub SynapseBlocker);

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    /// Writes the whole of a small object.
    ///
    /// # Errors
    /// Returns the errors of the contract.
    pub fn write(&self, object: &str, bytes: &[u8]) -> Result<(), Error> {
        let object: ObjectId = object.parse().expect("an object");
        block_on(self.0.write(WriteRequest::new(object, 0, bytes.to_vec()))).map(drop)
    }

    /// Flushes everything: all earlier writes are then stored.
    ///
    /// # Errors
    /// Returns the errors of the contract.
    pub fn flush(&self) -> Result<(), Error> {
        block_on(self.0.flush(FlushRequest::new(Scope::All))).map(drop)
    }

    /// Returns the content of a small object as soon as the host answers: its lease may end at any time,
    /// but no other host takes it.
    ///
    /// # Panics
    /// Panics if the host does not answer in time.
    pub fn read_from_leader(&self, object: &str) -> Option<Vec<u8>> {
        wait_for("an answer of a leader", || self.read(object).ok())
    }

    /// Returns the content of a small object; `None` if it does not exist.
    ///
    /// # Errors
    /// Returns the errors of the contract.
    pub fn read(&self, object: &str) -> Result<Option<Vec<u8>>, Error> {
        let object: ObjectId = object.parse().expect("an object");
        match block_on(self.0.read(ReadRequest::new(object, 0, 1 << 16))) {
            Ok(reply) => Ok(Some(reply.data.to_vec())),
            Err(Error::Missing) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
