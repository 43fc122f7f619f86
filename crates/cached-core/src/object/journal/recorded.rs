//! Reads a cache's records without a cache, for tools that show or save the contents of a journal.
//! The larger functions are inlined or generic, so that only such tools compile them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use blocker::{Blocker, Change, Error, Namespace, ObjectId, Run, RunContent};
use cached_journal::Head;

pub use super::records::Malformed as MalformedRecord;
use super::records::{self, PendingState, Replayed};

/// Returns the namespace that a record is about, if it names one.
#[must_use]
pub fn namespace_of(head: &Head<'_>) -> Option<Namespace> {
    records::subject(head).ok().map(|subject| subject.namespace)
}

/// The changes that a record makes to its object, in order.
#[derive(Clone, Debug)]
pub struct RecordedChange {
    /// The object.
    pub object: ObjectId,
    changes: Vec<Change>,
}

/// Converts records into changes: the pending state of an object may take several records.
#[derive(Debug, Default)]
pub struct RecordReader {
    /// The incomplete states, each with the number of its parts read so far.
    parts: HashMap<ObjectId, (u64, Vec<u8>)>,
}

impl RecordReader {
    /// Returns the change of the next record; `None` if the record changes no object, or is a part
    /// of an incomplete state. Records must be passed in the order of their positions.
    ///
    /// # Errors
    /// [`MalformedRecord`]: the caller can continue with the next record.
    #[inline]
    pub fn read(
        &mut self,
        head: &Head<'_>,
        payload: Vec<u8>,
    ) -> Result<Option<RecordedChange>, MalformedRecord> {
        let subject = records::subject(head)?;
        let replayed = records::decode(head, payload)?;
        let Some(name) = subject.name else { return Ok(None) };
        let object = ObjectId::new(subject.namespace, name);
        let changes = match replayed {
            Replayed::Epoch => return Ok(None),
            Replayed::StatePart(part, parts, bytes) => match self.join(&object, part, parts, bytes) {
                None => return Ok(None),
                Some(state) => PendingState::decode(state)?.into_changes(),
            },
            Replayed::Change(change) => vec![change],
        };
        Ok(Some(RecordedChange { object, changes }))
    }

    /// Adds a part of a state. Returns the whole state with its last part.
    #[inline]
    fn join(&mut self, object: &ObjectId, part: u64, parts: u64, bytes: Vec<u8>) -> Option<Vec<u8>> {
        let mut entry = match self.parts.entry(object.clone()) {
            // A first part begins a new state, whatever was there.
            entry if part == 0 => entry.insert_entry((0, Vec::new())),
            Entry::Occupied(entry) if entry.get().0 == part => entry,
            Entry::Occupied(entry) => {
                entry.remove();
                return None;
            }
            Entry::Vacant(_) => return None,
        };
        let (next, all) = entry.get_mut();
        all.extend_from_slice(&bytes);
        *next = part + 1;
        (part + 1 == parts).then(|| entry.remove().1)
    }
}

