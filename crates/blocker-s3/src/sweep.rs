//! The sweep: finds blobs that no head names and removes them, and then what `forget.rs` finds.
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

use crate::core::Core;
use crate::heads::Seen;
use crate::swap::Swap;

/// How many blobs are looked at before what was found is removed.
const BLOBS_AT_ONCE: usize = 1000;

/// What a sweep has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Swept {
    /// The number of blobs that it has met.
    pub blobs: u64,
    /// The number of orphans that it has removed.
    pub removed: u64,
    /// The bytes of the removed orphans.
    pub removed_bytes: u64,
    /// The number of heads of deleted objects that it has removed.
    pub forgotten: u64,
}

impl Core {
    /// Removes blobs that are older than `age` and that no head names.
    pub(crate) async fn sweep(&self, age: Duration) -> Result<Swept> {
        let now = self.server_time().await?;
        let mut swept = Swept::default();
        for directory in self.requests.directories(&self.layout.all_blobs()).await? {
            let Some(namespace) = self.namespace_at(&directory).await? else { continue };
            let mut after: Option<Path> = None;
            loop {
                let page = self.requests.list(&directory, after.as_ref(), BLOBS_AT_ONCE).await?;
                after = page.last().map(|last| last.location.clone());
                let is_last = page.len() < BLOBS_AT_ONCE;
                let mut old: BTreeMap<ObjectId, Vec<(u128, u64)>> = BTreeMap::new();
                for meta in page {
                    let Some(key) = self.layout.blob_of(&meta.location, &namespace) else { continue };
                    swept.blobs += 1;
                    let stored = meta.last_modified.timestamp();
                    if now.saturating_sub(stored) >= i64::try_from(age.as_secs()).unwrap_or(i64::MAX) {
                        old.entry(key.object).or_default().push((key.blob, meta.size));
                    }
                }
                for (object, blobs) in old {
                    self.sweep_object(&object, blobs, &mut swept).await?;
                }
                if is_last {
                    break;
                }
            }
        }
        let age = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
        swept.forgotten = self.forget(now.saturating_sub(age)).await?;
        Ok(swept)
    }

    async fn sweep_object(
        &self,
        object: &ObjectId,
        mut blobs: Vec<(u128, u64)>,
        swept: &mut Swept,
    ) -> Result<()> {
        let seen = self.look(object).await?;
        let keep_unnamed = |blobs: &mut Vec<(u128, u64)>, seen: &Option<Seen>| {
            let named = seen.as_ref().map_or(&[][..], |seen| &seen.head.content.blobs);
            blobs.retain(|(id, _)| named.iter().all(|blob| blob.id != *id));
        };
        keep_unnamed(&mut blobs, &seen);
        if blobs.is_empty() {
            return Ok(());
        }
        if let Some(base) = &seen {
            match self.swap(object, base, base.head.next()).await {
                Swap::Done(_) => {}
                // It is in use: the next sweep is soon enough.
                Swap::Lost => return Ok(()),
                Swap::Failed(error) => return Err(error),
                Swap::Unknown(error) => return Err(Error::Retryable(error.to_string().into())),
            }
        }
        for (blob, len_bytes) in blobs {
            self.requests.delete(&self.layout.blob(object, blob)).await?;
            self.requests.stats.swept.fetch_add(1, Ordering::Relaxed);
            swept.removed += 1;
            swept.removed_bytes += len_bytes;
        }
        Ok(())
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
