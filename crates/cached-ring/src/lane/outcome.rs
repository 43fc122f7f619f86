//! The outcomes of the entry's requests: each gets its answers, in the order in which the owner must
//! give them, or fails when the lane is lost or ended. After an orderly end, the requests that the
//! owner has not executed go on to the next lane.

use std::collections::VecDeque;

use super::outbound::{Open, Outbound, Own, Partly, RequestId, Waiter, Waiting};
use crate::slots::Slot;
use crate::wire::{self, Flags, HEAD_BYTES, Head, Hostile, Kind, Report, SUSPENDED_MAX};

/// An answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer<'a> {
    /// A reply, or a part of it.
    Bytes {
        /// The bytes, for the client.
        bytes: &'a [u8],
        /// Whether the reply is complete. If not, [`Outbound::more`] asks for the next part.
        last: bool,
    },
    /// The owner has another map, and has not executed the request.
    NotMine {
        /// The version of the owner's map.
        map_version: u64,
        /// The slot of its first key; `None` if every node executes it.
        slot: Option<Slot>,
        /// The flags of the request.
        flags: Flags,
        /// The client's own bytes: all, or the head of a request with parts.
        own: &'a [u8],
    },
}

/// Whether the owner has executed a request that is not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Executed {
    /// It has not: the request, or a part of it, was not sent, or the owner said so.
    No,
    /// It may have.
    Maybe,
    /// It has, and a part of the reply has been delivered.
    Partly,
    /// It has not, and has refused an earlier request, which may be of the same slot: this one goes
    /// again after it.
    Refused,
}

/// A request that will not be answered.
#[derive(Debug, Clone, Copy)]
pub struct Failed<'a> {
    /// The receiver that waits for the answer.
    pub to: Waiter,
    /// The request.
    pub id: RequestId,
    /// Its flags.
    pub flags: Flags,
    /// The client's own bytes: all, or the head of a request with parts. Empty if a part of the
    /// reply has been delivered.
    pub own: &'a [u8],
    /// Whether the owner has executed the request.
    pub executed: Executed,
}

