//! Overlapping requests and edges: a load, a flush, a copy or a removal that meets another request of the
//! same object.
//!
//! The store below is steered call by call: it answers, fails and performs calls when the test decides, and
//! in that order. Time stands still unless a test moves it.

use std::sync::Arc;
use std::time::Duration;

use blocker::*;
use cached_core::object::ObjectCache;
use test_kit::sim::{Handle, Sim};
use test_kit::steered::{Op, SteeredStore, Verdict};
use test_kit::{BUCKET, KIB, cache, content, fill, id, namespace, pattern, same, small};

const SECOND: Duration = Duration::from_secs(1);

struct Environment {
    sim: Sim,
    store: Arc<SteeredStore>,
    cache: ObjectCache,
    /// The background's task.
    running: Handle<()>,
}

impl Environment {
    fn new(write: WriteMode) -> Self {
        Self::with(small(write), |_| ())
    }

    fn with(config: cached_core::object::ObjectCacheConfig, prepare: impl FnOnce(&Memory)) -> Self {
        Self::over(SteeredStore::new(), config, prepare)
    }

    fn over(
        store: Arc<SteeredStore>,
        config: cached_core::object::ObjectCacheConfig,
        prepare: impl FnOnce(&Memory),
    ) -> Self {
        let mut sim = Sim::new(None);
        prepare(store.memory());
        let (cache, background) = cache(Arc::clone(&store) as _, config, &sim.clock);
        let running = sim.spawn(background);
        Self { sim, store, cache, running }
    }

    fn write(&mut self, object: &ObjectId, offset: u64, bytes: Vec<u8>) -> Handle<Result<ChangeReply>> {
        self.sim.spawn(self.cache.write(WriteRequest::new(object.clone(), offset, bytes)))
    }

    #[track_caller]
    fn written(&mut self, object: &ObjectId, offset: u64, bytes: Vec<u8>) -> ChangeReply {
        let handle = self.write(object, offset, bytes);
        self.sim.wait(handle).unwrap()
    }

    fn read(&mut self, object: &ObjectId, offset: u64, len: u64) -> Handle<Result<ReadReply>> {
        self.sim.spawn(self.cache.read(ReadRequest::new(object.clone(), offset, len)))
    }

    #[track_caller]
    fn read_now(&mut self, object: &ObjectId, offset: u64, len: u64) -> Vec<u8> {
        let handle = self.read(object, offset, len);
        self.sim.wait(handle).unwrap().data.to_vec()
    }

    fn flush(&mut self, scope: Scope) -> Handle<Result<FlushReply>> {
        self.sim.spawn(self.cache.flush(FlushRequest::new(scope)))
    }

    #[track_caller]
    fn flushed(&mut self) {
        let handle = self.flush(Scope::All);
        self.sim.settle();
        if !handle.is_done() {
            println!(
                "DBG {:?} running {} held {:?} log {:?}",
                self.cache.counters(),
                self.running.is_done(),
                self.store.held(),
                self.store.log()
            );
        }
        self.sim.wait(handle).unwrap();
        self.validate();
    }

    #[track_caller]
    fn validate(&self) {
        self.cache.validate().unwrap_or_else(|why| panic!("validate: {why}"));
    }

    fn stored(&self, object: &ObjectId) -> Option<Vec<u8>> {
        content(self.store.memory(), object)
    }

    /// Asserts that no call waits in the store, and that cache and store agree on the object.
    #[track_caller]
    fn agrees(&mut self, object: &ObjectId) {
        self.store.open();
        self.flushed();
        let stored = self.stored(object);
        let handle = self.read(object, 0, 4 << 20);
        match self.sim.wait(handle) {
            Ok(reply) => same(&reply.data.to_vec(), &stored.expect("stored as well"), "cache and store"),
            Err(error) => assert!(error == Error::Missing && stored.is_none(), "{error}, {stored:?}"),
        }
        self.validate();
    }

    fn info(&mut self, object: &ObjectId) -> Result<Info> {
        let handle = self.sim.spawn(self.cache.info(InfoRequest::new(object.clone())));
        self.sim.wait(handle)
    }

    #[track_caller]
    fn names(&mut self) -> Vec<(String, u64)> {
        let request = ListRequest::new(namespace("ns"));
        let handle = self.sim.spawn(self.cache.list(request));
        let page = self.sim.wait(handle).unwrap();
        page.entries.iter().map(|entry| (entry.name.to_string(), entry.size_bytes)).collect()
    }
}

