//! The value checker: many clients change and read self-describing values during floods, flushes
//! and incomplete stores. No value may be torn, belong to another key, be older than an
//! acknowledged write, or be present after its removal.
//!
//! | module | content |
//! |---|---|
//! | [`value`] | self-describing values |
//! | [`ledger`] | which versions of a key may be read |
//! | [`client`] | one client in each of the three protocols |
//! | [`load`] | the load of each kind of client |

pub mod client;
pub mod ledger;
pub mod load;
pub mod value;

use crate::configurations::Configuration;
use crate::program::Program;
use crate::server::{Server, Start};
use client::{Client, Speaks};
use ledger::Account;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

/// The number of clients that change and read.
const OWNERS: usize = 12;
/// The number of keys in each group that one client changes.
const KEYS: usize = 30;
/// The maximum number of reported violations.
const VIOLATIONS_MAX: usize = 20;

/// The condition that ends a run.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// After this much time.
    Time(Duration),
    /// After this many operations.
    Operations(u64),
}

/// The kind of values of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Values that are set, deleted and touched.
    Plain,
    /// Values with a time to live.
    Mortal,
    /// Values changed by compare-and-store.
    Compared,
    /// A list of versions that grows by appending.
    List,
    /// A number that is incremented.
    Counter,
    /// Values set by clients that do not always complete them.
    Half,
    /// Values set by clients that do not wait for replies.
    Flood,
}

/// The groups whose keys belong to the ordinary clients.
const OWNED: [Group; 5] = [Group::Plain, Group::Mortal, Group::Compared, Group::List, Group::Counter];

/// One key.
#[derive(Debug)]
pub struct Key {
    /// The name.
    pub name: String,
    /// The kind of the key's values.
    pub group: Group,
    /// The versions that may be read.
    pub account: Account,
}

impl Key {
    fn new(letter: char, group: Group, owner: usize, number: usize) -> Key {
        Key { name: format!("{letter}-{owner}-{number}"), group, account: Account::default() }
    }

    /// Returns the version in a value of this key.
    ///
    /// # Errors
    /// Returns a description of the problem.
    pub fn version(&self, value: &[u8]) -> Result<u64, String> {
        match self.group {
            Group::List => list_version(value),
            Group::Counter => {
                let text = String::from_utf8_lossy(value);
                text.trim_end().parse().map_err(|_| format!("no number: {text:?}"))
            }
            _ => value::version(&self.name, value),
        }
    }
}

/// Returns the last version of a list in which each version is one more than its predecessor.
fn list_version(value: &[u8]) -> Result<u64, String> {
    let text = String::from_utf8_lossy(value);
    let mut last = None;
    for item in text.split_terminator(';') {
        let version: u64 = item.parse().map_err(|_| format!("no list: {text:?}"))?;
        if last.is_some_and(|last| version != last + 1) {
            return Err(format!("torn or foreign: {text:?}"));
        }
        last = Some(version);
    }
    last.filter(|_| text.ends_with(';')).ok_or_else(|| format!("no whole list: {text:?}"))
}

/// The counts of a run.
#[derive(Debug, Default)]
pub struct Counts {
    /// Keys requested and changes made.
    pub operations: AtomicU64,
    /// Keys requested and found.
    pub hits: AtomicU64,
    /// Keys requested and not found.
    pub misses: AtomicU64,
    /// Changes made.
    pub changes: AtomicU64,
    /// Changes refused for lack of memory.
    pub refused: AtomicU64,
    /// Flushes, and advances of the clock.
    pub flushes: AtomicU64,
    /// The number of values that were started and abandoned by either side.
    pub given_up: AtomicU64,
}

/// The state that all clients of a run share.
pub struct Shared<'a> {
    /// The server.
    pub server: &'a Server,
    /// The server's configuration.
    pub configuration: &'a Configuration,
    /// All keys; each belongs to one client.
    pub keys: Vec<Key>,
    /// The counts.
    pub counts: Counts,
    /// Odd while a flush of everything is in progress.
    pub flushing: AtomicU64,
    stop: AtomicBool,
    violations: Mutex<Vec<String>>,
}

impl Shared<'_> {
    /// Returns whether the run is over.
    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Records a violation.
    pub fn violation(&self, text: String) {
        let mut violations = self.violations.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if violations.len() < VIOLATIONS_MAX {
            violations.push(text);
        }
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Checks the value that was read for a key.
    pub fn judge(&self, key: &Key, before: ledger::Before, flushing: u64, value: Option<&[u8]>) {
        let judged = match value {
            Some(value) => {
                self.counts.hits.fetch_add(1, Ordering::Relaxed);
                key.version(value).and_then(|version| key.account.judge_hit(before, version))
            }
            None => {
                self.counts.misses.fetch_add(1, Ordering::Relaxed);
                let calm = flushing.is_multiple_of(2) && self.flushing.load(Ordering::SeqCst) == flushing;
                let lasting = key.group != Group::Mortal;
                key.account.judge_miss(before, self.configuration.lossless && calm && lasting)
            }
        };
        if let Err(problem) = judged {
            self.violation(format!("{}: {problem}", key.name));
        }
    }
}

