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
//!  usage:  31                                                          6 5      3 2            0
//!         ┌─────────────────────────────────────────────────────────────┬────────┬──────────────┐
//!         │ the clock's second of the last use, its lower 26 bits        │ policy │ marks        │
//!         └─────────────────────────────────────────────────────────────┴────────┴──────────────┘
//! ```
//! 26 bits are two years: the idle time of an item that is not used for longer is reported too low.
//!
//! Little-endian; an entry starts at a multiple of the granule (4 bytes or more) and is padded to one. The
//! payload is the value, or with EXTENTS the list of the pieces in which the value lies (see `extent.rs`). An
//! entry with 255 as the number of key bytes is such a piece, not an item.
//!
//! Access: the key, and the padded size that follows from the shape, never change after the entry is written;
//! a thread that keeps the region from being reused may read them without a lock. Everything else is read and
//! written under the lock of the key's hash bucket. An overwrite in place changes the shape's payload bytes
//! within the same padded size. The payload of an entry in a pinned region does not change: writers check the
//! pins.

use crate::clock::Expiry;
// Not from `crate::sync`: these words lie in raw memory, and order nothing between threads.
use std::sync::atomic::{AtomicU32, Ordering};

/// Keys have 1 to 250 bytes, as in memcached.
pub const KEY_BYTES_MAX: usize = 250;

/// The bytes before the optional fields: the shape and the usage.
const FIXED_BYTES: usize = 8;
const USAGE_AT: usize = 4;

const KEY_BITS: u32 = 8;
const PAYLOAD_BITS: u32 = 19;
pub(crate) const PAYLOAD_BYTES_MAX: usize = (1 << PAYLOAD_BITS) - 1;
const HAS_CAS: u32 = 1 << 27;
const HAS_EXPIRY: u32 = 1 << 28;
const HAS_CLIENT_FLAGS: u32 = 1 << 29;
const EXTENTS: u32 = 1 << 30;
const KEY_BINARY: u32 = 1 << 31;
const _: () = assert!(KEY_BITS + PAYLOAD_BITS == 27, "the shape word is full");
const HAS_SHIFT: u32 = HAS_CAS.trailing_zeros();
const _: () = assert!(HAS_CAS >> 24 == 8 && HAS_EXPIRY >> 26 == 4);
const _: () = assert!(HAS_EXPIRY >> HAS_SHIFT == 2 && HAS_CLIENT_FLAGS >> HAS_SHIFT == 4);

/// As the number of key bytes: the entry is a piece of a large value.
const PIECE: u32 = 255;
const _: () = assert!(KEY_BYTES_MAX < PIECE as usize);

/// Volatile marks of an item; the upper three of its six bits belong to the eviction policy.
pub(crate) mod state {
    /// Marked stale (`md I`); the next reader wins the right to refresh it.
    pub(crate) const STALE: u8 = 1;
    /// A client has won the right to refresh the item.
    pub(crate) const TOKEN_SENT: u8 = 2;
    /// Read since it was stored.
    pub(crate) const FETCHED: u8 = 4;
    /// Where the policy's three bits start.
    pub(crate) const POLICY_SHIFT: u32 = 3;
    /// The number of states.
    pub(crate) const COUNT: usize = 64;
}

/// An item's state, and the time of its last use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage(u32);

impl Usage {
    const STAMP_SHIFT: u32 = state::COUNT.ilog2();
    const STAMP_MAX: u32 = u32::MAX >> Self::STAMP_SHIFT;
    /// A thread may use an item a moment after another has read the clock: up to this much ahead counts as no
    /// idle time.
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

    #[inline]
    pub(crate) fn state(self) -> u8 {
        self.0 as u8 & (state::COUNT as u8 - 1)
    }

    /// Seconds since the last use.
    fn idle_secs(self, now: u32) -> u32 {
        let idle = now.wrapping_sub(self.0 >> Self::STAMP_SHIFT) & Self::STAMP_MAX;
        if idle > Self::STAMP_MAX - Self::AHEAD_SECS_MAX { 0 } else { idle }
    }
}

/// The offset of the key for each set of optional fields: every look-up needs it first.
static KEY_AT: [u8; 8] = {
    let mut table = [0; 8];
    let mut has = 0;
    while has < table.len() {
        table[has] =
            FIXED_BYTES as u8 + (has & 1) as u8 * 8 + (has >> 1 & 1) as u8 * 4 + (has >> 2) as u8 * 4;
        has += 1;
    }
    table
};

/// The first word of an entry: what it consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape(u32);

