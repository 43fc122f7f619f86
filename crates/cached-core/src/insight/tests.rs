//! The simulation compared with full caches of each size.

use super::simulation::Simulation;
use super::*;
use crate::clock::TickClock;
use crate::kv::{Kv, KvConfig};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

const ENTRY_BYTES: usize = 600;

/// Returns the requests of an artificial load: ranks with a heavy tail that drift, and an
/// occasional scan.
fn requests(count: usize, names: f64) -> impl Iterator<Item = u64> {
    let mut random = SmallRng::seed_from_u64(11);
    (0..count as u64).map(move |at| {
        if at % 50_000 > 42_000 {
            return 1 << 40 | at;
        }
        let rank = names.powf(random.random::<f64>()) as u64;
        rank + at / 2_000
    })
}

fn store(memory_bytes: usize, insight: bool) -> Kv {
    let config = KvConfig {
        arena_bytes: memory_bytes,
        item_bytes_max: 64 << 10,
        lanes: 1,
        cas: false,
        hash_seed: Some(3),
        clock: Arc::new(TickClock::new()),
        insight: if insight { Sampling::Share(1.0) } else { Sampling::Off },
        ..KvConfig::default()
    };
    Kv::new(config).unwrap()
}

/// Replays the load like a client that stores every value it misses. Returns the miss ratio.
fn replay(kv: &Kv, load: impl Iterator<Item = u64>, value: &[u8]) -> f64 {
    let mut totals = Totals::default();
    for (at, name) in load.enumerate() {
        let key = format!("{}:{name}", if name % 4 == 0 { "a" } else { "b" }).into_bytes();
        totals.requests += 1;
        if kv.read(&key, kv.hash(&key), |_| ()).is_err() {
            totals.misses += 1;
            kv.set(&key, value).unwrap();
        }
        if at % 500 == 0 {
            kv.take_samples(Some(totals));
        }
    }
    kv.take_samples(Some(totals));
    totals.misses as f64 / totals.requests as f64
}

#[test]
fn predictions_are_near_what_real_caches_of_each_size_do() {
    // About a third of the names are sampled at the cache's own size.
    let memory = 32 << 20;
    let value = vec![b'v'; ENTRY_BYTES];
    let load = || requests(1_000_000, 400_000.0);
    let kv = store(memory, true);
    let counted = replay(&kv, load(), &value);
    let curve = kv.miss_ratio_curve().unwrap();
    assert!(curve.sampled_share < 0.6, "{curve:?}");
    assert!((curve.counted_miss_ratio - counted).abs() < 1e-9 && curve.is_warm, "{curve:?}");
    let of = |factor: f64| curve.points.iter().find(|point| point.factor == factor).unwrap().miss_ratio;
    assert!((of(1.0) - counted).abs() < 0.01, "at 1: {} of {counted}", of(1.0));
    for factor in [0.5, 2.0] {
        let real = replay(&store((memory as f64 * factor) as usize, false), load(), &value);
        assert!((of(factor) - real).abs() < 0.02, "at {factor}: {} of {real}", of(factor));
    }
    assert!(curve.points.windows(2).all(|pair| pair[0].miss_ratio >= pair[1].miss_ratio), "{curve:?}");
    assert!(of(0.25) > of(4.0) + 0.1, "the load shows differences: {curve:?}");
    assert!(kv.insight_bytes() < 5 << 20, "{}", kv.insight_bytes());
    // A quarter of the names belong to namespace `a`.
    let names: Vec<_> = curve.namespaces.iter().map(|share| share.namespace.as_deref()).collect();
    assert_eq!(names, [Some("b"), Some("a")]);
    let bytes: u64 = curve.namespaces.iter().map(|share| share.entry_bytes).sum();
    assert!((0.8..1.0).contains(&(bytes as f64 / memory as f64)), "{bytes}");
    assert!(curve.namespaces[0].entry_bytes > 2 * curve.namespaces[1].entry_bytes);
    let reasons = kv.misses_by_reason().unwrap();
    assert!(reasons.evicted > 0 && reasons.never_seen > reasons.evicted, "{reasons:?}");
    assert_eq!((reasons.deleted, reasons.flushed, reasons.expired), (0, 0, 0));
}

fn sample(simulation: &mut Simulation, hash: u64, event: Event, expiry: u32) {
    simulation.apply(&Sample::new(hash, event).entry(1000, expiry), b"");
}

/// Returns the misses at each size, as counts.
fn misses(simulation: &Simulation) -> Vec<u64> {
    let curve = simulation.curve();
    curve.points.iter().map(|point| (point.miss_ratio * curve.requests as f64).round() as u64).collect()
}

