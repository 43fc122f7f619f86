//! The machines of both elections, with the I/O that they ask for.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use blocker::{Epoch, Timestamp};

use super::candidates::Candidates;
use super::elector::Cause;
use super::{
    Action, BlockElection, BlockOp, Claimed, DocumentElection, DocumentOp, LeaderDocument, Release, Role,
    Written,
};
use crate::agreement::Block;
use crate::disk::Disk;
use crate::document::{Change, Document, Event, Key, Revision};
use crate::error::{Error, Result};
use crate::registry::Registry;

/// The document that elects.
const LEADER: &str = "leader";

/// The delay before a watch that has failed continues.
const WATCH_DELAY: Duration = Duration::from_secs(1);

pub(super) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// An operation that has failed.
pub(super) struct Fault {
    pub(super) error: Error,
    /// Whether the host can no longer take part in the election.
    pub(super) ends: bool,
}

/// A machine, and the registry or the disk on which its operations are executed.
pub(super) trait Machine: Send {
    type Op: Send;
    type Reply: Send;

    fn next(&mut self, now: Timestamp) -> Action<Self::Op>;
    /// Begins an operation.
    fn execute(&self, op: Self::Op) -> Boxed<Self::Reply>;
    /// Handles the outcome of the operation.
    fn reply(&mut self, now: Timestamp, reply: Self::Reply) -> Result<(), Fault>;
    fn claimed(&mut self, now: Timestamp, outcome: Claimed);
    /// Ends a leadership whose changes the store has refused. Returns whether there was such a
    /// leadership.
    fn fenced(&mut self, now: Timestamp, epoch: Epoch) -> bool;
    fn step_down(&mut self, to: Release, node: Option<usize>);
    /// Returns whether a release must be written.
    fn is_releasing(&self) -> bool;
    fn role(&self, now: Timestamp) -> Role;
    /// Returns the leader, unless its lease has ended as far as this host knows.
    fn leader(&self, now: Timestamp) -> Option<LeaderDocument>;
    /// Returns why this standby may take the lease when the lease is free; `None` if the reason is
    /// not known.
    fn vacancy(&self) -> Option<Cause>;
    /// Makes the host read the state of the election immediately.
    fn look(&mut self, now: Timestamp);
    /// Returns a future that ends when the registry reports a change for which the machine should
    /// [look](Self::look) immediately; `None` if the registry does not report changes.
    fn hint(&self) -> Option<Boxed<()>>;
}

/// The election by a document of a registry.
pub(super) struct Documents {
    machine: DocumentElection,
    registry: Registry,
    key: Key,
}

impl Documents {
    pub(super) fn new(machine: DocumentElection, registry: Registry) -> Self {
        Self { machine, registry, key: Key::new(LEADER).expect("a valid key") }
    }
}

/// The reply to an operation on the leader's document.
pub(super) enum DocumentReply {
    Read(Result<Option<(Revision, LeaderDocument)>>),
    Written(Result<Revision>),
}

impl Machine for Documents {
    type Op = DocumentOp;
    type Reply = DocumentReply;

    fn next(&mut self, now: Timestamp) -> Action<DocumentOp> {
        self.machine.next(now)
    }

    fn execute(&self, op: DocumentOp) -> Boxed<DocumentReply> {
        let (registry, key) = (self.registry.clone(), self.key.clone());
        Box::pin(async move {
            match op {
                DocumentOp::Read => {
                    let read = async {
                        let Some(found) = registry.get(&key).await? else { return Ok(None) };
                        let document = LeaderDocument::decode(&found.value);
                        let document = document.map_err(|why| Error::Corrupt(why.into()))?;
                        Ok(Some((found.revision, document)))
                    };
                    DocumentReply::Read(read.await)
                }
                DocumentOp::Write(document, expect) => {
                    let change = Change::put(key, expect, document.encode());
                    DocumentReply::Written(registry.change_if(&[change]).await)
                }
            }
        })
    }

    fn reply(&mut self, now: Timestamp, reply: DocumentReply) -> Result<(), Fault> {
        let error = match reply {
            DocumentReply::Read(Ok(found)) => {
                self.machine.read(now, found);
                None
            }
            DocumentReply::Read(Err(error)) => {
                self.machine.read_failed(now);
                Some(error)
            }
            DocumentReply::Written(written) => {
                let (outcome, error) = match written {
                    Ok(revision) => (Written::Done(revision), None),
                    Err(Error::Conflict { .. }) => (Written::Conflict, None),
                    Err(error @ Error::OutcomeUnknown(_)) => (Written::Unknown, Some(error)),
                    Err(error) => (Written::Failed, Some(error)),
                };
                self.machine.written(now, outcome);
                error
            }
        };
        error.map_or(Ok(()), |error| Err(Fault { error, ends: false }))
    }

    fn claimed(&mut self, now: Timestamp, outcome: Claimed) {
        self.machine.claimed(now, outcome);
    }

    fn fenced(&mut self, now: Timestamp, epoch: Epoch) -> bool {
        self.machine.fenced(now, epoch)
    }

    fn step_down(&mut self, to: Release, _: Option<usize>) {
        self.machine.step_down(to);
    }

    fn is_releasing(&self) -> bool {
        self.machine.is_releasing()
    }

    fn role(&self, now: Timestamp) -> Role {
        self.machine.role(now)
    }

    fn leader(&self, now: Timestamp) -> Option<LeaderDocument> {
        self.machine.leader(now).cloned()
    }

    fn vacancy(&self) -> Option<Cause> {
        Some(match self.machine.seen()? {
            None => Cause::Vacant,
            Some(document) if document.release.is_some() => Cause::Offered,
            Some(_) => Cause::Expired,
        })
    }

    fn look(&mut self, now: Timestamp) {
        self.machine.look(now);
    }

