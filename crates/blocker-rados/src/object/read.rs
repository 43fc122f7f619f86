//! Reads, copies and listings.
//!
//! One RADOS operation reads bytes, size and version atomically. A ghost has no bytes, so an object
//! with bytes exists; without bytes, the operation is repeated with a comparison that a ghost's
//! head fails.
//!
//! RADOS lists a namespace in hash order, so a page costs a walk over all names of its namespace
//! (some 100 000 per second and OSD). It needs memory only for the page: the walk keeps the first
//! names after the previous page. Sizes and versions are then queried, some tens at a time.

use std::collections::{BTreeSet, HashMap};
use std::ffi::CString;
use std::sync::Arc;

use blocker::admission::check_condition;
use blocker::conditional::{Progress, copied};
use blocker::{
    ChangeTerms, Condition, Error, Info, InfoRequest, ListEntry, ListReply, ListRequest, Name, Namespace,
    ObjectId, ReadReply, ReadRequest, Result, Version,
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt};
use tokio::sync::{mpsc, oneshot};

use super::change::clip;
use super::{Core, Pool, Space};
use crate::format::{BELOW_GHOSTS, HEAD, NAMESPACE, SCOPE};
use crate::librados::aio::ReadOp;
use crate::librados::ffi::errno;
use crate::librados::{IoCtx, each_name};

/// The maximum number of attempts of a read while the object keeps changing.
const TRIES: u32 = 20;

impl Core {
    pub(crate) async fn read(self: &Arc<Self>, request: ReadRequest) -> Result<ReadReply> {
        let limit_bytes = self.config.object_bytes_max;
        if request.len_bytes > limit_bytes {
            return Err(Error::TooLarge { limit_bytes });
        }
        let (data, size_bytes, version) = self
            .read_range(&request.object, request.offset, request.len_bytes as usize, request.condition)
            .await?;
        Ok(ReadReply::new(Bytes::from(data).into(), size_bytes, version))
    }

    /// Reads a range: bytes, size, and version.
    async fn read_range(
        self: &Arc<Self>,
        object: &ObjectId,
        offset: u64,
        len: usize,
        condition: Condition,
    ) -> Result<(Vec<u8>, u64, Version)> {
        let space = self.space(&object.namespace)?;
        let name = self.layout.object(&object.name);
        let wanted = match condition {
            Condition::Version(version) => Some(self.rados_version(&space, version)),
            _ => None,
        };
        let mut may_be_ghost = false;
        for _ in 0..TRIES {
            self.settle(&space, object).await?;
            // The version belongs to another pool, so no object in this pool has it.
            let version = wanted.map(|version| version.unwrap_or(u64::MAX));
            let op = ReadOp {
                version,
                above: may_be_ghost.then_some((HEAD, &BELOW_GHOSTS)),
                stat: true,
                range: clip(offset, len),
                ..ReadOp::default()
            };
            let (outcome, found) = self.read_object(&space, &name, op).await;
            match outcome.code {
                0.. if found.size_bytes == 0 && !may_be_ghost => may_be_ghost = true,
                0.. => {
                    let version = self.version(&space, outcome.version);
                    check_condition(Some(version), condition)?;
                    let mut data = found.data;
                    if data.len() < data.capacity() / 2 {
                        data.shrink_to_fit();
                    }
                    return Ok((data, found.size_bytes, version));
                }
                errno::CANCELED => return Err(Error::Missing),
                errno::RANGE | errno::OVERFLOW => {
                    let view = self.look(&space, &object.name, false).await?;
                    let version = view.is_there().then(|| self.version(&space, view.version));
                    check_condition(version, condition)?;
                }
                code => return Err(self.failed_read(&space, code)),
            }
        }
        Err(Error::Retryable("too many concurrent changes to this object".into()))
    }

    pub(crate) async fn info(self: &Arc<Self>, request: InfoRequest) -> Result<Info> {
        let object = &request.object;
        let space = self.space(&object.namespace)?;
        self.settle(&space, object).await?;
        let view = self.look(&space, &object.name, false).await?;
        let size_bytes = view.head.size_bytes().ok_or(Error::Missing)?;
        Ok(Info::new(size_bytes, self.version(&space, view.version), view.stamp))
    }

