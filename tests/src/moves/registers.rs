//! Registers: keys that one client each changes, and that all clients read at all nodes.
//!
//! A change has a number, which its value contains. A number that is read
//!
//! - is not below one that was acknowledged, read or flushed before the read was requested;
//! - was written, with exactly these bytes, flags and time to live.
//!
//! While [`is_strict`](Registers::be_strict), every request must succeed, a key whose last change was
//! acknowledged must be found until it is removed or flushed, and it keeps its CAS value.

use rand::Rng;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The beginning of the keys that [`flush_prefix`](Registers::flush) removes.
pub const PREFIX: &str = "flushed/";
/// The maximum number of reported problems.
const LINES_MAX: usize = 40;
/// The client flags of a change are its number; the time to live of every third one is this, in
/// seconds.
const TTL_SECS: u32 = 50_000;

/// Keys, what is known of them, and the nodes where they are found.
#[derive(Debug)]
pub struct Registers {
    pub(super) all: Vec<Register>,
    /// Where clients reach the nodes that run.
    addresses: Vec<Mutex<Option<SocketAddr>>>,
    /// For keys without and with the prefix: the number of begun and of ended flushes.
    flushes: [AtomicU64; 2],
    /// Held during a flush: the numbers tell whether one is under way.
    flushing: Mutex<()>,
    is_strict: AtomicBool,
    is_patient: AtomicBool,
    pub(super) is_over: AtomicBool,
    /// The numbers of outcomes.
    pub counts: Counts,
    /// The replies that were errors, and how often each came.
    errors: Mutex<BTreeMap<String, u64>>,
    lines: Mutex<Vec<String>>,
}

/// The numbers of outcomes.
#[derive(Debug, Default)]
pub struct Counts {
    /// Changes that were acknowledged.
    pub changes: AtomicU64,
    /// Keys that were found.
    pub hits: AtomicU64,
    /// Keys that were not found.
    pub misses: AtomicU64,
    /// Keys that were not found although they had been stored, and nothing had removed them since.
    pub lost: AtomicU64,
    /// Requests without a reply, or with an error.
    pub failed: AtomicU64,
}

/// A key and its last change.
#[derive(Debug)]
pub(super) struct Register {
    pub(super) key: String,
    pub(super) is_flushed: bool,
    /// The sizes of its values, in bytes.
    sizes: std::ops::Range<usize>,
    /// The number of the last change that was requested.
    pub(super) sent: AtomicU64,
    /// The number of the last change that was acknowledged.
    known: AtomicU64,
    /// The lowest number that a read may find from now on.
    pub(super) floor: AtomicU64,
    /// Twice the number of the last change, and 1 more if it has stored a value; 0 while a change is
    /// under way, and after one whose outcome is unknown.
    state: AtomicU64,
    /// The number of flushes before the last change.
    since: AtomicU64,
    /// The CAS value of the last change; 0 if it is not known.
    cas: AtomicU64,
}

/// What was known of a key when a read was requested.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    floor: u64,
    state: u64,
    since: u64,
    cas: u64,
}

/// What a reply says of a key.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) value: Vec<u8>,
    pub(super) flags: u32,
    pub(super) cas: Option<u64>,
    /// The time to live, -1 if there is none.
    pub(super) ttl: Option<i64>,
}

/// A change under way.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) number: u64,
    pub(super) since: u64,
}

