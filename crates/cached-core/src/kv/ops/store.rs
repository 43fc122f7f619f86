//! Storing a value: what the mode demands, where the bytes go, and how the index learns of them.

use crate::KeyHash;
use crate::clock::Expiry;
use crate::kv::extent;
use crate::kv::hook::Change;
use crate::kv::index::Locked;
use crate::kv::item::{Attributes, Fields, ItemPtr, KEY_BYTES_MAX, PAYLOAD_BYTES_MAX, Shape, Usage, state};
use crate::kv::log::Entry;
use crate::kv::{Found, Inner, ItemView, Kv, PinnedValue, StoreMode, StoreOptions, StoreOutcome};
use crate::policy::Insertion;
use crate::sync::Ordering;

/// What the mode says about an item that is there, or is not.
pub(super) enum Decision {
    /// Store; the item's old attributes that go on living are already in.
    Store(Attributes),
    /// Do not.
    Refuse(StoreOutcome),
}

/// The item that a value is to take the place of, and none other.
///
/// What names the item is compared; what may have changed since it was looked at (expiry, marks) is not relied on, but taken
/// from the item as it is when the value takes its place.
#[derive(Clone, Copy)]
pub(super) struct Over {
    /// Where it lies.
    pub(super) location: u32,
    /// Its CAS value, which every change of its value changes (0 without CAS).
    pub(super) cas: u64,
    /// Its number, for arithmetic without CAS.
    pub(super) number: Option<u64>,
    /// Marks for the new item's state.
    pub(super) marks: u8,
    /// What lives on of the old item.
    pub(super) heritage: Heritage,
}

/// What a new item takes over from the one whose place it takes.
#[derive(Clone, Copy)]
pub(super) enum Heritage {
    /// Nothing.
    None,
    /// Expiry and client flags, and of its marks those given.
    Attributes { marks: u8 },
}

impl Over {
    fn is(&self, found: Found<'_>) -> bool {
        found.location == self.location
            && found.item.cas() == self.cas
            && self.number.is_none_or(|number| super::arithmetic::parse(found.item.payload()) == Some(number))
    }
}

/// How an attempt to link an entry ended.
pub(super) enum Linked {
    /// In the index; the entry is published.
    Done(StoreOutcome),
    /// Refused; the entry is abandoned.
    Refused(StoreOutcome),
}

impl Kv {
    /// Stores a value. A key has 1 to [`KEY_BYTES_MAX`] bytes; others are [`StoreOutcome::TooLarge`].
    pub fn store(&self, key: &[u8], hash: KeyHash, value: &[u8], options: &StoreOptions) -> StoreOutcome {
        if matches!(options.mode, StoreMode::Append | StoreMode::Prepend) {
            return self.join(key, hash, value, options);
        }
        let inner = &self.inner;
        if !inner.fits(key.len(), value.len()) {
            return StoreOutcome::TooLarge;
        }
        let Some(shape) = inner.inline_shape(key.len(), value.len(), options) else {
            return self.store_large(key, hash, value, options);
        };
        let now = inner.now();
        let bytes = inner.padded(shape.entry_bytes());
        let stream = inner.stream_for(options.expiry, now);
        let outcome = {
            let locked = inner.index.shard(hash).lock(hash);
            let old = inner.find(&locked, hash, key, now).ok();
            let attributes = match inner.decide(&locked, old, options, now) {
                Decision::Store(attributes) => attributes,
                Decision::Refuse(outcome) => return outcome,
            };
            if let Some(old) = old
                && let Some(outcome) = inner.overwrite(&locked, old, shape, value, &attributes)
            {
                return outcome;
            }
            inner.try_alloc(stream, bytes).map(|entry| {
                inner.fill(entry, shape, key, value, &attributes);
                inner.link(&locked, hash, key, entry, old, value.len(), &attributes, options)
            })
        };
        let outcome = outcome.unwrap_or_else(|| {
            // The open region is full: make room, then decide again, for the item may have changed.
            let Some(entry) = inner.alloc(stream, bytes, now) else {
                return StoreOutcome::OutOfMemory;
            };
            inner.fill(entry, shape, key, value, &inner.fresh_attributes(options, now));
            match inner.decide_and_link(hash, key, entry, value.len(), options, None, now) {
                Linked::Done(outcome) | Linked::Refused(outcome) => outcome,
            }
        });
        inner.grow_index(hash);
        outcome
    }

