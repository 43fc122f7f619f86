//! What can be done with a key, one family of commands per file.

mod arithmetic;
mod delete;
mod flush;
mod get;
mod reserve;
mod scan;
mod store;

pub use reserve::Reservation;
pub use scan::ScanCursor;