fn lock<T>(data: &Mutex<T>) -> MutexGuard<'_, T> {
    data.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registers {
    /// Returns `count` keys, for `nodes` nodes. Every 50th has values of up to `large` bytes.
    #[must_use]
    pub fn new(count: usize, nodes: usize, large: usize) -> Registers {
        let register = |number: usize| {
            let is_flushed = number.is_multiple_of(2);
            let sizes = match number % 50 {
                7 => 65_000..large.max(65_001),
                n if n % 10 == 3 => 1_000..9_000,
                _ => 40..200,
            };
            Register {
                key: format!("{}{number}", if is_flushed { PREFIX } else { "kept/" }),
                is_flushed,
                sizes,
                sent: AtomicU64::new(0),
                known: AtomicU64::new(0),
                floor: AtomicU64::new(0),
                state: AtomicU64::new(0),
                since: AtomicU64::new(0),
                cas: AtomicU64::new(0),
            }
        };
        Registers {
            all: (0..count).map(register).collect(),
            addresses: (0..nodes).map(|_| Mutex::default()).collect(),
            flushes: Default::default(),
            flushing: Mutex::default(),
            is_strict: AtomicBool::new(true),
            is_patient: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            counts: Counts::default(),
            errors: Mutex::default(),
            lines: Mutex::default(),
        }
    }

    /// Returns the number of nodes, some of which may not run.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.addresses.len()
    }

    /// Returns where clients reach a node; `None` while it does not run.
    #[must_use]
    pub fn address(&self, node: usize) -> Option<SocketAddr> {
        *lock(&self.addresses[node])
    }

    /// Tells clients where they reach a node, or that it does not run. Returns what they knew.
    pub fn tell(&self, node: usize, address: Option<SocketAddr>) -> Option<SocketAddr> {
        std::mem::replace(&mut lock(&self.addresses[node]), address)
    }

    /// Sets whether a miss of a stored key and a failed request are problems. From then on, what was
    /// stored before is no longer expected to be there.
    pub fn be_strict(&self, is_strict: bool) {
        self.is_strict.store(is_strict, Ordering::SeqCst);
        for register in &self.all {
            register.state.store(0, Ordering::SeqCst);
            // A node that has lost its items begins with low CAS values again.
            register.cas.store(0, Ordering::SeqCst);
        }
    }

    /// Sets whether a key is not changed while the outcome of its last change is unknown, so that this change
    /// may be executed late.
    pub fn be_patient(&self, is_patient: bool) {
        self.is_patient.store(is_patient, Ordering::SeqCst);
    }

    /// Returns whether a key may be changed now.
    pub(super) fn may_change(&self, register: &Register) -> bool {
        !self.is_patient.load(Ordering::SeqCst)
            || register.sent.load(Ordering::SeqCst) == register.known.load(Ordering::SeqCst)
    }

    pub(super) fn is_strict(&self) -> bool {
        self.is_strict.load(Ordering::SeqCst)
    }

    /// Returns the problems.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        lock(&self.lines).clone()
    }

    /// Returns the errors that clients have got, and where keys were missing, and how often.
    #[must_use]
    pub fn errors(&self) -> BTreeMap<String, u64> {
        lock(&self.errors).clone()
    }

    /// Fails if there is a problem.
    ///
    /// # Panics
    /// Panics with the problems and all errors.
    pub fn assert_right(&self, context: &str) {
        let lines = self.lines();
        assert!(lines.is_empty(), "{context}:\n  {}\nerrors: {:#?}", lines.join("\n  "), self.errors());
    }

    pub(super) fn problem(&self, line: String) {
        let mut lines = lock(&self.lines);
        if lines.len() < LINES_MAX {
            lines.push(line);
        }
    }

    /// Counts a request without success.
    pub(super) fn failed(&self, what: &str, why: &str) {
        self.counts.failed.fetch_add(1, Ordering::Relaxed);
        *lock(&self.errors).entry(why.to_owned()).or_default() += 1;
        if self.is_strict() {
            self.problem(format!("{what}: {why}"));
        }
    }

    /// Returns the number of flushes of a key that have begun and ended.
    pub(super) fn flush_number(&self, register: &Register) -> u64 {
        self.flushes[usize::from(register.is_flushed)].load(Ordering::SeqCst)
    }

    /// Begins a change of a key, which only one client may do.
    pub(super) fn begin(&self, register: &Register) -> Change {
        register.state.store(0, Ordering::SeqCst);
        let number = register.sent.fetch_add(1, Ordering::SeqCst) + 1;
        Change { number, since: self.flush_number(register) }
    }

    /// Records that a change was acknowledged.
    pub(super) fn acknowledged(&self, register: &Register, change: &Change, is_stored: bool, cas: u64) {
        register.known.store(change.number, Ordering::SeqCst);
        register.floor.fetch_max(change.number, Ordering::SeqCst);
        let before = register.cas.swap(cas, Ordering::SeqCst);
        if self.is_strict() && cas != 0 && cas == before {
            self.problem(format!("{}: two changes have the CAS value {cas}", register.key));
        }
        register.since.store(change.since, Ordering::SeqCst);
        let state = change.number << 1 | u64::from(is_stored);
        register.state.store(state, Ordering::SeqCst);
        self.counts.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns what is known of a key before a read.
    pub(super) fn before(register: &Register) -> Before {
        Before {
            state: register.state.load(Ordering::SeqCst),
            floor: register.floor.load(Ordering::SeqCst),
            since: register.since.load(Ordering::SeqCst),
            cas: register.cas.load(Ordering::SeqCst),
        }
    }

    /// Judges what a read has found.
    pub(super) fn judge(&self, register: &Register, before: Before, found: Option<&Found>, how: &str) {
        let key = &register.key;
        let is_unchanged = || {
            before.state == register.state.load(Ordering::SeqCst)
                && before.since == self.flush_number(register)
                && before.since.is_multiple_of(2)
        };
        let Some(found) = found else {
            self.counts.misses.fetch_add(1, Ordering::Relaxed);
            if before.state & 1 == 1 && is_unchanged() {
                self.counts.lost.fetch_add(1, Ordering::Relaxed);
                *lock(&self.errors).entry(format!("{how}: a key that was stored is missing")).or_default() +=
                    1;
                if self.is_strict() {
                    self.problem(format!("{how}: {key} is not found, after change {}", before.state >> 1));
                }
            }
            return;
        };
        self.counts.hits.fetch_add(1, Ordering::Relaxed);
        let text = String::from_utf8_lossy(&found.value);
        let mut words = text.split(' ');
        let (name, number) = (words.next(), words.next().and_then(|word| word.parse::<u64>().ok()));
        let Some(number) = number.filter(|_| name == Some(key)) else {
            return self.problem(format!("{how}: {key} has a foreign value: {:.60}", text));
        };
        if number < before.floor {
            self.problem(format!("{how}: {key} has change {number}, which is older than {}", before.floor));
        }
        let sent = register.sent.load(Ordering::SeqCst);
        if number > sent || *found.value != *register.value(number) {
            let bytes = found.value.len();
            self.problem(format!(
                "{how}: {key} has another value of change {number}, {bytes} bytes; {sent} sent"
            ));
        }
        if found.flags != number as u32 {
            self.problem(format!("{how}: {key} has flags {} after change {number}", found.flags));
        }
        let is_right = |ttl: i64| match ttl_of(number) {
            0 => ttl == -1,
            secs => (i64::from(secs) - 3_600..=i64::from(secs)).contains(&ttl),
        };
        if found.ttl.is_some_and(|ttl| !is_right(ttl)) {
            self.problem(format!("{how}: {key} has time to live {:?} after change {number}", found.ttl));
        }
        if let Some(cas) = found.cas
            && before.cas != 0
            && before.state == number << 1 | 1
            && is_unchanged()
            && self.is_strict()
            && cas != before.cas
        {
            self.problem(format!("{how}: {key} has CAS {cas} after change {number} with {}", before.cas));
        }
        register.floor.fetch_max(number.min(sent), Ordering::SeqCst);
    }

    /// Returns the CAS value of the last change, if it is known and has stored a value that is still
    /// there.
    pub(super) fn known_cas(&self, register: &Register) -> Option<u64> {
        let before = Registers::before(register);
        let is_there = before.state & 1 == 1 && before.since == self.flush_number(register);
        (self.is_strict() && is_there && before.since.is_multiple_of(2) && before.cas != 0)
            .then_some(before.cas)
    }

    /// Calls `flush`, which removes the keys with the prefix, or `all`, and returns whether this was
    /// acknowledged. Afterwards nothing from before may be found.
    pub fn flush(&self, all: bool, flush: impl FnOnce() -> bool) {
        let _one = lock(&self.flushing);
        let of = |register: &&Register| all || register.is_flushed;
        // After an earlier flush, the floor is already above all changes.
        let last = |register: &Register| {
            register.floor.load(Ordering::SeqCst).min(register.sent.load(Ordering::SeqCst))
        };
        let floors: Vec<u64> = self.all.iter().filter(of).map(last).collect();
        let numbers = if all { &self.flushes[..] } else { &self.flushes[1..] };
        let count = || {
            for number in numbers {
                number.fetch_add(1, Ordering::SeqCst);
            }
        };
        count();
        let is_flushed = flush();
        if is_flushed {
            for (register, floor) in self.all.iter().filter(of).zip(floors) {
                register.floor.fetch_max(floor + 1, Ordering::SeqCst);
            }
        }
        count();
    }

    /// Waits until `count` more changes were acknowledged.
    ///
    /// # Panics
    /// Panics if there is a problem, or the changes are not acknowledged in time.
    pub fn more(&self, count: u64, context: &str) {
        let changes = || self.counts.changes.load(Ordering::Relaxed);
        let until = changes() + count;
        crate::daemon::wait_for(context, || {
            self.assert_right(context);
            (changes() >= until).then_some(())
        });
    }
}

