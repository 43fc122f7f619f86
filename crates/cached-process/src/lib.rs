//! What the programs `cached` and `synapsed` have in common as processes.
//!
//! | module | content |
//! |---|---|
//! | `allocator` | returns freed memory to the system |
//! | `log` | lines on standard error, as text or JSON; repeated ones are counted; the last ones are kept |
//! | `memory` | warns of more memory than the machine has |
//! | `signals` | which signals end the process, and which one reads the configuration again |
//! | `panics` | records the first panic of any thread |
//! | `exit` | the exit statuses, and the failures that end in one |
//! | `service_manager` | notifications of the process's state |
//! | `reload` | what differs between two configurations, and whether it can change while the process runs |
//! | `drain` | the request to end, and the state that readiness reports |
#![warn(missing_debug_implementations)]

pub mod allocator;
pub mod drain;
pub mod exit;
pub mod log;
pub mod memory;
pub mod panics;
pub mod reload;
pub mod signals;

mod service_manager;

pub use exit::{Exit, Failure};
pub use service_manager::notify;
