//! Faults of the cluster: the OSD killed, paused or full, the pool deleted. No acknowledged data
//! are lost, errors name the cause, and the client recovers by itself.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use blocker::executor::{block_on, poll_times};
use blocker::metrics::{Collect, Number};
use blocker::{
    Blocker, BlockerExt, ClaimRequest, Clock, DeleteRequest, Epoch, Error, Event, InfoRequest, ObjectId,
    ReadRequest, Scope, SystemClock, WriteRequest, WriterId,
};
use blocker_rados::{RadosConfig, RadosStore};

use crate::support::{Cluster, eventually, object, read, write};

/// One cluster is exposed to one fault after the other.
#[test]
#[ignore = "long: ceph, beyond the contract"]
fn trouble_below_is_survived() {
    let Some(cluster) = Cluster::up("bluestore") else { return };
    let part = |name: &str, part: fn(&Cluster)| {
        let start = Instant::now();
        part(&cluster);
        println!("{name}: {:.1} s", start.elapsed().as_secs_f64());
    };
    part("what is missing is named", what_is_missing_is_named_in_one_line);
    part("cancelled calls", cancelled_calls_leave_nothing_behind);
    part("osd killed", nothing_acknowledged_is_lost_when_the_osd_is_killed);
    part("osd paused", a_change_that_comes_late_is_refused);
    part("closed without the osd", a_store_is_closed_in_time_while_the_osd_does_not_respond);
    part("cluster full", a_full_cluster_says_so_and_recovers);
    part("pool deleted", a_deleted_pool_is_waited_for);
}

fn what_is_missing_is_named_in_one_line(cluster: &Cluster) {
    let fails = |change: &dyn Fn(&mut RadosConfig), kind: &str, word: &str| {
        let mut config = cluster.config();
        change(&mut config);
        let error = RadosStore::open(config).err().expect("opening must fail");
        let text = error.to_string();
        assert!(error.kind() == kind && text.contains(word) && text.lines().count() == 1, "{kind}: {text}");
    };
    fails(&|config| config.pool = "nowhere".into(), "denied", "no pool \"nowhere\"");
    fails(&|config| config.conf_file = Some("/nowhere".into()), "invalid", "/nowhere");
    fails(
        &|config| config.librados = vec![("no_such_setting".into(), "1".into())],
        "invalid",
        "no_such_setting",
    );
    let option = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let no_monitor = move |config: &mut RadosConfig| {
        config.connect_timeout = Duration::from_secs(1);
        config.librados = vec![option("mon_host", "127.0.0.1:1")];
    };
    fails(&no_monitor, "retryable", "no monitor has responded");
    let no_key = move |config: &mut RadosConfig| {
        config.keyring = Some("/nowhere".into());
        config.librados =
            vec![option("auth_client_required", "cephx"), option("auth_cluster_required", "cephx")];
    };
    fails(&no_key, "denied", "keyring");
}

fn cancelled_calls_leave_nothing_behind(cluster: &Cluster) {
    let store = cluster.open(&cluster.config());
    let data = vec![7; 65_536];
    for round in 0..300_u32 {
        let id = || object(format!("cut-{}", round % 7));
        let polls = round as usize % 4;
        let patience = Duration::from_micros(u64::from(round) * 10);
        poll_times(store.write(WriteRequest::new(id(), 0, data.clone())), polls, patience);
        poll_times(store.read(ReadRequest::new(id(), 0, 65_536)), polls, patience);
        poll_times(store.delete(DeleteRequest::new(id())), polls, patience);
    }
    // Until here, every change that was started has completed.
    let last = object("last");
    write(&*store, &last, b"x").unwrap();
    let start = Instant::now();
    while store.families().number("rados_operations_in_flight") != Some(Number::Integer(0)) {
        assert!(start.elapsed() < Duration::from_secs(180), "operations never end: {:?}", store.families());
        std::thread::yield_now();
    }
    let store = std::sync::Arc::into_inner(store).unwrap();
    assert!(store.close(Duration::from_secs(180)), "the connection does not close");
}

const KEYS: u64 = 6;
const BYTES: usize = 8192;

/// Returns content in which each 512 bytes contain the round that wrote them.
fn content(round: u64) -> Vec<u8> {
    round.to_le_bytes().repeat(BYTES / 8)
}

