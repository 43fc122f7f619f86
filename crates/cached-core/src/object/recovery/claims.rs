//! Beginning: what the journal holds is read, and each namespace is claimed before its records are applied.
//!
//! The journal's records name the epoch under which they were made. The cache, which is the same writer as
//! the one that wrote the journal, repeats that claim: if the store takes it, no other party has changed the
//! namespace since, and the next epoch is claimed. If the store refuses it, the epoch in force is either one
//! that this cache has claimed itself to void its journal, after the journal's disk had failed: then what the
//! records state is stored, and they are left out. Or it is another writer's: then they must not be applied.

use blocker::{ClaimRequest, Epoch, Error, Scope};
use cached_journal::{AppendError, Appended, Journal, Position, Record, Replay};

use super::{RecoveryError, on_demand, pass};
use crate::object::change_log::records::{encode_epoch, subject};
use crate::object::epochs::Own;
use crate::object::recovery_state::{Collector, Found, FoundNamespace, Recovery, Unapplied};
use crate::object::shared::Shared;
use crate::sync::Arc;

/// See [`super::super::ObjectCache::begin_recovery`].
pub(crate) async fn begin(shared: &Arc<Shared>) -> Result<(), RecoveryError> {
    let recovery = &shared.recovery;
    let taken = recovery.take_unapplied();
    let Some(unapplied) = taken else { return Ok(()) };
    let mut replay = Unbegun { recovery, unapplied: Some(unapplied) };
    let begun = shared.clock.now();
    let mut found = collect(shared, replay.get())?;
    tracing::info!(
        records = replay.get().len(),
        bytes = replay.get().payload_bytes(),
        objects = found.objects(),
        namespaces = found.namespaces.len(),
        took = ?shared.clock.now().since(begun),
        "the journal holds changes that may not be stored: recovery begins"
    );
    let end = Position(replay.get().end().0.saturating_sub(1));
    // Where only an epoch was noted nothing is to be applied, whichever party is the writer by now.
    let changed: Vec<usize> = (0..found.namespaces.len()).filter(|at| found.has_changes(*at)).collect();
    for each in changed.iter().map(|at| &found.namespaces[*at]) {
        if let Some(log) = &shared.log {
            log.names.learn(&each.name, each.number, end);
        }
    }
    for at in changed {
        if claim(shared, &found.namespaces[at], end).await? == Standing::Voided {
            recovery.count_left_out(found.leave_out(at));
        }
    }
    let not_started =
        |error| RecoveryError::Journal(format!("the thread that reads it cannot be started: {error}"));
    recovery.start_reading().map_err(not_started)?;
    let Some(unapplied) = replay.unapplied.take() else { return Ok(()) };
    let weak = Arc::downgrade(shared);
    recovery.set_out_of_turn(Box::new(move |object| match weak.upgrade() {
        Some(shared) => Box::pin(on_demand::recover(shared, object)),
        None => Box::pin(std::future::ready(())),
    }));
    recovery.set_begun(found);
    shared.background.add(Box::pin(pass::run(Arc::clone(shared), unapplied)));
    Ok(())
}

/// The replay while the recovery has not begun: put back if it does not.
struct Unbegun<'a> {
    recovery: &'a Recovery,
    unapplied: Option<Unapplied>,
}

impl Unbegun<'_> {
    fn get(&self) -> &Replay {
        // It is taken out at the very end.
        &self.unapplied.as_ref().expect("the recovery has not begun").replay
    }
}

impl Drop for Unbegun<'_> {
    fn drop(&mut self) {
        if let Some(unapplied) = self.unapplied.take() {
            self.recovery.put_back(unapplied);
        }
    }
}

/// Reads the heads of all records to apply.
fn collect(shared: &Shared, replay: &Replay) -> Result<Found, RecoveryError> {
    let mut collector = Collector::default();
    let mut records = replay.records();
    while let Some(next) = records.next_placed() {
        let (place, record) = next.map_err(|error| RecoveryError::Journal(error.to_string()))?;
        let malformed = |error| RecoveryError::Journal(format!("record {}: {error}", record.position.0));
        let about = subject(&record.head).map_err(malformed)?;
        let namespace = collector.namespace(&about.namespace, record.head.namespace, record.head.epoch);
        if let Some(name) = about.name {
            let id = blocker::ObjectId::new(about.namespace, name);
            collector.record(shared.hash(&id), namespace, place);
        }
    }
    Ok(collector.finish())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// No other party has changed the namespace.
    Ours,
    /// This cache has voided what the journal holds of the namespace.
    Voided,
}

/// Claims a namespace of the journal with the epoch after the one in force, if that is this cache's. `end`:
/// the last position found.
async fn claim(
    shared: &Arc<Shared>,
    found: &FoundNamespace,
    end: Position,
) -> Result<Standing, RecoveryError> {
    let name = &found.name;
    let scope = Scope::Namespace(name.clone());
    let journal_epoch = Epoch(found.epoch);
    let overtaken = |in_force| RecoveryError::Overtaken { namespace: name.clone(), journal_epoch, in_force };
    let (standing, own) = match claim_below(shared, &scope, journal_epoch).await? {
        Ok(()) => (Standing::Ours, journal_epoch),
        Err(newer) => {
            claim_below(shared, &scope, newer).await?.map_err(overtaken)?;
            (Standing::Voided, newer)
        }
    };
    if standing == Standing::Voided {
        tracing::warn!(
            namespace = %name, %journal_epoch, in_force = %own,
            "the journal was voided after its disk had failed: its changes of the namespace are stored, and are left out"
        );
        let mark = cached_journal::Head::mark(cached_journal::Scope::Namespace, end);
        let head = cached_journal::Head { namespace: found.number, ..mark };
        log(shared, |journal| journal.append(&Record { head, payload: &[] })).await?;
    }
    // Exactly the next one: a claim of another writer in between is noticed.
    let next = Epoch(own.0.saturating_add(1));
    log(shared, |journal| encode_epoch(found.number, name, next.0, |record| journal.append(record))).await?;
    claim_below(shared, &scope, next).await?.map_err(overtaken)?;
    if let Some(log) = &shared.log {
        log.names.claimed(name, next.0);
    }
    shared.epochs.set(name, Own::Held(next));
    Ok(standing)
}

/// Appends a record, and waits until it is durable.
async fn log(
    shared: &Shared,
    append: impl FnOnce(&Journal) -> Result<Appended, AppendError>,
) -> Result<(), RecoveryError> {
    let failed = |why: String| RecoveryError::Journal(format!("the claims cannot be logged: {why}"));
    let Some(log) = &shared.log else { return Err(failed("the cache has no journal".into())) };
    let appended = append(log.journal()).map_err(|error| failed(error.to_string()))?;
    log.journal().wait(appended.position).await.map_err(|error| failed(error.to_string()))
}

/// Claims a namespace as the writer that may have claimed it before; `Err` within: the epoch in force, another
/// writer's.
async fn claim_below(
    shared: &Shared,
    scope: &Scope,
    epoch: Epoch,
) -> Result<Result<(), Epoch>, RecoveryError> {
    let request = ClaimRequest::new(scope.clone(), epoch, shared.epochs.writer);
    match shared.below.claim(request).await {
        Ok(_) => Ok(Ok(())),
        Err(Error::Fenced { epoch }) => Ok(Err(epoch)),
        Err(error) => Err(RecoveryError::Store(error)),
    }
}
