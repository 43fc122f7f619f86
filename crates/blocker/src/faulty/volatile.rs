//! A volatile cache in front of the backend, like a disk's: a crash may lose, tear or reorder
//! unflushed changes.
//!
//! The live state is a memory backend, which copies an object from below at its first use. Changes
//! are made there and recorded in a log; a flush applies the log below, in order. A crash draws
//! which part of the log reached the store by itself: any sectors of plain changes, but only a
//! prefix of an object's stamped changes (a stamp must never be stored before its data).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

use super::gate::AsyncLock;
use crate::blocker::Blocker;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::memory::{Memory, MemoryConfig};
use crate::name::ObjectId;
use crate::order::{Durability, Epoch, Stamp, WriterId};
use crate::request::*;
use crate::response::*;
use crate::rng::Rng;
use crate::segment::Segments;

/// The size of the unit that is never torn, in bytes.
pub(super) const SECTOR_BYTES: u64 = 512;

pub(super) struct Volatile {
    inner: Arc<dyn Blocker>,
    front: Memory,
    /// Held during one operation at a time: the log has the order of the changes.
    exclusive: Arc<AsyncLock>,
    records: Mutex<Records>,
    flush_lies: bool,
}

#[derive(Default)]
struct Records {
    /// Objects whose live state is in this cache.
    taken_over: HashSet<ObjectId>,
    log: Vec<Logged>,
    claims: Vec<(Scope, Epoch, WriterId)>,
    /// Stored deletions that the store below remembers.
    tombstones: HashMap<ObjectId, Stamp>,
}

/// A change that was made in the live state, ready to be applied below.
#[derive(Clone)]
pub(super) enum Logged {
    Write(WriteRequest),
    Zeroes(WriteZeroesRequest),
    Runs(WriteRunsRequest),
    Discard(DiscardRequest),
    Full(WriteFullRequest),
    Truncate(TruncateRequest),
    Delete(DeleteRequest),
}

impl Logged {
    fn target(&self) -> (&ObjectId, &Change) {
        match self {
            Self::Write(request) => (&request.object, &request.change),
            Self::Zeroes(request) => (&request.object, &request.change),
            Self::Runs(request) => (&request.object, &request.change),
            Self::Discard(request) => (&request.object, &request.change),
            Self::Full(request) => (&request.object, &request.change),
            Self::Truncate(request) => (&request.object, &request.change),
            Self::Delete(request) => (&request.object, &request.change),
        }
    }

    /// Returns the change without conditions, durability and deadline, which have been checked or
    /// belong to the flush.
    fn plain(mut self) -> Self {
        let (change, call) = match &mut self {
            Self::Write(request) => (&mut request.change, &mut request.call),
            Self::Zeroes(request) => (&mut request.change, &mut request.call),
            Self::Runs(request) => (&mut request.change, &mut request.call),
            Self::Discard(request) => (&mut request.change, &mut request.call),
            Self::Full(request) => (&mut request.change, &mut request.call),
            Self::Truncate(request) => (&mut request.change, &mut request.call),
            Self::Delete(request) => (&mut request.change, &mut request.call),
        };
        (change.condition, change.durability) = (Condition::None, Durability::Cached);
        call.deadline = None;
        self
    }

    async fn apply(self, to: &dyn Blocker) -> Result<()> {
        match self {
            Self::Write(request) => to.write(request).await.map(drop),
            Self::Zeroes(request) => to.write_zeroes(request).await.map(drop),
            Self::Runs(request) => to.write_runs(request).await.map(drop),
            Self::Discard(request) => to.discard(request).await.map(drop),
            Self::Full(request) => to.write_full(request).await.map(drop),
            Self::Truncate(request) => to.truncate(request).await.map(drop),
            Self::Delete(request) => to.delete(request).await.map(drop),
        }
    }

    /// Returns a write as one change for each sector; other changes stay whole.
    fn pieces(self) -> Vec<Self> {
        match self {
            Self::Write(request) if !request.data.is_empty() => {
                sectors(&request.object, request.offset, &request.data, request.change)
            }
            Self::Runs(request) => {
                let WriteRunsRequest { object, runs, change, .. } = request;
                let pieces = runs.iter().flat_map(|run| match &run.content {
                    RunContent::Data(data) => sectors(&object, run.offset, data, change),
                    RunContent::Zeroes(len_bytes) => {
                        let zeroes = WriteZeroesRequest::new(object.clone(), run.offset, *len_bytes);
                        vec![Self::Zeroes(zeroes.change(change))]
                    }
                });
                pieces.collect()
            }
            whole => vec![whole],
        }
    }
}

fn sectors(object: &ObjectId, offset: u64, data: &Segments, change: Change) -> Vec<Logged> {
    let mut pieces = Vec::new();
    let (mut done, len) = (0, data.len_bytes());
    while done < len {
        let at = offset + done as u64;
        let end = len.min(done + (SECTOR_BYTES - at % SECTOR_BYTES) as usize);
        let piece = WriteRequest::new(object.clone(), at, data.slice(done..end));
        pieces.push(Logged::Write(piece.change(change)));
        done = end;
    }
    pieces
}

