//! The source's end of a copy session.
//!
//! One thread at a time reads items and sends them, so what is sent of a key is in the order of its
//! states. Changes of the slots are queued from before the walk over all items: an item that the walk
//! does not see as it is in the end is queued.

use super::queue::{BYTES_MAX as QUEUE_BYTES_MAX, Keys, Queue, TooMany};
use super::walk::Walk;
use super::{LOOK, Line, PING_EVERY, silent_max};
use crate::ring::{Direction, Ring};
use crate::shared::Shared;
use cached_core::kv::{AddedHook, ItemView, Kv, PinnedValue};
use cached_ring::Move;
use cached_ring::copy::{
    CHANGES_MANY, Frame, ItemFrame, Malformed, OutOfOrder, Pace, Source, SourceAction, SourceEvent, bits,
    frame,
};
use std::io::{self, ErrorKind};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The number of bytes of changed items that are read at once, and of items of the walk, unless a single
/// item has more.
const SLICE_BYTES: usize = 128 << 10;
/// The number of hash buckets that are read at once: some thousand items, less than a millisecond.
const SLICE_BUCKETS: usize = 256;
/// A value above this size is not copied while its hash bucket is locked.
const PINNED_BYTES_MIN: usize = 16 << 10;
/// READY is sent once all changes that wait are sent within this time, which is about the time for which
/// the slots will be sealed. It rises with the time since the walk, up to the maximum.
const SENT_WITHIN: Duration = Duration::from_millis(30);
const SENT_WITHIN_MAX: Duration = Duration::from_secs(1);
/// The time after which a session ends in which changes are not sent within the maximum.
const CATCH_UP_MAX: Duration = Duration::from_secs(60);
/// The capacity of the buffer that stays.
const BUFFER_BYTES_MAX: usize = 1 << 20;
/// The most memory of a session besides the largest item, in bytes: the queue, of which a part may have
/// been taken, and the buffer.
pub(super) const SESSION_BYTES_MAX: usize = 2 * QUEUE_BYTES_MAX + 4 * BUFFER_BYTES_MAX;
/// The priority of the walk, as a difference to that of other threads.
const WALK_NICE: i32 = 10;

