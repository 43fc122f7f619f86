//! The namespaces of a cache, as its control plane shows and changes them.

use std::sync::Arc;

use blocker::{
    DirtyData, Error, Namespace, NamespacePage, NamespaceSettings, NamespaceState, RemovedNamespace, Reply,
    Result,
};

use super::cache::ObjectCache;
use super::namespace_counters::NamespaceCounters;
use super::namespace_removal;

/// The largest number of namespaces on one page.
const PAGE_MAX: usize = 256;

/// Returns the state of a namespace that is configured or has been used.
///
/// # Errors
/// `Missing` if it is neither.
pub(crate) fn state(cache: &ObjectCache, namespace: &Namespace) -> Result<NamespaceState> {
    let all = cache.namespaces();
    let of = all.iter().find(|of| of.namespace.as_ref() == Some(namespace)).ok_or(Error::Missing)?;
    Ok(state_of(cache, namespace, of))
}

/// Returns the page of those after `after`.
pub(crate) fn states(cache: &ObjectCache, after: Option<&Namespace>) -> NamespacePage {
    let all = cache.namespaces();
    let mut all: Vec<(&Namespace, &NamespaceCounters)> =
        all.iter().filter_map(|of| Some((of.namespace.as_ref()?, of))).collect();
    all.retain(|(name, _)| after.is_none_or(|after| *name > after));
    all.sort_unstable_by_key(|(name, _)| *name);
    let mut page = NamespacePage::default();
    page.has_more = all.len() > PAGE_MAX;
    page.states = all.iter().take(PAGE_MAX).map(|(name, of)| state_of(cache, name, of)).collect();
    page
}

fn state_of(cache: &ObjectCache, name: &Namespace, of: &NamespaceCounters) -> NamespaceState {
    let mut state = NamespaceState::new(name.clone(), of.write_mode);
    (state.is_changing, state.is_configured) = (of.is_mode_changing, of.is_configured);
    for (key, (value, _)) in cache.namespace_settings(name).values {
        state.settings.set(key, value);
    }
    let counts = [
        ("objects", of.objects),
        ("cached_bytes", of.cached_bytes),
        ("dirty_bytes", of.dirty_bytes),
        ("dirty_age_ms", u64::try_from(of.dirty_age.as_millis()).unwrap_or(u64::MAX)),
        ("writes_throttled", of.writes_throttled),
        ("read_hits", of.read_hits),
        ("read_misses", of.read_misses),
        ("writes", of.writes.iter().sum()),
    ];
    state.counts = counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
    state.counts.extend(of.dirty_bytes_max.map(|bytes| ("dirty_bytes_max".to_owned(), bytes)));
    state
}

/// Sets settings and write mode of a namespace; answers when nothing of the mode before is left.
pub(crate) fn change(cache: &ObjectCache, namespace: &Namespace, settings: &NamespaceSettings) -> Reply<()> {
    if settings.is_empty() {
        return Reply::err(Error::Invalid("give a write mode, or settings, or both".into()));
    }
    Reply::pending(cache.change_namespace(namespace, settings, None))
}

/// Drops what the cache has of a namespace.
pub(crate) fn remove(
    cache: &ObjectCache,
    namespace: Namespace,
    dirty_data: DirtyData,
) -> Reply<RemovedNamespace> {
    let shared = Arc::clone(cache.shared());
    Reply::pending(
        async move { namespace_removal::drop_namespace(&shared, &namespace, dirty_data, None).await },
    )
}
