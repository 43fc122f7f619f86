//! A server that restarts: with other limits, properly or after a crash, over its own store or
//! another one.

use std::sync::Arc;
use std::time::Duration;

use blocker::*;
use cached_core::object::{ObjectCache, ObjectCacheConfig, Writer};
use synapse::{NodeRecord, SynapseBlocker};

use crate::support::environment::clock::TokioClock;
use crate::support::environment::sim_server::{SimServer, client_config, server_config, simulate};
use crate::support::layers::{Caching, Promising};
use crate::support::net::plan::Plan;

const TIMEOUT: Duration = Duration::from_secs(5);

fn object(name: &str) -> ObjectId {
    ObjectId::new(Namespace::new("n").unwrap(), Name::copy_from(name.as_bytes()).unwrap())
}

/// Returns a server for `store` on a network without faults.
fn server(clock: TokioClock, store: Arc<dyn Blocker>) -> Arc<SimServer> {
    SimServer::open(store, |_| Plan::default(), clock, server_config(clock))
}

/// Returns a write-back cache over a client of the server.
fn front(server: &SimServer, client: &SynapseBlocker) -> ObjectCache {
    let mut config = ObjectCacheConfig::default();
    (config.memory_bytes_max, config.dirty_bytes_max) = (8 << 20, 4 << 20);
    (config.write, config.writer) = (WriteMode::Back, Writer::Callers);
    config.dirty_age_max = Duration::from_secs(1 << 20);
    let (cache, background) =
        ObjectCache::new(Arc::new(client.clone()), config, Arc::new(server.clock)).unwrap();
    tokio::spawn(background);
    cache
}

async fn content(store: &dyn Blocker, id: ObjectId) -> Vec<u8> {
    store.read(ReadRequest::new(id, 0, 1 << 20)).await.unwrap().data.to_vec()
}

#[test]
fn a_cache_loses_nothing_when_its_server_restarts_with_smaller_limits() {
    simulate(async {
        let clock = TokioClock::new();
        let store = Arc::new(clock.memory());
        let server = server(clock, Arc::clone(&store) as _);
        let client = server.client().await;
        let front = front(&server, &client);
        let payload: Vec<u8> = (0..200_000_u32).map(|at| at as u8).collect();
        let written = front.write(WriteRequest::new(object("o"), 0, payload.clone())).await.unwrap();
        assert_eq!(written.durability, Durability::Cached);
        server.reconfigure(|config| (config.request_bytes_max, config.list_entries_max) = (8192, 7));
        server.restart().await;
        // Requests in transit are refused; the data are kept and split again.
        let mut flushed = front.flush(FlushRequest::new(Scope::All)).into_future().await;
        if let Err(Error::NotStored(_)) = flushed {
            flushed = front.flush(FlushRequest::new(Scope::All)).into_future().await;
        }
        flushed.unwrap();
        assert!(content(&*store, object("o")).await == payload, "what was acknowledged is not stored");
        let can = client.capabilities();
        assert_eq!((can.request_bytes_max, can.list_entries_max), (8192, 7));
        // The client splits reads into smaller pieces too.
        front.invalidate(InvalidateRequest::new(Scope::All)).await.unwrap();
        assert!(content(&front, object("o")).await == payload);
        // Then the server accepts larger requests again, with higher limits than at any time
        // before.
        server.reconfigure(|config| (config.request_bytes_max, config.list_entries_max) = (8 << 20, 1000));
        server.restart().await;
        front.write(WriteRequest::new(object("p"), 0, payload.clone())).await.unwrap();
        front.flush(FlushRequest::new(Scope::All)).await.unwrap();
        assert_eq!(client.capabilities().list_entries_max, 1000);
    });
}

