//! A cache with a journal: which changes are logged, when they are acknowledged, and how long the
//! log is kept.

mod epochs;
mod trouble;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::journal_kit::{Environment, SEGMENT_BYTES};
use blocker::executor::block_on;
use blocker::*;
use cached_core::object::{AtLimit, JournalOptions, JournalState};
use test_kit::rng::Rng;
use test_kit::steered::{Op, Verdict};
use test_kit::{each_seed, id, namespace, pattern};

#[test]
fn a_journaled_write_is_acknowledged_once_its_record_is_durable() {
    let mut env = Environment::new(8);
    let write = env.write(&id("a"), 0, pattern(1, 0, 5000), Durability::Journaled);
    assert!(!write.is_done(), "nothing is synced yet");
    assert_eq!(env.records(), [], "nothing is on the disk");
    env.commit();
    assert_eq!(write.get().unwrap().durability, Durability::Journaled);
    assert_eq!(env.store.count(Op::Write) + env.store.count(Op::WriteFull), 0, "the store was not asked");
    assert_eq!(env.records(), [("a".into(), 1)]);
}

#[test]
fn a_cached_write_waits_for_nothing_and_is_logged_all_the_same() {
    let mut env = Environment::new(8);
    let write = env.write(&id("a"), 0, pattern(1, 0, 5000), Durability::Cached);
    assert_eq!(write.get().unwrap().durability, Durability::Cached);
    env.commit();
    assert_eq!(env.records(), [("a".into(), 1)]);
}

#[test]
fn changes_that_come_together_are_committed_together() {
    let mut env = Environment::new(8);
    env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Cached).get().unwrap();
    env.commit();
    let before = env.journal.metrics().batch_records.count;
    let names = ["a", "b", "c", "d"];
    let writes = names.map(|name| env.write(&id(name), 0, pattern(1, 0, 4096), Durability::Journaled));
    assert!(writes.iter().all(|write| !write.is_done()));
    assert!(env.journal.step_commit());
    env.sim.run_until_idle();
    assert!(writes.iter().all(|write| write.is_done()));
    assert_eq!(env.journal.metrics().batch_records.count, before + 1);
}

/// The store must not have changes that the log could lose.
#[test]
fn a_flush_asks_the_store_once_the_records_are_durable() {
    let mut env = Environment::new(8);
    env.write(&id("a"), 0, pattern(1, 0, 5000), Durability::Cached).get().unwrap();
    let stored = env.write(&id("a"), 8192, pattern(2, 0, 5000), Durability::Stored);
    assert_eq!((stored.is_done(), env.changes()), (false, 0));
    env.commit();
    assert_eq!(stored.get().unwrap().durability, Durability::Stored);
    assert!(env.changes() > 0);
}

#[test]
fn a_record_is_held_until_its_change_is_stored() {
    let mut env = Environment::new(16);
    env.store.hold_changes();
    env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Cached).get().unwrap();
    env.commit();
    let first = env.oldest();
    // Changes of another object fill segments, and are stored each time.
    env.store.rule(|call| match call.op.is_change() && call.object == Some(id("a")) {
        true => test_kit::steered::Verdict::Hold,
        false => test_kit::steered::Verdict::Pass,
    });
    for round in 0..6 {
        for at in 0..4 {
            let bytes = pattern(round, 0, 12_000);
            env.write(&id("b"), at * 12_288, bytes, Durability::Cached).get().unwrap();
        }
        env.commit();
        env.flushed(Scope::Object(id("b")));
        assert_eq!(env.oldest(), first, "round {round}");
    }
    // A change is made during the flush, and then the flush ends: the log is kept from that change
    // on.
    let flush = env.flush(Scope::Object(id("a")), Durability::Stored);
    env.write(&id("a"), 0, pattern(2, 0, 100), Durability::Cached).get().unwrap();
    env.commit();
    let held = env.store.held();
    held.iter().for_each(|call| env.store.answer(call.number));
    env.sim.run_until_idle();
    assert!(flush.is_done());
    let newer = env.oldest();
    assert!(newer > first);
    for round in 0..3 {
        for at in 0..4 {
            let bytes = pattern(round, 0, 12_000);
            env.write(&id("b"), at * 12_288, bytes, Durability::Cached).get().unwrap();
        }
        env.commit();
        env.flushed(Scope::Object(id("b")));
        assert_eq!(env.oldest(), newer, "round {round}");
    }
    env.store.open();
    env.flushed(Scope::All);
    assert_eq!(env.journal.metrics().live_segments, 1);
    env.cache.validate().unwrap();
}

