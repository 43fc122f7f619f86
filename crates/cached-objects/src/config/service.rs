//! The tables of a program that configure its object service, and the contents of files that they
//! name.

use super::{NbdTable, ObjectsTable, SynapseTable, VolumesTable};
use cached_config::InsightTable;
use cached_registry::RegistryTable;
use cached_tls::ServerTls;
use object_http::Keys;
use std::sync::Arc;

/// The tables that configure an object service. They must have been checked.
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// The store, and the cache over it with its HTTP listener.
    pub objects: ObjectsTable,
    /// Whether there is a cache; without one, the store itself is served over synapse.
    pub has_cache: bool,
    /// The synapse listener, if there is one.
    pub synapse: Option<SynapseTable>,
    /// The registry by which hosts elect the writer, if there is one.
    pub registry: Option<RegistryTable>,
    /// The volumes, if there are any.
    pub volumes: Option<VolumesTable>,
    /// The NBD listener of the volumes, if there is one.
    pub nbd: Option<NbdTable>,
    /// The statistics about the requests of the cache.
    pub insight: InsightTable,
}

/// The contents of the files that the listeners for HTTP and NBD name.
#[derive(Debug, Clone, Default)]
pub struct ListenerFiles {
    /// The certificates of the NBD listener.
    pub nbd_tls: Option<Arc<ServerTls>>,
    /// The keys of clients of the HTTP listener.
    pub http_keys: Option<Keys>,
    /// The certificates of the HTTP listener.
    pub http_tls: Option<Arc<ServerTls>>,
}
