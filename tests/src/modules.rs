//! The modules of a crate, what each one uses, and the circles among its chapters.
//!
//! A *chapter* is a module with a directory of files. Two modules that share a parent are *siblings*. A sibling
//! uses another one when any file below it names a path below the other; re-exports are followed to the module
//! that defines the name. Files of one chapter may use each other in a circle; no circle may go through another
//! chapter: then each of them can be read, tested and moved without those that stand above it. Uses between a
//! module and its own parent are not counted, nor is what only tests use.

mod graph;
mod resolve;
mod source;

pub use graph::{Circle, circles};
pub use source::{Crate, Module, Use};