    /// Copies through this client, because librados's C interface has no copy within the store. The
    /// copied bytes are a consistent snapshot of the source.
    pub(crate) async fn copy(
        self: &Arc<Self>,
        (from, from_condition): (&ObjectId, Condition),
        (to, terms): (&ObjectId, ChangeTerms),
        progress: &Progress,
    ) -> Result<(Version, u64)> {
        let read = |len_bytes: u64| async move {
            let (data, size_bytes, version) =
                self.read_range(from, 0, len_bytes as usize, from_condition).await?;
            Ok::<_, Error>((data.into(), size_bytes, version))
        };
        let limit = self.config.object_bytes_max;
        let (change, terms) = copied((from, from_condition), (to, terms), limit, read).await?;
        self.change(to, &change, &terms, progress).await
    }
}

// ---- listings

/// The number of objects queried concurrently.
const LOOKS: usize = 64;
/// The maximum number of names buffered between a walk and the task that uses them.
const NAMES_AHEAD: usize = 256;
/// RADOS's name for all namespaces of a pool.
const EVERY_NAMESPACE: &std::ffi::CStr = c"\x01";

/// An object found by a walk, which may be a ghost or already gone.
pub(crate) struct Found {
    pub(crate) space: Arc<Space>,
    pub(crate) name: Name,
}

impl Core {
    pub(crate) async fn list(
        self: &Arc<Self>,
        request: ListRequest,
        entries_max: usize,
    ) -> Result<ListReply> {
        let space = self.space(&request.namespace)?;
        let mut after = request.after.clone();
        let mut entries = Vec::new();
        loop {
            // The request asks for one name more, which shows whether there are more.
            let wanted = entries_max + 1 - entries.len();
            let names = self.names_after(&space, &request.prefix, after.as_ref(), wanted).await?;
            let is_last = names.len() < wanted;
            after = names.last().cloned().or(after);
            let looks = futures_util::stream::iter(names).map(|name| self.entry(&space, name));
            let page: Vec<Option<ListEntry>> = looks.buffered(LOOKS).try_collect().await?;
            entries.extend(page.into_iter().flatten());
            if is_last || entries.len() > entries_max {
                break;
            }
        }
        let has_more = entries.len() > entries_max;
        entries.truncate(entries_max);
        Ok(ListReply::new(entries, has_more))
    }

    async fn entry(self: &Arc<Self>, space: &Arc<Space>, name: Name) -> Result<Option<ListEntry>> {
        let view = self.look(space, &name, false).await?;
        let size_bytes = view.head.size_bytes();
        Ok(size_bytes.map(|size_bytes| ListEntry::new(name, size_bytes, self.version(space, view.version))))
    }

    /// Returns the first `count` names after `after`, in order.
    async fn names_after(
        self: &Arc<Self>,
        space: &Arc<Space>,
        prefix: &[u8],
        after: Option<&Name>,
        count: usize,
    ) -> Result<Vec<Name>> {
        let (prefix, after) = (prefix.to_vec(), after.cloned());
        let layout = self.layout.clone();
        let names = self
            .walk(space, move |ioctx| {
                let mut first: BTreeSet<Name> = BTreeSet::new();
                each_name(ioctx, |name, _| {
                    if let Some(name) = layout.name_of(name)
                        && name.as_bytes().starts_with(&prefix)
                        && after.as_ref().is_none_or(|after| name > *after)
                        && (first.len() < count || first.last().is_some_and(|last| name < *last))
                    {
                        first.insert(name);
                        if first.len() > count {
                            first.pop_last();
                        }
                    }
                    true
                })?;
                Ok(first)
            })
            .await?;
        Ok(names.map_err(|code| self.failed_read(space, code))?.into_iter().collect())
    }

