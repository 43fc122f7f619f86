//! Several stores on one server, whose requests overtake each other, fail and arrive late according
//! to a seed. No update is lost or made twice, and a replaced writer changes nothing any more.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;

use blocker::{
    Blocker, BlockerExt, ClaimRequest, Condition, DeleteRequest, Epoch, Error, InfoRequest, ListRequest,
    ManualClock, OrderDomain, ReadRequest, Scope, Stamp, Version, WriteFullRequest, WriteRequest, WriterId,
};
use blocker_s3::S3Store;

use crate::support::{Server, drive, interleave, object, open, read};

const SEEDS: u64 = 60;

type Task<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Each writer increments counters: it reads a counter, and writes it on condition of the version
/// that it has read.
fn counters(seed: u64, permille: u32) {
    const WRITERS: usize = 3;
    const ADDITIONS: usize = 6;
    let (server, clock) = (Server::new(seed), ManualClock::new());
    let stores: Vec<S3Store> = (0..WRITERS).map(|_| open(&server, &clock)).collect();
    server.disturb(permille, 3);
    let done: [Cell<u64>; 2] = Default::default();
    let perhaps: [Cell<u64>; 2] = Default::default();
    let add = |cell: &Cell<u64>| cell.set(cell.get() + 1);
    let tasks = stores.iter().enumerate().map(|(writer, store)| {
        let (done, perhaps) = (&done, &perhaps);
        let task = async move {
            for addition in 0..ADDITIONS {
                let counter = (writer + addition) % 2;
                let id = object(format!("counter-{counter}"));
                loop {
                    // A large object is stored in blobs.
                    let (value, condition) = match store.read(ReadRequest::new(id.clone(), 40_000, 8)).await {
                        Ok(reply) => {
                            let bytes = reply.data.to_vec().try_into().unwrap();
                            (u64::from_le_bytes(bytes), Condition::Version(reply.version))
                        }
                        Err(Error::Missing) => (0, Condition::Absent),
                        Err(Error::Retryable(_)) => continue,
                        Err(error) => panic!("seed {seed}: {error}"),
                    };
                    let bytes = (value + 1).to_le_bytes().to_vec();
                    let request = WriteRequest::new(id.clone(), 40_000, bytes).condition(condition);
                    match store.write(request).await {
                        Ok(_) => break add(&done[counter]),
                        Err(Error::OutcomeUnknown(_)) => break add(&perhaps[counter]),
                        Err(Error::ConditionFailed { .. } | Error::Exists | Error::Retryable(_)) => {}
                        Err(error) => panic!("seed {seed}: {error}"),
                    }
                }
            }
        };
        Box::pin(task) as Task<'_>
    });
    interleave(&clock, seed, tasks.collect());
    server.heal();
    let values = |store: &S3Store| {
        [0, 1].map(|counter| {
            let bytes = read(store, &clock, &object(format!("counter-{counter}"))).unwrap();
            u64::from_le_bytes(bytes[40_000..].try_into().unwrap())
        })
    };
    server.land();
    let found = values(&open(&server, &clock));
    for (counter, value) in found.into_iter().enumerate() {
        let (done, perhaps) = (done[counter].get(), perhaps[counter].get());
        assert!(
            (done..=done + perhaps).contains(&value),
            "seed {seed}: {value} after {done} additions and {perhaps} with unknown outcome"
        );
    }
}

#[test]
fn no_update_is_lost_or_made_twice() {
    (0..SEEDS).for_each(|seed| counters(seed, 0));
}

#[test]
fn no_update_is_lost_or_made_twice_where_answers_are_lost() {
    (0..SEEDS).for_each(|seed| counters(seed, 100));
}