#[test]
fn a_failed_flush_keeps_the_older_record() {
    let mut env = Environment::new(12);
    env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Cached).get().unwrap();
    env.commit();
    let first = env.oldest();
    env.store.hold_changes();
    let flush = env.flush(Scope::Object(id("a")), Durability::Stored);
    for round in 0..20 {
        env.write(&id("a"), 0, pattern(round, 0, 12_000), Durability::Cached).get().unwrap();
        env.commit();
    }
    let held = env.store.held();
    held.iter().for_each(|call| env.store.fail(call.number, Error::Retryable("busy".into())));
    env.sim.run_until_idle();
    assert!(!flush.is_done());
    assert_eq!(env.oldest(), first);
    env.store.open();
    env.sim.advance(std::time::Duration::from_secs(2));
    env.commit();
    flush.get().unwrap();
    assert_eq!(env.journal.metrics().live_segments, 1);
}

#[test]
fn what_nothing_is_left_of_is_acknowledged_once_its_record_is_durable() {
    let mut env = Environment::new(8);
    env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Journaled);
    env.commit();
    let delete = env.cache.delete(DeleteRequest::new(id("a")).durability(Durability::Stored));
    let delete = env.sim.spawn(delete);
    env.sim.run_until_idle();
    assert!(!delete.is_done(), "the log has the write, and not yet the delete");
    env.commit();
    assert!(delete.get().is_ok());
}

#[test]
fn a_guests_flush_waits_for_the_log_alone() {
    let mut env = Environment::new(8);
    env.write(&id("a"), 0, pattern(1, 0, 5000), Durability::Cached).get().unwrap();
    for scope in [Scope::Object(id("a")), Scope::Namespace(id("a").namespace)] {
        env.write(&id("a"), 0, pattern(2, 0, 5000), Durability::Cached).get().unwrap();
        let flush = env.flush(scope, Durability::Journaled);
        assert!(!flush.is_done());
        env.commit();
        assert_eq!(flush.get().unwrap().durability, Durability::Journaled);
    }
    assert_eq!(env.changes(), 0);
    let flush = env.flush(Scope::Namespace(test_kit::namespace("plain")), Durability::Journaled);
    assert_eq!(flush.get().unwrap().durability, Durability::Stored, "nothing is logged there");
}

#[test]
fn a_namespace_without_journal_stores_what_is_to_be_journaled() {
    let mut env = Environment::new(8);
    let plain = ObjectId::new(test_kit::namespace("plain"), id("a").name);
    let write = env.write(&plain, 0, pattern(1, 0, 100), Durability::Journaled);
    assert_eq!(write.get().unwrap().durability, Durability::Stored);
    env.commit();
    assert_eq!(env.records(), []);
}

/// A mark is durable before the store gets a change that is not logged.
#[test]
fn a_forwarded_change_is_preceded_by_a_durable_mark() {
    let mut env = Environment::new(8);
    env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Journaled);
    env.commit();
    env.flushed(Scope::Namespace(test_kit::namespace("plain")));
    // The change exceeds the limit for logged changes.
    let large = env.write(&id("a"), 0, pattern(2, 0, 40_000), Durability::Cached);
    env.sim.run_until_idle();
    let before = env.changes();
    assert_eq!((large.is_done(), before), (false, 1), "the small write is stored, the large one not sent");
    env.commit();
    assert!(large.is_done() && env.changes() > before);
    assert_eq!(env.records(), [], "a replay finds nothing that is older");
    // Without records there is nothing to mark.
    let other = ObjectId::new(test_kit::namespace("fresh"), id("a").name);
    let large = env.write(&other, 0, pattern(2, 0, 40_000), Durability::Cached);
    env.commit();
    assert!(large.is_done());
}

#[test]
fn a_copy_that_the_store_makes_is_preceded_by_a_durable_mark() {
    let mut env = Environment::new(8);
    let source = ObjectId::new(test_kit::namespace("sources"), id("source").name);
    test_kit::fill(env.store.memory(), &source, pattern(1, 0, 60_000));
    env.write(&id("target"), 0, pattern(1, 0, 100), Durability::Journaled);
    env.commit();
    let copy = env.sim.spawn(env.cache.copy(CopyRequest::new(source, id("target"))));
    env.sim.run_until_idle();
    assert_eq!((copy.is_done(), env.store.count(Op::Copy)), (false, 0));
    env.commit();
    assert!(copy.get().is_ok());
    assert_eq!((env.store.count(Op::Copy), env.records()), (1, vec![]));
}

