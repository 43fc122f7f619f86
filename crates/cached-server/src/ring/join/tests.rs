//! Starts of processes of nodes, step by step, with a registry in memory.

use super::*;
use crate::ring::documents::Documents;
use crate::ring::lease::Renewed;
use blocker::Memory;
use cached_memcached::settings::RingSecrets;
use cached_registry::{Key, Lease, RegistryTable};
use cached_ring::hello::{Frame, Greeting};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;

pub(in crate::ring) const MINUTE: Duration = Duration::from_secs(60);

fn registry() -> Registry {
    let table: RegistryTable = toml::from_str("kind = \"store\"").expect("a table");
    Registry::open(&table, Some(Arc::new(Memory::default()))).expect("a registry")
}

pub(in crate::ring) fn node(name: &str, port: u16) -> Node {
    let own = Node::new(name, format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", port + 1));
    Node { lease_ms: 60_000, host: "first".into(), ..own }
}

pub(in crate::ring) fn settings(own: &Node) -> RingSettings {
    RingSettings {
        node: own.name.clone(),
        listen: Vec::new(),
        map: Arc::new(Map::first("main", own.clone()).expect("a map")),
        secrets: RingSecrets::default(),
        tls: None,
        peer_timeout: MINUTE,
        connect_timeout: MINUTE,
        peer_lanes_max: 1,
        has_leases: true,
    }
}

/// Makes all changes of a start. Returns how many lines it has logged, or the mistake.
async fn started(documents: &Documents, own: &Node) -> Result<usize, String> {
    started_with(documents, own, &mut NodeLease::new(own, true)).await
}

async fn started_with(documents: &Documents, own: &Node, lease: &mut NodeLease) -> Result<usize, String> {
    let mut lines = 0;
    loop {
        match step(documents, own, lease, (&settings(own), lines == 0)).await {
            Ok(None) => return Ok(lines),
            Ok(Some(_)) => lines += 1,
            Err(JoinError::Twin(line)) => return Err(line),
            Err(JoinError::MayAnswer(why)) => return Err(format!("waits: {why}")),
            Err(JoinError::Documents(error)) => return Err(error.to_string()),
        }
    }
}

pub(in crate::ring) fn run(test: impl Future<Output = ()>) {
    Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test);
}

#[test]
fn nodes_join_once_and_abort_what_earlier_processes_have_left() {
    run(async {
        let registry = registry();
        let (a, b) = (node("a", 21), node("b", 23));
        let ours = Documents::new("main", registry.clone());
        assert_eq!(started(&ours, &a).await, Ok(2));
        assert_eq!(
            started(&ours, &a).await,
            Ok(1),
            "a start takes a lease, and changes nothing that is right"
        );
        let theirs = Documents::new("main", registry.clone());
        assert_eq!(started(&theirs, &b).await, Ok(2));
        let map = ours.read().await.expect("documents").map;
        assert_eq!((map.version(), map.counts()), (2, vec![16384, 0]));
        let slots = map.next_move("b", &|_| Some(0)).expect("a move").1;
        let begun = theirs.change(|map| map.begin_move("a", "b", slots.clone())).await.expect("a move");
        assert_eq!(begun.moves().len(), 1);
        assert_eq!(started(&ours, &a).await, Ok(2));
        assert!(ours.read().await.expect("documents").map.moves().is_empty());
        // Other rings of the registry are not seen.
        let other = Documents::new("other", registry.clone());
        assert_eq!(started(&other, &node("a", 25)).await, Ok(2));
        let keys = registry.list("ring/main/").await.expect("documents").documents;
        let keys: Vec<&str> = keys.iter().map(|one| one.key.as_str()).collect();
        let alive = ["ring/main/alive/a", "ring/main/alive/b"];
        assert_eq!(keys[..2], alive);
        assert_eq!(keys[2..], ["ring/main/map", "ring/main/meta", "ring/main/nodes/a", "ring/main/nodes/b"]);
    });
}

#[test]
fn a_lease_is_the_nodes_and_counts_for_the_process_that_has_written_its_document() {
    run(async {
        let registry = registry();
        let [ours, theirs] = [0, 1].map(|_| Documents::new("main", registry.clone()));
        let own = node("a", 21);
        let mut lease = NodeLease::new(&own, true);
        assert_eq!(started_with(&ours, &own, &mut lease).await, Ok(2));
        lease.set_joined(None);
        let id = ours.alive().borrow().get("a").expect("alive").1;
        assert_eq!(lease.renew(&ours).await, Ok(Renewed::Own));
        // A process that takes over goes on with it, whatever its own configuration says.
        let mut next = NodeLease::new(&Node { lease_ms: 120_000, ..own.clone() }, false);
        assert_eq!(started_with(&theirs, &own, &mut next).await, Ok(1));
        next.set_joined(None);
        let (written, same) = theirs.alive().borrow().get("a").expect("alive");
        assert_eq!((same, next.renew(&theirs).await), (id, Ok(Renewed::Own)));
        assert_eq!(lease.renew(&ours).await, Ok(Renewed::Shared));
        // The take-over has failed.
        ours.read().await.expect("documents");
        assert_eq!(lease.take(&ours).await, Ok(true));
        assert_eq!(lease.renew(&ours).await, Ok(Renewed::Own));
        // What the other process has asked for is not done any more, nor is a living node struck off.
        let before = ours.read().await.expect("documents");
        let after = before.map.set_paused(true).expect("a map");
        for guards in [Guards { own: Some(("a", written)), lost: &[] }, Guards { own: None, lost: &["a"] }] {
            let refused = ours.write(Some(&before), &after, guards).await.expect_err("a guard");
            assert!(matches!(refused, DocumentsError::Registry(Error::Conflict { .. })), "{refused}");
        }
        let failed = ours.change_without(Some("a"), |map, _| Ok(map.clone())).await.expect_err("alive");
        assert!(failed.to_string().starts_with("node a holds its lease"), "{failed}");
        // A process that starts when this one seems to have ended replaces its lease, and this one does
        // not take it back.
        assert_eq!(started(&theirs, &own).await, Ok(1));
        assert_eq!(lease.renew(&ours).await, Ok(Renewed::No));
        ours.read().await.expect("documents");
        assert_eq!(lease.take(&ours).await, Ok(false));
    });
}

