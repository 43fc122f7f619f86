//! A journal whose disk fails during use, and a journal whose oldest object the store refuses.

use std::time::Duration;

use crate::journal_kit::{Environment, fail_disk};
use blocker::*;
use cached_core::object::{JournalState, NamespaceConfig, StoreTerms};
use test_kit::steered::{Op, Verdict};
use test_kit::{content, id, namespace, pattern, same};

const SECOND: Duration = Duration::from_secs(1);

fn state(env: &Environment) -> JournalState {
    env.cache.journal_health().unwrap().state
}

/// Lets the journal try to restart.
fn restart(env: &mut Environment) {
    env.clock.advance(5 * SECOND);
    env.commit();
    env.sim.advance(2 * SECOND);
    env.commit();
}

#[test]
fn a_failed_sync_lets_the_write_be_stored_instead() {
    let mut env = Environment::new(8);
    fail_disk(&env.disk, true);
    let write = env.write(&id("a"), 0, pattern(1, 0, 5000), Durability::Journaled);
    assert!(!write.is_done());
    env.commit();
    assert_eq!(write.get().unwrap().durability, Durability::Stored);
    same(&content(env.store.memory(), &id("a")).unwrap(), &pattern(1, 0, 5000), "stored");
    assert_eq!(state(&env), JournalState::Void);
    assert!(env.cache.journal_health().unwrap().reason.is_some());
    env.cache.validate().unwrap();
}

/// Until the log is void, logged changes could be replayed over later changes that were stored
/// without a record.
#[test]
fn stored_is_not_acknowledged_before_the_log_is_void() {
    let mut env = Environment::new(8);
    // The change is durable, but held back from the store.
    env.store.rule(|call| match call.op.is_change() && call.object == Some(id("kept")) {
        true => Verdict::Hold,
        false => Verdict::Pass,
    });
    env.write(&id("kept"), 0, pattern(1, 0, 100), Durability::Cached).get().unwrap();
    env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Cached).get().unwrap();
    env.commit();
    fail_disk(&env.disk, true);
    env.write(&id("a"), 0, pattern(2, 0, 100), Durability::Cached).get().unwrap();
    env.commit();
    assert_eq!(state(&env), JournalState::Draining);
    // The change is not logged: it is acknowledged as cached immediately, but not as journaled.
    let cached = env.write(&id("b"), 0, pattern(3, 0, 100), Durability::Cached);
    assert_eq!(cached.get().unwrap().durability, Durability::Cached);
    let journaled = env.write(&id("b"), 0, pattern(4, 0, 100), Durability::Journaled);
    let stored = env.write(&id("a"), 0, pattern(5, 0, 100), Durability::Stored);
    let large = env.write(&id("c"), 0, pattern(6, 0, 40_000), Durability::Stored);
    let through = env.write(&id("d"), 0, pattern(7, 0, 40_000), Durability::Cached);
    assert_eq!(through.get().unwrap().durability, Durability::Cached, "made by the store, and not safe yet");
    let flush = env.flush(Scope::Object(id("a")), Durability::Stored);
    let guest = env.flush(Scope::Namespace(id("a").namespace), Durability::Journaled);
    env.commit();
    assert_eq!(content(env.store.memory(), &id("a")).unwrap(), pattern(5, 0, 100), "stored already");
    assert!(!journaled.is_done() && !stored.is_done() && !large.is_done());
    assert!(!flush.is_done() && !guest.is_done());
    let claims = env.store.count(Op::Claim);
    env.store.open();
    env.commit();
    assert_eq!(state(&env), JournalState::Void);
    assert_eq!(env.store.count(Op::Claim), claims + 1, "void by a new epoch");
    for write in [journaled, stored, large] {
        assert_eq!(write.get().unwrap().durability, Durability::Stored);
    }
    assert_eq!(flush.get().unwrap().durability, Durability::Stored);
    assert_eq!(guest.get().unwrap().durability, Durability::Stored);
}

