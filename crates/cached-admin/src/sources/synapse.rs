//! The synapse listener.

use std::sync::Arc;

use cached_metrics::{Collect, Families};
use synapse::Server;

use super::Shown;
use crate::listener::AdminServer;
use crate::status::Source;
use crate::status::document::{Document, ListenerPart, Synapse};

/// What is shown of a synapse server.
pub struct SynapseSource {
    server: Arc<Server>,
    addresses: Vec<String>,
}

impl SynapseSource {
    /// Shows a synapse server that listens on these addresses: its metrics and its part of the document.
    pub fn show(admin: &AdminServer, server: &Arc<Server>, addresses: Vec<String>) -> Shown {
        Shown::new(admin, &Arc::new(SynapseSource { server: Arc::clone(server), addresses }))
    }
}

impl std::fmt::Debug for SynapseSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SynapseSource").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl Collect for SynapseSource {
    fn collect(&self, into: &mut Families) {
        self.server.collect(into);
    }
}

impl Source for SynapseSource {
    fn fill(&self, document: &mut Document) {
        let families = self.families();
        let number = |name: &str| families.number(name).map_or(0, cached_metrics::Number::to_u64);
        let connections = number("synapse_connections_open");
        let refused = number("synapse_connections_refused_total");
        document.listeners.push(ListenerPart {
            listener: self.addresses.join(", "),
            protocol: "synapse",
            connections,
            accepted: number("synapse_connections_total"),
            refused,
        });
        document.synapse = Some(Synapse {
            connections,
            sessions: number("synapse_sessions"),
            requests: number("synapse_requests_total"),
            refused,
            broken: number("synapse_connections_broken_total"),
            silent: number("synapse_connections_silent_total"),
            replays: number("synapse_replays_total"),
        });
    }
}
