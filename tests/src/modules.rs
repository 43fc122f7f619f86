//! Finds the modules of a crate, their uses of each other, and the cycles among the crate's
//! chapters.
//!
//! A *chapter* is a module with a directory of files. Two modules with the same parent are
//! *siblings*. A sibling uses another one if any file below it names a path below the other;
//! re-exports are followed to the module that defines the name. Files of one chapter may use each
//! other cyclically; no cycle may go through another chapter, so that each chapter can be read,
//! tested and moved without those that depend on it. Uses between a module and its own parent, and
//! uses by tests, do not count.

mod graph;
mod resolve;
mod source;

pub use graph::{Circle, circles};
pub use source::{Crate, Module, Use};
