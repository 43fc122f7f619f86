//! Waiting for the log: for room, until a record or a mark is durable, until *stored* may be
//! acknowledged, and until the changes of an earlier process are applied.

use std::future::poll_fn;

use blocker::{Durability, Error, FlushRequest, Namespace, ObjectId, Result, Scope, Timestamp};
use cached_journal::Position;

use super::Shared;
use super::parts::JournalSide;
use super::resources::flushed_meanwhile;
use crate::object::journal::{ChangeLog, Full, Room};
use crate::object::tasks::deadline::until;
use crate::object::tasks::wait_queue::{Permits, wait};
use crate::sync::Arc;

/// Waits for room in the log for the record of a change; `None` if the cache has no log.
///
/// # Errors
/// `Retryable` if too many tasks are waiting, `Unsupported` if the background of the cache has
/// ended.
pub(crate) async fn room(shared: &Shared, payload_bytes: u64) -> Result<Option<Room>> {
    let Some(log) = &shared.journal.log else { return Ok(None) };
    log.counts.waits.increment();
    let room = wait(&log.events.room, || log.take_room(payload_bytes));
    Ok(Some(flushed_meanwhile(shared, room).await?))
}

/// Waits until the log is durable up to a position; returns false if it will not be: then the
/// change of the record must be stored instead.
///
/// # Errors
/// `NotStored` if the deadline passes first.
pub(crate) async fn durable(
    shared: &Shared,
    position: Position,
    deadline: Option<Timestamp>,
) -> Result<bool> {
    let Some(log) = &shared.journal.log else { return Ok(false) };
    let late = || Error::NotStored("the deadline passed before the journal was synced".into());
    until(&*shared.clock, deadline, late, async { Ok(committed(log, position).await) }).await
}

/// Waits until the log is durable up to a position; returns false if it never will be: in this case
/// the log is no longer in the state `Ok` when this returns.
///
/// A waiting task can learn that a record is not durable before the journal's event has been
/// observed. If the log still counted as working at that moment, *stored* could be acknowledged
/// while older records can still be replayed over the stored data.
pub(crate) async fn committed(log: &ChangeLog, position: Position) -> bool {
    let is_durable = log.journal.wait(position).await.is_ok();
    if !is_durable && log.journal.is_failed() {
        log.events.fail("its disk failed before a record was synced");
    }
    is_durable
}

/// Waits while the log has records of a namespace (of any namespace, if `None`) that could be
/// replayed over newer data, which were stored without a record.
///
/// # Errors
/// `Retryable` if too many tasks are waiting.
pub(crate) async fn not_draining(journal: &JournalSide, namespace: Option<&Namespace>) -> Result<()> {
    let Some(log) = &journal.log else { return Ok(()) };
    let is_over = || (!log.events.condition.is_draining()).then_some(());
    if is_over().is_some() || namespace.is_some_and(|namespace| !log.names.is_journaled(namespace)) {
        return Ok(());
    }
    wait(&log.events.draining, is_over).await
}

/// Returns the durability with which to acknowledge a change that the store has made with the
/// durability `made`; waits if records in the log could undo the requested one.
///
/// # Errors
/// The same as for [`not_draining`].
pub(crate) async fn acknowledged(
    journal: &JournalSide,
    namespace: &Namespace,
    asked: Durability,
    made: Durability,
) -> Result<Durability> {
    let Some(log) = &journal.log else { return Ok(made.max(asked)) };
    if asked > Durability::Cached {
        not_draining(journal, Some(namespace)).await?;
    } else if log.events.condition.is_draining() && log.names.is_journaled(namespace) {
        return Ok(Durability::Cached);
    }
    Ok(made.max(asked))
}

/// Returns whether the log may have records of a namespace that would be replayed: then a change
/// past the log requires a mark before it.
pub(crate) fn has_records(journal: &JournalSide, namespace: &Namespace) -> bool {
    let known = journal.log.as_ref().and_then(|log| log.names.get(namespace));
    known.is_some_and(|known| known.has_unmarked())
}