    fn store_large(&self, key: &[u8], hash: KeyHash, value: &[u8], options: &StoreOptions) -> StoreOutcome {
        match self.reserve_at_once(key, hash, value.len(), options) {
            Ok(mut reservation) => {
                if !reservation.write(value) {
                    return StoreOutcome::OutOfMemory;
                }
                reservation.commit()
            }
            Err(outcome) => outcome,
        }
    }

    /// Append and prepend: the joined value is written anew, and linked if nothing has changed.
    fn join(&self, key: &[u8], hash: KeyHash, value: &[u8], options: &StoreOptions) -> StoreOutcome {
        let inner = &self.inner;
        loop {
            let now = inner.now();
            let snapshot = {
                let locked = inner.index.shard(hash).lock(hash);
                inner.find(&locked, hash, key, now).ok().map(|found| {
                    let view = ItemView { kv: inner, item: found.item, location: found.location, now };
                    (view.pin(), found.location, found.item.attributes(), view.key_binary())
                })
            };
            let Some((old, location, attributes, key_binary)) = snapshot else {
                let Some(expiry) = options.vivify else { return StoreOutcome::NotStored };
                let create = StoreOptions { mode: StoreMode::Add, expiry, compare: 0, ..*options };
                match self.store(key, hash, value, &create) {
                    StoreOutcome::NotStored => continue,
                    outcome => return outcome,
                }
            };
            if options.compare != 0 && options.compare != attributes.cas {
                return StoreOutcome::Exists;
            }
            let joined = StoreOptions {
                mode: StoreMode::Set,
                client_flags: attributes.client_flags,
                expiry: attributes.expiry,
                key_binary,
                ..*options
            };
            let mut reservation = match self.reserve_at_once(key, hash, old.bytes() + value.len(), &joined) {
                Ok(reservation) => reservation,
                // As memcached answers when the joined item does not fit.
                Err(_) => return StoreOutcome::NotStored,
            };
            let written = match options.mode {
                StoreMode::Prepend => reservation.write(value) && write_pinned(&mut reservation, &old),
                _ => write_pinned(&mut reservation, &old) && reservation.write(value),
            };
            if !written {
                return StoreOutcome::NotStored;
            }
            // The old value is pinned until here, so its place cannot have been reused: the same
            // location means the same, unchanged value.
            let heritage = Heritage::Attributes { marks: 0 };
            let over = Over { location, cas: attributes.cas, number: None, marks: 0, heritage };
            match reservation.commit_over(over) {
                Some(outcome) => return outcome,
                None => drop(old),
            }
        }
    }
}

fn write_pinned(reservation: &mut super::Reservation, value: &PinnedValue) -> bool {
    value.chunks().all(|chunk| reservation.write(chunk))
}

impl Inner {
    /// Whether key and value are within the limits of an item.
    pub(super) fn fits(&self, key: usize, value: usize) -> bool {
        let item_bytes_max = self.item_bytes_max.load(Ordering::Relaxed) as usize;
        (1..=KEY_BYTES_MAX).contains(&key) && key.saturating_add(value) <= item_bytes_max
    }

    pub(super) fn fields(&self, options: &StoreOptions) -> Fields {
        Fields {
            cas: self.cas,
            // A stale store takes over the old item's expiry, whatever that is.
            // Without eviction a touch must never need memory.
            expiry: options.expiry != Expiry::NEVER || options.allow_stale || !self.evict,
            client_flags: options.client_flags != 0,
            extents: false,
            key_binary: options.key_binary,
        }
    }

    /// The shape of an item that lies in one piece; `None` if it is too large for that.
    pub(super) fn inline_shape(&self, key: usize, value: usize, options: &StoreOptions) -> Option<Shape> {
        if value > PAYLOAD_BYTES_MAX {
            return None;
        }
        let shape = Shape::item(key, value, self.fields(options));
        (shape.entry_bytes() <= self.inline_bytes_max).then_some(shape)
    }