#[test]
fn a_journal_that_works_again_logs_what_comes_after_all_else_is_stored() {
    let mut env = Environment::new(8);
    fail_disk(&env.disk, true);
    env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Journaled);
    env.commit();
    assert_eq!(state(&env), JournalState::Void);
    env.write(&id("b"), 0, pattern(2, 0, 100), Durability::Cached).get().unwrap();
    env.store.hold_changes();
    fail_disk(&env.disk, false);
    restart(&mut env);
    assert!(!env.journal.is_failed());
    assert_eq!(state(&env), JournalState::Void, "what is not logged is not stored either");
    // Until the mark is durable, nothing is logged.
    let appended = env.journal.metrics().counts.appended_records;
    env.write(&id("c"), 0, pattern(3, 0, 100), Durability::Cached).get().unwrap();
    assert_eq!(env.journal.metrics().counts.appended_records, appended);
    env.store.open();
    env.sim.advance(2 * SECOND);
    env.commit();
    assert_eq!(state(&env), JournalState::Ok);
    assert_eq!(env.cache.journal_health().unwrap().reason, None);
    for (name, tag) in [("a", 1), ("b", 2), ("c", 3)] {
        same(&content(env.store.memory(), &id(name)).unwrap(), &pattern(tag, 0, 100), name);
    }
    let write = env.write(&id("a"), 0, pattern(4, 0, 100), Durability::Journaled);
    env.commit();
    assert_eq!(write.get().unwrap().durability, Durability::Journaled);
    assert_eq!(env.records(), [("a".into(), 1)]);
    env.cache.validate().unwrap();
}

#[test]
fn changes_wait_while_the_journal_resumes_and_go_on_when_it_takes_too_long() {
    let mut env = Environment::new(8);
    fail_disk(&env.disk, true);
    env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Journaled);
    env.commit();
    // The journal works, but its first mark is not synced.
    fail_disk(&env.disk, false);
    env.clock.advance(5 * SECOND);
    assert!(env.journal.step_commit());
    env.sim.run_until_idle();
    assert_eq!(state(&env), JournalState::Resuming);
    let write = env.write(&id("b"), 0, pattern(2, 0, 100), Durability::Cached);
    assert!(!write.is_done(), "it must not come between what is stored and what is logged");
    env.sim.advance(10 * SECOND + SECOND / 2);
    assert_eq!(state(&env), JournalState::Void);
    assert!(write.is_done());
    env.commit();
    env.sim.advance(2 * SECOND);
    env.commit();
    assert_eq!(state(&env), JournalState::Ok);
}

/// Writers change as much as the store accepts, and the store needs longer for all dirty data than
/// changes wait at first. Therefore changes wait longer, and the journal is used again.
#[test]
fn a_journal_resumes_under_a_load_that_the_store_just_bears() {
    const OBJECTS: u64 = 12;
    let mut env = Environment::new(8);
    fail_disk(&env.disk, true);
    env.write(&id("first"), 0, pattern(1, 0, 100), Durability::Journaled);
    env.commit();
    assert_eq!(state(&env), JournalState::Void);
    env.store.hold_changes();
    for object in 0..OBJECTS {
        env.write(&id(&format!("o{object}")), 0, pattern(object, 0, 100), Durability::Cached).get().unwrap();
    }
    fail_disk(&env.disk, false);
    env.clock.advance(5 * SECOND);
    env.commit();
    let mut waiting = Vec::new();
    for second in 0..200 {
        env.sim.advance(SECOND);
        env.commit();
        if state(&env) == JournalState::Ok {
            break;
        }
        // The store takes a second for one object, which is then changed again.
        if let Some(call) = env.store.held().first() {
            let object = call.object.clone().unwrap();
            env.store.answer(call.number);
            env.commit();
            waiting.push(env.write(&object, 0, pattern(second, 0, 100), Durability::Cached));
            env.commit();
        }
    }
    assert_eq!(state(&env), JournalState::Ok);
    env.store.open();
    env.commit();
    assert!(waiting.into_iter().all(|write| write.get().is_ok()));
    env.flushed(Scope::All);
    env.cache.validate().unwrap();
}

