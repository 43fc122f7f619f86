//! Hand-overs while a change of the documents is under way, and leases that the registry loses: the tests
//! decide when the store of the registry performs a call, and whether it does.

use super::*;
use crate::ring::documents::Guards;
use crate::ring::join::tests::{MINUTE, node, run, settings};
use crate::ring::lease::NodeLease;
use crate::ring::moves::Outcome;
use cached_memcached::settings::RingSettings;
use cached_memcached::{Logging, RingLease, Server, Settings};
use cached_registry::Lease;
use cached_ring::{ProcessState, Promise, Report, SlotSet};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use test_kit::steered::{Op, SteeredStore, Verdict};
use tokio::sync::oneshot;

/// The process of the node `a` of a ring, and the store of the ring's registry.
struct World {
    store: Arc<SteeredStore>,
    steward: Shared,
    _server: Server,
}

fn registry(store: &Arc<SteeredStore>) -> Registry {
    let table: RegistryTable = toml::from_str("kind = \"store\"\ntimeout_ms = 60_000").expect("a table");
    Registry::open(&table, Some(store.clone())).expect("a registry")
}

async fn world() -> World {
    world_of(&Map::first("main", node("a", 21)).expect("a map")).await
}

async fn world_of(map: &Map) -> World {
    let (store, own) = (SteeredStore::new(), node("a", 21));
    let registry = registry(&store);
    let documents = Documents::new("main", registry);
    documents.write(None, map, Guards::default()).await.expect("documents");
    let ring = RingSettings { map: Arc::new(map.clone()), ..settings(&own) };
    let ring = Some(Arc::new(ring));
    let settings = Settings { listen: Vec::new(), threads: 1, ring, ..Settings::default() };
    let server = Server::open(settings, Logging::embedded(0)).expect("a server");
    let steward = Shared {
        documents,
        live: server.live(),
        own,
        is_held: watch::Sender::new(false),
        changes: watch::Sender::new(0),
        written: Cell::new(None),
        shares_number: false,
        hand_over_max: MINUTE,
    };
    World { store, steward, _server: server }
}

