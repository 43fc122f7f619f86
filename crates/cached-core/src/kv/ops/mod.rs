//! The operations on items, one family of commands in each file.

mod arithmetic;
mod delete;
mod get;
mod link;
mod store;

pub use get::{READ_BATCH, ScanCursor};
pub use store::Reservation;
