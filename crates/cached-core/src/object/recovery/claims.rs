//! The beginning of a recovery: the heads of the journal's records are read, and each namespace is
//! claimed before its records are applied.
//!
//! The journal's records name the epoch under which they were made. The cache is the same writer as
//! the one that wrote the journal, and repeats that claim. If the store accepts it, no other party
//! has changed the namespace since, and the cache claims the next epoch.
//!
//! The leader of an election claims as another writer, which only its process knows. So the store
//! refuses the repeated claim, but names the same epoch as being in force. Changes are logged only
//! under an epoch that their cache holds, and an epoch has one writer: if the records have this
//! epoch, no other party has changed the namespace since. In both cases, if another party claims
//! the namespace before this cache has claimed the next epoch, the store refuses the claim of this
//! cache, because there is no epoch in between; if it claims the namespace afterwards, the store
//! refuses the applied changes.
//!
//! If the store has another epoch in force, there are two cases. Either this cache claimed the epoch
//! in force itself, to void its journal after the journal's disk had failed: then the changes of the
//! records are stored, and the records are left out. Or another writer claimed it: then the records
//! must not be applied.
//!
//! A failed attempt to begin may leave claims in the store, even if no response arrived. The next
//! attempt repeats these claims instead of the journal's epochs: otherwise it would take its own
//! claims for the ones that void the journal, and leave out changes that are not stored.

use std::collections::HashMap;
use std::io::ErrorKind;

use blocker::{ClaimRequest, Epoch, Error, Namespace, Scope};
use cached_journal::{AppendError, Appended, Journal, OpenError, Position, Record, Replay};
use scopeguard::ScopeGuard;

use super::{RecoveryError, pass, recover};
use crate::object::config::Writer;
use crate::object::journal::records::{encode_epoch, subject};
use crate::object::journal::unapplied::{BegunClaim, Collector, Found, FoundNamespace, Overtaken, Unapplied};
use crate::object::shared::Shared;
use crate::object::store::epochs::Own;
use crate::sync::Arc;

/// Implements [`super::super::ObjectCache::begin_recovery`].
pub(crate) async fn begin(shared: &Arc<Shared>) -> Result<(), RecoveryError> {
    let recovery = &shared.journal.recovery;
    let Some(unapplied) = recovery.take_unapplied() else { return Ok(()) };
    // If the recovery does not begin, the next attempt finds the records again.
    let mut unapplied = scopeguard::guard(unapplied, |unapplied| recovery.put_back(unapplied));
    let begun = shared.clock.now();
    let mut found = collect(shared, &unapplied.replay)?;
    let took = shared.clock.now().since(begun);
    let end = Position(unapplied.replay.end().0.saturating_sub(1));
    // If only an epoch was recorded, there is nothing to apply, whichever party is the writer by
    // now.
    let has_changes = |at: &usize| found.namespaces[*at].left > 0;
    let changed: Vec<usize> = (0..found.namespaces.len()).filter(has_changes).collect();
    if !changed.is_empty() && shared.control.config.writer == Writer::Elected {
        return Err(RecoveryError::Elected);
    }
    for each in changed.iter().map(|at| &found.namespaces[*at]) {
        if let Some(log) = &shared.journal.log {
            log.names.learn(&each.name, each.number, end);
        }
    }
    let not_started = |error| RecoveryError::Disk(format!("cannot start the thread that reads it: {error}"));
    recovery.start_reading().map_err(not_started)?;
    let (mut left_out, mut applies, mut not_set_aside) = (0, false, None);
    for at in changed {
        let namespace = &found.namespaces[at];
        let is_left_out = unapplied.overtaken.namespaces.iter().any(|(name, ..)| *name == namespace.name)
            || match claim(shared, namespace, end, &mut unapplied.claims).await? {
                Claimed::ToApply => {
                    applies = true;
                    false
                }
                Claimed::Voided => true,
                Claimed::Overtaken { .. } if not_set_aside.is_some() => true,
                Claimed::Overtaken { in_force } => {
                    match set_aside(shared, namespace, in_force, end, &mut unapplied).await {
                        Err(RecoveryError::NotSetAside(why)) => not_set_aside = Some(why),
                        done => done?,
                    }
                    true
                }
            };
        if is_left_out {
            left_out += found.leave_out(at);
        }
    }
    if let Some(why) = not_set_aside {
        // A caller that does without the journal would leave out changes that must be stored.
        return Err(if applies { RecoveryError::Disk(why) } else { RecoveryError::NotSetAside(why) });
    }
    unapplied.overtaken.log();
    tracing::info!(
        records = unapplied.replay.len(),
        bytes = unapplied.replay.payload_bytes(),
        objects = found.objects(),
        namespaces = found.namespaces.len(),
        ?took,
        "the journal contains changes that may not be stored: recovery begins"
    );
    recovery.count_applied(left_out);
    let weak = Arc::downgrade(shared);
    recovery.set_out_of_turn(Box::new(move |object| match weak.upgrade() {
        Some(shared) => Box::pin(recover(shared, object)),
        None => Box::pin(std::future::ready(())),
    }));
    recovery.set_begun(found);
    let unapplied = ScopeGuard::into_inner(unapplied);
    shared.background.add(Box::pin(pass::run(Arc::clone(shared), unapplied)));
    Ok(())
}

