//! The whole registry as one small table, for places that have no registry of their own.
//!
//! A [`Cell`] holds the encoded table and replaces it by compare-and-set: an object of a store, or
//! blocks of a disk. `content` is the table as a value; `body` implements the registry's
//! operations on it. All I/O is the cell's.

mod body;
mod content;

use std::future::Future;

use bytes::Bytes;

use crate::error::Result;

pub(crate) use body::{TableBody, random};
pub(crate) use content::TABLE_BYTES_MAX;

/// A place for the table.
pub(crate) trait Cell: Send + Sync + 'static {
    /// Reads the newest table.
    fn read(&self) -> impl Future<Output = Result<Content>> + Send;

    /// Replaces the table if it still has the `expected` version. Returns the new version if it did:
    /// then the new table is stored.
    fn swap(&self, expected: Option<u64>, bytes: Bytes) -> impl Future<Output = Result<Option<u64>>> + Send;

    /// Waits for the end of swaps whose futures were dropped, where it matters who writes.
    fn finish(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// A table in the form that a cell contains.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Content {
    /// The version; `None` if no table exists yet.
    pub(crate) version: Option<u64>,
    /// The encoded table.
    pub(crate) bytes: Bytes,
}
