//! The owner's end: what an entry sends.

use crate::slots::{Slot, SlotSet};
use crate::wire::{self, Flags, HEAD_BYTES, Hostile, Kind, OPEN_MAX};

/// A message from an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked<'a> {
    /// A request, or its first part ([`Flags::PARTS`]).
    Request {
        /// The id of the request.
        id: u32,
        /// The slot of its key; `None` if every node executes the request ([`Flags::EVERY`]).
        slot: Option<Slot>,
        /// The flags.
        flags: Flags,
        /// The client's own bytes, at least one.
        bytes: &'a [u8],
    },
    /// The next part of a request. The request is answered when it is complete, not before.
    Part {
        /// The id of the request.
        id: u32,
        /// The client's own bytes, at least one.
        bytes: &'a [u8],
        /// Whether the request is complete.
        last: bool,
    },
    /// The next part of a reply may be sent. Nothing is done if no reply with this id waits.
    More(u32),
    /// The client has gone. The owner drops a request that misses parts, or a reply that waits for
    /// MORE, and answers with DONE without bytes. Nothing is done if there is neither.
    Forget(u32),
    /// A PONG with this token is asked for.
    Ping(u64),
    /// The entry sends no further message. Once the replies to all of its requests are sent, the owner
    /// closes the lane.
    Bye,
}

/// The owner's end of a lane.
///
/// ```
/// use cached_ring::{Asked, Flags, Inbound, Outbound, Waiter, slot_of};
///
/// let (mut outbound, mut inbound) = (Outbound::new(), Inbound::new(1 << 20));
/// outbound.request(Waiter::default(), Some(slot_of(b"k")), Flags::NONE, &[b"get k\r\n"]);
/// let (asked, used) = inbound.next(outbound.unsent().0)?.expect("complete");
/// assert!(matches!(asked, Asked::Request { id: 1, bytes: b"get k\r\n", .. }));
/// outbound.sent(used);
/// # Ok::<_, cached_ring::Hostile>(())
/// ```
#[derive(Debug)]
pub struct Inbound {
    /// The id of the last request; 0 before the first.
    previous: u32,
    /// The requests that miss parts, and how many bytes of them have come.
    open: Vec<(u32, usize)>,
    /// The slots of which a request was refused since the last one with [`Flags::AGAIN`].
    refused: Option<SlotSet>,
    last: u32,
    is_ended: bool,
    request_bytes_max: usize,
}

impl Inbound {
    /// Creates the end of a lane on which nothing was received. A request of more than
    /// `request_bytes_max` bytes is a mistake of the peer: it is the largest item of any node and
    /// its command, not what this node stores.
    #[must_use]
    pub fn new(request_bytes_max: usize) -> Self {
        Self { previous: 0, open: Vec::new(), refused: None, last: 0, is_ended: false, request_bytes_max }
    }

    /// Returns the id of the last request that is complete; 0 if there is none. When all of them
    /// are answered, it is the id for BYE.
    #[must_use]
    pub fn last(&self) -> u32 {
        self.last
    }

    /// Returns whether BYE was received.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Returns whether a request with these flags must be refused for this slot, even if its requests
    /// are executed here: an earlier one was refused, and has not been sent again.
    #[inline]
    #[must_use]
    pub fn refuses(&self, slot: Slot, flags: Flags) -> bool {
        match &self.refused {
            None => false,
            Some(refused) => !flags.has(Flags::AGAIN) && refused.contains(slot),
        }
    }

    /// Says whether a request with these flags was refused, for each slot of its keys. Of a request
    /// with parts this is said when its head has come, and again if it is refused at its end.
    #[inline]
    pub fn decided(&mut self, slot: Slot, flags: Flags, is_refused: bool) {
        if is_refused || self.refused.is_some() {
            self.keep_order(slot, flags, is_refused);
        }
    }

    #[cold]
    fn keep_order(&mut self, slot: Slot, flags: Flags, is_refused: bool) {
        if is_refused {
            self.refused.get_or_insert_default().insert(slot);
        } else if flags.has(Flags::AGAIN) {
            self.refused.take_if(|refused| {
                refused.remove(slot);
                refused.is_empty()
            });
        }
    }

    /// Returns what `input` begins with, and its length in bytes; `None` if it is incomplete.
    ///
    /// # Errors
    /// Returns [`Hostile`] if the peer breaks the protocol; then the lane must be closed.
    #[inline]
    pub fn next<'a>(&mut self, input: &'a [u8]) -> Result<Option<(Asked<'a>, usize)>, Hostile> {
        let Some((head, bytes)) = wire::message(input)? else { return Ok(None) };
        let (id, kind) = (head.id, head.kind);
        if self.is_ended {
            return Err(Hostile::AfterBye(kind));
        }
        if (id == 0) != matches!(kind, Kind::Ping | Kind::RequestsEnd) {
            return Err(Hostile::Id(kind, id));
        }
        let asked = match kind {
            Kind::Request => {
                self.begin(id, head.flags, bytes)?;
                Asked::Request { id, slot: head.slot, flags: head.flags, bytes }
            }
            Kind::RequestPart => {
                let last = !head.flags.has(Flags::PARTS);
                self.part(id, bytes, last)?;
                Asked::Part { id, bytes, last }
            }
            Kind::More => Asked::More(id),
            Kind::Forget => {
                if let Some(at) = self.position(id) {
                    self.complete(at);
                }
                Asked::Forget(id)
            }
            Kind::Ping => Asked::Ping(wire::number(bytes)),
            Kind::RequestsEnd => {
                self.is_ended = true;
                Asked::Bye
            }
            Kind::Done | Kind::ReplyPart | Kind::NotMine | Kind::Pong | Kind::RepliesEnd => {
                return Err(Hostile::Direction(kind));
            }
        };
        Ok(Some((asked, HEAD_BYTES + bytes.len())))
    }

    #[inline]
    fn begin(&mut self, id: u32, flags: Flags, bytes: &[u8]) -> Result<(), Hostile> {
        // The entry leaves out ids that are still in use, and counts on from 0 after the last.
        let is_above = (1..=u32::MAX / 2).contains(&id.wrapping_sub(self.previous));
        if self.previous != 0 && (!is_above || self.position(id).is_some()) {
            return Err(Hostile::RequestOrder { id, before: self.previous });
        }
        if flags.has(Flags::EVERY.with(Flags::AGAIN)) {
            return Err(Hostile::EveryAgain);
        }
        if flags.has(Flags::PARTS) {
            if flags.has(Flags::EVERY) || flags.has(Flags::HEAD) {
                return Err(Hostile::Parts);
            }
            if self.open.len() == OPEN_MAX {
                return Err(Hostile::Open);
            }
            self.open.push((id, bytes.len()));
        } else {
            self.last = id;
        }
        self.previous = id;
        Ok(())
    }

    fn part(&mut self, id: u32, bytes: &[u8], last: bool) -> Result<(), Hostile> {
        let at = self.position(id).ok_or(Hostile::UnknownPart(id))?;
        let len = self.open[at].1 + bytes.len();
        if len > self.request_bytes_max {
            return Err(Hostile::TooLong(id));
        }
        self.open[at].1 = len;
        if last {
            self.complete(at);
        }
        Ok(())
    }

    fn position(&self, id: u32) -> Option<usize> {
        self.open.iter().position(|open| open.0 == id)
    }

    fn complete(&mut self, at: usize) {
        self.last = self.open.swap_remove(at).0;
    }
}
