//! The sweep: finds blobs that no head names and removes them, then what `forget.rs` finds, and what is left of probes.
//!
//! A blob is orphaned where a writer died between it and its head, where the answer to a head was lost, or
//! where old blobs were left behind. One that is younger than the age given may still be waiting for its
//! head: a writer gives a blob up after 15 minutes. The head of an object with old orphans is replaced by
//! the same one with another nonce first, so that no put of a head that was sent before can land any more;
//! blobs that the new head does not name are then named by none, ever.
//!
//! Ages are counted on the server's clock: it states when it has stored a blob, and when it has stored the
//! one that the sweep puts to learn the time.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use blocker::{Error, ObjectId, Result};
use object_store::path::Path;

use crate::object::Core;
use crate::object::bounds::Progress;
use crate::object::heads::Seen;
use crate::object::swap::Swap;

/// How many blobs are looked at before what was found is removed.
const BLOBS_AT_ONCE: usize = 1000;

/// What a sweep is to remove.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SweepOptions {
    /// How old something must be, on the server's clock, to be removed. 15 minutes is the least that is safe beside
    /// other writers.
    pub age: Duration,
    /// Whether to count what would be removed, and to leave it. A small object that learns the server's time is put
    /// and removed all the same.
    pub dry_run: bool,
}

impl SweepOptions {
    /// Returns the options of a sweep that removes what is older than `age`.
    #[must_use]
    pub fn new(age: Duration) -> Self {
        Self { age, dry_run: false }
    }

    /// Sets whether to count what would be removed, and to leave it.
    #[must_use]
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }
}

/// What a sweep has done, or, if it was to leave everything, would have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Swept {
    /// The number of blobs that it has met.
    pub blobs: u64,
    /// The number of orphans that it has removed.
    pub removed: u64,
    /// The bytes of the removed orphans.
    pub removed_bytes: u64,
    /// The number of heads that it has met, of objects and of deleted ones; 0 where none can be removed.
    pub heads: u64,
    /// The number of heads of deleted objects that it has removed.
    pub forgotten: u64,
    /// The number of heads of deleted objects that are old enough, and that something depends on: a stamp, a fence or
    /// a claim that is not out of force yet.
    pub kept: u64,
    /// Whether the server keeps conditions of removals. Where it does not, heads of deleted objects stay.
    pub can_forget: bool,
    /// The number of small objects that it has removed which were left of probes.
    pub probes: u64,
}

/// A sweep under way.
pub(crate) struct Sweep<'a> {
    pub(crate) core: &'a Core,
    pub(crate) dry_run: bool,
    /// What was stored before that second since 1970 is old enough.
    pub(crate) oldest: i64,
    pub(crate) swept: Swept,
    pub(crate) progress: &'a Progress,
    pub(crate) watch: &'a (dyn Fn(&Swept) + Send + Sync),
}

impl Core {
    /// Removes what nothing names, and what is as old as the options ask for. `watch` is called with what was done so
    /// far.
    pub(crate) async fn sweep(
        &self,
        options: SweepOptions,
        progress: &Progress,
        watch: &(dyn Fn(&Swept) + Send + Sync),
    ) -> Result<Swept> {
        let age = i64::try_from(options.age.as_secs()).unwrap_or(i64::MAX);
        let oldest = self.server_time().await?.saturating_sub(age);
        let dry_run = options.dry_run;
        let mut sweep = Sweep { core: self, dry_run, oldest, swept: Swept::default(), progress, watch };
        sweep.blobs().await?;
        sweep.ghosts().await?;
        sweep.probes().await?;
        Ok(sweep.swept)
    }

    /// The server's time in seconds since 1970.
    pub(crate) async fn server_time(&self) -> Result<i64> {
        let path = self.layout.probe(rand::random());
        self.requests.put_blob(&path, bytes::Bytes::from_static(b"what time is it")).await?;
        let meta = self.requests.meta(&path).await;
        self.requests.delete(&path).await?;
        Ok(meta?.last_modified.timestamp())
    }
}

impl Sweep<'_> {
    /// Counts a step of the work, and lets the caller know.
    pub(crate) fn step(&self) {
        self.progress.step();
        (self.watch)(&self.swept);
    }

    async fn blobs(&mut self) -> Result<()> {
        let core = self.core;
        for directory in core.requests.directories(&core.layout.all_blobs()).await? {
            let Some(namespace) = core.namespace_at(&directory).await? else { continue };
            let mut after: Option<Path> = None;
            loop {
                let page = core.requests.list(&directory, after.as_ref(), BLOBS_AT_ONCE).await?;
                after = page.last().map(|last| last.location.clone());
                let is_last = page.len() < BLOBS_AT_ONCE;
                let mut old: BTreeMap<ObjectId, Vec<(u128, u64)>> = BTreeMap::new();
                for meta in page {
                    let Some(key) = core.layout.blob_of(&meta.location, &namespace) else { continue };
                    self.swept.blobs += 1;
                    if meta.last_modified.timestamp() <= self.oldest {
                        old.entry(key.object).or_default().push((key.blob, meta.size));
                    }
                }
                self.step();
                for (object, blobs) in old {
                    self.orphans(&object, blobs).await?;
                    self.step();
                }
                if is_last {
                    break;
                }
            }
        }
        Ok(())
    }

    async fn orphans(&mut self, object: &ObjectId, mut blobs: Vec<(u128, u64)>) -> Result<()> {
        let core = self.core;
        let seen = core.look(object).await?;
        let keep_unnamed = |blobs: &mut Vec<(u128, u64)>, seen: &Option<Seen>| {
            let named = seen.as_ref().map_or(&[][..], |seen| &seen.head.content.blobs);
            blobs.retain(|(id, _)| named.iter().all(|blob| blob.id != *id));
        };
        keep_unnamed(&mut blobs, &seen);
        if blobs.is_empty() {
            return Ok(());
        }
        if let Some(base) = seen.as_ref().filter(|_| !self.dry_run) {
            match core.swap(object, base, base.head.next()).await {
                Swap::Done(_) => {}
                // It is in use: the next sweep is soon enough.
                Swap::Lost => return Ok(()),
                Swap::Failed(error) => return Err(error),
                Swap::Unknown(error) => return Err(Error::Retryable(error.to_string().into())),
            }
        }
        for (blob, len_bytes) in blobs {
            if !self.dry_run {
                core.requests.delete(&core.layout.blob(object, blob)).await?;
                core.requests.stats.swept.fetch_add(1, Ordering::Relaxed);
            }
            self.swept.removed += 1;
            self.swept.removed_bytes += len_bytes;
        }
        Ok(())
    }

    /// What programs have left that ended in the middle of a probe.
    async fn probes(&mut self) -> Result<()> {
        let core = self.core;
        let mut after: Option<Path> = None;
        loop {
            let page = core.requests.list(&core.layout.all_probes(), after.as_ref(), BLOBS_AT_ONCE).await?;
            after = page.last().map(|last| last.location.clone());
            let is_last = page.len() < BLOBS_AT_ONCE;
            for meta in page.into_iter().filter(|meta| meta.last_modified.timestamp() <= self.oldest) {
                if !self.dry_run {
                    core.requests.delete(&meta.location).await?;
                }
                self.swept.probes += 1;
                self.step();
            }
            if is_last {
                return Ok(());
            }
        }
    }
}
