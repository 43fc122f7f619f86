//! The load of each kind of client of the value checker.

use super::client::{Answer, Client, Speaks};
use super::ledger::Account;
use super::{Group, KEYS, Key, OWNED, Shared, value};
use crate::conn::Conn;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::atomic::Ordering;

/// The number of keys in one retrieval.
const RETRIEVAL: usize = 8;
/// The number of versions in a list, after which the list starts again.
const LIST_MAX: u64 = 200;
/// The time to live of mortal keys, in seconds, and the time by which the clock is advanced to expire them.
const LIFE_SECS: u32 = 100;
const MOVE_SECS: u32 = 200;
/// The delay of a flush, and the time by which the clock is advanced to trigger it. The delay is
/// long, because values stored before the trigger are removed, and a delayed client may trigger it
/// late.
const DELAY_SECS: u32 = 100;
const DELAY_MOVE_SECS: u32 = 102;
/// The number of values between two fences of a flood.
const FLOOD: usize = 300;

/// Runs a client that changes its own keys and reads all keys, with one request at a time.
pub fn usual(shared: &Shared<'_>, owner: usize, speaks: Speaks, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut client = Client::new(shared.server.connect(), speaks);
    let own = owner * OWNED.len() * KEYS..(owner + 1) * OWNED.len() * KEYS;
    while !shared.is_over() {
        if random.random_bool(0.5) {
            read(shared, &mut client, &mut random);
            continue;
        }
        let key = &shared.keys[random.random_range(own.clone())];
        match key.group {
            Group::Plain | Group::Mortal => change_plain(shared, key, &mut client, &mut random),
            Group::Compared => change_compared(shared, key, &mut client, &mut random),
            Group::List => change_list(shared, key, &mut client),
            _ => change_counter(shared, key, &mut client),
        }
        shared.counts.operations.fetch_add(1, Ordering::Relaxed);
    }
}

fn read(shared: &Shared<'_>, client: &mut Client, random: &mut SmallRng) {
    let keys: Vec<&Key> =
        (0..RETRIEVAL).map(|_| &shared.keys[random.random_range(0..shared.keys.len())]).collect();
    let flushing = shared.flushing.load(Ordering::SeqCst);
    let before: Vec<_> = keys.iter().map(|key| key.account.before()).collect();
    let names: Vec<String> = keys.iter().map(|key| key.name.clone()).collect();
    let values = client.get_many(&names);
    for ((key, before), value) in keys.iter().zip(before).zip(values) {
        shared.judge(key, before, flushing, value.as_deref());
    }
    shared.counts.operations.fetch_add(RETRIEVAL as u64, Ordering::Relaxed);
}

/// Returns the size of a value: usually small, sometimes large.
fn size(shared: &Shared<'_>, random: &mut SmallRng) -> usize {
    let most = match random.random_range(0..100) {
        0..60 => 300,
        60..90 => 3_000,
        90..98 => 20_000,
        _ => shared.configuration.value_bytes_max,
    };
    random.random_range(0..most.min(shared.configuration.value_bytes_max))
}

/// Records the outcome of setting a version.
fn note(shared: &Shared<'_>, key: &Key, version: u64, answer: Answer) {
    match answer {
        Answer::Done => {
            key.account.stored(version);
            shared.counts.changes.fetch_add(1, Ordering::Relaxed);
        }
        // The previous item is removed too.
        Answer::NoMemory => {
            key.account.gone(version);
            shared.counts.refused.fetch_add(1, Ordering::Relaxed);
        }
        Answer::Absent | Answer::Other => {
            shared.violation(format!("{}: setting version {version} answers {answer:?}", key.name));
        }
    }
}

fn life(key: &Key) -> u32 {
    if key.group == Group::Mortal { LIFE_SECS } else { 0 }
}

