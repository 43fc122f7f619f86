//! The source with threads that change its items, and a target that only keeps what comes.

use super::Line;
use super::queue::{BYTES_MAX, KEY_OVERHEAD_BYTES};
use super::source::serve;
use crate::Server;
use crate::process::Logging;
use crate::settings::{RingSecrets, RingSettings, Settings};
use crate::shared::Shared;
use crate::stream::Link;
use cached_core::clock::Expiry;
use cached_core::kv::{
    ArithmeticOptions, DeleteOptions, DeleteOutcome, FetchOptions, ImportOptions, ItemView, StoreMode,
    StoreOptions, StoreOutcome,
};
use cached_ring::copy::{Frame, ItemFrame, bits, frame};
use cached_ring::{Map, Move, Node, NodeIndex, SLOTS, Slot, slot_of};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use test_kit::rng::Rng;

const VALUE_BYTES_MAX: usize = 1 << 20;

fn node_with(memory_bytes: usize) -> Arc<Shared> {
    let node = |name: &str, port: u16| {
        Node::new(name, format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", port + 1))
    };
    let owners = Box::new([NodeIndex(0); SLOTS]);
    let map = Map::new("main", 1, vec![node("a", 1), node("b", 3)], owners).expect("a map");
    let ring = RingSettings {
        node: "a".into(),
        listen: Vec::new(),
        map: Arc::new(map),
        secrets: RingSecrets::default(),
        tls: None,
        peer_timeout: Duration::from_secs(60),
        connect_timeout: Duration::from_secs(1),
        peer_lanes_max: 16,
        has_leases: false,
    };
    let settings = Settings {
        listen: Vec::new(),
        threads: 1,
        memory_bytes,
        ring: Some(Arc::new(ring)),
        ..Settings::default()
    };
    Server::open(settings, Logging::embedded(0)).expect("a server").shared
}

/// A move of half of the slots.
fn half() -> Move {
    let slots = Slot::all().filter(|slot| slot.number() % 2 == 0).collect();
    Move { id: 2, from: NodeIndex(0), to: NodeIndex(0), slots }
}

fn sockets() -> (Line, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let near = listener.accept().unwrap().0;
    near.set_nonblocking(true).unwrap();
    (Line::new(Link::new(near.into(), None)), far)
}

/// An item as it is sent, without its use.
#[derive(Debug, PartialEq)]
struct Copied {
    value: Vec<u8>,
    flags: u32,
    cas: u64,
    ttl_ms: Option<u64>,
    bits: u8,
}

impl Copied {
    fn of_frame(item: &ItemFrame<'_>) -> Copied {
        let ItemFrame { value, flags, cas, ttl_ms, bits, .. } = *item;
        Copied { value: value.to_vec(), flags, cas, ttl_ms, bits: bits & !bits::FETCHED }
    }

    fn of_item(item: &ItemView<'_>) -> Copied {
        let ttl_ms = item.expiry().remaining_secs(item.now()).map(|secs| u64::from(secs) * 1000);
        let mut set = 0;
        for (is_set, bit) in [
            (item.stale(), bits::STALE),
            (item.token_sent(), bits::TOKEN_SENT),
            (item.key_binary(), bits::BASE64),
        ] {
            set |= if is_set { bit } else { 0 };
        }
        Copied { value: item.to_vec(), flags: item.client_flags(), cas: item.cas(), ttl_ms, bits: set }
    }
}

/// The far end of a session.
struct Target {
    socket: TcpStream,
    input: Vec<u8>,
    items: HashMap<Vec<u8>, Copied>,
    count: u64,
    cas: u64,
}

/// What a target waits for.
#[derive(Debug, PartialEq)]
enum Until {
    Item,
    Ready,
    End,
    Closed,
}

impl Target {
    fn new(socket: TcpStream) -> Target {
        Target { socket, input: Vec::new(), items: HashMap::new(), count: 0, cas: 0 }
    }

    fn say(&mut self, frame: &Frame<'_>) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.socket.write_all(&bytes).unwrap();
    }

    /// Keeps what comes, up to a message of this kind.
    fn receive(&mut self, until: Until) {
        let mut at = 0;
        let mut bytes = vec![0; 1 << 16];
        loop {
            while let Some((frame, len)) = frame(&self.input[at..], VALUE_BYTES_MAX).unwrap() {
                at += len;
                let what = match frame {
                    Frame::Item(item) => {
                        self.count += 1;
                        self.items.insert(item.key.to_vec(), Copied::of_frame(&item));
                        Until::Item
                    }
                    Frame::Gone { key } => {
                        self.count += 1;
                        self.items.remove(key);
                        Until::Item
                    }
                    Frame::Ready => Until::Ready,
                    Frame::End { count, cas } => {
                        assert_eq!(count, self.count);
                        self.cas = cas;
                        Until::End
                    }
                    Frame::Ping => continue,
                    other => panic!("{other:?} from a source"),
                };
                if what == until {
                    self.input.drain(..at);
                    return;
                }
                assert_eq!(what, Until::Item, "instead of {until:?}");
            }
            self.input.drain(..at);
            at = 0;
            match self.socket.read(&mut bytes).unwrap_or(0) {
                0 => return assert_eq!(until, Until::Closed),
                count => self.input.extend_from_slice(&bytes[..count]),
            }
        }
    }
}

const KEYS: u32 = 6000;

fn key(number: u32) -> Vec<u8> {
    // Each slot has few keys, whatever their lengths.
    let mut key = format!("key:{number}:").into_bytes();
    key.resize(key.len() + number as usize % 7 * 20, b'-');
    key
}

/// Executes a random operation. Returns whether the key was acknowledged to have no item, if that is
/// known.
fn execute(shared: &Shared, rng: &mut Rng, key: &[u8]) -> Option<bool> {
    let (kv, hash) = (&shared.kv, shared.kv.hash(key));
    let expiry = |rng: &mut Rng| match rng.below(10) {
        0 => Expiry::PAST,
        1..3 => Expiry::after(kv.now_secs(), rng.within(1000, 2000) as u32),
        _ => Expiry::NEVER,
    };
    match rng.below(10) {
        0..5 => {
            let modes = [StoreMode::Set, StoreMode::Set, StoreMode::Add, StoreMode::Append];
            let options = StoreOptions {
                mode: *rng.pick(&modes),
                client_flags: rng.below(3) as u32,
                expiry: expiry(rng),
                key_binary: rng.permille(100),
                ..StoreOptions::default()
            };
            let bytes = match rng.below(1000) {
                0 => rng.within(40_000, 300_000),
                _ => rng.below(200),
            };
            let outcome = kv.store(key, hash, &vec![rng.below(256) as u8; bytes as usize], &options);
            let is_past = options.expiry == Expiry::PAST && options.mode != StoreMode::Append;
            matches!(outcome, StoreOutcome::Stored { .. }).then_some(is_past)
        }
        5 => {
            let options = DeleteOptions { invalidate: rng.permille(500), ..DeleteOptions::default() };
            match kv.delete(key, hash, &options) {
                DeleteOutcome::NotFound => Some(true),
                DeleteOutcome::Done => Some(!options.invalidate),
                _ => None,
            }
        }
        6..8 => {
            let touch = rng.permille(500).then(|| expiry(rng));
            let options = FetchOptions { touch, tokens: true, ..FetchOptions::default() };
            let is_past = touch == Some(Expiry::PAST);
            kv.fetch(key, hash, &options, |_, _| is_past).ok()
        }
        _ => {
            kv.store(key, hash, b"99", &StoreOptions::default());
            kv.arithmetic(key, hash, &ArithmeticOptions { delta: 1, ..ArithmeticOptions::default() });
            Some(false)
        }
    }
}

/// Threads change items from before the walk until the slots are sealed; then the target has what
/// the source has.
fn copy_under_load(memory_bytes: usize, seed: u64) {
    let shared = node_with(memory_bytes);
    let evicts = memory_bytes < 16 << 20;
    let the_move = half();
    let mut rng = Rng::new(seed);
    let others = (0..u32::MAX).map(|number| format!("other:{number}").into_bytes());
    let mut others = others.filter(|key| !the_move.slots.contains(slot_of(key)));
    while evicts && shared.kv.stats().evictions == 0 {
        shared.kv.set(&others.next().unwrap(), &[7; 500]).unwrap();
    }
    for number in (0..KEYS).step_by(4) {
        execute(&shared, &mut rng, &key(number));
    }
    let (mut near, far) = sockets();
    // Whether requests for the slots are executed, and which keys were last acknowledged as absent.
    let is_open = RwLock::new(true);
    let absent: Vec<Mutex<bool>> = (0..KEYS).map(|_| Mutex::new(false)).collect();
    let mut target = Target::new(far);
    let seal = || {
        *is_open.write() = false;
        true
    };
    thread::scope(|scope| {
        for thread in 0..4 {
            let (shared, is_open, absent, slots) = (&shared, &is_open, &absent, &the_move.slots);
            let mut rng = Rng::new(seed ^ (thread << 32));
            scope.spawn(move || {
                // After the seal, items of other slots change for a while. If they did so until the target
                // has everything, they would evict all that is compared whenever the target is late.
                let mut left = 1000;
                while left > 0 {
                    // Most changes are of few keys, so that few wait after the walk.
                    let is_hot = rng.permille(900);
                    let number = rng.below(if is_hot { 300 } else { KEYS.into() }) as u32;
                    let key = key(number);
                    let is_open = is_open.read();
                    left -= u32::from(!*is_open);
                    if *is_open || !slots.contains(slot_of(&key)) {
                        let mut absent = absent[number as usize].lock();
                        *absent = execute(shared, &mut rng, &key).unwrap_or(*absent);
                    }
                }
            });
        }
        let served = scope
            .spawn(|| serve(&shared, &mut near, &the_move, Some(shared.kv.now_secs()), &seal, &|| false));
        target.receive(Until::Ready);
        target.say(&Frame::Ping);
        target.say(&Frame::Seal);
        target.receive(Until::End);
        target.say(&Frame::Committed { version: 4 });
        served.join().unwrap().unwrap();
    });
    let (mut common, mut evicted) = (0, 0);
    for number in 0..KEYS {
        let key = key(number);
        let here = shared.kv.peek(&key, shared.kv.hash(&key), Copied::of_item).ok();
        let there = target.items.remove(&key);
        if !the_move.slots.contains(slot_of(&key)) {
            assert!(there.is_none(), "of another slot");
        } else if here.is_none() && there.is_some() {
            assert!(evicts && !*absent[number as usize].lock(), "{number} is here no more");
            evicted += 1;
        } else {
            assert!(here == there, "{number}: {here:?} here, {there:?} there");
            common += usize::from(here.is_some());
            assert!(here.is_none_or(|item| item.cas < target.cas));
        }
    }
    assert!(target.items.is_empty(), "of no known key");
    assert!(common > if evicts { 50 } else { 500 } && evicted < 2000, "{common} and {evicted}");
    let counts = shared.ring.as_ref().unwrap().moves.report();
    assert_eq!(counts.items[1], target.count);
    assert_eq!(shared.kv.stats().evictions > 0, evicts);
    shared.kv.validate();
}

#[test]
fn the_target_has_what_the_source_has_when_the_slots_are_sealed() {
    (0..3).for_each(|seed| copy_under_load(64 << 20, seed));
}

#[test]
fn what_a_full_source_has_evicted_may_be_at_the_target_unless_it_was_deleted() {
    (0..2).for_each(|seed| copy_under_load(2 << 20, seed));
}

/// Serves a session whose target does `act`. Returns why it has ended, and whether the slots are sealed.
fn session(
    shared: &Shared,
    seals: bool,
    ends: &(dyn Fn() -> bool + Sync),
    act: impl FnOnce(Target) + Send,
) -> (String, bool) {
    let ((near, far), is_sealed) = (sockets(), AtomicBool::new(false));
    let seal = || {
        is_sealed.store(true, Ordering::Relaxed);
        seals
    };
    let served = thread::scope(|scope| {
        scope.spawn(|| act(Target::new(far)));
        // The far end reads until this end is closed.
        let mut near = near;
        serve(shared, &mut near, &half(), Some(shared.kv.now_secs()), &seal, ends)
    });
    (served.unwrap_err().to_string(), is_sealed.into_inner())
}

#[test]
fn a_session_ends_when_the_target_is_lost_or_breaks_the_protocol() {
    let shared = node_with(64 << 20);
    for number in 0..4000 {
        shared.kv.set(&key(number), &[7; 5000]).unwrap();
    }
    let no = || false;
    let (error, is_sealed) = session(&shared, true, &no, |mut target| target.receive(Until::Item));
    assert!(error.contains("connection") && !is_sealed, "{error}");
    let (error, is_sealed) = session(&shared, true, &no, |mut target| target.receive(Until::Ready));
    assert!(error.contains("connection") && !is_sealed, "{error}");
    let (error, is_sealed) = session(&shared, true, &no, |mut target| {
        target.say(&Frame::Seal);
        target.receive(Until::Closed);
    });
    assert!(error.ends_with("protocol: SEAL came to a copy session that is walking"), "{error}");
    assert!(!is_sealed);
    let (error, is_sealed) = session(&shared, true, &no, |mut target| {
        target.say(&Frame::Ready);
        target.receive(Until::Closed);
    });
    assert!(error.ends_with("protocol: it sends what only a source may send") && !is_sealed, "{error}");
    let (error, is_sealed) = session(&shared, true, &no, |mut target| {
        target.receive(Until::Ready);
        target.say(&Frame::Seal);
        target.receive(Until::End);
    });
    assert!(error.contains("connection") && is_sealed, "{error}");
    assert_eq!(shared.ring.as_ref().unwrap().moves.report().items[0], 0, "nothing comes in");
}

#[test]
fn after_half_of_the_items_the_target_has_those_that_are_used() {
    let shared = node_with(64 << 20);
    let is_used = |number: u32| number.is_multiple_of(10);
    for number in 0..KEYS {
        let idle_secs = if is_used(number) { 0 } else { 1000 };
        let options = ImportOptions { idle_secs, ..ImportOptions::default() };
        shared.kv.import(&key(number), shared.kv.hash(&key(number)), &[7; 5000], &options).unwrap();
    }
    session(&shared, true, &|| false, |mut target| {
        while target.items.len() < KEYS as usize / 4 {
            target.receive(Until::Item);
        }
        let moves = |number: &u32| half().slots.contains(slot_of(&key(*number)));
        let mut used = (0..KEYS).filter(|number| is_used(*number)).filter(moves);
        assert!(used.all(|number| target.items.contains_key(&key(number))));
    });
}

#[test]
fn a_session_ends_when_this_node_ends_it() {
    let shared = node_with(64 << 20);
    shared.kv.set(b"k", b"v").unwrap();
    let (yes, no) = (|| true, || false);
    let ended = ("this node ends it, or the move has ended".to_owned(), false);
    assert_eq!(session(&shared, true, &yes, |mut target| target.receive(Until::Closed)), ended);
    let (error, is_sealed) = session(&shared, false, &no, |mut target| {
        target.receive(Until::Ready);
        target.say(&Frame::Seal);
        target.receive(Until::Closed);
    });
    assert_eq!((error, is_sealed), (ended.0.clone(), true));
    *shared.is_handed_over.lock() = true;
    assert_eq!(session(&shared, true, &no, |mut target| target.receive(Until::Closed)), ended);
}

#[test]
fn a_session_ends_when_more_keys_change_than_may_wait() {
    let shared = node_with(64 << 20);
    let key = |number: usize| format!("{number:0250}").into_bytes();
    let count = 2 * BYTES_MAX / (250 + KEY_OVERHEAD_BYTES) + 4000;
    let (near, far) = sockets();
    let seal = || {
        // The last changes, as of requests that began before the seal.
        (0..count).for_each(|number| shared.kv.set(&key(number), b"").unwrap());
        true
    };
    let served = thread::scope(|scope| {
        scope.spawn(|| {
            let mut target = Target::new(far);
            target.receive(Until::Ready);
            target.say(&Frame::Seal);
            target.receive(Until::Closed);
        });
        let mut near = near;
        serve(&shared, &mut near, &half(), Some(shared.kv.now_secs()), &seal, &|| false)
    });
    assert_eq!(served.unwrap_err().to_string(), "items change faster than they can be sent");
}
