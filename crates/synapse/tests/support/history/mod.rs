//! Histories of a register, and whether one order of its operations explains them.
//!
//! - [`operation`]: what a client asked, when, and what it was told.
//! - [`check`]: the search for an order (Wing and Gong's, with Lowe's memory of what was tried).
//! - [`recorder`]: how a test writes a history down.
//! - [`generate`]: histories that are known to be good, and ways to spoil one.

pub mod check;
pub mod generate;
pub mod operation;
pub mod recorder;
