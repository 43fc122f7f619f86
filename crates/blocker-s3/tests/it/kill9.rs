//! Writers that are killed during their changes, over an unreliable connection to a server: nothing
//! that was acknowledged is lost, a replaced writer changes nothing any more, and the sweep removes
//! everything that writers have left behind.
//!
//! ```text
//! KILL9_MINUTES=10 cargo test -p blocker-s3 --test it killed_writers_before_versitygw -- --ignored --nocapture
//! ```
//! `KILL9_ROUNDS` sets the number of rounds (default 6), `KILL9_SEED` the seed (default 1).
//!
//! Each round claims an epoch, lets a writer (this program, as another process) change a few
//! objects in an order given by a seed, kills it, claims the next epoch, and compares the objects
//! with a model of the changes that the writer has reported as started and as completed. Requests
//! still in transit are awaited only after the comparison: by then the claim must have shut them
//! out.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use blocker::executor::block_on;
use blocker::{
    Blocker, BlockerExt, ClaimRequest, DeleteRequest, Epoch, Error, ListRequest, Name, Namespace, ObjectId,
    ReadRequest, Run, Scope, Stamp, TruncateRequest, WriteFullRequest, WriteRequest, WriteRunsRequest,
    WriterId,
};
use blocker_s3::object_store::path::Path;
use blocker_s3::{S3Config, S3Store};
use futures_util::StreamExt;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::http::Double;
use crate::outside::{Outside, ask};
use crate::trouble;

const OBJECTS: usize = 6;
const THREADS: usize = 3;
/// The prefix of the writer's output lines that contain its reports.
const REPORT: &str = "writer: ";
/// The maximum size of an object.
const OBJECT_BYTES: usize = 300_000;

/// A change of an object, which may or may not exist.
enum Step {
    Write(usize, Vec<u8>),
    Runs(Vec<(usize, Vec<u8>)>),
    Full(Vec<u8>),
    Truncate(usize),
    Delete,
}

/// Returns change number `number` of an object in a round. The writer and the model get the same
/// change.
fn step(seed: u64, round: u64, object: usize, number: u64) -> Step {
    let mut rng = SmallRng::seed_from_u64(
        seed ^ round.wrapping_mul(0x9e37_79b9) ^ number << 20 ^ (object as u64) << 56,
    );
    let fill = rng.random_range(1..=255_u8);
    let data = |len: usize| vec![fill; len];
    match rng.random_range(0..10) {
        0..=3 => {
            let len = [10, 5_000, 60_000][rng.random_range(0..3)];
            Step::Write(rng.random_range(0..OBJECT_BYTES - len), data(len))
        }
        4..=6 => {
            let at = |index: usize| index * 16_384 + 4096 * rng.random_range(0..3);
            Step::Runs((0..16).map(at).map(|at| (at, data(4096))).collect())
        }
        7 => Step::Full(data(rng.random_range(0..OBJECT_BYTES))),
        8 => Step::Truncate(rng.random_range(0..OBJECT_BYTES)),
        _ => Step::Delete,
    }
}

type Content = Option<Vec<u8>>;

/// Returns an object's content after a change.
fn after(before: &Content, step: &Step) -> Content {
    let laid = |runs: &[(usize, &[u8])]| {
        let mut bytes = before.clone().unwrap_or_default();
        for (at, data) in runs {
            bytes.resize(bytes.len().max(at + data.len()), 0);
            bytes[*at..at + data.len()].copy_from_slice(data);
        }
        Some(bytes)
    };
    match step {
        Step::Write(at, data) => laid(&[(*at, data)]),
        Step::Runs(runs) => laid(&runs.iter().map(|(at, data)| (*at, &data[..])).collect::<Vec<_>>()),
        Step::Full(data) => Some(data.clone()),
        // A truncation of a missing object is refused.
        Step::Truncate(size) => before.clone().map(|mut bytes| {
            bytes.resize(*size, 0);
            bytes
        }),
        Step::Delete => None,
    }
}

