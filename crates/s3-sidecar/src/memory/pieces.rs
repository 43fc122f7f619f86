//! Bodies in the object cache, as pieces of 4 MiB of one generation. Each bucket has its own
//! namespace.

use std::sync::Arc;

use blocker::{
    BUCKET_BYTES, Blocker, Capabilities, ChangeReply, ChangeRequest, ClaimReply, ClaimRequest, Error,
    EventHub, FlushReply, FlushRequest, Info, InfoRequest, InvalidateReply, InvalidateRequest, ListReply,
    ListRequest, Name, ObjectId, ReadReply, ReadRequest, Reply, Segments, Subscription, Version,
};
use cached_core::object::{ConfigError, NamespaceCounters, ObjectCache, ObjectCacheConfig};
use parking_lot::Mutex;

use crate::memory::generation::{GenerationId, Head};
use crate::memory::tables::InProgress;
use crate::policy::BucketTerms;

/// The maximum number of concurrent reads of staged bytes. Such reads wait for neither disk nor
/// network.
const LOADS_MAX: usize = 4096;

/// The minimum length, in bytes, at which two system calls for a pipe and fresh memory for the
/// buckets later cost less than a copy.
pub(crate) const LENT_BYTES_MIN: usize = 32 << 10;

/// The bodies.
pub(crate) struct Pieces {
    cache: ObjectCache,
    staging: Arc<Staging>,
    /// The configuration in force.
    config: Mutex<ObjectCacheConfig>,
}

/// Returns the cache's configuration: `memory_bytes` for pieces of `objects` objects, with the
/// buckets' shares.
pub(crate) fn cache_config(
    memory_bytes: u64,
    objects: usize,
    terms: &[BucketTerms],
) -> Result<ObjectCacheConfig, ConfigError> {
    let pieces = objects as u64 + memory_bytes / PIECE_BYTES + 2;
    let config = ObjectCacheConfig {
        memory_bytes_max: memory_bytes,
        objects_count_max: u32::try_from(pieces).unwrap_or(u32::MAX).min(1 << 31),
        object_bytes_max: PIECE_BYTES,
        // Clients never write to the cache.
        dirty_bytes_max: BUCKET_BYTES,
        load_requests_max: LOADS_MAX,
        read_ahead_bytes_max: 0,
        bypass_read_bytes_min: 0,
        namespaces: terms.iter().filter_map(BucketTerms::namespace).collect(),
        ..ObjectCacheConfig::default()
    };
    config.check(&Capabilities::full(PIECE_BYTES))?;
    Ok(config)
}

impl Pieces {
    /// Returns an empty cache of `memory_bytes` for pieces of `objects` objects, with the buckets'
    /// shares. `lends` states whether bodies go into sockets without a copy.
    ///
    /// # Errors
    /// The configuration is invalid, or the memory cannot be mapped.
    pub(crate) fn new(
        memory_bytes: u64,
        objects: usize,
        terms: &[BucketTerms],
        lends: bool,
    ) -> Result<Self, ConfigError> {
        let staging = Arc::new(Staging::default());
        let config =
            ObjectCacheConfig { lends_buckets: lends, ..cache_config(memory_bytes, objects, terms)? };
        let cache = ObjectCache::builder(Arc::clone(&staging) as Arc<dyn Blocker>);
        let cache = cache.config(config.clone()).start()?;
        Ok(Self { cache, staging, config: Mutex::new(config) })
    }

    /// Replaces the buckets' shares.
    ///
    /// # Errors
    /// The terms are invalid. In that case nothing was changed.
    pub(crate) fn set_shares(&self, terms: &[BucketTerms]) -> Result<(), ConfigError> {
        let mut before = self.config.lock();
        let namespaces = terms.iter().filter_map(BucketTerms::namespace).collect();
        let after = ObjectCacheConfig { namespaces, ..before.clone() };
        self.cache.live_settings().change(&after)?;
        *before = after;
        Ok(())
    }

