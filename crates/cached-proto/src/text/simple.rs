//! Commands of one line with at most one key: `delete`, `incr`, `decr`, `touch`, `flush_all`,
//! `verbosity`; administrative commands; and short replies.

use super::store::Words;
use super::{Decoded, Request, Tokens};
use crate::limits::KEY_LEN_MAX;
use crate::reply::{self, unless};
use crate::{number, scan};

/// `delete key [noreply]`. Further words are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delete<'a> {
    /// The key, 1 to 250 bytes.
    pub key: &'a [u8],
    /// Send nothing.
    pub noreply: bool,
}

/// `incr key delta [noreply]`, `decr key delta [noreply]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic<'a> {
    /// The key, 1 to 250 bytes.
    pub key: &'a [u8],
    /// The amount.
    pub delta: u64,
    /// Whether to decrement, stopping at 0; an increment wraps at 2^64.
    pub decrement: bool,
    /// Send nothing.
    pub noreply: bool,
}

/// `touch key exptime [noreply]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch<'a> {
    /// The key, 1 to 250 bytes.
    pub key: &'a [u8],
    /// Expiry as the client sent it.
    pub exptime: i32,
    /// Send nothing.
    pub noreply: bool,
}

/// `flush_all [delay] [noreply]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushAll {
    /// Seconds (or, above 30 days, Unix time) until all present items expire; 0 or less means now.
    ///
    /// `None` means a malformed delay: reply with [`reply::INVALID_EXPTIME`], or with
    /// [`reply::FLUSH_NOT_ALLOWED`] if that applies.
    pub delay: Option<i32>,
    /// Send nothing.
    pub noreply: bool,
}

/// `flush_prefix prefix [noreply]`, which memcached does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushPrefix<'a> {
    /// The prefix, 1 to 250 bytes.
    pub prefix: &'a [u8],
    /// Send nothing.
    pub noreply: bool,
}

/// `verbosity level [noreply]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verbosity {
    /// The number of `v`s, as for `-v`.
    pub level: u32,
    /// Send nothing.
    pub noreply: bool,
}

/// The line of a command with a key and up to one argument.
struct Keyed<'a> {
    key: &'a [u8],
    argument: &'a [u8],
    noreply: bool,
}

/// Splits a line with a key and, if `argument` is set, one more word. The error is the reply.
fn keyed(text: &[u8], argument: bool) -> Result<Keyed<'_>, &'static [u8]> {
    let mut words = Words { text, at: scan::word_len(text), count: 1 };
    let key = words.next().ok_or(reply::BAD_FORMAT)?;
    let next = words.next();
    if argument && next.is_none() {
        return Err(reply::BAD_FORMAT);
    }
    let noreply = words.noreply(next.unwrap_or(key));
    let (key, argument) = (words.of(key), next.map_or(&b""[..], |word| words.of(word)));
    if key.len() > KEY_LEN_MAX {
        return Err(unless(noreply, reply::BAD_FORMAT));
    }
    Ok(Keyed { key, argument, noreply })
}

fn done<'a>(request: Result<Request<'a>, &'static [u8]>, line_len: usize) -> Decoded<'a> {
    match request {
        Ok(request) => Decoded::Request { request, consumed: line_len },
        Err(words) => Decoded::refused(words, line_len),
    }
}

pub(super) fn decode_delete<'a>(text: &'a [u8], line_len: usize) -> Decoded<'a> {
    let delete = |Keyed { key, noreply, .. }| Request::Delete(Delete { key, noreply });
    done(keyed(text, false).map(delete), line_len)
}

pub(super) fn decode_arithmetic<'a>(text: &'a [u8], decrement: bool, line_len: usize) -> Decoded<'a> {
    let request = keyed(text, true).and_then(|Keyed { key, argument, noreply }| {
        let delta = number::token_u64(argument).ok_or(unless(noreply, reply::INVALID_DELTA))?;
        Ok(Request::Arithmetic(Arithmetic { key, delta, decrement, noreply }))
    });
    done(request, line_len)
}

pub(super) fn decode_touch<'a>(text: &'a [u8], line_len: usize) -> Decoded<'a> {
    let request = keyed(text, true).and_then(|Keyed { key, argument, noreply }| {
        let exptime = number::token_i32(argument).ok_or(unless(noreply, reply::INVALID_EXPTIME))?;
        Ok(Request::Touch(Touch { key, exptime, noreply }))
    });
    done(request, line_len)
}

pub(super) fn decode_flush_all<'a>(tokens: Tokens<'a>, noreply: bool, line_len: usize) -> Decoded<'a> {
    let bare = if noreply { 2 } else { 1 };
    let delay = match tokens.get(1) {
        Some(delay) if tokens.len() != bare => number::token_i32(delay),
        _ => Some(0),
    };
    Decoded::Request { request: Request::FlushAll(FlushAll { delay, noreply }), consumed: line_len }
}

