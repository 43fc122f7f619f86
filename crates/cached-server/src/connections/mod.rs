//! The table of connections: what every thread may know about each of them, and how it reaches the worker
//! that serves one.
//!
//! ```text
//!  acceptor ── add ──────────────► Connections ◄── Holder ────── worker (its own connections)
//!                                   │  table of ConnInfo      ▲
//!  ticker ──── close_idle ─────────►│                         │ Command::Serve, Command::Check
//!  any worker ─ enforce_limits ────►│ ── CommandQueue of the connection's worker ──┘
//! ```
//! | module | content |
//! |---|---|
//! | `info` | [`ConnInfo`]: state, endpoints and held memory of one connection, written by its worker; [`Holder`]: the worker's handle of it, which counts that memory until it is freed |
//! | `commands` | [`CommandQueue`]: commands of other threads to a worker |
//! | `handed` | [`HandedConnection`]: what another process must know to go on with one |
//! | `attempts` | [`Attempts`]: wrong passwords by address |
//! | `table` | [`Connections`]: all of them, and the choice of those that are closed to free memory |

mod attempts;
mod commands;
mod handed;
mod info;
mod table;

pub(crate) use attempts::{Attempts, WrongPassword};
pub(crate) use commands::{
    AcceptedConnection, Command, CommandQueue, Pause, Paused, PausedConnection, Verdict,
};
pub(crate) use handed::{HANDED_INPUT_BYTES_MAX, HandedConnection, HandedPhase};
pub(crate) use info::{ConnInfo, ConnState, Endpoints, HeldMemory, Holder, ListenerCounts, UdpSocket};
pub(crate) use table::{Connections, Memory};
