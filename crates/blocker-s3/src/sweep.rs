//! The sweep: removes blobs that no head names, heads of deleted objects that nothing depends on,
//! and leftovers of probes.
//!
//! # Blobs
//! A blob is orphaned if a writer died between the blob and its head, if the response to the put of
//! a head was lost, or if the removal of old blobs was left to a sweep. A blob younger than the
//! given age may still be waiting for its head: a writer abandons a blob after 15 minutes. The head
//! of an object with old orphans is first replaced by the same head with another nonce, so that no
//! earlier put of a head can still be applied; after that no head will ever name blobs that the new
//! head does not name.
//!
//! Ages follow the server's clock: the server states when it stored a blob, and when it stored the
//! one that the sweep puts to learn the time.
//!
//! # Heads of deleted objects
//! A ghost keeps three things: its fence, the stamp of the deletion, which refuses older changes of
//! the same writer, and a version that must not recur. A name without a head gets its fence from
//! its scopes and a random version. So a ghost may be removed once
//!  - it is older than the age of the sweep, so that no writer is still finding out the outcome of
//!    a change,
//!  - the object itself was never claimed, and its fences are not above those of its scopes, which
//!    never fall,
//!  - its stamp is of an epoch below that of its scopes, which refuse that writer by now.
//!
//! It must be removed only if it is still the same ghost: another writer may turn it into an object
//! at any moment. So the removal is conditional on its ETag, and no two bodies are equal. Not every
//! server supports that condition; each sweep probes it first, and leaves ghosts alone if it is
//! ignored.
//!
//! # In the background
//! One of the programs that use the bucket sweeps once in the interval. The age of an object in the
//! bucket, by the server's clock, shows when the last sweep began. A program that finds it old
//! enough replaces it on the condition of its ETag; if several try, one succeeds, and sweeps. It
//! sends one request at a time, except a few for heads of deleted objects.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use blocker::conditional::Progress;
use blocker::conditional::claims::{Claim, Scopes};
use blocker::{Error, Name, ObjectId, Result};
use bytes::Bytes;
use futures_util::StreamExt;
use object_store::ObjectMeta;

use crate::format::head::Head;
use crate::format::layout::{BLOBS, HEADS, LAST_SWEEP, PROBES, Spelling};
use crate::object::Core;
use crate::object::swap::{Seen, Swap};
use crate::random;
use crate::server::Remover;
use crate::server::requests::Put;

/// The counts of a sweep, or of a dry run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Swept {
    /// The number of blobs seen.
    pub blobs: u64,
    /// The number of orphans removed.
    pub removed: u64,
    /// The bytes of the removed orphans.
    pub removed_bytes: u64,
    /// The number of heads seen, both of existing and of deleted objects; 0 if no heads can be
    /// removed.
    pub heads: u64,
    /// The number of heads of deleted objects removed.
    pub forgotten: u64,
    /// The number of heads of deleted objects that are old enough, but on which a stamp, a fence or
    /// a claim that is still in force depends.
    pub kept: u64,
    /// Whether the server supports conditional removals. If not, heads of deleted objects stay.
    pub can_forget: bool,
    /// The number of small objects of interrupted probes that were removed.
    pub probes: u64,
}

/// A sweep in progress.
pub(crate) struct Sweep<'a> {
    pub(crate) core: &'a Core,
    pub(crate) dry_run: bool,
    /// Objects stored before this second since 1970 are old enough.
    pub(crate) oldest: i64,
    pub(crate) swept: Swept,
    pub(crate) progress: &'a Progress,
    pub(crate) watch: &'a (dyn Fn(&Swept) + Send + Sync),
}

impl Core {
    /// Removes objects older than `age` that no head names, or only counts them if `dry_run`. `watch`
    /// is called with the counts so far.
    pub(crate) async fn sweep(
        &self,
        age: Duration,
        dry_run: bool,
        progress: &Progress,
        watch: &(dyn Fn(&Swept) + Send + Sync),
    ) -> Result<Swept> {
        let age = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
        let oldest = self.server_time().await?.saturating_sub(age);
        let mut sweep = Sweep { core: self, dry_run, oldest, swept: Swept::default(), progress, watch };
        sweep.blobs().await?;
        sweep.ghosts().await?;
        sweep.probes().await?;
        Ok(sweep.swept)
    }

    /// Returns the server's time in seconds since 1970.
    pub(crate) async fn server_time(&self) -> Result<i64> {
        let path = self.layout.probe(random::number());
        self.requests.put_blob(&path, bytes::Bytes::from_static(b"what time is it")).await?;
        let meta = self.requests.meta(&path).await;
        self.requests.delete(&path).await?;
        Ok(meta?.last_modified.timestamp())
    }
}

