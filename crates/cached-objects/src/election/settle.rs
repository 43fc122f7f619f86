//! The journal of a host in an election. A leader logs its changes there, although no
//! acknowledgement depends on that: if its process dies, and this host leads again before any other
//! has, nothing is lost. So whenever this host takes the lease, and before it claims the store,
//! whatever the journal still has is *settled*: stored, or set aside.
//!
//! The epoch of a leadership may be several above the one in force. Until it is claimed, a host whose
//! lease has ended could still claim an epoch in between and change something: nothing would show
//! that the journal's changes are the older ones. So the journal's changes are applied as the rest of
//! the leadership, or of the process with `writer = "cache"`, that logged them: by a cache of their
//! own, under the epoch right after theirs. The store grants that epoch only if no other host has
//! claimed the namespace since, and refuses what is applied as soon as one does. Otherwise the
//! journal is set aside (`cached_core`, `object/recovery`). Only then is the store claimed with the
//! epoch of this leadership.
//!
//! A standby does not touch the journal.

use super::STEP_TIMEOUT;
use blocker::{Blocker, Error};
use cached_config::{JournalTable, ObjectsTable, StartError, Waiting, close_stored_journal, flush_all};
use cached_core::insight::Sampling;
use cached_core::object::{ObjectCache, RecoveryError, Writer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use tokio::sync::{Mutex, watch};
use tokio::task::{JoinHandle, JoinSet};

/// The delay between two looks at a cache that is about to end.
const LOOK_DELAY: Duration = Duration::from_millis(1);

/// The journal of this host, while no leader uses it.
#[derive(Clone)]
pub(super) struct OwnJournal {
    /// The tables of a cache that is the writer itself.
    objects: ObjectsTable,
    /// The maximum time until nothing uses the cache that has settled the journal.
    close_timeout: Duration,
    is_usable: Arc<AtomicBool>,
    /// The attempt to settle the journal that is in progress, or whose outcome no caller has
    /// received.
    attempt: Arc<Mutex<Option<Attempt>>>,
}

/// A thread that settles the journal, and returns whether the journal is empty now.
type Attempt = JoinHandle<Result<bool, Unsettled>>;

/// The reason why a journal is not settled, as a part of a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unsettled {
    /// Another attempt soon may succeed.
    ForNow(String),
    /// Only time or an operator can help: other hosts should lead.
    Stuck(String),
}

impl OwnJournal {
    /// Returns the journal, if these tables have one.
    pub(super) fn of(objects: &ObjectsTable) -> Option<OwnJournal> {
        objects.journal.as_ref()?;
        let objects =
            ObjectsTable { writer: Writer::Cache, election: None, leadership: None, ..objects.clone() };
        let (is_usable, attempt) = (Arc::default(), Arc::default());
        Some(OwnJournal { objects, close_timeout: STEP_TIMEOUT, is_usable, attempt })
    }

    /// Returns whether a leader can log its changes: the journal was empty after the last
    /// [`settle`](Self::settle).
    pub(super) fn is_usable(&self) -> bool {
        self.is_usable.load(Ordering::Acquire)
    }

    /// Returns the directories of the journals that were set aside.
    pub(super) fn overtaken(&self) -> Vec<String> {
        let kept = self.objects.journal.as_ref().map_or_else(Vec::new, JournalTable::overtaken);
        kept.iter().map(|directory| directory.display().to_string()).collect()
    }

    /// Stores the changes that the journal has, as long as their epochs are in force; sets the journal
    /// aside if another host has claimed the store since. Afterwards the journal is empty, unless it
    /// cannot be set aside, because the maximum number of journals is set aside already, or the disk is
    /// full: then the journal stays as it is, and the next leadership of this host uses no journal. The
    /// attempt ends early once the sender of `candidacy` is dropped.
    ///
    /// The attempt may take longer than this call waits, if the disk is slow. Then it continues, and the
    /// next call waits for it. A second attempt would set the same journal aside once more, and each
    /// attempt occupies a thread while the disk hangs.
    ///
    /// # Cancel safety
    /// If the future is dropped, the attempt continues, as above.
    ///
    /// # Errors
    /// [`Unsettled`]; the journal keeps everything that is not stored.
    pub(super) async fn settle(
        &self,
        store: Arc<dyn Blocker>,
        candidacy: watch::Receiver<bool>,
    ) -> Result<(), Unsettled> {
        let limit = Duration::from_secs(self.objects.shutdown_flush_secs);
        let mut attempt = self.attempt.lock().await;
        // The outcome of an attempt that has ended since the last call is outdated.
        let running = attempt.take().filter(|running| !running.is_finished()).unwrap_or_else(|| {
            let own = self.clone();
            // The attempt has a thread of its own, because the disk may be slow, and this thread
            // renews the lease.
            tokio::task::spawn_blocking(move || own.settle_here(store, candidacy))
        });
        let Ok(settled) = tokio::time::timeout(limit, attempt.insert(running)).await else {
            let secs = limit.as_secs();
            return Err(Unsettled::Stuck(format!("it is not settled within {secs} s (shutdown_flush_secs)")));
        };
        *attempt = None;
        let is_empty = settled.unwrap_or_else(|error| Err(Unsettled::Stuck(error.to_string())))?;
        self.is_usable.store(is_empty, Ordering::Release);
        Ok(())
    }

