//! The target's end of a copy session: asks for the items of a move, and stores what comes.
//!
//! Other threads than workers change the store only while they hold `is_handed_over`. So what comes is
//! stored under this lock, and a map that ends the move is put in force under it: nothing is stored
//! for the move after that.

use super::served::is_pause;
use super::{LOOK, Line, PING_EVERY, is_ending, silent_max, spawn};
use crate::ring::{Direction, Filling, NoFilling, Ring, remove_items};
use crate::shared::Shared;
use blocker::executor::block_on_for;
use cached_core::clock::Expiry;
use cached_core::kv::{DeleteOptions, ImportOptions, Imported, ScanCursor, StoreError};
use cached_ring::copy::{Frame, ItemFrame, Pace, Target, TargetAction, TargetEvent, bits, frame};
use cached_ring::{Map, slot_of};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

/// The largest value of any node. One that this node does not store is left out, as if it was evicted.
const VALUE_BYTES_MAX: usize = 1 << 30;

/// The number of bytes requested by one read.
const READ_BYTES: usize = 256 << 10;

/// The most memory of a session besides the largest item, in bytes.
pub(super) const SESSION_BYTES_MAX: usize = 4 * READ_BYTES;

/// Opens the connection to the source with this name. The last argument says whether the session is
/// not wanted any more. The error is a part of a line.
pub(crate) type Dial = fn(&Shared, &str, &dyn Fn() -> bool) -> Result<Line, String>;

/// Why a copy has ended before its end, as one line.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The server ends, or has been told to hold moves.
    #[error("this node holds moves, or ends")]
    Ends,
    /// The map in force has no such move to this node, or the move no longer exists.
    #[error("the move does not exist any more")]
    Gone,
    /// Another move is being copied.
    #[error("another move is being copied")]
    Busy,
    /// There is no connection to the source.
    #[error("no connection to node {0}: {1}")]
    Unreachable(String, String),
    /// The source refuses the session.
    #[error("node {0} refuses: {1}")]
    Refused(String, String),
    /// The session has failed.
    #[error("the connection to node {0} has failed: {1}")]
    Broken(String, String),
    /// Items were flushed here while others came, which may be older; or a flush is scheduled.
    #[error("items were flushed in the meantime, or are about to be")]
    Flushed,
    /// This node evicts nothing, and has no memory for the items.
    #[error("this node has no memory for the items, and evicts none")]
    Full,
}

/// A copy that has arrived completely: the source executes no requests for its slots. If this is
/// dropped, the session ends, the items are removed, and the source aborts the move.
#[derive(Debug)]
pub struct Copied {
    orders: UnboundedSender<Order>,
    counts: Counts,
}

/// What a session has stored, and since when the source's slots are sealed.
#[derive(Debug, Clone, Copy)]
struct Counts {
    items: u64,
    bytes: u64,
    sealed: Instant,
}

impl Copied {
    /// Returns the number of items that have come, each as often as it has changed in the meantime.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.counts.items
    }

    /// Returns the size of these items, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.counts.bytes
    }

    /// Returns the time since the source was asked to seal the slots.
    #[must_use]
    pub fn sealed(&self) -> Duration {
        self.counts.sealed.elapsed()
    }

    /// Puts the map in force that has committed the move, and tells the source.
    pub(crate) async fn settle(self, map: Map) {
        let (done, is_done) = oneshot::channel();
        // Fails if the server has ended; then the receiver does, too.
        let _ = self.orders.send(Order::Settle(map, done));
        let _ = is_done.await;
    }
}

/// What the steward tells a session.
#[derive(Debug)]
enum Order {
    /// The move still exists.
    Seal,
    /// This map commits the move. The sender is dropped once it is in force.
    Settle(Map, oneshot::Sender<()>),
}

/// What a session tells the steward.
enum News {
    /// Almost all items are here.
    Ready,
    /// All items are here.
    Complete(Counts),
    Failed(CopyError),
}

