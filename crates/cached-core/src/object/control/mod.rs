//! Settings, limits and counters of the cache and of each namespace: the records of namespaces,
//! settings by source, write phases, quotas, room for dirty data, shares of the memory, and the
//! attach state. This chapter holds state and decisions only: nothing here waits for the store or
//! enters an object; `control_impl.rs`, `settings_in_force.rs` and `detach.rs` do.

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