    /// The shape of an item whose value lies in `pieces` pieces.
    pub(super) fn large_shape(&self, key: usize, pieces: usize, options: &StoreOptions) -> Option<Shape> {
        let list = extent::list_bytes(pieces);
        if list > PAYLOAD_BYTES_MAX {
            return None;
        }
        let shape = Shape::item(key, list, Fields { extents: true, ..self.fields(options) });
        (shape.entry_bytes() <= self.arena.region_bytes() / 2).then_some(shape)
    }

    pub(super) fn fresh_attributes(&self, options: &StoreOptions, now: u32) -> Attributes {
        Attributes {
            cas: 0,
            expiry: options.expiry,
            client_flags: options.client_flags,
            usage: Usage::new(0, now),
        }
    }

    /// Applies the mode to the item that is there. The bucket is locked.
    pub(super) fn decide(
        &self,
        locked: &Locked<'_>,
        old: Option<Found<'_>>,
        options: &StoreOptions,
        now: u32,
    ) -> Decision {
        let mut attributes = self.fresh_attributes(options, now);
        match (options.mode, old) {
            (StoreMode::Add, Some(old)) => {
                self.bump_unread(old.item, now);
                return Decision::Refuse(StoreOutcome::NotStored);
            }
            (StoreMode::Replace, None) => return Decision::Refuse(StoreOutcome::NotStored),
            (StoreMode::Cas, None) => return Decision::Refuse(StoreOutcome::NotFound),
            (StoreMode::Cas, Some(old)) => {
                let (expected, is) = (options.compare, old.item.cas());
                if expected == 0 || expected != is && !(options.allow_stale && expected < is) {
                    return Decision::Refuse(StoreOutcome::Exists);
                }
                if expected != is {
                    attributes.expiry = old.item.expiry();
                    attributes.usage =
                        attributes.usage.with(state::STALE | old.item.state() & state::TOKEN_SENT);
                }
            }
            _ => {}
        }
        attributes.cas = self.next_cas(locked, options.new_cas);
        Decision::Store(attributes)
    }

    pub(super) fn next_cas(&self, locked: &Locked<'_>, wanted: Option<u64>) -> u64 {
        if self.cas { wanted.unwrap_or_else(|| locked.shard().next_cas()) } else { 0 }
    }

    /// Writes a whole new entry.
    pub(super) fn fill(&self, entry: Entry, shape: Shape, key: &[u8], value: &[u8], attributes: &Attributes) {
        // SAFETY: the entry has room for the shape, and nobody else knows of it.
        let item = unsafe { ItemPtr::write(self.ptr(entry.location), shape, key, attributes) };
        // SAFETY: the shape's payload has the value's length.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), item.payload_ptr(), value.len()) };
    }

    /// Overwrites an item in its place, when it has the same shape and size and nobody is reading it.
    /// Saves the log a write, and the reclaimer a dead entry.
    fn overwrite(
        &self,
        locked: &Locked<'_>,
        old: Found<'_>,
        shape: Shape,
        value: &[u8],
        attributes: &Attributes,
    ) -> Option<StoreOutcome> {
        let mut item = old.item;
        // An item with an expiry moves on to a region of items that expire when it does now; where nothing is evicted it may be that
        // there is no memory to move to.
        let fields = item.shape().fields();
        if fields.expiry && self.evict
            || fields != shape.fields()
            || self.padded(item.shape().entry_bytes()) != self.padded(shape.entry_bytes())
            || self.arena.region(self.region_of(old.location)).pins() != 0
        {
            return None;
        }
        let bits = self.hit_states.after(item.state()) >> state::POLICY_SHIFT;
        item.set_payload_bytes(value.len());
        // SAFETY: the padded size is unchanged, so the value fits; the bucket's lock keeps readers
        // away, and with no pin on the region nobody reads outside of it.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), item.payload_ptr(), value.len()) };
        let fits = self.set_expiry(item, old.location, attributes.expiry);
        debug_assert!(fits, "the fields are the same");
        item.set_attributes(attributes);
        item.set_policy_bits(bits);
        locked.shard().count_stored();
        self.tell(Change::Stored, item.key(), attributes.cas);
        Some(StoreOutcome::Stored { cas: attributes.cas, value_bytes: value.len() })
    }

