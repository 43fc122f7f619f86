//! The object cache.

use std::sync::Arc;
use std::time::Duration;

use blocker::WriteMode;
use cached_core::object::{AttachState, DURABILITIES, JournalState, NamespaceCounters, ObjectCache};
use cached_metrics::{Collect, Families, LabelledMetric};

use crate::listener::AdminServer;
use crate::sources::{Shown, journal_part};
use crate::status::Source;
use crate::status::document::{Document, Memory, NamespacePart, Objects};

/// The margin added to twice the age at which a flush begins: while dirty data is older than the
/// sum, the program is not ready.
const DIRTY_AGE_MARGIN: Duration = Duration::from_secs(30);

/// The part of the admin listener for an object cache.
#[derive(Debug)]
pub struct ObjectsSource {
    cache: ObjectCache,
}

impl ObjectsSource {
    /// Shows an object cache: its metrics and its part of the document. The program is not ready
    /// while dirty data is much older than it should become, or while the journal does not work. A
    /// detached cache is noted, but does not make the program unready.
    pub fn show(admin: &AdminServer, cache: &ObjectCache) -> Shown {
        let source = Arc::new(ObjectsSource { cache: cache.clone() });
        admin.health().check_readiness_of(&source, |source| {
            let ages = source.cache.dirty_ages().into_iter();
            let mut limited = ages.map(|(age, max)| (age, 2 * max + DIRTY_AGE_MARGIN));
            let (age, limit) = limited.find(|(age, limit)| age > limit)?;
            Some(format!("dirty data are {} s old, more than {} s", age.as_secs(), limit.as_secs()))
        });
        admin.health().check_readiness_of(&source, |source| {
            let journal = source.cache.journal_health()?;
            let state = match journal.state {
                JournalState::Ok => return None,
                JournalState::Draining => "has failed, and its changes are being stored",
                JournalState::Void => "has failed, and changes are not journaled",
                _ => "works again, and the changes made in the meantime are being stored",
            };
            let reason = journal.reason.map_or_else(String::new, |reason| format!(": {reason}"));
            Some(format!("the journal {state}{reason}"))
        });
        admin.health().note_readiness_of(&source, |source| attach_note(source.cache.attach_status().state));
        crate::cache_routes::add_namespace_routes(admin.routes(), cache);
        crate::cache_routes::add_attach_routes(admin.routes(), cache);
        Shown::new(admin, &source)
    }
}

/// Returns a note about a cache that is not attached to the request path as usual.
fn attach_note(state: AttachState) -> Option<String> {
    let text = match state {
        AttachState::Attached => return None,
        AttachState::Storing => "is being detached: dirty data are being stored",
        AttachState::Transit => "is being detached: changes go to the store, reads to the cache",
        AttachState::Detached => "is detached: requests go to the store",
    };
    Some(format!("the object cache {text}"))
}

impl Collect for ObjectsSource {
    fn collect(&self, into: &mut Families) {
        self.cache.collect(into);
        collect_namespaces(self.cache.namespaces(), into);
        let help = "The age of the oldest change that is not stored yet.";
        into.measure("cache_dirty_age_seconds", help, &self.cache.dirty_age());
        let help = "The age at which the flush of a change begins.";
        into.measure("cache_dirty_age_limit_seconds", help, &self.cache.dirty_age_max());
        let help = "The maximum amount of dirty data.";
        into.measure("cache_dirty_limit_bytes", help, &self.cache.dirty_bytes_max());
    }
}

impl Source for ObjectsSource {
    fn fill(&self, document: &mut Document) {
        let counters = self.cache.counters();
        let (namespaces, namespaces_other) = namespace_parts(self.cache.namespaces());
        document.journal = journal_part(&self.cache);
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        document.memory.push(Memory {
            owner: "objects",
            used_bytes: counters.memory_bytes.saturating_sub(counters.free_bytes),
            limit_bytes: counters.memory_bytes,
        });
        document.objects = Some(Objects {
            attach_state: self.cache.attach_status().state.name(),
            dirty_limit_bytes: self.cache.dirty_bytes_max(),
            dirty_age_ms: millis(self.cache.dirty_age()),
            dirty_age_limit_ms: millis(self.cache.dirty_age_max()),
            counters,
            namespaces,
            namespaces_other,
        });
    }
}

/// The maximum number of namespaces that the document shows.
const SHOWN_MAX: usize = 50;

/// The maximum number of namespaces that are not configured but have their own series.
const SERIES_MAX: usize = 64;

const WRITES: LabelledMetric<1> = LabelledMetric::new(
    "cache_namespace_writes_total",
    ["durability"],
    "Changes by namespace and the durability with which they are acknowledged: cached, journaled, replicated, \
     stored.",
);

/// The name for all namespaces without their own series.
const OTHERS: &str = "other";

fn name(of: &NamespaceCounters) -> String {
    of.namespace.as_ref().map_or_else(|| OTHERS.to_owned(), ToString::to_string)
}

/// Returns the namespaces that have their own series, followed by one entry with the sums of all
/// others, if there are any. Configured namespaces have their own series, as do the first
/// [`SERIES_MAX`] others that were used. The largest ones are not chosen, because their counters
/// would jump as they come and go.
fn with_series(all: Vec<NamespaceCounters>) -> Vec<NamespaceCounters> {
    let mut unconfigured = 0;
    let (mut shown, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|of| {
        let counts = of.namespace.is_some() && !of.is_configured;
        unconfigured += usize::from(counts);
        of.namespace.is_some() && (!counts || unconfigured <= SERIES_MAX)
    });
    shown.extend(others.into_iter().reduce(together));
    shown
}

