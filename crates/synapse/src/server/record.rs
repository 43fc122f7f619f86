//! What a store knows of the servers that serve it: an identity of its own, and which of them ended with everything
//! stored. Kept in the store itself, as one small object, so that it goes wherever the store goes.
//!
//! ```text
//!   0       1       2       3       4               8
//!   +-------+-------+-------+-------+---------------+-- 16 bytes --+-- 16 bytes each --+---------+
//!   |  'S'     'Y'     'N'     'R'  | u32 format 1  |   identity   |  instances closed |  CRC-32 |
//!   +-------+-------+-------+-------+---------------+--------------+-------------------+---------+
//! ```
//!
//! Servers that share a store share the record: its changes depend on the version that was read. That an instance ended
//! with everything stored stays true whatever happens to others later, so the list only ever grows, up to a limit.

use std::time::Duration;

use blocker::{
    Blocker, Clock, Condition, Durability, Error, FlushRequest, InfoRequest, Name, Namespace, ObjectId,
    ReadRequest, Scope, Stamp, Timestamp, WriteFullRequest,
};

use super::ServerConfig;
use crate::auth::random;
use crate::codec::{CLOSED_MAX, InstanceId, StoreId};

/// Where the record lies.
const NAMESPACE: &str = ".synapse";
const NAME: &str = "node";
const MAGIC: [u8; 4] = *b"SYNR";
const FORMAT: u32 = 1;
const FIXED_BYTES: usize = 4 + 4 + 16;
const RECORD_BYTES_MAX: usize = FIXED_BYTES + CLOSED_MAX * 16 + 4;
/// How often a change is tried that others come before.
const TRIES_MAX: u32 = 16;

/// What a store knows of its servers, as it was read at the start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeRecord {
    store: StoreId,
    closed: Vec<InstanceId>,
}

impl NodeRecord {
    /// Reads the record of `store`, which is to be what keeps the data, not a cache before it; makes one if there is
    /// none. Takes `patience` at most.
    ///
    /// # Errors
    /// `Corrupt` if there is something else in its place; what the store says.
    pub async fn open(store: &dyn Blocker, clock: &dyn Clock, patience: Duration) -> Result<Self, Error> {
        update(store, clock.now() + patience, |found| match found {
            Some(_) => None,
            None => Some(Self { store: random(), closed: Vec::new() }),
        })
        .await
    }

    /// Has a server tell its clients.
    pub fn apply(&self, config: &mut ServerConfig) {
        config.store = Some(self.store);
        config.closed.clone_from(&self.closed);
    }

    /// Which store it is.
    #[must_use]
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// Stores everything, and writes down that `instance` ended so. Nobody may change anything any more; a cache
    /// before the store has stored what it had. Takes `patience` at most.
    ///
    /// # Errors
    /// What the store says; then nothing is written down, and clients take for lost what was not flushed.
    pub async fn close(
        store: &dyn Blocker,
        instance: InstanceId,
        clock: &dyn Clock,
        patience: Duration,
    ) -> Result<(), Error> {
        let deadline = clock.now() + patience;
        store.flush(FlushRequest::new(Scope::All).deadline(deadline)).await?;
        let closed = |found: Option<Self>| {
            let mut record = found.unwrap_or_else(|| Self { store: random(), closed: Vec::new() });
            if record.closed.contains(&instance) {
                return None;
            }
            record.closed.insert(0, instance);
            record.closed.truncate(CLOSED_MAX);
            Some(record)
        };
        update(store, deadline, closed).await.map(drop)
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(RECORD_BYTES_MAX);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&self.store);
        bytes.extend_from_slice(self.closed.as_flattened());
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let damaged = || {
            let text = "the record of the store's servers (namespace .synapse, object node) is damaged; delete it to \
                        have a new one, and restart the clients that are connected";
            Error::Corrupt(text.into())
        };
        let (record, crc) = bytes.split_last_chunk::<4>().ok_or_else(damaged)?;
        if crc32fast::hash(record) != u32::from_le_bytes(*crc) {
            return Err(damaged());
        }
        let (fixed, closed) = record.split_first_chunk::<FIXED_BYTES>().ok_or_else(damaged)?;
        if fixed[..4] != MAGIC {
            return Err(damaged());
        }
        if fixed[4..8] != FORMAT.to_le_bytes() {
            let text = "the record of the store's servers (namespace .synapse, object node) was written by a newer \
                        program";
            return Err(Error::Unsupported(text.into()));
        }
        let mut store = [0; 16];
        store.copy_from_slice(&fixed[8..]);
        match closed.as_chunks() {
            (closed, []) if closed.len() <= CLOSED_MAX => Ok(Self { store, closed: closed.to_vec() }),
            _ => Err(damaged()),
        }
    }
}

