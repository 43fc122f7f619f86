//! The working set, the same behind every service: slots of payload in memory.
//!
//! A read returns a slot's bytes without a copy, and a write replaces them with the received ones,
//! so the measurement covers only the path to the slots. As a [`Blocker`], it supports reads and
//! writes of whole slots and refuses everything else.

use std::sync::Arc;

use blocker::{
    Blocker, Capabilities, Change, ChangeReply, ChangeRequest, ClaimReply, ClaimRequest, Durability, Error,
    EventHub, FlushReply, FlushRequest, Info, InfoRequest, InvalidateReply, InvalidateRequest, ListReply,
    ListRequest, Name, Namespace, ObjectId, ReadReply, ReadRequest, Reply, Segments, Subscription, Version,
};
use bytes::Bytes;
use parking_lot::Mutex;

/// The size of an object, as in a block store.
pub(crate) const OBJECT_BYTES: usize = 4 << 20;

/// Returns the object and the offset of slot `slot` of size `bytes`.
pub(crate) fn place(slot: usize, bytes: usize) -> (usize, usize) {
    let at = slot * bytes;
    (at / OBJECT_BYTES, at % OBJECT_BYTES)
}

/// Returns the object with this number.
///
/// # Panics
/// Does not panic, because the names are short.
pub(crate) fn object(number: usize) -> ObjectId {
    let namespace = Namespace::new(Bytes::from_static(b"bench")).expect("a short name");
    ObjectId::new(namespace, Name::new(format!("{number:08}").into_bytes()).expect("a short name"))
}

/// Slots of `slot_bytes` each.
pub(crate) struct Slots {
    slot_bytes: usize,
    slots: Vec<Mutex<Segments>>,
    events: EventHub,
}

impl Slots {
    /// Returns `count` slots, with each of their pages touched.
    pub(crate) fn new(count: usize, slot_bytes: usize) -> Arc<Self> {
        let slot = |n: usize| Mutex::new(Segments::from(vec![n as u8 | 1; slot_bytes]));
        Arc::new(Self { slot_bytes, slots: (0..count).map(slot).collect(), events: EventHub::default() })
    }

    /// Returns the bytes of a slot.
    ///
    /// # Errors
    /// Returns `Missing` if there is no such slot.
    pub(crate) fn get(&self, slot: usize) -> Result<Segments, Error> {
        Ok(self.slots.get(slot).ok_or(Error::Missing)?.lock().clone())
    }

    /// Replaces the bytes of a slot.
    ///
    /// # Errors
    /// Returns `Missing` if there is no such slot, `Invalid` if the slot has another length.
    pub(crate) fn put(&self, slot: usize, data: Segments) -> Result<(), Error> {
        if data.len_bytes() != self.slot_bytes {
            return Err(Error::Invalid("not a whole slot".into()));
        }
        let old = {
            let mut slot = self.slots.get(slot).ok_or(Error::Missing)?.lock();
            std::mem::replace(&mut *slot, data)
        };
        drop(old);
        Ok(())
    }

    /// Returns the slot at `offset` of `object`.
    ///
    /// # Errors
    /// Returns `Missing` if the object is not one of the slots' objects.
    pub(crate) fn slot_at(&self, object: &ObjectId, offset: u64) -> Result<usize, Error> {
        let digits = std::str::from_utf8(object.name.as_bytes()).ok();
        let number: usize = digits.and_then(|digits| digits.parse().ok()).ok_or(Error::Missing)?;
        Ok((number * OBJECT_BYTES + offset as usize) / self.slot_bytes)
    }
}

fn refused<T>() -> Reply<T> {
    Reply::err(Error::Unsupported("slots are read and written, no more".into()))
}

impl Blocker for Slots {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full(OBJECT_BYTES as u64);
        capabilities.compare_bytes_max = 0;
        (capabilities.conditions, capabilities.fencing, capabilities.tombstones) = (false, false, false);
        capabilities
    }

    fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
        let data = self.slot_at(&request.object, request.offset).and_then(|slot| self.get(slot));
        Reply::Ready(data.map(|data| ReadReply::new(data, OBJECT_BYTES as u64, Version(1))))
    }

    fn change(&self, request: ChangeRequest) -> Reply<ChangeReply> {
        let Change::Write { offset, data } = request.change else { return refused() };
        let done = self.slot_at(&request.object, offset).and_then(|slot| self.put(slot, data));
        Reply::Ready(done.map(|()| ChangeReply::new(Version(1), OBJECT_BYTES as u64, Durability::Cached)))
    }
    fn info(&self, _: InfoRequest) -> Reply<Info> {
        refused()
    }
    fn list(&self, _: ListRequest) -> Reply<ListReply> {
        refused()
    }
    fn flush(&self, _: FlushRequest) -> Reply<FlushReply> {
        refused()
    }
    fn claim(&self, _: ClaimRequest) -> Reply<ClaimReply> {
        refused()
    }
    fn invalidate(&self, _: InvalidateRequest) -> Reply<InvalidateReply> {
        refused()
    }
    fn subscribe(&self) -> Subscription {
        self.events.subscribe()
    }
}
