//! The journal with kill -9: a real process appends and prints its acknowledged records, is killed
//! at a random moment, and its directory is read.
//!
//! The child is the same binary; an environment variable makes it the writer. It prints a line
//! after each acknowledgement; the parent kills it after a random number of lines, while it is
//! working.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use cached_journal::{AppendError, Head, Journal, JournalConfig, Kind, Object, Record, tools};

/// The minimum number of records that each writer holds at any time.
const HELD: usize = 60;
const WRITERS: u64 = 4;

fn config(directory: &str) -> JournalConfig {
    JournalConfig {
        segment_bytes: 1 << 20,
        limit_bytes: 8 << 20,
        // Older kernels do not support O_DIRECT on tmpfs.
        direct: std::env::var("KILL9_DIRECT").is_ok(),
        ..JournalConfig::new(directory)
    }
}

/// Returns a payload that identifies its number at every position.
fn payload(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(1 + number as usize % 700)
}

/// Appends forever: prints `acknowledged POSITION NUMBER` after each wait.
fn write_until_killed(directory: &str) {
    let (journal, mut replay) = Journal::open(&config(directory), Arc::new(|_| {})).unwrap();
    // Recovered records are applied a few at a time while new records are appended.
    let recovered: Vec<_> = replay.records().map(|record| record.unwrap().position).collect();
    let start: u64 = std::env::var("KILL9_START").unwrap().parse().unwrap();
    let out = Mutex::new(std::io::stdout());
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (journal, out) = (&journal, &out);
            scope.spawn(move || {
                let mut held = VecDeque::new();
                for round in 0.. {
                    let number = start + round * WRITERS + writer;
                    let payload = payload(number);
                    let head = Head { sequence: number, ..Head::new(Kind(1), Object::Number(writer)) };
                    let record = Record { head, payload: &[&payload] };
                    let appended = loop {
                        match journal.append(&record) {
                            Ok(appended) => break appended,
                            Err(AppendError::Full | AppendError::Busy) => std::thread::yield_now(),
                            Err(error) => panic!("{error}"),
                        }
                    };
                    journal.wait_blocking(appended.position).unwrap();
                    let mut out = out.lock().unwrap();
                    writeln!(out, "acknowledged {} {number}", appended.position.0).unwrap();
                    out.flush().unwrap();
                    drop(out);
                    held.push_back(appended.hold);
                    if held.len() > HELD {
                        held.pop_front();
                    }
                }
            });
        }
        for position in recovered {
            replay.applied(position, 1);
            std::thread::yield_now();
        }
        drop(replay);
    });
}

#[test]
fn nothing_acknowledged_is_lost_by_kill_9() {
    if let Ok(directory) = std::env::var("KILL9_JOURNAL") {
        write_until_killed(&directory);
        return;
    }
    let seed: u64 = std::env::var("KILL9_SEED").map_or(1, |seed| seed.parse().unwrap());
    let rounds: u64 = std::env::var("KILL9_ROUNDS").map_or(20, |rounds| rounds.parse().unwrap());
    println!("KILL9_SEED={seed}");
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().join("journal");
    let directory = directory.to_str().unwrap();
    let (mut random, mut start, mut acknowledged_in_all) = (seed, 0, 0);
    for round in 0..rounds {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let lines = 1 + (random >> 33) % 400;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill9::nothing_acknowledged_is_lost_by_kill_9", "--nocapture"])
            .env("KILL9_JOURNAL", directory)
            .env("KILL9_START", start.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut acknowledged = BTreeMap::new();
        let mut reader = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut killed = false;
        // Lines printed between the decision and the kill count too.
        while let Some(Ok(line)) = reader.next() {
            let words: Vec<_> = line.split(' ').collect();
            if let ["acknowledged", position, number] = words[..] {
                acknowledged.insert(position.parse::<u64>().unwrap(), number.parse::<u64>().unwrap());
            }
            if acknowledged.len() as u64 >= lines && !killed {
                child.kill().unwrap();
                killed = true;
            }
        }
        assert!(killed, "round {round}: the child ended by itself");
        child.wait().unwrap();
        acknowledged_in_all += acknowledged.len();

        let (journal, replay) = Journal::open(&config(directory), Arc::new(|_| {})).unwrap();
        let mut found = BTreeMap::new();
        let mut next = None;
        for record in replay.records() {
            let record = record.unwrap();
            assert_eq!(record.payload().unwrap(), payload(record.head.sequence), "round {round}: torn");
            assert!(next.is_none_or(|next| next == record.position.0), "round {round}: a gap");
            next = Some(record.position.0 + 1);
            found.insert(record.position.0, record.head.sequence);
        }
        // A writer waits for each of its records, so the child's last records are held.
        let held = acknowledged.iter().rev().take(HELD - WRITERS as usize);
        for (position, number) in held {
            assert_eq!(found.get(position), Some(number), "round {round}: lost");
        }
        start = found.values().chain(acknowledged.values()).max().unwrap() + 1;
        drop((journal, replay));
        let damage =
            tools::verify(&cached_journal::disk::RealDisk::open(directory.as_ref(), false).unwrap()).unwrap();
        assert_eq!(damage, []);
    }
    println!("{rounds} kills, {acknowledged_in_all} acknowledgements, none lost, none torn");
}
