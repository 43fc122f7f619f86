//! Clients of a pair, and what they must never see.
//!
//! Each object is a register that one writer fills with ascending numbers, acknowledged as *stored*
//! or *cached*; sometimes the writer flushes. Readers send requests to the host that leads, and to
//! each host separately. A number that is read
//!
//! - is not below one that was acknowledged as *stored* before the read was requested: nothing
//!   stored is lost or undone, and no host serves reads from a cache of an earlier leadership;
//! - is not below one that was acknowledged as *cached*, if the clients' connections are still the
//!   same: then no other cache has taken over;
//! - was written, and not refused.
//!
//! A client of a volume and one of objects over HTTP check the same for their own writes
//! (`others`).
//!
//! Of two hosts, only one answers at a time: if answers of both alternate, each change takes a new
//! leadership.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use blocker::{
    Blocker, BlockerExt, Durability, Error, FlushRequest, Name, Namespace, ObjectId, ReadRequest, Scope,
    WriteFullRequest,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use synapse::{Addresses, ClientConfig, SynapseBlocker};

use super::hosts::Ways;
use super::others;

/// The size of objects and of blocks of the volume.
pub(super) const BLOCK_BYTES: usize = 4096;
const REGISTERS: u64 = 6;
/// The pause between two reads of a particular host. The reads do not wait for each other, so some
/// are waiting in the socket when the host is stopped.
const READ_PAUSE: Duration = Duration::from_millis(25);
/// The maximum number of such reads without a reply.
const READS_MAX: u64 = 200;
/// The maximum duration of a call while hosts take over from each other.
const CALL_TIMEOUT: Duration = Duration::from_secs(90);

/// The load on a pair of hosts, and its observations.
pub(crate) struct Load {
    shared: Arc<Shared>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

pub(super) struct Shared {
    registers: Vec<Register>,
    /// The addresses of the hosts.
    hosts: [String; 2],
    /// The silence after which clients count a host as lost.
    limit: Duration,
    is_over: AtomicBool,
    faults: Mutex<Vec<String>>,
    /// The hosts' own replies: the host, and the times of request and reply.
    answers: Mutex<Vec<(usize, Instant, Instant)>>,
    pub(super) counts: Counts,
}

struct Register {
    id: ObjectId,
    /// The last number requested.
    requested: AtomicU64,
    /// The highest number known to be stored.
    stored: AtomicU64,
    /// The highest acknowledged number, and the client's number of connections before the request.
    acknowledged: Mutex<(u64, u64)>,
    /// Numbers whose writes were refused.
    refused: Mutex<HashSet<u64>>,
}

/// The numbers of outcomes.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) stored: AtomicU64,
    pub(crate) cached: AtomicU64,
    pub(crate) flushed: AtomicU64,
    pub(crate) writes_lost: AtomicU64,
    pub(crate) unknown: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) own_reads: AtomicU64,
    pub(crate) volume_flushed: AtomicU64,
    pub(crate) volume_reads: AtomicU64,
    pub(crate) http_stored: AtomicU64,
    pub(crate) http_refused: AtomicU64,
    pub(crate) http_reads: AtomicU64,
}

impl Counts {
    /// Returns the number of requests of the clients of objects that did not succeed, apart from
    /// flushes that report an earlier loss.
    pub(crate) fn failed(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed) + self.refused.load(Ordering::Relaxed)
    }

    /// Returns the numbers of promises to store something, for each kind of client.
    pub(crate) fn promises(&self) -> [u64; 3] {
        [&self.stored, &self.volume_flushed, &self.http_stored].map(|count| count.load(Ordering::Relaxed))
    }
}

fn lock<T>(data: &Mutex<T>) -> MutexGuard<'_, T> {
    data.lock().expect("no client panics")
}

pub(super) fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number that a block is filled with; `None` if there is no such number.
pub(super) fn number_in(block: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(*block.first_chunk()?);
    (block == number.to_le_bytes().repeat(BLOCK_BYTES / 8)).then_some(number)
}

