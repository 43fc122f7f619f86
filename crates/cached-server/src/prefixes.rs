//! `stats detail`: gets, sets and deletes by key prefix (what stands before the first `:`).
//!
//! Off unless asked for. The table is bounded: once it is full, new prefixes are not recorded.

use crate::locks::{Guard, Lock, PREFIXES};
use crate::watch::observe;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Prefixes recorded at most, as in memcached 1.6.45.
const PREFIXES_MAX: usize = 65_536;

/// What divides a prefix from the rest of its key, unless `-D` says otherwise.
const DELIMITER: u8 = b':';

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

/// Counts by prefix.
#[derive(Debug)]
pub(crate) struct Detail {
    /// Holds [`observe::DETAIL`] while counting is on.
    observed: Arc<AtomicU32>,
    delimiter: u8,
    table: Lock<HashMap<Box<[u8]>, Counts>>,
}

impl Detail {
    /// An empty table. With a delimiter given, counting is on from the start.
    pub(crate) fn new(delimiter: Option<u8>, observed: Arc<AtomicU32>) -> Detail {
        let detail = Detail {
            observed,
            delimiter: delimiter.unwrap_or(DELIMITER),
            table: Lock::new(&PREFIXES, HashMap::new()),
        };
        detail.set(delimiter.is_some());
        detail
    }

    /// What ends a prefix.
    pub(crate) fn delimiter(&self) -> char {
        char::from(self.delimiter)
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.observed.load(Ordering::Relaxed) & observe::DETAIL != 0
    }

    pub(crate) fn set(&self, on: bool) {
        if on {
            self.observed.fetch_or(observe::DETAIL, Ordering::Relaxed);
        } else {
            self.observed.fetch_and(!observe::DETAIL, Ordering::Relaxed);
        }
    }

    pub(crate) fn clear(&self) {
        self.table().clear();
    }

    #[cold]
    pub(crate) fn record_get(&self, key: &[u8], hit: bool) {
        self.record(key, |counts| {
            counts.gets += 1;
            counts.hits += u64::from(hit);
        });
    }

    #[cold]
    pub(crate) fn record_set(&self, key: &[u8]) {
        self.record(key, |counts| counts.sets += 1);
    }

    #[cold]
    pub(crate) fn record_delete(&self, key: &[u8]) {
        self.record(key, |counts| counts.deletes += 1);
    }

    /// Keys without the delimiter have no prefix and are not counted.
    fn record(&self, key: &[u8], count: impl FnOnce(&mut Counts)) {
        let Some(end) = key.iter().position(|byte| *byte == self.delimiter) else { return };
        let mut table = self.table();
        if let Some(counts) = table.get_mut(&key[..end]) {
            count(counts);
        } else if table.len() < PREFIXES_MAX {
            count(table.entry(key[..end].into()).or_default());
        }
    }

    /// Appends `PREFIX p get n hit n set n del n` lines and `END`.
    pub(crate) fn dump(&self, out: &mut Vec<u8>) {
        for (prefix, counts) in self.table().iter() {
            out.extend_from_slice(b"PREFIX ");
            out.extend_from_slice(prefix);
            let Counts { gets, hits, sets, deletes } = counts;
            out.extend_from_slice(format!(" get {gets} hit {hits} set {sets} del {deletes}\r\n").as_bytes());
        }
        out.extend_from_slice(b"END\r\n");
    }

    fn table(&self) -> Guard<'_, HashMap<Box<[u8]>, Counts>> {
        self.table.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_prefix() {
        let detail = Detail::new(None, Arc::default());
        detail.record_get(b"user:1", true);
        detail.record_get(b"user:2", false);
        detail.record_set(b"user:1");
        detail.record_delete(b"none");
        let mut out = Vec::new();
        detail.dump(&mut out);
        assert_eq!(out, b"PREFIX user get 2 hit 1 set 1 del 0\r\nEND\r\n");
    }

    #[test]
    fn the_table_is_bounded() {
        let detail = Detail::new(None, Arc::default());
        for number in 0..PREFIXES_MAX + 10 {
            detail.record_set(format!("{number}:k").as_bytes());
        }
        assert_eq!(detail.table().len(), PREFIXES_MAX);
    }
}
