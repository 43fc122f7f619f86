//! The entry's end: requests are queued, and wait for their answers, within limits.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::slots::{Slot, SlotSet};
use crate::wire::{self, Flags, HEAD_BYTES, Head, Kind, MESSAGE_BYTES_MAX, OPEN_MAX, Report};

/// The maximum number of bytes that wait to be sent.
const UNSENT_BYTES_MAX: usize = 256 << 10;
/// The maximum number of bytes that wait to be sent, or for the answer to a request among them.
pub(super) const LOG_BYTES_MAX: usize = 384 << 10;
/// The maximum number of requests that wait for their answers.
pub(super) const WAITING_MAX: usize = 4096;
/// The number of bytes that are kept of a request with parts: every command without its value. A
/// text command is kept to the end of its line, however long.
const HEAD_KEPT_BYTES: usize = 2048 + 256;
/// The number of bytes of such heads above which no further request with parts begins.
const HEADS_BYTES_MAX: usize = OPEN_MAX * HEAD_KEPT_BYTES;
/// The capacity that an idle lane keeps, in bytes.
const IDLE_BYTES: usize = 4096;

/// The receiver of an answer. Only the caller interprets the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Waiter {
    /// The slot of the connection within its worker.
    pub slot: u32,
    /// Distinguishes the connections that have had the slot.
    pub tag: u32,
    /// The place of the reply within the order of the connection's replies.
    pub place: u32,
    /// The part of a reply that several nodes answer.
    pub part: u16,
}

/// Names a request of a lane, also when it is sent again on the next lane to the same node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(pub(super) u32);

/// The entry's end of a lane.
///
/// The bytes of a request are held once: [`unsent`](Self::unsent) returns them for the socket, and
/// they are kept until the request is answered, so that it can be sent again if the owner has not
/// executed it. Of a request with parts only the head is kept.
///
/// It holds at most [`HELD_BYTES_MAX`](Self::HELD_BYTES_MAX).
#[derive(Debug)]
pub struct Outbound {
    /// All messages from the first one that is kept; those up to `sent` are with the socket.
    pub(super) log: VecDeque<u8>,
    /// The position within the stream of the log's first byte.
    pub(super) base: u64,
    /// The position within the stream of the first unsent byte.
    pub(super) sent: u64,
    /// The complete requests without an answer, in the order in which they were completed, which is
    /// that of their answers.
    pub(super) waiting: VecDeque<Waiting>,
    /// The requests with parts that have no answer; `None` for one that is in `waiting`.
    pub(super) large: HashMap<u32, Option<Open>>,
    /// The bytes that are kept of requests with parts.
    pub(super) heads_bytes: usize,
    /// The requests whose replies have begun to arrive, and are not complete.
    pub(super) partly: HashMap<u32, Partly>,
    /// The slots of which the owner has refused a request: it refuses all until one has
    /// [`Flags::AGAIN`].
    pub(super) refused: Option<SlotSet>,
    /// The requests without an answer whose clients have gone. Their answers are not delivered.
    pub(super) forgotten: HashSet<u32>,
    /// The id of the last request.
    pub(super) previous: u32,
    /// The highest id whose answer has begun: requests without parts are answered in the order of
    /// their ids.
    pub(super) begun: u32,
    /// The id of the last answer of this lane, for BYE.
    pub(super) last: u32,
    /// The token of the PING that is not answered.
    pub(super) ping: Option<u64>,
    pub(super) pong: Option<(u64, Report)>,
    pub(super) is_ended: bool,
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) id: u32,
    pub(super) to: Waiter,
    pub(super) flags: Flags,
    pub(super) slot: SlotNumber,
    pub(super) own: Own,
}

/// The number of a slot, or [`wire::NO_SLOT`]: half as large as an `Option`, for each request that waits.
type SlotNumber = u16;

fn number_of(slot: Option<Slot>) -> SlotNumber {
    slot.map_or(wire::NO_SLOT, Slot::number)
}

#[derive(Debug)]
pub(super) enum Own {
    /// The message at this position within the stream.
    Log { at: u64, bytes: u32 },
    /// A request with parts, the last of which ends at this position.
    Head { head: Box<[u8]>, end: u64 },
}

impl Own {
    pub(super) fn end(&self) -> u64 {
        match self {
            Self::Log { at, bytes } => at + HEAD_BYTES as u64 + u64::from(*bytes),
            Self::Head { end, .. } => *end,
        }
    }
}

