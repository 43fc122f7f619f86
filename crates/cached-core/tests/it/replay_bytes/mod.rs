//! Arbitrary bytes as damage to a journal that is replayed through a cache over a store in memory,
//! for the fuzz target and for the test that replays its corpus.
//!
//! The first byte chooses. If it is even, the rest are edits of a genuine journal's files. Then
//! each object either has a content that it had before, the contents of all being from the same
//! moment, or fails because of the damage. If it is odd, the rest are edits of genuine records,
//! which are appended to a new journal so that all checksums match; the records are refused or
//! applied. No outcome may be a panic, a hang, or an inconsistent cache.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use blocker::*;
use cached_core::object::{JournalOptions, ObjectCache, ObjectCacheConfig, OpenJournal, Writer};
use cached_journal::disk::Disk;
use cached_journal::disk::simulated::SimulatedDisk;
use cached_journal::{Environment, Head, Journal, JournalConfig, Kind, Object, Position, Record};
use test_kit::sim::{Sim, forget};
use test_kit::{BUCKET, KIB, id, pattern};

const SEGMENT_BYTES: u64 = 64 * KIB;
const OBJECTS: usize = 4;
const OBJECT_BYTES: u64 = 4 * BUCKET;
const DIRTY_BYTES_MAX: u64 = 128 * KIB;
/// The maximum number of edits and records in one input; more would only take time.
const EDITS_MAX: usize = 64;
const RECORDS_MAX: usize = 40;
const NUMBERS: [u64; 14] =
    [0, 1, 2, 3, 511, 512, 4096, 16_383, 16_384, 16_385, 1 << 40, 1 << 63, u64::MAX - 1, u64::MAX];

type Content = Option<Vec<u8>>;

/// A journal in the state that a crash leaves.
struct Genuine {
    files: Vec<(String, Vec<u8>)>,
    records: Vec<(Head<'static>, Vec<u8>)>,
    /// The contents of all objects after each change.
    moments: Vec<Vec<Content>>,
}

fn config() -> JournalConfig {
    let limit_bytes = 8 * SEGMENT_BYTES;
    JournalConfig { segment_bytes: SEGMENT_BYTES, limit_bytes, ..JournalConfig::new("simulated") }
}

fn environment(disk: &SimulatedDisk) -> Environment {
    Environment { clock: Arc::<cached_journal::ManualClock>::default(), ..Environment::new(disk.clone()) }
}

struct Process {
    sim: Sim,
    cache: ObjectCache,
    journal: Arc<Journal>,
}

impl Process {
    /// Starts a cache over an empty store; `None` if the journal is refused.
    fn start(disk: &SimulatedDisk, seed: u64) -> Option<Self> {
        let mut sim = Sim::new(None);
        let open = OpenJournal::open_stepped(&config(), environment(disk)).ok()?;
        let journal = open.journal();
        let config = ObjectCacheConfig {
            memory_bytes_max: 256 * BUCKET,
            object_bytes_max: OBJECT_BYTES,
            dirty_bytes_max: DIRTY_BYTES_MAX,
            dirty_age_max: Duration::from_secs(36_000),
            write: WriteMode::Back,
            writer: Writer::Cache,
            hash_seed: Some(seed),
            ..ObjectCacheConfig::default()
        };
        let store = Arc::new(test_kit::memory(&ManualClock::new()));
        let options = JournalOptions { journaled_bytes_max: 16 * KIB, ..JournalOptions::default() };
        let builder = ObjectCache::builder(store).config(config).clock(Arc::new(sim.clock.clone()));
        let (cache, background) = builder.journal(open, options).build().expect("the configuration works");
        forget(sim.spawn(background));
        while journal.step_prepare() {}
        Some(Self { sim, cache, journal })
    }

    fn run<T: 'static>(&mut self, work: impl Future<Output = T> + 'static) -> T {
        let handle = self.sim.spawn(work);
        for _ in 0..100_000 {
            self.sim.run_until_idle();
            if let Some(answer) = handle.take() {
                return answer;
            }
            let has_moved = self.journal.step_commit() | self.journal.step_prepare();
            assert!(has_moved || !self.sim.is_idle() || self.sim.skip(), "a hang");
        }
        panic!("no answer");
    }

    /// Starts the recovery. Returns whether the journal is accepted.
    fn begin(&mut self) -> bool {
        let cache = self.cache.clone();
        self.run(async move { cache.begin_recovery().await }).is_ok()
    }

    fn read(&mut self, object: usize) -> Result<Content> {
        let cache = self.cache.clone();
        match self.run(async move { cache.read(ReadRequest::new(name(object), 0, OBJECT_BYTES)).await }) {
            Ok(reply) => Ok(Some(reply.data.to_vec())),
            Err(Error::Missing) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Completes the recovery, and checks the cache.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            self.sim.run_until_idle();
            let dirty_bytes = self.cache.counters().dirty_bytes;
            assert!(dirty_bytes <= DIRTY_BYTES_MAX + OBJECT_BYTES, "{dirty_bytes} are dirty");
            if self.cache.recovery().is_done {
                self.cache.validate().expect("a cache in order");
                return;
            }
            if !self.journal.step_commit() {
                self.sim.skip();
            }
        }
        panic!("the recovery does not end: {:?}", self.cache.recovery());
    }
}