#[test]
fn a_request_beyond_the_limits_of_the_restarted_server_is_refused_and_others_succeed() {
    simulate(async {
        let clock = TokioClock::new();
        let server = server(clock, Arc::new(clock.memory()));
        let client = server.client().await;
        client.write(WriteRequest::new(object("o"), 0, vec![1; 100_000])).await.unwrap();
        server.reconfigure(|config| (config.request_bytes_max, config.list_entries_max) = (8192, 7));
        server.kill();
        // The call waits for the server, but was prepared for its earlier limits.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let large =
            tokio::spawn(client.write(WriteRequest::new(object("o"), 0, vec![2; 100_000])).into_future());
        let list = tokio::spawn(client.list(ListRequest::new(object("o").namespace)).into_future());
        let read = tokio::spawn(client.read(ReadRequest::new(object("o"), 0, 100_000)).into_future());
        let small = tokio::spawn(client.write(WriteRequest::new(object("p"), 0, b"small")).into_future());
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.start();
        let limit_bytes = 8192;
        assert_eq!(large.await.unwrap().unwrap_err(), Error::TooLarge { limit_bytes });
        assert_eq!(read.await.unwrap().unwrap_err(), Error::TooLarge { limit_bytes });
        small.await.unwrap().unwrap();
        list.await.unwrap().unwrap();
        assert_eq!(client.counters().connects, 2, "the connection was lost over it");
    });
}

#[test]
fn a_server_that_promises_less_is_refused_until_it_promises_as_much_again() {
    simulate(async {
        let clock = TokioClock::new();
        let store = Arc::new(clock.memory());
        let promising = |change: fn(&mut Capabilities)| {
            let mut can = store.capabilities();
            change(&mut can);
            Arc::new(Promising { inner: Arc::clone(&store) as _, can })
        };
        let server = server(clock, promising(|can| can.fencing = false));
        let client = server.client().await;
        // Higher limits than before are accepted.
        server.replace_store(promising(|_| ()));
        server.restart().await;
        client.write(WriteRequest::new(object("o"), 0, b"x")).await.unwrap();
        assert!(client.capabilities().fencing);
        type Change = fn(&mut Capabilities);
        let cases: [(Change, &str); 5] = [
            (|can| can.fencing = false, "fencing"),
            (|can| can.conditions = false, "conditions"),
            (|can| can.tombstones = false, "delete is remembered"),
            (|can| can.crash_atomic_bytes = 512, "survive a crash whole"),
            (|can| can.atomic_bytes = 4096, "atomic writes"),
        ];
        for (change, words) in cases {
            server.replace_store(promising(change));
            server.restart().await;
            tokio::time::sleep(TIMEOUT).await;
            let mut write = WriteRequest::new(object("o"), 0, b"y");
            write.call.deadline = Some(server.clock.now() + Duration::from_secs(300));
            let error = client.write(write).await.unwrap_err();
            assert!(matches!(&error, Error::Retryable(text) if text.contains(words)), "{words}: {error}");
            server.replace_store(promising(|_| ()));
            server.restart().await;
            tokio::time::sleep(TIMEOUT).await;
            client.write(WriteRequest::new(object("o"), 0, b"z")).await.unwrap();
        }
    });
}

/// Shuts the server down like a program that has stored everything, and restarts it.
async fn planned_restart(server: &SimServer, store: &dyn Blocker) {
    let instance = server.instance();
    server.kill();
    NodeRecord::close(store, instance, &server.clock, TIMEOUT).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let record = NodeRecord::open(store, &server.clock, TIMEOUT).await.unwrap();
    server.reconfigure(|config| record.apply(config));
    server.start();
}

fn lost(answer: Result<FlushReply>) -> bool {
    matches!(answer, Err(Error::WritesLost(_)))
}

#[test]
fn a_planned_restart_is_no_loss_and_a_crash_after_it_is() {
    simulate(async {
        let clock = TokioClock::new();
        let store = Arc::new(clock.memory());
        let below = Arc::new(Caching(Arc::clone(&store) as _));
        let server = server(clock, below);
        let record = NodeRecord::open(&*store, &server.clock, TIMEOUT).await.unwrap();
        server.reconfigure(|config| record.apply(config));
        server.restart().await;
        let client = server.client().await;
        let full = |name| client.write_full(WriteFullRequest::new(object(name), b"cached"));
        let flush = |scope| client.flush(FlushRequest::new(scope));
        assert_eq!(full("before").await.unwrap().durability, Durability::Cached);
        // The server restarts twice, so that the client learns of the first restart only after the
        // second.
        planned_restart(&server, &*store).await;
        planned_restart(&server, &*store).await;
        flush(Scope::All).await.unwrap();
        assert_eq!(full("after").await.unwrap().durability, Durability::Cached);
        server.restart().await;
        assert!(lost(flush(Scope::All).into_future().await));
        assert!(lost(flush(Scope::Object(object("after"))).into_future().await));
        flush(Scope::Object(object("before"))).await.unwrap();
        // An orderly end of a later instance does not make up for data that an earlier instance has
        // lost.
        planned_restart(&server, &*store).await;
        assert!(lost(flush(Scope::All).into_future().await));
        full("after").await.unwrap();
        flush(Scope::All).await.unwrap();
    });
}

