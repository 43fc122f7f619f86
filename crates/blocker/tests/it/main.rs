//! The tests of the contract and of the file store, from outside.

mod conformance;
mod disk_bytes;
mod disk_corpus;
mod faulty;
mod file_store;
mod kill9;
