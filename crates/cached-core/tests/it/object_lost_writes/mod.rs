//! Losses: every flush that covers a loss reports it until the loss is repaired, even if the object
//! is no longer in the cache. A fenced writer acknowledges no further changes.

mod by_the_store;

use std::sync::Arc;
use std::time::Duration;

use blocker::*;
use cached_core::object::{ObjectCache, ObjectCacheConfig};
use test_kit::sim::{Handle, Sim};
use test_kit::steered::SteeredStore;
use test_kit::{BUCKET, cache, content, fill, id, namespace, pattern, same, small};

const SECOND: Duration = Duration::from_secs(1);

struct Environment {
    sim: Sim,
    store: Arc<SteeredStore>,
    cache: ObjectCache,
    _running: Handle<()>,
}

fn environment(config: ObjectCacheConfig) -> Environment {
    over(SteeredStore::new(), config)
}

fn over(store: Arc<SteeredStore>, config: ObjectCacheConfig) -> Environment {
    let mut sim = Sim::new(None);
    let (cache, background) = cache(Arc::clone(&store) as _, config, &sim.clock);
    let _running = sim.spawn(background);
    Environment { sim, store, cache, _running }
}

fn back() -> ObjectCacheConfig {
    ObjectCacheConfig { dirty_age_max: SECOND, ..small(WriteMode::Back) }
}

fn in_domain(object: &ObjectId, domain: u64, offset: u64, bytes: Vec<u8>) -> WriteRequest {
    let mut request = WriteRequest::new(object.clone(), offset, bytes);
    request.terms.domain = Some(OrderDomain(domain));
    request
}

impl Environment {
    #[track_caller]
    fn run<T: Unpin + 'static>(&mut self, reply: Reply<T>) -> Result<T> {
        self.sim.run(reply)
    }

    #[track_caller]
    fn write(&mut self, object: &ObjectId, bytes: Vec<u8>) {
        let reply = self.cache.write(WriteRequest::new(object.clone(), 0, bytes));
        assert_eq!(self.run(reply).unwrap().durability, Durability::Cached);
    }

    #[track_caller]
    fn flush(&mut self, scope: Scope) -> Result<()> {
        let reply = self.cache.flush(FlushRequest::new(scope));
        self.run(reply).map(|_| ())
    }

    #[track_caller]
    fn is_lost(&mut self, scope: Scope) -> bool {
        match self.flush(scope) {
            Ok(()) => false,
            Err(Error::WritesLost(_)) => true,
            Err(error) => panic!("{error}"),
        }
    }

    /// Makes another writer claim the scope without the cache.
    fn taken_over(&self, scope: Scope, epoch: u64) {
        let claim = ClaimRequest::new(scope, Epoch(epoch), WriterId(99));
        blocker::executor::block_on(self.store.memory().claim(claim)).unwrap();
    }

    /// Acknowledges a write of the object in a domain, and lets the store refuse the flush that its
    /// age triggers.
    fn lose(&mut self, object: &ObjectId, domain: u64) {
        let reply = self.cache.write(in_domain(object, domain, 0, pattern(1, 0, 8192)));
        assert_eq!(self.run(reply).unwrap().durability, Durability::Cached);
        self.taken_over(Scope::Object(object.clone()), 5);
        self.sim.advance(2 * SECOND);
        assert_eq!(self.cache.counters().dirty_bytes, 0, "the background has tried");
        self.cache.validate().unwrap();
    }
}

/// Returns the scopes that cover `object`, changed in `domain`.
fn scopes(object: &ObjectId, domain: u64) -> [Scope; 4] {
    [
        Scope::Object(object.clone()),
        Scope::Domain(object.namespace.clone(), OrderDomain(domain)),
        Scope::Namespace(object.namespace.clone()),
        Scope::All,
    ]
}

#[test]
fn every_covering_flush_fails_after_the_background_was_fenced() {
    let mut env = environment(back());
    let mut subscription = env.cache.subscribe();
    let (taken, kept) = (id("taken"), id("kept"));
    let elsewhere = ObjectId::new(namespace("elsewhere"), kept.name.clone());
    env.lose(&taken, 1);
    for scope in scopes(&taken, 1) {
        assert!(env.is_lost(scope.clone()), "{scope:?}");
        assert!(env.is_lost(scope.clone()), "{scope:?}, asked again");
    }
    // All other data are stored nevertheless.
    let reply = env.cache.write(in_domain(&kept, 2, 0, pattern(2, 0, 100)));
    env.run(reply).unwrap();
    env.write(&elsewhere, pattern(3, 0, 100));
    assert!(env.is_lost(Scope::All));
    same(&content(env.store.memory(), &kept).unwrap(), &pattern(2, 0, 100), "stored");
    same(&content(env.store.memory(), &elsewhere).unwrap(), &pattern(3, 0, 100), "stored");
    for scope in [
        Scope::Object(kept.clone()),
        Scope::Domain(kept.namespace.clone(), OrderDomain(2)),
        Scope::Namespace(elsewhere.namespace.clone()),
    ] {
        env.flush(scope).unwrap();
    }
    let lost = env.cache.lost();
    let listed: Vec<_> = lost.objects.iter().map(|it| (&it.object, it.changes, it.bytes)).collect();
    assert_eq!(listed, [(&taken, 1, 8192)]);
    assert_eq!(lost.bytes(), 8192);
    assert!(lost.objects[0].why.contains('5'), "the epoch in force: {}", lost.objects[0].why);
    let counters = env.cache.counters();
    assert_eq!((counters.lost_objects, counters.lost_bytes), (1, 8192));
    let events: Vec<Event> = std::iter::from_fn(|| subscription.try_next()).collect();
    let reported = events.iter().filter(|event| matches!(event, Event::WritesLost(_))).count();
    assert!(reported == 1 && events.contains(&Event::WritesLost(Scope::Object(taken))), "{events:?}");
}

