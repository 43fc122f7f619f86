//! Listings: names from the server, in its order, and what is behind them.
//!
//! A listing of the server has keys and ETags, but neither sizes nor versions: those are in the heads, which
//! are read some at a time. A head that is remembered with the ETag of the listing is not read again.

use std::collections::BTreeMap;
use std::sync::Arc;

use blocker::{Error, ListEntry, ListReply, ListRequest, Name, Namespace, ObjectId, Result, Version};
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;

use crate::format::layout::Spelling;
use crate::object::heads::Seen;
use crate::object::{AT_ONCE, Core};

/// The most names that are asked for at once.
const NAMES_AT_ONCE: usize = 1000;

/// A name that a listing has shown, and the ETag of its head.
type Found = BTreeMap<Name, Option<String>>;

/// A walk over all heads of a namespace, those of ghosts included.
pub(crate) struct Walk {
    namespace: Namespace,
    spelling: Option<Spelling>,
    after: Option<Path>,
}

impl Walk {
    /// Returns the next objects, perhaps none; `None` at the end.
    ///
    /// # Errors
    /// Those of reads.
    pub(crate) async fn next(&mut self, core: &Core) -> Result<Option<Vec<ObjectId>>> {
        let Some(spelling) = self.spelling else { return Ok(None) };
        let under = core.layout.heads(&self.namespace, spelling);
        let found = core.requests.list(&under, self.after.as_ref(), NAMES_AT_ONCE).await?;
        self.after = found.last().map(|last| last.location.clone());
        if found.len() < NAMES_AT_ONCE {
            self.after = None;
            self.spelling = (spelling == Spelling::Plain).then_some(Spelling::Hex);
        }
        let names = found.iter().filter_map(|found| core.layout.name_of(&found.location));
        Ok(Some(names.map(|name| ObjectId::new(self.namespace.clone(), name)).collect()))
    }
}

impl Core {
    /// Returns a walk over all heads of a namespace.
    pub(crate) fn walk(&self, namespace: &Namespace) -> Walk {
        Walk { namespace: namespace.clone(), spelling: Some(Spelling::Plain), after: None }
    }

    pub(crate) async fn list(&self, request: ListRequest, entries_max: usize) -> Result<ListReply> {
        let mut after = request.after.clone();
        let mut entries = Vec::new();
        loop {
            // One more than fits, to know whether there is more.
            let wanted = (entries_max + 1 - entries.len()).min(NAMES_AT_ONCE);
            let found = self.names(&request.namespace, &request.prefix, after.as_ref(), wanted).await?;
            let is_last = found.len() < wanted;
            after = found.last_key_value().map(|(name, _)| name.clone()).or(after);
            let page: Vec<Option<ListEntry>> = futures_util::stream::iter(found)
                .map(|(name, etag)| self.entry(&request.namespace, name, etag))
                .buffered(AT_ONCE)
                .try_collect()
                .await?;
            entries.extend(page.into_iter().flatten());
            if is_last || entries.len() > entries_max {
                break;
            }
        }
        let has_more = entries.len() > entries_max;
        entries.truncate(entries_max);
        Ok(ListReply::new(entries, has_more))
    }

    async fn entry(
        &self,
        namespace: &Namespace,
        name: Name,
        etag: Option<String>,
    ) -> Result<Option<ListEntry>> {
        let object = ObjectId::new(namespace.clone(), name);
        let known = self.heads.recall(&object).filter(|seen| {
            // As different parts of a server write it.
            let bare = |etag: &str| etag.trim_matches('"').to_owned();
            etag.as_deref().is_some_and(|etag| bare(etag) == bare(&seen.etag))
        });
        let seen: Option<Seen> = match known {
            Some(seen) if !self.heads.is_unsettled(&object) => Some(seen),
            _ => self.look(&object).await?,
        };
        let there = seen.map(|seen| Arc::clone(&seen.head)).filter(|head| head.is_there);
        Ok(there.map(|head| ListEntry::new(object.name, head.content.size_bytes, Version(head.version))))
    }

