//! Upgrades a server with an object cache, under load: writers that know the required state of
//! every object, a client that measures the pause, and continual connections that must not be
//! refused.

use super::Upgradable;
use crate::daemon::wait_for;
use crate::kill9::load::{self, Habits, Round};
use crate::kill9::model::{Faults, Model};
use crate::object_client;
use blocker::executor::block_on;
use blocker::{Blocker, Error, InfoRequest};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use synapse::{Address, SynapseBlocker};

/// The time for which a client waits for a server that does not respond. It is longer than any
/// test.
const PATIENCE: Duration = Duration::from_secs(240);

/// The number of objects that each writer has in each namespace.
const OBJECTS: usize = 4;

/// Returns a configuration with an object cache over a file store, and two object listeners. The
/// age of dirty data causes no flush.
pub fn configuration(has_journal: bool) -> String {
    let (journal, plain) = match has_journal {
        true => (
            "[objects.journal]\ncreate = true\ndirectory = \"DIR/journal\"\nsegment_bytes = \"1 MiB\"\nlimit_bytes = \"12 MiB\"\n\
             direct = false\njournaled_bytes_max = \"256 KiB\"\n",
            ", journal = false",
        ),
        false => ("", ""),
    };
    format!(
        "[process]\nupgrade_timeout_secs = 60\n[objects]\nwrite = \"back\"\nwriter = \"cache\"\n\
         memory_bytes_max = \"16 MiB\"\ndirty_bytes_max = \"2 MiB\"\nobject_bytes_max = \"64 KiB\"\n\
         dirty_age_ms_max = 86400000\nnamespaces = [{{ name = \"plain\", write = \"back\"{plain} }}]\n{journal}\
         [objects.backend]\nkind = \"file\"\ncreate = true\npath = \"DIR/store\"\n\
         [synapse]\nlisten = [\"unix:DIR/objects\", \"127.0.0.1:0\"]\nthreads = 2\n"
    )
}

/// The clients' knowledge of a server's objects, from one load to the next.
#[derive(Default)]
pub struct Objects {
    models: Vec<Model>,
    seed: u64,
}

/// A running load.
pub struct Running<'a> {
    round: &'a Round,
    longest: &'a AtomicU64,
    is_alive: &'a dyn Fn() -> bool,
}

/// The results of a load.
#[derive(Debug, Default)]
pub struct Seen {
    /// Changes acknowledged.
    pub changes: u64,
    /// Connections that were made in addition to the load's.
    pub connections: u64,
    /// A line for each problem.
    pub lines: Vec<String>,
}

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Objects").field("seed", &self.seed).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Running<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Running")
    }
}

impl Running<'_> {
    /// Waits until `count` more changes are acknowledged.
    ///
    /// # Panics
    /// Panics if a writer has ended, or the changes take too long.
    pub fn more(&self, count: u64) {
        let before = self.round.acknowledged.load(Ordering::Relaxed);
        wait_for("changes of objects", || {
            assert!((self.is_alive)(), "a client of the objects has ended");
            (self.round.acknowledged.load(Ordering::Relaxed) >= before + count).then_some(())
        });
    }

    /// Returns the longest time that a reply took since the last call.
    pub fn longest(&self) -> Duration {
        Duration::from_micros(self.longest.swap(0, Ordering::Relaxed))
    }
}

impl Objects {
    /// Returns the knowledge of `writers` clients about a new server.
    pub fn new(writers: usize, seed: u64) -> Objects {
        let namespaces = load::namespaces();
        let model = |writer| Model::new(writer, OBJECTS, &namespaces[0], &namespaces);
        Objects { models: (0..writers).map(model).collect(), seed }
    }

