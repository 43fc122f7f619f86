//! Flushes, loads, writes and removals of one object that overlap.

use super::*;

#[test]
fn a_second_flush_of_an_object_waits_for_the_first() {
    let mut env = Environment::new(WriteMode::Back);
    let object = id("volume");
    env.written(&object, 0, pattern(1, 0, 8192));
    env.store.hold_changes();
    let first = env.flush(object_scope(&object));
    env.sim.run_until_idle();
    let under_way = env.store.held();
    assert!(!under_way.is_empty(), "the flush has begun");

    // There are newer bytes, and every kind of request that can start their flush: no request of a
    // second flush is sent.
    env.written(&object, 0, pattern(2, 0, 4096));
    let mut waiting = vec![env.flush(object_scope(&object)), env.flush(Scope::All)];
    let request =
        WriteRequest::new(object.clone(), 4096, pattern(2, 4096, 4096)).durability(Durability::Stored);
    let stored_write = env.sim.spawn(env.cache.write(request));
    waiting.push(env.flush(Scope::Namespace(namespace("ns"))));
    env.sim.run_until_idle();
    let numbers = |env: &Environment| env.store.held().iter().map(|call| call.number).collect::<Vec<_>>();
    assert_eq!(numbers(&env), under_way.iter().map(|call| call.number).collect::<Vec<_>>());
    assert!(!first.is_done() && waiting.iter().all(|flush| !flush.is_done()) && !stored_write.is_done());

    // Only when the first flush has ended does the second begin, which stores the newer bytes.
    let before = env.store.log().len();
    under_way.iter().for_each(|call| env.store.answer(call.number));
    env.sim.run_until_idle();
    first.get().unwrap();
    same(&env.stored(&object).unwrap(), &pattern(1, 0, 8192), "the first flush alone");
    let second = env.store.held();
    assert!(!second.is_empty() && env.store.log().len() > before, "the second flush has begun");
    assert!(waiting.iter().all(|flush| !flush.is_done()), "it has not ended");
    env.store.open();
    for flush in waiting {
        env.sim.wait(flush).unwrap();
    }
    assert_eq!(env.sim.wait(stored_write).unwrap().durability, Durability::Stored);
    same(&env.stored(&object).unwrap(), &pattern(2, 0, 8192), "both flushes");
    env.agrees(&object);
}

#[test]
fn a_failed_flush_leaves_data_dirty_and_is_retried() {
    let errors = [
        Error::Retryable("by test".into()),
        Error::OutOfSpace("by test".into()),
        Error::OutcomeUnknown("by test".into()),
        Error::NotStored("by test".into()),
        Error::DeadlinePassed,
        Error::Corrupt("by test".into()),
        Error::Denied("by test".into()),
    ];
    for error in errors {
        let mut env = Environment::new(WriteMode::Back);
        let object = id("volume");
        env.written(&object, 100, pattern(1, 100, 9000));
        let failing = error.clone();
        env.store.rule(move |call| match call.op.is_change() {
            true => Verdict::Fail(failing.clone()),
            false => Verdict::Pass,
        });
        // A shutdown keeps its deadline: it reports that the data are not stored.
        let deadline = env.sim.clock.now() + 30 * SECOND;
        let flush = FlushRequest::new(Scope::All).deadline(deadline);
        let flush = env.sim.spawn(env.cache.flush(flush));
        env.sim.advance(31 * SECOND);
        let reported = flush.take().expect("a flush answers at its deadline").unwrap_err();
        assert!(matches!(reported, Error::NotStored(_)), "{error}: {reported}");
        assert!(env.cache.counters().dirty_bytes > 0, "{error}: still dirty");
        let wanted = [vec![0; 100], pattern(1, 100, 9000)].concat();
        same(&env.read_now(&object, 0, 20_000), &wanted, "still readable");
        env.validate();
        // Newer bytes are accepted in the meantime, and the next possible flush stores everything.
        env.written(&object, 0, pattern(2, 0, 700));
        env.store.pass();
        env.flushed();
        let wanted = [pattern(2, 0, 700), pattern(1, 700, 8400)].concat();
        same(&env.stored(&object).unwrap(), &wanted, "stored at last");
        assert_eq!(env.cache.counters().dirty_bytes, 0);
        // The background task ends even if some data are dirty.
        env.store.rule(|call| if call.op.is_change() { Verdict::Hold } else { Verdict::Pass });
        env.written(&object, 0, pattern(3, 0, 700));
        let last = env.flush(Scope::All);
        env.sim.run_until_idle();
        env.sim.cancel(last);
        drop(env.cache);
        env.sim.advance(60 * SECOND);
        env.store.open();
        env.sim.advance(60 * SECOND);
        assert!(env.running.is_done(), "{error}: the background's work ends with the last handle");
    }
}

