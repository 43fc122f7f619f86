//! The sum of all limits: what the server may take at most, computed at start and printed.

use crate::conn::info::ConnInfo;
use crate::conn::output::{COPY_BYTES_MAX, FULL_BYTES};
use crate::settings::Settings;
use crate::worker::INPUT_BUFFERS_BYTES;
use cached_core::kv::KvLimits;
use std::fmt;

/// A connection without any buffer: its state, its task, what the runtime keeps for its socket.
const CONNECTION_BYTES: usize = 2048;

const _: () = assert!(size_of::<ConnInfo>() + size_of::<crate::worker::Seat>() < CONNECTION_BYTES);

/// What each part may take at most, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// What `-m` gives: keys, values and their headers, and what the eviction policy remembers.
    pub arena: usize,
    /// The index, if the arena were full of the smallest items.
    pub index: usize,
    /// Unfinished input and unread output of all connections.
    pub connection_buffers: usize,
    /// Connections themselves.
    pub connections: usize,
    /// Buffers of the worker threads.
    pub workers: usize,
    /// The object cache and its store's buffers; 0 without one.
    pub objects: usize,
    /// The object cache's door; 0 without one.
    pub object_door: usize,
}

impl Limits {
    /// Adds up what the settings and the store allow.
    pub fn new(settings: &Settings, store: &KvLimits) -> Limits {
        Limits {
            arena: store.arena_bytes + store.policy_bytes,
            index: store.index_bytes_max,
            connection_buffers: settings.connection_bytes_max,
            connections: settings.connections_max * CONNECTION_BYTES,
            workers: settings.threads * (INPUT_BUFFERS_BYTES + 8 * FULL_BYTES + COPY_BYTES_MAX),
            objects: 0,
            object_door: 0,
        }
    }

    /// The same with an object cache and a door of so many bytes.
    #[must_use]
    pub fn with_objects(self, cache: u64, door: u64) -> Limits {
        let bytes = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        Limits { objects: bytes(cache), object_door: bytes(door), ..self }
    }

    /// All of it.
    pub fn sum(&self) -> usize {
        let memcached = self.arena + self.index + self.connection_buffers + self.connections + self.workers;
        memcached + self.objects + self.object_door
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: usize| bytes.div_ceil(1 << 20);
        write!(
            f,
            "{} MiB at most = items {} + index {} + connection buffers {} + connections {} + workers {}",
            mib(self.sum()),
            mib(self.arena),
            mib(self.index),
            mib(self.connection_buffers),
            mib(self.connections),
            mib(self.workers)
        )?;
        if self.objects > 0 {
            write!(f, " + objects {}", mib(self.objects))?;
        }
        if self.object_door > 0 {
            write!(f, " + object door {}", mib(self.object_door))?;
        }
        Ok(())
    }
}