fn namespace() -> Namespace {
    Namespace::new("killed").unwrap()
}

fn object(number: usize) -> ObjectId {
    ObjectId::new(namespace(), Name::new(format!("disk.{number}")).unwrap())
}

fn claim(store: &S3Store, epoch: u64) {
    loop {
        match block_on(store.claim(ClaimRequest::new(
            Scope::Namespace(namespace()),
            Epoch(epoch),
            WriterId(1),
        ))) {
            Ok(_) => return,
            Err(Error::Retryable(_) | Error::OutcomeUnknown(_)) => {}
            Err(error) => panic!("claim of {epoch}: {error}"),
        }
    }
}

// ---- the process that writes

/// Changes objects until the process is killed. Prints a line at the start and at the end of each
/// change, with its outcome.
fn write(config: &S3Config, seed: u64, round: u64) {
    let store = loop {
        match S3Store::open(config) {
            Ok(store) => break store,
            Err(Error::Retryable(_)) => {}
            Err(error) => panic!("{error}"),
        }
    };
    let epoch = 2 * round + 1;
    claim(&store, epoch);
    let say = |line: String| std::io::stdout().write_all(line.as_bytes()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = &store;
            scope.spawn(move || {
                for number in 0.. {
                    for object in (thread..OBJECTS).step_by(THREADS) {
                        say(format!("{REPORT}begin {object} {number}\n"));
                        let stamp = Stamp::new(epoch, number + 1);
                        let done = make(store, object, &step(seed, round, object, number), stamp);
                        let word = match done {
                            Ok(()) => "done",
                            Err(Error::Missing | Error::Retryable(_)) => "refused",
                            Err(Error::OutcomeUnknown(_)) => "unknown",
                            // The parent has claimed the next epoch before its signal arrived.
                            Err(Error::Fenced { .. }) => "refused",
                            Err(error) => panic!("{error}"),
                        };
                        say(format!("{REPORT}{word} {object} {number}\n"));
                    }
                }
            });
        }
    });
}

fn make(store: &S3Store, number: usize, step: &Step, stamp: Stamp) -> Result<(), Error> {
    let id = object(number);
    let done = match step {
        Step::Write(at, data) => {
            block_on(store.write(WriteRequest::new(id, *at as u64, data.clone()).stamp(stamp)))
        }
        Step::Runs(runs) => {
            let runs = runs.iter().map(|(at, data)| Run::data(*at as u64, data.clone())).collect();
            block_on(store.write_runs(WriteRunsRequest::new(id, runs).stamp(stamp)))
        }
        Step::Full(data) => block_on(store.write_full(WriteFullRequest::new(id, data.clone()).stamp(stamp))),
        Step::Truncate(size) => block_on(store.truncate(TruncateRequest::new(id, *size as u64).stamp(stamp))),
        Step::Delete => {
            return block_on(store.delete(DeleteRequest::new(id).stamp(stamp))).map(drop);
        }
    };
    done.map(drop)
}

// ---- the process that kills it

/// The possible contents of the objects.
struct Model {
    possible: Vec<Vec<Content>>,
    /// The change in progress for each object.
    open: BTreeMap<usize, u64>,
    counts: BTreeMap<&'static str, u64>,
}

impl Model {
    fn line(&mut self, seed: u64, round: u64, line: &str) {
        // The test runner may have written the start of the line.
        let Some((_, report)) = line.split_once(REPORT) else { return };
        let words: Vec<&str> = report.split(' ').collect();
        let [word, object, number] = words[..] else { return };
        let (object, number) = (object.parse::<usize>().unwrap(), number.parse().unwrap());
        if word == "begin" {
            self.open.insert(object, number);
            return;
        }
        assert_eq!(self.open.remove(&object), Some(number));
        let made = |possible: &[Content]| {
            let step = step(seed, round, object, number);
            possible.iter().map(|before| after(before, &step)).collect::<Vec<_>>()
        };
        let possible = &mut self.possible[object];
        let name = match word {
            "done" => {
                *possible = made(possible);
                "done"
            }
            "refused" => "refused",
            "unknown" => {
                possible.extend(made(possible));
                "unknown"
            }
            other => panic!("the writer reports {other:?}"),
        };
        possible.sort();
        possible.dedup();
        *self.counts.entry(name).or_default() += 1;
    }

