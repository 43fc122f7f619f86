//! The settings of a node of a ring.

use super::ListenAddress;
use cached_ring::Map;
use cached_tls::ServerTls;
use connection::Secret;
use parking_lot::RwLock;
use std::sync::Arc;
use std::time::Duration;

/// The settings of a node of a ring.
#[derive(Debug, Clone)]
pub struct RingSettings {
    /// The name of this node in the map.
    pub node: String,
    /// The addresses at which other nodes are accepted.
    pub listen: Vec<ListenAddress>,
    /// The map at the start.
    pub map: Arc<Map>,
    /// The secrets by which the nodes recognise each other.
    pub secrets: RingSecrets,
    /// The certificates that the nodes show each other; without them, connections between nodes have no
    /// TLS. Loaded by [`ServerTls::load_for_peers`].
    pub tls: Option<Arc<ServerTls>>,
    /// The time after which a peer that does not answer is lost.
    pub peer_timeout: Duration,
    /// The maximum time for connecting to a peer.
    pub connect_timeout: Duration,
    /// The maximum number of connections that one peer may open.
    pub peer_lanes_max: u32,
    /// Whether the node executes requests for its own slots only while it has a lease, as in a ring
    /// whose map is in a registry.
    pub has_leases: bool,
}

/// The secrets that the nodes of a ring share: the current one, and during a rotation a previous one
/// that also counts. Without secrets every peer is accepted. All clones share one state, which can
/// change while the server runs; open connections between nodes stay open.
#[derive(Debug, Clone, Default)]
pub struct RingSecrets(Arc<RwLock<Vec<Secret>>>);

impl RingSecrets {
    /// Returns these secrets. `previous` counts only beside a current one.
    #[must_use]
    pub fn new(current: Option<Secret>, previous: Option<Secret>) -> RingSecrets {
        let secrets = RingSecrets::default();
        secrets.set(current, previous);
        secrets
    }

    /// Replaces the secrets. Returns whether they differ from the earlier ones.
    pub fn set(&self, current: Option<Secret>, previous: Option<Secret>) -> bool {
        let new = current.map_or_else(Vec::new, |current| std::iter::once(current).chain(previous).collect());
        let mut secrets = self.0.write();
        let are_new = *secrets != new;
        *secrets = new;
        are_new
    }

    /// Returns the secrets, the current one first.
    pub(crate) fn all(&self) -> Vec<Secret> {
        self.0.read().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_previous_secret_counts_only_beside_a_current_one() {
        let secret = |text: &str| Secret::new(text.as_bytes()).ok();
        let (one, two) = (secret("0123456789abcdef"), secret("fedcba9876543210"));
        let secrets = RingSecrets::new(None, one.clone());
        assert!(secrets.all().is_empty());
        assert!(secrets.clone().set(two.clone(), one.clone()));
        assert!(!secrets.set(two.clone(), one.clone()), "the same ones");
        assert_eq!(secrets.all(), [two, one].map(Option::unwrap), "of all clones");
    }
}
