//! Changing objects and storing the changes: the three write paths (write-back, write-through and
//! write-around), copies, payloads received into buckets, and flushes together with the log's
//! requirements on them. The transitions of an object's state are in `state/`.

pub(crate) mod apply;
pub(crate) mod back;
pub(crate) mod copy;
pub(crate) mod flush;
pub(crate) mod log_space;
pub(crate) mod modes;
pub(crate) mod receive;
pub(crate) mod scope_ops;
pub(crate) mod through;