/// Records, before a change is acknowledged, that the store has accepted it but may not have stored
/// it durably: until it has, no change of the namespace is logged.
pub(crate) fn note_forwarded(
    journal: &JournalSide,
    namespace: &Namespace,
    answer: std::result::Result<Durability, &Error>,
) {
    // Some stores provide more durability than requested; a failed change may still have been made.
    let is_stored = answer.is_ok_and(|durability| durability >= Durability::Stored);
    if is_stored {
        return;
    }
    journal.forwarded.note();
    if let Some(log) = &journal.log {
        log.names.number(namespace).forwarded.note();
    }
}

/// Makes the store persist changes of a namespace that it has accepted past the log, including
/// those of an earlier process. A change that is logged afterwards survives a power failure, so
/// earlier changes must survive it too.
///
/// # Errors
/// `Retryable` if the store cannot persist them now.
pub(crate) async fn store_forwarded(shared: &Shared, namespace: &Namespace) -> Result<()> {
    let Some(log) = &shared.journal.log else { return Ok(()) };
    let known = log.names.number(namespace);
    let _alone = Permits::acquire(&log.storing_forwarded).await?;
    if !known.forwarded.is_any() {
        return Ok(());
    }
    let taken = known.forwarded.taken();
    match shared.store.below.flush(FlushRequest::new(Scope::Namespace(namespace.clone()))).await {
        Ok(_) => (),
        // Everything else is stored.
        Err(Error::WritesLost(why)) => {
            tracing::warn!(%namespace, %why, "the store has lost writes that were not logged");
        }
        Err(error) => return Err(Error::Retryable(error.to_string().into())),
    }
    known.forwarded.note_stored(taken);
    Ok(())
}

/// Makes a mark durable, so that no record of an object is replayed. The caller holds the whole
/// object, and all of its changes are stored.
///
/// While the journal has failed, no mark can be made; in this case *stored* is not acknowledged
/// before the log is void.
///
/// # Errors
/// The same as for [`room`].
pub(crate) async fn mark_object(shared: &Arc<Shared>, object: &ObjectId) -> Result<()> {
    let Some(log) = &shared.journal.log else { return Ok(()) };
    let Some(namespace) = log.names.get(&object.namespace).filter(|it| it.has_unmarked()) else {
        return Ok(());
    };
    let up_to = log.last_position();
    privileged(shared, log, || log.mark_object(&namespace, object, up_to)).await
}

/// Does the same as [`mark_object`] for a namespace that has been stored since `up_to` was the last
/// position.
///
/// # Errors
/// The same as for [`room`].
pub(crate) async fn mark_namespace(
    shared: &Arc<Shared>,
    namespace: &Namespace,
    up_to: Position,
) -> Result<()> {
    let Some(log) = &shared.journal.log else { return Ok(()) };
    let Some(known) = log.names.get(namespace).filter(|it| it.has_unmarked()) else { return Ok(()) };
    let scope = Scope::Namespace(namespace.clone());
    let mut marked = None;
    let append = || {
        marked = log.mark_scope(&scope, up_to)?;
        Ok(marked)
    };
    privileged(shared, log, append).await?;
    if let Some(position) = marked
        && log.journal.is_durable(position)
    {
        known.note_mark(up_to);
    }
    Ok(())
}

/// Waits for room in the log for the record of an epoch. Another namespace may have to be claimed
/// before its data can be stored, which makes the room: the caller must not keep others from
/// claiming.
///
/// # Errors
/// The same as for [`room`].
pub(crate) async fn room_for_epoch(shared: &Shared) -> Result<Room> {
    let Some(log) = &shared.journal.log else { return Ok(Room::NotNeeded) };
    flushed_meanwhile(shared, wait(&log.events.room, || log.take_privileged_room())).await
}

