//! The parts of the admin listener for an object cache, a store and a synapse server: their metrics
//! under the program's prefix, their parts of the document `/status.json`, and their readiness
//! conditions.

mod objects;

pub use objects::ObjectsSource;

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use blocker::{Blocker, Clock, InfoRequest, Measured, Measurements, ObjectId, SystemClock};
use cached_config::Store as Opened;
use cached_core::object::{JournalState, ObjectCache};
use cached_metrics::{Collect, Families, Number, Registration, Value};
use synapse::Server;
use tokio::time::MissedTickBehavior;

use crate::listener::AdminServer;
use crate::status::Source;
use crate::status::document::{
    Distribution, Document, JournalCommits, JournalPart, ListenerPart, OperationPart, Store, Synapse,
};

/// Keeps a component shown. Dropping this value removes the component from metrics, status and
/// health, and releases it; this must happen before the component is closed.
#[must_use = "dropping this removes the component from what is shown"]
#[derive(Debug)]
pub struct Shown {
    _component: Arc<dyn Any + Send + Sync>,
    _registration: Registration,
}

impl Shown {
    /// Shows the metrics of `component`, with the program's prefix, and its part of the status,
    /// until the result is dropped.
    pub fn new<C: Collect + Source + 'static>(admin: &AdminServer, component: &Arc<C>) -> Shown {
        let while_shown = Arc::downgrade(component);
        admin.status.add(WhileShown(Weak::clone(&while_shown)));
        let collector = Arc::new(Prefixed(WhileShown(while_shown)));
        let registration = admin.registry().register(collector, std::iter::empty::<(&str, &str)>());
        Shown { _component: Arc::clone(component) as _, _registration: registration }
    }
}

/// A component that is shown only while it exists.
struct WhileShown<C>(Weak<C>);

impl<C: Collect> Collect for WhileShown<C> {
    fn collect(&self, into: &mut Families) {
        if let Some(component) = self.0.upgrade() {
            component.collect(into);
        }
    }
}

impl<C: Source> Source for WhileShown<C> {
    fn fill(&self, document: &mut Document) {
        if let Some(component) = self.0.upgrade() {
            component.fill(document);
        }
    }

    fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// The time without a reply from the store after which the program is not ready.
pub const AWAY_AFTER: Duration = Duration::from_secs(5);

/// The time without a reply after which the store is sent a request, and the maximum time for its
/// reply.
const ASK_AFTER: Duration = Duration::from_secs(5);

/// Returns the store under a layer that measures it, and the measurements; `kind` is the label of
/// the metrics.
#[must_use]
pub fn measured(store: Opened, kind: &'static str) -> (Opened, Option<Arc<Measurements>>) {
    let mut measurements = None;
    let store = store.with_layer(|below| {
        let layer = Measured::new(below, kind, Arc::new(SystemClock));
        measurements = Some(layer.measurements());
        Arc::new(layer)
    });
    (store, measurements)
}

/// The part of the admin listener for a store.
#[derive(Debug)]
pub struct StoreSource {
    name: String,
    measurements: Arc<Measurements>,
    /// The store's own metrics.
    metrics: Weak<dyn Collect>,
}

impl StoreSource {
    /// Shows the store called `name`, which `measurements` measures and which itself provides
    /// `metrics`: all of these metrics, and its part of the document. While the store does not
    /// reply, the program is not ready.
    pub fn show(
        admin: &AdminServer,
        name: String,
        measurements: &Arc<Measurements>,
        metrics: Weak<dyn Collect>,
    ) -> Shown {
        let source = Arc::new(StoreSource { name, measurements: Arc::clone(measurements), metrics });
        admin.health().check_readiness_of(&source, |source| {
            let silence = source.measurements.silence();
            (silence >= AWAY_AFTER).then(|| format!("the store has not answered for {} s", silence.as_secs()))
        });
        Shown::new(admin, &source)
    }

