//! Forgetting: removes the heads that deleted objects have left, where nothing depends on them any more.
//!
//! A ghost keeps three things: its fence, the stamp of the deletion, which keeps older changes of the same writer out,
//! and a version that must not come again. A name without a head gets its fence from its scopes and a version drawn at
//! random. So a ghost may go once
//!  - it is older than a sweep's age, so that no writer still asks what has become of a change that it has lost sight of,
//!  - it was never claimed by itself, and its fences are not above those of its scopes, which never fall,
//!  - its stamp is of an epoch below that of its scopes, which refuse that writer by now.
//!
//! It must go only if it is still the ghost that was judged: another writer may have made an object of it since, or make
//! it at any moment. So it is removed on the condition of its ETag, and no two bodies are alike. Not every server
//! keeps that condition; each sweep tries it out first, and leaves ghosts alone where it is ignored.

use std::pin::pin;
use std::sync::atomic::Ordering;

use blocker::{ObjectId, Result};
use futures_util::StreamExt;
use object_store::ObjectMeta;
use object_store::path::Path;

use crate::format::head::{Claim, Head};
use crate::format::layout::Spelling;
use crate::object::Core;
use crate::object::fence::Scopes;
use crate::server::remove_if::RemoveIf;
use crate::sweep::Sweep;

/// No ghost without order domains is larger; those of objects with much in them are.
const GHOST_BYTES_MAX: u64 = 512;
/// An ETag that the probe's object does not have.
const WRONG_ETAG: &str = "\"00000000000000000000000000000000\"";
/// How many heads are looked at at once.
const AT_ONCE: usize = 8;
/// How many heads are listed at once.
const HEADS_AT_ONCE: usize = 1000;

impl Sweep<'_> {
    /// Removes the ghosts that are old enough and that nothing depends on.
    pub(crate) async fn ghosts(&mut self) -> Result<()> {
        let core = self.core;
        let Some(remover) = &core.remover else { return Ok(()) };
        self.swept.can_forget = core.keeps_conditions_of_removals(&**remover).await?;
        if !self.swept.can_forget {
            return Ok(());
        }
        for directory in core.requests.directories(&core.layout.all_heads()).await? {
            let Some(namespace) = core.namespace_at(&directory).await? else { continue };
            for spelling in Spelling::ALL {
                let under = core.layout.heads(&namespace, spelling);
                let mut after: Option<Path> = None;
                loop {
                    let page = core.requests.list(&under, after.as_ref(), HEADS_AT_ONCE).await?;
                    after = page.last().map(|last| last.location.clone());
                    let is_last = page.len() < HEADS_AT_ONCE;
                    self.swept.heads += page.len() as u64;
                    let is_old = |meta: &ObjectMeta| {
                        meta.size <= GHOST_BYTES_MAX && meta.last_modified.timestamp() <= self.oldest
                    };
                    let objects = page.iter().filter(|meta| is_old(meta)).filter_map(|meta| {
                        let name = core.layout.name_of(&meta.location)?;
                        Some(ObjectId::new(namespace.clone(), name))
                    });
                    let objects: Vec<ObjectId> = objects.collect();
                    self.step();
                    let dry_run = self.dry_run;
                    let met = futures_util::stream::iter(objects)
                        .map(|object| core.forget_one(object, &**remover, dry_run));
                    let mut met = pin!(met.buffer_unordered(AT_ONCE));
                    while let Some(ghost) = met.next().await {
                        match ghost? {
                            Ghost::None => {}
                            Ghost::Kept => self.swept.kept += 1,
                            Ghost::Removed => self.swept.forgotten += 1,
                        }
                        self.step();
                    }
                    if is_last {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

/// What a head was found to be.
enum Ghost {
    /// The head of an object, or gone, or made anew meanwhile.
    None,
    /// One that something depends on.
    Kept,
    Removed,
}

impl Core {
    async fn forget_one(&self, object: ObjectId, remover: &dyn RemoveIf, dry_run: bool) -> Result<Ghost> {
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
        self.requests.stats.forgotten.fetch_add(1, Ordering::Relaxed);
        Ok(Ghost::Removed)
    }

    /// Whether the server removes an object only if it has the ETag that was named.
    async fn keeps_conditions_of_removals(&self, remover: &dyn RemoveIf) -> Result<bool> {
        let path = self.layout.probe(rand::random());
        let body = bytes::Bytes::from_static(b"a probe of removals");
        self.requests.put_blob(&path, body).await?;
        let etag = self.requests.meta(&path).await?.e_tag.unwrap_or_default();
        // A refusal of another kind is an answer as well: such a server does not know them.
        let is_ignored = remover.remove_if(&path, WRONG_ETAG).await.unwrap_or(true);
        let is_there = self.requests.meta_if_there(&path).await?.is_some();
        let is_kept = !is_ignored && is_there && remover.remove_if(&path, &etag).await.unwrap_or(false);
        let is_kept = is_kept && self.requests.meta_if_there(&path).await?.is_none();
        self.requests.delete(&path).await?;
        Ok(is_kept)
    }
}

/// Whether nothing depends on the ghost.
fn may_go(head: &Head, scopes: Scopes) -> bool {
    let is_free = !head.is_there && head.claim == Claim::default();
    let is_fenced = head.fence.is_none_or(|fence| fence <= scopes.whole);
    is_free && is_fenced && head.stamp.is_none_or(|stamp| stamp.epoch.0 < scopes.whole)
}