fn config(addresses: &str, limit: Duration) -> ClientConfig {
    let mut config = ClientConfig::new(addresses.parse::<Addresses>().expect("addresses"));
    config.connect_timeout = limit;
    config.keep_alive = limit * 3 / 10;
    config.peer_timeout = limit;
    config.backoff_max = Duration::from_millis(100);
    config.reconnect_timeout = CALL_TIMEOUT;
    config.call_timeout = Some(CALL_TIMEOUT);
    config
}

impl Load {
    /// Starts the load on hosts with this lease, of which one leads.
    pub(crate) fn start(ways: Ways, lease: Duration, seed: u64) -> Self {
        let Ways { objects: hosts, http, volumes } = ways;
        let register = |number| Register {
            id: ObjectId::new(
                Namespace::new("pair").expect("a namespace"),
                Name::new(format!("register-{number}").into_bytes()).expect("a name"),
            ),
            requested: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            acknowledged: Mutex::default(),
            refused: Mutex::default(),
        };
        let shared = Arc::new(Shared {
            registers: (0..REGISTERS).map(register).collect(),
            hosts,
            limit: lease / 2,
            is_over: AtomicBool::new(false),
            faults: Mutex::default(),
            answers: Mutex::default(),
            counts: Counts::default(),
        });
        let [of_objects, of_volume, of_http] = [0; 3].map(|_| Arc::clone(&shared));
        let threads = vec![
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime").block_on(of_objects.run(seed));
            }),
            std::thread::spawn(move || others::use_volume(&of_volume, &volumes, seed)),
            std::thread::spawn(move || others::use_http(&of_http, &http, seed)),
        ];
        Self { shared, threads }
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.shared.counts
    }

    /// Asserts that clients have made no forbidden observation.
    ///
    /// # Panics
    /// Panics if a client has made one. The message lists the observations.
    #[track_caller]
    pub(crate) fn assert_safe(&self, context: &str) {
        let faults = lock(&self.shared.faults);
        assert!(faults.is_empty(), "{context}:\n{}", faults.join("\n"));
        assert!(!self.threads.iter().any(std::thread::JoinHandle::is_finished), "{context}: no load");
    }

    /// Returns how often the source of the replies has changed from one host to the other.
    pub(crate) fn changes(&self) -> u64 {
        changes(&mut lock(&self.shared.answers))
    }

    /// Ends the load.
    pub(crate) fn end(mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.join().expect("the load ends in order");
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
    }
}

/// Returns how often the source of the hosts' replies has changed from one host to the other. A
/// request made before the last reply of the other host proves nothing.
fn changes(answers: &mut [(usize, Instant, Instant)]) -> u64 {
    answers.sort_unstable_by_key(|(_, _, answered)| *answered);
    let (mut last, mut changes) = (None, 0);
    for (host, asked, answered) in answers.iter() {
        match last {
            Some((other, until)) if other != *host && *asked > until => {
                changes += 1;
                last = Some((*host, *answered));
            }
            Some((same, _)) if same == *host => last = Some((same, *answered)),
            Some(_) => {}
            None => last = Some((*host, *answered)),
        }
    }
    changes
}

impl Shared {
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    pub(super) fn fault(&self, text: String) {
        lock(&self.faults).push(text);
    }

    /// Connects a client; returns `None` if the load ends before.
    async fn connect(&self, config: ClientConfig) -> Option<SynapseBlocker> {
        loop {
            match SynapseBlocker::connect(config.clone()).await {
                Ok(client) => return Some(client),
                Err(_) if self.is_over() => return None,
                Err(_) => tokio::time::sleep(READ_PAUSE).await,
            }
        }
    }

