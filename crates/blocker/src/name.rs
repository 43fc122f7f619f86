//! Names: what an object is called, and the namespace it lives in.
//!
//! Both are 1 to 255 bytes, any bytes at all: a name is never text to a backend, never a path, never
//! trimmed or folded. They are reference-counted (`Bytes`), so a name cut out of a receive buffer
//! travels through every layer without an allocation.

use std::fmt;

use bytes::Bytes;

use crate::error::{Error, Result};

/// The longest name of an object or a namespace, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

macro_rules! name_type {
    ($(#[$doc:meta])* $type:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Bytes);

        impl $type {
            /// Takes `bytes` as a name, without copying them.
            ///
            /// # Errors
            /// [`Error::Invalid`] if there are none, or more than [`NAME_BYTES_MAX`].
            pub fn new(bytes: impl Into<Bytes>) -> Result<Self> {
                let bytes = bytes.into();
                match bytes.len() {
                    1..=NAME_BYTES_MAX => Ok(Self(bytes)),
                    _ => Err(Error::Invalid(concat!($what, " must have 1 to 255 bytes").into())),
                }
            }

            /// Copies `bytes` into a name.
            ///
            /// # Errors
            /// As [`Self::new`].
            pub fn copy_from(bytes: &[u8]) -> Result<Self> {
                Self::new(Bytes::copy_from_slice(bytes))
            }

            /// The bytes of the name.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8] {
                &self.0
            }
        }

        impl AsRef<[u8]> for $type {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }

        impl std::borrow::Borrow<[u8]> for $type {
            fn borrow(&self) -> &[u8] {
                &self.0
            }
        }

        /// Printable ASCII as it is, everything else as `\xNN`.
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0.escape_ascii())
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"{}\"", self.0.escape_ascii())
            }
        }
    };
}

name_type! {
    /// The name of an object within its namespace: 1 to 255 bytes, ordered bytewise.
    Name, "an object's name"
}

name_type! {
    /// The name of a namespace: 1 to 255 bytes. A namespace is there as soon as it is used; it is
    /// the unit of policy, quota and listing.
    Namespace, "a namespace's name"
}

/// Which object is meant: a name in a namespace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectId {
    /// Where the object lives.
    pub namespace: Namespace,
    /// What it is called there.
    pub name: Name,
}

impl ObjectId {
    /// The object called `name` in `namespace`.
    #[must_use]
    pub fn new(namespace: Namespace, name: Name) -> Self {
        Self { namespace, name }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_1_to_255_bytes_of_any_kind() {
        assert!(matches!(Name::copy_from(b""), Err(Error::Invalid(_))));
        assert!(matches!(Name::new(vec![7; 256]), Err(Error::Invalid(_))));
        assert_eq!(Name::new(vec![0; 255]).unwrap().as_bytes(), [0; 255]);
        assert_eq!(Name::copy_from(b"a/\0\xff").unwrap().to_string(), "a/\\x00\\xff");
    }
}
