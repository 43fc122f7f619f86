//! The registry in an object of a store: any blocker with conditional changes.
//!
//! The object `table` of a namespace contains the whole table; each change replaces it on condition
//! of its version. The namespace should be the registry's own, because a host that claims the
//! namespace would fence the others. The registry survives a claim of the whole store: the object
//! is then written with the epoch in force.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use blocker::clock::until;
use blocker::{
    Blocker, BlockerExt, Clock, Condition, Error as StoreError, Name, Namespace, ObjectId, ReadRequest,
    Stamp, Version, WriteFullRequest,
};
use bytes::Bytes;
use parking_lot::Mutex;

use crate::error::{Error, Reason, Result};
use crate::table::{Cell, Content, TABLE_BYTES_MAX};

/// The maximum number of stamps that one change tries. Each one is above the stamp or the epoch
/// that the store has reported.
const STAMPS_MAX: u32 = 4;

/// The object of the table.
pub(crate) struct StoreCell {
    store: Arc<dyn Blocker>,
    object: ObjectId,
    clock: Arc<dyn Clock>,
    timeout: Duration,
    /// The highest known stamp of the object, if the store requires an epoch of its writers.
    stamp: Mutex<Option<Stamp>>,
}

impl StoreCell {
    /// Returns the cell in the object `table` of `namespace`.
    ///
    /// # Errors
    /// Fails if the store cannot hold a table: it must check conditions and replace objects
    /// atomically.
    pub(crate) fn new(
        store: Arc<dyn Blocker>,
        namespace: &str,
        clock: Arc<dyn Clock>,
        timeout: Duration,
    ) -> Result<Self> {
        let can = store.capabilities();
        if !can.conditions || !can.write_full_atomic {
            return Err(Error::Denied(
                "the store has no atomic conditional changes, which a registry needs".into(),
            ));
        }
        let bytes_max = can.request_bytes_max.min(can.object_bytes_max);
        if bytes_max < TABLE_BYTES_MAX as u64 {
            let text = format!(
                "the store's objects have at most {bytes_max} bytes; a registry needs {TABLE_BYTES_MAX}"
            );
            return Err(Error::Denied(text.into()));
        }
        let object = || Ok(ObjectId::new(namespace.parse()?, Name::new("table")?));
        let object = object().map_err(|error: StoreError| Error::Invalid(error.to_string().into()))?;
        Ok(Self { store, object, clock, timeout, stamp: Mutex::new(None) })
    }

    fn write(&self, expected: Option<u64>, bytes: Bytes) -> WriteFullRequest {
        let condition = expected.map_or(Condition::Absent, |version| Condition::Version(Version(version)));
        let durability = self.store.capabilities().durability_max;
        let request = WriteFullRequest::new(self.object.clone(), bytes);
        let request = request.condition(condition).durability(durability);
        match *self.stamp.lock() {
            None => request,
            Some(Stamp { epoch, sequence }) => request.stamp(Stamp { epoch, sequence: sequence + 1 }),
        }
    }
}

impl fmt::Debug for StoreCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreCell").field("object", &self.object).finish_non_exhaustive()
    }
}

impl Cell for StoreCell {
    async fn read(&self) -> Result<Content> {
        let request = ReadRequest::new(self.object.clone(), 0, TABLE_BYTES_MAX as u64);
        let deadline = self.clock.now() + self.timeout;
        let Some(answer) =
            until(&*self.clock, Some(deadline), async { self.store.read(request).await }).await
        else {
            return Err(Error::Unavailable(unanswered(self.timeout)));
        };
        match answer {
            Ok(reply) if reply.size_bytes > TABLE_BYTES_MAX as u64 => {
                Err(Error::Corrupt(format!("{} has {} bytes", self.object, reply.size_bytes).into()))
            }
            Ok(reply) => Ok(Content { version: Some(reply.version.0), bytes: reply.data.to_bytes() }),
            Err(StoreError::Missing) => Ok(Content::default()),
            Err(StoreError::Corrupt(why)) => Err(Error::Corrupt(why)),
            Err(StoreError::Denied(why)) => Err(Error::Denied(why)),
            Err(error) => Err(Error::Unavailable(error.to_string().into())),
        }
    }

    async fn swap(&self, expected: Option<u64>, bytes: Bytes) -> Result<Option<u64>> {
        let deadline = self.clock.now() + self.timeout;
        for _ in 0..STAMPS_MAX {
            let request = self.write(expected, bytes.clone());
            let writing = async { self.store.write_full(request).await };
            let Some(answer) = until(&*self.clock, Some(deadline), writing).await else {
                return Err(Error::OutcomeUnknown(unanswered(self.timeout)));
            };
            return match answer {
                Ok(reply) => Ok(Some(reply.version.0)),
                Err(StoreError::ConditionFailed { .. } | StoreError::Exists | StoreError::Missing) => {
                    Ok(None)
                }
                Err(StoreError::Fenced { epoch }) => {
                    *self.stamp.lock() = Some(Stamp { epoch, sequence: 0 });
                    continue;
                }
                Err(StoreError::Superseded { stamp }) => {
                    *self.stamp.lock() = Some(stamp);
                    continue;
                }
                Err(StoreError::OutcomeUnknown(why) | StoreError::NotStored(why)) => {
                    Err(Error::OutcomeUnknown(why))
                }
                Err(StoreError::Denied(why)) => Err(Error::Denied(why)),
                Err(StoreError::Corrupt(why)) => Err(Error::Corrupt(why)),
                Err(error) => Err(Error::Unavailable(error.to_string().into())),
            };
        }
        Err(Error::Unavailable("other hosts claim the store at the same time".into()))
    }
}

fn unanswered(timeout: Duration) -> Reason {
    format!("the store has not answered within {} s", timeout.as_secs_f64()).into()
}

/// Returns whether this can be the name of the registry's namespace.
pub(crate) fn is_namespace(name: &str) -> bool {
    name.parse::<Namespace>().is_ok()
}
