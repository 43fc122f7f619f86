//! What a server counts. A connection counts for itself and adds its counts up now and then, so that no cache
//! line is written by every request of every thread.

use std::sync::atomic::{AtomicU64, Ordering};

use blocker::metrics::Families;

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
    connections, "synapse_connections_total", "Connections accepted.";
    refused, "synapse_connections_refused_total", "Connections refused, for any reason.";
    broken, "synapse_connections_broken_total", "Connections closed because their client broke the protocol.";
    silent, "synapse_connections_silent_total", "Connections closed because their client was silent.";
    requests, "synapse_requests_total", "Requests that arrived.";
    replays, "synapse_replays_total", "Requests answered by an outcome that was remembered.";
    waits, "synapse_waits_total", "Requests executed by a task because their reply was not ready at once.";
    grants, "synapse_grants_changed_total", "Changes of grants that were announced to clients.";
    cancels, "synapse_cancels_total", "Cancellations that arrived.";
    copied_bytes, "synapse_copied_bytes_total", "Bytes of large payloads that were copied, because they arrived with their head.";
}
