//! The storage contract on RADOS, Ceph's object store, through librados loaded at run time.
//!
//! One RADOS object per object, its bytes as they are; what the contract wants to know beside them (size,
//! fence, stamp) in a few extended attributes that are compared and changed in the same atomic operation as
//! the bytes. `attr.rs` draws them, `layout.rs` has the names. The ideas, each in a module of its own:
//!
//! - `change.rs`: look, decide, and apply if what was seen still holds: one round trip for an object that was
//!   changed before, whatever the change.
//! - `fence.rs`: how a claim reaches every object of a scope, those included that do not exist yet. With proof.
//! - `settle.rs`: what is done after a timeout, so that a change that comes late is refused.
//! - `aio.rs`: completions as futures; what librados touches outlives a future that is dropped.
//! - `ffi.rs`: the functions of librados that are used.
//!
//! What librados's C interface lacks: a copy within the store (copies go through the client), and listings in
//! order of names (a page costs a walk of its namespace).
//!
//! A change of many ranges (`write_runs`) is one RADOS operation with a step for each.
//!
//! Known limit: the connection is one `rados_t` for the life of the store. An OSD that is killed and comes up at
//! the same address before the monitor has missed it can leave librados asking the one that is gone: operations
//! end in `OutcomeUnknown` or `Retryable` after `op_timeout`, and only a new process (or the next change of the
//! OSD map) ends that. A new connection by ourselves would have to prove that nothing of the old one is still to
//! land before the first change is made through it; `settle.rs` does so for an object, not for a connection.
//!
//! Other programs may read the objects, and objects that they put there are objects here; while this store
//! changes an object, no one else should.
//!
//! ```no_run
//! use blocker::{Blocker, Name, Namespace, ObjectId, WriteRequest};
//! use blocker_rados::{RadosConfig, RadosStore};
//!
//! let store = RadosStore::open(RadosConfig::new("rbd"))?;
//! let disk = ObjectId::new(Namespace::new("vm")?, Name::new("disk.0")?);
//! blocker::executor::block_on(store.write(WriteRequest::new(disk, 0, b"hello")))?;
//! # Ok::<_, blocker::Error>(())
//! ```

mod aio;
mod attr;
mod change;
mod cluster;
mod config;
mod core;
mod fence;
mod ffi;
mod layout;
mod list;
mod op;
mod read;
mod settle;
mod store;
mod view;
mod watch;
mod worker;

pub use crate::config::RadosConfig;
pub use crate::store::RadosStore;