    /// Returns whether the journal is empty now.
    fn settle_here(
        &self,
        store: Arc<dyn Blocker>,
        mut candidacy: watch::Receiver<bool>,
    ) -> Result<bool, Unsettled> {
        let limit = Duration::from_secs(self.objects.shutdown_flush_secs);
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Unsettled::ForNow(error.to_string()))?;
        let settled = runtime.block_on(async {
            tokio::select! {
                settled = self.settle_in(store, limit) => settled,
                () = async { while candidacy.changed().await.is_ok() {} } => {
                    Err(Unsettled::ForNow("this host no longer takes part".into()))
                }
            }
        });
        // An attempt to open the journal may hang.
        runtime.shutdown_background();
        settled
    }

    async fn settle_in(&self, store: Arc<dyn Blocker>, limit: Duration) -> Result<bool, Unsettled> {
        let stuck = |error: &dyn std::fmt::Display| Unsettled::Stuck(error.to_string());
        let began = Instant::now();
        let mut waiting = Waiting::new(|_| ());
        let opened = self.objects.open_journal(&mut waiting).await;
        let journal = opened.map_err(|error| match error {
            // For a short time after an upgrade, the old process holds the lock; or an earlier
            // candidacy of this process does.
            StartError::Locked(_) => Unsettled::ForNow("the lock of its directory is still held".into()),
            error => stuck(&error),
        })?;
        let Some(journal) = journal else { return Ok(false) };
        let records = journal.records();
        if records == 0 {
            return Ok(true);
        }
        let opened = self.objects.open_cache(store, Some(journal), Sampling::Off);
        let (cache, background) = opened.map_err(|error| stuck(&error))?;
        let mut tasks = JoinSet::new();
        tasks.spawn(background);
        let stored = store_changes(&cache, limit).await;
        let left = cache.downgrade();
        drop(cache);
        tasks.shutdown().await;
        // The leader's cache opens the journal again.
        if tokio::time::timeout(self.close_timeout, until(|| left.is_gone())).await.is_err() {
            return Err(Unsettled::ForNow("it is still in use".into()));
        }
        if stored == Ok(true) {
            let took_ms = began.elapsed().as_millis();
            tracing::info!(records, took_ms, "the journal of an earlier leadership or process is settled");
        }
        stored
    }
}

/// Returns what follows from a recovery that cannot begin: false if this host leads without its
/// journal.
fn unrecovered(error: &RecoveryError) -> Result<bool, Unsettled> {
    match error {
        RecoveryError::Overtaken { .. } | RecoveryError::NotSetAside(_) => {
            tracing::error!(cause = %error, "this host leads without its journal, which stays as it is");
            Ok(false)
        }
        RecoveryError::Store(_) | RecoveryError::Disk(_) => Err(Unsettled::ForNow(error.to_string())),
        RecoveryError::Elected | RecoveryError::Journal(_) => Err(Unsettled::Stuck(error.to_string())),
    }
}

/// Waits until a cache has reached a state, which it reaches soon and does not announce.
async fn until(is_reached: impl Fn() -> bool) {
    while !is_reached() {
        tokio::time::sleep(LOOK_DELAY).await;
    }
}

