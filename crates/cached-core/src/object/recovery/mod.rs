//! Recovery: the changes that an earlier process logged and did not store are made again.
//!
//! ```text
//!  begin (claims.rs)      the heads of the records are read, and each namespace is claimed
//!  serving begins         an operation on an object waits until the object's records are applied, which a task does
//!                         out of turn (here)
//!  the pass (pass.rs)     applies everything else, in the order of the log, by large sequential reads
//! ```
//! A record is applied as an ordinary write-back change (apply.rs), within the dirty limit, but is not logged
//! again: it is in the log, which a hold keeps until the object is stored. To apply records twice does no
//! harm, as long as each object's are applied in their order, up to the last one.
//!
//! Where nothing is to be recovered, this costs one relaxed load for each operation.

mod apply;
mod claims;
mod pass;

use apply::Redo;
use blocker::{Epoch, Error, Namespace, Result};
use cached_journal::{Head, Position};

pub(crate) use claims::begin;

use super::journal::unapplied::Standing;
use super::shared::Shared;
use crate::sync::Arc;

/// Why a recovery cannot begin. It may be begun once more.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecoveryError {
    /// Another writer has taken over a namespace since the journal was written: its records must not be
    /// applied, and no more journals may be kept aside.
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
    /// The journal cannot be read, or holds what this program does not know.
    #[error(
        "the journal cannot be recovered: {0}; `cachectl journal verify` lists all damage, `cachectl journal export` saves what is readable, `cachectl journal discard` starts anew"
    )]
    Journal(String),
    /// The journal's disk failed, or has no room at present. Nothing is damaged: it may work later.
    #[error("the journal's disk: {0}")]
    Disk(String),
    /// The store did not answer as needed.
    #[error("the store cannot be asked who may write: {0}")]
    Store(Error),
}

/// Applies the rest of an object's records. Runs in the background of the cache, so that an operation that
/// gives up stops nothing.
async fn recover(shared: Arc<Shared>, object: u32) {
    let _requested = Requested { shared: Arc::clone(&shared), object };
    loop {
        match shared.journal.recovery.begin_object(object) {
            Standing::Waiting => break,
            Standing::Busy => shared.journal.recovery.free(object).await,
            Standing::Recovered | Standing::Failed(_) => return,
        }
    }
    let _busy = Busy { shared: Arc::clone(&shared), object };
    while let Some((number, place)) = shared.journal.recovery.next_of(object) {
        let made = async {
            let (position, head, payload) = apply::read(&shared, place).await?;
            match prepare(&shared, object, number, position, &head, payload)? {
                Some(redo) => redo.make(&shared).await,
                None => {
                    keep_part(&shared, object, number, position);
                    Ok(())
                }
            }
        };
        match made.await {
            Ok(()) => shared.journal.recovery.applied(object),
            Err(why) => return fail(&shared, object, why),
        }
    }
}

/// Returns the change of an object's record `number`; nothing if a later record states it as well.
///
/// # Errors
/// Why it cannot be made.
fn prepare(
    shared: &Shared,
    object: u32,
    number: u32,
    position: Position,
    head: &Head<'static>,
    payload: Vec<u8>,
) -> Result<Option<Redo>> {
    let earlier = |count| read_earlier(shared, object, number, count);
    apply::redo(shared, position, head, payload, earlier)
}

/// Keeps an object's record `number`, which is passed without being applied: the last part of its state needs
/// it.
fn keep_part(shared: &Shared, object: u32, number: u32, position: Position) {
    // What could not be read on has ended the pass, and what it kept is kept elsewhere.
    if shared.journal.recovery.has_failed(object) {
        return;
    }
    if let Some(hold) = shared.journal.log.as_ref().and_then(|log| log.journal().hold(position)) {
        shared.journal.recovery.parts.keep(object, number, hold);
    }
}

/// Returns the `count` records before an object's record `number`, fewer if there are not as many.
fn read_earlier(
    shared: &Shared,
    object: u32,
    number: u32,
    count: u32,
) -> Result<Vec<(Position, Head<'static>, Vec<u8>)>> {
    let places = shared.journal.recovery.places_up_to(object, number, count.saturating_add(1));
    let source = shared.journal.recovery.source.as_ref();
    let read = |place| {
        let source = source.ok_or_else(|| Error::Corrupt("the cache has no journal".into()))?;
        source.read(place).map_err(|error| apply::damage(&error))
    };
    let before = places.split_last().map_or(&[][..], |(_, before)| before);
    before.iter().copied().map(read).collect()
}

/// Gives an object up: the log states it once, and operations on the object fail.
fn fail(shared: &Shared, object: u32, why: Error) {
    tracing::error!(%why, "an object cannot be recovered from the journal: operations on it fail");
    shared.journal.recovery.fail(object, why);
}

/// Ends a request when it is dropped.
struct Requested {
    shared: Arc<Shared>,
    object: u32,
}

impl Drop for Requested {
    fn drop(&mut self) {
        self.shared.journal.recovery.end_request(self.object);
    }
}

/// A busy object: given free, and the tasks woken that wait for it, when this is dropped.
struct Busy {
    pub(crate) shared: Arc<Shared>,
    pub(crate) object: u32,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.shared.journal.recovery.end_object(self.object);
    }
}
