//! What a client does that leaves no way to continue with it.

use super::wire::{OPTION_BYTES_MAX, OPTIONS_MAX, PAYLOAD_BYTES_MAX};

/// Why a connection cannot be continued: the client breaks the protocol where no error can be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The client sets handshake flags that the server did not offer.
    #[error("the client's flags {0:#x} are not known")]
    ClientFlags(u32),
    /// An option does not begin with its magic number.
    #[error("an option begins with {0:#x}")]
    OptionMagic(u64),
    /// The data of an option are longer than is accepted.
    #[error("an option has {0} bytes of data; {OPTION_BYTES_MAX} are accepted")]
    OptionTooLong(u32),
    /// The client sends options without end.
    #[error("the client sent {OPTIONS_MAX} options")]
    TooManyOptions,
    /// A client without fixed newstyle sends another option than `EXPORT_NAME`.
    #[error("option {0} of a client that did not agree to fixed newstyle")]
    NotFixed(u32),
    /// Bytes follow the request for TLS that are not protected by it.
    #[error("bytes follow STARTTLS before it was answered")]
    PlainAfterTls,
    /// A request does not begin with its magic number.
    #[error("a request begins with {0:#x}")]
    RequestMagic(u32),
    /// A write has more bytes than can be received.
    #[error("a write of {0} bytes; {PAYLOAD_BYTES_MAX} are accepted")]
    PayloadTooLong(u32),
}
