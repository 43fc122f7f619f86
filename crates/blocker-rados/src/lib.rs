//! The storage contract on RADOS, Ceph's object store, through librados loaded at run time.
//!
//! Each object is one RADOS object with the same bytes; size, fence and stamp are in a few extended
//! attributes, which are compared and changed in the same atomic operation as the bytes.
//! `format.rs` defines names and attributes. `librados` has operations, completions as futures, and
//! the connection; `object` decides:
//!
//! - `change.rs`: reads the state, decides, and applies the change if the observed state is
//!   unchanged. If the object has been changed before, a change takes one round trip.
//! - `read.rs`: reads, copies, listings.
//! - `view.rs`: remembered states of objects, and the handling of timeouts, so that a late change
//!   is refused.
//! - `claims.rs`: the RADOS part of the claim protocol ([`blocker::conditional::claims`] has it,
//!   with its proofs).
//!
//! librados's C interface can neither copy within the store (copies go through the client) nor list
//! in order of names (a page costs a walk of its namespace).
//!
//! A change of many ranges (`write_runs`) is one RADOS operation with a step for each.
//!
//! librados learns the addresses of OSDs from the cluster's map. When a connection breaks, librados
//! subscribes to the next map, once. If that map is about something else (a booting OSD changes the
//! map before it is up), librados keeps connecting to the dead process until an operation is older
//! than `objecter_timeout` (10 s by default), which operations with a shorter timeout never reach.
//! So the store sets `objecter_timeout` below `op_timeout`, and asks for the newest map after each
//! timeout (`Core::refresh`): a restarted OSD is found within seconds, whether or not the monitors
//! noticed its absence.
//!
//! Known limit: the store uses one `rados_t` for its whole lifetime. If a network silently drops
//! packets while the OSD is alive and in the map, only TCP notices: each operation fails with
//! `OutcomeUnknown` or `Retryable` after `op_timeout`, until the kernel closes the connection.
//!
//! Other programs may read the objects, and objects that they create are visible here; while this
//! store changes an object, no other program should.
//!
//! ```no_run
//! use blocker::{BlockerExt, Name, Namespace, ObjectId, WriteRequest};
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