fn object_scope(object: &ObjectId) -> Scope {
    Scope::Object(object.clone())
}

#[test]
fn a_second_flush_of_an_object_waits_for_the_first() {
    let mut env = Environment::new(WriteMode::Back);
    let object = id("volume");
    env.written(&object, 0, pattern(1, 0, 8192));
    env.store.hold_changes();
    let first = env.flush(object_scope(&object));
    env.sim.settle();
    let under_way = env.store.held();
    assert!(!under_way.is_empty(), "the flush has begun");

    // Newer bytes, and every request that can ask for their flush: not one request of a second flush is sent.
    env.written(&object, 0, pattern(2, 0, 4096));
    let mut waiting = vec![env.flush(object_scope(&object)), env.flush(Scope::All)];
    let request =
        WriteRequest::new(object.clone(), 4096, pattern(2, 4096, 4096)).durability(Durability::Stored);
    let stored_write = env.sim.spawn(env.cache.write(request));
    waiting.push(env.flush(Scope::Namespace(namespace("ns"))));
    env.sim.settle();
    let numbers = |env: &Environment| env.store.held().iter().map(|call| call.number).collect::<Vec<_>>();
    assert_eq!(numbers(&env), under_way.iter().map(|call| call.number).collect::<Vec<_>>());
    assert!(!first.is_done() && waiting.iter().all(|flush| !flush.is_done()) && !stored_write.is_done());

    // The first flush ends; only then the second begins, and brings the newer bytes.
    let before = env.store.log().len();
    under_way.iter().for_each(|call| env.store.answer(call.number));
    env.sim.settle();
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
        // A shutdown with a deadline keeps it: nothing is stored, and that is reported.
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
        // Newer bytes are accepted meanwhile, and the next flush that can brings everything.
        env.written(&object, 0, pattern(2, 0, 700));
        env.store.pass();
        env.flushed();
        let wanted = [pattern(2, 0, 700), pattern(1, 700, 8400)].concat();
        same(&env.stored(&object).unwrap(), &wanted, "stored at last");
        assert_eq!(env.cache.counters().dirty_bytes, 0);
        // And the background ends, dirty or not.
        env.store.rule(|call| if call.op.is_change() { Verdict::Hold } else { Verdict::Pass });
        env.written(&object, 0, pattern(3, 0, 700));
        let last = env.flush(Scope::All);
        env.sim.settle();
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
            env.sim.settle();
            assert_eq!(env.store.held().len(), 1, "one load for the run");
            // While they load, two of the six are replaced.
            let new = pattern(2, changed * BUCKET, 4096);
            let zeroed = (changed + 3) % 6;
            let write = env.write(&object, changed * BUCKET, new.clone());
            let discard = DiscardRequest::new(object.clone(), zeroed * BUCKET, BUCKET);
            let discard = env.sim.spawn(env.cache.discard(discard));
            env.sim.settle();
            env.store.open();
            env.sim.wait(write).unwrap();
            env.sim.wait(discard).unwrap();
            // The read was under way with both: each bucket is old or new, and in its place.
            let found = env.sim.wait(whole).unwrap().data.to_vec();
            let mut wanted = old.clone();
            wanted[(changed * BUCKET) as usize..][..4096].copy_from_slice(&new);
            wanted[(zeroed * BUCKET) as usize..][..4096].fill(0);
            for (at, bucket) in found.chunks(4096).enumerate() {
                let range = at * 4096..(at + 1) * 4096;
                let is_known = *bucket == old[range.clone()] || *bucket == wanted[range];
                assert!(is_known, "bucket {at} while bucket {changed} was written");
            }
            // A later read finds the new ones, wherever they come from.
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
    // A sector and its parts; across the buckets' border; the very ends.
    for (offset, len) in [(100, 300), (512, 512), (700, 3000), (4000, 200), (0, 1), (8191, 1), (511, 2)] {
        for fails_first in [false, true] {
            let mut env =
                Environment::with(small(WriteMode::Back), |memory| fill(memory, &object, old.clone()));
            env.store.hold(&[Op::Read]);
            let read = env.read(&object, 0, 2 * BUCKET);
            env.sim.settle();
            let write = env.write(&object, offset, pattern(2, offset, len));
            env.sim.settle();
            let mut wanted = old.clone();
            wanted[offset as usize..offset as usize + len].copy_from_slice(&pattern(2, offset, len));
            if fails_first {
                // The load that both wait for fails: the write must not take missing bytes for content.
                let first = env.store.held()[0].number;
                env.store.fail(first, Error::Retryable("by test".into()));
                env.sim.settle();
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
            env.sim.settle();
            let late = env.store.held();
            assert!(!late.is_empty(), "the flush is under way");
            if !is_done_late {
                late.iter().for_each(|call| env.store.perform(call.number));
            }
            // Deleted while its bytes are on their way.
            let delete = env.sim.spawn(env.cache.delete(DeleteRequest::new(object.clone())));
            env.sim.settle();
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
                env.sim.settle();
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
        env.sim.settle();
        // Calls under way are answered in either order; requests that wait come later.
        let held = env.store.held();
        for at in order.into_iter().filter(|at| *at < held.len()) {
            env.store.answer(held[at].number);
            env.sim.settle();
        }
        env.store.open();
        env.sim.wait(write).unwrap();
        env.sim.wait(delete).unwrap();
        env.agrees(&object);
    }
}

#[test]
fn requests_that_need_most_of_the_memory_do_not_block_each_other() {
    // Twelve requests that each take most of the memory: two that held a part each would wait for ever.
    let most = 180 * BUCKET;
    let mut config = small(WriteMode::Back);
    config.dirty_bytes_max = 760 * KIB;
    let prepare = |memory: &Memory| {
        for number in 0..4_u64 {
            fill(memory, &id(&format!("old-{number}")), pattern(number, 0, most as usize));
        }
    };
    for polite in [false, true] {
        let mut env = Environment::with(config.clone(), prepare);
        env.store.rule(|call| match call.op {
            Op::Info | Op::Claim | Op::List => Verdict::Pass,
            _ => Verdict::Hold,
        });
        let mut reads = Vec::new();
        let mut writes = Vec::new();
        for number in 0..4_u64 {
            reads.push(env.read(&id(&format!("old-{number}")), 0, most));
            for round in 0..2 {
                let bytes = pattern(100 * round + number, 0, most as usize);
                writes.push((number, round, env.write(&id(&format!("new-{number}")), 0, bytes)));
            }
        }
        // Answers come one at a time, the newest first or the oldest.
        let mut held_kept = Vec::new();
        for _ in 0..100_000 {
            env.sim.settle();
            let held = env.store.held();
            let Some(next) = (if polite { held.first() } else { held.last() }) else { break };
            env.store.answer(next.number);
            env.validate();
        }
        for (number, read) in (0..).zip(reads) {
            let reply = read.take().unwrap_or_else(|| panic!("read {number} waits for ever")).unwrap();
            same(&reply.data.to_vec(), &pattern(number, 0, most as usize), "a read");
            held_kept.push(reply.data);
        }
        for (number, round, write) in writes {
            write.take().unwrap_or_else(|| panic!("write {number}.{round} waits for ever")).unwrap();
        }
        // Payloads that readers keep pin memory; a request that needs it waits, and continues without it.
        env.store.open();
        drop(held_kept);
        env.flushed();
        for number in 0..4 {
            let object = id(&format!("new-{number}"));
            let found = env.stored(&object).unwrap();
            let either = [0, 100].map(|round| pattern(round + number, 0, most as usize));
            assert!(either.contains(&found), "new-{number} is a mix");
            env.agrees(&object);
        }
    }
}

#[test]
fn writes_wait_while_readers_pin_all_memory_and_reads_do_not() {
    let object = id("pinned");
    let all = 256 * BUCKET;
    let mut env = Environment::with(small(WriteMode::Back), |memory| {
        fill(memory, &object, pattern(1, 0, all as usize))
    });
    // Twice, so that the second is served from buckets where they can be had.
    let mut kept = Vec::new();
    for round in 0..2 {
        for bucket in 0..256 {
            let read = env.read(&object, bucket * BUCKET, BUCKET);
            let reply = env.sim.wait(read).unwrap();
            same(&reply.data.to_vec(), &pattern(1, bucket * BUCKET, 4096), "pinned");
            if round == 1 {
                kept.push(reply.data);
            }
        }
    }
    // Other objects are read nevertheless, and writes get memory once the payloads are dropped.
    fill(env.store.memory(), &id("other"), pattern(2, 0, 8192));
    same(&env.read_now(&id("other"), 0, 8192), &pattern(2, 0, 8192), "another object");
    let write = env.write(&id("new"), 0, pattern(3, 0, 65_536));
    env.sim.settle();
    for (bucket, data) in (0..).zip(&kept) {
        same(&data.to_vec(), &pattern(1, bucket * BUCKET, 4096), "what a reader holds never changes");
    }
    kept.clear();
    env.sim.wait(write).unwrap();
    env.agrees(&id("new"));
    same(&env.stored(&id("new")).unwrap(), &pattern(3, 0, 65_536), "written");
}

#[test]
fn ranges_at_the_end_of_an_object_are_exact() {
    let mut config = small(WriteMode::Back);
    config.object_bytes_max = 64 * KIB;
    let max = config.object_bytes_max;
    for write in [WriteMode::Back, WriteMode::Through, WriteMode::Around] {
        config.write = write;
        for size in [0, 1, 511, 512, 513, 4095, 4096, 4097, 8191, 8192, 8193, max - 4097, max - 1, max] {
            let object = id("end");
            let mut env = Environment::with(config.clone(), |memory| {
                fill(memory, &object, pattern(1, 0, size as usize))
            });
            let whole = pattern(1, 0, size as usize);
            for round in 0..2 {
                // Missing at first, then from the cache.
                for offset in
                    [0, 1, 4095, 4096, size.saturating_sub(1), size, size + 1, max - 1, max, max + 1]
                {
                    for len in [0, 1, 2, 4096, max] {
                        let from = offset.min(size) as usize;
                        let to = (offset + len).min(size) as usize;
                        let found = env.read_now(&object, offset, len);
                        let label = format!("{write:?} {round}: {len} at {offset} of {size}");
                        same(&found, &whole[from..to], &label);
                    }
                }
                assert_eq!(env.info(&object).unwrap().size_bytes, size);
            }
            // Exactly at the end, one byte before it, and a hole behind it.
            for at in [size, size.saturating_sub(1), (size + 5000).min(max - 1)] {
                if at >= max {
                    continue;
                }
                let mut wanted = content(env.store.memory(), &object).unwrap();
                wanted.resize(wanted.len().max(at as usize + 1), 0);
                wanted[at as usize] = 7;
                let reply = env.written(&object, at, vec![7]);
                assert_eq!(reply.size_bytes, wanted.len() as u64);
                same(&env.read_now(&object, 0, max + 1), &wanted, "one byte more");
                env.agrees(&object);
                same(&env.stored(&object).unwrap(), &wanted, "stored to the byte");
            }
            // At the limit itself: the last possible byte, and not one more.
            let too_large =
                |error: Error| matches!(error, Error::TooLarge { limit_bytes } if limit_bytes == max);
            let last = env.written(&object, max - 1, vec![9]);
            assert_eq!(last.size_bytes, max);
            for (offset, len) in [(max, 1), (max - 1, 2), (0, max + 1), (u64::MAX, 1)] {
                let write = env.write(&object, offset, vec![1; len as usize]);
                assert!(too_large(env.sim.wait(write).unwrap_err()), "{len} at {offset}");
            }
            let truncate = TruncateRequest::new(object.clone(), max + 1);
            let truncate = env.sim.spawn(env.cache.truncate(truncate));
            assert!(too_large(env.sim.wait(truncate).unwrap_err()));
            assert_eq!(env.read_now(&object, max - 1, 10), [9]);
            // Cut in the middle of a sector, and out again: zeros, not what was there.
            for cut in [max - 1, size.max(1) - 1] {
                for to in [cut, max] {
                    let truncate = TruncateRequest::new(object.clone(), to);
                    let truncate = env.sim.spawn(env.cache.truncate(truncate));
                    env.sim.wait(truncate).unwrap();
                }
                assert!(env.read_now(&object, cut, max).iter().all(|byte| *byte == 0), "cut at {cut}");
            }
            env.agrees(&object);
            let beyond = |call: &test_kit::steered::CallInfo| call.op.is_change() && call.end() > max;
            // Refused by the cache, not forwarded in the hope that the store, whose limit is higher, refuses.
            let refused = env.store.log().into_iter().filter(beyond).count();
            assert_eq!(refused, 0, "nothing beyond the limit reaches the store");
        }
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
            env.sim.settle();
            let others: Vec<_> =
                (0..16).map(|n| env.read(&object, n % 4 * BUCKET + n, BUCKET - 2 * n)).collect();
            env.sim.settle();
            assert!(others.iter().all(|read| !read.is_done()), "they wait");
            assert_eq!(env.store.held().len(), 1, "once for all who wait");
            if cancels_first {
                env.sim.cancel(first);
                env.sim.settle();
            }
            if fails_first {
                let number = env.store.held()[0].number;
                env.store.fail(number, Error::Retryable("by test".into()));
                env.sim.settle();
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
                // A cancelled load leaves the loads of other requests alone: each bucket is loaded once more,
                // and not once for each waiter.
                let most = if cancels_first { 1 + 4 } else { 1 };
                assert!(env.store.count(Op::Read) <= most, "{} loads", env.store.count(Op::Read));
            }
            env.agrees(&object);
        }
    }
}

#[test]
fn info_and_list_report_exact_sizes_of_existing_objects_only() {
    let prepare = |memory: &Memory| {
        fill(memory, &id("b-stored"), pattern(1, 0, 4097));
        fill(memory, &id("d-cut"), pattern(2, 0, 10_000));
        fill(memory, &id("f-gone"), pattern(3, 0, 100));
        fill(memory, &id("h-grown"), pattern(4, 0, 100));
    };
    let mut env = Environment::with(small(WriteMode::Back), prepare);
    // Only the cache knows the object.
    env.store.hold(&[Op::Write, Op::WriteZeroes, Op::WriteFull, Op::Truncate, Op::Delete]);
    env.written(&id("a-new"), 10, pattern(5, 10, 5));
    env.written(&id("h-grown"), 4095, vec![1]);
    let truncate = TruncateRequest::new(id("d-cut"), 7);
    let truncate = env.sim.spawn(env.cache.truncate(truncate));
    env.sim.wait(truncate).unwrap();
    let delete = env.sim.spawn(env.cache.delete(DeleteRequest::new(id("f-gone"))));
    env.sim.wait(delete).unwrap();
    env.written(&id("z-empty"), 100, Vec::new());
    // Asked for, or tried, and never created.
    let nothing = env.read(&id("c-never"), 0, 100);
    assert_eq!(env.sim.wait(nothing).unwrap_err(), Error::Missing);
    let request = WriteRequest::new(id("e-never"), 0, vec![1; 10]).condition(Condition::Present);
    let refused = env.sim.spawn(env.cache.write(request));
    assert_eq!(env.sim.wait(refused).unwrap_err(), Error::Missing);
    let discard = env.sim.spawn(env.cache.discard(DiscardRequest::new(id("g-never"), 0, 10)));
    assert_eq!(env.sim.wait(discard).unwrap_err(), Error::Missing);
    let copy = env.sim.spawn(env.cache.copy(CopyRequest::new(id("c-never"), id("i-never"))));
    assert_eq!(env.sim.wait(copy).unwrap_err(), Error::Missing);

    let wanted = [("a-new", 15), ("b-stored", 4097), ("d-cut", 7), ("h-grown", 4096), ("z-empty", 0)];
    let check = |env: &mut Environment, when: &str| {
        for (name, size) in wanted {
            assert_eq!(env.info(&id(name)).unwrap().size_bytes, size, "{name} {when}");
            let read = env.read(&id(name), 0, 1 << 20);
            let reply = env.sim.wait(read).unwrap();
            assert_eq!((reply.size_bytes, reply.data.len_bytes() as u64), (size, size), "{name} {when}");
        }
        for name in ["c-never", "e-never", "f-gone", "g-never", "i-never"] {
            assert_eq!(env.info(&id(name)).unwrap_err(), Error::Missing, "{name} {when}");
        }
        let listed = env.names();
        let owned: Vec<_> = wanted.iter().map(|(name, size)| (name.to_string(), *size)).collect();
        assert_eq!(listed, owned, "{when}");
        // The same in pages of every size, and by prefix.
        for entries_max in 1..=6 {
            let mut request = ListRequest::new(namespace("ns")).entries_max(entries_max);
            let mut found = Vec::new();
            loop {
                let page = env.sim.spawn(env.cache.list(request.clone()));
                let page = env.sim.wait(page).unwrap();
                assert!(page.entries.len() <= entries_max as usize);
                found.extend(page.entries.iter().map(|entry| (entry.name.to_string(), entry.size_bytes)));
                let Some(last) = page.entries.last().filter(|_| page.has_more) else { break };
                request = request.after(last.name.clone());
            }
            assert_eq!(found, owned, "pages of {entries_max} {when}");
        }
        for (name, size) in wanted {
            let request = ListRequest::new(namespace("ns")).prefix(&name.as_bytes()[..1]);
            let page = env.sim.spawn(env.cache.list(request));
            let page = env.sim.wait(page).unwrap();
            let found: Vec<_> = page.entries.iter().map(|e| (e.name.to_string(), e.size_bytes)).collect();
            assert_eq!(found, [(name.to_owned(), size)], "by prefix {when}");
        }
    };
    check(&mut env, "before the flush");
    let flush = env.flush(Scope::All);
    env.sim.settle();
    check(&mut env, "while it is under way");
    env.store.open();
    env.sim.wait(flush).unwrap();
    check(&mut env, "after it");
}

#[test]
fn a_copy_replaces_the_target_and_stores_the_source_only_if_needed() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum TargetIs {
        Absent,
        Clean,
        Dirty,
        Loading,
        Flushing,
    }
    use TargetIs::*;
    let (source, target) = (id("source"), id("target"));
    let (old_source, old_target) = (pattern(1, 0, 5 * 4096), pattern(2, 0, 7 * 4096 + 100));
    for native in [true, false] {
        for target_is in [Absent, Clean, Dirty, Loading, Flushing] {
            for source_is in [Absent, Clean, Dirty, Loading, Flushing] {
                let label = format!("native {native}, source {source_is:?}, target {target_is:?}");
                println!("{label}");
                let store = SteeredStore::new();
                if !native {
                    store.limit(|capabilities| capabilities.copy_native = false);
                }
                let mut env = Environment::over(store, small(WriteMode::Back), |memory| {
                    fill(memory, &source, old_source.clone());
                    fill(memory, &target, old_target.clone());
                });
                let mut wanted = old_source.clone();
                let mut flushes = Vec::new();
                let mut reads = Vec::new();
                for (object, is, tag) in [(&target, target_is, 3), (&source, source_is, 4)] {
                    match is {
                        Absent => {}
                        Clean => {
                            env.store.pass();
                            env.read_now(object, 0, 1 << 20);
                        }
                        Dirty | Flushing => {
                            env.store.pass();
                            env.written(object, 4000, pattern(tag, 4000, 5000));
                            if is == Flushing {
                                env.store.hold(&[Op::Write, Op::WriteFull, Op::WriteZeroes]);
                                flushes.push(env.flush(object_scope(object)));
                                env.sim.settle();
                                assert!(!env.store.held().is_empty(), "{label}");
                                env.store.hold(&[Op::Read, Op::Write, Op::WriteFull, Op::WriteZeroes]);
                            }
                            if *object == source {
                                wanted[4000..9000].copy_from_slice(&pattern(tag, 4000, 5000));
                            }
                        }
                        Loading => {
                            env.store.hold(&[Op::Read, Op::Write, Op::WriteFull, Op::WriteZeroes]);
                            reads.push(env.read(object, 0, 1 << 20));
                            env.sim.settle();
                            // Read from the store already, on its way back: soon to be old.
                            let held = env.store.held();
                            held.iter()
                                .filter(|call| call.op == Op::Read)
                                .for_each(|c| env.store.perform(c.number));
                            env.store.hold(&[Op::Write, Op::WriteFull, Op::WriteZeroes]);
                        }
                    }
                }
                let copy = env.sim.spawn(env.cache.copy(CopyRequest::new(source.clone(), target.clone())));
                env.sim.settle();
                // Late answers come after the copy where the copy did not wait for them.
                env.store.open();
                env.sim.wait(copy).unwrap();
                for read in reads {
                    env.sim.wait(read).unwrap();
                }
                same(&env.read_now(&target, 0, 1 << 20), &wanted, &format!("{label}: target"));
                same(&env.read_now(&source, 0, 1 << 20), &wanted, &format!("{label}: source"));
                env.validate();
                // From now on source and target change independently, though they share buckets.
                env.written(&source, 100, pattern(5, 100, 200));
                env.written(&target, 8192, pattern(6, 8192, 4096));
                let mut wanted_target = wanted.clone();
                wanted_target[8192..12_288].copy_from_slice(&pattern(6, 8192, 4096));
                wanted[100..300].copy_from_slice(&pattern(5, 100, 200));
                same(&env.read_now(&target, 0, 1 << 20), &wanted_target, &format!("{label}: target, later"));
                same(&env.read_now(&source, 0, 1 << 20), &wanted, &format!("{label}: source, later"));
                for flush in flushes {
                    env.sim.wait(flush).unwrap();
                }
                env.agrees(&source);
                env.agrees(&target);
                same(&env.stored(&target).unwrap(), &wanted_target, &format!("{label}: stored target"));
                same(&env.stored(&source).unwrap(), &wanted, &format!("{label}: stored source"));
            }
        }
    }
}

