//! The operations on items, one family of commands in each file.

mod arithmetic;
mod delete;
mod flush;
mod flush_prefix;
mod get;
mod link;
mod number;
mod read_many;
mod reserve;
mod scan;
mod store;

pub use read_many::READ_BATCH;
pub use reserve::Reservation;
pub use scan::ScanCursor;
