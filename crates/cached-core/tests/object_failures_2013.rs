//! What the object cache of 2013 got wrong, each a test that its behaviour fails.
//!
//! The store below is steered call by call: it answers, fails and is done when the test says so, and in
//! that order. Time stands still unless a test moves it.

mod object_support;

use std::sync::Arc;
use std::time::Duration;

use blocker::*;
use cached_core::object::ObjectCache;
use object_support::sim::{Handle, Sim};
use object_support::steered::{Op, Steered, Verdict};
use object_support::{BUCKET, KIB, cache, content, fill, id, namespace, pattern, same, small};

const SECOND: Duration = Duration::from_secs(1);

struct World {
    sim: Sim,
    store: Arc<Steered>,
    cache: ObjectCache,
    /// The background's work.
    running: Handle<()>,
}

impl World {
    fn new(write: WriteMode) -> Self {
        Self::with(small(write), |_| ())
    }

    fn with(config: cached_core::object::ObjectCacheConfig, prepare: impl FnOnce(&Memory)) -> Self {
        Self::over(Steered::new(), config, prepare)
    }

    fn over(
        store: Arc<Steered>,
        config: cached_core::object::ObjectCacheConfig,
        prepare: impl FnOnce(&Memory),
    ) -> Self {
        let mut sim = Sim::new(None);
        prepare(store.memory());
        let cache = cache(Arc::clone(&store) as _, config, &sim.clock);
        let running = sim.spawn(cache.run());
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

    /// Nobody waits below any more, and the cache says the same of the object as the store.
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
fn failure_01_a_flush_deferred_behind_another_went_ahead_anyway() {
    let mut world = World::new(WriteMode::Back);
    let object = id("volume");
    world.written(&object, 0, pattern(1, 0, 8192));
    world.store.hold_changes();
    let first = world.flush(object_scope(&object));
    world.sim.settle();
    let under_way = world.store.held();
    assert!(!under_way.is_empty(), "the flush has begun");

    // Newer bytes, and whoever can ask for their flush: not one request of a second flush goes out.
    world.written(&object, 0, pattern(2, 0, 4096));
    let mut waiting = vec![world.flush(object_scope(&object)), world.flush(Scope::All)];
    let request =
        WriteRequest::new(object.clone(), 4096, pattern(2, 4096, 4096)).durability(Durability::Stored);
    let stored_write = world.sim.spawn(world.cache.write(request));
    waiting.push(world.flush(Scope::Namespace(namespace("ns"))));
    world.sim.settle();
    let numbers = |world: &World| world.store.held().iter().map(|call| call.number).collect::<Vec<_>>();
    assert_eq!(numbers(&world), under_way.iter().map(|call| call.number).collect::<Vec<_>>());
    assert!(!first.is_done() && waiting.iter().all(|flush| !flush.is_done()) && !stored_write.is_done());

    // The first ends; only then the second begins, and brings the newer bytes.
    let before = world.store.log().len();
    under_way.iter().for_each(|call| world.store.answer(call.number));
    world.sim.settle();
    first.get().unwrap();
    same(&world.stored(&object).unwrap(), &pattern(1, 0, 8192), "the first flush alone");
    let second = world.store.held();
    assert!(!second.is_empty() && world.store.log().len() > before, "the second flush has begun");
    assert!(waiting.iter().all(|flush| !flush.is_done()), "it has not ended");
    world.store.open();
    for flush in waiting {
        world.sim.wait(flush).unwrap();
    }
    assert_eq!(world.sim.wait(stored_write).unwrap().durability, Durability::Stored);
    same(&world.stored(&object).unwrap(), &pattern(2, 0, 8192), "both flushes");
    world.agrees(&object);
}

#[test]
fn failure_02_a_failed_flush_left_buckets_writing_for_ever_and_shutdown_hung() {
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
        let mut world = World::new(WriteMode::Back);
        let object = id("volume");
        world.written(&object, 100, pattern(1, 100, 9000));
        let failing = error.clone();
        world.store.rule(move |call| match call.op.is_change() {
            true => Verdict::Fail(failing.clone()),
            false => Verdict::Pass,
        });
        // An orderly end has a deadline, and keeps it: nothing is stored, all is said.
        let deadline = world.sim.clock.now() + 30 * SECOND;
        let flush = FlushRequest::new(Scope::All).deadline(deadline);
        let flush = world.sim.spawn(world.cache.flush(flush));
        world.sim.advance(31 * SECOND);
        let told = flush.take().expect("a flush answers at its deadline").unwrap_err();
        assert!(matches!(told, Error::NotStored(_)), "{error}: {told}");
        assert!(world.cache.counters().dirty_bytes > 0, "{error}: still dirty");
        let wanted = [vec![0; 100], pattern(1, 100, 9000)].concat();
        same(&world.read_now(&object, 0, 20_000), &wanted, "still readable");
        world.validate();
        // Newer bytes are taken meanwhile, and the next flush that can brings everything.
        world.written(&object, 0, pattern(2, 0, 700));
        world.store.pass();
        world.flushed();
        let wanted = [pattern(2, 0, 700), pattern(1, 700, 8400)].concat();
        same(&world.stored(&object).unwrap(), &wanted, "stored at last");
        assert_eq!(world.cache.counters().dirty_bytes, 0);
        // And the end is an end, dirty or not.
        world.store.rule(|call| if call.op.is_change() { Verdict::Hold } else { Verdict::Pass });
        world.written(&object, 0, pattern(3, 0, 700));
        let last = world.flush(Scope::All);
        world.sim.settle();
        world.sim.cancel(last);
        drop(world.cache);
        world.sim.advance(60 * SECOND);
        world.store.open();
        world.sim.advance(60 * SECOND);
        assert!(world.running.is_done(), "{error}: the background's work ends with the last handle");
    }
}

#[test]
fn failure_03_a_read_completion_shifted_data_when_a_bucket_was_no_longer_loading() {
    let object = id("volume");
    let old = pattern(1, 0, 6 * 4096);
    for write in [WriteMode::Back, WriteMode::Through] {
        for changed in 0..6_u64 {
            let mut world = World::with(small(write), |memory| fill(memory, &object, old.clone()));
            world.store.hold(&[Op::Read]);
            let whole = world.read(&object, 0, 6 * BUCKET);
            world.sim.settle();
            assert_eq!(world.store.held().len(), 1, "one load for the run");
            // While they load, two of the six become something else.
            let new = pattern(2, changed * BUCKET, 4096);
            let zeroed = (changed + 3) % 6;
            let write = world.write(&object, changed * BUCKET, new.clone());
            let discard = DiscardRequest::new(object.clone(), zeroed * BUCKET, BUCKET);
            let discard = world.sim.spawn(world.cache.discard(discard));
            world.sim.settle();
            world.store.open();
            world.sim.wait(write).unwrap();
            world.sim.wait(discard).unwrap();
            // The read was under way with both: each bucket is old or new, and in its place.
            let found = world.sim.wait(whole).unwrap().data.to_vec();
            let mut wanted = old.clone();
            wanted[(changed * BUCKET) as usize..][..4096].copy_from_slice(&new);
            wanted[(zeroed * BUCKET) as usize..][..4096].fill(0);
            for (at, bucket) in found.chunks(4096).enumerate() {
                let range = at * 4096..(at + 1) * 4096;
                let is_known = *bucket == old[range.clone()] || *bucket == wanted[range];
                assert!(is_known, "bucket {at} while bucket {changed} was written");
            }
            // Whoever asks now finds the new ones, wherever they come from.
            same(&world.read_now(&object, 0, 10 * BUCKET), &wanted, "after the load");
            world.agrees(&object);
            same(&world.stored(&object).unwrap(), &wanted, "stored");
        }
    }
}

#[test]
fn failure_04_an_unaligned_write_into_a_loading_bucket_wrote_over_undefined_content() {
    let object = id("volume");
    let old = pattern(1, 0, 2 * 4096);
    // A sector and its parts; across the buckets' border; the very ends.
    for (offset, len) in [(100, 300), (512, 512), (700, 3000), (4000, 200), (0, 1), (8191, 1), (511, 2)] {
        for fails_first in [false, true] {
            let mut world = World::with(small(WriteMode::Back), |memory| fill(memory, &object, old.clone()));
            world.store.hold(&[Op::Read]);
            let read = world.read(&object, 0, 2 * BUCKET);
            world.sim.settle();
            let write = world.write(&object, offset, pattern(2, offset, len));
            world.sim.settle();
            let mut wanted = old.clone();
            wanted[offset as usize..offset as usize + len].copy_from_slice(&pattern(2, offset, len));
            if fails_first {
                // The load that both wait for fails: the write must not take that for content.
                let first = world.store.held()[0].number;
                world.store.fail(first, Error::Retryable("by test".into()));
                world.sim.settle();
            }
            world.store.open();
            let outcome = world.sim.wait(write);
            let is_written = outcome.is_ok();
            assert!(is_written || fails_first, "{outcome:?}");
            if !is_written {
                assert!(matches!(outcome, Err(Error::Retryable(_))), "{outcome:?}");
                wanted.clone_from(&old);
            }
            let _ = world.sim.wait(read);
            same(&world.read_now(&object, 0, 2 * BUCKET), &wanted, &format!("{len} at {offset}"));
            world.agrees(&object);
            same(&world.stored(&object).unwrap(), &wanted, &format!("{len} at {offset}, stored"));
        }
    }
}

#[test]
fn failure_05_a_deleted_object_came_back_with_a_late_flush() {
    let object = id("volume");
    for is_remade in [false, true] {
        for is_done_late in [false, true] {
            let mut world = World::new(WriteMode::Back);
            world.written(&object, 0, pattern(1, 0, 3 * 4096));
            world.store.hold_changes();
            let flush = world.flush(object_scope(&object));
            world.sim.settle();
            let late = world.store.held();
            assert!(!late.is_empty(), "the flush is under way");
            if !is_done_late {
                late.iter().for_each(|call| world.store.perform(call.number));
            }
            // Deleted while its bytes are on their way.
            let delete = world.sim.spawn(world.cache.delete(DeleteRequest::new(object.clone())));
            world.sim.settle();
            let mut wanted = None;
            if delete.is_done() {
                delete.take().unwrap().unwrap();
                assert_eq!(world.info(&object).unwrap_err(), Error::Missing);
                assert!(world.names().is_empty());
                if is_remade {
                    world.written(&object, 5000, pattern(2, 5000, 10));
                    wanted = Some([vec![0; 5000], pattern(2, 5000, 10)].concat());
                    same(&world.read_now(&object, 0, 1 << 20), wanted.as_ref().unwrap(), "made again");
                }
            }
            // Now they arrive.
            world.store.open();
            let _ = world.sim.wait(flush);
            if !delete.is_done() && delete.take().is_none() {
                world.sim.settle();
            }
            world.flushed();
            assert_eq!(world.stored(&object), wanted, "remade {is_remade}, late {is_done_late}");
            world.agrees(&object);
        }
    }
}

#[test]
fn failure_05_with_writes_that_go_through() {
    let object = id("volume");
    for order in [[0, 1], [1, 0]] {
        let mut world =
            World::with(small(WriteMode::Through), |memory| fill(memory, &object, pattern(1, 0, 8192)));
        same(&world.read_now(&object, 0, 8192), &pattern(1, 0, 8192), "cached");
        world.store.hold_changes();
        let write = world.write(&object, 0, pattern(2, 0, 4096));
        let delete = world.sim.spawn(world.cache.delete(DeleteRequest::new(object.clone())));
        world.sim.settle();
        // What is out is answered in either order; what waits its turn comes later.
        let held = world.store.held();
        for at in order.into_iter().filter(|at| *at < held.len()) {
            world.store.answer(held[at].number);
            world.sim.settle();
        }
        world.store.open();
        world.sim.wait(write).unwrap();
        world.sim.wait(delete).unwrap();
        world.agrees(&object);
    }
}

#[test]
fn failure_06_requests_held_buckets_while_they_waited_for_more() {
    // Twelve requests that each take most of the memory, so that two that hold a part each would wait
    // for ever.
    let most = 180 * BUCKET;
    let mut config = small(WriteMode::Back);
    config.dirty_bytes_max = 760 * KIB;
    let prepare = |memory: &Memory| {
        for number in 0..4_u64 {
            fill(memory, &id(&format!("old-{number}")), pattern(number, 0, most as usize));
        }
    };
    for polite in [false, true] {
        let mut world = World::with(config.clone(), prepare);
        world.store.rule(|call| match call.op {
            Op::Info | Op::Claim | Op::List => Verdict::Pass,
            _ => Verdict::Hold,
        });
        let mut reads = Vec::new();
        let mut writes = Vec::new();
        for number in 0..4_u64 {
            reads.push(world.read(&id(&format!("old-{number}")), 0, most));
            for round in 0..2 {
                let bytes = pattern(100 * round + number, 0, most as usize);
                writes.push((number, round, world.write(&id(&format!("new-{number}")), 0, bytes)));
            }
        }
        // Answers come one at a time, the newest first or the oldest.
        let mut held_kept = Vec::new();
        for _ in 0..100_000 {
            world.sim.settle();
            let held = world.store.held();
            let Some(next) = (if polite { held.first() } else { held.last() }) else { break };
            world.store.answer(next.number);
            world.validate();
        }
        for (number, read) in (0..).zip(reads) {
            let reply = read.take().unwrap_or_else(|| panic!("read {number} waits for ever")).unwrap();
            same(&reply.data.to_vec(), &pattern(number, 0, most as usize), "a read");
            held_kept.push(reply.data);
        }
        for (number, round, write) in writes {
            write.take().unwrap_or_else(|| panic!("write {number}.{round} waits for ever")).unwrap();
        }
        // Payloads that readers keep pin memory; whoever needs it then waits, and goes on without them.
        world.store.open();
        drop(held_kept);
        world.flushed();
        for number in 0..4 {
            let object = id(&format!("new-{number}"));
            let found = world.stored(&object).unwrap();
            let either = [0, 100].map(|round| pattern(round + number, 0, most as usize));
            assert!(either.contains(&found), "new-{number} is a mix");
            world.agrees(&object);
        }
    }
}

#[test]
fn failure_06_with_everything_pinned_by_readers() {
    let object = id("pinned");
    let all = 256 * BUCKET;
    let mut world =
        World::with(small(WriteMode::Back), |memory| fill(memory, &object, pattern(1, 0, all as usize)));
    // Twice, so that the second is served from buckets where they can be had.
    let mut kept = Vec::new();
    for round in 0..2 {
        for bucket in 0..256 {
            let read = world.read(&object, bucket * BUCKET, BUCKET);
            let reply = world.sim.wait(read).unwrap();
            same(&reply.data.to_vec(), &pattern(1, bucket * BUCKET, 4096), "pinned");
            if round == 1 {
                kept.push(reply.data);
            }
        }
    }
    // Others are read all the same, and writes get in once the payloads are let go.
    fill(world.store.memory(), &id("other"), pattern(2, 0, 8192));
    same(&world.read_now(&id("other"), 0, 8192), &pattern(2, 0, 8192), "another object");
    let write = world.write(&id("new"), 0, pattern(3, 0, 65_536));
    world.sim.settle();
    for (bucket, data) in (0..).zip(&kept) {
        same(&data.to_vec(), &pattern(1, bucket * BUCKET, 4096), "what a reader holds never changes");
    }
    kept.clear();
    world.sim.wait(write).unwrap();
    world.agrees(&id("new"));
    same(&world.stored(&id("new")).unwrap(), &pattern(3, 0, 65_536), "written");
}

#[test]
fn failure_07_off_by_one_at_the_end() {
    let mut config = small(WriteMode::Back);
    config.object_bytes_max = 64 * KIB;
    let max = config.object_bytes_max;
    for write in [WriteMode::Back, WriteMode::Through, WriteMode::Around] {
        config.write = write;
        for size in [0, 1, 511, 512, 513, 4095, 4096, 4097, 8191, 8192, 8193, max - 4097, max - 1, max] {
            let object = id("end");
            let mut world =
                World::with(config.clone(), |memory| fill(memory, &object, pattern(1, 0, size as usize)));
            let whole = pattern(1, 0, size as usize);
            for round in 0..2 {
                // Missing at first, then from the cache.
                for offset in
                    [0, 1, 4095, 4096, size.saturating_sub(1), size, size + 1, max - 1, max, max + 1]
                {
                    for len in [0, 1, 2, 4096, max] {
                        let from = offset.min(size) as usize;
                        let to = (offset + len).min(size) as usize;
                        let found = world.read_now(&object, offset, len);
                        let label = format!("{write:?} {round}: {len} at {offset} of {size}");
                        same(&found, &whole[from..to], &label);
                    }
                }
                assert_eq!(world.info(&object).unwrap().size_bytes, size);
            }
            // Right at the end, one byte before it, and a hole behind it.
            for at in [size, size.saturating_sub(1), (size + 5000).min(max - 1)] {
                if at >= max {
                    continue;
                }
                let mut wanted = content(world.store.memory(), &object).unwrap();
                wanted.resize(wanted.len().max(at as usize + 1), 0);
                wanted[at as usize] = 7;
                let reply = world.written(&object, at, vec![7]);
                assert_eq!(reply.size_bytes, wanted.len() as u64);
                same(&world.read_now(&object, 0, max + 1), &wanted, "one byte more");
                world.agrees(&object);
                same(&world.stored(&object).unwrap(), &wanted, "stored to the byte");
            }
            // The limit itself: the last byte there is, and not one more.
            let too_large =
                |error: Error| matches!(error, Error::TooLarge { limit_bytes } if limit_bytes == max);
            let last = world.written(&object, max - 1, vec![9]);
            assert_eq!(last.size_bytes, max);
            for (offset, len) in [(max, 1), (max - 1, 2), (0, max + 1), (u64::MAX, 1)] {
                let write = world.write(&object, offset, vec![1; len as usize]);
                assert!(too_large(world.sim.wait(write).unwrap_err()), "{len} at {offset}");
            }
            let truncate = TruncateRequest::new(object.clone(), max + 1);
            let truncate = world.sim.spawn(world.cache.truncate(truncate));
            assert!(too_large(world.sim.wait(truncate).unwrap_err()));
            assert_eq!(world.read_now(&object, max - 1, 10), [9]);
            // Cut in the middle of a sector, and out again: zeros, not what was there.
            for cut in [max - 1, size.max(1) - 1] {
                for to in [cut, max] {
                    let truncate = TruncateRequest::new(object.clone(), to);
                    let truncate = world.sim.spawn(world.cache.truncate(truncate));
                    world.sim.wait(truncate).unwrap();
                }
                assert!(world.read_now(&object, cut, max).iter().all(|byte| *byte == 0), "cut at {cut}");
            }
            world.agrees(&object);
            let beyond = |call: &object_support::steered::CallInfo| call.op.is_change() && call.end() > max;
            // Refused here, not handed on in the hope that the store, whose limit is higher, refuses.
            let refused = world.store.log().into_iter().filter(beyond).count();
            assert_eq!(refused, 0, "nothing beyond the limit reaches the store");
        }
    }
}

#[test]
fn failure_08_a_request_that_found_only_loading_buckets_was_failed() {
    let object = id("volume");
    let bytes = pattern(1, 0, 4 * 4096);
    for cancels_first in [false, true] {
        for fails_first in [false, true] {
            let mut world =
                World::with(small(WriteMode::Back), |memory| fill(memory, &object, bytes.clone()));
            world.store.hold(&[Op::Read]);
            let first = world.read(&object, 0, 4 * BUCKET);
            world.sim.settle();
            let others: Vec<_> =
                (0..16).map(|n| world.read(&object, n % 4 * BUCKET + n, BUCKET - 2 * n)).collect();
            world.sim.settle();
            assert!(others.iter().all(|read| !read.is_done()), "they wait");
            assert_eq!(world.store.held().len(), 1, "once for all who wait");
            if cancels_first {
                world.sim.cancel(first);
                world.sim.settle();
            }
            if fails_first {
                let number = world.store.held()[0].number;
                world.store.fail(number, Error::Retryable("by test".into()));
                world.sim.settle();
            }
            world.store.open();
            for (n, read) in (0..).zip(others) {
                match world.sim.wait(read) {
                    Ok(reply) => {
                        let at = (n % 4 * BUCKET + n) as usize;
                        let wanted = &bytes[at..at + (BUCKET - 2 * n) as usize];
                        same(&reply.data.to_vec(), wanted, "a waiter");
                    }
                    Err(error) => assert!(fails_first && error.is_retryable(), "{error}"),
                }
            }
            if !fails_first {
                // Whose load is cancelled leaves others to theirs: each bucket once more, and not once per waiter.
                let most = if cancels_first { 1 + 4 } else { 1 };
                assert!(world.store.count(Op::Read) <= most, "{} loads", world.store.count(Op::Read));
            }
            world.agrees(&object);
        }
    }
}

#[test]
fn failure_09_info_rounded_sizes_up_and_told_of_what_was_never_made() {
    let prepare = |memory: &Memory| {
        fill(memory, &id("b-stored"), pattern(1, 0, 4097));
        fill(memory, &id("d-cut"), pattern(2, 0, 10_000));
        fill(memory, &id("f-gone"), pattern(3, 0, 100));
        fill(memory, &id("h-grown"), pattern(4, 0, 100));
    };
    let mut world = World::with(small(WriteMode::Back), prepare);
    // Only the cache knows.
    world.store.hold(&[Op::Write, Op::WriteZeroes, Op::WriteFull, Op::Truncate, Op::Delete]);
    world.written(&id("a-new"), 10, pattern(5, 10, 5));
    world.written(&id("h-grown"), 4095, vec![1]);
    let truncate = TruncateRequest::new(id("d-cut"), 7);
    let truncate = world.sim.spawn(world.cache.truncate(truncate));
    world.sim.wait(truncate).unwrap();
    let delete = world.sim.spawn(world.cache.delete(DeleteRequest::new(id("f-gone"))));
    world.sim.wait(delete).unwrap();
    world.written(&id("z-empty"), 100, Vec::new());
    // Asked for, or tried, and never made.
    let nothing = world.read(&id("c-never"), 0, 100);
    assert_eq!(world.sim.wait(nothing).unwrap_err(), Error::Missing);
    let request = WriteRequest::new(id("e-never"), 0, vec![1; 10]).condition(Condition::Present);
    let refused = world.sim.spawn(world.cache.write(request));
    assert_eq!(world.sim.wait(refused).unwrap_err(), Error::Missing);
    let discard = world.sim.spawn(world.cache.discard(DiscardRequest::new(id("g-never"), 0, 10)));
    assert_eq!(world.sim.wait(discard).unwrap_err(), Error::Missing);
    let copy = world.sim.spawn(world.cache.copy(CopyRequest::new(id("c-never"), id("i-never"))));
    assert_eq!(world.sim.wait(copy).unwrap_err(), Error::Missing);

    let wanted = [("a-new", 15), ("b-stored", 4097), ("d-cut", 7), ("h-grown", 4096), ("z-empty", 0)];
    let check = |world: &mut World, when: &str| {
        for (name, size) in wanted {
            assert_eq!(world.info(&id(name)).unwrap().size_bytes, size, "{name} {when}");
            let read = world.read(&id(name), 0, 1 << 20);
            let reply = world.sim.wait(read).unwrap();
            assert_eq!((reply.size_bytes, reply.data.len_bytes() as u64), (size, size), "{name} {when}");
        }
        for name in ["c-never", "e-never", "f-gone", "g-never", "i-never"] {
            assert_eq!(world.info(&id(name)).unwrap_err(), Error::Missing, "{name} {when}");
        }
        let listed = world.names();
        let owned: Vec<_> = wanted.iter().map(|(name, size)| (name.to_string(), *size)).collect();
        assert_eq!(listed, owned, "{when}");
        // The same in pages of every size, and by prefix.
        for entries_max in 1..=6 {
            let mut request = ListRequest::new(namespace("ns")).entries_max(entries_max);
            let mut found = Vec::new();
            loop {
                let page = world.sim.spawn(world.cache.list(request.clone()));
                let page = world.sim.wait(page).unwrap();
                assert!(page.entries.len() <= entries_max as usize);
                found.extend(page.entries.iter().map(|entry| (entry.name.to_string(), entry.size_bytes)));
                let Some(last) = page.entries.last().filter(|_| page.has_more) else { break };
                request = request.after(last.name.clone());
            }
            assert_eq!(found, owned, "pages of {entries_max} {when}");
        }
        for (name, size) in wanted {
            let request = ListRequest::new(namespace("ns")).prefix(&name.as_bytes()[..1]);
            let page = world.sim.spawn(world.cache.list(request));
            let page = world.sim.wait(page).unwrap();
            let found: Vec<_> = page.entries.iter().map(|e| (e.name.to_string(), e.size_bytes)).collect();
            assert_eq!(found, [(name.to_owned(), size)], "by prefix {when}");
        }
    };
    check(&mut world, "before the flush");
    let flush = world.flush(Scope::All);
    world.sim.settle();
    check(&mut world, "while it is under way");
    world.store.open();
    world.sim.wait(flush).unwrap();
    check(&mut world, "after it");
}

#[test]
fn failure_10_copy_flushed_the_source_and_left_the_target_stale() {
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
                let store = Steered::new();
                if !native {
                    store.limit(|capabilities| capabilities.copy_native = false);
                }
                let mut world = World::over(store, small(WriteMode::Back), |memory| {
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
                            world.store.pass();
                            world.read_now(object, 0, 1 << 20);
                        }
                        Dirty | Flushing => {
                            world.store.pass();
                            world.written(object, 4000, pattern(tag, 4000, 5000));
                            if is == Flushing {
                                world.store.hold(&[Op::Write, Op::WriteFull, Op::WriteZeroes]);
                                flushes.push(world.flush(object_scope(object)));
                                world.sim.settle();
                                assert!(!world.store.held().is_empty(), "{label}");
                                world.store.hold(&[Op::Read, Op::Write, Op::WriteFull, Op::WriteZeroes]);
                            }
                            if *object == source {
                                wanted[4000..9000].copy_from_slice(&pattern(tag, 4000, 5000));
                            }
                        }
                        Loading => {
                            world.store.hold(&[Op::Read, Op::Write, Op::WriteFull, Op::WriteZeroes]);
                            reads.push(world.read(object, 0, 1 << 20));
                            world.sim.settle();
                            // Read from the store already, on its way back: soon to be old.
                            let held = world.store.held();
                            held.iter()
                                .filter(|call| call.op == Op::Read)
                                .for_each(|c| world.store.perform(c.number));
                            world.store.hold(&[Op::Write, Op::WriteFull, Op::WriteZeroes]);
                        }
                    }
                }
                let copy =
                    world.sim.spawn(world.cache.copy(CopyRequest::new(source.clone(), target.clone())));
                world.sim.settle();
                // Late answers come after the copy where it did not wait for them.
                world.store.open();
                world.sim.wait(copy).unwrap();
                for read in reads {
                    world.sim.wait(read).unwrap();
                }
                same(&world.read_now(&target, 0, 1 << 20), &wanted, &format!("{label}: target"));
                same(&world.read_now(&source, 0, 1 << 20), &wanted, &format!("{label}: source"));
                world.validate();
                // From now on each goes its own way, though they share.
                world.written(&source, 100, pattern(5, 100, 200));
                world.written(&target, 8192, pattern(6, 8192, 4096));
                let mut wanted_target = wanted.clone();
                wanted_target[8192..12_288].copy_from_slice(&pattern(6, 8192, 4096));
                wanted[100..300].copy_from_slice(&pattern(5, 100, 200));
                same(
                    &world.read_now(&target, 0, 1 << 20),
                    &wanted_target,
                    &format!("{label}: target, later"),
                );
                same(&world.read_now(&source, 0, 1 << 20), &wanted, &format!("{label}: source, later"));
                for flush in flushes {
                    world.sim.wait(flush).unwrap();
                }
                world.agrees(&source);
                world.agrees(&target);
                same(&world.stored(&target).unwrap(), &wanted_target, &format!("{label}: stored target"));
                same(&world.stored(&source).unwrap(), &wanted, &format!("{label}: stored source"));
            }
        }
    }
}

