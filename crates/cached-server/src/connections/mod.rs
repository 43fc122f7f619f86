//! The table of connections: what every thread may know about each of them, and how it reaches the worker
//! that serves one.
//!
//! ```text
//!  acceptor ── add ──────────────► Connections ◄── record_held ── worker (its own connections)
//!                                   │  table of ConnInfo      ▲
//!  ticker ──── close_idle ─────────►│                         │ Command::Serve, Command::Check
//!  any worker ─ enforce_limits ────►│ ── CommandQueue of the connection's worker ──┘
//! ```
//! | module | content |
//! |---|---|
//! | `info` | [`ConnInfo`]: state, endpoints and held memory of one connection, written by its worker |
//! | `commands` | [`CommandQueue`]: commands of other threads to a worker |
//! | `table` | [`Connections`]: all of them, and the choice of those that are closed to free memory |

mod commands;
mod info;
mod table;

pub(crate) use commands::{AcceptedConnection, Command, CommandQueue};
pub(crate) use info::{ConnInfo, ConnState, Endpoints, HeldMemory};
pub(crate) use table::Connections;
