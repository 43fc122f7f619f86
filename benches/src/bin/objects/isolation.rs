//! Isolation of namespaces that share a cache and a store: a small hot set next to a stream of
//! writes, eight reservations next to a ninth namespace that takes as much as it can, and how soon
//! lent capacity is returned.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use blocker::executor::block_on;
use blocker::{
    Blocker, BlockerExt, Hints, Name, Namespace, NamespaceKey, ObjectId, ReadRequest, WriteMode, WriteRequest,
};
use bytes::Bytes;
use cached_core::object::{NamespaceConfig, ObjectCache, ObjectCacheConfig, StoreTerms};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::setup::{BLOCK, OBJECT, Places, ample, cache, memory_store};
use crate::slow::Slow;

/// The store's number of concurrent requests, and the time of each.
const AT_ONCE: usize = 16;
const SERVICE: Duration = Duration::from_millis(2);
/// The maximum rate of the store, in requests per second.
const STORE_RATE: f64 = AT_ONCE as f64 / 0.002;
/// Objects of each namespace.
const OBJECTS: u64 = 4;

/// Returns the duration of a part: ten seconds, or one second per round if that is less.
fn seconds(rounds: u32) -> u64 {
    if rounds < 7 { u64::from(rounds) } else { 10 }
}

fn object(namespace: &str, number: u64) -> ObjectId {
    let name = Name::new(format!("volume.{number:04}")).expect("a name");
    ObjectId::new(Namespace::new(namespace.to_owned()).expect("a name"), name)
}

fn own(name: &str, write: WriteMode, store: StoreTerms) -> NamespaceConfig {
    NamespaceConfig::new(Namespace::new(name.to_owned()).expect("a name"), write).with_store_terms(store)
}

fn reserved(rate: u64) -> StoreTerms {
    StoreTerms { requests_per_second_min: Some(rate), ..StoreTerms::default() }
}

/// Returns a cache over the slow store, which contains objects in these namespaces.
fn over_slow(names: &[String], config: ObjectCacheConfig) -> anyhow::Result<ObjectCache> {
    let memory = memory_store();
    let data = Bytes::from(vec![7u8; OBJECT as usize]);
    for name in names {
        for number in 0..OBJECTS {
            block_on(memory.write(WriteRequest::new(object(name, number), 0, data.clone())))?;
        }
    }
    cache(Arc::new(Slow::new(memory, SERVICE, AT_ONCE)), config)
}

/// Keeps `depth` reads of uncached data in progress until `stop`.
fn flood(cache: &ObjectCache, name: &str, depth: usize, stop: &AtomicBool) -> anyhow::Result<()> {
    let mut places = Places::new(name.bytes().map(u64::from).sum::<u64>() * 7919);
    let mut read = || {
        let at = places.below(OBJECT / BLOCK) * BLOCK;
        let read = ReadRequest::new(object(name, places.below(OBJECTS)), at, BLOCK).hints(Hints::NO_CACHE);
        std::future::IntoFuture::into_future(cache.read(read))
    };
    block_on(async {
        let mut under_way: FuturesUnordered<_> = (0..depth).map(|_| read()).collect();
        while let Some(answer) = under_way.next().await {
            answer?;
            if !stop.load(Ordering::Relaxed) {
                under_way.push(read());
            }
        }
        Ok(())
    })
}

/// Returns a namespace's use of the store, in the units in which reservations count.
fn units(cache: &ObjectCache, name: &str) -> f64 {
    let all = cache.namespaces();
    let of = all.iter().find(|of| of.namespace.as_ref().is_some_and(|own| own.as_bytes() == name.as_bytes()));
    of.map_or(0.0, |of| of.store.requests as f64 + of.store.bytes as f64 / 65_536.0)
}

pub(crate) fn isolation(rounds: u32) -> anyhow::Result<()> {
    hot_beside_stream(seconds(rounds))?;
    eight_reservations(seconds(rounds))?;
    lent_and_back(seconds(rounds))
}