#[test]
fn buckets_replaced_during_a_load_stay_in_their_places() {
    let object = id("volume");
    let old = pattern(1, 0, 6 * 4096);
    for write in [WriteMode::Back, WriteMode::Through] {
        for changed in 0..6_u64 {
            let mut env = Environment::with(small(write), |memory| fill(memory, &object, old.clone()));
            env.store.hold(&[Op::Read]);
            let whole = env.read(&object, 0, 6 * BUCKET);
            env.sim.run_until_idle();
            assert_eq!(env.store.held().len(), 1, "one load for the run");
            // During the load, two of the six buckets are replaced.
            let new = pattern(2, changed * BUCKET, 4096);
            let zeroed = (changed + 3) % 6;
            let write = env.write(&object, changed * BUCKET, new.clone());
            let discard = DiscardRequest::new(object.clone(), zeroed * BUCKET, BUCKET);
            let discard = env.sim.spawn(env.cache.discard(discard));
            env.sim.run_until_idle();
            env.store.open();
            env.sim.wait(write).unwrap();
            env.sim.wait(discard).unwrap();
            // The read overlapped both writes: each bucket has its old or its new content, at the
            // right position.
            let found = env.sim.wait(whole).unwrap().data.to_vec();
            let mut wanted = old.clone();
            wanted[(changed * BUCKET) as usize..][..4096].copy_from_slice(&new);
            wanted[(zeroed * BUCKET) as usize..][..4096].fill(0);
            for (at, bucket) in found.chunks(4096).enumerate() {
                let range = at * 4096..(at + 1) * 4096;
                let is_known = *bucket == old[range.clone()] || *bucket == wanted[range];
                assert!(is_known, "bucket {at} while bucket {changed} was written");
            }
            // A later read finds the new bytes, whether they come from the cache or from the store.
            same(&env.read_now(&object, 0, 10 * BUCKET), &wanted, "after the load");
            env.agrees(&object);
            same(&env.stored(&object).unwrap(), &wanted, "stored");
        }
    }
}

#[test]
fn an_unaligned_write_waits_for_the_content_it_needs() {
    let object = id("volume");
    let old = pattern(1, 0, 2 * 4096);
    // The ranges are a sector and parts of it, a range across two buckets, and both ends of the
    // object.
    for (offset, len) in [(100, 300), (512, 512), (700, 3000), (4000, 200), (0, 1), (8191, 1), (511, 2)] {
        for fails_first in [false, true] {
            let mut env =
                Environment::with(small(WriteMode::Back), |memory| fill(memory, &object, old.clone()));
            env.store.hold(&[Op::Read]);
            let read = env.read(&object, 0, 2 * BUCKET);
            env.sim.run_until_idle();
            let write = env.write(&object, offset, pattern(2, offset, len));
            env.sim.run_until_idle();
            let mut wanted = old.clone();
            wanted[offset as usize..offset as usize + len].copy_from_slice(&pattern(2, offset, len));
            if fails_first {
                // The load that both requests wait for fails: the write must not treat missing
                // bytes as content.
                let first = env.store.held()[0].number;
                env.store.fail(first, Error::Retryable("by test".into()));
                env.sim.run_until_idle();
            }
            env.store.open();
            let outcome = env.sim.wait(write);
            let is_written = outcome.is_ok();
            assert!(is_written || fails_first, "{outcome:?}");
            if !is_written {
                assert!(matches!(outcome, Err(Error::Retryable(_))), "{outcome:?}");
                wanted.clone_from(&old);
            }
            let _ = env.sim.wait(read);
            same(&env.read_now(&object, 0, 2 * BUCKET), &wanted, &format!("{len} at {offset}"));
            env.agrees(&object);
            same(&env.stored(&object).unwrap(), &wanted, &format!("{len} at {offset}, stored"));
        }
    }
}

