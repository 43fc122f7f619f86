//! Objects of the contract over conditional puts: reads, changes, listings, claims, and what they share. Only a put on
//! a condition decides anything here; keys and bodies are drawn in `format`, and requests are sent in `server`.

pub(crate) mod bounds;
pub(crate) mod change;
pub(crate) mod copy;
pub(crate) mod exclusive;
pub(crate) mod fence;
pub(crate) mod heads;
pub(crate) mod list;
pub(crate) mod read;
pub(crate) mod record;
pub(crate) mod swap;
pub(crate) mod turns;

use std::sync::Arc;
use std::time::Duration;

use blocker::Clock;
use blocker::event::EventHub;
use tokio::sync::Semaphore;

use crate::format::layout::Layout;
use crate::object::heads::Heads;
use crate::object::turns::Turns;
use crate::server::remove_if::Remover;
use crate::server::requests::Requests;
use crate::server::room::Room;

/// What the handle of a store and its calls under way share.
pub(crate) struct Core {
    pub(crate) layout: Layout,
    pub(crate) requests: Arc<Requests>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) heads: Heads,
    pub(crate) turns: Turns,
    /// Removes objects on conditions, over HTTP.
    pub(crate) remover: Remover,
    pub(crate) events: EventHub,
    /// For the payloads of operations.
    pub(crate) room: Room,
    /// For objects that are written anew.
    pub(crate) compactions: Semaphore,
    pub(crate) object_bytes_max: u64,
    /// How long a call may take; see `bounds.rs`.
    pub(crate) call_timeout: Duration,
}

/// How many requests one call has under way at once where it needs many.
pub(crate) const AT_ONCE: usize = 32;
/// How often a call is prepared anew because others changed the object at the same time. Each of them means
/// that a change of another client was applied.
pub(crate) const TRIES: u32 = 200;
