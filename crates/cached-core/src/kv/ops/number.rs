//! Decimal numbers in values.

/// Digits of 2^64 − 1.
pub(super) const DIGITS_MAX: usize = 20;

/// Reads a number as memcached does (`strtoull`): white space, a sign, digits, then the end, white space or
/// NUL. A negative number is taken modulo 2^64, and the result must not look negative: `-1` is none.
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

/// C's `isspace`.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Writes a number from the left; the rest of the buffer stays as it is.
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