#[test]
fn dirty_data_are_bounded_in_age_size_and_rate() {
    let mut config = small(WriteMode::Back);
    config.dirty_age_max = 10 * SECOND;
    config.dirty_bytes_max = 128 * KIB;
    let mut env = Environment::with(config, |_| ());
    // By age: one write a second without a flush request, and then the host dies.
    for second in 0..60_u64 {
        env.written(&id(&format!("log-{}", second % 5)), second / 5 * BUCKET, pattern(second, 0, 4096));
        env.sim.advance(SECOND);
        for older in 0..(second + 1).saturating_sub(11) {
            let stored = env.stored(&id(&format!("log-{}", older % 5))).unwrap_or_default();
            let at = (older / 5 * BUCKET) as usize;
            let is_there = stored.get(at..at + 4096) == Some(&pattern(older, 0, 4096)[..]);
            assert!(is_there, "after {second} s, what was written at {older} s is not stored");
        }
        env.validate();
    }
    let dirty = env.cache.counters().dirty_bytes;
    assert!(dirty <= 12 * BUCKET, "no more than the last ten seconds' writes: {dirty}");
    env.flushed();

    // By size and rate: a writer faster than the store runs at the store's pace; it never fails, and never
    // more than the limit is dirty.
    env.store.rule(|call| if call.op.is_change() { Verdict::Hold } else { Verdict::Pass });
    let writes: Vec<_> = (0..128_u64)
        .map(|n| env.write(&id(&format!("fast-{}", n % 8)), n / 8 * BUCKET, pattern(n, 0, 4096)))
        .collect();
    env.sim.settle();
    let done = writes.iter().filter(|write| write.is_done()).count();
    assert!((8..=32).contains(&done), "{done} of 128 writes fit below the limit of 32 buckets");
    let mut answered = 0;
    while env.store.answer_first() {
        answered += 1;
        env.sim.settle();
        assert!(env.cache.counters().dirty_bytes <= 128 * KIB, "beyond the limit");
        env.validate();
    }
    assert!(answered > 0);
    for write in writes {
        env.sim.wait(write).unwrap();
    }
    env.store.open();
    env.flushed();
    for n in 0..128_u64 {
        let stored = env.stored(&id(&format!("fast-{}", n % 8))).unwrap();
        same(&stored[(n / 8 * BUCKET) as usize..][..4096], &pattern(n, 0, 4096), "stored");
    }
    drop(env.cache);
    env.sim.settle();
    assert!(env.running.is_done());
}

