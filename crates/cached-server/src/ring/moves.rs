//! Moves of slots to this node: as long as the weights give it slots of other nodes, it takes a part
//! of them, with their items, and then the next part.

use super::documents::{BackOff, DocumentsError, Guards};
use super::steward::Shared;
use cached_memcached::{Copied, MoveStep};
use cached_registry::Error;
use cached_ring::{Map, SlotSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// The interval at which a node that lacks slots looks which nodes it can reach.
const LOOK: Duration = Duration::from_millis(200);

/// The time after which a line says that it waits for other nodes.
const LOOK_TOLD: Duration = Duration::from_secs(10);

/// The number of moves after a failed one that have few slots: they take less time, and fewer items change
/// meanwhile.
const SMALL_MOVES: u32 = 16;

/// The next task of this node.
enum Next {
    /// Aborts a move to it whose outcome was unknown, or that the registry could not abort.
    Abort(u64),
    /// Moves slots of another node to this one.
    Move(String, SlotSet),
    /// Waits until it may answer for slots, and can reach a node that has some for it.
    Look,
    /// Waits for another map.
    Wait,
}

/// The outcome of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Its slots are this node's own.
    Committed,
    Failed,
    NotBegun,
}

/// What a move has brought.
struct Brought {
    items: u64,
    bytes: u64,
    sealed: Duration,
    version: u64,
}

impl Shared {
    /// Moves slots to this node, one move after the other.
    pub(super) async fn move_slots(&self) {
        let mut latest = self.documents.latest();
        let (mut back_off, mut looking, mut small_moves) = (BackOff::new(), None, 0_u32);
        loop {
            let map = latest.borrow_and_update().clone();
            let next = map.map_or(Next::Wait, |map| self.next(&map, small_moves > 0));
            if !matches!(next, Next::Look) {
                looking = None;
            }
            let is_done = match next {
                Next::Abort(id) => self.changing(self.abort(id)).await,
                Next::Move(from, slots) => {
                    let outcome = self.changing(self.move_one(&from, slots)).await;
                    small_moves = match outcome {
                        Outcome::Committed => small_moves.saturating_sub(1),
                        Outcome::Failed => SMALL_MOVES,
                        Outcome::NotBegun => small_moves,
                    };
                    matches!(outcome, Outcome::Committed)
                }
                Next::Look => {
                    let (since, is_told) = looking.get_or_insert((Instant::now(), false));
                    if !*is_told && since.elapsed() >= LOOK_TOLD {
                        *is_told = true;
                        tracing::warn!(
                            "this node is due slots of other nodes, but has no lease, or does not reach them, or some node \
                             does not reach it, or has an earlier map: no slots are taken"
                        );
                    }
                    // Connections come and go without a change of the map.
                    let _ = timeout(LOOK, latest.changed()).await;
                    continue;
                }
                Next::Wait => {
                    // Fails only if the steward ends.
                    let _ = latest.changed().await;
                    continue;
                }
            };
            match is_done {
                true => back_off.reset(),
                false => back_off.wait().await,
            }
        }
    }

    /// Returns the next task. A move has few slots if it `is_small`, because an earlier one has failed.
    fn next(&self, map: &Map, is_small: bool) -> Next {
        if *self.is_held.borrow() {
            return Next::Look;
        }
        let own = map.find(&self.own.name);
        if let Some(left) = map.moves().iter().find(|one| Some(one.to) == own) {
            return Next::Abort(left.id);
        }
        if map.next_move(&self.own.name, &|_| Some(0)).is_none() {
            return Next::Wait;
        }
        // A node that does not know this one would leave it out when it flushes all nodes.
        if !self.keeps_slots() || !self.live.is_known_to_all() {
            return Next::Look;
        }
        let held =
            |node: &str| self.live.held_bytes(node).map(|bytes| if is_small { u64::MAX } else { bytes });
        let next = map.next_move(&self.own.name, &held);
        next.map_or(Next::Look, |(from, slots)| Next::Move(from, slots))
    }

