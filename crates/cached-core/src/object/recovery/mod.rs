//! Recovery: the changes that an earlier process logged and did not store are made again.
//!
//! ```text
//!  begin (claims.rs)      the records' heads are read (found.rs of recovery_state), each namespace is claimed
//!  serving begins         whatever asks for an object waits until its records are applied (recovery_gate.rs), which a
//!                         task does out of turn (on_demand.rs)
//!  the pass (pass.rs)     applies everything else, in the order of the log, by large sequential reads
//! ```
//! A record is applied as an ordinary write-back change (apply.rs), within the dirty limit, but is not logged
//! again: it is in the log, which a hold keeps until the object is stored. To apply records twice does no
//! harm, as long as each object's are applied in their order, up to the last one.
//!
//! Where nothing is to be recovered, this costs one relaxed load for each operation.

mod apply;
mod busy;
mod claims;
mod on_demand;
mod pass;
mod stuck;

use blocker::{Epoch, Error, Namespace};

pub(crate) use claims::begin;

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
