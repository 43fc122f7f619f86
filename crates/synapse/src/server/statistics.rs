//! What a server counts. Connections count for themselves and add up now and then, so that no request
//! writes a line that every request writes.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident, $shown:literal;)*) => {
        /// Not added up yet.
        #[derive(Default)]
        pub(super) struct Counts {
            $($(#[$doc])* pub(super) $name: u64,)*
        }

        /// Added up.
        #[derive(Default)]
        pub(super) struct Counters {
            $($name: AtomicU64,)*
        }

        impl Counters {
            /// Adds, and sets what was added to 0.
            pub(super) fn add(&self, counts: &mut Counts) {
                $(if counts.$name > 0 {
                    self.$name.fetch_add(std::mem::take(&mut counts.$name), Ordering::Relaxed);
                })*
            }

            /// Name and value of each.
            pub(super) fn figures(&self) -> Vec<(&'static str, u64)> {
                vec![$(($shown, self.$name.load(Ordering::Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Connections accepted.
    connections, "synapse_connections";
    /// Connections not let in, for whatever reason.
    refused, "synapse_connections_refused";
    /// Connections closed because their client could not be understood.
    broken, "synapse_connections_broken";
    /// Connections closed because their client was silent.
    silent, "synapse_connections_silent";
    /// Requests that arrived.
    requests, "synapse_requests";
    /// Of these, answered from what was remembered.
    replays, "synapse_replays";
    /// Of these, not answered on the spot.
    waits, "synapse_waits";
    /// Changes of grants that clients were told of.
    grants, "synapse_grants_changed";
    /// Cancellations that arrived.
    cancels, "synapse_cancels";
    /// Bytes of large payloads that were copied, because they arrived with their head.
    copied_bytes, "synapse_copied_bytes";
}
