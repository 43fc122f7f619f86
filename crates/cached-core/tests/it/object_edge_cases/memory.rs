//! Little memory, dirty room or few nodes: requests wait for each other without a deadlock, and
//! limits hold.

use super::*;

#[test]
fn requests_that_need_most_of_the_memory_do_not_block_each_other() {
    // Twelve requests each need most of the memory: two that each held a part would wait forever.
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
        // Responses arrive one at a time, the newest or the oldest first.
        let mut held_kept = Vec::new();
        for _ in 0..100_000 {
            env.sim.run_until_idle();
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
        // Payloads that readers keep pin memory; a request that needs this memory waits, and then
        // continues without it.
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
        fill(memory, &object, pattern(1, 0, all as usize));
    });
    // The read is repeated. The second one is served from the cache if the first one could be
    // cached.
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
    env.sim.run_until_idle();
    for (bucket, data) in (0..).zip(&kept) {
        same(&data.to_vec(), &pattern(1, bucket * BUCKET, 4096), "what a reader holds never changes");
    }
    kept.clear();
    env.sim.wait(write).unwrap();
    env.agrees(&id("new"));
    same(&env.stored(&id("new")).unwrap(), &pattern(3, 0, 65_536), "written");
}

#[test]
fn dirty_data_are_bounded_in_age_size_and_rate() {
    let mut config = small(WriteMode::Back);
    config.dirty_age_max = 10 * SECOND;
    config.dirty_bytes_max = 128 * KIB;
    let mut env = Environment::with(config, |_| ());
    // Flushes by age: one write per second without a flush request, until the host fails.
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

    // Flushes by size and rate: a writer that is faster than the store proceeds at the store's
    // rate, never fails, and never exceeds the dirty limit.
    env.store.rule(|call| if call.op.is_change() { Verdict::Hold } else { Verdict::Pass });
    let writes: Vec<_> = (0..128_u64)
        .map(|n| env.write(&id(&format!("fast-{}", n % 8)), n / 8 * BUCKET, pattern(n, 0, 4096)))
        .collect();
    env.sim.run_until_idle();
    let done = writes.iter().filter(|write| write.is_done()).count();
    assert!((8..=32).contains(&done), "{done} of 128 writes fit below the limit of 32 buckets");
    let mut answered = 0;
    while env.store.answer_first() {
        answered += 1;
        env.sim.run_until_idle();
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
    env.sim.run_until_idle();
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