fn nothing_acknowledged_is_lost_when_the_osd_is_killed(cluster: &Cluster) {
    let mut config = cluster.config();
    config.op_timeout = Duration::from_secs(1);
    let store = cluster.open(&config);
    let key = |key: u64| object(format!("key-{key}"));
    let acknowledged: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let (stop, unknown) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|threads| {
        for (index, acknowledged) in acknowledged.iter().enumerate() {
            let (store, stop, unknown) = (&store, &stop, &unknown);
            threads.spawn(move || {
                let id = key(index as u64);
                for round in 1.. {
                    if stop.load(Ordering::Acquire) {
                        break;
                    }
                    match write(&**store, &id, &content(round)) {
                        Ok(()) => acknowledged.store(round, Ordering::Release),
                        Err(error) => {
                            assert!(error.is_retryable() || error.is_ambiguous(), "{error}");
                            unknown.fetch_add(u64::from(error.is_ambiguous()), Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        let total = || acknowledged.iter().map(|each| each.load(Ordering::Acquire)).sum::<u64>();
        for kill in 0..2 {
            let before = total();
            while total() < before + 100 {
                std::thread::yield_now();
            }
            cluster.dev("osd", &["kill"]);
            if kill == 0 {
                // The loop runs until an operation has timed out.
                while unknown.load(Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
            }
            // The second time, the OSD is back before its absence is noticed.
            cluster.dev("osd", &[if kill == 0 { "restart" } else { "bounce" }]);
            let before = total();
            let start = Instant::now();
            while total() < before + KEYS {
                assert!(start.elapsed() < Duration::from_secs(180), "no recovery: {:?}", store.families());
                std::thread::yield_now();
            }
        }
        stop.store(true, Ordering::Release);
    });
    for (index, acknowledged) in acknowledged.iter().enumerate() {
        let found = eventually("read", || read(&*store, &key(index as u64)));
        let round = u64::from_le_bytes(found[..8].try_into().unwrap());
        let acknowledged = acknowledged.load(Ordering::Acquire);
        assert!(found == content(round), "key {index} is torn");
        assert!(
            round >= acknowledged,
            "key {index}: round {acknowledged} was acknowledged, {round} is there"
        );
    }
    assert!(unknown.load(Ordering::Relaxed) > 0);
}

fn a_change_that_comes_late_is_refused(cluster: &Cluster) {
    let patient = cluster.config();
    let mut config = patient.clone();
    config.op_timeout = Duration::from_secs(1);
    let store = cluster.open(&config);
    let mut subscriber = store.subscribe();
    let (one, two) = (object("one"), object("two"));
    for id in [&one, &two] {
        eventually("write", || write(&*store, id, b"first"));
    }
    // Another client has seen the object's earlier state.
    let other = cluster.open(&patient);
    write(&*other, &one, b"first").unwrap();
    cluster.dev("osd", &["pause"]);
    let begun = Instant::now();
    let late = write(&*store, &one, b"late!");
    assert!(matches!(late, Err(Error::OutcomeUnknown(_))), "{late:?}");
    // A call returns by its deadline, whatever the OSD does.
    let deadline = SystemClock.now() + Duration::from_millis(100);
    let request = WriteRequest::new(two.clone(), 0, b"late?").deadline(deadline);
    let late = block_on(store.write(request));
    assert!(matches!(late, Err(Error::OutcomeUnknown(_))), "{late:?}");
    // The next read or write must first find out the outcome of that change.
    let unread = read(&*store, &one);
    assert!(matches!(unread, Err(Error::Retryable(_))), "{unread:?}");
    let next = write(&*store, &one, b"newer");
    assert!(matches!(next, Err(Error::Retryable(_))), "{next:?}");
    // Without the deadline, the OSD would never answer.
    assert!(begun.elapsed() < Duration::from_secs(60), "answers took {:?}", begun.elapsed());
    assert_eq!(store.families().number("rados_objects_unsettled"), Some(Number::Integer(2)));
    assert!(matches!(subscriber.try_next(), Some(Event::Degraded(_))));
    cluster.dev("osd", &["resume"]);
    for id in [&one, &two] {
        eventually("write", || write(&*store, id, b"newer"));
        // Once a later change of the same object is done, everything queued before it at the OSD is
        // done too.
        eventually("write", || write(&*store, id, b"newer"));
        assert_eq!(eventually("read", || read(&*store, id)), b"newer");
    }
    assert_eq!(store.families().number("rados_objects_unsettled"), Some(Number::Integer(0)));
    // Determining the outcome has changed the object's gate, the random number that every change
    // compares. So the store refuses a change prepared before it, from any client, and the change has
    // to be prepared again. That keeps the late change out.
    assert_eq!(other.families().number("rados_changes_retried_total"), Some(Number::Integer(0)));
    write(&*other, &one, b"other").unwrap();
    assert_eq!(other.families().number("rados_changes_retried_total"), Some(Number::Integer(1)));
    assert_eq!(subscriber.try_next(), Some(Event::Recovered));
}

fn a_store_is_closed_in_time_while_the_osd_does_not_respond(cluster: &Cluster) {
    let mut config = cluster.config();
    // To end the watch takes until the OSD responds.
    (config.watch, config.op_timeout) = (true, Duration::ZERO);
    let store = RadosStore::open(config).unwrap();
    cluster.dev("osd", &["pause"]);
    assert!(!store.close(Duration::from_millis(10)), "the watch has ended without the OSD");
    cluster.dev("osd", &["resume"]);
}

fn a_full_cluster_says_so_and_recovers(cluster: &Cluster) {
    let store = cluster.open(&cluster.config());
    let mut subscriber = store.subscribe();
    let names: Vec<ObjectId> = (0..3).map(|n| object(format!("full-{n}"))).collect();
    for id in &names {
        write(&*store, id, b"before").unwrap();
    }
    cluster.dev("full", &["on"]);
    let new = object("too-much");
    let start = Instant::now();
    let error = loop {
        match write(&*store, &new, &[1; 4096]) {
            Err(error) => break error,
            Ok(()) => assert!(start.elapsed() < Duration::from_secs(180), "a full cluster takes everything"),
        }
        block_on(store.delete(DeleteRequest::new(new.clone()))).unwrap();
    };
    assert!(matches!(error, Error::OutOfSpace(_)), "{error}");
    assert_eq!(subscriber.try_next(), Some(Event::Full));
    // Existing objects can be read and removed.
    assert_eq!(read(&*store, &names[0]).unwrap(), b"before");
    block_on(store.delete(DeleteRequest::new(names[0].clone()))).unwrap();
    cluster.dev("full", &["off"]);
    eventually("write", || write(&*store, &new, &[1; 4096]));
    assert_eq!(read(&*store, &names[1]).unwrap(), b"before");
}

fn a_deleted_pool_is_waited_for(cluster: &Cluster) {
    cluster.dev("pool", &["create", "passing"]);
    let mut config = cluster.config();
    config.pool = "passing".into();
    config.watch = true;
    let store = cluster.open(&config);
    let mut subscriber = store.subscribe();
    let id = object("x");
    write(&*store, &id, b"before").unwrap();
    let version = block_on(store.info(InfoRequest::new(id.clone()))).unwrap().version;
    cluster.dev("pool", &["delete", "passing"]);
    let start = Instant::now();
    loop {
        match read(&*store, &id) {
            // The error must not be `Missing`, because the object exists.
            Err(error) => {
                assert!(
                    matches!(&error, Error::Retryable(text) if text.contains("\"passing\" is gone")),
                    "{error}"
                );
                break;
            }
            Ok(_) => assert!(start.elapsed() < Duration::from_secs(180), "a deleted pool can be read"),
        }
    }
    let refused = write(&*store, &id, b"nowhere");
    assert!(matches!(refused, Err(Error::Retryable(_))), "{refused:?}");
    cluster.dev("pool", &["create", "passing"]);
    eventually("write", || write(&*store, &id, b"after!"));
    assert_eq!(read(&*store, &id).unwrap(), b"after!");
    let after = block_on(store.info(InfoRequest::new(id.clone()))).unwrap().version;
    assert_ne!(version, after, "a version stands for two contents");
    let events: Vec<Event> = std::iter::from_fn(|| subscriber.try_next()).collect();
    assert!(events.contains(&Event::Missed), "{events:?}");
    // Events of other clients arrive again once the new pool is watched.
    let (other, scope, start) = (cluster.open(&config), Scope::Object(id), Instant::now());
    for epoch in (1..).map(Epoch) {
        block_on(other.claim(ClaimRequest::new(scope.clone(), epoch, WriterId(1)))).unwrap();
        let fenced = Event::Fenced(scope.clone(), epoch);
        if std::iter::from_fn(|| subscriber.try_next()).any(|event| event == fenced) {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(180), "the new pool is not watched");
    }
}
