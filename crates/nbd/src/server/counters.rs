//! What a server counts. A connection counts for itself and adds its counts up now and then, so that no cache
//! line is written by every request of every thread.

use std::sync::atomic::{AtomicU64, Ordering};

use cached_metrics::Families;

macro_rules! counters {
    ($($name:ident, $metric:literal, $help:literal;)*) => {
        /// The counts of one connection that are not added up yet.
        #[derive(Default)]
        pub(super) struct Counts {
            $(#[doc = $help] pub(super) $name: u64,)*
        }

        /// The counts of all connections.
        #[derive(Default)]
        pub(super) struct Counters {
            $($name: AtomicU64,)*
        }

        impl Counters {
            /// Adds `counts`, and resets them.
            pub(super) fn add(&self, counts: &mut Counts) {
                $(if counts.$name > 0 {
                    self.$name.fetch_add(std::mem::take(&mut counts.$name), Ordering::Relaxed);
                })*
            }

            /// Writes the values into `into`.
            pub(super) fn collect(&self, into: &mut Families) {
                $(into.counter($metric, $help, self.$name.load(Ordering::Relaxed));)*
            }
        }
    };
}

counters! {
    connections, "nbd_connections_total", "Connections accepted.";
    refused, "nbd_connections_refused_total", "Connections refused because too many were open.";
    broken, "nbd_connections_broken_total", "Connections closed because their client broke the protocol.";
    stalled, "nbd_connections_stalled_total", "Connections closed because their client made no progress.";
    requests, "nbd_requests_total", "Requests that arrived.";
    failures, "nbd_requests_failed_total", "Requests answered by an error.";
    waits, "nbd_requests_waited_total", "Requests whose answer was not ready at once.";
    flushes, "nbd_flushes_total", "Flushes that arrived.";
    read_bytes, "nbd_read_bytes_total", "Bytes returned to clients by reads.";
    written_bytes, "nbd_written_bytes_total", "Bytes that arrived in writes.";
}
