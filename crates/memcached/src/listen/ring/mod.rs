//! Connections between the nodes of a ring: each worker of a node has one (*lane*) to each other
//! node, and the side that opens it sends the requests.
//!
//! ```text
//!  dial:   for each worker and node of the map ── hello ──► Command::OpenLane, to that worker
//!  accept: ring sockets ────────────────────────── hello ──► Command::ServeLane, to a worker
//! ```
//! Both run in the acceptor's thread. A worker gets a socket only after the [handshake], in which both
//! nodes have said who they are and, with a secret, have proved that they belong to the ring.
//!
//! The order of requests is also kept from one lane to the next: before a dialler may use a new
//! lane, the listener has ended the earlier lane of the same worker, so that no request of the
//! earlier lane is executed after one of the new lane.
//!
//! A copy session is a connection of its own, opened by the same handshake: it names no worker. Its
//! ends are threads (`copy`).
//!
//! [handshake]: Handshake

mod accept;
mod dial;
#[cfg(test)]
mod tests;

pub(crate) use accept::{Accepted, accept};
pub(crate) use dial::{dial, dial_copy};

use crate::ring::Ring;
use cached_ring::hello::{FEATURE_COPY, Frame, Greeting, Refused, RefusedCode};
use connection::Transcript;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinError;

/// The reason why a handshake has failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The peer refuses this node.
    #[error("it refuses this node: {0}")]
    ByPeer(Refused),
    /// This node refuses the peer, and has said so.
    #[error("{0}")]
    ByUs(Refused),
    /// The connection cannot be opened.
    #[error("{0}")]
    Unreachable(std::io::Error),
    /// The connection has failed within the handshake.
    #[error("the handshake has failed: {0}")]
    Broken(#[from] std::io::Error),
    /// Nothing has answered in time, although something accepts connections.
    #[error("it does not answer")]
    Late,
}

impl Failure {
    /// Returns whether another secret may be the right one.
    fn is_about_the_secret(&self) -> bool {
        matches!(self, Failure::ByPeer(refused) | Failure::ByUs(refused) if refused.code == RefusedCode::Secret)
    }
}

/// One side of a handshake on a fresh connection.
struct Handshake<'a> {
    stream: &'a mut TcpStream,
    /// The frames so far, as they were sent: the proofs are computed over them.
    transcript: Transcript,
}

impl<'a> Handshake<'a> {
    fn new(stream: &'a mut TcpStream) -> Handshake<'a> {
        Handshake { stream, transcript: Transcript::default() }
    }

    async fn send(&mut self, frame: &Frame) -> Result<(), Failure> {
        let bytes = frame.encode();
        self.stream.write_all(&bytes).await?;
        self.transcript.push(&bytes);
        Ok(())
    }

    /// Receives a frame, and no byte after it.
    async fn receive(&mut self) -> Result<Frame, Failure> {
        let mut first = [0; 2];
        self.stream.read_exact(&mut first).await?;
        let bytes = match Frame::len(first) {
            Ok(bytes) => bytes,
            Err(refused) => return Err(self.refuse(refused).await),
        };
        let mut frame = vec![0; bytes];
        self.stream.read_exact(&mut frame).await?;
        self.transcript.push(&first);
        self.transcript.push(&frame);
        match Frame::decode(&frame) {
            Ok(Frame::Refused(refused)) => Err(Failure::ByPeer(refused)),
            Ok(frame) => Ok(frame),
            Err(refused) => Err(self.refuse(refused).await),
        }
    }

    /// Tells the peer why this node refuses it.
    async fn refuse(&mut self, refused: Refused) -> Failure {
        // The peer may have gone; then the reason is only logged here.
        let _ = self.send(&Frame::Refused(refused.clone())).await;
        Failure::ByUs(refused)
    }

    /// Refuses a peer that has sent another frame than the handshake has at this point.
    async fn refuse_frame(&mut self, wanted: &str) -> Failure {
        let refused = Refused::protocol(&format!("the peer has sent another frame than {wanted}"));
        self.refuse(refused).await
    }
}

/// Returns what this node says of itself in a handshake.
fn greeting(ring: &Ring) -> Greeting {
    let (map, in_force) = (ring.map(), ring.map_in_force());
    let mut nonce = [0; 32];
    // Without random bytes, a recorded handshake could be repeated, so no lane is opened.
    getrandom::fill(&mut nonce).expect("random bytes from the operating system");
    Greeting {
        features: FEATURE_COPY,
        nonce,
        incarnation: ring.incarnation,
        map_version: in_force.version,
        map_digest: in_force.digest,
        unix_time_ms: unix_time_ms(),
        ring: map.ring().to_owned(),
        node: ring.own.clone(),
    }
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
