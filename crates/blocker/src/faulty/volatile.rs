//! A volatile cache in front of the backend, like the cache of a disk: a crash may lose, tear or
//! reorder unflushed changes.
//!
//! The live state is in a memory backend, into which an object is copied from below at its first
//! use. Changes are made in the live state and recorded in a log; a flush applies the log below, in
//! order. A crash draws the part of the log that has reached the store: any sectors of unstamped
//! changes, but only a prefix of an object's stamped changes, because a stamp must never be stored
//! before its data.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

use super::AsyncLock;
use crate::executor::block_on;
use crate::memory::MemoryConfig;
use crate::rng::Rng;
use crate::{
    BUCKET_BYTES, Blocker, Capabilities, Change, ChangeReply, ChangeRequest, ClaimReply, ClaimRequest, Clock,
    Condition, Durability, Epoch, Error, FlushReply, FlushRequest, Info, InfoRequest, ListReply, ListRequest,
    Memory, ObjectId, ReadReply, ReadRequest, Reply, Result, RunContent, Scope, Segments, Stamp, WriterId,
};

/// The size of the unit that is never torn, in bytes.
const SECTOR_BYTES: u64 = 512;

/// A handle of the cache.
#[derive(Clone)]
pub(super) struct Volatile(Arc<Shared>);

struct Shared {
    inner: Arc<dyn Blocker>,
    front: Memory,
    /// The lock that each operation holds, so that the log has the order of the changes.
    exclusive: AsyncLock,
    records: Mutex<Records>,
    flush_lies: bool,
}

#[derive(Default)]
struct Records {
    /// The objects whose live state is in this cache.
    taken_over: HashSet<ObjectId>,
    log: Vec<ChangeRequest>,
    claims: Vec<(Scope, Epoch, WriterId)>,
    /// The stored deletions that the store below remembers.
    tombstones: HashMap<ObjectId, Stamp>,
}

/// Returns a change that was made in the live state, ready to be applied below. It has no
/// conditions, durability or deadline, which have been checked or belong to the flush; a comparison
/// or copy has become a write of its bytes.
fn logged(mut request: ChangeRequest, reply: &ChangeReply, front: &Memory) -> Result<ChangeRequest> {
    request.change = match request.change {
        Change::CompareAndWrite { offset, data, .. } => Change::Write { offset, data },
        Change::Copy { .. } => {
            let whole = ReadRequest::new(request.object.clone(), 0, reply.size_bytes);
            Change::WriteFull { data: block_on(front.read(whole))?.data }
        }
        change => change,
    };
    (request.terms.condition, request.terms.durability) = (Condition::None, Durability::Cached);
    request.call.deadline = None;
    Ok(request)
}

/// Returns a write as one change for each sector; other changes stay whole.
fn pieces(request: ChangeRequest) -> Vec<ChangeRequest> {
    let changes: Vec<Change> = match &request.change {
        Change::Write { offset, data } if !data.is_empty() => sectors(*offset, data),
        Change::WriteRuns { runs } => {
            let changes = runs.iter().flat_map(|run| match &run.content {
                RunContent::Data(data) => sectors(run.offset, data),
                RunContent::Zeroes(len_bytes) => {
                    vec![Change::WriteZeroes { offset: run.offset, len_bytes: *len_bytes }]
                }
            });
            changes.collect()
        }
        _ => return vec![request],
    };
    let piece = |change: Change| change.request(request.object.clone()).terms(request.terms);
    changes.into_iter().map(piece).collect()
}

fn sectors(offset: u64, data: &Segments) -> Vec<Change> {
    let mut pieces = Vec::new();
    let (mut done, len) = (0, data.len_bytes());
    while done < len {
        let at = offset + done as u64;
        let end = len.min(done + (SECTOR_BYTES - at % SECTOR_BYTES) as usize);
        pieces.push(Change::Write { offset: at, data: data.slice(done..end) });
        done = end;
    }
    pieces
}