#[test]
fn a_flush_that_was_sent_before_the_new_claim_is_sent_again() {
    let mut env = Environment::new(8);
    env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Journaled);
    env.commit();
    env.store.rule(|call| match call.op == Op::Claim {
        true => Verdict::Hold,
        false => Verdict::Pass,
    });
    fail_disk(&env.disk, true);
    env.write(&id("b"), 0, pattern(2, 0, 100), Durability::Cached).get().unwrap();
    env.commit();
    assert_eq!(state(&env), JournalState::Draining);
    // The claim is in flight; a flush under the old epoch follows it.
    let held = env.store.held();
    assert_eq!(held.iter().map(|call| call.op).collect::<Vec<_>>(), [Op::Claim]);
    env.store.perform(held[0].number);
    env.write(&id("c"), 0, pattern(3, 0, 100), Durability::Cached).get().unwrap();
    let flush = env.flush(Scope::Object(id("c")), Durability::Stored);
    env.store.answer(held[0].number);
    env.store.open();
    env.sim.advance(2 * SECOND);
    env.commit();
    assert_eq!(flush.get().unwrap().durability, Durability::Stored);
    assert!(env.cache.lost().objects.is_empty());
    assert_eq!(state(&env), JournalState::Void);
}

/// The store has accepted the claim that voids the log, but its response is lost; then the journal
/// works again. Later changes must not be logged under the epoch that the store refuses, because a
/// restart would treat them as void.
#[test]
fn a_claim_whose_answer_is_lost_is_made_once_more_before_changes_are_logged() {
    for is_stored in [false, true] {
        let mut env = Environment::new(8);
        env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Journaled);
        env.commit();
        env.store.hold(&[Op::Claim]);
        fail_disk(&env.disk, true);
        env.write(&id("b"), 0, pattern(2, 0, 100), Durability::Cached).get().unwrap();
        env.commit();
        let flush = env.flush(Scope::Object(id("b")), Durability::Stored);
        env.commit();
        assert_eq!(state(&env), JournalState::Draining);
        assert!(content(env.store.memory(), &id("b")).is_some(), "nothing is dirty");
        let claim = env.store.held()[0].number;
        env.store.perform(claim);
        fail_disk(&env.disk, false);
        env.clock.advance(5 * SECOND);
        env.commit();
        assert!(!env.journal.is_failed(), "before the claim is tried again");
        env.store.pass();
        env.store.fail(claim, Error::Retryable("the answer is lost".into()));
        env.sim.advance(2 * SECOND);
        env.commit();
        assert_eq!(state(&env), JournalState::Ok);
        assert!(flush.get().is_ok());
        let write = env.write(&id("a"), 0, pattern(3, 0, 100), Durability::Journaled);
        env.commit();
        assert_eq!(write.get().unwrap().durability, Durability::Journaled);
        if is_stored {
            env.flushed(Scope::All);
            same(&content(env.store.memory(), &id("a")).unwrap(), &pattern(3, 0, 100), "stored");
        }
        let mut env = env.restarted();
        env.begin_recovery().unwrap();
        same(&read(&mut env, "a").1, &pattern(3, 0, 100), "after a restart");
    }
}

