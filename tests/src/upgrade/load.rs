//! Upgrades under load: clients know the required state of each key, and no reply may be missing or
//! wrong.

use super::Upgradable;
use crate::ending::SetOnDrop;
use crate::warm::client::{Client, Common, Connection};
use crate::warm::history::{Flush, Verdict, judge};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use test_kit::memory_directory;

/// The results of a run.
#[derive(Debug, Default)]
pub struct Report {
    /// Upgrades.
    pub upgrades: u64,
    /// Changes acknowledged.
    pub changes: u64,
    /// The number of completed runs of clients in other languages.
    pub runs: u64,
    /// The number of keys examined at the end.
    pub keys: u64,
    /// For each upgrade, the longest time that a client waited for a reply.
    pub pauses: Vec<Duration>,
    /// A line for each problem.
    pub lines: Vec<String>,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut pauses = self.pauses.clone();
        pauses.sort_unstable();
        let at = |share: usize| pauses.get(pauses.len() * share / 100).or(pauses.last()).copied();
        let millis = |pause: Option<Duration>| pause.unwrap_or_default().as_secs_f64() * 1e3;
        write!(
            f,
            "{} upgrades, {} changes acknowledged, {} keys right; longest wait for a reply in an upgrade: \
             median {:.1} ms, 90 % {:.1} ms, most {:.1} ms",
            self.upgrades,
            self.changes,
            self.keys,
            millis(at(50)),
            millis(at(90)),
            millis(pauses.last().copied())
        )?;
        self.lines.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

/// The changes that must be acknowledged between two upgrades.
const CHANGES_BETWEEN: u64 = 300;

/// Runs `upgrades` upgrades under the load of `clients` clients. `args` are the server's arguments
/// in addition to the memory file.
///
/// # Panics
/// Panics if the server does not start, or an upgrade fails.
pub fn run(args: &str, upgrades: u64, clients: usize, seed: u64, is_verbose: bool) -> Report {
    let memory = memory_directory();
    let file = memory.path().join("memory");
    let mut servers = [Upgradable::start(&format!("-e {} {args}", file.display()), "")];
    let report = run_on(&mut servers, upgrades, clients, seed, is_verbose);
    servers.into_iter().for_each(Upgradable::end);
    report
}

/// Runs `upgrades` upgrades of running servers, in turn from the last to the first, under the load of
/// `clients` clients of the first.
///
/// # Panics
/// Panics if an upgrade fails.
pub fn run_on(
    servers: &mut [Upgradable],
    upgrades: u64,
    clients: usize,
    seed: u64,
    is_verbose: bool,
) -> Report {
    let port = servers[0].port;
    run_while(&[port], 0..clients, seed, true, |changes, report| {
        // An additional client measures the longest wait in each upgrade.
        let mut observer = Some(Connection::open(port).expect("a connection"));
        for round in 1..=upgrades {
            changes.more(CHANGES_BETWEEN);
            let is_over = AtomicBool::new(false);
            let last = servers.len() - 1;
            let server = &mut servers[last - (round - 1) as usize % (last + 1)];
            let (took, observed) = std::thread::scope(|scope| {
                let watch = observer.take().map(|connection| scope.spawn(|| observe(connection, &is_over)));
                let end = SetOnDrop(&is_over);
                let took = server.upgrade();
                drop(end);
                (took, watch.map(std::thread::ScopedJoinHandle::join))
            });
            match observed {
                Some(Ok(Ok((connection, pause)))) => {
                    report.pauses.push(pause);
                    observer = Some(connection);
                }
                _ => {
                    report.lines.push(format!("upgrade {round}: the observer has lost its connection"));
                    observer = Connection::open(port).ok();
                }
            }
            report.upgrades += 1;
            if is_verbose {
                let pause = report.pauses.last().copied().unwrap_or_default();
                println!(
                    "{round}: pause {:.1} ms, in all {:.0} ms",
                    pause.as_secs_f64() * 1e3,
                    took.as_secs_f64() * 1e3
                );
            }
        }
    })
}

/// The changes of running clients.
pub struct Changes<'a> {
    common: &'a Common,
    has_ended: &'a dyn Fn() -> bool,
}

