//! A store whose memory outlives the process: taking over the items of an earlier process, and the
//! clean end.
//!
//! The index is in the process's own memory. A restart walks over the regions that were in use, and
//! links every item that is marked LIVE (see `item/`), unless it has been flushed or has expired.
//! After a clean end, each region must match its checksum; after any other end, each entry must.
//! What does not match is left out.
//!
//! The contents of the file are trusted only after checks. Whatever they are, the resulting store
//! is consistent.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Kv;
use super::inner::Inner;
use super::rebuild::{Check, rebuild};
use crate::arena::{HeldFile, Identity, MappedFile, Superblock};
use crate::sync::Arc;

/// The result of taking over an earlier process's store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Restart {
    /// The reason why there was nothing to take over; `None` if the store took over something.
    pub cold: Option<String>,
    /// Whether the earlier process had ended cleanly.
    pub was_clean: bool,
    /// Items now in the index.
    pub items: u64,
    /// Items left out because they had expired.
    pub expired_items: u64,
    /// Items left out because they had been flushed.
    pub flushed_items: u64,
    /// Items left out because the earlier process was replacing them when it ended.
    pub replaced_items: u64,
    /// Items left out because they are incomplete, or because the index has no space for them.
    pub damaged_items: u64,
    /// Regions that are invalid, and were left out completely or from an entry on.
    pub damaged_regions: u64,
    /// The duration of the restart.
    pub took: Duration,
}

/// The file of a store, and the result of taking it over.
pub(super) struct StoreFile {
    pub(super) held: HeldFile,
    pub(super) identity: Identity,
    pub(super) superblock: Arc<Superblock>,
    pub(super) restart: Restart,
    /// Whether this process owns the memory: it has not handed the memory over, and when it exits
    /// it writes the data that the next process needs.
    pub(super) is_owned: AtomicBool,
    /// Whether the end simulates a killed process.
    #[cfg(test)]
    pub(super) is_killed: AtomicBool,
}

impl Kv {
    /// Returns the result of taking over an earlier process's store; `None` if the memory is not in
    /// a file.
    #[must_use]
    pub fn restart(&self) -> Option<&Restart> {
        self.inner.store_file.as_ref().map(|store_file| &store_file.restart)
    }

    /// Returns the file that holds the memory.
    #[must_use]
    pub fn memory_file(&self) -> Option<&Path> {
        self.inner.store_file.as_ref().map(|store_file| store_file.held.path.as_path())
    }

    /// Returns the mark: a number that the owner of the store has recorded with
    /// [`set_mark`](Self::set_mark), in this process or, if the memory is in a file that was taken
    /// over, in an earlier one; 0 if none has.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.inner.log.superblock.notes().mark()
    }

    /// Records a mark, which stays with the items: a later process finds it if, and only if, it
    /// takes over the items. Changes of items made after this call returns are not found without
    /// the mark.
    pub fn set_mark(&self, mark: u64) {
        self.inner.log.superblock.notes().set_mark(mark);
    }
}

/// Helpers for tests.
#[cfg(all(test, not(any(miri, shuttle))))]
impl Kv {
    /// Makes the last handle leave the file in the state of a killed process.
    pub(super) fn end_as_killed(&self) {
        if let Some(store_file) = &self.inner.store_file {
            store_file.is_killed.store(true, Ordering::Relaxed);
        }
    }
}

/// Takes over the contents of the file of a store that is otherwise complete.
pub(super) fn take_over(inner: &mut Inner, file: MappedFile, superblock: Arc<Superblock>) {
    let MappedFile { identity, cold, was_clean, is_handed_over, held, progress } = file;
    let begun = Instant::now();
    let now = inner.clock.now_secs();
    let restart = match cold {
        Some(cold) => {
            let (none, _) = inner.log.begin_restore(now);
            inner.log.end_restore(none, &|_| true);
            Restart { cold: Some(cold.to_string()), ..Restart::default() }
        }
        None => {
            // Memory that another process has just used needs no check.
            let check = match (was_clean, is_handed_over) {
                (true, _) => Check::Regions,
                (false, true) => Check::Nothing,
                (false, false) => Check::Entries,
            };
            rebuild(inner, now, check, &progress)
        }
    };
    superblock.notes().note_time(now, restart.items);
    let restart = Restart { was_clean, took: begun.elapsed(), ..restart };
    inner.store_file = Some(StoreFile {
        held,
        identity,
        superblock,
        restart,
        is_owned: (!is_handed_over).into(),
        #[cfg(test)]
        is_killed: false.into(),
    });
}

impl Inner {
    /// Records the time for a later process.
    pub(super) fn note_time(&self, now: u32) {
        if let Some(StoreFile { superblock, .. }) = &self.store_file {
            superblock.notes().note_time(now, self.index.stored_and_items().1);
        }
    }
}

