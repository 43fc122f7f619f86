//! Reports from samples and from the slow log: `stats mrc`, `hot`, `misses`, `shape` and `slow`,
//! which memcached does not have, and the same as documents and metrics of the admin listener.

use super::Sink;
use crate::shared::Shared;
use cached_admin::insight::ObjectStatistics;
use cached_admin::insight::documents::{Curve, HotDocument, HotReport, Misses, collect_curves, curves_of};
use cached_admin::insight::objects;
use cached_core::insight::{CurvePoint, ItemShape, MissRatioCurve};
use cached_core::object::ObjectCache;
use cached_metrics::Families;
use serde::Serialize;
use std::borrow::Cow;
use std::time::Instant;

/// The number of keys and of prefixes that `stats hot` shows.
const HOT_SHOWN: usize = 20;
/// The number of slow requests that `stats slow` shows.
const SLOW_SHOWN: usize = 50;

/// Writes `stats mrc`: predicted miss ratios for other amounts of memory.
pub(super) fn write_mrc(shared: &Shared, sink: &mut Sink<'_>) {
    curves(shared).for_each(|(scope, curve)| write_curve(sink, scope, &curve));
}

/// Returns the curves of all items and of all objects, where requests are sampled.
fn curves(shared: &Shared) -> impl Iterator<Item = (&'static str, MissRatioCurve)> {
    shared.take_samples();
    let objects = object_cache(shared).and_then(|cache| cache.miss_ratio_curve());
    let all = [("items", shared.kv.miss_ratio_curve()), ("objects", objects)];
    all.into_iter().filter_map(|(scope, curve)| Some((scope, curve?)))
}

fn write_curve(sink: &mut Sink<'_>, scope: &str, curve: &MissRatioCurve) {
    sink.put(&format!("{scope}:memory_bytes"), curve.memory_bytes);
    sink.put(&format!("{scope}:requests"), curve.requests);
    sink.put(&format!("{scope}:sampled_requests"), curve.sampled_requests);
    sink.put(&format!("{scope}:sampled_share"), format_args!("{:.6}", curve.sampled_share));
    sink.put(&format!("{scope}:dropped_samples"), curve.dropped_samples);
    sink.put(&format!("{scope}:is_warm"), u8::from(curve.is_warm));
    sink.put(&format!("{scope}:counted_miss_ratio"), format_args!("{:.4}", curve.counted_miss_ratio));
    write_points(sink, scope, &curve.points);
    for share in &curve.namespaces {
        let name = share.namespace.as_deref().unwrap_or("(others)");
        // The name of a statistic is a single word.
        let name: String =
            name.chars().map(|c| if c.is_whitespace() || c.is_control() { '_' } else { c }).collect();
        let scope = format!("{scope}:{name}");
        sink.put(&format!("{scope}:requests"), share.requests);
        sink.put(&format!("{scope}:misses"), share.misses);
        sink.put(&format!("{scope}:entry_bytes"), share.entry_bytes);
        write_points(sink, &scope, &share.points);
    }
}

fn write_points(sink: &mut Sink<'_>, scope: &str, points: &[CurvePoint]) {
    for point in points {
        sink.put(&format!("{scope}:miss_ratio_at_{}", point.factor), format_args!("{:.4}", point.miss_ratio));
    }
}

/// Writes `stats hot`: the hottest keys and prefixes.
pub(super) fn write_hot(shared: &Shared, sink: &mut Sink<'_>) {
    let report = hot_report(shared, HOT_SHOWN);
    sink.put("sampled", report.sampled);
    sink.put("dropped", report.dropped);
    let put = |sink: &mut Sink<'_>, what: &str, name, (share, error_share, per_sec): (f64, f64, f64)| {
        sink.put(&format!("{what}:name"), name);
        sink.put(&format!("{what}:share"), format_args!("{share:.6}"));
        sink.put(&format!("{what}:error"), format_args!("{error_share:.6}"));
        sink.put(&format!("{what}:per_sec"), format_args!("{per_sec:.1}"));
    };
    for (rank, hot) in (1..).zip(&report.keys) {
        let name = name(&hot.key, hot.bytes.as_deref());
        put(sink, &format!("key:{rank}"), name, (hot.share, hot.error_share, hot.per_sec));
    }
    for (rank, hot) in (1..).zip(&report.prefixes) {
        let name = name(&hot.prefix, hot.bytes.as_deref());
        put(sink, &format!("prefix:{rank}"), name, (hot.share, hot.error_share, hot.per_sec));
        if let Some(hit_ratio) = hot.hit_ratio {
            sink.put(&format!("prefix:{rank}:hit_ratio"), format_args!("{hit_ratio:.4}"));
        }
        if let Some(item_bytes) = hot.item_bytes {
            sink.put(&format!("prefix:{rank}:item_bytes"), item_bytes);
        }
    }
}