impl RecordedChange {
    /// Applies the change to `store`. Changes of a missing object have no effect.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn make(&self, store: &dyn Blocker) -> Result<(), Error> {
        for change in &self.changes {
            let made = match change {
                Change::WriteRuns { runs } => write_runs(store, &self.object, runs).await,
                change => make(store, &self.object, change.clone()).await,
            };
            match made {
                Ok(()) | Err(Error::Missing) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Calls `each` with the effect of the change on the known ranges of its object: offset,
    /// length, and whether the range is known afterwards (true) or no longer part of the object
    /// (false).
    pub fn ranges(&self, mut each: impl FnMut(u64, u64, bool)) {
        for change in &self.changes {
            match change {
                Change::Write { offset, data } | Change::CompareAndWrite { offset, data, .. } => {
                    each(*offset, data.len_bytes() as u64, true);
                }
                Change::WriteZeroes { offset, len_bytes } | Change::Discard { offset, len_bytes } => {
                    each(*offset, *len_bytes, true);
                }
                Change::WriteRuns { runs } => {
                    runs.iter().for_each(|run| each(run.offset, run.len_bytes(), true));
                }
                Change::WriteFull { data } => {
                    each(0, u64::MAX, false);
                    each(0, data.len_bytes() as u64, true);
                }
                Change::Truncate { size_bytes } => each(*size_bytes, u64::MAX - *size_bytes, false),
                Change::Delete => each(0, u64::MAX, false),
                // A copy is logged as a write of its bytes.
                Change::Copy { .. } => (),
            }
        }
    }

    /// Returns whether the change leaves nothing of the object's earlier content: the object is
    /// replaced or removed.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.changes.iter().any(Change::replaces_content)
    }

    /// Returns whether the object is removed.
    #[must_use]
    pub fn is_removal(&self) -> bool {
        matches!(self.changes.last(), Some(Change::Delete))
    }
}

async fn make(store: &dyn Blocker, id: &ObjectId, change: Change) -> Result<(), Error> {
    store.change(change.request(id.clone())).await.map(drop)
}

/// Writes runs, one by one if the store takes fewer in one change.
async fn write_runs(store: &dyn Blocker, id: &ObjectId, runs: &[Run]) -> Result<(), Error> {
    let runs_max = store.capabilities().runs_max.max(1) as usize;
    if runs_max >= runs.len() && store.capabilities().runs_max > 0 {
        return make(store, id, Change::WriteRuns { runs: runs.to_vec() }).await;
    }
    for run in runs {
        let offset = run.offset;
        let change = match &run.content {
            RunContent::Data(data) => Change::Write { offset, data: data.clone() },
            RunContent::Zeroes(len_bytes) => Change::WriteZeroes { offset, len_bytes: *len_bytes },
        };
        make(store, id, change).await?;
    }
    Ok(())
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use blocker::executor::block_on;
    use blocker::{BlockerExt, Memory, Name, Segments};
    use records::Origin;

    fn id() -> ObjectId {
        ObjectId::new(Namespace::new("vm").unwrap(), Name::new("disk").unwrap())
    }

    fn make(reader: &mut RecordReader, store: &Memory, record: &cached_journal::Record<'_>) -> bool {
        let change = reader.read(&record.head, record.payload.concat()).unwrap();
        if let Some(change) = &change {
            block_on(change.make(store)).unwrap();
        }
        change.is_some()
    }

    #[test]
    fn records_are_made_to_a_store_in_their_order() {
        let (id, store, mut reader) = (id(), Memory::default(), RecordReader::default());
        let origin = Origin { namespace: 1, id: &id, domain: None, version: 1, epoch: 1, was_present: false };
        let changes = [
            Change::Write { offset: 2, data: Segments::from(b"abc") },
            Change::WriteRuns { runs: vec![Run::data(0, b"x"), Run::zeroes(3, 1)] },
            Change::Discard { offset: 4, len_bytes: 1 },
        ];
        for change in changes {
            let made = records::encode(&origin, (&change).into(), |record| make(&mut reader, &store, record));
            assert_eq!(made, Some(true));
        }
        assert_eq!(block_on(store.get(&id)).unwrap(), b"x\0a\0\0"[..]);
        records::encode(&origin, (&Change::Delete).into(), |record| make(&mut reader, &store, record));
        // A change of a missing object has no effect.
        let truncate = Change::Truncate { size_bytes: 0 };
        records::encode(&origin, (&truncate).into(), |record| make(&mut reader, &store, record));
        let discard = Change::Discard { offset: 0, len_bytes: 1 };
        records::encode(&origin, (&discard).into(), |record| make(&mut reader, &store, record));
    }

    #[test]
    fn a_state_counts_once_all_its_parts_are_there() {
        let (id, store, mut reader) = (id(), Memory::default(), RecordReader::default());
        let origin = Origin { namespace: 1, id: &id, domain: None, version: 1, epoch: 1, was_present: false };
        let state = PendingState {
            is_present: true,
            is_replaced: true,
            size: Some(9),
            runs: vec![Run::data(1, b"state")],
            ..PendingState::default()
        };
        let bytes = state.encode();
        let mut made = Vec::new();
        let mut is_first = true;
        // The first part is lost once: the rest of that state is ignored.
        for _ in 0..2 {
            records::encode_state(&origin, &bytes, 20, |record| {
                if !std::mem::take(&mut is_first) {
                    made.push(make(&mut reader, &store, record));
                }
                Ok::<(), ()>(())
            })
            .unwrap();
        }
        assert_eq!(made.iter().filter(|made| **made).count(), 1);
        assert_eq!(made.last(), Some(&true));
        assert_eq!(block_on(store.get(&id)).unwrap(), b"\0state\0\0\0"[..]);
    }
}