    /// Returns the first `count` names after `after` that begin with `prefix`, those of ghosts included.
    async fn names(
        &self,
        namespace: &Namespace,
        prefix: &[u8],
        after: Option<&Name>,
        count: usize,
    ) -> Result<Found> {
        let mut names = Found::new();
        for spelling in Spelling::ALL {
            names.extend(self.names_spelled(namespace, spelling, prefix, after, count).await?);
        }
        while names.len() > count {
            names.pop_last();
        }
        Ok(names)
    }

    async fn names_spelled(
        &self,
        namespace: &Namespace,
        spelling: Spelling,
        prefix: &[u8],
        after: Option<&Name>,
        count: usize,
    ) -> Result<Found> {
        let Some(prefix_key) = self.layout.head_from(namespace, spelling, prefix) else {
            return Ok(Found::new());
        };
        let under = self.layout.heads(namespace, spelling);
        let mut found = Found::new();
        // The server begins after a key; the name that is the prefix itself is asked for apart.
        let after = after.map(Name::as_bytes).filter(|after| *after >= prefix);
        if after.is_none()
            && let Ok(name) = Name::copy_from(prefix)
        {
            let object = ObjectId::new(namespace.clone(), name.clone());
            if self.layout.head(&object) == prefix_key && self.look(&object).await?.is_some() {
                found.insert(name, None);
            }
        }
        let mut from = match after {
            Some(after) => Some(self.key_after(namespace, spelling, after)),
            None => (!prefix.is_empty()).then_some(prefix_key),
        };
        while found.len() < count {
            let page = self.requests.list(&under, from.as_ref(), count).await?;
            let is_last = page.len() < count;
            from = page.last().map(|last| last.location.clone());
            for meta in page {
                let Some(name) = self.layout.name_of(&meta.location) else { continue };
                if !name.as_bytes().starts_with(prefix) {
                    return Ok(found);
                }
                if after.is_none_or(|after| name.as_bytes() > after) {
                    found.insert(name, meta.e_tag);
                }
            }
            if is_last {
                break;
            }
        }
        Ok(found)
    }

    /// A key after which all names after `after` lie, and not many others.
    fn key_after(&self, namespace: &Namespace, spelling: Spelling, after: &[u8]) -> Path {
        // What is not plain is cut off: the rest sorts before it, and what lies between is left out later.
        let mut cut = after.len();
        loop {
            if let Some(key) = self.layout.head_from(namespace, spelling, &after[..cut])
                && (cut == after.len() || cut > 0)
            {
                return key;
            }
            if cut == 0 {
                return self.layout.heads(namespace, spelling);
            }
            cut -= 1;
        }
    }

    /// Returns the namespaces that have heads or records, in order.
    pub(crate) async fn namespaces(&self) -> Result<Vec<Namespace>> {
        let mut namespaces = std::collections::BTreeSet::new();
        for under in [self.layout.all_heads(), self.layout.all_records()] {
            for directory in self.requests.directories(&under).await? {
                if let Some(namespace) = self.namespace_at(&directory).await? {
                    namespaces.insert(namespace);
                }
            }
        }
        Ok(namespaces.into_iter().collect())
    }

    /// The namespace that a directory below heads, blobs or records is of; `None` for a directory that is
    /// none of this store's.
    pub(crate) async fn namespace_at(&self, directory: &Path) -> Result<Option<Namespace>> {
        let Some(segment) = self.layout.segment_of(directory) else { return Ok(None) };
        match self.layout.namespace_of(segment) {
            None => Ok(None),
            Some(Ok(namespace)) => Ok(Some(namespace)),
            Some(Err(record)) => {
                let (record, _) = self.record_at(&record).await?;
                let namespace = Namespace::new(record.namespace).ok();
                match namespace.filter(|namespace| self.layout.is_written_as(namespace, segment)) {
                    Some(namespace) => Ok(Some(namespace)),
                    None => {
                        let text = format!("the record of {segment} lacks the name of its namespace");
                        Err(Error::Corrupt(text.into()))
                    }
                }
            }
        }
    }
}