impl Shape {
    /// The shape of an item. Key and payload are within their limits (the callers check).
    #[inline]
    pub(crate) fn item(key: usize, payload: usize, fields: Fields) -> Shape {
        debug_assert!((1..=KEY_BYTES_MAX).contains(&key) && payload <= PAYLOAD_BYTES_MAX);
        let mut word = key as u32 | (payload as u32) << KEY_BITS;
        for (on, bit) in [
            (fields.cas, HAS_CAS),
            (fields.expiry, HAS_EXPIRY),
            (fields.client_flags, HAS_CLIENT_FLAGS),
            (fields.extents, EXTENTS),
            (fields.key_binary, KEY_BINARY),
        ] {
            if on {
                word |= bit;
            }
        }
        Shape(word)
    }

    /// The shape of a piece that holds `data` bytes of a large value.
    pub(crate) fn piece(data: u32) -> Shape {
        Shape(PIECE | data << KEY_BITS)
    }

    /// Reads the first word of the entry at `ptr`.
    ///
    /// # Safety
    /// `ptr` points at an entry (4-byte aligned) whose first word has been written, in memory that
    /// stays mapped.
    #[inline]
    pub(crate) unsafe fn read(ptr: *const u8) -> Shape {
        // SAFETY: the caller promises an aligned, initialised word; an overwrite in place may write it at the
        // same time, hence the atomic access.
        Shape(unsafe { &*ptr.cast::<AtomicU32>() }.load(Ordering::Relaxed))
    }

    /// Writes the first word of an entry.
    ///
    /// # Safety
    /// `ptr` points at four writable bytes, 4-byte aligned, in memory that stays mapped.
    pub(crate) unsafe fn write(self, ptr: *mut u8) {
        // SAFETY: as the caller promises; atomic, since a walk may read the word at the same time.
        unsafe { &*ptr.cast::<AtomicU32>() }.store(self.0, Ordering::Relaxed);
    }

    /// The bytes of data of a piece; `None` for an item.
    #[inline]
    pub(crate) fn piece_bytes(self) -> Option<u32> {
        (self.0 & 0xff == PIECE).then_some(self.0 >> KEY_BITS)
    }

    #[inline]
    pub(crate) fn key_bytes(self) -> usize {
        (self.0 & 0xff) as usize
    }

    #[inline]
    pub(crate) fn payload_bytes(self) -> usize {
        ((self.0 >> KEY_BITS) & ((1 << PAYLOAD_BITS) - 1)) as usize
    }

    #[inline]
    pub(crate) fn fields(self) -> Fields {
        Fields {
            cas: self.0 & HAS_CAS != 0,
            expiry: self.0 & HAS_EXPIRY != 0,
            client_flags: self.0 & HAS_CLIENT_FLAGS != 0,
            extents: self.0 & EXTENTS != 0,
            key_binary: self.0 & KEY_BINARY != 0,
        }
    }

    #[inline]
    fn key_at(self) -> usize {
        usize::from(KEY_AT[(self.0 >> HAS_SHIFT & 7) as usize])
    }

    // Without branches: each optional field's bit, shifted so that its value is the field's length.
    #[inline]
    fn expiry_at(self) -> usize {
        FIXED_BYTES + (self.0 >> 24 & 8) as usize
    }

    #[inline]
    fn client_flags_at(self) -> usize {
        self.expiry_at() + (self.0 >> 26 & 4) as usize
    }

    /// The bytes of the entry before padding.
    #[inline]
    pub(crate) fn entry_bytes(self) -> usize {
        match self.piece_bytes() {
            Some(data) => super::extent::PIECE_HEADER_BYTES + data as usize,
            None => self.key_at() + self.key_bytes() + self.payload_bytes(),
        }
    }
}

/// The optional parts of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Fields {
    pub(crate) cas: bool,
    pub(crate) expiry: bool,
    pub(crate) client_flags: bool,
    pub(crate) extents: bool,
    pub(crate) key_binary: bool,
}

/// The attributes of an item: all but key and payload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attributes {
    pub(crate) cas: u64,
    pub(crate) expiry: Expiry,
    pub(crate) client_flags: u32,
    pub(crate) usage: Usage,
}

/// The bytes of the smallest entry: one byte of key, no value. It bounds the number of items.
pub(crate) fn entry_bytes_min(with_cas: bool) -> usize {
    FIXED_BYTES + if with_cas { 8 } else { 0 } + 1
}

