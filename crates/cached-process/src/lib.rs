//! The code that `cached` and `synapsed` share as processes.
//!
//! | module | content |
//! |---|---|
//! | `files` | files for other programs: written whole, and the file of a unix socket |
//! | `log` | lines on standard error, as text or JSON; repeated ones are counted, and the last ones kept |
//! | `memory` | warns if the configured memory exceeds the machine's; returns freed memory to the system |
//! | `signals` | the signals that shut the process down or reload the configuration |
//! | `exit` | the exit statuses, and failures with one |
//! | `reload` | the differences between two configurations, and which of them can be applied at run time |
//! | `lifecycle` | the first log line, the shutdown request, the first panic of any thread, and notifications of the service manager |
#![warn(missing_debug_implementations)]

pub mod files;
pub mod log;
pub mod memory;
pub mod reload;
pub mod signals;

mod exit;
mod lifecycle;

pub use exit::{Exit, Failure};
pub use lifecycle::{Drain, first_panic, log_start, notify, panicked, watch_panics};
