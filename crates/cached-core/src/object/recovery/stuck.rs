//! Objects that cannot be recovered must not fill the log: their records stay until it is half full. From then on
//! the log has a note of each instead, a state that cannot be read: the next recovery fails the object by it. The
//! notes move on with the head of the log.

use std::collections::BTreeSet;
use std::time::Duration;

use blocker::ObjectId;
use cached_journal::{Hold, OpenError, Replay};

use crate::object::journal::records::{Origin, encode_unreadable, subject};
use crate::object::journal::{ChangeLog, JournalState};
use crate::object::shared::Shared;
use crate::object::tasks::wait_queue::wait;
use crate::object::write::log_space::crowded_before;

/// How long it takes until notes are tried again for which there was no room.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What keeps the objects from being forgotten.
enum Kept<T> {
    Records(T),
    Notes(Hold),
}

/// Keeps the log from forgetting the objects of `replay` that cannot be recovered, for as long as the cache runs.
/// `others`: what else keeps their records.
pub(super) async fn keep_failed<T>(shared: &Shared, replay: Replay, others: T) {
    let Some(log) = &shared.log else { return };
    let objects = match failed_objects(shared, &replay) {
        Ok(objects) => objects,
        Err(error) => {
            tracing::error!(%error, "the journal keeps all that could not be recovered, and fills up");
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
            let object = shared.recovery.object_of(shared.hash(&id));
            if object.is_some_and(|object| shared.recovery.has_failed(object)) {
                objects.insert(id);
            }
        }
    }
    Ok(objects)
}

/// Logs a note of each object; returns a hold of the first, or nothing if there was no room or the disk failed.
async fn note(log: &ChangeLog, objects: &BTreeSet<ObjectId>) -> Option<Hold> {
    if log.events.condition.state() != JournalState::Ok {
        return None;
    }
    let mut room = log.journal().reserve_leaving(objects.len() as u64, 0, log.leave.privileged).ok()?;
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
    log.journal().wait(last?).await.ok()?;
    first
}
