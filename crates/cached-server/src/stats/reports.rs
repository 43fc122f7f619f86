//! What the server reports of its items and requests beyond counters, as plain values: for the admin listener,
//! whose documents they are, and for programs that embed the server.

use crate::objects::ObjectStatistics;
use crate::shared::Shared;
use crate::telemetry::insight::hot::{HotPrefix, HotReport};
use crate::telemetry::insight::slow::SlowReport;
use blocker::metrics::{Collect, Families};
use cached_admin::insight::documents::{collect_curves, curves_of};
use cached_admin::insight::objects::{collect_misses, hot_document};
use cached_core::insight::{ItemShape, MissesByReason};
use serde::Serialize;
use std::sync::Arc;
use std::time::Instant;

pub use cached_admin::insight::documents::{Curve, HotDocument, Misses};

/// Items that a report of their shape looks at: some milliseconds' work.
const ITEMS_LOOKED_AT: u64 = 20_000;

/// A handle on the reports of one server. Cheap to clone.
#[derive(Clone)]
pub struct Reports {
    shared: Arc<Shared>,
}

/// Predicted miss ratios, and the shape of the items: the document `/mrc.json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MissRatioReport {
    /// A curve for all items, one for all objects, and one for each namespace of either.
    pub curves: Vec<Curve>,
    /// Sizes, idle times, ages and lifetimes of a sample of the items.
    pub item_shape: ItemShape,
}

impl Reports {
    pub(crate) fn new(shared: Arc<Shared>) -> Reports {
        Reports { shared }
    }

    /// Returns the miss ratios that other amounts of memory would give, for items, for objects, and for each
    /// namespace.
    pub fn miss_ratio_curve(&self) -> Vec<Curve> {
        self.shared.take_samples();
        let objects = self.shared.objects.get().and_then(|objects| objects.miss_ratio_curve());
        let all = [("items", self.shared.kv.miss_ratio_curve()), ("objects", objects)];
        let all = all.into_iter().filter_map(|(scope, curve)| Some((scope, curve?)));
        all.flat_map(|(scope, curve)| curves_of(scope, curve)).collect()
    }

    /// Returns why keys of items were missed; `None` if requests are not sampled.
    pub fn misses_by_reason(&self) -> Option<MissesByReason> {
        self.shared.misses_by_reason()
    }

    /// Returns sizes, idle times, ages and lifetimes of a sample of the items.
    pub fn item_shape(&self) -> ItemShape {
        self.shared.kv.item_shape(ITEMS_LOOKED_AT)
    }

    /// Returns the document `/mrc.json`.
    pub fn miss_ratios(&self) -> MissRatioReport {
        MissRatioReport { curves: self.miss_ratio_curve(), item_shape: self.item_shape() }
    }

    /// Returns the `count` hottest keys and prefixes of the last minutes. Without `whole_keys` only the first
    /// letters of keys are shown.
    pub fn hot_keys(&self, count: usize, whole_keys: bool) -> HotReport {
        let mut report = hot_report(&self.shared, count);
        if !whole_keys {
            report.shorten_keys();
        }
        report
    }

    /// Returns the `count` hottest prefixes of the last minutes.
    pub fn hot_prefixes(&self, count: usize) -> Vec<HotPrefix> {
        hot_report(&self.shared, count).prefixes
    }

    /// Returns the document `/hot.json`, see [`hot_keys`](Reports::hot_keys).
    pub fn hot(&self, count: usize, whole_keys: bool) -> HotDocument {
        let objects = self.shared.objects.get().and_then(ObjectStatistics::cache);
        let mut objects = objects.and_then(|cache| hot_document(&cache, count));
        if let Some(objects) = objects.as_mut().filter(|_| !whole_keys) {
            objects.hot.shorten_keys();
        }
        HotDocument {
            objects: objects.map(Box::new),
            ..HotDocument::new(self.hot_keys(count, whole_keys), self.misses_by_reason())
        }
    }

    /// Returns the last slow requests, the document `/slow.json`.
    pub fn slow_requests(&self) -> SlowReport {
        self.shared.slow_requests()
    }
}

impl std::fmt::Debug for Reports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reports")
    }
}

/// The hottest keys and prefixes, these with what is known of them as namespaces.
pub(crate) fn hot_report(shared: &Shared, count: usize) -> HotReport {
    shared.take_samples();
    let mut report = shared.insight.hot.report(count, Instant::now());
    report.add_namespaces(shared.kv.miss_ratio_curve());
    report
}

/// Predictions, reasons of misses and the number of slow requests; never keys.
impl Collect for Reports {
    fn collect(&self, into: &mut Families) {
        collect_curves(&self.miss_ratio_curve(), into);
        if let Some(misses) = self.misses_by_reason() {
            let help = "Misses of items since the start by their reason, in part estimated from a sample.";
            Misses::from(misses).collect("cached_misses_by_reason", help, into);
        }
        if let Some(cache) = self.shared.objects.get().and_then(ObjectStatistics::cache) {
            collect_misses(&cache, into);
        }
        let help = "Requests that took longer than insight.slow_request_ms.";
        into.counter("cached_slow_requests_total", help, self.slow_requests().count);
    }
}
