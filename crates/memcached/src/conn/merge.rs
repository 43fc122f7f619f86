//! Replies that several nodes give together: retrievals of keys with different owners, and requests
//! that every node executes.

use super::places::{Answered, NoRoom, Way, put};
use crate::exec::{self, Executor};
use crate::ring::{LaneId, Lanes, Outcome, Route};
use cached_proto::text::{Get, GetCursor};
use cached_proto::{number, reply};
use cached_ring::{Flags, NodeIndex, Slot, Waiter, slot_of};
use std::collections::VecDeque;

/// The maximum number of keys whose values are asked for at once.
const KEYS_MAX: usize = 1000;
/// The maximum length of a line that is sent to a node.
pub(super) const LINE_BYTES_MAX: usize = 32 << 10;
/// The part of a key of this node.
const OWN: u16 = u16::MAX;

/// A retrieval of keys with different owners. Each owner is asked for its keys by one line; the
/// values are then taken from the replies in the order of the keys. The values of this node are
/// read when their turn comes.
pub(super) struct Merge {
    /// The request.
    line: Box<[u8]>,
    /// The position of the next key.
    cursor: GetCursor,
    /// The part that has the value of the next keys, in order.
    owners: VecDeque<u16>,
    parts: Vec<Part>,
    /// The part with a value that has not been taken completely, and the number of its missing
    /// bytes.
    value: Option<(u16, usize)>,
}

/// The reply of one node.
struct Part {
    request: PartRequest,
    got: Vec<u8>,
    /// The number of bytes of `got` that are taken.
    taken: usize,
    state: Answered,
}

enum PartRequest {
    /// The lane had no space for this line, whose first key has this slot.
    Unsent(Slot, Vec<u8>),
    Sent(LaneId),
    /// It is never sent: `got` has the whole reply.
    None,
}

/// How far a merged reply has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Walked {
    /// It is complete.
    Done,
    /// It waits for a part, or the output is full.
    Waits,
    /// The rest of a value is lost.
    Cut,
}

/// The reply of a part for one key.
enum Found {
    /// The value, without this number of bytes that have not arrived.
    Value(usize),
    Miss,
    /// More of the part must arrive.
    Incomplete,
    /// The end of the reply.
    Error(Vec<u8>),
}

impl Merge {
    /// Begins the retrieval `get`, whose line is `line`, by asking for its first keys.
    pub(super) fn begin(get: &Get<'_>, line: &[u8], way: &mut Way<'_>, to: Waiter) -> Merge {
        let mut merge = Merge {
            line: line.into(),
            cursor: get.cursor(),
            owners: VecDeque::new(),
            parts: Vec::new(),
            value: None,
        };
        merge.ask(way, to);
        merge
    }

    /// Returns the number of awaited replies.
    pub(super) fn awaited(&self) -> usize {
        self.parts.iter().filter_map(Part::missing).count()
    }

    pub(super) fn held_bytes(&self) -> usize {
        let of_part = |part: &Part| match &part.request {
            PartRequest::Unsent(_, line) => part.got.capacity() + line.capacity(),
            _ => part.got.capacity(),
        };
        self.line.len() + 2 * self.owners.capacity() + self.parts.iter().map(of_part).sum::<usize>()
    }

    /// Asks the owners of the next keys for the values.
    fn ask(&mut self, way: &mut Way<'_>, to: Waiter) {
        let mut get = self.cursor.resume(&self.line);
        let verb = verb(&get);
        let mut open: Vec<(NodeIndex, u16)> = Vec::new();
        self.parts.clear();
        while self.owners.len() < KEYS_MAX
            && let Some(key) = get.next_key()
        {
            let slot = slot_of(key);
            let Route::Peer(node) = way.lanes.route(slot) else {
                self.owners.push_back(OWN);
                continue;
            };
            let known = open.iter_mut().find(|(owner, _)| *owner == node);
            let at = match known {
                Some((_, at)) if self.parts[usize::from(*at)].line().len() + key.len() < LINE_BYTES_MAX => {
                    *at
                }
                known => {
                    let at = self.parts.len() as u16;
                    match known {
                        Some((_, last)) => *last = at,
                        None => open.push((node, at)),
                    }
                    self.parts.push(Part {
                        request: PartRequest::Unsent(slot, verb.clone()),
                        got: Vec::new(),
                        taken: 0,
                        state: Answered::Awaited,
                    });
                    at
                }
            };
            self.owners.push_back(at);
            if let PartRequest::Unsent(_, line) = &mut self.parts[usize::from(at)].request {
                line.push(b' ');
                line.extend_from_slice(key);
            }
        }
        for part in &mut self.parts {
            if let PartRequest::Unsent(_, line) = &mut part.request {
                line.extend_from_slice(b"\r\n");
            }
        }
        self.send(way, to);
    }

