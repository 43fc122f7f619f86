//! The number in an object's name, which orders the objects of a volume: `disk.00000012` is
//! followed by `disk.00000013`.
//!
//! Volumes number their objects in decimal or in hexadecimal, and a name need not show which. A
//! number is kept as its digits, so that both interpretations can be compared; if one must be
//! chosen, a number with a letter or with at least twelve digits is hexadecimal, like those of RBD.

use std::ops::Range;

/// The maximum number of digits.
const DIGITS_MAX: usize = 16;
/// The number of digits from which on a number without letters is hexadecimal.
const HEX_DIGITS_MIN: usize = 12;

/// The number of an object in its row. Objects without a number have the number 0 and no successor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ObjectNumber {
    /// The digits, four bits each.
    digits: u64,
    is_hex: bool,
    has_next: bool,
}

impl ObjectNumber {
    /// Returns the number in a name, and the range of its digits; without a number, the range is
    /// empty and at the end.
    pub(crate) fn of(name: &[u8]) -> (Self, Range<usize>) {
        let hex = digits_at_end(name, |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let is_word = |at: usize| at > 0 && name[at - 1].is_ascii_alphanumeric();
        let decimal = digits_at_end(name, |byte| byte.is_ascii_digit());
        // Letters count as digits only if the number is not the end of a word and has another
        // digit.
        let is_hex_run = !is_word(hex) && name[hex..].iter().any(u8::is_ascii_digit);
        let start = if is_hex_run { hex } else { decimal };
        let text = &name[start..];
        if text.is_empty() || text.len() > DIGITS_MAX {
            return (Self::default(), name.len()..name.len());
        }
        let digit = |byte: &u8| u64::from(if byte.is_ascii_digit() { byte - b'0' } else { byte - b'a' + 10 });
        let digits = text.iter().fold(0, |digits, byte| digits << 4 | digit(byte));
        let is_hex = text.len() >= HEX_DIGITS_MIN || has_letters(digits);
        (Self { digits, is_hex, has_next: true }, start..name.len())
    }

    /// Returns whether the object with the number `next` follows this one, in decimal or in
    /// hexadecimal.
    pub(crate) fn precedes(self, next: Self) -> bool {
        let hex = || self.digits.checked_add(1) == Some(next.digits);
        self.has_next && next.has_next && (hex() || decimal_after(self.digits) == Some(next.digits))
    }

    /// Returns the number that follows.
    pub(crate) fn next(self) -> Option<Self> {
        let digits = if self.is_hex { self.digits.checked_add(1) } else { decimal_after(self.digits) };
        digits.filter(|_| self.has_next).map(|digits| Self { digits, ..self })
    }

    /// Returns `name`, whose digits are at `place`, with this number instead.
    pub(crate) fn in_place_of(self, name: &[u8], place: Range<usize>) -> Vec<u8> {
        let width = place.len();
        let mut renamed = name[..place.start].to_vec();
        renamed.extend_from_slice(format!("{:0width$x}", self.digits).as_bytes());
        renamed.extend_from_slice(&name[place.end..]);
        renamed
    }
}

/// Returns the start of the trailing digits of `name`.
fn digits_at_end(name: &[u8], is_digit: impl Fn(u8) -> bool) -> usize {
    name.iter().rposition(|byte| !is_digit(*byte)).map_or(0, |at| at + 1)
}

fn nibbles(digits: u64) -> impl Iterator<Item = u64> {
    (0..16).map(move |nth| digits >> (4 * nth) & 15)
}

fn has_letters(digits: u64) -> bool {
    nibbles(digits).any(|digit| digit > 9)
}

/// Returns the digits of the next number in decimal; `None` if these are not decimal digits.
fn decimal_after(digits: u64) -> Option<u64> {
    if has_letters(digits) {
        return None;
    }
    let nines = nibbles(digits).take_while(|digit| *digit == 9).count();
    (nines < DIGITS_MAX).then(|| ((digits >> (4 * nines)) + 1) << (4 * nines))
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn next(name: &str) -> Option<String> {
        let (number, place) = ObjectNumber::of(name.as_bytes());
        let renamed = number.next()?.in_place_of(name.as_bytes(), place);
        Some(String::from_utf8(renamed).unwrap())
    }

    #[test]
    fn objects_follow_by_their_numbers() {
        let pairs = [
            ("disk.00000012", "disk.00000013"),
            ("disk.00000019", "disk.00000020"),
            ("disk.0000001f", "disk.00000020"),
            ("disk.9", "disk.10"),
            ("disk99", "disk100"),
            ("7", "8"),
            ("rbd_data.5e8d238e1f29.0000000000000019", "rbd_data.5e8d238e1f29.000000000000001a"),
            ("rb.0.1.00000000000f", "rb.0.1.000000000010"),
            ("beef12", "beef13"),
            ("1deadbeef9", "1deadbeefa"),
            ("x-0a", "x-0b"),
        ];
        for (name, after) in pairs {
            assert_eq!(next(name).as_deref(), Some(after));
            let (number, following) =
                (ObjectNumber::of(name.as_bytes()).0, ObjectNumber::of(after.as_bytes()).0);
            assert!(number.precedes(following) && !following.precedes(number), "{name}");
        }
    }

    #[test]
    fn both_readings_of_a_number_are_recognised() {
        let of = |name: &str| ObjectNumber::of(name.as_bytes()).0;
        assert!(of("v.09").precedes(of("v.10")) && of("v.09").precedes(of("v.0a")));
        assert!(of("v.0000000000000009").precedes(of("v.000000000000000a")));
        assert!(!of("v.09").precedes(of("v.11")) && !of("v.09").precedes(of("v.09")));
    }

    #[test]
    fn names_without_a_number_have_no_successor() {
        for name in ["", "disk", "face", "a1b2c3d4e5f60718293a4b5c", "x.99999999999999999"] {
            assert_eq!(next(name), None, "{name}");
            let (number, place) = ObjectNumber::of(name.as_bytes());
            assert!(place.is_empty() && place.end == name.len() && !number.precedes(number));
        }
        assert_eq!(next("x.ffffffffffffffff"), None);
    }
}