/// Makes the record of an epoch durable, with which a namespace is about to be claimed, in `room`
/// if the caller has waited for it. Returns false if there is no room at present.
///
/// # Errors
/// `Retryable` if the journal has failed and has records of the namespace, or if it has failed and
/// no longer has the room.
pub(crate) async fn note_epoch(
    shared: &Shared,
    namespace: &Namespace,
    epoch: u64,
    room: Option<Room>,
) -> Result<bool> {
    let Some(log) = shared.journal.log.as_ref().filter(|log| log.names.is_journaled(namespace)) else {
        return Ok(true);
    };
    let is_reserved = matches!(room, Some(Room::Reserved(_)));
    let appended = match log.append_epoch(namespace, epoch, room) {
        Ok(appended) => appended,
        Err(Full) if is_reserved => {
            let why = "the journal's disk has failed meanwhile: there is no room for the record of a claim";
            return Err(Error::Retryable(why.into()));
        }
        Err(Full) => return Ok(false),
    };
    if let Some(position) = appended {
        // If the record is not durable, the log has left the state `Ok`.
        committed(log, position).await;
    }
    let is_durable = appended.is_some_and(|position| log.journal.is_durable(position));
    if !is_durable && log.names.number(namespace).has_unmarked() {
        let why = "the journal's disk has failed: a namespace that has records in it cannot be claimed";
        return Err(Error::Retryable(why.into()));
    }
    Ok(true)
}

/// Appends a record that may use the last tenth of the journal, and waits until it is durable or
/// the journal has failed.
async fn privileged(
    shared: &Arc<Shared>,
    log: &ChangeLog,
    mut append: impl FnMut() -> Result<Option<Position>, Full> + Unpin,
) -> Result<()> {
    let appended = match append() {
        Ok(appended) => appended,
        Err(Full) => flushed_meanwhile(shared, wait(&log.events.room, || append().ok())).await?,
    };
    if let Some(position) = appended {
        // If the record is not durable, the log has left the state `Ok`.
        committed(log, position).await;
    }
    Ok(())
}

/// Closes the journal. If all of its changes are stored, none is replayed; the records of objects
/// that could not be recovered are kept, for the next start and for the tools.
///
/// # Errors
/// `NotStored` if the journal's disk has failed.
pub(crate) async fn close(journal: &JournalSide) -> Result<()> {
    let Some(log) = &journal.log else { return Ok(()) };
    // The position must be read before the check for unstored changes.
    let up_to = log.last_position();
    let recovered = journal.recovery.progress();
    // A mark of everything would cover the records of objects that could not be recovered.
    let is_recovered = recovered.is_done && recovered.objects_failed == 0;
    let is_stored = !log.events.condition.has_logged();
    if is_recovered
        && is_stored
        && log.names.has_unmarked()
        && let Ok(position) = log.mark_all(up_to)
    {
        // Without the mark, the changes are replayed again.
        let _ = log.journal.wait(position).await;
    }
    log.journal
        .shut_down()
        .map_err(|error| Error::NotStored(format!("the journal is closed, but {error}").into()))
}

/// Waits until the object with this hash is recovered.
///
/// # Errors
/// The reason why the object cannot be recovered; `Unsupported` if the background of the cache has
/// ended.
pub(crate) async fn object_recovered(shared: &Arc<Shared>, hash: u64) -> Result<()> {
    let waiting = poll_fn(|cx| {
        let (poll, requested) = shared.journal.recovery.poll_object(hash, cx.waker());
        let task = requested.and_then(|object| shared.journal.recovery.out_of_turn(object));
        task.into_iter().for_each(|task| shared.background.add(task));
        poll
    });
    flushed_meanwhile(shared, waiting).await
}

/// Waits until everything within a scope is recovered; for an order domain, its whole namespace.
///
/// # Errors
/// The reason why an object in the scope cannot be recovered; `Unsupported` if the background of
/// the cache has ended.
pub(crate) async fn scope_recovered(shared: &Arc<Shared>, scope: &Scope) -> Result<()> {
    if !shared.journal.recovery.is_active() {
        return Ok(());
    }
    if let Scope::Object(id) = scope {
        return object_recovered(shared, shared.hash(id)).await;
    }
    let waiting = poll_fn(|cx| shared.journal.recovery.poll_wide(scope.namespace(), cx.waker()));
    flushed_meanwhile(shared, waiting).await
}

/// Waits until the namespaces have been claimed.
///
/// # Errors
/// `Unsupported` if the background of the cache has ended.
pub(crate) async fn recovery_begun(shared: &Arc<Shared>) -> Result<()> {
    let waiting = poll_fn(|cx| shared.journal.recovery.poll_begun(cx.waker()).map(Ok));
    flushed_meanwhile(shared, waiting).await
}
