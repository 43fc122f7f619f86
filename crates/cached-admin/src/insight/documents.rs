//! The documents `/mrc.json` and `/hot.json`, and metrics of their content.

use cached_core::insight::{CurvePoint, Hot, MissRatioCurve, MissesByReason};
use cached_metrics::{Families, Label, Value};
use serde::Serialize;

use crate::routes::{Request, Response, SHORTENED_LETTERS, shortened};

/// The default number of keys and prefixes in `/hot.json`, which the query can change.
const HOT_SHOWN: usize = 20;
/// The maximum number that the query may request.
const HOT_SHOWN_MAX: usize = 256;
/// The number of namespaces with metrics of their own; the others are summed up.
const NAMESPACES_SHOWN: usize = 50;

/// One curve.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Curve {
    /// `items`, `namespace:NAME` for keys with a prefix, `objects`, or `objects:NAME` for a
    /// namespace of objects.
    pub scope: String,
    /// The memory of the cache in bytes; for a namespace, the memory of its entries.
    pub memory_bytes: u64,
    /// The duration over which requests were counted, in seconds.
    pub since_secs: u32,
    /// The number of requests counted.
    pub requests: u64,
    /// The measured share of misses, 0 to 1.
    pub counted_miss_ratio: f64,
    /// The share of all names that are sampled, 0 to 1.
    pub sampled_share: f64,
    /// The number of samples lost since startup.
    pub dropped_samples: u64,
    /// False while the simulated caches are being filled.
    pub is_warm: bool,
    /// The predictions.
    pub points: Vec<CurvePoint>,
}

/// Returns the curve of a whole cache, and one for each of its namespaces. `scope` is `items` or
/// `objects`.
#[must_use]
pub fn curves_of(scope: &str, curve: MissRatioCurve) -> Vec<Curve> {
    let MissRatioCurve { since_secs, sampled_share, dropped_samples, is_warm, .. } = curve;
    let all = Curve {
        scope: scope.to_owned(),
        memory_bytes: curve.memory_bytes,
        since_secs,
        requests: curve.requests,
        counted_miss_ratio: curve.counted_miss_ratio,
        sampled_share,
        dropped_samples,
        is_warm,
        points: curve.points,
    };
    let kind = if scope == "items" { "namespace" } else { scope };
    // Namespaces that are not counted individually have no name, and no curve.
    let namespaces = curve.namespaces.into_iter().filter_map(|share| {
        Some(Curve {
            scope: format!("{kind}:{}", share.namespace?),
            memory_bytes: share.entry_bytes,
            since_secs,
            requests: share.requests,
            counted_miss_ratio: share.misses as f64 / share.requests.max(1) as f64,
            sampled_share,
            dropped_samples,
            is_warm,
            points: share.points,
        })
    });
    std::iter::once(all).chain(namespaces).collect()
}

/// Writes the metrics of curves: those of whole caches, and the memory of namespaces.
pub fn collect_curves(curves: &[Curve], into: &mut Families) {
    // The curves of namespaces follow that of the whole cache, the busiest namespace first.
    let whole = curves.iter().filter(|curve| !curve.scope.contains(':'));
    for curve in whole {
        let labels = |factor: f64| -> Vec<Label> {
            vec![("scope", curve.scope.clone()).into(), ("memory", format!("{factor}")).into()]
        };
        for point in &curve.points {
            let help = "The share of requests that would miss with 0.25, 0.5, 1, 2 and 4 times the memory.";
            let value = Value::Gauge(point.miss_ratio);
            into.sample("cached_predicted_miss_ratio", help, labels(point.factor), value);
        }
        let scope = || vec![("scope", curve.scope.clone()).into()];
        let help = "Share of all names whose requests are simulated.";
        into.sample("cached_insight_sampled_ratio", help, scope(), Value::Gauge(curve.sampled_share));
        let help = "Samples of requests lost because a queue was full.";
        let value = Value::Counter(curve.dropped_samples);
        into.sample("cached_insight_dropped_samples_total", help, scope(), value);
    }
    for (scope, prefix) in [("items", "namespace:"), ("objects", "objects:")] {
        let all =
            curves.iter().filter_map(|curve| Some((curve.scope.strip_prefix(prefix)?, curve.memory_bytes)));
        let others = all.clone().skip(NAMESPACES_SHOWN).map(|(_, bytes)| bytes).sum::<u64>();
        let others = (others > 0).then_some(("other", others));
        for (namespace, bytes) in all.take(NAMESPACES_SHOWN).chain(others) {
            let labels = vec![("scope", scope).into(), ("namespace", namespace.to_owned()).into()];
            let help = "Estimated bytes of the 50 largest key prefixes or namespaces, and of the others.";
            into.sample("cached_namespace_bytes", help, labels, Value::Gauge(bytes as f64));
        }
    }
}

