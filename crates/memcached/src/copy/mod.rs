//! Items on their way from one node of a ring to another: both ends of a copy session.
//!
//! ```text
//!  target                                         source
//!  removes old items of the slots
//!  COPY id ─────────────────────────────────────► hooks changes of the slots, then walks
//!          ◄───────────────────────── ITEM, GONE  each as it is when it is sent
//!          ◄────────────────────────────── READY  the walk is done, few changes are queued
//!  the move still exists: SEAL ─────────────────► executes no request for the slots from here on
//!          ◄───────────────────── ITEM, GONE, END
//!  commits in the registry, executes requests
//!  COMMITTED ───────────────────────────────────► removes the items
//! ```
//! A session has a thread at each end. A session that breaks before SEAL has changed nothing; after
//! SEAL, the slots of the source stay sealed until a map says whose they are.
//!
//! | module | content |
//! |---|---|
//! | `target` | the end that asks, and stores what comes |

mod target;

pub use target::{Copied, CopyError};
pub(crate) use target::copy;
