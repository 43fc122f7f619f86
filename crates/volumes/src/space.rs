//! One namespace of the store, and the terms on which its objects are changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blocker::{
    Blocker, BlockerExt, Capabilities, Change, Condition, DeleteRequest, Durability, FlushRequest,
    InvalidateRequest, Namespace, ObjectId, OrderDomain, Quota, ReadRequest, Reply, Scope, Segments, Stamp,
    Version, WriteFullRequest,
};
use futures_util::TryStreamExt;

use crate::error::{Error, Result};
use crate::format::entry::{Entry, Kind, VolumeId};
use crate::format::map::Map;
use crate::format::{PAGE_BYTES, Page, PageName, decode_page, decode_root};
use crate::left::Left;
use crate::room::Room;

/// All changes of a volume are in this order domain of its namespace.
const DOMAIN: OrderDomain = OrderDomain(1);
/// Removals under way at once.
const REMOVALS_MAX: usize = 32;
/// Requests for pages under way at once.
const LOADS_MAX: usize = 16;

/// The store with the names of the volumes' namespaces.
#[derive(Clone)]
pub(crate) struct Pool {
    pub(crate) store: Arc<dyn Blocker>,
    pub(crate) capabilities: Capabilities,
    pub(crate) left: Left,
    /// The memory for overlays.
    pub(crate) room: Arc<Room>,
    prefix: Arc<str>,
}

impl Pool {
    pub(crate) fn new(store: Arc<dyn Blocker>, prefix: &str, room: Arc<Room>) -> Self {
        let capabilities = store.capabilities();
        Self { store, capabilities, left: Left::default(), room, prefix: prefix.into() }
    }

    /// Returns the namespace of the catalog.
    pub(crate) fn catalog(&self) -> Namespace {
        Namespace::copy_from(self.prefix.as_bytes()).expect("the prefix was checked")
    }

    /// Returns the namespace of a volume.
    pub(crate) fn namespace(&self, volume: VolumeId) -> Namespace {
        Namespace::new(format!("{}.{volume}", self.prefix)).expect("the prefix was checked")
    }

    /// Returns an object of a volume.
    pub(crate) fn object(&self, volume: VolumeId, kind: Kind) -> ObjectId {
        ObjectId::new(self.namespace(volume), kind.name())
    }

    /// Returns the whole content of a small object.
    pub(crate) async fn get(&self, object: ObjectId) -> Result<(Segments, Version), blocker::Error> {
        let mut all = Segments::new();
        let mut version = None;
        loop {
            let at = all.len_bytes() as u64;
            let mut request = ReadRequest::new(object.clone(), at, self.capabilities.request_bytes_max);
            if let Some(version) = version {
                request = request.if_version(version);
            }
            let reply = match self.store.read(request).await {
                // It was replaced meanwhile: from its begin again.
                Err(blocker::Error::ConditionFailed { .. }) => {
                    (all, version) = (Segments::new(), None);
                    continue;
                }
                answer => answer?,
            };
            let is_end = reply.data.is_empty();
            all.append(reply.data);
            version = Some(reply.version);
            if is_end || all.len_bytes() as u64 >= reply.size_bytes {
                return Ok((all, reply.version));
            }
        }
    }

