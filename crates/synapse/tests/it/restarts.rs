//! A server that restarts: with other limits, in order or after a crash, over its store or over another one.

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

/// A server for `store`, on a quiet network.
fn server(clock: TokioClock, store: Arc<dyn Blocker>) -> Arc<SimServer> {
    SimServer::open(store, |_| Plan::default(), clock, server_config(clock))
}

/// A write-back cache before a client of the server.
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
        // What was on its way is refused, kept, and split anew.
        let mut flushed = front.flush(FlushRequest::new(Scope::All)).into_future().await;
        if let Err(Error::NotStored(_)) = flushed {
            flushed = front.flush(FlushRequest::new(Scope::All)).into_future().await;
        }
        flushed.unwrap();
        assert!(content(&*store, object("o")).await == payload, "what was acknowledged is not stored");
        let can = client.capabilities();
        assert_eq!((can.request_bytes_max, can.list_entries_max), (8192, 7));
        // Reads come in smaller pieces as well.
        front.invalidate(InvalidateRequest::new(Scope::All)).await.unwrap();
        assert!(content(&front, object("o")).await == payload);
        // And larger ones again, with larger limits than ever.
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
        // Waits for the server, made for what it was.
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
        assert_eq!(client.counters()[0], ("connects", 2), "the connection was lost over it");
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
        // More than before is welcome.
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

/// Shuts the server down as a program does that has stored everything, and restarts it.
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
        // Twice, so that the client learns of the first instance only by the second restart.
        planned_restart(&server, &*store).await;
        planned_restart(&server, &*store).await;
        flush(Scope::All).await.unwrap();
        assert_eq!(full("after").await.unwrap().durability, Durability::Cached);
        server.restart().await;
        assert!(lost(flush(Scope::All).into_future().await));
        assert!(lost(flush(Scope::Object(object("after"))).into_future().await));
        flush(Scope::Object(object("before"))).await.unwrap();
        // That an instance ended in order later on makes nothing good of what one lost before.
        planned_restart(&server, &*store).await;
        assert!(lost(flush(Scope::All).into_future().await));
        full("after").await.unwrap();
        flush(Scope::All).await.unwrap();
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
            server.replace_store(Arc::new(Caching(Arc::clone(store) as _)));
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
        // One without any identity may be any store.
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
        // The writer may claim again, another writer may not, and a claim without a writer is invalid.
        claim(1, 1 << 100 | 7).await.unwrap();
        assert_eq!(claim(1, 7).into_future().await.unwrap_err(), Error::Fenced { epoch: Epoch(1) });
        let anonymous = claim(2, 0).into_future().await.unwrap_err();
        assert!(matches!(anonymous, Error::Invalid(_)), "{anonymous}");
        let write = WriteRequest::new(object("o"), 0, b"x").stamp(Stamp::new(1, 1));
        client.write(write).await.unwrap();
    });
}
