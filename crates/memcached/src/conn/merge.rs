//! Retrievals of keys with different owners.

use super::answer::{Answered, is_refusal, put};
use super::way::{Passed, Way};
use crate::exec::{self, Executor};
use crate::ring::{LaneId, Lanes, Outcome, Route, Why};
use cached_proto::text::{Get, GetCursor};
use cached_proto::{number, reply};
use cached_ring::{Flags, Slot, Waiter, slot_of};
use std::collections::VecDeque;
use std::time::Instant;

/// The maximum number of keys whose values are asked for at once.
const KEYS_MAX: usize = 1000;
/// The maximum length of a line that is sent to a node.
pub(super) const LINE_BYTES_MAX: usize = 32 << 10;
/// The part of a key of this node.
const OWN: u16 = u16::MAX;

/// A retrieval of keys with different owners. Each owner is asked for its keys by one line; the
/// values are then taken from the replies in the order of the keys. The values of this node are
/// read when their turn comes. Keys whose owner has changed, or has refused to read them, are divided
/// anew.
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
    /// Whether a part of the reply was written.
    has_begun: bool,
    /// Whether lines cannot be sent because no node executes requests for their keys.
    waits: bool,
    /// When that was so for the first time.
    waits_since: Option<Instant>,
    /// The requests that were refused in this epoch of the lanes: nothing is sent on their lanes before
    /// the next one.
    refused: Vec<LaneId>,
    epoch: u64,
    /// Whether the keys of lines that were not sent must be divided anew.
    is_stale: bool,
    /// Whether each key has a line of its own, because the slots of some are refused or wait.
    is_split: bool,
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
    /// This line has not been sent.
    Unsent(Line),
    Sent(LaneId),
    /// It is never sent: `got` has the whole reply, or nothing if the part is unused.
    None,
}