/// Why a session has ended before COMMITTED, as a part of a line.
#[derive(Debug, thiserror::Error)]
pub(super) enum SourceError {
    #[error("this node ends it, or the move has ended")]
    Ends,
    #[error("the connection is lost: {0}")]
    Io(#[from] io::Error),
    #[error("the target has closed the connection")]
    Closed,
    #[error("the target has been silent for {0:?}")]
    Silent(Duration),
    #[error("the target breaks the protocol: {0}")]
    Malformed(#[from] Malformed),
    #[error("the target breaks the protocol: {0}")]
    OutOfOrder(#[from] OutOfOrder),
    #[error("the target breaks the protocol: it sends what only a source may send")]
    Unexpected,
    #[error("the target has not committed the move within {0:?}")]
    NotCommitted(Duration),
    #[error("items change faster than they can be sent")]
    TooMany,
}

impl From<TooMany> for SourceError {
    fn from(_: TooMany) -> SourceError {
        SourceError::TooMany
    }
}

/// Sends the items of a move, whose COPY has come, until COMMITTED has come. They are sent in the order of
/// their use if `begun` is a second of the store's clock: since then, each worker has completed what it was
/// executing. `seal` seals the slots, and returns once no request for them is executed any more; if it
/// returns false, or `ends` returns true, the session ends.
///
/// # Errors
/// Returns [`SourceError`]. If the slots are sealed, they stay so.
pub(super) fn serve(
    shared: &Shared,
    line: &mut Line,
    the_move: &Move,
    begun: Option<u32>,
    seal: &(dyn Fn() -> bool + Sync),
    ends: &(dyn Fn() -> bool + Sync),
) -> Result<(), SourceError> {
    let Some(ring) = &shared.ring else { return Ok(()) };
    let silent_max = silent_max(shared);
    let resume_within = Duration::from_secs(shared.settings.upgrade_timeout_secs);
    let queue = Arc::new(Queue::new(the_move.slots.clone()));
    // Before the walk begins, so that it misses no change.
    let hook = Some(shared.kv.add_change_hook(queue.clone()));
    let walk = match *shared.is_handed_over.lock() {
        true => return Err(SourceError::Ends),
        false => Walk::new(&shared.kv, &queue, begun),
    };
    let now = Instant::now();
    let mut session = Session {
        shared,
        ring,
        line,
        seal,
        ends,
        silent_max,
        commit_max: silent_max.max(resume_within / 3),
        hook,
        queue,
        changed: Keys::default().into_iter(),
        walk,
        out: Outgoing::default(),
        input: Vec::new(),
        source: Source::new(),
        count: 0,
        is_committed: false,
        ended: None,
        heard: now,
        spoke: now,
    };
    session.run()
}

struct Session<'a> {
    shared: &'a Shared,
    ring: &'a Ring,
    line: &'a mut Line,
    seal: &'a (dyn Fn() -> bool + Sync),
    ends: &'a (dyn Fn() -> bool + Sync),
    silent_max: Duration,
    /// The time after END in which the target must commit: requests for the slots wait longer.
    commit_max: Duration,
    /// Fills the queue, until the slots are sealed and nothing changes any more.
    hook: Option<AddedHook>,
    queue: Arc<Queue>,
    /// Changed keys that were taken out of the queue.
    changed: std::collections::hash_set::IntoIter<Box<[u8]>>,
    walk: Walk,
    out: Outgoing,
    input: Vec<u8>,
    source: Source,
    /// The number of ITEM and GONE so far.
    count: u64,
    is_committed: bool,
    /// When END was sent. A target that cannot commit must not keep the slots sealed.
    ended: Option<Instant>,
    /// When the target last sent or accepted bytes.
    heard: Instant,
    /// When bytes were last sent.
    spoke: Instant,
}

impl Session<'_> {
    fn run(&mut self) -> Result<(), SourceError> {
        // The walk leaves the cores to the workers. What comes afterwards does not: the changes must be
        // sent faster than they occur, and after the seal clients wait. A thread cannot raise its
        // priority again, so the walk has a thread of its own.
        thread::scope(|scope| {
            let walk = thread::Builder::new().name("cached-walk".into());
            let walk = walk.spawn_scoped(scope, || {
                let _ = rustix::process::nice(WALK_NICE);
                self.walk()
            })?;
            walk.join().unwrap_or_else(|panic| resume_unwind(panic))
        })?;
        self.catch_up()?;
        self.decide(SourceEvent::Walked)?;
        while !self.is_committed {
            if !self.has_changes() {
                self.line.wait(LOOK)?;
            }
            self.take_turn()?;
        }
        Ok(())
    }

    /// Sends all items once, at the pace of a move.
    fn walk(&mut self) -> Result<(), SourceError> {
        let mut pace = Pace::default();
        while !self.walk.is_over() {
            let begun = Instant::now();
            self.take_turn()?;
            match pace.pause_after(begun.elapsed(), self.changes()) {
                Some(pause) => thread::sleep(pause),
                None => thread::yield_now(),
            }
        }
        Ok(())
    }

    /// Sends changes until they are sent almost as soon as they occur.
    fn catch_up(&mut self) -> Result<(), SourceError> {
        let walked = Instant::now();
        self.send_taken()?;
        loop {
            let begun = Instant::now();
            self.take_turn()?;
            self.send_taken()?;
            if begun.elapsed() <= (walked.elapsed() / 20).clamp(SENT_WITHIN, SENT_WITHIN_MAX) {
                return Ok(());
            }
            if walked.elapsed() > CATCH_UP_MAX {
                return Err(SourceError::TooMany);
            }
        }
    }

    /// Sends the changes that were taken out of the queue.
    fn send_taken(&mut self) -> Result<(), SourceError> {
        while self.changed.len() > 0 {
            self.take_turn()?;
        }
        Ok(())
    }

    /// Sends a slice if there is anything to send, and does what the target says.
    fn take_turn(&mut self) -> Result<(), SourceError> {
        if !self.walk.is_over() || self.has_changes() {
            self.send_slice()?;
        }
        self.look()?;
        match self.receive()? {
            Some(event) => self.decide(event),
            None => Ok(()),
        }
    }

    /// Does what follows from an event.
    fn decide(&mut self, event: SourceEvent) -> Result<(), SourceError> {
        match self.source.on(event)? {
            Some(SourceAction::SendReady) => self.say(&Frame::Ready),
            Some(SourceAction::Seal) => match (self.seal)() {
                true => self.decide(SourceEvent::Passed),
                false => Err(SourceError::Ends),
            },
            Some(SourceAction::Drain) => {
                while self.has_changes() {
                    self.send_slice()?;
                }
                self.decide(SourceEvent::Drained)
            }
            Some(SourceAction::SendEnd) => {
                self.hook = None;
                self.ended = Some(Instant::now());
                self.say(&Frame::End { count: self.count, cas: self.shared.kv.cas_ahead() })
            }
            Some(SourceAction::Refresh) => {
                self.is_committed = true;
                self.ring.events.outdated.notify_one();
                Ok(())
            }
            Some(SourceAction::Close | SourceAction::CloseAndAbort) | None => Ok(()),
        }
    }

    fn has_changes(&self) -> bool {
        self.hook.is_some() && self.changes() > 0
    }

    /// Returns the number of changed keys that wait.
    fn changes(&self) -> usize {
        self.changed.len() + self.queue.len()
    }

    /// Reads and sends some changed items, unless few wait during the walk, and some items of the walk.
    fn send_slice(&mut self) -> Result<(), SourceError> {
        let kv = &self.shared.kv;
        {
            let is_handed_over = self.shared.is_handed_over.lock();
            if *is_handed_over {
                return Err(SourceError::Ends);
            }
            if self.changed.len() == 0 && (self.walk.is_over() || self.queue.len() >= CHANGES_MANY) {
                self.changed = self.queue.take()?.into_iter();
            }
            while self.out.bytes.len() < SLICE_BYTES
                && let Some(key) = self.changed.next()
            {
                self.out.add_key(kv, &key);
            }
            for _ in 0..SLICE_BUCKETS {
                if self.walk.is_over() || self.out.bytes.len() >= 2 * SLICE_BYTES {
                    break;
                }
                self.walk.step(kv, &self.queue, |item| self.out.add(item));
                self.out.add_pinned();
            }
        }
        let (items, bytes) = (std::mem::take(&mut self.out.items), self.out.bytes.len());
        self.count += items;
        self.ring.moves.add(Direction::Out, items, bytes as u64);
        self.send()
    }

    fn say(&mut self, frame: &Frame<'_>) -> Result<(), SourceError> {
        frame.encode(&mut self.out.bytes);
        self.send()
    }

    /// Sends everything that is encoded, or PING if there has been nothing for long.
    fn send(&mut self) -> Result<(), SourceError> {
        if self.out.bytes.is_empty() && self.spoke.elapsed() >= PING_EVERY {
            Frame::Ping.encode(&mut self.out.bytes);
        }
        let mut sent = 0;
        while sent < self.out.bytes.len() {
            match self.line.write(&self.out.bytes[sent..]) {
                Ok(0) => return Err(SourceError::Closed),
                Ok(count) => {
                    sent += count;
                    self.heard = Instant::now();
                    self.spoke = self.heard;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.line.wait(LOOK)?;
                    self.look_at_time()?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.out.bytes.clear();
        self.out.bytes.shrink_to(BUFFER_BYTES_MAX);
        Ok(())
    }

    /// Reads once. Returns the first event that has come.
    fn receive(&mut self) -> Result<Option<SourceEvent>, SourceError> {
        if let Some(event) = self.next_event()? {
            return Ok(Some(event));
        }
        let mut bytes = [0; 512];
        match self.line.read(&mut bytes, Duration::ZERO) {
            Ok(0) => return Err(SourceError::Closed),
            Ok(count) => {
                self.heard = Instant::now();
                self.input.extend_from_slice(&bytes[..count]);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error.into()),
        }
        self.next_event()
    }

    /// Takes messages from those that have come, up to the first event.
    fn next_event(&mut self) -> Result<Option<SourceEvent>, SourceError> {
        while let Some((frame, bytes)) = frame(&self.input, 0)? {
            let event = match frame {
                Frame::Seal => Some(SourceEvent::Seal),
                Frame::Committed { .. } => Some(SourceEvent::Committed),
                Frame::Ping => None,
                _ => return Err(SourceError::Unexpected),
            };
            self.input.drain(..bytes);
            if event.is_some() {
                return Ok(event);
            }
        }
        Ok(None)
    }

    /// Looks whether the session must end, and sends PING if it is time.
    fn look(&mut self) -> Result<(), SourceError> {
        self.look_at_time()?;
        self.send()
    }

    fn look_at_time(&self) -> Result<(), SourceError> {
        if (self.ends)() {
            return Err(SourceError::Ends);
        }
        if self.heard.elapsed() > self.silent_max {
            return Err(SourceError::Silent(self.silent_max));
        }
        if self.ended.is_some_and(|ended| ended.elapsed() > self.commit_max) {
            return Err(SourceError::NotCommitted(self.commit_max));
        }
        Ok(())
    }
}

/// Messages that are to be sent.
#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    /// The number of ITEM and GONE.
    items: u64,
    /// Values that are copied once their hash bucket is not locked any more.
    pinned: Vec<Pinned>,
}

struct Pinned {
    key: Vec<u8>,
    /// All but the key and the value.
    attributes: ItemFrame<'static>,
    value: PinnedValue,
}

/// Returns the attributes of an item, as they are sent, without its key and its value.
fn attributes_of(item: &ItemView<'_>) -> ItemFrame<'static> {
    let bit = |is_set: bool, bit| if is_set { bit } else { 0 };
    let ms = |secs: u32| u64::from(secs) * 1000;
    ItemFrame {
        key: &[],
        value: &[],
        flags: item.client_flags(),
        cas: item.cas(),
        ttl_ms: item.expiry().remaining_secs(item.now()).map(ms),
        idle_ms: ms(item.now().saturating_sub(item.last_access())),
        bits: bit(item.fetched(), bits::FETCHED)
            | bit(item.stale(), bits::STALE)
            | bit(item.token_sent(), bits::TOKEN_SENT)
            | bit(item.key_binary(), bits::BASE64),
    }
}

impl Outgoing {
    /// Adds the item of a key, or that there is none.
    fn add_key(&mut self, kv: &Kv, key: &[u8]) {
        if kv.peek(key, kv.hash(key), |item| self.add(item)).is_err() {
            Frame::Gone { key }.encode(&mut self.bytes);
            self.items += 1;
        }
        self.add_pinned();
    }

    /// Adds an item whose hash bucket is locked.
    fn add(&mut self, item: &ItemView<'_>) {
        let (key, attributes) = (item.key(), attributes_of(item));
        match item.inline_value().filter(|value| value.len() < PINNED_BYTES_MIN) {
            Some(value) => Frame::Item(ItemFrame { key, value, ..attributes }).encode(&mut self.bytes),
            None => self.pinned.push(Pinned { key: key.to_vec(), attributes, value: item.pin() }),
        }
        self.items += 1;
    }

    /// Adds the items whose values are pinned.
    fn add_pinned(&mut self) {
        for Pinned { key, attributes, value } in self.pinned.drain(..) {
            ItemFrame { key: &key, ..attributes }.encode_head(value.bytes(), &mut self.bytes);
            value.chunks().for_each(|chunk| self.bytes.extend_from_slice(chunk));
        }
    }
}