    async fn run(self: Arc<Self>, seed: u64) {
        let Some(client) = self.connect(config(&self.hosts.join(","), self.limit)).await else { return };
        let mut tasks = Vec::new();
        for number in 0..self.registers.len() {
            let random = SmallRng::seed_from_u64(seed.wrapping_mul(1_000_003) ^ number as u64);
            tasks.push(tokio::spawn(Arc::clone(&self).write(number, client.clone(), random)));
        }
        for number in 0..2 {
            let random = SmallRng::seed_from_u64(seed ^ (77 + number));
            tasks.push(tokio::spawn(Arc::clone(&self).read(client.clone(), random)));
            tasks.push(tokio::spawn(Arc::clone(&self).read_of_host(number as usize)));
        }
        for task in tasks {
            task.await.expect("a client ends in order");
        }
    }

    /// Writes and flushes one register.
    async fn write(self: Arc<Self>, number: usize, client: SynapseBlocker, mut random: SmallRng) {
        let register = &self.registers[number];
        let mut is_created = false;
        while !self.is_over() {
            if is_created && random.random_range(0..8) == 0 {
                self.flush(register, &client, &mut random).await;
                continue;
            }
            let value = register.requested.fetch_add(1, Ordering::SeqCst) + 1;
            let is_stored = !is_created || random.random_range(0..3) == 0;
            let durability = if is_stored { Durability::Stored } else { Durability::Cached };
            let data = value.to_le_bytes().repeat(BLOCK_BYTES / 8);
            let request = WriteFullRequest::new(register.id.clone(), data).durability(durability);
            let connections = client.counters().connects;
            let begun = Instant::now();
            match client.write_full(request).await {
                Ok(reply) if reply.durability >= Durability::Stored => {
                    is_created = true;
                    *lock(&register.acknowledged) = (value, connections);
                    register.stored.fetch_max(value, Ordering::SeqCst);
                    add(&self.counts.stored);
                }
                Ok(_) if is_stored => self.fault(format!("{}: {value} is not stored", register.id)),
                Ok(_) => {
                    *lock(&register.acknowledged) = (value, connections);
                    add(&self.counts.cached);
                }
                Err(error) if begun.elapsed() >= CALL_TIMEOUT => {
                    return self.fault(format!(
                        "{}: {value} waits for {:?}: {error}",
                        register.id,
                        begun.elapsed()
                    ));
                }
                Err(Error::OutcomeUnknown(_) | Error::NotStored(_)) => add(&self.counts.unknown),
                Err(Error::Retryable(_) | Error::DeadlinePassed | Error::OutOfSpace(_)) => {
                    lock(&register.refused).insert(value);
                    add(&self.counts.refused);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(error) => {
                    self.fault(format!("{}: the write of {value} has failed: {error}", register.id));
                }
            }
            tokio::time::sleep(Duration::from_millis(random.random_range(0..6))).await;
        }
    }

    async fn flush(&self, register: &Register, client: &SynapseBlocker, random: &mut SmallRng) {
        let scope = match random.random_range(0..2) {
            0 => Scope::Object(register.id.clone()),
            _ => Scope::Namespace(register.id.namespace.clone()),
        };
        // Only this task writes to the register.
        let (value, _) = *lock(&register.acknowledged);
        match client.flush(FlushRequest::new(scope)).await {
            Ok(reply) if reply.durability >= Durability::Stored => {
                register.stored.fetch_max(value, Ordering::SeqCst);
                add(&self.counts.flushed);
            }
            Ok(reply) => self.fault(format!("a flush reaches only {}", reply.durability)),
            Err(Error::WritesLost(_)) => add(&self.counts.writes_lost),
            Err(Error::Retryable(_) | Error::NotStored(_) | Error::DeadlinePassed | Error::OutOfSpace(_)) => {
                add(&self.counts.refused);
            }
            Err(error) => self.fault(format!("{}: a flush has failed: {error}", register.id)),
        }
    }

    /// Reads registers of the host that leads.
    async fn read(self: Arc<Self>, client: SynapseBlocker, mut random: SmallRng) {
        while !self.is_over() {
            let register = &self.registers[random.random_range(0..self.registers.len())];
            let (acknowledged, connections) = *lock(&register.acknowledged);
            let value = self.read_once(register, &client, "the pair").await;
            let is_same = client.counters().connects == connections;
            if let Some(value) = value.filter(|_| is_same)
                && value < acknowledged
            {
                self.fault(format!("{}: {value} is read after {acknowledged} was cached", register.id));
            }
            add(&self.counts.reads);
            tokio::time::sleep(Duration::from_millis(random.random_range(0..4))).await;
        }
    }

    /// Reads registers of one host, whether or not it leads.
    async fn read_of_host(self: Arc<Self>, host: usize) {
        let address = self.hosts[host].clone();
        let mut config = config(&address, self.limit);
        // Requests to a stopped host wait until it continues.
        (config.keep_alive, config.peer_timeout) = (CALL_TIMEOUT, 2 * CALL_TIMEOUT);
        (config.connect_timeout, config.reconnect_timeout) = (CALL_TIMEOUT, Duration::from_millis(50));
        let Some(client) = self.connect(config).await else { return };
        let in_flight = Arc::new(AtomicU64::new(0));
        let mut number = 0;
        while !self.is_over() {
            tokio::time::sleep(READ_PAUSE).await;
            if in_flight.load(Ordering::SeqCst) >= READS_MAX {
                continue;
            }
            number += 1;
            in_flight.fetch_add(1, Ordering::SeqCst);
            let (this, client, in_flight) = (Arc::clone(&self), client.clone(), Arc::clone(&in_flight));
            tokio::spawn(async move {
                let register = &this.registers[number % this.registers.len()];
                let asked = Instant::now();
                if this.read_once(register, &client, &this.hosts[host]).await.is_some() {
                    lock(&this.answers).push((host, asked, Instant::now()));
                    add(&this.counts.own_reads);
                }
                in_flight.fetch_sub(1, Ordering::SeqCst);
            });
        }
    }

    /// Reads a register and checks its value; returns `None` if there is no reply.
    async fn read_once(&self, register: &Register, client: &SynapseBlocker, of: &str) -> Option<u64> {
        let stored = register.stored.load(Ordering::SeqCst);
        let id = &register.id;
        let data = match client.read(ReadRequest::new(id.clone(), 0, 2 * BLOCK_BYTES as u64)).await {
            Ok(reply) => reply.data.to_vec(),
            Err(Error::Missing) if stored == 0 => return None,
            Err(Error::Retryable(_) | Error::DeadlinePassed) => return None,
            Err(error) => {
                self.fault(format!("{id} of {of}: a read has failed: {error}"));
                return None;
            }
        };
        let requested = register.requested.load(Ordering::SeqCst);
        let Some(value) = number_in(&data) else {
            self.fault(format!("{id} of {of}: torn, {} bytes", data.len()));
            return None;
        };
        if value < stored {
            self.fault(format!("{id} of {of}: {value} is read after {stored} was stored"));
        } else if value > requested {
            self.fault(format!("{id} of {of}: {value} is read, and {requested} was the last one written"));
        } else if lock(&register.refused).contains(&value) {
            self.fault(format!("{id} of {of}: {value} is read, whose write was refused"));
        }
        Some(value)
    }
}

#[test]
fn answers_of_two_hosts_at_a_time_are_noticed() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let answer = |host, asked, answered| (host, at(asked), at(answered));
    // The first history has one takeover: the old leader answered late a request that began before
    // the takeover.
    assert_eq!(changes(&mut [answer(0, 0, 1), answer(0, 2, 9), answer(1, 5, 6), answer(1, 10, 11)]), 1);
    assert_eq!(changes(&mut [answer(0, 0, 1), answer(1, 2, 3), answer(0, 4, 5), answer(1, 6, 7)]), 3);
}