    /// Lists every object in a namespace, or in all of them, in RADOS's order.
    pub(crate) fn find_all(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        space: Option<Arc<Space>>,
    ) -> Result<impl Stream<Item = Result<Found>> + Send + use<>> {
        let (sender, receiver) = mpsc::channel(NAMES_AHEAD);
        let (core, pool) = (Arc::clone(self), Arc::clone(pool));
        self.worker.run(Box::new(move || {
            if let Err(error) = core.send_all(&pool, space, &sender) {
                // A task that no longer waits needs no error.
                let _ = sender.blocking_send(Err(error));
            }
        }))?;
        Ok(futures_util::stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|found| (found, receiver))
        }))
    }

    fn send_all(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        only: Option<Arc<Space>>,
        sender: &mpsc::Sender<Result<Found>>,
    ) -> Result<()> {
        let everywhere = match &only {
            Some(space) => Arc::clone(space),
            None => self.open_space(pool, EVERY_NAMESPACE, true)?,
        };
        let mut spaces: HashMap<Vec<u8>, Arc<Space>> = HashMap::new();
        let mut failed = Ok(());
        let walked = each_name(&everywhere.ioctx, |name, rados_namespace| {
            let Some(name) = self.layout.name_of(name) else { return true };
            let space = match (&only, spaces.get(rados_namespace)) {
                (Some(space), _) | (None, Some(space)) => Arc::clone(space),
                (None, None) if !self.layout.holds_namespace(rados_namespace) => return true,
                (None, None) => match self.open_listed(pool, rados_namespace) {
                    Ok(space) => {
                        spaces.insert(rados_namespace.to_vec(), Arc::clone(&space));
                        space
                    }
                    Err(error) => {
                        failed = Err(error);
                        return false;
                    }
                },
            };
            sender.blocking_send(Ok(Found { space, name })).is_ok()
        });
        failed?;
        walked.map_err(|code| self.failed_read(&pool.root, code))
    }

    /// Opens a RADOS namespace that a listing has shown.
    fn open_listed(self: &Arc<Self>, pool: &Pool, rados_namespace: &[u8]) -> Result<Arc<Space>> {
        let name = CString::new(rados_namespace);
        let name = name.map_err(|_| Error::Corrupt("a namespace contains a NUL byte".into()))?;
        self.open_space(pool, &name, true)
    }

    /// Returns the namespaces that have, or have had, objects or claims, in order.
    pub(crate) async fn namespaces(self: &Arc<Self>) -> Result<Vec<Namespace>> {
        let pool = self.pool();
        let space = self.open_space(&pool, EVERY_NAMESPACE, true)?;
        let (layout, scope) = (self.layout.clone(), self.layout.internal(SCOPE));
        let walked = self.walk(&space, move |ioctx| {
            let mut found = Vec::new();
            each_name(ioctx, |name, rados_namespace| {
                if name == scope.as_bytes() && layout.holds_namespace(rados_namespace) {
                    found.push(rados_namespace.to_vec());
                }
                true
            })?;
            Ok(found)
        });
        let mut namespaces = Vec::new();
        for rados_namespace in walked.await?.map_err(|code| self.failed_read(&space, code))? {
            let space = self.open_listed(&pool, &rados_namespace)?;
            let op = ReadOp { attributes: true, ..ReadOp::default() };
            let (outcome, found) = self.limits.read(&space.ioctx, &self.layout.internal(SCOPE), op).await;
            match outcome.code {
                0.. => {}
                errno::NOENT => continue,
                code => return Err(self.failed_read(&space, code)),
            }
            let name = found.attributes.into_iter().find(|(name, _)| name == NAMESPACE.to_bytes());
            if let Some((_, name)) = name {
                namespaces.push(Namespace::new(name)?);
            }
        }
        namespaces.sort();
        Ok(namespaces)
    }

    /// Returns the names of the records of all claimed domains of a namespace.
    pub(crate) async fn domain_records(self: &Arc<Self>, space: &Arc<Space>) -> Result<Vec<CString>> {
        let layout = self.layout.clone();
        let walked = self.walk(space, move |ioctx| {
            let mut found = Vec::new();
            each_name(ioctx, |name, _| {
                found.extend(layout.domain_of(name).map(|domain| layout.domain(domain)));
                true
            })?;
            Ok(found)
        });
        walked.await?.map_err(|code| self.failed_read(space, code))
    }

    /// Runs a walk on a thread that may block. The outer error is this store's, the inner error is
    /// librados's.
    async fn walk<T: Send + 'static>(
        &self,
        space: &Arc<Space>,
        walk: impl FnOnce(&IoCtx) -> std::result::Result<T, i32> + Send + 'static,
    ) -> Result<std::result::Result<T, i32>> {
        let (sender, receiver) = oneshot::channel();
        let space = Arc::clone(space);
        self.worker.run(Box::new(move || {
            // The caller may have stopped waiting.
            let _ = sender.send(walk(&space.ioctx));
        }))?;
        receiver.await.map_err(|_| Error::Retryable("the store is being closed".into()))
    }
}
