//! Two writers: once the newer writer's claim has returned, no change of the older one takes effect
//! any more on any object of the scope, existing or not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use blocker::executor::block_on;
use blocker::metrics::{Collect, Number};
use blocker::{
    Blocker, BlockerExt, ChangeTerms, ClaimRequest, Control, DeleteRequest, Epoch, Error, Event, InfoRequest,
    InvalidateRequest, ListRequest, ObjectId, OrderDomain, Scope, Stamp, WriteFullRequest, WriteRequest,
    WriterId,
};
use blocker_rados::RadosStore;

use crate::support::{Cluster, object, read, write};

const WRITERS: u64 = 4;

fn stamped(epoch: u64, sequence: u64, domain: Option<OrderDomain>) -> ChangeTerms {
    let mut change = ChangeTerms::default();
    change.stamp = Some(Stamp::new(epoch, sequence));
    change.domain = domain;
    change
}

/// Returns the name, content and stamp of every object in the namespace.
fn snapshot(store: &RadosStore) -> Vec<(ObjectId, Vec<u8>, Option<Stamp>)> {
    let page = block_on(store.list(ListRequest::new(object("x").namespace).entries_max(10_000))).unwrap();
    let of = |name| {
        let object = ObjectId::new(object("x").namespace, name);
        let info = block_on(store.info(InfoRequest::new(object.clone()))).unwrap();
        (object.clone(), read(store, &object).unwrap(), info.stamp)
    };
    page.entries.into_iter().map(|entry| of(entry.name)).collect()
}

