//! The engine of `cached`: memory in regions, an index that grows in place, items packed tightly,
//! eviction behind a small trait. No sockets, no storage I/O, no runtime.
//!
//! Open the files in this order to follow one `get`: [`kv`] (the store's front), `kv/ops/get.rs`,
//! `kv/index/` (hash → item), `kv/item.rs` (the bytes of an item). And one `set`:
//! `kv/ops/store.rs`, `kv/log.rs` (where an item's bytes go), `kv/reclaim.rs` (what makes room), [`policy`] (who stays).
//!
//! ```
//! use cached_core::kv::{Kv, KvConfig};
//!
//! let kv = Kv::new(KvConfig { arena_bytes: 64 << 20, ..KvConfig::default() })?;
//! kv.set(b"greeting", b"hello")?;
//! assert_eq!(kv.get(b"greeting").as_deref(), Some(&b"hello"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod arena;
pub mod clock;
mod hash;
pub mod kv;
pub mod object;
pub mod policy;
mod prefetch;
mod sync;

pub use hash::KeyHash;
