//! The registry's operations on a table in a cell.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use blocker::{Clock, Timestamp};
use parking_lot::Mutex;

use super::content::{Observed, Table};
use super::{Cell, Content};
use crate::document::{Change, Changes, Document, Key, Lease, LeaseId, Listing, Revision};
use crate::error::{Error, Result};

/// The maximum number of attempts at a change while others change the table.
const TRIES: u32 = 12;

/// A registry in a cell. A lease ends when a host that reads the table has noticed no renewal for
/// the lease's duration. Therefore a lease whose holder is gone lasts for that time, and longer if
/// no host reads.
pub(crate) struct TableBody<C> {
    cell: C,
    clock: Arc<dyn Clock>,
    /// The time between two reads by a watch.
    poll: Duration,
    observed: Mutex<Observed>,
    /// The table that was read or written last. A watch reads the same one many times, and a change begins
    /// with it.
    known: Mutex<Option<(Content, Arc<Table>)>>,
    /// Locked during an attempt at a change, so that the changes of one process do not compete.
    turn: tokio::sync::Mutex<()>,
}

impl<C: fmt::Debug> fmt::Debug for TableBody<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableBody").field("cell", &self.cell).finish_non_exhaustive()
    }
}

impl<C: Cell> TableBody<C> {
    pub(crate) fn new(cell: C, clock: Arc<dyn Clock>, poll: Duration) -> Self {
        let (observed, known, turn) = Default::default();
        Self { cell, clock, poll, observed, known, turn }
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

    pub(crate) async fn finish(&self) {
        self.cell.finish().await;
    }

    /// Waits for changes after `after`.
    pub(crate) async fn changes(&self, prefix: &str, after: Revision) -> Result<Changes> {
        loop {
            let (version, table, ended) = self.read().await?;
            if let Some(changes) = table.changes(prefix, after)? {
                return Ok(changes);
            }
            if !ended.is_empty() {
                self.end(version, Table::clone(&table), &ended).await?;
                continue;
            }
            self.clock.sleep(self.poll).await;
        }
    }

    /// Reads the table, and determines the leases in it that have ended.
    async fn read(&self) -> Result<(Option<u64>, Arc<Table>, Vec<LeaseId>)> {
        let content = self.cell.read().await?;
        let version = content.version;
        let table = self.decode(content)?;
        let ended = self.observe(&table);
        Ok((version, table, ended))
    }

    fn decode(&self, content: Content) -> Result<Arc<Table>> {
        let mut known = self.known.lock();
        let table = match &*known {
            Some((before, table)) if before.bytes == content.bytes => Arc::clone(table),
            _ => Arc::new(Table::decode(&content.bytes)?),
        };
        *known = Some((content, Arc::clone(&table)));
        Ok(table)
    }

    fn observe(&self, table: &Table) -> Vec<LeaseId> {
        self.observed.lock().observe(table, self.clock.now())
    }

    /// Ends leases in the table, unless it has changed meanwhile.
    async fn end(&self, version: Option<u64>, mut table: Table, ended: &[LeaseId]) -> Result<()> {
        for lease in ended {
            table.end(*lease);
        }
        // If another host was faster, the next read shows the other host's change.
        self.cell.swap(version, table.encode()?).await.map(drop)
    }

    /// Makes a change of the newest table. Returns its outcome, and the time before the successful
    /// attempt was sent.
    ///
    /// The first attempt assumes that nobody has changed the table since this process has read or written it,
    /// so that a leader that renews its lease needs no read, and a change of what was just read no second
    /// one. If another process has changed it, the table is not replaced.
    async fn update<T>(&self, change: impl Fn(&mut Table) -> Result<T>) -> Result<(T, Timestamp)> {
        for attempt in 0..TRIES {
            // Not kept between attempts: a change that waits because other hosts were faster must not delay
            // another one, for which the requests of clients may be waiting.
            let turn = self.turn.lock().await;
            let assumed = self.known.lock().clone().filter(|_| attempt == 0);
            let is_assumed = assumed.is_some();
            let (version, before, ended) = match assumed {
                Some((content, table)) => {
                    let ended = self.observe(&table);
                    (content.version, table, ended)
                }
                None => self.read().await?,
            };
            let mut table = Table::clone(&before);
            if !ended.is_empty() {
                self.end(version, table, &ended).await?;
                continue;
            }
            let changed = change(&mut table).and_then(|outcome| Ok((outcome, table.encode()?)));
            // Only a table that has just been read shows that a change is impossible or
            // unnecessary.
            if is_assumed && (changed.is_err() || table == *before) {
                continue;
            }
            let (outcome, bytes) = changed?;
            let sent = self.clock.now();
            if table == *before {
                return Ok((outcome, sent));
            }
            if let Some(version) = self.cell.swap(version, bytes.clone()).await? {
                let content = Content { version: Some(version), bytes };
                *self.known.lock() = Some((content, Arc::new(table)));
                return Ok((outcome, sent));
            }
            drop(turn);
            // An assumed table may have been out of date for long: that it cannot be replaced does not mean
            // that another host is changing it now.
            if !is_assumed {
                let most = 1_u64 << attempt.min(8);
                self.clock.sleep(Duration::from_millis(1 + random() % most)).await;
            }
        }
        Err(Error::Unavailable("too many hosts change it at the same time".into()))
    }
}

/// Returns a random number, for the delay between two attempts.
pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without random bytes all hosts wait for the same time, which is only slower.
    let _ = getrandom::fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Expect;
    use blocker::{ManualClock, SystemClock};
    use bytes::Bytes;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Poll;