impl Changes<'_> {
    /// Waits until `count` more changes were acknowledged.
    ///
    /// # Panics
    /// Panics if a client has lost its connection, or the changes are not acknowledged in time.
    pub fn more(&self, count: u64) {
        let acknowledged = || self.common.acknowledged.load(Ordering::Relaxed);
        let until = acknowledged() + count;
        crate::daemon::wait_for("changes", || {
            assert!(!(self.has_ended)(), "a client has lost its connection");
            (acknowledged() >= until).then_some(())
        });
    }
}

/// Runs the clients with these numbers at the servers of these ports, in turn, while `meanwhile` runs,
/// and then examines all keys. Client 0 flushes everything now and then. Without `is_one_server` CAS values are unique for each key only.
///
/// # Panics
/// Panics if `meanwhile` does.
pub fn run_while(
    ports: &[u16],
    clients: std::ops::Range<usize>,
    seed: u64,
    is_one_server: bool,
    meanwhile: impl FnOnce(&Changes<'_>, &mut Report),
) -> Report {
    let common = Common::default();
    let numbers = clients.clone();
    let mut clients: Vec<Client> = clients
        .map(|number| Client::new(number, SmallRng::seed_from_u64(seed * 1_000 + number as u64)))
        .collect();
    let mut report = Report::default();
    let goes_on = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let running: Vec<_> = clients
            .iter_mut()
            .enumerate()
            .map(|(number, client)| {
                let (common, goes_on, port) = (&common, &goes_on, ports[number % ports.len()]);
                scope.spawn(move || client.run_while(port, common, goes_on))
            })
            .collect();
        // The clients stop even if `meanwhile` panics.
        let stop = Stop(&goes_on);
        let has_ended = || running.iter().any(|client| client.is_finished());
        meanwhile(&Changes { common: &common, has_ended: &has_ended }, &mut report);
        drop(stop);
        for (number, client) in running.into_iter().enumerate() {
            match client.join() {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => report.lines.push(format!("client {number}: {error}")),
                Err(_) => report.lines.push(format!("client {number} has panicked")),
            }
        }
    });
    report.changes = common.acknowledged.load(Ordering::Relaxed);
    let flushes: Vec<Flush> = clients.iter().flat_map(|client| client.flushes.clone()).collect();
    let mut connection = Connection::open(ports[0]).expect("a connection");
    let mut given = std::collections::HashSet::new();
    for (number, client) in numbers.zip(&mut clients) {
        report.lines.append(&mut client.surprises);
        for (key, before) in client.gone_while_running.drain(..) {
            if before.flushed(&flushes) == crate::warm::history::Flushed::No {
                report.lines.push(format!("{key} was gone, after {before:?}"));
            }
        }
        for (key, cas) in client.cas_values.drain(..) {
            let of = if is_one_server { String::new() } else { key };
            if !given.insert((of, cas)) {
                report.lines.push(format!("CAS value {cas} was given twice"));
            }
        }
        for key in Client::keys(number) {
            let found = connection.look(&key).expect("a reply");
            match judge(client.last.get(&key), None, &flushes, found.as_ref()) {
                Verdict::Acknowledged | Verdict::MissingFlushed => report.keys += 1,
                verdict => {
                    report.lines.push(format!("{key}: {verdict:?}, after {:?}", client.last.get(&key)));
                }
            }
        }
    }
    report
}

/// Sends requests continually until `is_over`; returns the longest time that a reply took.
pub(super) fn observe(
    mut connection: Connection,
    is_over: &AtomicBool,
) -> std::io::Result<(Connection, Duration)> {
    let mut longest = Duration::ZERO;
    while !is_over.load(Ordering::Relaxed) {
        let begun = std::time::Instant::now();
        connection.ask(b"mn\r\n")?;
        longest = longest.max(begun.elapsed());
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok((connection, longest))
}

/// Ends the load when dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