/// Returns the sums of two namespaces, without a name.
fn together(a: NamespaceCounters, b: NamespaceCounters) -> NamespaceCounters {
    let mut sum = a;
    (sum.namespace, sum.is_configured, sum.dirty_bytes_max) = (None, false, None);
    // Only a namespace that is or once was configured has a share.
    (sum.memory_target_bytes, sum.ghost_hit_bytes, sum.memory_gain) = (None, None, None);
    sum.objects += b.objects;
    sum.cached_bytes += b.cached_bytes;
    sum.dirty_bytes += b.dirty_bytes;
    sum.dirty_age = sum.dirty_age.max(b.dirty_age);
    sum.dirty_age_max = sum.dirty_age_max.max(b.dirty_age_max);
    sum.writes_throttled += b.writes_throttled;
    sum.read_hits += b.read_hits;
    sum.read_misses += b.read_misses;
    sum.store += b.store;
    sum.quota = None;
    sum.quota_refusals += b.quota_refusals;
    sum.read_ahead_bytes += b.read_ahead_bytes;
    sum.read_ahead_used_bytes += b.read_ahead_used_bytes;
    sum.read_ahead_wasted_bytes += b.read_ahead_wasted_bytes;
    sum.bypassed_read_bytes += b.bypassed_read_bytes;
    sum.bypassed_write_bytes += b.bypassed_write_bytes;
    sum.writes.iter_mut().zip(b.writes).for_each(|(sum, count)| *sum += count);
    sum
}

/// Writes the metrics: one series for each namespace that has its own ([`with_series`]), and one
/// for all others together.
pub(super) fn collect_namespaces(all: Vec<NamespaceCounters>, into: &mut Families) {
    for of in with_series(all) {
        let mut own = of.families();
        of.store.collect(&mut own);
        of.quota.iter().for_each(|quota| quota.collect(&mut own));
        for (durability, count) in DURABILITIES.into_iter().zip(of.writes) {
            own.measure(WRITES.of([durability]), "", &count);
        }
        into.append_labelled(&[("namespace", name(&of)).into()], own);
    }
}

/// Returns the namespaces with the most dirty data, then those with the most data, and the number
/// of the others.
pub(super) fn namespace_parts(mut all: Vec<NamespaceCounters>) -> (Vec<NamespacePart>, u64) {
    all.sort_by_key(|of| std::cmp::Reverse((of.dirty_bytes, of.cached_bytes)));
    let others = all.len().saturating_sub(SHOWN_MAX) as u64;
    (all.iter().take(SHOWN_MAX).map(part).collect(), others)
}

fn part(of: &NamespaceCounters) -> NamespacePart {
    let [cached, journaled, replicated, stored] = of.writes;
    NamespacePart {
        namespace: name(of),
        write: match of.write_mode {
            WriteMode::Through => "through",
            WriteMode::Around => "around",
            WriteMode::Back => "back",
            WriteMode::ReadOnly => "read-only",
        },
        objects: of.objects,
        cached_bytes: of.cached_bytes,
        dirty_bytes: of.dirty_bytes,
        dirty_age_ms: u64::try_from(of.dirty_age.as_millis()).unwrap_or(u64::MAX),
        dirty_age_limit_ms: u64::try_from(of.dirty_age_max.as_millis()).unwrap_or(u64::MAX),
        read_hits: of.read_hits,
        read_misses: of.read_misses,
        writes_cached: cached,
        writes_journaled: journaled,
        writes_replicated: replicated,
        writes_stored: stored,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use blocker::executor::block_on;
    use blocker::{BlockerExt, Memory, Namespace, WriteMode, WriteRequest};
    use cached_core::object::ObjectCache;

    use super::*;

    #[test]
    fn configured_ones_have_series_and_the_first_others_and_no_count_is_missing() {
        let name = |at: usize| Namespace::new(format!("n{at}")).expect("a name");
        let cache = ObjectCache::builder(Arc::new(Memory::default())).memory_bytes(8 << 20);
        let cache = cache.namespace_write_mode(name(90), WriteMode::Through);
        let cache = cache.start().expect("a cache");
        for at in 0..100 {
            let object = format!("n{at}/o").parse().expect("a name");
            block_on(cache.write(WriteRequest::new(object, 0, vec![1; 10]))).expect("it is written");
        }
        let all = cache.namespaces();
        assert_eq!(all.len(), 100);
        let shown = with_series(all);
        let names: Vec<_> = shown.iter().map(|of| of.namespace.clone()).collect();
        let mut expected = vec![Some(name(90))];
        expected.extend((0..64).map(|at| Some(name(at))));
        expected.push(None);
        assert_eq!(names, expected);
        let last = shown.last().expect("the others");
        assert_eq!((last.objects, last.writes.iter().sum::<u64>()), (35, 35));
        let mut families = Families::new();
        collect_namespaces(cache.namespaces(), &mut families);
        assert_eq!(families.get("cache_namespace_objects").expect("a family").samples.len(), 66);
    }
}
