//! Histories of a register, and whether one order of its operations explains them.
//!
//! - [`operation`]: a call of a client, its times, and its outcome.
//! - [`check`]: the search for an order (Wing and Gong's, with Lowe's table of tried points).
//! - [`recorder`]: the recording of a history by a test.
//! - [`generate`]: histories that are known to be linearizable, and ways to make one invalid.

pub mod check;
pub mod generate;
pub mod operation;
pub mod recorder;