impl Outbound {
    /// Reads what the owner has sent, and calls `each` for each answer, in order. Returns the number
    /// of bytes used: the rest is the beginning of a message of at most
    /// [`MESSAGE_BYTES_MAX`](wire::MESSAGE_BYTES_MAX) bytes, and must be given again with what follows.
    ///
    /// # Errors
    /// Returns [`Hostile`] if the owner breaks the protocol; the answers before were delivered. Then
    /// the lane must be closed, and is [`lost`](Self::lost).
    pub fn received(
        &mut self,
        input: &[u8],
        each: &mut dyn FnMut(Waiter, RequestId, Answer<'_>),
    ) -> Result<usize, Hostile> {
        let mut rest = input;
        let result = loop {
            match wire::message(rest) {
                Ok(Some((head, bytes))) => match self.reply(head, bytes, each) {
                    Ok(()) => rest = &rest[HEAD_BYTES + bytes.len()..],
                    Err(hostile) => break Err(hostile),
                },
                Ok(None) => break Ok(input.len() - rest.len()),
                Err(hostile) => break Err(hostile),
            }
        };
        self.trim();
        result
    }

    /// Empties the lane, whose connection is lost, and calls `each` for each request that is not
    /// answered, except the forgotten ones. The next lane to the same node may go on with it.
    pub fn lost(&mut self, each: &mut dyn FnMut(Failed<'_>)) {
        self.fail(false, each);
        self.restart();
    }

    /// Begins the next lane to the same node after the owner's BYE: it begins with the requests that
    /// the owner has not executed. Calls `each` for those that cannot be sent again: requests with
    /// parts, and those of whose replies a part has come. Without BYE, the lane is
    /// [`lost`](Self::lost).
    pub fn resume(&mut self, each: &mut dyn FnMut(Failed<'_>)) {
        if !self.is_ended {
            return self.lost(each);
        }
        self.fail(true, each);
        let mut log = VecDeque::with_capacity(self.log.len());
        let messages = self.log.make_contiguous();
        for waiting in &mut self.waiting {
            let Own::Log { at, bytes } = &mut waiting.own else { continue };
            let begin = (*at - self.base) as usize;
            *at = log.len() as u64;
            log.extend(&messages[begin..begin + HEAD_BYTES + *bytes as usize]);
        }
        self.log = log;
        self.restart();
    }

    /// Fails the requests that are not sent again, and takes them and the forgotten ones out.
    fn fail(&mut self, is_resumed: bool, each: &mut dyn FnMut(Failed<'_>)) {
        let (base, sent) = (self.base, self.sent);
        let messages = &*self.log.make_contiguous();
        let forgotten = &self.forgotten;
        // Only the caller knows all slots of a retrieval of several keys. So all requests go again.
        let is_refused = self.refused.take().is_some() && is_resumed;
        self.waiting.retain(|waiting| {
            let own = match &waiting.own {
                _ if forgotten.contains(&waiting.id) => return false,
                Own::Log { .. } if is_resumed && !is_refused => return true,
                own => own_bytes(own, messages, base),
            };
            let was_sent = waiting.own.end() <= sent;
            let executed = match was_sent && !is_resumed {
                true => Executed::Maybe,
                false if is_refused => Executed::Refused,
                false => Executed::No,
            };
            each(Failed { to: waiting.to, id: RequestId(waiting.id), flags: waiting.flags, own, executed });
            false
        });
        for (id, open) in self.large.drain() {
            let Some(Open { to, flags, head, .. }) = open else { continue };
            each(Failed { to, id: RequestId(id), flags, own: &head, executed: Executed::No });
        }
        for (id, Partly { to, flags, is_forgotten, .. }) in self.partly.drain() {
            if !is_forgotten {
                each(Failed { to, id: RequestId(id), flags, own: &[], executed: Executed::Partly });
            }
        }
        self.forgotten.clear();
        self.heads_bytes = 0;
    }

    /// Makes this the end of a lane on which nothing was sent. If requests wait, the log has them.
    fn restart(&mut self) {
        if self.waiting.is_empty() {
            self.log = VecDeque::new();
            self.begun = self.previous;
        }
        (self.base, self.sent, self.last) = (0, 0, 0);
        (self.ping, self.pong, self.is_ended) = (None, None, false);
    }

    fn reply(
        &mut self,
        head: Head,
        bytes: &[u8],
        each: &mut dyn FnMut(Waiter, RequestId, Answer<'_>),
    ) -> Result<(), Hostile> {
        let Head { id, kind, .. } = head;
        if self.is_ended {
            return Err(Hostile::AfterBye(kind));
        }
        match kind {
            Kind::Done | Kind::ReplyPart => {
                let last = kind == Kind::Done;
                self.answer(id, bytes, last, each)
            }
            Kind::NotMine => self.not_mine(id, wire::number(bytes), each),
            Kind::Pong => {
                let token = wire::number(bytes);
                if self.ping.take() != Some(token) {
                    return Err(Hostile::Pong);
                }
                self.pong = Some((token, Report::decode(&bytes[8..])));
                Ok(())
            }
            Kind::RepliesEnd if id == self.last => {
                self.is_ended = true;
                Ok(())
            }
            Kind::RepliesEnd => Err(Hostile::Bye { named: id, last: self.last }),
            _ => Err(Hostile::Direction(kind)),
        }
    }

    #[inline]
    fn answer(
        &mut self,
        id: u32,
        bytes: &[u8],
        last: bool,
        each: &mut dyn FnMut(Waiter, RequestId, Answer<'_>),
    ) -> Result<(), Hostile> {
        let (to, is_forgotten);
        if !self.partly.is_empty()
            && let Some(partly) = self.partly.get_mut(&id)
        {
            partly.is_asked = false;
            (to, is_forgotten) = (partly.to, partly.is_forgotten);
            if last {
                self.partly.remove(&id);
            }
        } else {
            let waiting = self.begin(id)?;
            to = waiting.to;
            is_forgotten = !self.forgotten.is_empty() && self.forgotten.remove(&id);
            if !last {
                if self.partly.len() == 2 * SUSPENDED_MAX {
                    return Err(Hostile::Suspended);
                }
                let flags = waiting.flags;
                self.partly.insert(id, Partly { to, flags, is_asked: false, is_forgotten });
            }
        }
        if !is_forgotten {
            each(to, RequestId(id), Answer::Bytes { bytes, last });
        }
        Ok(())
    }

    fn not_mine(
        &mut self,
        id: u32,
        map_version: u64,
        each: &mut dyn FnMut(Waiter, RequestId, Answer<'_>),
    ) -> Result<(), Hostile> {
        if self.partly.contains_key(&id) {
            return Err(Hostile::RefusedLate(id));
        }
        let Waiting { to, flags, slot, own, .. } = self.begin(id)?;
        if let Some(slot) = Slot::new(slot) {
            self.refused.get_or_insert_default().insert(slot);
        }
        if !self.forgotten.remove(&id) {
            let own = own_bytes(&own, self.log.make_contiguous(), self.base);
            each(to, RequestId(id), Answer::NotMine { map_version, slot: Slot::new(slot), flags, own });
        }
        Ok(())
    }

    /// Takes the request that is answered next out of those that wait: it must be `id`.
    #[inline]
    fn begin(&mut self, id: u32) -> Result<Waiting, Hostile> {
        match self.waiting.front() {
            Some(first) if first.id == id && first.own.end() <= self.sent => {}
            Some(first) if first.id != id && self.is_waiting(id) => {
                return Err(Hostile::AnswerOrder { id, first: first.id });
            }
            _ => return Err(Hostile::UnknownAnswer(id)),
        }
        if !self.large.is_empty() {
            self.large.remove(&id);
        }
        // A request with parts may be answered after later ones.
        if id.wrapping_sub(self.begun) <= u32::MAX / 2 {
            self.begun = id;
        }
        self.last = id;
        let waiting = self.waiting.pop_front().ok_or(Hostile::UnknownAnswer(id))?;
        if let Own::Head { head, .. } = &waiting.own {
            self.heads_bytes -= head.len();
        }
        Ok(waiting)
    }
}

/// Returns a request's own bytes. `messages` is the log, which begins at `base`.
fn own_bytes<'a>(own: &'a Own, messages: &'a [u8], base: u64) -> &'a [u8] {
    match own {
        Own::Log { at, bytes } => {
            let begin = (at - base) as usize + HEAD_BYTES;
            &messages[begin..begin + *bytes as usize]
        }
        Own::Head { head, .. } => head,
    }
}
