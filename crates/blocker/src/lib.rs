//! The storage contract: one trait, [`Blocker`], on which caches, connections, replicators and
//! stores stack in any order.
//!
//! An *object* is a sequence of bytes with a name in a namespace; it is read, written, copied and
//! queried by byte range. [`Blocker`] documents each operation's guarantees and its caller's
//! duties. A *backend* is a blocker that stores; a *layer* is a blocker over another one.
//!
//! # Using a blocker
//!
//! Requests are structs created by `new` and refined by methods; results are [replies](Reply),
//! which are awaited. [`BlockerExt`] has a method for each kind of change, and shorter forms for
//! whole objects.
//!
//! ```
//! use std::sync::Arc;
//! use blocker::{Blocker, BlockerExt, Memory, ObjectId, ReadRequest, WriteRequest};
//!
//! let store: Arc<dyn Blocker> = Arc::new(Memory::default());
//! let disk: ObjectId = "vm/disk.0".parse()?;
//! blocker::executor::block_on(async {
//!     store.write(WriteRequest::new(disk.clone(), 5, b"hello")).await?;
//!     let read = store.read(ReadRequest::new(disk.clone(), 0, 4096)).await?;
//!     assert_eq!(read.data.to_vec(), b"\0\0\0\0\0hello");
//!     assert_eq!(store.get(&disk).await?, b"\0\0\0\0\0hello"[..]);
//!     Ok::<_, blocker::Error>(())
//! })?;
//! # Ok::<_, blocker::Error>(())
//! ```
//!
//! # Implementing one
//!
//! - A layer forwards unchanged operations with [`delegate!`]; [`PassThrough`] is the layer that
//!   changes nothing, and `examples/layer.rs` is a layer in forty lines.
//! - A backend implements every operation; [`admission`] has the checks that all of them share, and
//!   `examples/backend.rs` is a small one. For backends whose atomic steps span one object, such as
//!   S3 and RADOS, [`conditional`] decides changes and makes claims reach every object.
//! - [`Control`] is the control plane: policies, quotas, metrics.
//! - The conformance suite (feature `conformance`) checks whether an implementation keeps the
//!   contract.
//!
//! # Features
//!
//! By default this crate has the contract, its types and [`Memory`], the model.
//!
//! | feature | module |
//! |---|---|
//! | `file` | `file`: a directory tree that survives `kill -9` and power loss |
//! | `faulty` | `faulty`: delays, errors, stalls, crashes and lost writes over any blocker, from a seed |
//! | `conformance` | `conformance`: the suite that checks a blocker against the contract |
//!
//! No async runtime is needed: futures are the standard library's, time comes from a [`Clock`] that
//! the caller passes, and blocking work of the file backend runs on a few threads of its own.
#![warn(missing_debug_implementations)]

pub mod admission;
mod blocker;
pub mod capabilities;
pub mod change;
pub mod clock;
pub mod conditional;
#[cfg(feature = "conformance")]
pub mod conformance;
mod control;
mod error;
pub mod event;
pub mod executor;
mod ext;
#[cfg(feature = "faulty")]
pub mod faulty;
#[cfg(feature = "file")]
pub mod file;
mod layer;
pub mod memory;
mod name;
mod namespace_settings;
mod order;
mod reply;
mod request;
#[doc(hidden)]
pub mod rng;
mod segment;
pub mod trace;

pub use crate::blocker::Blocker;
pub use crate::capabilities::{BUCKET_BYTES, Capabilities, OBJECT_BYTES_MAX_DEFAULT, Survives};
pub use crate::change::{
    Change, ChangeRequest, ChangeTerms, CompareAndWriteRequest, CopyRequest, DeleteRequest, DiscardRequest,
    Run, RunContent, TruncateRequest, WriteFullRequest, WriteRequest, WriteRunsRequest, WriteZeroesRequest,
};
pub use crate::clock::{Clock, ManualClock, SystemClock, Timestamp};
pub use crate::control::{Attachment, Control, Loss, LossPage, NoControl, Policy, Quota, metrics_above};
pub use crate::error::{Error, Reason, Result};
pub use crate::event::{Event, EventHub, Subscription};
pub use crate::ext::{BlockerExt, Entries};
#[cfg(feature = "faulty")]
pub use crate::faulty::Faulty;
#[cfg(feature = "file")]
pub use crate::file::FileStore;
pub use crate::layer::{Measured, Measurements, OperationStats, PassThrough, Traced, note_error};
pub use crate::memory::Memory;
pub use crate::name::{NAME_BYTES_MAX, Name, Namespace, ObjectId};
pub use crate::namespace_settings::WriteMode;
pub use crate::namespace_settings::{DirtyData, NamespacePage, NamespaceState, RemovedNamespace};
pub use crate::namespace_settings::{NamespaceKey, NamespaceSettings};
pub use crate::order::{Durability, Epoch, OrderDomain, Stamp, Version, WriterId};
pub use crate::reply::{
    ChangeReply, ClaimReply, FlushReply, Info, InvalidateReply, ListEntry, ListReply, Pending, ReadReply,
    Reply, ReplyFuture,
};
pub use crate::request::{
    Call, ClaimRequest, Condition, FlushRequest, Hints, InfoRequest, InvalidateRequest, ListRequest,
    Priority, ReadRequest, Scope,
};
pub use crate::segment::{ReceiveBuffer, ReceiveBuffers, Segment, SegmentOwner, Segments, SegmentsBuf};
/// The metrics that [`Control::metrics`] returns.
pub use cached_metrics as metrics;
