//! The bytes of an item in a region, and access to them.
//!
//! ```text
//!  0                4                8          16?       20?       24?
//! ┌────────────────┬────────────────┬──────────┬─────────┬─────────┬───────┬─────────┬─────┐
//! │ shape          │ usage          │ CAS      │ expiry  │ client  │ key   │ payload │ pad │
//! │ u32            │ u32            │ u64 if   │ u32 if  │ flags   │ 1-250 │         │     │
//! │                │                │ HAS_CAS  │ HAS_EXP │ u32 if… │ bytes │         │     │
//! └────────────────┴────────────────┴──────────┴─────────┴─────────┴───────┴─────────┴─────┘
//!  shape:  31          30        29           28          27       26                8 7        0
//!         ┌───────────┬─────────┬────────────┬───────────┬────────┬───────────────────┬──────────┐
//!         │KEY_BINARY │ EXTENTS │ HAS_CLIENT │ HAS_EXPIRY│ HAS_CAS│ payload bytes, 19 │ key bytes│
//!         └───────────┴─────────┴────────────┴───────────┴────────┴───────────────────┴──────────┘
//!  usage:  31                                                   7   6   5      3 2            0
//!         ┌──────────────────────────────────────────────────────┬──────┬────────┬──────────────┐
//!         │ the clock's second of the last use, its lower 25 bits │ LIVE │ policy │ marks        │
//!         └──────────────────────────────────────────────────────┴──────┴────────┴──────────────┘
//! ```
//! The 25 bits cover a year. If an item is not used for longer, its reported idle time is too
//! short.
//!
//! LIVE is set if and only if the index refers to the item, except while the lock of its hash
//! bucket is held: then an item in the index may lack the mark, or two items of one key may have
//! it. A thread's stores become visible to a later process in program order, so a process that
//! opens the memory of a killed one finds complete items wherever LIVE is set, and rebuilds the
//! index from them.
//!
//! In a memory file an entry ends with a checksum, behind its padding (see `shape.rs`).
//!
//! Integers are little-endian; an entry starts at a multiple of the granule (4 bytes or more) and
//! is padded to one. The payload is the value, or with EXTENTS the list of the pieces in which the
//! value is stored (see `extent.rs`). An entry with 255 as the number of key bytes is such a piece,
//! not an item.
//!
//! Access: the key, and the padded size that follows from the shape, never change after the entry
//! is written; a thread that keeps the region from being reused may read them without a lock.
//! Everything else is read and written under the lock of the key's hash bucket. An overwrite in
//! place changes the shape's payload bytes within the same padded size. The payload of an entry in
//! a pinned region does not change: writers check the pins.

pub(crate) mod extent;
mod shape;

// `crate::sync` is not used: these words are in raw memory, and order nothing between threads.
use std::sync::atomic::{AtomicU32, Ordering};

use shape::FIXED_BYTES;

pub(crate) use shape::{
    CHECKSUM_BYTES, Fields, PAYLOAD_BYTES_MAX, Shape, entry_bytes_min, piece_matches_checksum,
    write_piece_checksum,
};

use crate::clock::Expiry;
use crate::stores;

/// The maximum length of a key. Keys have 1 to 250 bytes, as in memcached.
pub const KEY_BYTES_MAX: usize = 250;

const USAGE_AT: usize = 4;

/// The attributes of an item: everything except key and payload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attributes {
    pub(crate) cas: u64,
    pub(crate) expiry: Expiry,
    pub(crate) client_flags: u32,
    pub(crate) usage: Usage,
}

/// Writes an entry of `bytes` bytes to which nothing refers yet.
///
/// # Safety
/// `ptr` points at `bytes` writable bytes (granule-aligned) that no other thread uses.
#[inline]
pub(crate) unsafe fn write_placeholder(ptr: *mut u8, bytes: u32) {
    let shape = Shape::placeholder(bytes);
    // SAFETY: an entry has two words at least.
    unsafe {
        if shape.piece_bytes().is_none() {
            ItemPtr::shaped(ptr, shape).set_usage(Usage::new(0, 0));
        }
        shape.write(ptr);
    }
}

