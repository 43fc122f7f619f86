//! The candidates' documents: the name and the address of each host that may lead.
//!
//! A host that is asked to step down for another one finds out whether there is such a candidate.
//! On a disk, where the blocks contain only the leader's number, the documents also give the
//! leader's name.

use std::collections::BTreeMap;
use std::time::Duration;

use blocker::Clock;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::document::{Candidate, LeaderDocument, Release};
use super::elector::{Leadership, Part};
use crate::document::{Change, Document, Expect, Key};
use crate::error::{Error, Result};
use crate::registry::Registry;

/// The candidates as this host knows them.
#[derive(Debug)]
pub(super) struct Candidates {
    registry: Registry,
    me: Candidate,
    /// The number of this host on a disk.
    number: Option<usize>,
    key: Key,
    /// The documents by the candidates' numbers, on a disk.
    known: Mutex<BTreeMap<usize, LeaderDocument>>,
}

const PREFIX: &str = "candidates/";

/// The maximum number of candidates that are kept.
const CANDIDATES_MAX: usize = 64;

/// Returns the name of the document of the candidate `node`.
///
/// # Errors
/// [`Error::Invalid`] if the host's name cannot be a part of a document's name.
pub fn candidate_key(node: &str) -> Result<Key> {
    let key = Key::new(&format!("{PREFIX}{node}"));
    key.ok().filter(|_| !node.contains('/')).ok_or_else(|| {
        let why = format!(
            "the node's name {node:?} has other characters than letters, digits and -_.:, or too many"
        );
        Error::Invalid(why.into())
    })
}

impl Candidates {
    /// Returns the candidates of an election in which this host is `me`.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the host's name cannot be part of a document's name.
    pub(super) fn new(registry: Registry, me: Candidate, number: Option<usize>) -> Result<Self> {
        let key = candidate_key(&me.node)?;
        let key = match number {
            None => key,
            Some(number) => Key::new(&format!("{PREFIX}{number}"))?,
        };
        Ok(Self { registry, me, number, key, known: Mutex::default() })
    }

    /// Maintains this host's document, and on a disk the knowledge of the other hosts, until the
    /// future is dropped.
    pub(super) async fn run(
        &self,
        clock: &dyn Clock,
        lease: Duration,
        mut leadership: watch::Receiver<Leadership>,
    ) {
        let mut epoch = 0;
        loop {
            // On a disk, other hosts learn the epoch only from this announcement.
            if let (Part::Leading { epoch: leading, .. }, Some(_)) =
                (&leadership.borrow_and_update().part, self.number)
            {
                epoch = leading.0;
            }
            // A failed announcement is repeated, and only keeps names out of reports.
            let is_announced = self.announce(epoch).await.is_ok();
            match self.number {
                None if is_announced => return std::future::pending().await,
                None => {}
                Some(_) => drop(self.refresh().await),
            }
            tokio::select! {
                () = clock.sleep(lease) => {}
                Ok(()) = leadership.changed() => {}
            }
        }
    }

    /// Waits for the end of an announcement whose future was dropped, so that it cannot interfere with the
    /// next process of this host.
    pub(super) async fn finish(&self) {
        self.registry.finish().await;
    }

    async fn announce(&self, epoch: u64) -> Result<()> {
        let value = self.me.document(epoch, 0).encode();
        let found = self.registry.get(&self.key).await?;
        if found.as_ref().is_some_and(|found| found.value == value) {
            return Ok(());
        }
        let mut changes = Vec::new();
        if found.is_none() {
            // A host whose name changes leaves a document behind.
            let known = self.registry.list(PREFIX).await?.documents;
            let oldest = known.iter().min_by_key(|document| document.revision);
            let oldest = oldest.filter(|_| known.len() >= CANDIDATES_MAX);
            changes.extend(oldest.map(|oldest| Change::remove(oldest.key.clone(), oldest.revision)));
        }
        let expect = found.map_or(Expect::Absent, |found| Expect::At(found.revision));
        changes.push(Change::put(self.key.clone(), expect, value));
        self.registry.change_if(&changes).await.map(drop)
    }

    async fn refresh(&self) -> Result<()> {
        let listing = self.registry.list(PREFIX).await?;
        let known = listing.documents.iter().filter_map(|document| {
            Some((number_of(document)?, LeaderDocument::decode(&document.value).ok()?))
        });
        *self.known.lock() = known.collect();
        Ok(())
    }

    /// Returns the document of the candidate with this number on a disk, if it is known.
    pub(super) fn on_disk(&self, number: usize) -> Option<LeaderDocument> {
        self.known.lock().get(&number).cloned()
    }

    /// Returns the number of a leader's successor, on a disk and unless any host may succeed.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the candidate does not exist, and the errors of
    /// [`Registry::list`].
    pub(super) async fn successor(&self, to: &Release) -> Result<Option<usize>> {
        let Release::To(name) = to else { return Ok(None) };
        if *name == self.me.node {
            return Ok(self.number);
        }
        let listing = self.registry.list(PREFIX).await?;
        let mut names = Vec::new();
        for document in &listing.documents {
            let Ok(LeaderDocument { node, .. }) = LeaderDocument::decode(&document.value) else { continue };
            if node == *name {
                return Ok(number_of(document).filter(|_| self.number.is_some()));
            }
            names.push(node);
        }
        let names = names.join(", ");
        Err(Error::Invalid(format!("{name} is not a candidate; the candidates are {names}").into()))
    }
}

/// Returns the number of a candidate on a disk, from the name of its document.
fn number_of(document: &Document) -> Option<usize> {
    document.key.as_str().strip_prefix(PREFIX)?.parse().ok()
}
