//! A store whose memory outlives the process: taking over what an earlier process has left, and the clean end.
//!
//! The index lies in the memory of the process. A restart walks over the regions that were in use, and links
//! every item that is marked LIVE (see `item/`), unless it has been flushed or has expired. After a clean end
//! each region must match its checksum, after another one each entry; what does not is left out.
//!
//! Bytes of a file are taken for what they say only within bounds: whatever is in them, the result is a store
//! that is consistent in itself.

mod hand_over;
mod rebuild;
pub(super) mod scan;

pub use hand_over::HandedOver;

use super::Kv;
use super::inner::Inner;
use super::lasting::{Lasting, Restart};
use super::memory::MappedFile;
use crate::arena::Superblock;
use crate::sync::Arc;
use rebuild::Check;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Kv {
    /// Returns what the store has taken over from an earlier process; `None` if its memory is in no file.
    #[must_use]
    pub fn restart(&self) -> Option<&Restart> {
        self.inner.lasting.as_ref().map(|lasting| &lasting.restart)
    }

    /// Returns the file in which the memory is.
    #[must_use]
    pub fn memory_file(&self) -> Option<&Path> {
        self.inner.lasting.as_ref().map(|lasting| lasting.held.path())
    }
}

/// What tests do.
#[cfg(test)]
impl Kv {
    /// Lets the last handle leave the file as if the process had been killed.
    pub(super) fn end_as_killed(&self) {
        if let Some(lasting) = &self.inner.lasting {
            lasting.is_killed.store(true, Ordering::Relaxed);
        }
    }
}

/// Takes over what is in the file of a store that is otherwise complete.
pub(super) fn take_over(inner: &mut Inner, file: MappedFile, superblock: Arc<Superblock>) {
    let MappedFile { identity, cold, was_clean, is_handed_over, held, progress } = file;
    let begun = Instant::now();
    let now = inner.clock.now_secs();
    let restart = match cold {
        Some(cold) => {
            let (none, _) = inner.log.begin_restore(now);
            inner.log.end_restore(none, |_| true);
            Restart { cold: Some(cold), ..Restart::nothing() }
        }
        None => {
            // What another process has just had in use needs no check.
            let check = match (was_clean, is_handed_over) {
                (true, _) => Check::Regions,
                (false, true) => Check::Nothing,
                (false, false) => Check::Entries,
            };
            rebuild::rebuild(inner, now, check, &progress)
        }
    };
    superblock.notes().note_time(now, restart.items);
    let restart = Restart { was_clean, took: begun.elapsed(), ..restart };
    inner.lasting = Some(Lasting {
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
    /// Notes the time for a later process.
    pub(super) fn note_time(&self, now: u32) {
        if let Some(Lasting { superblock, .. }) = &self.lasting {
            superblock.notes().note_time(now, self.index.stored_and_items().1);
        }
    }
}

impl Drop for Inner {
    /// The last handle is gone: no thread uses the memory any more.
    fn drop(&mut self) {
        let Some(Lasting { held, identity, superblock, is_owned, .. }) = &self.lasting else { return };
        if std::thread::panicking() || !is_owned.load(Ordering::Acquire) {
            return;
        }
        #[cfg(test)]
        if self.lasting.as_ref().is_some_and(|lasting| lasting.is_killed.load(Ordering::Relaxed)) {
            return;
        }
        let begun = Instant::now();
        self.note_time(self.clock.now_secs());
        superblock.notes().set_cas_bound(self.index.cas_ahead());
        self.log.note_crcs();
        let path = held.path().display();
        match held.end(identity, superblock, self.log.arena().table()) {
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
