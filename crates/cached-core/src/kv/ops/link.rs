//! Linking an entry into the index: the condition of the storage mode, and the replacement of an
//! earlier item.

use super::arithmetic;
use crate::clock::Expiry;
use crate::kv::index::BucketGuard;
use crate::kv::inner::{Found, Inner};
use crate::kv::item::extent;
use crate::kv::item::{Attributes, Fields, ItemPtr, KEY_BYTES_MAX, PAYLOAD_BYTES_MAX, Shape, Usage, state};
use crate::kv::log::Entry;
use crate::kv::request::Change;
use crate::kv::{StoreMode, StoreOptions, StoreOutcome};
use crate::policy::Insertion;
use crate::{KeyHash, stores};

/// The only item that a value may replace.
///
/// The fields that identify the item are compared. Those that may have changed since it was read
/// (expiry, marks) are not compared, but are taken from the item at the time of the replacement.
#[derive(Clone, Copy)]
pub(super) struct Replaces {
    /// The location of the item.
    pub(super) location: u32,
    /// The item's CAS value, which every change of the value changes (0 without CAS).
    pub(super) cas: u64,
    /// The item's number, for arithmetic without CAS.
    pub(super) number: Option<u64>,
    /// Marks for the new item's state.
    pub(super) marks: u8,
    /// The marks that the new item inherits from the old one, together with expiry and client
    /// flags; `None` if it inherits nothing.
    pub(super) inherited: Option<u8>,
}

impl Replaces {
    fn matches(&self, found: Found<'_>) -> bool {
        found.location == self.location
            && found.item.cas() == self.cas
            && self.number.is_none_or(|expected| arithmetic::parse(found.item.payload()) == Some(expected))
    }
}

/// The outcome of an entry that was linked and published or, as the error, of an entry that was
/// abandoned.
pub(super) type Linked = Result<StoreOutcome, StoreOutcome>;

impl Inner {
    /// Returns whether a key and a value of these lengths are within the limits.
    pub(in crate::kv) fn fits(&self, key: usize, value: usize) -> bool {
        (1..=KEY_BYTES_MAX).contains(&key) && key.saturating_add(value) <= self.item_bytes_max
    }

    fn fields(&self, options: &StoreOptions) -> Fields {
        Fields {
            cas: self.has_cas,
            // With `allow_stale`, the new item may inherit the old item's expiry, which is not
            // known here. Without eviction, a touch must never need memory.
            expiry: options.expiry != Expiry::NEVER || options.allow_stale || !self.log.evicts,
            client_flags: options.client_flags != 0,
            extents: false,
            key_binary: options.key_binary,
        }
    }

    /// Returns the shape of an item with a contiguous value; `None` if it is too large for that.
    pub(super) fn inline_shape(&self, key: usize, value: usize, options: &StoreOptions) -> Option<Shape> {
        if value > PAYLOAD_BYTES_MAX {
            return None;
        }
        let shape = Shape::item(key, value, self.fields(options));
        (shape.entry_bytes() <= self.inline_bytes_max).then_some(shape)
    }

    /// Returns the shape of an item whose value consists of `pieces` pieces.
    pub(super) fn large_shape(&self, key: usize, pieces: usize, options: &StoreOptions) -> Option<Shape> {
        let list = extent::list_bytes(pieces);
        if list > PAYLOAD_BYTES_MAX {
            return None;
        }
        let shape = Shape::item(key, list, Fields { extents: true, ..self.fields(options) });
        (shape.entry_bytes() <= self.log.arena.region_bytes() / 2).then_some(shape)
    }

    /// Returns the attributes of a new item, without a CAS value.
    pub(super) fn fresh_attributes(&self, options: &StoreOptions, now: u32) -> Attributes {
        Attributes {
            cas: 0,
            expiry: options.expiry,
            client_flags: options.client_flags,
            usage: Usage::new(0, now),
        }
    }

