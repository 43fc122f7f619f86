//! Giving the memory to another process while this one waits, ready to go on with it.
//!
//! ```text
//!  this process                              the other one
//!  stops using the store
//!  hand_over: copies superblock and table
//!  passes the file ───────────────────────►  ArenaFile::handed_over, Kv::new: rebuilds the index
//!  waits                                     changes only the head of the file, and takes LIVE
//!                                            from items that have ended
//!   ├── forget: leaves the file alone  ◄───  confirm_hand_over: has the memory
//!   └── resume: puts the head back           (or it has ended without it)
//! ```
//! The index stays in this process meanwhile.

use crate::kv::Kv;
use crate::kv::lasting::Lasting;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::Ordering;

/// A store whose memory another process may take. Dropped, it leaves the file alone, as
/// [`forget`](HandedOver::forget) does.
#[derive(Debug)]
#[must_use = "the store must be resumed or forgotten"]
pub struct HandedOver {
    kv: Kv,
    /// The superblock and the table of regions as they were.
    head: Vec<u64>,
}

impl Kv {
    /// Gives the memory to another process, which makes a store of
    /// [`ArenaFile::handed_over`](crate::arena::ArenaFile::handed_over). Returns `None` if it is in no file.
    ///
    /// No operation may be in work, no value be pinned or reserved, and none may begin until
    /// [`HandedOver::resume`] has returned; reading statistics is harmless.
    pub fn hand_over(&self) -> Option<HandedOver> {
        let Lasting { held, identity, is_owned, .. } = self.inner.lasting.as_ref()?;
        // A flush that is due runs here: later it would change the memory.
        self.inner.note_time(self.inner.now());
        let head = held.head(identity);
        is_owned.store(false, Ordering::Release);
        Some(HandedOver { kv: self.clone(), head })
    }

    /// Takes possession of memory that another process has handed over. That one must not use it any more.
    /// Before this, no operation may change the store. Does nothing for other stores.
    pub fn confirm_hand_over(&self) {
        if let Some(Lasting { is_owned, .. }) = &self.inner.lasting {
            is_owned.store(true, Ordering::Release);
        }
    }
}

impl HandedOver {
    /// Returns the file, to be passed to the other process. Each copy of the descriptor keeps the lock.
    ///
    /// # Panics
    /// Never: only a store in a file is handed over.
    #[must_use]
    pub fn file(&self) -> &File {
        self.lasting().held.file()
    }

    /// Returns the path of the file.
    ///
    /// # Panics
    /// Never: only a store in a file is handed over.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.lasting().held.path()
    }

    /// Goes on with the memory: the other process has ended, or has never had it, and has not confirmed.
    pub fn resume(self) {
        let Lasting { held, identity, is_owned, .. } = self.lasting();
        if held.put_head(identity, &self.head) {
            // The other process has rebuilt its index, and may have taken marks from what it does not keep.
            self.mark_items();
        }
        is_owned.store(true, Ordering::Release);
    }

    /// Leaves the memory to the other process, which has confirmed: nothing of it is used or written any more.
    pub fn forget(self) {
        // Also not by what other parts of the program still hold of the store.
        std::mem::forget(self.kv.clone());
    }

    /// Marks every item to which the index leads.
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

    fn lasting(&self) -> &Lasting {
        self.kv.inner.lasting.as_ref().unwrap_or_else(|| unreachable!("a store in a file"))
    }
}
