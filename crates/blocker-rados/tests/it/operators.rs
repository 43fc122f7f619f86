//! RADOS as operators run it: keys, three OSDs with copies, three monitors. One of each may fail at
//! any time; the client waits no longer than the cluster does, and no acknowledged data are lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use blocker::metrics::Collect;
use blocker_rados::{RadosConfig, RadosStore};

use crate::support::{Cluster, eventually, object, read, write};

/// One cluster is exposed to one fault after the other.
#[test]
#[ignore = "long: ceph, beyond the contract"]
fn one_of_each_may_go() {
    let start = Instant::now();
    let Some(cluster) = Cluster::up_as_operated() else { return };
    println!("up: {:.1} s", start.elapsed().as_secs_f64());
    let part = |name: &str, part: fn(&Cluster)| {
        let start = Instant::now();
        part(&cluster);
        println!("{name}: {:.1} s", start.elapsed().as_secs_f64());
    };
    part("keys", what_is_wrong_with_a_key_is_said_in_one_line);
    part("osd bounced", an_osd_that_restarts_unnoticed_is_found_again);
    part("osd hangs", an_osd_that_hangs_is_done_without);
    part("osd lost", two_of_three_copies_are_enough);
    part("monitor lost", two_of_three_monitors_are_enough);
}

fn what_is_wrong_with_a_key_is_said_in_one_line(cluster: &Cluster) {
    let fails = |change: &dyn Fn(&mut RadosConfig), words: &str| {
        let mut config = cluster.config();
        change(&mut config);
        let open = || RadosStore::open(config.clone()).err().expect("opening must fail");
        // On a busy machine a monitor may not answer in time; that error says nothing about keys.
        let error = (0..6).map(|_| open()).find(|error| !error.is_retryable()).expect("no monitor answers");
        let text = error.to_string();
        assert!(error.kind() == "denied" && text.contains(words), "{}: {text}, not {words}", error.kind());
        assert_eq!(text.lines().count(), 1, "{text}");
    };
    fails(&|config| config.keyring = Some("/nowhere".into()), "keyring /nowhere cannot be read");
    fails(&|config| config.user = "stranger".into(), "no keyring with a key for client.stranger");
    let others = cluster.file("client.admin.keyring");
    fails(&|config| config.keyring = Some(others.clone()), "has no key for client.cached");
    let keyring = cluster.file("wrong.keyring");
    let wrong = |text: &str, words: &str| {
        std::fs::write(&keyring, text).unwrap();
        fails(&|config| config.keyring = Some(keyring.clone()), words);
    };
    let stale = "[client.cached]\nkey = AQCrvAJrWmK0JxAASAofk405WFb6yoH9bUxEGA==\n";
    wrong(stale, "does not accept client.cached");
    wrong("[client.cached]\nkey = gibberish\n", "no readable key for client.cached");
    let option = |key: &str| (key.to_owned(), "none".to_owned());
    let without = vec![option("auth_client_required"), option("auth_cluster_required")];
    fails(&|config| config.librados = without.clone(), "does not accept client.cached");
    // The correct key is found by the user's name.
    let mut config = cluster.config();
    config.keyring = Some(cluster.file("client.cached.keyring"));
    write(&*cluster.open(&config), &object("x"), b"x").unwrap();
    // This user has no rights for the new pool.
    cluster.dev("pool", &["create", "other"]);
    config.pool = "other".into();
    let store = cluster.open(&config);
    let refused = [write(&*store, &object("x"), b"x").unwrap_err(), read(&*store, &object("x")).unwrap_err()];
    for error in refused {
        let text = error.to_string();
        assert!(
            error.kind() == "denied" && text.contains("client.cached may not do that in pool other"),
            "{text}"
        );
    }
}

const KEYS: u64 = 3;
const BYTES: usize = 8192;

/// Returns content in which each 8 bytes contain the round that wrote them.
fn content(round: u64) -> Vec<u8> {
    round.to_le_bytes().repeat(BYTES / 8)
}

/// Writes continuously during `trouble`, which gets a function that waits for a number of
/// acknowledgements for every key. All acknowledged data must be present at the end.
fn through(cluster: &Cluster, config: &RadosConfig, trouble: impl FnOnce(&dyn Fn(u64))) {
    let store = cluster.open(config);
    let acknowledged: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let key = |index: usize| object(format!("key-{index}"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for (index, acknowledged) in acknowledged.iter().enumerate() {
            let (store, stop) = (&store, &stop);
            threads.spawn(move || {
                for round in 1.. {
                    if stop.load(Ordering::Acquire) {
                        break;
                    }
                    match write(&**store, &key(index), &content(round)) {
                        Ok(()) => acknowledged.store(round, Ordering::Release),
                        Err(error) => {
                            assert!(error.is_retryable() || error.is_ambiguous(), "{error}");
                        }
                    }
                }
            });
        }
        let progress = |rounds: u64| {
            let start = Instant::now();
            for acknowledged in &acknowledged {
                let wanted = acknowledged.load(Ordering::Acquire) + rounds;
                while acknowledged.load(Ordering::Acquire) < wanted {
                    let metrics = || store.families();
                    assert!(start.elapsed() < Duration::from_secs(180), "no progress: {:?}", metrics());
                    std::thread::park_timeout(Duration::from_millis(2));
                }
            }
        };
        trouble(&progress);
        stop.store(true, Ordering::Release);
    });
    for (index, acknowledged) in acknowledged.iter().enumerate() {
        let found = eventually("read", || read(&*store, &key(index)));
        let round = u64::from_le_bytes(found[..8].try_into().unwrap());
        let acknowledged = acknowledged.load(Ordering::Acquire);
        assert!(found == content(round), "key {index} is torn");
        assert!(
            round >= acknowledged,
            "key {index}: round {acknowledged} was acknowledged, {round} is there"
        );
    }
}

fn an_osd_that_restarts_unnoticed_is_found_again(cluster: &Cluster) {
    through(cluster, &cluster.config(), |progress| {
        progress(5);
        cluster.dev("osd", &["0", "bounce"]);
        progress(5);
    });
}

fn two_of_three_copies_are_enough(cluster: &Cluster) {
    through(cluster, &cluster.config(), |progress| {
        progress(5);
        cluster.dev("osd", &["1", "kill"]);
        progress(5);
        cluster.dev("osd", &["1", "start"]);
        progress(5);
    });
}

/// Requests that wait for the paused OSD are sent to other OSDs. The OSD returns with its old
/// state.
fn an_osd_that_hangs_is_done_without(cluster: &Cluster) {
    through(cluster, &cluster.config(), |progress| {
        progress(5);
        cluster.dev("osd", &["2", "pause"]);
        progress(5);
        cluster.dev("osd", &["2", "resume"]);
        progress(5);
    });
}

fn two_of_three_monitors_are_enough(cluster: &Cluster) {
    through(cluster, &cluster.config(), |progress| {
        progress(5);
        cluster.dev("mon", &["a", "kill"]);
        progress(5);
        // A new client finds the other monitors, and so do requests that need a new map.
        let new = cluster.open(&cluster.config());
        eventually("write", || write(&*new, &object("x"), b"x"));
        cluster.dev("osd", &["0", "restart"]);
        progress(5);
        cluster.dev("mon", &["a", "start"]);
        progress(5);
    });
}