    /// Applies the mode to the key's item, if there is one. The caller holds the lock of its hash
    /// bucket. Returns the attributes of the value to be stored, including those taken from the old
    /// item.
    ///
    /// # Errors
    /// Returns the outcome, if the value must not be stored.
    pub(super) fn decide(
        &self,
        bucket: &BucketGuard<'_>,
        old: Option<Found<'_>>,
        options: &StoreOptions,
        now: u32,
    ) -> Result<Attributes, StoreOutcome> {
        let mut attributes = self.fresh_attributes(options, now);
        match (options.mode, old) {
            (StoreMode::Add, Some(old)) => {
                self.bump_unread(old.item, now);
                return Err(StoreOutcome::NotStored);
            }
            (StoreMode::Replace, None) => return Err(StoreOutcome::NotStored),
            (StoreMode::Cas, None) => return Err(StoreOutcome::NotFound),
            (StoreMode::Cas, Some(old)) => {
                let (expected, is) = (options.compare, old.item.cas());
                if expected == 0 || expected != is && !(options.allow_stale && expected < is) {
                    return Err(StoreOutcome::Exists);
                }
                if expected != is {
                    attributes.expiry = old.item.expiry();
                    attributes.usage =
                        attributes.usage.with(state::STALE | old.item.state() & state::TOKEN_SENT);
                }
            }
            _ => {}
        }
        attributes.cas = self.next_cas(bucket, options.new_cas);
        Ok(attributes)
    }

    /// Returns the CAS value of a change; 0 if the store has no CAS values.
    pub(super) fn next_cas(&self, bucket: &BucketGuard<'_>, wanted: Option<u64>) -> u64 {
        if self.has_cas { wanted.unwrap_or_else(|| bucket.shard().next_cas()) } else { 0 }
    }

    /// Writes a complete new entry.
    pub(super) fn fill(&self, entry: Entry, shape: Shape, key: &[u8], value: &[u8], attributes: &Attributes) {
        // SAFETY: the entry has room for the shape, and nothing refers to it yet.
        let item = unsafe { ItemPtr::write(self.log.ptr(entry.location), shape, key, attributes) };
        // SAFETY: the shape's payload has the value's length.
        unsafe { stores::copy(value.as_ptr(), item.payload_ptr(), value.len()) };
    }

    /// Overwrites an item in place if its fields and padded size stay the same and its region is
    /// not pinned. This saves an entry in the log, and its later garbage.
    pub(super) fn overwrite(
        &self,
        bucket: &BucketGuard<'_>,
        hash: KeyHash,
        old: Found<'_>,
        shape: Shape,
        value: &[u8],
        attributes: &Attributes,
    ) -> Option<StoreOutcome> {
        let mut item = old.item;
        // An item with an expiry moves to a region of items that expire at about its new time.
        // Without eviction, there may be no memory to move it to.
        let of_old = item.shape();
        let is_as_long = of_old == shape
            || of_old.fields() == shape.fields()
                && self.log.padded(of_old.entry_bytes()) == self.log.padded(shape.entry_bytes());
        if !is_as_long || shape.fields().expiry && self.log.evicts || self.log.is_pinned(old.location) {
            return None;
        }
        let before = item.usage();
        let bits = self.log.hits.after(before.state()) & state::POLICY;
        item.make_dead_from(before);
        item.reshape(shape);
        // SAFETY: the padded size is unchanged, so the value fits; the hash bucket's lock keeps readers
        // away, and while the region is not pinned no thread reads without it.
        unsafe { stores::copy(value.as_ptr(), item.payload_ptr(), value.len()) };
        let fits = self.set_expiry(item, old.location, attributes.expiry);
        debug_assert!(fits, "the fields are the same");
        item.set_optional(attributes);
        self.log.make_live(item, attributes.usage.with(bits));
        bucket.shard().count_stored();
        if self.insight.sampler.takes(hash.0) {
            self.sample_store(hash, item.key(), item);
        }
        self.notify(Change::Stored, item.key(), attributes.cas);
        Some(StoreOutcome::Stored { cas: attributes.cas, value_bytes: value.len() })
    }

