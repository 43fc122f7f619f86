//! The recovery pass: applies all records in the order of the log, one window of records at a time.
//!
//! The records of an object are applied in order; different objects of a window are applied
//! concurrently if the store must be asked first. The journal's segments are released behind the
//! pass.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use blocker::{ObjectId, Result};
use cached_journal::{Head, Hold, OpenError, Position, ReadError, Reader, RecordPlace, Replay};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::apply::Redo;
use super::{Busy, apply, fail, keep_part};
use crate::object::journal::records::{Origin, encode_unreadable, subject};
use crate::object::journal::unapplied::{Stage, Unapplied};
use crate::object::journal::{ChangeLog, JournalState};
use crate::object::shared::Shared;
use crate::object::tasks::wait_queue::wait;
use crate::object::write::log_space::crowded_before;
use crate::sync::Arc;

/// The maximum number of records in a window.
const WINDOW_RECORDS: usize = 256;
/// A window ends with the record that fills this many bytes of payload.
const WINDOW_BYTES: usize = 1 << 20;

/// One record of a window.
struct Found {
    position: Position,
    place: RecordPlace,
    /// The number of the record's object; `None` if it has none.
    object: Option<u32>,
    /// The head and payload; `Err` if the payload is damaged.
    content: Result<(Head<'static>, Vec<u8>)>,
}

/// Applies all records of `unapplied`.
pub(super) async fn run(shared: Arc<Shared>, unapplied: Unapplied) {
    let Unapplied { mut replay, logged, .. } = unapplied;
    let begun = shared.clock.now();
    let mut reader = replay.reader();
    let mut is_stuck = false;
    loop {
        let (read, back) = read_window(&shared, reader).await;
        let window = match (read, back) {
            (Ok(window), Some(back)) => {
                reader = back;
                window
            }
            (read, _) => {
                let why = read.err().unwrap_or_else(apply::not_read);
                tracing::error!(%why, "cannot read the rest of the journal: objects that are not recovered yet will not be served");
                shared.journal.recovery.fail_rest(&why);
                is_stuck = true;
                break;
            }
        };
        let Some(last) = window.last().map(|found| found.position) else { break };
        let records = window.len() as u64;
        apply_window(&shared, window).await;
        release_parts(&shared);
        // The records of an object that cannot be recovered stay in the journal.
        is_stuck |= shared.journal.recovery.progress().objects_failed > 0;
        if !is_stuck {
            replay.applied(last, records);
        }
        yield_now().await;
    }
    let progress = shared.journal.recovery.progress();
    shared.journal.recovery.finish();
    let parts = shared.journal.recovery.parts.take();
    // Objects that cannot be recovered do not keep a log in trouble from being void.
    drop(logged);
    if let Some(log) = &shared.journal.log {
        // The log may be waiting to be declared void.
        log.events.changed();
    }
    let took = shared.clock.now().since(begun);
    let (records, applied, failed) = (progress.records, progress.records_applied, progress.objects_failed);
    if is_stuck {
        tracing::error!(
            records,
            applied,
            failed,
            "recovery has ended, but some objects are not recovered: operations on them fail until the journal is exported and discarded"
        );
        keep_failed(&shared, replay, parts).await;
    } else {
        tracing::info!(records, ?took, "recovery has ended: every change in the journal is applied");
        drop((parts, replay));
    }
}

/// Reads the next records, none at the end; also returns the reader, unless its thread has ended.
///
/// # Errors
/// If the chain of batches is broken, or the disk fails for good.
async fn read_window(shared: &Arc<Shared>, mut reader: Reader) -> (Result<Vec<Found>>, Option<Reader>) {
    let mut failed = 0;
    loop {
        let own = Arc::clone(shared);
        let read = shared.journal.recovery.reading().read(move || {
            let (window, error) = read_at_once(&own, &mut reader);
            (reader, window, error)
        });
        let Some((back, window, error)) = read.await else { return (Err(apply::not_read()), None) };
        // Records read before an error are applied first.
        let Some(error) = error.filter(|_| window.is_empty()) else { return (Ok(window), Some(back)) };
        if let Err(why) = apply::wait_to_read_again(shared, &mut failed, error).await {
            return (Err(why), Some(back));
        }
        reader = back;
    }
}

/// Reads the next records, up to the first one that cannot be read.
fn read_at_once(shared: &Shared, reader: &mut Reader) -> (Vec<Found>, Option<ReadError>) {
    let (mut window, mut bytes) = (Vec::new(), 0);
    while window.len() < WINDOW_RECORDS && bytes < WINDOW_BYTES {
        let read = match reader.next() {
            Ok(Some(read)) => read,
            Ok(None) => break,
            Err(error) => return (window, Some(error)),
        };
        let position = read.position;
        let id = subject(read.head)
            .ok()
            .and_then(|about| Some(blocker::ObjectId::new(about.namespace, about.name?)));
        let object = id.and_then(|id| shared.journal.recovery.object_of(shared.hash(&id)));
        let content = match read.payload {
            Ok(payload) => {
                bytes += payload.len();
                Ok((read.head.clone(), payload.to_vec()))
            }
            Err(damage) => Err(apply::damage(&damage)),
        };
        let Some(place) = reader.place() else { break };
        window.push(Found { position, place, object, content });
    }
    (window, None)
}

/// Applies the records of a window that are not applied yet. Returns when every record is applied
/// or never will be.
async fn apply_window(shared: &Arc<Shared>, window: Vec<Found>) {
    let mut left = window;
    while !left.is_empty() {
        let mut round = Round::default();
        for found in left {
            round.take(shared, found);
        }
        let Round { mut busy, elsewhere, again } = round;
        let later = busy.values_mut().filter_map(|(_, later)| later.take());
        let mut making: FuturesUnordered<_> = later.map(|later| later.make(shared)).collect();
        while making.next().await.is_some() {}
        drop((making, busy));
        for object in elsewhere {
            shared.journal.recovery.free(object).await;
        }
        left = again;
    }
}

/// A single round over the remaining records of a window.
#[derive(Default)]
struct Round {
    /// The objects whose records this round applies, each with the changes that cannot be made at once.
    busy: BTreeMap<u32, (Busy, Option<Later>)>,
    /// The objects whose records another task is applying, and those records, to be checked again.
    elsewhere: Vec<u32>,
    again: Vec<Found>,
}

impl Round {
    /// Applies a record, if everything that it needs is available.
    fn take(&mut self, shared: &Arc<Shared>, found: Found) {
        let Some(object) = found.object else {
            // The record is an epoch, which only the claims use, or belongs to a namespace that is
            // left out.
            return shared.journal.recovery.count_applied(1);
        };
        if shared.journal.recovery.is_over(object, found.place) {
            return;
        }
        let (_, later) = match self.busy.entry(object) {
            Entry::Occupied(place) => place.into_mut(),
            Entry::Vacant(place) => match shared.journal.recovery.begin_object(object) {
                Stage::Waiting => place.insert((Busy { shared: Arc::clone(shared), object }, None)),
                Stage::Busy => {
                    self.elsewhere.push(object);
                    return self.again.push(found);
                }
                Stage::Recovered | Stage::Failed => return,
            },
        };
        match later {
            Some(later) => later.rest.push(found),
            None => {
                let first = make_at_once(shared, object, found);
                *later = first.map(|first| Later { object, first, rest: Vec::new() });
            }
        }
    }
}

/// The changes of a single object that must wait.
struct Later {
    object: u32,
    first: Redo,
    rest: Vec<Found>,
}

impl Later {
    async fn make(self, shared: &Arc<Shared>) {
        let Self { object, first, rest } = self;
        if let Err(why) = first.make(shared).await {
            return fail(shared, object, why);
        }
        shared.journal.recovery.applied(object);
        for found in rest {
            if shared.journal.recovery.has_failed(object) {
                return;
            }
            if let Some(redo) = make_at_once(shared, object, found) {
                if let Err(why) = redo.make(shared).await {
                    return fail(shared, object, why);
                }
                shared.journal.recovery.applied(object);
            }
        }
    }
}

/// Makes a record's change if everything that it needs is available; otherwise returns the change.
fn make_at_once(shared: &Shared, object: u32, found: Found) -> Option<Redo> {
    let (number, _) = shared.journal.recovery.next_of(object)?;
    let prepared = found
        .content
        .and_then(|(head, payload)| apply::redo(shared, (object, number), found.position, &head, payload));
    match prepared {
        Ok(Some(redo)) => match redo.at_once(shared) {
            Some(Ok(())) => shared.journal.recovery.applied(object),
            Some(Err(_)) | None => return Some(redo),
        },
        Ok(None) => {
            keep_part(shared, object, number, found.position);
            shared.journal.recovery.applied(object);
        }
        Err(why) => fail(shared, object, why),
    }
    None
}

/// Releases the parts of applied states. The parts of objects that cannot be recovered stay,
/// because the next start must find the whole state.
fn release_parts(shared: &Shared) {
    shared.journal.recovery.parts.release(|object, last| match shared.journal.recovery.next_of(object) {
        Some((next, _)) => next > last + 1,
        None => !shared.journal.recovery.has_failed(object),
    });
}

/// Lets other tasks of the background run.
async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

// The records of objects that cannot be recovered must not fill the log. They stay until the log is
// half full; then a note replaces the records of each such object. A note is a record with an
// unreadable state, so the next recovery reports the object as failed. When the notes reach the
// oldest part of the log, and space is needed there, they are appended anew.

/// The delay before a retry of notes for which there was no room.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The holds that keep the objects from being forgotten.
enum Kept<T> {
    Records(T),
    Notes(Hold),
}

/// Keeps the log from forgetting the objects of `replay` that cannot be recovered, for as long as
/// the cache runs. `others` has the other holds of their records.
pub(super) async fn keep_failed<T>(shared: &Shared, replay: Replay, others: T) {
    let Some(log) = &shared.journal.log else { return };
    let objects = match failed_objects(shared, &replay) {
        Ok(objects) => objects,
        Err(error) => {
            tracing::error!(%error, "the journal keeps the records of all objects that could not be recovered, and will fill up");
            return std::future::pending().await;
        }
    };
    let mut kept = Kept::Records((replay, others));
    loop {
        let is_in_the_way = || {
            let end = crowded_before(log)?;
            match &kept {
                Kept::Records(_) => Some(()),
                Kept::Notes(hold) => (hold.position() < end).then_some(()),
            }
        };
        let is_due = wait(&log.events.stuck, is_in_the_way).await.is_ok();
        if is_due && let Some(hold) = note(log, &objects).await {
            tracing::warn!(
                objects = objects.len(),
                "the journal is half full: it keeps notes of the objects that cannot be recovered, not their records"
            );
            kept = Kept::Notes(hold);
        } else {
            shared.clock.sleep_until(shared.clock.now() + RETRY_AFTER).await;
        }
    }
}

/// Returns the objects that cannot be recovered.
fn failed_objects(shared: &Shared, replay: &Replay) -> Result<BTreeSet<ObjectId>, OpenError> {
    let mut objects = BTreeSet::new();
    for record in replay.records() {
        let record = record?;
        if let Ok(about) = subject(&record.head)
            && let Some(name) = about.name
        {
            let id = ObjectId::new(about.namespace, name);
            let object = shared.journal.recovery.object_of(shared.hash(&id));
            if object.is_some_and(|object| shared.journal.recovery.has_failed(object)) {
                objects.insert(id);
            }
        }
    }
    Ok(objects)
}

/// Logs a note of each object. Returns a hold of the first note; `None` if there was no room or the
/// disk failed.
async fn note(log: &ChangeLog, objects: &BTreeSet<ObjectId>) -> Option<Hold> {
    if log.events.condition.state() != JournalState::Ok {
        return None;
    }
    let mut room = log.journal.reserve_leaving(objects.len() as u64, 0, log.leave.privileged).ok()?;
    let (mut first, mut last) = (None, None);
    for id in objects {
        let known = log.names.number(&id.namespace);
        let (namespace, epoch) = (known.number, known.epoch());
        let origin = Origin { namespace, id, domain: None, version: 0, epoch, was_present: true };
        let appended = encode_unreadable(&origin, |record| room.append(record)).ok()?;
        log.note_state(id, appended.position);
        last = Some(appended.position);
        first.get_or_insert(appended.hold);
    }
    log.journal.wait(last?).await.ok()?;
    first
}