    fn hint(&self) -> Option<Boxed<()>> {
        if !self.registry.tells_changes() {
            return None;
        }
        let (registry, key, seen) =
            (self.registry.clone(), self.key.clone(), self.machine.seen().flatten().cloned());
        Some(Box::pin(async move {
            let matters = |event: &Event| match event {
                Event::Removed(_) => true,
                Event::Changed(document) => is_news(seen.as_ref(), Some(document)),
            };
            loop {
                if let Ok(listing) = registry.list(key.as_str()).await {
                    // The watch does not report what has changed between the last read and the listing.
                    let found = listing.documents.iter().find(|document| document.key == key);
                    if is_news(seen.as_ref(), found) {
                        return;
                    }
                    let mut watch = registry.watch(key.as_str(), listing.revision);
                    while let Ok(changes) = watch.next().await {
                        if changes.events.iter().any(&matters) {
                            return;
                        }
                    }
                }
                tokio::time::sleep(WATCH_DELAY).await;
            }
        }))
    }
}

/// Returns whether a host that has read `seen` has to read again, because this document was found. A
/// renewal does not require that.
fn is_news(seen: Option<&LeaderDocument>, found: Option<&Document>) -> bool {
    let Some(found) = found else { return seen.is_some() };
    let is_other = |new: LeaderDocument| {
        seen.is_none_or(|seen| (seen.epoch, &seen.release) != (new.epoch, &new.release))
    };
    LeaderDocument::decode(&found.value).is_ok_and(is_other)
}

/// The election by the blocks of a disk.
pub(super) struct Blocks {
    machine: BlockElection,
    disk: Arc<Disk>,
    candidates: Arc<Candidates>,
}

impl Blocks {
    pub(super) fn new(machine: BlockElection, disk: Arc<Disk>, candidates: Arc<Candidates>) -> Self {
        Self { machine, disk, candidates }
    }
}

/// The reply to an operation on the blocks.
pub(super) enum BlockReply {
    Read(Vec<Block>),
    Written,
    Failed(Error),
}

impl Machine for Blocks {
    type Op = BlockOp;
    type Reply = BlockReply;

    fn next(&mut self, now: Timestamp) -> Action<BlockOp> {
        self.machine.next(now)
    }

    /// Waits for the kernel, without a timeout: a write on which the kernel is still working has
    /// not ended.
    fn execute(&self, op: BlockOp) -> Boxed<BlockReply> {
        let (disk, node) = (Arc::clone(&self.disk), self.machine.node());
        Box::pin(async move {
            let ended = tokio::task::spawn_blocking(move || match op {
                BlockOp::Read => disk.read_blocks().map(BlockReply::Read),
                BlockOp::Write(block) => disk.write_block(node, block).map(|()| BlockReply::Written),
            });
            let ended = ended.await.unwrap_or_else(|error| {
                Err(Error::Unavailable(format!("the disk's thread has ended: {error}").into()))
            });
            ended.unwrap_or_else(BlockReply::Failed)
        })
    }

    fn reply(&mut self, now: Timestamp, reply: BlockReply) -> Result<(), Fault> {
        match reply {
            BlockReply::Read(blocks) => {
                self.machine.read(now, &blocks).map_err(|usurped| Fault { error: usurped.into(), ends: true })
            }
            BlockReply::Written => {
                self.machine.written(now);
                Ok(())
            }
            BlockReply::Failed(error) => {
                self.machine.failed(now);
                Err(Fault { error, ends: false })
            }
        }
    }

    fn claimed(&mut self, now: Timestamp, outcome: Claimed) {
        self.machine.claimed(now, outcome);
    }

    fn fenced(&mut self, now: Timestamp, epoch: Epoch) -> bool {
        self.machine.fenced(now, epoch)
    }

    fn step_down(&mut self, to: Release, node: Option<usize>) {
        self.machine.step_down(node.filter(|_| to != Release::Anyone));
    }

    fn is_releasing(&self) -> bool {
        self.machine.is_releasing()
    }

    fn role(&self, now: Timestamp) -> Role {
        self.machine.role(now)
    }

    fn leader(&self, now: Timestamp) -> Option<LeaderDocument> {
        self.candidates.on_disk(self.machine.leader(now)?)
    }

    fn vacancy(&self) -> Option<Cause> {
        self.machine.vacancy()
    }

    fn look(&mut self, now: Timestamp) {
        self.machine.look(now);
    }

    fn hint(&self) -> Option<Boxed<()>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use blocker::WriterId;

    use super::*;
    use crate::election::Candidate;

    #[test]
    fn a_host_reads_again_unless_only_a_renewal_was_found() {
        let me = Candidate { node: "a".into(), address: "a:1".into(), writer: WriterId(1) };
        let key = || Key::new(LEADER).unwrap();
        let found = |document: &LeaderDocument| {
            let (value, revision) = (document.encode(), Revision(1));
            Document { key: key(), value, revision, lease: None }
        };
        let seen = me.document(5, 1);
        let released = LeaderDocument { release: Some(Release::Anyone), ..me.document(5, 2) };
        for (seen, new, is_it) in [
            (&seen, me.document(5, 2), false),
            (&seen, me.document(6, 0), true),
            (&seen, released.clone(), true),
            (&released, LeaderDocument { renewal: 3, ..released.clone() }, false),
            (&released, me.document(5, 3), true),
        ] {
            assert_eq!(is_news(Some(seen), Some(&found(&new))), is_it, "{new:?}");
        }
        assert!(is_news(None, Some(&found(&seen))) && is_news(Some(&seen), None) && !is_news(None, None));
        let damaged = Document { value: "?".into(), ..found(&seen) };
        assert!(!is_news(None, Some(&damaged)));
    }
}