/// An object that the store refuses does not prevent the release of the log's other records.
#[test]
fn an_object_that_the_store_refuses_is_logged_again_and_the_tail_moves_on() {
    let mut env = Environment::new(16);
    env.store.rule(|call| match call.op.is_change() && call.object == Some(id("stuck")) {
        true => Verdict::Fail(Error::Retryable("refused".into())),
        false => Verdict::Pass,
    });
    env.write(&id("stuck"), 0, pattern(1, 0, 6000), Durability::Journaled);
    env.commit();
    env.write(&id("stuck"), 20_000, pattern(2, 0, 3000), Durability::Journaled);
    env.commit();
    let first = env.oldest();
    let mut has_moved = false;
    for round in 0..80 {
        env.write(&id("other"), 0, pattern(round, 0, 12_000), Durability::Cached);
        env.commit();
        env.sim.advance(SECOND / 10);
        env.commit();
        has_moved |= env.oldest() > first;
    }
    assert!(has_moved, "the stuck object holds the log");
    assert!(env.cache.journal_health().unwrap().state == JournalState::Ok);
    assert!(env.journal.metrics().fill_bytes < 16 * crate::journal_kit::SEGMENT_BYTES * 9 / 10);
    // The log contains the object's complete state, so its older records are not needed.
    let states = env.records().into_iter().filter(|(name, kind)| name == "stuck" && *kind == 8).count();
    assert!(states > 0);
    env.store.open();
    env.sim.advance(2 * SECOND);
    env.flushed(Scope::All);
    let stored = content(env.store.memory(), &id("stuck")).unwrap();
    same(&stored[..6000], &pattern(1, 0, 6000), "first");
    same(&stored[20_000..], &pattern(2, 0, 3000), "second");
    env.cache.validate().unwrap();
}

/// A namespace with a low rate limit does not make writers of other namespaces wait until all its
/// data are stored: its objects are logged again.
#[test]
fn the_objects_of_a_limited_namespace_are_logged_again_and_the_tail_moves_on() {
    const OBJECTS: u64 = 12;
    let slow = |number: u64| {
        ObjectId::new(namespace("slow"), Name::copy_from(format!("o{number}").as_bytes()).unwrap())
    };
    let mut env = Environment::adjusted(16, |config| {
        let without = StoreTerms::default();
        let rate = StoreTerms { requests_per_second_max: Some(1), burst: Duration::ZERO, ..without };
        let own = NamespaceConfig::new(namespace("slow"), WriteMode::Back);
        config.namespaces.push(own.with_store_terms(rate));
    });
    let writes: Vec<_> = (0..OBJECTS)
        .map(|number| env.write(&slow(number), 0, pattern(number, 0, 100), Durability::Cached))
        .collect();
    let mut seconds = 0;
    let mut wait = |env: &mut Environment, is_done: &dyn Fn() -> bool| {
        env.commit();
        while !is_done() {
            env.sim.advance(SECOND);
            env.commit();
            seconds += 1;
            assert!(seconds < 200, "a hang");
        }
        std::mem::take(&mut seconds)
    };
    wait(&mut env, &|| writes.iter().all(|write| write.is_done()));
    let first = env.oldest();
    // The writes continue until slightly after the log has reached its limit.
    let (mut waited, mut rounds_after) = (0, 0);
    for round in 0..200 {
        let write = env.write(&id("other"), 0, pattern(round, 0, 12_000), Durability::Cached);
        waited += wait(&mut env, &|| write.is_done());
        rounds_after += i32::from(waited > 0);
        if rounds_after == 5 {
            break;
        }
    }
    assert!(env.oldest() > first, "the limited namespace holds the log");
    assert!(waited <= 5, "writers have waited for {waited} s: for more than the few flushes that had begun");
    // All data that are not stored are in the log.
    let mut env = env.restarted();
    env.begin_recovery().unwrap();
    for number in 0..OBJECTS {
        let read = env.sim.spawn(env.cache.read(ReadRequest::new(slow(number), 0, 1000)));
        wait(&mut env, &|| read.is_done());
        same(&read.get().unwrap().data.to_vec(), &pattern(number, 0, 100), "after a restart");
    }
    env.cache.validate().unwrap();
}