/// A request whose last part has not been queued.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) to: Waiter,
    pub(super) flags: Flags,
    slot: SlotNumber,
    pub(super) head: Box<[u8]>,
}

#[derive(Debug)]
pub(super) struct Partly {
    pub(super) to: Waiter,
    pub(super) flags: Flags,
    /// Whether MORE was sent since the last part.
    pub(super) is_asked: bool,
    pub(super) is_forgotten: bool,
}

impl Default for Outbound {
    fn default() -> Self {
        Self::new()
    }
}

impl Outbound {
    /// The maximum memory of a lane's end, in bytes: half of it for messages, the rest for 4096
    /// requests that wait, heads of 64 requests with parts, and 2048 replies that wait for MORE.
    pub const HELD_BYTES_MAX: usize = 1 << 20;

    /// Creates the end of a lane on which nothing was sent.
    #[must_use]
    pub fn new() -> Self {
        Self {
            log: VecDeque::new(),
            base: 0,
            sent: 0,
            waiting: VecDeque::new(),
            large: HashMap::new(),
            heads_bytes: 0,
            partly: HashMap::new(),
            refused: None,
            forgotten: HashSet::new(),
            previous: 0,
            begun: 0,
            last: 0,
            ping: None,
            pong: None,
            is_ended: false,
        }
    }

