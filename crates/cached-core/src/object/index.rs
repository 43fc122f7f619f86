//! The index of objects: a bounded number of nodes, found by name.
//!
//! ```text
//!  heads   ┌────┬────┬─ ─    the first node of each chain, twice as many as nodes or more
//!          └─┬──┴────┴─ ─
//!            v       line 0                     1                        2            3, 4
//!  nodes   ┌──────────────────────┬─────────────────────────┬────────────────────┬──────────────┐
//!          │ hash, chain, name    │ name, the turn, slots   │ slots, size        │ what a read  │
//!          └──────────────────────┴─────────────────────────┴────────────────────┴─ has no need ┘
//! ```
//! A lookup waits for memory twice before it has the object's slots: for the head, and for the node, whose
//! lines are asked for together. Both arrays lie in one mapping, touched as objects come. Every lookup goes to a random
//! place of both, so huge pages are asked for, whatever the buckets have.
//!
//! Sharded by the name's hash, with one lock for each shard, held until the object's turn has been entered
//! ([`Index::turn`]) or its use counted. Being inside keeps an object as a use does: who evicts enters its turn first.
//!
//! Entering a full shard succeeds by evicting: a hand goes round the
//! nodes and takes the first that nobody uses, that holds nothing the store lacks, and that has not been
//! asked for since the hand came by last (CLOCK). An object that would go but is dirty or busy is marked
//! *leaving*: its flush is hurried, and it goes when that is done; asked for meanwhile, it stays.
//!
//! Lock order: shard → (try) the object's turn → {queue, registry, free stack}. In an object's turn no
//! shard is locked.

use std::cell::UnsafeCell;

use blocker::ObjectId;

use super::label::Label;
use super::order;
use super::serial::{Serial, Turn};
use super::state::Object;
use crate::arena::Memory;
use crate::prefetch::prefetch;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, lock};

const SHARD_NODES_MIN: u32 = 1024;
const SHARDS_MAX: u32 = 64;
const LINE_BYTES: usize = 64;
/// Lines of a node that a read looks at.
const NODE_LINES_READ: usize = 3;
/// `Node::marks`.
const USED: u32 = 1;
const LEAVING: u32 = 2;

/// The place of one object.
#[repr(C, align(64))]
pub(crate) struct Node {
    hash: AtomicU64,
    /// The next of its chain, plus one; guarded by the shard's lock.
    next: AtomicU32,
    marks: AtomicU32,
    /// Who uses it beside the index.
    refs: AtomicU32,
    /// Written under the shard's lock while nobody uses the node; read under it, while it is used, or in a
    /// turn that was entered under the lock.
    label: UnsafeCell<Option<Label>>,
    pub(crate) serial: Serial<Object>,
}

// SAFETY: all fields but `label` are `Sync`. `label` is written only by `Index::place` and `Index::remove`,
// under the shard's lock, when `refs` is 0 and the node is in no chain, and after a turn in which it was emptied;
// so no reader exists. It is read under that lock, by holders of a count, or in a turn that was entered under
// the lock while the node was in its chain, and all of them keep those two away.
unsafe impl Sync for Node {}

#[cfg(not(shuttle))]
const _: () = assert!(size_of::<Node>() == 320);

impl Node {
    fn new() -> Self {
        Self {
            hash: AtomicU64::new(0),
            next: AtomicU32::new(0),
            marks: AtomicU32::new(0),
            refs: AtomicU32::new(0),
            label: UnsafeCell::new(None),
            serial: Serial::new(Object::default()),
        }
    }

    /// The hash of its name; for the evictor, who uses it as a hint.
    pub(crate) fn hash(&self) -> u64 {
        self.hash.load(Ordering::Relaxed)
    }
}

/// A use of a node: it stays what it is while this is held. Made by [`Index`], given back by
/// [`Index::unuse`].
#[derive(Clone, Copy)]
pub(crate) struct InUse<'a> {
    pub(crate) node: &'a Node,
    pub(crate) at: u32,
}

/// A turn with an object, found by its name's hash.
pub(crate) struct Found<'a> {
    pub(crate) turn: Turn<'a, Object>,
    node: &'a Node,
    pub(crate) at: u32,
    /// Whether it was leaving.
    pub(crate) reinserted: bool,
}