/// Returns a key or prefix as a single ASCII word, or as its own text. No two names look the same,
/// because backslashes are doubled. If the bytes are not printable text, `hex` contains them in
/// hexadecimal.
fn name<'a>(text: &'a str, hex: Option<&str>) -> Cow<'a, str> {
    let Some(hex) = hex else {
        return if text.contains('\\') { text.replace('\\', r"\\").into() } else { text.into() };
    };
    let mut name = String::new();
    for digits in hex.as_bytes().chunks(2).filter_map(|digits| str::from_utf8(digits).ok()) {
        match u8::from_str_radix(digits, 16) {
            Ok(b'\\') => name.push_str(r"\\"),
            Ok(byte @ b' '..=b'~') => name.push(byte.into()),
            _ => {
                name.push_str(r"\x");
                name.push_str(digits);
            }
        }
    }
    name.into()
}

/// Writes `stats misses`: the reasons for which keys were missed.
pub(super) fn write_misses(shared: &Shared, sink: &mut Sink<'_>) {
    if let Some(misses) = shared.misses_by_reason() {
        sink.put("never_seen", misses.never_seen);
        sink.put("expired", misses.expired);
        sink.put("evicted", misses.evicted);
        sink.put("flushed", misses.flushed);
        sink.put("deleted", misses.deleted);
        sink.put("sampled", misses.sampled);
    }
}

/// Writes `stats shape`: sizes, idle times, ages and lifetimes of a sample of the items.
pub(super) fn write_shape(shared: &Shared, sink: &mut Sink<'_>) {
    let shape = shared.kv.item_shape(ITEMS_LOOKED_AT);
    sink.put("sampled", shape.sampled);
    sink.put("fetched", shape.fetched);
    sink.put("without_expiry", shape.without_expiry);
    let all = [
        ("size_bytes", &shape.sizes),
        ("idle_secs", &shape.idle_secs),
        ("age_secs", &shape.age_secs),
        ("ttl_secs", &shape.ttl_secs),
    ];
    for (what, classes) in all {
        for (power, count) in classes.iter().enumerate().filter(|(_, count)| **count > 0) {
            sink.put(&format!("{what}:{}", 1u64 << power), count);
        }
    }
}

/// Writes `stats slow`: the last slow requests, the latest first.
pub(super) fn write_slow(shared: &Shared, sink: &mut Sink<'_>) {
    let report = shared.slow_requests();
    sink.put("threshold_ms", report.threshold_ms);
    sink.put("count", report.count);
    for (number, slow) in (1..).zip(report.requests.iter().take(SLOW_SHOWN)) {
        sink.put(&format!("{number}:unix_ms"), slow.unix_ms);
        sink.put(&format!("{number}:listener"), slow.listener);
        sink.put(&format!("{number}:command"), slow.command);
        if let Some(client) = &slow.client {
            sink.put(&format!("{number}:client"), client);
        }
        if let Some(key) = &slow.key {
            sink.put(&format!("{number}:key"), key);
        }
        sink.put(&format!("{number}:total_us"), slow.total_us);
    }
}

/// The number of items that a report about the shape examines, which takes some milliseconds.
const ITEMS_LOOKED_AT: u64 = 20_000;

/// Predicted miss ratios, and the shape of the items: the document `/mrc.json`.
#[derive(Serialize)]
pub(super) struct MissRatios {
    /// A curve for all items, one for all objects, and one for each namespace of either.
    curves: Vec<Curve>,
    item_shape: ItemShape,
}

