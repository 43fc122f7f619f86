//! The tests of volumes as exports of NBD.

mod receive;
mod trouble;
mod volumes;