impl Found<'_> {
    /// Whether it is the object of this name, and not another with the same hash.
    #[inline]
    pub(crate) fn is(&self, id: &ObjectId) -> bool {
        // SAFETY: the turn was entered under the shard's lock while the node was in its chain, and lasts.
        unsafe { &*self.node.label.get() }.as_ref().is_some_and(|label| label.is(id))
    }
}

/// All objects.
pub(crate) struct Index {
    shards: Box<[Mutex<Shard>]>,
    /// The heads of all chains (the first node of each, plus one), then all nodes. A head is read and written under
    /// its shard's lock. A node is made when it is first taken, under that lock, before anybody knows its number.
    memory: Memory,
    nodes_from: usize,
    heads_per_shard: u32,
    per_shard: u32,
    count: AtomicU64,
}

#[repr(align(64))]
struct Shard {
    own: u32,
    free: Vec<u32>,
    /// How many of its nodes were ever used.
    fresh: u32,
    hand: u32,
}

/// What became of entering.
pub(crate) enum Entered<'a> {
    /// It was there.
    Found { in_use: InUse<'a>, reinserted: bool },
    /// It is there now; perhaps another had to go.
    Placed { in_use: InUse<'a>, evicted: Option<ObjectId> },
    /// Nothing could go; these could if they were flushed, and are leaving now.
    Full { leaving: Vec<u32> },
}

impl Index {
    /// For `count` objects.
    ///
    /// # Errors
    /// The system's, if it refuses the memory.
    pub(crate) fn new(count: u32) -> std::io::Result<Self> {
        let shards = (count / SHARD_NODES_MIN).clamp(1, SHARDS_MAX);
        let shards = 1u32 << shards.ilog2();
        let per_shard = count.div_ceil(shards);
        let heads_per_shard = (per_shard * 2).next_power_of_two();
        let shard =
            |own: u32| Mutex::ranked(Shard { own, free: Vec::new(), fresh: 0, hand: 0 }, &order::INDEX);
        let heads = shards as usize * heads_per_shard as usize;
        let nodes_from = (heads * size_of::<u32>()).next_multiple_of(LINE_BYTES);
        let bytes = nodes_from + shards as usize * per_shard as usize * size_of::<Node>();
        Ok(Self {
            shards: (0..shards).map(shard).collect(),
            memory: Memory::map(bytes, true)?,
            nodes_from,
            heads_per_shard,
            per_shard,
            count: AtomicU64::new(0),
        })
    }

    /// How many objects are known.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn place_of(&self, at: u32) -> *mut Node {
        debug_assert!(at as usize / self.shards.len() < self.per_shard as usize);
        // SAFETY: the mapping has room for `per_shard` nodes of each shard from `nodes_from` on, a multiple of
        // a node's alignment as the mapping's start is.
        unsafe { self.memory.base().add(self.nodes_from).cast::<Node>().add(at as usize) }
    }

    /// The node of this number, which some object has or had.
    #[inline]
    pub(crate) fn node(&self, at: u32) -> &Node {
        // SAFETY: numbers get about only once `fresh` has made the node, which stays until `self` goes.
        unsafe { &*self.place_of(at) }
    }

    /// The number of a shard's `nth` node. Numbers go round the shards, so that the memory of few objects is dense.
    fn number(&self, shard: &Shard, nth: u32) -> u32 {
        nth * self.shards.len() as u32 + shard.own
    }

    /// The number of a node that was never used, made now.
    fn fresh(&self, shard: &mut Shard) -> Option<u32> {
        if shard.fresh == self.per_shard {
            return None;
        }
        let at = self.number(shard, shard.fresh);
        shard.fresh += 1;
        // SAFETY: the place lies within the mapping, and nobody but us, who hold the shard's lock, knows it yet.
        unsafe { self.place_of(at).write(Node::new()) };
        Some(at)
    }

    #[inline]
    fn shard_index(&self, hash: u64) -> usize {
        (hash >> 58) as usize & (self.shards.len() - 1)
    }

    #[inline]
    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        &self.shards[self.shard_index(hash)]
    }

    /// Where the chain of a hash begins.
    #[inline]
    fn head_of(&self, hash: u64) -> *mut u32 {
        let shard = self.shard_index(hash);
        let chain = hash as usize & (self.heads_per_shard as usize - 1);
        // SAFETY: both are below their bounds, so the head lies within the mapping.
        unsafe { self.memory.base().cast::<u32>().add(shard * self.heads_per_shard as usize + chain) }
    }

    /// The first node of a chain, plus one.
    #[inline]
    fn head(&self, hash: u64, _shard: &Shard) -> u32 {
        // SAFETY: within the mapping, which was zeroed; the shard's lock, held by whoever has `_shard`, guards it.
        unsafe { *self.head_of(hash) }
    }

    fn set_head(&self, hash: u64, head: u32, _shard: &mut Shard) {
        // SAFETY: as in `head`.
        unsafe { *self.head_of(hash) = head };
    }

    /// A turn with the object of this hash, if there is one and nobody is inside. Its caller compares the name,
    /// so that the memory of what it wants of the object can be asked for before.
    #[inline]
    pub(crate) fn turn(&self, hash: u64) -> Option<Found<'_>> {
        prefetch(self.head_of(hash));
        let shard = lock(self.shard(hash));
        let at = self.find_hash(&shard, hash)?;
        let node = self.node(at);
        // Under the lock: nobody can take the object out between our finding it and our being inside.
        let turn = node.serial.try_enter()?;
        drop(shard);
        let reinserted = Self::mark_used(node);
        Some(Found { turn, node, at, reinserted })
    }

    #[inline]
    fn find_hash(&self, shard: &Shard, hash: u64) -> Option<u32> {
        let mut next = self.head(hash, shard);
        while let Some(at) = next.checked_sub(1) {
            let place = self.place_of(at);
            (0..NODE_LINES_READ).for_each(|line| prefetch(place.wrapping_byte_add(line * LINE_BYTES)));
            let node = self.node(at);
            if node.hash() == hash {
                return Some(at);
            }
            next = node.next.load(Ordering::Relaxed);
        }
        None
    }

    /// Notes that a node is asked for; whether it was leaving.
    #[inline]
    fn mark_used(node: &Node) -> bool {
        let marks = node.marks.load(Ordering::Relaxed);
        if marks != USED {
            node.marks.store(USED, Ordering::Relaxed);
        }
        marks & LEAVING != 0
    }

    /// The object called `id`, in use; and whether it was leaving.
    pub(crate) fn get(&self, hash: u64, id: &ObjectId) -> Option<(InUse<'_>, bool)> {
        let shard = lock(self.shard(hash));
        self.find(&shard, hash, id)
    }

    fn find(&self, shard: &Shard, hash: u64, id: &ObjectId) -> Option<(InUse<'_>, bool)> {
        let mut next = self.head(hash, shard);
        while let Some(at) = next.checked_sub(1) {
            let node = self.node(at);
            // SAFETY: we hold the shard's lock.
            let label = unsafe { &*node.label.get() };
            if node.hash() == hash && label.as_ref().is_some_and(|label| label.is(id)) {
                node.refs.fetch_add(1, Ordering::Relaxed);
                return Some((InUse { node, at }, Self::mark_used(node)));
            }
            next = node.next.load(Ordering::Relaxed);
        }
        None
    }

    /// One more use of a node that is in use.
    pub(crate) fn use_again(&self, at: u32) -> InUse<'_> {
        let node = self.node(at);
        node.refs.fetch_add(1, Ordering::Relaxed);
        InUse { node, at }
    }

    /// A use of the node `at`, whatever object it is now; `None` if it is none.
    pub(crate) fn use_placed(&self, at: u32) -> Option<InUse<'_>> {
        let _shard = lock(self.shard_of(at));
        // SAFETY: under the shard's lock.
        unsafe { &*self.node(at).label.get() }.as_ref()?;
        Some(self.use_again(at))
    }

    /// The shard that a node belongs to, for ever.
    fn shard_of(&self, at: u32) -> &Mutex<Shard> {
        &self.shards[at as usize & (self.shards.len() - 1)]
    }

    /// Ends a use.
    #[inline]
    pub(crate) fn unuse(&self, in_use: InUse<'_>) {
        // Sequentially consistent, as `is_unused` is: who found it in use and waits is seen by whoever looks for
        // waiters after this.
        in_use.node.refs.fetch_sub(1, Ordering::SeqCst);
    }

    /// The name of a node that is in use.
    pub(crate) fn id(&self, in_use: InUse<'_>) -> ObjectId {
        debug_assert!(in_use.node.refs.load(Ordering::Relaxed) > 0);
        // SAFETY: the node is in use, so nobody writes its name.
        let label = unsafe { &*in_use.node.label.get() }.as_ref();
        label.expect("a node in use has a name").to_id()
    }

    /// Finds the object, or gives it a place. `clear` empties the object that goes for it.
    pub(crate) fn enter(
        &self,
        hash: u64,
        id: &ObjectId,
        clear: impl Fn(u32, u64, &mut Object) -> bool,
    ) -> Entered<'_> {
        let mut guard = lock(self.shard(hash));
        let shard = &mut *guard;
        if let Some((in_use, reinserted)) = self.find(shard, hash, id) {
            return Entered::Found { in_use, reinserted };
        }
        let mut leaving = Vec::new();
        let (at, evicted) = if let Some(at) = shard.free.pop().or_else(|| self.fresh(shard)) {
            (at, None)
        } else {
            match self.evict(shard, &clear, &mut leaving) {
                Some((at, id)) => (at, Some(id)),
                None => return Entered::Full { leaving },
            }
        };
        self.place(shard, at, hash, Label::of(id));
        Entered::Placed { in_use: InUse { node: self.node(at), at }, evicted }
    }

    fn place(&self, shard: &mut Shard, at: u32, hash: u64, label: Label) {
        let node = self.node(at);
        // SAFETY: the node is in no chain and not in use, and we hold the shard's lock.
        unsafe { *node.label.get() = Some(label) };
        node.hash.store(hash, Ordering::Relaxed);
        node.refs.store(1, Ordering::Relaxed);
        node.marks.store(USED, Ordering::Relaxed);
        node.next.store(self.head(hash, shard), Ordering::Relaxed);
        self.set_head(hash, at + 1, shard);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a node out of its chain; its name goes.
    fn remove(&self, shard: &mut Shard, at: u32) -> Option<ObjectId> {
        let node = self.node(at);
        let next = node.next.load(Ordering::Relaxed);
        let head = self.head(node.hash(), shard);
        if head == at + 1 {
            self.set_head(node.hash(), next, shard);
        } else {
            let mut before = head.checked_sub(1)?;
            while self.node(before).next.load(Ordering::Relaxed) != at + 1 {
                before = self.node(before).next.load(Ordering::Relaxed).checked_sub(1)?;
            }
            self.node(before).next.store(next, Ordering::Relaxed);
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: nobody uses the node (its caller has checked), it is in no chain any more, and we
        // hold the shard's lock.
        unsafe { (*node.label.get()).take() }.map(|label| label.to_id())
    }

    /// Whether the node is in a chain and nobody uses it. Under the shard's lock nobody can begin to.
    fn is_unused(&self, at: u32) -> bool {
        let node = self.node(at);
        // SAFETY: called under the shard's lock only.
        let is_placed = unsafe { &*node.label.get() }.is_some();
        is_placed && node.refs.load(Ordering::SeqCst) == 0
    }

    fn evict(
        &self,
        shard: &mut Shard,
        clear: &impl Fn(u32, u64, &mut Object) -> bool,
        leaving: &mut Vec<u32>,
    ) -> Option<(u32, ObjectId)> {
        for _ in 0..2 * self.per_shard {
            let at = self.number(shard, shard.hand);
            shard.hand = (shard.hand + 1) % self.per_shard;
            let node = self.node(at);
            if !self.is_unused(at) {
                continue;
            }
            if node.marks.load(Ordering::Relaxed) == USED {
                node.marks.store(0, Ordering::Relaxed);
                continue;
            }
            if node.serial.try_run(|object| clear(at, node.hash(), object)).unwrap_or(false) {
                return Some((at, self.remove(shard, at)?));
            }
            if node.marks.swap(LEAVING, Ordering::Relaxed) != LEAVING {
                leaving.push(at);
            }
        }
        None
    }

    /// The object is leaving and nothing may keep it any more: it goes if so. Its name, if it went.
    pub(crate) fn finalize(
        &self,
        at: u32,
        clear: impl Fn(u32, u64, &mut Object) -> bool,
    ) -> Option<ObjectId> {
        let node = self.node(at);
        let mut shard = lock(self.shard_of(at));
        let is_leaving = node.marks.load(Ordering::Relaxed) & LEAVING != 0;
        if !is_leaving || !self.is_unused(at) {
            return None;
        }
        let went = node.serial.try_run(|object| clear(at, node.hash(), object)).unwrap_or(false);
        let id = went.then(|| self.remove(&mut shard, at))?;
        node.marks.store(0, Ordering::Relaxed);
        shard.free.push(at);
        id
    }

    /// Whether the object is leaving.
    pub(crate) fn is_leaving(&self, at: u32) -> bool {
        self.node(at).marks.load(Ordering::Relaxed) & LEAVING != 0
    }

    /// Uses every object in turn, a shard at a time.
    pub(crate) fn for_each<'a>(&'a self, mut visit: impl FnMut(InUse<'a>)) {
        for shard in &self.shards {
            let in_use: Vec<InUse<'a>> = {
                let shard = lock(shard);
                let placed = (0..shard.fresh).map(|nth| self.number(&shard, nth));
                // SAFETY: under the shard's lock.
                let placed = placed.filter(|at| unsafe { &*self.node(*at).label.get() }.is_some());
                placed.map(|at| self.use_again(at)).collect()
            };
            for each in in_use {
                visit(each);
                self.unuse(each);
            }
        }
    }

    /// Every chain leads to its objects, and to nothing else; for [`super::ObjectCache::validate`].
    pub(crate) fn validate(&self) -> Result<(), String> {
        let mut found = 0;
        for shard in &self.shards {
            let shard = lock(shard);
            for chain in 0..u64::from(self.heads_per_shard) {
                let any = chain | u64::from(shard.own) << 58;
                let mut next = self.head(any, &shard);
                while let Some(at) = next.checked_sub(1) {
                    let node = self.node(at);
                    // SAFETY: under the shard's lock.
                    let is_placed = unsafe { &*node.label.get() }.is_some();
                    if !is_placed || self.head_of(node.hash()) != self.head_of(any) {
                        return Err(format!("node {at} is in a chain that is not its own"));
                    }
                    found += 1;
                    if found > self.count() {
                        return Err("a chain goes round".into());
                    }
                    next = node.next.load(Ordering::Relaxed);
                }
            }
        }
        if found != self.count() {
            Err(format!("{found} objects found, {} counted", self.count()))
        } else {
            Ok(())
        }
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        for shard in &self.shards {
            let shard = lock(shard);
            for nth in 0..shard.fresh {
                // SAFETY: `fresh` has made this node, nobody can use it any more, and it goes once.
                unsafe { self.place_of(self.number(&shard, nth)).drop_in_place() };
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use blocker::{Name, Namespace};

    fn id(n: u32) -> ObjectId {
        ObjectId::new(Namespace::new("n").unwrap(), Name::new(format!("object {n}")).unwrap())
    }
    fn hash(n: u32) -> u64 {
        u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
    fn goes(_: u32, _: u64, _: &mut Object) -> bool {
        true
    }

    #[test]
    fn entering_a_full_index_evicts_what_nobody_asked_for() {
        let index = Index::new(3).unwrap();
        for n in 0..3 {
            let Entered::Placed { in_use, evicted: None } = index.enter(hash(n), &id(n), goes) else {
                panic!("there is room")
            };
            index.unuse(in_use);
        }
        let (held, _) = index.get(hash(0), &id(0)).unwrap();
        let Entered::Placed { in_use, evicted } = index.enter(hash(3), &id(3), goes) else {
            panic!("one goes")
        };
        assert_eq!(evicted, Some(id(1)));
        index.unuse(in_use);
        assert!(index.get(hash(1), &id(1)).is_none());
        assert_eq!(index.id(held), id(0));
        index.validate().unwrap();
        assert_eq!(index.count(), 3);
    }

    #[test]
    fn what_is_dirty_leaves_later_or_stays_if_it_is_asked_for() {
        let index = Index::new(2).unwrap();
        for n in 0..2 {
            let Entered::Placed { in_use, .. } = index.enter(hash(n), &id(n), goes) else { panic!("room") };
            index.unuse(in_use);
        }
        let Entered::Full { leaving } = index.enter(hash(2), &id(2), |_, _, _| false) else {
            panic!("none goes")
        };
        assert_eq!(leaving, [0, 1]);
        let (in_use, was_leaving) = index.get(hash(0), &id(0)).unwrap();
        assert!(was_leaving && !index.is_leaving(0));
        index.unuse(in_use);
        assert_eq!(index.finalize(0, goes), None, "it stays");
        assert_eq!(index.finalize(1, goes), Some(id(1)));
        assert!(matches!(index.enter(hash(2), &id(2), goes), Entered::Placed { evicted: None, .. }));
        index.validate().unwrap();
    }
}