/// A replaced writer continues to create, overwrite and delete during the claim and after it.
fn depose(cluster: &Cluster, scope: &Scope, domain: Option<OrderDomain>, round: u64) {
    let config = cluster.config();
    let (old, new) = (cluster.open(&config), cluster.open(&config));
    let claimed = |scope: &Scope, epoch| {
        block_on(new.claim(ClaimRequest::new(scope.clone(), Epoch(epoch), WriterId(1))))
    };
    claimed(scope, 1).unwrap();
    let (is_claimed, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let (landed, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|threads| {
        for writer in 0..WRITERS {
            let (old, is_claimed, stop, landed, refused) = (&old, &is_claimed, &stop, &landed, &refused);
            threads.spawn(move || {
                for sequence in 1.. {
                    if stop.load(Ordering::Acquire) {
                        break;
                    }
                    // An object that exists, one that never existed, and one that is created and
                    // deleted repeatedly.
                    let name = match sequence % 3 {
                        0 => format!("kept-{writer}"),
                        1 => format!("new-{writer}-{sequence}"),
                        _ => format!("gone-{writer}"),
                    };
                    let late = is_claimed.load(Ordering::Acquire);
                    let change = stamped(1, sequence, domain);
                    let request = WriteRequest::new(object(&name), 0, sequence.to_be_bytes().to_vec());
                    let mut done = block_on(old.write(request.terms(change))).map(drop);
                    if done.is_ok() && sequence % 3 == 2 {
                        let request = DeleteRequest::new(object(&name));
                        let change = stamped(1, sequence + 1, domain);
                        done = block_on(old.delete(request.terms(change))).map(drop);
                    }
                    match done {
                        Ok(()) => assert!(!late, "round {round}: {name} was changed after the claim"),
                        Err(Error::Fenced { epoch }) => {
                            assert_eq!(epoch, Epoch(2), "round {round}: {name}");
                            refused.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                        Err(error) => panic!("round {round}: {name}: {error}"),
                    }
                    landed.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let wait_for = |counter: &AtomicU64, count: u64| {
            let start = Instant::now();
            while counter.load(Ordering::Relaxed) < count {
                if start.elapsed() > Duration::from_secs(180) {
                    // The writers have failed, and report their errors themselves.
                    stop.store(true, Ordering::Release);
                    panic!("round {round}: the deposed writers do not come on");
                }
                std::thread::yield_now();
            }
        };
        wait_for(&landed, 40);
        claimed(scope, 2).unwrap();
        is_claimed.store(true, Ordering::Release);
        let at_claim = snapshot(&new);
        let before = refused.load(Ordering::Relaxed);
        wait_for(&refused, before + 40);
        stop.store(true, Ordering::Release);
        assert!(!at_claim.is_empty());
        assert!(at_claim == snapshot(&new), "round {round}: something landed after the claim had returned");
    });
    // The new owner continues, and the old one learns the current epoch.
    let request = WriteFullRequest::new(object("kept-0"), b"newer").terms(stamped(2, 1, domain));
    block_on(new.write_full(request)).unwrap();
    assert_eq!(read(&*old, &object("kept-0")).unwrap(), b"newer");
}

#[test]
fn a_deposed_writer_is_refused_by_the_store_on_every_object() {
    let Some(cluster) = Cluster::up("memstore") else { return };
    let cluster = Arc::new(cluster);
    let namespace = object("x").namespace;
    let domain = OrderDomain(7);
    for round in 0..10 {
        depose(&cluster, &Scope::Namespace(namespace.clone()), None, round);
        depose(&cluster, &Scope::Domain(namespace.clone(), domain), Some(domain), round);
        depose(&cluster, &Scope::All, None, round);
    }
    claims_meet_what_others_left(&cluster);
    an_epoch_is_held_by_one_writer(&cluster);
    claims_of_older_versions_belong_to_no_one(&cluster);
    news_reach_other_clients(&cluster);
    namespaces_are_found(&cluster);
}

/// Objects of other programs, remnants of deletions, and records of stamped deletions.
fn claims_meet_what_others_left(cluster: &Cluster) {
    let store = cluster.open(&cluster.config());
    let claim =
        |scope: Scope, epoch| block_on(store.claim(ClaimRequest::new(scope, Epoch(epoch), WriterId(1))));
    let fenced = |epoch| Err(Error::Fenced { epoch: Epoch(epoch) });
    // Epoch 0 does not bind any writer, and leaves no trace.
    for scope in [Scope::All, Scope::Namespace(object("x").namespace), Scope::Object(object("asked"))] {
        claim(scope, 0).unwrap();
    }
    assert_eq!(store.families().number("rados_objects_introduced_total"), Some(Number::Integer(0)));
    // An object that was claimed individually before it existed stays claimed.
    claim(Scope::Object(object("early")), 5).unwrap();
    assert_eq!(write(&*store, &object("early"), b"late"), fenced(5));
    // Only a claim that makes the record of a stamped deletion unnecessary removes the record.
    for name in ["forgotten", "remembered"] {
        let write = WriteRequest::new(object(name), 0, b"x").terms(stamped(4, 1, None));
        block_on(store.write(write)).unwrap();
        block_on(store.delete(DeleteRequest::new(object(name)).terms(stamped(4, 2, None)))).unwrap();
    }
    claim(Scope::Object(object("remembered")), 9).unwrap();
    claim(Scope::Namespace(object("x").namespace), 6).unwrap();
    assert_eq!(write(&*store, &object("forgotten"), b"late"), fenced(6));
    assert_eq!(write(&*store, &object("remembered"), b"late"), fenced(9));
    assert_eq!(write(&*store, &object("early"), b"late"), fenced(6));
    assert_eq!(claim(Scope::Object(object("remembered")), 0).map(drop), fenced(9));
    assert_eq!(claim(Scope::Namespace(object("x").namespace), 0).map(drop), fenced(6));
    assert_eq!(snapshot(&store), []);
    let attached = block_on(store.attach(object("x").namespace)).unwrap();
    assert_eq!(attached.epoch, Epoch(6));
}

/// Writers race for the same epoch in overlapping scopes, each with its own connection.
fn an_epoch_is_held_by_one_writer(cluster: &Cluster) {
    const ROUNDS: u64 = 12;
    let config = cluster.config();
    let namespace = || object("x").namespace;
    let scopes = [
        Scope::Namespace(namespace()),
        Scope::Object(object("one")),
        Scope::Domain(namespace(), OrderDomain(1)),
        Scope::Namespace(namespace()),
        Scope::All,
    ];
    let stores: Vec<_> = scopes.iter().map(|_| cluster.open(&config)).collect();
    write(&*stores[0], &object("other"), b"x").unwrap();
    let mut held = 0;
    for round in 1..=ROUNDS {
        let claim = |index: usize, writer: usize| {
            let claim = ClaimRequest::new(scopes[index].clone(), Epoch(round), WriterId(writer as u128));
            block_on(stores[index].claim(claim))
        };
        let start = std::sync::Barrier::new(scopes.len());
        let winners: Vec<usize> = std::thread::scope(|threads| {
            let racers: Vec<_> = (0..scopes.len())
                .map(|index| {
                    let (start, claim) = (&start, &claim);
                    threads.spawn(move || {
                        start.wait();
                        claim(index, index)
                    })
                })
                .collect();
            let answers = racers.into_iter().map(|racer| racer.join().unwrap()).enumerate();
            let answers = answers.map(|(index, answer)| match answer {
                Ok(_) => Some(index),
                Err(Error::Fenced { epoch }) => {
                    assert_eq!(epoch, Epoch(round));
                    None
                }
                Err(error) => panic!("{error}"),
            });
            answers.flatten().collect()
        });
        // All of these scopes overlap.
        assert!(winners.len() <= 1, "epoch {round} is held by {winners:?}");
        held += winners.len();
        for index in 0..scopes.len() {
            let again = claim(index, index).is_ok();
            assert_eq!(again, winners.contains(&index), "epoch {round}, {index} of {winners:?}");
        }
    }
    println!("{held} of {ROUNDS} epochs were had by anyone");
}

/// Claim records without a writer exclude every writer.
fn claims_of_older_versions_belong_to_no_one(cluster: &Cluster) {
    let config = cluster.config();
    let store = cluster.open(&config);
    let namespace = format!("{}/vm", config.root);
    let claim = |scope: &Scope, epoch| {
        block_on(store.claim(ClaimRequest::new(scope.clone(), Epoch(epoch), WriterId(0)))).map(drop)
    };
    let fenced = |epoch| Err(Error::Fenced { epoch: Epoch(epoch) });
    write(&*store, &object("old"), b"x").unwrap();
    cluster.set_attribute(&namespace, "%scope", "cached.epoch", &3_u64.to_be_bytes());
    cluster.set_attribute(&namespace, "old", "cached.fence", &5_u64.to_be_bytes());
    let whole = Scope::Namespace(object("x").namespace);
    let one = Scope::Object(object("old"));
    assert_eq!(claim(&whole, 0), fenced(3));
    for epoch in [2, 3] {
        assert_eq!(claim(&whole, epoch), fenced(3));
    }
    assert_eq!(claim(&one, 4), fenced(5));
    assert_eq!(claim(&one, 5), fenced(5));
    for scope in [&one, &whole] {
        claim(scope, 6).unwrap();
        claim(scope, 6).unwrap();
    }
    // A fence that a stamp has raised is not a claim.
    let stamp = WriteRequest::new(object("new"), 0, b"x").terms(stamped(7, 1, None));
    block_on(store.write(stamp)).unwrap();
    claim(&Scope::Object(object("new")), 7).unwrap();
}

fn news_reach_other_clients(cluster: &Cluster) {
    let mut config = cluster.config();
    config.watch = true;
    let (here, there) = (cluster.open(&config), cluster.open(&config));
    let mut listener = there.subscribe();
    let scope = Scope::Object(object("claimed"));
    block_on(here.claim(ClaimRequest::new(scope.clone(), Epoch(3), WriterId(1)))).unwrap();
    assert_eq!(block_on(listener.recv()), Some(Event::Fenced(scope, Epoch(3))));
    let scope = Scope::Namespace(object("x").namespace);
    block_on(here.invalidate(InvalidateRequest::new(scope.clone()))).unwrap();
    assert_eq!(block_on(listener.recv()), Some(Event::Changed(scope)));
}

fn namespaces_are_found(cluster: &Cluster) {
    let store = cluster.open(&cluster.config());
    let mut names: Vec<_> =
        [&b"a"[..], b"b/c", &[0; 255]].map(|name| blocker::Namespace::copy_from(name).unwrap()).into();
    for namespace in &names {
        let object = ObjectId::new(namespace.clone(), object("x").name);
        write(&*store, &object, b"x").unwrap();
    }
    names.sort();
    assert_eq!(block_on(store.namespaces()).unwrap(), names);
}
