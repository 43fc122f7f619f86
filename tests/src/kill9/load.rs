//! The load: a writer's random changes, made both to the reference and to the server.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use blocker::executor::block_on;
use blocker::{
    Blocker, Change, ChangeRequest, Condition, Durability, Error, FlushRequest, Namespace, OrderDomain, Run,
    Scope,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::model::{Model, OBJECT_BYTES};

/// The state shared by all writers in a round.
#[derive(Debug, Default)]
pub struct Round {
    /// Whether the server is about to be killed, so that an error means that it has ended.
    pub is_ending: AtomicBool,
    /// Whether the writers must stop after their current change.
    pub is_over: AtomicBool,
    /// The number of acknowledgements so far.
    pub acknowledged: AtomicU64,
}

/// The observations of one writer in a round.
#[derive(Debug, Default)]
pub struct Seen {
    /// Changes acknowledged as *cached*.
    pub cached: u64,
    /// Changes acknowledged as *journaled*.
    pub journaled: u64,
    /// Changes acknowledged as *stored*.
    pub stored: u64,
    /// Completed flushes.
    pub flushed: u64,
    /// Responses that the server should not have sent.
    pub wrong: Vec<String>,
}

/// The ways in which a writer works.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Payloads above this size go directly to the store, and may be torn unless they were
    /// acknowledged.
    pub journaled_bytes_max: u64,
    /// Whether every unacknowledged change may be torn, because it may have gone to the store.
    pub is_through: bool,
    /// The number of order domains.
    pub order_domains: u64,
}

/// Makes a change, and returns its durability.
fn make(store: &dyn Blocker, request: &ChangeRequest) -> Result<Durability, Error> {
    block_on(store.change(request.clone())).map(|reply| reply.durability)
}

/// Returns the range that a change writes, which may be torn.
fn written_bytes(change: &Change) -> u64 {
    match change {
        Change::CompareAndWrite { data, .. } => data.len_bytes() as u64,
        // The source can have any length.
        Change::Copy { .. } => OBJECT_BYTES,
        change => change.payload_bytes(),
    }
}

/// Writes until the server ends or the round is over.
pub fn run(model: &mut Model, server: &dyn Blocker, round: &Round, habits: Habits, seed: u64) -> Seen {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut seen = Seen::default();
    while !round.is_over.load(Ordering::Relaxed) {
        let at = random.random_range(0..model.len());
        let done = match random.random_range(0..20) {
            0 => flush(model, server, at, &mut random, &mut seen),
            _ => change(model, server, at, habits, &mut random, &mut seen),
        };
        match done {
            Ok(()) => {
                round.acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) if round.is_ending.load(Ordering::SeqCst) => return seen,
            Err(line) => {
                seen.wrong.push(line);
                return seen;
            }
        }
    }
    seen
}

fn flush(
    model: &mut Model,
    server: &dyn Blocker,
    at: usize,
    random: &mut SmallRng,
    seen: &mut Seen,
) -> Result<(), String> {
    let id = model.object(at).clone();
    // A guest only knows flushes, so most of these are *journaled* ones.
    let durability = if random.random_range(0..4) == 0 { Durability::Stored } else { Durability::Journaled };
    let scope = match random.random_range(0..3) {
        0 => Scope::Object(id.clone()),
        1 => Scope::Namespace(id.namespace.clone()),
        _ => Scope::All,
    };
    let request = FlushRequest::new(scope.clone()).durability(durability);
    let reply = block_on(server.flush(request)).map_err(|error| format!("flush of {scope}: {error}"))?;
    if reply.durability < durability {
        return Err(format!("flush of {scope}: {durability} was asked for, and {} given", reply.durability));
    }
    seen.flushed += 1;
    match scope {
        Scope::Object(_) => model.durable(at),
        Scope::Namespace(namespace) => model.all_durable(|id, _| id.namespace == namespace),
        _ => model.all_durable(|_, _| true),
    }
    Ok(())
}

