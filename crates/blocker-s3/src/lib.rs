//! The storage contract on S3 and S3-compatible servers.
//!
//! An object of the contract is a small S3 object, its *head*, and *blobs* that the head names. A
//! change puts the new bytes as one blob with a new key, regardless of the number of ranges, and
//! then replaces the head that it has read, on condition that the head is unchanged. So a flush of
//! many scattered ranges is two requests that read nothing, and a blob without a head that names it
//! was never written. `format` defines keys and bodies, `server` sends requests, and `object`
//! decides:
//!
//! - `change.rs`: reads the head, decides, puts the bytes, puts the head.
//! - `swap.rs`: replacement of a head, and the handling of lost responses; remembered heads; the
//!   order of changes of one object.
//! - `read.rs`: reads, copies, listings.
//! - `claims.rs`: the S3 part of the claim protocol ([`blocker::conditional::claims`] has it, with
//!   its proofs).
//!
//! `start.rs` probes the server's features; `sweep.rs` removes the remains of writers that died in
//! the middle of a change, and heads of deleted objects.
//!
//! Known limits: a listing reads every head that is not remembered; a deleted object leaves a head
//! of some 150 bytes, until a sweep after the next claim of its namespace, and forever on servers
//! that ignore conditional removals; a copy goes through the client; events of other clients are
//! not received. Blobs carry no checksum of the store's own.
//!
//! The HTTP client is the feature `http`, off by default because it adds many crates. Without it a
//! store is opened over another [`object_store::ObjectStore`].
//!
//! ```
//! use std::sync::Arc;
//!
//! use blocker::{BlockerExt, Name, Namespace, ObjectId, SystemClock, WriteRequest};
//! use blocker_s3::object_store::memory::InMemory;
//! use blocker_s3::{S3Config, S3Store};
//!
//! let config = S3Config::new("disks");
//! let store = S3Store::open_over(&config, Arc::new(InMemory::new()), Arc::new(SystemClock))?;
//! let disk = ObjectId::new(Namespace::new("vm")?, Name::new("disk.0")?);
//! blocker::executor::block_on(store.write(WriteRequest::new(disk, 0, b"hello")))?;
//! # Ok::<_, blocker::Error>(())
//! ```

mod config;
mod format;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod object;
mod random;
mod server;
mod start;
mod store;
mod sweep;

pub use crate::config::S3Config;
pub use crate::store::S3Store;
pub use crate::sweep::Swept;
/// The crate whose stores an [`S3Store`] may be opened over.
pub use object_store;