#[test]
fn a_small_copy_is_logged_by_its_bytes() {
    let mut env = Environment::new(8);
    env.write(&id("a"), 0, pattern(1, 0, 9000), Durability::Cached).get().unwrap();
    let copy = env.cache.copy(CopyRequest::new(id("a"), id("b")).durability(Durability::Journaled));
    let copy = env.sim.spawn(copy);
    env.sim.run_until_idle();
    env.commit();
    assert_eq!(copy.get().unwrap().durability, Durability::Journaled);
    assert_eq!(env.payloads("b"), [pattern(1, 0, 9000)]);
    assert_eq!(env.changes(), 0);
}

#[test]
fn a_flush_marks_what_it_has_stored() {
    let mut env = Environment::new(8);
    for name in ["a", "b"] {
        env.write(&id(name), 0, pattern(1, 0, 100), Durability::Cached).get().unwrap();
    }
    env.commit();
    env.flushed(Scope::Object(id("a")));
    assert_eq!(env.records(), [("b".into(), 1)]);
    env.flushed(Scope::All);
    assert_eq!(env.records(), []);
}

/// A mark does not cover a change that is logged during the mark's flush.
#[test]
fn a_mark_covers_what_was_logged_before_its_flush_and_nothing_else() {
    let mut env = Environment::new(8);
    env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Cached).get().unwrap();
    env.commit();
    env.store.hold_changes();
    let flush = env.flush(Scope::All, Durability::Stored);
    env.write(&id("b"), 0, pattern(1, 0, 100), Durability::Cached).get().unwrap();
    env.commit();
    env.store.open();
    env.sim.wait(flush).unwrap();
    env.commit();
    assert_eq!(env.records(), [("b".into(), 1)]);
}

/// An older change of the object belongs to no domain, and is not covered by a flush of the domain.
#[test]
fn what_a_flush_of_an_order_domain_has_stored_is_not_undone_by_a_recovery() {
    let mut env = Environment::new(8);
    env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Cached).get().unwrap();
    let request = WriteRequest::new(id("a"), 0, pattern(2, 0, 100)).domain(OrderDomain(5));
    let write = env.sim.spawn(env.cache.write(request));
    env.commit();
    write.get().unwrap();
    env.flushed(Scope::Domain(namespace("ns"), OrderDomain(5)));
    let mut again = env.restarted();
    again.begin_recovery().unwrap();
    let read = again.sim.spawn(again.cache.read(ReadRequest::new(id("a"), 0, 100)));
    again.commit();
    assert_eq!(read.get().unwrap().data.to_vec(), pattern(2, 0, 100));
}

#[test]
fn leaving_write_back_marks_the_namespace() {
    let mut env = Environment::new(8);
    env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Cached).get().unwrap();
    env.commit();
    let mut policy = Policy::default();
    policy.write = WriteMode::Through;
    let set = env.sim.spawn(env.cache.control().set_policy(id("a").namespace, policy));
    env.sim.run_until_idle();
    env.commit();
    assert!(set.get().is_ok());
    assert_eq!(env.records(), []);
    // A change in the new mode needs no mark.
    let appended = env.journal.metrics().counts.appended_records;
    env.write(&id("a"), 0, pattern(2, 0, 100), Durability::Cached).get().unwrap();
    assert_eq!(env.journal.metrics().counts.appended_records, appended);
}

#[test]
fn a_change_in_another_mode_is_marked_until_the_namespace_is() {
    let mut env = Environment::new(8);
    env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Cached).get().unwrap();
    env.commit();
    env.cache.set_namespace(&id("a").namespace, &WriteMode::Through.into()).unwrap();
    let through = env.write(&id("a"), 0, pattern(2, 0, 100), Durability::Cached);
    assert!(!through.is_done());
    env.commit();
    assert!(through.is_done());
    assert_eq!(env.records(), []);
}

/// The record of an epoch is durable before the claim.
#[test]
fn a_namespace_is_claimed_once_the_record_of_the_epoch_is_durable() {
    let mut env = Environment::unclaimed(8, JournalOptions::default());
    let write = env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Cached);
    assert!(!write.is_done());
    // The claim asks for the epoch in force once.
    assert_eq!(env.store.count(Op::Claim), 1);
    env.commit();
    assert!(write.is_done());
    assert_eq!(env.store.count(Op::Claim), 2);
}

