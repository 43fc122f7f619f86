//! The operations on items, one file per family of commands.

mod arithmetic;
mod delete;
mod get;
mod import;
mod link;
mod store;

pub use get::{READ_BATCH, ScanCursor};
pub use import::{ImportOptions, Imported};
pub use store::Reservation;
