//! A cache that restarts with its journal after another writer has claimed the namespace.

use crate::journal_kit::Environment;
use blocker::*;
use test_kit::{id, namespace, pattern};

/// Makes another writer claim the namespace with the next epoch, and returns this epoch.
fn take_over(env: &mut Environment) -> Epoch {
    let scope = Scope::Namespace(namespace("ns"));
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

#[test]
fn a_journal_without_changes_does_not_hinder_the_start_after_a_takeover() {
    let mut env = Environment::new(8);
    take_over(&mut env);
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
    take_over(&mut env);
    let mut again = env.restarted();
    assert_eq!(again.begin_recovery(), Ok(()));
    let read = again.sim.spawn(again.cache.read(ReadRequest::new(id("a"), 0, 100)));
    again.commit();
    assert_eq!(read.get().unwrap_err(), Error::Missing);
}
