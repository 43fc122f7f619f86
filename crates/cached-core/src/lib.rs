//! The engine of `cached`: two caches in memory, for programs that embed them and for the servers of this
//! project.
//!
//! - [`kv`]: a **byte-keyed store** with memcached's semantics. Items are packed into regions of one arena,
//!   an index finds them, and an eviction [policy] decides which stay.
//! - [`object`]: an **object cache**, a [`Blocker`](blocker::Blocker) in front of another one: a file store,
//!   a RADOS pool, a server. It keeps 4 KiB buckets of objects, and writes back or through.
//! - [`arbiter`]: lets both share one amount of memory.
//!
//! There are no sockets, no storage I/O and no runtime here.
//!
//! ```
//! use cached_core::kv::Kv;
//!
//! let kv = Kv::with_capacity_bytes(64 << 20)?;
//! kv.set(b"greeting", b"hello")?;
//! assert_eq!(kv.get(b"greeting").as_deref(), Some(&b"hello"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The front pages of [`kv`] and [`object`] have examples, limits and the way through the source. Common to
//! both are [`arena`] (the memory, cut into regions), [`policy`], [`clock`], [`insight`] (what more memory would
//! give, and why requests miss), and [`sync`] with [`lock_order`]: atomics, and locks that must be taken in order.

pub mod arbiter;
pub mod arena;
mod balance;
pub mod clock;
mod hash;
pub mod insight;
pub mod kv;
pub mod lock_order;
pub mod object;
pub mod policy;
mod stores;
pub mod sync;

pub use arena::prefetch;
pub use hash::KeyHash;

/// Returns the error `what` unless a condition holds.
fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}
