//! Out of trouble: what was logged before the journal's disk failed is stored, then the log is made void;
//! when the disk works again, what was changed without records is stored, and changes are logged again. So a
//! logged change never follows one that is neither logged nor stored.

use std::time::Duration;

use blocker::{Clock, Error, Result, Timestamp};

use crate::object::journal::{ChangeLog, JournalState};
use crate::object::shared::Shared;
use crate::object::shared::claim::claim_anew;
use crate::object::shared::handle::Handle;
use crate::object::shared::store_pending::expedite;
use crate::object::tasks::deadline::until;
use crate::object::tasks::flush_ticket::{FlushTicket, Stored};
use crate::object::tasks::wait_queue::wait;
use crate::sync::Arc;

/// How long changes wait at most the first time while the rest is stored. Each time that this is not enough,
/// the next pause may be twice as long: else a store that is slow for what is dirty would keep the journal
/// out of use for ever.
const PAUSE_FIRST: Duration = Duration::from_secs(10);
/// How long changes wait at most, each time.
const PAUSE_MAX: Duration = Duration::from_secs(160);
/// What has been stored as fast as this, or not twice as fast as before, leaves as little as there can be
/// without a pause.
const PASS_SHORT: Duration = Duration::from_secs(5);
/// How long it takes until what has failed is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Leads the log out of trouble; completes when changes are logged again.
pub(crate) async fn lead_out(shared: Arc<Shared>) {
    let Some(log) = &shared.log else { return };
    let mut pause = PAUSE_FIRST;
    loop {
        let step = match log.events.condition.state() {
            JournalState::Ok => return,
            JournalState::Draining => drain(&shared, log).await,
            JournalState::Void | JournalState::Resuming => resume(&shared, log, &mut pause).await,
        };
        if let Err(error) = step {
            tracing::warn!(%error, "the journal is not in order yet, will be tried again");
            shared.clock.sleep_until(shared.clock.now() + RETRY_AFTER).await;
        }
    }
}

/// Waits until all that was logged is stored, also what an earlier process had logged, and makes the log void.
async fn drain(shared: &Arc<Shared>, log: &ChangeLog) -> Result<()> {
    let is_drained = || {
        shared.dirty_queue.expedite_held();
        let is_drained = !log.events.condition.has_logged() && shared.recovery.progress().is_done;
        is_drained.then_some(())
    };
    wait(&log.events.trouble, is_drained).await?;
    let failed = shared.recovery.progress().objects_failed;
    if failed > 0 {
        tracing::error!(failed, "the journal's records of objects that could not be recovered are given up");
    }
    let up_to = log.last_position();
    // Where the journal works again, a mark says that nothing is replayed; else the epochs do.
    if !log.events.has_failed() && mark_all(log).await {
        log.names.note_mark_of_all(up_to);
    }
    // Also the namespaces of which the answer to such a claim was lost: what was logged under the old epoch
    // would count as void after a restart.
    claim_anew(shared).await?;
    log.names.note_mark_of_all(up_to);
    if log.events.condition.step(&[JournalState::Draining], JournalState::Void, None) {
        tracing::warn!("all that the journal had is stored; changes are not logged until its disk works");
    }
    log.events.changed();
    Ok(())
}

/// Waits until the journal works, stores what was changed without records, and lets changes be logged again.
/// They wait for at most `pause`, which is doubled if that was not enough.
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
        tracing::info!("the journal is in order again: changes are logged");
    }
    log.events.changed();
    if resumed.is_ok() && log.events.has_failed() {
        log.events.fail("the journal's disk has failed again");
    }
    resumed
}

/// Makes a mark of everything durable; returns whether it is.
async fn mark_all(log: &ChangeLog) -> bool {
    match log.mark_all(log.last_position()) {
        Ok(position) => log.journal().wait(position).await.is_ok(),
        Err(_) => false,
    }
}

/// Stores most of what is dirty while changes go on: again and again, as long as each pass leaves much less
/// than the one before it.
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
    for node in shared.dirty_queue.nodes() {
        let Some(handle) = Handle::of_node(shared, node) else { continue };
        if log.names.is_journaled(&handle.id().namespace) {
            expedite(&handle, &ticket, 0).await?;
        }
    }
    match Stored(ticket).await {
        // What is lost is recorded, and nothing of it is left.
        Err(Error::WritesLost(_)) => Ok(()),
        result => result,
    }
}
