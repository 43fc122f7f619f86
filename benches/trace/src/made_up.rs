//! Synthetic loads, each with a single property, whereas real traces combine several: a policy that
//! gains from one property should not lose by another.
//!
//! The loads are the same in every run.

use std::collections::{HashMap, VecDeque};

use cached_benches::zipf::Zipf;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::decode::Trace;

const REQUESTS: usize = 600_000;
const OBJECTS: u64 = 50_000;

/// Returns all synthetic loads.
pub(crate) fn all() -> Vec<Trace> {
    let mut loads = Vec::new();
    let mut add = |name: String, requests: Vec<u64>| loads.push(renumbered(name, &requests));
    for exponent in [0.7, 0.9, 1.1] {
        add(format!("zipf-{exponent}"), popularity(exponent, |rank, _| rank));
    }
    for exponent in [0.3, 0.6, 1.0] {
        add(format!("recency-{exponent}"), recency(exponent));
    }
    // At a fixed interval the most popular object is replaced by a newer one.
    for pace in [20, 100, 500] {
        add(format!("drift-{pace}"), popularity(0.9, |rank, at| rank + at / pace));
    }
    // The newest objects are the most popular.
    for pace in [5, 20] {
        add(format!("newest-{pace}"), popularity(0.9, |rank, at| at / pace + OBJECTS - rank % (OBJECTS / 5)));
    }
    for distance in [2_000, 8_000] {
        add(format!("twice-{distance}"), twice(distance));
    }
    let phase = REQUESTS as u64 / 6;
    add("phases".into(), popularity(0.8, |rank, at| at / phase * OBJECTS + rank));
    add(
        "uniform".into(),
        popularity(0.9, |rank, at| (rank ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15)) % OBJECTS),
    );
    let mut scan = OBJECTS;
    add(
        "scans".into(),
        popularity(0.9, |rank, at| {
            let is_scan = at % 30_000 >= 20_000;
            scan += u64::from(is_scan);
            if is_scan { scan } else { rank }
        }),
    );
    add("loop".into(), popularity(0.8, |rank, at| if at % 2 == 0 { rank } else { OBJECTS + at / 2 % 8_000 }));
    add("bursts".into(), bursts());
    add("sessions".into(), sessions());
    loads
}

fn random(seed: u64) -> SmallRng {
    SmallRng::seed_from_u64(seed)
}

/// Ranks of a Zipf distribution, converted to objects by `name`, which gets the request's number.
fn popularity(exponent: f64, mut name: impl FnMut(u64, u64) -> u64) -> Vec<u64> {
    let (zipf, mut random) = (Zipf::new(OBJECTS, exponent), random(1));
    (0..REQUESTS as u64).map(|at| name(zipf.sample(&mut random), at)).collect()
}

/// Returns requests of which four in five repeat an object that was requested a number of requests
/// earlier. Small numbers are more likely (Pareto).
fn recency(exponent: f64) -> Vec<u64> {
    let mut random = random(2);
    let mut requests: Vec<u64> = Vec::with_capacity(REQUESTS);
    let mut objects = 0;
    while requests.len() < REQUESTS {
        let ago = random.random::<f64>().powf(-1.0 / exponent) as usize;
        match requests.len().checked_sub(ago) {
            Some(at) if random.random_bool(0.8) => requests.push(requests[at]),
            _ => {
                requests.push(objects);
                objects += 1;
            }
        }
    }
    requests
}

/// Returns two requests for every object, with `distance` other requests in between.
fn twice(distance: usize) -> Vec<u64> {
    let mut waiting = VecDeque::new();
    (0..)
        .flat_map(|object| {
            waiting.push_back(object);
            let second = if waiting.len() > distance { waiting.pop_front() } else { None };
            std::iter::once(object).chain(second)
        })
        .take(REQUESTS)
        .collect()
}

/// Returns requests in which each object is requested again immediately with a probability of one
/// half.
fn bursts() -> Vec<u64> {
    let (zipf, mut random) = (Zipf::new(OBJECTS, 0.9), random(3));
    let mut object = 0;
    (0..REQUESTS)
        .map(|_| {
            if random.random_bool(0.5) {
                object = zipf.sample(&mut random);
            }
            object
        })
        .collect()
}

/// Returns requests for three thousand objects at a time, each of them up to twenty times, in any
/// order.
fn sessions() -> Vec<u64> {
    let mut random = random(4);
    let (mut open, mut objects): (Vec<(u64, u32)>, u64) = (Vec::new(), 0);
    (0..REQUESTS)
        .map(|_| {
            if open.len() < 3_000 || random.random_bool(0.05) {
                open.push((objects, random.random_range(1..=20)));
                objects += 1;
            }
            let at = random.random_range(0..open.len());
            let (object, left) = &mut open[at];
            let object = *object;
            *left -= 1;
            if *left == 0 {
                open.swap_remove(at);
            }
            object
        })
        .collect()
}

fn renumbered(name: String, requests: &[u64]) -> Trace {
    let mut numbers = HashMap::new();
    let requests = requests
        .iter()
        .map(|object| {
            let next = numbers.len() as u32;
            *numbers.entry(*object).or_insert(next)
        })
        .collect();
    Trace { name, requests, object_bytes: None, objects: numbers.len() }
}

#[cfg(test)]
mod tests {
    #[test]
    fn loads_are_what_they_are_called() {
        let loads = super::all();
        for load in &loads {
            assert_eq!(load.requests.len(), super::REQUESTS, "{}", load.name);
            assert!(load.requests.iter().all(|object| (*object as usize) < load.objects), "{}", load.name);
        }
        let load = |name: &str| loads.iter().find(|load| load.name == name).unwrap();
        let (early, late) = load("phases").requests.split_at(super::REQUESTS / 2);
        let early: std::collections::HashSet<_> = early.iter().collect();
        assert!(late.iter().all(|object| !early.contains(object)), "phases have nothing in common");
        assert!(load("twice-2000").objects.abs_diff(super::REQUESTS / 2) < 2_001);
        assert!(load("uniform").objects > 49_000);
    }
}