    /// Sends a small request to the store whenever it has not replied for a while, so that its
    /// absence is noticed even if no client needs the store. Ends with the store.
    pub async fn watch(store: Weak<dyn Blocker>, measurements: Arc<Measurements>) {
        // The object need not exist, because its absence is a valid reply.
        let Ok(object) = "cached/readiness".parse::<ObjectId>() else { return };
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if measurements.since_answer() < ASK_AFTER {
                continue;
            }
            let mut request = InfoRequest::new(object.clone());
            request.call.deadline = Some(SystemClock.now() + ASK_AFTER);
            let reply = match store.upgrade() {
                Some(store) => store.info(request),
                None => return,
            };
            // The measurements record the outcome. The request is abandoned here if the store
            // exceeds the contract's deadline.
            let _ = tokio::time::timeout(2 * ASK_AFTER, async { reply.await.is_ok() }).await;
        }
    }
}

impl Collect for StoreSource {
    fn collect(&self, into: &mut Families) {
        self.measurements.collect(into);
        if let Some(store) = self.metrics.upgrade() {
            store.collect(into);
        }
    }
}

impl Source for StoreSource {
    fn fill(&self, document: &mut Document) {
        let silence = self.measurements.silence();
        let operations = self.measurements.operations();
        let shown = operations.into_iter().filter(|operation| operation.latency.count() > 0);
        document.store = Some(Store {
            backend: self.name.clone(),
            kind: self.measurements.backend(),
            state: if silence >= AWAY_AFTER { "away" } else { "serving" },
            away_ms: u64::try_from(silence.as_millis()).unwrap_or(u64::MAX),
            operations: shown
                .map(|operation| OperationPart {
                    operation: operation.name,
                    errors: operation.failures,
                    distribution: Distribution(operation.latency),
                })
                .collect(),
        });
    }
}

/// The part of the admin listener for a synapse server.
pub struct SynapseSource {
    server: Arc<Server>,
    addresses: Vec<String>,
}

impl SynapseSource {
    /// Shows a synapse server that listens on these addresses: its metrics and its part of the
    /// document.
    pub fn show(admin: &AdminServer, server: &Arc<Server>, addresses: Vec<String>) -> Shown {
        Shown::new(admin, &Arc::new(SynapseSource { server: Arc::clone(server), addresses }))
    }
}

impl fmt::Debug for SynapseSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SynapseSource").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl Collect for SynapseSource {
    fn collect(&self, into: &mut Families) {
        self.server.collect(into);
    }
}

impl Source for SynapseSource {
    fn fill(&self, document: &mut Document) {
        let number = |name: &str| self.server.metric(name);
        let connections = number("synapse_connections_open");
        let refused = number("synapse_connections_refused_total");
        document.listeners.push(ListenerPart {
            listener: self.addresses.join(", "),
            protocol: "synapse",
            connections,
            accepted: number("synapse_connections_total"),
            refused,
        });
        document.synapse = Some(Synapse {
            connections,
            sessions: number("synapse_sessions"),
            requests: number("synapse_requests_total"),
            refused,
            broken: number("synapse_connections_broken_total"),
            silent: number("synapse_connections_silent_total"),
            replays: number("synapse_replays_total"),
        });
    }
}

/// Shows a server of HTTP requests for objects.
#[derive(Debug)]
pub struct ObjectHttpSource(Arc<object_http::Server>);

impl ObjectHttpSource {
    /// Shows the metrics of a server and its part of the document.
    pub fn show(admin: &AdminServer, server: &Arc<object_http::Server>) -> Shown {
        Shown::new(admin, &Arc::new(ObjectHttpSource(Arc::clone(server))))
    }
}

impl Collect for ObjectHttpSource {
    fn collect(&self, into: &mut Families) {
        self.0.collect(into);
    }
}

impl Source for ObjectHttpSource {
    fn fill(&self, document: &mut Document) {
        document.listeners.push(ListenerPart {
            listener: self.0.urls().join(", "),
            protocol: "http",
            connections: self.0.metric("object_http_connections_open"),
            accepted: self.0.metric("object_http_connections_total"),
            refused: self.0.metric("object_http_connections_refused_total"),
        });
    }
}

/// Returns the part of the document about a cache's journal; `None` if there is no journal.
pub(super) fn journal_part(cache: &ObjectCache) -> Option<JournalPart> {
    let health = cache.journal_health()?;
    let families = cache.families();
    let number = |name: &str| families.number(name).map_or(0, Number::to_u64);
    let millis = |name: &str| gauge(&families, name).map_or(0, |seconds| (seconds * 1000.0) as u64);
    Some(JournalPart {
        fill_bytes: number("cached_journal_fill_bytes"),
        capacity_bytes: number("cached_journal_capacity_bytes"),
        oldest_age_ms: millis("cached_journal_oldest_seconds"),
        failed: health.state != JournalState::Ok,
        records: number("cached_journal_records_total"),
        commit: commits(&families).unwrap_or_default(),
    })
}

