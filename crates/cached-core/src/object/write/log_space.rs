//! Room in the log: what is in its oldest segment is stored first. What is not stored for the time being is
//! logged again at the head, so that it does not hold the log: what the store refuses, and what waits until a
//! namespace that is limited at the gate may begin another flush. The few flushes of such a namespace that
//! have begun do hold it, until the limit lets them through.

use cached_journal::{AppendError, Level, Position, Reservation};

use crate::object::journal::records::{Origin, encode_state};
use crate::object::journal::{ChangeLog, JournalState, KeptHold};
use crate::object::shared::Shared;
use crate::object::shared::handle::Handle;
use crate::object::tasks::wait_queue::wait;
use crate::sync::{Arc, Ordering};

/// Returns the end of the oldest segment, if half of the log is in use: objects with older records are stored
/// first, whatever their age.
pub(crate) fn crowded_before(log: &ChangeLog) -> Option<Position> {
    if log.journal().level() < Level::Half {
        return None;
    }
    Some(log.journal().oldest()?.end)
}

/// Logs all that an object has pending once more, which is not stored for the time being, and keeps the log
/// from there on.
pub(crate) async fn log_again(shared: Arc<Shared>, number: u64, node: u32) {
    let Some(log) = &shared.log else { return };
    let Some(handle) = Handle::of_node(&shared, node) else { return };
    let part_max = log.journal().payload_bytes_max();
    let bytes = handle.enter(|object, env| object.pending_state(env).encoded_bytes()).await;
    let parts = bytes.div_ceil(part_max);
    let reserve = || match (
        log.events.condition.state(),
        log.journal().reserve_leaving(parts, bytes, log.leave.privileged),
    ) {
        (JournalState::Ok, Ok(reservation)) => Some(Some(reservation)),
        (JournalState::Ok, Err(AppendError::Full | AppendError::Busy)) => None,
        // In trouble nothing is logged.
        _ => Some(None),
    };
    let Ok(Some(reservation)) = wait(&log.events.space, reserve).await else { return };
    let own = Arc::clone(&shared);
    let id = handle.id().clone();
    let appended = handle
        .enter(move |object, env| {
            let log = own.log.as_ref()?;
            let is_waiting = object.flushing.is_none() && object.pending.queue_number == number;
            if !is_waiting || !object.has_pending() {
                return None;
            }
            let known = log.names.get(&id.namespace)?;
            let origin = Origin {
                namespace: known.number,
                id: &id,
                domain: object.pending.domain,
                version: object.head.version,
                epoch: known.epoch(),
                was_present: object.head.store_exists,
            };
            let state = object.pending_state(env).encode();
            let (last, hold) = append(log, &origin, &state, part_max, reservation)?;
            object.pending.logged_to = object.pending.logged_to.max(last.0);
            Some((last, hold))
        })
        .await;
    let Some((last, hold)) = appended else { return };
    if log.journal().wait(last).await.is_err() {
        return;
    }
    let released = shared.dirty_queue.hold_instead(number, hold);
    drop(released);
    log.logged_again.fetch_add(1, Ordering::Relaxed);
}

/// Appends the parts of a state in room of their own; returns the last one's position, and a hold of the
/// first one.
fn append(
    log: &ChangeLog,
    origin: &Origin<'_>,
    state: &[u8],
    part_max: u64,
    mut reservation: Reservation,
) -> Option<(Position, KeptHold)> {
    let logged = log.count_logged();
    if log.events.condition.state() != JournalState::Ok || state.len() as u64 > reservation.left_bytes() {
        return None;
    }
    let (mut first, mut last) = (None, Position(0));
    let appended = encode_state(origin, state, part_max, |record| {
        let appended = reservation.append(record)?;
        last = appended.position;
        first.get_or_insert(appended.hold);
        Ok::<(), AppendError>(())
    });
    // Some of the parts without the others count for nothing.
    appended.ok()?;
    log.note_state(origin.id, last);
    Some((last, KeptHold::new(first?, logged)))
}
