//! Ends of objects, reported sizes, and copies.

use super::*;

#[test]
fn a_read_beyond_all_objects_has_no_bytes_whether_the_object_is_known_or_not() {
    let object = id("short");
    for offset in [4 << 20, u64::from(u32::MAX) * BUCKET, u64::MAX - 1, u64::MAX] {
        let mut env = Environment::with(small(WriteMode::Back), |memory| fill(memory, &object, vec![1; 5]));
        for len in [0, 1, 4 << 20] {
            assert!(env.read_now(&object, offset, len).is_empty(), "{len} at {offset}");
            let invalidated = env.sim.spawn(env.cache.invalidate(InvalidateRequest::new(Scope::All)));
            env.sim.wait(invalidated).unwrap();
            assert!(env.read_now(&object, offset, len).is_empty(), "{len} at {offset}, invalidated");
        }
        env.validate();
    }
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
                fill(memory, &object, pattern(1, 0, size as usize));
            });
            let whole = pattern(1, 0, size as usize);
            for round in 0..2 {
                // The object is missing at first, and then comes from the cache.
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
            // The writes begin exactly at the end, one byte before it, and after it, which leaves a
            // hole.
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
            // At the limit itself, the last possible byte is accepted, and no further byte.
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
            // The object is truncated in the middle of a sector and extended again: it has zeros
            // there, not the old bytes.
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
            // The cache refuses the write itself, because the store, whose limit is higher, would
            // accept it.
            let refused = env.store.log().into_iter().filter(beyond).count();
            assert_eq!(refused, 0, "nothing beyond the limit reaches the store");
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
    // These objects were requested or attempted, but never created.
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
        // The same names are listed in pages of every size, and by prefix.
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
    env.sim.run_until_idle();
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
                                env.sim.run_until_idle();
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
                            env.sim.run_until_idle();
                            // The store has already read these bytes, which are in flight and will
                            // soon be outdated.
                            let held = env.store.held();
                            held.iter()
                                .filter(|call| call.op == Op::Read)
                                .for_each(|c| env.store.perform(c.number));
                            env.store.hold(&[Op::Write, Op::WriteFull, Op::WriteZeroes]);
                        }
                    }
                }
                let copy = env.sim.spawn(env.cache.copy(CopyRequest::new(source.clone(), target.clone())));
                env.sim.run_until_idle();
                // If the copy did not wait for late responses, they arrive after it.
                env.store.open();
                env.sim.wait(copy).unwrap();
                for read in reads {
                    env.sim.wait(read).unwrap();
                }
                same(&env.read_now(&target, 0, 1 << 20), &wanted, &format!("{label}: target"));
                same(&env.read_now(&source, 0, 1 << 20), &wanted, &format!("{label}: source"));
                env.validate();
                // From now on source and target change independently, although they share buckets.
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
