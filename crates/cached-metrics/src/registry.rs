//! The registry of collected components, and the merging of their metrics into one set of families.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::family::{Families, Family, Label, Sample, Text};

/// A component that has metrics.
///
/// Metrics are collected whenever they are read, usually every few seconds, on any thread. An
/// implementation reads its counters and returns; it must not wait for I/O.
pub trait Collect: Send + Sync {
    /// Writes the current values into `into`.
    fn collect(&self, into: &mut Families);

    /// Returns the current values.
    fn families(&self) -> Families {
        let mut families = Families::new();
        self.collect(&mut families);
        families
    }
}

impl<C: Collect + ?Sized> Collect for Arc<C> {
    fn collect(&self, into: &mut Families) {
        (**self).collect(into);
    }
}

/// The limits on the result of one [`Registry::gather`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// The maximum number of families.
    pub families_max: usize,
    /// The maximum number of samples of all families together.
    pub samples_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { families_max: 4096, samples_max: 65_536 }
    }
}

/// A reason why gathering left something out.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GatherError {
    /// A family's or a label's name is invalid. Valid names have letters, digits and underscores,
    /// and do not start with a digit.
    #[error(
        "metric {family:?}: {name:?} is not a valid name; names consist of letters, digits and underscores, and do not \
         start with a digit"
    )]
    BadName {
        /// The family.
        family: Text,
        /// The name.
        name: Text,
    },
    /// Two collectors disagree about the kind or the help text of a family. The first definition is
    /// kept.
    #[error("metric {family}: collectors disagree about its kind or help text")]
    Conflict {
        /// The family.
        family: Text,
    },
    /// A family has two samples with the same labels, or a sample has two labels with the same
    /// name. The first of the two is kept.
    #[error("metric {family}: two samples have the same labels")]
    Duplicate {
        /// The family.
        family: Text,
    },
    /// There are more families or samples than [`Limits`] allow.
    #[error("metric {family}: beyond the limit of families or samples")]
    TooMany {
        /// The first family that was left out completely or in part.
        family: Text,
    },
}

/// The result of [`Registry::gather`].
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Gathered {
    /// The families, sorted by name, each with its samples sorted by labels.
    pub families: Families,
    /// The omissions, one entry for each family and reason.
    pub errors: Vec<GatherError>,
}

/// The components of a program that have metrics. Cloning is cheap, and all clones share one
/// registry.
#[derive(Clone, Default)]
pub struct Registry {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    limits: Limits,
    sources: Mutex<Sources>,
}

#[derive(Default)]
struct Sources {
    last_id: u64,
    /// The sources with their IDs, in the order of registration.
    list: Vec<(u64, Source)>,
}

impl Sources {
    fn remove(&mut self, id: u64) -> Option<Source> {
        let at = self.list.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(self.list.remove(at).1)
    }
}

#[derive(Clone)]
struct Source {
    collector: Arc<dyn Collect>,
    labels: Arc<[Label]>,
}

/// Keeps a component registered. Dropping this handle removes the component.
#[derive(Debug)]
#[must_use = "dropping a registration removes the component from the registry"]
pub struct Registration {
    inner: Weak<Inner>,
    id: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let removed = self.inner.upgrade().and_then(|inner| inner.sources().remove(self.id));
        // The collector is dropped outside the lock, because its destructor may do anything.
        drop(removed);
    }
}

impl Inner {
    fn sources(&self) -> MutexGuard<'_, Sources> {
        // A list of handles is intact even after a panic.
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    /// Returns an empty registry with the default [`Limits`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns an empty registry with these limits.
    #[must_use]
    pub fn with_limits(limits: Limits) -> Self {
        Self { inner: Arc::new(Inner { limits, sources: Mutex::default() }) }
    }

    /// Registers `collector`, whose samples get `labels` in addition to their own.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use cached_metrics::{Collect, Families, Registry};
    ///
    /// struct Answer;
    /// impl Collect for Answer {
    ///     fn collect(&self, into: &mut Families) {
    ///         into.gauge("answer", "The answer.", 42);
    ///     }
    /// }
    ///
    /// let registry = Registry::new();
    /// let registration = registry.register(Arc::new(Answer), [("shard", "0")]);
    /// assert_eq!(registry.gather().families.as_slice().len(), 1);
    /// drop(registration);
    /// assert_eq!(registry.gather().families.as_slice().len(), 0);
    /// ```
    pub fn register<L: Into<Label>>(
        &self,
        collector: Arc<dyn Collect>,
        labels: impl IntoIterator<Item = L>,
    ) -> Registration {
        self.add(Source { collector, labels: labels.into_iter().map(Into::into).collect() })
    }

    /// The function is not generic, so that it is compiled only in this crate.
    fn add(&self, source: Source) -> Registration {
        let mut sources = self.inner.sources();
        sources.last_id += 1;
        let id = sources.last_id;
        sources.list.push((id, source));
        Registration { inner: Arc::downgrade(&self.inner), id }
    }

