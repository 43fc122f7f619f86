//! The running sidecar: sockets, connections, routing of requests, and operators' commands.
//! Decisions about single reads and changes do not belong here.

pub(crate) mod control;
pub(crate) mod server;
pub(crate) mod service;
pub(crate) mod socket;