/// Runs one configuration, and prints a line for each count. Returns true if there was no
/// violation.
pub fn run(program: &Program, configuration: &Configuration, until: Until, seed: u64) -> bool {
    let mut server = Start::program(program.clone()).args(configuration.args).start();
    let mut keys = Vec::new();
    for owner in 0..OWNERS {
        for (group, letter) in OWNED.into_iter().zip('a'..) {
            keys.extend((0..KEYS).map(|number| Key::new(letter, group, owner, number)));
        }
    }
    keys.extend((0..configuration.half_sent).map(|number| Key::new('h', Group::Half, number, 0)));
    for flood in 0..configuration.floods {
        keys.extend((0..KEYS).map(|number| Key::new('f', Group::Flood, flood, number)));
    }
    let shared = Shared {
        server: &server,
        configuration,
        keys,
        counts: Counts::default(),
        flushing: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        violations: Mutex::default(),
    };
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let shared = &shared;
        for owner in 0..OWNERS {
            let speaks = [Speaks::Text, Speaks::Meta, Speaks::Binary][owner % 3];
            spawn(scope, shared, format!("client {owner}"), seed, move |seed| {
                load::usual(shared, owner, speaks, seed);
            });
        }
        for flood in 0..configuration.floods {
            spawn(scope, shared, format!("flood {flood}"), seed, move |seed| {
                load::flood(shared, flood, seed);
            });
        }
        if configuration.half_sent > 0 {
            spawn(scope, shared, "half-sent".into(), seed, |seed| load::half_sent(shared, seed));
        }
        if configuration.flushes {
            spawn(scope, shared, "flushes".into(), seed, |seed| load::flushes(shared, seed));
        }
        loop {
            let over = match until {
                Until::Time(time) => begun.elapsed() >= time,
                Until::Operations(count) => shared.counts.operations.load(Ordering::Relaxed) >= count,
            };
            if over || shared.is_over() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        shared.stop.store(true, Ordering::Relaxed);
    });
    let secs = begun.elapsed().as_secs_f64();
    if shared.violations.lock().is_ok_and(|violations| violations.is_empty()) {
        read_all(&shared);
    }
    let Shared { counts, violations, .. } = shared;
    let mut violations = violations.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    violations.extend(end(&mut server));
    let name = configuration.name;
    let count = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
    println!("{name} seconds {secs:.1}");
    println!("{name} operations {}", count(&counts.operations));
    println!("{name} hits {}", count(&counts.hits));
    println!("{name} misses {}", count(&counts.misses));
    println!("{name} changes {}", count(&counts.changes));
    println!("{name} refused {}", count(&counts.refused));
    println!("{name} flushes {}", count(&counts.flushes));
    println!("{name} values given up {}", count(&counts.given_up));
    println!("{name} violations {}", violations.len());
    violations.iter().for_each(|violation| println!("{name} violation: {violation}"));
    violations.is_empty()
}

/// Starts a client with a seed of its own. An impossible reply or a failed connection is a
/// violation.
fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    shared: &'scope Shared<'_>,
    name: String,
    seed: u64,
    body: impl FnOnce(u64) + Send + 'scope,
) {
    let seed = name.bytes().fold(seed, |seed, byte| seed.wrapping_mul(257).wrapping_add(byte.into()));
    scope.spawn(move || {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(seed))) {
            let text = panic.downcast_ref::<String>().cloned();
            shared.violation(format!("{name}: {}", text.unwrap_or_else(|| "has panicked".into())));
        }
    });
}

/// Reads every key once more, with no other load.
fn read_all(shared: &Shared<'_>) {
    let mut client = Client::new(shared.server.connect(), Speaks::Text);
    for key in &shared.keys {
        let before = key.account.before();
        let found = client.get(&key.name);
        // A change in progress at the end may or may not have been made.
        let known = key.account.acknowledged() == key.account.sent();
        if found.is_some() || known {
            shared.judge(
                key,
                before,
                shared.flushing.load(Ordering::SeqCst),
                found.as_ref().map(|found| &found.0[..]),
            );
        }
    }
}

/// Ends the server; returns the problems that this reveals.
fn end(server: &mut Server) -> Option<String> {
    server.signal(libc::SIGTERM);
    let status = server.wait_exit();
    let log = server.log();
    let bad = log.lines().find(|line| line.contains("panicked") || is_stalled(line));
    match bad {
        Some(line) => Some(format!("in its log: {line}")),
        None => (!status.success()).then(|| format!("it ended with {status}: {log}")),
    }
}

/// The time for which a worker may be in one step, in seconds. Clients keep all cores busy, and
/// other programs may use the machine: a worker that waits for a core is not defective.
const STALLED_SECS_MAX: u64 = 10;

/// Returns whether a line of the log reports a worker without progress for longer than
/// [`STALLED_SECS_MAX`].
fn is_stalled(line: &str) -> bool {
    let Some((_, rest)) = line.split_once("makes no progress: ") else { return false };
    rest.split(' ').next().and_then(|secs| secs.parse().ok()).is_none_or(|secs: u64| secs > STALLED_SECS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stalled_worker_is_found() {
        let line = |secs| format!("ERROR worker 3 makes no progress: {secs} s in storing fd=9");
        assert!(!is_stalled(&line(2)) && is_stalled(&line(16)) && !is_stalled("worker 3: all is well"));
    }

    #[test]
    fn lists_grow_by_one() {
        assert_eq!(list_version(b"7;8;9;"), Ok(9));
        for bad in [&b""[..], b"7", b"7;9;", b"7;8", b"7;x;"] {
            assert!(list_version(bad).is_err(), "{:?}", bad.escape_ascii().to_string());
        }
    }
}