/// A writer continues to create, overwrite and delete while another one claims its scope, and
/// afterwards.
fn depose(seed: u64, scope: &Scope, domain: Option<OrderDomain>, permille: u32) {
    let (server, clock) = (Server::new(seed), ManualClock::new());
    let (old, new) = (open(&server, &clock), open(&server, &clock));
    let claim = |epoch, writer| ClaimRequest::new(scope.clone(), Epoch(epoch), WriterId(writer));
    drive(&clock, old.claim(claim(1, 1))).unwrap();
    server.disturb(permille, 4);
    let claimed = Cell::new(false);
    let at_claim: RefCell<Option<Snapshot>> = RefCell::default();
    let (landed, refused) = (Cell::new(0), Cell::new(0));
    let writers = (0..3_u64).map(|writer| {
        let (old, claimed, landed, refused) = (&old, &claimed, &landed, &refused);
        let task = async move {
            for sequence in 1..=24_u64 {
                // An object that exists, one that never existed, and one that is created and
                // deleted repeatedly.
                let name = match sequence % 3 {
                    0 => format!("kept-{writer}"),
                    1 => format!("new-{writer}-{sequence}"),
                    _ => format!("gone-{writer}"),
                };
                let late = claimed.get();
                let mut request = WriteFullRequest::new(object(&name), sequence.to_be_bytes().to_vec())
                    .stamp(Stamp::new(1, 2 * sequence));
                request.terms.domain = domain;
                let mut answer = old.write_full(request).await.map(drop);
                if answer.is_ok() && sequence % 3 == 2 {
                    let mut request =
                        DeleteRequest::new(object(&name)).stamp(Stamp::new(1, 2 * sequence + 1));
                    request.terms.domain = domain;
                    answer = old.delete(request).await.map(drop);
                }
                match answer {
                    Ok(()) => {
                        assert!(!late, "seed {seed}: {name} was changed after the claim");
                        landed.set(landed.get() + 1);
                    }
                    Err(Error::Fenced { epoch }) => {
                        assert_eq!(epoch, Epoch(2), "seed {seed}: {name}");
                        refused.set(refused.get() + 1);
                    }
                    // The change may have been sent before the claim, with or without an effect, or
                    // is no longer retried.
                    Err(Error::Retryable(_) | Error::OutcomeUnknown(_)) => {}
                    Err(Error::Missing) if sequence % 3 == 2 => {}
                    Err(error) => panic!("seed {seed}: {name}: {error}"),
                }
            }
        };
        Box::pin(task) as Task<'_>
    });
    let claiming = {
        let (new, claimed, at_claim) = (&new, &claimed, &at_claim);
        Box::pin(async move {
            for _ in 0..seed % 40 {
                crate::support::yield_now().await;
            }
            while new.claim(claim(2, 2)).await.is_err() {}
            claimed.set(true);
            *at_claim.borrow_mut() = Some(snapshot(new).await);
        }) as Task<'_>
    };
    interleave(&clock, seed, writers.chain([claiming]).collect());
    server.heal();
    server.land();
    let before = at_claim.borrow_mut().take().unwrap();
    assert_eq!(drive(&clock, snapshot(&new)), before, "seed {seed}: changed after the claim");
    assert!(landed.get() + refused.get() > 0, "seed {seed}");
}

/// The name, content, version and stamp of each object.
type Snapshot = BTreeMap<Vec<u8>, (Vec<u8>, Version, Option<Stamp>)>;

async fn again<T>(mut call: impl AsyncFnMut() -> Result<T, Error>) -> T {
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(Error::Retryable(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

async fn snapshot(store: &S3Store) -> Snapshot {
    let namespace = object("x").namespace;
    let page = again(async || store.list(ListRequest::new(namespace.clone())).await).await;
    let mut found = Snapshot::new();
    for entry in page.entries {
        let id = object(entry.name.as_bytes());
        let reply = again(async || store.read(ReadRequest::new(id.clone(), 0, 100)).await).await;
        let info = again(async || store.info(InfoRequest::new(id.clone())).await).await;
        assert_eq!((reply.version, info.version), (entry.version, entry.version));
        found.insert(entry.name.as_bytes().to_vec(), (reply.data.to_vec(), info.version, info.stamp));
    }
    found
}

fn scopes() -> [(Scope, Option<OrderDomain>); 3] {
    let namespace = object("x").namespace;
    let domain = OrderDomain(7);
    [
        (Scope::All, None),
        (Scope::Namespace(namespace.clone()), None),
        (Scope::Domain(namespace, domain), Some(domain)),
    ]
}

#[test]
fn a_deposed_writer_changes_nothing_any_more() {
    for (scope, domain) in scopes() {
        (0..SEEDS).for_each(|seed| depose(seed, &scope, domain, 0));
    }
}

#[test]
fn a_deposed_writer_changes_nothing_any_more_where_requests_land_late() {
    for (scope, domain) in scopes() {
        (0..SEEDS).for_each(|seed| depose(seed, &scope, domain, 60));
    }
}

/// Of two writers that claim overlapping scopes with the same epoch, at most one holds it.
#[test]
fn one_epoch_is_held_by_one_writer() {
    let namespace = object("x").namespace;
    let scopes = [
        Scope::All,
        Scope::Namespace(namespace.clone()),
        Scope::Domain(namespace, OrderDomain(1)),
        Scope::Object(object("a")),
    ];
    for seed in 0..SEEDS {
        for one in &scopes {
            for two in &scopes {
                let (server, clock) = (Server::new(seed), ManualClock::new());
                let stores = [open(&server, &clock), open(&server, &clock)];
                server.disturb(if seed % 2 == 0 { 0 } else { 50 }, 3);
                let held = Cell::new(0);
                let tasks = [one, two].into_iter().zip(&stores).zip(1..);
                let tasks = tasks.map(|((scope, store), writer)| {
                    let held = &held;
                    let task = async move {
                        for _ in 0..3 {
                            let request = ClaimRequest::new(scope.clone(), Epoch(5), WriterId(writer));
                            match store.claim(request).await {
                                Ok(_) => {
                                    held.set(held.get() + 1);
                                    break;
                                }
                                Err(Error::Fenced { .. }) => break,
                                Err(_) => {}
                            }
                        }
                    };
                    Box::pin(task) as Task<'_>
                });
                interleave(&clock, seed, tasks.collect());
                assert!(held.get() <= 1, "seed {seed}: {one} and {two} are held by different writers");
            }
        }
    }
}
