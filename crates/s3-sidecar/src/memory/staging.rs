//! The store below the object cache: bytes that have just come and are being taken over. It has nothing else, and sends no
//! request.
//!
//! Bytes enter the cache as the answer to its own question: they are *staged*, the cache is asked for them, asks this store for
//! what it lacks, and keeps the answer. A read of what is neither in the cache nor staged fails at once, and the caller asks the endpoint.

use std::collections::HashMap;
use std::sync::Arc;

use blocker::{
    Blocker, Capabilities, ChangeReply, ClaimReply, ClaimRequest, CompareAndWriteRequest, CopyRequest,
    DeleteReply, DeleteRequest, DiscardRequest, Error, EventHub, FlushReply, FlushRequest, Info, InfoRequest,
    InvalidateReply, InvalidateRequest, ListReply, ListRequest, Name, ReadReply, ReadRequest, Reply,
    Segments, Subscription, TruncateRequest, Version, WriteFullRequest, WriteRequest, WriteZeroesRequest,
};
use parking_lot::Mutex;

/// The size of a piece in bytes.
pub(crate) const PIECE_BYTES: u64 = 4 << 20;

/// A piece never changes, so that it has one version.
const VERSION: Version = Version(1);

/// The store.
#[derive(Default)]
pub(crate) struct Staging {
    staged: Mutex<HashMap<Name, Vec<Arc<Staged>>>>,
    events: EventHub,
}

/// Bytes of a piece.
struct Staged {
    offset: u64,
    bytes: Segments,
    piece_bytes: u64,
}

/// Bytes that are in the store until this is dropped.
pub(crate) struct Stay<'a> {
    staging: &'a Staging,
    name: Name,
    staged: Arc<Staged>,
}

impl Staging {
    /// Puts bytes of a piece in, which begin at `offset` of its `piece_bytes`.
    pub(crate) fn stage(&self, name: Name, offset: u64, bytes: Segments, piece_bytes: u64) -> Stay<'_> {
        let staged = Arc::new(Staged { offset, bytes, piece_bytes });
        self.staged.lock().entry(name.clone()).or_default().push(Arc::clone(&staged));
        Stay { staging: self, name, staged }
    }

    /// Returns whether nothing is in it.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.staged.lock().is_empty()
    }

    fn find(&self, name: &Name, offset: u64, len: u64) -> Option<ReadReply> {
        let staged = self.staged.lock();
        staged.get(name)?.iter().find_map(|each| {
            let end = (offset + len).min(each.piece_bytes);
            let (from, to) = (offset.checked_sub(each.offset)?, end.checked_sub(each.offset)?);
            let (from, to) = (usize::try_from(from).ok()?, usize::try_from(to).ok()?);
            (from <= to && to <= each.bytes.len_bytes())
                .then(|| ReadReply::new(each.bytes.slice(from..to), each.piece_bytes, VERSION))
        })
    }
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        let mut all = self.staging.staged.lock();
        if let Some(staged) = all.get_mut(&self.name) {
            staged.retain(|each| !Arc::ptr_eq(each, &self.staged));
            if staged.is_empty() {
                all.remove(&self.name);
            }
        }
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
        let found = self.find(&request.object.name, request.offset, request.len_bytes);
        found.map_or_else(absent, Reply::ok)
    }

    fn info(&self, request: InfoRequest) -> Reply<Info> {
        let staged = self.staged.lock();
        let first = staged.get(&request.object.name).and_then(|staged| staged.first());
        first.map_or_else(absent, |staged| Reply::ok(Info::new(staged.piece_bytes, VERSION, None)))
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

    fn write(&self, _: WriteRequest) -> Reply<ChangeReply> {
        never()
    }

    fn write_zeroes(&self, _: WriteZeroesRequest) -> Reply<ChangeReply> {
        never()
    }

    fn discard(&self, _: DiscardRequest) -> Reply<ChangeReply> {
        never()
    }

    fn compare_and_write(&self, _: CompareAndWriteRequest) -> Reply<ChangeReply> {
        never()
    }

    fn write_full(&self, _: WriteFullRequest) -> Reply<ChangeReply> {
        never()
    }

    fn truncate(&self, _: TruncateRequest) -> Reply<ChangeReply> {
        never()
    }

    fn delete(&self, _: DeleteRequest) -> Reply<DeleteReply> {
        never()
    }

    fn copy(&self, _: CopyRequest) -> Reply<ChangeReply> {
        never()
    }

    fn flush(&self, _: FlushRequest) -> Reply<FlushReply> {
        never()
    }

    fn claim(&self, _: ClaimRequest) -> Reply<ClaimReply> {
        never()
    }
}
