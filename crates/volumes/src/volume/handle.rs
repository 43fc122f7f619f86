//! The handle of an open volume.

use std::fmt;
use std::sync::Arc;

use blocker::{Durability, Namespace, Segments};

use super::state::Status;
use super::{Answer, Inner};
use crate::catalog::check_owner_name;
use crate::error::Result;
use crate::settings::{Change, Extent, Settings, Usage};

/// An open volume: a disk. All methods can be called concurrently, through any number of handles.
///
/// Ranges may have any alignment. Changes that overlap in time have no order; all else is as on a disk with a
/// volatile cache: what was acknowledged as *cached* is kept by [`Self::flush`], and a crash before it may
/// lose any part of it.
///
/// A volume stays open without handles until [`Self::close`]. When its [`Volumes`](crate::Volumes) are
/// dropped before, what was not flushed may be lost as in a crash.
///
/// # Errors
/// Every method may fail with `Fenced`, `Closed`, `Interrupted` and `Io`. Those with a range fail with
/// `OutOfRange` if it ends beyond the volume's end; changes also with `ReadOnly` and `NoSpace`.
///
/// # Cancel safety
/// Dropping the future of a change leaves its range with the old bytes, the new ones, or some of both; a
/// dropped flush may have stored something. Neither keeps anything locked.
#[derive(Clone)]
pub struct Volume {
    pub(crate) inner: Arc<Inner>,
}