fn change(
    model: &mut Model,
    server: &dyn Blocker,
    at: usize,
    habits: Habits,
    random: &mut SmallRng,
    seen: &mut Seen,
) -> Result<(), String> {
    let is_journaled = model.is_journaled(at);
    let durability = match random.random_range(0..8) {
        0..4 if is_journaled => Durability::Cached,
        0..7 => Durability::Journaled,
        _ => Durability::Stored,
    };
    let request = draw(model, at, durability, habits, random);
    let may_be_torn =
        !is_journaled || habits.is_through || written_bytes(&request.change) > habits.journaled_bytes_max;
    let expected = make(model.reference(), &request);
    if expected.is_ok() {
        model.requested(at, may_be_torn);
    }
    let shown = || format!("{} of {}", request.change.name(), model.object(at));
    match (expected, make(server, &request)) {
        (Ok(_), Ok(given)) if given < durability => {
            Err(format!("{}: {durability} was asked for, and {given} given", shown()))
        }
        (Ok(_), Ok(given)) => {
            model.answered(at);
            match given {
                Durability::Cached => seen.cached += 1,
                Durability::Stored => seen.stored += 1,
                _ => seen.journaled += 1,
            }
            if given > Durability::Cached {
                model.durable(at);
            }
            Ok(())
        }
        (Err(expected), Err(found)) if expected.kind() == found.kind() => Ok(()),
        (Err(expected), Ok(_)) => Err(format!("{}: done, and not refused with: {expected}", shown())),
        (_, Err(error)) => Err(format!("{}: {error}", shown())),
    }
}

/// Returns bytes that differ from those of all other changes.
fn bytes(random: &mut SmallRng, len: u64) -> Vec<u8> {
    let word: [u8; 8] = random.random();
    (0..len).map(|index| word[index as usize % 8] ^ (index / 8) as u8).collect()
}

fn range(random: &mut SmallRng) -> (u64, u64) {
    let offset = match random.random_range(0..3) {
        0 => random.random_range(0..OBJECT_BYTES - 1),
        _ => random.random_range(0..OBJECT_BYTES / 4096) * 4096,
    };
    let len = match random.random_range(0..4) {
        0 => random.random_range(1..OBJECT_BYTES),
        1 => random.random_range(1..600),
        _ => 4096,
    };
    (offset, len.min(OBJECT_BYTES - offset))
}

fn draw(
    model: &Model,
    at: usize,
    durability: Durability,
    habits: Habits,
    random: &mut SmallRng,
) -> ChangeRequest {
    let id = model.object(at).clone();
    let (offset, len_bytes) = range(random);
    let domain = OrderDomain(random.random_range(0..habits.order_domains.max(1)));
    let kind = random.random_range(0..24);
    let change = match kind {
        0..10 => Change::Write { offset, data: bytes(random, len_bytes).into() },
        10 => Change::WriteZeroes { offset, len_bytes },
        11 => Change::Discard { offset, len_bytes },
        12..14 => {
            // Half of the comparisons match.
            let content = model.content(at).unwrap_or_default();
            let end = content.len().min((offset + len_bytes.min(512)) as usize);
            let mut expected = content.get(offset as usize..end).unwrap_or_default().to_vec();
            if expected.is_empty() || random.random_range(0..4) == 0 {
                // Within the maximum object size, which the reference does not enforce.
                expected = vec![0xee; (OBJECT_BYTES - offset).min(16) as usize];
            }
            let data = bytes(random, expected.len() as u64).into();
            Change::CompareAndWrite { offset, expected: expected.into(), data }
        }
        14..17 => {
            let (mut at, mut runs) = (random.random_range(0..OBJECT_BYTES / 8), Vec::new());
            while at + 3000 < OBJECT_BYTES && runs.len() < 6 {
                let len = random.random_range(1..3000);
                runs.push(match random.random_range(0..4) {
                    0 => Run::zeroes(at, len),
                    _ => Run::data(at, bytes(random, len)),
                });
                at += len + random.random_range(0..9000);
            }
            Change::WriteRuns { runs }
        }
        17..20 => Change::WriteFull { data: bytes(random, len_bytes).into() },
        20 => Change::Truncate { size_bytes: random.random_range(0..OBJECT_BYTES) },
        21 => Change::Delete,
        _ => match model.object(random.random_range(0..model.len())).clone() {
            from if from == id => Change::Delete,
            from => Change::Copy { from, from_condition: Condition::None },
        },
    };
    let request = change.request(id).durability(durability);
    if kind < 5 { request.domain(domain) } else { request }
}

/// The length stays within the maximum object size, which the reference does not enforce.
pub fn namespaces() -> [Namespace; 2] {
    ["log", "plain"].map(|name| Namespace::new(name).expect("a namespace"))
}
