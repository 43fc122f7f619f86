//! What an operation answers when it worked.

use crate::name::Name;
use crate::order::{Durability, Epoch, Stamp, Version};
use crate::segment::Segments;

macro_rules! response {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            /// With these values, in the order of the fields.
            #[must_use]
            pub fn new($($field: $type),*) -> Self {
                Self { $($field),* }
            }
        }
    };
}

response! {
    /// The bytes read, all of one version.
    ReadReply {
        /// What is in the range, up to the object's end; a hole reads as zeros.
        data: Segments,
        /// The object's size.
        size_bytes: u64,
        /// The version of the bytes.
        version: Version,
    }
}

response! {
    /// An object was changed.
    ChangeReply {
        /// Its version from now on.
        version: Version,
        /// Its size from now on.
        size_bytes: u64,
        /// How safe the change is: what was asked for, or better.
        durability: Durability,
    }
}

response! {
    /// An object was removed.
    DeleteReply {
        /// How safe the removal is: what was asked for, or better.
        durability: Durability,
    }
}

response! {
    /// What is known about an object. Exact, including what only a cache knows.
    Info {
        /// Its size.
        size_bytes: u64,
        /// Its version.
        version: Version,
        /// The stamp of the last stamped change.
        stamp: Option<Stamp>,
    }
}

response! {
    /// One object of a listing.
    ListEntry {
        /// Its name.
        name: Name,
        /// Its size.
        size_bytes: u64,
        /// Its version.
        version: Version,
    }
}

response! {
    /// One page of a listing.
    ListReply {
        /// The objects, in bytewise order of their names.
        entries: Vec<ListEntry>,
        /// Whether there may be more after the last of them. A page that says so has at least one
        /// entry, to go on from.
        has_more: bool,
    }
}

response! {
    /// All that was acknowledged before the flush is stored.
    FlushReply {
        /// How safe it is: [`Durability::Stored`].
        durability: Durability,
    }
}

response! {
    /// The scope is taken over.
    ClaimReply {
        /// The epoch in force.
        epoch: Epoch,
    }
}

response! {
    /// No stale copy of the scope is held here any more.
    InvalidateReply {
        /// How many bytes of clean copies were dropped, where that is known.
        dropped_bytes: u64,
    }
}
