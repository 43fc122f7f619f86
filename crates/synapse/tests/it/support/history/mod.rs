//! Histories of a register, and whether one order of its operations explains them.
//!
//! - [`operation`]: a call of a client, its times, and its outcome.
//! - [`check`]: the search for an order (Wing and Gong's, with Lowe's memory of what was tried).
//! - [`recorder`]: how a test records a history.
//! - [`generate`]: histories that are known to be good, and ways to spoil one.

pub mod check;
pub mod generate;
pub mod operation;
pub mod recorder;
