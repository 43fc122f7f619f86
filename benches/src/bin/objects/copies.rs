//! Hits that copy, compared with memcpy: random 4 KiB blocks over 256 MiB, and 64 KiB blocks after
//! churn, on one thread and on two.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use blocker::executor::block_on;
use blocker::{Blocker, BlockerExt, FlushRequest, ObjectId, ReadRequest, Scope, WriteMode, WriteRequest};
use bytes::Bytes;
use cached_core::object::ObjectCache;

use crate::setup::{
    BLOCK, BlockOnce, OBJECT, Places, Target, ample, bytes_of, cache, fill, held, median, memory_store,
    objects, ratio, timed, timed_over,
};

const BYTES: u64 = 256 << 20;
const CALLS: u64 = 100_000;

fn full() -> anyhow::Result<(ObjectCache, Vec<ObjectId>)> {
    full_of(1024)
}

/// Returns a full cache, with space for this many objects in its index.
fn full_of(objects_count_max: u32) -> anyhow::Result<(ObjectCache, Vec<ObjectId>)> {
    let ids = objects(BYTES / OBJECT);
    let cache = cache(memory_store(), ample(BYTES, objects_count_max, WriteMode::Back))?;
    fill(&cache, &ids)?;
    Ok((cache, ids))
}

/// Returns plain memory of the same size, already touched.
fn bare() -> Vec<u8> {
    vec![7u8; BYTES as usize]
}

fn memcpy(memory: &[u8], places: &mut Places, target: &mut [u8]) {
    let at = (places.below(BYTES / BLOCK) * BLOCK) as usize;
    target.copy_from_slice(black_box(&memory[at..at + target.len()]));
    black_box(target);
}

fn read(cache: &ObjectCache, ids: &[ObjectId], places: &mut Places, len: u64) -> blocker::ReadReply {
    let at = places.below(BYTES / len) * len;
    let request = ReadRequest::new(ids[(at / OBJECT) as usize].clone(), at % OBJECT, len);
    block_on(cache.read(request)).expect("a hit")
}

fn write(cache: &ObjectCache, ids: &[ObjectId], places: &mut Places, data: &Bytes) {
    let len = data.len() as u64;
    let at = places.below(BYTES / len) * len;
    let request = WriteRequest::new(ids[(at / OBJECT) as usize].clone(), at % OBJECT, data.clone());
    block_on(cache.write(request)).expect("a hit");
}

