//! The OpenMetrics text format.

use std::fmt::Write;

use super::{series, write_labels};
use crate::family::{Families, Family, Kind};

/// Returns `families` in the OpenMetrics text format, version 1.0.0.
///
/// The media type is `application/openmetrics-text; version=1.0.0; charset=utf-8`. The format
/// requires the name of a counter to end in `_total`; another counter gets an unknown type, as in
/// Prometheus' own libraries.
///
/// ```
/// use cached_metrics::{Families, render};
///
/// let mut families = Families::new();
/// families.counter("reads_total", "Reads.", 3);
/// assert_eq!(render::openmetrics(&families), "# HELP reads Reads.\n# TYPE reads counter\nreads_total 3\n# EOF\n");
/// ```
#[must_use]
pub fn openmetrics(families: &Families) -> String {
    let mut text = String::new();
    for family in families {
        let Family { name, help, kind, .. } = family;
        let (title, kind) = match (kind, name.strip_suffix("_total")) {
            (Kind::Counter, Some(title)) => (title, "counter"),
            (Kind::Counter, None) => (&**name, "unknown"),
            (Kind::Gauge, _) => (&**name, "gauge"),
            (Kind::Histogram, _) => (&**name, "histogram"),
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"");
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# HELP {title} {help}\n# TYPE {title} {kind}");
        series(family, |suffix, labels, bound, value| {
            let _ = write!(text, "{name}{suffix}");
            write_labels(&mut text, labels, bound.map(float), |_| false);
            let _ = writeln!(text, " {value}");
        });
    }
    text.push_str("# EOF\n");
    text
}

/// Returns a bound in the required form, in which integers also have a fraction.
fn float(bound: crate::family::Number) -> String {
    let text = bound.to_string();
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text + ".0" } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::Value;

    #[test]
    fn counters_lose_their_suffix_in_the_title_and_bounds_have_a_fraction() {
        let mut families = Families::new();
        families.counter("uptime_seconds", "Up \"time\".", 3);
        let latency = Value::Histogram { buckets: vec![(0.1, 1), (1.0, 2)], sum: 7.5, count: 3 };
        families.sample("latency_seconds", "Latency.", vec![("op", "get").into()], latency);
        let expected = r#"# HELP uptime_seconds Up \"time\".
# TYPE uptime_seconds unknown
uptime_seconds 3
# HELP latency_seconds Latency.
# TYPE latency_seconds histogram
latency_seconds_bucket{op="get",le="0.1"} 1
latency_seconds_bucket{op="get",le="1.0"} 2
latency_seconds_bucket{op="get",le="+Inf"} 3
latency_seconds_sum{op="get"} 7.5
latency_seconds_count{op="get"} 3
# EOF
"#;
        assert_eq!(openmetrics(&families), expected);
    }
}
