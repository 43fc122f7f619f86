//! A cache with a journal of which another writer claims the namespace, and restarts.

use crate::journal_kit::{Environment, SEGMENT_BYTES};
use blocker::*;
use cached_core::object::{JournalOptions, NamespaceConfig};
use cached_journal::Reservation;
use test_kit::steered::Op;
use test_kit::{id, namespace, pattern};

/// Makes another writer claim a namespace with the next epoch, and returns this epoch.
fn take_over(env: &mut Environment, of: Namespace) -> Epoch {
    let scope = Scope::Namespace(of);
    let asked = env.sim.spawn(env.store.claim(ClaimRequest::ask(scope.clone())));
    env.sim.run_until_idle();
    let in_force = match asked.get() {
        Ok(reply) => reply.epoch,
        Err(Error::Fenced { epoch }) => epoch,
        Err(error) => panic!("{error}"),
    };
    let next = Epoch(in_force.0 + 1);
    let claimed = env.sim.spawn(env.store.claim(ClaimRequest::new(scope, next, WriterId(7))));
    env.sim.run_until_idle();
    claimed.get().unwrap();
    next
}

/// Takes all room of the journal that is left.
fn all_room(env: &Environment) -> Vec<Reservation> {
    let mut taken = Vec::new();
    let mut bytes = 8 * SEGMENT_BYTES;
    while bytes > 0 {
        match env.journal.reserve_leaving(1, bytes, 0) {
            Ok(reservation) => taken.push(reservation),
            Err(_) => bytes /= 2,
        }
    }
    taken
}

#[test]
fn a_journal_without_changes_does_not_hinder_the_start_after_a_takeover() {
    let mut env = Environment::new(8);
    take_over(&mut env, namespace("ns"));
    let mut again = env.restarted();
    let begun = again.begin_recovery();
    assert_eq!(begun, Ok(()));
    let write = again.write(&id("a"), 0, pattern(1, 0, 100), Durability::Journaled);
    again.commit();
    assert_eq!(write.get().unwrap().durability, Durability::Journaled);
}

#[test]
fn the_changes_of_a_journal_are_left_out_after_a_takeover() {
    let mut env = Environment::new(8);
    env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Cached).get().unwrap();
    env.commit();
    take_over(&mut env, namespace("ns"));
    let mut again = env.restarted();
    assert_eq!(again.begin_recovery(), Ok(()));
    let read = again.sim.spawn(again.cache.read(ReadRequest::new(id("a"), 0, 100)));
    again.commit();
    assert_eq!(read.get().unwrap_err(), Error::Missing);
}

/// The release has marked what was logged before it, but not a change that is made and stored
/// meanwhile.
#[test]
fn a_namespace_is_released_once_nothing_of_it_would_be_replayed() {
    let mut env = Environment::new(8);
    let object = id("a");
    env.store.hold(&[Op::Flush]);
    let release = |env: &mut Environment| {
        let released = env.sim.spawn(env.cache.control().release(namespace("ns")));
        env.commit();
        released
    };
    let early = release(&mut env);
    let write = env.write(&object, 0, pattern(1, 0, 100), Durability::Stored);
    env.commit();
    write.get().unwrap();
    env.store.open();
    env.commit();
    let refused = early.get();
    assert!(matches!(refused, Err(Error::Retryable(_))), "{refused:?}");
    release(&mut env).get().unwrap();
    let stamp = Stamp::new(take_over(&mut env, namespace("ns")).0, 1);
    let of_another = WriteRequest::new(object.clone(), 0, pattern(2, 0, 100)).stamp(stamp);
    env.sim.run(env.store.write(of_another)).unwrap();
    // This cache is the writer again, and restarts with records of its own.
    let write = env.write(&id("b"), 0, pattern(3, 0, 100), Durability::Journaled);
    env.commit();
    write.get().unwrap();
    let mut again = env.restarted();
    again.begin_recovery().unwrap();
    let read = again.sim.spawn(again.cache.read(ReadRequest::new(object, 0, 100)));
    again.commit();
    assert_eq!(read.get().unwrap().data.to_vec(), pattern(2, 0, 100));
}

#[test]
fn a_journaled_flush_reports_what_is_lost_to_another_writer() {
    let mut env = Environment::new(8);
    // This namespace is not logged.
    let [dirty, late] = ["a", "b"].map(|name| ObjectId::new(namespace("plain"), id(name).name));
    env.write(&dirty, 0, pattern(1, 0, 100), Durability::Cached).get().unwrap();
    take_over(&mut env, namespace("plain"));
    let refused = env.write(&late, 0, pattern(2, 0, 100), Durability::Cached).get();
    assert!(matches!(refused, Err(Error::Fenced { .. })), "{refused:?}");
    let flush = env.flush(Scope::All, Durability::Journaled);
    env.commit();
    let lost = flush.get();
    assert!(matches!(lost, Err(Error::WritesLost(_))), "{lost:?}");
}

/// Data of a namespace whose claim must be repeated are stored to make room in the log.
#[test]
fn a_claim_that_waits_for_room_in_the_log_holds_up_no_other() {
    let mut env = Environment::unclaimed(8, JournalOptions::default());
    let taken = all_room(&env);
    let waits = env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Cached);
    assert!(!waits.is_done(), "there is no room for the record of the epoch");
    // This namespace is not logged.
    let other = ObjectId::new(namespace("plain"), id("b").name);
    env.write(&other, 0, pattern(2, 0, 100), Durability::Cached).get().unwrap();
    assert!(!waits.is_done());
    drop(taken);
    env.commit();
    waits.get().unwrap();
}

/// The gate is two requests wide.
#[test]
fn a_forwarded_change_that_waits_for_room_in_the_log_holds_up_no_flush() {
    let mut env = Environment::adjusted(8, |config| {
        (config.load_requests_max, config.flush_requests_max) = (1, 1);
        let weighty = NamespaceConfig::new(namespace("weighty"), WriteMode::Back);
        config.namespaces.push(weighty.with(NamespaceKey::StoreWeight, 2));
    });
    let taken = all_room(&env);
    let mut waits = Vec::new();
    for number in 0..4 {
        // Too large for the log, it is forwarded.
        let object = ObjectId::new(namespace("fresh"), id(&format!("{number}")).name);
        waits.push(env.write(&object, 0, pattern(number, 0, 40_000), Durability::Cached));
    }
    assert!(waits.iter().all(|write| !write.is_done()), "there is no room for the record of the epoch");
    let dirty = ObjectId::new(namespace("plain"), id("b").name);
    env.write(&dirty, 0, pattern(9, 0, 100), Durability::Cached).get().unwrap();
    env.flushed(Scope::Object(dirty));
    assert!(waits.iter().all(|write| !write.is_done()));
    drop(taken);
    env.commit();
    for write in waits {
        write.get().unwrap();
    }
}
