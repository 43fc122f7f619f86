//! What a server counts. A connection counts for itself and adds its counts up now and then, so that no cache line is
//! written by every request of every thread.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident, $shown:literal;)*) => {
        /// The counts of one connection that are not added up yet.
        #[derive(Default)]
        pub(super) struct Counts {
            $($(#[$doc])* pub(super) $name: u64,)*
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

            /// Returns the name and value of each.
            pub(super) fn metrics(&self) -> Vec<(&'static str, u64)> {
                vec![$(($shown, self.$name.load(Ordering::Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Connections accepted.
    connections, "synapse_connections";
    /// Connections refused, for any reason.
    refused, "synapse_connections_refused";
    /// Connections closed because their client broke the protocol.
    broken, "synapse_connections_broken";
    /// Connections closed because their client was silent.
    silent, "synapse_connections_silent";
    /// Requests that arrived.
    requests, "synapse_requests";
    /// Of these, answered by an outcome that was remembered.
    replays, "synapse_replays";
    /// Of these, answered by a task because their reply was not ready at once.
    waits, "synapse_waits";
    /// Changes of grants that were announced to clients.
    grants, "synapse_grants_changed";
    /// Cancellations that arrived.
    cancels, "synapse_cancels";
    /// Bytes of large payloads that were copied, because they arrived with their head.
    copied_bytes, "synapse_copied_bytes";
}