/// Changes the record, in one step with looking at it, unless `change` is content with what is there.
async fn update(
    store: &dyn Blocker,
    deadline: Timestamp,
    change: impl Fn(Option<NodeRecord>) -> Option<NodeRecord>,
) -> Result<NodeRecord, Error> {
    let object = ObjectId::new(Namespace::new(NAMESPACE)?, Name::new(NAME)?);
    let can = store.capabilities();
    // Where writers are fenced the record is written with the epoch in force.
    let mut stamp: Option<Stamp> = None;
    let mut last = Error::Retryable("not tried".into());
    for _ in 0..TRIES_MAX {
        let read = ReadRequest::new(object.clone(), 0, RECORD_BYTES_MAX as u64 + 1).deadline(deadline);
        let (found, condition) = match store.read(read).await {
            Ok(reply) => {
                let found = NodeRecord::decode(&reply.data.to_vec())?;
                (Some(found), Condition::Version(reply.version))
            }
            Err(Error::Missing) => (None, Condition::Absent),
            Err(error) => return Err(error),
        };
        let Some(record) = change(found.clone()) else {
            return found.ok_or_else(|| Error::Invalid("no record is no record to be content with".into()));
        };
        let mut write = WriteFullRequest::new(object.clone(), record.encode());
        write = write.durability(Durability::Stored.min(can.durability_max)).deadline(deadline);
        if can.conditions {
            write = write.condition(condition);
        }
        if let Some(stamp) = stamp {
            write = write.stamp(stamp);
        }
        last = match store.write_full(write).await {
            Ok(_) => {
                store.flush(FlushRequest::new(Scope::Object(object)).deadline(deadline)).await?;
                return Ok(record);
            }
            Err(Error::Fenced { epoch }) => {
                let known = match store.info(InfoRequest::new(object.clone()).deadline(deadline)).await {
                    Ok(info) => info.stamp.filter(|known| known.epoch == epoch),
                    Err(_) => None,
                };
                let sequence = known.map_or(1, |known| known.sequence.saturating_add(1));
                stamp = Some(Stamp::new(epoch.0, sequence));
                Error::Fenced { epoch }
            }
            Err(Error::Superseded { stamp: newer }) => {
                stamp = Some(Stamp::new(newer.epoch.0, newer.sequence.saturating_add(1)));
                Error::Superseded { stamp: newer }
            }
            // Another server of the store was first, or may have been this one.
            Err(
                error @ (Error::Exists
                | Error::Missing
                | Error::ConditionFailed { .. }
                | Error::OutcomeUnknown(_)),
            ) => error,
            Err(error) => return Err(error),
        };
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use blocker::executor::block_on;
    use blocker::{ClaimRequest, Epoch, ManualClock, Memory, WriterId};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(1);

    fn open(store: &Memory) -> NodeRecord {
        block_on(NodeRecord::open(store, &ManualClock::new(), PATIENCE)).unwrap()
    }

    fn close(store: &Memory, instance: InstanceId) {
        block_on(NodeRecord::close(store, instance, &ManualClock::new(), PATIENCE)).unwrap();
    }

    #[test]
    fn a_store_keeps_its_identity_and_knows_who_ended_in_order() {
        let store = Memory::default();
        let first = open(&store);
        assert!(first.closed.is_empty());
        assert_eq!(open(&store), first);
        assert_ne!(open(&Memory::default()).store, first.store);
        for number in 0..2 * CLOSED_MAX as u8 {
            close(&store, [number; 16]);
            close(&store, [number; 16]);
        }
        let last = open(&store);
        assert_eq!(last.store, first.store);
        assert_eq!(last.closed.len(), CLOSED_MAX);
        assert_eq!(last.closed[0], [2 * CLOSED_MAX as u8 - 1; 16]);
        let mut config = ServerConfig::default();
        last.apply(&mut config);
        assert_eq!((config.store, &config.closed), (Some(first.store), &last.closed));
    }

    #[test]
    fn a_fence_around_everything_does_not_keep_the_record_from_being_written() {
        let store = Memory::default();
        let claim = |epoch| {
            block_on(store.claim(ClaimRequest::new(Scope::All, Epoch(epoch), WriterId(7)))).unwrap();
        };
        claim(5);
        let first = open(&store);
        close(&store, [1; 16]);
        close(&store, [2; 16]);
        claim(6);
        close(&store, [3; 16]);
        let last = open(&store);
        assert_eq!((last.store, last.closed), (first.store, vec![[3; 16], [2; 16], [1; 16]]));
    }

    #[test]
    fn a_damaged_record_is_told_from_none() {
        let good = NodeRecord { store: [1; 16], closed: vec![[2; 16]; 3] }.encode();
        assert!(NodeRecord::decode(&good).is_ok());
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(matches!(NodeRecord::decode(&bad), Err(Error::Corrupt(_))), "{at}");
            assert!(NodeRecord::decode(&good[..at]).is_err(), "{at}");
        }
        let mut newer = good[..good.len() - 4].to_vec();
        newer[4] = 2;
        newer.extend_from_slice(&crc32fast::hash(&newer).to_le_bytes());
        assert!(matches!(NodeRecord::decode(&newer), Err(Error::Unsupported(_))));
    }
}
