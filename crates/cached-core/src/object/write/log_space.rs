//! Keeping the log usable: freeing room in it, and recovering from a failure of its disk.

use std::time::Duration;

use blocker::{Clock, Error, Result, Timestamp};
use cached_journal::{AppendError, Level, Position, Reservation};

use crate::object::journal::records::{Origin, encode_state};
use crate::object::journal::{ChangeLog, JournalState, KeptHold};
use crate::object::shared::Shared;
use crate::object::shared::calls::expedite;
use crate::object::shared::claim::claim_anew;
use crate::object::shared::handle::Handle;
use crate::object::tasks::deadline::{FlushTicket, Stored, until};
use crate::object::tasks::wait_queue::wait;
use crate::sync::Arc;

/// Returns the end of the oldest segment, if half of the log is in use: objects with older records
/// are stored first, whatever their age.
pub(crate) fn crowded_before(log: &ChangeLog) -> Option<Position> {
    if log.journal.level() < Level::Half {
        return None;
    }
    Some(log.journal.oldest()?.end)
}

/// Logs all pending changes of an object again, because it cannot be stored for the time being, and
/// holds the log from the new record on.
pub(crate) async fn log_again(shared: Arc<Shared>, number: u64, node: u32) {
    let Some(log) = &shared.journal.log else { return };
    let Some(handle) = Handle::of_node(&shared, node) else { return };
    let part_max = log.journal.payload_bytes_max();
    let bytes = handle.enter(|object, env| object.pending_state(env).encoded_bytes()).await;
    let parts = bytes.div_ceil(part_max);
    let reserve = || {
        // While the journal has failed, nothing is logged.
        if log.events.condition.state() != JournalState::Ok {
            return Some(None);
        }
        match log.journal.reserve_leaving(parts, bytes, log.leave.privileged) {
            Err(AppendError::Full | AppendError::Busy) => None,
            reserved => Some(reserved.ok()),
        }
    };
    let Ok(Some(reservation)) = wait(&log.events.space, reserve).await else { return };
    let own = Arc::clone(&shared);
    let id = handle.id().clone();
    let appended = handle.enter(move |object, env| {
        let log = own.journal.log.as_ref()?;
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
    });
    let Some((last, hold)) = appended.await else { return };
    if log.journal.wait(last).await.is_err() {
        return;
    }
    let released = shared.objects.dirty_queue.hold_instead(number, hold);
    drop(released);
    log.counts.logged_again.increment();
}

/// Appends the parts of a state in reserved room; returns the position of the last part and a hold
/// of the first.
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
    // An incomplete set of parts is ignored.
    appended.ok()?;
    log.note_state(origin.id, last);
    Some((last, KeptHold::new(first?, logged)))
}

// Recovery from a disk failure: changes that were logged before the journal's disk failed are
// stored, then the log is made void. When the disk works again, changes made without records are
// stored, and changes are logged again. So a logged change never follows one that is neither logged
// nor stored.

/// The maximum time that changes wait at first while the rest is stored. Each time that this is not
/// enough, the next pause may be twice as long: otherwise a store that is too slow for the amount
/// of dirty data would keep the journal out of use forever.
const PAUSE_FIRST: Duration = Duration::from_secs(10);
/// The maximum length of any such pause.
const PAUSE_MAX: Duration = Duration::from_secs(160);
/// If a pass is this short, or not twice as fast as the one before, no further pass without a pause
/// can leave less.
const PASS_SHORT: Duration = Duration::from_secs(5);
/// The delay before a failed step is retried.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Brings the log back into operation; completes when changes are logged again.
pub(crate) async fn lead_out(shared: Arc<Shared>) {
    let Some(log) = &shared.journal.log else { return };
    let mut pause = PAUSE_FIRST;
    loop {
        let step = match log.events.condition.state() {
            JournalState::Ok => return,
            JournalState::Draining => drain(&shared, log).await,
            JournalState::Void | JournalState::Resuming => resume(&shared, log, &mut pause).await,
        };
        if let Err(error) = step {
            tracing::warn!(%error, "the journal cannot be used yet and will be retried");
            shared.clock.sleep_until(shared.clock.now() + RETRY_AFTER).await;
        }
    }
}

