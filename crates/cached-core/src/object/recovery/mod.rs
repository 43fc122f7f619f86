//! Recovery: changes that an earlier process logged but did not store are applied again.
//!
//! ```text
//!  begin (claims.rs)      the heads of the records are read, and each namespace is claimed
//!  serving begins         an operation on an object waits until the object's records are applied, which a task does
//!                         out of turn (here)
//!  the pass (pass.rs)     applies everything else, in the order of the log, by large sequential reads
//! ```
//! A record is applied as an ordinary write-back change (apply.rs), within the dirty limit, but is
//! not logged again: the log already has it, and a hold keeps it until the object is stored.
//! Applying records twice is harmless, as long as the records of each object are applied in order,
//! up to the last one.
//!
//! If there is nothing to recover, this costs each operation a single relaxed load.

mod apply;
mod claims;
mod pass;

use blocker::{Epoch, Error, Namespace};
use cached_journal::Position;

pub(crate) use claims::begin;

use super::journal::unapplied::Stage;
use super::shared::Shared;
use crate::sync::Arc;

/// The reason why a recovery cannot begin. The caller may try again.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecoveryError {
    /// Another writer has taken over a namespace since the journal was written: its records must
    /// not be applied, and the maximum number of journals is already set aside.
    #[error(
        "the journal holds changes of namespace {namespace} made under epoch {journal_epoch}, and epoch {in_force} of another writer is in force: they must not be stored, and {max} overtaken journals are kept already, overtaken-1 to overtaken-{max}; `cachectl journal export` saves what one holds, then remove its directory", max = cached_journal::KEPT_ASIDE_MAX
    )]
    Overtaken {
        /// The namespace.
        namespace: Namespace,
        /// The highest epoch of the journal's records.
        journal_epoch: Epoch,
        /// The epoch in force.
        in_force: Epoch,
    },
    /// The cache is [elected](super::Writer::Elected): its claims would replace those that show
    /// whether the changes may be applied.
    #[error(
        "the journal holds changes of an earlier process, which a cache that is the writer itself must store before this host leads"
    )]
    Elected,
    /// The journal cannot be read, or holds records that this program does not know.
    #[error(
        "the journal cannot be recovered: {0}; `cachectl journal verify` lists all damage, `cachectl journal export` saves what is readable, `cachectl journal discard` starts anew"
    )]
    Journal(String),
    /// The journal's disk failed, or has no space at present. Nothing is damaged, and a later
    /// attempt may succeed.
    #[error("the journal's disk: {0}")]
    Disk(String),
    /// Other writers have taken over every namespace with changes that is not settled, and the disk has
    /// no space for the copy to be set aside. Nothing is damaged, and a later attempt may succeed.
    #[error("the journal's disk has no space to set the overtaken journal aside: {0}")]
    NotSetAside(String),
    /// The store did not respond as required.
    #[error("cannot ask the store which writer is in force: {0}")]
    Store(Error),
}

/// Applies the rest of an object's records. It runs in the background of the cache, so an operation
/// that gives up does not stop it.
async fn recover(shared: Arc<Shared>, object: u32) {
    let recovery = &shared.journal.recovery;
    let _requested = scopeguard::guard((), |()| recovery.end_request(object));
    loop {
        match recovery.begin_object(object) {
            Stage::Waiting => break,
            Stage::Busy => recovery.free(object).await,
            Stage::Recovered | Stage::Failed => return,
        }
    }
    let _busy = Busy { shared: Arc::clone(&shared), object };
    while let Some((number, place)) = recovery.next_of(object) {
        let made = async {
            let (position, head, payload) = apply::read(&shared, place).await?;
            match apply::redo(&shared, (object, number), position, &head, payload)? {
                Some(redo) => redo.make(&shared).await,
                None => {
                    keep_part(&shared, object, number, position);
                    Ok(())
                }
            }
        };
        match made.await {
            Ok(()) => recovery.applied(object),
            Err(why) => return fail(&shared, object, why),
        }
    }
}

/// Keeps an object's record `number`, which is passed without being applied, because the last part
/// of its state needs it.
fn keep_part(shared: &Shared, object: u32, number: u32, position: Position) {
    // If the object has failed, the pass has ended, and its records are kept elsewhere.
    if shared.journal.recovery.has_failed(object) {
        return;
    }
    if let Some(hold) = shared.journal.log.as_ref().and_then(|log| log.journal.hold(position)) {
        shared.journal.recovery.parts.keep(object, number, hold);
    }
}

/// Gives up an object: logs the failure once, and makes operations on the object fail.
fn fail(shared: &Shared, object: u32, why: Error) {
    tracing::error!(%why, "an object cannot be recovered from the journal: operations on it fail");
    shared.journal.recovery.fail(object, why);
}

/// A guard of a busy object: dropping it frees the object and wakes the tasks that wait for it.
struct Busy {
    shared: Arc<Shared>,
    object: u32,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.shared.journal.recovery.end_object(self.object);
    }
}