#[test]
fn failure_11_dirty_data_were_bounded_in_size_but_not_in_age_or_rate() {
    let mut config = small(WriteMode::Back);
    config.dirty_age_max = 10 * SECOND;
    config.dirty_bytes_max = 128 * KIB;
    let mut world = World::with(config, |_| ());
    // By age: one write a second, nobody asks for a flush, and then the host dies.
    for second in 0..60_u64 {
        world.written(&id(&format!("log-{}", second % 5)), second / 5 * BUCKET, pattern(second, 0, 4096));
        world.sim.advance(SECOND);
        for older in 0..(second + 1).saturating_sub(11) {
            let stored = world.stored(&id(&format!("log-{}", older % 5))).unwrap_or_default();
            let at = (older / 5 * BUCKET) as usize;
            let is_there = stored.get(at..at + 4096) == Some(&pattern(older, 0, 4096)[..]);
            assert!(is_there, "after {second} s, what was written at {older} s is not stored");
        }
        world.validate();
    }
    let dirty = world.cache.counters().dirty_bytes;
    assert!(dirty <= 12 * BUCKET, "no more than the last ten seconds' writes: {dirty}");
    world.flushed();

    // By size and rate: a writer faster than the store goes at the store's pace; it is never failed, and
    // never more than the limit is dirty.
    world.store.rule(|call| if call.op.is_change() { Verdict::Hold } else { Verdict::Pass });
    let writes: Vec<_> = (0..128_u64)
        .map(|n| world.write(&id(&format!("fast-{}", n % 8)), n / 8 * BUCKET, pattern(n, 0, 4096)))
        .collect();
    world.sim.settle();
    let done = writes.iter().filter(|write| write.is_done()).count();
    assert!((8..=32).contains(&done), "{done} of 128 writes fit below the limit of 32 buckets");
    let mut answered = 0;
    while world.store.answer_first() {
        answered += 1;
        world.sim.settle();
        assert!(world.cache.counters().dirty_bytes <= 128 * KIB, "beyond the limit");
        world.validate();
    }
    assert!(answered > 0);
    for write in writes {
        world.sim.wait(write).unwrap();
    }
    world.store.open();
    world.flushed();
    for n in 0..128_u64 {
        let stored = world.stored(&id(&format!("fast-{}", n % 8))).unwrap();
        same(&stored[(n / 8 * BUCKET) as usize..][..4096], &pattern(n, 0, 4096), "stored");
    }
    drop(world.cache);
    world.sim.settle();
    assert!(world.running.is_done());
}