/// Waits until all logged changes are stored, including those of an earlier process, and makes the
/// log void.
async fn drain(shared: &Arc<Shared>, log: &ChangeLog) -> Result<()> {
    let is_drained = || {
        shared.objects.dirty_queue.expedite_held();
        let is_drained = !log.events.condition.has_logged() && shared.journal.recovery.progress().is_done;
        is_drained.then_some(())
    };
    wait(&log.events.trouble, is_drained).await?;
    let failed = shared.journal.recovery.progress().objects_failed;
    if failed > 0 {
        tracing::error!(failed, "the journal's records of objects that could not be recovered are discarded");
    }
    let up_to = log.last_position();
    // If the journal works again, a mark says that nothing is replayed; otherwise the epochs do.
    if !log.events.has_failed() && mark_all(log).await {
        log.names.note_mark_of_all(up_to);
    }
    // This includes namespaces for which the response to such a claim was lost: changes logged
    // under the old epoch would count as void after a restart.
    claim_anew(shared).await?;
    log.names.note_mark_of_all(up_to);
    if log.events.condition.step(&[JournalState::Draining], JournalState::Void, None) {
        tracing::warn!(
            "all logged changes are stored; changes are not logged until the journal's disk works again"
        );
    }
    log.events.changed();
    Ok(())
}

/// Waits until the journal works, stores changes made without records, and enables logging again.
/// Changes wait for at most `pause`, which is doubled if that was not enough.
async fn resume(shared: &Arc<Shared>, log: &ChangeLog, pause: &mut Duration) -> Result<()> {
    wait(&log.events.trouble, || (!log.events.has_failed()).then_some(())).await?;
    store_most(shared, log).await?;
    log.events.condition.step(&[JournalState::Void], JournalState::Resuming, None);
    let work = async {
        wait(&log.events.trouble, || (!log.events.condition.has_unlogged()).then_some(())).await?;
        store_unlogged(shared, log).await?;
        let up_to = log.last_position();
        if log.events.has_failed() || !mark_all(log).await {
            return Err(Error::Retryable("the journal's disk has failed again".into()));
        }
        log.names.note_mark_of_all(up_to);
        Ok(())
    };
    let deadline: Timestamp = shared.clock.now() + *pause;
    let late = || {
        *pause = pause.saturating_mul(2).min(PAUSE_MAX);
        Error::Retryable("not everything could be stored in time".into())
    };
    let clock: &dyn Clock = &*shared.clock;
    let resumed = until(clock, Some(deadline), late, work).await;
    let to = if resumed.is_ok() { JournalState::Ok } else { JournalState::Void };
    log.events.condition.step(&[JournalState::Resuming], to, None);
    if resumed.is_ok() {
        tracing::info!("the journal works again: changes are logged");
    }
    log.events.changed();
    if resumed.is_ok() && log.events.has_failed() {
        log.events.fail("the journal's disk has failed again");
    }
    resumed
}

/// Makes a mark of everything durable; returns whether it succeeded.
async fn mark_all(log: &ChangeLog) -> bool {
    let Ok(position) = log.mark_all(log.last_position()) else { return false };
    log.journal.wait(position).await.is_ok()
}

/// Stores most dirty data while changes continue: in repeated passes, as long as each leaves much
/// less than the one before.
async fn store_most(shared: &Arc<Shared>, log: &ChangeLog) -> Result<()> {
    let mut before = Duration::MAX;
    loop {
        let begun = shared.clock.now();
        store_unlogged(shared, log).await?;
        let took = shared.clock.now().since(begun);
        if took <= PASS_SHORT || took > before / 2 {
            return Ok(());
        }
        before = took;
    }
}

/// Stores everything that is dirty in journaled namespaces.
async fn store_unlogged(shared: &Arc<Shared>, log: &ChangeLog) -> Result<()> {
    let ticket = Arc::new(FlushTicket::default());
    for node in shared.objects.dirty_queue.nodes() {
        let Some(handle) = Handle::of_node(shared, node) else { continue };
        if log.names.is_journaled(&handle.id().namespace) {
            expedite(&handle, &ticket, 0).await?;
        }
    }
    match Stored(ticket).await {
        // Losses are recorded, and nothing of them is left.
        Err(Error::WritesLost(_)) => Ok(()),
        result => result,
    }
}
