//! Cancellation at every await: an operation of each kind is dropped at its first, second, … poll,
//! while the store responds to one call after the other. Afterwards the cache must work as if the
//! operation had not been requested.
//!
//! A call that has begun in the store arrives later, or before the next request. The content is the
//! old or the new one, no request that waited for the cancelled one waits forever, and at the end
//! no bucket is missing.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use blocker::*;
use cached_core::object::ObjectCache;
use test_kit::sim::Sim;
use test_kit::steered::{SteeredStore, Verdict};
use test_kit::{BUCKET, KIB, SMALL_BUCKETS, cache, content, fill, id, namespace, pattern, small};

type Operation = Pin<Box<dyn Future<Output = Result<()>>>>;

/// An operation, and its effect on the two objects.
struct Kind {
    name: &'static str,
    begin: fn(&ObjectCache) -> Operation,
    after: fn(&mut Option<Vec<u8>>, &mut Option<Vec<u8>>),
}

fn wait<T: Unpin + 'static>(reply: Reply<T>) -> Operation {
    Box::pin(async move { reply.await.map(drop) })
}

fn a() -> ObjectId {
    id("a")
}
fn b() -> ObjectId {
    id("b")
}

const SIZE: usize = 8 * 4096 + 100;

fn put(content: &mut Option<Vec<u8>>, offset: usize, bytes: &[u8]) {
    let content = content.get_or_insert_default();
    content.resize(content.len().max(offset + bytes.len()), 0);
    content[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn kinds() -> Vec<Kind> {
    vec![
        Kind {
            name: "read all",
            begin: |cache| wait(cache.read(ReadRequest::new(a(), 0, 20 * BUCKET))),
            after: |_, _| (),
        },
        Kind {
            name: "read past the cache",
            begin: |cache| wait(cache.read(ReadRequest::new(a(), 5000, 3 * BUCKET).hints(Hints::NO_CACHE))),
            after: |_, _| (),
        },
        Kind {
            name: "aligned write",
            begin: |cache| wait(cache.write(WriteRequest::new(a(), 2 * BUCKET, pattern(9, 8192, 8192)))),
            after: |a, _| put(a, 8192, &pattern(9, 8192, 8192)),
        },
        Kind {
            name: "unaligned write",
            begin: |cache| wait(cache.write(WriteRequest::new(a(), 4000, pattern(9, 4000, 9000)))),
            after: |a, _| put(a, 4000, &pattern(9, 4000, 9000)),
        },
        Kind {
            name: "write behind the end",
            begin: |cache| wait(cache.write(WriteRequest::new(a(), 90_001, pattern(9, 90_001, 10)))),
            after: |a, _| put(a, 90_001, &pattern(9, 90_001, 10)),
        },
        Kind {
            name: "stored write",
            begin: |cache| {
                let request = WriteRequest::new(a(), 100, pattern(9, 100, 4096));
                wait(cache.write(request.durability(Durability::Stored)))
            },
            after: |a, _| put(a, 100, &pattern(9, 100, 4096)),
        },
        Kind {
            name: "conditional write",
            begin: |cache| {
                let request = WriteRequest::new(a(), 100, pattern(9, 100, 4096));
                wait(cache.write(request.condition(Condition::Present)))
            },
            after: |a, _| put(a, 100, &pattern(9, 100, 4096)),
        },
        Kind {
            name: "write_zeroes",
            begin: |cache| wait(cache.write_zeroes(WriteZeroesRequest::new(a(), 1000, 10_000))),
            after: |a, _| put(a, 1000, &[0; 10_000]),
        },
        Kind {
            name: "discard",
            begin: |cache| wait(cache.discard(DiscardRequest::new(a(), 4096, 5000))),
            after: |a, _| put(a, 4096, &[0; 5000]),
        },
        Kind {
            name: "compare_and_write",
            begin: |cache| {
                let expected = pattern(1, 20_000, 100);
                wait(cache.compare_and_write(CompareAndWriteRequest::new(
                    a(),
                    20_000,
                    expected,
                    vec![9; 100],
                )))
            },
            after: |a, _| put(a, 20_000, &[9; 100]),
        },
        Kind {
            name: "write_full",
            begin: |cache| wait(cache.write_full(WriteFullRequest::new(a(), pattern(9, 0, 10_000)))),
            after: |a, _| *a = Some(pattern(9, 0, 10_000)),
        },
        Kind {
            name: "truncate",
            begin: |cache| wait(cache.truncate(TruncateRequest::new(a(), 5001))),
            after: |a, _| a.get_or_insert_default().truncate(5001),
        },
        Kind {
            name: "delete",
            begin: |cache| wait(cache.delete(DeleteRequest::new(a()))),
            after: |a, _| *a = None,
        },
        Kind {
            name: "copy to another",
            begin: |cache| wait(cache.copy(CopyRequest::new(a(), b()))),
            after: |a, b| b.clone_from(a),
        },
        Kind {
            name: "copy from another",
            begin: |cache| wait(cache.copy(CopyRequest::new(b(), a()))),
            after: |a, b| a.clone_from(b),
        },
        Kind { name: "info", begin: |cache| wait(cache.info(InfoRequest::new(a()))), after: |_, _| () },
        Kind {
            name: "list",
            begin: |cache| wait(cache.list(ListRequest::new(namespace("ns")))),
            after: |_, _| (),
        },
        Kind {
            name: "flush of an object",
            begin: |cache| wait(cache.flush(FlushRequest::new(Scope::Object(a())))),
            after: |_, _| (),
        },
        Kind {
            name: "flush of all",
            begin: |cache| wait(cache.flush(FlushRequest::new(Scope::All))),
            after: |_, _| (),
        },
        Kind {
            name: "invalidate",
            begin: |cache| wait(cache.invalidate(InvalidateRequest::new(Scope::All))),
            after: |_, _| (),
        },
        Kind {
            name: "claim",
            begin: |cache| {
                wait(cache.claim(ClaimRequest::new(Scope::Object(id("claimed")), Epoch(3), WriterId(1))))
            },
            after: |_, _| (),
        },
    ]
}

/// The circumstances of a cancellation.
#[derive(Clone, Copy, Debug)]
struct Case {
    write: WriteMode,
    /// Whether other requests are made before the call in flight arrives.
    arrives_late: bool,
    /// Whether other requests wait behind the cancelled one.
    has_followers: bool,
    /// Whether most of the dirty limit and of the nodes is used up.
    is_tight: bool,
}

/// Drops `kind` after at most `polls_max` polls; returns whether it had completed by then.
fn cut(kind: &Kind, case: Case, polls_max: usize) -> bool {
    let label = format!("{} cut after {polls_max} polls, {case:?}", kind.name);
    let mut sim = Sim::new(None);
    let store = SteeredStore::new();
    fill(store.memory(), &a(), pattern(1, 0, SIZE));
    fill(store.memory(), &b(), pattern(2, 0, 5 * 4096));
    let mut config = small(case.write);
    if case.is_tight {
        config.objects_count_max = 2;
        config.dirty_bytes_max = 16 * KIB;
    }
    let (cache, background) = cache(Arc::clone(&store) as _, config, &sim.clock);
    let all_free = cache.counters().free_bytes;
    let running = sim.spawn(background);
    let validate = |cache: &ObjectCache| {
        cache.validate().unwrap_or_else(|why| panic!("{label}: validate: {why}"));
    };

    // Some buckets are clean, some dirty, and some not cached.
    sim.run(cache.read(ReadRequest::new(a(), 0, 3 * BUCKET))).unwrap();
    let mut old_a = Some(pattern(1, 0, SIZE));
    let mut old_b = Some(pattern(2, 0, 5 * 4096));
    sim.run(cache.write(WriteRequest::new(a(), BUCKET, pattern(3, BUCKET, 6000)))).unwrap();
    put(&mut old_a, 4096, &pattern(3, BUCKET, 6000));
    sim.run(cache.write(WriteRequest::new(b(), 100, pattern(4, 100, 700)))).unwrap();
    put(&mut old_b, 100, &pattern(4, 100, 700));
    sim.run_until_idle();
    store.rule(|_| Verdict::Hold);

    let handle = sim.spawn((kind.begin)(&cache));
    let mut followers = Vec::new();
    let (mut polls, mut rounds) = (0, 0);
    let finished = loop {
        if polls == polls_max {
            break None;
        }
        if sim.poll_one(&handle) {
            polls += 1;
            if polls == 1 && case.has_followers {
                let write = WriteRequest::new(a(), 2 * BUCKET + 10, vec![7; 100]);
                followers.push(sim.spawn(wait(cache.write(write))));
                followers.push(sim.spawn(wait(cache.read(ReadRequest::new(a(), 0, 9 * BUCKET)))));
                followers.push(sim.spawn(wait(cache.flush(FlushRequest::new(Scope::Object(a()))))));
            }
            if let Some(outcome) = handle.take() {
                break Some(outcome);
            }
        } else if !sim.step() && !store.answer_first() {
            assert!(sim.skip(), "{label}: it waits, and nothing can come any more");
        }
        rounds += 1;
        assert!(rounds < 10_000, "{label}: no end");
    };
    match &finished {
        Some(outcome) => outcome.as_ref().unwrap_or_else(|error| panic!("{label}: {error}")),
        None => {
            sim.cancel(handle);
            &()
        }
    };
    validate(&cache);

    // The other requests of the case follow.
    if case.arrives_late {
        sim.run_until_idle();
        validate(&cache);
        let early = [
            sim.spawn(wait(cache.read(ReadRequest::new(a(), 4096, 4096)))),
            sim.spawn(wait(cache.info(InfoRequest::new(a())))),
        ];
        sim.run_until_idle();
        store.open();
        for each in early {
            match sim.wait(each) {
                Ok(()) | Err(Error::Missing) => {}
                Err(error) => panic!("{label}: {error}"),
            }
        }
    }
    store.open();
    sim.run_until_idle();
    validate(&cache);
    let has_followed = !followers.is_empty();
    for follower in followers {
        match sim.wait(follower) {
            Ok(()) | Err(Error::Missing) => {}
            Err(error) => panic!("{label}: a request that waited behind it: {error}"),
        }
    }

    // The content is old or new, and the stored content equals the one that is read.
    let (mut new_a, mut new_b) = (old_a.clone(), old_b.clone());
    (kind.after)(&mut new_a, &mut new_b);
    for (object, old, new) in [(a(), &old_a, &new_a), (b(), &old_b, &new_b)] {
        let read = match sim.run(cache.read(ReadRequest::new(object.clone(), 0, 1 << 20))) {
            Ok(reply) => Some(reply.data.to_vec()),
            Err(Error::Missing) => None,
            Err(error) => panic!("{label}: {error}"),
        };
        let followed = |content: &Option<Vec<u8>>| {
            let mut content = content.clone();
            put(&mut content, 2 * 4096 + 10, &[7; 100]);
            content
        };
        let mut allowed = vec![new.clone()];
        if finished.is_none() {
            allowed.push(old.clone());
        }
        if has_followed && object == a() {
            // The follower came before or after the cancelled operation.
            let mut before = followed(old);
            (kind.after)(&mut before, &mut old_b.clone());
            allowed = allowed.iter().map(followed).chain([before]).collect();
        } else if has_followed {
            let (mut source, mut target) = (followed(&old_a), old_b.clone());
            (kind.after)(&mut source, &mut target);
            allowed.push(target);
        }
        assert!(allowed.contains(&read), "{label}: {object} is neither old nor new");
        sim.run(cache.flush(FlushRequest::new(Scope::All))).unwrap();
        assert!(content(store.memory(), &object) == read, "{label}: {object} is stored otherwise");
        validate(&cache);
    }

    // All operations still work: all memory, space for dirty data, permits and nodes are available.
    for round in 0..3_u64 {
        let object = id(&format!("later-{round}"));
        for at in 0..24 {
            let write =
                WriteRequest::new(object.clone(), at * 16 * KIB, pattern(round, at * 16 * KIB, 16 << 10));
            sim.run(cache.write(write)).unwrap_or_else(|error| panic!("{label}: later: {error}"));
        }
        let read = sim.run(cache.read(ReadRequest::new(object.clone(), 0, 24 * 16 * KIB))).unwrap();
        assert!(read.data == *pattern(round, 0, 24 * (16 << 10)), "{label}: later");
        drop(read);
        validate(&cache);
    }
    sim.run(cache.copy(CopyRequest::new(id("later-0"), a()))).unwrap();
    for object in [a(), b(), id("later-0"), id("later-1"), id("later-2")] {
        match sim.run(cache.delete(DeleteRequest::new(object))) {
            Ok(_) | Err(Error::Missing) => {}
            Err(error) => panic!("{label}: {error}"),
        }
    }
    sim.run(cache.flush(FlushRequest::new(Scope::All))).unwrap();
    sim.run(cache.invalidate(InvalidateRequest::new(Scope::All))).unwrap();
    sim.run_until_idle();
    validate(&cache);
    let left = cache.counters();
    assert_eq!((left.dirty_bytes, left.loading_bytes, left.clean_bytes), (0, 0, 0), "{label}");
    assert_eq!(left.free_bytes, all_free, "{label}: buckets are missing");
    assert!(all_free <= SMALL_BUCKETS * BUCKET);

    drop(cache);
    sim.advance(Duration::from_secs(60));
    assert!(running.is_done(), "{label}: the background has not ended");
    finished.is_some()
}

fn cut_everywhere(write: WriteMode) {
    let mut cuts = 0;
    for kind in kinds() {
        for bits in 0..8 {
            let case = Case {
                write,
                arrives_late: bits & 1 == 0,
                has_followers: bits & 2 != 0,
                is_tight: bits & 4 != 0,
            };
            let mut polls = 0;
            while !cut(&kind, case, polls) {
                polls += 1;
                assert!(polls < 500, "{} never ends, {case:?}", kind.name);
            }
            cuts += polls;
        }
    }
    println!("{cuts} cuts");
    assert!(cuts > 8 * kinds().len(), "hardly anything waits");
}

#[test]
fn cancelled_at_every_await_when_writing_back() {
    cut_everywhere(WriteMode::Back);
}

#[test]
fn cancelled_at_every_await_when_writing_through() {
    cut_everywhere(WriteMode::Through);
}

#[test]
fn cancelled_at_every_await_when_writing_around() {
    cut_everywhere(WriteMode::Around);
}