impl Drop for Inner {
    /// The last handle is gone, so no thread uses the memory any more.
    fn drop(&mut self) {
        let Some(StoreFile { held, identity, superblock, is_owned, .. }) = &self.store_file else { return };
        if std::thread::panicking() || !is_owned.load(Ordering::Acquire) {
            return;
        }
        #[cfg(test)]
        if self.store_file.as_ref().is_some_and(|store_file| store_file.is_killed.load(Ordering::Relaxed)) {
            return;
        }
        let begun = Instant::now();
        self.note_time(self.clock.now_secs());
        superblock.notes().set_cas_bound(self.index.cas_ahead());
        self.log.note_crcs();
        let path = held.path.display();
        match held.end(identity, superblock, self.log.arena.table()) {
            Ok(()) => {
                let took_ms = begun.elapsed().as_millis();
                tracing::info!(%path, took_ms, "the memory file is complete");
            }
            Err(cause) => {
                tracing::warn!(%cause, %path, "the memory file may not survive the next boot of the system");
            }
        }
    }
}

// Hands the memory over to another process, while this process waits and can resume using it.
//
// ```text
//  this process                              the other one
//  stops using the store
//  hand_over: copies superblock and table
//  passes the file ───────────────────────►  ArenaFile::handed_over, Kv::new: rebuilds the index
//  waits                                     changes only the head of the file, and clears LIVE
//                                            of items that have ended
//   ├── forget: leaves the file alone  ◄───  confirm_hand_over: has the memory
//   └── resume: puts the head back           (or it has ended without it)
// ```
// In the meantime, the index stays in this process.

/// A store whose memory another process may take over. Dropping this value leaves the file
/// untouched, as [`forget`](HandedOver::forget) does.
#[derive(Debug)]
#[must_use = "the store must be resumed or forgotten"]
pub struct HandedOver {
    kv: Kv,
    /// Copies of the superblock and the table of regions.
    head: Vec<u64>,
}

impl Kv {
    /// Offers the memory to another process, which creates a store from
    /// [`ArenaFile::handed_over`](crate::arena::ArenaFile::handed_over). Returns `None` if the
    /// memory is not in a file.
    ///
    /// No operation may be in progress and no value pinned or reserved, and no operation may start
    /// until [`HandedOver::resume`] has returned. Reading statistics is allowed.
    pub fn hand_over(&self) -> Option<HandedOver> {
        let StoreFile { held, identity, is_owned, .. } = self.inner.store_file.as_ref()?;
        // A flush that is due runs now, because it must not change the memory later.
        self.inner.note_time(self.inner.now());
        let head = held.head(identity);
        is_owned.store(false, Ordering::Release);
        Some(HandedOver { kv: self.clone(), head })
    }

    /// Takes ownership of memory that another process has handed over. Afterwards, the other
    /// process must not use the memory any more; before this call, no operation may change the
    /// store. Does nothing for other stores.
    pub fn confirm_hand_over(&self) {
        if let Some(StoreFile { is_owned, .. }) = &self.inner.store_file {
            is_owned.store(true, Ordering::Release);
        }
    }
}

impl HandedOver {
    /// Returns the file, to be passed to the other process. Each copy of the descriptor keeps the
    /// file locked.
    ///
    /// # Panics
    /// Does not panic, because only a store in a file is handed over.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.store_file().held.file
    }

    /// Returns the path of the file.
    ///
    /// # Panics
    /// Does not panic, because only a store in a file is handed over.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.store_file().held.path
    }

    /// Resumes using the memory. The other process must have ended without confirming, or never
    /// have received the memory.
    pub fn resume(self) {
        let StoreFile { held, identity, is_owned, .. } = self.store_file();
        if held.put_head(identity, &self.head) {
            // The other process has rebuilt its index, and may have cleared the marks of items that
            // it does not keep.
            self.mark_items();
        }
        is_owned.store(true, Ordering::Release);
    }

    /// Leaves the memory to the other process, which has confirmed. This process neither reads nor
    /// writes it any more.
    pub fn forget(self) {
        // This leaks a reference, so that the memory stays untouched even when other parts of the
        // program drop theirs.
        std::mem::forget(self.kv.clone());
    }

    /// Marks every item to which the index refers.
    fn mark_items(&self) {
        let inner = &self.kv.inner;
        for shard in inner.index.shards() {
            for bucket in 0.. {
                let Some(guard) = shard.lock_bucket(bucket) else { break };
                guard.for_each(|location| {
                    let item = inner.item_at(location);
                    if !item.is_live() {
                        inner.log.make_live(item, item.usage());
                    }
                });
            }
        }
    }

    fn store_file(&self) -> &StoreFile {
        self.kv.inner.store_file.as_ref().unwrap_or_else(|| unreachable!("a store in a file"))
    }
}
