//! The storage contract: one small trait, [`Blocker`], on which caches, bridges, replicators and stores
//! stack in any order, and three backends that keep it.
//!
//! An *object* is a run of bytes with a name in a namespace; it is read, written, copied and asked
//! about by byte range. What each operation owes, and what its caller owes, is written at [`Blocker`].
//! Whether a backend keeps its word is decided by [`conformance`], the same suite for all of them.
//!
//! - [`Memory`]: the model. One map, one lock, obviously right.
//! - [`FileStore`]: a directory tree that survives kill -9 and loss of power.
//! - [`Faulty`]: any backend with delays, errors, stalls, crashes and lost writes, from a seed.
//! - [`PassThrough`]: the empty layer, to copy when writing one.
//!
//! No runtime is needed: futures are the standard library's, time comes from a [`Clock`] handed in,
//! and what must block does so on the file backend's own few threads.
//!
//! ```
//! use std::sync::Arc;
//! use blocker::{Blocker, Memory, Name, Namespace, ObjectId, ReadRequest, WriteRequest};
//!
//! let store: Arc<dyn Blocker> = Arc::new(Memory::default());
//! let disk = ObjectId::new(Namespace::new("vm")?, Name::new("disk.0")?);
//! blocker::executor::block_on(async {
//!     store.write(WriteRequest::new(disk.clone(), 5, b"hello")).await?;
//!     let read = store.read(ReadRequest::new(disk, 0, 4096)).await?;
//!     assert_eq!(read.data.to_vec(), b"\0\0\0\0\0hello");
//!     Ok::<_, blocker::Error>(())
//! })?;
//! # Ok::<_, blocker::Error>(())
//! ```

pub mod admission;
mod blocker;
mod buffer;
pub mod capabilities;
pub mod clock;
pub mod conformance;
mod control;
mod delegate;
mod error;
pub mod event;
pub mod executor;
pub mod faulty;
pub mod file;
mod layer;
pub mod memory;
mod name;
mod order;
mod reply;
mod request;
mod response;
mod rng;
mod segment;

pub use crate::blocker::Blocker;
pub use crate::capabilities::{BUCKET_BYTES, Capabilities, OBJECT_BYTES_MAX_DEFAULT, Survives};
pub use crate::clock::{Clock, ManualClock, SystemClock, Timestamp};
pub use crate::control::{
    Attachment, Control, Loss, LossPage, NoControl, Policy, Quota, WriteMode, metrics_above,
};
pub use crate::error::{Error, Reason, Result};
pub use crate::event::{Event, EventHub, Subscription};

pub use crate::faulty::Faulty;
pub use crate::file::FileStore;
pub use crate::layer::PassThrough;
pub use crate::memory::Memory;
pub use crate::name::{NAME_BYTES_MAX, Name, Namespace, ObjectId};
pub use crate::order::{Durability, Epoch, OrderDomain, Stamp, Version, WriterId};
pub use crate::reply::{Pending, Reply, ReplyFuture};
pub use crate::request::{
    Call, Change, ClaimRequest, CompareAndWriteRequest, Condition, CopyRequest, DeleteRequest,
    DiscardRequest, FlushRequest, Hints, InfoRequest, InvalidateRequest, ListRequest, ReadRequest, Run,
    RunContent, Scope, TruncateRequest, WriteFullRequest, WriteRequest, WriteRunsRequest, WriteZeroesRequest,
};
pub use crate::response::{
    ChangeReply, ClaimReply, DeleteReply, FlushReply, Info, InvalidateReply, ListEntry, ListReply, ReadReply,
};
pub use crate::segment::{Segment, SegmentOwner, Segments};
/// The metrics that [`Control::metrics`] returns.
pub use cached_metrics as metrics;
