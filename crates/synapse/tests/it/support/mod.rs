//! Code shared by the tests of `synapse`.
//!
//! - [`host`]: a server and its clients in one process, over sockets.
//! - [`raw`]: a client that sends given frames, valid or not.
//! - [`layers`]: backends that promise less than they provide.
//! - [`history`]: histories of registers, and the search for an order that explains them.
//! - [`net`]: networks with seeded faults.
//! - [`environment`]: a simulated clock, a server that can be killed, stores that record their
//!   changes, workloads.

// Each test binary includes this module and uses a part of it. Public items are for the tests.
#![allow(dead_code, unreachable_pub)]

pub mod environment;
pub mod history;
pub mod host;
pub mod layers;
pub mod net;
pub mod raw;
