//! Arithmetic on decimal numbers in values, in place if the result fits.

use super::link::Replaces;
use super::store::Arrival;
use crate::kv::item::{Usage, state};
use crate::kv::request::Change;
use crate::kv::{ArithmeticOptions, ArithmeticOutcome, Kv, Miss, StoreMode, StoreOptions, StoreOutcome};
use crate::{KeyHash, stores};

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
            let Some(before) = parse(item.payload()) else { return ArithmeticOutcome::NonNumeric };
            let value = if options.decrement {
                before.saturating_sub(options.delta)
            } else {
                before.wrapping_add(options.delta)
            };
            if let Some(expiry) = options.touch
                && !inner.set_expiry(item, found.location, expiry)
            {
                drop(locked);
                match self.add_expiry_field(key, hash) {
                    Err(Miss::OutOfMemory) => return ArithmeticOutcome::OutOfMemory,
                    _ => continue,
                }
            }
            let mut buffer = [b' '; DIGITS_MAX];
            let digits = format(value, &mut buffer);
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
            if options.touch.is_some() {
                inner.notify(Change::Touched, key, item.cas());
            }
            // A number that is longer or pinned is written to a new entry.
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
            let Ok(mut reservation) = self.reserve_for(key, hash, text.len(), &store, Arrival::Complete)
            else {
                return ArithmeticOutcome::OutOfMemory;
            };
            if !reservation.write(&text) {
                return ArithmeticOutcome::OutOfMemory;
            }
            // The marks stay, as they do when a number is changed in place.
            let inherited = Some(state::STALE | state::TOKEN_SENT | state::FETCHED);
            let replaces = Replaces { location, cas, number: Some(before), marks: 0, inherited };
            match reservation.commit_replacing(Some(replaces)) {
                Some(StoreOutcome::Stored { cas, .. }) => {
                    return ArithmeticOutcome::Done { value, cas, expiry, created: false };
                }
                Some(_) => return ArithmeticOutcome::OutOfMemory,
                None => {}
            }
        }
    }

    /// Stores the initial number; `None` if another thread has created the item in the meantime.
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
        match self.store(key, hash, format(value, &mut buffer), &store) {
            StoreOutcome::Stored { cas, .. } => {
                Some(ArithmeticOutcome::Done { value, cas, expiry, created: true })
            }
            StoreOutcome::NotStored => None,
            _ => Some(ArithmeticOutcome::OutOfMemory),
        }
    }
}

/// The number of digits of 2^64 − 1.
pub(super) const DIGITS_MAX: usize = 20;

/// Reads a number as memcached does (`strtoull`): white space, a sign, digits, then the end, white
/// space or NUL. A negative number is taken modulo 2^64, and the result must not look negative, so
/// `-1` is not a number.
pub(super) fn parse(text: &[u8]) -> Option<u64> {
    let start = text.iter().position(|byte| !is_space(*byte))?;
    let (negative, text) = match &text[start..] {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] | rest => (false, rest),
    };
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let ends = text.get(digits).is_none_or(|byte| is_space(*byte) || *byte == 0);
    if digits == 0 || !ends {
        return None;
    }
    let number = text[..digits]
        .iter()
        .try_fold(0u64, |number, digit| number.checked_mul(10)?.checked_add(u64::from(digit - b'0')))?;
    if !negative {
        return Some(number);
    }
    Some(number.wrapping_neg()).filter(|number| *number <= i64::MAX as u64)
}

/// Returns whether C's `isspace` holds for a byte.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Writes a number at the start of the buffer, and leaves the rest unchanged.
pub(super) fn format(mut value: u64, buffer: &mut [u8; DIGITS_MAX]) -> &[u8] {
    let digits = value.checked_ilog10().map_or(1, |log| log as usize + 1);
    for place in buffer[..digits].iter_mut().rev() {
        *place = b'0' + (value % 10) as u8;
        value /= 10;
    }
    &buffer[..digits]
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_memcached_reads_them() {
        assert_eq!(parse(b"0"), Some(0));
        assert_eq!(parse(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse(b"18446744073709551616"), None);
        assert_eq!(parse(b"12  "), Some(12));
        assert_eq!(parse(b" 12"), Some(12));
        assert_eq!(parse(b"+12"), Some(12));
        assert_eq!(parse(b"5\x0b"), Some(5));
        assert_eq!(parse(b"5\0junk"), Some(5));
        assert_eq!(parse(b"-18446744073709551615"), Some(1));
        assert_eq!(parse(b"-0"), Some(0));
        for bad in [&b""[..], b" ", b"-1", b"1a", b"a1", b"1.5", b"+", b"+-1", b"-9223372036854775808"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn numbers_are_written_in_decimal() {
        for value in [0, 1, 9, 10, 99, 100, u64::MAX] {
            assert_eq!(format(value, &mut [b' '; DIGITS_MAX]), value.to_string().as_bytes());
        }
    }
}