#[test]
fn a_deadline_ends_the_wait_for_the_log() {
    let mut env = Environment::new(8);
    let now = env.sim.clock.now();
    let write = WriteRequest::new(id("a"), 0, pattern(1, 0, 100)).durability(Durability::Journaled);
    let write = env.sim.spawn(env.cache.write(write.deadline(now + std::time::Duration::from_secs(1))));
    env.sim.advance(std::time::Duration::from_secs(2));
    assert!(matches!(write.get(), Err(Error::NotStored(_))));
    assert_eq!(env.cache.journal_health().unwrap().state, JournalState::Ok);
}

#[test]
fn writers_wait_for_room_and_get_it_when_objects_are_stored() {
    let mut env = Environment::new(6);
    env.store.hold_changes();
    let mut writes = Vec::new();
    for round in 0..60_u64 {
        writes.push(env.write(&id("a"), 0, pattern(round, 0, 12_000), Durability::Cached));
        env.commit();
        if writes.iter().any(|write| !write.is_done()) {
            break;
        }
    }
    assert!(writes.iter().any(|write| !write.is_done()), "the journal is full");
    assert!(env.journal.metrics().fill_bytes <= 6 * SEGMENT_BYTES);
    env.store.open();
    for _ in 0..10 {
        env.commit();
    }
    assert!(writes.iter().all(|write| write.is_done()));
}

#[test]
fn at_the_limit_changes_can_go_through_instead() {
    let options = JournalOptions { at_limit: AtLimit::Through, ..crate::journal_kit::options() };
    let mut env = Environment::with(6, options);
    let kept = id("kept");
    env.store.rule(move |call| match call.op.is_change() && call.object == Some(id("kept")) {
        true => test_kit::steered::Verdict::Hold,
        false => test_kit::steered::Verdict::Pass,
    });
    let mut round = 0;
    while env.write(&kept, 0, pattern(round, 0, 3000), Durability::Cached).is_done() {
        env.commit();
        round += 1;
        assert!(round < 200);
    }
    assert!(round > 10);
    let through = env.write(&id("other"), 0, pattern(1, 0, 3000), Durability::Cached);
    env.commit();
    assert!(through.is_done());
    assert_eq!(env.cache.counters().writes_through, 1);
}

fn set_mode(env: &mut Environment, mode: WriteMode) {
    let mut policy = Policy::default();
    policy.write = mode;
    let set = env.sim.spawn(env.cache.control().set_policy(id("a").namespace, policy));
    env.commit();
    set.get().unwrap();
}

/// Changes that the store accepted without a record, and may not have stored durably, precede the
/// logged ones: a power failure of the store must not lose the former and keep the latter.
#[test]
fn nothing_is_logged_before_the_store_has_stored_what_was_forwarded() {
    let mut env = Environment::new(8);
    // This stores all written-back data.
    set_mode(&mut env, WriteMode::Through);
    env.store.clear_log();
    env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Cached).get().unwrap();
    set_mode(&mut env, WriteMode::Back);
    env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Cached).get().unwrap();
    env.commit();
    assert_eq!(env.store.count(Op::Flush), 0, "the store has stored what it was not asked to");
    set_mode(&mut env, WriteMode::Through);
    env.store.rule(|call| match call.op {
        Op::Write => Verdict::DoAndFail(Error::OutcomeUnknown("no answer".into())),
        _ => Verdict::Pass,
    });
    let through = env.write(&id("a"), 0, pattern(2, 0, 100), Durability::Cached);
    env.commit();
    assert!(matches!(through.get(), Err(Error::OutcomeUnknown(_))));
    env.store.pass();
    set_mode(&mut env, WriteMode::Back);
    env.store.clear_log();
    env.store.hold(&[Op::Flush]);
    let appended = env.journal.metrics().counts.appended_records;
    let first = env.write(&id("b"), 0, pattern(3, 0, 100), Durability::Cached);
    let second = env.write(&id("c"), 0, pattern(3, 0, 100), Durability::Cached);
    env.commit();
    assert!(!first.is_done() && !second.is_done());
    assert_eq!(env.journal.metrics().counts.appended_records, appended);
    assert_eq!(env.store.held().len(), 1, "one request for all");
    // The next change repeats the request that the store cannot perform now.
    let number = env.store.held()[0].number;
    env.store.fail(number, Error::Retryable("busy".into()));
    env.sim.run_until_idle();
    assert!(matches!(first.get(), Err(Error::Retryable(_))));
    env.store.open();
    env.commit();
    second.get().unwrap();
    assert_eq!(env.journal.metrics().counts.appended_records, appended + 1);
    // One request is enough.
    env.write(&id("d"), 0, pattern(3, 0, 100), Durability::Cached).get().unwrap();
    assert_eq!(env.store.count(Op::Flush), 2);
}