    /// Records that the writer has been killed, so the changes in progress may or may not have been
    /// made.
    fn killed(&mut self, seed: u64, round: u64) {
        for (object, number) in std::mem::take(&mut self.open) {
            let step = step(seed, round, object, number);
            let made: Vec<_> = self.possible[object].iter().map(|before| after(before, &step)).collect();
            self.possible[object].extend(made);
            *self.counts.entry("cut off").or_default() += 1;
        }
    }

    /// Checks that each object has one of its possible contents. From then on, that content is the
    /// only possible one.
    fn check(&mut self, store: &S3Store, context: &str) {
        for (number, possible) in self.possible.iter_mut().enumerate() {
            let found = loop {
                match block_on(store.read(ReadRequest::new(object(number), 0, 4 << 20))) {
                    Ok(reply) => break Some(reply.data.to_vec()),
                    Err(Error::Missing) => break None,
                    Err(Error::Retryable(_)) => {}
                    Err(error) => panic!("{context}: {}: {error}", object(number)),
                }
            };
            let lens = |contents: &[Content]| -> Vec<_> {
                contents.iter().map(|content| content.as_ref().map(Vec::len)).collect()
            };
            assert!(
                possible.contains(&found),
                "{context}: {} is none of {} possible contents: {:?} bytes, not {:?}",
                object(number),
                possible.len(),
                found.as_ref().map(Vec::len),
                lens(possible)
            );
            *possible = vec![found];
        }
    }
}

