//! Times in the format of signatures: `20130524T000000Z`, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

/// The length of such a text in bytes.
pub(crate) const STAMP_LEN: usize = 16;

/// Returns the current time, in seconds since 1970.
pub(crate) fn now() -> u64 {
    // If the clock is before 1970, every signature is refused.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Parses a time into seconds since 1970; `None` for any other text.
pub(crate) fn parse(text: &[u8]) -> Option<u64> {
    let [y @ .., b'T', _, _, _, _, _, _, b'Z'] = text else { return None };
    let y: &[u8; 8] = y.try_into().ok()?;
    let number = |digits: &[u8]| {
        digits
            .iter()
            .try_fold(0_u64, |sum, digit| digit.is_ascii_digit().then(|| sum * 10 + u64::from(digit - b'0')))
    };
    let (year, month, day) = (number(&y[..4])?, number(&y[4..6])?, number(&y[6..])?);
    let (hour, minute, second) = (number(&text[9..11])?, number(&text[11..13])?, number(&text[13..15])?);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || hour > 23 || minute > 59 || second > 60
    {
        return None;
    }
    let days = days_before(year, month) + day.checked_sub(1)?;
    let next = if month == 12 { days_before(year + 1, 1) } else { days_before(year, month + 1) };
    (days < next).then_some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

/// Formats a time in seconds since 1970.
pub(crate) fn format(secs: u64) -> [u8; STAMP_LEN] {
    let days = secs / 86_400;
    // The year is at most one too high, because a year has at least 365 days.
    let mut year = 1970 + days / 365;
    while days_before(year, 1) > days {
        year -= 1;
    }
    let month = (1..=12).rev().find(|month| days_before(year, *month) <= days).unwrap_or(1);
    let day = days - days_before(year, month) + 1;
    let rest = secs % 86_400;
    let mut text = *b"00000000T000000Z";
    let mut put = |at: usize, count: usize, mut value: u64| {
        for place in (at..at + count).rev() {
            text[place] = b'0' + (value % 10) as u8;
            value /= 10;
        }
    };
    put(0, 4, year);
    put(4, 2, month);
    put(6, 2, day);
    put(9, 2, rest / 3600);
    put(11, 2, rest / 60 % 60);
    put(13, 2, rest % 60);
    text
}

/// Returns the number of days from 1970 to the beginning of a month.
fn days_before(year: u64, month: u64) -> u64 {
    const BEFORE: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    let is_leap = leaps(year) > leaps(year - 1);
    let leap_days = leaps(year - 1) - leaps(1969) + u64::from(is_leap && month > 2);
    (year - 1970) * 365 + leap_days + BEFORE[(month - 1) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_written() {
        for (text, secs) in [
            ("19700101T000000Z", 0),
            ("20000229T235959Z", 951_868_799),
            ("20130524T000000Z", 1_369_353_600),
            ("20241231T235959Z", 1_735_689_599),
            ("20250101T000000Z", 1_735_689_600),
            ("21000228T120000Z", 4_107_499_200),
            ("21000301T000000Z", 4_107_542_400),
        ] {
            assert_eq!(parse(text.as_bytes()), Some(secs), "{text}");
            assert_eq!(format(secs), text.as_bytes(), "{text}");
        }
        // Each day of eight hundred years.
        for day in 0..292_194 {
            assert_eq!(parse(&format(day * 86_400 + 86_399)), Some(day * 86_400 + 86_399));
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "20130524",
            "20130524T000000",
            "20130524T000000z",
            "20130524 000000Z",
            "20130524T0000000Z",
            "20131301T000000Z",
            "20130001T000000Z",
            "20130500T000000Z",
            "20130229T000000Z",
            "21000229T000000Z",
            "20130431T000000Z",
            "20130524T240000Z",
            "20130524T006000Z",
            "19691231T000000Z",
            "+2013524T000000Z",
            "2013052٤T00000Z",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }
}