fn present(now: u32, flushes: u32) -> Present {
    Present { now, totals: None, used: None, flushes, entries: 0 }
}

fn simulation() -> Simulation {
    // A quarter of the size has five entries; the full size has at least nineteen.
    let mut simulation = Simulation::new("lru", 21_000, Sampling::Share(1.0)).unwrap();
    simulation.begin(&present(10, 0));
    simulation
}

#[test]
fn a_name_found_by_the_cache_and_missed_in_a_smaller_one_is_stored_there() {
    let mut simulation = simulation();
    for n in 0..8 {
        sample(&mut simulation, n, Event::Absent, 0);
        sample(&mut simulation, n, Event::Store, 0);
    }
    assert_eq!(misses(&simulation), [8; 5]);
    // Only the smallest size lacks name 0; the hit brings it back there.
    sample(&mut simulation, 0, Event::Hit, 0);
    sample(&mut simulation, 0, Event::Hit, 0);
    assert_eq!(misses(&simulation), [9, 8, 8, 8, 8]);
}

#[test]
fn a_store_after_a_miss_changes_nothing_where_the_name_was() {
    let mut simulation = simulation();
    sample(&mut simulation, 1, Event::Store, 20);
    // The cache itself has evicted name 1, and now stores it with a later expiry. Larger sizes
    // still have the old entry.
    sample(&mut simulation, 1, Event::Absent, 0);
    sample(&mut simulation, 1, Event::Store, 40);
    assert_eq!(misses(&simulation), [0; 5]);
    simulation.begin(&present(20, 0));
    sample(&mut simulation, 1, Event::Hit, 40);
    assert_eq!(misses(&simulation), [1; 5], "what the cache has been evicting had expired everywhere");
    sample(&mut simulation, 1, Event::Hit, 40);
    assert_eq!(misses(&simulation), [1; 5]);
    simulation.begin(&present(40, 0));
    sample(&mut simulation, 1, Event::Expired, 0);
    assert_eq!(misses(&simulation), [2; 5]);
}

#[test]
fn deletions_flushes_and_touches_take_part() {
    let mut simulation = simulation();
    for event in [Event::Store, Event::Hit, Event::Delete, Event::Absent] {
        sample(&mut simulation, 1, event, 0);
    }
    assert_eq!(misses(&simulation), [1; 5]);
    sample(&mut simulation, 2, Event::Store, 15);
    sample(&mut simulation, 2, Event::Touch, 100);
    simulation.begin(&present(50, 0));
    sample(&mut simulation, 2, Event::Hit, 100);
    assert_eq!(misses(&simulation), [1; 5]);
    simulation.begin(&present(50, 1));
    sample(&mut simulation, 2, Event::Absent, 0);
    assert_eq!(misses(&simulation), [2; 5]);
    // An entry is kept only by the sizes in which it fits.
    simulation.apply(&Sample::new(9, Event::Store).entry(12_000, 0), b"");
    simulation.apply(&Sample::new(9, Event::Hit).entry(12_000, 0), b"");
    assert_eq!(misses(&simulation), [3, 3, 2, 2, 2]);
}

#[test]
fn expired_entries_leave_their_memory() {
    let mut simulation = simulation();
    (0..60).for_each(|n| sample(&mut simulation, n, Event::Store, 20));
    let used = simulation.curve().namespaces.len();
    assert_eq!(used, 0, "nothing was asked for");
    simulation.begin(&present(20, 0));
    simulation.end(None, 0);
    // All entries have expired, so these fit as if the cache had been empty.
    (100..104).for_each(|n| sample(&mut simulation, n, Event::Store, 0));
    (100..104).for_each(|n| sample(&mut simulation, n, Event::Hit, 0));
    assert_eq!(misses(&simulation), [0; 5]);
    sample(&mut simulation, 5, Event::Absent, 0);
    assert_eq!(misses(&simulation), [1; 5]);
}

#[test]
fn the_threshold_falls_with_the_number_of_entries_and_misses_stay_weighted() {
    let mut simulation = Simulation::new("balanced", 1 << 30, Sampling::Share(1.0)).unwrap();
    let mut random = SmallRng::seed_from_u64(2);
    let names: Vec<u64> = (0..200_000).map(|_| random.random()).collect();
    for part in names.chunks(1000) {
        simulation.begin(&present(10, 0));
        for hash in part {
            sample(&mut simulation, *hash, Event::Absent, 0);
            sample(&mut simulation, *hash, Event::Store, 0);
        }
        simulation.end(None, 0);
    }
    let curve = simulation.curve();
    assert!((0.05..0.1).contains(&curve.sampled_share), "{curve:?}");
    let requests = curve.requests as f64;
    assert!((190_000.0..210_000.0).contains(&requests), "{requests} of 200000");
    assert!((simulation.threshold as f64 / u64::MAX as f64 - curve.sampled_share).abs() < 1e-9);
    assert!(simulation.bytes() < 5 << 20, "{}", simulation.bytes());
}

