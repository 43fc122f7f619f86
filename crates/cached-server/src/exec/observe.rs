//! Telling those who want to hear of requests: `stats detail` and `watch`.
//!
//! Requests ask [`Executor::observed`], one word, and come here only when somebody does. What is told of an item is looked up
//! anew, so that the usual path carries nothing for it; another client may have been there in between.

use super::Executor;
use crate::watch::Seen;
use crate::watch::observe::{DELETIONS, DETAIL, FETCHERS, MUTATIONS};
use cached_core::kv::{Miss, StoreMode, StoreOutcome};
use std::sync::atomic::Ordering;

impl Executor<'_> {
    /// Whether anybody wants to hear of requests. A request may change that in the middle of a batch.
    #[inline]
    pub(super) fn observed(&self) -> bool {
        self.shared.observed.load(Ordering::Relaxed) != 0
    }

    fn wants(&self, kind: u32) -> bool {
        self.shared.observed.load(Ordering::Relaxed) & kind != 0
    }

    /// A key was asked for.
    #[cold]
    pub(super) fn tell_get(&self, key: &[u8], result: Result<(), Miss>) {
        if self.wants(DETAIL) {
            self.shared.detail.record_get(key, result.is_ok());
        }
        if self.wants(FETCHERS) {
            let status = match result {
                Ok(()) => "found",
                Err(Miss::Expired) => "expired",
                Err(Miss::Flushed) => "flushed",
                Err(_) => "not_found",
            };
            let seen = if result.is_ok() { self.look(key) } else { None };
            self.shared.watch.fetched(key, seen, status, self.client);
        }
    }

    /// A value was to be stored.
    #[cold]
    pub(super) fn tell_store(&self, key: &[u8], value_bytes: usize, mode: StoreMode, outcome: StoreOutcome) {
        let refused = matches!(outcome, StoreOutcome::TooLarge | StoreOutcome::OutOfMemory);
        if self.wants(DETAIL) && !refused {
            self.shared.detail.record_set(key);
        }
        if self.wants(MUTATIONS) {
            let stored = matches!(outcome, StoreOutcome::Stored { .. }).then(|| self.look(key)).flatten();
            let seen = stored.unwrap_or_else(|| Seen {
                class: self.class(key, value_bytes, 0),
                value_bytes: if refused { 0 } else { value_bytes },
                ttl_secs: 0,
            });
            self.shared.watch.stored(key, seen, mode, outcome, self.client);
        }
    }

    /// What a deletion that is about to happen will be told of.
    #[cold]
    pub(super) fn look_before_delete(&self, key: &[u8]) -> Option<Seen> {
        if self.wants(DETAIL) {
            self.shared.detail.record_delete(key);
        }
        if self.wants(DELETIONS) { self.look(key) } else { None }
    }

    /// An item was deleted on request.
    #[cold]
    pub(super) fn tell_delete(&self, key: &[u8], seen: Seen, command: &str) {
        self.shared.watch.deleted(key, seen, command);
    }

    fn look(&self, key: &[u8]) -> Option<Seen> {
        let kv = self.kv();
        let looked = kv.peek(key, kv.hash(key), |item| Seen {
            class: self.class(key, item.value_bytes(), item.client_flags()),
            value_bytes: item.value_bytes(),
            ttl_secs: item.expiry().remaining_secs(item.now()).unwrap_or(0),
        });
        looked.ok()
    }

    fn class(&self, key: &[u8], value_bytes: usize, client_flags: u32) -> u32 {
        self.shared.classes.class_of_item(key.len(), value_bytes, client_flags, self.shared.settings.cas)
    }
}