/// Copies the items of a move to this node, up to the seal of its slots and all changes before.
pub(crate) async fn copy(
    shared: Arc<Shared>,
    id: u64,
    dial: Dial,
    confirm: impl AsyncFnOnce() -> bool,
) -> Result<Copied, CopyError> {
    let (orders, mut ordered) = unbounded_channel();
    let (news, mut told) = unbounded_channel();
    let is_started = spawn(&shared, move |shared| {
        let Some(ring) = &shared.ring else { return };
        if let Err(error) = run(shared, ring, id, dial, &mut ordered, &news) {
            // Fails if nobody waits any more.
            let _ = news.send(News::Failed(error));
        }
    });
    // The server can end in the meantime.
    drop(shared);
    if !is_started {
        return Err(CopyError::Ends);
    }
    let mut confirm = Some(confirm);
    loop {
        match (told.recv().await, confirm.take()) {
            (Some(News::Ready), Some(confirm)) => {
                if !confirm().await {
                    drop(orders);
                    // The session has ended when this returns, so that another one can begin.
                    while told.recv().await.is_some() {}
                    return Err(CopyError::Gone);
                }
                // Fails if the session has ended, which the next message says.
                let _ = orders.send(Order::Seal);
            }
            (Some(News::Complete(counts)), _) => return Ok(Copied { orders, counts }),
            (Some(News::Failed(error)), _) => return Err(error),
            (Some(News::Ready) | None, _) => return Err(CopyError::Ends),
        }
    }
}

/// The filling of slots, which ends when this is dropped.
struct Guard<'a> {
    ring: &'a Ring,
    filling: Arc<Filling>,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.ring.end_filling(&self.filling);
    }
}

fn run(
    shared: &Shared,
    ring: &Ring,
    id: u64,
    dial: Dial,
    orders: &mut UnboundedReceiver<Order>,
    news: &UnboundedSender<News>,
) -> Result<(), CopyError> {
    // The map that has begun the move, whose version is the id, is perhaps only about to be in force.
    while !ring.await_map(id, LOOK) {
        if news.is_closed() || is_ending(shared) {
            return Err(CopyError::Ends);
        }
    }
    let filling = ring.begin_filling(id).map_err(|none| match none {
        NoFilling::Gone => CopyError::Gone,
        NoFilling::Held => CopyError::Ends,
        NoFilling::Busy => CopyError::Busy,
    })?;
    let guard = Guard { ring, filling };
    let filling = &*guard.filling;
    let flushes = shared.kv.flushes().ok_or(CopyError::Flushed)?;
    {
        let is_handed_over = shared.is_handed_over.lock();
        if *is_handed_over {
            return Err(CopyError::Ends);
        }
        // A process that follows must remove what will have come.
        shared.kv.set_mark(ring.mark_now());
    }
    clear(shared, ring, filling)?;
    let is_unwanted = || news.is_closed() || is_ending(shared) || !ring.may_fill(filling);
    let unreachable = |why| CopyError::Unreachable(filling.from.clone(), why);
    let line = dial(shared, &filling.from, &is_unwanted).map_err(unreachable)?;
    if !ring.fill(filling) {
        return Err(CopyError::Gone);
    }
    let mut session = Session::new(shared, ring, filling, line, flushes);
    session.on(TargetEvent::Cleared)?;
    let counts = session.receive(orders, news)?;
    // Fails if nobody waits any more; then there is no order either.
    let _ = news.send(News::Complete(counts));
    session.settle(orders);
    Ok(())
}

/// Removes earlier items of the slots.
fn clear(shared: &Shared, ring: &Ring, filling: &Filling) -> Result<(), CopyError> {
    // If nothing is being removed, the store has no items of slots that are not this node's.
    let mut cursor = ring.is_purging().then(ScanCursor::default);
    let mut pace = Pace::default();
    while let Some(at) = cursor {
        if is_ending(shared) || !ring.may_fill(filling) {
            return Err(CopyError::Ends);
        }
        let is_handed_over = shared.is_handed_over.lock();
        // The slots may have become this node's own in the meantime.
        if *is_handed_over || filling.is_over() {
            return Err(CopyError::Ends);
        }
        let begun = Instant::now();
        (cursor, _) = remove_items(&shared.kv, at, |slot| filling.slots.contains(slot));
        drop(is_handed_over);
        if let Some(pause) = pace.pause_after(begun.elapsed(), 0) {
            thread::sleep(pause);
        }
    }
    Ok(())
}

