//! What is configured, limited and counted, for the cache and for each namespace: the records of namespaces,
//! settings by their sources, write phases, quotas, room for dirty data, shares of the memory, and whether
//! requests go to the cache at all. State and decisions only: nothing here waits for the store or enters an
//! object; `control_impl.rs`, `settings_in_force.rs` and `detach.rs` do.

pub(crate) mod attach_state;
pub(crate) mod dirty_room;
pub(crate) mod metrics;
pub(crate) mod namespaces;
pub(crate) mod quotas;
pub(crate) mod records;
pub(crate) mod settings;
mod share_targets;
pub(crate) mod shares;
pub(crate) mod write_phases;
