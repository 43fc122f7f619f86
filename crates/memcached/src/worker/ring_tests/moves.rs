//! Slots that move with their items, between two nodes of one process: the source's and the target's
//! sessions have their own threads, the workers take turns in the test's thread.

use super::super::maps::{MapThread, Step};
use super::nodes::{Node, pair, read_all, settings, shared};
use crate::copy::{self, Copied, CopyError, Line};
use crate::shared::Shared;
use crate::stream::Link;
use cached_ring::{Map, Node as MapNode, Slot, SlotSet, slot_of};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The number of keys of the tests.
const KEYS: usize = 600;

fn key(number: usize) -> Vec<u8> {
    format!("key:{number}").into_bytes()
}

fn value(number: usize) -> Vec<u8> {
    format!("{number:0>width$}", width = 10 + number % 50 * 400).into_bytes()
}

/// The slots that move.
fn moved() -> SlotSet {
    Slot::all().filter(|slot| slot.number() % 16 == 3).collect()
}

fn is_moved(key: &[u8]) -> bool {
    moved().contains(slot_of(key))
}

/// Two nodes: a, which owns all slots at first, and b, which joins.
struct Pair {
    a: Node,
    b: Node,
    map: Map,
    listener: TcpListener,
    client: UnixStream,
}

/// Connects to the address that the map has for the source.
fn dial(shared: &Shared, node: &str, _ends: &dyn Fn() -> bool) -> Result<Line, String> {
    let map = shared.ring.as_ref().unwrap().map();
    let address = &map.node(map.find(node).unwrap()).ring;
    TcpStream::connect(address).map(|stream| Line::new(link(stream))).map_err(|error| error.to_string())
}

fn link(stream: TcpStream) -> Link {
    stream.set_nonblocking(true).unwrap();
    Link::new(stream.into(), None)
}

/// What a test does while both nodes run.
struct Steps<'a> {
    nodes: [&'a Arc<Shared>; 2],
    listener: &'a TcpListener,
}

impl Pair {
    fn new() -> Pair {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let node = |name: &str, ring: String| MapNode::new(name, ring, format!("{name}.example:1"));
        let first = Map::first("main", node("a", listener.local_addr().unwrap().to_string())).unwrap();
        let map = first.join(node("b", "127.0.0.1:1".into())).unwrap();
        let [mut a, mut b] = ["a", "b"].map(|name| Node::new(name, Arc::new(map.clone())));
        let connect = |one: &mut Node, other: &mut Node, names: [&str; 2]| {
            let (near, far) = pair();
            one.dial(names[1], near);
            other.accept(names[0], far);
        };
        connect(&mut a, &mut b, ["a", "b"]);
        connect(&mut b, &mut a, ["b", "a"]);
        let client = b.connect();
        for number in 0..KEYS {
            a.worker.shared.kv.set(&key(number), &value(number)).unwrap();
        }
        Pair { a, b, map, listener, client }
    }