    /// Collects the metrics of all components and merges them. A family that several components
    /// write has the samples of all of them.
    #[must_use]
    pub fn gather(&self) -> Gathered {
        // Collectors run outside the lock, so that one may register another.
        let sources: Vec<Source> =
            self.inner.sources().list.iter().map(|(_, source)| source.clone()).collect();
        let mut merge = Merge { limits: self.inner.limits, ..Merge::default() };
        for Source { collector, labels } in sources {
            collector.families().into_iter().for_each(|family| merge.add(family, &labels));
        }
        merge.finish()
    }
}

impl Collect for Registry {
    /// Writes the result of a gathering, without reporting the omissions.
    fn collect(&self, into: &mut Families) {
        into.append(self.gather().families);
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("sources", &self.inner.sources().list.len()).finish_non_exhaustive()
    }
}

/// The state of merging families into one sorted set.
#[derive(Default)]
struct Merge {
    limits: Limits,
    /// The families, sorted by name.
    families: Vec<Family>,
    /// The labels of each family's samples.
    known: HashSet<(Text, Vec<Label>)>,
    samples_count: usize,
    errors: Vec<GatherError>,
}

impl Merge {
    fn report(&mut self, error: GatherError) {
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    fn add(&mut self, family: Family, extra: &[Label]) {
        let Family { name, help, kind, samples } = family;
        if !is_name(&name) {
            return self.report(GatherError::BadName { family: name.clone(), name });
        }
        let at = match self.families.binary_search_by(|known| known.name.cmp(&name)) {
            Ok(at) if self.families[at].kind != kind || self.families[at].help != help => {
                return self.report(GatherError::Conflict { family: name });
            }
            Ok(at) => at,
            Err(_) if self.families.len() >= self.limits.families_max => {
                return self.report(GatherError::TooMany { family: name });
            }
            Err(at) => {
                self.families.insert(at, Family { name, help, kind, samples: Vec::new() });
                at
            }
        };
        for mut sample in samples {
            sample.labels.extend_from_slice(extra);
            sample.labels.sort_unstable();
            if let Err(error) = self.add_sample(at, sample) {
                self.report(error);
            }
        }
    }

    /// Adds a sample of the family at `at`.
    fn add_sample(&mut self, at: usize, sample: Sample) -> Result<(), GatherError> {
        let target = &mut self.families[at];
        let family = || target.name.clone();
        if let Some(label) = sample.labels.iter().find(|label| !is_name(&label.name)) {
            return Err(GatherError::BadName { family: family(), name: label.name.clone() });
        }
        if sample.value.kind() != target.kind {
            return Err(GatherError::Conflict { family: family() });
        }
        let is_ambiguous = sample.labels.windows(2).any(|pair| pair[0].name == pair[1].name);
        let labels = (family(), sample.labels.clone());
        if is_ambiguous || self.known.contains(&labels) {
            return Err(GatherError::Duplicate { family: family() });
        }
        if self.samples_count >= self.limits.samples_max {
            return Err(GatherError::TooMany { family: family() });
        }
        self.samples_count += 1;
        self.known.insert(labels);
        target.samples.push(sample);
        Ok(())
    }

    fn finish(self) -> Gathered {
        let mut families = self.families;
        families.iter_mut().for_each(|of| of.samples.sort_unstable_by(|a, b| a.labels.cmp(&b.labels)));
        Gathered { families: families.into_iter().collect(), errors: self.errors }
    }
}

/// Returns whether `text` is a valid name of a metric or a label.
fn is_name(text: &str) -> bool {
    let is_first = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    text.bytes().next().is_some_and(is_first)
        && text.bytes().all(|byte| is_first(byte) || byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::{Kind, Value};

    /// A collector that is a function.
    struct Calls<F>(F);

    impl<F: Fn(&mut Families) + Send + Sync> Collect for Calls<F> {
        fn collect(&self, into: &mut Families) {
            (self.0)(into);
        }
    }

    const NO_LABELS: [(&str, &str); 0] = [];

    fn names(gathered: &Gathered) -> Vec<&str> {
        gathered.families.as_slice().iter().map(|family| &*family.name).collect()
    }

    #[test]
    fn components_with_one_metric_are_told_apart_by_their_labels() {
        let registry = Registry::new();
        let reads = |into: &mut Families| into.counter("reads_total", "Reads.", 1);
        let _b = registry.register(Arc::new(Calls(reads)), [("shard", "b")]);
        let _a = registry.register(Arc::new(Calls(reads)), [("shard", "a")]);
        let gathered = registry.gather();
        assert_eq!(gathered.errors, []);
        let family = gathered.families.get("reads_total").unwrap();
        let shards: Vec<_> = family.samples.iter().map(|sample| &*sample.labels[0].value).collect();
        assert_eq!(shards, ["a", "b"]);
    }

    #[test]
    fn a_component_is_gone_when_its_registration_is_dropped() {
        let registry = Registry::new();
        let collector = Arc::new(Calls(|into: &mut Families| into.gauge("open", "Open.", 1)));
        let registration = registry.register(collector.clone(), NO_LABELS);
        assert_eq!(names(&registry.gather()), ["open"]);
        drop(registration);
        assert!(names(&registry.gather()).is_empty());
        assert_eq!(Arc::strong_count(&collector), 1);
    }

    #[test]
    fn a_registration_may_outlive_its_registry() {
        let registry = Registry::new();
        let registration = registry.register(Arc::new(Calls(|_: &mut Families| ())), NO_LABELS);
        drop(registry);
        drop(registration);
    }

    #[test]
    fn what_contradicts_an_earlier_component_is_left_out_and_reported() {
        let registry = Registry::new();
        let first = |into: &mut Families| into.counter("x_total", "X.", 1);
        let other_kind = |into: &mut Families| into.gauge("x_total", "X.", 2);
        let other_help = |into: &mut Families| into.counter("x_total", "Y.", 3);
        let same = |into: &mut Families| into.counter("x_total", "X.", 4);
        let _all = [
            registry.register(Arc::new(Calls(first)), NO_LABELS),
            registry.register(Arc::new(Calls(other_kind)), NO_LABELS),
            registry.register(Arc::new(Calls(other_help)), NO_LABELS),
            registry.register(Arc::new(Calls(same)), NO_LABELS),
        ];
        let gathered = registry.gather();
        let family = || Text::from("x_total");
        let errors =
            [GatherError::Conflict { family: family() }, GatherError::Duplicate { family: family() }];
        assert_eq!(gathered.errors, errors);
        assert_eq!(gathered.families.number("x_total").map(|number| number.to_u64()), Some(1));
    }

    #[test]
    fn a_family_with_samples_of_another_kind_is_a_conflict() {
        let registry = Registry::new();
        let mixed = |into: &mut Families| {
            let samples = vec![Sample { labels: Vec::new(), value: Value::Gauge(1.0) }];
            into.add(Family { name: "x".into(), help: "X.".into(), kind: Kind::Counter, samples });
        };
        let _mixed = registry.register(Arc::new(Calls(mixed)), NO_LABELS);
        assert_eq!(registry.gather().errors, [GatherError::Conflict { family: "x".into() }]);
    }

    #[test]
    fn names_are_checked() {
        let registry = Registry::new();
        let bad = |into: &mut Families| {
            into.counter("9lives", "Bad.", 1);
            into.counter("", "Bad.", 1);
            into.sample("ok_total", "Good.", vec![("a-b", "c").into()], Value::Counter(1));
            into.sample(
                "twice_total",
                "Good.",
                vec![("a", "b").into(), ("a", "c").into()],
                Value::Counter(1),
            );
        };
        let _bad = registry.register(Arc::new(Calls(bad)), NO_LABELS);
        let errors = registry.gather().errors;
        let bad = |family, name| GatherError::BadName { family, name };
        assert_eq!(
            errors,
            [
                bad("9lives".into(), "9lives".into()),
                bad("".into(), "".into()),
                bad("ok_total".into(), "a-b".into()),
                GatherError::Duplicate { family: "twice_total".into() },
            ]
        );
    }

    #[test]
    fn families_and_samples_are_limited() {
        let registry = Registry::with_limits(Limits { families_max: 2, samples_max: 3 });
        let many = |into: &mut Families| {
            for name in ["a_total", "b_total", "c_total"] {
                for label in ["1", "2"] {
                    into.sample(name, "Many.", vec![("n", label).into()], Value::Counter(1));
                }
            }
        };
        let _many = registry.register(Arc::new(Calls(many)), NO_LABELS);
        let gathered = registry.gather();
        assert_eq!(names(&gathered), ["a_total", "b_total"]);
        let samples: usize = gathered.families.as_slice().iter().map(|family| family.samples.len()).sum();
        assert_eq!(samples, 3);
        let too_many = |family: &'static str| GatherError::TooMany { family: family.into() };
        assert_eq!(gathered.errors, [too_many("b_total"), too_many("c_total")]);
    }

    #[test]
    fn a_registry_can_be_a_component_of_another() {
        let (outer, inner) = (Registry::new(), Registry::new());
        let _one =
            inner.register(Arc::new(Calls(|into: &mut Families| into.gauge("x", "X.", 1))), [("a", "b")]);
        let _two = outer.register(Arc::new(inner.clone()), [("c", "d")]);
        let gathered = outer.gather();
        assert_eq!(gathered.families.as_slice()[0].samples[0].labels.len(), 2);
    }
}
