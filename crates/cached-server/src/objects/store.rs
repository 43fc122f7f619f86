//! The store behind the cache, as `[objects.backend]` names it.

use super::ObjectsError;
use crate::config::{BackendTable, ObjectsTable};
use cached_config::{OpenError, OpenOptions, Store};
use synapse::Secret;

/// Opens it; blocks until it is there.
pub(super) fn open(objects: &ObjectsTable, secret: Option<Secret>) -> Result<Store, ObjectsError> {
    let Some(table) = &objects.backend else {
        return Err(ObjectsError::Config("objects.backend: is missing".into()));
    };
    if matches!(table, BackendTable::Memory(_)) {
        tracing::warn!("objects are kept in memory: all of them are gone when this process ends");
    }
    let options = OpenOptions::default().object_bytes_max(objects.object_bytes_max.0).secret(secret);
    Store::open(table, &options).map_err(|error| match error {
        OpenError::Config(error) => error.into(),
        OpenError::Store(error) => error.into(),
    })
}
