//! The tests of a daemon's configuration where it opens stores and closes them.

mod receive;
mod shutdown;
