//! Seeded random command sequences for the comparison of two servers, and the normalization of their replies.
//!
//! A sequence consists of batches. A batch is sent as a whole, in random fragments, and ends with a
//! fence that separates its replies from those of the next batch. Values are letters and digits, so
//! that a reply can be split by lines and blanks. Requests whose result is random in 1.6.45 are not
//! generated: short times to live, counters that become shorter (padded or not), and other changes
//! to a counter's item, which `incr` keeps or not (it creates a new item while a reply still refers
//! to the old one).

use crate::frame::{OPS, Request, op};
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use std::collections::HashMap;

/// The fence of a text batch.
pub const TEXT_FENCE: &[u8] = b"mn\r\n";

/// The opaque value of the NOOP that ends a binary batch.
pub const BINARY_FENCE: u32 = 0x0fe1_ce00;

/// A generated request: bytes with a placeholder for a CAS value, which differs between the
/// servers.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The bytes before the CAS value, or all bytes.
    pub head: Vec<u8>,
    /// The key whose CAS value follows, and the form of this value.
    pub cas: Option<(String, CasForm)>,
    /// The bytes after the CAS value.
    pub tail: Vec<u8>,
}

/// The version of the reference server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// memcached 1.6.45.
    Full,
    /// Debian's 1.6.18: requests with different replies are not generated. It replies `ERROR` to
    /// too few arguments, has fewer flags in `ms` and `md`, and has one message for all invalid
    /// flags.
    Debian,
}

/// The format of a CAS value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CasForm {
    /// Decimal digits.
    Text,
    /// Eight bytes, most significant first.
    Binary,
}

/// The CAS values that one server has returned, by key.
pub type CasValues = HashMap<String, u64>;

impl Generated {
    fn plain(bytes: impl Into<Vec<u8>>) -> Self {
        Self { head: bytes.into(), cas: None, tail: Vec::new() }
    }

    /// Returns the bytes for one server. If a key has no known CAS value, they contain a wrong one.
    pub fn bytes(&self, returned: &CasValues) -> Vec<u8> {
        const UNKNOWN_CAS: u64 = 0x7fff_ffff_0000;
        let mut out = self.head.clone();
        if let Some((key, form)) = &self.cas {
            let cas = returned.get(key).copied().unwrap_or(UNKNOWN_CAS);
            match form {
                CasForm::Text => out.extend(cas.to_string().bytes()),
                CasForm::Binary => out.extend(cas.to_be_bytes()),
            }
        }
        out.extend(&self.tail);
        out
    }
}

const WORD_KEYS: &[&str] = &["a", "b", "key", "a_rather_long_key_with_a_number_0123456789", "zz", "Zm9v"];
const COUNTER_KEYS: &[&str] = &["n1", "n2", "n3"];
const EXPTIMES: &[&str] = &["0", "0", "0", "1000", "100000", "2592000", "2147483647", "-1"];

/// Returns every generated key, and the decoded form of the base64 key.
pub fn all_keys() -> impl Iterator<Item = &'static str> {
    WORD_KEYS.iter().chain(COUNTER_KEYS).copied().chain(["foo"])
}

/// Returns a key, and whether it is the key of a counter.
fn key(random: &mut SmallRng) -> (&'static str, bool) {
    let is_counter = random.random_bool(0.25);
    let keys = if is_counter { COUNTER_KEYS } else { WORD_KEYS };
    (keys.choose(random).expect("keys"), is_counter)
}

/// Returns several keys of both kinds, separated by blanks.
fn keys(random: &mut SmallRng, count: usize) -> String {
    (0..count).map(|_| key(random).0).collect::<Vec<_>>().join(" ")
}

fn value(random: &mut SmallRng, is_counter: bool) -> String {
    if is_counter {
        // The number is chosen so that it keeps its length after any addition or subtraction.
        return format!("{}", random.random_range(500_000_000_000u64..600_000_000_000));
    }
    let len = *[0, 1, 2, 10, 100, 1000, 3000].choose(random).expect("lengths");
    if random.random_bool(0.3) { "x".repeat(len) } else { word(random, len) }
}

fn word(random: &mut SmallRng, len: usize) -> String {
    (0..len).map(|_| char::from(*b"abcXYZ_-".choose(random).expect("letters"))).collect()
}

fn noreply(random: &mut SmallRng) -> &'static str {
    if random.random_bool(0.1) { " noreply" } else { "" }
}

