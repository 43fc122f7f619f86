//! Expected bytes with wildcards, matched against a growing buffer.

use crate::bytes::{escape, show};
use std::collections::HashMap;
use std::fmt;

/// Returns the number of seconds by which a time to live may be below its expected value: a busy
/// machine may take as long between two commands.
const fn seconds_lost_max(expected: u64) -> u64 {
    if expected < 1000 { 15 } else { 60 }
}

/// Numbers captured from earlier replies, by name.
pub type Captures = HashMap<String, String>;

/// One part of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Exactly these bytes.
    Literal(Vec<u8>),
    /// One decimal digit.
    Digit,
    /// One or more decimal digits, captured under the name if there is one.
    Digits(Option<String>),
    /// A number that is at most this and not much less, for a time to live of which some seconds
    /// may have passed.
    AtMost(u64),
    /// One or more bytes that are neither blanks nor line ends, captured under the name if there is
    /// one.
    Word(Option<String>),
    /// Any bytes up to the next `\r\n`, which is excluded.
    Line,
    /// Complete lines, up to the first line that starts with the following literal.
    Lines,
    /// Eight bytes, not all zero: a CAS value in a binary header, captured under the name if there is one.
    Cas(Option<String>),
}

/// A sequence of pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pattern(pub Vec<Piece>);

/// The result of comparing a buffer with a pattern.
#[derive(Debug, PartialEq, Eq)]
pub enum Match {
    /// The pattern matches this many leading bytes.
    Full(usize),
    /// The buffer matches so far, but more bytes are needed.
    More,
    /// The byte at this offset does not match.
    Differs(usize),
}

impl Pattern {
    /// Returns a pattern of exactly these bytes.
    pub fn literal(bytes: &[u8]) -> Self {
        Self(vec![Piece::Literal(bytes.to_vec())])
    }

    /// Compares a buffer with the pattern; captures are set only on a full match.
    pub fn matches(&self, buffer: &[u8], captures: &mut Captures) -> Match {
        let mut at = 0;
        let mut found = Vec::new();
        for (index, piece) in self.0.iter().enumerate() {
            let rest = &buffer[at..];
            match piece {
                Piece::Literal(bytes) => {
                    // Whole slices: a long reply is compared again and again while it arrives.
                    let both = rest.len().min(bytes.len());
                    if rest[..both] != bytes[..both] {
                        let common = rest.iter().zip(bytes).take_while(|(got, want)| got == want).count();
                        return Match::Differs(at + common);
                    }
                    if both < bytes.len() {
                        return Match::More;
                    }
                    at += both;
                }
                Piece::Digit => match rest.first() {
                    Some(byte) if byte.is_ascii_digit() => at += 1,
                    Some(_) => return Match::Differs(at),
                    None => return Match::More,
                },
                Piece::Digits(name) => match run(rest, |byte| byte.is_ascii_digit()) {
                    Run::Open => return Match::More,
                    Run::Of(0) => return Match::Differs(at),
                    Run::Of(count) => {
                        if let Some(name) = name {
                            found.push((name.clone(), String::from_utf8_lossy(&rest[..count]).into_owned()));
                        }
                        at += count;
                    }
                },
                Piece::AtMost(most) => match run(rest, |byte| byte.is_ascii_digit()) {
                    Run::Open => return Match::More,
                    Run::Of(count) => {
                        let number =
                            std::str::from_utf8(&rest[..count]).ok().and_then(|text| text.parse().ok());
                        let is_near =
                            |number: u64| number <= *most && number + seconds_lost_max(*most) >= *most;
                        if !number.is_some_and(is_near) {
                            return Match::Differs(at);
                        }
                        at += count;
                    }
                },
                Piece::Word(name) => match run(rest, |byte| !matches!(byte, b' ' | b'\r' | b'\n')) {
                    Run::Open => return Match::More,
                    Run::Of(0) => return Match::Differs(at),
                    Run::Of(count) => {
                        if let Some(name) = name {
                            found.push((name.clone(), String::from_utf8_lossy(&rest[..count]).into_owned()));
                        }
                        at += count;
                    }
                },
                Piece::Line => match rest.windows(2).position(|pair| pair == b"\r\n") {
                    Some(count) => at += count,
                    None => return Match::More,
                },
                Piece::Lines => {
                    let stop = match self.0.get(index + 1) {
                        Some(Piece::Literal(bytes)) => bytes.as_slice(),
                        _ => b"",
                    };
                    match skip_lines(rest, stop) {
                        Some(count) => at += count,
                        None => return Match::More,
                    }
                }
                Piece::Cas(name) => {
                    let Some(cas) = rest.first_chunk::<8>() else { return Match::More };
                    let cas = u64::from_be_bytes(*cas);
                    if cas == 0 {
                        return Match::Differs(at);
                    }
                    if let Some(name) = name {
                        found.push((name.clone(), cas.to_string()));
                    }
                    at += 8;
                }
            }
        }
        captures.extend(found);
        Match::Full(at)
    }
}