fn ttl_of(number: u64) -> u32 {
    if number.is_multiple_of(3) { TTL_SECS } else { 0 }
}

impl Register {
    /// Returns the value of a change.
    pub(super) fn value(&self, number: u64) -> Vec<u8> {
        let mut value = format!("{} {number} ", self.key).into_bytes();
        let range = (self.sizes.end - self.sizes.start) as u64;
        let bytes = self.sizes.start + (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % range) as usize;
        let mixed = number as usize;
        value.extend((value.len()..bytes).map(|at| b'a' + ((at / 7 + mixed) % 26) as u8));
        value
    }

    /// Returns the client flags and the time to live of a change.
    pub(super) fn attributes(number: u64) -> (u32, u32) {
        (number as u32, ttl_of(number))
    }
}

/// The times that requests took, in microseconds.
#[derive(Debug, Default)]
pub struct Times(Vec<u32>);

impl Times {
    pub(super) fn add(&mut self, time: Duration) {
        self.0.push(u32::try_from(time.as_micros()).unwrap_or(u32::MAX));
    }

    pub(super) fn extend(&mut self, other: Times) {
        self.0.extend(other.0);
    }

    /// Returns the number of requests.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the time that a share of the requests did not exceed, in microseconds; `share` is in
    /// thousandths.
    pub fn at(&mut self, share: usize) -> u32 {
        self.0.sort_unstable();
        self.0.get(self.0.len() * share / 1_000).or(self.0.last()).copied().unwrap_or(0)
    }
}