/// Unlike `flush_all`, this command has no delay: with more words, the command is an error rather
/// than an immediate flush.
pub(super) fn decode_flush_prefix<'a>(tokens: Tokens<'a>, noreply: bool, line_len: usize) -> Decoded<'a> {
    let words = if noreply { 3 } else { 2 };
    match tokens.get(1) {
        Some(prefix) if tokens.len() == words && prefix.len() <= KEY_LEN_MAX => {
            let request = Request::FlushPrefix(FlushPrefix { prefix, noreply });
            Decoded::Request { request, consumed: line_len }
        }
        _ => Decoded::refused(reply::BAD_FORMAT, line_len),
    }
}

pub(super) fn decode_verbosity<'a>(tokens: Tokens<'a>, noreply: bool, line_len: usize) -> Decoded<'a> {
    match tokens.get(1).and_then(number::token_u32) {
        Some(level) => {
            Decoded::Request { request: Request::Verbosity(Verbosity { level, noreply }), consumed: line_len }
        }
        None => Decoded::refused(unless(noreply, reply::BAD_FORMAT), line_len),
    }
}

/// Appends the new number, the reply to `incr` and `decr`.
pub fn encode_number(out: &mut Vec<u8>, number: u64) {
    number::write_u64(out, number);
    out.extend_from_slice(b"\r\n");
}

/// Appends `VERSION …`.
pub fn encode_version(out: &mut Vec<u8>, version: &str) {
    out.extend_from_slice(b"VERSION ");
    out.extend_from_slice(version.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends `STAT name value`; [`reply::END`] follows the last.
pub fn encode_stat(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.reserve(name.len() + value.len() + 8);
    out.extend_from_slice(b"STAT ");
    out.extend_from_slice(name);
    out.push(b' ');
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

// Administrative commands, split into words that the server interprets. Most of them compare words
// by prefix (`stats r` resets), with [`Tokens::is_prefix_of`]. The server knows which verbs exist
// in its build and are enabled; for the others it replies [`reply::ERROR`], unless `noreply`.

/// An administrative command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admin<'a> {
    /// The verb.
    pub verb: Verb,
    /// All words of the line; word 0 is the verb itself.
    pub tokens: Tokens<'a>,
    /// Whether to suppress all replies, including errors. It is always false for [`Verb::Watch`].
    pub noreply: bool,
}

/// The verb of an administrative command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `cache_memlimit MB`
    CacheMemlimit,
    /// `config …`, from clients that discover the nodes of a cluster.
    Config,
    /// `debugitem …`, in debug builds of memcached.
    DebugItem,
    /// `debugtime …`, in debug builds of memcached.
    DebugTime,
    /// `extstore …`
    Extstore,
    /// `lru …`
    Lru,
    /// `lru_crawler …`
    LruCrawler,
    /// `misbehave`, in debug builds of memcached.
    Misbehave,
    /// `refresh_certs`, in builds with TLS.
    RefreshCerts,
    /// `shutdown [graceful]`
    Shutdown,
    /// `slabs …`
    Slabs,
    /// `watch …`
    Watch,
}

/// Decodes `watch …`, the only administrative command that is recognised by the text before the
/// first space and that has no `noreply`.
pub(super) fn decode_watch<'a>(text: &'a [u8], line_len: usize) -> Decoded<'a> {
    let admin = Admin { verb: Verb::Watch, tokens: Tokens::split(text), noreply: false };
    Decoded::Request { request: Request::Admin(admin), consumed: line_len }
}

