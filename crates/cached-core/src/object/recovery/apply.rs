//! Decodes and applies a single record.

use std::time::Duration;

use blocker::admission::{range_end, runs_end};
use blocker::{Change, ChangeTerms, Error, ObjectId, Result, Segments};
use cached_journal::{Head, Position, ReadError, RecordPlace};

use crate::object::journal::records::{PendingState, Replayed, decode, subject};
use crate::object::shared::Shared;
use crate::object::write::apply::{Again, apply_again_at_once, is_too_large};
use crate::object::write::back::change_again;
use crate::sync::Arc;

/// The number of failed reads after which a record counts as damaged.
const READS_MAX: u32 = 10;
/// The delay between two read attempts.
const READ_DELAY: Duration = Duration::from_secs(1);

/// The change of a record, to be applied again.
pub(super) struct Redo {
    pub(super) id: ObjectId,
    pub(super) hash: u64,
    changes: Vec<Change>,
    terms: ChangeTerms,
    again: Again,
}

/// Returns the change of an object's record `number`; `None` if a later record includes it.
///
/// # Errors
/// `Corrupt` if this program cannot have written the record, `TooLarge` if this cache does not
/// accept the change.
pub(super) fn redo(
    shared: &Shared,
    (object, number): (u32, u32),
    position: Position,
    head: &Head<'_>,
    payload: Vec<u8>,
) -> Result<Option<Redo>> {
    let corrupt = |why: String| Error::Corrupt(format!("record {} of the journal: {why}", position.0).into());
    let about = subject(head).map_err(|error| corrupt(error.to_string()))?;
    let Some(name) = about.name else { return Ok(None) };
    let id = ObjectId::new(about.namespace, name);
    // The log must be kept from this position until the change is stored.
    let mut first = position;
    let changes = match decode(head, payload).map_err(|error| corrupt(error.to_string()))? {
        Replayed::Change(change) => vec![change],
        Replayed::Epoch => return Ok(None),
        Replayed::StatePart(part, of, _) if part + 1 < of => return Ok(None),
        Replayed::StatePart(part, of, last) => {
            let count = u32::try_from(part).map_err(|_| corrupt("a state has too many parts".into()))?;
            let parts = read_earlier(shared, object, number, count)?;
            let mut state = Vec::new();
            for (number, (_, head_before, payload)) in parts.iter().enumerate() {
                match decode(head_before, payload.clone()) {
                    Ok(Replayed::StatePart(part, all, bytes))
                        if (part, all) == (number as u64, of) && head_before.sequence == head.sequence =>
                    {
                        state.extend(bytes);
                    }
                    // A mark covers the first parts: the store has their changes and those of the
                    // other parts.
                    _ => return Ok(None),
                }
            }
            if parts.len() as u64 != part {
                return Ok(None);
            }
            first = parts.first().map_or(position, |(first, ..)| *first);
            state.extend(last);
            changes_of(PendingState::decode(state).map_err(|error| corrupt(error.to_string()))?)
        }
    };
    for change in &changes {
        check(shared, change)?;
    }
    let mut terms = ChangeTerms::default();
    terms.domain = about.domain;
    let again = Again { version: head.sequence, position: first, was_present: about.was_present };
    Ok(Some(Redo { hash: shared.hash(&id), id, changes, terms, again }))
}

/// Returns the `count` records before an object's record `number`, or fewer if there are not as
/// many.
fn read_earlier(
    shared: &Shared,
    object: u32,
    number: u32,
    count: u32,
) -> Result<Vec<(Position, Head<'static>, Vec<u8>)>> {
    let places = shared.journal.recovery.places_up_to(object, number, count.saturating_add(1));
    let source = shared.journal.recovery.source.as_ref().ok_or_else(no_journal)?;
    let before = places.split_last().map_or(&[][..], |(_, before)| before);
    before.iter().map(|place| source.read(*place).map_err(|error| damage(&error))).collect()
}

fn no_journal() -> Error {
    Error::Corrupt("the cache has no journal".into())
}

/// Returns the changes that produce a state.
fn changes_of(state: PendingState) -> Vec<Change> {
    // The object must exist, even if it is empty.
    let is_kept = state.is_present && !state.is_replaced;
    let first = is_kept.then(|| Change::Write { offset: 0, data: Segments::new() });
    first.into_iter().chain(state.into_changes()).collect()
}