    /// Runs `body` while all writers write.
    ///
    /// # Panics
    /// Panics if no client can connect, or `body` panics.
    pub fn under_load(
        &mut self,
        server: &mut Upgradable,
        body: impl FnOnce(&mut Upgradable, &Running<'_>),
    ) -> Seen {
        let places = places(server);
        let (round, longest, is_over) = (Round::default(), AtomicU64::new(0), AtomicBool::new(false));
        let habits = Habits { journaled_bytes_max: 256 << 10, is_through: false, order_domains: 3 };
        self.seed += 1;
        let seed = self.seed;
        let mut seen = Seen::default();
        std::thread::scope(|scope| {
            let (round, longest, is_over) = (&round, &longest, &is_over);
            let end = End(round, is_over);
            let writers: Vec<_> = (self.models.iter_mut().enumerate())
                .map(|(writer, model)| {
                    let client = connect(&places[writer % places.len()]);
                    let seed = seed * 100 + writer as u64;
                    scope.spawn(move || {
                        let seen = load::run(model, &client, round, habits, seed);
                        // The load ends even if the test does not examine the result.
                        seen.wrong.iter().for_each(|line| eprintln!("writer {writer}: {line}"));
                        seen
                    })
                })
                .collect();
            let observer = connect(&places[0]);
            let observer = scope.spawn(move || observe(&observer, longest, is_over));
            let connector = scope.spawn({
                let places = places.clone();
                move || connect_always(&places, is_over)
            });
            let is_alive =
                || !writers.iter().any(std::thread::ScopedJoinHandle::is_finished) && !observer.is_finished();
            body(server, &Running { round, longest, is_alive: &is_alive });
            drop(end);
            for writer in writers {
                match writer.join() {
                    Ok(mut one) => seen.lines.append(&mut one.wrong),
                    Err(_) => seen.lines.push("a writer has panicked".into()),
                }
            }
            if let Some(line) = observer.join().unwrap_or(Some("a reader has panicked".into())) {
                seen.lines.push(line);
            }
            match connector.join() {
                Ok(Ok(connections)) => seen.connections = connections,
                Ok(Err(line)) => seen.lines.push(line),
                Err(_) => seen.lines.push("connecting has panicked".into()),
            }
        });
        seen.changes = round.acknowledged.into_inner();
        seen
    }

    /// Compares all objects with the clients' knowledge. With `loses_nothing`, every acknowledged
    /// change must be present; otherwise, every change acknowledged as durable. Returns a line for
    /// each fault.
    ///
    /// # Panics
    /// Panics if the server does not respond.
    pub fn check(&mut self, server: &Upgradable, loses_nothing: bool) -> Vec<String> {
        let client = connect(&places(server)[0]);
        let (mut lines, mut faults) = (Vec::new(), Faults::default());
        for model in &mut self.models {
            if loses_nothing {
                model.all_durable(|_, _| true);
            }
            faults.add(model.check(&client, &mut |line| lines.push(line)).expect("the server answers"));
        }
        assert_eq!(faults == Faults::default(), lines.is_empty(), "{faults:?}");
        lines
    }
}

/// Ends the load when dropped.
struct End<'a>(&'a Round, &'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
        self.1.store(true, Ordering::Relaxed);
    }
}

/// Returns the addresses of a server's object listeners: the unix socket, and the TCP port that the
/// system has chosen.
fn places(server: &Upgradable) -> Vec<Address> {
    let log = server.log();
    let line = log.lines().rfind(|line| line.starts_with("objects on ")).expect("the object listeners");
    let addresses = line.trim_start_matches("objects on ").split(", ");
    addresses.map(|address| address.parse().expect("an address")).collect()
}

fn connect(place: &Address) -> SynapseBlocker {
    let mut config = object_client::config(place.clone());
    (config.reconnect_timeout, config.call_timeout) = (PATIENCE, Some(PATIENCE));
    SynapseBlocker::connect_on_thread(config).expect("a connection")
}

/// Sends small requests continually; returns the errors.
fn observe(client: &SynapseBlocker, longest: &AtomicU64, is_over: &AtomicBool) -> Option<String> {
    let object = "plain/observed".parse::<blocker::ObjectId>().expect("a name");
    while !is_over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        match block_on(client.info(InfoRequest::new(object.clone()))) {
            Ok(_) | Err(Error::Missing) => {}
            Err(error) => {
                eprintln!("a reader: {error}");
                return Some(format!("a reader: {error}"));
            }
        }
        let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        longest.fetch_max(micros, Ordering::Relaxed);
        std::thread::sleep(Duration::from_micros(200));
    }
    None
}

/// Connects continually through each of the sockets; returns the number of connections.
///
/// # Errors
/// Returns the first refusal.
fn connect_always(places: &[Address], is_over: &AtomicBool) -> Result<u64, String> {
    let mut connections = 0;
    while !is_over.load(Ordering::Relaxed) {
        for place in places {
            let connected = match place {
                Address::Tcp(address) => TcpStream::connect(address.as_str()).map(drop),
                Address::Unix(path) => UnixStream::connect::<&PathBuf>(path).map(drop),
            };
            connected.map_err(|error| format!("{place} refuses a client: {error}"))?;
            connections += 1;
        }
        // There are fewer connections than a socket's queue can hold during the longest pause.
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(connections)
}
