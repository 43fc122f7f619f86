//! Requests of other nodes: decoded, checked for the owner of their keys, and executed.

use super::{Fault, InboundLane, Share, collected_bytes_max};
use crate::exec::{self, Begun, Next, Target};
use crate::ring::{Ring, VERSION_BYTES, add};
use crate::stats::ring::own_report;
use crate::stream::{Body, Mark};
use crate::worker::Worker;
use cached_proto::meta::KeyBuffer;
use cached_proto::{Decoded, Limits, Protocol, binary, text};
use cached_ring::wire::{self, Kind};
use cached_ring::{Asked, Flags, Inbound, Promise, Report, Slot, slot_of};

/// A request of which parts are missing.
pub(super) enum Arriving {
    /// Its value.
    Value { body: Box<Body>, slot: Slot, collected: Share },
    /// The request is refused, and this is the reply; its parts are discarded.
    Refused(Vec<u8>),
    /// Its slot is another node's; its parts are discarded.
    NotMine,
}

/// A request that is complete, or the head of one.
enum Decode<'a> {
    Text(text::Request<'a>),
    Binary(binary::Request<'a>),
    TextHead(text::BodyHeader<'a>),
    BinaryHead(binary::StoreHeader<'a>),
}

impl<'a> Decode<'a> {
    /// Decodes a request, and returns it with the number of bytes before its value, and the number of
    /// bytes of the value if that is not complete.
    fn of(flags: Flags, bytes: &'a [u8]) -> Option<(Decode<'a>, usize, usize)> {
        if flags.has(Flags::BINARY) {
            return match binary::decode(bytes) {
                Decoded::Request { request, consumed } => Some((Decode::Binary(request), consumed, 0)),
                Decoded::Body { header, consumed, body_len } => {
                    Some((Decode::BinaryHead(header), consumed, body_len))
                }
                _ => None,
            };
        }
        match text::decode(bytes, 0, &Limits::DEFAULT) {
            Decoded::Request { request, consumed } => Some((Decode::Text(request), consumed, 0)),
            Decoded::Body { header, consumed, body_len } => {
                Some((Decode::TextHead(header), consumed, body_len))
            }
            _ => None,
        }
    }
}

/// Returns whether a request may be executed: the slots of its keys are this node's own, its lease has
/// not lapsed, and no earlier request of them was refused that must be sent again before; or it is about
/// all items, and this node may flush with the map of this `version`. `None` if no other node may ask for
/// it.
fn is_own(
    ring: &Ring,
    lane: &mut InboundLane,
    decode: &Decode<'_>,
    slot: Option<Slot>,
    flags: Flags,
    version: u64,
) -> Option<bool> {
    let mut buffer = KeyBuffer::new();
    let target = match decode {
        Decode::Text(request) => exec::text_target(request, &mut buffer),
        Decode::Binary(request) => exec::binary_target(request),
        Decode::TextHead(header) => Target::Key(exec::body_key(header, &mut buffer)),
        Decode::BinaryHead(header) => Target::Key(header.key),
    };
    let is_for_all = slot.is_none() && flags.has(Flags::EVERY);
    let (first, mut others) = match target {
        Target::Every => return is_for_all.then(|| ring.may_flush(version)),
        Target::Sums => return is_for_all.then_some(true),
        Target::Key(key) => (key, None),
        Target::Keys(mut keys) => (keys.next_key()?, Some(keys)),
        _ => return None,
    };
    let slot = slot?;
    // The other node has hashed the key.
    if cfg!(debug_assertions) && slot_of(first) != slot {
        return None;
    }
    let InboundLane { inbound, has_lapsed, .. } = lane;
    let may_execute =
        |inbound: &Inbound, slot| !*has_lapsed && ring.owns(slot) && !inbound.refuses(slot, flags);
    let mut has_others = false;
    let mut is_own = may_execute(inbound, slot);
    while let Some(key) = others.as_mut().and_then(|keys| keys.next_key()) {
        has_others = true;
        let slot = slot_of(key);
        is_own = is_own && may_execute(inbound, slot);
        if !is_own {
            // The refusal of several keys holds no other request back.
            return Some(false);
        }
    }
    if is_own || !has_others {
        inbound.decided(slot, flags, !is_own);
    }
    if has_others
        && flags.has(Flags::AGAIN)
        && let Decode::Text(text::Request::Get(keys)) = decode
    {
        let mut keys = *keys;
        while let Some(key) = keys.next_key() {
            inbound.decided(slot_of(key), flags, false);
        }
    }
    Some(is_own)
}

impl Worker {
    /// Executes one message.
    pub(super) fn ask(&mut self, lane: &mut InboundLane, asked: Asked<'_>) -> Result<(), Fault> {
        match asked {
            Asked::Request { id, slot, flags, bytes } => {
                add(&lane.peer.counts(self.index).inbound_requests, 1);
                self.request(lane, id, slot, flags, bytes)
            }
            Asked::Part { id, bytes, last } => self.part(lane, id, bytes, last),
            Asked::More(id) => {
                if let Some(suspended) = lane.take_suspended(id) {
                    let rest = self.continue_reply(lane, id, suspended);
                    if !rest.is_empty() {
                        self.suspend(lane, id, rest);
                    }
                }
                Ok(())
            }
            Asked::Forget(id) => {
                if lane.take_suspended(id).is_some() || lane.arriving.remove(&id).is_some() {
                    self.done(id, &[]);
                }
                Ok(())
            }
            Asked::Ping(token) => {
                let ring = self.shared.ring.as_ref().filter(|_| token & wire::NO_PROMISE == 0);
                let promise = ring.map_or_else(Promise::default, |ring| ring.lease.promise(&lane.peer.name));
                let report = Report { promise, ..own_report(&self.shared) };
                wire::push_pong(&mut self.output.bytes, token, &report);
                Ok(())
            }
            Asked::Bye => Ok(()),
        }
    }

    /// Appends a complete reply.
    fn done(&mut self, id: u32, reply: &[u8]) {
        let at = wire::begin(&mut self.output.bytes);
        self.output.bytes.extend_from_slice(reply);
        wire::patch(&mut self.output.bytes, at, Kind::Done, id, reply.len());
    }

    fn not_mine(&mut self, id: u32) {
        let version = self.shared.ring.as_ref().map_or(0, |ring| ring.map_in_force().version);
        wire::push_not_mine(&mut self.output.bytes, id, version);
    }

    /// Executes a request, or begins one of which parts are missing.
    fn request(
        &mut self,
        lane: &mut InboundLane,
        id: u32,
        slot: Option<Slot>,
        flags: Flags,
        bytes: &[u8],
    ) -> Result<(), Fault> {
        let fault = |what| Fault::Request { id, what };
        let (version, bytes) = match flags.has(Flags::EVERY) {
            true => bytes.split_first_chunk().ok_or_else(|| fault("has no map version"))?,
            false => (&[0; VERSION_BYTES], bytes),
        };
        let (decode, consumed, body_len) =
            Decode::of(flags, bytes).ok_or_else(|| fault("cannot be decoded"))?;
        let ring = self.shared.ring.as_ref();
        let version = u64::from_le_bytes(*version);
        let is_own = ring.and_then(|ring| is_own(ring, lane, &decode, slot, flags, version));
        let is_own = is_own.ok_or_else(|| fault("is none for another node, or names the wrong slot"))?;
        let has_parts = flags.has(Flags::PARTS) || flags.has(Flags::HEAD);
        match (&decode, slot) {
            (Decode::Text(_) | Decode::Binary(_), _) if consumed != bytes.len() || has_parts => {
                Err(fault("has more bytes than a request"))
            }
            (Decode::Text(_) | Decode::Binary(_), _) if !is_own => {
                self.not_mine(id);
                Ok(())
            }
            (Decode::Text(request), _) => {
                // No request is deferred for its cost: the lane waits until there is work left.
                let begun = self.begin_reply();
                match exec::text(&mut self.executor_for(lane), request) {
                    Next::Suspend(cursor) => {
                        self.end_reply(lane, id, begun, Some((bytes.into(), cursor)));
                    }
                    _ => self.end_reply(lane, id, begun, None),
                }
                Ok(())
            }
            (Decode::Binary(request), _) => {
                let begun = self.begin_reply();
                exec::binary_other(&mut self.executor_for(lane), request);
                self.end_reply(lane, id, begun, None);
                Ok(())
            }
            (Decode::TextHead(_) | Decode::BinaryHead(_), Some(slot)) => {
                let is_head = flags.has(Flags::HEAD);
                if !is_head && !flags.has(Flags::PARTS) || is_head && consumed != bytes.len() {
                    return Err(fault("has another number of bytes than it announces"));
                }
                let arriving = match is_own {
                    true => self.begin_value(lane, &decode, slot, &bytes[..consumed], body_len, is_head),
                    false => Arriving::NotMine,
                };
                if is_head {
                    self.end_arriving(arriving, lane, id);
                    return Ok(());
                }
                let arriving = self.feed(lane, id, arriving, &bytes[consumed..])?;
                lane.arriving.insert(id, arriving);
                Ok(())
            }
            (Decode::TextHead(_) | Decode::BinaryHead(_), None) => Err(fault("has no slot")),
        }
    }

    /// Begins a request whose value arrives in parts. If it `is_head`, the value does not come: the
    /// other node has no memory for it.
    fn begin_value(
        &mut self,
        lane: &InboundLane,
        decode: &Decode<'_>,
        slot: Slot,
        head: &[u8],
        body_len: usize,
        is_head: bool,
    ) -> Arriving {
        let mark = self.output.mark();
        let mut executor = self.executor_for(lane);
        let (protocol, begun) = match decode {
            Decode::TextHead(header) => (Protocol::Text, exec::begin_text(&mut executor, header)),
            Decode::BinaryHead(header) => (Protocol::Binary, exec::begin_binary(&mut executor, header)),
            Decode::Text(_) | Decode::Binary(_) => return Arriving::NotMine,
        };
        let (body, collected_bytes) = match begun {
            Begun::Refused => return Arriving::Refused(self.take_reply(mark)),
            Begun::Reserved(reservation) => (Body::reserved(protocol, head, reservation), 0),
            Begun::Collect(bytes) => (Body::collected(protocol, head, bytes), bytes),
        };
        debug_assert_eq!(body.missing(), body_len);
        let ring = self.shared.ring.as_ref().filter(|_| !is_head);
        let bytes_max = collected_bytes_max(&self.shared.settings);
        let collected = ring.and_then(|ring| Share::take(&ring.collected_bytes, collected_bytes, bytes_max));
        match collected {
            Some(collected) => Arriving::Value { body: Box::new(body), slot, collected },
            None => self.refuse_value(lane, body),
        }
    }

    /// Refuses a value for which there is no memory.
    fn refuse_value(&mut self, lane: &InboundLane, body: Body) -> Arriving {
        let mark = self.output.mark();
        exec::refuse(&mut self.executor_for(lane), body);
        Arriving::Refused(self.take_reply(mark))
    }

    /// Removes a short reply from the output.
    fn take_reply(&mut self, mark: Mark) -> Vec<u8> {
        self.output.split_off(mark).bytes
    }

    /// Adds bytes to a value.
    fn feed(
        &mut self,
        lane: &InboundLane,
        id: u32,
        arriving: Arriving,
        bytes: &[u8],
    ) -> Result<Arriving, Fault> {
        let Arriving::Value { mut body, slot, collected } = arriving else { return Ok(arriving) };
        match body.feed(bytes) {
            (used, Ok(())) if used == bytes.len() => Ok(Arriving::Value { body, slot, collected }),
            (_, Ok(())) => Err(Fault::Request { id, what: "has more bytes than it announces" }),
            (_, Err(_)) => Ok(self.refuse_value(lane, *body)),
        }
    }

    /// Takes the next part of a request.
    fn part(&mut self, lane: &mut InboundLane, id: u32, bytes: &[u8], last: bool) -> Result<(), Fault> {
        let fault = |what| Fault::Request { id, what };
        let arriving = lane.arriving.remove(&id).ok_or_else(|| fault("has no missing part"))?;
        let arriving = self.feed(lane, id, arriving, bytes)?;
        if let Arriving::Value { body, .. } = &arriving
            && (body.missing() == 0) != last
        {
            return Err(fault("has another number of bytes than it announces"));
        }
        match last {
            true => self.end_arriving(arriving, lane, id),
            false => drop(lane.arriving.insert(id, arriving)),
        }
        Ok(())
    }

    /// Answers a request of which no part is missing any more. Its slot may have become another
    /// node's in the meantime.
    fn end_arriving(&mut self, arriving: Arriving, lane: &mut InboundLane, id: u32) {
        match arriving {
            Arriving::Value { body, slot, collected } => {
                if lane.has_lapsed || !self.shared.ring.as_ref().is_some_and(|ring| ring.owns(slot)) {
                    lane.inbound.decided(slot, Flags::NONE, true);
                    return self.not_mine(id);
                }
                let begun = self.begin_reply();
                exec::finish(&mut self.executor_for(lane), *body);
                self.end_reply(lane, id, begun, None);
                drop(collected);
            }
            Arriving::Refused(reply) => self.done(id, &reply),
            Arriving::NotMine => self.not_mine(id),
        }
    }
}
