//! The table as a value: documents, leases, and the latest changes.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use blocker::Timestamp;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::document::{Change, Changes, Document, Event, Key, LeaseId, Listing, Revision};
use crate::error::{Error, Result};

/// The longest encoded table, in bytes.
pub(crate) const TABLE_BYTES_MAX: usize = 256 << 10;

/// The number of changes that the table remembers for watches.
const HISTORY_MAX: usize = 256;

/// The version of the encoding.
const FORMAT: u32 = 1;

/// The table. It is encoded as JSON.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    format: u32,
    pub(crate) revision: Revision,
    documents: BTreeMap<Key, Stored>,
    leases: BTreeMap<u64, LeaseRecord>,
    /// The revisions of the latest changes, and the documents that they changed.
    history: VecDeque<(Revision, Key)>,
    /// The last revision whose changes are forgotten.
    forgotten: Revision,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    #[serde(with = "base64_text")]
    value: Bytes,
    revision: Revision,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease: Option<u64>,
}

/// A lease. It lasts while some host notices that the number of renewals rises. The table has no
/// clock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeaseRecord {
    duration_ms: u64,
    renewals: u64,
}

mod base64_text {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use bytes::Bytes;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(from)?;
        STANDARD.decode(text).map(Bytes::from).map_err(D::Error::custom)
    }
}

impl Default for Table {
    fn default() -> Self {
        let (revision, documents, leases, history, forgotten) = Default::default();
        Self { format: FORMAT, revision, documents, leases, history, forgotten }
    }
}

impl Table {
    /// Decodes a table. An empty table has no bytes.
    ///
    /// # Errors
    /// Returns [`Error::Corrupt`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let table: Self = serde_json::from_slice(bytes)
            .map_err(|error| Error::Corrupt(format!("its table: {error}").into()))?;
        if table.format != FORMAT {
            let text = format!("its table has format {}; this program reads format {FORMAT}", table.format);
            return Err(Error::Corrupt(text.into()));
        }
        Ok(table)
    }

    /// Encodes the table.
    ///
    /// # Errors
    /// Returns [`Error::TooLarge`].
    pub(crate) fn encode(&self) -> Result<Bytes> {
        let bytes = serde_json::to_vec(self).expect("texts and numbers are valid JSON");
        if bytes.len() > TABLE_BYTES_MAX {
            let text = format!(
                "all documents together would take {} bytes; the limit is {TABLE_BYTES_MAX}",
                bytes.len()
            );
            return Err(Error::TooLarge(text.into()));
        }
        Ok(bytes.into())
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Document> {
        let Stored { value, revision, lease } = self.documents.get(key)?.clone();
        Some(Document { key: key.clone(), value, revision, lease: lease.map(LeaseId) })
    }

    pub(crate) fn list(&self, prefix: &str) -> Listing {
        let keys = self.documents.keys().filter(|key| key.as_str().starts_with(prefix));
        Listing { documents: keys.filter_map(|key| self.get(key)).collect(), revision: self.revision }
    }

    /// Makes all of the changes, or none.
    ///
    /// # Errors
    /// Returns [`Error::Conflict`], [`Error::LeaseEnded`].
    pub(crate) fn change(&mut self, changes: &[Change]) -> Result<Revision> {
        for Change { key, expect, lease, .. } in changes {
            let found = self.documents.get(key).map(|stored| stored.revision);
            if !expect.is_met(found) {
                return Err(Error::Conflict { key: key.clone(), found });
            }
            if lease.is_some_and(|lease| !self.leases.contains_key(&lease.0)) {
                return Err(Error::LeaseEnded);
            }
        }
        let revision = self.next_revision();
        for Change { key, value, lease, .. } in changes.iter().filter(|change| !change.is_guard) {
            match value.clone() {
                Some(value) => {
                    let lease = lease.map(|lease| lease.0);
                    self.documents.insert(key.clone(), Stored { value, revision, lease });
                }
                None => drop(self.documents.remove(key)),
            }
            self.remember(key.clone());
        }
        Ok(revision)
    }

    pub(crate) fn grant(&mut self, duration: Duration) -> LeaseId {
        let id = self.next_revision().0;
        let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        self.leases.insert(id, LeaseRecord { duration_ms, renewals: 0 });
        LeaseId(id)
    }

    /// Renews a lease.
    ///
    /// # Errors
    /// Returns [`Error::LeaseEnded`].
    pub(crate) fn renew(&mut self, lease: LeaseId) -> Result<()> {
        let record = self.leases.get_mut(&lease.0).ok_or(Error::LeaseEnded)?;
        record.renewals = record.renewals.wrapping_add(1);
        Ok(())
    }

    /// Ends a lease and removes its documents. Returns whether the lease existed.
    pub(crate) fn end(&mut self, lease: LeaseId) -> bool {
        if self.leases.remove(&lease.0).is_none() {
            return false;
        }
        let is_bound = |stored: &Stored| stored.lease == Some(lease.0);
        let bound = self.documents.iter().filter(|(_, stored)| is_bound(stored));
        let bound: Vec<Key> = bound.map(|(key, _)| key.clone()).collect();
        if !bound.is_empty() {
            self.next_revision();
        }
        for key in bound {
            self.documents.remove(&key);
            self.remember(key);
        }
        true
    }

    /// Returns the last change of each document with this prefix that has changed after `after`.
    ///
    /// # Errors
    /// Returns [`Error::Compacted`].
    pub(crate) fn changes(&self, prefix: &str, after: Revision) -> Result<Option<Changes>> {
        if after < self.forgotten || after > self.revision {
            return Err(Error::Compacted { after });
        }
        let changed = self.history.iter().filter(|(revision, _)| *revision > after);
        let keys: BTreeSet<&Key> =
            changed.map(|(_, key)| key).filter(|key| key.as_str().starts_with(prefix)).collect();
        let event = |key: &Key| self.get(key).map_or_else(|| Event::Removed(key.clone()), Event::Changed);
        let events: Vec<Event> = keys.into_iter().map(event).collect();
        Ok((!events.is_empty()).then_some(Changes { events, revision: self.revision }))
    }

    fn next_revision(&mut self) -> Revision {
        // The addition saturates, so that a damaged table cannot cause a panic.
        self.revision = Revision(self.revision.0.saturating_add(1));
        self.revision
    }

    fn remember(&mut self, key: Key) {
        self.history.push_back((self.revision, key));
        while self.history.len() > HISTORY_MAX {
            if let Some((revision, _)) = self.history.pop_front() {
                self.forgotten = revision;
            }
        }
    }
}