/// Returns a classic text request.
pub fn text(random: &mut SmallRng, dialect: Dialect) -> Generated {
    let ((k, is_counter), exptime) = (key(random), *EXPTIMES.choose(random).expect("times"));
    let flags: u32 = *[0, 1, 5, 65_535, u32::MAX].choose(random).expect("flags");
    let quiet = noreply(random);
    match random.random_range(0..100) {
        0..25 => {
            let commands: &[&str] = match is_counter {
                true => &["set", "set", "add", "replace"],
                false => &["set", "set", "add", "replace", "append", "prepend"],
            };
            let (command, value) = (commands.choose(random).expect("commands"), value(random, is_counter));
            Generated::plain(format!("{command} {k} {flags} {exptime} {}{quiet}\r\n{value}\r\n", value.len()))
        }
        25..32 => {
            let value = value(random, is_counter);
            Generated {
                head: format!("cas {k} {flags} {exptime} {} ", value.len()).into_bytes(),
                cas: Some((k.to_owned(), CasForm::Text)),
                tail: format!("{quiet}\r\n{value}\r\n").into_bytes(),
            }
        }
        32..60 => {
            let command = *["get", "gets", "gets"].choose(random).expect("commands");
            let count = random.random_range(1..6);
            Generated::plain(format!("{command} {}\r\n", keys(random, count)))
        }
        60..66 => {
            let command = *["gat", "gats"].choose(random).expect("commands");
            Generated::plain(format!("{command} {exptime} {}\r\n", keys(random, 2)))
        }
        66..72 => Generated::plain(format!("delete {k}{quiet}\r\n")),
        72..82 => {
            let command = *["incr", "decr"].choose(random).expect("commands");
            Generated::plain(format!("{command} {k} {}{quiet}\r\n", random.random_range(0..1000)))
        }
        82..87 => Generated::plain(format!("touch {k} {exptime}{quiet}\r\n")),
        87 => Generated::plain(format!("flush_all{quiet}\r\n")),
        88 if dialect == Dialect::Full => {
            let line = *BAD_DATA.choose(random).expect("lines");
            Generated::plain(line.to_vec())
        }
        _ => {
            let lines = match dialect {
                Dialect::Debian => BAD_LINES_EVERYWHERE,
                Dialect::Full if random.random_bool(0.5) => BAD_LINES_EVERYWHERE,
                Dialect::Full => BAD_LINES,
            };
            let line = *lines.choose(random).expect("lines");
            Generated::plain(format!("{line}\r\n"))
        }
    }
}

/// Lines that are invalid, or unusual and valid, in every version.
const BAD_LINES_EVERYWHERE: &[&str] = &[
    "set a 0 0 -1",
    "set a 0 0 abc",
    "incr n1 abc",
    "incr n1 -1",
    "decr n1 18446744073709551616",
    "what",
    "GET a",
    "touch a abc",
    "flush_all abc",
    "verbosity 0",
    "mn",
    "get  a   b ",
    "get noreply",
    "gat abc a",
    "mg a Tabc",
];

/// Lines to which older versions reply differently.
const BAD_LINES: &[&str] = &[
    "get",
    "gets",
    "gat",
    "gats",
    "gat 1",
    "set",
    "set a",
    "set a 0",
    "set a 0 0",
    "incr",
    "incr n1",
    "delete",
    "touch a",
    "delete a 5",
    "verbosity",
    "a",
    "",
    "mg",
    "ms",
    "ms a",
    "ms a abc",
    "ms a -1",
    "mg a v v",
    "mg a T",
    "   ",
    " get a",
    "stats bogus",
    "stats detail foo",
    "slabs",
    "lru",
    "lru mode",
    "shutdown",
    "ma a D",
    "md a z",
    "mg a ?",
    "me",
    "md",
    "ma",
];

/// Data blocks whose length does not match, to which older versions reply differently.
const BAD_DATA: &[&[u8]] = &[
    b"set a 0 0 3\r\nabcd\r\n",
    b"set a 0 0 1\r\nabcdefgh\r\n",
    b"ms a 2\r\nabcd\r\n",
    b"add a 0 0 5\r\nab\r\nxyz\r\n",
    b"set a abc 0 2\r\nab\r\n",
];

const MG_FLAGS: &[&str] =
    &["v", "v", "c", "f", "k", "s", "t", "q", "u", "Oabc", "T1000", "N1000", "R500", "b", "l", "P1", "L"];
const MS_FLAGS: &[&str] =
    &["k", "q", "Ox", "F5", "T0", "T1000", "ME", "MA", "MP", "MR", "MS", "I", "C", "c", "s", "b", "N100"];
const MD_FLAGS: &[&str] = &["k", "q", "Ox", "I", "T30", "C", "b", "x"];