/// An earlier process may have left unlogged changes in the store, acknowledged or not.
#[test]
fn the_first_change_of_a_process_is_logged_once_the_store_has_stored_what_it_had() {
    let mut env = Environment::unclaimed(8, JournalOptions::default());
    env.store.hold(&[Op::Flush]);
    let write = env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Cached);
    env.commit();
    assert!(!write.is_done());
    assert_eq!(env.records(), []);
    env.store.open();
    env.commit();
    write.get().unwrap();
    assert_eq!(env.records(), [("a".into(), 1)]);
}

#[test]
fn a_journaled_flush_of_everything_stores_only_what_is_not_logged() {
    let mut env = Environment::new(8);
    let plain = ObjectId::new(test_kit::namespace("plain"), id("a").name);
    env.write(&id("a"), 0, pattern(1, 0, 5000), Durability::Cached).get().unwrap();
    let flush = env.flush(Scope::All, Durability::Journaled);
    assert!(!flush.is_done(), "before the commit");
    env.commit();
    assert_eq!(flush.get().unwrap().durability, Durability::Journaled);
    assert_eq!(env.changes(), 0);
    env.write(&plain, 0, pattern(2, 0, 5000), Durability::Cached).get().unwrap();
    env.write(&id("a"), 0, pattern(3, 0, 5000), Durability::Cached).get().unwrap();
    let flush = env.flush(Scope::All, Durability::Journaled);
    env.commit();
    assert_eq!(flush.get().unwrap().durability, Durability::Journaled, "the least that holds");
    assert_eq!(test_kit::content(env.store.memory(), &plain).unwrap(), pattern(2, 0, 5000));
    assert!(
        env.store.log().iter().filter(|call| call.op.is_change()).all(|call| call.object != Some(id("a")))
    );
}

/// A cache of two namespaces, one of them journaled, over a store in which other owners change
/// objects once the cache has given up the namespace; and the expected listing.
struct Listed {
    env: Environment,
    rng: Rng,
    /// The sizes of the objects of each namespace, by name.
    sizes: [BTreeMap<String, u64>; 2],
    /// The number of times that other owners have had a namespace.
    owners: u64,
}

const LISTED: [&str; 2] = ["ns", "plain"];

impl Listed {
    fn object(&mut self) -> (usize, String, ObjectId) {
        let (of, name) = (self.rng.index(2), format!("object-{}", self.rng.below(5)));
        let id = ObjectId::new(namespace(LISTED[of]), Name::copy_from(name.as_bytes()).unwrap());
        (of, name, id)
    }