/// A pointer to an item's entry.
///
/// The code that constructs one guarantees that the region is not reused while the pointer is in
/// use: its holder has the lock of the item's hash bucket (all fields), or keeps the region in
/// another way (only key and padded size).
#[derive(Clone, Copy)]
pub(crate) struct ItemPtr {
    ptr: *mut u8,
    shape: Shape,
    /// The key's offset, computed once from the shape.
    key_at: u32,
}

impl ItemPtr {
    /// # Safety
    /// `ptr` points at a complete item entry of a mapped region that is not reused while the
    /// result is in use; for anything but key and padded size the caller holds the hash bucket's lock.
    #[inline]
    pub(crate) unsafe fn new(ptr: *mut u8) -> ItemPtr {
        // SAFETY: as the caller promises.
        ItemPtr::shaped(ptr, unsafe { Shape::read(ptr) })
    }

    #[inline]
    fn shaped(ptr: *mut u8, shape: Shape) -> ItemPtr {
        ItemPtr { ptr, shape, key_at: shape.key_at() as u32 }
    }

    /// Writes a new entry except for its payload, which the caller writes to [`ItemPtr::payload_ptr`].
    ///
    /// # Safety
    /// `ptr` points at `shape.entry_bytes()` writable bytes (granule-aligned) that no other thread uses.
    pub(crate) unsafe fn write(ptr: *mut u8, shape: Shape, key: &[u8], attributes: &Attributes) -> ItemPtr {
        debug_assert_eq!(key.len(), shape.key_bytes());
        debug_assert!(attributes.usage.state() & state::LIVE == 0, "a new entry is not live");
        let item = ItemPtr::shaped(ptr, shape);
        // The usage is set before the shape makes the entry an item, because an earlier entry may
        // have left the mark here.
        item.set_usage(attributes.usage);
        stores::fence();
        // SAFETY: all offsets below are inside `shape.entry_bytes()`, which the caller provides.
        unsafe {
            shape.write(ptr);
            stores::copy(key.as_ptr(), ptr.add(shape.key_at()), key.len());
        }
        item.set_optional(attributes);
        item
    }

    /// Copies the entry of `bytes` bytes, including padding. The copy is not live.
    ///
    /// # Safety
    /// `to` points at `bytes` writable bytes (granule-aligned) that no other thread uses, separate
    /// from this entry, which has the same size.
    #[inline]
    pub(crate) unsafe fn copy_to(self, to: *mut u8, bytes: usize) -> ItemPtr {
        let copy = ItemPtr { ptr: to, ..self };
        copy.set_usage(self.usage().without(state::LIVE));
        stores::fence();
        // SAFETY: as the caller promises; an entry is longer than its first two words.
        unsafe {
            self.shape.write(to);
            stores::copy(self.ptr.add(FIXED_BYTES), to.add(FIXED_BYTES), bytes - FIXED_BYTES);
        }
        copy
    }

    /// Marks a complete item as being in the index. This is the last of the stores that create it.
    #[inline]
    pub(crate) fn make_live(self, usage: Usage) {
        stores::fence();
        self.set_usage(usage.with(state::LIVE));
        stores::fence();
    }

    /// Marks the item as not being in the index, or as being changed.
    #[inline]
    pub(crate) fn make_dead(self) {
        self.make_dead_from(self.usage());
    }

    /// Like [`make_dead`](Self::make_dead), given the usage that has been read.
    #[inline]
    pub(crate) fn make_dead_from(self, usage: Usage) {
        self.set_usage(usage.without(state::LIVE));
        stores::fence();
    }

    #[inline]
    pub(crate) fn is_live(self) -> bool {
        self.state() & state::LIVE != 0
    }

    /// Writes all attributes for which the shape has fields.
    #[inline]
    pub(crate) fn set_attributes(self, attributes: &Attributes) {
        self.set_usage(attributes.usage);
        self.set_optional(attributes);
    }

    /// Writes all attributes except the usage for which the shape has fields.
    #[inline]
    pub(crate) fn set_optional(self, attributes: &Attributes) {
        self.set_cas(attributes.cas);
        if self.shape.has_expiry() {
            self.put_u32(self.shape.expiry_at(), attributes.expiry.as_secs());
        }
        if self.shape.has_client_flags() {
            self.put_u32(self.shape.client_flags_at(), attributes.client_flags);
        }
    }

