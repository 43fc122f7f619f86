//! The fixed replies of text and meta, each with its CRLF.
//!
//! The decoders return these replies for malformed input; the server uses them for conditions that
//! only it can check.

macro_rules! replies {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        $($(#[$doc])* #[doc = concat!("\n\n`", $text, "`")] pub const $name: &[u8] = concat!($text, "\r\n").as_bytes();)*
    };
}

replies! {
    /// A value was stored.
    STORED = "STORED";
    /// The condition of `add`, `replace`, `append` or `prepend` did not hold.
    NOT_STORED = "NOT_STORED";
    /// The condition of `cas` did not hold: the item has changed.
    EXISTS = "EXISTS";
    /// The key does not exist.
    NOT_FOUND = "NOT_FOUND";
    /// The item is deleted.
    DELETED = "DELETED";
    /// The key has a new expiry.
    TOUCHED = "TOUCHED";
    /// Done.
    OK = "OK";
    /// The statistics have been reset to zero.
    RESET = "RESET";
    /// The last line of a `get` or of statistics.
    END = "END";
    /// The command is unknown or disabled.
    ERROR = "ERROR";

    /// A line that is too short, has too few arguments, a key that is too long or a bad number.
    BAD_FORMAT = "CLIENT_ERROR bad command line format";
    /// The body does not end in CRLF.
    BAD_DATA_CHUNK = "CLIENT_ERROR bad data chunk";
    /// The expiry of `touch`, `gat`, `gats` or `flush_all` is invalid.
    INVALID_EXPTIME = "CLIENT_ERROR invalid exptime argument";
    /// `incr`, `decr`.
    INVALID_DELTA = "CLIENT_ERROR invalid numeric delta argument";
    /// The value on which `incr`, `decr` or `ma` operates is not a number.
    NON_NUMERIC = "CLIENT_ERROR cannot increment or decrement non-numeric value";
    /// `-F` forbids `flush_all`.
    FLUSH_NOT_ALLOWED = "CLIENT_ERROR flush_all not allowed";
    /// `-F` forbids `flush_prefix`. memcached does not have this reply.
    FLUSH_PREFIX_NOT_ALLOWED = "CLIENT_ERROR flush_prefix not allowed";
    /// `flush_prefix` was refused, because the maximum number of prefixes is being removed.
    /// memcached does not have this reply.
    TOO_MANY_PREFIXES = "SERVER_ERROR too many flushes of prefixes are pending";
    /// `shutdown` had an unknown argument.
    INVALID_SHUTDOWN_MODE = "CLIENT_ERROR invalid shutdown mode";
    /// `shutdown` was refused, because `-A` is missing.
    SHUTDOWN_NOT_ENABLED = "SERVER_ERROR: shutdown not enabled";
    /// The item exceeds the item size limit. A `set` or `ms` also removes the old item.
    TOO_LARGE = "SERVER_ERROR object too large for cache";
    /// There is no memory for the item (with `-M`, for example).
    OUT_OF_MEMORY_STORING = "SERVER_ERROR out of memory storing object";
    /// There is no memory for `incr`, `decr`, `ma` or `md`.
    OUT_OF_MEMORY = "SERVER_ERROR out of memory";
    /// A line without an end; the connection is closed.
    OUT_OF_MEMORY_READING = "SERVER_ERROR out of memory reading request";
    /// A `get` could not be executed.
    OUT_OF_MEMORY_GET = "SERVER_ERROR out of memory writing get response";

    /// A command of a client that must authenticate first.
    UNAUTHENTICATED = "CLIENT_ERROR unauthenticated";
    /// The data are longer than a user and a password may be.
    AUTH_TOKEN_TOO_LONG = "CLIENT_ERROR auth token too long";
    /// User and password do not end with CRLF.
    AUTH_BAD_TERMINATION = "CLIENT_ERROR bad command line termination";
    /// A blank is missing between user and password.
    AUTH_BAD_TOKEN = "CLIENT_ERROR bad authentication token format";
    /// The user or the password is wrong.
    AUTH_FAILURE = "CLIENT_ERROR authentication failure";
    /// The reply is too large for UDP: the client must request it over TCP.
    UDP_REPLY_TOO_LARGE = "SERVER_ERROR reply too large for UDP";

    /// `mn`.
    META_NOOP = "MN";
    /// A flag appears twice.
    META_DUPLICATE_FLAG = "CLIENT_ERROR duplicate flag";
    /// A letter that is not a flag.
    META_INVALID_FLAG = "CLIENT_ERROR invalid flag";
    /// A flag of `ma` is invalid.
    META_INVALID_OR_DUPLICATE_FLAG = "CLIENT_ERROR invalid or duplicate flag";
    /// A flag's number is missing or malformed.
    META_BAD_TOKEN = "CLIENT_ERROR bad token in command line format";
    /// The command has more than twenty words.
    META_TOO_MANY_FLAGS = "CLIENT_ERROR options flags are too long";
    /// The opaque has more than 31 bytes.
    META_OPAQUE_TOO_LONG = "CLIENT_ERROR opaque token too long";
    /// The key is not base64.
    META_BAD_KEY = "CLIENT_ERROR error decoding key";
    /// The `J` flag's number.
    META_INVALID_INITIAL = "CLIENT_ERROR invalid numeric initial value";
    /// The `D` flag's number.
    META_INVALID_DELTA = "CLIENT_ERROR invalid numeric delta value";
    /// An unknown mode of `ms`.
    META_SET_MODE = "CLIENT_ERROR invalid mode for ms M token";
    /// An unknown mode of `ma`.
    META_ARITHMETIC_MODE = "CLIENT_ERROR invalid mode for ma M token";
    /// Too many unsent replies refer to the key.
    META_REFCOUNT_OVERFLOW = "SERVER_ERROR refcount overflow during fetch";
    /// `ma` with `N` found no memory.
    META_OUT_OF_MEMORY_NEW_ITEM = "SERVER_ERROR Out of memory allocating new item";
}

/// The empty reply of a request with `noreply`.
pub const SILENT: &[u8] = b"";

/// Appends `reply`, unless the request has `noreply`.
#[inline]
pub fn push_unless(out: &mut Vec<u8>, noreply: bool, reply: &[u8]) {
    if !noreply {
        out.extend_from_slice(reply);
    }
}

/// Returns the reply, or nothing with `noreply`.
#[inline]
pub(crate) fn unless(noreply: bool, reply: &'static [u8]) -> &'static [u8] {
    if noreply { SILENT } else { reply }
}