impl Volatile {
    pub(super) fn new(inner: Arc<dyn Blocker>, clock: Arc<dyn Clock>, flush_lies: bool) -> Self {
        let object_bytes_max = inner.capabilities().object_bytes_max;
        let config = MemoryConfig { object_bytes_max, bytes_max: u64::MAX };
        let front = Memory::new(config, clock);
        Self { inner, front, exclusive: Arc::default(), records: Mutex::default(), flush_lies }
    }

    pub(super) fn front(&self) -> &Memory {
        &self.front
    }

    /// Copies the live state of `object` from below, unless that has been done.
    async fn take_over(&self, object: &ObjectId) -> Result<()> {
        if self.records.lock().taken_over.contains(object) {
            return Ok(());
        }
        match self.inner.info(InfoRequest::new(object.clone())).await {
            Ok(info) => {
                let data = self.read_below(object, info.size_bytes).await?;
                let version = self.front.fresh_version();
                self.front.adopt(object.clone(), Some((data, version)), info.stamp);
            }
            Err(Error::Missing) => {
                let tombstone = self.records.lock().tombstones.get(object).copied();
                if tombstone.is_some() {
                    self.front.adopt(object.clone(), None, tombstone);
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

    pub(super) async fn read(&self, request: ReadRequest) -> Result<ReadReply> {
        let _exclusive = self.exclusive.lock().await;
        self.take_over(&request.object).await?;
        self.front.read(request).await
    }

    pub(super) async fn info(&self, request: InfoRequest) -> Result<Info> {
        let _exclusive = self.exclusive.lock().await;
        self.take_over(&request.object).await?;
        self.front.info(request).await
    }

    pub(super) async fn list(&self, request: ListRequest) -> Result<ListReply> {
        let _exclusive = self.exclusive.lock().await;
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

    /// Makes a change in the live state and records it. Returns what `act` returns, and whether it is stored.
    pub(super) async fn change<T, F>(
        &self,
        touched: &[ObjectId],
        durability: Durability,
        act: F,
    ) -> Result<(T, bool)>
    where
        F: FnOnce(&Memory) -> Result<(T, Logged)>,
    {
        let _exclusive = self.exclusive.lock().await;
        for object in touched {
            self.take_over(object).await?;
        }
        let (reply, logged) = act(&self.front)?;
        self.records.lock().log.push(logged.plain());
        let is_stored = durability > Durability::Cached;
        if is_stored {
            self.write_back().await?;
        }
        Ok((reply, is_stored))
    }

    pub(super) async fn flush(&self) -> Result<FlushReply> {
        let _exclusive = self.exclusive.lock().await;
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

    async fn apply_below(&self, logged: Logged) -> Result<()> {
        let (object, change) = logged.target();
        let (object, stamp) = (object.clone(), change.stamp);
        let is_delete = matches!(logged, Logged::Delete(_));
        match logged.apply(&*self.inner).await {
            // Applied before; only the reply was lost.
            Ok(()) | Err(Error::Superseded { .. } | Error::Missing) => {}
            Err(error) => return Err(error),
        }
        let mut records = self.records.lock();
        match stamp {
            Some(stamp) if is_delete => records.tombstones.insert(object, stamp),
            _ => records.tombstones.remove(&object),
        };
        Ok(())
    }

    pub(super) async fn claim(&self, request: ClaimRequest) -> Result<ClaimReply> {
        let _exclusive = self.exclusive.lock().await;
        // Changes admitted before the claim must not be refused below after it.
        self.write_back().await?;
        let reply = self.inner.claim(request.clone()).await?;
        self.front.claim(ClaimRequest::new(request.scope.clone(), request.epoch, request.writer)).await?;
        self.records.lock().claims.push((request.scope, request.epoch, request.writer));
        Ok(reply)
    }

    /// Loses unflushed changes, except those that the draw lets reach the store.
    pub(super) async fn crash(&self, mut rng: Rng) -> Result<()> {
        let _exclusive = self.exclusive.lock().await;
        let log = std::mem::take(&mut self.records.lock().log);
        let stamped: HashSet<ObjectId> = log
            .iter()
            .map(Logged::target)
            .filter(|(_, change)| change.stamp.is_some())
            .map(|(object, _)| object.clone())
            .collect();
        let mut ended: HashSet<ObjectId> = HashSet::new();
        for logged in log {
            let object = logged.target().0.clone();
            if stamped.contains(&object) {
                if ended.contains(&object) || rng.below(2) == 0 {
                    ended.insert(object);
                    continue;
                }
                self.apply_below(logged).await?;
                continue;
            }
            let chance = [0, 1000, 500][rng.below(3) as usize];
            for piece in logged.pieces() {
                if rng.permille(chance) {
                    self.apply_below(piece).await?;
                }
            }
        }
        self.inner.flush(FlushRequest::new(Scope::All)).await?;
        self.front.forget_all();
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
