//! Items on their way from one node of a ring to another: both ends of a copy session.
//!
//! ```text
//!  target                                         source
//!  removes old items of the slots
//!  COPY id ─────────────────────────────────────► hooks changes of the slots, then walks
//!          ◄───────────────────────── ITEM, GONE  each as it is when it is sent
//!          ◄────────────────────────────── READY  the walk is done, few changes are queued
//!  the move still exists: SEAL ─────────────────► executes no request for the slots from here on
//!          ◄───────────────────── ITEM, GONE, END
//!  commits in the registry, executes requests
//!  COMMITTED ───────────────────────────────────► may remove the items
//! ```
//! A session has a thread at each end. A session that breaks before SEAL has changed nothing; after
//! SEAL, the slots of the source stay sealed until a map says whose they are.
//!
//! | module | content |
//! |---|---|
//! | `line` | the connection |
//! | `served` | a session with this node as its source, from its beginning to its end |
//! | `source` | sends the items |
//! | `walk` | the order in which items are sent |
//! | `queue` | the keys that have changed while items are sent |
//! | `target` | the end that asks, and stores what comes |

mod line;
mod queue;
mod served;
mod source;
#[cfg(test)]
mod source_tests;
mod target;
mod walk;

pub(crate) use line::Line;
pub(crate) use served::accept;
pub(crate) use target::copy;
pub use target::{Copied, CopyError};

use crate::ring::SERVED_MAX;
use crate::settings::{RingSettings, Settings};
use crate::shared::Shared;
use crate::stream::TLS_BUFFERS_BYTES;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The interval at which a session looks whether it must end.
const LOOK: Duration = Duration::from_millis(20);

/// The interval at which an end that has nothing else to send says that it lives.
const PING_EVERY: Duration = Duration::from_secs(1);

/// Returns the most memory of copy sessions, in bytes: of those that this node serves, and of the one
/// that it asks for. There are none without a ring whose map is in a registry.
pub(crate) fn bytes_max(settings: &Settings) -> usize {
    let has_moves = |ring: &&Arc<RingSettings>| ring.map.nodes().iter().any(|node| node.term != 0);
    let Some(ring) = settings.ring.as_ref().filter(has_moves) else { return 0 };
    // The buffers of the connection, and what it keeps itself, which is less.
    let tls = if ring.tls.is_some() { 2 * TLS_BUFFERS_BYTES } else { 0 };
    let more = 2 * settings.item_bytes_max + tls;
    SERVED_MAX * (source::SESSION_BYTES_MAX + more) + target::SESSION_BYTES_MAX + more
}

/// Returns the time in which the other node must take what is sent.
fn peer_timeout(shared: &Shared) -> Duration {
    shared.settings.ring.as_ref().map_or(PING_EVERY, |settings| settings.peer_timeout)
}

/// Returns the time for which the other node may send nothing while items are copied.
fn silent_max(shared: &Shared) -> Duration {
    peer_timeout(shared).max(2 * PING_EVERY)
}

/// Runs a session on a thread of its own. Returns whether it was started: it is not once the server
/// ends, or without memory for a thread.
fn spawn(shared: &Arc<Shared>, body: impl FnOnce(&Arc<Shared>) + Send + 'static) -> bool {
    let Some(ring) = &shared.ring else { return false };
    let mut sessions = ring.sessions.lock();
    let Some(threads) = &mut *sessions else { return false };
    threads.retain(|thread| !thread.is_finished());
    let own = shared.clone();
    let started = thread::Builder::new().name("cached-copy".into()).spawn(move || body(&own));
    match started {
        Ok(thread) => threads.push(thread),
        Err(error) => {
            tracing::warn!(cause = %error, "no thread can be created for a copy session");
            return false;
        }
    }
    true
}

/// Returns whether the server ends, so that every session does.
fn is_ending(shared: &Shared) -> bool {
    shared.ring.as_ref().is_none_or(|ring| ring.sessions.lock().is_none())
}

/// Ends all sessions, and waits until their threads have ended.
pub(crate) fn end(shared: &Shared) {
    let Some(ring) = &shared.ring else { return };
    let threads = ring.sessions.lock().take();
    for thread in threads.into_iter().flatten() {
        // A panic was reported by the thread itself.
        let _ = thread.join();
    }
}