impl Sweep<'_> {
    /// Counts a step of the work, and calls the observer.
    pub(crate) fn step(&self) {
        self.progress.step();
        (self.watch)(&self.swept);
    }

    async fn blobs(&mut self) -> Result<()> {
        let core = self.core;
        for directory in core.requests.directories(&core.layout.path(BLOBS)).await? {
            let Some(namespace) = core.namespace_at(&directory).await? else { continue };
            let mut listing = core.requests.pages(directory);
            while let Some(page) = listing.next().await? {
                let mut old: BTreeMap<ObjectId, Vec<(u128, u64)>> = BTreeMap::new();
                for meta in page {
                    let Some(key) = core.layout.blob_of(&meta.location, &namespace) else { continue };
                    self.swept.blobs += 1;
                    if meta.last_modified.timestamp() <= self.oldest {
                        old.entry(key.object).or_default().push((key.blob, meta.size));
                    }
                }
                self.step();
                // The orphans of this page are removed before the next one is requested.
                for (object, blobs) in old {
                    self.orphans(&object, blobs).await?;
                    self.step();
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
                // The object is in use, so it is left to the next sweep.
                Swap::Lost => return Ok(()),
                Swap::Failed(error) => return Err(error),
                Swap::Unknown(error) => return Err(Error::Retryable(error.to_string().into())),
            }
        }
        for (blob, len_bytes) in blobs {
            if !self.dry_run {
                core.requests.delete(&core.layout.blob(object, blob)).await?;
                core.requests.stats.swept.increment();
            }
            self.swept.removed += 1;
            self.swept.removed_bytes += len_bytes;
        }
        Ok(())
    }

    /// Removes objects of programs that ended in the middle of a probe.
    async fn probes(&mut self) -> Result<()> {
        let core = self.core;
        let mut listing = core.requests.pages(core.layout.path(PROBES));
        while let Some(page) = listing.next().await? {
            for meta in page.into_iter().filter(|meta| meta.last_modified.timestamp() <= self.oldest) {
                if !self.dry_run {
                    core.requests.delete(&meta.location).await?;
                }
                self.swept.probes += 1;
                self.step();
            }
        }
        Ok(())
    }
}

// ---- heads of deleted objects

/// The maximum size of a ghost without order domains. Heads of objects with much content are
/// larger.
const GHOST_BYTES_MAX: u64 = 512;
/// An ETag that the probe's object does not have.
const WRONG_ETAG: &str = "\"00000000000000000000000000000000\"";
/// The number of ghosts judged concurrently.
const GHOSTS_CONCURRENT: usize = 8;

impl Sweep<'_> {
    /// Removes old ghosts on which nothing depends.
    pub(crate) async fn ghosts(&mut self) -> Result<()> {
        let core = self.core;
        let Some(remover) = &core.remover else { return Ok(()) };
        self.swept.can_forget = core.keeps_conditions_of_removals(remover).await?;
        if !self.swept.can_forget {
            return Ok(());
        }
        for directory in core.requests.directories(&core.layout.path(HEADS)).await? {
            let Some(namespace) = core.namespace_at(&directory).await? else { continue };
            for spelling in Spelling::ALL {
                let mut listing = core.requests.pages(core.layout.heads(&namespace, spelling));
                while let Some(page) = listing.next().await? {
                    self.swept.heads += page.len() as u64;
                    let is_old = |meta: &&ObjectMeta| {
                        meta.size <= GHOST_BYTES_MAX && meta.last_modified.timestamp() <= self.oldest
                    };
                    let old = page.iter().filter(is_old);
                    let names: Vec<Name> =
                        old.filter_map(|meta| core.layout.name_of(&meta.location)).collect();
                    self.step();
                    let dry_run = self.dry_run;
                    let met = futures_util::stream::iter(names).map(|name| {
                        core.forget_one(ObjectId::new(namespace.clone(), name), remover, dry_run)
                    });
                    let mut met = pin!(met.buffer_unordered(GHOSTS_CONCURRENT));
                    while let Some(ghost) = met.next().await {
                        match ghost? {
                            Ghost::None => {}
                            Ghost::Kept => self.swept.kept += 1,
                            Ghost::Removed => self.swept.forgotten += 1,
                        }
                        self.step();
                    }
                }
            }
        }
        Ok(())
    }
}

/// The kind of a head.
enum Ghost {
    /// The head of an object, or a ghost that was removed or replaced in the meantime.
    None,
    /// A ghost on which something depends.
    Kept,
    Removed,
}