    pub(crate) fn attributes(self) -> Attributes {
        Attributes {
            cas: self.cas(),
            expiry: self.expiry(),
            client_flags: self.client_flags(),
            usage: self.usage(),
        }
    }

    /// Changes the shape to one that differs only in the payload's length, within the same padded
    /// size (overwrite in place).
    #[inline]
    pub(crate) fn reshape(&mut self, shape: Shape) {
        debug_assert_eq!((self.shape.key_bytes(), self.shape.fields()), (shape.key_bytes(), shape.fields()));
        self.shape = shape;
        // SAFETY: the entry's first word, aligned; the lock of the hash bucket is held.
        unsafe { self.shape.write(self.ptr) };
    }

    #[inline]
    pub(crate) fn shape(self) -> Shape {
        self.shape
    }

    #[inline]
    fn get_u32(self, at: usize) -> u32 {
        // SAFETY: `at` is the offset of a field that the shape has; the read is unaligned.
        u32::from_le(unsafe { self.ptr.add(at).cast::<u32>().read_unaligned() })
    }

    #[inline]
    fn put_u32(self, at: usize, value: u32) {
        // SAFETY: as in `get_u32`; the hash bucket's lock excludes other threads.
        unsafe { self.ptr.add(at).cast::<u32>().write_unaligned(value.to_le()) };
        stores::done();
    }

    /// Returns the key. It is valid while the caller keeps the region.
    #[inline]
    pub(crate) fn key<'a>(self) -> &'a [u8] {
        // SAFETY: the key lies inside the entry and never changes; the caller bounds the lifetime,
        // as the constructor demands.
        unsafe { std::slice::from_raw_parts(self.ptr.add(self.key_at as usize), self.shape.key_bytes()) }
    }

    /// Returns whether this is the item of `key`. Keys of common lengths are compared without a
    /// call.
    #[inline]
    pub(crate) fn is_of(self, key: &[u8]) -> bool {
        if self.shape.key_bytes() != key.len() {
            return false;
        }
        // SAFETY: as in `key`; the length is the same, as has just been compared.
        let own: &[u8] = unsafe { std::slice::from_raw_parts(self.ptr.add(self.key_at as usize), key.len()) };
        if (16..=32).contains(&key.len())
            && let (Some(front), Some(back), Some(own_front), Some(own_back)) =
                (key.first_chunk(), key.last_chunk(), own.first_chunk(), own.last_chunk())
        {
            let [front, back, own_front, own_back] =
                [front, back, own_front, own_back].map(|chunk: &[u8; 16]| u128::from_ne_bytes(*chunk));
            return (front ^ own_front) | (back ^ own_back) == 0;
        }
        own == key
    }

    #[inline]
    pub(crate) fn payload_ptr(self) -> *mut u8 {
        // SAFETY: at most one past the entry's end when the payload is empty.
        unsafe { self.ptr.add(self.key_at as usize + self.shape.key_bytes()) }
    }

    /// Returns the payload: the value, or the list of pieces.
    #[inline]
    pub(crate) fn payload<'a>(self) -> &'a [u8] {
        // SAFETY: inside the entry; only changed under the hash bucket's lock, which the caller holds, and
        // not at all while the region is pinned.
        unsafe { std::slice::from_raw_parts(self.payload_ptr(), self.shape.payload_bytes()) }
    }

    /// Returns the length of the value.
    #[inline]
    pub(crate) fn value_bytes(self) -> usize {
        if self.shape.fields().extents {
            extent::List::new(self.payload()).value_bytes()
        } else {
            self.shape.payload_bytes()
        }
    }

