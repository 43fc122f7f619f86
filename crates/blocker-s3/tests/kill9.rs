//! Writers that are killed in the middle of what they do, over a troubled way to a real server (versitygw): nothing that
//! was acknowledged is lost, a deposed writer changes nothing any more, and nothing that a writer has left outlives the
//! sweep.
//!
//! ```text
//! cargo test -p blocker-s3 --features http --test kill9 -- [--rounds N | --minutes N] [--seed N]
//! ```
//!
//! Each round claims an epoch, lets a writer (this program, as another process) change a few objects in an order that a
//! seed gives, kills it, claims the next epoch, and compares the objects with a model of what the writer has reported as
//! begun and as done. Requests that are still on their way are waited for only after the comparison: by then the claim
//! must have shut them out.

#[path = "it/support/http.rs"]
mod http;
#[path = "it/support/outside.rs"]
mod outside;
#[path = "it/support/trouble.rs"]
mod trouble;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use blocker::executor::block_on;
use blocker::{
    Blocker, ClaimRequest, DeleteRequest, Epoch, Error, ListRequest, Name, Namespace, ObjectId, ReadRequest,
    Run, Scope, Stamp, TruncateRequest, WriteFullRequest, WriteRequest, WriteRunsRequest, WriterId,
};
use blocker_s3::object_store::path::Path;
use blocker_s3::{S3Config, S3Store};
use futures_util::StreamExt;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use http::Double;
use outside::{Outside, ask};

const OBJECTS: usize = 6;
const THREADS: usize = 3;
/// The most that an object grows to.
const OBJECT_BYTES: usize = 300_000;

/// What a change does to an object that is there or not.
enum Step {
    Write(usize, Vec<u8>),
    Runs(Vec<(usize, Vec<u8>)>),
    Full(Vec<u8>),
    Truncate(usize),
    Delete,
}

/// The change number `number` of an object in a round: the same for the writer and for the model.
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

/// What an object is after a change that was made.
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
        // Of an object that is not there it is refused.
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

// ---- the writer

/// Changes objects without end; a line for each begin and each end, with what has become of it.
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
                        say(format!("begin {object} {number}\n"));
                        let stamp = Stamp::new(epoch, number + 1);
                        let done = make(store, object, &step(seed, round, object, number), stamp);
                        let word = match done {
                            Ok(()) => "done",
                            Err(Error::Missing | Error::Retryable(_)) => "refused",
                            Err(Error::OutcomeUnknown(_)) => "unknown",
                            // The parent has taken over before its signal has arrived.
                            Err(Error::Fenced { .. }) => "refused",
                            Err(error) => panic!("{error}"),
                        };
                        say(format!("{word} {object} {number}\n"));
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

// ---- the parent

/// What the objects may be.
struct Model {
    possible: Vec<Vec<Content>>,
    /// The change of each object that has begun, and has not ended.
    open: BTreeMap<usize, u64>,
    counts: BTreeMap<&'static str, u64>,
}

impl Model {
    fn line(&mut self, seed: u64, round: u64, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
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

    /// The writer has ended: what had begun may be made or not.
    fn killed(&mut self, seed: u64, round: u64) {
        for (object, number) in std::mem::take(&mut self.open) {
            let step = step(seed, round, object, number);
            let made: Vec<_> = self.possible[object].iter().map(|before| after(before, &step)).collect();
            self.possible[object].extend(made);
            *self.counts.entry("cut off").or_default() += 1;
        }
    }

    /// Each object is one of what it may be; from now on it is that.
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

/// The keys in the bucket below `directory`.
fn keys(server: &Outside, directory: &str) -> Vec<String> {
    let path = Path::from(format!("kill/{directory}"));
    let listed =
        ask(&server.client("bucket"), async |client| client.list(Some(&path)).collect::<Vec<_>>().await);
    listed.into_iter().map(|meta| meta.unwrap().location.to_string()).collect()
}

fn run(server: &Outside, seed: u64, is_over: impl Fn(u64) -> bool) {
    let way = Double::before(server.endpoint.trim_start_matches("http://"));
    let text = format!(
        "bucket,endpoint=http://{},allow_http=true,prefix=kill,credentials_file={},sweep_interval_secs=0",
        way.address,
        server.credentials().display()
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
            .args(["--writer", &text, &seed.to_string(), &round.to_string()])
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
        // What it has reported before it died; a line that was cut off reports nothing.
        lines.map_while(Result::ok).for_each(|line| model.line(seed, round, &line));
        model.killed(seed, round);
        // In every other round over the way as it is.
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
        assert_eq!(keys(server, "d").len() as u64, swept.blobs - swept.removed, "{context}");
        assert_eq!(keys(server, "p").len(), 0, "{context}");
        assert_eq!(block_on(store.sweep(Duration::ZERO)).unwrap().removed, 0, "{context}");
        model.check(&store, &format!("{context}, after a sweep"));
        rounds += 1;
    }
    // Without objects nothing is left of them.
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
    let store = S3Store::open(&config).unwrap();
    block_on(store.sweep(Duration::ZERO)).unwrap();
    for directory in ["d", "h", "p"] {
        assert_eq!(keys(server, directory), [""; 0], "seed {seed}: left below {directory}");
    }
    println!("seed {seed}: {rounds} rounds, changes {:?}, {orphans} orphans swept", model.counts);
    assert!(model.counts.get("done").is_some_and(|count| *count >= rounds), "it tests nothing");
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--writer") {
        let number = |index: usize| arguments[at + index].parse().unwrap();
        return write(&arguments[at + 1].parse().unwrap(), number(2), number(3));
    }
    let number = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        let value = arguments.get(at + 1).and_then(|value| value.parse::<u64>().ok());
        Some(value.unwrap_or_else(|| panic!("{name} takes a number")))
    };
    let (rounds, minutes) = (number("--rounds"), number("--minutes"));
    let seed = number("--seed").unwrap_or(1);
    let Some(server) = Outside::versitygw() else { return };
    let since = Instant::now();
    run(&server, seed, |done| match (rounds, minutes) {
        (Some(rounds), _) => done >= rounds,
        (None, Some(minutes)) => since.elapsed() >= Duration::from_secs(60 * minutes),
        (None, None) => done >= 6,
    });
}