    /// Sends the lines for which the lanes had no space before.
    fn send(&mut self, way: &mut Way<'_>, to: Waiter) {
        for (number, part) in (0..).zip(&mut self.parts) {
            let PartRequest::Unsent(slot, line) = &part.request else { continue };
            let Route::Peer(node) = way.lanes.route(*slot) else {
                // The map has changed meanwhile. A miss is always allowed.
                part.fail(reply::END);
                continue;
            };
            match way.request(node, Waiter { part: number, ..to }, Some(*slot), Flags::NONE, line) {
                Ok(Ok(id)) => part.request = PartRequest::Sent(id),
                Ok(Err(reply)) => part.fail(&reply),
                Err(NoRoom) => {}
            }
        }
    }

    /// Writes as much of the reply as has arrived, unless the output is full, and asks for the next
    /// part of what is missing.
    pub(super) fn walk(&mut self, executor: &mut Executor<'_>, way: &mut Way<'_>, to: Waiter) -> Walked {
        self.send(way, to);
        loop {
            if let Some((at, missing)) = self.value {
                let part = &mut self.parts[usize::from(at)];
                let missing = missing - part.take(missing, &mut executor.out.bytes);
                self.value = Some((at, missing)).filter(|_| missing > 0);
                if missing > 0 {
                    return part.ask(way.lanes);
                }
            }
            if executor.out.is_full() {
                return Walked::Waits;
            }
            if self.owners.is_empty() {
                self.abandon(way.lanes);
                self.ask(way, to);
            }
            let mut get = self.cursor.resume(&self.line);
            let (Some(at), Some(key)) = (self.owners.front().copied(), get.next_key()) else {
                executor.out.bytes.extend_from_slice(reply::END);
                return Walked::Done;
            };
            if at == OWN {
                // The slot may have become another node's. A miss is always allowed.
                if way.lanes.route(slot_of(key)) == Route::Own
                    && let Err(words) = exec::get_one_of_many(executor, &get, key)
                {
                    executor.out.bytes.extend_from_slice(words);
                    return Walked::Done;
                }
            } else {
                let part = &mut self.parts[usize::from(at)];
                match part.find(key, &mut executor.out.bytes) {
                    Found::Value(0) | Found::Miss => {}
                    Found::Value(missing) => self.value = Some((at, missing)),
                    Found::Incomplete => return part.ask(way.lanes),
                    Found::Error(line) => {
                        executor.out.bytes.extend_from_slice(&line);
                        return Walked::Done;
                    }
                }
            }
            self.cursor = get.cursor();
            self.owners.pop_front();
        }
    }

    /// Takes the answer of a node. Returns whether it was awaited.
    pub(super) fn answer(&mut self, part: u16, id: LaneId, outcome: Outcome<'_>) -> bool {
        let Some(part) = self.parts.get_mut(usize::from(part)) else { return false };
        let is_awaited = matches!(part.request, PartRequest::Sent(sent) if sent == id);
        if is_awaited {
            part.state = put(&mut part.got, outcome);
        }
        is_awaited
    }

    pub(super) fn abandon(&self, lanes: &mut Lanes) {
        self.parts.iter().filter_map(Part::missing).for_each(|id| lanes.forget(id));
    }
}

/// Returns the words of a retrieval before its keys.
fn verb(get: &Get<'_>) -> Vec<u8> {
    match (get.exptime, get.with_cas) {
        (None, false) => b"get".to_vec(),
        (None, true) => b"gets".to_vec(),
        (Some(exptime), false) => format!("gat {exptime}").into_bytes(),
        (Some(exptime), true) => format!("gats {exptime}").into_bytes(),
    }
}

impl Part {
    fn line(&self) -> &[u8] {
        match &self.request {
            PartRequest::Unsent(_, line) => line,
            _ => &[],
        }
    }

