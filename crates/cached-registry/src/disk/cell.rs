//! The table's cell on a disk: each version is the agreement of one epoch.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Mutex;

use super::device::{Disk, NODES_MAX, Noted, Slot};
use crate::agreement::{Agreement, Step};
use crate::error::{Error, Result};
use crate::table::{Cell, Content, random};

/// The maximum number of attempts to read a version that is being replaced.
const READS_MAX: u32 = 8;

/// The table on a disk.
#[derive(Clone, Debug)]
pub(crate) struct DiskCell(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    disk: Arc<Disk>,
    me: usize,
    /// Locked while this node writes.
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    agreement: Agreement,
    /// The version that this node has noted in its block.
    noted: Noted,
}

impl DiskCell {
    /// Returns the cell on `disk`, which this process uses as node `me`.
    ///
    /// # Errors
    /// Fails if the disk cannot be read.
    pub(crate) fn new(disk: Arc<Disk>, me: usize) -> Result<Self> {
        let records = disk.read_agreement()?;
        let Some((block, noted)) = records.get(me).copied() else {
            let text = format!("node {me} of a disk for {} nodes, which are counted from 0", disk.nodes());
            return Err(Error::Invalid(text.into()));
        };
        let state = State { agreement: Agreement::new(me, block), noted };
        Ok(Self(Arc::new(Shared { disk, me, state: Arc::new(Mutex::new(state)) })))
    }

    /// Runs `work` on a thread that may block.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let shared = Arc::clone(&self.0);
        let ended = tokio::task::spawn_blocking(move || work(&shared)).await;
        ended.unwrap_or_else(|error| {
            Err(Error::OutcomeUnknown(format!("the disk's thread has ended: {error}").into()))
        })
    }
}

impl Cell for DiskCell {
    async fn read(&self) -> Result<Content> {
        self.run(Shared::read).await
    }

    async fn swap(&self, expected: Option<u64>, bytes: Bytes) -> Result<Option<u64>> {
        let expected = expected.unwrap_or(0);
        // The thread writes on when this future is dropped.
        let mut state = Arc::clone(&self.0.state).lock_owned().await;
        let is_replaced = self.run(move |shared| shared.swap(&mut state, expected, &bytes)).await?;
        Ok(is_replaced.then_some(expected + 1))
    }

    async fn finish(&self) {
        drop(self.0.state.lock().await);
    }
}

impl Shared {
    fn read(&self) -> Result<Content> {
        let newest = self.newest_slot()?;
        Ok(newest.map_or_else(Content::default, |(version, slot)| Content {
            version: Some(version),
            bytes: slot.table.into(),
        }))
    }

    /// Returns the newest version; `None` if there is no version yet.
    fn newest_slot(&self) -> Result<Option<(u64, Slot)>> {
        let mut newest = Noted::default();
        for _ in 0..READS_MAX {
            newest = self.newest()?;
            if newest == Noted::default() {
                return Ok(None);
            }
            if let Some(slot) = self.disk.read_slot(newest.node, newest.version)? {
                return Ok(Some((newest.version, slot)));
            }
        }
        // A slot is overwritten only after a later version was noted.
        match self.newest()? == newest {
            true => Err(self.disk.lost(newest)),
            false => Err(Error::Unavailable("the table changes faster than it can be read".into())),
        }
    }

    fn newest(&self) -> Result<Noted> {
        let records = self.disk.read_agreement()?;
        Ok(records.into_iter().map(|(_, noted)| noted).max().unwrap_or_default())
    }

    fn swap(&self, state: &mut State, expected: u64, table: &[u8]) -> Result<bool> {
        let (newest, applied) = match self.newest_slot()? {
            Some((version, slot)) => (version, slot.applied),
            None => (0, [0; NODES_MAX]),
        };
        if newest != expected {
            return Ok(false);
        }
        let version = expected.checked_add(1).ok_or_else(|| self.disk.lost(state.noted))?;
        let is_ours = self.propose(state, version, table, applied)?;
        self.decide(state, version, is_ours).map_err(|error| match error {
            // Another node may adopt a table whose agreement has begun.
            Error::Unavailable(why) if state.agreement.block().counter == version => {
                Error::OutcomeUnknown(why)
            }
            other => other,
        })
    }

