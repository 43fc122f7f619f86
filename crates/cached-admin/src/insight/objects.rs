//! Reports about the requests of an object cache, and the thread that computes them from samples.

use std::io;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use blocker::executor::block_on_for;
use cached_core::insight::MissRatioCurve;
use cached_core::object::ObjectCache;
use cached_metrics::{Collect, Families};
use serde::Serialize;
use tokio::sync::oneshot;

use super::documents::{
    Curve, HotDocument, HotKey, HotPrefix, HotReport, Misses, collect_curves, curves_of, hot_count,
};
use super::statistics::ObjectStatistics;
use crate::listener::AdminServer;
use crate::routes::{Access, Request, Response};
use crate::sources::Shown;
use crate::status::{Document, Source};

/// The interval at which samples are collected while there are any: a queue can hold the samples of
/// one interval.
const INTERVAL: Duration = Duration::from_millis(50);
/// The maximum interval, used when there are no requests.
const INTERVAL_IDLE: Duration = Duration::from_secs(1);

/// Returns the objects and namespaces that are read most, and the reasons of bucket misses; `None`
/// if the cache samples nothing.
#[must_use]
pub fn hot_document(cache: &ObjectCache, count: usize) -> Option<HotDocument> {
    cache.take_samples();
    let hot = cache.hot_objects(count)?;
    let shown = |one| HotKey::new(one, hot.sampled, hot.per_sec);
    let mut report = HotReport {
        keys: hot.names.iter().map(shown).collect(),
        prefixes: hot.groups.iter().map(shown).map(HotPrefix::from).collect(),
        sampled: hot.sampled,
        dropped: hot.dropped,
    };
    report.add_namespaces(cache.miss_ratio_curve());
    Some(HotDocument::new(report, cache.misses_by_reason()))
}

/// Writes the metric of the reasons for misses of a cache's buckets.
pub fn collect_misses(cache: &ObjectCache, into: &mut Families) {
    let help =
        "Buckets read from the store since the start, by the reason of the miss; estimated from a sample.";
    if let Some(misses) = cache.misses_by_reason() {
        Misses::from(misses).collect("cached_objects_misses_by_reason", help, into);
    }
}

/// The document `/mrc.json` of an object cache.
#[derive(Serialize)]
struct MissRatios {
    curves: Vec<Curve>,
}

/// The reports about the requests of the present cache.
struct InsightSource {
    statistics: ObjectStatistics,
    is_on: bool,
}

impl InsightSource {
    fn curves(&self) -> Vec<Curve> {
        let curve = |cache: ObjectCache| -> Option<MissRatioCurve> {
            cache.take_samples();
            cache.miss_ratio_curve()
        };
        self.statistics.cache().and_then(curve).map_or_else(Vec::new, |curve| curves_of("objects", curve))
    }

    fn hot(&self, request: &Request) -> Response {
        let count = match hot_count(request) {
            Ok(count) => count,
            Err(refused) => return *refused,
        };
        let document = self.statistics.cache().and_then(|cache| hot_document(&cache, count));
        let mut document = document.unwrap_or_else(|| HotDocument::new(HotReport::default(), None));
        if !request.has_token {
            document.hot.shorten_keys();
        }
        Response::json(&document)
    }
}

impl Collect for InsightSource {
    fn collect(&self, into: &mut Families) {
        collect_curves(&self.curves(), into);
        if let Some(cache) = self.statistics.cache() {
            collect_misses(&cache, into);
        }
        let help = "Requests that took longer than insight.slow_request_ms.";
        into.counter("cached_slow_requests_total", help, self.statistics.slow().report().count);
    }
}

impl Source for InsightSource {
    fn fill(&self, document: &mut Document) {
        document.insight |= self.is_on;
    }
}

/// Computes reports from the samples of the present cache and shows them, until this is dropped. Keeps
/// no handle of a cache.
#[must_use = "dropping this ends it"]
#[derive(Debug)]
pub struct ObjectsInsight {
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _shown: Option<Shown>,
}

impl ObjectsInsight {
    /// Starts the thread, if the caches sample anything (`is_on`), and shows the documents `/mrc.json`,
    /// `/hot.json` and `/slow.json` and metrics on the admin listener, if there is one.
    ///
    /// Names are data of clients: without a token, only the first letters of objects are shown,
    /// even on loopback.
    ///
    /// # Errors
    /// Fails if the system cannot create a thread.
    pub fn start(
        admin: Option<&AdminServer>,
        statistics: &ObjectStatistics,
        is_on: bool,
    ) -> io::Result<ObjectsInsight> {
        let source = Arc::new(InsightSource { statistics: statistics.clone(), is_on });
        let shown = admin.map(|admin| {
            add_routes(admin, &source);
            Shown::new(admin, &source)
        });
        let (end, ended) = oneshot::channel();
        let statistics = statistics.clone();
        let body = move || take_samples(&statistics, ended);
        let thread = is_on.then(|| thread::Builder::new().name("insight".into()).spawn(body)).transpose()?;
        Ok(ObjectsInsight { end: Some(end), thread, _shown: shown })
    }
}

fn take_samples(statistics: &ObjectStatistics, mut ended: oneshot::Receiver<()>) {
    let mut interval = INTERVAL;
    while block_on_for(&mut ended, interval).is_none() {
        interval = if statistics.take_samples() > 0 { INTERVAL } else { (interval * 2).min(INTERVAL_IDLE) };
    }
}

fn add_routes(admin: &AdminServer, source: &Arc<InsightSource>) {
    let add = |path: &str, answer: fn(&InsightSource, &Request) -> Response| {
        let source: Weak<InsightSource> = Arc::downgrade(source);
        admin.routes().get_now(path, Access::Read, move |request| match source.upgrade() {
            Some(source) => answer(&source, &request),
            None => Response::failure(503, "the cache has ended"),
        });
    };
    add("/mrc.json", |source, _| Response::json(&MissRatios { curves: source.curves() }));
    add("/hot.json", InsightSource::hot);
    add("/slow.json", |source, request| source.statistics.slow().report().response(request));
}

impl Drop for ObjectsInsight {
    fn drop(&mut self) {
        self.end = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that takes samples has panicked");
        }
    }
}
