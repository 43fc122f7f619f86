//! What is configured, limited and counted, for the cache and for each namespace: the records of namespaces,
//! settings by their sources, write phases, quotas, room for dirty data, shares of the memory, and whether
//! requests go to the cache at all. State and decisions only: nothing here waits for the store or enters an
//! object; `control_impl.rs`, `settings_in_force.rs` and `detach.rs` do.

pub(crate) mod attach_state;
pub(crate) mod dirty_pool;
pub(crate) mod dirty_room;
pub(crate) mod limited_flushes;
pub(crate) mod live_values;
pub(crate) mod memory_shares;
pub(crate) mod metrics;
pub(crate) mod namespace_metrics;
pub(crate) mod namespace_settings;
pub(crate) mod namespace_table;
pub(crate) mod namespaces;
pub(crate) mod quotas;
pub(crate) mod store_metrics;
pub(crate) mod write_phases;
