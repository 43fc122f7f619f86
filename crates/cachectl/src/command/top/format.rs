//! Numbers, times and foreign text as people read them, as the console writes them. What is missing is a dash.

pub(super) const NONE: &str = "–";

/// Three significant digits, without an exponent.
fn digits(n: f64) -> String {
    let size = n.abs();
    if size >= 99.95 || n == 0.0 {
        format!("{n:.0}")
    } else if size >= 9.995 {
        format!("{n:.1}")
    } else {
        format!("{n:.2}")
    }
}

fn scaled(mut n: f64, base: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while n.abs() >= base * 0.9995 && unit + 1 < units.len() {
        n /= base;
        unit += 1;
    }
    let number = if unit == 0 && n.fract() == 0.0 { format!("{n}") } else { digits(n) };
    if units[unit].is_empty() { number } else { format!("{number} {}", units[unit]) }
}

fn known(n: Option<f64>, write: impl FnOnce(f64) -> String) -> String {
    n.filter(|n| n.is_finite()).map_or_else(|| NONE.to_owned(), write)
}

pub(super) fn bytes(n: u64) -> String {
    scaled(n as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

pub(super) fn count(n: u64) -> String {
    if n >= 100_000 {
        return scaled(n as f64, 1000.0, &["", "k", "M", "G", "T", "P"]);
    }
    match n / 1000 {
        0 => n.to_string(),
        thousands => format!("{thousands},{:03}", n % 1000),
    }
}

/// A number per second.
pub(super) fn rate(n: Option<f64>) -> String {
    known(n, |n| {
        let number = if n > 0.0 && n < 99.5 { digits(n) } else { count(n.round().max(0.0) as u64) };
        format!("{number}/s")
    })
}

pub(super) fn cores(n: Option<f64>) -> String {
    known(n, |n| format!("{} cores", digits(n)))
}

pub(super) fn seconds(s: Option<f64>) -> String {
    known(s, |s| match s {
        0.0 => "0 s".to_owned(),
        s if s < 1e-6 => format!("{} ns", digits(s * 1e9)),
        s if s < 0.000_999_5 => format!("{} µs", digits(s * 1e6)),
        s if s < 0.9995 => format!("{} ms", digits(s * 1e3)),
        s if s < 120.0 => format!("{} s", digits(s)),
        s => age(s),
    })
}

pub(super) fn us(n: Option<f64>) -> String {
    seconds(n.map(|n| n / 1e6))
}

pub(super) fn ms(n: u64) -> String {
    seconds(Some(n as f64 / 1e3))
}

/// Rounds down above 99.9 %, so that only all is 100 %.
pub(super) fn percent(r: Option<f64>) -> String {
    known(r, |r| {
        if r > 0.999 && r < 1.0 {
            format!("{:.2} %", (r * 10_000.0).floor() / 100.0)
        } else if r > 0.0 && r < 0.01 {
            format!("{:.2} %", r * 100.0)
        } else {
            format!("{:.1} %", r * 100.0)
        }
    })
}

/// A time span in its two largest units.
pub(super) fn age(s: f64) -> String {
    let s = s.round().max(0.0) as u64;
    let (days, hours, minutes) = (s / 86_400, s / 3600 % 24, s / 60 % 60);
    if days > 0 {
        format!("{days} d {hours} h")
    } else if hours > 0 {
        format!("{hours} h {minutes} min")
    } else if minutes > 0 {
        format!("{minutes} min {} s", s % 60)
    } else {
        format!("{s} s")
    }
}

/// The time of day in UTC; the zone of the terminal is not known here.
pub(super) fn clock(unix_ms: u64) -> String {
    let s = unix_ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
}

/// Returns foreign text with every character written out that would move others, or that would not be seen; at most
/// `longest` characters of it.
pub(super) fn printable(text: &str, longest: usize) -> String {
    let mut shown = String::new();
    let mut letters = text.chars();
    for letter in letters.by_ref().take(longest) {
        if is_plain(letter) {
            shown.push(letter);
        } else if u32::from(letter) < 256 {
            shown.push_str(&format!("\\x{:02x}", u32::from(letter)));
        } else {
            shown.push_str(&format!("\\u{{{:x}}}", u32::from(letter)));
        }
    }
    if letters.next().is_some() {
        shown.push('…');
    }
    shown
}

fn is_plain(letter: char) -> bool {
    let invisible = matches!(
        u32::from(letter),
        0xad | 0x34f
            | 0x61c
            | 0x115f..=0x1160
            | 0x17b4..=0x17b5
            | 0x180b..=0x180f
            | 0x200b..=0x200f
            | 0x2028..=0x202e
            | 0x2060..=0x206f
            | 0x2800
            | 0x3164
            | 0xd800..=0xf8ff
            | 0xfe00..=0xfe0f
            | 0xfeff
            | 0xffa0
            | 0xfff0..=0xfffb
            | 0xe0000..
    );
    !letter.is_control() && !invisible
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let sizes: Vec<_> = [0, 1023, 1024, 60_113_920, 67_108_864, u64::MAX].map(bytes).into();
        assert_eq!(sizes, ["0 B", "1023 B", "1.00 KiB", "57.3 MiB", "64.0 MiB", "16384 PiB"]);
        let counts: Vec<_> = [0, 999, 1000, 99_999, 100_000, 999_999, 4_211_231].map(count).into();
        assert_eq!(counts, ["0", "999", "1,000", "99,999", "100 k", "1.00 M", "4.21 M"]);
        let times: Vec<_> = [0.0, 3.2, 999.6, 120_000.0, 5e6, 7.3e9].map(|us_| us(Some(us_))).into();
        assert_eq!(times, ["0 s", "3.20 µs", "1.00 ms", "120 ms", "5.00 s", "2 h 1 min"]);
        assert_eq!(rate(Some(0.25)), "0.25/s");
        assert_eq!(rate(Some(10_913.4)), "10,913/s");
    }

    #[test]
    fn only_all_is_a_hundred_percent() {
        let ratios: Vec<_> = [0.0, 0.0012, 0.866, 0.99996, 1.0].map(|r| percent(Some(r))).into();
        assert_eq!(ratios, ["0.0 %", "0.12 %", "86.6 %", "99.99 %", "100.0 %"]);
        assert_eq!(percent(None), NONE);
        assert_eq!(percent(Some(f64::NAN)), NONE);
    }

    #[test]
    fn foreign_text_moves_nothing() {
        assert_eq!(printable("a\u{1b}[2J\u{202e}b\0\u{9b}1m", 20), "a\\x1b[2J\\u{202e}b\\x00\\x9b1m");
        assert_eq!(printable("größe 鍵", 20), "größe 鍵");
        assert_eq!(printable("abcdef", 3), "abc…");
    }
}