/// Reads the heads of all records that must be applied.
fn collect(shared: &Shared, replay: &Replay) -> Result<Found, RecoveryError> {
    let mut collector = Collector::default();
    let mut records = replay.records();
    while let Some(next) = records.next_placed() {
        let (place, record) = next.map_err(|error| match error {
            OpenError::Disk(error) => RecoveryError::Disk(error.to_string()),
            error => RecoveryError::Journal(error.to_string()),
        })?;
        let malformed = |error| RecoveryError::Journal(format!("record {}: {error}", record.position.0));
        let about = subject(&record.head).map_err(malformed)?;
        let (number, epoch, is_change) = (record.head.namespace, record.head.epoch, about.name.is_some());
        let namespace = collector.namespace(&about.namespace, number, epoch, is_change);
        if let Some(name) = about.name {
            let id = blocker::ObjectId::new(about.namespace, name);
            collector.record(shared.hash(&id), namespace, place);
        }
    }
    Ok(collector.finish())
}

impl Overtaken {
    /// Logs the namespaces whose records are not applied, and where the journal's copy is kept.
    fn log(&self) {
        let Some(kept_in) = &self.kept_in else { return };
        let named = |(name, journal, in_force): &(Namespace, Epoch, Epoch)| {
            format!("{name} (the journal's epoch is {journal}, epoch {in_force} is in force)")
        };
        let namespaces: Vec<_> = self.namespaces.iter().map(named).collect();
        tracing::error!(
            namespaces = %namespaces.join(", "), kept_in,
            "other writers have taken over since the journal was written: its changes of these namespaces are not applied; \
             the journal as it was is kept in {kept_in} of its directory, `cachectl journal export` saves what it holds"
        );
    }
}

/// Keeps a copy of the journal, and voids the records of a namespace that another writer has taken
/// over.
async fn set_aside(
    shared: &Arc<Shared>,
    found: &FoundNamespace,
    in_force: Epoch,
    end: Position,
    unapplied: &mut Unapplied,
) -> Result<(), RecoveryError> {
    let journal_epoch = Epoch(found.epoch);
    if unapplied.overtaken.kept_in.is_none() {
        let kept = shared.journal.recovery.reading().read(unapplied.replay.keep_aside()).await;
        let ended = || RecoveryError::Disk("the thread that copies the journal has ended".into());
        let kept = kept.ok_or_else(ended)?.map_err(|error| match error.error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                RecoveryError::NotSetAside(error.to_string())
            }
            _ => RecoveryError::Disk(error.to_string()),
        })?;
        let namespace = found.name.clone();
        let kept = kept.ok_or(RecoveryError::Overtaken { namespace, journal_epoch, in_force })?;
        unapplied.overtaken.kept_in = Some(kept);
    }
    void(shared, found, end).await?;
    unapplied.overtaken.namespaces.push((found.name.clone(), journal_epoch, in_force));
    Ok(())
}

