//! `stats detail`: gets, sets and deletes by key prefix, which is the part of a key before the
//! first `:`.
//!
//! Counting is off unless requested. The table is bounded: once it is full, new prefixes are not
//! counted.

use super::watch::DETAIL;
use dashmap::DashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The maximum number of prefixes, as in memcached 1.6.45.
const PREFIXES_MAX: usize = 65_536;

/// The default delimiter between a prefix and the rest of its key, which `-D` can change.
const DELIMITER: u8 = b':';

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

/// The table by prefix. Its hasher is seeded, because clients choose the prefixes.
type Table = DashMap<Box<[u8]>, Counts, foldhash::fast::RandomState>;

/// Counts by prefix.
#[derive(Debug)]
pub(crate) struct PrefixCounts {
    /// Contains [`DETAIL`] while counting is on.
    observed: Arc<AtomicU32>,
    delimiter: u8,
    /// The counts by prefix. The map is concurrent, because every request of every worker writes to
    /// it while counting is on.
    table: Table,
    /// The number of prefixes in the table, including those about to be inserted.
    len: AtomicUsize,
}

impl PrefixCounts {
    /// Returns an empty table. If a delimiter is given, counting is on from the start.
    pub(crate) fn new(delimiter: Option<u8>, observed: Arc<AtomicU32>) -> PrefixCounts {
        let prefixes = PrefixCounts {
            observed,
            delimiter: delimiter.unwrap_or(DELIMITER),
            table: Table::default(),
            len: AtomicUsize::new(0),
        };
        prefixes.set(delimiter.is_some());
        prefixes
    }

    /// Returns the delimiter that ends a prefix.
    pub(crate) fn delimiter(&self) -> char {
        char::from(self.delimiter)
    }

    /// Returns whether counting is on.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.observed.load(Ordering::Relaxed) & DETAIL != 0
    }

    /// Turns counting on or off.
    pub(crate) fn set(&self, on: bool) {
        if on {
            self.observed.fetch_or(DETAIL, Ordering::Relaxed);
        } else {
            self.observed.fetch_and(!DETAIL, Ordering::Relaxed);
        }
    }

    /// Removes all prefixes.
    pub(crate) fn clear(&self) {
        // The entries are removed one by one, so that the length stays correct while other threads
        // count.
        self.table.retain(|_, _| {
            self.len.fetch_sub(1, Ordering::Relaxed);
            false
        });
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

    /// Adds one request to the counts of the prefix of `key`. Keys without the delimiter have no
    /// prefix and are not counted.
    fn record(&self, key: &[u8], count: impl FnOnce(&mut Counts)) {
        let Some(end) = key.iter().position(|byte| *byte == self.delimiter) else { return };
        let prefix = &key[..end];
        if let Some(mut counts) = self.table.get_mut(prefix) {
            return count(&mut counts);
        }
        // The length is increased before the entry is created, so that threads that insert prefixes
        // at the same time respect the bound.
        let next = |len: usize| (len < PREFIXES_MAX).then_some(len + 1);
        if self.len.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_err() {
            return;
        }
        match self.table.entry(prefix.into()) {
            dashmap::Entry::Vacant(entry) => count(&mut entry.insert(Counts::default())),
            dashmap::Entry::Occupied(mut entry) => {
                // Another thread has inserted the prefix in the meantime.
                self.len.fetch_sub(1, Ordering::Relaxed);
                count(entry.get_mut());
            }
        }
    }

    /// Appends `PREFIX p get n hit n set n del n` lines and `END`.
    pub(crate) fn dump(&self, out: &mut Vec<u8>) {
        for entry in &self.table {
            out.extend_from_slice(b"PREFIX ");
            out.extend_from_slice(entry.key());
            let Counts { gets, hits, sets, deletes } = entry.value();
            out.extend_from_slice(format!(" get {gets} hit {hits} set {sets} del {deletes}\r\n").as_bytes());
        }
        out.extend_from_slice(b"END\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_prefix() {
        let prefixes = PrefixCounts::new(None, Arc::default());
        prefixes.record_get(b"user:1", true);
        prefixes.record_get(b"user:2", false);
        prefixes.record_set(b"user:1");
        prefixes.record_delete(b"none");
        let mut out = Vec::new();
        prefixes.dump(&mut out);
        assert_eq!(out, b"PREFIX user get 2 hit 1 set 1 del 0\r\nEND\r\n");
    }

    #[test]
    fn the_table_is_bounded() {
        let prefixes = PrefixCounts::new(None, Arc::default());
        for number in 0..PREFIXES_MAX + 10 {
            prefixes.record_set(format!("{number}:k").as_bytes());
        }
        assert_eq!(prefixes.table.len(), PREFIXES_MAX);
        prefixes.clear();
        prefixes.record_set(b"user:1");
        assert_eq!((prefixes.table.len(), prefixes.len.load(Ordering::Relaxed)), (1, 1));
    }
}
