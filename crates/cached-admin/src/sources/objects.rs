//! The object cache.

use std::sync::Arc;
use std::time::Duration;

use cached_core::object::{AttachState, JournalState, ObjectCache};
use cached_metrics::{Collect, Families, Value};

use super::{Shown, journal, namespaces};
use crate::listener::AdminServer;
use crate::status::Source;
use crate::status::document::{Document, Memory, Objects};

/// By how much dirty data may be older than the age at which their flush begins before the program is not ready.
const DIRTY_AGE_MARGIN: Duration = Duration::from_secs(30);

/// What is shown of an object cache.
#[derive(Debug)]
pub struct ObjectsSource {
    cache: ObjectCache,
}

impl ObjectsSource {
    /// Shows an object cache: its metrics, its part of the document, and that the program is not ready while dirty data are much
    /// older than they should get, or the journal does not work. A cache that is detached is noted, and no reason.
    pub fn show(admin: &AdminServer, cache: &ObjectCache) -> Shown {
        let source = Arc::new(ObjectsSource { cache: cache.clone() });
        let checked = Arc::downgrade(&source);
        admin.health().check_readiness(move || {
            let aging = &checked.upgrade()?.cache;
            let (age, limit) = (aging.dirty_age(), 2 * aging.dirty_age_max() + DIRTY_AGE_MARGIN);
            (age > limit)
                .then(|| format!("dirty data are {} s old, more than {} s", age.as_secs(), limit.as_secs()))
        });
        let checked = Arc::downgrade(&source);
        admin.health().check_readiness(move || {
            let journal = checked.upgrade()?.cache.journal_health()?;
            let state = match journal.state {
                JournalState::Ok => return None,
                JournalState::Draining => "has failed, and what it had is being stored",
                JournalState::Void => "has failed, and changes are not journaled",
                _ => "works again, and what was changed without it is being stored",
            };
            let reason = journal.reason.map_or_else(String::new, |reason| format!(": {reason}"));
            Some(format!("the journal {state}{reason}"))
        });
        let noted = Arc::downgrade(&source);
        admin.health().note_readiness(move || attach_note(noted.upgrade()?.cache.attach_status().state));
        crate::namespaces::add_routes(admin.routes(), cache);
        crate::attaching::add_routes(admin.routes(), cache);
        Shown::new(admin, &source)
    }
}

/// Returns what is to be known of a cache that is not in the path of requests as usual.
fn attach_note(state: AttachState) -> Option<String> {
    let text = match state {
        AttachState::Attached => return None,
        AttachState::Storing => "is being detached: what is dirty is stored",
        AttachState::Transit => "is being detached: changes go to the store, reads to the cache",
        AttachState::Detached => "is detached: requests go to the store",
    };
    Some(format!("the object cache {text}"))
}

impl Collect for ObjectsSource {
    fn collect(&self, into: &mut Families) {
        self.cache.collect(into);
        namespaces::collect(self.cache.namespaces(), into);
        let seconds = |time: Duration| Value::Gauge(time.as_secs_f64());
        let help = "The age of the oldest change that is not stored yet.";
        into.sample("cache_dirty_age_seconds", help, Vec::new(), seconds(self.cache.dirty_age()));
        let help = "The age at which the flush of a change begins.";
        into.sample("cache_dirty_age_limit_seconds", help, Vec::new(), seconds(self.cache.dirty_age_max()));
        into.gauge(
            "cache_dirty_limit_bytes",
            "The most data that may be dirty.",
            self.cache.dirty_bytes_max(),
        );
    }
}

impl Source for ObjectsSource {
    fn fill(&self, document: &mut Document) {
        let counters = self.cache.counters();
        let (namespaces, namespaces_other) = namespaces::parts(self.cache.namespaces());
        document.journal = journal::part(&self.cache);
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        document.memory.push(Memory {
            owner: "objects",
            used_bytes: counters.memory_bytes.saturating_sub(counters.free_bytes),
            limit_bytes: counters.memory_bytes,
        });
        document.objects = Some(Objects {
            attach_state: self.cache.attach_status().state.name(),
            count: counters.objects,
            memory_bytes: counters.memory_bytes,
            free_bytes: counters.free_bytes,
            clean_bytes: counters.clean_bytes,
            zero_bytes: counters.zero_bytes,
            dirty_bytes: counters.dirty_bytes,
            dirty_limit_bytes: self.cache.dirty_bytes_max(),
            dirty_age_ms: millis(self.cache.dirty_age()),
            dirty_age_limit_ms: millis(self.cache.dirty_age_max()),
            writing_bytes: counters.writing_bytes,
            loading_bytes: counters.loading_bytes,
            read_hits: counters.read_hits,
            read_misses: counters.read_misses,
            writes_back: counters.writes_back,
            writes_through: counters.writes_through,
            writes_throttled: counters.writes_throttled,
            flushes: counters.flushes,
            flush_failures: counters.flush_failures,
            flush_requests: counters.flush_requests,
            flush_bytes: counters.flush_bytes,
            lost_bytes: counters.lost_bytes,
            lost_objects: counters.lost_objects,
            bucket_evictions: counters.bucket_evictions,
            object_evictions: counters.object_evictions,
            namespaces,
            namespaces_other,
        });
    }
}
