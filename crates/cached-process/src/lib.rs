//! The code that `cached` and `synapsed` share as processes.
//!
//! | module | content |
//! |---|---|
//! | `files` | files for other programs: written whole, and the file of a unix socket |
//! | `log` | lines on standard error, as text or JSON; repeated ones are counted, and the last ones kept |
//! | `memory` | warns if the configured memory exceeds the machine's; returns freed memory to the system |
//! | `signals` | the signals that shut the process down or reload the configuration |
//! | `panics` | records the first panic of any thread |
//! | `exit` | the exit statuses, and failures with one |
//! | `service_manager` | notifications of the process's state |
//! | `reload` | the differences between two configurations, and which of them can be applied at run time |
//! | `drain` | the shutdown request, and the state that readiness reports |
#![warn(missing_debug_implementations)]

pub mod drain;
pub mod exit;
pub mod files;
pub mod log;
pub mod memory;
pub mod panics;
pub mod reload;
pub mod signals;

mod service_manager;

pub use exit::{Exit, Failure};
pub use service_manager::notify;
