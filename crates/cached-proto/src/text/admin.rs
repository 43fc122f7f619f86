//! Administrative commands, split into words that the server interprets.
//!
//! Most of them compare words by prefix (`stats r` resets), with [`Tokens::is_prefix_of`]. The server knows
//! which verbs exist in its build and are enabled; to others it replies [`reply::ERROR`], unless `noreply`.

use super::{Decoded, Request, Tokens, simple};
use crate::reply::{self, unless};

/// An administrative command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admin<'a> {
    /// The verb.
    pub verb: Verb,
    /// All words of the line; word 0 is the verb itself.
    pub tokens: Tokens<'a>,
    /// Send nothing, errors included. Always false for [`Verb::Watch`].
    pub noreply: bool,
}

/// The verb of an administrative command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `cache_memlimit MB`
    CacheMemlimit,
    /// `config …`, of clients that look for the nodes of a cluster.
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

/// Decodes `watch …`, the only one that is recognised by the text before the first space, and that has no
/// `noreply`.
pub(super) fn decode_watch<'a>(text: &'a [u8], line_len: usize) -> Decoded<'a> {
    let admin = Admin { verb: Verb::Watch, tokens: Tokens::split(text), noreply: false };
    Decoded::Request { request: Request::Admin(admin), consumed: line_len }
}

/// Decodes a line whose verb is not a data command's.
pub(crate) fn decode<'a>(text: &'a [u8], line_len: usize) -> Decoded<'a> {
    let tokens = Tokens::split(text);
    let (Some(first), Some(last)) = (tokens.get(0), tokens.iter().last()) else {
        return Decoded::refused(reply::ERROR, line_len);
    };
    let noreply = last == b"noreply";
    let verb = match first {
        b"flush_all" => return simple::decode_flush_all(tokens, noreply, line_len),
        b"flush_prefix" => return simple::decode_flush_prefix(tokens, noreply, line_len),
        b"verbosity" => return simple::decode_verbosity(tokens, noreply, line_len),
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
        // A browser, or an attacker who makes one send requests to this port.
        _ if tokens.len() > 1 && last.starts_with(b"HTTP/") => return Decoded::Close,
        _ => return Decoded::refused(unless(noreply, reply::ERROR), line_len),
    };
    Decoded::Request { request: Request::Admin(Admin { verb, tokens, noreply }), consumed: line_len }
}

#[cfg(test)]
mod tests {
    use super::super::decode;
    use super::*;
    use crate::Limits;

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