    /// Moves slots to this node.
    pub(super) async fn move_one(&self, from: &str, slots: SlotSet) -> Outcome {
        let count = slots.len();
        let begun = self.documents.change(|map| map.begin_move(from, &self.own.name, slots.clone())).await;
        let begun = match begun {
            Ok(map) => map,
            Err(error) => {
                // Other nodes begin moves of the same source, and change weights.
                tracing::debug!(from, slots = count, cause = %error, "a move of slots has not begun");
                return Outcome::NotBegun;
            }
        };
        let id = begun.version();
        self.live.count_move(MoveStep::Begun);
        tracing::info!(id, from, slots = count, "a move of slots to this node begins");
        let began = Instant::now();
        let copy = async {
            self.until_in_force(id).await;
            self.live.copy(id, async || self.confirm(id).await).await
        };
        let copied = match begun.commit_move(id).and_then(|map| cached_ring::documents(&map)) {
            // The documents would be too large: the items would be copied in vain.
            Err(error) => Err(error.to_string()),
            Ok(_) => tokio::select! {
                copied = copy => copied.map_err(|error| error.to_string()),
                why = self.is_over(id) => Err(why.to_owned()),
            },
        };
        let brought = match copied {
            Ok(copied) => {
                self.settle(id, &begun, copied).await.ok_or_else(|| "the source has aborted it".into())
            }
            Err(cause) => Err(cause),
        };
        match brought {
            Ok(Brought { items, bytes, sealed, version }) => {
                let took = began.elapsed();
                self.live.count_move(MoveStep::Committed { slots: count, took, sealed });
                let (ms, sealed_ms) = (took.as_millis() as u64, sealed.as_micros() as f64 / 1e3);
                tracing::info!(
                    id,
                    from,
                    slots = count,
                    version,
                    items,
                    bytes,
                    ms,
                    sealed_ms,
                    "slots are this node's own"
                );
                Outcome::Committed
            }
            Err(cause) => {
                self.live.count_move(MoveStep::Failed);
                tracing::warn!(id, from, slots = count, cause, "a move of slots to this node is given up");
                self.abort(id).await;
                Outcome::Failed
            }
        }
    }

    /// Aborts a move. Returns whether it has ended, in this way or otherwise.
    pub(super) async fn abort(&self, id: u64) -> bool {
        match self.documents.change(|map| map.abort_move(id)).await {
            Ok(map) => {
                tracing::info!(id, version = map.version(), "a move of slots is aborted");
                true
            }
            // The documents themselves may have a mistake.
            Err(_) => is_gone(&self.documents.latest().borrow(), id),
        }
    }

    /// Returns whether this node keeps slots that it is given: without its lease it would lose them again.
    fn keeps_slots(&self) -> bool {
        self.live.ring_lease().is_none_or(|own| own.is_valid() && !own.is_stalled())
    }

    /// Returns whether the move still exists, which the registry has just said, as soon as this node keeps
    /// its slots: until then the source answers for them, and has their items.
    pub(super) async fn confirm(&self, id: u64) -> bool {
        while !self.keeps_slots() {
            sleep(LOOK).await;
        }
        self.documents.read().await.is_ok_and(|read| read.map.find_move(id).is_some())
    }

    /// Waits until the move is no longer in the map, or another process takes over. Returns the reason.
    async fn is_over(&self, id: u64) -> &'static str {
        let (mut latest, mut held) = (self.documents.latest(), self.is_held.subscribe());
        tokio::select! {
            _ = latest.wait_for(|map| is_gone(map, id)) => "it is no longer in the registry",
            _ = held.wait_for(|is_held| *is_held) => "another process takes over this node",
        }
    }

    /// Commits a move whose items are all here, and serves its slots. Returns `None` if the move has
    /// been aborted.
    async fn settle(&self, id: u64, begun: &Map, copied: Copied) -> Option<Brought> {
        // The server must not see the slots as its own before it knows that their items are.
        self.documents.hold(true);
        let committed = self.commit(id, begun).await;
        let (items, bytes, sealed, settling) =
            (copied.items(), copied.bytes(), copied.sealed(), Instant::now());
        let version = committed.as_ref().map(Map::version);
        match committed {
            Some(map) => self.live.settle(copied, map).await,
            None => drop(copied),
        }
        self.documents.hold(false);
        Some(Brought { items, bytes, sealed: sealed + settling.elapsed(), version: version? })
    }

    /// Commits a move, which is in the map `begun`, however often the registry must be asked. Returns a
    /// map in which it is committed. `None` if the move has been aborted, or it cannot be said which
    /// of both has happened, because a node was struck off since.
    async fn commit(&self, id: u64, begun: &Map) -> Option<Map> {
        let mut back_off = BackOff::short();
        loop {
            let before = match self.documents.read().await {
                Ok(before) => before,
                Err(DocumentsError::Registry(_)) => {
                    back_off.wait().await;
                    continue;
                }
                Err(_) => return None,
            };
            let Ok(after) = before.map.commit_move(id) else {
                // An earlier attempt, whose outcome was unknown, may have been made. Slots become this
                // node's only by its own moves, or because another node is struck off.
                let (slots, own) = (&begun.find_move(id)?.slots, before.map.find(&self.own.name)?);
                let is_own = slots.iter().all(|slot| before.map.owner(slot) == own);
                return (is_own && before.map.is_whole_since(begun)).then_some(before.map);
            };
            match self.documents.write(Some(&before), &after, Guards::default()).await {
                Ok(()) => return Some(after),
                Err(DocumentsError::Registry(Error::Conflict { .. })) => {}
                Err(DocumentsError::Registry(_)) => back_off.wait().await,
                // The documents would be too large.
                Err(_) => return None,
            }
        }
    }
}

/// Returns whether a map lacks a move. The map is one that was read after the move began.
fn is_gone(map: &Option<Arc<Map>>, id: u64) -> bool {
    map.as_ref().is_some_and(|map| map.find_move(id).is_none())
}