    #[inline]
    pub(crate) fn usage(self) -> Usage {
        // SAFETY: the second word of the entry, aligned.
        Usage(unsafe { &*self.ptr.add(USAGE_AT).cast::<AtomicU32>() }.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn set_usage(self, usage: Usage) {
        // SAFETY: the second word of the entry, aligned.
        unsafe { &*self.ptr.add(USAGE_AT).cast::<AtomicU32>() }.store(usage.0, Ordering::Relaxed);
        stores::done();
    }

    /// Seconds since the last use.
    #[inline]
    pub(crate) fn idle_secs(self, now: u32) -> u32 {
        self.usage().idle_secs(now)
    }

    /// Returns the clock's second of the last use.
    #[inline]
    pub(crate) fn last_access(self, now: u32) -> u32 {
        now.saturating_sub(self.idle_secs(now))
    }

    #[inline]
    pub(crate) fn state(self) -> u8 {
        self.usage().state()
    }

    #[inline]
    pub(crate) fn set_state(self, state: u8) {
        let Usage(usage) = self.usage();
        self.set_usage(Usage(usage & !(state::COUNT as u32 - 1) | u32::from(state)));
    }

    #[inline]
    pub(crate) fn policy_bits(self) -> u8 {
        (self.state() & state::POLICY) >> state::POLICY_SHIFT
    }

    #[inline]
    pub(crate) fn set_policy_bits(self, bits: u8) {
        self.set_state(self.state() & !state::POLICY | bits << state::POLICY_SHIFT);
    }

    /// Returns the CAS value; 0 if the store has none.
    #[inline]
    pub(crate) fn cas(self) -> u64 {
        if !self.shape.has_cas() {
            return 0;
        }
        // SAFETY: the shape has the field; unaligned read.
        u64::from_le(unsafe { self.ptr.add(FIXED_BYTES).cast::<u64>().read_unaligned() })
    }

    #[inline]
    pub(crate) fn set_cas(self, cas: u64) {
        if self.shape.has_cas() {
            // SAFETY: the shape has the field; the hash bucket's lock excludes other threads.
            unsafe { self.ptr.add(FIXED_BYTES).cast::<u64>().write_unaligned(cas.to_le()) };
            stores::done();
        }
    }

    #[inline]
    pub(crate) fn expiry(self) -> Expiry {
        if !self.shape.has_expiry() {
            return Expiry::NEVER;
        }
        Expiry::from_secs(self.get_u32(self.shape.expiry_at()))
    }

    /// Sets the expiry. Returns false if the entry has no field for it and must be rewritten. Only
    /// the entry of an item that never expires may lack the field.
    #[must_use]
    pub(crate) fn set_expiry(self, expiry: Expiry) -> bool {
        if !self.shape.has_expiry() {
            return expiry == Expiry::NEVER;
        }
        self.put_u32(self.shape.expiry_at(), expiry.as_secs());
        true
    }

    #[inline]
    pub(crate) fn client_flags(self) -> u32 {
        if !self.shape.has_client_flags() {
            return 0;
        }
        self.get_u32(self.shape.client_flags_at())
    }
}

/// Marks of an item; three of the seven bits belong to the eviction policy.
pub(crate) mod state {
    /// Marked as stale (`md I`); the next reader wins the right to refresh it.
    pub(crate) const STALE: u8 = 1;
    /// A client has won the right to refresh the item.
    pub(crate) const TOKEN_SENT: u8 = 2;
    /// The item has been read since it was stored.
    pub(crate) const FETCHED: u8 = 4;
    /// The position of the policy's three bits.
    pub(crate) const POLICY_SHIFT: u32 = 3;
    /// The policy's three bits.
    pub(crate) const POLICY: u8 = 7 << POLICY_SHIFT;
    /// The index refers to the item, so a restart restores it. The two differ only while the lock
    /// of its hash bucket is held.
    pub(crate) const LIVE: u8 = 64;
    /// The number of states.
    pub(crate) const COUNT: usize = 128;
}

/// An item's state, and the time of its last use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage(pub(crate) u32);

impl Usage {
    const STAMP_SHIFT: u32 = state::COUNT.ilog2();
    const STAMP_MAX: u32 = u32::MAX >> Self::STAMP_SHIFT;
    /// The maximum time by which a last use may be in the future and still count as no idle time:
    /// another thread may have used the item a moment after this one read the clock.
    const AHEAD_SECS_MAX: u32 = 3600;

    #[inline]
    pub(crate) fn new(state: u8, now: u32) -> Usage {
        Usage(now << Self::STAMP_SHIFT | u32::from(state))
    }

    /// Adds marks.
    #[inline]
    #[must_use]
    pub(crate) fn with(self, marks: u8) -> Usage {
        Usage(self.0 | u32::from(marks))
    }

    /// Removes marks.
    #[inline]
    #[must_use]
    pub(crate) fn without(self, marks: u8) -> Usage {
        Usage(self.0 & !u32::from(marks))
    }

    #[inline]
    pub(crate) fn state(self) -> u8 {
        self.0 as u8 & (state::COUNT as u8 - 1)
    }

    /// Seconds since the last use.
    pub(crate) fn idle_secs(self, now: u32) -> u32 {
        let idle = now.wrapping_sub(self.0 >> Self::STAMP_SHIFT) & Self::STAMP_MAX;
        if idle > Self::STAMP_MAX - Self::AHEAD_SECS_MAX { 0 } else { idle }
    }
}

#[cfg(all(test, not(shuttle)))]
mod item_tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn entry_sizes_are_as_documented() {
        let plain = Fields { cas: true, ..Fields::default() };
        assert_eq!(Shape::item(20, 100, plain).entry_bytes(), 136, "16 bytes beyond key and value");
        assert_eq!(Shape::item(20, 100, Fields::default()).entry_bytes(), 128);
        let full = Fields { cas: true, expiry: true, client_flags: true, ..Fields::default() };
        assert_eq!(Shape::item(20, 100, full).entry_bytes(), 144);
        assert_eq!(Shape::piece(1000).entry_bytes(), 1016);
        assert_eq!(Shape::piece(1 << 20).piece_bytes(), Some(1 << 20));
        assert_eq!(entry_bytes_min(true), 17);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            key in proptest::collection::vec(any::<u8>(), 1..=KEY_BYTES_MAX),
            payload in proptest::collection::vec(any::<u8>(), 0..300),
            cas in any::<u64>(), expiry in any::<u32>(), client_flags in any::<u32>(),
            last_access in 0u32..1 << 25, state in 0u8..64,
            has in any::<[bool; 5]>(),
        ) {
            let fields = Fields {
                cas: has[0], expiry: has[1], client_flags: has[2], extents: has[3], key_binary: has[4],
            };
            let shape = Shape::item(key.len(), payload.len(), fields);
            let mut memory = vec![0u64; shape.entry_bytes().div_ceil(8)];
            let attributes = Attributes {
                cas, expiry: Expiry::from_secs(expiry), client_flags, usage: Usage::new(state, last_access),
            };
            // SAFETY: the vector has room for the entry, is aligned, and is ours alone.
            let item = unsafe {
                let item = ItemPtr::write(memory.as_mut_ptr().cast(), shape, &key, &attributes);
                std::ptr::copy_nonoverlapping(payload.as_ptr(), item.payload_ptr(), payload.len());
                ItemPtr::new(memory.as_mut_ptr().cast())
            };
            prop_assert_eq!(item.key(), &key[..]);
            prop_assert_eq!(item.payload(), &payload[..]);
            prop_assert_eq!(item.shape().fields(), fields);
            prop_assert_eq!(item.cas(), if has[0] { cas } else { 0 });
            prop_assert_eq!(item.expiry().as_secs(), if has[1] { expiry } else { 0 });
            prop_assert_eq!(item.client_flags(), if has[2] { client_flags } else { 0 });
            prop_assert_eq!(item.last_access(last_access + 7), last_access);
            prop_assert_eq!(item.state(), state);
            item.set_policy_bits(5);
            prop_assert_eq!(item.policy_bits(), 5);
            prop_assert_eq!(item.state() & 7, state & 7);
            item.set_usage(Usage::new(item.state(), 9));
            prop_assert_eq!((item.policy_bits(), item.last_access(10)), (5, 9));
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod usage_tests {
    use super::*;

    #[test]
    fn the_last_use_is_known_for_a_year() {
        for now in [2, 1000, Usage::STAMP_MAX - 1, Usage::STAMP_MAX, 3 << 25, u32::MAX - 5] {
            for idle in [0, 1, 59, 86_400, 365 * 86_400] {
                let Some(then) = now.checked_sub(idle) else { continue };
                let usage = Usage::new(45, then);
                assert_eq!((usage.idle_secs(now), usage.state()), (idle, 45), "{now}");
            }
            assert_eq!(Usage::new(1, now + 1).idle_secs(now), 0, "used after the clock was read");
        }
    }
}