/// The leases as this host has observed them: how often each was renewed, and since when it has not
/// been.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Observed(HashMap<u64, (u64, Timestamp)>);

impl Observed {
    /// Records the leases of a table that has arrived at `now`. Returns the leases that have ended
    /// because they were not renewed for their duration, on this host's clock.
    pub(crate) fn observe(&mut self, table: &Table, now: Timestamp) -> Vec<LeaseId> {
        self.0.retain(|lease, _| table.leases.contains_key(lease));
        let mut ended = Vec::new();
        for (lease, record) in &table.leases {
            let (renewals, since) = self.0.entry(*lease).or_insert((record.renewals, now));
            if *renewals != record.renewals {
                (*renewals, *since) = (record.renewals, now);
            }
            if now.since(*since) >= Duration::from_millis(record.duration_ms) {
                ended.push(LeaseId(*lease));
            }
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Expect;

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    fn put(table: &mut Table, text: &str, value: &'static str) -> Revision {
        let expect = table.get(&key(text)).map_or(Expect::Absent, |document| Expect::At(document.revision));
        table.change(&[Change::put(key(text), expect, value)]).unwrap()
    }

    #[test]
    fn a_table_is_decoded_as_it_was_encoded() {
        let mut table = Table::default();
        let lease = table.grant(Duration::from_secs(9));
        put(&mut table, "a/b", "\u{0}x");
        table.change(&[Change::put(key("c"), Expect::Absent, "").with_lease(lease)]).unwrap();
        table.renew(lease).unwrap();
        assert_eq!(Table::decode(&table.encode().unwrap()), Ok(table));
        assert_eq!(Table::decode(b""), Ok(Table::default()));
    }

    #[test]
    fn a_damaged_table_is_an_error() {
        let table = Table::default().encode().unwrap();
        for len in 1..table.len() {
            assert!(matches!(Table::decode(&table[..len]), Err(Error::Corrupt(_))), "{len}");
        }
        let other = String::from_utf8(table.to_vec()).unwrap().replace("\"format\":1", "\"format\":2");
        assert_eq!(
            Table::decode(other.as_bytes()).unwrap_err().to_string(),
            "the registry is damaged: its table has format 2; this program reads format 1"
        );
    }

    #[test]
    fn a_watch_sees_the_last_change_of_each_document_until_it_is_forgotten() {
        let mut table = Table::default();
        let first = put(&mut table, "n/a", "1");
        put(&mut table, "n/a", "2");
        let b = put(&mut table, "n/b", "3");
        put(&mut table, "other", "4");
        let last = table.change(&[Change::remove(key("n/b"), b)]).unwrap();
        let changes = table.changes("n/", first).unwrap().unwrap();
        let a = table.get(&key("n/a")).unwrap();
        assert_eq!(changes.events, [Event::Changed(a), Event::Removed(key("n/b"))]);
        assert_eq!(changes.revision, last);
        assert_eq!(table.changes("n/", last), Ok(None));
        assert_eq!(
            table.changes("n/", Revision(last.0 + 1)),
            Err(Error::Compacted { after: Revision(last.0 + 1) })
        );
        for _ in 0..HISTORY_MAX {
            put(&mut table, "x", "y");
        }
        assert_eq!(table.changes("n/", last), Ok(None));
        assert_eq!(table.changes("n/", b), Err(Error::Compacted { after: b }));
    }

    #[test]
    fn a_lease_ends_when_no_renewal_was_seen_for_its_duration() {
        let (mut table, mut observed) = (Table::default(), Observed::default());
        let lease = table.grant(Duration::from_nanos(5_000_000));
        let ms = |ms: u64| Timestamp(ms * 1_000_000);
        assert_eq!(observed.observe(&table, ms(10)), []);
        table.renew(lease).unwrap();
        assert_eq!(observed.observe(&table, ms(14)), []);
        assert_eq!(observed.observe(&table, ms(18)), []);
        assert_eq!(observed.observe(&table, ms(19)), [lease]);
        assert!(table.end(lease) && !table.end(lease));
        assert_eq!(table.renew(lease), Err(Error::LeaseEnded));
        assert_eq!(observed.observe(&table, ms(30)), []);
    }

    #[test]
    fn too_many_documents_are_refused() {
        let mut table = Table::default();
        let value = Bytes::from(vec![7; crate::document::VALUE_BYTES_MAX]);
        for index in 0..20 {
            table.change(&[Change::put(key(&format!("k{index}")), Expect::Absent, value.clone())]).unwrap();
        }
        assert!(matches!(table.encode(), Err(Error::TooLarge(_))));
    }
}