fn change_plain(shared: &Shared<'_>, key: &Key, client: &mut Client, random: &mut SmallRng) {
    match random.random_range(0..10) {
        0..6 => {
            let size = size(shared, random);
            let version = key.account.send();
            let value = value::make(&key.name, version, size);
            note(shared, key, version, client.set(&key.name, &value, life(key)));
        }
        6..8 => {
            let version = key.account.send();
            match client.delete(&key.name) {
                Answer::Done | Answer::Absent => key.account.gone(version),
                answer => shared.violation(format!("{}: deleting answers {answer:?}", key.name)),
            }
            shared.counts.changes.fetch_add(1, Ordering::Relaxed);
        }
        _ => {
            let (flushing, before) = (shared.flushing.load(Ordering::SeqCst), key.account.before());
            // The newest version that was sent is an acknowledged removal.
            let was_gone = key.account.acknowledged() == key.account.sent() && Account::is_gone(before);
            match client.touch(&key.name, life(key)) {
                Answer::Done if was_gone => {
                    shared.violation(format!("{}: touched, though it was gone", key.name));
                }
                Answer::Done | Answer::NoMemory => {}
                Answer::Absent => shared.judge(key, before, flushing, None),
                Answer::Other => shared.violation(format!("{}: touching answers otherwise", key.name)),
            }
        }
    }
}

/// Sets a value, reads its CAS value, stores with that CAS value, and stores again with the CAS
/// value that is now outdated.
fn change_compared(shared: &Shared<'_>, key: &Key, client: &mut Client, random: &mut SmallRng) {
    let size = size(shared, random);
    let set = |client: &mut Client| {
        let version = key.account.send();
        let value = value::make(&key.name, version, size);
        note(shared, key, version, client.set(&key.name, &value, 0));
    };
    let (flushing, before) = (shared.flushing.load(Ordering::SeqCst), key.account.before());
    let found = client.get(&key.name);
    shared.judge(key, before, flushing, found.as_ref().map(|found| &found.0[..]));
    let Some((_, cas)) = found else { return set(client) };
    let version = key.account.send();
    let value = value::make(&key.name, version, size);
    match client.cas(&key.name, &value, cas) {
        Answer::Done => key.account.stored(version),
        // The item was evicted, flushed or refused in the meantime, so the operation fails.
        Answer::Absent | Answer::NoMemory => return set(client),
        Answer::Other => {
            return shared.violation(format!(
                "{}: no one else has changed it, but its CAS value is another",
                key.name
            ));
        }
    }
    shared.counts.changes.fetch_add(1, Ordering::Relaxed);
    if random.random_bool(0.3) {
        let old = key.account.send();
        let value = value::make(&key.name, old, size);
        match client.cas(&key.name, &value, cas) {
            Answer::Done => shared.violation(format!("{}: stored with a CAS value that is old", key.name)),
            _ => set(client),
        }
    }
}

fn change_list(shared: &Shared<'_>, key: &Key, client: &mut Client) {
    let account = &key.account;
    let version = account.send();
    let item = format!("{version};");
    if !version.is_multiple_of(LIST_MAX) {
        match client.append(&key.name, item.as_bytes()) {
            Answer::Done => {
                account.stored(version);
                shared.counts.changes.fetch_add(1, Ordering::Relaxed);
                return;
            }
            // The key is absent, or there is no memory: the list starts again.
            Answer::Absent | Answer::Other | Answer::NoMemory => {}
        }
    }
    note(shared, key, version, client.set(&key.name, item.as_bytes(), 0));
}

fn change_counter(shared: &Shared<'_>, key: &Key, client: &mut Client) {
    let account = &key.account;
    let version = account.send();
    match client.increment(&key.name) {
        Ok(number) if number == version => {
            account.stored(version);
            shared.counts.changes.fetch_add(1, Ordering::Relaxed);
        }
        Ok(number) => shared.violation(format!("{}: counted to {number} instead of {version}", key.name)),
        Err(Answer::Absent | Answer::NoMemory) => {
            note(shared, key, version, client.set(&key.name, version.to_string().as_bytes(), 0));
        }
        Err(answer) => shared.violation(format!("{}: counting answers {answer:?}", key.name)),
    }
}