#[test]
fn a_loss_is_repaired_by_a_full_write_a_delete_or_an_invalidation() {
    let stamped = |env: &mut Environment, object: &ObjectId| {
        let request = WriteFullRequest::new(object.clone(), pattern(3, 0, 50)).stamp(Stamp::new(5, 1));
        let reply = env.cache.write_full(request);
        env.run(reply).unwrap();
    };
    let delete = |env: &mut Environment, object: &ObjectId| {
        fill_as_owner(&env.store, object);
        let reply = env.cache.delete(DeleteRequest::new(object.clone()).stamp(Stamp::new(5, 2)));
        env.run(reply).unwrap();
    };
    let invalidate = |scope: fn(&ObjectId) -> Scope| {
        move |env: &mut Environment, object: &ObjectId| {
            let reply = env.cache.invalidate(InvalidateRequest::new(scope(object)));
            env.run(reply).unwrap();
        }
    };
    let one = invalidate(|object| Scope::Object(object.clone()));
    let domain = invalidate(|object| Scope::Domain(object.namespace.clone(), OrderDomain(1)));
    let all = invalidate(|_| Scope::All);
    let refresh = |env: &mut Environment, object: &ObjectId| {
        let request = InvalidateRequest::new(Scope::Object(object.clone())).accepts_losses(false);
        let reply = env.cache.invalidate(request);
        env.run(reply).unwrap();
    };
    let write = |env: &mut Environment, object: &ObjectId| {
        // A write of a part of the object does not repair the loss.
        let request = WriteRequest::new(object.clone(), 0, pattern(3, 0, 50)).stamp(Stamp::new(5, 1));
        let reply = env.cache.write(request);
        env.run(reply).unwrap();
    };
    // The name of a repair, the repair, and whether the repair ends the loss.
    type Repair<'a> = (&'a str, &'a dyn Fn(&mut Environment, &ObjectId), bool);
    let repairs: [Repair<'_>; 7] = [
        ("write_full", &stamped as &dyn Fn(&mut Environment, &ObjectId), true),
        ("delete", &delete, true),
        ("invalidate object", &one, true),
        ("invalidate domain", &domain, true),
        ("invalidate all", &all, true),
        ("refresh", &refresh, false),
        ("write", &write, false),
    ];
    for (what, repair, is_good) in repairs {
        let mut env = environment(back());
        env.lose(&id("taken"), 1);
        repair(&mut env, &id("taken"));
        for scope in scopes(&id("taken"), 1) {
            assert_eq!(env.is_lost(scope.clone()), !is_good, "{what}, {scope:?}");
        }
        assert_eq!(env.cache.counters().lost_objects, u64::from(!is_good), "{what}");
    }
}

/// The other writer creates the object.
fn fill_as_owner(store: &SteeredStore, object: &ObjectId) {
    let theirs = WriteFullRequest::new(object.clone(), pattern(9, 0, 100)).stamp(Stamp::new(5, 1));
    blocker::executor::block_on(store.memory().write_full(theirs)).unwrap();
}

#[test]
fn events_from_below_do_not_repair_a_loss() {
    let mut env = environment(back());
    env.lose(&id("taken"), 1);
    for scope in [Scope::Object(id("taken")), Scope::All] {
        // Another client of the store reports a change; the store notifies all subscribers.
        let invalidate = InvalidateRequest::new(scope);
        blocker::executor::block_on(env.store.memory().invalidate(invalidate)).unwrap();
        env.sim.run_until_idle();
        assert!(env.is_lost(Scope::All));
        assert!(env.is_lost(Scope::Object(id("taken"))));
    }
}

#[test]
fn missed_events_do_not_repair_a_loss() {
    let mut env = environment(back());
    env.lose(&id("taken"), 1);
    // More events than a subscription holds: the cache learns that it missed some.
    for _ in 0..3000 {
        let invalidate = InvalidateRequest::new(Scope::Namespace(namespace("elsewhere")));
        blocker::executor::block_on(env.store.memory().invalidate(invalidate)).unwrap();
    }
    env.sim.run_until_idle();
    assert!(env.is_lost(Scope::All));
}

