//! Layers that measure, trace or forward the operations of the blocker below.

mod delegate;
mod measured;
mod traced;

pub use delegate::PassThrough;
pub use measured::{Measured, Measurements, OperationStats};
pub use traced::{Traced, note_error};
