//! The store below: a volume's namespace and the terms of changes of its objects, this process's
//! knowledge of volumes that it does not have, the memory for overlays, and the limits of a
//! volume's namespace.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blocker::{
    Blocker, BlockerExt, Capabilities, ChangeTerms, Condition, DeleteRequest, Durability, Error as Store,
    FlushRequest, InvalidateRequest, Namespace, NamespaceKey, NamespaceSettings, ObjectId, OrderDomain,
    Policy, Quota, ReadRequest, Reply, Scope, Segments, Stamp, Version, WriteFullRequest, WriteMode,
};
use futures_util::TryStreamExt;
use futures_util::future::join_all;
use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::format::entry::{Entry, Kind, VolumeId};
use crate::format::map::Map;
use crate::format::{PAGE_BYTES, Page, PageName, decode_page, decode_root};
use crate::settings::Settings;

/// The order domain of all changes of a volume, within the volume's namespace.
const DOMAIN: OrderDomain = OrderDomain(1);
/// The maximum number of concurrent removals.
const REMOVALS_MAX: usize = 32;
/// The maximum number of concurrent requests for pages.
const LOADS_MAX: usize = 16;

/// The store, with the naming of the volumes' namespaces and objects.
#[derive(Clone)]
pub(crate) struct Pool {
    pub(crate) store: Arc<dyn Blocker>,
    pub(crate) capabilities: Capabilities,
    pub(crate) left: Left,
    /// The memory for overlays.
    pub(crate) overlay_memory: Arc<OverlayMemory>,
    prefix: Arc<str>,
}

