//! Connections between the nodes of a ring: each worker of a node has one (*lane*) to each other
//! node, and the side that opens it sends the requests.
//!
//! ```text
//!  dial:   for each worker and node of the map ── hello ──► Command::OpenLane, to that worker
//!  accept: ring sockets ────────────────────────── hello ──► Command::ServeLane, to a worker
//! ```
//! Both run in the acceptor's thread. A worker gets a socket only after the [handshake], in which both
//! nodes have said who they are and have proved that they belong to the ring, by the secret, by the
//! certificates of TLS, or both.
//!
//! The order of requests is also kept from one lane to the next: before a dialler may use a new
//! lane, the listener has ended the earlier lane of the same worker, so that no request of the
//! earlier lane is executed after one of the new lane.
//!
//! A copy session is a connection of its own, opened by the same handshake: it names no worker. Its
//! ends are threads (`copy`).
//!
//! [handshake]: handshake::Handshake

mod accept;
mod dial;
mod handshake;
#[cfg(test)]
mod tests;

pub(crate) use accept::{Accepted, accept};
pub use dial::{Twin, find_twin};
pub(crate) use dial::{dial, dial_copy};

use crate::ring::Ring;
use cached_ring::hello::{FEATURE_COPY, Greeting};
use handshake::{Failure, Handshake};
use std::pin::Pin;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::task::JoinError;

/// A task of this thread. Of one type, because tokio's code is compiled for each type of future that it runs
/// as a task.
type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Returns what this node says of itself in a handshake.
fn greeting(ring: &Ring) -> Greeting {
    let (map, in_force) = (ring.map(), ring.map_in_force());
    Greeting {
        features: FEATURE_COPY,
        nonce: random(),
        incarnation: ring.incarnation,
        map_version: in_force.version,
        map_digest: in_force.digest,
        unix_time_ms: unix_time_ms(),
        ring: map.ring().to_owned(),
        node: ring.own.clone(),
    }
}

/// Returns random bytes. Without them a recorded handshake could be repeated, so no lane is opened.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("random bytes from the operating system");
    bytes
}

/// Panics if a task of this thread has panicked.
fn pass_panic_on(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && let Ok(payload) = error.try_into_panic()
    {
        std::panic::resume_unwind(payload);
    }
}

fn unix_time_ms() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