/// A pointer at an item's entry.
///
/// Whoever constructs one promises that the region is not reused while it is in use: the holder has the lock
/// of the item's hash bucket (all fields), or keeps the region in another way (key and padded size only).
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
        let item = ItemPtr::shaped(ptr, shape);
        // SAFETY: all offsets below are inside `shape.entry_bytes()`, which the caller provides.
        unsafe {
            shape.write(ptr);
            std::ptr::copy_nonoverlapping(key.as_ptr(), ptr.add(shape.key_at()), key.len());
        }
        item.set_attributes(attributes);
        item
    }

    /// Writes all attributes for which the shape has room.
    #[inline]
    pub(crate) fn set_attributes(self, attributes: &Attributes) {
        self.set_usage(attributes.usage);
        self.set_cas(attributes.cas);
        if self.shape.0 & HAS_EXPIRY != 0 {
            self.put_u32(self.shape.expiry_at(), attributes.expiry.as_secs());
        }
        if self.shape.0 & HAS_CLIENT_FLAGS != 0 {
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

    /// Changes the payload's length within the same padded size (overwrite in place).
    pub(crate) fn set_payload_bytes(&mut self, payload: usize) {
        self.shape = Shape::item(self.shape.key_bytes(), payload, self.shape.fields());
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
    }

    /// The key. It is valid for as long as the caller keeps the region.
    #[inline]
    pub(crate) fn key<'a>(self) -> &'a [u8] {
        // SAFETY: the key lies inside the entry and never changes; the caller bounds the lifetime,
        // as the constructor demands.
        unsafe { std::slice::from_raw_parts(self.ptr.add(self.key_at as usize), self.shape.key_bytes()) }
    }

    /// Whether this is the item of `key`. Keys of usual length are compared without a call.
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

    /// The payload: the value, or the list of pieces.
    #[inline]
    pub(crate) fn payload<'a>(self) -> &'a [u8] {
        // SAFETY: inside the entry; only changed under the hash bucket's lock, which the caller holds, and
        // not at all while the region is pinned.
        unsafe { std::slice::from_raw_parts(self.payload_ptr(), self.shape.payload_bytes()) }
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
    }

    /// Seconds since the last use.
    #[inline]
    pub(crate) fn idle_secs(self, now: u32) -> u32 {
        self.usage().idle_secs(now)
    }

    /// The clock's second of the last use.
    #[inline]
    pub(crate) fn last_access(self, now: u32) -> u32 {
        now.saturating_sub(self.idle_secs(now))
    }

    #[inline]
    pub(crate) fn set_last_access(self, secs: u32) {
        self.set_usage(Usage::new(self.state(), secs));
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
        self.state() >> state::POLICY_SHIFT
    }

    #[inline]
    pub(crate) fn set_policy_bits(self, bits: u8) {
        let marks = self.state() & ((1 << state::POLICY_SHIFT) - 1);
        self.set_state(marks | bits << state::POLICY_SHIFT);
    }

    /// The CAS value; 0 when the store keeps none.
    #[inline]
    pub(crate) fn cas(self) -> u64 {
        if self.shape.0 & HAS_CAS == 0 {
            return 0;
        }
        // SAFETY: the shape has the field; unaligned read.
        u64::from_le(unsafe { self.ptr.add(FIXED_BYTES).cast::<u64>().read_unaligned() })
    }

    #[inline]
    pub(crate) fn set_cas(self, cas: u64) {
        if self.shape.0 & HAS_CAS != 0 {
            // SAFETY: the shape has the field; the hash bucket's lock excludes other threads.
            unsafe { self.ptr.add(FIXED_BYTES).cast::<u64>().write_unaligned(cas.to_le()) };
        }
    }

    #[inline]
    pub(crate) fn expiry(self) -> Expiry {
        if self.shape.0 & HAS_EXPIRY == 0 {
            return Expiry::NEVER;
        }
        Expiry::from_secs(self.get_u32(self.shape.expiry_at()))
    }

    /// Sets the expiry. Returns false when the entry has no room for one and must be rewritten: only that of
    /// an item that never expires may have none.
    #[must_use]
    pub(crate) fn set_expiry(self, expiry: Expiry) -> bool {
        if self.shape.0 & HAS_EXPIRY == 0 {
            return expiry == Expiry::NEVER;
        }
        self.put_u32(self.shape.expiry_at(), expiry.as_secs());
        true
    }

    #[inline]
    pub(crate) fn client_flags(self) -> u32 {
        if self.shape.0 & HAS_CLIENT_FLAGS == 0 {
            return 0;
        }
        self.get_u32(self.shape.client_flags_at())
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
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

    #[test]
    fn the_last_use_is_known_for_two_years() {
        for now in [2, 1000, Usage::STAMP_MAX - 1, Usage::STAMP_MAX, 3 << 26, u32::MAX - 5] {
            for idle in [0, 1, 59, 86_400, 2 * 365 * 86_400] {
                let Some(then) = now.checked_sub(idle) else { continue };
                let usage = Usage::new(45, then);
                assert_eq!((usage.idle_secs(now), usage.state()), (idle, 45), "{now}");
            }
            assert_eq!(Usage::new(1, now + 1).idle_secs(now), 0, "used after the clock was read");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            key in proptest::collection::vec(any::<u8>(), 1..=KEY_BYTES_MAX),
            payload in proptest::collection::vec(any::<u8>(), 0..300),
            cas in any::<u64>(), expiry in any::<u32>(), client_flags in any::<u32>(),
            last_access in 0u32..1 << 26, state in 0u8..64,
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
            item.set_last_access(9);
            prop_assert_eq!((item.policy_bits(), item.last_access(10)), (5, 9));
        }
    }
}
