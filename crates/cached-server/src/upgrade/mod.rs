//! A new process of the program takes over from the running one: sockets, memory file, connections.
//!
//! ```text
//!  old process                                     new process: a child of the old one
//!  SIGUSR2: starts the program at its own path ──► reads its configuration
//!  offers its sockets ───────────────────────────► opens those that are missing
//!                     ◄─────────────────────────── Prepared
//!  stores what is dirty, lets the store go
//!  StoreFree ────────────────────────────────────► opens journal and store, begins their recovery
//!                     ◄─────────────────────────── StoreOpen
//!  stops between two requests
//!  clock, memory file, connections ──────────────► rebuilds the index, starts its threads
//!                     ◄─────────────────────────── Ready
//!  Go ───────────────────────────────────────────► has the memory, and serves, objects too
//!                     ◄─────────────────────────── Serving
//!  ends                                            writes the pid file; is the main process of the unit
//! ```
//! Before `Go` the old process can go on at any moment, with the memory as it was: it does so if the new one ends,
//! sends what is not expected, or is late; it ends the new one first, and waits until it is gone. From `Go` on the
//! new process has the memory; if it ends before it serves, the old one ends with an error, and what is in the
//! memory file is found by the next start.
//!
//! A store of objects, its claims and its journal can be open in one process only. So the old one lets them go before
//! the new one opens them (`objects/release.rs`), and opens them again if the new one fails: before `Go` that one
//! serves no object, so it has acknowledged nothing that could be lost with it. What is checked without the store is
//! checked before `Prepared`. Requests for items are served all that time; for objects, they wait from the moment at
//! which the old process's listener ends: the sockets stay open, and clients wait in their queues.
//!
//! | module | content |
//! |---|---|
//! | `message` | what the processes send each other |
//! | `channel` | the socket between them |
//! | `program` | the program that is started |
//! | `give`, `take` | the old process; the new one |

pub(crate) mod channel;
pub(crate) mod give;
pub(crate) mod message;
mod program;
mod take;
pub(crate) mod upgradable;

pub use program::Program;
pub(crate) use take::{Offered, Taken, Taking};
pub use take::{TakeOver, TakeOverError};

/// Set for a new process: its standard input is the socket.
pub(crate) const VARIABLE: &str = "CACHED_HAND_OVER";