    fn done<T: Unpin + 'static>(&mut self, reply: Reply<T>) -> Result<T> {
        let reply = self.env.sim.spawn(reply);
        self.env.commit();
        for _ in 0..100 {
            if reply.is_done() {
                break;
            }
            // The operation waits for a flush that the store holds.
            self.env.store.open();
            self.env.sim.advance(Duration::from_millis(100));
            self.env.commit();
        }
        reply.get()
    }

    fn change(&mut self) {
        let (of, name, id) = self.object();
        let before = self.sizes[of].get(&name).copied();
        let (offset, len) = (self.rng.below(20_000), self.rng.below(9000));
        let cache = self.env.cache.clone();
        let (answer, after) = match self.rng.below(6) {
            0 => {
                let request = WriteFullRequest::new(id, pattern(1, 0, len as usize));
                (self.done(cache.write_full(request)), Some(len))
            }
            1 => {
                let deleted = self.done(cache.delete(DeleteRequest::new(id)));
                (deleted.map(|_| ChangeReply::new(Version(0), 0, Durability::Cached)), None)
            }
            2 => (self.done(cache.truncate(TruncateRequest::new(id, offset))), Some(offset)),
            // The range is often beyond the end, where the operation changes nothing.
            3 => (self.done(cache.discard(DiscardRequest::new(id, offset, len))), before),
            4 => {
                let request = WriteRequest::new(id, 0, Vec::new());
                (self.done(cache.write(request)), Some(before.unwrap_or(0)))
            }
            _ => {
                let request = WriteRequest::new(id, offset, pattern(1, offset, 1 + len as usize));
                (self.done(cache.write(request)), Some(before.unwrap_or(0).max(offset + 1 + len)))
            }
        };
        match answer {
            Ok(_) => match after {
                Some(size) => _ = self.sizes[of].insert(name, size),
                None => _ = self.sizes[of].remove(&name),
            },
            Err(Error::Missing) => assert_eq!(before, None),
            Err(error) => panic!("{error}"),
        }
    }

    /// Gives up a namespace, and lets another owner have it for a while.
    fn hand_over(&mut self) {
        let (of, name, id) = self.object();
        let released = self.env.cache.control().release(id.namespace.clone());
        match self.done(released) {
            Ok(()) => (),
            // A change was made in the meantime, or is held.
            Err(Error::Retryable(_)) => return,
            Err(error) => panic!("{error}"),
        }
        self.owners += 1;
        let memory = self.env.store.memory();
        let scope = Scope::Namespace(id.namespace.clone());
        let in_force = match block_on(memory.claim(ClaimRequest::ask(scope.clone()))) {
            Ok(none) => none.epoch,
            // The error contains the epoch in force.
            Err(Error::Fenced { epoch }) => epoch,
            Err(error) => panic!("{error}"),
        };
        let epoch = Epoch(in_force.0 + 1);
        block_on(memory.claim(ClaimRequest::new(scope, epoch, WriterId(77)))).unwrap();
        let stamp = Stamp::new(epoch.0, self.owners);
        if self.rng.permille(500) {
            let size = self.rng.below(9000);
            let request = WriteFullRequest::new(id, pattern(2, 0, size as usize)).stamp(stamp);
            block_on(memory.write_full(request)).unwrap();
            self.sizes[of].insert(name, size);
        } else if self.sizes[of].remove(&name).is_some() {
            block_on(memory.delete(DeleteRequest::new(id).stamp(stamp))).unwrap();
        }
    }

    fn step(&mut self) {
        match self.rng.weighted(&[50, 10, 10, 10, 10, 5, 3]) {
            0 => self.change(),
            // The cache forgets objects whose changes are all stored.
            1 => {
                let (_, _, id) = self.object();
                let scope =
                    if self.rng.permille(500) { Scope::Namespace(id.namespace) } else { Scope::Object(id) };
                let cache = self.env.cache.clone();
                self.done(cache.invalidate(InvalidateRequest::new(scope))).unwrap();
            }
            2 => {
                let (of, name, id) = self.object();
                let found = self.done(self.env.cache.clone().info(InfoRequest::new(id)));
                assert_eq!(found.ok().map(|info| info.size_bytes), self.sizes[of].get(&name).copied());
            }
            // Flushes begin because of age, and some of them end.
            3 => {
                self.env.sim.advance(Duration::from_millis(self.rng.below(40_000)));
                self.env.commit();
            }
            4 => _ = self.env.store.answer_first(),
            5 if self.rng.permille(500) => self.env.store.hold_changes(),
            5 => self.env.store.pass(),
            _ => self.hand_over(),
        }
    }

    /// The listing is correct with pages of any size.
    fn check(&mut self, step: usize) {
        for (of, name) in LISTED.into_iter().enumerate() {
            let mut request = ListRequest::new(namespace(name));
            let mut found = BTreeMap::new();
            loop {
                request.entries_max = 1 + self.rng.below(6) as u32;
                let page = self.done(self.env.cache.clone().list(request.clone())).unwrap();
                let name = |entry: &ListEntry| String::from_utf8(entry.name.as_bytes().to_vec()).unwrap();
                found.extend(page.entries.iter().map(|entry| (name(entry), entry.size_bytes)));
                request.after = page.entries.last().map(|entry| entry.name.clone());
                if !page.has_more {
                    break;
                }
            }
            assert_eq!(found, self.sizes[of], "step {step}: {name}");
        }
        self.env.cache.validate().unwrap();
    }
}

/// Objects may be queued, known, forgotten, or changed by another owner.
#[test]
fn a_listing_shows_after_each_step_what_is_there() {
    let owners = AtomicU64::new(0);
    each_seed(60, |seed, _| {
        let (env, rng) = (Environment::new(16), Rng::new(seed));
        let mut listed = Listed { env, rng, sizes: Default::default(), owners: 0 };
        for step in 0..150 {
            listed.step();
            listed.check(step);
        }
        owners.fetch_add(listed.owners, Ordering::Relaxed);
    });
    assert!(owners.into_inner() > 0 || std::env::var("OBJECT_SEED").is_ok(), "no other owner took part");
}