    /// Lets the caches below read anew what they have of a scope and need not store.
    pub(crate) async fn invalidate(&self, scope: Scope) -> Result<()> {
        match self.store.invalidate(InvalidateRequest::new(scope)).await {
            Ok(_) | Err(blocker::Error::Unsupported(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the entries of the pages in `root`, taking from `near` those that it has at the same place.
    pub(crate) async fn load(&self, root: &[Entry], near: Option<(&[Entry], &Map)>) -> Result<Map> {
        use futures_util::StreamExt;
        let mut loads = Vec::new();
        let mut pages = vec![None; root.len()];
        for (page, at) in root.iter().enumerate() {
            match near.filter(|(root, _)| root.get(page) == Some(at)) {
                Some((_, map)) => pages[page] = map.page(page).cloned(),
                None if at.is_hole() => {}
                None => loads.push(load_page(self.clone(), page, *at)),
            }
        }
        let loaded: Vec<_> = futures_util::stream::iter(loads).buffered(LOADS_MAX).try_collect().await?;
        for (page, entries) in loaded {
            pages[page] = Some(entries);
        }
        Ok(Map { pages })
    }
}

/// Owns what it needs, so that the future can be sent to another thread whatever it is part of.
async fn load_page(pool: Pool, page: usize, at: Entry) -> Result<(usize, Arc<Page>)> {
    // A map has at most 65 536 pages.
    let number = page as u32;
    let object = pool.object(at.volume(), Kind::Page(at.birth(), number));
    let damaged = |why: &str| Error::Damaged(format!("page {object} of a map: {why}"));
    let request = ReadRequest::new(object.clone(), 0, PAGE_BYTES as u64);
    let reply = match pool.store.read(request).await {
        Err(blocker::Error::Missing) => return Err(damaged("it is missing")),
        Err(blocker::Error::Corrupt(why)) => return Err(damaged(&why)),
        answer => answer?,
    };
    let name = PageName { volume: at.volume(), birth: at.birth(), page: number };
    let entries = decode_page(name, &reply.data.to_bytes()).map_err(|why| damaged(&why))?;
    Ok((page, Arc::from(entries)))
}

/// Returns the pages and the map of a snapshot.
pub(crate) async fn load_node(
    pool: &Pool,
    volume: VolumeId,
    node: u64,
    near: (&[Entry], &Map),
) -> Result<(Vec<Entry>, Map)> {
    let root = load_root(pool, volume, node).await?;
    let map = pool.load(&root, Some(near)).await?;
    Ok((root, map))
}

/// Reads a snapshot's root, and no page of its map.
pub(crate) async fn load_root(pool: &Pool, volume: VolumeId, node: u64) -> Result<Vec<Entry>> {
    let object = pool.object(volume, Kind::Root(node));
    let damaged = |why: &str| Error::Damaged(format!("root {object} of a snapshot: {why}"));
    let bytes = match pool.get(object.clone()).await {
        Ok((bytes, _)) => bytes.to_vec(),
        Err(blocker::Error::Missing) => return Err(damaged("it is missing")),
        Err(blocker::Error::Corrupt(why)) => return Err(damaged(&why)),
        Err(error) => return Err(error.into()),
    };
    decode_root(&bytes).map_err(|why| damaged(&why))
}

/// The namespace of one volume, for its owner.
pub(crate) struct Space {
    pub(crate) pool: Pool,
    pub(crate) volume: VolumeId,
    namespace: Namespace,
    /// `Some` where changes are stamped.
    fence: Option<Fence>,
}

struct Fence {
    epoch: u64,
    /// Rises with every change of the volume, and so with every change of an object.
    sequence: AtomicU64,
}

impl Space {
    /// Returns the namespace of `volume`; with an epoch, changes are stamped with it.
    pub(crate) fn new(pool: Pool, volume: VolumeId, epoch: Option<u64>) -> Self {
        let namespace = pool.namespace(volume);
        let fence = epoch.map(|epoch| Fence { epoch, sequence: AtomicU64::new(1) });
        Self { pool, volume, namespace, fence }
    }

    /// Returns whether changes are stamped: then an object has one change under way at a time.
    pub(crate) fn is_stamped(&self) -> bool {
        self.fence.is_some()
    }

    pub(crate) fn store(&self) -> &dyn Blocker {
        &*self.pool.store
    }

    pub(crate) fn object(&self, kind: Kind) -> ObjectId {
        ObjectId::new(self.namespace.clone(), kind.name())
    }

    /// Returns the terms of a change of the volume.
    pub(crate) fn change(&self, durability: Durability, condition: Condition) -> Change {
        let mut change = Change::default();
        change.durability = durability.min(self.pool.capabilities.durability_max);
        change.condition = condition;
        change.domain = Some(DOMAIN);
        if let Some(fence) = &self.fence {
            change.stamp = Some(Stamp::new(fence.epoch, fence.sequence.fetch_add(1, Ordering::Relaxed)));
        }
        change
    }

    /// As [`Self::change`], of a change that gives a place to what was acknowledged: no quota refuses it.
    pub(crate) fn settling(&self, durability: Durability, condition: Condition) -> Change {
        let mut change = self.change(durability, condition);
        change.settles = true;
        change
    }

    /// Replaces an object, *stored* when this returns. No quota refuses it: what the volume has acknowledged is found by such
    /// objects.
    pub(crate) async fn put(
        &self,
        kind: Kind,
        bytes: Vec<u8>,
        condition: Condition,
    ) -> Result<Version, blocker::Error> {
        self.put_as(kind, bytes, self.settling(Durability::Stored, condition)).await
    }

    /// As [`Self::put`], of an object that a quota may refuse.
    pub(crate) async fn put_if_room(
        &self,
        kind: Kind,
        bytes: Vec<u8>,
        condition: Condition,
    ) -> Result<Version, blocker::Error> {
        self.put_as(kind, bytes, self.change(Durability::Stored, condition)).await
    }

    async fn put_as(&self, kind: Kind, bytes: Vec<u8>, change: Change) -> Result<Version, blocker::Error> {
        let request = WriteFullRequest::new(self.object(kind), bytes).change(change);
        let reply = self.store().write_full(request).await?;
        match self.ensure_stored(kind, reply.durability).await {
            Ok(()) => Ok(reply.version),
            Err(fenced @ blocker::Error::Fenced { .. }) => Err(fenced),
            // It was written, whatever the flush says.
            Err(error) => Err(blocker::Error::NotStored(error.to_string().into())),
        }
    }

    /// Flushes an object unless the change was answered as *stored*.
    pub(crate) async fn ensure_stored(&self, kind: Kind, is: Durability) -> Result<(), blocker::Error> {
        if is < Durability::Stored {
            let scope = Scope::Object(self.object(kind));
            self.store().flush(FlushRequest::new(scope)).await?;
        }
        Ok(())
    }

    /// Flushes all changes of the volume.
    pub(crate) async fn flush(&self, durability: Durability) -> Result<(), blocker::Error> {
        let scope = Scope::Domain(self.namespace.clone(), DOMAIN);
        self.store().flush(FlushRequest::new(scope).durability(durability)).await.map(drop)
    }

    /// Returns what the volume may use and what it uses.
    pub(crate) fn quota(&self) -> Reply<Quota> {
        self.store().control().quota(self.namespace.clone())
    }

    /// Returns all objects of the volume, whether a map names them or not.
    pub(crate) async fn objects(&self) -> Result<Vec<ObjectId>, blocker::Error> {
        let entries: Vec<_> = self.pool.store.entries(self.namespace.clone(), "").try_collect().await?;
        Ok(entries.into_iter().map(|entry| ObjectId::new(self.namespace.clone(), entry.name)).collect())
    }

    /// Removes objects that nothing refers to, some at a time.
    pub(crate) async fn remove_all(&self, objects: &[ObjectId]) -> Result<(), blocker::Error> {
        for some in objects.chunks(REMOVALS_MAX) {
            let removals: Vec<_> = some.iter().map(|object| self.remove_object(object.clone())).collect();
            futures_util::future::try_join_all(removals).await?;
        }
        Ok(())
    }

    /// Removes everything, the head last; *stored* when this returns.
    pub(crate) async fn clear(&self) -> Result<(), blocker::Error> {
        let head = self.object(Kind::Head);
        let mut rest = self.objects().await?;
        rest.retain(|object| *object != head);
        self.remove_all(&rest).await?;
        // Without a head nothing finds what a crash brings back: all else is gone for good first.
        self.flush(Durability::Stored).await?;
        self.remove(Kind::Head).await?;
        self.flush(Durability::Stored).await
    }

    /// Removes an object that nothing refers to any more, if it is there.
    pub(crate) async fn remove(&self, kind: Kind) -> Result<(), blocker::Error> {
        self.remove_object(self.object(kind)).await
    }

    async fn remove_object(&self, object: ObjectId) -> Result<(), blocker::Error> {
        let change = self.change(Durability::Cached, Condition::None);
        match self.store().delete(DeleteRequest::new(object).change(change)).await {
            Ok(_) | Err(blocker::Error::Missing) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
