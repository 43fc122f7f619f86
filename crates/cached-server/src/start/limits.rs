//! The sum of all limits: the most memory that the server takes, calculated at the start and printed.

use crate::config::settings::Settings;
use crate::connections::ConnInfo;
use crate::stream::{COPY_BYTES_MAX, FULL_BYTES, INPUT_BUFFERS_BYTES, TLS_BUFFERS_BYTES};
use crate::telemetry::insight::hot_keys_bytes_max;
use crate::worker::{ConnectionSlot, udp_bytes_max};
use cached_core::insight;
use cached_core::kv::KvLimits;
use std::fmt;

/// A connection without buffers: its state, its entry in the table, its socket in the kernel's view.
const CONNECTION_BYTES: usize = 2048;

/// What TLS adds to a connection without buffers: keys, and rustls's state.
const TLS_CONNECTION_BYTES: usize = 6 << 10;

const _: () = assert!(size_of::<ConnInfo>() + size_of::<ConnectionSlot>() < CONNECTION_BYTES);

/// The most that each part takes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The memory of `-m`: keys, values and their headers, and the eviction policy's ghosts.
    pub arena: usize,
    /// The index for an arena full of the smallest items, and the marks of keys while a flushed prefix is swept.
    pub index: usize,
    /// Unfinished input and unsent output of all connections.
    pub connection_buffers: usize,
    /// Connections themselves.
    pub connections: usize,
    /// Buffers of the worker threads.
    pub workers: usize,
    /// Samples of requests, simulated caches and sketches; 0 where requests are not sampled.
    pub insight: usize,
    /// The object cache and its store's buffers; 0 without one.
    pub objects: usize,
    /// The listeners of objects and volumes; 0 without any.
    pub object_listener: usize,
    /// The sidecar before an S3 endpoint; 0 without one.
    pub s3: usize,
    /// The admin listener; 0 without one.
    pub admin: usize,
}

/// Returns the bytes of the samples of items and of objects, and of the hot keys, with `threads` workers.
fn insight_bytes_max(threads: usize) -> usize {
    2 * insight::bytes_max(threads.max(8)) + insight::hot_objects_bytes_max() + hot_keys_bytes_max(threads)
}

impl Limits {
    /// Returns the limits of a server with these settings and this store.
    pub fn new(settings: &Settings, store: &KvLimits) -> Limits {
        let tls = settings.tls.as_ref();
        let worker_bytes = INPUT_BUFFERS_BYTES + 8 * FULL_BYTES + COPY_BYTES_MAX;
        let udp_bytes = match settings.udp_listen.is_empty() {
            true => 0,
            false => udp_bytes_max(settings.udp_reply_bytes_max),
        };
        Limits {
            arena: store.arena_bytes + store.policy_bytes,
            index: store.index_bytes_max + store.prefix_flush_bytes_max,
            connection_buffers: settings.connection_bytes_max,
            connections: settings.connections_max
                * (CONNECTION_BYTES + tls.map_or(0, |_| TLS_CONNECTION_BYTES)),
            workers: settings.threads * (worker_bytes + tls.map_or(0, |_| TLS_BUFFERS_BYTES) + udp_bytes),
            insight: if settings.insight.enabled { insight_bytes_max(settings.threads) } else { 0 },
            objects: 0,
            object_listener: 0,
            s3: 0,
            admin: 0,
        }
    }

    /// Returns the same limits with an object cache and its listener, both in bytes.
    #[must_use]
    pub fn with_objects(self, cache: u64, listener: u64) -> Limits {
        let bytes = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        Limits { objects: bytes(cache), object_listener: bytes(listener), ..self }
    }

    /// Returns the same limits with a sidecar before an S3 endpoint, in bytes.
    #[must_use]
    pub fn with_s3(self, sidecar: u64) -> Limits {
        Limits { s3: usize::try_from(sidecar).unwrap_or(usize::MAX), ..self }
    }

    /// Returns the same limits with an admin listener, in bytes.
    #[must_use]
    pub fn with_admin(self, listener: u64) -> Limits {
        Limits { admin: usize::try_from(listener).unwrap_or(usize::MAX), ..self }
    }

    /// Returns the sum, in bytes.
    pub fn sum(&self) -> usize {
        let memcached = self.arena + self.index + self.connection_buffers + self.connections + self.workers;
        memcached + self.insight + self.objects + self.object_listener + self.s3 + self.admin
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
        if self.insight > 0 {
            write!(f, " + insight {}", mib(self.insight))?;
        }
        if self.objects > 0 {
            write!(f, " + objects {}", mib(self.objects))?;
        }
        if self.object_listener > 0 {
            write!(f, " + object listener {}", mib(self.object_listener))?;
        }
        if self.s3 > 0 {
            write!(f, " + S3 sidecar {}", mib(self.s3))?;
        }
        if self.admin > 0 {
            write!(f, " + admin listener {}", mib(self.admin))?;
        }
        Ok(())
    }
}
