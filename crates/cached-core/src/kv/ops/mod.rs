//! What can be done with a key, one family of commands per file.

mod arithmetic;
mod delete;
mod flush;
mod get;
mod read_many;
mod reserve;
mod scan;
mod store;

pub use read_many::READ_BATCH;
pub use reserve::Reservation;
pub use scan::ScanCursor;
