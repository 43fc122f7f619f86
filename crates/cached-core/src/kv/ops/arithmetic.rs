//! Arithmetic on decimal numbers in values, in place where the result fits.

use super::link::{Inherited, Replaces};
use super::number::{self, DIGITS_MAX};
use crate::KeyHash;
use crate::kv::hook::Change;
use crate::kv::item::{Usage, state};
use crate::kv::{ArithmeticOptions, ArithmeticOutcome, Kv, Miss, StoreMode, StoreOptions, StoreOutcome};
use crate::stores;

impl Kv {
    /// Adds to or subtracts from the decimal number in a value. A shorter result is padded with spaces on the
    /// right.
    ///
    /// ```
    /// use cached_core::kv::{Kv, ArithmeticOptions, ArithmeticOutcome};
    /// # let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// use cached_core::clock::Expiry;
    ///
    /// let options = ArithmeticOptions { delta: 5, vivify: Some((100, Expiry::NEVER)), ..ArithmeticOptions::default() };
    /// let count = || match kv.arithmetic(b"n", kv.hash(b"n"), &options) {
    ///     ArithmeticOutcome::Done { value, .. } => value,
    ///     outcome => panic!("{outcome:?}"),
    /// };
    /// assert_eq!((count(), count()), (100, 105));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn arithmetic(&self, key: &[u8], hash: KeyHash, options: &ArithmeticOptions) -> ArithmeticOutcome {
        let inner = &self.inner;
        loop {
            let now = inner.now();
            let locked = inner.index.shard(hash).lock(hash);
            let Ok(found) = inner.find(&locked, hash, key, now) else {
                drop(locked);
                match self.create_number(key, hash, options) {
                    Some(outcome) => return outcome,
                    None => continue,
                }
            };
            let item = found.item;
            let shape = item.shape();
            if shape.fields().extents || shape.payload_bytes() == 0 {
                return ArithmeticOutcome::NonNumeric;
            }
            if options.compare != 0 && options.compare != item.cas() {
                return ArithmeticOutcome::Exists;
            }
            let Some(before) = number::parse(item.payload()) else { return ArithmeticOutcome::NonNumeric };
            let value = if options.decrement {
                before.saturating_sub(options.delta)
            } else {
                before.wrapping_add(options.delta)
            };
            if let Some(expiry) = options.touch
                && !inner.set_expiry(item, found.location, expiry)
            {
                drop(locked);
                match self.give_expiry_room(key, hash) {
                    Err(Miss::OutOfMemory) => return ArithmeticOutcome::OutOfMemory,
                    _ => continue,
                }
            }
            let mut buffer = [b' '; DIGITS_MAX];
            let digits = number::format(value, &mut buffer);
            if digits.len() <= shape.payload_bytes() && !inner.log.is_pinned(found.location) {
                item.make_dead();
                // SAFETY: the digits fit the payload; the hash bucket's lock keeps readers away, and while
                // the region is not pinned no thread reads without it.
                unsafe {
                    let to = item.payload_ptr();
                    stores::copy(digits.as_ptr(), to, digits.len());
                    std::ptr::write_bytes(to.add(digits.len()), b' ', shape.payload_bytes() - digits.len());
                }
                stores::done();
                item.set_cas(inner.next_cas(&locked, options.new_cas));
                inner.log.make_live(item, Usage::new(item.state(), now));
                inner.notify(Change::Stored, key, item.cas());
                return ArithmeticOutcome::Done {
                    value,
                    cas: item.cas(),
                    expiry: item.expiry(),
                    created: false,
                };
            }
            // A longer number, or one that is pinned, is written to a new entry.
            let (location, cas, expiry) = (found.location, item.cas(), item.expiry());
            let store = StoreOptions {
                mode: StoreMode::Set,
                client_flags: item.client_flags(),
                expiry,
                key_binary: shape.fields().key_binary,
                new_cas: options.new_cas,
                ..StoreOptions::default()
            };
            let width = digits.len().max(shape.payload_bytes().min(DIGITS_MAX));
            let text = [digits, &[b' '; DIGITS_MAX][..width - digits.len()]].concat();
            drop(locked);
            let Ok(mut reservation) = self.reserve_at_once(key, hash, text.len(), &store) else {
                return ArithmeticOutcome::OutOfMemory;
            };
            if !reservation.write(&text) {
                return ArithmeticOutcome::OutOfMemory;
            }
            // The marks stay, as they do when the number is changed in place.
            let marks = state::STALE | state::TOKEN_SENT | state::FETCHED;
            let inherited = Inherited::Attributes { marks };
            let replaces = Replaces { location, cas, number: Some(before), marks: 0, inherited };
            match reservation.commit_replacing(replaces) {
                Some(StoreOutcome::Stored { cas, .. }) => {
                    return ArithmeticOutcome::Done { value, cas, expiry, created: false };
                }
                Some(_) => return ArithmeticOutcome::OutOfMemory,
                None => {}
            }
        }
    }

    /// Stores the initial number; `None` if another thread has created it meanwhile.
    fn create_number(
        &self,
        key: &[u8],
        hash: KeyHash,
        options: &ArithmeticOptions,
    ) -> Option<ArithmeticOutcome> {
        let Some((value, expiry)) = options.vivify else { return Some(ArithmeticOutcome::NotFound) };
        let mut buffer = [b' '; DIGITS_MAX];
        let store = StoreOptions {
            mode: StoreMode::Add,
            expiry,
            new_cas: options.new_cas,
            key_binary: options.key_binary,
            ..StoreOptions::default()
        };
        match self.store(key, hash, number::format(value, &mut buffer), &store) {
            StoreOutcome::Stored { cas, .. } => {
                Some(ArithmeticOutcome::Done { value, cas, expiry, created: true })
            }
            StoreOutcome::NotStored => None,
            _ => Some(ArithmeticOutcome::OutOfMemory),
        }
    }
}