/// Reads continuously: 95 of 100 reads are in a small hot set, the others read uncached data.
/// Returns the share of hits and the p99 latency.
fn hot_reads(cache: &ObjectCache, time: Duration) -> anyhow::Result<(f64, Duration)> {
    let counts = || {
        let all = cache.namespaces();
        let hot = all.iter().find(|of| of.namespace.as_ref().is_some_and(|own| own.as_bytes() == b"hot"));
        hot.map_or((0, 0), |of| (of.read_hits, of.read_misses))
    };
    let mut places = Places::new(99);
    let before = counts();
    let start = Instant::now();
    let mut latencies = Vec::new();
    while start.elapsed() < time {
        let is_cold = places.below(100) < 5;
        let number = if is_cold { 1 + places.below(OBJECTS - 1) } else { 0 };
        let read = ReadRequest::new(object("hot", number), places.below(OBJECT / BLOCK) * BLOCK, BLOCK);
        let read = if is_cold { read.hints(Hints::NO_CACHE) } else { read };
        let begun = Instant::now();
        block_on(cache.read(read))?;
        latencies.push(begun.elapsed());
    }
    let after = counts();
    let (hits, misses) = (after.0 - before.0, after.1 - before.1);
    latencies.sort_unstable();
    let p99 = latencies[latencies.len() * 99 / 100];
    Ok((hits as f64 / (hits + misses).max(1) as f64, p99))
}

/// Writes consecutive blocks of 256 KiB, eight at a time, over far more than the cache holds.
fn stream(cache: &ObjectCache, stop: &AtomicBool) -> anyhow::Result<u64> {
    const LEN: u64 = 256 << 10;
    let data = Bytes::from(vec![1u8; LEN as usize]);
    let mut at = 0;
    let mut write = || {
        let write = WriteRequest::new(object("stream", at / OBJECT % 64), at % OBJECT, data.clone());
        at += LEN;
        std::future::IntoFuture::into_future(cache.write(write))
    };
    let mut written = 0;
    block_on(async {
        let mut under_way: FuturesUnordered<_> = (0..8).map(|_| write()).collect();
        while let Some(answer) = under_way.next().await {
            answer?;
            written += LEN;
            if !stop.load(Ordering::Relaxed) {
                under_way.push(write());
            }
        }
        Ok(written)
    })
}

fn hot_beside_stream(seconds: u64) -> anyhow::Result<()> {
    let time = Duration::from_secs(seconds);
    for has_terms in [false, true] {
        let hot = if has_terms { StoreTerms { weight: 4, ..reserved(2000) } } else { StoreTerms::default() };
        let stream_terms = own("stream", WriteMode::Back, StoreTerms::default());
        let config = ObjectCacheConfig {
            dirty_bytes_max: 16 << 20,
            namespaces: vec![
                own("hot", WriteMode::Through, hot),
                stream_terms.with(NamespaceKey::DirtyBytesMax, 8 << 20),
            ],
            ..ample(8 << 20, 1000, WriteMode::Through)
        };
        let cache = over_slow(&["hot".to_owned(), "stream".to_owned()], config)?;
        for block in 0..OBJECT / BLOCK {
            block_on(cache.read(ReadRequest::new(object("hot", 0), block * BLOCK, BLOCK)))?;
        }
        let alone = hot_reads(&cache, time)?;
        let stop = AtomicBool::new(false);
        let (beside, written) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| stream(&cache, &stop));
            let beside = hot_reads(&cache, time);
            stop.store(true, Ordering::Relaxed);
            let written = writer.join().expect("the writer does not panic");
            anyhow::Ok((beside?, written?))
        })?;
        let terms = if has_terms { "with terms" } else { "without terms" };
        println!(
            "isolation, {terms}: hits of a hot set beside a stream of writes {:.4} (alone {:.4}), ratio {:.3} (bar 0.98)",
            beside.0,
            alone.0,
            beside.0 / alone.0
        );
        println!(
            "isolation, {terms}: p99 of its reads {:.2} ms (alone {:.2}), ratio {:.2} (bar 1.5); streamed {:.0} MiB/s",
            beside.1.as_secs_f64() * 1e3,
            alone.1.as_secs_f64() * 1e3,
            beside.1.as_secs_f64() / alone.1.as_secs_f64(),
            written as f64 / f64::from(1 << 20) / seconds as f64
        );
    }
    Ok(())
}