/// An invalidation drops clean copies. The server's cache keeps dirty data, which a crash loses.
#[test]
fn what_a_server_has_not_stored_is_lost_with_it_in_spite_of_an_invalidation() {
    simulate(async {
        let clock = TokioClock::new();
        let server = server(clock, Arc::new(Caching(Arc::new(clock.memory()))));
        let client = server.client().await;
        let invalidate = || client.invalidate(InvalidateRequest::new(Scope::All));
        let flush = || client.flush(FlushRequest::new(Scope::All)).into_future();
        let written = client.write(WriteRequest::new(object("o"), 0, b"x")).await.unwrap();
        assert_eq!(written.durability, Durability::Cached);
        invalidate().await.unwrap();
        server.restart().await;
        assert!(lost(flush().await));
        client.invalidate(InvalidateRequest::new(Scope::All).accepts_losses(false)).await.unwrap();
        assert!(lost(flush().await), "nobody has accepted the loss");
        invalidate().await.unwrap();
        flush().await.unwrap();
    });
}

#[test]
fn a_server_that_comes_back_over_another_store_is_refused_until_it_is_the_same_again() {
    simulate(async {
        let clock = TokioClock::new();
        let stores = [Arc::new(clock.memory()), Arc::new(clock.memory())];
        let server = server(clock, Arc::new(Caching(Arc::clone(&stores[0]) as _)));
        let serve = async |number: usize| {
            let store = &stores[number];
            let record = NodeRecord::open(&**store, &server.clock, TIMEOUT).await.unwrap();
            server.reconfigure(|config| record.apply(config));
            let mut can = store.capabilities();
            can.survives = Survives::PowerLoss;
            let inner = Arc::new(Caching(Arc::clone(store) as _));
            server.replace_store(Arc::new(Promising { inner, can }));
            server.restart().await;
        };
        serve(0).await;
        let mut config = client_config(&server);
        config.reconnect_timeout = Duration::from_secs(10);
        let client = server.client_with(config).await;
        client.write_full(WriteFullRequest::new(object("o"), b"here")).await.unwrap();
        client.flush(FlushRequest::new(Scope::All)).await.unwrap();
        serve(1).await;
        let refused = |error: Error| {
            let is_refusal =
                matches!(&error, Error::Retryable(text) if text.contains("serves another store"));
            assert!(is_refusal, "{error}");
        };
        refused(client.flush(FlushRequest::new(Scope::All)).into_future().await.unwrap_err());
        refused(client.read(ReadRequest::new(object("o"), 0, 4)).into_future().await.map(drop).unwrap_err());
        assert_eq!(stores[1].info(InfoRequest::new(object("o"))).await.unwrap_err(), Error::Missing);
        // A server without an identity may have any store.
        server.reconfigure(|config| config.store = None);
        server.restart().await;
        tokio::time::sleep(TIMEOUT).await;
        refused(client.flush(FlushRequest::new(Scope::All)).into_future().await.unwrap_err());
        serve(0).await;
        tokio::time::sleep(TIMEOUT).await;
        assert_eq!(content(&client, object("o")).await, b"here");
        assert_eq!(
            client.store(),
            Some(NodeRecord::open(&*stores[0], &server.clock, TIMEOUT).await.unwrap().store())
        );
    });
}