#[test]
fn a_deleted_object_does_not_come_back_with_a_late_flush() {
    let object = id("volume");
    for is_remade in [false, true] {
        for is_done_late in [false, true] {
            let mut env = Environment::new(WriteMode::Back);
            env.written(&object, 0, pattern(1, 0, 3 * 4096));
            env.store.hold_changes();
            let flush = env.flush(object_scope(&object));
            env.sim.run_until_idle();
            let late = env.store.held();
            assert!(!late.is_empty(), "the flush is under way");
            if !is_done_late {
                late.iter().for_each(|call| env.store.perform(call.number));
            }
            // The object is deleted while its bytes are in flight.
            let delete = env.sim.spawn(env.cache.delete(DeleteRequest::new(object.clone())));
            env.sim.run_until_idle();
            let mut wanted = None;
            if delete.is_done() {
                delete.take().unwrap().unwrap();
                assert_eq!(env.info(&object).unwrap_err(), Error::Missing);
                assert!(env.names().is_empty());
                if is_remade {
                    env.written(&object, 5000, pattern(2, 5000, 10));
                    wanted = Some([vec![0; 5000], pattern(2, 5000, 10)].concat());
                    same(&env.read_now(&object, 0, 1 << 20), wanted.as_ref().unwrap(), "made again");
                }
            }
            // The bytes arrive.
            env.store.open();
            let _ = env.sim.wait(flush);
            if !delete.is_done() && delete.take().is_none() {
                env.sim.run_until_idle();
            }
            env.flushed();
            assert_eq!(env.stored(&object), wanted, "remade {is_remade}, late {is_done_late}");
            env.agrees(&object);
        }
    }
}

#[test]
fn a_deleted_object_does_not_come_back_with_a_forwarded_write() {
    let object = id("volume");
    for order in [[0, 1], [1, 0]] {
        let mut env =
            Environment::with(small(WriteMode::Through), |memory| fill(memory, &object, pattern(1, 0, 8192)));
        same(&env.read_now(&object, 0, 8192), &pattern(1, 0, 8192), "cached");
        env.store.hold_changes();
        let write = env.write(&object, 0, pattern(2, 0, 4096));
        let delete = env.sim.spawn(env.cache.delete(DeleteRequest::new(object.clone())));
        env.sim.run_until_idle();
        // The calls in flight complete in either order; requests that wait for them complete later.
        let held = env.store.held();
        for at in order.into_iter().filter(|at| *at < held.len()) {
            env.store.answer(held[at].number);
            env.sim.run_until_idle();
        }
        env.store.open();
        env.sim.wait(write).unwrap();
        env.sim.wait(delete).unwrap();
        env.agrees(&object);
    }
}

#[test]
fn requests_of_loading_buckets_wait_for_the_load() {
    let object = id("volume");
    let bytes = pattern(1, 0, 4 * 4096);
    for cancels_first in [false, true] {
        for fails_first in [false, true] {
            let mut env =
                Environment::with(small(WriteMode::Back), |memory| fill(memory, &object, bytes.clone()));
            env.store.hold(&[Op::Read]);
            let first = env.read(&object, 0, 4 * BUCKET);
            env.sim.run_until_idle();
            let others: Vec<_> =
                (0..16).map(|n| env.read(&object, n % 4 * BUCKET + n, BUCKET - 2 * n)).collect();
            env.sim.run_until_idle();
            assert!(others.iter().all(|read| !read.is_done()), "they wait");
            assert_eq!(env.store.held().len(), 1, "one load for all waiters");
            if cancels_first {
                env.sim.cancel(first);
                env.sim.run_until_idle();
            }
            if fails_first {
                let number = env.store.held()[0].number;
                env.store.fail(number, Error::Retryable("by test".into()));
                env.sim.run_until_idle();
            }
            env.store.open();
            for (n, read) in (0..).zip(others) {
                match env.sim.wait(read) {
                    Ok(reply) => {
                        let at = (n % 4 * BUCKET + n) as usize;
                        let wanted = &bytes[at..at + (BUCKET - 2 * n) as usize];
                        same(&reply.data.to_vec(), wanted, "a waiter");
                    }
                    Err(error) => assert!(fails_first && error.is_retryable(), "{error}"),
                }
            }
            if !fails_first {
                // A cancelled load does not affect other requests: each bucket is loaded once more,
                // not once for each waiter.
                let most = if cancels_first { 1 + 4 } else { 1 };
                assert!(env.store.count(Op::Read) <= most, "{} loads", env.store.count(Op::Read));
            }
            env.agrees(&object);
        }
    }
}
