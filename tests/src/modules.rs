//! The modules of a crate, what each one uses, and the circles among them.
//!
//! Two modules that share a parent are *siblings*. A sibling uses another one when any file below it names a
//! path below the other; re-exports are followed to the module that defines the name. Siblings must form a
//! directed acyclic graph at every level: then each of them can be read, tested and moved without those that
//! stand above it. Uses between a module and its own parent are not counted, nor is what only tests use.

mod graph;
mod resolve;
mod source;

pub use graph::{Circle, circles};
pub use source::{Crate, Module, Use};