/// Appends a mark: no record of the namespace up to `end` will be replayed.
async fn void(shared: &Shared, found: &FoundNamespace, end: Position) -> Result<(), RecoveryError> {
    let mark = cached_journal::Head::mark(cached_journal::Scope::Namespace, end);
    let head = cached_journal::Head { namespace: found.number, ..mark };
    log(shared, |journal| journal.append(&Record { head, payload: &[] })).await
}

/// The result of a claim, as regards the namespace's records.
enum Claimed {
    ToApply,
    /// This cache has voided the records.
    Voided,
    /// Another writer's epoch is in force.
    Overtaken {
        in_force: Epoch,
    },
}

/// Claims a namespace of the journal with the epoch after the one in force, if that is this
/// cache's. `end` is the last position found; `claims` has the claims of this and of earlier
/// attempts.
async fn claim(
    shared: &Arc<Shared>,
    found: &FoundNamespace,
    end: Position,
    claims: &mut HashMap<Namespace, BegunClaim>,
) -> Result<Claimed, RecoveryError> {
    let (name, scope) = (&found.name, Scope::Namespace(found.name.clone()));
    let journal_epoch = Epoch(found.epoch);
    let claim = match claims.get(name) {
        Some(claim) => *claim,
        None => {
            let (own, is_voided) = match claim_below(shared, &scope, journal_epoch).await? {
                Ok(()) => (journal_epoch, false),
                Err(own) if own.0 == found.changed_epoch => (own, false),
                Err(newer) => match claim_below(shared, &scope, newer).await? {
                    Ok(()) => (newer, true),
                    Err(in_force) => return Ok(Claimed::Overtaken { in_force }),
                },
            };
            if is_voided {
                tracing::warn!(
                    namespace = %name, %journal_epoch, in_force = %own,
                    "the journal was voided after its disk had failed: its changes of the namespace are already stored, and are not replayed"
                );
                void(shared, found, end).await?;
            }
            // The new epoch is exactly the next one, so that a claim of another writer in between
            // is noticed.
            let epoch = Epoch(own.0.saturating_add(1));
            log(shared, |journal| encode_epoch(found.number, name, epoch.0, |record| journal.append(record)))
                .await?;
            let claim = BegunClaim { epoch, is_voided };
            claims.insert(name.clone(), claim);
            claim
        }
    };
    if let Err(in_force) = claim_below(shared, &scope, claim.epoch).await? {
        return Ok(Claimed::Overtaken { in_force });
    }
    if let Some(log) = &shared.journal.log {
        log.names.claimed(name, claim.epoch.0);
    }
    shared.store.epochs.set(name, Own::Held(claim.epoch));
    Ok(if claim.is_voided { Claimed::Voided } else { Claimed::ToApply })
}

/// Appends a record, and waits until it is durable.
async fn log(
    shared: &Shared,
    append: impl FnOnce(&Journal) -> Result<Appended, AppendError>,
) -> Result<(), RecoveryError> {
    let why = |error: &dyn std::fmt::Display| format!("cannot log the claims: {error}");
    let Some(log) = &shared.journal.log else {
        return Err(RecoveryError::Journal(why(&"the cache has no journal")));
    };
    let appended = append(&log.journal).map_err(|error| match error {
        AppendError::Full | AppendError::Busy | AppendError::Failed => RecoveryError::Disk(why(&error)),
        AppendError::TooLarge | AppendError::Closed => RecoveryError::Journal(why(&error)),
    })?;
    log.journal.wait(appended.position).await.map_err(|error| RecoveryError::Disk(why(&error)))
}

/// Claims a namespace as the writer that may have claimed it before. The inner `Err` is the epoch
/// in force, if it is another writer's.
async fn claim_below(
    shared: &Shared,
    scope: &Scope,
    epoch: Epoch,
) -> Result<Result<(), Epoch>, RecoveryError> {
    let request = ClaimRequest::new(scope.clone(), epoch, shared.store.epochs.writer);
    match shared.store.below.claim(request).await {
        Ok(_) => Ok(Ok(())),
        Err(Error::Fenced { epoch }) => Ok(Err(epoch)),
        Err(error) => Err(RecoveryError::Store(error)),
    }
}
