//! A model of a few objects, and stores that change them over an unreliable connection to their
//! server.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::HashMap;
use std::time::Duration;

use blocker::executor::block_on;
use blocker::metrics::Collect;
use blocker::{
    Blocker, BlockerExt, Error, Name, Namespace, ObjectId, ReadRequest, WriteFullRequest, WriteRequest,
};
use blocker_s3::S3Store;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::http::{Asked, Double, SLOW_DOWN, Trouble};

/// Returns a plan in which one request in `one_in` fails with a fault.
pub(crate) fn troubled(seed: u64, one_in: u32) -> impl FnMut(&Asked) -> Trouble + Send + 'static {
    const TROUBLES: [Trouble; 7] = [
        Trouble::Refused("500 Internal Server Error", "InternalError"),
        Trouble::Refused("503 Service Unavailable", "ServiceUnavailable"),
        SLOW_DOWN,
        Trouble::DoneAndFailed,
        Trouble::CutBefore,
        Trouble::CutAfter,
        Trouble::CutWithin,
    ];
    let mut rng = SmallRng::seed_from_u64(seed);
    move |_| {
        if rng.random_range(0..one_in) > 0 {
            return Trouble::None;
        }
        let late = Duration::from_millis(rng.random_range(1..200));
        match rng.random_range(0..TROUBLES.len() + 4) {
            number if number < TROUBLES.len() => TROUBLES[number],
            number if number % 2 == 0 => Trouble::LateBefore(late),
            _ => Trouble::LateAfter(late),
        }
    }
}

/// Returns a plan like [`troubled`], but no key has a fault more than twice in a row, so that a
/// request succeeds after enough retries.
pub(crate) fn passable(seed: u64, one_in: u32) -> impl FnMut(&Asked) -> Trouble + Send + 'static {
    const IN_A_ROW_MAX: u32 = 2;
    let (mut plan, mut in_a_row) = (troubled(seed, one_in), HashMap::<String, u32>::new());
    move |asked| {
        let met = in_a_row.get(&asked.key).copied().unwrap_or(0);
        let trouble = if met < IN_A_ROW_MAX { plan(asked) } else { Trouble::None };
        match trouble {
            Trouble::None => in_a_row.remove(&asked.key),
            _ => in_a_row.insert(asked.key.clone(), met + 1),
        };
        trouble
    }
}

fn object(name: &str) -> ObjectId {
    ObjectId::new(Namespace::new("vm").unwrap(), Name::copy_from(name.as_bytes()).unwrap())
}

fn read(store: &S3Store, object: &ObjectId) -> Result<Vec<u8>, Error> {
    let max = store.capabilities().object_bytes_max;
    block_on(store.read(ReadRequest::new(object.clone(), 0, max))).map(|reply| reply.data.to_vec())
}

/// Checks that acknowledged changes are present, refused ones are absent, and unknown ones are
/// permanently one or the other.
pub(crate) fn nothing_is_lost_or_made_up(server: &Double, open: &dyn Fn() -> S3Store, seed: u64) {
    let store = open();
    let names = ["a", "b", "c"].map(object);
    // The possible contents of each object, starting with the most probable one.
    let mut possible = vec![vec![None::<Vec<u8>>]; names.len()];
    let mut rng = SmallRng::seed_from_u64(seed);
    server.trouble(troubled(seed, 8));
    let mut failed = 0;
    for step in 0..60_u8 {
        let which = rng.random_range(0..names.len());
        let context = format!("seed {seed}, step {step}");
        // Small objects are in the head, large ones in blobs.
        let len = [100, 40_000][rng.random_range(0..2)];
        let at: usize = rng.random_range(0..50_000);
        let is_full = rng.random_range(0..3) == 0;
        let data = vec![step + 1; len];
        let done = if is_full {
            block_on(store.write_full(WriteFullRequest::new(names[which].clone(), data))).map(drop)
        } else {
            block_on(store.write(WriteRequest::new(names[which].clone(), at as u64, data))).map(drop)
        };
        let after = possible[which].iter().map(|before| {
            let mut bytes = if is_full { Vec::new() } else { before.clone().unwrap_or_default() };
            let at = if is_full { 0 } else { at };
            bytes.resize(bytes.len().max(at + len), 0);
            bytes[at..at + len].fill(step + 1);
            Some(bytes)
        });
        let after: Vec<_> = after.collect();
        match done {
            Ok(()) => possible[which] = after,
            Err(Error::OutcomeUnknown(_)) => possible[which].extend(after),
            Err(Error::Retryable(_)) => failed += 1,
            Err(error) => panic!("{context}: {error}"),
        }
        let found = match read(&store, &names[which]) {
            Ok(bytes) => Some(bytes),
            Err(Error::Missing) => None,
            Err(Error::Retryable(_)) => continue,
            Err(error) => panic!("{context}: {error}"),
        };
        assert!(possible[which].contains(&found), "{context}: it is something else");
        // The read decides which of the possible contents is present.
        possible[which] = vec![found];
    }
    server.heal();
    let other = open();
    let check = |store: &S3Store, context: &str| {
        for (name, possible) in names.iter().zip(&possible) {
            let found = read(store, name).ok();
            assert!(possible.contains(&found), "seed {seed}, {context}: it is something else");
        }
    };
    check(&store, "through the same store");
    check(&other, "through another");
    println!(
        "seed {seed}: {failed} refused, {} repeated",
        store.families().number("s3_requests_repeated_total").unwrap().to_u64()
    );
    // Background requests end with their store, except those that the server has already received.
    drop(store);
    server.wait_idle();
    block_on(other.sweep(Duration::ZERO)).unwrap();
    assert_eq!(block_on(other.sweep(Duration::ZERO)).unwrap().removed, 0, "seed {seed}");
    check(&other, "after a sweep");
}
