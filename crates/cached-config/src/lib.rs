//! The object cache as a part of a program: what its configuration says, and how it ends.
//!
//! `cached` and `synapsed` both put an object cache before a store. What is the same in both is here: the keys with their
//! defaults and limits, how a file is read and what is said of its mistakes, the store behind the cache, the memory all of
//! it comes to, and an end that stores what is dirty. What this leaves out: doors, threads.

mod backend;
mod config_file;
mod descriptors;
mod end;
mod landing;
mod mistake;
mod news;
mod size;
mod store;
mod table;
mod text;

pub use backend::{BackendTable, FileTable, MemoryTable, RadosTable, RemoteTable};
pub use config_file::{ConfigError, parse_config, read_config};
pub use descriptors::raise_descriptor_limit;
pub use end::{Unfinished, store_all};
pub use landing::CacheLanding;
pub use mistake::{
    Mistake, check_exposure, eviction_policy, mistake, require, secret, secret_warning, within,
};
pub use news::log_news;
pub use size::Size;
pub use store::{Store, StoreError};
pub use table::{NamespaceTable, ObjectsTable, Write, WriterName};