    /// Puts a complete entry into the index, replacing `old`, and publishes it.
    #[allow(clippy::too_many_arguments)] // The facts of one store, each used once.
    pub(super) fn link(
        &self,
        bucket: &BucketGuard<'_>,
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
        let bits = self.log.policy.insert(&Insertion { hash: hash.0, bytes, replaces });
        // If a restart finds two live items of a key, it keeps one, so the value being replaced is
        // never lost.
        self.log.make_live(item, attributes.usage.with(bits << state::POLICY_SHIFT));
        match old {
            Some(old) => {
                self.log.make_dead(old.item);
                bucket.shard().adjust_bytes(bytes, self.item_bytes(old.item));
                old.slot.set_location(entry.location);
                self.item_died(old.item, old.location);
            }
            None => {
                if !self.note_stored(hash, key) || !bucket.insert(hash, entry.location, bytes) {
                    self.log.make_dead(item);
                    self.log.abandon(entry);
                    return StoreOutcome::OutOfMemory;
                }
            }
        }
        bucket.shard().count_stored();
        self.note_expiry(item, entry.location, attributes.expiry);
        if self.insight.sampler.takes(hash.0) {
            self.sample_store(hash, key, item);
        }
        self.notify(Change::Stored, key, attributes.cas);
        self.log.publish(entry);
        debug_assert!(options.new_cas.is_none_or(|cas| !self.has_cas || cas == attributes.cas));
        StoreOutcome::Stored { cas: attributes.cas, value_bytes }
    }

    /// Applies the mode, and links a complete entry or abandons it. With `replaces`, links the
    /// entry only if the key still has that item. Must not be called with a lock held.
    #[allow(clippy::too_many_arguments)] // As above.
    pub(super) fn decide_and_link(
        &self,
        hash: KeyHash,
        key: &[u8],
        mut entry: Entry,
        value_bytes: usize,
        options: &StoreOptions,
        replaces: Option<Replaces>,
        now: u32,
    ) -> Linked {
        loop {
            if let Some(linked) = self.try_link(hash, key, entry, value_bytes, options, replaces, now) {
                return linked;
            }
            // Everything has been flushed since the entry was allocated. The value is stored after
            // the flush, so its entry must be behind the boundary.
            let stream = self.log.stream_for(options.expiry, now);
            let later = self.log.alloc(self, stream, entry.bytes, now);
            if let Some(later) = later {
                self.log.copy_entry(entry.location, later);
            }
            self.log.abandon(entry);
            match later {
                Some(later) => entry = later,
                None => return Err(StoreOutcome::OutOfMemory),
            }
        }
    }

    /// Returns `None`, and does nothing, if the entry is before the boundary of a flush.
    #[allow(clippy::too_many_arguments)] // As above.
    fn try_link(
        &self,
        hash: KeyHash,
        key: &[u8],
        entry: Entry,
        value_bytes: usize,
        options: &StoreOptions,
        replaces: Option<Replaces>,
        now: u32,
    ) -> Option<Linked> {
        let bucket = self.index.shard(hash).lock(hash);
        if self.log.is_flushed(entry.location) {
            return None;
        }
        let old = self.find(&bucket, hash, key, now).ok();
        if let Some(replaces) = &replaces
            && !old.is_some_and(|old| replaces.matches(old))
        {
            self.log.abandon(entry);
            return Some(Err(StoreOutcome::NotStored));
        }
        Some(match self.decide(&bucket, old, options, now) {
            Ok(mut attributes) => {
                let item = self.item_at(entry.location);
                if let (Some(replaces), Some(old)) = (&replaces, &old) {
                    attributes.usage = attributes.usage.with(replaces.marks);
                    if let Some(marks) = replaces.inherited {
                        let fields = item.shape().fields();
                        attributes.expiry = old.item.expiry();
                        attributes.client_flags = old.item.client_flags();
                        attributes.usage = attributes.usage.with(old.item.state() & marks);
                        if attributes.expiry != Expiry::NEVER && !fields.expiry
                            || attributes.client_flags != 0 && !fields.client_flags
                        {
                            // The item has acquired an attribute for which the new entry has no
                            // field.
                            self.log.abandon(entry);
                            return Some(Err(StoreOutcome::NotStored));
                        }
                    }
                }
                item.set_attributes(&attributes);
                Ok(self.link(&bucket, hash, key, entry, old, value_bytes, &attributes, options))
            }
            Err(outcome) => {
                self.log.abandon(entry);
                Err(outcome)
            }
        })
    }
}