/// Flags for counters.
const MG_COUNTER_FLAGS: &[&str] = &["v", "v", "c", "f", "k", "s", "t", "Oabc"];
const MS_COUNTER_FLAGS: &[&str] = &["k", "Ox", "F5", "T0", "T1000", "ME", "MR", "MS", "C"];
const MD_COUNTER_FLAGS: &[&str] = &["k", "Ox", "C"];
const MA_FLAGS: &[&str] =
    &["v", "t", "c", "k", "Oy", "D5", "MD", "MI", "M+", "N1000 J700000000000", "N0 J700000000000", "C"];

/// The number of leading flags that create no item.
const MA_FLAGS_WORDS: usize = 9;

/// The number of leading flags that Debian's version supports.
const MS_FLAGS_DEBIAN: usize = 12;
const MD_FLAGS_DEBIAN: usize = 5;

/// Returns a meta request.
pub fn meta(random: &mut SmallRng, dialect: Dialect) -> Generated {
    let (k, is_counter) = key(random);
    let mut flags = String::new();
    let mut cas = false;
    let debian = dialect == Dialect::Debian;
    let (command, choices) = match (random.random_range(0..20), is_counter) {
        (0..9, false) => ("mg", MG_FLAGS),
        (9..14, false) => ("ms", if debian { &MS_FLAGS[..MS_FLAGS_DEBIAN] } else { MS_FLAGS }),
        (14..17, false) => ("md", if debian { &MD_FLAGS[..MD_FLAGS_DEBIAN] } else { MD_FLAGS }),
        (0..6, true) => ("mg", MG_COUNTER_FLAGS),
        (6..10, true) => ("ms", MS_COUNTER_FLAGS),
        (10..12, true) => ("md", MD_COUNTER_FLAGS),
        (12..19, true) => ("ma", MA_FLAGS),
        // No word may become a number: it would be marked stale, and whether an increment keeps
        // marks is random.
        (17..19, false) => ("ma", &MA_FLAGS[..MA_FLAGS_WORDS]),
        _ => return Generated::plain("mn\r\n"),
    };
    let mut seen = Vec::new();
    for _ in 0..random.random_range(0..6) {
        let flag = *choices.choose(random).expect("flags");
        if seen.contains(&flag.as_bytes()[0]) && (debian || !random.random_bool(0.02)) {
            continue;
        }
        seen.push(flag.as_bytes()[0]);
        match flag {
            "C" => cas = true,
            _ => flags.push_str(&format!(" {flag}")),
        }
    }
    let value = value(random, is_counter);
    let (len, data) = match command {
        "ms" => (format!(" {}", value.len()), format!("{value}\r\n")),
        _ => (String::new(), String::new()),
    };
    let head = format!("{command} {k}{len}{flags}");
    if cas {
        // With the flag `b`, the CAS value must be that of the decoded key, which no server has
        // returned.
        let of = if seen.contains(&b'b') { "decoded" } else { k };
        Generated {
            head: format!("{head} C").into_bytes(),
            cas: Some((of.to_owned(), CasForm::Text)),
            tail: format!("\r\n{data}").into_bytes(),
        }
    } else {
        Generated::plain(format!("{head}\r\n{data}"))
    }
}

