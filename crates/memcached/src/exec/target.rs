//! The node of a ring that executes a request, and the reply if that node cannot be reached.

use crate::ring::Why;
use cached_proto::binary::{self, Command, Head, Status, encode_error_text, encode_miss};
use cached_proto::meta::{self, Flag, KeyBuffer, encode_status};
use cached_proto::text::{self, BodyHeader, Get, Request, Verb};
use cached_proto::{Decoded, Limits, reply};
use std::fmt::{self, Display};

/// What a request is about, which decides where it is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target<'a> {
    /// A retrieval of one or more keys: their owners.
    Keys(Get<'a>),
    /// One key: its owner.
    Key(&'a [u8]),
    /// All items: every node.
    Every,
    /// The statistics of all nodes, of which the node that was asked makes sums.
    Sums,
    /// Nothing that differs between nodes: the node that was asked.
    Here,
    /// The node that was asked. The reply may depend on earlier requests, so these are answered
    /// first.
    Alone,
}

/// Returns the target of a text or meta request. `buffer` holds the key if it was sent as base64.
pub(crate) fn text_target<'a>(request: &Request<'a>, buffer: &'a mut KeyBuffer) -> Target<'a> {
    match request {
        Request::Get(get) => Target::Keys(*get),
        Request::Store(store) => Target::Key(store.header.key),
        Request::Delete(delete) => Target::Key(delete.key),
        Request::Arithmetic(arithmetic) => Target::Key(arithmetic.key),
        Request::Touch(touch) => Target::Key(touch.key),
        Request::MetaGet(get) => Target::Key(get.key.bytes(buffer)),
        Request::MetaSet(set) => Target::Key(set.header.key.bytes(buffer)),
        Request::MetaDelete(delete) => Target::Key(delete.key.bytes(buffer)),
        Request::MetaArithmetic(arithmetic) => Target::Key(arithmetic.key.bytes(buffer)),
        Request::MetaDebug(debug) => Target::Key(debug.key.bytes(buffer)),
        Request::FlushAll(_) | Request::FlushPrefix(_) => Target::Every,
        // The nodes of a test share one time.
        Request::Admin(admin) if admin.verb == Verb::DebugTime => match admin.tokens.get(1) {
            Some(word) if word == b"p" || word == b"r" || word.last().is_some_and(u8::is_ascii_digit) => {
                Target::Every
            }
            _ => Target::Alone,
        },
        Request::Stats(tokens) if tokens.get(1) == Some(b"cluster") => Target::Sums,
        Request::MetaNoop | Request::Version | Request::Verbosity(_) => Target::Here,
        Request::Stats(_) | Request::Admin(_) | Request::Quit => Target::Alone,
    }
}

/// Returns the key of a request whose value has not arrived completely. `buffer` holds the key if it
/// was sent as base64.
pub(crate) fn body_key<'a>(header: &BodyHeader<'a>, buffer: &'a mut KeyBuffer) -> &'a [u8] {
    match header {
        BodyHeader::Store(header) => header.key,
        BodyHeader::MetaSet(header) => header.key.bytes(buffer),
    }
}

/// Returns the target of a binary request.
pub(crate) fn binary_target<'a>(request: &binary::Request<'a>) -> Target<'a> {
    match &request.command {
        Command::Get { key, .. } | Command::Touch { key, .. } | Command::Delete { key } => Target::Key(key),
        Command::Store(store) => Target::Key(store.header.key),
        Command::Arithmetic(arithmetic) => Target::Key(arithmetic.key),
        Command::Flush { .. } => Target::Every,
        Command::Stat { key } if *key == b"cluster" => Target::Sums,
        Command::Noop | Command::Version => Target::Here,
        Command::Stat { .. } | Command::Quit => Target::Alone,
    }
}

/// The text of an error.
struct Reason<'a> {
    node: &'a str,
    why: Why,
    /// The command, if every node executes it.
    every: Option<&'static str>,
}

impl Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reason { node, why, every } = self;
        match (every, why) {
            (Some(command), Why::Away | Why::NotMine(_) | Why::Unready) => {
                write!(f, "{command} has not reached node {node}")
            }
            (_, Why::Lost) => {
                write!(f, "the connection to node {node} was lost; the request may have been executed")
            }
            (None, Why::Away) => write!(f, "node {node} is away"),
            (None, Why::NotMine(version)) => write!(f, "node {node} has another map (version {version})"),
            (None, Why::Unready) => write!(f, "the key's slot moves, or node {node} is still preparing it"),
        }
    }
}

/// Appends the reply to a request that the node called `node` has not answered. `own` has the bytes
/// of the request, or those before its value. A read misses, which a client of a cache must expect
/// at any time; all other requests fail.
#[cold]
pub(crate) fn away(out: &mut Vec<u8>, is_binary: bool, own: &[u8], node: &str, why: Why) {
    if is_binary { binary_away(out, own, node, why) } else { text_away(out, own, node, why) }
}

fn text_away(out: &mut Vec<u8>, own: &[u8], node: &str, why: Why) {
    let (mut noreply, mut every) = (false, None);
    match text::decode(own, 0, &Limits::DEFAULT) {
        Decoded::Request { request, .. } => match request {
            Request::Get(get) if get.exptime.is_none() => return out.extend_from_slice(reply::END),
            Request::MetaGet(get) if is_read(&get) => {
                if !get.flags.quiet() {
                    encode_status(out, meta::Status::Miss, &get.flags, &get.key);
                }
                return;
            }
            Request::MetaDebug(debug) => return debug.encode_miss(out),
            Request::Store(store) => noreply = store.header.noreply,
            Request::Delete(delete) => noreply = delete.noreply,
            Request::Arithmetic(arithmetic) => noreply = arithmetic.noreply,
            Request::Touch(touch) => noreply = touch.noreply,
            Request::FlushAll(flush) => (noreply, every) = (flush.noreply, Some("flush_all")),
            Request::FlushPrefix(flush) => (noreply, every) = (flush.noreply, Some("flush_prefix")),
            Request::Admin(admin) => (noreply, every) = (admin.noreply, Some("debugtime")),
            _ => {}
        },
        Decoded::Body { header: BodyHeader::Store(header), .. } => noreply = header.noreply,
        _ => {}
    }
    if !noreply {
        out.extend_from_slice(format!("SERVER_ERROR {}\r\n", Reason { node, why, every }).as_bytes());
    }
}

/// Returns whether an `mg` changes nothing of an item except the record of its use.
fn is_read(get: &meta::Get<'_>) -> bool {
    let flags = &get.flags;
    let changes = flags.ttl().is_some() || flags.vivify().is_some() || flags.recache().is_some();
    !changes && !flags.has(Flag::NewCas)
}

fn binary_away(out: &mut Vec<u8>, own: &[u8], node: &str, why: Why) {
    let (head, every): (Head, _) = match binary::decode(own) {
        Decoded::Request { request, .. } => match request.command {
            Command::Get { key, with_key, exptime: None } => {
                return encode_miss(out, &request.head, with_key.then_some(key));
            }
            Command::Flush { .. } => (request.head, Some("flush")),
            _ => (request.head, None),
        },
        Decoded::Body { header, .. } => (header.head, None),
        // These bytes were decoded before.
        _ => return,
    };
    let text = Reason { node, why, every }.to_string();
    encode_error_text(out, &head, Status::TemporaryFailure, &text);
}