impl Volume {
    /// Returns the size of the volume in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.inner.state.lock().size_bytes
    }

    /// Returns the size in bytes of the objects that the volume is cut into. Ranges that begin and end at its
    /// multiples are discarded wholly.
    #[must_use]
    pub fn object_bytes(&self) -> u64 {
        self.inner.object_bytes
    }

    /// Returns the namespace in which the volume's objects are.
    #[must_use]
    pub fn namespace(&self) -> Namespace {
        self.inner.space.pool.namespace(self.inner.space.volume)
    }

    /// Returns how the volume is treated.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.inner.settings
    }

    /// Reads `length` bytes at `offset`. The segments may pin a cache's memory: drop them soon.
    ///
    /// # Errors
    /// See [`Volume`]; `Damaged` if an object that the map names is missing.
    pub async fn read(&self, offset: u64, length: u64) -> Result<Segments> {
        self.start_read(offset, length).wait().await
    }

    /// As [`Self::read`]. The answer is ready where the store has the bytes at once.
    pub fn start_read(&self, offset: u64, length: u64) -> Answer<Segments> {
        self.inner.start_read(offset, length)
    }

    /// Writes `data` at `offset`. Returns the durability that holds: at least the one asked for.
    ///
    /// # Errors
    /// See [`Volume`].
    pub async fn write(&self, offset: u64, data: Segments, durability: Durability) -> Result<Durability> {
        self.start_write(offset, data, durability).wait().await
    }

    /// As [`Self::write`]. The answer is ready where nothing has to be waited for; one that is pending is to be polled
    /// to its end, or dropped: snapshots wait for it.
    pub fn start_write(&self, offset: u64, data: Segments, durability: Durability) -> Answer<Durability> {
        self.inner.start_write(offset, data, durability)
    }

    /// Makes everything acknowledged before the call *stored*, or what the options say flushes promise.
    ///
    /// # Errors
    /// See [`Volume`]. After an error nothing is lost: the next flush covers the same.
    pub async fn flush(&self) -> Result<()> {
        self.inner.flush().await
    }

    /// As [`Self::flush`], and everything is *stored*, whatever the options say flushes promise.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub async fn store(&self) -> Result<()> {
        self.inner.flush_as(Durability::Stored).await
    }

    /// Gives the range back where that is possible: whole objects, and parts of objects that no snapshot
    /// shares, read as zeros afterwards. What remains may keep its bytes.
    ///
    /// # Errors
    /// See [`Volume`].
    pub async fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.inner.discard(offset, length).await
    }

    /// Makes the range read as zeros. With `may_punch` its space may be given back. With `fast_only` nothing
    /// is done if that would need the copy of an object.
    ///
    /// # Errors
    /// See [`Volume`]; `NotFast`.
    pub async fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        may_punch: bool,
        fast_only: bool,
    ) -> Result<()> {
        self.inner.write_zeroes(offset, length, may_punch, fast_only).await
    }

    /// Returns what lies in the range, in order and without gaps, by whole objects.
    ///
    /// # Errors
    /// See [`Volume`].
    pub async fn extents(&self, offset: u64, length: u64) -> Result<Vec<Extent>> {
        self.inner.extents(offset, length)
    }

    /// Returns the ranges in which the volume may differ from its snapshot `since`, by whole objects; with
    /// `None`, from a volume of holes. What lies beyond either end is left out.
    ///
    /// # Errors
    /// See [`Volume`]; `NoSuchSnapshot`.
    pub async fn changed_extents(&self, since: Option<&str>) -> Result<Vec<Change>> {
        self.inner.changed_extents(since, (0, u64::MAX)).await
    }

    /// As [`Self::changed_extents`], looking only at what has a part of a range: changes beyond it may be left out.
    ///
    /// # Errors
    /// As [`Self::changed_extents`].
    pub async fn changed_extents_in(
        &self,
        since: Option<&str>,
        offset: u64,
        length: u64,
    ) -> Result<Vec<Change>> {
        self.inner.changed_extents(since, (offset, length)).await
    }

    /// Returns what the volume uses.
    ///
    /// # Errors
    /// See [`Volume`].
    pub fn usage(&self) -> Result<Usage> {
        self.inner.usage()
    }

    /// Returns whether both are handles of one open volume. A volume that was closed and opened again is another one.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Waits until objects are to be merged: see [`Self::merge`].
    ///
    /// # Errors
    /// `Closed`, `HandedOver`, `Fenced` and `Interrupted`, also while it waits. Only one caller may wait at a time.
    pub async fn merge_due(&self) -> Result<()> {
        self.inner.wait_for_overlays().await
    }

    /// Copies the objects that were written to since the last snapshot and are not copied yet. A short write to such an
    /// object is kept in memory, and logged where the options want every write to outlive the process, so that it waits
    /// for no copy. Call this when [`Self::merge_due`] returns, beside all else: memory
    /// ([`Options::overlay_bytes_max`](crate::Options::overlay_bytes_max)) and log have a limit, and when one is full
    /// writes wait again. A snapshot and [`Self::close`] do it as well, and a flush of what is not logged.
    ///
    /// # Errors
    /// See [`Volume`]. After an error nothing is lost: it can be called again.
    ///
    /// # Cancel safety
    /// Dropping the future leaves objects that are not copied; a copy that was under way may stay until
    /// [`Volumes::check`](crate::Volumes::check) removes it.
    pub async fn merge(&self) -> Result<()> {
        self.inner.merge_and_record().await
    }

    /// Stores everything and gives the volume up, so that another owner can open it. No handle works
    /// afterwards. Changes under way end first.
    ///
    /// # Errors
    /// See [`Volume`]. If the volume could not be flushed, it stays open. A second close succeeds.
    pub async fn close(&self) -> Result<()> {
        self.inner.close().await
    }

    /// Returns whether the volume was given up for another owner.
    #[must_use]
    pub fn is_handed_over(&self) -> bool {
        self.inner.state.lock().status == Status::HandedOver
    }

    /// As [`Self::close`], for the owner that calls itself `to`: it alone can open the volume then, and need not take it
    /// over. Changes wait only for what others have written while most of it was stored.
    ///
    /// # Errors
    /// As [`Self::close`]; `Invalid` if no owner can have this name; `Closed` if it was closed before. It can be called again
    /// for the same owner: what an earlier call has not come to is done then.
    pub async fn hand_over(&self, to: &str) -> Result<()> {
        check_owner_name(to)?;
        self.inner.hand_over(to).await
    }
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume").field("size_bytes", &self.size_bytes()).finish_non_exhaustive()
    }
}