/// A frequently requested key or object.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HotKey {
    /// The key, or the object as `namespace/name`; invalid UTF-8 is replaced.
    pub key: String,
    /// The key's bytes in hexadecimal, if they are not UTF-8 or not printable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<String>,
    /// The upper bound of the share of all gets, 0 to 1.
    pub share: f64,
    /// The maximum by which the share may be too high.
    pub error_share: f64,
    /// Gets per second.
    pub per_sec: f64,
}

impl HotKey {
    /// Returns the entry for a name that is one of `sampled` sampled requests, of which there are
    /// `per_sec` per second.
    #[must_use]
    pub fn new(hot: &Hot, sampled: u64, per_sec: f64) -> HotKey {
        let share = |count: u64| count as f64 / sampled.max(1) as f64;
        let is_plain = str::from_utf8(&hot.name).is_ok_and(|text| !text.chars().any(char::is_control));
        let hex = || hot.name.iter().map(|byte| format!("{byte:02x}")).collect();
        HotKey {
            key: String::from_utf8_lossy(&hot.name).into_owned(),
            bytes: (!is_plain).then(hex),
            share: share(hot.count),
            error_share: share(hot.error),
            per_sec: share(hot.count) * per_sec,
        }
    }

    fn shorten(&mut self) {
        self.key = shortened(&self.key);
        if let Some(bytes) = &mut self.bytes {
            bytes.truncate(2 * SHORTENED_LETTERS.min(bytes.len() / 4));
        }
    }
}

/// A frequently requested prefix (the part of a key before the delimiter) or namespace of objects.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HotPrefix {
    /// The prefix; invalid UTF-8 is replaced.
    pub prefix: String,
    /// The prefix's bytes in hexadecimal, if they are not UTF-8 or not printable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<String>,
    /// The upper bound of the share of all gets, 0 to 1.
    pub share: f64,
    /// The maximum by which the share may be too high.
    pub error_share: f64,
    /// Gets per second.
    pub per_sec: f64,
    /// The hit ratio of the prefix's gets, 0 to 1, if its namespace is counted individually.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit_ratio: Option<f64>,
    /// The bytes of the prefix's items, or of its objects in memory, if its namespace is counted
    /// individually.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item_bytes: Option<u64>,
}

impl From<HotKey> for HotPrefix {
    fn from(HotKey { key, bytes, share, error_share, per_sec }: HotKey) -> HotPrefix {
        HotPrefix { prefix: key, bytes, share, error_share, per_sec, hit_ratio: None, item_bytes: None }
    }
}

/// The hottest keys and prefixes of the last minutes; for an object cache, objects and namespaces.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
pub struct HotReport {
    /// The keys, the hottest first.
    pub keys: Vec<HotKey>,
    /// The prefixes, the hottest first.
    pub prefixes: Vec<HotPrefix>,
    /// The number of gets sampled.
    pub sampled: u64,
    /// The number of samples lost since startup.
    pub dropped: u64,
}

impl HotReport {
    /// Shortens the keys to their first letters.
    pub fn shorten_keys(&mut self) {
        self.keys.iter_mut().for_each(HotKey::shorten);
    }

