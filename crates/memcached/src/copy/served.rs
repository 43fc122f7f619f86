//! A copy session whose source is this node: what comes before and after the items.

use super::{LOOK, Line, is_ending, peer_timeout, source, spawn};
use crate::ring::{MIXED, Ring, SERVED_MAX};
use crate::shared::Shared;
use crate::stream::Link;
use cached_ring::Move;
use cached_ring::copy::{Frame, HEAD_BYTES, REFUSED_BYTES_MAX, frame};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time in which the map with a move must come that a target already knows.
const MAP_WITHIN: Duration = Duration::from_secs(2);

/// The length of COPY, in bytes.
const COPY_BYTES: usize = HEAD_BYTES + 8;

/// Serves a copy session to the node `node` on a thread of its own. Both have said hello.
pub(crate) fn accept(shared: &Arc<Shared>, node: String, link: Link) {
    spawn(shared, move |shared| {
        let Some(ring) = &shared.ring else { return };
        let mut line = Line::new(link);
        match serve(shared, ring, &node, &mut line) {
            Ok(()) => {}
            Err(End::Refused(why)) => {
                tracing::info!(node, "a copy session is refused: {why}");
                let mut bytes = Vec::new();
                let text = &why[..why.floor_char_boundary(REFUSED_BYTES_MAX)];
                Frame::Refused { text }.encode(&mut bytes);
                // What has come is read first, because the close would otherwise overtake the reason.
                for _ in 0..4 {
                    if !matches!(line.read(&mut [0; 256], LOOK), Ok(1..)) {
                        break;
                    }
                }
                // The other node may have gone.
                let _ = line.write_all(&bytes, peer_timeout(shared));
            }
            Err(End::Failed(why)) => tracing::warn!(node, "a copy session has ended: {why}"),
        }
    });
}

/// Why a session has ended.
enum End {
    /// Nothing was sent, for this reason.
    Refused(String),
    /// It has failed.
    Failed(String),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        End::Failed(error.to_string())
    }
}

/// A place among the sessions that this node serves. When it is dropped, the steward is told if the
/// slots of the move are sealed.
struct Place<'a> {
    ring: &'a Ring,
    id: Option<u64>,
    is_committed: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.ring.end_serving(self.id, self.is_committed);
    }
}

fn serve(shared: &Shared, ring: &Ring, node: &str, line: &mut Line) -> Result<(), End> {
    if !ring.begin_serving() {
        return Err(End::Refused(format!(
            "{SERVED_MAX} nodes are copying from it, as many as may at a time"
        )));
    }
    let mut place = Place { ring, id: None, is_committed: false };
    let id = read_copy(shared, line)?;
    let the_move = await_move(shared, ring, id, node)?;
    place.id = Some(id);
    let Some(flushes) = shared.kv.flushes() else {
        return Err(End::Refused("it is about to flush all items, at a time that was given".into()));
    };
    let seal = || {
        {
            let is_handed_over = shared.is_handed_over.lock();
            // After a flush, the slots would be sealed in vain.
            if *is_handed_over || shared.kv.flushes() != Some(flushes) {
                return false;
            }
            // A process that follows a crash does not know whether the target has committed.
            shared.kv.set_mark(MIXED);
            if !ring.seal(id) {
                shared.kv.set_mark(ring.mark_now());
                return false;
            }
        }
        let passed = shared.connections.pass(&mut || !is_ending(shared));
        // A flush that was executed before may have come to the target before some items.
        passed && shared.kv.flushes() == Some(flushes)
    };
    let ends = || {
        let is_flushed = || !ring.is_giving_sealed(id) && shared.kv.flushes() != Some(flushes);
        is_ending(shared) || !ring.may_give(id) || is_flushed()
    };
    tracing::debug!(node, id, "a copy session begins");
    let begun = shared.kv.is_full().then(|| shared.kv.now_secs());
    if begun.is_some() && !shared.connections.pass(&mut || !ends()) {
        return Err(End::Failed("this node ends it, or the move has ended".into()));
    }
    source::serve(shared, line, &the_move, begun, &seal, &ends)
        .map_err(|error| End::Failed(error.to_string()))?;
    place.is_committed = true;
    Ok(())
}

/// Reads COPY, and returns the id of the move.
fn read_copy(shared: &Shared, line: &mut Line) -> Result<u64, End> {
    let deadline = Instant::now() + peer_timeout(shared);
    let (mut bytes, mut filled) = ([0; COPY_BYTES], 0);
    while filled < COPY_BYTES {
        match line.read(&mut bytes[filled..], LOOK) {
            Ok(0) => return Err(End::Failed("the other node has closed it".into())),
            Ok(count) => filled += count,
            Err(error) if is_pause(&error) && Instant::now() < deadline && !is_ending(shared) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match frame(&bytes, 0) {
        Ok(Some((Frame::Copy { id }, _))) => Ok(id),
        Ok(_) => Err(End::Failed("its first message is not COPY".into())),
        Err(malformed) => Err(End::Failed(malformed.to_string())),
    }
}

/// Returns the move once the map in force has it.
fn await_move(shared: &Shared, ring: &Ring, id: u64, node: &str) -> Result<Move, End> {
    let deadline = Instant::now() + MAP_WITHIN;
    loop {
        let version = ring.map().version();
        let line = match ring.giving(id, node) {
            Ok(the_move) => return Ok(the_move),
            Err(line) => line,
        };
        if Instant::now() >= deadline || is_ending(shared) {
            return Err(End::Refused(line));
        }
        ring.events.outdated.notify_one();
        // Slots may also become this node's own without another map.
        ring.await_map(version + 1, LOOK);
    }
}

/// Returns whether nothing has come within the time of one read.
pub(super) fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}