/// Returns the length of a run of bytes of one kind, unless the run may still grow.
enum Run {
    Open,
    Of(usize),
}

fn run(bytes: &[u8], belongs: impl Fn(u8) -> bool) -> Run {
    bytes.iter().position(|&byte| !belongs(byte)).map_or(Run::Open, Run::Of)
}

/// Returns the number of bytes before the first line that begins with `stop`.
fn skip_lines(bytes: &[u8], stop: &[u8]) -> Option<usize> {
    let mut at = 0;
    while !bytes[at..].starts_with(stop) {
        at += bytes[at..].iter().position(|&byte| byte == b'\n')? + 1;
    }
    Some(at)
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for piece in &self.0 {
            match piece {
                Piece::Literal(bytes) if bytes.len() > 200 => f.write_str(&show(bytes))?,
                Piece::Literal(bytes) => f.write_str(&escape(bytes))?,
                Piece::Digit => f.write_str("{digit}")?,
                Piece::Digits(None) => f.write_str("{number}")?,
                Piece::Digits(Some(name)) => write!(f, "{{={name}}}")?,
                Piece::AtMost(most) => write!(f, "{{~{most}}}")?,
                Piece::Word(_) => f.write_str("{word}")?,
                Piece::Line => f.write_str("{any}")?,
                Piece::Lines => f.write_str("{lines}")?,
                Piece::Cas(_) => f.write_str("{8 bytes, not 0}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn try_on(pattern: &Pattern, bytes: &[u8]) -> Match {
        pattern.matches(bytes, &mut Captures::default())
    }

    #[test]
    fn literal_and_digits() {
        let pattern = Pattern(vec![
            Piece::Literal(b"VALUE k 0 1 ".to_vec()),
            Piece::Digits(Some("cas".to_owned())),
            Piece::Literal(b"\r\n".to_vec()),
        ]);
        assert_eq!(try_on(&pattern, b"VALUE"), Match::More);
        assert_eq!(try_on(&pattern, b"VALUE k 0 1 12"), Match::More);
        assert_eq!(try_on(&pattern, b"VALUE k 0 1 x"), Match::Differs(12));
        assert_eq!(try_on(&pattern, b"VALID"), Match::Differs(3));
        let mut captures = Captures::default();
        assert_eq!(pattern.matches(b"VALUE k 0 1 12\r\nx", &mut captures), Match::Full(16));
        assert_eq!(captures["cas"], "12");
    }

    #[test]
    fn lines_stop_before_the_next_literal() {
        let pattern = Pattern(vec![Piece::Lines, Piece::Literal(b"END\r\n".to_vec())]);
        assert_eq!(try_on(&pattern, b"STAT a 1\r\nSTA"), Match::More);
        assert_eq!(try_on(&pattern, b"STAT a 1\r\nEND\r\n"), Match::Full(15));
    }

    #[test]
    fn a_cas_is_not_zero() {
        let pattern = Pattern(vec![Piece::Cas(None)]);
        assert_eq!(try_on(&pattern, &[0; 8]), Match::Differs(0));
        assert_eq!(try_on(&pattern, &[0, 0, 0, 0, 0, 0, 0, 9]), Match::Full(8));
    }
}