fn gauge(families: &Families, name: &str) -> Option<f64> {
    match families.get(name)?.samples.first()?.value {
        Value::Gauge(value) => Some(value),
        _ => None,
    }
}

fn commits(families: &Families) -> Option<JournalCommits> {
    let sample = families.get("cached_journal_commit_seconds")?.samples.first()?;
    let Value::Histogram { buckets, sum, count } = &sample.value else { return None };
    let micros = |quantile: f64| quantile_secs(buckets, *count, quantile).map(|secs| (secs * 1e6).round());
    Some(JournalCommits {
        count: *count,
        sum_us: (sum * 1e6) as u64,
        p50_us: micros(0.5),
        p99_us: micros(0.99),
        p999_us: micros(0.999),
    })
}

/// Returns a quantile: the upper bound of the bucket that contains it, or the last bound.
fn quantile_secs(buckets: &[(f64, u64)], count: u64, quantile: f64) -> Option<f64> {
    let rank = (count as f64 * quantile).ceil().max(1.0) as u64;
    let found = buckets.iter().find(|(_, below)| *below >= rank).or(buckets.last());
    found.filter(|_| count > 0).map(|(bound, _)| *bound)
}

/// A component whose metrics get the program's prefix: `synapse_requests_total` becomes
/// `cached_synapse_requests_total`. The object cache's own metrics, `cache_…`, become
/// `cached_objects_…`, and those of the memory backend, `memory_…`, become
/// `cached_memory_backend_…`, because the program also uses memory for other purposes.
///
/// Names that begin with `cached_`, `memcached_` or `process_` stay unchanged.
#[derive(Debug)]
pub struct Prefixed<C>(pub C);

impl<C: Collect> Collect for Prefixed<C> {
    fn collect(&self, into: &mut Families) {
        for mut family in self.0.families() {
            let name = &*family.name;
            if !["cached_", "memcached_", "process_"].iter().any(|prefix| name.starts_with(prefix)) {
                let renamed = match name.split_once('_') {
                    Some(("cache", rest)) => format!("cached_objects_{rest}"),
                    Some(("memory", rest)) => format!("cached_memory_backend_{rest}"),
                    _ => format!("cached_{name}"),
                };
                family.name = renamed.into();
            }
            into.add(family);
        }
    }
}

#[cfg(test)]
mod journal_tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_bound_that_so_many_are_below() {
        let buckets = [(0.001, 0), (0.002, 50), (0.004, 98), (0.008, 99)];
        assert_eq!(quantile_secs(&buckets, 100, 0.5), Some(0.002));
        assert_eq!(quantile_secs(&buckets, 100, 0.51), Some(0.004));
        assert_eq!(quantile_secs(&buckets, 100, 0.99), Some(0.008));
        assert_eq!(quantile_secs(&buckets, 100, 1.0), Some(0.008), "above all bounds");
        assert_eq!(quantile_secs(&buckets, 0, 0.5), None);
    }
}

#[cfg(test)]
mod prefixed_tests {
    use super::*;

    struct Names(&'static [&'static str]);

    impl Collect for Names {
        fn collect(&self, into: &mut Families) {
            self.0.iter().for_each(|name| into.counter(*name, "Help.", 1));
        }
    }

    #[test]
    fn every_name_begins_with_the_program() {
        let names = [
            "cache_flushes_total",
            "memory_objects",
            "synapse_x_total",
            "cached_y",
            "memcached_up",
            "process_z",
        ];
        let families = Prefixed(Names(Box::leak(Box::new(names)))).families();
        let renamed: Vec<&str> = families.as_slice().iter().map(|family| &*family.name).collect();
        let expected = [
            "cached_objects_flushes_total",
            "cached_memory_backend_objects",
            "cached_synapse_x_total",
            "cached_y",
            "memcached_up",
            "process_z",
        ];
        assert_eq!(renamed, expected);
    }
}
