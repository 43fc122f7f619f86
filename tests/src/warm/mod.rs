//! Kills the real process, which has a memory file, with SIGKILL: after each start every key has
//! its last acknowledged value, or the value of a change in progress, or is missing for a known
//! reason.
//!
//! Clients change their own keys, and know the required state of each ([`client`]); occasionally
//! one of them flushes everything. After a random number of acknowledgements the process is killed,
//! or in some rounds shut down. Then another one is started with the same file, every key is judged
//! ([`history`]), and the load continues.

pub mod client;
pub mod history;

use crate::server::{Server, Start};
use client::{Client, Common, Connection};
use history::{Change, Flush, Flushed, Verdict, judge};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The time limit for a round's load to reach its number of acknowledgements.
const LOAD_DEADLINE: Duration = Duration::from_secs(120);
/// The maximum number of reported problems.
const LINES_MAX: usize = 40;

/// The results of a run.
#[derive(Debug, Default)]
pub struct Report {
    /// Rounds completed.
    pub rounds: u64,
    /// Rounds that ended by a shutdown instead of a kill.
    pub clean: u64,
    /// Changes acknowledged.
    pub changes: u64,
    /// Keys with their last acknowledged state, including removed ones.
    pub acknowledged: u64,
    /// Keys with the state of an unacknowledged change.
    pub unacknowledged: u64,
    /// Keys missing because of a flush.
    pub missing_flushed: u64,
    /// Missing keys with a change in progress when the process was killed.
    pub missing_under_way: u64,
    /// Missing keys for which there is no explanation.
    pub lost: u64,
    /// Keys with any other state.
    pub wrong: u64,
    /// CAS values that were assigned twice.
    pub cas_twice: u64,
    /// A line for each problem.
    pub lines: Vec<String>,
}

impl Report {
    /// Returns true if there was no problem.
    pub fn is_good(&self) -> bool {
        self.lost + self.wrong + self.cas_twice == 0 && self.lines.is_empty()
    }

    fn note(&mut self, line: String) {
        if self.lines.len() < LINES_MAX {
            self.lines.push(line);
        }
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Report { rounds, clean, changes, acknowledged, unacknowledged, .. } = self;
        let Report { missing_flushed, missing_under_way, lost, wrong, cas_twice, lines, .. } = self;
        writeln!(f, "{rounds} rounds, {clean} of them ended in order; {changes} changes acknowledged")?;
        writeln!(
            f,
            "keys: {acknowledged} as acknowledged, {unacknowledged} as by a change under way, missing: \
             {missing_flushed} flushed, {missing_under_way} under way, {lost} lost"
        )?;
        write!(f, "wrong {wrong}, CAS values given twice {cas_twice}")?;
        lines.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

/// Performs `rounds` rounds of load, kill, start and check. `args` are the server's arguments in
/// addition to the memory file.
///
/// # Panics
/// Panics if the server does not start or end.
pub fn run(file: &Path, args: &str, rounds: u64, clients: usize, seed: u64, is_verbose: bool) -> Report {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut report = Report::default();
    let common = Common::default();
    let mut clients: Vec<Client> = (0..clients)
        .map(|number| Client::new(number, SmallRng::seed_from_u64(seed * 1_000 + number as u64)))
        .collect();
    let start = || Start::new().args(&format!("-e {} {args}", file.display())).start();
    let mut server = start();
    let mut given = HashSet::new();
    for round in 1..=rounds {
        let wanted = random.random_range(300..4_000);
        let is_clean = random.random_ratio(1, 5);
        common.acknowledged.store(0, Ordering::Relaxed);
        let port = server.port();
        std::thread::scope(|scope| {
            for client in &mut clients {
                let common = &common;
                scope.spawn(move || client.run(port, common));
            }
            let deadline = Instant::now() + LOAD_DEADLINE;
            while common.acknowledged.load(Ordering::Relaxed) < wanted && Instant::now() < deadline {
                std::thread::sleep(Duration::from_micros(200));
            }
            server.signal(if is_clean { libc::SIGTERM } else { libc::SIGKILL });
        });
        server.wait_exit();
        report.changes += common.acknowledged.load(Ordering::Relaxed);
        server = start();
        // The server listens before it has taken over the file, and replies afterwards.
        server.connect().ask(b"mn\r\n", b"MN\r\n");
        let log = server.log();
        if !log.contains("the memory file is taken over") || log.contains("damaged") {
            report.note(format!("round {round}: the log of the start says: {log}"));
        }
        if is_clean && !log.contains("was_clean=true") {
            report.note(format!("round {round}: the end was not clean: {log}"));
        }
        check(&server, &mut clients, &common, round, &mut report);
        for client in &mut clients {
            for (_, cas) in client.cas_values.drain(..) {
                if !given.insert(cas) {
                    report.cas_twice += 1;
                    report.note(format!("round {round}: CAS value {cas} was given twice"));
                }
            }
            for surprise in client.surprises.drain(..) {
                report.note(format!("round {round}: {surprise}"));
            }
        }
        report.rounds += 1;
        report.clean += u64::from(is_clean);
        if is_verbose {
            println!("{round}: {}", report.to_string().lines().nth(1).unwrap_or_default());
        }
    }
    report
}

/// Checks every key after a start.
fn check(server: &Server, clients: &mut [Client], common: &Common, round: u64, report: &mut Report) {
    let flushes: Vec<Flush> = clients.iter().flat_map(|client| client.flushes.clone()).collect();
    let mut connection = Connection::open(server.port()).expect("a connection");
    for (number, client) in clients.iter_mut().enumerate() {
        for (key, before) in client.gone_while_running.drain(..) {
            if before.flushed(&flushes) == Flushed::No {
                report.lost += 1;
                report.note(format!("round {round}: {key} was gone while the server ran, after {before:?}"));
            }
        }
        let pending = client.pending.take();
        for key in Client::keys(number) {
            let found = connection.look(&key).expect("a reply");
            let last = client.last.get(&key);
            let of_key = pending.as_ref().filter(|(name, _)| *name == key).map(|(_, pending)| pending);
            let verdict = judge(last, of_key, &flushes, found.as_ref());
            match verdict {
                Verdict::Acknowledged => report.acknowledged += 1,
                Verdict::Unacknowledged => report.unacknowledged += 1,
                Verdict::MissingFlushed => report.missing_flushed += 1,
                Verdict::MissingUnderWay => report.missing_under_way += 1,
                Verdict::MissingLost => report.lost += 1,
                Verdict::Wrong => report.wrong += 1,
            }
            if matches!(verdict, Verdict::MissingLost | Verdict::Wrong) {
                let short = |text: String| text.chars().take(400).collect::<String>();
                let (last, of_key) = (short(format!("{last:?}")), short(format!("{of_key:?}")));
                let found = short(format!("{found:?}"));
                report.note(format!("round {round}: {key} shows {found}; last {last}, under way {of_key}"));
            }
            let now = common.clock.fetch_add(1, Ordering::SeqCst);
            client.last.insert(key, Change { sent: now, acknowledged: now, result: found });
        }
        client.flushes.clear();
    }
}
