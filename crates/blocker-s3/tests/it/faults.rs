//! Injects a fault at each request of a script. Acknowledged changes are present, failed ones are
//! present completely or not at all, whatever the response was, and unreferenced blobs are swept.

use std::collections::BTreeMap;
use std::time::Duration;

use blocker::{
    Blocker, BlockerExt, ClaimRequest, CompareAndWriteRequest, CopyRequest, DeleteRequest, DiscardRequest,
    Epoch, Error, ListRequest, ManualClock, Run, Scope, Stamp, TruncateRequest, WriteFullRequest,
    WriteRequest, WriteRunsRequest, WriteZeroesRequest, WriterId,
};
use blocker_s3::S3Store;

use crate::support::{Fault, Server, drive, object, open, read};

const KIB: usize = 1024;

/// The steps of the script, in order.
#[derive(Clone, Debug)]
enum Step {
    Write(&'static str, usize, Vec<u8>),
    Runs(&'static str, Vec<(usize, Vec<u8>)>),
    Zeroes(&'static str, usize, usize),
    Discard(&'static str, usize, usize),
    Truncate(&'static str, usize),
    Full(&'static str, Vec<u8>),
    Compare(&'static str, usize, Vec<u8>, Vec<u8>),
    Copy(&'static str, &'static str),
    Delete(&'static str),
    Claim(u64),
}

type Model = BTreeMap<&'static str, Vec<u8>>;

fn script() -> Vec<Step> {
    let bytes = |seed: u8, len: usize| (0..len).map(|i| seed.wrapping_add(i as u8)).collect::<Vec<_>>();
    vec![
        Step::Write("small", 10, bytes(1, 100)),
        Step::Write("large", 0, bytes(2, 200 * KIB)),
        Step::Claim(1),
        Step::Runs("large", (0..16).map(|i| (i * 12 * KIB, bytes(i as u8, 4 * KIB))).collect()),
        Step::Write("small", 30 * KIB, bytes(3, 8 * KIB)),
        Step::Zeroes("large", 100 * KIB, 20 * KIB),
        Step::Discard("large", 150 * KIB, 90 * KIB),
        Step::Compare("small", 10, bytes(1, 100), bytes(9, 120)),
        Step::Truncate("large", 120 * KIB),
        Step::Claim(2),
        Step::Copy("large", "copy"),
        Step::Delete("large"),
        Step::Full("large", bytes(7, 50 * KIB)),
        Step::Full("large", bytes(8, 50)),
        Step::Delete("small"),
        Step::Write("small", 0, bytes(5, 10)),
    ]
}

fn put(model: &mut Model, name: &'static str, at: usize, data: &[u8]) {
    let bytes = model.entry(name).or_default();
    bytes.resize(bytes.len().max(at + data.len()), 0);
    bytes[at..at + data.len()].copy_from_slice(data);
}

/// Applies the effect of a successful step to the model.
fn apply(model: &mut Model, step: &Step) {
    match step {
        Step::Write(name, at, data) | Step::Compare(name, at, _, data) => put(model, name, *at, data),
        Step::Runs(name, runs) => runs.iter().for_each(|(at, data)| put(model, name, *at, data)),
        Step::Zeroes(name, at, len) => put(model, name, *at, &vec![0; *len]),
        Step::Discard(name, at, len) => {
            let bytes = model.get_mut(name).unwrap();
            let end = (at + len).min(bytes.len());
            bytes[*at..end].fill(0);
        }
        Step::Truncate(name, size) => model.get_mut(name).unwrap().resize(*size, 0),
        Step::Full(name, data) => drop(model.insert(name, data.clone())),
        Step::Copy(from, to) => {
            let bytes = model[from].clone();
            model.insert(to, bytes);
        }
        Step::Delete(name) => drop(model.remove(name)),
        Step::Claim(_) => {}
    }
}

/// Performs a step. Changes carry the stamp of the latest claimed epoch.
fn run(store: &S3Store, clock: &ManualClock, step: &Step, stamp: Stamp) -> Result<(), Error> {
    match step.clone() {
        Step::Write(name, at, data) => {
            let request = WriteRequest::new(object(name), at as u64, data).stamp(stamp);
            drive(clock, store.write(request)).map(drop)
        }
        Step::Runs(name, runs) => {
            let runs = runs.into_iter().map(|(at, data)| Run::data(at as u64, data)).collect();
            drive(clock, store.write_runs(WriteRunsRequest::new(object(name), runs).stamp(stamp))).map(drop)
        }
        Step::Zeroes(name, at, len) => {
            let request = WriteZeroesRequest::new(object(name), at as u64, len as u64).stamp(stamp);
            drive(clock, store.write_zeroes(request)).map(drop)
        }
        Step::Discard(name, at, len) => {
            let request = DiscardRequest::new(object(name), at as u64, len as u64).stamp(stamp);
            drive(clock, store.discard(request)).map(drop)
        }
        Step::Truncate(name, size) => {
            let request = TruncateRequest::new(object(name), size as u64).stamp(stamp);
            drive(clock, store.truncate(request)).map(drop)
        }
        Step::Full(name, data) => {
            drive(clock, store.write_full(WriteFullRequest::new(object(name), data).stamp(stamp))).map(drop)
        }
        Step::Compare(name, at, old, new) => {
            let request = CompareAndWriteRequest::new(object(name), at as u64, old, new).stamp(stamp);
            drive(clock, store.compare_and_write(request)).map(drop)
        }
        Step::Copy(from, to) => {
            drive(clock, store.copy(CopyRequest::new(object(from), object(to)).stamp(stamp))).map(drop)
        }
        Step::Delete(name) => {
            drive(clock, store.delete(DeleteRequest::new(object(name)).stamp(stamp))).map(drop)
        }
        Step::Claim(epoch) => {
            let scope = Scope::Namespace(object("x").namespace);
            drive(clock, store.claim(ClaimRequest::new(scope, Epoch(epoch), WriterId(1)))).map(drop)
        }
    }
}

fn found(store: &S3Store, clock: &ManualClock) -> Model {
    let page = drive(clock, store.list(ListRequest::new(object("x").namespace))).unwrap();
    let names = ["copy", "large", "small"];
    let listed: Vec<_> = page.entries.iter().map(|entry| entry.name.as_bytes().to_vec()).collect();
    let mut model = Model::new();
    for name in names {
        match read(store, clock, &object(name)) {
            Ok(bytes) => drop(model.insert(name, bytes)),
            Err(error) => assert_eq!(error, Error::Missing, "{name}"),
        }
    }
    let there: Vec<_> = model.keys().map(|name| name.as_bytes().to_vec()).collect();
    assert_eq!(listed, there);
    model
}

/// Runs the script with a fault at request number `at`. Returns whether the script has that many
/// requests.
fn with_fault(at: usize, fault: Fault) -> bool {
    let context = format!("{fault:?} at request {at}");
    let (server, clock) = (Server::new(at as u64), ManualClock::new());
    let store = open(&server, &clock);
    server.met();
    server.fail_at(at, fault);
    // A retry would resolve a failed request, so the next requests fail too.
    if matches!(fault, Fault::Error | Fault::LostAnswer | Fault::Late) && at % 2 == 1 {
        (1..8).for_each(|more| server.fail_at(at + more, fault));
    }
    let mut allowed = vec![Model::new()];
    let (mut epoch, mut is_over) = (0, false);
    for (number, step) in script().iter().enumerate() {
        if let Step::Claim(next) = step {
            epoch = *next;
        }
        let stamp = Stamp::new(epoch, number as u64 + 1);
        let before = allowed[0].clone();
        let mut after = before.clone();
        match run(&store, &clock, step, stamp) {
            Ok(()) => {
                apply(&mut after, step);
                allowed = vec![after];
            }
            Err(Error::OutcomeUnknown(_)) => {
                apply(&mut after, step);
                allowed = vec![before, after];
                is_over = true;
            }
            Err(Error::Retryable(_)) => is_over = true,
            Err(error) => panic!("{context}: {step:?}: {error}"),
        }
        if is_over {
            break;
        }
    }
    let reached = server.met_count() > at;
    server.heal();
    // If the store that made the change is still alive, it determines the outcome. After that, no
    // late request can take effect.
    let same = (!matches!(fault, Fault::DeadBefore | Fault::DeadAfter)).then(|| found(&store, &clock));
    server.land();
    let again = open(&server, &clock);
    let model = found(&again, &clock);
    let was_allowed = |model: &Model| {
        let differences = |wanted: &Model| {
            let differ = |name: &&&str| wanted.get(**name) != model.get(**name);
            ["copy", "large", "small"]
                .iter()
                .filter(differ)
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>()
        };
        assert!(allowed.contains(model), "{context}: other bytes: {:?}", differences(&allowed[0]));
    };
    was_allowed(&model);
    if let Some(same) = same {
        assert_eq!(same, model, "{context}: changed after it was read back");
    }
    // Unreferenced blobs are swept, and referenced ones stay.
    let swept = drive(&clock, again.sweep(Duration::ZERO)).unwrap();
    let blobs = server.keys("d/").len() as u64;
    assert_eq!(swept.blobs - swept.removed, blobs, "{context}");
    assert_eq!(found(&again, &clock), model, "{context}: after a sweep");
    let live = drive(&clock, again.sweep(Duration::ZERO)).unwrap();
    assert_eq!((live.blobs, live.removed), (blobs, 0), "{context}");
    reached
}

fn at_every_request(fault: Fault) {
    let mut at = 0;
    while with_fault(at, fault) {
        at += 1;
    }
    assert!(at > 60, "{at} requests");
}

#[test]
fn an_error() {
    at_every_request(Fault::Error);
}

#[test]
fn a_lost_answer() {
    at_every_request(Fault::LostAnswer);
}

#[test]
fn a_put_that_lands_late() {
    at_every_request(Fault::Late);
}

#[test]
fn death_before_a_request() {
    at_every_request(Fault::DeadBefore);
}

#[test]
fn death_after_a_request() {
    at_every_request(Fault::DeadAfter);
}
