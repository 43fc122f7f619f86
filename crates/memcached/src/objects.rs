//! The steps of a hand-over to another process, which takes the objects together with the items.

use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;

/// An object cache whose store and sockets another process can take over.
pub trait ObjectHandOver: Debug + Send + Sync {
    /// Returns copies of the listener's sockets for another process, each with its configured
    /// address.
    ///
    /// # Errors
    /// Fails if the system has no descriptor.
    fn sockets(&self) -> io::Result<Vec<(String, OwnedFd)>>;

    /// Makes the cache store everything and release the store. Blocks until this is done. Clients
    /// wait in the meantime, and are served again when [`serve`](Self::serve) is called.
    ///
    /// # Errors
    /// Returns the reason why the cache continues to serve, as a part of a line.
    fn release(&self) -> Result<(), String>;

    /// Ends the cache, because another process has the store and the sockets.
    fn hand_over(&self);

    /// Makes the cache serve again, because the other process has ended. If the store was released,
    /// the cache reopens it.
    fn serve(&self);
}
