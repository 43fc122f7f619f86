//! What a server exports: the traits between the protocol and the disks behind it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use blocker::{Reply, Segments};
use connection::ReceiveBuffer;

use crate::protocol::{Context, Description, Extent, NoExport, Zeroes};

/// The most bytes that an export has in memory for one request to read ahead. They count among those that a connection may
/// have outstanding.
pub const READ_AHEAD_BYTES: u32 = 1 << 20;

/// The future of an answer about exports.
pub type Lookup<T> = Pin<Box<dyn Future<Output = Result<T, NoExport>> + Send>>;

/// The exports of a server, by name.
///
/// The futures own what they need. Dropping one, at the end of a connection, must leave nothing half done.
pub trait Exports: Send + Sync {
    /// Returns the names of all exports that clients may see.
    fn list(&self) -> Lookup<Vec<String>>;

    /// Returns what is known about an export, without opening it. The empty name is the default export's.
    fn describe(&self, name: &str) -> Lookup<Description>;

    /// Opens an export for one connection, and returns what the client is served with. It is called once for
    /// each connection, also for several of one export at a time; the export is released when its last handle
    /// is dropped.
    fn open(&self, name: &str) -> Lookup<Arc<dyn Export>>;
}

/// A disk.
///
/// The server has checked each request against [`Self::description`]: the range lies inside, only what is
/// offered is asked for, and payloads are at most 32 MiB. Replies may be ready or pending, in any order; the
/// future of a pending one is polled to its end, also when its client is gone.
///
/// Several connections may use one export at a time. A change that was acknowledged on one of them is seen by
/// all, and a flush on one covers what was acknowledged on any: that is what
/// [`Features::multi_conn`](crate::protocol::Features::multi_conn) promises.
pub trait Export: Send + Sync {
    /// Returns what is known about the disk. It does not change.
    fn description(&self) -> &Description;

    /// Reads `len_bytes` from `offset`. Holes may be returned as such.
    fn read(&self, offset: u64, len_bytes: u32) -> Reply<Segments>;

    /// Writes at `offset`. With `fua`, the change is durable when it is acknowledged.
    fn write(&self, offset: u64, data: Segments, fua: bool) -> Reply<()>;

    /// Returns memory for the payload of a write that is about to arrive, of at least 32 KiB; `None` if there is
    /// none at once, and the payload is received into a buffer of the server. It must not block. The write
    /// follows, unless its client goes away before.
    fn receive_buffer(&self, offset: u64, len_bytes: u32) -> Option<Box<dyn ReceiveBuffer>> {
        let _ = (offset, len_bytes);
        None
    }

    /// Makes durable every change that was acknowledged before the call.
    fn flush(&self) -> Reply<()>;

    /// Gives up bytes; they may keep their content, or become zeros.
    fn trim(&self, offset: u64, len_bytes: u32, fua: bool) -> Reply<()>;

    /// Writes zeros. With [`Zeroes::fast`], fails with [`Unsupported`](blocker::Error::Unsupported), and
    /// changes nothing, where that would take as long as a write.
    fn write_zeroes(&self, offset: u64, len_bytes: u32, zeroes: Zeroes) -> Reply<()>;

    /// Reads ahead, as far as that is useful, with at most [`READ_AHEAD_BYTES`] in memory at a time.
    fn cache(&self, offset: u64, len_bytes: u32) -> Reply<()>;

    /// Returns the states of the extents from `offset` on, in order and without gaps, for one of the contexts
    /// of the description. Where they do not cover all of `len_bytes`, the client asks again; with `is_one`
    /// it is content with the first one.
    fn block_status(
        &self,
        context: &Context,
        offset: u64,
        len_bytes: u32,
        is_one: bool,
    ) -> Reply<Vec<Extent>>;
}
