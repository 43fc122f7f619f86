//! The metrics of the listener itself.

use cached_metrics::{Collect, Counter, Families};

/// What the listener counts.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) connections: Counter,
    pub(crate) refused: Counter,
    pub(crate) requests: Counter,
    pub(crate) unauthorized: Counter,
}

impl Collect for Counts {
    fn collect(&self, into: &mut Families) {
        let help = "Connections that the admin listener accepted.";
        into.counter("cached_admin_connections_total", help, self.connections.get());
        let help = "Connections that the admin listener refused because it had as many as allowed.";
        into.counter("cached_admin_connections_refused_total", help, self.refused.get());
        let help = "Requests that the admin listener received.";
        into.counter("cached_admin_requests_total", help, self.requests.get());
        let help = "Requests that the admin listener refused for want of a valid token or Host.";
        into.counter("cached_admin_requests_unauthorized_total", help, self.unauthorized.get());
    }
}
