//! Outputs: pairs of name and number, Prometheus' text format, and OpenMetrics.

use std::fmt::{self, Write};

use crate::family::{Families, Family, Kind, Label, Number, Value};

/// A number with its name in a plain list.
#[derive(Clone, PartialEq, Debug)]
pub struct Pair {
    /// The family's name, followed by any labels in braces. It has no white space and no control
    /// characters.
    pub name: String,
    /// The number.
    pub value: Number,
}

impl fmt::Display for Pair {
    /// Writes name and number with a space in between.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.value)
    }
}

/// Returns every number of `families` with a name, as shown by memcached's `stats` and by `cachectl
/// stats`.
///
/// A counter or gauge is one pair. A histogram has a pair for each bucket, one for its sum and one
/// for its count, named as Prometheus names them.
///
/// ```
/// use cached_metrics::{Families, render};
///
/// let mut families = Families::new();
/// families.gauge("open_files", "Open files.", 7);
/// assert_eq!(render::pairs(&families)[0].to_string(), "open_files 7");
/// ```
#[must_use]
pub fn pairs(families: &Families) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for family in families {
        series(family, |suffix, labels, bound, value| {
            let mut name = format!("{}{suffix}", family.name);
            write_labels(&mut name, labels, bound, is_unfit_for_a_name);
            pairs.push(Pair { name, value });
        });
    }
    pairs
}

/// Returns `families` in Prometheus' text exposition format, version 0.0.4.
///
/// The media type is `text/plain; version=0.0.4; charset=utf-8`.
#[must_use]
pub fn prometheus(families: &Families) -> String {
    let mut text = String::new();
    for family in families {
        let Family { name, help, kind, .. } = family;
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        series(family, |suffix, labels, bound, value| {
            let _ = write!(text, "{name}{suffix}");
            write_labels(&mut text, labels, bound, |_| false);
            let _ = writeln!(text, " {value}");
        });
    }
    text
}

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
fn float(bound: Number) -> String {
    let text = bound.to_string();
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text + ".0" } else { text }
}

/// Calls `each` with every number of the family: the suffix of the name, the labels, a bucket's
/// bound, and the value.
fn series(family: &Family, mut each: impl FnMut(&str, &[Label], Option<Number>, Number)) {
    for sample in &family.samples {
        let labels = &sample.labels;
        match &sample.value {
            Value::Counter(value) => each("", labels, None, (*value).into()),
            Value::CounterFloat(value) | Value::Gauge(value) => each("", labels, None, (*value).into()),
            Value::Histogram { buckets, sum, count } => {
                let last = [(f64::INFINITY, *count)];
                for (bound, count) in buckets.iter().chain(&last) {
                    each("_bucket", labels, Some((*bound).into()), (*count).into());
                }
                each("_sum", labels, None, (*sum).into());
                each("_count", labels, None, (*count).into());
            }
        }
    }
}

fn write_labels(
    text: &mut String,
    labels: &[Label],
    bound: Option<impl fmt::Display>,
    is_unfit: impl Fn(char) -> bool + Copy,
) {
    if labels.is_empty() && bound.is_none() {
        return;
    }
    text.push('{');
    for (index, Label { name, value }) in labels.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let _ = write!(text, "{comma}{name}=\"");
        write_escaped(text, value, is_unfit);
        text.push('"');
    }
    if let Some(bound) = bound {
        let comma = if labels.is_empty() { "" } else { "," };
        let _ = write!(text, "{comma}le=\"{bound}\"");
    }
    text.push('}');
}

/// Writes a label's value between quotes. Characters for which `is_unfit` returns true become `_`.
fn write_escaped(text: &mut String, value: &str, is_unfit: impl Fn(char) -> bool) {
    for char in value.chars() {
        match char {
            _ if is_unfit(char) => text.push('_'),
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            _ => text.push(char),
        }
    }
}

/// Returns whether memcached's clients, which split a line of `stats` at white space, would misread
/// the character.
fn is_unfit_for_a_name(char: char) -> bool {
    char.is_whitespace() || char.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Families {
        let mut families = Families::new();
        families.counter("reads_total", "Reads\nof \\ all.", 3);
        let labels = |path: &'static str| vec![("path", path).into(), ("x", "y").into()];
        families.sample("free_bytes", "Free.", labels("C:\\ \"new\"\nline"), Value::Gauge(0.5));
        let latency = Value::Histogram { buckets: vec![(0.1, 1), (1.0, 2)], sum: 7.5, count: 3 };
        families.sample("latency_seconds", "Latency.", vec![("op", "get").into()], latency);
        families
    }

    #[test]
    fn prometheus_text_is_escaped() {
        let expected = r#"# HELP reads_total Reads\nof \\ all.
# TYPE reads_total counter
reads_total 3
# HELP free_bytes Free.
# TYPE free_bytes gauge
free_bytes{path="C:\\ \"new\"\nline",x="y"} 0.5
# HELP latency_seconds Latency.
# TYPE latency_seconds histogram
latency_seconds_bucket{op="get",le="0.1"} 1
latency_seconds_bucket{op="get",le="1"} 2
latency_seconds_bucket{op="get",le="+Inf"} 3
latency_seconds_sum{op="get"} 7.5
latency_seconds_count{op="get"} 3
"#;
        assert_eq!(prometheus(&sample()), expected);
    }

    #[test]
    fn the_name_of_a_pair_has_no_white_space() {
        let pairs = pairs(&sample());
        let lines: Vec<_> = pairs.iter().map(ToString::to_string).collect();
        assert_eq!(lines[0], "reads_total 3");
        assert_eq!(lines[1], r#"free_bytes{path="C:\\_\"new\"_line",x="y"} 0.5"#);
        assert_eq!(lines[4], r#"latency_seconds_bucket{op="get",le="+Inf"} 3"#);
        assert!(pairs.iter().all(|pair| !pair.name.contains(char::is_whitespace)));
    }

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
