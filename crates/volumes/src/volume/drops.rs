//! Objects that no map has any more. They are removed once a record is stored that does not name them: see `record.rs`.

use std::collections::VecDeque;

use blocker::Error as Store;

use super::Inner;
use crate::format::entry::Kind;

/// Removals under way at once.
const REMOVALS_MAX: usize = 32;
/// The most objects that a flush removes: a guest waits for it. The rest is left to the next ones.
pub(super) const FLUSH_REMOVALS_MAX: usize = 256;
/// From this number of objects on a discard waits until they are removed: they take space in the store.
pub(super) const DROPS_MAX: usize = 1024;

/// The objects to be removed, in the order in which the maps have lost them.
#[derive(Default)]
pub(super) struct Drops {
    queue: VecDeque<Kind>,
    /// The number of objects that were taken from the begin of the queue.
    taken: u64,
    /// Of all that were ever in the queue, the number that no stored map names.
    covered: u64,
}

impl Drops {
    pub(super) fn push(&mut self, kind: Kind) {
        self.queue.push_back(kind);
    }

    pub(super) fn extend(&mut self, kinds: impl IntoIterator<Item = Kind>) {
        self.queue.extend(kinds);
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns how many there ever were: for [`Self::cover`], once the maps of now are stored.
    pub(super) fn mark(&self) -> u64 {
        self.taken + self.queue.len() as u64
    }

    /// Notes that no stored map names what was there at this mark.
    pub(super) fn cover(&mut self, mark: u64) {
        self.covered = self.covered.max(mark);
    }

    /// Takes some that no stored map names.
    fn take(&mut self, max: usize) -> Vec<Kind> {
        let covered = self.covered.saturating_sub(self.taken).min(self.queue.len() as u64);
        // At most `max`.
        let count = covered.min(max as u64) as usize;
        self.taken += count as u64;
        self.queue.drain(..count).collect()
    }
}

/// Objects whose removal was begun. Those that are left when it is given up are removed another time.
struct Batch<'a> {
    inner: &'a Inner,
    kinds: Vec<Kind>,
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        // No more than there were: they were taken from there.
        self.inner.state.lock().drops.extend(self.kinds.drain(..));
    }
}

impl Inner {
    /// Removes at most `max` objects that no stored map names. What cannot be removed fails nothing: it only takes space.
    /// The caller need not have the recorder: the names are not used again.
    pub(super) async fn remove_drops(&self, max: usize) {
        let _removing = self.removing.read().await;
        let mut left = max;
        while left > 0 && self.is_open() {
            let kinds = self.state.lock().drops.take(left.min(REMOVALS_MAX));
            if kinds.is_empty() {
                return;
            }
            left -= kinds.len();
            let mut batch = Batch { inner: self, kinds };
            let removals: Vec<_> = batch.kinds.iter().map(|kind| self.space.remove(*kind)).collect();
            let mut answers = futures_util::future::join_all(removals).await.into_iter();
            batch.kinds.retain(|_| match answers.next() {
                None | Some(Ok(())) => false,
                // Another attempt would fail as well: a check names it.
                Some(Err(
                    Store::Corrupt(_) | Store::Denied(_) | Store::Invalid(_) | Store::Unsupported(_),
                )) => false,
                Some(Err(error)) => {
                    self.noted(error);
                    true
                }
            });
            if !batch.kinds.is_empty() {
                return;
            }
        }
    }

    /// Records everything, and removes all that no map has any more. The caller holds no lock.
    pub(super) async fn clear_drops(&self) -> crate::error::Result<()> {
        if self.state.lock().drops.is_empty() {
            return Ok(());
        }
        {
            let mut recorder = self.recorder().await?;
            self.record(&mut recorder).await?;
        }
        self.remove_drops(usize::MAX).await;
        Ok(())
    }

    /// Waits until nothing is being removed. The caller has the recorder and the turn, so that nothing begins.
    pub(super) async fn removals_ended(&self) {
        drop(self.removing.write().await);
    }
}
