//! The node of an object in the index, its name there, and the ways to hold it.

use std::cell::UnsafeCell;

use blocker::{Name, Namespace, ObjectId};
use bytes::Bytes;

use crate::object::state::Object;
use crate::object::tasks::serial::{ExclusiveSection, Serial};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Bits of `Node::marks`.
pub(super) const USED: u32 = 1;

pub(super) const LEAVING: u32 = 2;

/// The node of an object.
#[repr(C, align(64))]
pub(crate) struct Node {
    pub(super) hash: AtomicU64,
    /// The next node of the chain, plus one. Written under the shard's lock.
    pub(super) next: AtomicU32,
    pub(super) marks: AtomicU32,
    /// The number of uses of the node outside of the index.
    pub(super) refs: AtomicU32,
    /// The number of the object's namespace. Written together with the name.
    pub(super) namespace: AtomicU32,
    /// Written under the shard's lock, in the node's exclusive section, while the node is not in use.
    /// Read under that lock, in such a section, or while the node is in use.
    pub(super) name: UnsafeCell<Option<PackedName>>,
    pub(crate) serial: Serial<Object>,
}

// SAFETY: all fields except `name` are `Sync`. `name` is written only by `Index::place` and
// `Index::remove`, under the shard's lock and in the node's exclusive section, when `refs` is 0. It is
// read under that lock, in an exclusive section, or by holders of a count; each of these excludes the
// two writers.
unsafe impl Sync for Node {}

#[cfg(not(shuttle))]
const _: () = assert!(size_of::<Node>() == 320);

impl Node {
    pub(super) fn new() -> Self {
        Self {
            hash: AtomicU64::new(0),
            next: AtomicU32::new(0),
            marks: AtomicU32::new(0),
            refs: AtomicU32::new(0),
            namespace: AtomicU32::new(0),
            name: UnsafeCell::new(None),
            serial: Serial::new(Object::default()),
        }
    }

    /// Returns the hash of the node's name; an evicting thread uses it as a hint.
    pub(crate) fn hash(&self) -> u64 {
        self.hash.load(Ordering::Relaxed)
    }
}

/// A use of a node, whose object stays the same while the use is held. Begun by [`Index`], ended by
/// [`Index::unuse`].
#[derive(Clone, Copy)]
pub(crate) struct InUse<'a> {
    pub(crate) node: &'a Node,
    pub(crate) at: u32,
}

/// An exclusive section with a node that had an object whose name has a certain hash.
pub(crate) struct Found<'a> {
    pub(crate) section: ExclusiveSection<'a, Object>,
    pub(super) node: &'a Node,
    pub(crate) at: u32,
}

impl Found<'_> {
    /// Returns whether the node has the object of this name, and neither another one nor none.
    #[inline]
    pub(crate) fn matches(&self, id: &ObjectId) -> bool {
        // SAFETY: the name is written only in the node's exclusive section, which is this one.
        unsafe { &*self.node.name.get() }.as_ref().is_some_and(|name| name.matches(id))
    }
}

const INLINE_BYTES: usize = 45;
/// An object's name as the index stores it: in the node itself if the name is short, as most are,
/// so that comparing it touches no other line of memory.
///
/// ```text
///  inline  │ tag │ bytes │ of them namespace │ namespace, then name: up to 45 bytes │
///  apart   │ tag │       │ of them namespace │ pointer and length                   │
/// ```
pub(crate) enum PackedName {
    Inline { len: u8, namespace_len: u8, bytes: [u8; INLINE_BYTES] },
    Apart { namespace_len: u8, bytes: Box<[u8]> },
}

const _: () = assert!(size_of::<PackedName>() == 48);

impl PackedName {
    /// Returns a copy of the name, because the original could keep a receive buffer alive.
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

    /// Returns the namespace and the name.
    #[inline]
    fn parts(&self) -> (&[u8], &[u8]) {
        let (bytes, namespace_len) = match self {
            Self::Inline { len, namespace_len, bytes } => (&bytes[..usize::from(*len)], *namespace_len),
            Self::Apart { namespace_len, bytes } => (&bytes[..], *namespace_len),
        };
        bytes.split_at(usize::from(namespace_len))
    }

    /// Returns whether this is the name of `id`.
    #[inline]
    pub(crate) fn matches(&self, id: &ObjectId) -> bool {
        let (namespace, name) = self.parts();
        name == id.name.as_bytes() && namespace == id.namespace.as_bytes()
    }

    /// Returns the namespace.
    pub(crate) fn namespace(&self) -> &[u8] {
        self.parts().0
    }

    /// Returns the name as an [`ObjectId`].
    pub(crate) fn to_id(&self) -> ObjectId {
        let (namespace, name) = self.parts();
        let whole = Bytes::from([namespace, name].concat());
        let at = namespace.len();
        let namespace = Namespace::new(whole.slice(..at)).expect("it was a valid name");
        ObjectId::new(namespace, Name::new(whole.slice(at..)).expect("it was a valid name"))
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
