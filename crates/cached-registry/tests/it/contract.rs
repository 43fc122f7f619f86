//! What every body that can be changed guarantees, checked through two handles, as by two hosts.

use std::future::Future;
use std::time::Duration;

use cached_registry::{
    CHANGES_MAX, Change, Changes, Document, Error, Event, Expect, Key, Lease, LeaseId, Registry, Revision,
    Watch,
};

/// The maximum time that any step may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

/// Returns the next changes of a watch. An interruption is not an error, because the watch
/// continues.
pub(crate) async fn next(watch: &mut Watch) -> Result<Changes, Error> {
    let changes = async {
        loop {
            match watch.next().await {
                Err(Error::Unavailable(why)) => println!("the watch continues: {why}"),
                other => return other,
            }
        }
    };
    tokio::time::timeout(PATIENCE, changes).await.expect("the watch reports nothing")
}

/// Returns the events of a watch until one of them concerns `last`.
pub(crate) async fn until(watch: &mut Watch, last: &Key) -> Vec<Event> {
    let mut events = Vec::new();
    while events.last().is_none_or(|event: &Event| event.key() != last) {
        events.extend(next(watch).await.unwrap().events);
    }
    events
}

pub(crate) async fn create(registry: &Registry, text: &str, value: &'static str) -> Revision {
    registry.change_if(&[Change::put(key(text), Expect::Absent, value)]).await.unwrap()
}

async fn value(registry: &Registry, text: &str) -> Option<String> {
    let document = registry.get(&key(text)).await.unwrap()?;
    Some(String::from_utf8(document.value.to_vec()).unwrap())
}

/// Checks the whole contract. `forget` makes the registry forget all changes up to the present.
pub(crate) async fn check<F: Future<Output = ()>>(a: &Registry, b: &Registry, forget: impl Fn() -> F) {
    changes_are_conditional(a, b).await;
    changes_are_made_together(a, b).await;
    hosts_that_compete_lose_no_change(a, b).await;
    watches_continue(a, b).await;
    leases_bind_documents(a, b).await;
    a_lease_that_is_not_renewed_ends(a, b).await;
    forgotten_changes_are_reported(a, forget).await;
}

async fn changes_are_conditional(a: &Registry, b: &Registry) {
    assert!(a.is_changeable());
    assert_eq!(a.get(&key("c/a")).await, Ok(None));
    let first = create(a, "c/a", "1").await;
    let found = b.get(&key("c/a")).await.unwrap().unwrap();
    assert_eq!(found, Document { key: key("c/a"), value: "1".into(), revision: first, lease: None });
    let again = b.change_if(&[Change::put(key("c/a"), Expect::Absent, "2")]).await;
    assert_eq!(again, Err(Error::Conflict { key: key("c/a"), found: Some(first) }));
    let second = b.change_if(&[Change::put(key("c/a"), Expect::At(first), "2")]).await.unwrap();
    assert!(second > first);
    for late in [Change::put(key("c/a"), Expect::At(first), "3"), Change::remove(key("c/a"), first)] {
        let conflict = Err(Error::Conflict { key: key("c/a"), found: Some(second) });
        assert_eq!(a.change_if(&[late]).await, conflict);
    }
    assert_eq!(value(a, "c/a").await.as_deref(), Some("2"));
    a.change_if(&[Change::remove(key("c/a"), second)]).await.unwrap();
    let gone = a.change_if(&[Change::remove(key("c/a"), second)]).await;
    assert_eq!(gone, Err(Error::Conflict { key: key("c/a"), found: None }));
    // A document that is created again gets a revision that it never had.
    assert!(create(b, "c/a", "").await > second);
    assert_eq!(value(a, "c/a").await.as_deref(), Some(""));
}

