//! The memcached protocols, text, meta and binary, as pure functions over bytes.
//!
//! No socket, clock, runtime or allocation: a decoder looks at the bytes that have arrived and says what they are, an
//! encoder appends to a `Vec<u8>`. What counts is memcached **1.6.45**, to the letter: the same replies, the same
//! things ignored, the same reasons to close. What this crate cannot know (is the key there, is the value too
//! large, is a command allowed) it leaves to the server and hands it the words to answer with ([`reply`]).
//!
//! # The loop of a connection
//! The first byte fixes the protocol ([`Protocol::detect`]). After that each call of [`text::decode`] or [`binary::decode`] gives one
//! [`Decoded`]; requests borrow from the input, so execute first, then drop `consumed` bytes.
//!
//! ```
//! use cached_proto::{Decoded, Limits, Protocol, reply, text::{self, Request}};
//!
//! let input = b"set greeting 5 0 2\r\nhi\r\nget greeting nobody\r\nbogus\r\n";
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
//!                     // `get.cursor()` remembers where to go on, should `out` be full between two keys.
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
//!         // Larger than what is buffered: reserve `body_len` bytes, read into them, then `check_terminator`.
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
//! - One key above 250 bytes in a `get` refuses the line before any of its keys is served, with the error alone. memcached touches the keys
//!   in front of it, drops all replies not yet sent (those to earlier commands too), and adds a stray CRLF; if the last
//!   key is called `noreply`, that CRLF is all it sends.
//! - An opaque above 31 bytes is refused before anything is done; memcached notices when it writes the reply.
//! - An error is answered at once; memcached holds it back until the body has been thrown away.
//! - Replies that are due are sent before a close; memcached drops them where it closes without a word.
//! - A `get` line without an end is refused at [`Limits::get_line_len_max`], not at 1 GiB.
//!
//! Like memcached, a decoder judges a line above 2048 bytes (a binary frame head above 16 KiB) by whether its end is there already. For
//! all other input, how it was cut into pieces makes no difference.
//!
//! # Where to read
//! [`text`] has the line rules and classic commands, [`meta`] the two-letter ones that share the connection with them,
//! [`binary`] the framed protocol. [`limits`] and [`number`] hold the rules that all commands share.

pub mod binary;
pub mod limits;
pub mod meta;
pub mod number;
pub mod reply;
pub mod text;

mod decoded;
mod scan;

pub use decoded::{Decoded, Refused};
pub use limits::Limits;

/// The protocol of a connection, fixed by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Classic text and meta commands, in any mixture.
    Text,
    /// Frames with a 24-byte header.
    Binary,
}

impl Protocol {
    /// The protocol that a connection speaks whose first byte this is.
    #[inline]
    pub fn detect(first: u8) -> Protocol {
        if first == binary::MAGIC_REQUEST { Protocol::Binary } else { Protocol::Text }
    }
}
