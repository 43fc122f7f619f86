//! The store behind the cache, as `[objects.backend]` names it.

use super::ObjectsError;
use crate::config::{BackendTable, ObjectsTable};
use cached_config::{Store, StoreError};
use synapse::Secret;

/// Opens it; blocks until it is there.
pub(super) fn open(objects: &ObjectsTable, secret: Option<Secret>) -> Result<Store, ObjectsError> {
    let Some(table) = &objects.backend else {
        return Err(ObjectsError::Config("objects.backend: is missing".into()));
    };
    if matches!(table, BackendTable::Memory(_)) {
        tracing::warn!("objects are kept in memory: all of them are gone when this process ends");
    }
    Store::open(table, objects.object_bytes_max.0, secret).map_err(|error| match error {
        StoreError::Config(error) => error.into(),
        StoreError::Store(error) => error.into(),
    })
}