async fn changes_are_made_together(a: &Registry, b: &Registry) {
    let put = |index: usize, expect| Change::put(key(&format!("t/{index:03}")), expect, "x");
    let all: Vec<Change> = (0..CHANGES_MAX).map(|index| put(index, Expect::Absent)).collect();
    let revision = a.change_if(&all).await.unwrap();
    let listing = b.list("t/").await.unwrap();
    let keys: Vec<&Key> = listing.documents.iter().map(|document| &document.key).collect();
    assert_eq!(keys, all.iter().map(|change| &change.key).collect::<Vec<_>>());
    assert!(listing.documents.iter().all(|document| document.revision == revision));
    assert!(listing.revision >= revision);
    // One document that differs from its expected revision prevents all changes.
    let mixed =
        [put(0, Expect::At(revision)), put(1, Expect::Absent), Change::remove(key("t/002"), revision)];
    assert_eq!(b.change_if(&mixed).await, Err(Error::Conflict { key: key("t/001"), found: Some(revision) }));
    assert_eq!(a.list("t/").await.unwrap().documents, listing.documents);
    let more = [all.clone(), vec![put(CHANGES_MAX, Expect::Absent)]].concat();
    assert!(matches!(a.change_if(&more).await, Err(Error::TooLarge(_))));
    let removals: Vec<_> = keys.into_iter().map(|key| Change::remove(key.clone(), revision)).collect();
    a.change_if(&removals).await.unwrap();
    assert_eq!(b.list("t/").await.unwrap().documents, []);
}