/// Measures random 4 KiB hits over 256 MiB. The plain copies are made from the cache's own buckets.
/// Some writes are over dirty data; others are over data that have just been stored, each block
/// once.
pub(crate) fn hits(rounds: u32) -> anyhow::Result<()> {
    let (cache, ids) = full()?;
    let data = Bytes::from(vec![9u8; BLOCK as usize]);
    let mut target = Target::new();
    let target = target.bytes();
    let place = |at: u64| (ids[(at / OBJECT) as usize].clone(), at % OBJECT);
    let pick = |places: &mut Places| place(places.below(BYTES / BLOCK) * BLOCK);
    let mut times: [Vec<f64>; 6] = Default::default();
    for round in 0..u64::from(rounds) {
        let places = || Places::new(round * 77 + 5);
        let buckets = held(&cache, &ids, OBJECT / BLOCK)?;
        let mut at = places();
        let bare = || bytes_of(&buckets[at.below(BYTES / BLOCK) as usize]);
        times[0].push(timed_over(CALLS, bare, |from| {
            target.copy_from_slice(black_box(from));
            black_box(&*target);
        }));
        let mut at = places();
        times[1].push(timed_over(
            CALLS,
            || pick(&mut at),
            |(id, at)| {
                let reply = block_on(cache.read(ReadRequest::new(id, at, BLOCK))).expect("a hit");
                reply.data.copy_to(target);
                black_box(&*target);
            },
        ));
        let mut at = places();
        times[2].push(timed_over(
            CALLS,
            || pick(&mut at),
            |(id, at)| {
                black_box(block_on(cache.read(ReadRequest::new(id, at, BLOCK))).expect("a hit"));
            },
        ));
        // Written data must not be pinned: a later write to a pinned bucket goes to another one.
        drop(buckets);
        let mut at = places();
        times[3].push(timed_over(
            CALLS,
            || pick(&mut at),
            |(id, at)| {
                block_on(cache.write(WriteRequest::new(id, at, data.clone()))).expect("a hit");
            },
        ));
        block_on(cache.flush(FlushRequest::new(Scope::All)))?;
        let mut at = BlockOnce::new(BYTES / BLOCK);
        times[4].push(timed_over(
            BYTES / BLOCK,
            || place(at.next() * BLOCK),
            |(id, at)| {
                block_on(cache.write(WriteRequest::new(id, at, data.clone()))).expect("a hit");
            },
        ));
    }
    // A copy in the same direction as a write, for comparison. Its target is separate memory,
    // because the cache's memory must not be written.
    let mut memory = bare();
    for round in 0..u64::from(rounds) {
        let mut at = Places::new(round * 77 + 5);
        let place = || (at.below(BYTES / BLOCK) * BLOCK) as usize;
        times[5].push(timed_over(CALLS, place, |at| {
            let target = &mut memory[at..at + BLOCK as usize];
            target.copy_from_slice(black_box(&data));
            // Nothing reads these bytes, so without this the optimizer would remove the copy.
            black_box(target);
        }));
    }
    let [bare, copied, shared, written, dirtied, stored] = &mut times;
    println!("4 KiB random over 256 MiB: memcpy {:.0} ns", median(&mut bare.clone()));
    println!(
        "  read hit, copied: {:.0} ns, rate ÷ memcpy {} (bar 0.55)",
        median(&mut copied.clone()),
        ratio(bare, copied)
    );
    println!("  read hit, by reference: {:.0} ns", median(&mut shared.clone()));
    for (name, times) in [("write hit", written), ("write hit of stored data", dirtied)] {
        println!(
            "  {name}: {:.0} ns, rate ÷ memcpy {} (bar 0.55), ÷ memcpy into such places ({:.0} ns) {}",
            median(&mut times.clone()),
            ratio(bare, times),
            median(&mut stored.clone()),
            ratio(stored, times)
        );
    }
    Ok(())
}

/// Measures requests of 64 KiB after the buckets have been shuffled by random 4 KiB rewrites,
/// compared with sixteen random 4 KiB copies.
pub(crate) fn churn(rounds: u32) -> anyhow::Result<()> {
    const LEN: u64 = 64 << 10;
    let (cache, ids) = full()?;
    let data = Bytes::from(vec![9u8; BLOCK as usize]);
    let mut places = Places::new(3);
    // Readers pin the rewritten data, so each rewrite goes to other buckets.
    let mut held = std::collections::VecDeque::new();
    for _ in 0..2 * BYTES / BLOCK {
        held.push_back(read(&cache, &ids, &mut places, BLOCK));
        if held.len() > 4096 {
            held.pop_front();
        }
        write(&cache, &ids, &mut places, &data);
    }
    drop(held);
    let memory = bare();
    let (mut small, mut target) = (vec![0u8; BLOCK as usize], vec![0u8; LEN as usize]);
    let data = Bytes::from(vec![9u8; LEN as usize]);
    let calls = CALLS / 16;
    let mut times: [Vec<f64>; 3] = Default::default();
    for round in 0..u64::from(rounds) {
        let mut at = Places::new(round + 1);
        times[0].push(timed(calls, || (0..16).for_each(|_| memcpy(&memory, &mut at, &mut small))));
        let mut at = Places::new(round + 1);
        times[1].push(timed(calls, || {
            read(&cache, &ids, &mut at, LEN).data.copy_to(&mut target);
            black_box(&target);
        }));
        let mut at = Places::new(round + 1);
        times[2].push(timed(calls, || write(&cache, &ids, &mut at, &data)));
    }
    let [bare, reads, writes] = &times;
    println!("64 KiB after churn, beside sixteen random 4 KiB copies:");
    println!("  read, rate ÷ copies {} (bar 0.80)", ratio(bare, reads));
    println!("  write, rate ÷ copies {} (bar 0.80)", ratio(bare, writes));
    Ok(())
}