#[test]
fn a_node_moves_to_another_address_only_if_nothing_answers_at_the_earlier_one() {
    run(async {
        let documents = Documents::new("main", registry());
        let running = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let port = running.local_addr().expect("an address").port();
        // Another process of the name, which refuses a second one once.
        let twin = tokio::spawn(async move {
            let (mut stream, _) = running.accept().await.expect("a connection");
            let mut len = [0; 2];
            stream.read_exact(&mut len).await.expect("a frame");
            let mut frame = vec![0; Frame::len(len).expect("a length")];
            stream.read_exact(&mut frame).await.expect("a frame");
            let Ok(Frame::Hello(hello)) = Frame::decode(&frame) else { panic!("no HELLO") };
            let own = Greeting { incarnation: 0, ..hello.greeting.clone() };
            let refused = hello.check(&own).expect_err("a second process");
            stream.write_all(&Frame::Refused(refused).encode()).await.expect("sent");
        });
        let first = Node { ring: format!("127.0.0.1:{port}"), ..node("a", 21) };
        started(&documents, &first).await.expect("joined");
        let line = started(&documents, &node("a", 23)).await.expect_err("a twin");
        assert_eq!(
            line,
            format!(
                "is a, but a process of this name answers at 127.0.0.1:{port} (this process: 127.0.0.1:23); stop \
                 it, or give this node another name"
            )
        );
        twin.await.expect("the other process");
        // One that accepts a connection and says nothing may go on later, unless it has ended in order.
        let silent = TcpListener::bind(("127.0.0.1", port)).await.expect("the same port");
        let next = node("a", 23);
        let accept = async || drop(silent.accept().await);
        let ((), line) = tokio::join!(accept(), started(&documents, &next));
        assert_eq!(
            line,
            Err(format!("waits: nothing answers at 127.0.0.1:{port}, and the node is not struck off yet"))
        );
        documents.change(|map| map.sign_off("a")).await.expect("signed off");
        let ((), joined) = tokio::join!(accept(), started(&documents, &next));
        assert_eq!(joined, Ok(2));
        assert_eq!(started(&documents, &node("a", 27)).await, Ok(2), "nobody listens there");
        let map = documents.read().await.expect("documents").map;
        assert_eq!((map.nodes()[0].ring.as_str(), map.version()), ("127.0.0.1:27", 4));
        let same = started(&documents, &Node { name: "b".into(), ..node("a", 27) }).await.expect_err("same");
        assert!(same.starts_with("nodes a and b have the same address 127.0.0.1:2"), "{same}");
    });
}