fn name(object: usize) -> ObjectId {
    id(&format!("o{object}"))
}

/// Makes several changes of each kind, and crashes.
fn make_genuine() -> Genuine {
    let disk = SimulatedDisk::new();
    let mut process = Process::start(&disk, 1).expect("a new journal");
    assert!(process.begin());
    let mut moments = vec![vec![None; OBJECTS]];
    for number in 0..36_u64 {
        let target = name(number as usize % OBJECTS);
        let bytes = move |len| pattern(number, 0, len);
        let (cache, journaled) = (process.cache.clone(), Durability::Journaled);
        let is_domain = number % 5 == 0;
        process.run(async move {
            let target = target.clone();
            let answer = match number / OBJECTS as u64 % 9 {
                0 => cache.write_full(WriteFullRequest::new(target, bytes(5000)).durability(journaled)).await,
                1 => {
                    let request = WriteRequest::new(target, 700, bytes(3000)).durability(journaled);
                    let domain = OrderDomain(number);
                    cache.write(if is_domain { request.domain(domain) } else { request }).await
                }
                2 => {
                    let runs =
                        vec![Run::data(512, bytes(600)), Run::zeroes(4096, 100), Run::data(9000, bytes(40))];
                    cache.write_runs(WriteRunsRequest::new(target, runs).durability(journaled)).await
                }
                3 => {
                    cache.write_zeroes(WriteZeroesRequest::new(target, 100, 5000).durability(journaled)).await
                }
                4 => cache.discard(DiscardRequest::new(target, 512, 1024).durability(journaled)).await,
                5 => cache.truncate(TruncateRequest::new(target, 4000 + number).durability(journaled)).await,
                6 if number % 2 == 0 => {
                    cache
                        .copy(
                            CopyRequest::new(name((number as usize + 1) % OBJECTS), target)
                                .durability(journaled),
                        )
                        .await
                }
                6 => {
                    let removed = cache.delete(DeleteRequest::new(target).durability(journaled)).await;
                    removed.expect("a removal");
                    return;
                }
                _ => cache.write(WriteRequest::new(target, number, bytes(50)).durability(journaled)).await,
            };
            answer.expect("a change");
        });
        moments.push((0..OBJECTS).map(|object| process.read(object).expect("a read")).collect());
    }
    drop(process);
    disk.kill_process();
    let names = disk.names().expect("names");
    let files = names.into_iter().map(|name| (name.clone(), disk.content(&name).expect("a file"))).collect();
    let (_journal, replay) = Journal::open_stepped(&config(), environment(&disk)).expect("a genuine journal");
    let record =
        |record: cached_journal::Recovered| (record.head.clone(), record.payload().expect("a payload"));
    let records = replay.all_records().map(|each| record(each.expect("a record"))).collect();
    Genuine { files, records, moments }
}

/// The input bytes, followed by zeros.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes([self.u8(), self.u8(), self.u8(), self.u8()])
    }

    /// Returns a number, usually a boundary value.
    fn number(&mut self) -> u64 {
        match usize::from(self.u8()) {
            choice if choice < 2 * NUMBERS.len() => NUMBERS[choice / 2],
            choice => u64::from(self.u32()) << (choice % 33),
        }
    }

    fn index(&mut self, len: usize) -> usize {
        self.u32() as usize % len.max(1)
    }
}

/// Runs one input, see the module.
pub(crate) fn run(data: &[u8]) {
    static GENUINE: OnceLock<Genuine> = OnceLock::new();
    let genuine = GENUINE.get_or_init(make_genuine);
    let Some((choice, rest)) = data.split_first() else { return };
    match choice % 2 {
        0 => edited_files(genuine, Input(rest)),
        _ => edited_records(genuine, Input(rest)),
    }
}

