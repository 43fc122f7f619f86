//! The place of one object in the index, and the ways to hold it.

use std::cell::UnsafeCell;

use blocker::ObjectId;

use crate::object::state::Object;
use crate::object::state::packed_name::PackedName;
use crate::object::tasks::serial::{ExclusiveSection, Serial};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Bits of `Node::marks`.
pub(super) const USED: u32 = 1;

pub(super) const LEAVING: u32 = 2;

/// The place of one object.
#[repr(C, align(64))]
pub(crate) struct Node {
    pub(super) hash: AtomicU64,
    /// The next node of its chain, plus one; guarded by the shard's lock.
    pub(super) next: AtomicU32,
    pub(super) marks: AtomicU32,
    /// The number of its uses outside of the index.
    pub(super) refs: AtomicU32,
    /// The number of the object's namespace. Written as the name is.
    pub(super) namespace: AtomicU32,
    /// Written under the shard's lock while the node is not in use; read under it, while it is in use, or in
    /// an exclusive section that began under the lock.
    pub(super) name: UnsafeCell<Option<PackedName>>,
    pub(crate) serial: Serial<Object>,
}

// SAFETY: all fields but `name` are `Sync`. `name` is written only by `Index::place` and `Index::remove`,
// under the shard's lock, when `refs` is 0 and the node is in no chain, and after an exclusive section in
// which it was emptied; so no reader exists. It is read under that lock, by holders of a count, or in an
// exclusive section that began under the lock while the node was in its chain, and all of them keep those two
// away.
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

    /// The hash of its name; an evicting thread uses it as a hint.
    pub(crate) fn hash(&self) -> u64 {
        self.hash.load(Ordering::Relaxed)
    }
}

/// A use of a node, which stays what it is while this is held. Made by [`Index`], ended by [`Index::unuse`].
#[derive(Clone, Copy)]
pub(crate) struct InUse<'a> {
    pub(crate) node: &'a Node,
    pub(crate) at: u32,
}

/// An exclusive section with an object, found by its name's hash.
pub(crate) struct Found<'a> {
    pub(crate) section: ExclusiveSection<'a, Object>,
    pub(super) node: &'a Node,
    pub(crate) at: u32,
}

impl Found<'_> {
    /// Whether it is the object of this name, and not another one with the same hash.
    #[inline]
    pub(crate) fn matches(&self, id: &ObjectId) -> bool {
        // SAFETY: the section began under the shard's lock while the node was in its chain, and lasts.
        unsafe { &*self.node.name.get() }.as_ref().is_some_and(|name| name.matches(id))
    }
}