#[test]
fn with_nodes_for_half_the_objects_it_reads_no_more_than_without_a_cache() {
    let (objects, buckets, requests) = (64_u64, 4, 4000);
    for (write, reads_permille) in [
        (WriteMode::Through, 1000),
        (WriteMode::Back, 1000),
        (WriteMode::Through, 500),
        (WriteMode::Around, 500),
    ] {
        let mut config = small(write);
        config.objects_count_max = objects as u32 / 2;
        let mut env = Environment::with(config, |memory| {
            for object in 0..objects {
                fill(memory, &id(&object.to_string()), pattern(object, 0, (buckets * BUCKET) as usize));
            }
        });
        let mut rng = test_kit::rng::Rng::new(12);
        env.store.clear_log();
        for request in 0..requests {
            let (object, bucket) = (id(&rng.below(objects).to_string()), rng.below(buckets));
            if rng.permille(reads_permille) {
                assert_eq!(env.read_now(&object, bucket * BUCKET, BUCKET).len(), 4096);
            } else {
                env.written(&object, bucket * BUCKET, pattern(request, 0, 4096));
            }
        }
        let log = env.store.log();
        let bytes: u64 = log.iter().map(|call| call.len).sum();
        println!("{write:?}, {reads_permille} reads in 1 000: {} calls below for {requests}", log.len());
        assert!(log.len() as u64 <= requests, "{} calls below for {requests} requests", log.len());
        assert!(bytes <= requests * BUCKET, "{bytes} bytes below for {}", requests * BUCKET);
        env.validate();
    }
}