/// Returns a binary request, whose opaque is its number in the batch.
pub fn binary(random: &mut SmallRng, number: u32) -> Generated {
    let (k, is_counter) = key(random);
    let quiet = |name: &str, random: &mut SmallRng| -> u8 {
        let quiet = if random.random_bool(0.3) { "Q" } else { "" };
        op(&format!("{name}{quiet}")).expect("an operation")
    };
    let exptime: u32 = *[0, 0, 1000, 2_592_000, 1_000_000_000].choose(random).expect("times");
    let mut request = match random.random_range(0..100) {
        0..30 => {
            let name = *["SET", "SET", "ADD", "REPLACE"].choose(random).expect("operations");
            let mut extras = random.random_range(0..5u32).to_be_bytes().to_vec();
            extras.extend(exptime.to_be_bytes());
            Request::new(quiet(name, random)).extras(&extras).value(value(random, is_counter).as_bytes())
        }
        30..38 if !is_counter => {
            let name = *["APPEND", "PREPEND"].choose(random).expect("operations");
            Request::new(quiet(name, random)).value(value(random, false).as_bytes())
        }
        30..60 => {
            let name = *["GET", "GETK"].choose(random).expect("operations");
            Request::new(quiet(name, random))
        }
        60..70 => {
            let name = *["GAT", "GATK"].choose(random).expect("operations");
            Request::new(quiet(name, random)).extras(&exptime.to_be_bytes())
        }
        70..75 => Request::new(op("TOUCH").expect("TOUCH")).extras(&exptime.to_be_bytes()),
        75..82 => Request::new(quiet("DELETE", random)),
        82..93 => {
            let name = *["INCR", "DECR"].choose(random).expect("operations");
            let mut extras = random.random_range(0..1000u64).to_be_bytes().to_vec();
            extras.extend(700_000_000_000u64.to_be_bytes());
            // A miss creates only counters.
            let made = if is_counter { [0u32, 1000, u32::MAX] } else { [u32::MAX; 3] };
            extras.extend(made.choose(random).expect("times").to_be_bytes());
            Request::new(quiet(name, random)).extras(&extras)
        }
        93 => Request::new(quiet("FLUSH", random)),
        94..97 => Request::new(op("NOOP").expect("NOOP")),
        97 => Request::new(op("STAT").expect("STAT")),
        _ => Request::new(0x55),
    };
    match OPS.iter().find(|(_, code)| *code == request.op) {
        Some(("FLUSH" | "FLUSHQ" | "NOOP", _)) | None => {}
        Some(("STAT", _)) => request.key = b"bogus".to_vec(),
        Some(_) => request.key = k.as_bytes().to_vec(),
    }
    request.opaque = Some(number);
    let bytes = request.bytes();
    // The CAS field is at the end of the header.
    let takes_cas = (0x01..=0x06).contains(&request.op) || (0x0e..=0x0f).contains(&request.op);
    if takes_cas && random.random_bool(0.15) {
        return Generated {
            head: bytes[..16].to_vec(),
            cas: Some((k.to_owned(), CasForm::Binary)),
            tail: bytes[24..].to_vec(),
        };
    }
    Generated::plain(bytes)
}

/// Returns a text reply with varying parts replaced; CAS values go to `returned`.
pub fn normalize_text(reply: &[u8], returned: &mut CasValues) -> Vec<u8> {
    let mut out = Vec::with_capacity(reply.len());
    for line in reply.split_inclusive(|&byte| byte == b'\n') {
        let text = String::from_utf8_lossy(line);
        let words: Vec<&str> = text.trim_end_matches(['\r', '\n']).split(' ').collect();
        match words[0] {
            "VALUE" if words.len() == 5 => {
                if let Ok(cas) = words[4].parse() {
                    returned.insert(words[1].to_owned(), cas);
                }
                out.extend(format!("{} #\r\n", words[..4].join(" ")).bytes());
            }
            "VA" | "HD" | "EN" | "NF" | "NS" | "EX" => {
                let even: Vec<String> = words.iter().map(|word| even_word(word)).collect();
                // This is a listed difference: whether an item keeps the mark of a base64 key.
                let line = even.join(" ").replace(" kfoo", " kZm9v b");
                out.extend(format!("{line}\r\n").bytes());
            }
            _ => out.extend(line),
        }
    }
    out
}

/// Replaces the digits of `c123` (any CAS value), and of `t123` and `l5` (any time), by `#`.
fn even_word(word: &str) -> String {
    let digits = word.len() > 1 && word[1..].bytes().all(|byte| byte.is_ascii_digit());
    match word.as_bytes().first() {
        Some(first @ (b'c' | b't' | b'l')) if digits => format!("{}#", char::from(*first)),
        _ => word.to_owned(),
    }
}

/// Returns binary replies in which varying parts are replaced: of a CAS value, only its presence
/// remains. The values go to `returned`, by the key to which `keys` maps an opaque.
pub fn normalize_frames(reply: &[u8], keys: &HashMap<u32, String>, returned: &mut CasValues) -> Vec<u8> {
    let mut out = Vec::with_capacity(reply.len());
    let mut rest = reply;
    while let Some(head) = rest.first_chunk::<24>() {
        let body_len = u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let opaque = u32::from_be_bytes([head[12], head[13], head[14], head[15]]);
        let cas = u64::from_be_bytes([
            head[16], head[17], head[18], head[19], head[20], head[21], head[22], head[23],
        ]);
        out.extend(&head[..16]);
        out.push(u8::from(cas != 0));
        if let (Some(key), true) = (keys.get(&opaque), cas != 0) {
            returned.insert(key.clone(), cas);
        }
        let frame_len = (24 + body_len).min(rest.len());
        out.extend(&rest[24..frame_len]);
        rest = &rest[frame_len..];
    }
    out.extend(rest);
    out
}