    /// Adds the figures of a curve for the prefixes, which are namespaces there.
    pub fn add_namespaces(&mut self, curve: Option<MissRatioCurve>) {
        let namespaces = curve.map(|curve| curve.namespaces).unwrap_or_default();
        for hot in &mut self.prefixes {
            let is_it = |name: &Option<String>| name.as_deref() == Some(&hot.prefix);
            if let Some(share) = namespaces.iter().find(|share| is_it(&share.namespace)) {
                hot.hit_ratio = Some(1.0 - share.misses as f64 / share.requests.max(1) as f64);
                hot.item_bytes = Some(share.entry_bytes);
            }
        }
    }
}

/// Hot keys and prefixes, and reasons for misses: the document `/hot.json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HotDocument {
    /// The keys and prefixes.
    #[serde(flatten)]
    pub hot: HotReport,
    /// The number of misses since startup by reason; absent if requests are not sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misses: Option<Misses>,
    /// The number of sampled misses, from which the reasons that the engine does not know are
    /// estimated.
    pub misses_sampled: u64,
    /// The same document for the object cache of a program that also has items.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects: Option<Box<HotDocument>>,
}

impl HotDocument {
    /// Returns the document of one cache.
    #[must_use]
    pub fn new(hot: HotReport, misses: Option<MissesByReason>) -> HotDocument {
        HotDocument {
            hot,
            misses: misses.map(Misses::from),
            misses_sampled: misses.map_or(0, |misses| misses.sampled),
            objects: None,
        }
    }
}

/// The number of misses by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "they are those of `MissesByReason`")]
pub struct Misses {
    pub never_seen: u64,
    pub expired: u64,
    pub evicted: u64,
    pub flushed: u64,
    pub deleted: u64,
}

impl From<MissesByReason> for Misses {
    fn from(reasons: MissesByReason) -> Misses {
        let MissesByReason { never_seen, expired, evicted, flushed, deleted, .. } = reasons;
        Misses { never_seen, expired, evicted, flushed, deleted }
    }
}

impl Misses {
    /// Writes the metric called `name`: one gauge for each reason.
    pub fn collect(self, name: &'static str, help: &'static str, into: &mut Families) {
        let all = [
            ("never_seen", self.never_seen),
            ("expired", self.expired),
            ("evicted", self.evicted),
            ("flushed", self.flushed),
            ("deleted", self.deleted),
        ];
        for (reason, count) in all {
            into.sample(name, help, vec![("reason", reason).into()], Value::Gauge(count as f64));
        }
    }
}

/// Returns the number of keys that a request for `/hot.json` names.
///
/// # Errors
/// Returns the response to a request for no keys, or for too many.
pub fn hot_count(request: &Request) -> Result<usize, Box<Response>> {
    let count = request.query("count").map(|count| count.parse().unwrap_or(0));
    match count.unwrap_or(HOT_SHOWN) {
        count @ 1..=HOT_SHOWN_MAX => Ok(count),
        _ => {
            let words = format_args!("count must be a number from 1 to {HOT_SHOWN_MAX}");
            Err(Box::new(Response::failure(400, words)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hot(name: &[u8], count: u64) -> Hot {
        Hot { name: name.into(), count, error: 1 }
    }

    #[test]
    fn keys_are_shown_with_their_share_and_shortened() {
        let keys = [hot(b"namespace/object", 50), hot(b"\xff\x01", 25), hot(b"12345678", 1)];
        let keys = keys.iter().map(|one| HotKey::new(one, 100, 1000.0)).collect();
        let mut report = HotReport { keys, ..HotReport::default() };
        assert_eq!((report.keys[0].share, report.keys[0].per_sec), (0.5, 500.0));
        assert_eq!((report.keys[0].error_share, report.keys[0].bytes.as_deref()), (0.01, None));
        assert_eq!(report.keys[1].bytes.as_deref(), Some("ff01"));
        report.shorten_keys();
        let shown: Vec<&str> = report.keys.iter().map(|key| &*key.key).collect();
        assert_eq!([shown[0], shown[2]], ["namespac…", "1234…"]);
        assert_eq!(report.keys[1].bytes.as_deref(), Some("ff"));
        assert_eq!(shortened("a"), "…");
    }
}