    /// Returns the request that was sent and is not answered completely.
    fn missing(&self) -> Option<LaneId> {
        match self.request {
            PartRequest::Sent(id) if self.state != Answered::Whole => Some(id),
            _ => None,
        }
    }

    /// Gives the part this reply instead of a node's.
    fn fail(&mut self, reply: &[u8]) {
        self.request = PartRequest::None;
        self.got.extend_from_slice(reply);
        self.state = Answered::Whole;
    }

    /// Asks for the next part of the reply.
    fn ask(&mut self, lanes: &mut Lanes) -> Walked {
        match self.state {
            Answered::Awaited => Walked::Waits,
            Answered::Whole => Walked::Cut,
            Answered::Part => {
                self.got.drain(..self.taken);
                self.taken = 0;
                if let PartRequest::Sent(id) = self.request {
                    lanes.more(id);
                }
                self.state = Answered::Awaited;
                Walked::Waits
            }
        }
    }

    /// Moves at most `bytes_max` bytes to `out`. Returns their number.
    fn take(&mut self, bytes_max: usize, out: &mut Vec<u8>) -> usize {
        let rest = &self.got[self.taken..];
        let count = rest.len().min(bytes_max);
        out.extend_from_slice(&rest[..count]);
        self.taken += count;
        count
    }

    /// Moves the value of `key`, if that is the next one, to `out`.
    fn find(&mut self, key: &[u8], out: &mut Vec<u8>) -> Found {
        let rest = &self.got[self.taken..];
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
            // Of a reply that is cut off, the client has seen only whole values.
            return if self.state == Answered::Whole { Found::Miss } else { Found::Incomplete };
        };
        let line = &rest[..=end];
        if line == reply::END {
            return Found::Miss;
        }
        let Some(words) = line.strip_prefix(b"VALUE ") else { return Found::Error(line.to_vec()) };
        let mut words = words.trim_ascii_end().split(|byte| *byte == b' ');
        let is_of_key = words.next() == Some(key);
        let Some(value_bytes) = words.nth(1).and_then(number::token_u32) else {
            return Found::Error(line.to_vec());
        };
        if !is_of_key {
            return Found::Miss;
        }
        let bytes = line.len() + value_bytes as usize + 2;
        Found::Value(bytes - self.take(bytes, out))
    }
}

/// The reply to a request that every node executes.
pub(super) struct Every {
    /// The reply of this node, or the first one that differs.
    reply: Vec<u8>,
    is_different: bool,
    missing: Vec<LaneId>,
}

impl Every {
    /// Sends the request `own`, to which this node has replied with `reply`, to all other nodes.
    pub(super) fn begin(
        own: &[u8],
        reply: Vec<u8>,
        flags: Flags,
        way: &mut Way<'_>,
        to: Waiter,
    ) -> Result<Every, NoRoom> {
        let mut every = Every { reply, is_different: false, missing: Vec::new() };
        let peers: Vec<NodeIndex> = way.lanes.peers().collect();
        for node in peers {
            match way.request(node, to, None, flags.with(Flags::EVERY), own) {
                Ok(Ok(id)) => every.missing.push(id),
                Ok(Err(reply)) => every.take(&reply),
                // All are asked again later: the request has the same effect twice.
                Err(NoRoom) => {
                    every.abandon(way.lanes);
                    return Err(NoRoom);
                }
            }
        }
        Ok(every)
    }

    fn take(&mut self, reply: &[u8]) {
        if !self.is_different && reply != self.reply {
            self.reply = reply.to_vec();
            self.is_different = true;
        }
    }

    /// Returns the number of awaited replies.
    pub(super) fn awaited(&self) -> usize {
        self.missing.len()
    }

    /// Returns the reply if all nodes have answered.
    pub(super) fn reply(&self) -> Option<&[u8]> {
        self.missing.is_empty().then_some(&self.reply)
    }

    /// Takes the answer of a node. Returns whether it was awaited.
    pub(super) fn answer(&mut self, id: LaneId, outcome: Outcome<'_>) -> bool {
        let Some(at) = self.missing.iter().position(|missing| *missing == id) else { return false };
        let mut reply = Vec::new();
        // Such a reply has only one part.
        put(&mut reply, outcome);
        self.take(&reply);
        self.missing.swap_remove(at);
        true
    }

    pub(super) fn abandon(&self, lanes: &mut Lanes) {
        self.missing.iter().for_each(|id| lanes.forget(*id));
    }
}