/// Stores without waiting for replies, as fast as the server accepts the requests.
pub fn flood(shared: &Shared<'_>, flood: usize, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut conn = shared.server.connect();
    let prefix = format!("f-{flood}-");
    let keys: Vec<&Key> = shared.keys.iter().filter(|key| key.name.starts_with(&prefix)).collect();
    while !shared.is_over() {
        let mut requests = Vec::new();
        let mut last = vec![0; keys.len()];
        for _ in 0..FLOOD {
            let index = random.random_range(0..keys.len());
            let (key, version) = (keys[index], keys[index].account.send());
            let value = value::make(&key.name, version, random.random_range(0..2_000));
            requests.extend(format!("set {} 0 0 {} noreply\r\n", key.name, value.len()).bytes());
            requests.extend(value);
            requests.extend(b"\r\n");
            last[index] = version;
        }
        requests.extend(b"mn\r\n");
        conn.send(&requests);
        let line = conn.read_line();
        if line != b"MN" {
            return shared.violation(format!("a flood is answered: {}", line.escape_ascii()));
        }
        for (key, version) in keys.iter().zip(last).filter(|(_, version)| *version > 0) {
            // Whether the version was refused or stored, an earlier one must not be read again.
            key.account.stored(version);
        }
        shared.counts.operations.fetch_add(FLOOD as u64, Ordering::Relaxed);
        shared.counts.changes.fetch_add(FLOOD as u64, Ordering::Relaxed);
    }
}

/// A client that has announced a value.
struct Half<'a> {
    key: &'a Key,
    version: u64,
    conn: Conn,
    rest: Vec<u8>,
}

/// Announces values and sends part of them; some are completed later, some never.
pub fn half_sent(shared: &Shared<'_>, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut halves: Vec<Half<'_>> = Vec::new();
    let mut idle: Vec<&Key> = shared.keys.iter().filter(|key| key.group == Group::Half).collect();
    while !shared.is_over() {
        if let Some(key) = idle.pop() {
            let version = key.account.send();
            let bytes = random.random_range(0..shared.configuration.value_bytes_max);
            let value = value::make(&key.name, version, bytes);
            let mut request = format!("set {} 0 0 {}\r\n", key.name, value.len()).into_bytes();
            request.extend(value);
            request.extend(b"\r\n");
            let rest = request.split_off(random.random_range(1..request.len()));
            let mut conn = shared.server.connect();
            conn.send(&request);
            halves.push(Half { key, version, conn, rest });
            continue;
        }
        let mut half = halves.swap_remove(random.random_range(0..halves.len()));
        if random.random_bool(0.3) {
            // The abandoned value must never be read.
            half.key.account.never_complete(half.version);
            shared.counts.given_up.fetch_add(1, Ordering::Relaxed);
        } else {
            half.conn.send(&half.rest);
            match half.conn.try_read_line().as_deref() {
                Some(b"STORED") => note(shared, half.key, half.version, Answer::Done),
                Some(line) if line.starts_with(b"SERVER_ERROR out of memory") => {
                    note(shared, half.key, half.version, Answer::NoMemory);
                }
                Some(line) => shared.violation(format!("{}: {}", half.key.name, line.escape_ascii())),
                // The server has closed the connection because other clients needed the memory.
                None => {
                    half.key.account.never_complete(half.version);
                    shared.counts.given_up.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        shared.counts.operations.fetch_add(1, Ordering::Relaxed);
        idle.push(half.key);
        // Most of the work should be left to the other clients.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Removes everything: immediately, with a delay, and by expiry.
pub fn flushes(shared: &Shared<'_>, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut conn = shared.server.connect();
    while !shared.is_over() {
        shared.flushing.fetch_add(1, Ordering::SeqCst);
        let which = random.random_range(0..3);
        if which == 1 {
            conn.ask(format!("flush_all {DELAY_SECS}\r\n").as_bytes(), b"OK\r\n");
        }
        // When the reply arrives, all versions that are acknowledged now have been removed.
        let acknowledged: Vec<u64> = shared.keys.iter().map(|key| key.account.acknowledged()).collect();
        match which {
            0 => conn.ask(b"flush_all\r\n", b"OK\r\n"),
            1 => conn.ask(format!("debugtime {DELAY_MOVE_SECS}\r\n").as_bytes(), b"OK\r\n"),
            _ => conn.ask(format!("debugtime {MOVE_SECS}\r\n").as_bytes(), b"OK\r\n"),
        }
        for (key, version) in shared.keys.iter().zip(acknowledged) {
            if which < 2 || key.group == Group::Mortal {
                key.account.gone(version);
                key.account.flushed();
            }
        }
        shared.flushing.fetch_add(1, Ordering::SeqCst);
        shared.counts.flushes.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(std::time::Duration::from_millis(random.random_range(1..60)));
    }
}