/// Runs against a server, or a proxy that makes requests and responses fail. `access` has the
/// writers' credentials; `keys` returns the keys in the bucket that start with a prefix.
fn run(
    way: &Double,
    access: &str,
    keys: impl Fn(&str) -> Vec<String>,
    test: &str,
    seed: u64,
    is_over: impl Fn(u64) -> bool,
) {
    let text = format!(
        "bucket,endpoint=http://{},allow_http=true,prefix=kill,{access},sweep_interval_secs=0",
        way.address
    );
    let config: S3Config = text.parse().unwrap();
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut model =
        Model { possible: vec![vec![None]; OBJECTS], open: BTreeMap::new(), counts: BTreeMap::new() };
    let (mut rounds, mut orphans) = (0, 0);
    while !is_over(rounds) {
        let round = rounds;
        let context = format!("seed {seed}, round {round}");
        way.trouble(trouble::troubled(seed ^ round, 16));
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("kill9::{test}"), "--include-ignored", "--nocapture"])
            .env("KILL9_CONFIG", &text)
            .env("KILL9_SEED", seed.to_string())
            .env("KILL9_ROUND", round.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        let last = rng.random_range(20..150);
        for line in lines.by_ref().take(last) {
            model.line(seed, round, &line.unwrap());
        }
        assert!(writer.try_wait().unwrap().is_none(), "{context}: the writer has ended by itself");
        writer.kill().unwrap();
        writer.wait().unwrap();
        // The reports from before the writer's death count; a truncated line does not.
        lines.map_while(Result::ok).for_each(|line| model.line(seed, round, &line));
        model.killed(seed, round);
        // Every other round uses the connection without faults.
        if round % 2 == 0 {
            way.heal();
        }
        let store = loop {
            match S3Store::open(&config) {
                Ok(store) => break store,
                Err(Error::Retryable(_)) => {}
                Err(error) => panic!("{context}: {error}"),
            }
        };
        claim(&store, 2 * round + 2);
        model.check(&store, &context);
        way.heal();
        way.wait_idle();
        model.check(&store, &format!("{context}, when all requests have ended"));
        let swept = block_on(store.sweep(Duration::ZERO)).unwrap();
        orphans += swept.removed;
        assert_eq!(keys("kill/d/").len() as u64, swept.blobs - swept.removed, "{context}");
        assert_eq!(keys("kill/p/").len(), 0, "{context}");
        assert_eq!(block_on(store.sweep(Duration::ZERO)).unwrap().removed, 0, "{context}");
        model.check(&store, &format!("{context}, after a sweep"));
        rounds += 1;
    }
    // If no object exists, nothing must remain of the deleted objects.
    let store = S3Store::open(&config).unwrap();
    let epoch = 2 * rounds + 1;
    claim(&store, epoch);
    for entry in block_on(store.list(ListRequest::new(namespace()))).unwrap().entries {
        let id = ObjectId::new(namespace(), entry.name);
        block_on(store.delete(DeleteRequest::new(id).stamp(Stamp::new(epoch, 1)))).unwrap();
    }
    claim(&store, epoch + 1);
    drop(store);
    way.wait_idle();
    // A test server has no clock of its own, and whether remnants are removed depends on their age.
    way.advance(3600);
    let store = S3Store::open(&config).unwrap();
    block_on(store.sweep(Duration::ZERO)).unwrap();
    for directory in ["d", "h", "p"] {
        assert_eq!(keys(&format!("kill/{directory}/")), [""; 0], "seed {seed}: left below {directory}");
    }
    println!("seed {seed}: {rounds} rounds, changes {:?}, {orphans} orphans swept", model.counts);
    assert!(model.counts.get("done").is_some_and(|count| *count >= rounds), "it tests nothing");
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

fn seed() -> u64 {
    number("KILL9_SEED").unwrap_or(1)
}

/// Runs the writer if this process is the writer's, which runs only one test.
fn is_writer() -> bool {
    let Ok(config) = std::env::var("KILL9_CONFIG") else { return false };
    write(&config.parse().unwrap(), seed(), number("KILL9_ROUND").unwrap());
    true
}

/// Returns a function that tells whether enough rounds have been run.
fn is_over() -> impl Fn(u64) -> bool {
    let since = Instant::now();
    move |done| match number("KILL9_MINUTES") {
        Some(minutes) => since.elapsed() >= Duration::from_secs(60 * minutes),
        None => done >= number("KILL9_ROUNDS").unwrap_or(6),
    }
}

#[test]
fn killed_writers() {
    if is_writer() {
        return;
    }
    let server = Double::new();
    // Without credentials, a store never removes a deleted object's head.
    let file =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("s3-kill9-{}", std::process::id()));
    std::fs::write(&file, "[default]\naws_access_key_id = any\naws_secret_access_key = any\n").unwrap();
    let access = format!("credentials_file={}", file.display());
    run(&server, &access, |begin| server.keys(begin), "killed_writers", seed(), is_over());
    std::fs::remove_file(file).unwrap();
}

#[test]
#[ignore = "long: s3, before versitygw"]
fn killed_writers_before_versitygw() {
    if is_writer() {
        return;
    }
    let Some(server) = Outside::versitygw() else { return };
    let way = Double::before(server.endpoint.trim_start_matches("http://"));
    let access = format!("credentials_file={}", server.credentials().display());
    let keys = |begin: &str| {
        let path = Path::from(begin);
        let listed =
            ask(&server.client("bucket"), async |client| client.list(Some(&path)).collect::<Vec<_>>().await);
        listed.into_iter().map(|meta| meta.unwrap().location.to_string()).collect()
    };
    run(&way, &access, keys, "killed_writers_before_versitygw", seed(), is_over());
}