/// A session whose connection is open.
struct Session<'a> {
    shared: &'a Shared,
    ring: &'a Ring,
    filling: &'a Filling,
    line: Line,
    target: Target,
    /// The number of flushes at the beginning.
    flushes: u64,
    /// Bytes that have come, without those that were used.
    input: Vec<u8>,
    buffer: Box<[u8]>,
    counts: Counts,
    received: Instant,
    sent: Instant,
    silent_max: Duration,
}

impl<'a> Session<'a> {
    fn new(
        shared: &'a Shared,
        ring: &'a Ring,
        filling: &'a Filling,
        line: Line,
        flushes: u64,
    ) -> Session<'a> {
        let now = Instant::now();
        Session {
            shared,
            ring,
            filling,
            line,
            target: Target::new(),
            flushes,
            input: Vec::new(),
            buffer: vec![0; READ_BYTES].into(),
            counts: Counts { items: 0, bytes: 0, sealed: now },
            received: now,
            sent: now,
            silent_max: silent_max(shared),
        }
    }

    fn broken(&self, why: impl ToString) -> CopyError {
        CopyError::Broken(self.filling.from.clone(), why.to_string())
    }

    /// Does what follows from an event, as far as it concerns the connection. Returns what else is to be
    /// done.
    fn on(&mut self, event: TargetEvent) -> Result<Option<TargetAction>, CopyError> {
        match self.target.on(event).map_err(|error| self.broken(error))? {
            Some(TargetAction::SendCopy) => self.send(&Frame::Copy { id: self.filling.id })?,
            Some(TargetAction::SendSeal) => {
                self.counts.sealed = Instant::now();
                self.send(&Frame::Seal)?;
            }
            other => return Ok(other),
        }
        Ok(None)
    }

    fn send(&mut self, message: &Frame<'_>) -> Result<(), CopyError> {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.sent = Instant::now();
        self.line.write_all(&bytes, self.silent_max).map_err(|error| self.broken(error))
    }

    /// Stores what comes, until all has come.
    fn receive(
        &mut self,
        orders: &mut UnboundedReceiver<Order>,
        news: &UnboundedSender<News>,
    ) -> Result<Counts, CopyError> {
        loop {
            let order = orders.try_recv();
            let may_go_on = !is_ending(self.shared) && self.ring.may_fill(self.filling);
            // Looked at last: if the move is over, that is the reason.
            if self.filling.is_over() {
                return Err(CopyError::Gone);
            }
            if !may_go_on {
                return Err(CopyError::Ends);
            }
            match order {
                // The source would seal the slots in vain.
                Ok(Order::Seal) if self.shared.kv.flushes() != Some(self.flushes) => {
                    return Err(CopyError::Flushed);
                }
                Ok(Order::Seal) => drop(self.on(TargetEvent::InProgress(true))?),
                Ok(Order::Settle(..)) | Err(TryRecvError::Disconnected) => return Err(CopyError::Gone),
                Err(TryRecvError::Empty) => {}
            }
            self.read()?;
            let is_complete = self.apply(news)?;
            // After everything was stored: an older item may have been stored after a flush that was
            // counted before.
            if self.shared.kv.flushes() != Some(self.flushes) {
                return Err(CopyError::Flushed);
            }
            if is_complete {
                return Ok(self.counts);
            }
            if self.sent.elapsed() >= PING_EVERY {
                self.send(&Frame::Ping)?;
            }
        }
    }

    /// Reads once, for a moment.
    fn read(&mut self) -> Result<(), CopyError> {
        match self.line.read(&mut self.buffer, LOOK) {
            Ok(0) => return Err(self.broken("it was closed")),
            Ok(count) => {
                self.received = Instant::now();
                self.input.extend_from_slice(&self.buffer[..count]);
            }
            Err(error) if is_pause(&error) => {
                if self.received.elapsed() > self.silent_max {
                    return Err(self.broken("nothing has come for too long"));
                }
            }
            Err(error) => return Err(self.broken(error)),
        }
        Ok(())
    }

    /// Stores the items that have come completely. Returns whether they were the last.
    fn apply(&mut self, news: &UnboundedSender<News>) -> Result<bool, CopyError> {
        let shared = self.shared;
        let is_handed_over = shared.is_handed_over.lock();
        if *is_handed_over {
            return Err(CopyError::Ends);
        }
        if self.filling.is_over() {
            return Err(CopyError::Gone);
        }
        let input = std::mem::take(&mut self.input);
        let (mut used, mut is_complete, before) = (0, false, self.counts);
        while let Some((message, bytes)) =
            frame(&input[used..], VALUE_BYTES_MAX).map_err(|error| self.broken(error))?
        {
            used += bytes;
            match message {
                Frame::Item(item) => {
                    self.on(TargetEvent::Item)?;
                    self.store(&item)?;
                    self.counts.items += 1;
                    self.counts.bytes += bytes as u64;
                }
                Frame::Gone { key } => {
                    self.on(TargetEvent::Item)?;
                    if self.is_of_move(key) {
                        shared.kv.delete(key, shared.kv.hash(key), &DeleteOptions::default());
                    }
                    self.counts.items += 1;
                    self.counts.bytes += bytes as u64;
                }
                Frame::Ready => {
                    self.on(TargetEvent::Ready)?;
                    // Fails if nobody waits any more; then there is no order either.
                    let _ = news.send(News::Ready);
                }
                Frame::End { count, cas } => {
                    self.on(TargetEvent::End(count))?;
                    shared.kv.raise_cas(cas);
                    is_complete = true;
                }
                Frame::Refused { text } => {
                    return Err(CopyError::Refused(self.filling.from.clone(), text.to_owned()));
                }
                Frame::Ping => {}
                Frame::Copy { .. } | Frame::Seal | Frame::Committed { .. } => {
                    return Err(self.broken("a message came from the wrong side"));
                }
            }
        }
        drop(is_handed_over);
        self.input = input;
        self.input.drain(..used);
        let (items, bytes) = (self.counts.items - before.items, self.counts.bytes - before.bytes);
        self.ring.moves.add(Direction::In, items, bytes);
        Ok(is_complete)
    }

    /// Returns whether the key is one of the move's: the source must not change any other.
    fn is_of_move(&self, key: &[u8]) -> bool {
        self.filling.slots.contains(slot_of(key))
    }

    fn store(&self, item: &ItemFrame<'_>) -> Result<(), CopyError> {
        if !self.is_of_move(item.key) {
            return Ok(());
        }
        let kv = &self.shared.kv;
        let secs = |ms: u64| u32::try_from(ms.div_ceil(1000)).unwrap_or(u32::MAX);
        let has = |bit: u8| item.bits & bit != 0;
        let options = ImportOptions {
            client_flags: item.flags,
            cas: item.cas,
            expiry: item.ttl_ms.map_or(Expiry::NEVER, |ms| Expiry::after(kv.now_secs(), secs(ms))),
            idle_secs: secs(item.idle_ms),
            fetched: has(bits::FETCHED),
            stale: has(bits::STALE),
            token_sent: has(bits::TOKEN_SENT),
            key_binary: has(bits::BASE64),
        };
        match kv.import(item.key, kv.hash(item.key), item.value, &options) {
            Err(StoreError::OutOfMemory) if !self.shared.settings.evict => Err(CopyError::Full),
            Ok(Imported::Colder) => {
                self.ring.moves.leave_out();
                Ok(())
            }
            // A value that this node cannot store is as one that was evicted; nothing older is left of it.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Waits for the verdict on a copy that is complete, and acts on it.
    fn settle(&mut self, orders: &mut UnboundedReceiver<Order>) {
        loop {
            match block_on_for(orders.recv(), LOOK) {
                Some(Some(Order::Settle(map, done))) => {
                    self.put_in_force(map);
                    return drop(done);
                }
                Some(Some(Order::Seal)) => {}
                Some(None) => return,
                None if is_ending(self.shared) || self.filling.is_over() => return,
                None => {
                    if self.sent.elapsed() >= PING_EVERY {
                        // The connection is not needed any more.
                        let _ = self.send(&Frame::Ping);
                    }
                }
            }
        }
    }

    fn put_in_force(&mut self, map: Map) {
        let version = map.version();
        self.ring.settle(self.filling, version);
        if let Err(error) = self.ring.set_map(map) {
            return tracing::warn!("the map that commits a move comes too late: {error}");
        }
        while !self.ring.await_map(version, LOOK) {
            if is_ending(self.shared) {
                return;
            }
        }
        // Without it, the source finds the map by itself.
        let _ = self.send(&Frame::Committed { version });
    }
}
