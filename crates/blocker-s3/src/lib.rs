//! The storage contract on S3, and on servers that speak its protocol.
//!
//! An object of the contract is a small S3 object, its *head*, and *blobs* that the head names. A change puts
//! the new bytes as a blob under a key that was never used, whatever the number of ranges, and then a new
//! head in place of the one it has seen, on the condition that it is still there. So a flush of many
//! scattered ranges is two requests that read nothing, and what is not named by a head was never written.
//! Keys and bodies are drawn in `format`, requests are sent by `server`, and `object` decides:
//!
//! - `change.rs`: look, decide, put the bytes, put the head.
//! - `swap.rs`: one head in place of another, and what is done when the answer is lost; remembered heads; the order of
//!   changes of one object.
//! - `read.rs`: reads, copies, listings.
//! - `claims.rs`: what the protocol of claims ([`blocker::conditional::claims`], with its proofs) rests on here.
//!
//! `start.rs` tries out what the server must be able to do; `sweep.rs` removes what writers have left that died in the
//! middle of a change, and heads of deleted objects.
//!
//! Known limits: a listing reads every head that is not remembered; a deleted object leaves a head of some
//! 150 bytes, until a sweep after the next claim of its namespace, and for ever on servers that ignore conditions
//! of removals; a copy goes through the client; events of other clients are not received.
//! Blobs carry no checksum of the store's own.
//!
//! The client that speaks HTTP is the feature `http`, off by default: it brings many crates. Without it a
//! store is opened over another [`object_store::ObjectStore`].
//!
//! ```
//! use std::sync::Arc;
//!
//! use blocker::{Blocker, Name, Namespace, ObjectId, SystemClock, WriteRequest};
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
mod server;
mod start;
mod store;
mod sweep;

pub use crate::config::S3Config;
pub use crate::store::S3Store;
pub use crate::sweep::{SweepOptions, Swept};
/// The store that a [`S3Store`] may be opened over.
pub use object_store;
