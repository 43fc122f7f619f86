//! Tables of metrics, which keep everything about a component's counter in one place.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::family::{Families, Kind, Label, Value};
use crate::instrument::{Counter, Gauge, Histogram};

/// Declares a struct of counters and gauges, each with its metric, and implements
/// [`Collect`](crate::Collect).
///
/// A field's doc comment is the metric's help text, and therefore appears in the operators'
/// reference. A name that ends in `_total` belongs to a counter, any other name to a gauge. A field
/// without a metric is an ordinary field.
///
/// ```
/// use cached_metrics::{Collect, Counter, LabelledMetric, counters};
///
/// const LOST: LabelledMetric<1> =
///     LabelledMetric::new("mailer_messages_lost_total", ["reason"], "Messages lost, by reason.");
///
/// counters! {
///     /// What a mailer counts.
///     #[derive(Debug, Default)]
///     pub struct Mailer {
///         /// Messages sent.
///         pub sent: Counter => "mailer_messages_total",
///         /// Messages that nobody accepted.
///         pub refused: Counter => LOST.of(["refused"]),
///         /// Messages that did not fit.
///         pub dropped: Counter => LOST.of(["full"]),
///     }
/// }
///
/// let mailer = Mailer::default();
/// mailer.sent.add(3);
/// let families = mailer.families();
/// assert_eq!(families.get("mailer_messages_total").map(|family| &*family.help), Some("Messages sent."));
/// assert_eq!(families.get("mailer_messages_lost_total").map(|family| family.samples.len()), Some(2));
/// ```
///
/// The type parameter of a struct is the type of all fields: `Counts<Counter>` is the table in
/// which threads count, and `Counts<u64>` has the results. `map` converts one into another, and
/// `add_to` adds one to another.
///
/// ```
/// use cached_metrics::{Counter, counters};
///
/// counters! {
///     /// What a mailer counts.
///     #[derive(Debug, Default, PartialEq)]
///     pub struct Counts<C> {
///         /// Messages sent.
///         sent => "mailer_messages_total",
///     }
/// }
///
/// let counts = Counts::<Counter>::default();
/// counts.sent.increment();
/// assert_eq!(counts.map(Counter::get), Counts { sent: 1 });
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[$($meta:tt)*])*
        $vis:vis struct $Name:ident<$C:ident $(= $default:ty)?> {
            $($(#[$($about:tt)*])* $field:ident $(=> $metric:expr)?,)*
        }
    ) => {
        $(#[$($meta)*])*
        $vis struct $Name<$C $(= $default)?> {
            $($(#[$($about)*])* $vis $field: $C,)*
        }

        #[allow(dead_code, reason = "not every table needs all of them")]
        impl<$C> $Name<$C> {
            /// Returns the table with the result of `each` for every field.
            $vis fn map<D>(&self, mut each: impl FnMut(&$C) -> D) -> $Name<D> {
                $Name { $($field: each(&self.$field),)* }
            }

            /// Returns the fields with their names.
            $vis fn fields(&self) -> impl Iterator<Item = (&'static str, &$C)> {
                [$((stringify!($field), &self.$field),)*].into_iter()
            }

            /// Calls `each` with every field of this table and the corresponding one of `other`.
            $vis fn zip<D>(&self, other: &mut $Name<D>, mut each: impl FnMut(&$C, &mut D)) {
                $(each(&self.$field, &mut other.$field);)*
            }
        }

        impl<$C: $crate::Reading + Send + Sync> $crate::Collect for $Name<$C> {
            fn collect(&self, into: &mut $crate::Families) {
                $($crate::counters!(@field into, self.$field, [$($metric)?] $(#[$($about)*])*);)*
            }
        }
    };
    (
        $(#[$($meta:tt)*])*
        $vis:vis struct $Name:ident {
            $($(#[$($about:tt)*])* $field_vis:vis $field:ident: $type:ty $(=> $metric:expr)?,)*
        }
    ) => {
        $(#[$($meta)*])*
        $vis struct $Name {
            $($(#[$($about)*])* $field_vis $field: $type,)*
        }

        impl $crate::Collect for $Name {
            fn collect(&self, into: &mut $crate::Families) {
                $($crate::counters!(@field into, self.$field, [$($metric)?] $(#[$($about)*])*);)*
            }
        }
    };
    (@field $into:ident, $value:expr, [] $($about:tt)*) => {};
    (@field $into:ident, $value:expr, [$metric:expr] $($about:tt)*) => {{
        const HELP: &str = $crate::counters!(@help [] $($about)*).trim_ascii();
        $into.measure($metric, HELP, &$value);
    }};
    (@help [$($line:literal)*] #[doc = $next:literal] $($rest:tt)*) => {
        $crate::counters!(@help [$($line)* $next] $($rest)*)
    };
    (@help [$($line:literal)*] #[$($other:tt)*] $($rest:tt)*) => {
        $crate::counters!(@help [$($line)*] $($rest)*)
    };
    (@help [$($line:literal)*]) => { concat!($($line),*) };
}

/// A metric whose samples differ in labels.
#[derive(Debug)]
pub struct LabelledMetric<const N: usize> {
    name: &'static str,
    labels: [&'static str; N],
    help: &'static str,
}

impl<const N: usize> LabelledMetric<N> {
    /// Returns the metric with these label names.
    #[must_use]
    pub const fn new(name: &'static str, labels: [&'static str; N], help: &'static str) -> Self {
        Self { name, labels, help }
    }

    /// Returns the series with these label values.
    #[must_use]
    pub fn of(&self, values: [&'static str; N]) -> Series {
        Series { name: self.name, help: Some(self.help), labels: labels_of(&self.labels, &values) }
    }
}

/// Returns labels of these names and values.
fn labels_of(names: &[&'static str], values: &[&'static str]) -> Vec<Label> {
    names.iter().zip(values).map(|(name, value)| Label::from((*name, *value))).collect()
}

/// The name and labels under which a value is reported.
#[derive(Debug)]
pub struct Series {
    name: &'static str,
    /// The help text of the metric, if the field's own describes only a part of it.
    help: Option<&'static str>,
    labels: Vec<Label>,
}

impl From<&'static str> for Series {
    fn from(name: &'static str) -> Self {
        Self { name, help: None, labels: Vec::new() }
    }
}

/// A value that a metric can have.
pub trait Reading {
    /// Returns the present value in the form of `kind`; `None` if the field has no value.
    fn value(&self, kind: Kind) -> Option<Value>;
}

impl Reading for u64 {
    fn value(&self, kind: Kind) -> Option<Value> {
        Some(if kind == Kind::Counter { Value::Counter(*self) } else { Value::Gauge(*self as f64) })
    }
}

impl Reading for f64 {
    fn value(&self, kind: Kind) -> Option<Value> {
        Some(if kind == Kind::Counter { Value::CounterFloat(*self) } else { Value::Gauge(*self) })
    }
}

impl<M: Reading> Reading for Option<M> {
    fn value(&self, kind: Kind) -> Option<Value> {
        self.as_ref()?.value(kind)
    }
}

impl Reading for Histogram {
    fn value(&self, _: Kind) -> Option<Value> {
        Some(Histogram::value(self))
    }
}

macro_rules! reading {
    ($($type:ty: |$this:ident| $value:expr;)*) => {
        $(impl Reading for $type {
            fn value(&self, kind: Kind) -> Option<Value> {
                let $this = self;
                $value.value(kind)
            }
        })*
    };
}

reading! {
    u32: |this| u64::from(*this);
    usize: |this| *this as u64;
    bool: |this| u64::from(*this);
    Duration: |this| this.as_secs_f64();
    AtomicU64: |this| this.load(Ordering::Relaxed);
    AtomicUsize: |this| this.load(Ordering::Relaxed);
    Counter: |this| this.get();
    Gauge: |this| this.get();
}

impl Families {
    /// Adds the value of a [table](crate::counters)'s field. The name determines the kind.
    pub fn measure(&mut self, series: impl Into<Series>, help: &'static str, value: &impl Reading) {
        self.measure_series(series.into(), help, value);
    }

    /// The function is not generic, so that it is compiled only in this crate.
    fn measure_series(&mut self, series: Series, help: &'static str, value: &dyn Reading) {
        let Series { name, help: whole, labels } = series;
        let kind = if name.ends_with("_total") { Kind::Counter } else { Kind::Gauge };
        if let Some(value) = value.value(kind) {
            self.sample(name, whole.unwrap_or(help), labels, value);
        }
    }

    /// Adds the families of `other`, with `labels` before their own.
    pub fn append_labelled(&mut self, labels: &[Label], other: Self) {
        for mut family in other {
            for sample in &mut family.samples {
                sample.labels.splice(0..0, labels.iter().cloned());
            }
            self.add(family);
        }
    }
}
