//! The memcached protocols, text, meta and binary, as pure functions over bytes.
//!
//! There are no sockets, clocks, runtime or allocations: a decoder reads the bytes that have
//! arrived and returns a request, an encoder appends to a `Vec<u8>`. The reference is memcached
//! **1.6.45**, byte for byte: the same replies, the same input ignored, the same reasons to close.
//! Questions that need the cache or the configuration (is the key present, is the value too large,
//! is a command allowed) are left to the server, which uses the texts of replies in [`reply`].
//!
//! # The loop of a connection
//! The first byte fixes the protocol ([`Protocol::detect`]). After that each call of
//! [`text::decode`] or [`binary::decode`] returns one [`Decoded`]; requests borrow from the input,
//! so execute first, then drop `consumed` bytes.
//!
//! ```
//! use cached_proto::{Decoded, Limits, Protocol, reply, text::{self, Request}};
//!
//! let input = b"set greeting 5 0 2\r\nhi\r\nget greeting unknown\r\nbogus\r\n";
//! assert_eq!(Protocol::detect(input[0]), Protocol::Text);
//!
//! let (mut at, mut out) = (0, Vec::new());
//! let (mut flags, mut value) = (0, Vec::new()); // a rather small cache
//! loop {
//!     match text::decode(&input[at..], 0, &Limits::DEFAULT) {
//!         Decoded::Request { request, consumed } => {
//!             match request {
//!                 Request::Store(store) => match store.value() {
//!                     Some(bytes) => {
//!                         (flags, value) = (store.header.flags, bytes.to_vec());
//!                         reply::push_unless(&mut out, store.header.noreply, reply::STORED);
//!                     }
//!                     None => reply::push_unless(&mut out, store.header.noreply, reply::BAD_DATA_CHUNK),
//!                 },
//!                 Request::Get(mut get) => {
//!                     // `get.cursor()` is the place to continue from, should `out` be full.
//!                     while let Some(key) = get.next_key() {
//!                         if key == b"greeting" {
//!                             text::encode_value(&mut out, key, flags, &value, None);
//!                         }
//!                     }
//!                     out.extend_from_slice(reply::END);
//!                 }
//!                 _ => out.extend_from_slice(reply::ERROR),
//!             }
//!             at += consumed;
//!         }
//!         // Too large for a buffer: reserve `body_len` bytes, read into them, then `check_terminator`.
//!         Decoded::Body { consumed, body_len, .. } => at += consumed + body_len,
//!         Decoded::Refused(refused) => {
//!             out.extend_from_slice(refused.reply);
//!             at += refused.consumed; // then discard `refused.swallow` bytes more, or close
//!         }
//!         Decoded::Incomplete => break, // read more; give `input.len()` as `scanned` next time
//!         Decoded::Close => break,
//!     }
//! }
//! assert_eq!(out, b"STORED\r\nVALUE greeting 5 2\r\nhi\r\nEND\r\nERROR\r\n");
//! ```
//!
//! # What differs from memcached 1.6.45
//! - If one key of a `get` has more than 250 bytes, the line is refused before any of its keys is
//!   served, with only the error as a reply. memcached touches the keys before it, drops all unsent
//!   replies (those to earlier commands too), and adds a stray CRLF; if the last key is `noreply`,
//!   that CRLF is all it sends.
//! - An opaque of more than 31 bytes is refused before anything is done; memcached notices it when
//!   it writes the reply.
//! - The reply to an error is sent immediately; memcached sends it after the body has been
//!   discarded.
//! - Replies that are due are sent before a close; memcached drops them where it closes without a
//!   reply.
//! - A `get` line without an end is refused at [`Limits::get_line_len_max`], not at 1 GiB.
//!
//! Like memcached, a decoder handles a line above 2048 bytes (a binary frame head above 16 KiB)
//! according to whether its end has arrived. For all other input, the pieces in which it arrives
//! make no difference.
//!
//! # Modules
//! [`text`] has the line rules and the classic commands, [`meta`] (`text/meta`) the two-letter
//! commands that share the connection with them, [`binary`] the framed protocol, [`udp`] the frame
//! of datagrams. [`text::auth`] and [`binary::sasl`] decode for clients that are not authenticated.
//! [`limits`] and [`number`] hold the rules that all commands share.

pub mod binary;
pub mod limits;
pub mod number;
pub mod reply;
pub mod text;
pub mod udp;

mod scan;

pub use limits::Limits;
pub use text::meta;

/// The protocol of a connection, fixed by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Classic text and meta commands, in any mixture.
    Text,
    /// Frames with a 24-byte header.
    Binary,
}

impl Protocol {
    /// Returns the protocol of a connection with this first byte.
    #[inline]
    pub fn detect(first: u8) -> Protocol {
        if first == binary::MAGIC_REQUEST { Protocol::Binary } else { Protocol::Text }
    }
}

/// The result of decoding the start of the input. `R` is a request, `B` the header of a request
/// whose body has not arrived, and `E` a reply to malformed input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<R, B, E> {
    /// The request has not arrived completely. Nothing is consumed: read more, and decode again.
    Incomplete,
    /// One complete request, including its body.
    Request {
        /// The request; it borrows from the input.
        request: R,
        /// The number of input bytes that the request occupies; at least one.
        consumed: usize,
    },
    /// A storage command whose body has not arrived completely.
    ///
    /// The head of a request whose body follows. Some bytes of the body may already be in the
    /// input, after `consumed`.
    Body {
        /// The command line; the key borrows from the input.
        header: B,
        /// The number of input bytes before the body; at least one.
        consumed: usize,
        /// The length of the body in bytes, including the two bytes of its terminator in text and
        /// meta ([`text::check_terminator`]).
        body_len: usize,
    },
    /// The input is not a valid request: send the reply and continue as specified.
    Refused(Refused<E>),
    /// Close the connection without a reply (replies that are already due are still sent).
    Close,
}

/// The reply to malformed input, and how to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused<E> {
    /// The reply; empty if `noreply` suppresses it.
    pub reply: E,
    /// The number of input bytes to drop; at least one.
    pub consumed: usize,
    /// The number of bytes to discard after `consumed`, whether or not they have arrived: the body
    /// of the refused command.
    pub swallow: usize,
    /// Whether to close the connection once the reply is sent.
    pub close: bool,
}

impl<R, B, E> Decoded<R, B, E> {
    /// Returns an error after which the connection continues.
    pub(crate) fn refused(reply: E, consumed: usize) -> Self {
        Decoded::Refused(Refused { reply, consumed, swallow: 0, close: false })
    }

    /// Returns an error whose body of `swallow` bytes is to be discarded.
    pub(crate) fn swallow(reply: E, consumed: usize, swallow: usize) -> Self {
        Decoded::Refused(Refused { reply, consumed, swallow, close: false })
    }

    /// Returns an error that ends the connection.
    pub(crate) fn refused_close(reply: E, consumed: usize) -> Self {
        Decoded::Refused(Refused { reply, consumed, swallow: 0, close: true })
    }
}
