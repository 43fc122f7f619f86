//! The storage contract on RADOS, Ceph's object store, through librados loaded at run time.
//!
//! One RADOS object per object, its bytes as they are; what the contract wants to know beside them (size,
//! fence, stamp) in a few extended attributes that are compared and changed in the same atomic operation as
//! the bytes. `format.rs` draws them and has the names. `librados` has operations, completions as futures, and the
//! connection; `object` decides:
//!
//! - `change.rs`: look, decide, and apply if what was seen still holds: one round trip for an object that was
//!   changed before, whatever the change.
//! - `read.rs`: reads, copies, listings.
//! - `view.rs`: what is remembered of objects, and what is done after a timeout, so that a change that comes late is
//!   refused.
//! - `claims.rs`: what the protocol of claims ([`blocker::conditional::claims`], with its proofs) rests on here.
//!
//! What librados's C interface lacks: a copy within the store (copies go through the client), and listings in
//! order of names (a page costs a walk of its namespace).
//!
//! A change of many ranges (`write_runs`) is one RADOS operation with a step for each.
//!
//! Where an OSD is, librados learns from the cluster's map. When a connection breaks, it subscribes to the
//! next map, once; if that is about something else (an OSD that boots changes the map before it is up), it
//! continues connecting to the process that is gone, until an operation is older than `objecter_timeout` (10
//! s, as Ceph has it). Operations with a shorter timeout of their own never are. So the store sets
//! `objecter_timeout` below `op_timeout`, and asks for the newest map after each timeout (`Core::refresh`):
//! an OSD that is back is found within seconds, whether the monitors had missed it or not.
//!
//! Known limit: the connection is one `rados_t` for the life of the store. A network that drops packets in
//! silence, with the OSD alive and in the map, is noticed by TCP only: operations end in `OutcomeUnknown` or
//! `Retryable` after `op_timeout` each, until the kernel gives the connection up.
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

mod config;
mod format;
mod librados;
mod object;
mod store;

pub use crate::config::RadosConfig;
pub use crate::store::RadosStore;