/// Runs a task of the steward until the store holds a call.
async fn run_until_held(task: impl Future<Output = ()>, store: &SteeredStore) {
    let is_held = async {
        while store.held().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    let held = timeout(MINUTE, async {
        tokio::select! {
            () = task => panic!("the task has ended"),
            () = is_held => {}
        }
    });
    held.await.expect("a call of the store");
}

/// Polls a future once.
async fn poll_once<T>(mut future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[test]
fn the_other_process_waits_for_a_move_that_is_being_aborted() {
    run(async {
        let world = world().await;
        let World { store, steward, .. } = &world;
        let documents = &steward.documents;
        let map = documents.change(|map| map.join(node("b", 23))).await.expect("joined");
        let slots = map.next_move("b", &|_| Some(0)).expect("a move").1;
        let begun = documents.change(|map| map.begin_move("a", "b", slots.clone())).await.expect("a move");
        steward.live.ring_events().unfinished.send_modify(|ids| _ = ids.insert(begun.version()));
        store.hold(&[Op::WriteFull]);
        let mut aborting = pin!(steward.abort_unfinished());
        run_until_held(aborting.as_mut(), store).await;

        let mut hold = pin!(steward.hold());
        assert_eq!(poll_once(hold.as_mut()).await, None, "what is under way would be written meanwhile");
        store.open();
        let held = tokio::select! {
            () = aborting => panic!("the task has ended"),
            held = hold => held,
        };
        assert_eq!(held, Ok(()));
        assert!(documents.read().await.expect("documents").map.moves().is_empty());
    });
}

#[test]
fn the_other_process_does_not_wait_for_a_change_whose_operator_has_gone() {
    run(async {
        let world = world().await;
        let World { store, steward, .. } = &world;
        let (requests, received) = mpsc::channel(2);
        let reopen = || -> Result<Registry, Error> { panic!("only a disk is opened again") };
        let mut serving = pin!(steward.serve(received, &reopen));
        store.hold(&[Op::WriteFull]);
        let (answer, changed) = oneshot::channel();
        requests.try_send(Request::Change(Change::Pause(true), answer)).expect("sent");
        run_until_held(serving.as_mut(), store).await;

        let (answer, mut held) = oneshot::channel();
        requests.try_send(Request::Hold(answer)).expect("sent");
        assert_eq!(poll_once(serving.as_mut()).await, None);
        held.try_recv().expect_err("the operator waits, and so does the other process");
        drop(changed);
        assert_eq!(poll_once(serving.as_mut()).await, None);
        assert_eq!(held.try_recv(), Ok(Ok(())));
        assert_eq!(store.abandoned().len(), 1, "the change may be made later");
    });
}

#[test]
fn a_process_that_goes_on_waits_until_it_can_read_its_disk_again() {
    run(async {
        let World { store, steward, _server } = world().await;
        let steward = Shared { shares_number: true, ..steward };
        let attempts = Cell::new(0);
        let reopen = || match attempts.replace(attempts.get() + 1) {
            0 => Err(Error::Unavailable("no descriptor is left".into())),
            _ => Ok(registry(&store)),
        };
        let (requests, received) = mpsc::channel(1);
        steward.is_held.send_replace(true);
        requests.try_send(Request::Resume).expect("sent");
        let resumed = async { drop(steward.is_held.subscribe().wait_for(|is_held| !is_held).await) };
        let resumed = timeout(MINUTE, async {
            tokio::select! {
                () = steward.serve(received, &reopen) => panic!("the task has ended"),
                () = resumed => {}
            }
        });
        resumed.await.expect("it goes on");
        assert_eq!(attempts.get(), 2, "what it knew of its block may not be so any more");
    });
}

#[test]
fn a_lease_that_was_taken_while_promises_hold_counts_once_the_map_is_read() {
    run(async {
        let first = Map::first("main", node("a", 21)).and_then(|map| map.join(node("b", 23)));
        let map = first.and_then(|map| map.set_warden("a", Some("b"))).expect("a map");
        let World { store, steward, _server } = world_of(&map).await;
        let (documents, own) = (&steward.documents, steward.live.ring_lease().expect("a ring"));
        documents.read().await.expect("documents");
        let mut lease = NodeLease::new(&steward.own, true);
        assert_eq!(lease.take(documents).await, Ok(true));
        lease.register(&own);
        let promise = Promise { ms: 60_000, term: 1 };
        own.promised("b", RingLease::now(), &Report { promise, ..Report::default() });

        let (written, id) = documents.read().await.expect("documents").alive.get("a").expect("alive");
        let ended = Lease { id: id.expect("a lease"), duration: MINUTE, until: Default::default() };
        registry(&store).revoke(&ended).await.expect("ended");
        documents.read().await.expect("documents");
        // The node takes another lease and binds its document to it; then the map cannot be read, once.
        let (mut changes, mut fails) = (0, true);
        store.rule(move |call| match call.op {
            Op::WriteFull => {
                changes += 1;
                Verdict::Pass
            }
            Op::Read if changes == 2 && std::mem::take(&mut fails) => {
                Verdict::Fail(blocker::Error::Retryable("away".into()))
            }
            _ => Verdict::Pass,
        });
        let is_renewed = async {
            while [None, Some(written)].contains(&steward.written.get()) {
                tokio::task::yield_now().await;
            }
        };
        let renewed = timeout(MINUTE, async {
            tokio::select! {
                () = steward.keep_lease(lease) => panic!("the task has ended"),
                () = is_renewed => {}
            }
        });
        renewed.await.expect("another lease");
        assert!(own.renewed(RingLease::now()), "the node would lapse with the promises of its warden");
    });
}

#[test]
fn a_node_signs_off_although_the_registry_is_away_for_a_moment() {
    run(async {
        let World { store, steward, _server } = world().await;
        let documents = &steward.documents;
        documents.read().await.expect("documents");
        let mut lease = NodeLease::new(&steward.own, true);
        assert_eq!(lease.take(documents).await, Ok(true));
        let alive = documents.read().await.expect("documents").alive;
        steward.written.set(alive.get("a").map(|(written, _)| written));
        // At first the documents cannot be read, and then not be changed.
        let mut away = vec![Op::WriteFull, Op::Read];
        store.rule(move |call| match away.pop_if(|op| *op == call.op) {
            Some(_) => Verdict::Fail(blocker::Error::Retryable("away".into())),
            None => Verdict::Pass,
        });
        steward.sign_off().await;
        let map = documents.read().await.expect("documents").map;
        assert_eq!(map.nodes()[0].process, ProcessState::Ended, "the next process would wait elsewhere");
    });
}

/// A worker may have hung while the items came, or the registry may have gone.
#[test]
fn the_source_of_a_move_keeps_its_slots_until_the_target_has_its_lease() {
    run(async {
        let slots: SlotSet = "0-9".parse().expect("slots");
        let both = Map::first("main", node("b", 23)).and_then(|map| map.join(node("a", 21)));
        let map = both.and_then(|map| map.begin_move("b", "a", slots)).expect("a move");
        let World { steward, _server, .. } = world_of(&map).await;
        let mut confirming = pin!(steward.confirm(map.version()));
        for _ in 0..10 {
            assert_eq!(poll_once(confirming.as_mut()).await, None, "it would be struck off with them");
            tokio::task::yield_now().await;
        }
        steward.live.ring_lease().expect("a ring").registered(RingLease::now());
        assert_eq!(timeout(MINUTE, confirming).await, Ok(true));
    });
}

#[test]
fn a_node_keeps_its_lease_while_its_server_ends() {
    let (store, own) = (SteeredStore::new(), Node { lease_ms: 1000, ..node("a", 21) });
    let table: RegistryTable = toml::from_str("kind = \"store\"").expect("a table");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (documents, lease) = runtime.block_on(async {
        let documents = Documents::new("main", registry(&store));
        let first = Map::first("main", own.clone()).expect("a map");
        documents.write(None, &first, Guards::default()).await.expect("documents");
        documents.read().await.expect("documents");
        let mut lease = NodeLease::new(&own, true);
        assert_eq!(lease.take(&documents).await, Ok(true));
        (documents, lease)
    });
    let ring = Some(Arc::new(settings(&own)));
    let server = Settings { listen: Vec::new(), threads: 1, ring, ..Settings::default() };
    let server = Server::open(server, Logging::embedded(0)).expect("a server");
    let joined = Joined { runtime, table, store: None, documents, own, lease, hand_over_max: MINUTE };
    let steward = Steward::start(joined, (server.live(), server.drain()), None).expect("a thread");
    steward.begin();
    steward.request_end();
    // One change may have been under way.
    let (before, deadline) = (store.count(Op::WriteFull), std::time::Instant::now() + MINUTE);
    while store.count(Op::WriteFull) < before + 2 {
        assert!(std::time::Instant::now() < deadline, "the lease is not renewed");
        std::thread::yield_now();
    }
}

#[test]
fn a_move_that_could_not_be_committed_copies_nothing() {
    run(async {
        let long = "b".repeat(cached_ring::NAME_BYTES_MAX);
        let both = Map::first("main", node(&long, 23)).and_then(|map| map.join(node("a", 21)));
        let World { steward, _server, .. } = world_of(&both.expect("a map")).await;
        // Each of them would be a run of its own, between two with a long name.
        let slots: Vec<String> = (0..2000).step_by(2).map(|slot: u16| slot.to_string()).collect();
        let slots: SlotSet = slots.join(",").parse().expect("slots");
        let moved = timeout(MINUTE, steward.move_one(&long, slots)).await;
        assert_eq!(moved, Ok(Outcome::Failed));
        assert!(steward.documents.read().await.expect("documents").map.moves().is_empty());
    });
}
