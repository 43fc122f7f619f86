//! The result of decoding.

/// What a decoder has found at the start of its input: `R` is a request, `B` the header of a request whose
/// body has not arrived, `E` a reply to malformed input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<R, B, E> {
    /// The request has not arrived completely. Nothing is consumed: read more and call again.
    Incomplete,
    /// One whole request, body included.
    Request {
        /// The request; it borrows from the input.
        request: R,
        /// The number of bytes of the input it took; at least one.
        consumed: usize,
    },
    /// A storage command of which the input ends before the body does.
    ///
    /// Bytes of the body may already be in the input, after `consumed`.
    Body {
        /// The command line; the key borrows from the input.
        header: B,
        /// The number of bytes of the input before the body; at least one.
        consumed: usize,
        /// The number of bytes of the body, with the two of its terminator in text and meta
        /// ([`text::check_terminator`](crate::text::check_terminator)).
        body_len: usize,
    },
    /// Not a request: send the reply and continue as specified.
    Refused(Refused<E>),
    /// Close without a reply (replies that are already due are still sent).
    Close,
}

/// The reply to malformed input, and how to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused<E> {
    /// The reply; empty where `noreply` suppresses it.
    pub reply: E,
    /// The number of bytes of the input to drop; at least one.
    pub consumed: usize,
    /// The number of bytes to discard after those, arrived or not: the body of the refused command.
    pub swallow: usize,
    /// Close once the reply is sent.
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