impl MissRatios {
    /// Returns the document; `None` once another process has the items.
    pub(super) fn new(shared: &Shared) -> Option<MissRatios> {
        let curves = all_curves(shared);
        // The other process writes the items' memory, about which this process's index says nothing.
        let is_handed_over = shared.is_handed_over.lock();
        if *is_handed_over {
            return None;
        }
        let item_shape = shared.kv.item_shape(ITEMS_LOOKED_AT);
        drop(is_handed_over);
        Some(MissRatios { curves, item_shape })
    }
}

/// Returns the curves of items, of objects, and of each namespace of either.
fn all_curves(shared: &Shared) -> Vec<Curve> {
    curves(shared).flat_map(|(scope, curve)| curves_of(scope, curve)).collect()
}

/// Returns the document `/hot.json`: the `count` hottest keys and prefixes of the last minutes, and
/// the reasons for misses. Unless `whole_keys` is set, only the first letters of keys are shown.
pub(super) fn hot_document(shared: &Shared, count: usize, whole_keys: bool) -> HotDocument {
    let mut document = HotDocument::new(hot_report(shared, count), shared.misses_by_reason());
    let mut objects = object_cache(shared).and_then(|cache| objects::hot_document(&cache, count));
    if !whole_keys {
        document.hot.shorten_keys();
        objects.iter_mut().for_each(|objects| objects.hot.shorten_keys());
    }
    HotDocument { objects: objects.map(Box::new), ..document }
}

fn object_cache(shared: &Shared) -> Option<ObjectCache> {
    shared.objects.get().and_then(ObjectStatistics::cache)
}

/// Returns the hottest keys and prefixes. A prefix is shown with the hit ratio of the namespace of
/// the same name.
fn hot_report(shared: &Shared, count: usize) -> HotReport {
    shared.take_samples();
    let mut report = shared.insight.hot.report(count, Instant::now());
    report.add_namespaces(shared.kv.miss_ratio_curve());
    report
}

/// Writes the metrics of predictions, reasons for misses and slow requests, which contain no keys.
pub(super) fn collect(shared: &Shared, into: &mut Families) {
    collect_curves(&all_curves(shared), into);
    if let Some(misses) = shared.misses_by_reason() {
        let help = "Misses of items since the start by reason: never_seen, expired, evicted, flushed, deleted; partly \
                    estimated, so it may fall.";
        Misses::from(misses).collect("cached_misses_by_reason", help, into);
    }
    if let Some(cache) = object_cache(shared) {
        objects::collect_misses(&cache, into);
    }
    let help = "Requests that took longer than insight.slow_request_ms.";
    into.counter("cached_slow_requests_total", help, shared.slow_requests().count);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::CommandQueue;
    use crate::process::Logging;
    use crate::settings::Settings;
    use crate::shared::clock::ServerClock;
    use crate::telemetry::watch::Watch;
    use cached_core::kv::{Kv, KvConfig};
    use std::sync::Arc;

    #[test]
    fn items_that_another_process_has_are_not_looked_at() {
        let settings = Settings { threads: 1, memory_bytes: 16 << 20, ..Settings::default() };
        let clock = ServerClock::new();
        let config =
            KvConfig { arena_bytes: settings.memory_bytes, clock: clock.ticks(), ..KvConfig::default() };
        let kv = Kv::new(config).expect("a store");
        kv.set(b"k", b"v").expect("space");
        let watch = Arc::new(Watch::new(1 << 16, 1 << 16).expect("a descriptor"));
        let queues = [CommandQueue::new().expect("a descriptor")];
        let shared = Shared::new(kv, clock, settings, Logging::embedded(0), watch, queues.into());
        assert_eq!(MissRatios::new(&shared).map(|document| document.item_shape.sampled), Some(1));
        *shared.is_handed_over.lock() = true;
        assert!(MissRatios::new(&shared).is_none());
    }

    #[test]
    fn names_of_different_bytes_look_different() {
        for (text, hex, shown) in [
            ("user:1", None, "user:1"),
            ("ff", None, "ff"),
            ("\u{fffd}", Some("ff"), r"\xff"),
            (r"\xff", None, r"\\xff"),
            ("é", None, "é"),
            ("a\u{fffd}\\ z", Some("61ff5c207a"), r"a\xff\\ z"),
            ("a\nb", Some("610a62"), r"a\x0ab"),
        ] {
            assert_eq!(name(text, hex), shown);
        }
    }
}
