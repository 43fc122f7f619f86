//! What a decoder found at the start of its input.

/// What a decoder found at the start of its input: `R` a request, `B` the header of a request whose body is still to
/// come, `E` a reply to something malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<R, B, E> {
    /// The request has not arrived in full. Nothing is consumed: read more and call again.
    Incomplete,
    /// One whole request, body included.
    Request {
        /// The request; it borrows from the input.
        request: R,
        /// Bytes of the input it took; at least one.
        consumed: usize,
    },
    /// A storage command of which the input ends before the body does.
    ///
    /// Bytes of the body may already be in the input, after `consumed`.
    Body {
        /// All that the command says besides its body; the key borrows from the input.
        header: B,
        /// Bytes of the input before the body; at least one.
        consumed: usize,
        /// Bytes of the body, with the two of its terminator in text and meta ([`text::check_terminator`](crate::text::check_terminator)).
        body_len: usize,
    },
    /// Not a request: send the reply and go on as told.
    Refused(Refused<E>),
    /// Close without a reply (replies that are already due are still sent).
    Close,
}

/// How to answer something malformed, and how to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused<E> {
    /// What to send; empty where `noreply` holds the error back.
    pub reply: E,
    /// Bytes of the input to drop; at least one.
    pub consumed: usize,
    /// Bytes to discard after those, arrived or not: the body of a command that failed.
    pub swallow: usize,
    /// Close once the reply is sent.
    pub close: bool,
}

impl<R, B, E> Decoded<R, B, E> {
    /// An error after which the connection goes on.
    pub(crate) fn refused(reply: E, consumed: usize) -> Self {
        Decoded::Refused(Refused { reply, consumed, swallow: 0, close: false })
    }

    /// An error whose body of `swallow` bytes is to be thrown away.
    pub(crate) fn swallow(reply: E, consumed: usize, swallow: usize) -> Self {
        Decoded::Refused(Refused { reply, consumed, swallow, close: false })
    }

    /// An error that ends the connection.
    pub(crate) fn refused_close(reply: E, consumed: usize) -> Self {
        Decoded::Refused(Refused { reply, consumed, swallow: 0, close: true })
    }
}