struct Line {
    /// The owner of its keys, when they were divided.
    route: Route,
    /// The slot of the first key.
    slot: Slot,
    has_others: bool,
    bytes: Vec<u8>,
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
        let mut merge = Merge::new(get, line, way);
        merge.ask(way, to);
        merge
    }

    /// Begins a retrieval anew that was refused, and has waited since `since`.
    pub(super) fn again(get: &Get<'_>, line: &[u8], since: Instant, way: &mut Way<'_>, to: Waiter) -> Merge {
        let mut merge = Merge { is_split: true, waits_since: Some(since), ..Merge::new(get, line, way) };
        merge.ask(way, to);
        merge
    }

    fn new(get: &Get<'_>, line: &[u8], way: &Way<'_>) -> Merge {
        Merge {
            line: line.into(),
            cursor: get.cursor(),
            owners: VecDeque::new(),
            parts: Vec::new(),
            value: None,
            has_begun: false,
            waits: false,
            waits_since: None,
            refused: Vec::new(),
            epoch: way.lanes.epoch(),
            is_stale: false,
            is_split: false,
        }
    }

    /// Continues a retrieval of which this node has written the first values.
    pub(super) fn continued(self) -> Merge {
        Merge { has_begun: true, ..self }
    }

    /// Returns the number of awaited replies.
    pub(super) fn awaited(&self) -> usize {
        self.parts.iter().filter_map(Part::missing).count()
    }

    /// Returns whether keys wait for a node that executes requests for them.
    pub(super) fn is_waiting(&self) -> bool {
        self.waits
    }

    /// Returns the request if nothing of the reply has been written.
    pub(super) fn untouched(&self) -> Option<&[u8]> {
        (!self.has_begun && self.awaited() == 0).then_some(&self.line)
    }

    pub(super) fn held_bytes(&self) -> usize {
        let of_part = |part: &Part| match &part.request {
            PartRequest::Unsent(line) => part.got.capacity() + line.bytes.capacity(),
            _ => part.got.capacity(),
        };
        self.line.len() + 2 * self.owners.capacity() + self.parts.iter().map(of_part).sum::<usize>()
    }

    /// Asks the owners of the next keys for the values.
    fn ask(&mut self, way: &mut Way<'_>, to: Waiter) {
        self.parts.clear();
        self.divide(way, KEYS_MAX);
        self.send(way, to);
    }

    /// Divides the next `keys` keys by their owners, except those that were asked for.
    fn divide(&mut self, way: &Way<'_>, keys: usize) {
        let is_unsent = |part: &Part| matches!(part.request, PartRequest::Unsent(_));
        let unsent: Vec<bool> = self.parts.iter().map(is_unsent).collect();
        for part in self.parts.iter_mut().filter(|part| is_unsent(part)) {
            part.request = PartRequest::None;
        }
        let mut free: Vec<u16> =
            (0..).zip(&unsent).filter(|(_, is_unsent)| **is_unsent).map(|(at, _)| at).collect();
        let mut get = self.cursor.resume(&self.line);
        let verb = verb(&get);
        let mut open: Vec<(Route, u16)> = Vec::new();
        let mut at = 0;
        while at < keys
            && let Some(key) = get.next_key()
        {
            let slot = slot_of(key);
            let route = way.lanes.route(slot);
            let owner = match self.owners.get(at) {
                Some(owner) if *owner != OWN && !unsent[usize::from(*owner)] => *owner,
                _ if route == Route::Own => OWN,
                _ => {
                    if self.is_split {
                        open.clear();
                    }
                    add(&mut self.parts, &mut open, &mut free, (route, slot), key, &verb)
                }
            };
            match self.owners.get_mut(at) {
                Some(known) => *known = owner,
                None => self.owners.push_back(owner),
            }
            at += 1;
        }
        for part in &mut self.parts {
            if let PartRequest::Unsent(line) = &mut part.request {
                line.bytes.extend_from_slice(b"\r\n");
            }
        }
        self.is_stale = false;
    }

    /// Sends the lines that could not be sent before.
    pub(super) fn send(&mut self, way: &mut Way<'_>, to: Waiter) {
        if self.epoch != way.lanes.epoch() {
            self.epoch = way.lanes.epoch();
            self.refused.clear();
            self.is_stale |= self.parts.iter().any(|part| matches!(part.request, PartRequest::Unsent(_)));
        }
        if self.is_stale {
            self.divide(way, self.owners.len());
        }
        if self.send_lines(way, to) {
            self.is_split = true;
            self.divide(way, self.owners.len());
            self.send_lines(way, to);
        }
        if self.waits {
            self.waits_since.get_or_insert_with(Instant::now);
        }
    }

    /// Sends the lines that were not sent. Returns whether one of several keys must be split.
    fn send_lines(&mut self, way: &mut Way<'_>, to: Waiter) -> bool {
        let is_over = self.waits_since.is_some_and(|since| way.lanes.is_over(since));
        let mut must_split = false;
        self.waits = false;
        for (number, part) in (0..).zip(&mut self.parts) {
            let PartRequest::Unsent(line) = &part.request else { continue };
            let Line { route, slot, has_others, ref bytes } = *line;
            // A slot may become this node's at any time.
            let is_late = way.lanes.route(slot) != route;
            let passed = if is_late || self.refused.iter().any(|id| way.lanes.leads_to(route, *id)) {
                self.is_stale |= is_late;
                way.lanes.wait(way.slot);
                Passed::Wait
            } else {
                let passed =
                    way.request(route, Waiter { part: number, ..to }, Some(slot), Flags::NONE, bytes);
                must_split |= has_others && matches!(passed, Passed::Wait);
                passed
            };
            match passed {
                Passed::Sent(id) => part.request = PartRequest::Sent(id),
                Passed::Failed(reply) => part.fail(&reply),
                Passed::NoRoom => {}
                Passed::Wait if is_over => {
                    let map = way.lanes.map();
                    let mut reply = Vec::new();
                    exec::away(&mut reply, false, bytes, &map.node(map.owner(slot)).name, Why::Unready);
                    part.fail(&reply);
                }
                Passed::Wait => self.waits = true,
            }
        }
        must_split && !self.is_split
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
                self.waits_since = None;
                self.ask(way, to);
            }
            let mut get = self.cursor.resume(&self.line);
            let (Some(at), Some(key)) = (self.owners.front().copied(), get.next_key()) else {
                executor.out.bytes.extend_from_slice(reply::END);
                return Walked::Done;
            };
            if at == OWN {
                if way.lanes.route(slot_of(key)) != Route::Own {
                    // The slot is another node's by now, or moves.
                    self.divide(way, self.owners.len());
                    self.send(way, to);
                    continue;
                }
                if let Err(words) = exec::get_one_of_many(executor, &get, key) {
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
            self.has_begun = true;
            self.owners.pop_front();
        }
    }

    /// Takes the answer of a node. Returns whether it was awaited.
    pub(super) fn answer(&mut self, part: u16, id: LaneId, outcome: Outcome<'_>) -> bool {
        let Some(part) = self.parts.get_mut(usize::from(part)) else { return false };
        let is_awaited = matches!(part.request, PartRequest::Sent(sent) if sent == id);
        match outcome {
            Outcome::Failed { own, .. } if is_awaited && is_refusal(outcome) => {
                // The owner and the keys of the line are found anew.
                let line =
                    Line { route: Route::Wait, slot: slot_of(b""), has_others: false, bytes: own.to_vec() };
                part.request = PartRequest::Unsent(line);
                self.refused.push(id);
                (self.is_stale, self.is_split, self.waits) = (true, true, true);
                self.waits_since.get_or_insert_with(Instant::now);
            }
            _ if is_awaited => part.state = put(&mut part.got, outcome),
            _ => {}
        }
        is_awaited
    }

    pub(super) fn abandon(&self, lanes: &mut Lanes) {
        self.parts.iter().filter_map(Part::missing).for_each(|id| lanes.forget(id));
    }
}

/// Adds a key to the line of its owner. `open` has the part of each owner to whose line keys are added,
/// `free` the unused parts. Returns the part.
fn add(
    parts: &mut Vec<Part>,
    open: &mut Vec<(Route, u16)>,
    free: &mut Vec<u16>,
    (route, slot): (Route, Slot),
    key: &[u8],
    verb: &[u8],
) -> u16 {
    let known = open.iter_mut().find(|(owner, _)| *owner == route);
    let at = match known {
        Some((_, at)) if parts[usize::from(*at)].line().len() + key.len() < LINE_BYTES_MAX => *at,
        known => {
            let line = Line { route, slot, has_others: false, bytes: verb.to_vec() };
            let request = PartRequest::Unsent(line);
            let part = Part { request, got: Vec::new(), taken: 0, state: Answered::Awaited };
            let at = free.pop().unwrap_or(parts.len() as u16);
            match parts.get_mut(usize::from(at)) {
                Some(unused) => *unused = part,
                None => parts.push(part),
            }
            match known {
                Some((_, last)) => *last = at,
                None => open.push((route, at)),
            }
            at
        }
    };
    if let PartRequest::Unsent(line) = &mut parts[usize::from(at)].request {
        line.has_others = line.bytes.len() > verb.len();
        line.bytes.push(b' ');
        line.bytes.extend_from_slice(key);
    }
    at
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
            PartRequest::Unsent(line) => &line.bytes,
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
