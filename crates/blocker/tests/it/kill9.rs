//! The file backend with kill -9: a real process writes and reports its acknowledged changes, is
//! killed at a random moment, and its directory is checked.
//!
//! The child is the same binary; an environment variable makes it the writer. It prints a line
//! after each acknowledgement. The parent kills it after a random number of lines, while it
//! continues to work. Acknowledged changes must be complete: kill -9 spares the page cache, so
//! *cached* changes survive it just like *stored* ones. For each sector, an operation in progress
//! is either complete or has had no effect.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use blocker::executor::block_on;
use blocker::{
    Blocker, BlockerExt, DeleteRequest, Durability, Error, FileStore, FlushRequest, InfoRequest, Name,
    Namespace, ObjectId, ReadRequest, Scope, Stamp, Version, WriteFullRequest, WriteRequest,
};

const OBJECTS: u64 = 5;
const OBJECT_BYTES: usize = 8192;

fn object(key: u64) -> ObjectId {
    ObjectId::new(Namespace::new("kill").unwrap(), Name::new(format!("object-{key}")).unwrap())
}

/// Returns the content after round `round`: every sector contains the round that wrote it.
fn content(round: u64) -> Vec<u8> {
    round.to_le_bytes().repeat(OBJECT_BYTES / 8)
}

/// Writes forever: prints `done ROUND KEY KIND VERSION` after each acknowledgement.
fn write_until_killed(dir: &str) {
    let store = FileStore::open_or_create(dir).unwrap();
    let start: u64 = std::env::var("KILL9_ROUND").unwrap().parse().unwrap();
    let mut out = std::io::stdout().lock();
    for round in start.. {
        let key = round % OBJECTS;
        let durability = if round % 3 == 0 { Durability::Stored } else { Durability::Cached };
        let stamp = Stamp::new(1, round);
        let (kind, version) = match round / OBJECTS % 4 {
            0 | 1 => {
                let request = WriteRequest::new(object(key), 0, content(round));
                let reply = block_on(store.write(request.stamp(stamp).durability(durability))).unwrap();
                ("write", reply.version.0)
            }
            2 => {
                let request = WriteFullRequest::new(object(key), content(round));
                let reply = block_on(store.write_full(request.stamp(stamp).durability(durability))).unwrap();
                ("full", reply.version.0)
            }
            _ => {
                let request = DeleteRequest::new(object(key)).stamp(stamp).durability(durability);
                block_on(store.delete(request)).unwrap();
                ("delete", 0)
            }
        };
        if round % 11 == 0 {
            block_on(store.flush(FlushRequest::new(Scope::All))).unwrap();
        }
        writeln!(out, "done {round} {key} {kind} {version}").unwrap();
        out.flush().unwrap();
    }
}

#[test]
fn nothing_acknowledged_is_lost_by_kill_9() {
    if let Ok(dir) = std::env::var("KILL9_DIR") {
        write_until_killed(&dir);
        return;
    }
    let seed: u64 = std::env::var("KILL9_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("KILL9_SEED={seed}");
    let mut random = seed;
    let dir = tempfile::tempdir().unwrap();
    let (mut round, mut last) = (1, HashMap::new());
    let mut versions: HashMap<(u64, Version), u64> = HashMap::new();
    for kill in 0..15 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Each object is changed at least once, which overwrites the effects of the operation
        // interrupted by the previous kill, so the results are from this run.
        let lines_max = OBJECTS + (random >> 33) % 60;
        round = run_and_kill(dir.path(), round, lines_max, &mut last, &mut versions);
        let store = FileStore::open_or_create(dir.path()).unwrap();
        for (key, (acknowledged, is_there)) in &last {
            check(&store, *key, *acknowledged, *is_there, round, &versions);
        }
        println!("kill {kill}: up to round {round}, {lines_max} acknowledgements read");
        // Some runs end properly, so that both kinds of starts follow each other.
        if kill % 3 == 0 {
            store.close().unwrap();
        }
        // The next writer starts above any round that the killed one may have started.
        round += 2 * OBJECTS - round % OBJECTS;
    }
}

/// Runs the writer from `round` on, and kills it after a number of lines. Returns the last
/// acknowledged round.
fn run_and_kill(
    dir: &std::path::Path,
    round: u64,
    lines_max: u64,
    last: &mut HashMap<u64, (u64, bool)>,
    versions: &mut HashMap<(u64, Version), u64>,
) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill9::nothing_acknowledged_is_lost_by_kill_9", "--nocapture"])
        .env("KILL9_DIR", dir)
        .env("KILL9_ROUND", round.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut reached = round;
    let mut take = |line: &str| {
        let Some(line) = line.split_once("done ").map(|(_, line)| line) else { return false };
        let fields: Vec<&str> = line.split(' ').collect();
        // The last line may be truncated; then nobody has seen that acknowledgement.
        let [round, key, kind, version] = fields[..] else { return false };
        let (Ok(round), Ok(key)) = (round.parse(), key.parse()) else { return false };
        let Ok(version) = version.parse() else { return false };
        last.insert(key, (round, kind != "delete"));
        if kind != "delete" {
            let before = versions.insert((key, Version(version)), round);
            assert!(before.is_none_or(|before| before == round), "version {version} is used twice");
        }
        reached = round;
        true
    };
    let mut count = 0;
    while count < lines_max {
        let line = lines.next().expect("the writer runs until it is killed");
        count += u64::from(take(&line));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // Lines that the process printed before it was killed count too.
    for line in lines {
        take(&line);
    }
    reached
}

fn check(
    store: &FileStore,
    key: u64,
    acknowledged: u64,
    is_there: bool,
    reached: u64,
    versions: &HashMap<(u64, Version), u64>,
) {
    // The operation after the last acknowledged one may have been done, completely or partly.
    let next = reached + 1;
    let begun = (next % OBJECTS == key).then_some(next);
    let read = match block_on(store.read(ReadRequest::new(object(key), 0, OBJECT_BYTES as u64))) {
        Err(Error::Missing) => {
            let may_be_gone = !is_there || begun.is_some_and(|round| round / OBJECTS % 4 == 3);
            assert!(may_be_gone, "object {key}, acknowledged in round {acknowledged}, is gone");
            return;
        }
        read => read.unwrap(),
    };
    let bytes = read.data.to_vec();
    for sector in bytes.chunks(512) {
        let round = u64::from_le_bytes(sector[..8].try_into().unwrap());
        let whole = *sector == *round.to_le_bytes().repeat(sector.len() / 8);
        assert!(whole, "object {key}: a sector is torn");
        let known = (is_there && round == acknowledged) || begun == Some(round);
        assert!(known, "object {key}: round {round} is there, not {acknowledged}");
    }
    if begun.is_none() {
        assert_eq!(bytes.len(), OBJECT_BYTES, "object {key}");
        let info = block_on(store.info(InfoRequest::new(object(key)))).unwrap();
        assert!(info.stamp.is_none_or(|stamp| stamp.sequence <= acknowledged), "{:?}", info.stamp);
    }
    if let Some(round) = versions.get(&(key, read.version)) {
        assert_eq!(bytes, content(*round), "object {key}: its version stands for other bytes");
    }
}