    /// Puts a complete entry into the index in place of `old`, and publishes it.
    #[allow(clippy::too_many_arguments)] // One call's worth of facts, each used once.
    pub(super) fn link(
        &self,
        locked: &Locked<'_>,
        hash: KeyHash,
        key: &[u8],
        entry: Entry,
        old: Option<Found<'_>>,
        value_bytes: usize,
        attributes: &Attributes,
        options: &StoreOptions,
    ) -> StoreOutcome {
        let item = self.item_at(entry.location);
        let bytes = self.item_bytes(item);
        let replaces = old.map(|old| old.item.policy_bits());
        item.set_policy_bits(self.policy.insert(&Insertion { hash: hash.0, bytes, replaces }));
        match old {
            Some(old) => {
                locked.shard().adjust_bytes(bytes, self.item_bytes(old.item));
                old.slot.set_location(entry.location);
                self.bury(old.item, old.location);
            }
            None => {
                if !locked.insert(hash, entry.location, bytes) {
                    self.abandon(entry);
                    return StoreOutcome::OutOfMemory;
                }
            }
        }
        locked.shard().count_stored();
        self.note_expiry(item, entry.location, attributes.expiry);
        self.tell(Change::Stored, key, attributes.cas);
        self.publish(entry);
        debug_assert!(options.new_cas.is_none_or(|cas| !self.cas || cas == attributes.cas));
        StoreOutcome::Stored { cas: attributes.cas, value_bytes }
    }

    /// Decides under the lock and links a complete entry, or abandons it. With `over`, only if the
    /// item still lies there. Not under a lock.
    #[allow(clippy::too_many_arguments)] // As above.
    pub(super) fn decide_and_link(
        &self,
        hash: KeyHash,
        key: &[u8],
        mut entry: Entry,
        value_bytes: usize,
        options: &StoreOptions,
        over: Option<Over>,
        now: u32,
    ) -> Linked {
        loop {
            if let Some(linked) = self.try_link(hash, key, entry, value_bytes, options, over, now) {
                return linked;
            }
            // Everything has been flushed since the entry was allocated. The store happens now, so its entry belongs behind the line.
            let later = self.alloc(self.stream_for(options.expiry, now), entry.bytes, now);
            if let Some(later) = later {
                self.copy_entry(entry.location, later);
            }
            self.abandon(entry);
            match later {
                Some(later) => entry = later,
                None => return Linked::Refused(StoreOutcome::OutOfMemory),
            }
        }
    }

    /// `None`, and nothing done, if the entry lies before the line of a flush.
    #[allow(clippy::too_many_arguments)] // As above.
    fn try_link(
        &self,
        hash: KeyHash,
        key: &[u8],
        entry: Entry,
        value_bytes: usize,
        options: &StoreOptions,
        over: Option<Over>,
        now: u32,
    ) -> Option<Linked> {
        let locked = self.index.shard(hash).lock(hash);
        if self.is_flushed(entry.location) {
            return None;
        }
        let old = self.find(&locked, hash, key, now).ok();
        if let Some(over) = &over
            && !old.is_some_and(|old| over.is(old))
        {
            self.abandon(entry);
            return Some(Linked::Refused(StoreOutcome::NotStored));
        }
        Some(match self.decide(&locked, old, options, now) {
            Decision::Store(mut attributes) => {
                let item = self.item_at(entry.location);
                if let (Some(over), Some(old)) = (&over, &old) {
                    attributes.usage = attributes.usage.with(over.marks);
                    if let Heritage::Attributes { marks } = over.heritage {
                        let fields = item.shape().fields();
                        attributes.expiry = old.item.expiry();
                        attributes.client_flags = old.item.client_flags();
                        attributes.usage = attributes.usage.with(old.item.state() & marks);
                        if attributes.expiry != Expiry::NEVER && !fields.expiry
                            || attributes.client_flags != 0 && !fields.client_flags
                        {
                            // It was given what the new entry has no room for.
                            self.abandon(entry);
                            return Some(Linked::Refused(StoreOutcome::NotStored));
                        }
                    }
                }
                item.set_attributes(&attributes);
                Linked::Done(self.link(&locked, hash, key, entry, old, value_bytes, &attributes, options))
            }
            Decision::Refuse(outcome) => {
                self.abandon(entry);
                Linked::Refused(outcome)
            }
        })
    }
}