/// Applies and stores the changes, and empties the journal. Returns false if the journal cannot be
/// set aside.
async fn store_changes(cache: &ObjectCache, limit: Duration) -> Result<bool, Unsettled> {
    if let Err(error) = cache.begin_recovery().await {
        return unrecovered(&error);
    }
    let stored = async {
        // `store_all` would leave changes that the store does not accept to the next process.
        flush_all(cache, limit).await?;
        // The recovery ends a little after its last object is stored; only then is the journal
        // emptied.
        until(|| cache.is_stored()).await;
        close_stored_journal(cache).await;
        Ok::<_, Error>(())
    };
    match tokio::time::timeout(limit, stored).await.unwrap_or(Err(Error::DeadlinePassed)) {
        Ok(()) => Ok(true),
        // Another host has claimed the store in the meantime: the next attempt sets the journal aside.
        Err(error @ (Error::Fenced { .. } | Error::WritesLost(_))) => {
            Err(Unsettled::ForNow(error.to_string()))
        }
        Err(error) => Err(Unsettled::Stuck(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocker::executor::block_on;
    use blocker::{
        BlockerExt, ClaimRequest, Epoch, Memory, Namespace, ObjectId, Scope, WriteMode, WriteRequest,
        WriterId,
    };
    use cached_config::Size;
    use cached_core::object::Leadership;
    use std::path::Path;

    const HOST: WriterId = WriterId(1);
    const OTHER: WriterId = WriterId(2);

    fn tables(directory: &Path) -> ObjectsTable {
        let journal = JournalTable {
            directory: directory.to_path_buf(),
            create: true,
            segment_bytes: Size(1 << 20),
            limit_bytes: Size(12 << 20),
            direct: false,
            ..JournalTable::default()
        };
        ObjectsTable {
            memory_bytes_max: Size(4 << 20),
            dirty_bytes_max: Some(Size(1 << 20)),
            object_bytes_max: Size(256 << 10),
            // Only a recovery stores anything, however slow the journal's disk is.
            dirty_age_ms_max: 86_400_000,
            shutdown_flush_secs: 3600,
            write: WriteMode::Back,
            writer: Writer::Elected,
            journal: Some(journal),
            ..ObjectsTable::default()
        }
    }

    /// Returns the journal of a host whose disk may be slow.
    fn own(tables: &ObjectsTable) -> OwnJournal {
        let own = OwnJournal::of(tables).expect("a journal");
        OwnJournal { close_timeout: Duration::from_secs(60), ..own }
    }

    fn object() -> ObjectId {
        "ns/a".parse().expect("an object")
    }

    /// Writes an object by a process that is then killed: with `writer = "cache"`, or as the leader of
    /// an epoch.
    fn written(tables: &ObjectsTable, store: &Arc<Memory>, epoch: Option<u64>, content: &[u8]) {
        let leadership = epoch.map(|epoch| Leadership { epoch: Epoch(epoch), writer: HOST, records: None });
        let writer = if epoch.is_some() { Writer::Elected } else { Writer::Cache };
        let tables = ObjectsTable { writer, leadership, ..tables.clone() };
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let journal = tables.open_journal(&mut Waiting::new(|_| ())).await.expect("a journal");
            let (cache, background) =
                tables.open_cache(Arc::clone(store) as _, journal, Sampling::Off).expect("a cache");
            let running = tokio::spawn(background);
            cache.begin_recovery().await.expect("there is nothing to recover");
            cache.write(WriteRequest::new(object(), 0, content.to_vec())).await.expect("it is written");
            running.abort();
        });
    }

    fn settle(journal: &OwnJournal, store: &Arc<Memory>) -> Result<(), Unsettled> {
        let (_candidacy, present) = watch::channel(false);
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(journal.settle(Arc::clone(store) as _, present))
    }

    fn take_over(store: &Memory, epoch: u64) {
        let scope = Scope::Namespace(Namespace::copy_from(b"ns").expect("a namespace"));
        block_on(store.claim(ClaimRequest::new(scope, Epoch(epoch), OTHER))).expect("it is claimed");
    }

    fn content(store: &Memory) -> Option<Vec<u8>> {
        match block_on(store.get(&object())) {
            Ok(content) => Some(content.to_vec()),
            Err(Error::Missing) => None,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_journal_is_stored_while_its_epoch_is_in_force_and_set_aside_afterwards() {
        for epoch in [None, Some(5)] {
            let dir = tempfile::tempdir().expect("a directory");
            let (tables, store) = (tables(&dir.path().join("journal")), Arc::new(Memory::default()));
            let journal = own(&tables);
            assert_eq!(settle(&journal, &store), Ok(()), "a new one is empty");
            assert!(journal.is_usable());

            written(&tables, &store, epoch, b"first");
            assert_eq!(content(&store), None);
            assert_eq!(settle(&journal, &store), Ok(()));
            assert_eq!(content(&store), Some(b"first".to_vec()));
            assert!(journal.is_usable() && journal.overtaken().is_empty());

            // The epoch of the next leadership is higher than the one that the recovery has
            // claimed.
            written(&tables, &store, epoch.map(|epoch| epoch + 5), b"second");
            take_over(&store, 20);
            assert_eq!(settle(&journal, &store), Ok(()));
            assert_eq!(content(&store), Some(b"first".to_vec()));
            let kept = [dir.path().join("journal/overtaken-1").display().to_string()];
            assert_eq!(journal.overtaken(), kept);
            assert!(journal.is_usable());
            assert_eq!(settle(&journal, &store), Ok(()));
            assert_eq!((journal.overtaken(), content(&store)), (kept.to_vec(), Some(b"first".to_vec())));
        }
    }

    #[test]
    fn a_host_with_three_journals_set_aside_leads_without_one_and_keeps_the_fourth() {
        let dir = tempfile::tempdir().expect("a directory");
        let (tables, store) = (tables(dir.path()), Arc::new(Memory::default()));
        let journal = own(&tables);
        for epoch in [10, 20, 30, 40] {
            written(&tables, &store, Some(epoch), b"cached");
            take_over(&store, epoch + 1);
            assert_eq!(settle(&journal, &store), Ok(()));
            assert_eq!(journal.is_usable(), epoch < 40);
        }
        assert_eq!(journal.overtaken().len(), 3);
        assert_eq!(settle(&journal, &store), Ok(()));
        assert!(!journal.is_usable());
        std::fs::remove_dir_all(dir.path().join("overtaken-2")).expect("it is removed");
        assert_eq!(settle(&journal, &store), Ok(()));
        assert!(journal.is_usable());
        assert_eq!((journal.overtaken().len(), content(&store)), (3, None));
    }

    #[test]
    fn a_journal_that_is_still_open_is_settled_a_little_later() {
        let dir = tempfile::tempdir().expect("a directory");
        let (tables, store) = (tables(dir.path()), Arc::new(Memory::default()));
        let journal = own(&tables);
        let config = tables.journal.as_ref().expect("a table").config();
        let open = cached_core::object::OpenJournal::open(&config).expect("it is opened");
        let locked = settle(&journal, &store);
        assert!(
            matches!(&locked, Err(Unsettled::ForNow(why)) if why.contains("lock of its directory")),
            "{locked:?}"
        );
        drop(open);
        assert_eq!(settle(&journal, &store), Ok(()));
    }

    #[test]
    fn a_journal_that_cannot_be_opened_leaves_the_lease_to_others() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("journal"), b"none").expect("it is written");
        let journal = own(&tables(dir.path()));
        let stuck = settle(&journal, &Arc::new(Memory::default()));
        assert!(matches!(&stuck, Err(Unsettled::Stuck(why)) if why.contains("verify")), "{stuck:?}");
    }

    #[test]
    fn there_is_no_second_attempt_before_the_first_has_ended() {
        let dir = tempfile::tempdir().expect("a directory");
        let (tables, store) = (tables(dir.path()), Arc::new(Memory::default()));
        let journal = own(&tables);
        written(&tables, &store, Some(5), b"first");
        let without_patience = ObjectsTable { shutdown_flush_secs: 0, ..journal.objects.clone() };
        let impatient = OwnJournal { objects: without_patience, ..journal.clone() };
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (_candidacy, present) = watch::channel(false);
            let settle = async |own: &OwnJournal| {
                own.settle(Arc::clone(&store) as Arc<dyn Blocker>, present.clone()).await
            };
            // The disk is slow.
            let (go_on, hangs) = std::sync::mpsc::channel();
            let running = tokio::task::spawn_blocking(move || hangs.recv().expect("an outcome"));
            *journal.attempt.lock().await = Some(running);
            for _ in 0..3 {
                let stuck = settle(&impatient).await;
                assert!(
                    matches!(&stuck, Err(Unsettled::Stuck(why)) if why.contains("within 0 s")),
                    "{stuck:?}"
                );
                // This caller gives up at once.
                let given_up = tokio::time::timeout(Duration::ZERO, settle(&journal)).await;
                assert!(given_up.is_err(), "{given_up:?}");
            }
            let (outcome, ()) = tokio::join!(settle(&journal), async {
                go_on.send(Ok(false)).expect("it is waited for");
            });
            assert_eq!((outcome, journal.is_usable()), (Ok(()), false), "its outcome counts");
            assert_eq!(content(&store), None, "the journal was not touched meanwhile");
            assert_eq!(settle(&journal).await, Ok(()));
        });
        assert!(journal.is_usable());
        assert_eq!(content(&store), Some(b"first".to_vec()));
    }

    #[test]
    fn a_host_whose_journal_cannot_be_set_aside_leads_without_and_one_whose_disk_fails_does_not() {
        assert_eq!(unrecovered(&RecoveryError::NotSetAside("no space".into())), Ok(false));
        let failed = unrecovered(&RecoveryError::Disk("no answer".into()));
        assert!(matches!(failed, Err(Unsettled::ForNow(_))), "{failed:?}");
    }
}