    /// Returns how many bytes the next request or part may have, [`MESSAGE_BYTES_MAX`] at most; 0
    /// if there is no space, or after BYE. A lane whose requests are answered and sent has the most.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        if self.is_ended || self.waiting.len() >= WAITING_MAX {
            return 0;
        }
        let unsent = UNSENT_BYTES_MAX.saturating_sub(self.unsent_bytes());
        let log = LOG_BYTES_MAX.saturating_sub(self.log.len());
        unsent.min(log).saturating_sub(HEAD_BYTES).min(MESSAGE_BYTES_MAX)
    }

    /// Returns whether less than half of each limit of [`room`](Self::room) is in use: then
    /// connections that wait for room are woken, and requests with parts may begin. Open requests do
    /// not count, because their parts wait for room, too.
    #[must_use]
    pub fn is_below_half(&self) -> bool {
        !self.is_ended
            && self.waiting.len() < WAITING_MAX / 2
            && self.unsent_bytes() < UNSENT_BYTES_MAX / 2
            && self.log.len() < LOG_BYTES_MAX / 2
    }

    /// Returns whether another request with [`Flags::PARTS`] may begin.
    #[must_use]
    pub fn may_open(&self) -> bool {
        self.large.len() < OPEN_MAX && self.heads_bytes < HEADS_BYTES_MAX
    }

    /// Returns the number of requests that are not answered completely.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        let open = self.large.values().filter(|open| open.is_some()).count();
        self.waiting.len() + open + self.partly.len()
    }

    /// Returns whether the owner may still execute a request of this slot: one that is not answered.
    /// It looks at all requests that wait.
    #[must_use]
    pub fn has_in_flight(&self, slot: Slot) -> bool {
        let number = slot.number();
        self.waiting.iter().any(|waiting| waiting.slot == number)
            || self.large.values().flatten().any(|open| open.slot == number)
    }

    /// Returns the slots of the requests that are not answered, with repetitions.
    pub fn slots_in_flight(&self) -> impl Iterator<Item = Slot> {
        let open = self.large.values().flatten().map(|open| open.slot);
        self.waiting.iter().map(|waiting| waiting.slot).chain(open).filter_map(Slot::new)
    }

    /// Returns whether the owner [has refused](Self::is_refused) a request of any slot.
    #[inline]
    #[must_use]
    pub fn has_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// Returns whether the owner has refused a request of this slot, and none was sent since. The next
    /// one gets [`Flags::AGAIN`], so it must be of this slot alone.
    #[inline]
    #[must_use]
    pub fn is_refused(&self, slot: Slot) -> bool {
        self.refused.as_ref().is_some_and(|refused| refused.contains(slot))
    }

    /// Returns whether the next request of this slot must wait for the answers to those in flight: the
    /// owner has refused one of them, and refuses them all.
    #[inline]
    #[must_use]
    pub fn must_wait(&self, slot: Slot) -> bool {
        self.is_refused(slot) && self.has_in_flight(slot)
    }

    /// Returns whether the owner has sent BYE: call [`resume`](Self::resume) for the next lane.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Queues a request that consists of `pieces`. With [`Flags::PARTS`] it is the first part of it.
    /// `slot` is `None` for a request to every node. It has [`Flags::AGAIN`] if it must.
    ///
    /// # Panics
    /// In debug builds, panics if there is no [`room`](Self::room) for it, it is empty, `slot` does
    /// not fit the flags, it [must wait](Self::must_wait), or it has parts and no request with parts
    /// [may begin](Self::may_open).
    pub fn request(&mut self, to: Waiter, slot: Option<Slot>, flags: Flags, pieces: &[&[u8]]) -> RequestId {
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        debug_assert!(
            (1..=self.room()).contains(&bytes),
            "a request of {bytes} bytes, room for {}",
            self.room()
        );
        debug_assert_eq!(slot.is_none(), flags.has(Flags::EVERY), "a slot for every node, or none for one");
        let id = self.next_id();
        let again = match slot {
            Some(slot) if self.refused.is_some() => self.ends_refusals(slot),
            _ => Flags::NONE,
        };
        let sent = Head { id, slot, kind: Kind::Request, flags: flags.with(again), bytes: bytes as u32 };
        let at = self.push(sent, pieces);
        let slot = number_of(slot);
        if flags.has(Flags::PARTS) {
            debug_assert!(self.may_open(), "too many requests with parts");
            let head = head_of(flags, pieces);
            self.heads_bytes += head.len();
            self.large.insert(id, Some(Open { to, flags, slot, head }));
        } else {
            let own = Own::Log { at, bytes: bytes as u32 };
            self.waiting.push_back(Waiting { id, to, flags, slot, own });
        }
        RequestId(id)
    }

    /// Returns [`Flags::AGAIN`] for the first request of a slot after a refusal.
    #[cold]
    fn ends_refusals(&mut self, slot: Slot) -> Flags {
        debug_assert!(!self.must_wait(slot), "requests of slot {} are in flight", slot.number());
        let Some(refused) = &mut self.refused else { return Flags::NONE };
        let again = if refused.remove(slot) { Flags::AGAIN } else { Flags::NONE };
        self.refused.take_if(|refused| refused.is_empty());
        again
    }

    /// Queues the next part of a request, which is complete with the `last`. Nothing is done if it is
    /// complete, or was forgotten.
    ///
    /// # Panics
    /// In debug builds, panics if there is no [`room`](Self::room) for the part, or it is empty.
    pub fn part(&mut self, id: RequestId, bytes: &[u8], last: bool) {
        let Some(Some(_)) = self.large.get(&id.0) else { return };
        debug_assert!((1..=self.room()).contains(&bytes.len()), "a part of {} bytes", bytes.len());
        let flags = if last { Flags::NONE } else { Flags::PARTS };
        let head = Head { id: id.0, slot: None, kind: Kind::RequestPart, flags, bytes: bytes.len() as u32 };
        self.push(head, &[bytes]);
        if last {
            self.complete(id.0);
        }
    }

    /// Asks for the next part of a reply. Nothing is done if it was asked for, or the reply is
    /// complete.
    pub fn more(&mut self, id: RequestId) {
        if let Some(partly) = self.partly.get_mut(&id.0)
            && !partly.is_asked
            && !partly.is_forgotten
        {
            partly.is_asked = true;
            self.push_control(Kind::More, id.0);
        }
    }

    /// Says that the client of a request has gone: nothing of it is delivered any more. A complete
    /// request may be executed all the same. Nothing is done if it was answered.
    pub fn forget(&mut self, id: RequestId) {
        let id = id.0;
        if let Some(partly) = self.partly.get_mut(&id) {
            if std::mem::replace(&mut partly.is_forgotten, true) {
                return;
            }
        } else if self.is_waiting(id) {
            if !self.forgotten.insert(id) {
                return;
            }
        } else {
            return;
        }
        self.push_control(Kind::Forget, id);
        if let Some(Some(_)) = self.large.get(&id) {
            self.complete(id);
        }
    }

    /// Queues a PING with this token, unless the last one was not answered. An idle lane gives its
    /// buffer back.
    pub fn ping(&mut self, token: u64) {
        if self.log.is_empty() {
            self.log.shrink_to(IDLE_BYTES);
        }
        if self.ping.is_none() && !self.is_ended {
            self.ping = Some(token);
            self.push(
                Head { id: 0, slot: None, kind: Kind::Ping, flags: Flags::NONE, bytes: 8 },
                &[&token.to_le_bytes()],
            );
        }
    }

    /// Returns the token and the report of the last PONG, once.
    pub fn take_pong(&mut self) -> Option<(u64, Report)> {
        self.pong.take()
    }

    /// Queues BYE: no request may follow.
    pub fn bye(&mut self) {
        self.push_control(Kind::RequestsEnd, 0);
    }

    /// Returns the bytes that wait to be sent, in two slices: the second follows the first.
    #[inline]
    #[must_use]
    pub fn unsent(&self) -> (&[u8], &[u8]) {
        let (front, back) = self.log.as_slices();
        let skip = (self.sent - self.base) as usize;
        match front.get(skip..) {
            Some(rest) if !rest.is_empty() => (rest, back),
            _ => (&back[skip - front.len()..], &[]),
        }
    }

    /// Says that the socket has taken the next `bytes` of the unsent ones.
    ///
    /// # Panics
    /// Panics if fewer are unsent.
    pub fn sent(&mut self, bytes: usize) {
        assert!(bytes <= self.unsent_bytes(), "{bytes} bytes sent of {}", self.unsent_bytes());
        self.sent += bytes as u64;
        self.trim();
    }

    /// Lets ids begin after `previous`.
    #[cfg(test)]
    pub(super) fn start_after(&mut self, previous: u32) {
        (self.previous, self.begun) = (previous, previous);
    }

    /// Returns the number of bytes in the log, and of requests that wait.
    #[cfg(test)]
    pub(super) fn held(&self) -> (usize, usize) {
        (self.log.len(), self.waiting.len() + self.large.len() + self.partly.len() + self.forgotten.len())
    }

    #[cfg(test)]
    pub(super) fn heads_bytes(&self) -> usize {
        self.heads_bytes
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.log.capacity()
    }

    fn unsent_bytes(&self) -> usize {
        self.log.len() - (self.sent - self.base) as usize
    }

    /// Returns an id that differs from the ids of all requests without a complete answer.
    fn next_id(&mut self) -> u32 {
        loop {
            self.previous = self.previous.wrapping_add(1);
            let id = self.previous;
            if id != 0 && !self.partly.contains_key(&id) && !self.large.contains_key(&id) {
                return id;
            }
        }
    }

    /// Appends a message. Returns its position within the stream.
    fn push(&mut self, head: Head, pieces: &[&[u8]]) -> u64 {
        let at = self.base + self.log.len() as u64;
        self.log.extend(&head.encode());
        for piece in pieces {
            self.log.extend(*piece);
        }
        at
    }

    /// Appends a message without bytes. It needs no room: there are at most two for each request.
    fn push_control(&mut self, kind: Kind, id: u32) {
        self.push(Head { id, slot: None, kind, flags: Flags::NONE, bytes: 0 }, &[]);
    }

    /// Puts an open request, whose last message was queued, in the order of the answers.
    fn complete(&mut self, id: u32) {
        if let Some(large) = self.large.get_mut(&id)
            && let Some(Open { to, flags, slot, head }) = large.take()
        {
            let end = self.base + self.log.len() as u64;
            self.waiting.push_back(Waiting { id, to, flags, slot, own: Own::Head { head, end } });
        }
    }

    /// Returns whether no answer to this request has begun. It is true also of a request with parts that
    /// has failed when the lane was resumed; the owner ignores a FORGET of that.
    pub(super) fn is_waiting(&self, id: u32) -> bool {
        let is_begun = id.wrapping_sub(self.begun).wrapping_sub(1) >= self.previous.wrapping_sub(self.begun);
        self.large.contains_key(&id) || !is_begun
    }

    /// Drops the sent bytes before the first request whose bytes are kept.
    pub(super) fn trim(&mut self) {
        if self.waiting.is_empty() {
            self.forgotten.clear();
        }
        let in_log = |waiting: &Waiting| match waiting.own {
            Own::Log { at, .. } => Some(at),
            Own::Head { .. } => None,
        };
        let keep = self.waiting.iter().find_map(in_log).unwrap_or(self.sent).min(self.sent);
        if keep > self.base {
            self.log.drain(..(keep - self.base) as usize);
            self.base = keep;
        }
    }
}

/// Returns the part that is kept of a request with parts.
fn head_of(flags: Flags, pieces: &[&[u8]]) -> Box<[u8]> {
    let mut head: Vec<u8> = Vec::with_capacity(HEAD_KEPT_BYTES);
    for byte in pieces.iter().copied().flatten() {
        head.push(*byte);
        let is_text = !flags.has(Flags::BINARY);
        if (is_text && *byte == b'\n') || (!is_text && head.len() == HEAD_KEPT_BYTES) {
            break;
        }
    }
    head.into()
}