impl Pool {
    pub(crate) fn new(store: Arc<dyn Blocker>, prefix: &str, overlay_memory: Arc<OverlayMemory>) -> Self {
        let capabilities = store.capabilities();
        Self { store, capabilities, left: Left::default(), overlay_memory, prefix: prefix.into() }
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

    /// Returns all objects of a volume, whether or not a map names them.
    pub(crate) async fn objects(&self, volume: VolumeId) -> Result<Vec<ObjectId>, Store> {
        let namespace = self.namespace(volume);
        let entries: Vec<_> = self.store.entries(namespace.clone(), "").try_collect().await?;
        Ok(entries.into_iter().map(|entry| ObjectId::new(namespace.clone(), entry.name)).collect())
    }

    /// Returns the whole content of a small object.
    pub(crate) async fn get(&self, object: ObjectId) -> Result<(Segments, Version), Store> {
        let mut all = Segments::new();
        let mut version = None;
        loop {
            let at = all.len_bytes() as u64;
            let mut request = ReadRequest::new(object.clone(), at, self.capabilities.request_bytes_max);
            if let Some(version) = version {
                request = request.if_version(version);
            }
            let reply = match self.store.read(request).await {
                // The object was replaced meanwhile: restart from the beginning.
                Err(Store::ConditionFailed { .. }) => {
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

    /// Makes caches below drop their clean copies of a scope. Their losses stay: whoever reads again
    /// does not accept them for the owners of the volumes.
    pub(crate) async fn invalidate(&self, scope: Scope) -> Result<()> {
        let request = InvalidateRequest::new(scope).accepts_losses(false);
        if_supported(self.store.invalidate(request).await).map(drop)
    }

    /// Like [`invalidate`](Self::invalidate), for an owner that takes the content as it is: what is
    /// lost of it is accepted.
    pub(crate) async fn take_as_is(&self, scope: Scope) -> Result<()> {
        if_supported(self.store.invalidate(InvalidateRequest::new(scope)).await).map(drop)
    }

    /// Returns a map with the entries of the pages in `root`. Pages that `near` has under the same
    /// entry are shared with it.
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

/// Returns the result of an operation that the store need not support: `None` if it does not.
pub(crate) fn if_supported<T>(result: Result<T, Store>) -> Result<Option<T>> {
    match result {
        Err(Store::Unsupported(_)) => Ok(None),
        done => Ok(Some(done?)),
    }
}

/// Returns the error of a read of an object that must be readable. `what` names the object.
pub(crate) fn unreadable(error: Store, what: &str) -> Error {
    match error {
        Store::Missing => damaged(what, "it is missing"),
        Store::Corrupt(why) => damaged(what, &why),
        error => error.into(),
    }
}

/// Returns the error of a damaged object. `what` names the object.
pub(crate) fn damaged(what: &str, why: &str) -> Error {
    Error::Damaged(format!("{what}: {why}"))
}

/// Takes its arguments by value, so that the future is `Send` wherever it is used.
async fn load_page(pool: Pool, page: usize, at: Entry) -> Result<(usize, Arc<Page>)> {
    // A map has at most 65 536 pages.
    let number = page as u32;
    let object = pool.object(at.volume(), Kind::Page(at.allocation(), number));
    let what = || format!("page {object} of a map");
    let request = ReadRequest::new(object.clone(), 0, PAGE_BYTES as u64);
    let reply = pool.store.read(request).await.map_err(|error| unreadable(error, &what()))?;
    let name = PageName { volume: at.volume(), allocation: at.allocation(), page: number };
    let entries = decode_page(name, &reply.data.to_bytes()).map_err(|why| damaged(&what(), &why))?;
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

/// Reads a snapshot's root, without the pages of its map.
pub(crate) async fn load_root(pool: &Pool, volume: VolumeId, node: u64) -> Result<Vec<Entry>> {
    let object = pool.object(volume, Kind::Root(node));
    let what = || format!("root {object} of a snapshot");
    let (bytes, _) = pool.get(object.clone()).await.map_err(|error| unreadable(error, &what()))?;
    decode_root(&bytes.to_vec()).map_err(|why| damaged(&what(), &why))
}

/// The namespace of one volume, for its owner.
pub(crate) struct Space {
    pub(crate) pool: Pool,
    pub(crate) volume: VolumeId,
    namespace: Namespace,
    /// The fence of stamped changes, or `None` if changes are not stamped.
    fence: Option<Fence>,
}

struct Fence {
    epoch: u64,
    /// Incremented with every change of the volume, and therefore with every change of an object.
    sequence: AtomicU64,
}

impl Space {
    /// Returns the namespace of `volume`; changes are stamped with the epoch, if there is one.
    pub(crate) fn new(pool: Pool, volume: VolumeId, epoch: Option<u64>) -> Self {
        let namespace = pool.namespace(volume);
        let fence = epoch.map(|epoch| Fence { epoch, sequence: AtomicU64::new(1) });
        Self { pool, volume, namespace, fence }
    }

    /// Returns whether changes are stamped. An object then has at most one change in flight.
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
    pub(crate) fn terms(&self, durability: Durability, condition: Condition) -> ChangeTerms {
        let mut terms = ChangeTerms::default();
        terms.durability = durability.min(self.pool.capabilities.durability_max);
        terms.condition = condition;
        terms.domain = Some(DOMAIN);
        if let Some(fence) = &self.fence {
            terms.stamp = Some(Stamp::new(fence.epoch, fence.sequence.fetch_add(1, Ordering::Relaxed)));
        }
        terms
    }

    /// Returns the terms as [`Self::terms`] does, for a change that stores acknowledged data and
    /// that no quota may refuse.
    pub(crate) fn settling(&self, durability: Durability, condition: Condition) -> ChangeTerms {
        let mut terms = self.terms(durability, condition);
        terms.settles = true;
        terms
    }

    /// Replaces an object. The change is *stored* when this returns. No quota refuses it, because
    /// acknowledged data are found through such objects.
    pub(crate) async fn put(
        &self,
        kind: Kind,
        bytes: Vec<u8>,
        condition: Condition,
    ) -> Result<Version, Store> {
        self.put_as(kind, bytes, self.settling(Durability::Stored, condition)).await
    }

    /// Replaces an object as [`Self::put`] does, but under these terms.
    pub(crate) async fn put_as(
        &self,
        kind: Kind,
        bytes: Vec<u8>,
        terms: ChangeTerms,
    ) -> Result<Version, Store> {
        let request = WriteFullRequest::new(self.object(kind), bytes).terms(terms);
        let reply = self.store().write_full(request).await?;
        match self.ensure_stored(kind, reply.durability).await {
            Ok(()) => Ok(reply.version),
            Err(fenced @ Store::Fenced { .. }) => Err(fenced),
            // The object was written, although the flush failed.
            Err(error) => Err(Store::NotStored(error.to_string().into())),
        }
    }

    /// Flushes an object unless its change was acknowledged as *stored*.
    pub(crate) async fn ensure_stored(&self, kind: Kind, is: Durability) -> Result<(), Store> {
        if is < Durability::Stored {
            let scope = Scope::Object(self.object(kind));
            self.store().flush(FlushRequest::new(scope)).await?;
        }
        Ok(())
    }

    /// Flushes all changes of the volume.
    pub(crate) async fn flush(&self, durability: Durability) -> Result<(), Store> {
        let scope = Scope::Domain(self.namespace.clone(), DOMAIN);
        self.store().flush(FlushRequest::new(scope).durability(durability)).await.map(drop)
    }

    /// Returns the quota of the volume's namespace, and its usage.
    pub(crate) fn quota(&self) -> Reply<Quota> {
        self.store().control().quota(self.namespace.clone())
    }

    /// Returns all objects of the volume, whether or not a map names them.
    pub(crate) async fn objects(&self) -> Result<Vec<ObjectId>, Store> {
        self.pool.objects(self.volume).await
    }

    /// Removes unused objects, several at a time.
    pub(crate) async fn remove_all(&self, objects: &[ObjectId]) -> Result<(), Store> {
        for some in objects.chunks(REMOVALS_MAX) {
            self.remove_each(some.to_vec()).await.into_iter().collect::<Result<(), Store>>()?;
        }
        Ok(())
    }

    /// Removes unused objects at the same time. Returns the result of each.
    pub(crate) async fn remove_each(&self, objects: Vec<ObjectId>) -> Vec<Result<(), Store>> {
        join_all(objects.into_iter().map(|object| self.remove_object(object))).await
    }

    /// Removes everything, the head last. The removal is *stored* when this returns.
    pub(crate) async fn clear(&self) -> Result<(), Store> {
        let head = self.object(Kind::Head);
        let mut rest = self.objects().await?;
        rest.retain(|object| *object != head);
        self.remove_all(&rest).await?;
        // Without the head nothing would find objects that reappear after a crash, so all other
        // removals are stored first.
        self.flush(Durability::Stored).await?;
        self.remove(Kind::Head).await?;
        self.flush(Durability::Stored).await
    }

    /// Removes an unused object, if it exists.
    pub(crate) async fn remove(&self, kind: Kind) -> Result<(), Store> {
        self.remove_object(self.object(kind)).await
    }

    async fn remove_object(&self, object: ObjectId) -> Result<(), Store> {
        let terms = self.terms(Durability::Cached, Condition::None);
        match self.store().delete(DeleteRequest::new(object).terms(terms)).await {
            Ok(_) | Err(Store::Missing) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

// ---- volumes that this process does not have

/// The maximum number of volumes to remember. For any other volume it is assumed that another owner
/// has had it, and that caches below may have copies from before its snapshots.
const VOLUMES_MAX: usize = 16 * 1024;

/// This process's knowledge of volumes that it has released or read. Clones of this value share one
/// state.
#[derive(Clone, Default)]
pub(crate) struct Left(Arc<Mutex<HashMap<VolumeId, Known>>>);

#[derive(Default)]
struct Known {
    /// The number of the head that was current when this process released the volume. A different
    /// number shows that another owner has had the volume since.
    released_at: Option<u64>,
    /// The newest snapshot of which caches below have no outdated copies; 0 if there is none.
    snapshot: u64,
}

impl Left {
    fn update(&self, volume: VolumeId, update: impl FnOnce(&mut Known)) {
        let mut all = self.0.lock();
        if all.len() < VOLUMES_MAX || all.contains_key(&volume) {
            update(all.entry(volume).or_default());
        }
    }

    /// Records that a volume was released with the head of this number.
    pub(crate) fn note(&self, volume: VolumeId, sequence: u64) {
        self.update(volume, |known| known.released_at = Some(sequence));
    }

    /// Forgets a removed volume.
    pub(crate) fn forget(&self, volume: VolumeId) {
        self.0.lock().remove(&volume);
    }

    /// Records that caches below have no copies of a volume from before its snapshot with this
    /// number.
    pub(crate) fn know(&self, volume: VolumeId, snapshot: u64) {
        self.update(volume, |known| known.snapshot = known.snapshot.max(snapshot));
    }

    /// Returns whether caches below have no outdated copies of a snapshot. A snapshot's objects
    /// never change, so it suffices if that is known of a newer snapshot.
    pub(crate) fn knows(&self, volume: VolumeId, snapshot: u64) -> bool {
        self.0.lock().get(&volume).is_some_and(|known| snapshot <= known.snapshot)
    }

    /// Returns the number of the head with which the volume was last released.
    pub(crate) fn of(&self, volume: VolumeId) -> Option<u64> {
        self.0.lock().get(&volume)?.released_at
    }
}

// ---- memory for overlays

/// The memory for overlays, which all open volumes of a store share.
#[derive(Debug)]
pub(crate) struct OverlayMemory {
    bytes_max: u64,
    used_bytes: AtomicU64,
}

impl OverlayMemory {
    pub(crate) fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self { bytes_max, used_bytes: AtomicU64::new(0) })
    }

    /// Returns whether there is any memory.
    pub(crate) fn is_any(&self) -> bool {
        self.bytes_max > 0
    }

    /// Returns whether this many more bytes are free. Concurrent volumes may together exceed the
    /// limit slightly.
    pub(crate) fn has(&self, bytes: u64) -> bool {
        self.used_bytes.load(Ordering::Relaxed).saturating_add(bytes) <= self.bytes_max
    }

    /// Records that a use of `before` bytes has changed to `after` bytes.
    pub(crate) fn note(&self, before: u64, after: u64) {
        // Modulo 2^64, so a negative difference is a subtraction.
        self.used_bytes.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }
}

// ---- the limits of a volume
//
// The cache below keeps the write mode, the quota and the rates of a volume's namespace. A cache in
// this process gets them as the volume's settings, and knows whether the volume is attached; a
// cache behind a server receives them as commands.

/// Returns the settings of a volume's namespace.
fn namespace_settings(settings: &Settings) -> NamespaceSettings {
    let quota = (NamespaceKey::QuotaBytesMax, settings.quota_bytes_max);
    let all = std::iter::once(quota).chain(settings.rates.by_key());
    let mut own = NamespaceSettings::default();
    own.write = settings.write;
    all.filter(|(_, value)| value.is_some()).fold(own, |own, (key, value)| own.with(key, value))
}

/// Applies `settings` to a volume's namespace; missing settings stay unchanged. `attachment` is a
/// number unique to this attachment of the volume.
///
/// # Errors
/// The store's errors; `Unsupported` if nothing below can enforce a quota, or refuse writes to a
/// volume.
pub(crate) async fn apply_limits(
    pool: &Pool,
    volume: VolumeId,
    attachment: u64,
    settings: &Settings,
) -> Result<()> {
    let (namespace, control) = (pool.namespace(volume), pool.store.control());
    let mut all = namespace_settings(settings);
    let set = control.set_volume(namespace.clone(), attachment, Some(all.clone())).await;
    if if_supported(set)?.is_some() {
        return Ok(());
    }
    if let Some(write) = all.write.take() {
        let mut policy = Policy::default();
        policy.write = write;
        match control.set_policy(namespace.clone(), policy).await {
            // There is no cache, so every write already goes through to the store.
            Err(Store::Unsupported(_)) if write != WriteMode::ReadOnly => {}
            answer => answer?,
        }
    }
    if all.is_empty() {
        return Ok(());
    }
    let is_denied = match control.change_namespace(namespace.clone(), all).await {
        // There is no cache, so there are no rates, and the store itself enforces a quota.
        Err(Store::Unsupported(_)) => false,
        // Denied by a server on which clients may not change these settings. A server with volumes
        // sets them itself.
        Err(Store::Denied(_)) => true,
        answer => return Ok(answer?),
    };
    let Some(bytes_max) = settings.quota_bytes_max else { return Ok(()) };
    match control.set_quota(namespace, Some(bytes_max)).await {
        Err(Store::Unsupported(_) | Store::Denied(_)) if is_denied => Ok(()),
        answer => Ok(answer?),
    }
}

/// Allows the volume's namespace to be removed from the cache again, once the attachment with this
/// number has ended.
pub(crate) async fn release_limits(pool: &Pool, volume: VolumeId, attachment: u64) {
    // A cache in this process does not fail; after any other failure the next attachment replaces
    // this one.
    let _ = pool.store.control().set_volume(pool.namespace(volume), attachment, None).await;
}

/// Replaces `before`, the settings of an unattached volume's namespace, with `after`. The caller
/// holds the volume's operation lock.
///
/// # Errors
/// The store's errors.
pub(crate) async fn replace_limits(
    pool: &Pool,
    volume: VolumeId,
    before: &Settings,
    after: &Settings,
) -> Result<()> {
    let (namespace, control) = (pool.namespace(volume), pool.store.control());
    let (before, after) = (namespace_settings(before), namespace_settings(after));
    // Attachments have higher numbers.
    if if_supported(control.set_volume(namespace.clone(), 0, Some(after.clone())).await)?.is_some() {
        release_limits(pool, volume, 0).await;
        return Ok(());
    }
    let gone = before.values().filter(|(key, _)| after.get(*key).is_none());
    let gone = gone.fold(NamespaceSettings::default(), |gone, (key, _)| gone.with(key, None));
    if gone.is_empty() {
        return Ok(());
    }
    let has_quota = gone.get(NamespaceKey::QuotaBytesMax).is_some();
    match control.change_namespace(namespace.clone(), gone).await {
        Err(Store::Denied(_)) => Ok(()),
        // Without a cache, the store may enforce the quota; if not, nothing keeps the settings.
        Err(Store::Unsupported(_)) if has_quota => {
            if_supported(control.set_quota(namespace, None).await).map(drop)
        }
        changed => if_supported(changed).map(drop),
    }
}
