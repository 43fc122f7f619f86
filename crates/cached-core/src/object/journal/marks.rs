//! Marks: of what was stored, or changed in the store past the log, older records are not replayed.

use blocker::{Namespace, ObjectId, OrderDomain, Scope};
use cached_journal::{Head, Position, Record};

use super::append::Full;
use super::names::NamespaceLog;
use super::{ChangeLog, records};

impl ChangeLog {
    /// Returns the position of the last record that was appended. An object that has a record up to there,
    /// and has not been stored since, is in the dirty queue.
    pub(crate) fn last_position(&self) -> Position {
        Position(self.journal.next_position().0.saturating_sub(1))
    }

    /// Appends a mark of an object. `Ok(None)`: the journal is in trouble.
    pub(crate) fn mark_object(
        &self,
        namespace: &NamespaceLog,
        id: &ObjectId,
        up_to: Position,
    ) -> Result<Option<Position>, Full> {
        records::encode_object_mark(namespace.number, id, up_to, |record| self.append_privileged(record))
    }

    /// Appends a mark of a scope that is not one object. `Ok(None)`: there is nothing to be marked, or the
    /// journal is in trouble.
    pub(crate) fn mark_scope(&self, scope: &Scope, up_to: Position) -> Result<Option<Position>, Full> {
        let append = |mark: Head<'_>| self.append_privileged(&Record { head: mark, payload: &[] });
        let known = |namespace: &Namespace| self.names.get(namespace).filter(|it| it.has_unmarked());
        match scope {
            Scope::Domain(namespace, domain) => match known(namespace) {
                // The largest domain has the number of none.
                Some(known) if *domain != OrderDomain(u64::MAX) => {
                    let mark = Head::mark(cached_journal::Scope::Domain, up_to);
                    let domain = records::domain_number(Some(*domain));
                    append(Head { namespace: known.number, domain, ..mark })
                }
                _ => Ok(None),
            },
            Scope::Namespace(namespace) => match known(namespace) {
                Some(known) => {
                    let mark = Head::mark(cached_journal::Scope::Namespace, up_to);
                    append(Head { namespace: known.number, ..mark })
                }
                None => Ok(None),
            },
            Scope::All if self.names.has_unmarked() => append(Head::mark(cached_journal::Scope::All, up_to)),
            _ => Ok(None),
        }
    }

    /// Appends a mark of everything, whatever the condition of the log is.
    ///
    /// # Errors
    /// The journal's.
    pub(crate) fn mark_all(&self, up_to: Position) -> Result<Position, cached_journal::AppendError> {
        let head = Head::mark(cached_journal::Scope::All, up_to);
        Ok(self.journal.append(&Record { head, payload: &[] })?.position)
    }

    /// Appends the record of an epoch with which a namespace is about to be claimed. `Ok(None)`: the journal
    /// is in trouble.
    pub(crate) fn append_epoch(&self, namespace: &Namespace, epoch: u64) -> Result<Option<Position>, Full> {
        let number = self.names.number(namespace).number;
        records::encode_epoch(number, namespace, epoch, |record| self.append_privileged(record))
    }
}