async fn hosts_that_compete_lose_no_change(a: &Registry, b: &Registry) {
    const COUNT: u32 = 8;
    let first = create(a, "words", "").await;
    let read = async |registry: &Registry| {
        let found = registry.get(&key("words")).await.unwrap().unwrap();
        (found.revision, String::from_utf8(found.value.to_vec()).unwrap())
    };
    let append = async |registry: &Registry, host: &str| {
        for number in 0..COUNT {
            let word = format!("{host}{number} ");
            loop {
                let (revision, text) = read(registry).await;
                if text.contains(&word) {
                    break;
                }
                let change = Change::put(key("words"), Expect::At(revision), text + &word);
                match registry.change_if(&[change]).await {
                    Ok(_) => assert!(read(registry).await.1.contains(&word)),
                    Err(Error::Conflict { .. } | Error::Unavailable(_)) => {
                        assert!(!read(registry).await.1.contains(&word));
                    }
                    // The next read shows the outcome.
                    Err(Error::OutcomeUnknown(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    };
    tokio::join!(append(a, "a"), append(b, "b"));
    let (revision, text) = read(a).await;
    let mut words: Vec<&str> = text.split_whitespace().collect();
    words.sort_unstable();
    let expected: Vec<String> =
        ["a", "b"].iter().flat_map(|host| (0..COUNT).map(move |number| format!("{host}{number}"))).collect();
    assert_eq!(words, expected);
    assert!(revision > first);
    a.change_if(&[Change::remove(key("words"), revision)]).await.unwrap();
}

async fn watches_continue(a: &Registry, b: &Registry) {
    let listing = a.list("w/").await.unwrap();
    let mut watch = a.watch("w/", listing.revision);
    create(b, "other", "x").await;
    let one = create(b, "w/one", "1").await;
    let changes = next(&mut watch).await.unwrap();
    let document = |text, value: &'static str, revision| Document {
        key: key(text),
        value: value.into(),
        revision,
        lease: None,
    };
    assert_eq!(changes.events, [Event::Changed(document("w/one", "1", one))]);
    assert!(changes.revision >= one);
    // The watch is dropped, so nobody watches the prefix in the meantime; another watch continues.
    drop(watch);
    let two = b
        .change_if(&[Change::put(key("w/two"), Expect::Absent, "2"), Change::remove(key("w/one"), one)])
        .await;
    let mut watch = b.watch("w/", changes.revision);
    let mut events = next(&mut watch).await.unwrap().events;
    events.sort_by(|a, b| a.key().cmp(b.key()));
    assert_eq!(events, [Event::Removed(key("w/one")), Event::Changed(document("w/two", "2", two.unwrap()))]);
    // A wait that is abandoned in between loses no event.
    let waiting = tokio::time::timeout(Duration::from_millis(1), watch.next()).await;
    assert!(waiting.is_err(), "{waiting:?}");
    create(a, "w/three", "3").await;
    assert_eq!(next(&mut watch).await.unwrap().events[0].key(), &key("w/three"));
}

async fn leases_bind_documents(a: &Registry, b: &Registry) {
    // It must last until the end of this function.
    let duration = Duration::from_secs(3600);
    let (lease, other) = (a.grant(duration).await.unwrap(), b.grant(duration).await.unwrap());
    assert_ne!(lease.id, other.id);
    assert!(lease.duration >= duration);
    let bound = Change::put(key("l/bound"), Expect::Absent, "1").with_lease(lease.id);
    let free = Change::put(key("l/free"), Expect::Absent, "2");
    a.change_if(&[bound, free]).await.unwrap();
    let listing = b.list("l/").await.unwrap();
    let leases: Vec<_> = listing.documents.iter().map(|document| document.lease).collect();
    assert_eq!(leases, [Some(lease.id), None]);
    let renewed = a.renew(&lease).await.unwrap();
    assert!(renewed.until >= lease.until && renewed.id == lease.id);
    let mut watch = b.watch("l/", listing.revision);
    // Any client may end a lease.
    b.revoke(&lease).await.unwrap();
    assert_eq!(next(&mut watch).await.unwrap().events, [Event::Removed(key("l/bound"))]);
    assert_eq!(value(a, "l/free").await.as_deref(), Some("2"));
    assert_eq!(a.renew(&lease).await, Err(Error::LeaseEnded));
    let late = Change::put(key("l/bound"), Expect::Absent, "3").with_lease(lease.id);
    assert_eq!(a.change_if(&[late]).await, Err(Error::LeaseEnded));
    assert_eq!(value(a, "l/bound").await, None);
    let never = Lease { id: LeaseId(u64::MAX >> 1), ..lease.clone() };
    assert_eq!(a.renew(&never).await, Err(Error::LeaseEnded));
    a.revoke(&lease).await.unwrap();
    b.revoke(&other).await.unwrap();
    assert!(matches!(a.grant(Duration::from_millis(999)).await, Err(Error::Invalid(_))));
}

async fn a_lease_that_is_not_renewed_ends(a: &Registry, b: &Registry) {
    let mut watch = b.watch("e/", b.list("e/").await.unwrap().revision);
    let mut seconds = 1;
    let lease = loop {
        let lease = a.grant(Duration::from_secs(seconds)).await.unwrap();
        let put = Change::put(key("e/x"), Expect::Absent, "1").with_lease(lease.id);
        match a.change_if(&[put]).await {
            // This happens on a busy machine.
            Err(Error::LeaseEnded) => seconds *= 2,
            outcome => break outcome.map(|_| lease).unwrap(),
        }
    };
    while next(&mut watch).await.unwrap().events.last() != Some(&Event::Removed(key("e/x"))) {}
    assert_eq!(a.renew(&lease).await, Err(Error::LeaseEnded));
    assert_eq!(a.get(&key("e/x")).await, Ok(None));
}

async fn forgotten_changes_are_reported<F: Future<Output = ()>>(a: &Registry, forget: impl Fn() -> F) {
    let first = create(a, "f/x", "1").await;
    let second = a.change_if(&[Change::put(key("f/x"), Expect::At(first), "2")]).await.unwrap();
    forget().await;
    let early = Revision(first.0 - 1);
    assert_eq!(next(&mut a.watch("f/", early)).await, Err(Error::Compacted { after: early }));
    // A new listing is how a client continues.
    let listing = a.list("f/").await.unwrap();
    assert_eq!(listing.documents[0].revision, second);
    let mut watch = a.watch("f/", listing.revision);
    a.change_if(&[Change::remove(key("f/x"), second)]).await.unwrap();
    assert_eq!(next(&mut watch).await.unwrap().events, [Event::Removed(key("f/x"))]);
}
