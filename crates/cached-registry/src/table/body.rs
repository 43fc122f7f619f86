//! The registry's operations on a table in a cell.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use blocker::{Clock, Timestamp};
use parking_lot::Mutex;

use super::Cell;
use super::content::{Observed, Table};
use crate::document::{Change, Changes, Document, Key, Lease, LeaseId, Listing, Revision};
use crate::error::{Error, Result};

/// The maximum number of attempts at a change while others change the table.
const TRIES: u32 = 12;

/// A registry in a cell. Its leases end when a host that reads the table has seen no renewal for
/// their duration; so a lease whose holder is gone lasts until then, and longer if nobody reads.
pub(crate) struct TableBody<C> {
    cell: C,
    clock: Arc<dyn Clock>,
    /// The time between two reads by a watch.
    poll: Duration,
    observed: Mutex<Observed>,
    /// Held by the change under way, so that those of one process do not compete.
    turn: tokio::sync::Mutex<()>,
}

impl<C: fmt::Debug> fmt::Debug for TableBody<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableBody").field("cell", &self.cell).finish_non_exhaustive()
    }
}

impl<C: Cell> TableBody<C> {
    pub(crate) fn new(cell: C, clock: Arc<dyn Clock>, poll: Duration) -> Self {
        Self { cell, clock, poll, observed: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }

    pub(crate) async fn get(&self, key: &Key) -> Result<Option<Document>> {
        Ok(self.read().await?.1.get(key))
    }

    pub(crate) async fn list(&self, prefix: &str) -> Result<Listing> {
        Ok(self.read().await?.1.list(prefix))
    }

    pub(crate) async fn change(&self, changes: &[Change]) -> Result<Revision> {
        self.update(|table| table.change(changes)).await.map(|(revision, _)| revision)
    }

    pub(crate) async fn grant(&self, duration: Duration) -> Result<Lease> {
        let (id, sent) = self.update(|table| Ok(table.grant(duration))).await?;
        Ok(Lease::new(id, duration, sent))
    }

    pub(crate) async fn renew(&self, lease: &Lease) -> Result<Lease> {
        let ((), sent) = self.update(|table| table.renew(lease.id)).await?;
        Ok(Lease::new(lease.id, lease.duration, sent))
    }

    pub(crate) async fn revoke(&self, lease: LeaseId) -> Result<()> {
        self.update(|table| Ok(table.end(lease))).await.map(drop)
    }

    /// Waits for changes after `after`.
    pub(crate) async fn changes(&self, prefix: &str, after: Revision) -> Result<Changes> {
        loop {
            let (version, table, ended) = self.read().await?;
            if let Some(changes) = table.changes(prefix, after)? {
                return Ok(changes);
            }
            if !ended.is_empty() {
                self.end(version, table, &ended).await?;
                continue;
            }
            self.clock.sleep(self.poll).await;
        }
    }

    /// Reads the table, and the leases in it that have ended.
    async fn read(&self) -> Result<(Option<u64>, Table, Vec<LeaseId>)> {
        let content = self.cell.read().await?;
        let table = Table::decode(&content.bytes)?;
        let ended = self.observed.lock().observe(&table, self.clock.now());
        Ok((content.version, table, ended))
    }

    /// Ends leases in the table, unless it has changed meanwhile.
    async fn end(&self, version: Option<u64>, mut table: Table, ended: &[LeaseId]) -> Result<()> {
        for lease in ended {
            table.end(*lease);
        }
        // If another host was faster, the next read shows it.
        self.cell.swap(version, table.encode()?).await.map(drop)
    }

    /// Makes a change of the newest table. Returns its outcome, and the time before the successful
    /// attempt was sent.
    async fn update<T>(&self, change: impl Fn(&mut Table) -> Result<T>) -> Result<(T, Timestamp)> {
        let _turn = self.turn.lock().await;
        for attempt in 0..TRIES {
            let (version, mut table, ended) = self.read().await?;
            if !ended.is_empty() {
                self.end(version, table, &ended).await?;
                continue;
            }
            let before = table.clone();
            let outcome = change(&mut table)?;
            let sent = self.clock.now();
            if table == before || self.cell.swap(version, table.encode()?).await? {
                return Ok((outcome, sent));
            }
            let most = 1_u64 << attempt.min(8);
            self.clock.sleep(Duration::from_millis(1 + random() % most)).await;
        }
        Err(Error::Unavailable("too many hosts change it at the same time".into()))
    }
}

/// Returns a random number, for the delay between two attempts.
pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without random bytes all hosts wait equally long, which is only slower.
    let _ = getrandom::fill(&mut bytes);
    u64::from_le_bytes(bytes)
}