/// Decodes a line whose verb is not a data command.
pub(crate) fn decode_unknown<'a>(text: &'a [u8], line_len: usize) -> Decoded<'a> {
    let tokens = Tokens::split(text);
    let (Some(first), Some(last)) = (tokens.get(0), tokens.iter().last()) else {
        return Decoded::refused(reply::ERROR, line_len);
    };
    let noreply = last == b"noreply";
    let verb = match first {
        b"flush_all" => return decode_flush_all(tokens, noreply, line_len),
        b"flush_prefix" => return decode_flush_prefix(tokens, noreply, line_len),
        b"verbosity" => return decode_verbosity(tokens, noreply, line_len),
        b"cache_memlimit" => Verb::CacheMemlimit,
        b"config" => Verb::Config,
        b"debugitem" => Verb::DebugItem,
        b"debugtime" => Verb::DebugTime,
        b"extstore" => Verb::Extstore,
        b"lru" => Verb::Lru,
        b"lru_crawler" => Verb::LruCrawler,
        b"misbehave" => Verb::Misbehave,
        b"refresh_certs" => Verb::RefreshCerts,
        b"shutdown" => Verb::Shutdown,
        b"slabs" => Verb::Slabs,
        // This is an HTTP request, from a browser or from an attacker who makes a browser send
        // requests to this port.
        _ if tokens.len() > 1 && last.starts_with(b"HTTP/") => return Decoded::Close,
        _ => return Decoded::refused(unless(noreply, reply::ERROR), line_len),
    };
    Decoded::Request { request: Request::Admin(Admin { verb, tokens, noreply }), consumed: line_len }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;
    use crate::text::decode;

    fn request(input: &str) -> Request<'_> {
        match decode(input.as_bytes(), 0, &Limits::DEFAULT) {
            Decoded::Request { request, consumed } => {
                assert_eq!(consumed, input.len());
                request
            }
            other => panic!("{input:?}: {other:?}"),
        }
    }

    fn refusal(input: &str) -> &'static [u8] {
        match decode(input.as_bytes(), 0, &Limits::DEFAULT) {
            Decoded::Refused(refused) => {
                assert_eq!((refused.consumed, refused.swallow, refused.close), (input.len(), 0, false));
                refused.reply
            }
            other => panic!("{input:?}: {other:?}"),
        }
    }

    #[test]
    fn delete_ignores_words_after_its_key() {
        for (line, noreply) in
            [("k", false), ("k 0", false), ("k foo bar", false), ("k noreply", true), ("k 0 noreply", true)]
        {
            assert_eq!(
                request(&format!("delete {line}\r\n")),
                Request::Delete(Delete { key: b"k", noreply })
            );
        }
        assert_eq!(refusal("delete\r\n"), reply::BAD_FORMAT);
        let key = "k".repeat(251);
        assert_eq!(refusal(&format!("delete {key}\r\n")), reply::BAD_FORMAT);
        assert_eq!(refusal(&format!("delete {key} noreply\r\n")), reply::SILENT);
    }

    #[test]
    fn incr_and_decr() {
        let up = Arithmetic { key: b"n", delta: 3, decrement: false, noreply: false };
        assert_eq!(request("incr n 3\r\n"), Request::Arithmetic(up));
        let down = Arithmetic { decrement: true, noreply: true, delta: u64::MAX, ..up };
        assert_eq!(request("decr n 18446744073709551615 noreply\r\n"), Request::Arithmetic(down));
        assert_eq!(refusal("incr n\r\n"), reply::BAD_FORMAT);
        for bad in ["-1", "abc", "1x", "+1", "18446744073709551616"] {
            assert_eq!(refusal(&format!("incr n {bad}\r\n")), reply::INVALID_DELTA);
        }
        assert_eq!(refusal("incr n x noreply\r\n"), reply::SILENT);
        assert_eq!(refusal("incr n noreply\r\n"), reply::SILENT);
    }

    #[test]
    fn touch_takes_a_signed_time() {
        assert_eq!(
            request("touch k -1\r\n"),
            Request::Touch(Touch { key: b"k", exptime: -1, noreply: false })
        );
        assert_eq!(
            request("touch k - noreply\r\n"),
            Request::Touch(Touch { key: b"k", exptime: 0, noreply: true })
        );
        assert_eq!(refusal("touch k\r\n"), reply::BAD_FORMAT);
        assert_eq!(refusal("touch k abc\r\n"), reply::INVALID_EXPTIME);
        assert_eq!(refusal("touch k abc noreply\r\n"), reply::SILENT);
    }

    #[test]
    fn flush_prefix_has_one_prefix_and_no_delay() {
        let flush = |prefix, noreply| Request::FlushPrefix(FlushPrefix { prefix, noreply });
        assert_eq!(request("flush_prefix user:\r\n"), flush(b"user:", false));
        assert_eq!(request("  flush_prefix  user: noreply\r\n"), flush(b"user:", true));
        assert_eq!(request("flush_prefix noreply noreply\r\n"), flush(b"noreply", true));
        let long = "k".repeat(250);
        assert_eq!(request(&format!("flush_prefix {long}\r\n")), flush(long.as_bytes(), false));
        for line in ["flush_prefix", "flush_prefix noreply", "flush_prefix a 10", "flush_prefix a 0 noreply"]
        {
            let line = format!("{line}\r\n");
            let refused = Decoded::refused(reply::BAD_FORMAT, line.len());
            assert_eq!(decode(line.as_bytes(), 0, &Limits::DEFAULT), refused, "{line}");
        }
        let line = format!("flush_prefix {long}k noreply\r\n");
        let refused = Decoded::refused(reply::BAD_FORMAT, line.len());
        assert_eq!(decode(line.as_bytes(), 0, &Limits::DEFAULT), refused);
    }

    #[test]
    fn flush_all_leaves_a_bad_delay_to_the_server() {
        let flush = |delay, noreply| Request::FlushAll(FlushAll { delay, noreply });
        assert_eq!(request("flush_all\r\n"), flush(Some(0), false));
        assert_eq!(request("  flush_all  \r\n"), flush(Some(0), false));
        assert_eq!(request("flush_all noreply\r\n"), flush(Some(0), true));
        assert_eq!(request("flush_all 10\r\n"), flush(Some(10), false));
        assert_eq!(request("flush_all -1 noreply\r\n"), flush(Some(-1), true));
        assert_eq!(request("flush_all x\r\n"), flush(None, false));
        assert_eq!(request("flush_all noreply noreply\r\n"), flush(None, true));
    }

    #[test]
    fn verbosity_needs_a_level() {
        assert_eq!(request("verbosity 1\r\n"), Request::Verbosity(Verbosity { level: 1, noreply: false }));
        assert_eq!(
            request("verbosity 0 noreply\r\n"),
            Request::Verbosity(Verbosity { level: 0, noreply: true })
        );
        for bad in ["verbosity\r\n", "verbosity x\r\n", "verbosity -1\r\n"] {
            assert_eq!(refusal(bad), reply::BAD_FORMAT);
        }
        assert_eq!(refusal("verbosity noreply\r\n"), reply::SILENT);
    }

    #[test]
    fn version_and_quit_ignore_their_arguments() {
        assert_eq!(request("version\r\n"), Request::Version);
        assert_eq!(request("version noreply\r\n"), Request::Version);
        assert_eq!(request("quit\n"), Request::Quit);
        assert_eq!(request("quit foo\r\n"), Request::Quit);
        assert_eq!(refusal("quitx\r\n"), reply::ERROR);
    }

    #[test]
    fn small_replies() {
        let mut out = Vec::new();
        encode_number(&mut out, 18_446_744_073_709_551_615);
        encode_version(&mut out, "1.6.45");
        encode_stat(&mut out, b"pid", b"1");
        assert_eq!(out, b"18446744073709551615\r\nVERSION 1.6.45\r\nSTAT pid 1\r\n");
    }

    fn decoded(input: &[u8]) -> Decoded<'_> {
        decode(input, 0, &Limits::DEFAULT)
    }

    fn admin(input: &[u8]) -> Admin<'_> {
        match decoded(input) {
            Decoded::Request { request: Request::Admin(admin), .. } => admin,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lines_are_split_into_words() {
        let slabs = admin(b"slabs  reassign 1 -5 \r\n");
        assert_eq!((slabs.verb, slabs.tokens.len(), slabs.noreply), (Verb::Slabs, 4, false));
        assert_eq!(slabs.tokens.get(3), Some(&b"-5"[..]));
        assert_eq!(slabs.tokens.get(4), None);
        assert!(slabs.tokens.is_prefix_of(1, "reassign"));
        assert!(admin(b"lru m flat\r\n").tokens.is_prefix_of(1, "mode"));
        assert!(!admin(b"lru model\r\n").tokens.is_prefix_of(1, "mode"));
        assert!(!admin(b"lru\r\n").tokens.is_prefix_of(1, "mode"));
        assert!(admin(b"  shutdown noreply\r\n").noreply);
        assert_eq!(admin(b"lru_crawler metadump all\n").verb, Verb::LruCrawler);
        let many = [&b"slabs"[..], &b" x".repeat(50), b"\r\n"].concat();
        assert_eq!(admin(&many).tokens.len(), 23);
    }

    #[test]
    fn watch_and_stats_have_no_noreply() {
        let watch = admin(b"watch noreply\r\n");
        assert_eq!((watch.verb, watch.noreply, watch.tokens.len()), (Verb::Watch, false, 2));
        assert_eq!(decoded(b" watch\r\n"), Decoded::refused(reply::ERROR, 8));
        let Decoded::Request { request: Request::Stats(tokens), .. } = decoded(b"stats r\r\n") else {
            panic!("not stats");
        };
        assert!(tokens.is_prefix_of(1, "reset"));
        assert_eq!(format!("{tokens:?}"), r#"["stats", "r"]"#);
    }

    #[test]
    fn unknown_commands_are_errors() {
        assert_eq!(decoded(b"bogus\r\n"), Decoded::refused(reply::ERROR, 7));
        assert_eq!(decoded(b"bogus noreply\r\n"), Decoded::refused(reply::SILENT, 15));
        assert_eq!(decoded(b"     \r\n"), Decoded::refused(reply::ERROR, 7));
        assert_eq!(decoded(b"slabs\tx\r\n"), Decoded::refused(reply::ERROR, 9));
        assert_eq!(decoded(b"GET / HTTP/1.1\r\n"), Decoded::Close);
        assert_eq!(decoded(b"HTTP/1.1\r\n"), Decoded::refused(reply::ERROR, 10));
    }
}
