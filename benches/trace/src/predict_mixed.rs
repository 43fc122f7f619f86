//! Compares predictions for namespaces, and for objects, with real runs: several traces together in
//! one cache, each in its own namespace.

use std::sync::Arc;

use anyhow::{Context, Result};
use blocker::executor::block_on;
use blocker::{Blocker, Memory, ObjectId, ReadReply, ReadRequest, Reply, Version};
use bytes::Bytes;
use cached_core::insight::{FACTORS, MissRatioCurve, Sampling, Totals};
use cached_core::kv::Kv;
use cached_core::object::{ObjectCache, ObjectCacheConfig};

use crate::decode::Trace;
use crate::engine::Scale;
use crate::predict::{DRAIN_REQUESTS, bar};
use crate::report::size_name;

/// Buckets of an object.
const OBJECT_BUCKETS: u32 = 64;
const BUCKET_BYTES: u64 = 4096;
const OBJECT_BYTES: usize = OBJECT_BUCKETS as usize * BUCKET_BYTES as usize;

/// The maximum acceptable error for a namespace at one and two times the memory: its requests are
/// known only from the sample.
const NAMESPACE_BAR: f64 = 0.02;

/// A request: the number of its namespace, and the requested number within it.
type Request = (usize, u32);

/// Returns the requests of several traces, each spread over the whole time.
fn interleave(traces: &[Trace]) -> Vec<Request> {
    let mut requests: Vec<(f64, Request)> = Vec::new();
    for (number, trace) in traces.iter().enumerate() {
        let length = trace.requests.len() as f64;
        requests.extend(
            trace.requests.iter().enumerate().map(|(at, object)| (at as f64 / length, (number, *object))),
        );
    }
    requests.sort_by(|a, b| a.0.total_cmp(&b.0));
    requests.into_iter().map(|(_, request)| request).collect()
}

/// A cache that counts the misses of each namespace.
trait Cache {
    /// Requests a number, and stores its value after a miss.
    fn ask(&mut self, request: Request) -> Result<()>;
    /// Simulates the samples of the first `requests` requests.
    fn take_samples(&self, requests: u64);
    fn curve(&self) -> Option<MissRatioCurve>;
    /// Returns the misses of each namespace.
    fn misses(&self) -> Vec<u64>;
}

/// Items with keys of the form `N:` and the number.
struct Items {
    kv: Kv,
    value: Vec<u8>,
    misses: Vec<u64>,
}

impl Cache for Items {
    fn ask(&mut self, (namespace, object): Request) -> Result<()> {
        let number = object.to_be_bytes();
        let key = [b'0' + namespace as u8, b':', number[0], number[1], number[2], number[3]];
        if self.kv.read(&key, self.kv.hash(&key), |_| ()).is_err() {
            self.misses[namespace] += 1;
            self.kv.set(&key, &self.value).context("storing")?;
        }
        Ok(())
    }

    fn take_samples(&self, requests: u64) {
        let misses = self.misses.iter().sum();
        self.kv.take_samples(Some(Totals { requests, misses, ..Totals::default() }));
    }

    fn curve(&self) -> Option<MissRatioCurve> {
        self.kv.miss_ratio_curve()
    }

    fn misses(&self) -> Vec<u64> {
        self.misses.clone()
    }
}

/// Objects of 64 buckets; a request reads one of them.
struct Objects {
    cache: ObjectCache,
    namespaces: usize,
}

impl Objects {
    fn new(policy: &str, buckets: u64, namespaces: usize, sampling: Sampling) -> Result<Objects> {
        let mut config = ObjectCacheConfig::default();
        config.memory_bytes_max = buckets * BUCKET_BYTES;
        config.dirty_bytes_max = config.memory_bytes_max / 4;
        config.objects_count_max = 1 << 17;
        config.eviction_policy = policy.into();
        config.hash_seed = Some(5);
        config.insight = sampling;
        let cache = ObjectCache::builder(Arc::new(Filled(Memory::default()))).config(config).start()?;
        Ok(Objects { cache, namespaces })
    }
}

impl Cache for Objects {
    fn ask(&mut self, (namespace, bucket): Request) -> Result<()> {
        let object: ObjectId = format!("{namespace}/{}", bucket / OBJECT_BUCKETS).parse()?;
        let offset = u64::from(bucket % OBJECT_BUCKETS) * BUCKET_BYTES;
        block_on(self.cache.read(ReadRequest::new(object, offset, BUCKET_BYTES)))?;
        Ok(())
    }

    fn take_samples(&self, _: u64) {
        self.cache.take_samples();
    }

    fn curve(&self) -> Option<MissRatioCurve> {
        self.cache.miss_ratio_curve()
    }