/// When half of the journal is used, the objects with the oldest records are flushed first,
/// regardless of age.
#[test]
fn half_full_the_oldest_records_are_stored_first() {
    let mut env = Environment::new(16);
    env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Cached).get().unwrap();
    env.commit();
    let first = env.oldest();
    for round in 0..80 {
        env.write(&id("b"), 0, pattern(round, 0, 12_000), Durability::Cached).get().unwrap();
        env.commit();
    }
    assert!(env.oldest() > first, "stored although it is young");
    assert!(content(env.store.memory(), &id("a")).is_some());
}

#[test]
fn closed_after_a_flush_the_journal_has_nothing_to_replay() {
    let mut env = Environment::new(8);
    env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Journaled);
    env.commit();
    let flush = env.flush(Scope::All, Durability::Stored);
    env.commit();
    flush.get().unwrap();
    let cache = env.cache.clone();
    let close = env.sim.spawn(async move { cache.close_journal().await });
    env.commit();
    close.get().unwrap();
    assert_eq!(env.records(), []);
}

/// A disk that does not respond counts as failed. Its late response is ignored, and the journal is
/// used again.
#[test]
fn a_disk_that_does_not_answer_keeps_no_writer() {
    let mut env = Environment::new(8);
    env.disk.hold_syncs(true);
    let write = env.write(&id("a"), 0, pattern(1, 0, 5000), Durability::Journaled);
    let committing = {
        let journal = std::sync::Arc::clone(&env.journal);
        std::thread::spawn(move || journal.step_commit())
    };
    env.disk.wait_for_held_sync();
    env.clock.advance(29 * SECOND);
    assert!(!env.journal.step_watch());
    env.sim.run_until_idle();
    assert!(!write.is_done());
    env.clock.advance(SECOND);
    assert!(env.journal.step_watch());
    env.sim.run_until_idle();
    assert_eq!(write.get().unwrap().durability, Durability::Stored);
    assert_eq!(state(&env), JournalState::Void);
    assert!(env.cache.journal_health().unwrap().reason.unwrap().contains("no answer within 30s"));
    let next = env.write(&id("b"), 0, pattern(2, 0, 100), Durability::Journaled);
    assert_eq!(next.get().unwrap().durability, Durability::Stored, "while it does not answer");

    env.disk.hold_syncs(false);
    assert!(committing.join().unwrap());
    restart(&mut env);
    assert_eq!(state(&env), JournalState::Ok);
    let write = env.write(&id("a"), 0, pattern(3, 0, 100), Durability::Journaled);
    env.commit();
    assert_eq!(write.get().unwrap().durability, Durability::Journaled);
    assert_eq!(env.records(), [("a".into(), 1)], "not the one that was given up");
}

/// Reads an object, and returns its version and content.
fn read(env: &mut Environment, name: &str) -> (Version, Vec<u8>) {
    let read = env.sim.spawn(env.cache.read(ReadRequest::new(id(name), 0, 60_000)));
    env.commit();
    let reply = read.get().unwrap();
    (reply.version, reply.data.to_vec())
}