impl Volatile {
    pub(super) fn new(inner: Arc<dyn Blocker>, clock: Arc<dyn Clock>, flush_lies: bool) -> Self {
        let object_bytes_max = inner.capabilities().object_bytes_max;
        let front = Memory::new(MemoryConfig { object_bytes_max, bytes_max: u64::MAX }, clock);
        let (exclusive, records) = Default::default();
        Self(Arc::new(Shared { inner, front, exclusive, records, flush_lies }))
    }

    /// Loses unflushed changes, except those that are drawn as having reached the store.
    pub(super) async fn crash(&self, rng: Rng) -> Result<()> {
        self.0.crash(rng).await
    }
}

/// Generates the methods that run one at a time.
macro_rules! exclusive {
    ($($method:ident($request:ty) -> $reply:ty;)*) => {
        $(fn $method(&self, request: $request) -> Reply<$reply> {
            let shared = Arc::clone(&self.0);
            Reply::pending(async move {
                let _exclusive = shared.exclusive.lock().await;
                shared.$method(request).await
            })
        })*
    };
}

impl Blocker for Volatile {
    crate::delegate!(|this| *this.0.inner, except capabilities read change info list flush claim);

    fn capabilities(&self) -> Capabilities {
        let inner = self.0.inner.capabilities();
        let mut capabilities = self.0.front.capabilities();
        capabilities.runs_max = inner.runs_max.min(capabilities.runs_max);
        capabilities.request_bytes_max = inner.request_bytes_max.min(capabilities.request_bytes_max);
        capabilities.crash_atomic_bytes = SECTOR_BYTES.min(inner.crash_atomic_bytes);
        capabilities.write_full_atomic = inner.write_full_atomic;
        capabilities.compare_bytes_max = BUCKET_BYTES;
        capabilities.fencing = inner.fencing;
        capabilities.tombstones = inner.tombstones;
        capabilities.survives = inner.survives;
        capabilities
    }

    exclusive! {
        read(ReadRequest) -> ReadReply;
        change(ChangeRequest) -> ChangeReply;
        info(InfoRequest) -> Info;
        list(ListRequest) -> ListReply;
        flush(FlushRequest) -> FlushReply;
        claim(ClaimRequest) -> ClaimReply;
    }
}

impl Shared {
    /// Copies the live state of `object` from below, unless this has been done.
    async fn take_over(&self, object: &ObjectId) -> Result<()> {
        if self.records.lock().taken_over.contains(object) {
            return Ok(());
        }
        match self.inner.info(InfoRequest::new(object.clone())).await {
            Ok(info) => {
                let data = self.read_below(object, info.size_bytes).await?;
                let version = self.front.model.lock().fresh_version();
                self.front.model.lock().adopt(object.clone(), Some((data, version)), info.stamp);
            }
            Err(Error::Missing) => {
                let tombstone = self.records.lock().tombstones.get(object).copied();
                if tombstone.is_some() {
                    self.front.model.lock().adopt(object.clone(), None, tombstone);
                }
            }
            Err(error) => return Err(error),
        }
        self.records.lock().taken_over.insert(object.clone());
        Ok(())
    }

    async fn read_below(&self, object: &ObjectId, size_bytes: u64) -> Result<Vec<u8>> {
        let step = self.inner.capabilities().request_bytes_max;
        let mut data = Vec::new();
        while (data.len() as u64) < size_bytes {
            let request = ReadRequest::new(object.clone(), data.len() as u64, step);
            let part = self.inner.read(request).await?.data;
            if part.is_empty() {
                break;
            }
            data.extend(part.to_vec());
        }
        Ok(data)
    }

    async fn read(&self, request: ReadRequest) -> Result<ReadReply> {
        self.take_over(&request.object).await?;
        self.front.read(request).await
    }

    async fn info(&self, request: InfoRequest) -> Result<Info> {
        self.take_over(&request.object).await?;
        self.front.info(request).await
    }