/// The most threads that are measured.
const THREADS_MAX: usize = 16;

/// Measures threads that read and write random 4 KiB, and threads that copy 4 KiB without the
/// cache, for several numbers of threads: each on its own objects, and all on the same objects.
/// Every thread covers the same number of bytes, whatever the number of threads.
pub(crate) fn threads(rounds: u32) -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism()?.get().min(THREADS_MAX);
    let counts: Vec<usize> = (0..).map(|power| 1 << power).take_while(|&count| count <= cores).collect();
    let most = counts[counts.len() - 1];
    let (cache, ids) = full_of(64 * 1024)?;
    let data = Bytes::from(vec![9u8; BLOCK as usize]);
    let share = ids.len() / most;
    let own = |thread: usize| &ids[thread * share..(thread + 1) * share];
    let read_of = |ids: &[ObjectId], places: &mut Places, target: &mut [u8]| {
        let at = places.below(ids.len() as u64 * OBJECT / BLOCK) * BLOCK;
        let request = ReadRequest::new(ids[(at / OBJECT) as usize].clone(), at % OBJECT, BLOCK);
        block_on(cache.read(request)).expect("a hit").data.copy_to(target);
        black_box(target);
    };
    let write_of = |ids: &[ObjectId], places: &mut Places| {
        let at = places.below(ids.len() as u64 * OBJECT / BLOCK) * BLOCK;
        let request = WriteRequest::new(ids[(at / OBJECT) as usize].clone(), at % OBJECT, data.clone());
        block_on(cache.write(request)).expect("a hit");
    };
    let memory = bare();
    type Step<'a> = &'a (dyn Fn(usize, &mut Places, &mut [u8]) + Sync);
    let steps: [(&str, Step<'_>); 5] = [
        ("bare copies", &|thread, places, target| {
            let at =
                thread as u64 * share as u64 * OBJECT + places.below(share as u64 * OBJECT / BLOCK) * BLOCK;
            target.copy_from_slice(black_box(&memory[at as usize..at as usize + target.len()]));
            black_box(target);
        }),
        ("reads, different objects", &|thread, places, target| read_of(own(thread), places, target)),
        ("reads, the same objects", &|_, places, target| read_of(own(0), places, target)),
        ("writes, different objects", &|thread, places, _| write_of(own(thread), places)),
        ("writes, the same objects", &|_, places, _| write_of(own(0), places)),
    ];
    for (name, step) in steps {
        let mut one = Vec::new();
        for &count in &counts {
            let rates: Vec<f64> =
                (0..u64::from(rounds)).map(|round| rate_of_threads(count, round + 1, step)).collect();
            if count == 1 {
                one.clone_from(&rates);
            }
            let bar = if (name, count) == ("reads, different objects", 2) { " (bar 1.7)" } else { "" };
            println!(
                "{name}, {count} threads: {:.2} million/s, over one thread's {}{bar}",
                median(&mut rates.clone()) / 1e6,
                ratio(&rates, &one)
            );
        }
    }
    Ok(())
}

/// Returns how many steps per second `count` threads make together.
fn rate_of_threads(count: usize, seed: u64, step: &(dyn Fn(usize, &mut Places, &mut [u8]) + Sync)) -> f64 {
    let barrier = Barrier::new(count + 1);
    std::thread::scope(|scope| {
        for thread in 0..count {
            let barrier = &barrier;
            scope.spawn(move || {
                let mut places = Places::new(seed + 13 * thread as u64);
                let mut target = vec![0u8; BLOCK as usize];
                barrier.wait();
                for _ in 0..CALLS {
                    step(thread, &mut places, &mut target);
                }
                barrier.wait();
            });
        }
        barrier.wait();
        let start = Instant::now();
        barrier.wait();
        count as f64 * CALLS as f64 / start.elapsed().as_secs_f64()
    })
}