    /// Writes the proposal for this version. `applied` is that of the version before. Returns
    /// whether the proposal has this table: if this node has already proposed another table, that
    /// one may have been decided.
    fn propose(
        &self,
        state: &State,
        version: u64,
        table: &[u8],
        mut applied: [u64; NODES_MAX],
    ) -> Result<bool> {
        if state.agreement.block().counter == version {
            let earlier = self.disk.read_slot(self.me as u64, version)?;
            return Ok(earlier.is_some_and(|earlier| earlier.table == table));
        }
        applied[self.me] = version;
        self.disk.write_slot(self.me, version, &Slot { table: table.to_vec(), applied })?;
        Ok(true)
    }

    /// Agrees on this version. Returns whether this node's proposal has become the version, if that
    /// `is_ours`.
    fn decide(&self, state: &mut State, version: u64, is_ours: bool) -> Result<bool> {
        let Some(node) = self.agree(state, version)? else {
            // Other nodes have decided this version and gone on. The newest proposal contains their
            // decision, because each proposal continues the list of the version before.
            let newest = self.newest_slot()?;
            return Ok(is_ours && newest.is_some_and(|(_, slot)| slot.applied[self.me] == version));
        };
        let noted = Noted { version, node };
        self.disk.write_agreement(self.me, state.agreement.block(), noted)?;
        state.noted = noted;
        Ok(is_ours && node == self.me as u64)
    }