#[test]
fn drops_in_a_row_lower_the_threshold_and_too_few_entries_raise_it() {
    let mut simulation = Simulation::new("lru", 4 << 20, Sampling::Share(1.0)).unwrap();
    (0..3000).for_each(|n| sample(&mut simulation, n, Event::Store, 0));
    for drain in 1..=3 {
        let before = simulation.threshold;
        simulation.begin(&present(10, 0));
        assert_eq!(simulation.end(None, drain) < before, drain == 3);
    }
    // Larger entries: few of them fill the cache, so more names are sampled, starting empty.
    for n in 0..1000 {
        simulation.apply(&Sample::new(n, Event::Store).entry(64 << 10, 0), b"");
    }
    let before = simulation.threshold;
    assert!(simulation.end(None, 3) > before);
    assert!(!simulation.curve().is_warm);
    for n in 0..1000 {
        simulation.apply(&Sample::new(n, Event::Absent), b"");
        simulation.apply(&Sample::new(n, Event::Store).entry(64 << 10, 0), b"");
    }
    assert_eq!(simulation.curve().requests, 0);
    simulation.end(None, 3);
    assert!(simulation.curve().is_warm);
}

#[test]
fn windows_end_and_rare_namespaces_give_way() {
    let mut simulation = simulation();
    let read = |simulation: &mut Simulation, namespace: &[u8]| {
        simulation.apply(&Sample::new(1, Event::Absent), namespace);
    };
    let totals = |requests| Some(Totals { requests, misses: requests, ..Totals::default() });
    (0..2000).for_each(|_| read(&mut simulation, b"often"));
    read(&mut simulation, b"once");
    simulation.end(totals(2001), 0);
    assert_eq!(simulation.curve().namespaces.len(), 2);
    for (now, requests, total) in [(650, 2002, 2002), (1300, 1, 2003)] {
        simulation.begin(&present(now, 0));
        read(&mut simulation, b"often");
        simulation.end(totals(total), 0);
        let curve = simulation.curve();
        assert_eq!(curve.requests, requests, "{now}");
        assert!(curve.points.iter().all(|point| point.miss_ratio == 1.0));
    }
    assert_eq!(simulation.curve().namespaces[0].namespace.as_deref(), Some("often"));
}

#[test]
fn adaptive_sampling_follows_the_pace_of_requests() {
    let mut simulation = Simulation::new("lru", 64 << 20, Sampling::Adaptive).unwrap();
    let share = |simulation: &Simulation| simulation.curve().sampled_share;
    assert!((share(&simulation) * 256.0 - 1.0).abs() < 1e-6);
    let step = |simulation: &mut Simulation, now: u32, samples: u64| {
        simulation.begin(&present(now, 0));
        (0..samples).for_each(|n| sample(simulation, n % 1000, Event::Store, 0));
        simulation.end(None, 0);
    };
    // Few requests: four times as many names every ten seconds, until all are sampled.
    for (now, expected) in [(10, 64.0), (15, 64.0), (20, 16.0), (30, 4.0), (40, 1.0), (50, 1.0)] {
        step(&mut simulation, now, 100);
        assert!((share(&simulation) * expected - 1.0).abs() < 1e-6, "{now}: {}", share(&simulation));
    }
    // Many requests: half as many names.
    step(&mut simulation, 60, 50_000);
    assert!((share(&simulation) * 2.0 - 1.0).abs() < 1e-6, "{}", share(&simulation));
    step(&mut simulation, 70, 20_000);
    assert!((share(&simulation) * 2.0 - 1.0).abs() < 1e-6, "in between it stays");
}

#[test]
fn requests_count_again_once_what_the_cache_has_is_known() {
    let mut simulation = Simulation::new("lru", 64 << 20, Sampling::Adaptive).unwrap();
    simulation.begin(&Present { entries: 10, ..present(10, 0) });
    simulation.end(None, 0);
    assert!(!simulation.curve().is_warm, "it samples more names, and begins anew");
    for n in 0..10 {
        assert!(!simulation.curve().is_warm);
        // The difference is the number of names that one name represents.
        (n < 3).then(|| sample(&mut simulation, n, Event::Hit, 0));
        simulation.end(None, 0);
        if simulation.curve().is_warm {
            return;
        }
    }
    panic!("it is never warm: {:?}", simulation.curve());
}