/// Checks that a change is within the limits of this cache, which may be lower than those of the
/// process that logged it.
fn check(shared: &Shared, change: &Change) -> Result<()> {
    let limit = shared.control.config.object_bytes_max;
    match change {
        // The part beyond the maximum object size was cut off when the change was made.
        Change::Discard { offset, len_bytes } => range_end(*offset, *len_bytes, limit).map(drop)?,
        Change::WriteRuns { runs } => {
            let mut can = shared.store.can;
            (can.object_bytes_max, can.runs_max, can.request_bytes_max) = (limit, u32::MAX, u64::MAX);
            runs_end(runs, &can).map(drop)?;
        }
        change => change.check_end(limit)?,
    }
    if is_too_large(shared, change.into()) {
        return Err(Error::TooLarge {
            limit_bytes: shared.metrics.dirty_room.dirty_max() * blocker::BUCKET_BYTES,
        });
    }
    Ok(())
}

impl Redo {
    /// Applies the change, if everything that it needs is available at once.
    pub(super) fn at_once(&self, shared: &Shared) -> Option<Result<()>> {
        let [change] = &self.changes[..] else { return None };
        let Self { id, hash, terms, again, .. } = self;
        let answer = apply_again_at_once(shared, id, *hash, change.into(), terms, *again)?;
        Some(or_nothing_to_do(answer))
    }

    /// Applies the change, and retries requests that the store refuses temporarily.
    ///
    /// # Errors
    /// Permanent errors.
    pub(super) async fn make(&self, shared: &Arc<Shared>) -> Result<()> {
        for change in &self.changes {
            let mut delay = shared.control.config.retry_delay_min;
            loop {
                let Self { id, hash, terms, again, .. } = self;
                let request = change.clone().request(id.clone()).terms(*terms);
                let made = change_again(shared, request, *hash, *again).await;
                match or_nothing_to_do(made) {
                    Ok(()) => break,
                    Err(error) if is_for_the_time_being(&error) => {
                        if delay == shared.control.config.retry_delay_min {
                            tracing::warn!(object = %id, %error, "a change in the journal cannot be applied yet; will retry");
                        }
                        shared.clock.sleep_until(shared.clock.now() + delay).await;
                        delay = delay.saturating_mul(2).min(shared.control.config.retry_delay_max);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

/// Truncating, discarding or removing a missing object has no effect: a later record removed it.
fn or_nothing_to_do(made: Result<()>) -> Result<()> {
    match made {
        Err(Error::Missing) => Ok(()),
        made => made,
    }
}

fn is_for_the_time_being(error: &Error) -> bool {
    matches!(
        error,
        Error::Retryable(_)
            | Error::OutcomeUnknown(_)
            | Error::OutOfSpace(_)
            | Error::NotStored(_)
            | Error::WritesLost(_)
            | Error::DeadlinePassed
    )
}

/// Reads a record by its place; waits and retries while the disk fails.
///
/// # Errors
/// `Corrupt` if the record is damaged, or the disk cannot read it.
pub(super) async fn read(shared: &Shared, place: RecordPlace) -> Result<(Position, Head<'static>, Vec<u8>)> {
    let source = shared.journal.recovery.source.as_ref().ok_or_else(no_journal)?;
    let mut failed = 0;
    loop {
        let source = source.clone();
        match shared.journal.recovery.reading().read(move || source.read(place)).await.ok_or_else(not_read)? {
            Ok(read) => return Ok(read),
            Err(error) => wait_to_read_again(shared, &mut failed, error).await?,
        }
    }
}

/// Waits before a failed read is repeated, unless [`READS_MAX`] reads have failed.
///
/// # Errors
/// `Corrupt` if no further read can succeed.
pub(super) async fn wait_to_read_again(shared: &Shared, failed: &mut u32, error: ReadError) -> Result<()> {
    match error {
        ReadError::Disk(error) if *failed < READS_MAX => {
            *failed += 1;
            tracing::warn!(%error, "cannot read the journal; will retry");
            shared.clock.sleep_until(shared.clock.now() + READ_DELAY).await;
            Ok(())
        }
        error => Err(damage(&error)),
    }
}

/// Returns the error for a reader thread that has panicked.
pub(super) fn not_read() -> Error {
    Error::Corrupt("cannot read the journal any more: the reading thread has ended".into())
}

/// Returns the error of operations on an object whose records are damaged.
pub(super) fn damage(error: &impl std::fmt::Display) -> Error {
    Error::Corrupt(format!("the journal's record of an acknowledged change is damaged: {error}").into())
}