fn edited_files(genuine: &Genuine, mut input: Input<'_>) {
    let disk = SimulatedDisk::new();
    let mut files = genuine.files.clone();
    for _ in 0..EDITS_MAX {
        if input.0.is_empty() {
            break;
        }
        let kind = input.u8();
        let file = input.index(files.len());
        let (bytes, at) = {
            let bytes = &mut files[file].1;
            let at = input.index(bytes.len());
            (bytes, at)
        };
        match kind % 8 {
            // The edit copies a sector to another place in this file or another one, writes zeros,
            // or changes a length.
            5 => {
                let (from, from_at) = (input.index(genuine.files.len()), input.index(SEGMENT_BYTES as usize));
                let (to, from_at) = (at / 512 * 512, from_at / 512 * 512);
                let from = genuine.files[from].1.get(from_at..).unwrap_or_default();
                let len = from.len().min(bytes.len() - to).min(512);
                bytes[to..to + len].copy_from_slice(&from[..len]);
            }
            6 => {
                let (to, end) = (at / 512 * 512, bytes.len());
                bytes[to..end.min(to + 512 * usize::from(1 + kind / 8))].fill(0);
            }
            7 if kind > 200 => bytes.truncate(at),
            _ if bytes.is_empty() => {}
            _ => bytes[at] ^= input.u8(),
        }
    }
    for (name, bytes) in &files {
        disk.set_content(name, bytes);
    }
    let Some(mut process) = Process::start(&disk, 2) else { return };
    if !process.begin() {
        return;
    }
    let found: Vec<_> = (0..OBJECTS).map(|object| process.read(object)).collect();
    process.settle();
    let is_as_of = |moment: &&Vec<Content>| {
        moment.iter().zip(&found).all(|(content, found)| match found {
            Ok(found) => found == content,
            Err(Error::Corrupt(_)) => true,
            Err(error) => panic!("{error}"),
        })
    };
    if genuine.moments.iter().rev().find(is_as_of).is_none() {
        let lens: Vec<_> = found.iter().map(|it| it.as_ref().map(|it| it.as_ref().map(Vec::len))).collect();
        panic!("a content that was never there: {lens:?}");
    }
    for (object, before) in found.iter().enumerate() {
        assert_eq!(process.read(object).ok(), before.as_ref().ok().cloned(), "object {object} has changed");
    }
}

fn edited_records(genuine: &Genuine, mut input: Input<'_>) {
    let disk = SimulatedDisk::new();
    let (journal, _) = Journal::open_stepped(&config(), environment(&disk)).expect("a new journal");
    let mut holds = Vec::new();
    for _ in 0..RECORDS_MAX {
        if input.0.is_empty() {
            break;
        }
        let (mut head, mut payload) = genuine.records[input.index(genuine.records.len())].clone();
        for _ in 0..input.u8() % 5 {
            edit(&mut head, &mut payload, &mut input);
        }
        if let Ok(appended) = journal.append(&Record { head, payload: &[&payload] }) {
            holds.push(appended.hold);
        }
        if input.u8().is_multiple_of(4) {
            journal.step_commit();
        }
    }
    while journal.step_commit() {}
    disk.kill_process();
    drop((holds, journal));
    // The journal must be able to read its own records.
    let mut process = Process::start(&disk, 2).expect("an intact journal");
    if !process.begin() {
        return;
    }
    let first = input.index(OBJECTS);
    // An object that cannot be recovered fails; its expected content is not known here.
    let _ = process.read(first);
    process.settle();
    let cache = process.cache.clone();
    let _ = process.run(async move { cache.flush(FlushRequest::new(Scope::All)).await });
    process.cache.validate().expect("a cache in order");
    for object in 0..OBJECTS {
        if let Ok(Some(bytes)) = process.read(object) {
            assert!(bytes.len() as u64 <= OBJECT_BYTES);
        }
    }
}

fn edit(head: &mut Head<'static>, payload: &mut Vec<u8>, input: &mut Input<'_>) {
    match input.u8() % 16 {
        0 => head.kind = Kind(input.u8() % 12),
        1 => {
            let position = Position(input.number());
            let scopes = [
                cached_journal::Scope::Object,
                cached_journal::Scope::Domain,
                cached_journal::Scope::Namespace,
                cached_journal::Scope::All,
            ];
            let scope = scopes[input.index(scopes.len())];
            *head = Head {
                object: head.object.clone(),
                namespace: head.namespace,
                ..Head::mark(scope, position)
            };
            payload.clear();
        }
        2 => head.namespace = input.number(),
        3 => head.domain = input.number(),
        4 => head.offset = input.number(),
        5 => head.len = input.number(),
        6 => head.sequence = input.number(),
        7 => head.epoch = input.number(),
        8 => head.generation = input.number(),
        9 => head.object = [Object::None, Object::Number(input.number())][input.index(2)].clone(),
        10 => {
            if let Object::Name(key) = &mut head.object
                && !key.is_empty()
            {
                let at = input.index(key.len());
                key.to_mut()[at] = input.u8();
            }
        }
        11 => {
            if let Object::Name(key) = &mut head.object {
                let len = usize::from(input.u16()) % (cached_journal::NAME_BYTES_MAX + 1);
                key.to_mut().resize(len, b'x');
            }
        }
        12 => payload.resize(usize::from(input.u16()) % 20_000, 7),
        13 if payload.len() >= 8 => {
            // In payloads with a table, numbers are at the start.
            let at = input.index(payload.len() / 8).min(input.index(8)) * 8;
            let number = input.number();
            payload[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        _ if !payload.is_empty() => {
            let at = input.index(payload.len());
            payload[at] ^= input.u8();
        }
        _ => {}
    }
}
