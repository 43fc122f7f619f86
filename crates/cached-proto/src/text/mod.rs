//! The text protocol: one line per command, a data block after those that store.
//!
//! LF alone ends a line; a CR before it belongs to the line end. Only spaces separate words. Commands are
//! case-sensitive, and for the data commands the verb is the text before the *first* space of the line, so
//! that a leading space makes ` get k` unknown; administrative commands are recognised by their first word. A
//! line that is too short, has too few arguments or a malformed length is refused at once; another invalid
//! argument is refused with a reply unless `noreply` ends the line, and the body that follows is discarded.
//!
//! Each module has the types, the decoder and the encoders of a family of commands; [`decode_line`] chooses
//! among them.

mod admin;
pub mod auth;
mod get;
mod line;
pub mod meta;
mod simple;
mod store;
mod tokens;

pub(crate) use admin::decode as decode_unknown;
pub use admin::{Admin, Verb};
pub use get::{Get, GetCursor, encode_value, encode_value_head, first_key, plain_get, plain_gets};
pub use simple::{
    Arithmetic, Delete, FlushAll, FlushPrefix, Touch, Verbosity, encode_number, encode_stat, encode_version,
};
pub(crate) use store::value_len;
pub use store::{Store, StoreHeader, StoreVerb, TERMINATOR_LEN, check_terminator};
pub use tokens::Tokens;

use crate::limits::{LINE_LEN_MIN, Limits};
use crate::{reply, scan};

/// The result of [`decode`].
pub type Decoded<'a> = crate::Decoded<Request<'a>, BodyHeader<'a>, &'static [u8]>;

/// One whole text or meta request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// `get`, `gets`, `gat`, `gats`.
    Get(Get<'a>),
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`, with the body.
    Store(Store<'a>),
    /// `delete`.
    Delete(Delete<'a>),
    /// `incr`, `decr`.
    Arithmetic(Arithmetic<'a>),
    /// `touch`.
    Touch(Touch<'a>),
    /// `mg`.
    MetaGet(meta::Get<'a>),
    /// `ms`, with the body.
    MetaSet(meta::Set<'a>),
    /// `md`.
    MetaDelete(meta::Delete<'a>),
    /// `ma`.
    MetaArithmetic(meta::Arithmetic<'a>),
    /// `mn`: reply [`reply::META_NOOP`], and send all replies.
    MetaNoop,
    /// `me`.
    MetaDebug(meta::Debug<'a>),
    /// `flush_all`.
    FlushAll(FlushAll),
    /// `flush_prefix`.
    FlushPrefix(FlushPrefix<'a>),
    /// `version`.
    Version,
    /// `quit`: close without a reply; replies that are due are sent first.
    Quit,
    /// `verbosity`.
    Verbosity(Verbosity),
    /// `stats`; token 0 is the verb itself. It has no `noreply`.
    Stats(Tokens<'a>),
    /// An administrative command.
    Admin(Admin<'a>),
}

/// The header of a request whose body has not arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyHeader<'a> {
    /// `set` and its like.
    Store(StoreHeader<'a>),
    /// `ms`.
    MetaSet(meta::SetHeader<'a>),
}

/// Decodes the request at the start of `input`.
///
/// `scanned` is the length that `input` had when a call returned [`Incomplete`](crate::Decoded::Incomplete)
/// (0 if none did): these bytes hold no line feed, so a long line that arrives in small pieces is not
/// searched repeatedly. A wrong value costs the correctness of this request only, never memory safety.
///
/// The rule for lines longer than 2048 bytes depends on what has arrived, as it does in memcached: such a
/// line closes the connection if its end has not arrived, and is decoded if it has.
#[inline]
pub fn decode<'a>(input: &'a [u8], scanned: usize, limits: &Limits) -> Decoded<'a> {
    if let Some(get) = get::decode_plain(input) {
        return get;
    }
    decode_line(input, scanned, limits)
}

/// Does the same as [`decode`] for input in which [`plain_get`] has found nothing. Out of line, so that
/// `decode` is small enough to inline.
pub fn decode_line<'a>(input: &'a [u8], scanned: usize, limits: &Limits) -> Decoded<'a> {
    let Some(line_len) = line::len(input, scanned) else {
        return line::unfinished(input, limits);
    };
    if line_len < LINE_LEN_MIN {
        return Decoded::refused(reply::BAD_FORMAT, line_len);
    }
    let text = line::trim_end(&input[..line_len]);
    if text.starts_with(b"get ") {
        return get::decode_get(text, 3, false, line_len);
    }
    if text.starts_with(b"set ") {
        return store::decode(StoreVerb::Set, input, line::tokenized(text), line_len);
    }
    let verb_len = scan::word_len(text);
    let verb = &text[..verb_len];
    if let [b'm', letter] = *verb {
        return meta::decode(letter, input, line::tokenized(text), line_len);
    }
    if let Some(verb) = StoreVerb::parse(verb) {
        return store::decode(verb, input, line::tokenized(text), line_len);
    }
    match verb {
        b"get" => get::decode_get(text, verb_len, false, line_len),
        b"gets" => get::decode_get(text, verb_len, true, line_len),
        b"gat" => get::decode_gat(text, verb_len, false, line_len),
        b"gats" => get::decode_gat(text, verb_len, true, line_len),
        b"delete" => simple::decode_delete(line::tokenized(text), line_len),
        b"incr" => simple::decode_arithmetic(line::tokenized(text), false, line_len),
        b"decr" => simple::decode_arithmetic(line::tokenized(text), true, line_len),
        b"touch" => simple::decode_touch(line::tokenized(text), line_len),
        b"version" => Decoded::Request { request: Request::Version, consumed: line_len },
        b"quit" => Decoded::Request { request: Request::Quit, consumed: line_len },
        b"stats" => Decoded::Request {
            request: Request::Stats(Tokens::split(line::tokenized(text))),
            consumed: line_len,
        },
        b"watch" => admin::decode_watch(line::tokenized(text), line_len),
        _ => admin::decode(line::tokenized(text), line_len),
    }
}
