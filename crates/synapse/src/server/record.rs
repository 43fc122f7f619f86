//! A store's record of its servers: the store's identity, and the instances that had stored
//! everything before they ended. The record is one small object in the store itself, so that it
//! moves with the store.
//!
//! ```text
//!   0       1       2       3       4               8
//!   +-------+-------+-------+-------+---------------+-- 16 bytes --+-- 16 bytes each --+---------+
//!   |  'S'     'Y'     'N'     'R'  | u32 format 1  |   identity   |  instances closed |  CRC-32 |
//!   +-------+-------+-------+-------+---------------+--------------+-------------------+---------+
//! ```
//!
//! Servers that share a store share the record: its changes are conditional on the version read. A
//! closed instance stays closed whatever other instances do, so the list only grows, up to a limit.

use std::time::Duration;

use blocker::{
    Blocker, BlockerExt, Clock, Condition, Durability, Error, FlushRequest, InfoRequest, Name, Namespace,
    ObjectId, ReadRequest, Scope, Stamp, Timestamp, WriteFullRequest,
};

use super::ServerConfig;
use crate::auth::random;
use crate::codec::{CLOSED_MAX, InstanceId, StoreId};

/// The namespace and name of the record's object.
const NAMESPACE: &str = ".synapse";
const NAME: &str = "node";
const MAGIC: [u8; 4] = *b"SYNR";
const FORMAT: u32 = 1;
const FIXED_BYTES: usize = 4 + 4 + 16;
const RECORD_BYTES_MAX: usize = FIXED_BYTES + CLOSED_MAX * 16 + 4;
/// The maximum number of attempts of a change that conflicts with changes of other servers.
const TRIES_MAX: u32 = 16;

/// A store's record of its servers, as it was read at the start.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use blocker::{Memory, SystemClock};
/// use synapse::{NodeRecord, Server, ServerConfig};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = Arc::new(Memory::default());
/// let mut config = ServerConfig::default();
/// NodeRecord::open(&*store, &SystemClock, Duration::from_secs(10)).await?.apply(&mut config);
/// let server = Server::new(store.clone(), config)?;
/// // At the end, once nothing changes the store any more:
/// let instance = server.instance();
/// drop(server);
/// NodeRecord::close(&*store, instance, &SystemClock, Duration::from_secs(10)).await?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeRecord {
    store: StoreId,
    closed: Vec<InstanceId>,
}

impl NodeRecord {
    /// Reads the record of `store`, or creates one. `store` must be the store that keeps the data,
    /// not a cache in front of it. Takes at most `timeout`.
    ///
    /// # Errors
    /// Returns `Corrupt` if the object is not a record, `Unsupported` if the record has a later
    /// format, and the errors of the store.
    pub async fn open(store: &dyn Blocker, clock: &dyn Clock, timeout: Duration) -> Result<Self, Error> {
        update(store, clock.now() + timeout, |found| match found {
            Some(_) => None,
            None => Some(Self { store: random(), closed: Vec::new() }),
        })
        .await
    }

    /// Sets the store's identity and the closed instances, which the server reports to its clients.
    pub fn apply(&self, config: &mut ServerConfig) {
        config.store = Some(self.store);
        config.closed.clone_from(&self.closed);
    }

    /// Returns the identity of the store.
    #[must_use]
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// Flushes the store, and records that `instance` has stored everything before its end. Nothing
    /// may change the store any more, and a cache in front of it must have stored its dirty data.
    /// Takes at most `timeout`.
    ///
    /// # Errors
    /// Returns the store's errors. In that case nothing is recorded, and clients count their
    /// unflushed changes as lost.
    pub async fn close(
        store: &dyn Blocker,
        instance: InstanceId,
        clock: &dyn Clock,
        timeout: Duration,
    ) -> Result<(), Error> {
        let deadline = clock.now() + timeout;
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
            let text = "the record of the store's servers (namespace .synapse, object node) is damaged; bring it back from \
                        a copy of the store, or remove it with \"cachectl --backend BACKEND --namespace .synapse rm node\": \
                        the store then gets a new identity, and clients that are connected refuse it until they are \
                        restarted, so let them store what they have first, if they can";
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

/// Reads the record and writes what `change` returns, atomically. If `change` returns `None`, the
/// record is kept.
async fn update(
    store: &dyn Blocker,
    deadline: Timestamp,
    change: impl Fn(Option<NodeRecord>) -> Option<NodeRecord>,
) -> Result<NodeRecord, Error> {
    let object = ObjectId::new(Namespace::new(NAMESPACE)?, Name::new(NAME)?);
    let can = store.capabilities();
    // Where writers are fenced, the record is written with the epoch in force.
    let mut stamp: Option<Stamp> = None;
    let mut last = Error::Retryable("the record was not written".into());
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
            return found.ok_or_else(|| Error::Invalid("there is no record to keep".into()));
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
            // Another server, or this attempt itself, may have changed the record first.
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
    use blocker::{ClaimRequest, Epoch, Memory, SystemClock, WriterId};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    // The test uses the store's clock, as all code does.
    fn open(store: &Memory) -> NodeRecord {
        block_on(NodeRecord::open(store, &SystemClock, TIMEOUT)).unwrap()
    }

    fn close(store: &Memory, instance: InstanceId) {
        block_on(NodeRecord::close(store, instance, &SystemClock, TIMEOUT)).unwrap();
    }

    #[test]
    fn a_store_keeps_its_identity_and_the_instances_that_ended_in_order() {
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
    fn the_record_is_written_in_spite_of_a_claim_of_everything() {
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
    fn a_damaged_record_is_an_error_and_not_a_missing_one() {
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
