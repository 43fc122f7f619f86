//! What a client learns about an export: size, flags, limits, and the metadata contexts of block
//! status.

use std::fmt;

use super::wire::{PAYLOAD_BYTES_MAX, TEXT_BYTES_MAX, transmission};

/// The description of an export. It stays the same for the whole life of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    /// The size in bytes.
    pub size_bytes: u64,
    /// The smallest unit of a request, in bytes: a power of two, at most 64 KiB.
    pub block_bytes_min: u32,
    /// The best unit of requests, in bytes: a power of two, at least `block_bytes_min`.
    pub block_bytes_preferred: u32,
    /// The features that it offers.
    pub features: Features,
    /// A one-line description for people.
    pub text: String,
    /// The contexts for which block status is available.
    pub contexts: Vec<Context>,
}

/// The features of an export beyond reading and writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// The export cannot be written.
    pub read_only: bool,
    /// Flush, and writes that are durable when they are acknowledged.
    pub flush: bool,
    /// Discarding bytes.
    pub trim: bool,
    /// Writing zeros without sending them.
    pub write_zeroes: bool,
    /// Writing zeros only if that is faster than a write.
    pub fast_zero: bool,
    /// Reading ahead.
    pub cache: bool,
    /// Several connections see the same data, and a flush on one covers all.
    pub multi_conn: bool,
}

impl Features {
    /// Returns all features of a writable export.
    #[must_use]
    pub fn all() -> Self {
        Self {
            read_only: false,
            flush: true,
            trim: true,
            write_zeroes: true,
            fast_zero: true,
            cache: true,
            multi_conn: true,
        }
    }
}

impl Description {
    /// Returns the description of an export that offers every feature: blocks from 1 byte, 4 KiB
    /// preferred, and the context `base:allocation`.
    #[must_use]
    pub fn new(size_bytes: u64) -> Self {
        Self {
            size_bytes,
            block_bytes_min: 1,
            block_bytes_preferred: 4096,
            features: Features::all(),
            text: String::new(),
            contexts: vec![Context::Allocation],
        }
    }

    /// Returns the longest payload, in bytes: a multiple of the smallest block.
    #[must_use]
    pub fn payload_bytes_max(&self) -> u32 {
        PAYLOAD_BYTES_MAX - PAYLOAD_BYTES_MAX % self.block_bytes_min.max(1)
    }

    /// Returns the transmission flags on a connection with or without structured replies.
    #[must_use]
    pub fn transmission_flags(&self, is_structured: bool) -> u16 {
        let of = self.features;
        let can_write = !of.read_only;
        let flags = [
            (of.read_only, transmission::READ_ONLY),
            (of.flush, transmission::SEND_FLUSH | transmission::SEND_FUA),
            (of.trim && can_write, transmission::SEND_TRIM),
            (of.write_zeroes && can_write, transmission::SEND_WRITE_ZEROES),
            (of.write_zeroes && of.fast_zero && can_write, transmission::SEND_FAST_ZERO),
            (of.cache, transmission::SEND_CACHE),
            (of.multi_conn, transmission::CAN_MULTI_CONN),
            (is_structured, transmission::SEND_DF),
        ];
        let set = flags.iter().filter(|(is_set, _)| *is_set);
        set.fold(transmission::HAS_FLAGS, |all, (_, flag)| all | flag)
    }
}

const ALLOCATION: &str = "base:allocation";
const DIRTY_BITMAP: &str = "qemu:dirty-bitmap:";

/// A metadata context of block status.
///
/// ```
/// use nbd::protocol::Context;
///
/// assert_eq!(Context::parse("base:allocation"), Some(Context::Allocation));
/// assert_eq!(Context::parse("qemu:dirty-bitmap:monday"), Some(Context::ChangedSince("monday".into())));
/// assert_eq!(Context::ChangedSince("monday".into()).to_string(), "qemu:dirty-bitmap:monday");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Context {
    /// `base:allocation`: which extents take up space, and which are zeros.
    Allocation,
    /// `qemu:dirty-bitmap:NAME`: which extents have changed since the snapshot of that name.
    ChangedSince(String),
}

impl Context {
    /// Returns the context whose full name is `name`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        if name == ALLOCATION {
            return Some(Self::Allocation);
        }
        let snapshot = name.strip_prefix(DIRTY_BITMAP)?;
        (!snapshot.is_empty() && name.len() <= TEXT_BYTES_MAX).then(|| Self::ChangedSince(snapshot.into()))
    }

    /// Returns whether a query in a request for the list of contexts matches this one: by its name,
    /// by its namespace, or by a beginning of its name up to a colon.
    #[must_use]
    pub fn is_listed_by(&self, query: &str) -> bool {
        match self {
            Self::Allocation => query == "base:" || query == ALLOCATION,
            Self::ChangedSince(_) => query == "qemu:" || query == DIRTY_BITMAP || query == self.to_string(),
        }
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocation => f.write_str(ALLOCATION),
            Self::ChangedSince(snapshot) => write!(f, "{DIRTY_BITMAP}{snapshot}"),
        }
    }
}
