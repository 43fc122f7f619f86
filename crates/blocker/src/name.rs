//! Names of objects and namespaces.
//!
//! Both are 1 to 255 arbitrary bytes: a backend never treats a name as text or as a path, never
//! trims a name, and never changes its case. Names are reference-counted (`Bytes`), so that a name
//! in a receive buffer passes through every layer without an allocation.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

use crate::{Durability, Epoch, Error, OrderDomain, Result};

/// The longest name of an object or a namespace, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

macro_rules! name_type {
    ($(#[$doc:meta])* $type:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Bytes);

        impl $type {
            /// Returns the name with these bytes, without copying them.
            ///
            /// # Errors
            /// Returns [`Error::Invalid`] if `bytes` is empty or longer than [`NAME_BYTES_MAX`].
            pub fn new(bytes: impl Into<Bytes>) -> Result<Self> {
                let bytes = bytes.into();
                match bytes.len() {
                    1..=NAME_BYTES_MAX => Ok(Self(bytes)),
                    _ => Err(Error::Invalid(concat!($what, " must have 1 to 255 bytes").into())),
                }
            }

            /// Returns a name with a copy of `bytes`.
            ///
            /// # Errors
            /// Returns the errors of [`Self::new`].
            pub fn copy_from(bytes: &[u8]) -> Result<Self> {
                Self::new(Bytes::copy_from_slice(bytes))
            }

            /// Returns the bytes of the name.
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

        /// Writes printable ASCII unchanged and every other byte as `\xNN`; quotes and backslashes
        /// are escaped with a backslash.
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0.escape_ascii())
            }
        }

        /// Reads what `Display` writes; text without a backslash is taken as it is.
        impl FromStr for $type {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                Self::new(unescape(text)?)
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
    /// The name of a namespace: 1 to 255 bytes. A namespace exists as soon as it is used; policies,
    /// quotas and listings apply to namespaces.
    Namespace, "a namespace's name"
}

impl Namespace {
    /// Returns whether the namespace is reserved, that is, whether its name begins with a dot.
    /// Stores treat a reserved namespace like any other. Servers keep their own records there, and
    /// every client interface hides and [refuses](Self::check_unreserved) reserved namespaces.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        self.0.starts_with(b".")
    }

    /// Checks that a client may use the namespace.
    ///
    /// # Errors
    /// Returns [`Error::Denied`] if it is [reserved](Self::is_reserved).
    pub fn check_unreserved(&self) -> Result<()> {
        if self.is_reserved() {
            let why =
                format!("namespace {self} is reserved: names that begin with a dot are for servers' records");
            return Err(Error::Denied(why.into()));
        }
        Ok(())
    }
}

/// The identity of an object: a name in a namespace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectId {
    /// The namespace.
    pub namespace: Namespace,
    /// The name within the namespace.
    pub name: Name,
}

impl ObjectId {
    /// Returns the identity of the object called `name` in `namespace`.
    #[must_use]
    pub fn new(namespace: Namespace, name: Name) -> Self {
        Self { namespace, name }
    }
}

/// Writes `NAMESPACE/NAME`; a slash within the namespace is written as `\x2f`.
///
/// ```
/// use blocker::ObjectId;
///
/// let id: ObjectId = "vm/disks/a".parse()?;
/// assert_eq!(id.namespace.as_bytes(), b"vm");
/// assert_eq!(id.name.as_bytes(), b"disks/a");
/// assert_eq!(id.to_string(), "vm/disks/a");
/// # Ok::<_, blocker::Error>(())
/// ```
impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace.in_a_path(), self.name)
    }
}

/// Reads what `Display` writes: the namespace ends at the first slash.
impl FromStr for ObjectId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (namespace, name) = split_path(text)?;
        Ok(Self { namespace, name: name.parse()? })
    }
}

impl Namespace {
    /// Returns the namespace's name for output in front of a slash.
    pub(crate) fn in_a_path(&self) -> impl fmt::Display {
        self.to_string().replace('/', "\\x2f")
    }
}

/// Splits `NAMESPACE/REST` at the first slash.
pub(crate) fn split_path(text: &str) -> Result<(Namespace, &str)> {
    match text.split_once('/') {
        Some((namespace, rest)) => Ok((namespace.parse()?, rest)),
        None => Err(Error::Invalid(format!("{text:?} has no slash after the namespace").into())),
    }
}

