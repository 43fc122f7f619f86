//! Changing objects, and storing what was changed: the three ways of a change (write-back, write-through and
//! write-around), copies, payloads received into buckets, and flushes with what the log asks of them. How an
//! object's state changes in each step is in `state/`.

pub(crate) mod apply;
pub(crate) mod back;
pub(crate) mod copy;
pub(crate) mod flush;
pub(crate) mod flush_send;
pub(crate) mod log_space;
pub(crate) mod modes;
pub(crate) mod receive;
pub(crate) mod scope_ops;
pub(crate) mod through;