    /// Returns the node whose table becomes this version; `None` if a later version exists.
    fn agree(&self, state: &mut State, version: u64) -> Result<Option<u64>> {
        let State { agreement, noted } = state;
        let mut step = agreement.enter(version, self.me as u64);
        loop {
            step = match step {
                Step::Write(block) => {
                    if agreement.restarts() > 0 {
                        // Another node competes, so the delays are random: one of the two should be
                        // faster.
                        let most = 1 << agreement.restarts().min(8);
                        std::thread::sleep(Duration::from_micros(random() % (most * 500)));
                    }
                    match self.disk.write_agreement(self.me, block, *noted) {
                        Ok(()) => agreement.written(),
                        Err(error) => {
                            agreement.failed();
                            return Err(error);
                        }
                    }
                }
                Step::Read => {
                    let read = self.disk.read_agreement().inspect_err(|_| agreement.failed())?;
                    let blocks: Vec<_> = read.into_iter().map(|(block, _)| block).collect();
                    agreement.read(&blocks)?
                }
                Step::Decided(node) => return Ok(Some(node)),
                Step::Suspended { .. } => return Ok(None),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agreement::Block;

    fn cells() -> (tempfile::TempDir, Vec<DiskCell>) {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(Disk::open(&dir.path().join("disk"), 2, true).unwrap());
        let cells = (0..2).map(|node| DiskCell::new(Arc::clone(&disk), node).unwrap());
        (dir, cells.collect())
    }

    fn swap(cell: &Shared, expected: u64, table: &[u8]) -> Result<bool> {
        cell.swap(&mut cell.state.blocking_lock(), expected, table)
    }

    fn read(cell: &DiskCell) -> (Option<u64>, Bytes) {
        let Content { version, bytes } = cell.0.read().unwrap();
        (version, bytes)
    }

    fn proposal(table: &[u8], node: usize, version: u64) -> Slot {
        let mut applied = [0; NODES_MAX];
        applied[node] = version;
        Slot { table: table.to_vec(), applied }
    }

    /// Lets the cell's node enter the agreement on `version` until it has written a ballot, or also
    /// a vote.
    fn begin(cell: &DiskCell, version: u64, votes: bool) {
        let Shared { disk, me, state } = &*cell.0;
        let mut state = state.blocking_lock();
        let State { agreement, noted } = &mut *state;
        let mut step = agreement.enter(version, *me as u64);
        loop {
            step = match step {
                Step::Read => {
                    let blocks: Vec<_> =
                        disk.read_agreement().unwrap().into_iter().map(|(block, _)| block).collect();
                    agreement.read(&blocks).unwrap()
                }
                Step::Write(block) => {
                    disk.write_agreement(*me, block, *noted).unwrap();
                    if !votes || block.voted > 0 {
                        return;
                    }
                    agreement.written()
                }
                end => panic!("{end:?}"),
            };
        }
    }

    #[test]
    fn a_node_finds_out_whether_others_have_decided_for_its_table() {
        for votes in [false, true] {
            let (_dir, cells) = cells();
            let (a, b) = (&cells[0].0, &cells[1].0);
            assert!(swap(a, 0, b"one").unwrap());
            let applied = a.newest_slot().unwrap().unwrap().1.applied;
            assert!(a.propose(&a.state.blocking_lock(), 2, b"two", applied).unwrap());
            begin(&cells[0], 2, votes);
            // The other node decides this version for the table that has a vote, and goes on, until the
            // slot of that version is overwritten.
            let mut decided = swap(b, 1, b"other").unwrap();
            assert_eq!(decided, !votes);
            for version in 2..6 {
                decided = swap(b, version, b"later").unwrap();
                assert!(decided);
            }
            let outcome = a.decide(&mut a.state.blocking_lock(), 2, true);
            assert_eq!(outcome, Ok(votes));
            assert!(swap(a, 6, b"next").unwrap());
        }
    }

    #[test]
    fn a_change_that_a_crash_has_interrupted_is_completed_by_another_node() {
        let (_dir, cells) = cells();
        assert_eq!(read(&cells[1]), (None, Bytes::new()));
        assert!(swap(&cells[0].0, 0, b"one").unwrap());
        // Node 0 has voted for its second table, and crashes before it notes the decision.
        let disk = &cells[0].0.disk;
        disk.write_slot(0, 2, &proposal(b"two", 0, 2)).unwrap();
        let block = Block { counter: 2, promised: 9, voted: 9, value: 0 };
        disk.write_agreement(0, block, Noted { version: 1, node: 0 }).unwrap();
        assert_eq!(read(&cells[1]), (Some(1), b"one"[..].into()));
        assert!(!swap(&cells[1].0, 1, b"other").unwrap());
        assert_eq!(read(&cells[1]), (Some(2), b"two"[..].into()));
        // Node 0 returns after its crash.
        let returned = DiskCell::new(Arc::clone(disk), 0).unwrap();
        assert!(!swap(&returned.0, 1, b"late").unwrap());
        assert!(swap(&returned.0, 2, b"three").unwrap());
        assert_eq!(read(&cells[1]), (Some(3), b"three"[..].into()));
    }

    #[test]
    fn a_node_that_returns_keeps_the_table_that_it_has_proposed() {
        let (_dir, cells) = cells();
        let disk = &cells[0].0.disk;
        disk.write_slot(0, 1, &proposal(b"first", 0, 1)).unwrap();
        disk.write_agreement(0, Block { counter: 1, promised: 1, voted: 0, value: 0 }, Noted::default())
            .unwrap();
        let returned = DiskCell::new(Arc::clone(disk), 0).unwrap();
        assert!(!swap(&returned.0, 0, b"second").unwrap());
        assert_eq!(read(&returned), (Some(1), b"first"[..].into()));
    }

    #[test]
    fn a_second_process_with_the_same_number_is_refused() {
        let (_dir, cells) = cells();
        let other = DiskCell::new(Arc::clone(&cells[0].0.disk), 0).unwrap();
        assert!(swap(&cells[0].0, 0, b"one").unwrap());
        let error = swap(&other.0, 1, b"two").unwrap_err().to_string();
        assert!(error.contains("another process writes the block of node 0"), "{error}");
    }

    #[test]
    fn another_process_may_use_the_number_after_a_change_that_was_given_up() {
        let (_dir, cells) = cells();
        let disk = &cells[0].0.disk;
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            for _ in 0..20 {
                let before = DiskCell::new(Arc::clone(disk), 0).unwrap();
                let version = before.read().await.unwrap().version;
                // The change waits for the only thread, so it is given up before it is made.
                let (go, hold) = std::sync::mpsc::channel::<()>();
                tokio::task::spawn_blocking(move || hold.recv());
                tokio::select! {
                    biased;
                    outcome = before.swap(version, Bytes::from_static(b"given up")) => panic!("{outcome:?}"),
                    () = std::future::ready(()) => {}
                }
                drop(go);
                before.finish().await;
                let next = DiskCell::new(Arc::clone(disk), 0).unwrap();
                let version = next.read().await.unwrap().version;
                assert!(next.swap(version, Bytes::from_static(b"next")).await.unwrap().is_some());
            }
        });
    }
}