/// Reverses `escape_ascii`.
fn unescape(text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'\\' {
            bytes.push(*byte);
            continue;
        }
        let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        let (unescaped, used) = match rest {
            [b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                (hex(&[*high, *low]), 3)
            }
            [b't', ..] => (Some(b'\t'), 1),
            [b'n', ..] => (Some(b'\n'), 1),
            [b'r', ..] => (Some(b'\r'), 1),
            [quoted @ (b'\\' | b'\'' | b'"'), ..] => (Some(*quoted), 1),
            _ => (None, 0),
        };
        let unknown = || Error::Invalid(format!("{text:?} has a backslash without a known escape").into());
        bytes.push(unescaped.ok_or_else(unknown)?);
        rest = &rest[used..];
    }
    Ok(bytes)
}

/// Reads what `Display` writes.
///
/// ```
/// use blocker::Durability;
///
/// assert_eq!("replicated(2)".parse(), Ok(Durability::Replicated(2)));
/// ```
impl FromStr for Durability {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let nodes = || text.strip_prefix("replicated(")?.strip_suffix(')')?.parse().ok();
        match text {
            "cached" => Ok(Self::Cached),
            "journaled" => Ok(Self::Journaled),
            "stored" => Ok(Self::Stored),
            _ => nodes().map(Self::Replicated).ok_or_else(|| {
                let known = "cached, journaled, replicated(NODES) or stored";
                Error::Invalid(format!("{text:?} is not a durability; expected {known}").into())
            }),
        }
    }
}

impl FromStr for Epoch {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |_| Error::Invalid(format!("{text:?} is not an epoch; expected a number").into());
        text.parse().map_err(wrong).map(Self)
    }
}

impl FromStr for OrderDomain {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |_| Error::Invalid(format!("{text:?} is not an order domain; expected a number").into());
        text.parse().map_err(wrong).map(Self)
    }
}

#[cfg(test)]
mod name_tests {
    use super::*;

    #[test]
    fn a_name_has_1_to_255_bytes_of_any_kind() {
        assert!(matches!(Name::copy_from(b""), Err(Error::Invalid(_))));
        assert!(matches!(Name::new(vec![7; 256]), Err(Error::Invalid(_))));
        assert_eq!(Name::new(vec![0; 255]).unwrap().as_bytes(), [0; 255]);
        assert_eq!(Name::copy_from(b"a/\0\xff").unwrap().to_string(), "a/\\x00\\xff");
    }

    #[test]
    fn what_is_written_is_read_back() {
        let all: Vec<u8> = (0..=255).collect();
        for bytes in [&all[..128], &all[128..], b"a/b", b"\\x41\\", b"'\"\t\r\n"] {
            let (namespace, name) = (Namespace::copy_from(bytes).unwrap(), Name::copy_from(bytes).unwrap());
            assert_eq!(name.to_string().parse(), Ok(name.clone()));
            assert_eq!(namespace.to_string().parse(), Ok(namespace.clone()));
            let id = ObjectId::new(namespace, name);
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        for wrong in ["", "a\\", "a\\q", "\\x4", "\\x+1"] {
            assert!(wrong.parse::<Name>().is_err(), "{wrong}");
        }
        for wrong in ["", "a", "/a", "a/"] {
            assert!(wrong.parse::<ObjectId>().is_err(), "{wrong}");
        }
    }
}

#[cfg(test)]
mod parse_tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        use Durability::{Cached, Journaled, Replicated, Stored};
        for durability in [Cached, Journaled, Replicated(0), Replicated(255), Stored] {
            assert_eq!(durability.to_string().parse(), Ok(durability));
        }
        for wrong in ["", "Stored", "replicated", "replicated()", "replicated(256)", "replicated(1"] {
            assert!(wrong.parse::<Durability>().is_err(), "{wrong}");
        }
        assert_eq!(Epoch(7).to_string().parse(), Ok(Epoch(7)));
        assert!("-1".parse::<Epoch>().is_err());
        assert_eq!(OrderDomain(7).to_string().parse(), Ok(OrderDomain(7)));
    }
}