    fn misses(&self) -> Vec<u64> {
        let counters = self.cache.namespaces();
        let of = |number: usize| {
            let name = number.to_string();
            let is_it = |namespace: &blocker::Namespace| namespace.as_bytes() == name.as_bytes();
            let found = counters.iter().find(|one| one.namespace.as_ref().is_some_and(is_it));
            found.map_or(0, |one| one.read_misses)
        };
        (0..self.namespaces).map(of).collect()
    }
}

/// A store in which every object has content everywhere.
struct Filled(Memory);

impl Blocker for Filled {
    blocker::delegate!(|this| this.0, except read);

    fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
        static CONTENT: [u8; OBJECT_BYTES] = [7; OBJECT_BYTES];
        let data = Bytes::from_static(&CONTENT).slice(..request.len_bytes as usize);
        Reply::ok(ReadReply::new(data.into(), OBJECT_BYTES as u64, Version(1)))
    }
}

/// Prints predictions and real runs for each share of the working set and each policy; returns the
/// number of predictions with an unacceptable error.
pub(crate) fn compare(traces: &[Trace], sizes: &[f64], policies: &[&str], objects: bool) -> Result<usize> {
    let requests = interleave(traces);
    let all: usize = traces.iter().map(|trace| trace.objects).sum();
    let names: Vec<&str> = traces.iter().map(|trace| &*trace.name).collect();
    println!("\n{}: {} requests for {all} objects", names.join(" + "), requests.len());
    let mut wrong = 0;
    for size in sizes {
        let capacity = ((all as f64 * size) as u64).max(1);
        let scale = Scale::for_capacity(if objects { 1 } else { capacity })?;
        for policy in policies {
            let make = |factor: f64, sampling: Sampling| -> Result<Box<dyn Cache>> {
                if objects {
                    let buckets = (capacity as f64 * factor) as u64;
                    return Ok(Box::new(Objects::new(policy, buckets, traces.len(), sampling)?));
                }
                let kv = scale.store(policy, factor, sampling != Sampling::Off)?;
                Ok(Box::new(Items { kv, value: scale.value(), misses: vec![0; traces.len()] }))
            };
            let run = |cache: &mut dyn Cache| -> Result<Vec<u64>> {
                for (at, request) in (1..).zip(&requests) {
                    cache.ask(*request)?;
                    if at % DRAIN_REQUESTS == 0 {
                        cache.take_samples(at);
                    }
                }
                cache.take_samples(requests.len() as u64);
                Ok(cache.misses())
            };
            let mut sampled = make(1.0, Sampling::Share(1.0))?;
            let own = run(&mut *sampled)?;
            let curve = sampled.curve().context("there is no curve for this policy")?;
            let share = curve.sampled_share * 100.0;
            println!(
                "{} of the working set, {policy}: {capacity} objects, {share:.1} % of names sampled",
                size_name(*size)
            );
            println!("  memory   namespace           predicted  real     error");
            for (at, factor) in FACTORS.into_iter().enumerate() {
                let real = if factor == 1.0 {
                    own.clone()
                } else {
                    match make(factor, Sampling::Off) {
                        Ok(mut cache) => run(&mut *cache)?,
                        Err(_) => continue,
                    }
                };
                let mut print = |name: &str, predicted: f64, misses: u64, of: usize, bar: Option<f64>| {
                    let real = misses as f64 / of.max(1) as f64;
                    let error = predicted - real;
                    let is_wrong = bar.is_some_and(|bar| error.abs() > bar);
                    wrong += usize::from(is_wrong);
                    let mark = if is_wrong { "  beyond the bar" } else { "" };
                    println!("  x {factor:<6} {name:<18}  {predicted:<10.4} {real:<8.4} {error:+.4}{mark}");
                };
                print("all", curve.points[at].miss_ratio, real.iter().sum(), requests.len(), bar(factor));
                for (number, trace) in traces.iter().enumerate().filter(|_| traces.len() > 1) {
                    let name = number.to_string();
                    let share = curve.namespaces.iter().find(|one| one.namespace.as_ref() == Some(&name));
                    let share = share.context("a namespace for each trace")?;
                    let predicted = share.points[at].miss_ratio;
                    let bar = bar(factor).map(|_| NAMESPACE_BAR);
                    print(&trace.name, predicted, real[number], trace.requests.len(), bar);
                }
            }
        }
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictions_for_namespaces_and_objects_are_within_the_bars() {
        let of = |name: &str| crate::made_up::all().into_iter().find(|load| load.name == name).unwrap();
        let loads = [of("zipf-0.9"), of("zipf-0.7")];
        for objects in [false, true] {
            assert_eq!(compare(&loads, &[0.2], &["balanced"], objects).unwrap(), 0, "objects: {objects}");
        }
    }
}