    /// Runs `steps` while both nodes run.
    fn run<R: Send>(&mut self, steps: impl AsyncFnOnce(&Steps<'_>) -> R + Send) -> R {
        let (is_done, nodes) =
            (AtomicBool::new(false), [&self.a, &self.b].map(|node| node.worker.shared.clone()));
        let Pair { a, b, listener, .. } = self;
        let listener = &*listener;
        thread::scope(|scope| {
            for shared in &nodes {
                let is_done = &is_done;
                scope.spawn(move || {
                    let ring = shared.ring.as_ref().unwrap();
                    let mut maps = MapThread::new(shared, ring, Duration::ZERO);
                    while !is_done.load(Ordering::Acquire) {
                        match maps.step(&|| is_done.load(Ordering::Acquire)) {
                            Step::Done => {}
                            Step::Idle => thread::park_timeout(Duration::from_millis(1)),
                            Step::Ended => assert!(is_done.load(Ordering::Acquire)),
                        }
                    }
                });
            }
            let steps = scope.spawn(|| {
                let steps_of = Steps { nodes: [&nodes[0], &nodes[1]], listener };
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(steps(&steps_of))
            });
            while !steps.is_finished() {
                if !a.turn() & !b.turn() {
                    thread::yield_now();
                }
            }
            is_done.store(true, Ordering::Release);
            steps.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Sends a request to the node b, and returns the reply once it ends with `end`.
    fn ask(&mut self, request: &[u8], end: &[u8]) -> Vec<u8> {
        let (mut sent, mut reply) = (0, Vec::new());
        let deadline = Instant::now() + Duration::from_secs(60);
        while !reply.ends_with(end) {
            sent += self.client.write(&request[sent..]).unwrap_or(0);
            self.b.turn();
            self.a.turn();
            read_all(&mut self.client, &mut reply);
            assert!(Instant::now() < deadline, "{} bytes: {}", reply.len(), reply.escape_ascii());
        }
        reply
    }

    /// Asserts that the node a or b has exactly those keys which `has` names, and answers for them.
    fn expect_keys(&self, at: usize, has: impl Fn(&[u8]) -> bool) {
        let shared = [&self.a, &self.b][at].worker.shared.clone();
        for number in 0..KEYS {
            let key = key(number);
            let found = shared.kv.get(&key);
            assert_eq!(found.is_some(), has(&key), "{} at node {at}", key.escape_ascii());
            assert!(found.is_none_or(|found| *found == *value(number)), "{}", key.escape_ascii());
            assert_eq!(shared.ring.as_ref().unwrap().owns(slot_of(&key)), has(&key));
        }
    }
}

impl Steps<'_> {
    /// Puts a map in force at both nodes.
    async fn put_in_force(&self, map: &Map) {
        for shared in self.nodes {
            shared.ring.as_ref().unwrap().set_map(map.clone()).unwrap();
        }
        self.until(|shared| shared.ring.as_ref().unwrap().map_in_force().version >= map.version()).await;
    }

    /// Waits until both nodes are as they should be.
    async fn until(&self, is_so: impl Fn(&Shared) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.nodes.iter().all(|shared| is_so(shared)) {
            assert!(Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Waits until neither node has items of other nodes' slots, and the marks say so.
    async fn until_clean(&self) {
        self.until(|shared| {
            // The thread for maps writes the mark before it releases the lock.
            let _lock = shared.is_handed_over.lock();
            !shared.ring.as_ref().unwrap().is_purging()
        })
        .await;
    }

    /// Copies the items of a move. Returns the source's socket as well.
    async fn copy(
        &self,
        id: u64,
        confirm: impl AsyncFnOnce(&TcpStream) -> bool,
    ) -> Result<Copied, CopyError> {
        let (source, listener) = (self.nodes[0].clone(), self.listener.try_clone().unwrap());
        let accepted = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let socket = stream.try_clone().unwrap();
            copy::accept(&source, "b".into(), link(stream));
            socket
        });
        let confirm = async move || confirm(&accepted.join().unwrap()).await;
        copy::copy(self.nodes[1].clone(), id, dial, confirm).await
    }

    fn unfinished(&self, at: usize) -> Vec<u64> {
        self.nodes[at].ring.as_ref().unwrap().events.unfinished.borrow().iter().copied().collect()
    }

    fn sealed(&self) -> usize {
        self.nodes[0].ring.as_ref().unwrap().sealed_slots()
    }
}

#[test]
fn slots_move_with_their_items() {
    let mut pair = Pair::new();
    let begun = pair.map.begin_move("a", "b", moved()).unwrap();
    let (id, committed) = (begun.version(), begun.commit_move(begun.version()).unwrap());
    let keys: Vec<Vec<u8>> = (0..KEYS).map(key).filter(|key| is_moved(key)).collect();
    assert!(keys.len() > 10);
    let reply = pair.ask(&[b"get ", &keys[0][..], b"\r\n"].concat(), b"END\r\n");
    assert!(reply.starts_with(b"VALUE"), "b asks a");
    let entry = pair.b.ring().peer_or_new("a");
    assert!(!pair.b.ring().is_known_to_all(), "a has not said how many lanes it opens");
    for (lanes_wanted, is_known) in [(2, false), (1, true)] {
        entry.set_lanes_wanted(lanes_wanted);
        assert_eq!(pair.b.ring().is_known_to_all(), is_known);
    }
    pair.run(async |steps: &Steps<'_>| {
        steps.put_in_force(&begun).await;
        let [source, target] = steps.nodes;
        let before = source.kv.mark();
        // What changes after the walk.
        let copied = steps.copy(id, async |_| {
            assert_eq!(target.kv.mark() & 1, 1, "there are items of another node's slots");
            assert!(source.kv.remove(&keys[0]));
            source.kv.set(&keys[1], b"other").unwrap();
            true
        });
        let copied = copied.await.unwrap();
        assert_eq!((steps.sealed(), source.kv.mark()), (moved().len(), 1));
        assert!(copied.items() as usize >= keys.len() && copied.bytes() > 100_000);
        assert!(!source.ring.as_ref().unwrap().may_flush(id));
        // Until the commit, the items are the source's, and those of the target nobody's.
        assert!(source.kv.get(&keys[2]).is_some());
        let cas = source.kv.cas_ahead();
        copied.settle(committed.clone()).await;
        let ring = target.ring.as_ref().unwrap();
        assert!(moved().iter().all(|slot| ring.owns(slot)), "at once");
        // The thread for maps writes the mark before it gives the lock free.
        drop(target.is_handed_over.lock());
        assert_eq!((target.kv.mark() & 1, target.kv.get(&keys[1]).as_deref()), (0, Some(&b"other"[..])));
        target.kv.set(&keys[1], &value(keys.len())).unwrap();
        let new = target.kv.peek(&keys[1], target.kv.hash(&keys[1]), |item| item.cas()).unwrap();
        assert!(new >= cas, "{new} is above {cas}");
        assert!(steps.unfinished(0).is_empty(), "the source was told of the commit");
        // While further slots are on their way, the items stay: one pass removes those of all moves.
        let further = committed.begin_move("a", "b", [Slot::new(0).unwrap()].into_iter().collect()).unwrap();
        for map in [&further, &further.set_paused(true).unwrap()] {
            steps.put_in_force(map).await;
            assert_eq!((source.kv.get(&keys[2]).is_some(), source.kv.mark() & 1), (true, 1));
        }
        let ended = further.set_paused(true).and_then(|map| map.abort_move(further.version())).unwrap();
        steps.put_in_force(&ended).await;
        steps.until_clean().await;
        assert_eq!((steps.sealed(), source.kv.mark() & 1), (0, 0));
        assert_ne!(source.kv.mark(), before, "with fewer slots");
    });
    for number in 0..KEYS {
        let key = key(number);
        let at_target = is_moved(&key) && key != keys[0];
        assert_eq!(pair.a.has(&key), !is_moved(&key));
        assert_eq!(pair.b.has(&key), at_target, "{}", key.escape_ascii());
    }
    let reply = pair.ask(&[b"get ", &keys[3][..], b"\r\n"].concat(), b"END\r\n");
    assert!(reply.starts_with(b"VALUE"), "b answers");
}

/// Where a move is broken off.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Break {
    NotConfirmed,
    SourceClosed,
    FlushedAtTarget,
    FlushedAtSource,
    HeldAtTarget,
    HeldAtSource,
    Aborted,
    Sealed,
    SealedAndPaused,
}

/// A move that is broken off has changed nothing, wherever that was.
#[test]
fn a_move_that_is_broken_off_changes_nothing() {
    use Break::*;
    for at in [
        NotConfirmed,
        SourceClosed,
        FlushedAtTarget,
        FlushedAtSource,
        HeldAtTarget,
        HeldAtSource,
        Aborted,
        Sealed,
        SealedAndPaused,
    ] {
        let mut pair = Pair::new();
        let begun = pair.map.begin_move("a", "b", moved()).unwrap();
        let id = begun.version();
        let mut aborted = begun.abort_move(id).unwrap();
        pair.run(async |steps: &Steps<'_>| {
            steps.put_in_force(&begun).await;
            let [source, target] = steps.nodes;
            let hold = |shared: &Shared, holds| shared.ring.as_ref().unwrap().hold_moves(holds);
            let copied = steps.copy(id, async |socket| {
                match at {
                    NotConfirmed => return false,
                    SourceClosed => socket.shutdown(std::net::Shutdown::Both).unwrap(),
                    FlushedAtTarget => target.kv.flush_all(),
                    // Of nothing that the test has.
                    FlushedAtSource => source.kv.flush_prefix(b"other").unwrap(),
                    HeldAtTarget => hold(target, true),
                    HeldAtSource => hold(source, true),
                    Aborted => steps.put_in_force(&aborted).await,
                    Sealed | SealedAndPaused => {}
                }
                true
            });
            let copied = copied.await;
            if matches!(at, Sealed | SealedAndPaused) {
                drop(copied.unwrap());
                while steps.unfinished(0).is_empty() {
                    tokio::task::yield_now().await;
                }
                assert_eq!((steps.unfinished(0), steps.sealed()), (vec![id], moved().len()));
                if at == SealedAndPaused {
                    // The map with the abort is missed.
                    aborted = aborted.set_paused(true).unwrap();
                }
            } else {
                let error = copied.unwrap_err();
                let is_right = match at {
                    NotConfirmed => matches!(error, CopyError::Gone),
                    FlushedAtTarget => matches!(error, CopyError::Flushed),
                    HeldAtTarget => matches!(error, CopyError::Ends),
                    // Either end may be the first to know.
                    Aborted => matches!(error, CopyError::Gone | CopyError::Broken(..)),
                    _ => matches!(error, CopyError::Broken(..)),
                };
                assert!(is_right, "{at:?}: {error}");
                assert_eq!(steps.sealed(), 0);
            }
            steps.nodes.iter().for_each(|shared| hold(shared, false));
            steps.put_in_force(&aborted).await;
            steps.until_clean().await;
            assert_eq!((steps.unfinished(0), steps.sealed()), (vec![], 0));
            assert!(steps.nodes.iter().all(|shared| shared.kv.mark() & 1 == 0));
        });
        pair.expect_keys(0, |_| true);
        pair.expect_keys(1, |_| false);
    }
}

/// What was copied is not used if the slots come to the target in another way.
#[test]
fn slots_of_a_failed_node_come_without_what_was_copied() {
    for is_complete in [false, true] {
        let mut pair = Pair::new();
        let begun = pair.map.begin_move("a", "b", moved()).unwrap();
        let (id, failed) = (begun.version(), begun.fail("a", &|_| true).unwrap());
        pair.run(async |steps: &Steps<'_>| {
            steps.put_in_force(&begun).await;
            let copied = steps.copy(id, async |_| {
                if !is_complete {
                    steps.put_in_force(&failed).await;
                }
                true
            });
            let copied = copied.await;
            assert_eq!(copied.is_ok(), is_complete);
            steps.put_in_force(&failed).await;
            steps.until_clean().await;
        });
        for number in 0..KEYS {
            assert!(!pair.a.has(&key(number)) && !pair.b.has(&key(number)));
            assert!(pair.b.ring().owns(slot_of(&key(number))));
        }
    }
}

