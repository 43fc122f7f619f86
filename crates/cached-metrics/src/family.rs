//! The data model: families of samples.

use std::borrow::Cow;
use std::fmt;

/// A name, a help text or a label. It is usually static.
pub type Text = Cow<'static, str>;

/// The kind of a metric.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A number that only increases while the process runs.
    Counter,
    /// A number that increases and decreases.
    Gauge,
    /// The distribution of observed values over buckets.
    Histogram,
}

impl fmt::Display for Kind {
    /// Writes Prometheus' word for the kind.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}

/// The value of one sample.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// The value of a counter.
    Counter(u64),
    /// The value of a counter with a fraction, such as one of seconds.
    CounterFloat(f64),
    /// The value of a gauge.
    Gauge(f64),
    /// The state of a histogram.
    Histogram {
        /// The buckets in ascending order: the inclusive upper bound of each, and the number of
        /// observations up to that bound. Observations above the last bound are only in `count`.
        buckets: Vec<(f64, u64)>,
        /// The sum of all observations.
        sum: f64,
        /// The number of all observations.
        count: u64,
    },
}

impl Value {
    /// Returns the kind of metric that has values of this type.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Counter(_) | Self::CounterFloat(_) => Kind::Counter,
            Self::Gauge(_) => Kind::Gauge,
            Self::Histogram { .. } => Kind::Histogram,
        }
    }
}

/// One dimension of a sample.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Label {
    /// The dimension, for example `method`: letters, digits and underscores, not starting with a
    /// digit.
    pub name: Text,
    /// The sample's value in this dimension, for example `get`. It may be any text.
    pub value: Text,
}

impl<N: Into<Text>, V: Into<Text>> From<(N, V)> for Label {
    fn from((name, value): (N, V)) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

/// One value, which its labels distinguish from the family's other values.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// The labels. No two labels of a sample have the same name, and no two samples of a family
    /// have the same labels.
    pub labels: Vec<Label>,
    /// The value.
    pub value: Value,
}

/// A metric: a name and its samples at one moment.
#[derive(Clone, PartialEq, Debug)]
pub struct Family {
    /// The name: letters, digits and underscores, not starting with a digit.
    pub name: Text,
    /// What is counted or measured, in one sentence.
    pub help: Text,
    /// The kind of all samples.
    pub kind: Kind,
    /// The samples.
    pub samples: Vec<Sample>,
}

/// A number in the form in which outputs show it, without a fraction if it is an integer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Number {
    /// A whole number.
    Integer(u64),
    /// Any other number.
    Float(f64),
}

impl Number {
    /// Returns the number, rounded towards zero and kept within the range of `u64`.
    #[must_use]
    pub fn to_u64(self) -> u64 {
        match self {
            Self::Integer(number) => number,
            // The cast saturates; NaN becomes 0.
            Self::Float(number) => number as u64,
        }
    }
}

impl From<f64> for Number {
    fn from(number: f64) -> Self {
        /// The limit 2⁵³: up to this value, every integer is exact.
        const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
        let is_whole = number.fract() == 0.0 && (0.0..=EXACT_MAX).contains(&number);
        if is_whole { Self::Integer(number as u64) } else { Self::Float(number) }
    }
}

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        Self::Integer(number)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(number) => number.fmt(f),
            Self::Float(number) if number.is_nan() => f.write_str("NaN"),
            Self::Float(number) if number.is_infinite() => {
                f.write_str(if *number > 0.0 { "+Inf" } else { "-Inf" })
            }
            Self::Float(number) => number.fmt(f),
        }
    }
}

/// The families that a collector writes, in the order in which their names first occurred.
///
/// Samples of the same name are added to one family. A sample whose kind or help text differs from
/// the family's is kept in a family of its own, which [`Registry::gather`](crate::Registry::gather)
/// reports.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Families {
    families: Vec<Family>,
}

impl Families {
    /// Returns an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a counter without labels.
    pub fn counter(&mut self, name: impl Into<Text>, help: impl Into<Text>, value: u64) {
        self.sample(name, help, Vec::new(), Value::Counter(value));
    }

    /// Adds a gauge without labels. An integer above 2⁵³ loses its last digits.
    pub fn gauge(&mut self, name: impl Into<Text>, help: impl Into<Text>, value: u64) {
        self.sample(name, help, Vec::new(), Value::Gauge(value as f64));
    }

