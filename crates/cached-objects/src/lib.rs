//! The object cache as a part of a program: what its configuration says, and how it ends.
//!
//! `cached` and `synapsed` both put an object cache before a store. What is the same in both is here: the keys with their
//! defaults and limits, the memory they come to, and an end that stores what is dirty. What this leaves out: reading a
//! file as a whole, doors, threads.

mod backend;
mod end;
mod landing;
mod mistake;
mod size;
mod table;

pub use backend::{BackendTable, FileTable, MemoryTable, RadosTable, RemoteTable};
pub use end::{Unfinished, store_all};
pub use landing::CacheLanding;
pub use mistake::{Mistake, eviction_policy, mistake, require, secret, within};
pub use size::Size;
pub use table::{NamespaceTable, ObjectsTable, Write, WriterName};