fn eight_reservations(seconds: u64) -> anyhow::Result<()> {
    let rates: Vec<u64> = (1..=8).map(|number| number * 100).collect();
    let names: Vec<String> = (1..=9).map(|number| format!("n{number}")).collect();
    let mut namespaces: Vec<NamespaceConfig> =
        names.iter().zip(&rates).map(|(name, rate)| own(name, WriteMode::Through, reserved(*rate))).collect();
    let greedy = StoreTerms { weight: StoreTerms::WEIGHT_MAX, ..StoreTerms::default() };
    namespaces.push(own(&names[8], WriteMode::Through, greedy));
    let config = ObjectCacheConfig { namespaces, ..ample(8 << 20, 1000, WriteMode::Through) };
    let cache = over_slow(&names, config)?;
    let stop = AtomicBool::new(false);
    let got: Vec<f64> = std::thread::scope(|scope| {
        for name in &names {
            let (cache, stop) = (&cache, &stop);
            scope.spawn(move || flood(cache, name, 32, stop).expect("the store answers"));
        }
        std::thread::sleep(Duration::from_millis(200));
        let of_each = || names.iter().map(|name| units(&cache, name)).collect::<Vec<_>>();
        let (before, start) = (of_each(), Instant::now());
        std::thread::sleep(Duration::from_secs(seconds));
        let (after, time) = (of_each(), start.elapsed().as_secs_f64());
        stop.store(true, Ordering::Relaxed);
        before.iter().zip(after).map(|(before, after)| (after - before) / time).collect()
    });
    let ratios = rates.iter().zip(&got).map(|(rate, got)| got / *rate as f64);
    let worst = ratios.fold(f64::INFINITY, f64::min);
    println!(
        "isolation: eight reservations beside a namespace with all the weight, the least over {seconds} s {worst:.3} of it (bar 0.95)"
    );
    let total: f64 = got.iter().sum();
    println!(
        "isolation: the store did {total:.0} units a second, of at most {:.0}; {:.0} were lent",
        STORE_RATE * (1.0 + BLOCK as f64 / 65_536.0),
        got[8]
    );
    Ok(())
}

fn lent_and_back(seconds: u64) -> anyhow::Result<()> {
    const RATE: u64 = 3000;
    let names = ["owner".to_owned(), "borrower".to_owned()];
    let heavy = StoreTerms { weight: StoreTerms::WEIGHT_MAX, ..StoreTerms::default() };
    let config = ObjectCacheConfig {
        namespaces: vec![
            own(&names[0], WriteMode::Through, reserved(RATE)),
            own(&names[1], WriteMode::Through, heavy),
        ],
        ..ample(8 << 20, 1000, WriteMode::Through)
    };
    let cache = over_slow(&names, config)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (cache, stop) = (&cache, &stop);
        scope.spawn(move || flood(cache, "borrower", 128, stop).expect("the store answers"));
        std::thread::sleep(Duration::from_secs(seconds.min(3)));
        let (before, start) = (units(cache, "owner"), Instant::now());
        scope.spawn(move || flood(cache, "owner", 32, stop).expect("the store answers"));
        std::thread::sleep(Duration::from_secs(1));
        let got = (units(cache, "owner") - before) / start.elapsed().as_secs_f64();
        println!(
            "isolation: in its first second a namespace has {got:.0} units of the {RATE} that it had lent, {:.3} (bar 0.95)",
            got / RATE as f64
        );
        stop.store(true, Ordering::Relaxed);
    });
    Ok(())
}