#[test]
fn failure_12_with_half_the_objects_it_was_slower_than_no_cache() {
    let (objects, buckets, requests) = (64_u64, 4, 4000);
    for (write, reads_permille) in [
        (WriteMode::Through, 1000),
        (WriteMode::Back, 1000),
        (WriteMode::Through, 500),
        (WriteMode::Around, 500),
    ] {
        let mut config = small(write);
        config.objects_count_max = objects as u32 / 2;
        let mut world = World::with(config, |memory| {
            for object in 0..objects {
                fill(memory, &id(&object.to_string()), pattern(object, 0, (buckets * BUCKET) as usize));
            }
        });
        let mut rng = object_support::rng::Rng::new(12);
        world.store.clear_log();
        for request in 0..requests {
            let (object, bucket) = (id(&rng.below(objects).to_string()), rng.below(buckets));
            if rng.permille(reads_permille) {
                assert_eq!(world.read_now(&object, bucket * BUCKET, BUCKET).len(), 4096);
            } else {
                world.written(&object, bucket * BUCKET, pattern(request, 0, 4096));
            }
        }
        let log = world.store.log();
        let bytes: u64 = log.iter().map(|call| call.len).sum();
        println!("{write:?}, {reads_permille} reads in 1 000: {} calls below for {requests}", log.len());
        assert!(log.len() as u64 <= requests, "{} calls below for {requests} requests", log.len());
        assert!(bytes <= requests * BUCKET, "{bytes} bytes below for {}", requests * BUCKET);
        world.validate();
    }
}