    /// Adds one sample.
    pub fn sample(&mut self, name: impl Into<Text>, help: impl Into<Text>, labels: Vec<Label>, value: Value) {
        self.add_sample(name.into(), help.into(), labels, value);
    }

    /// The function is not generic, so that it is compiled only in this crate.
    fn add_sample(&mut self, name: Text, help: Text, labels: Vec<Label>, value: Value) {
        let samples = vec![Sample { labels, value }];
        let kind = samples[0].value.kind();
        self.add(Family { name, help, kind, samples });
    }

    /// Adds a family.
    pub fn add(&mut self, family: Family) {
        // Collectors write a family's samples consecutively, so the last family is the most likely
        // one.
        let fits = |known: &&mut Family| {
            known.name == family.name && known.kind == family.kind && known.help == family.help
        };
        match self.families.iter_mut().rev().find(fits) {
            Some(known) => known.samples.extend(family.samples),
            None => self.families.push(family),
        }
    }

    /// Adds the families of `other` after the present ones.
    pub fn append(&mut self, other: Self) {
        other.families.into_iter().for_each(|family| self.add(family));
    }

    /// Returns the families.
    #[must_use]
    pub fn as_slice(&self) -> &[Family] {
        &self.families
    }

    /// Returns the family called `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Family> {
        self.families.iter().find(|family| family.name == name)
    }

    /// Returns the value of the counter or gauge called `name`: the sum over its samples.
    ///
    /// Returns `None` if the family does not exist, or is a histogram.
    ///
    /// ```
    /// let mut families = cached_metrics::Families::new();
    /// families.counter("reads_total", "Reads.", 3);
    /// assert_eq!(families.number("reads_total").map(|number| number.to_u64()), Some(3));
    /// assert_eq!(families.number("writes_total"), None);
    /// ```
    #[must_use]
    pub fn number(&self, name: &str) -> Option<Number> {
        let family = self.get(name)?;
        match family.kind {
            Kind::Counter => {
                let (mut whole, mut rest) = (0u64, 0.0);
                for sample in &family.samples {
                    match sample.value {
                        Value::Counter(value) => whole = whole.wrapping_add(value),
                        Value::CounterFloat(value) => rest += value,
                        Value::Gauge(_) | Value::Histogram { .. } => {}
                    }
                }
                Some(if rest == 0.0 { Number::Integer(whole) } else { (whole as f64 + rest).into() })
            }
            Kind::Gauge => {
                let add = |sum: f64, sample: &Sample| match sample.value {
                    Value::Gauge(value) => sum + value,
                    _ => sum,
                };
                Some(family.samples.iter().fold(0.0, add).into())
            }
            Kind::Histogram => None,
        }
    }
}

impl IntoIterator for Families {
    type Item = Family;
    type IntoIter = std::vec::IntoIter<Family>;

    fn into_iter(self) -> Self::IntoIter {
        self.families.into_iter()
    }
}

impl<'a> IntoIterator for &'a Families {
    type Item = &'a Family;
    type IntoIter = std::slice::Iter<'a, Family>;

    fn into_iter(self) -> Self::IntoIter {
        self.families.iter()
    }
}

impl FromIterator<Family> for Families {
    fn from_iter<I: IntoIterator<Item = Family>>(families: I) -> Self {
        let mut all = Self::new();
        families.into_iter().for_each(|family| all.add(family));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_one_name_join_one_family() {
        let mut families = Families::new();
        for method in ["get", "set"] {
            let labels = vec![("method", method).into()];
            families.sample("calls_total", "Calls.", labels, Value::Counter(2));
        }
        families.gauge("open", "Open.", 1);
        assert_eq!(families.as_slice().len(), 2);
        assert_eq!(families.number("calls_total"), Some(Number::Integer(4)));
    }

    #[test]
    fn a_number_is_shown_without_a_fraction_where_it_has_none() {
        let show = |number: f64| Number::from(number).to_string();
        assert_eq!(show(5.0), "5");
        assert_eq!(show(0.25), "0.25");
        assert_eq!(show(-2.0), "-2");
        assert_eq!(show(f64::INFINITY), "+Inf");
        assert_eq!(show(f64::NAN), "NaN");
        assert_eq!(Number::from(-1.0).to_u64(), 0);
        assert_eq!(Number::from(1e300).to_u64(), u64::MAX);
    }
}