#[test]
fn a_node_on_another_host_waits_for_the_end_of_its_earlier_process() {
    run(async {
        let registry = registry();
        let documents = Documents::new("main", registry.clone());
        let on = |host: &str, name: &str, port| Node { host: host.into(), ..node(name, port) };
        let end = async |node: &str| {
            documents.read().await.expect("documents");
            let id = documents.alive().borrow().get(node).and_then(|(_, lease)| lease).expect("a lease");
            let lease = Lease { id, duration: MINUTE, until: Default::default() };
            registry.revoke(&lease).await.expect("ended");
        };
        let waits = |why: &str| Err(format!("waits: a process {why}"));
        let claimed = waits("on another host has claimed the node, and has not joined yet");
        let claims = waits("on this host has claimed the node, and joins after the time of a lease");
        let waits = waits("of it on another host has not ended in order, and it is not struck off yet");
        let (a, b) = (on("first", "a", 21), on("first", "b", 23));
        assert_eq!(started(&documents, &a).await, Ok(2));
        assert_eq!(started(&documents, &b).await, Ok(2));
        documents.change(|map| map.set_warden("a", Some("b"))).await.expect("a warden");
        assert_eq!(started(&documents, &a).await, Ok(1), "its earlier process has ended with its address");
        assert_eq!(started(&documents, &on("", "a", 21)).await, waits, "a host that is not known");

        // Without the lease, also if it was never seen, the warden may still promise something, until it
        // strikes the node off.
        let a = on("second", "a", 21);
        assert_eq!(started(&documents, &a).await, waits);
        end("a").await;
        let mut lease = NodeLease::new(&a, true);
        assert_eq!(started_with(&documents, &a, &mut lease).await, waits);
        documents.change(|map| map.strike("a", "b", &|node| node == "b")).await.expect("struck off");
        assert_eq!(started_with(&documents, &a, &mut lease).await, Ok(2));

        // Without the lease of the warden nobody is left to strike the node off: it is claimed.
        documents.change(|map| map.set_warden("b", Some("a"))).await.expect("a warden");
        let elsewhere = on("second", "b", 23);
        assert_eq!(started(&documents, &elsewhere).await, waits);
        end("b").await;
        assert_eq!(started(&documents, &elsewhere).await, waits);
        end("a").await;
        let mut second = NodeLease::new(&elsewhere, true);
        let first = step(&documents, &elsewhere, &mut second, (&settings(&elsewhere), true)).await;
        assert!(first.is_ok_and(|line| line.is_some_and(|line| line.contains("this one joins after"))));
        assert_eq!(started_with(&documents, &elsewhere, &mut second).await, claims);
        assert_eq!(started(&documents, &on("third", "b", 23)).await, claimed);

        // A process that has ended in order need not be waited for.
        documents.change(|map| map.sign_off("b")).await.expect("signed off");
        assert_eq!(started(&documents, &on("third", "b", 23)).await, Ok(2));

        // One that runs, and finds that another one has taken its place, does not take it back.
        lease.set_joined(None);
        documents.change(|map| map.sign_off("a")).await.expect("signed off");
        assert_eq!(started(&documents, &on("third", "a", 21)).await, Ok(2));
        let refused = started_with(&documents, &a, &mut lease).await;
        assert!(refused.is_err_and(|line| line.contains("has taken its place")));
    });
}

#[test]
fn a_node_joins_on_another_host_although_no_other_node_runs() {
    run(async {
        let documents = Documents::new("main", registry());
        let brief = |host: &str| Node { lease_ms: 1000, host: host.into(), ..node("a", 21) };
        assert_eq!(started(&documents, &brief("first")).await, Ok(2));
        let own = brief("second");
        let own_settings = settings(&own);
        assert!(started(&documents, &own).await.is_err_and(|why| why.starts_with("waits: ")));
        // The lease, which nobody renews, stays in the registry until somebody watches.
        let (mut lease, mut waiting) = (NodeLease::new(&own, true), Waiting::new(|_| ()));
        let joined = join(&documents, &own, &mut lease, (&own_settings, true), &mut waiting);
        assert!(timeout(MINUTE, joined).await.is_ok_and(|joined| joined.is_ok()));
        let map = documents.read().await.expect("documents").map;
        assert!(map.nodes()[0].runs_on("second"));
    });
}

#[test]
fn a_change_is_made_from_the_latest_map_and_a_stale_one_is_refused() {
    run(async {
        let registry = registry();
        let (ours, theirs) =
            (Documents::new("main", registry.clone()), Documents::new("main", registry.clone()));
        started(&ours, &node("a", 21)).await.expect("joined");
        let before = ours.read().await.expect("documents");
        theirs.change(|map| map.join(node("b", 23))).await.expect("a change");
        let after = before.map.set_paused(true).expect("a map");
        let stale = ours.write(Some(&before), &after, Guards::default()).await.expect_err("stale");
        assert!(matches!(stale, DocumentsError::Registry(Error::Conflict { .. })), "{stale}");
        // One attempt meets the other's change, and the next one does not.
        let attempts = std::cell::Cell::new(0);
        let paused = ours.change(|map| {
            attempts.set(attempts.get() + 1);
            map.set_paused(true)
        });
        let (paused, weighted) = tokio::join!(paused, theirs.change(|map| map.set_weight("b", 3)));
        let versions = (paused.expect("paused").version(), weighted.expect("weighted").version());
        assert!(versions == (3, 4) || versions == (4, 3), "{versions:?}");
        let map = ours.read().await.expect("documents").map;
        assert_eq!((map.is_paused(), map.nodes()[1].weight, map.version()), (true, 3, 4));
        assert_eq!(ours.latest().borrow().as_ref().map(|map| map.version()), Some(4));
        let mistake = ours.change(|map| map.remove("a")).await.expect_err("it owns everything").to_string();
        assert!(mistake.starts_with("node a owns 16384 slots"), "{mistake}");
        // A mistake in the documents leaves the latest map.
        let key = Key::new("ring/main/meta").expect("a key");
        let meta = registry.get(&key).await.expect("read").expect("meta");
        let wrong = cached_registry::Change::put(key, cached_registry::Expect::At(meta.revision), "{}");
        registry.change_if(&[wrong]).await.expect("a change");
        let error = ours.read().await.expect_err("a mistake").to_string();
        assert!(error.starts_with("ring/main/meta: missing field"), "{error}");
        assert_eq!(ours.latest().borrow().as_ref().map(|map| map.version()), Some(4));
    });
}
