//! The answers of successful operations.

use crate::{Durability, Epoch, Name, Segments, Stamp, Version};

macro_rules! response {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            /// Returns an answer with these values, in the order of the fields.
            #[must_use]
            pub fn new($($field: $type),*) -> Self {
                Self { $($field),* }
            }
        }
    };
}

response! {
    /// The answer to a read: bytes of one version.
    ReadReply {
        /// The bytes of the range, up to the object's end. A hole reads as zeros.
        data: Segments,
        /// The object's size in bytes.
        size_bytes: u64,
        /// The version of the bytes.
        version: Version,
    }
}

response! {
    /// The answer to a change of an object.
    ChangeReply {
        /// The object's version after the change; 0 if it has been removed.
        version: Version,
        /// The object's size after the change, in bytes; 0 if it has been removed.
        size_bytes: u64,
        /// The durability reached: the requested one, or a stronger one.
        durability: Durability,
    }
}

impl ChangeReply {
    /// Returns the answer to the removal of an object.
    #[must_use]
    pub fn removed(durability: Durability) -> Self {
        Self::new(Version(0), 0, durability)
    }
}

response! {
    /// An object's size, version and stamp, including changes that exist only in a cache so far.
    Info {
        /// The object's size in bytes.
        size_bytes: u64,
        /// The object's version.
        version: Version,
        /// The stamp of the last stamped change.
        stamp: Option<Stamp>,
    }
}

response! {
    /// One object of a listing.
    ListEntry {
        /// The object's name.
        name: Name,
        /// The object's size in bytes.
        size_bytes: u64,
        /// The object's version.
        version: Version,
    }
}

response! {
    /// One page of a listing.
    ListReply {
        /// The objects, in bytewise order of their names.
        entries: Vec<ListEntry>,
        /// Whether there may be more objects after the last entry. If so, the page has at least one
        /// entry, after which the next page begins.
        has_more: bool,
    }
}

response! {
    /// The answer to a flush: everything acknowledged before the flush is stored.
    FlushReply {
        /// The durability reached.
        durability: Durability,
    }
}

response! {
    /// The answer to a claim: the scope is taken over.
    ClaimReply {
        /// The epoch in force.
        epoch: Epoch,
    }
}

response! {
    /// The answer to an invalidation: no stale copy of the scope remains.
    InvalidateReply {
        /// The size of the evicted clean copies in bytes, as far as it is known.
        dropped_bytes: u64,
    }
}