impl Core {
    async fn forget_one(&self, object: ObjectId, remover: &Remover, dry_run: bool) -> Result<Ghost> {
        let Some(ghost) = self.look(&object).await?.filter(|seen| !seen.head.is_there) else {
            return Ok(Ghost::None);
        };
        let mut scopes = self.scopes(&object.namespace, None).await?;
        for (domain, fence) in &ghost.head.domains {
            scopes.domain = self.scopes(&object.namespace, Some(*domain)).await?.domain;
            if *fence > scopes.domain {
                return Ok(Ghost::Kept);
            }
        }
        if !may_go(&ghost.head, scopes) {
            return Ok(Ghost::Kept);
        }
        if dry_run {
            return Ok(Ghost::Removed);
        }
        let is_gone = remover.remove_if(&self.layout.head(&object), &ghost.etag).await?;
        if !is_gone {
            return Ok(Ghost::None);
        }
        self.heads.forget(&object);
        self.requests.stats.forgotten.increment();
        Ok(Ghost::Removed)
    }

    /// Returns whether the server checks the condition of a removal.
    async fn keeps_conditions_of_removals(&self, remover: &Remover) -> Result<bool> {
        let path = self.layout.probe(random::number());
        let body = bytes::Bytes::from_static(b"a probe of removals");
        self.requests.put_blob(&path, body).await?;
        let etag = self.requests.meta(&path).await?.e_tag.unwrap_or_default();
        // A refusal for another reason also counts as a response: such a server does not support
        // conditions.
        let is_ignored = remover.remove_if(&path, WRONG_ETAG).await.unwrap_or(true);
        let is_there = self.requests.meta_if_there(&path).await?.is_some();
        let is_kept = !is_ignored && is_there && remover.remove_if(&path, &etag).await.unwrap_or(false);
        let is_kept = is_kept && self.requests.meta_if_there(&path).await?.is_none();
        self.requests.delete(&path).await?;
        Ok(is_kept)
    }
}

/// Returns whether nothing depends on the ghost.
fn may_go(head: &Head, scopes: Scopes) -> bool {
    let is_free = !head.is_there && head.claim == Claim::default();
    let is_fenced = head.fence.is_none_or(|fence| fence <= scopes.whole);
    is_free && is_fenced && head.stamp.is_none_or(|stamp| stamp.epoch.0 < scopes.whole)
}

// ---- sweeps in the background

/// The maximum time between two checks of whether a sweep is due.
const CHECK_EVERY_MAX: Duration = Duration::from_secs(60 * 60);

/// Sweeps at intervals until the store is closed.
pub(crate) async fn run(core: Weak<Core>, interval: Duration, age: Duration) {
    let longest = interval.min(CHECK_EVERY_MAX);
    loop {
        // The time is random, because several programs may start simultaneously.
        tokio::time::sleep(longest.mul_f64(random::part())).await;
        let Some(core) = core.upgrade() else { return };
        let stats = Arc::clone(&core.requests.stats);
        let swept = match core.begin_sweep(interval).await {
            Ok(false) => continue,
            Ok(true) => core.sweep(age, false, &Progress::default(), &|_| {}).await,
            Err(error) => Err(error),
        };
        match swept {
            Ok(_) => stats.sweeps.increment(),
            // The next sweep completes the work of this one.
            Err(_) => stats.sweeps_failed.increment(),
        };
    }
}

impl Core {
    /// Returns whether a sweep is due and this program is the one to run it.
    pub(crate) async fn begin_sweep(&self, interval: Duration) -> Result<bool> {
        let path = self.layout.path(LAST_SWEEP);
        let body = Bytes::from(format!("a sweep began {:032x}", random::unique()));
        let put = match self.requests.meta_if_there(&path).await? {
            None => self.requests.create(&path, &body).await,
            Some(last) => {
                let since = self.server_time().await?.saturating_sub(last.last_modified.timestamp());
                let is_due = since >= i64::try_from(interval.as_secs()).unwrap_or(i64::MAX);
                let Some(etag) = last.e_tag.filter(|_| is_due) else { return Ok(false) };
                self.requests.replace(&path, &body, &etag).await
            }
        };
        Ok(matches!(put.known()?, Put::Done(_)))
    }
}

#[cfg(test)]
mod tests {
    use blocker::SystemClock;
    use blocker::executor::block_on;
    use object_store::memory::InMemory;

    use super::*;
    use crate::{S3Config, S3Store};

    #[test]
    fn of_several_programs_one_sweeps_in_an_interval() {
        let server = Arc::new(InMemory::new());
        let open = || {
            let server = Arc::clone(&server) as Arc<dyn object_store::ObjectStore>;
            S3Store::open_over(&S3Config::new("bucket"), server, Arc::new(SystemClock)).unwrap()
        };
        let (one, two) = (open(), open());
        let day = Duration::from_secs(24 * 60 * 60);
        assert!(block_on(one.core.begin_sweep(day)).unwrap(), "none has swept yet");
        assert!(!block_on(one.core.begin_sweep(day)).unwrap());
        assert!(!block_on(two.core.begin_sweep(day)).unwrap());
        assert!(block_on(two.core.begin_sweep(Duration::ZERO)).unwrap(), "it is time again");
    }
}