    /// Returns the memory counters of each bucket.
    pub(crate) fn by_bucket(&self) -> Vec<NamespaceCounters> {
        self.cache.namespaces()
    }

    /// Returns the number of bytes in use.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.cache.counters().clean_bytes
    }

    /// Returns `len` bytes from `at` on, or fewer up to the end of their piece. Returns `None`
    /// unless all of these bytes are in the cache.
    pub(crate) async fn read(&self, head: &Head, at: u64, len: u64) -> Option<Segments> {
        let within = at % PIECE_BYTES;
        let len = len.min(PIECE_BYTES - within).min(head.size.saturating_sub(at));
        let read = ReadRequest::new(object(head, at / PIECE_BYTES)?, within, len);
        let data = self.cache.read(read).await.ok()?.data;
        (len > 0 && data.len_bytes() as u64 == len).then_some(data)
    }

    /// Returns whether bytes can be lent.
    pub(crate) fn lends(&self) -> bool {
        self.cache.lends()
    }

    /// Lends cached bytes to the kernel, if this is possible and worthwhile. Lent bytes never
    /// change again.
    pub(crate) fn lend(&self, bytes: &Segments) {
        if bytes.len_bytes() >= LENT_BYTES_MIN && self.cache.lends() {
            for segment in bytes {
                // Bytes that are not in the cache are copied into sockets.
                let _ = self.cache.lend(segment.as_slice());
            }
        }
    }

    /// Returns whether bytes are lent.
    pub(crate) fn has_lent(&self, bytes: &[u8]) -> bool {
        self.cache.has_lent(bytes)
    }

    /// Puts bytes into the cache, as far as there is space. The bytes begin at a bucket boundary,
    /// and end at a bucket boundary or at the end of the object.
    pub(crate) async fn fill(&self, head: &Head, mut at: u64, bytes: &Segments) {
        let mut done = 0;
        while done < bytes.len_bytes() {
            let (piece, within) = (at / PIECE_BYTES, at % PIECE_BYTES);
            let len = (PIECE_BYTES - within).min((bytes.len_bytes() - done) as u64);
            let piece_bytes = PIECE_BYTES.min(head.size - piece * PIECE_BYTES);
            let Some(object) = object(head, piece) else { return };
            // At most a piece.
            let part = bytes.slice(done..done + len as usize);
            let staged = Staged { offset: within, bytes: part, piece_bytes };
            let _staged = self.staging.staged.enter(object.name.clone(), staged);
            // If there is no space, the bytes are not kept, which is not an error.
            let _ = self.cache.read(ReadRequest::new(object, within, len)).await;
            (at, done) = (at + len, done + len as usize);
        }
    }
}

fn object(head: &Head, piece: u64) -> Option<ObjectId> {
    let generation = &head.generation;
    let mut name = [0; size_of::<GenerationId>() + 8];
    name[..generation.len()].copy_from_slice(generation);
    name[generation.len()..].copy_from_slice(&piece.to_be_bytes());
    Some(ObjectId::new(head.namespace.clone(), Name::copy_from(&name).ok()?))
}

/// The size of a piece in bytes.
pub(crate) const PIECE_BYTES: u64 = 4 << 20;

/// A piece never changes, so it has one version.
const VERSION: Version = Version(1);

/// The store below the cache, in which bytes are staged.
#[derive(Default)]
struct Staging {
    staged: Arc<InProgress<Name, Staged>>,
    events: EventHub,
}

/// Staged bytes of a piece, beginning at `offset`.
struct Staged {
    offset: u64,
    bytes: Segments,
    piece_bytes: u64,
}

impl Staged {
    /// Returns the bytes in this range of the piece, if they are staged.
    fn read(&self, offset: u64, len: u64) -> Option<ReadReply> {
        let end = (offset + len).min(self.piece_bytes);
        let (from, to) = (offset.checked_sub(self.offset)?, end.checked_sub(self.offset)?);
        let (from, to) = (usize::try_from(from).ok()?, usize::try_from(to).ok()?);
        (from <= to && to <= self.bytes.len_bytes())
            .then(|| ReadReply::new(self.bytes.slice(from..to), self.piece_bytes, VERSION))
    }
}