    /// A cell in memory, which counts its operations.
    #[derive(Clone, Default)]
    struct Counted {
        content: Arc<Mutex<Content>>,
        reads: Arc<AtomicU32>,
        swaps: Arc<AtomicU32>,
        /// The number of further swaps before which another host replaces the table.
        lost: Arc<AtomicU32>,
    }

    impl Cell for Counted {
        async fn read(&self) -> Result<Content> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            Ok(self.content.lock().clone())
        }

        async fn swap(&self, expected: Option<u64>, bytes: Bytes) -> Result<Option<u64>> {
            self.swaps.fetch_add(1, Ordering::Relaxed);
            let mut content = self.content.lock();
            if self.lost.load(Ordering::Relaxed) > 0 {
                self.lost.fetch_sub(1, Ordering::Relaxed);
                content.version = Some(content.version.unwrap_or(0) + 1);
            }
            if content.version != expected {
                return Ok(None);
            }
            let version = Some(expected.unwrap_or(0) + 1);
            *content = Content { version, bytes };
            Ok(version)
        }
    }

    impl Counted {
        fn body(&self) -> TableBody<Self> {
            TableBody::new(self.clone(), Arc::new(SystemClock), Duration::from_secs(1))
        }

        /// Returns the numbers of reads and swaps since the last call.
        fn taken(&self) -> (u32, u32) {
            (self.reads.swap(0, Ordering::Relaxed), self.swaps.swap(0, Ordering::Relaxed))
        }
    }

    fn run<T>(test: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
    }

    async fn put(body: &TableBody<Counted>, key: &str, expect: Expect) -> Result<Revision> {
        body.change(&[Change::put(Key::new(key).unwrap(), expect, "x")]).await
    }

    #[test]
    fn a_process_that_knows_the_newest_table_does_not_read_it_before_each_change() {
        run(async {
            let cell = Counted::default();
            let body = cell.body();
            let mut at = put(&body, "leader", Expect::Absent).await.unwrap();
            assert_eq!(cell.taken(), (1, 1));
            for _ in 0..3 {
                at = put(&body, "leader", Expect::At(at)).await.unwrap();
                assert_eq!(cell.taken(), (0, 1));
            }
            // The second revocation changes nothing, which only a table that has just been read can
            // show.
            let lease = body.grant(Duration::from_secs(9)).await.unwrap().id;
            body.revoke(lease).await.unwrap();
            assert_eq!(cell.taken(), (0, 2));
            body.revoke(lease).await.unwrap();
            assert_eq!(cell.taken(), (1, 0));
            // It need not have written the table itself.
            put(&cell.body(), "other", Expect::Absent).await.unwrap();
            body.list("").await.unwrap();
            cell.taken();
            put(&body, "leader", Expect::At(at)).await.unwrap();
            assert_eq!(cell.taken(), (0, 1));
        });
    }

    #[test]
    fn a_change_does_not_wait_for_another_one_that_waits_for_its_next_attempt() {
        run(async {
            let (cell, clock) = (Counted::default(), ManualClock::new());
            put(&cell.body(), "k", Expect::Absent).await.unwrap();
            let body = TableBody::new(cell.clone(), Arc::new(clock.clone()), Duration::from_secs(1));
            cell.lost.store(1, Ordering::Relaxed);
            let mut slow = pin!(put(&body, "slow", Expect::Absent));
            assert!(poll_fn(|cx| Poll::Ready(slow.as_mut().poll(cx))).await.is_pending());
            let mut fast = pin!(put(&body, "fast", Expect::Absent));
            let Poll::Ready(at) = poll_fn(|cx| Poll::Ready(fast.as_mut().poll(cx))).await else {
                panic!("it waits for the other one");
            };
            clock.advance(Duration::from_secs(1));
            assert!(slow.await.unwrap() > at.unwrap());
            assert_eq!(body.list("").await.unwrap().documents.len(), 3);
        });
    }

    #[test]
    fn what_others_have_changed_counts_whatever_this_process_has_written_before() {
        run(async {
            let cell = Counted::default();
            let (a, b) = (cell.body(), cell.body());
            let at = put(&a, "k", Expect::Absent).await.unwrap();
            // `b` replaces the document: the change by `a` fails with the current revision.
            let newer = put(&b, "k", Expect::At(at)).await.unwrap();
            let key = Key::new("k").unwrap();
            let conflict = Err(Error::Conflict { key: key.clone(), found: Some(newer) });
            assert_eq!(put(&a, "k", Expect::At(at)).await, conflict);
            // `b` removes the document, so that `a` can create it again.
            let at = put(&a, "k", Expect::At(newer)).await.unwrap();
            b.change(&[Change::remove(key, at)]).await.unwrap();
            put(&a, "k", Expect::Absent).await.unwrap();
            // Both have made their changes.
            put(&b, "of-b", Expect::Absent).await.unwrap();
            put(&a, "of-a", Expect::Absent).await.unwrap();
            assert_eq!(b.list("").await.unwrap().documents.len(), 3);
        });
    }
}
