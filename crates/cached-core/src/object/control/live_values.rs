//! The values of a cache's configuration that can change while it runs.

use std::collections::HashMap;
use std::time::Duration;

use blocker::{Namespace, NamespaceKey};

use super::dirty_room::DirtyLimits;
use super::namespace_table::{NO_OWN, NamespaceRecord};
use super::namespaces::Namespaces;
use crate::object::config::{NamespaceConfig, ObjectCacheConfig};
use crate::object::namespace_numbers::OTHERS;
use crate::object::store::{Number, StoreTerms};
use crate::sync::{AtomicU64, Ordering};

/// The values that are in force, but for those that have a place of their own: the dirty limit, the write
/// modes, the gate.
pub(crate) struct LiveValues {
    dirty_age_nanos: AtomicU64,
    flush_requests_max: AtomicU64,
    flush_gap_bytes_max: AtomicU64,
    retry_delay_nanos_min: AtomicU64,
    retry_delay_nanos_max: AtomicU64,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl LiveValues {
    pub(crate) fn new(config: &ObjectCacheConfig, namespaces: &Namespaces) -> Self {
        let values = Self {
            dirty_age_nanos: AtomicU64::new(nanos(config.dirty_age_max)),
            flush_requests_max: AtomicU64::new(config.flush_requests_max as u64),
            flush_gap_bytes_max: AtomicU64::new(config.flush_gap_bytes_max),
            retry_delay_nanos_min: AtomicU64::new(nanos(config.retry_delay_min)),
            retry_delay_nanos_max: AtomicU64::new(nanos(config.retry_delay_max)),
        };
        set_own_ages(config, namespaces);
        values
    }

    pub(crate) fn set(&self, config: &ObjectCacheConfig, namespaces: &Namespaces) {
        set_own_ages(config, namespaces);
        self.dirty_age_nanos.store(nanos(config.dirty_age_max), Ordering::SeqCst);
        self.flush_requests_max.store(config.flush_requests_max as u64, Ordering::SeqCst);
        self.flush_gap_bytes_max.store(config.flush_gap_bytes_max, Ordering::SeqCst);
        self.retry_delay_nanos_min.store(nanos(config.retry_delay_min), Ordering::SeqCst);
        self.retry_delay_nanos_max.store(nanos(config.retry_delay_max), Ordering::SeqCst);
    }

    /// Returns how long a change to a namespace may wait until its flush begins.
    pub(crate) fn dirty_age_max(&self, namespace: &NamespaceRecord) -> Duration {
        let own = namespace.dirty_age_nanos.load(Ordering::SeqCst);
        let nanos = if own == NO_OWN { self.dirty_age_nanos.load(Ordering::SeqCst) } else { own };
        Duration::from_nanos(nanos)
    }

    /// Returns the largest number of requests of flushes that are under way.
    pub(crate) fn flush_requests_max(&self) -> usize {
        usize::try_from(self.flush_requests_max.load(Ordering::SeqCst)).unwrap_or(usize::MAX)
    }

    /// Returns how much clean data a flush may send between two dirty runs, in bytes.
    pub(crate) fn flush_gap_bytes_max(&self) -> u64 {
        self.flush_gap_bytes_max.load(Ordering::SeqCst)
    }

    /// Returns the shortest and the longest time after which a failed flush is tried again.
    pub(crate) fn retry_delays(&self) -> (Duration, Duration) {
        let time = |nanos: &AtomicU64| Duration::from_nanos(nanos.load(Ordering::SeqCst));
        (time(&self.retry_delay_nanos_min), time(&self.retry_delay_nanos_max))
    }
}

fn set_own_ages(config: &ObjectCacheConfig, namespaces: &Namespaces) {
    let own = |each: &NamespaceConfig| {
        let age = Duration::from_millis(each.own(NamespaceKey::DirtyAgeMsMax)?);
        Some((namespaces.of(&each.namespace), nanos(age).min(NO_OWN - 1)))
    };
    let ages: HashMap<u16, u64> = config.namespaces.iter().filter_map(own).collect();
    for record in namespaces.records().filter(|record| record.number != OTHERS) {
        record.dirty_age_nanos.store(ages.get(&record.number).copied().unwrap_or(NO_OWN), Ordering::SeqCst);
    }
}

/// Returns how many buckets may be dirty, of `count` that there are.
fn dirty_buckets_max(config: &ObjectCacheConfig, count: u32) -> u64 {
    (config.dirty_bytes_max / blocker::BUCKET_BYTES).min(u64::from(count) / 4 * 3).max(1)
}

/// Returns the limits of dirty data, of `count` buckets that there are.
pub(crate) fn dirty_limits(config: &ObjectCacheConfig, count: u32, namespaces: &Namespaces) -> DirtyLimits {
    let own = |each: &NamespaceConfig| {
        let part = each.own(NamespaceKey::DirtyBytesMax)? / blocker::BUCKET_BYTES;
        Some((namespaces.of(&each.namespace), part)).filter(|(number, _)| *number != OTHERS)
    };
    let own = config.namespaces.iter().filter_map(own).collect();
    DirtyLimits { total: dirty_buckets_max(config, count), own }
}

/// Returns what the namespaces may have of the store that have terms of their own.
pub(crate) fn store_terms(config: &ObjectCacheConfig, numbers: &Namespaces) -> Vec<(Number, StoreTerms)> {
    let terms = config.namespaces.iter().map(|each| (each, each.store_terms()));
    let own = terms.filter(|(_, terms)| *terms != StoreTerms::default());
    own.map(|(each, terms)| (Number::from(numbers.of(&each.namespace)), terms)).collect()
}

/// Returns the quotas of the namespaces that have one.
pub(crate) fn quotas(config: &ObjectCacheConfig, numbers: &Namespaces) -> Vec<(u16, Namespace, u64)> {
    let own = |each: &NamespaceConfig| {
        Some((numbers.of(&each.namespace), each.namespace.clone(), each.own(NamespaceKey::QuotaBytesMax)?))
    };
    config.namespaces.iter().filter_map(own).collect()
}

/// Takes over which namespaces are limited at the store.
pub(crate) fn set_limited(namespaces: &Namespaces, terms: &[(Number, StoreTerms)]) {
    let limited: HashMap<Number, bool> =
        terms.iter().map(|(number, terms)| (*number, terms.is_limited())).collect();
    for record in namespaces.records() {
        let is_limited = limited.get(&Number::from(record.number)).copied().unwrap_or(false);
        record.limited_flushes.set_limited(is_limited);
    }
}