/// The target has committed the move and was struck off, of which the source sees only the end.
#[test]
fn a_source_that_has_missed_a_commit_keeps_nothing_of_the_slots() {
    let mut pair = Pair::new();
    let begun = pair.map.begin_move("a", "b", moved()).unwrap();
    let id = begun.version();
    let failed = begun.commit_move(id).unwrap().fail("b", &|_| true).unwrap();
    pair.run(async |steps: &Steps<'_>| {
        steps.put_in_force(&begun).await;
        drop(steps.copy(id, async |_| true).await.unwrap());
        steps.put_in_force(&failed).await;
        steps.until_clean().await;
    });
    for number in 0..KEYS {
        let key = key(number);
        assert!(pair.a.ring().owns(slot_of(&key)));
        assert_eq!(pair.a.has(&key), !is_moved(&key));
    }
}

/// The target may still commit a move of an earlier process, so its slots are sealed from the start.
#[test]
fn a_process_that_starts_within_a_move_is_sealed() {
    let pair = Pair::new();
    let begun = Arc::new(pair.map.begin_move("a", "b", moved()).unwrap());
    let id = begun.version();
    let mut node = Node::new("a", begun.clone());
    let own = node.ring().mark();
    let shared_of = node.worker.shared.clone();
    let unfinished = || shared_of.ring.as_ref().unwrap().events.unfinished.borrow().clone();
    assert!(unfinished().contains(&id));
    assert_eq!(node.ring().sealed_slots(), moved().len());
    assert!(node.ring().giving(id, "b").is_err() && !node.ring().seal(id));
    assert_eq!(node.ring().mark_now(), own, "no session of this process can have sent the items");
    node.cannot_reach("b");
    node.put_in_force(&begun.abort_move(id).unwrap());
    assert!(unfinished().is_empty() && Slot::all().all(|slot| node.ring().owns(slot)));
    let target = shared(settings("b", begun));
    assert!(target.ring.as_ref().unwrap().events.unfinished.borrow().contains(&id));
}