/// Returns a random register.
pub(super) fn any<'a>(registers: &'a Registers, random: &mut impl Rng) -> &'a Register {
    &registers.all[random.random_range(0..registers.all.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(register: &Register, number: u64) -> Found {
        let (flags, _) = Register::attributes(number);
        Found { value: register.value(number), flags, cas: Some(number), ttl: None }
    }

    /// Returns the problems that a run has shown since the last call.
    fn problems(registers: &Registers) -> usize {
        std::mem::take(&mut *lock(&registers.lines)).len()
    }

    #[test]
    fn what_a_read_may_find() {
        let registers = Registers::new(2, 1, 0);
        let [flushed, kept] = [&registers.all[0], &registers.all[1]];
        let read = |register: &Register, found: Option<Found>| {
            registers.judge(register, Registers::before(register), found.as_ref(), "read");
            problems(&registers)
        };
        for register in [flushed, kept] {
            assert_eq!(read(register, None), 0, "nothing was stored");
            let first = registers.begin(register);
            assert_eq!(read(register, None), 0, "the change is under way");
            registers.acknowledged(register, &first, true, 1);
            assert_eq!((read(register, None), read(register, Some(found(register, 1)))), (1, 0));
            assert_eq!(read(register, Some(found(register, 2))), 1, "it was not written");
            assert_eq!(read(register, Some(Found { cas: Some(2), ..found(register, 1) })), 1);
            assert_eq!(read(register, Some(Found { flags: 2, ..found(register, 1) })), 1);
            assert_eq!(read(register, Some(Found { ttl: Some(9), ..found(register, 1) })), 1);
            assert_eq!(read(register, Some(Found { value: b"torn".to_vec(), ..found(register, 1) })), 1);
            // A change without an acknowledgement may or may not be seen; once seen, it stays.
            registers.begin(register);
            assert_eq!(read(register, Some(found(register, 1))), 0);
            assert_eq!(read(register, Some(found(register, 2))), 0);
            assert_eq!(read(register, Some(found(register, 1))), 1, "older than what was read");
        }
        registers.flush(false, || true);
        assert_eq!((read(flushed, Some(found(flushed, 2))), read(kept, Some(found(kept, 2)))), (1, 0));
        let third = registers.begin(kept);
        registers.acknowledged(kept, &third, true, 0);
        registers.flush(true, || false);
        assert_eq!((read(kept, None), read(kept, Some(found(kept, 3)))), (0, 0), "perhaps flushed");
        let removed = registers.begin(kept);
        registers.acknowledged(kept, &removed, false, 0);
        assert_eq!((read(kept, None), read(kept, Some(found(kept, 3)))), (0, 1));
        // Without strictness a miss is no problem, and what is older still is.
        let last = registers.begin(kept);
        registers.acknowledged(kept, &last, true, 7);
        registers.be_strict(false);
        registers.failed("set", "SERVER_ERROR");
        assert_eq!((read(kept, None), read(kept, Some(found(kept, 3)))), (0, 1));
    }
}
