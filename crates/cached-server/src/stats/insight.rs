//! `stats mrc`, `stats hot`, `stats misses`, `stats shape` and `stats slow`: what samples and the slow log
//! show. Not memcached's.

use super::Sink;
use crate::shared::Shared;
use crate::stats::reports::hot_report;
use cached_core::insight::{CurvePoint, MissRatioCurve};
use std::borrow::Cow;

/// Keys and prefixes that `stats hot` shows.
const HOT_SHOWN: usize = 20;
/// Items that `stats shape` looks at.
const ITEMS_LOOKED_AT: u64 = 20_000;
/// Slow requests that `stats slow` shows.
const SLOW_SHOWN: usize = 50;

/// `stats mrc`: miss ratios that other amounts of memory would give.
pub(super) fn write_mrc(shared: &Shared, sink: &mut Sink<'_>) {
    shared.take_samples();
    let objects = shared.objects.get().and_then(|objects| objects.miss_ratio_curve());
    let curves = [("items", shared.kv.miss_ratio_curve()), ("objects", objects)];
    for (scope, curve) in curves.iter().filter_map(|(scope, curve)| Some((scope, curve.as_ref()?))) {
        write_curve(sink, scope, curve);
    }
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
        // Names of statistics are words.
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

/// `stats hot`: the hottest keys and prefixes.
pub(super) fn write_hot(shared: &Shared, sink: &mut Sink<'_>) {
    shared.take_samples();
    let report = hot_report(shared, HOT_SHOWN);
    sink.put("sampled", report.sampled);
    sink.put("dropped", report.dropped);
    for (rank, hot) in report.keys.iter().enumerate() {
        let rank = rank + 1;
        sink.put(&format!("key:{rank}:name"), name(&hot.key, hot.bytes.as_deref()));
        sink.put(&format!("key:{rank}:share"), format_args!("{:.6}", hot.share));
        sink.put(&format!("key:{rank}:error"), format_args!("{:.6}", hot.error_share));
        sink.put(&format!("key:{rank}:per_sec"), format_args!("{:.1}", hot.per_sec));
    }
    for (rank, hot) in report.prefixes.iter().enumerate() {
        let rank = rank + 1;
        sink.put(&format!("prefix:{rank}:name"), name(&hot.prefix, hot.bytes.as_deref()));
        sink.put(&format!("prefix:{rank}:share"), format_args!("{:.6}", hot.share));
        sink.put(&format!("prefix:{rank}:error"), format_args!("{:.6}", hot.error_share));
        sink.put(&format!("prefix:{rank}:per_sec"), format_args!("{:.1}", hot.per_sec));
        if let Some(hit_ratio) = hot.hit_ratio {
            sink.put(&format!("prefix:{rank}:hit_ratio"), format_args!("{hit_ratio:.4}"));
        }
        if let Some(item_bytes) = hot.item_bytes {
            sink.put(&format!("prefix:{rank}:item_bytes"), item_bytes);
        }
    }
}

/// Returns a key or prefix as one word of ASCII or as the text that it is: no two names look the same, since a backslash
/// is doubled. `hex` are its bytes in hexadecimal digits if it is no printable text.
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

/// `stats misses`: why keys were missed.
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

/// `stats shape`: sizes, idle times, ages and lifetimes of a sample of the items.
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

/// `stats slow`: the last slow requests, the latest first.
pub(super) fn write_slow(shared: &Shared, sink: &mut Sink<'_>) {
    let report = shared.slow_requests();
    sink.put("threshold_ms", report.threshold_ms);
    sink.put("count", report.count);
    for (number, slow) in report.requests.iter().take(SLOW_SHOWN).enumerate() {
        let number = number + 1;
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

#[cfg(test)]
mod tests {
    use super::*;

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