fn never<T>() -> Reply<T> {
    Reply::err(Error::Unsupported("pieces of objects of S3 are read-only".into()))
}

fn absent<T>() -> Reply<T> {
    Reply::err(Error::Retryable("the bytes are not staged".into()))
}

impl Blocker for Staging {
    fn capabilities(&self) -> Capabilities {
        Capabilities::full(PIECE_BYTES)
    }

    fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
        let read = |staged: &Arc<Staged>| staged.read(request.offset, request.len_bytes);
        self.staged.find(&request.object.name, read).map_or_else(absent, Reply::ok)
    }

    fn info(&self, request: InfoRequest) -> Reply<Info> {
        let info = |staged: &Arc<Staged>| Some(Info::new(staged.piece_bytes, VERSION, None));
        self.staged.find(&request.object.name, info).map_or_else(absent, Reply::ok)
    }

    fn list(&self, _: ListRequest) -> Reply<ListReply> {
        Reply::ok(ListReply::new(Vec::new(), false))
    }

    fn invalidate(&self, _: InvalidateRequest) -> Reply<InvalidateReply> {
        Reply::ok(InvalidateReply::new(0))
    }

    fn subscribe(&self) -> Subscription {
        self.events.subscribe()
    }

    fn change(&self, _: ChangeRequest) -> Reply<ChangeReply> {
        never()
    }

    fn flush(&self, _: FlushRequest) -> Reply<FlushReply> {
        never()
    }

    fn claim(&self, _: ClaimRequest) -> Reply<ClaimReply> {
        never()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocker::executor::block_on;
    use bytes::Bytes;
    use hyper::HeaderMap;
    use hyper::header::HeaderValue;

    fn head(size: u64) -> Head {
        Head {
            object: [1; 32],
            generation: [7; size_of::<GenerationId>()],
            namespace: blocker::Namespace::new(&b"b"[..]).unwrap(),
            etag: HeaderValue::from_static("\"a\""),
            last_modified: None,
            size,
            headers: HeaderMap::new(),
            is_of_whole: true,
            is_claimed_empty: false,
            is_always_verified: false,
        }
    }

    #[test]
    fn what_was_filled_is_read_and_nothing_else() {
        let pieces = Pieces::new(32 << 20, 100, &[], false).unwrap();
        let size = 2 * PIECE_BYTES + 5000;
        let head = head(size);
        let all: Vec<u8> = (0..size).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect();
        let all = Bytes::from(all);
        let part = |from: u64, to: u64| Segments::from(all.slice(from as usize..to as usize));
        block_on(async {
            assert!(pieces.read(&head, 0, 1).await.is_none());
            pieces.fill(&head, 8192, &part(8192, PIECE_BYTES + 4096)).await;
            pieces.fill(&head, 2 * PIECE_BYTES + 4096, &part(2 * PIECE_BYTES + 4096, size)).await;
            for (at, len, has) in [
                (8192, 100_000, true),
                (8191, 10, false),
                (0, 4096, false),
                (10_000, 1, true),
                (PIECE_BYTES + 1, 4095, true),
                (PIECE_BYTES + 1, 4096, false),
                (size - 1, 1, true),
                (2 * PIECE_BYTES + 4096, 10_000, true),
                (2 * PIECE_BYTES + 4095, 10_000, false),
            ] {
                let read = pieces.read(&head, at, len).await;
                assert_eq!(read.is_some(), has, "{len} at {at}");
                if let Some(read) = read {
                    let end = (at + len).min(size).min((at / PIECE_BYTES + 1) * PIECE_BYTES);
                    assert_eq!(read.to_vec(), all[at as usize..end as usize]);
                }
            }
            let other = Head { generation: [8; size_of::<GenerationId>()], ..head };
            assert!(pieces.read(&other, 8192, 1).await.is_none());
        });
        assert!(pieces.staging.staged.is_empty());
        pieces.cache.validate().unwrap();
    }
}
