//! An object's name as the index keeps it: in the node itself where it is short, as most are, so that
//! comparing it touches no further line of memory.
//!
//! ```text
//!  inline  │ tag │ bytes │ of them namespace │ namespace, then name: up to 45 bytes │
//!  apart   │ tag │       │ of them namespace │ pointer and length                   │
//! ```

use blocker::{Name, Namespace, ObjectId};
use bytes::Bytes;

const INLINE_BYTES: usize = 45;

/// See the module.
pub(crate) enum PackedName {
    Inline { len: u8, namespace_len: u8, bytes: [u8; INLINE_BYTES] },
    Apart { namespace_len: u8, bytes: Box<[u8]> },
}

const _: () = assert!(size_of::<PackedName>() == 48);

impl PackedName {
    /// A copy of the name: it must not keep a receive buffer alive.
    pub(crate) fn of(id: &ObjectId) -> Self {
        let (namespace, name) = (id.namespace.as_bytes(), id.name.as_bytes());
        let len = namespace.len() + name.len();
        // Names have up to 255 bytes.
        let namespace_len = namespace.len() as u8;
        if len > INLINE_BYTES {
            return Self::Apart { namespace_len, bytes: [namespace, name].concat().into() };
        }
        let mut bytes = [0; INLINE_BYTES];
        bytes[..namespace.len()].copy_from_slice(namespace);
        bytes[namespace.len()..len].copy_from_slice(name);
        Self::Inline { len: len as u8, namespace_len, bytes }
    }

    /// Namespace and name.
    #[inline]
    fn parts(&self) -> (&[u8], &[u8]) {
        let (bytes, namespace_len) = match self {
            Self::Inline { len, namespace_len, bytes } => (&bytes[..usize::from(*len)], *namespace_len),
            Self::Apart { namespace_len, bytes } => (&bytes[..], *namespace_len),
        };
        bytes.split_at(usize::from(namespace_len))
    }

    /// Whether it is the name of `id`.
    #[inline]
    pub(crate) fn matches(&self, id: &ObjectId) -> bool {
        let (namespace, name) = self.parts();
        name == id.name.as_bytes() && namespace == id.namespace.as_bytes()
    }

    /// The namespace.
    pub(crate) fn namespace(&self) -> &[u8] {
        self.parts().0
    }

    /// The name, to be handed out.
    pub(crate) fn to_id(&self) -> ObjectId {
        let (namespace, name) = self.parts();
        let whole = Bytes::from([namespace, name].concat());
        let at = namespace.len();
        let namespace = Namespace::new(whole.slice(..at)).expect("it was a name before");
        ObjectId::new(namespace, Name::new(whole.slice(at..)).expect("it was a name before"))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_length_come_back_and_are_distinguished() {
        let id = |namespace: usize, name: usize| {
            ObjectId::new(Namespace::new(vec![7; namespace]).unwrap(), Name::new(vec![7; name]).unwrap())
        };
        for (namespace, name) in [(1, 1), (1, 44), (44, 1), (1, 45), (45, 1), (255, 255)] {
            let packed = PackedName::of(&id(namespace, name));
            assert_eq!(matches!(packed, PackedName::Inline { .. }), namespace + name <= INLINE_BYTES);
            assert_eq!(packed.to_id(), id(namespace, name));
            assert!(packed.matches(&id(namespace, name)));
            assert!(namespace == name || !packed.matches(&id(name, namespace)), "as long, cut elsewhere");
        }
    }
}