    async fn list(&self, request: ListRequest) -> Result<ListReply> {
        let mut below = ListRequest::new(request.namespace.clone());
        loop {
            let page = self.inner.list(below.clone()).await?;
            for entry in &page.entries {
                self.take_over(&ObjectId::new(request.namespace.clone(), entry.name.clone())).await?;
            }
            let Some(last) = page.entries.last().filter(|_| page.has_more) else { break };
            below = below.after(last.name.clone());
        }
        self.front.list(request).await
    }

    /// Makes a change in the live state, and records the change.
    async fn change(&self, request: ChangeRequest) -> Result<ChangeReply> {
        if let Change::Copy { from, .. } = &request.change {
            self.take_over(from).await?;
        }
        self.take_over(&request.object).await?;
        let mut reply = block_on(self.front.change(request.clone()))?;
        let is_stored = request.terms.durability > Durability::Cached;
        let logged = logged(request, &reply, &self.front)?;
        self.records.lock().log.push(logged);
        if is_stored {
            self.write_back().await?;
        }
        reply.durability = if is_stored { Durability::Stored } else { Durability::Cached };
        Ok(reply)
    }

    async fn flush(&self, request: FlushRequest) -> Result<FlushReply> {
        // This checks the deadline.
        self.front.flush(request).await?;
        self.write_back().await?;
        Ok(FlushReply::new(Durability::Stored))
    }

    /// Applies the log below, in order, and flushes.
    async fn write_back(&self) -> Result<()> {
        if self.flush_lies {
            return Ok(());
        }
        loop {
            let Some(next) = self.records.lock().log.first().cloned() else { break };
            self.apply_below(next).await?;
            self.records.lock().log.remove(0);
        }
        self.inner.flush(FlushRequest::new(Scope::All)).await.map(drop)
    }

    async fn apply_below(&self, logged: ChangeRequest) -> Result<()> {
        let (object, stamp) = (logged.object.clone(), logged.terms.stamp);
        let is_delete = matches!(logged.change, Change::Delete);
        match self.inner.change(logged).await {
            // The change was applied earlier, and only the reply was lost.
            Ok(_) | Err(Error::Superseded { .. } | Error::Missing) => {}
            Err(error) => return Err(error),
        }
        let mut records = self.records.lock();
        match stamp {
            Some(stamp) if is_delete => records.tombstones.insert(object, stamp),
            _ => records.tombstones.remove(&object),
        };
        Ok(())
    }

    async fn claim(&self, request: ClaimRequest) -> Result<ClaimReply> {
        // Changes that were admitted before the claim must not be refused below afterwards.
        self.write_back().await?;
        let reply = self.inner.claim(request.clone()).await?;
        self.front.claim(ClaimRequest::new(request.scope.clone(), request.epoch, request.writer)).await?;
        self.records.lock().claims.push((request.scope, request.epoch, request.writer));
        Ok(reply)
    }

    async fn crash(&self, mut rng: Rng) -> Result<()> {
        let _exclusive = self.exclusive.lock().await;
        let log = std::mem::take(&mut self.records.lock().log);
        let stamped: HashSet<ObjectId> = log
            .iter()
            .filter(|logged| logged.terms.stamp.is_some())
            .map(|logged| logged.object.clone())
            .collect();
        let mut ended: HashSet<ObjectId> = HashSet::new();
        for logged in log {
            let object = logged.object.clone();
            if stamped.contains(&object) {
                if ended.contains(&object) || rng.below(2) == 0 {
                    ended.insert(object);
                } else {
                    self.apply_below(logged).await?;
                }
                continue;
            }
            let chance = [0, 1000, 500][rng.below(3) as usize];
            for piece in pieces(logged) {
                if rng.permille(chance) {
                    self.apply_below(piece).await?;
                }
            }
        }
        self.inner.flush(FlushRequest::new(Scope::All)).await?;
        self.front.model.lock().forget_all();
        let claims = {
            let mut records = self.records.lock();
            records.taken_over.clear();
            records.claims.clone()
        };
        for (scope, epoch, writer) in claims {
            match self.front.claim(ClaimRequest::new(scope, epoch, writer)).await {
                Ok(_) | Err(Error::Fenced { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