#[test]
fn a_claim_far_beyond_the_epoch_in_force_does_not_lock_a_namespace() {
    simulate(async {
        let clock = TokioClock::new();
        let server = server(clock, Arc::new(clock.memory()));
        let client = server.client().await;
        let scope = Scope::Namespace(object("o").namespace);
        let claim =
            |epoch, writer| client.claim(ClaimRequest::new(scope.clone(), Epoch(epoch), WriterId(writer)));
        let error = claim(u64::MAX, 1).into_future().await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
        claim(1, 1 << 100 | 7).await.unwrap();
        // The same writer may claim again, another one may not, and a claim without a writer is
        // invalid.
        claim(1, 1 << 100 | 7).await.unwrap();
        assert_eq!(claim(1, 7).into_future().await.unwrap_err(), Error::Fenced { epoch: Epoch(1) });
        let anonymous = claim(2, 0).into_future().await.unwrap_err();
        assert!(matches!(anonymous, Error::Invalid(_)), "{anonymous}");
        let write = WriteRequest::new(object("o"), 0, b"x").stamp(Stamp::new(1, 1));
        client.write(write).await.unwrap();
    });
}

#[test]
fn reserved_namespaces_are_hidden_from_clients_and_refused_to_them() {
    simulate(async {
        let clock = TokioClock::new();
        let store = Arc::new(clock.memory());
        let record = NodeRecord::open(&*store, &clock, TIMEOUT).await.unwrap();
        let server = server(clock, Arc::clone(&store) as _);
        server.reconfigure(|config| {
            record.apply(config);
            config.allow_namespace_changes = true;
        });
        server.restart().await;
        let client = server.client().await;
        client.write(WriteRequest::new(object("o"), 0, b"x")).await.unwrap();
        let own: Namespace = ".synapse".parse().unwrap();
        let id = ObjectId::new(own.clone(), Name::new("node").unwrap());
        let other = object("o");
        fn refused<T>(what: &str, answer: Result<T>) {
            match answer {
                Err(Error::Denied(why)) => assert!(why.contains("reserved"), "{what}: {why}"),
                Err(error) => panic!("{what}: {error}"),
                Ok(_) => panic!("{what} is not refused"),
            }
        }
        macro_rules! refuses {
            ($($request:expr),* $(,)?) => { $(refused(stringify!($request), $request.into_future().await);)* };
        }
        let control = client.control();
        let scopes = [
            Scope::Object(id.clone()),
            Scope::Namespace(own.clone()),
            Scope::Domain(own.clone(), OrderDomain(1)),
        ];
        for scope in scopes {
            refuses!(
                client.flush(FlushRequest::new(scope.clone())),
                client.claim(ClaimRequest::new(scope.clone(), Epoch(1), WriterId(1))),
                client.invalidate(InvalidateRequest::new(scope.clone())),
            );
        }
        refuses!(
            client.read(ReadRequest::new(id.clone(), 0, 1)),
            client.info(InfoRequest::new(id.clone())),
            client.list(ListRequest::new(own.clone())),
            client.write(WriteRequest::new(id.clone(), 0, b"x")),
            client.write_full(WriteFullRequest::new(id.clone(), b"x")),
            client.write_zeroes(WriteZeroesRequest::new(id.clone(), 0, 1)),
            client.write_runs(WriteRunsRequest::new(id.clone(), vec![Run::zeroes(0, 1)])),
            client.discard(DiscardRequest::new(id.clone(), 0, 1)),
            client.compare_and_write(CompareAndWriteRequest::new(id.clone(), 0, b"S", b"x")),
            client.truncate(TruncateRequest::new(id.clone(), 0)),
            client.delete(DeleteRequest::new(id.clone())),
            client.copy(CopyRequest::new(other.clone(), id.clone())),
            client.copy(CopyRequest::new(id.clone(), other.clone())),
            control.attach(own.clone()),
            control.detach(own.clone()),
            control.policy(own.clone()),
            control.set_policy(own.clone(), Policy::default()),
            control.quota(own.clone()),
            control.set_quota(own.clone(), Some(1)),
            control.namespace_state(own.clone()),
            control.change_namespace(own.clone(), WriteMode::Back.into()),
            control.remove_namespace(own.clone(), DirtyData::Discard),
        );
        assert_eq!(control.namespaces().await.unwrap(), std::slice::from_ref(&other.namespace));
        // If a server's own store is this one, the server keeps its record there.
        let mut config = client_config(&server);
        config.is_server = true;
        let front = server.client_with(config).await;
        assert_eq!(NodeRecord::open(&front, &clock, TIMEOUT).await.unwrap(), record);
        NodeRecord::close(&front, [7; 16], &clock, TIMEOUT).await.unwrap();
        assert_ne!(NodeRecord::open(&*store, &clock, TIMEOUT).await.unwrap(), record);
        assert_eq!(front.control().namespaces().await.unwrap(), [own, other.namespace]);
    });
}