#[test]
fn lost_objects_release_their_nodes() {
    let mut env = environment(back());
    for n in 0..16 {
        env.lose(&id(&format!("lost-{n}")), 1);
    }
    let other = ObjectId::new(namespace("other"), Name::copy_from(b"object").unwrap());
    fill(env.store.memory(), &other, pattern(1, 0, 100));
    for n in 0..20 {
        let object =
            ObjectId::new(other.namespace.clone(), Name::copy_from(format!("{n}").as_bytes()).unwrap());
        fill(env.store.memory(), &object, pattern(n, 0, 100));
        let reply = env.cache.read(ReadRequest::new(object, 0, 100));
        let reading = env.sim.spawn(reply);
        env.sim.run_until_idle();
        let read = reading.take().expect("all places are held by what is lost").unwrap();
        same(&read.data.to_vec(), &pattern(n, 0, 100), "another namespace");
    }
    for n in 0..16 {
        assert!(env.is_lost(Scope::Object(id(&format!("lost-{n}")))));
    }
    assert_eq!(env.cache.lost().objects.len(), 16);
}

#[test]
fn a_new_epoch_can_be_claimed_over_a_loss() {
    let mut env = environment(back());
    env.lose(&id("taken"), 1);
    let scope = Scope::Namespace(namespace("ns"));
    let reply = env.cache.claim(ClaimRequest::new(scope.clone(), Epoch(9), WriterId(1)));
    env.run(reply).unwrap();
    assert!(env.is_lost(scope), "claiming makes nothing good");
}

#[test]
fn a_write_that_must_be_stored_does_not_hide_a_loss() {
    let mut env = environment(back());
    env.lose(&id("taken"), 1);
    let mut again = WriteRequest::new(id("taken"), 0, pattern(4, 0, 10));
    again.terms.durability = Durability::Stored;
    let reply = env.cache.write(again);
    let answer = env.run(reply);
    assert!(matches!(answer, Err(Error::Fenced { .. })), "{answer:?}");
    assert!(env.is_lost(Scope::Object(id("taken"))));
}

#[test]
fn a_refused_write_that_was_never_acknowledged_is_no_loss() {
    let store = SteeredStore::new();
    // The cache learns of the claim only by its flush.
    store.silence();
    let mut env = over(store, back());
    let object = id("taken");
    let known = env.cache.info(InfoRequest::new(object.clone()));
    assert!(matches!(env.run(known), Err(Error::Missing)));
    env.taken_over(Scope::Object(object.clone()), 5);
    let mut stored = WriteRequest::new(object.clone(), 0, pattern(4, 0, 10));
    stored.terms.durability = Durability::Stored;
    let reply = env.cache.write(stored);
    let answer = env.run(reply);
    assert!(matches!(answer, Err(Error::WritesLost(_))), "{answer:?}");
    for scope in scopes(&object, 1) {
        assert!(!env.is_lost(scope));
    }
    assert_eq!(env.cache.counters().lost_objects, 0);
}

#[test]
fn a_claim_of_a_domain_stops_what_was_changed_in_it_and_nothing_else() {
    let mut env = environment(back());
    let object = id("shared");
    fill(env.store.memory(), &object, pattern(0, 0, 8192));
    let one = env.cache.write(in_domain(&object, 1, 0, pattern(1, 0, 4096)));
    env.run(one).unwrap();
    env.taken_over(Scope::Domain(object.namespace.clone(), OrderDomain(1)), 5);
    // This change is in another domain: its flush must not include the first change.
    let two = env.cache.write(in_domain(&object, 2, BUCKET, pattern(2, BUCKET, 4096)));
    env.run(two).unwrap();
    env.flush(Scope::Domain(object.namespace.clone(), OrderDomain(2))).unwrap();
    let mut wanted = pattern(0, 0, 8192);
    wanted[4096..].copy_from_slice(&pattern(2, BUCKET, 4096));
    same(&content(env.store.memory(), &object).unwrap(), &wanted, "the claim has come between");
    assert!(env.is_lost(Scope::Domain(object.namespace.clone(), OrderDomain(1))));
    assert!(env.is_lost(Scope::All));
}

#[test]
fn a_flush_of_a_domain_covers_an_object_of_several_domains() {
    let mut config = back();
    config.dirty_age_max = 3600 * SECOND;
    let mut env = environment(config);
    let object = id("shared");
    for (domain, n) in [(Some(1), 0), (Some(2), 1), (None, 2), (Some(1), 3)] {
        let at = n * BUCKET;
        let mut request = WriteRequest::new(object.clone(), at, pattern(n, at, 4096));
        request.terms.domain = domain.map(OrderDomain);
        let reply = env.cache.write(request);
        env.run(reply).unwrap();
    }
    env.flush(Scope::Domain(object.namespace.clone(), OrderDomain(1))).unwrap();
    let stored = content(env.store.memory(), &object).unwrap_or_default();
    for n in [0, 3] {
        let at = n * BUCKET;
        let part = stored.get(at as usize..at as usize + 4096).unwrap_or_default();
        same(part, &pattern(n, at, 4096), "acknowledged in the domain before its flush");
    }
}