/// While the journal is in trouble, the store may get changes that the log lacks. A recovery then
/// derives other content from both than the content of the log's last version.
#[test]
fn after_trouble_a_recovery_shows_no_version_for_another_content() {
    for is_removed in [false, true] {
        let mut env = Environment::new(8);
        env.write(&id("a"), 0, pattern(9, 0, 3000), Durability::Cached).get().unwrap();
        env.flushed(Scope::All);
        // This held change keeps the log from becoming void.
        env.store.rule(|call| match call.op.is_change() {
            true => Verdict::Hold,
            false => Verdict::Pass,
        });
        env.write(&id("kept"), 0, pattern(1, 0, 100), Durability::Cached).get().unwrap();
        let logged = env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Journaled);
        env.commit();
        let logged = logged.get().unwrap();
        assert_eq!(logged.durability, Durability::Journaled);
        fail_disk(&env.disk, true);
        env.write(&id("x"), 0, pattern(1, 0, 100), Durability::Cached).get().unwrap();
        env.commit();
        assert_eq!(state(&env), JournalState::Draining);
        let (cache, id_of_a) = (env.cache.clone(), id("a"));
        let changed = env.sim.spawn(async move {
            match is_removed {
                true => cache.delete(DeleteRequest::new(id_of_a)).await.map(|_| ()),
                false => cache.write(WriteRequest::new(id_of_a, 1000, pattern(2, 0, 100))).await.map(|_| ()),
            }
        });
        env.sim.run_until_idle();
        changed.get().unwrap();
        // The store has all changes except the one that keeps the log.
        env.store.rule(|call| match call.op.is_change() && call.object == Some(id("kept")) {
            true => Verdict::Hold,
            false => Verdict::Pass,
        });
        let others: Vec<u64> =
            env.store.held().iter().filter(|it| it.object != Some(id("kept"))).map(|it| it.number).collect();
        others.into_iter().for_each(|number| env.store.answer(number));
        let flush = env.flush(Scope::Object(id("a")), Durability::Stored);
        env.commit();
        assert_eq!((flush.is_done(), state(&env)), (false, JournalState::Draining));
        let stored = content(env.store.memory(), &id("a"));
        match is_removed {
            true => assert_eq!(stored, None, "past the log"),
            false => same(&stored.unwrap()[1000..1100], &pattern(2, 0, 100), "past the log"),
        }

        // The recovery runs twice, because the first run stores its result.
        let mut versions = vec![logged.version];
        for _ in 0..2 {
            env = env.restarted();
            env.store.pass();
            env.begin_recovery().unwrap();
            let (version, found) = read(&mut env, "a");
            same(&found[..100], &pattern(1, 0, 100), "the log's");
            assert!(!versions.contains(&version), "shown for another content");
            versions.push(version);
            let (other, _) = read(&mut env, "kept");
            assert_ne!(other, version);
            let flush = env.flush(Scope::Object(id("a")), Durability::Stored);
            env.sim.run_until_idle();
            drop(flush);
        }
    }
}

/// While the journal is in trouble, no mark can prevent the replay of its records. Therefore a
/// removal that discards data does not end before the log is void.
#[test]
fn what_was_discarded_while_the_journal_is_in_trouble_is_not_replayed() {
    let mut env = Environment::new(8);
    env.store.rule(|call| match call.op {
        Op::Claim => Verdict::Hold,
        op if op.is_change() => Verdict::Fail(Error::Retryable("the store is full".into())),
        _ => Verdict::Pass,
    });
    let durable = env.write(&id("a"), 0, pattern(1, 0, 100), Durability::Journaled);
    env.commit();
    assert_eq!(durable.get().unwrap().durability, Durability::Journaled);
    fail_disk(&env.disk, true);
    env.write(&id("b"), 0, pattern(2, 0, 100), Durability::Cached).get().unwrap();
    env.commit();
    assert_eq!(state(&env), JournalState::Draining);
    let removal = env.sim.spawn(env.cache.remove_namespace(namespace("ns"), DirtyData::Discard, None));
    env.sim.advance(10 * SECOND);
    env.commit();
    assert!(!removal.is_done() && state(&env) == JournalState::Draining);
    // A volume attached now would write back into a namespace whose data are being discarded.
    let settings = Some(NamespaceSettings::default());
    let attached = env.sim.spawn(env.cache.control().set_volume(namespace("ns"), 1, settings));
    env.sim.run_until_idle();
    assert!(matches!(attached.get(), Err(Error::Retryable(why)) if why.contains("is being removed")));
    env.store.open();
    env.sim.advance(2 * SECOND);
    env.commit();
    assert_eq!(state(&env), JournalState::Void);
    assert!(removal.get().unwrap().discarded_bytes > 0);
    let mut env = env.restarted();
    env.begin_recovery().unwrap();
    let info = env.sim.spawn(env.cache.info(InfoRequest::new(id("a"))));
    env.commit();
    assert!(matches!(info.get(), Err(Error::Missing)));
}