#[test]
fn a_damaged_record_is_refused_with_the_way_out() {
    simulate(async {
        let clock = TokioClock::new();
        let store = clock.memory();
        let before = NodeRecord::open(&store, &clock, TIMEOUT).await.unwrap();
        let id: ObjectId = ".synapse/node".parse().unwrap();
        store.write(WriteRequest::new(id.clone(), 9, b"damage")).await.unwrap();
        let error = NodeRecord::open(&store, &clock, TIMEOUT).await.unwrap_err();
        let way_out = "cachectl --backend BACKEND --namespace .synapse rm node";
        assert!(matches!(&error, Error::Corrupt(why) if why.contains(way_out)), "{error}");
        store.delete(DeleteRequest::new(id)).await.unwrap();
        assert_ne!(NodeRecord::open(&store, &clock, TIMEOUT).await.unwrap().store(), before.store());
    });
}

#[test]
fn a_store_in_memory_that_comes_back_without_anything_is_accepted_and_reported() {
    simulate(async {
        let clock = TokioClock::new();
        let store = Arc::new(clock.memory());
        let server = server(clock, Arc::clone(&store) as _);
        let serve = async |store: &Arc<Memory>| {
            let record = NodeRecord::open(&**store, &server.clock, TIMEOUT).await.unwrap();
            server.reconfigure(|config| record.apply(config));
            server.replace_store(Arc::clone(store) as _);
            server.restart().await;
        };
        serve(&store).await;
        let client = server.client().await;
        let mut events = client.subscribe();
        let front = front(&server, &client);
        let write = |name| front.write(WriteRequest::new(object(name), 0, vec![7; 10_000]));
        write("stored").await.unwrap();
        front.flush(FlushRequest::new(Scope::All)).await.unwrap();
        write("dirty").await.unwrap();
        assert_eq!(content(&front, object("stored")).await.len(), 10_000);
        for round in 0..3 {
            let empty = Arc::new(clock.memory());
            serve(&empty).await;
            // Dirty data are stored, and all previously stored data are lost.
            tokio::time::sleep(TIMEOUT).await;
            front.flush(FlushRequest::new(Scope::All)).await.unwrap();
            assert_eq!(content(&*empty, object("dirty")).await, [7; 10_000], "round {round}");
            assert_eq!(front.info(InfoRequest::new(object("stored"))).await.unwrap_err(), Error::Missing);
            let names = front.list(ListRequest::new(object("dirty").namespace)).await.unwrap().entries;
            assert_eq!(names.len(), 1);
            let emptied =
                std::iter::from_fn(|| events.try_next()).filter(|event| *event == Event::Emptied).count();
            assert_eq!(emptied, 1, "round {round}");
            write("dirty").await.unwrap();
        }
        // A store that survives a power loss cannot have become empty, so another identity means
        // another store.
        let mut can = store.capabilities();
        can.survives = Survives::PowerLoss;
        let record = NodeRecord::open(&*store, &server.clock, TIMEOUT).await.unwrap();
        server.reconfigure(|config| record.apply(config));
        server.replace_store(Arc::new(Promising { inner: Arc::clone(&store) as _, can }));
        server.restart().await;
        tokio::time::sleep(TIMEOUT).await;
        let mut read = ReadRequest::new(object("dirty"), 0, 4);
        read.call.deadline = Some(server.clock.now() + Duration::from_secs(300));
        let refused = client.read(read).into_future().await.map(drop).unwrap_err();
        assert!(refused.to_string().contains("serves another store"), "{refused}");
    });
}
