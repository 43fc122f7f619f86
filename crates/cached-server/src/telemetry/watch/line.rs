//! Event lines in memcached's format.

use super::events::{DELETIONS, FETCHERS, MUTATIONS};
use super::{EVICTIONS, Watch};
use cached_core::clock::Expiry;
use cached_core::kv::hook::EvictedItem;
use cached_core::kv::{StoreMode, StoreOutcome};
use std::fmt;
use std::os::fd::RawFd;

/// The attributes of an item in event lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ItemSummary {
    pub(crate) class: u32,
    pub(crate) value_bytes: usize,
    /// Seconds until it expires; 0 if it never does.
    pub(crate) ttl_secs: u32,
}

/// A key, percent-encoded as in a URI.
struct Escaped<'a>(&'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        for byte in self.0 {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    f.write_char(char::from(*byte))?;
                }
                _ => write!(f, "%{byte:02X}")?,
            }
        }
        Ok(())
    }
}

impl Watch {
    /// Publishes a retrieval; `status` is `found`, `not_found`, `expired` or `flushed`.
    pub(crate) fn fetched(&self, key: &[u8], item: Option<ItemSummary>, status: &str, fd: RawFd) {
        let key = Escaped(key);
        let (class, size) = item.map_or((0, 0), |item| (item.class, item.value_bytes));
        let line = format_args!("type=item_get key={key} status={status} clsid={class} cfd={fd} size={size}");
        self.publish(FETCHERS, &line);
    }

    /// Publishes an attempt to store.
    pub(crate) fn stored(
        &self,
        key: &[u8],
        item: ItemSummary,
        mode: StoreMode,
        outcome: StoreOutcome,
        fd: RawFd,
    ) {
        let key = Escaped(key);
        let status = match outcome {
            StoreOutcome::Stored { .. } => "stored",
            StoreOutcome::Exists => "exists",
            StoreOutcome::NotFound => "not_found",
            StoreOutcome::TooLarge => "too_large",
            StoreOutcome::OutOfMemory => "no_memory",
            _ => "not_stored",
        };
        let command = match mode {
            StoreMode::Set => "set",
            StoreMode::Add => "add",
            StoreMode::Replace => "replace",
            StoreMode::Append => "append",
            StoreMode::Prepend => "prepend",
            StoreMode::Cas => "cas",
        };
        let ItemSummary { class, value_bytes, ttl_secs } = item;
        let line = format_args!(
            "type=item_store key={key} status={status} cmd={command} ttl={ttl_secs} clsid={class} cfd={fd} size={value_bytes}"
        );
        self.publish(MUTATIONS, &line);
    }

    /// Publishes a deletion by a client.
    pub(crate) fn deleted(&self, key: &[u8], item: ItemSummary, command: &str) {
        let key = Escaped(key);
        let ItemSummary { class, value_bytes, .. } = item;
        let line = format_args!("type=deleted key={key} cmd={command} clsid={class} size={value_bytes}");
        self.publish(DELETIONS, &line);
    }

    /// Publishes an eviction.
    pub(crate) fn evicted(&self, item: &EvictedItem<'_>, class: u32) {
        let key = Escaped(item.key);
        let fetched = if item.fetched { "yes" } else { "no" };
        let ttl = match item.expiry {
            Expiry::NEVER => -1,
            expiry => i64::from(expiry.as_secs()) - i64::from(item.now),
        };
        let idle = item.now.saturating_sub(item.last_access);
        let size = item.value_bytes;
        let line = format_args!(
            "type=eviction key={key} fetch={fetched} ttl={ttl} la={idle} clsid={class} size={size}"
        );
        self.publish(EVICTIONS, &line);
    }
}
