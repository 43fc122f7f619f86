//! Observed requests: counts for `stats detail` and event lines for `watch`.
//!
//! Requests check [`Executor::is_observed`], one word, and call these functions only if it holds. The
//! attributes of an item are looked up anew, so that the usual path carries nothing for them; another client
//! may have changed the item in between.

use super::Executor;
use crate::telemetry::watch::ItemSummary;
use crate::telemetry::watch::events::{DELETIONS, DETAIL, FETCHERS, MUTATIONS};
use cached_core::kv::{Miss, StoreMode, StoreOutcome};
use std::sync::atomic::Ordering;

impl Executor<'_> {
    /// Returns whether requests are observed. A request may change that in the middle of a batch.
    #[inline]
    pub(super) fn is_observed(&self) -> bool {
        self.shared.observed_events.load(Ordering::Relaxed) != 0
    }

    fn wants(&self, kind: u32) -> bool {
        self.shared.observed_events.load(Ordering::Relaxed) & kind != 0
    }

    /// Reports a retrieval.
    #[cold]
    pub(super) fn observe_get(&self, key: &[u8], result: Result<(), Miss>) {
        if self.wants(DETAIL) {
            self.shared.prefixes.record_get(key, result.is_ok());
        }
        if self.wants(FETCHERS) {
            let status = match result {
                Ok(()) => "found",
                Err(Miss::Expired) => "expired",
                Err(Miss::Flushed) => "flushed",
                Err(_) => "not_found",
            };
            let item = if result.is_ok() { self.summary_of(key) } else { None };
            self.shared.watch.fetched(key, item, status, self.client);
        }
    }

    /// Reports an attempt to store.
    #[cold]
    pub(super) fn observe_store(
        &self,
        key: &[u8],
        value_bytes: usize,
        mode: StoreMode,
        outcome: StoreOutcome,
    ) {
        let refused = matches!(outcome, StoreOutcome::TooLarge | StoreOutcome::OutOfMemory);
        if self.wants(DETAIL) && !refused {
            self.shared.prefixes.record_set(key);
        }
        if self.wants(MUTATIONS) {
            let stored =
                matches!(outcome, StoreOutcome::Stored { .. }).then(|| self.summary_of(key)).flatten();
            let item = stored.unwrap_or_else(|| ItemSummary {
                class: self.class(key, value_bytes, 0),
                value_bytes: if refused { 0 } else { value_bytes },
                ttl_secs: 0,
            });
            self.shared.watch.stored(key, item, mode, outcome, self.client);
        }
    }

    /// Reports a deletion that is about to happen; returns what [`observe_delete`](Self::observe_delete)
    /// needs of the item.
    #[cold]
    pub(super) fn observe_before_delete(&self, key: &[u8]) -> Option<ItemSummary> {
        if self.wants(DETAIL) {
            self.shared.prefixes.record_delete(key);
        }
        if self.wants(DELETIONS) { self.summary_of(key) } else { None }
    }

    /// Reports that an item was deleted.
    #[cold]
    pub(super) fn observe_delete(&self, key: &[u8], item: ItemSummary, command: &str) {
        self.shared.watch.deleted(key, item, command);
    }

    fn summary_of(&self, key: &[u8]) -> Option<ItemSummary> {
        let kv = self.kv();
        let summary = kv.peek(key, kv.hash(key), |item| ItemSummary {
            class: self.class(key, item.value_bytes(), item.client_flags()),
            value_bytes: item.value_bytes(),
            ttl_secs: item.expiry().remaining_secs(item.now()).unwrap_or(0),
        });
        summary.ok()
    }

    fn class(&self, key: &[u8], value_bytes: usize, client_flags: u32) -> u32 {
        self.shared.size_classes.class_of_item(key.len(), value_bytes, client_flags, self.shared.settings.cas)
    }
}
