//! The index of objects: a bounded number of nodes, looked up by name.
//!
//! ```text
//!  heads   ┌────┬────┬─ ─    the first node of each chain, twice as many as nodes or more
//!          └─┬──┴────┴─ ─
//!            v       line 0                     1                        2            3, 4
//!  nodes   ┌──────────────────────┬─────────────────────────┬────────────────────┬──────────────┐
//!          │ hash, chain, name    │ name, executor, slots   │ slots, size        │ not needed   │
//!          └──────────────────────┴─────────────────────────┴────────────────────┴─ by a read ──┘
//! ```
//! A lookup waits for memory twice before it has the object's slots: for the head, and for the
//! node, whose lines are prefetched together. Both arrays lie in the same mapping, which is touched
//! as objects are added. Every lookup accesses both at random places, so the index asks for huge
//! pages, whatever the setting for the buckets.
//!
//! The index is sharded by the hash of the name, with a lock for each shard. The lock is held until
//! the object's exclusive section has begun ([`Index::enter_section`]) or its use has been counted.
//! A section keeps an object in the index just as a use does, because an evicting thread must enter
//! the section first.
//!
//! Adding to a full shard evicts another object: a hand goes round the nodes and takes the first
//! one that is not in use, has nothing that the store lacks, and has not been looked up since the
//! hand passed it (CLOCK). An object that would be evicted but is dirty or busy is marked
//! *leaving*: its flush is expedited, and it is evicted afterwards. If it is looked up in the
//! meantime, it stays.
//!
//! Lock order: shard → (try) the object's exclusive section → {eviction queue, dirty queue, free
//! stack}. No shard is locked in an object's exclusive section.

mod node;

use blocker::ObjectId;

use self::node::PackedName;
use super::Object;
use crate::arena::{Memory, prefetch};
use crate::ensure;
use crate::object::control::records::NamespaceTable;
use crate::object::lock_ranks;
use crate::sync::{Mutex, Ordering, lock};

pub(crate) use node::InUse;
use node::{Found, LEAVING, Node, USED};

const SHARD_NODES_MIN: u32 = 1024;
const SHARDS_MAX: u32 = 64;
const LINE_BYTES: usize = 64;
/// The number of cache lines of a node that a read needs.
const NODE_LINES_READ: usize = 3;

/// All objects.
pub(crate) struct Index {
    shards: Box<[Mutex<Shard>]>,
    /// The heads of all chains (the first node of each, plus one), followed by all nodes. A head is
    /// accessed under its shard's lock. A node is initialised under that lock when it is first
    /// taken, before any other thread has its number.
    memory: Memory,
    nodes_from: usize,
    heads_per_shard: u32,
    per_shard: u32,
    /// Each record counts the objects of its namespace.
    namespaces: NamespaceTable,
}

#[repr(align(64))]
struct Shard {
    own: u32,
    free: Vec<u32>,
    /// The number of the shard's nodes that were ever used.
    fresh: u32,
    hand: u32,
}

/// The result of looking up or adding an object.
pub(crate) enum Entered<'a> {
    /// The object was in the index.
    Found(InUse<'a>),
    /// The object was added; another object may have been evicted for it.
    Placed { in_use: InUse<'a>, evicted: Option<ObjectId> },
    /// No object could be evicted; the returned ones could if they were flushed, and are marked as
    /// leaving.
    Full { leaving: Vec<u32> },
}

impl Index {
    /// Creates an index of `count` nodes, for objects of these namespaces.
    ///
    /// # Errors
    /// Errors of the system, if it refuses the memory.
    pub(crate) fn new(count: u32, namespaces: &NamespaceTable) -> std::io::Result<Self> {
        let shards = 1u32 << (count / SHARD_NODES_MIN).clamp(1, SHARDS_MAX).ilog2();
        let per_shard = count.div_ceil(shards);
        let heads_per_shard = (per_shard * 2).next_power_of_two();
        let shard =
            |own: u32| Mutex::ranked(Shard { own, free: Vec::new(), fresh: 0, hand: 0 }, &lock_ranks::INDEX);
        let heads = shards as usize * heads_per_shard as usize;
        let nodes_from = (heads * size_of::<u32>()).next_multiple_of(LINE_BYTES);
        let bytes = nodes_from + shards as usize * per_shard as usize * size_of::<Node>();
        Ok(Self {
            shards: (0..shards).map(shard).collect(),
            memory: Memory::map(bytes, true)?,
            nodes_from,
            heads_per_shard,
            per_shard,
            namespaces: namespaces.clone(),
        })
    }

    /// Returns the number of objects in the index.
    pub(crate) fn count(&self) -> u64 {
        self.namespaces.records().map(|record| record.objects.load(Ordering::Relaxed)).sum()
    }

    /// Returns the number of the namespace of the object in the node `at`.
    #[inline]
    pub(crate) fn namespace_of(&self, at: u32) -> u16 {
        self.node(at).namespace.load(Ordering::Relaxed) as u16
    }

    fn place_of(&self, at: u32) -> *mut Node {
        debug_assert!(at as usize / self.shards.len() < self.per_shard as usize);
        // SAFETY: from `nodes_from` on, the mapping has room for `per_shard` nodes of each shard.
        // `nodes_from` is a multiple of a node's alignment, and so is the start of the mapping.
        unsafe { self.memory.base().add(self.nodes_from).cast::<Node>().add(at as usize) }
    }

    /// Returns the node with this number, which an object has or had.
    #[inline]
    pub(crate) fn node(&self, at: u32) -> &Node {
        // SAFETY: a number is returned only after `fresh` has initialised the node, which stays
        // until `self` is dropped.
        unsafe { &*self.place_of(at) }
    }

    /// Returns the number of a shard's `nth` node. Numbers alternate between the shards, so that a
    /// few objects use dense memory.
    fn number(&self, shard: &Shard, nth: u32) -> u32 {
        nth * self.shards.len() as u32 + shard.own
    }

    /// Initialises a node that was never used, and returns its number.
    fn fresh(&self, shard: &mut Shard) -> Option<u32> {
        if shard.fresh == self.per_shard {
            return None;
        }
        let at = self.number(shard, shard.fresh);
        shard.fresh += 1;
        // SAFETY: the place lies within the mapping, and no other thread knows it yet, because this
        // thread holds the shard's lock.
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

    /// Returns a pointer to the head of a hash's chain.
    #[inline]
    fn head_of(&self, hash: u64) -> *mut u32 {
        let shard = self.shard_index(hash);
        let chain = hash as usize & (self.heads_per_shard as usize - 1);
        // SAFETY: both are below their bounds, so the head lies within the mapping.
        unsafe { self.memory.base().cast::<u32>().add(shard * self.heads_per_shard as usize + chain) }
    }

    /// Returns the first node of a chain, plus one.
    #[inline]
    fn head(&self, hash: u64, _shard: &Shard) -> u32 {
        // SAFETY: the head lies within the mapping, which was zeroed; the shard's lock, which the
        // owner of `_shard` holds, protects it.
        unsafe { *self.head_of(hash) }
    }

    fn set_head(&self, hash: u64, head: u32, _shard: &mut Shard) {
        // SAFETY: the same as in `head`.
        unsafe { *self.head_of(hash) = head };
    }

    /// Begins an exclusive section with the object of this hash, if there is one and no thread is
    /// inside. The caller compares the name, so that it can first prefetch the needed parts of the
    /// object.
    #[inline]
    pub(crate) fn enter_section(&self, hash: u64) -> Option<Found<'_>> {
        prefetch(self.head_of(hash));
        let shard = lock(self.shard(hash));
        let at = self.chain(hash, &shard).find(|at| self.node(*at).hash() == hash)?;
        let node = self.node(at);
        // The shard is still locked, so no thread can remove the object between the lookup and the
        // section.
        let section = node.serial.try_enter()?;
        drop(shard);
        Self::mark_used(node);
        Some(Found { section, node, at })
    }

    /// Returns the nodes of a hash's chain, and prefetches each.
    #[inline]
    fn chain(&self, hash: u64, shard: &Shard) -> impl Iterator<Item = u32> {
        let mut next = self.head(hash, shard);
        std::iter::from_fn(move || {
            let at = next.checked_sub(1)?;
            let place = self.place_of(at);
            (0..NODE_LINES_READ).for_each(|line| prefetch(place.wrapping_byte_add(line * LINE_BYTES)));
            next = self.node(at).next.load(Ordering::Relaxed);
            Some(at)
        })
    }

    /// Returns the name of the object in a node of this shard, if there is one.
    #[inline]
    fn name<'a>(&'a self, at: u32, _shard: &'a Shard) -> Option<&'a PackedName> {
        // SAFETY: the shard's lock, which the owner of `_shard` holds, protects the name: `place`
        // and `remove` borrow the shard exclusively, so they cannot write while the result lives.
        unsafe { &*self.node(at).name.get() }.as_ref()
    }

    /// Marks a node as looked up: it is no longer leaving.
    #[inline]
    fn mark_used(node: &Node) {
        if node.marks.load(Ordering::Relaxed) != USED {
            node.marks.store(USED, Ordering::Relaxed);
        }
    }

    /// Returns the object called `id`, and counts a use of it.
    pub(crate) fn get(&self, hash: u64, id: &ObjectId) -> Option<InUse<'_>> {
        let shard = lock(self.shard(hash));
        self.find(&shard, hash, id)
    }

    fn find(&self, shard: &Shard, hash: u64, id: &ObjectId) -> Option<InUse<'_>> {
        let matches = |at: &u32| {
            self.node(*at).hash() == hash && self.name(*at, shard).is_some_and(|name| name.matches(id))
        };
        let in_use = self.use_again(self.chain(hash, shard).find(matches)?);
        Self::mark_used(in_use.node);
        Some(in_use)
    }

    /// Adds a use of a node that is in use, or whose shard is locked.
    pub(crate) fn use_again(&self, at: u32) -> InUse<'_> {
        let node = self.node(at);
        node.refs.fetch_add(1, Ordering::Relaxed);
        InUse { node, at }
    }

    /// Begins a use of the node `at`, whatever object it has now; `None` if it has none.
    pub(crate) fn use_placed(&self, at: u32) -> Option<InUse<'_>> {
        let shard = lock(self.shard_of(at));
        self.name(at, &shard).map(|_| self.use_again(at))
    }

    /// Returns the name of the namespace of the object in the node `at`, if there is one.
    pub(crate) fn namespace_at(&self, at: u32) -> Option<Vec<u8>> {
        let shard = lock(self.shard_of(at));
        if at as usize / self.shards.len() >= shard.fresh as usize {
            return None;
        }
        self.name(at, &shard).map(|name| name.namespace().to_vec())
    }

    /// Returns the shard to which a node always belongs.
    fn shard_of(&self, at: u32) -> &Mutex<Shard> {
        &self.shards[at as usize & (self.shards.len() - 1)]
    }

    /// Ends a use.
    #[inline]
    pub(crate) fn unuse(&self, in_use: InUse<'_>) {
        // Sequentially consistent, like `is_unused`: if a thread found the node in use and waits, a
        // thread that looks for waiters after this sees it.
        in_use.node.refs.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns the name of a node that is in use.
    pub(crate) fn id(&self, in_use: InUse<'_>) -> ObjectId {
        debug_assert!(in_use.node.refs.load(Ordering::Relaxed) > 0);
        // SAFETY: the node is in use, so no thread writes its name.
        let name = unsafe { &*in_use.node.name.get() }.as_ref();
        name.expect("a node in use has a name").to_id()
    }

    /// Looks up the object or adds it; `namespace` is the number of its namespace. `clear` empties
    /// the object that is evicted for it.
    pub(crate) fn enter(
        &self,
        hash: u64,
        id: &ObjectId,
        namespace: u16,
        clear: impl Fn(u32, u64, &mut Object) -> bool,
    ) -> Entered<'_> {
        let mut guard = lock(self.shard(hash));
        let shard = &mut *guard;
        if let Some(in_use) = self.find(shard, hash, id) {
            return Entered::Found(in_use);
        }
        let mut leaving = Vec::new();
        let free = shard.free.pop().or_else(|| self.fresh(shard)).map(|at| (at, None));
        let Some((at, evicted)) = free.or_else(|| self.evict(shard, &clear, &mut leaving)) else {
            return Entered::Full { leaving };
        };
        self.place(shard, at, hash, PackedName::of(id), namespace);
        Entered::Placed { in_use: InUse { node: self.node(at), at }, evicted }
    }

    fn place(&self, shard: &mut Shard, at: u32, hash: u64, name: PackedName, namespace: u16) {
        let node = self.node(at);
        // SAFETY: the node is in no chain and not in use, and this thread holds the shard's lock.
        unsafe { *node.name.get() = Some(name) };
        node.hash.store(hash, Ordering::Relaxed);
        node.refs.store(1, Ordering::Relaxed);
        node.marks.store(USED, Ordering::Relaxed);
        node.next.store(self.head(hash, shard), Ordering::Relaxed);
        self.set_head(hash, at + 1, shard);
        node.namespace.store(namespace.into(), Ordering::Relaxed);
        self.namespaces.record(namespace).objects.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a node from its chain; returns its name.
    fn remove(&self, shard: &mut Shard, at: u32) -> Option<ObjectId> {
        let node = self.node(at);
        let next = node.next.load(Ordering::Relaxed);
        let before = self.chain(node.hash(), shard).take_while(|each| *each != at).last();
        match before {
            None => self.set_head(node.hash(), next, shard),
            Some(before) => self.node(before).next.store(next, Ordering::Relaxed),
        }
        self.namespaces.record(self.namespace_of(at)).objects.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: the node is not in use (the caller has checked), it is no longer in a chain, and
        // this thread holds the shard's lock.
        unsafe { (*node.name.get()).take() }.map(|name| name.to_id())
    }

    /// Returns whether the node is in a chain and not in use. Under the shard's lock no use can
    /// begin.
    fn is_unused(&self, at: u32, shard: &Shard) -> bool {
        self.name(at, shard).is_some() && self.node(at).refs.load(Ordering::SeqCst) == 0
    }

    fn evict(
        &self,
        shard: &mut Shard,
        clear: &impl Fn(u32, u64, &mut Object) -> bool,
        leaving: &mut Vec<u32>,
    ) -> Option<(u32, Option<ObjectId>)> {
        for _ in 0..2 * self.per_shard {
            let at = self.number(shard, shard.hand);
            shard.hand = (shard.hand + 1) % self.per_shard;
            let node = self.node(at);
            if !self.is_unused(at, shard) {
                continue;
            }
            if node.marks.load(Ordering::Relaxed) == USED {
                node.marks.store(0, Ordering::Relaxed);
                continue;
            }
            if node.serial.try_run(|object| clear(at, node.hash(), object)).unwrap_or(false) {
                return Some((at, self.remove(shard, at)));
            }
            if node.marks.swap(LEAVING, Ordering::Relaxed) != LEAVING {
                leaving.push(at);
            }
        }
        None
    }

    /// Evicts an object that is marked as leaving, if the object has become evictable. Returns
    /// the object's name if it was evicted.
    pub(crate) fn finalize(
        &self,
        at: u32,
        clear: impl Fn(u32, u64, &mut Object) -> bool,
    ) -> Option<ObjectId> {
        let node = self.node(at);
        let mut shard = lock(self.shard_of(at));
        let is_leaving = node.marks.load(Ordering::Relaxed) & LEAVING != 0;
        if !is_leaving || !self.is_unused(at, &shard) {
            return None;
        }
        let went = node.serial.try_run(|object| clear(at, node.hash(), object)).unwrap_or(false);
        let id = went.then(|| self.remove(&mut shard, at))?;
        node.marks.store(0, Ordering::Relaxed);
        shard.free.push(at);
        id
    }

    /// Returns whether the object is marked as leaving.
    pub(crate) fn is_leaving(&self, at: u32) -> bool {
        self.node(at).marks.load(Ordering::Relaxed) & LEAVING != 0
    }

    /// Calls `visit` with every object, which is in use during the call, a shard at a time.
    pub(crate) fn for_each<'a>(&'a self, mut visit: impl FnMut(InUse<'a>)) {
        for shard in &self.shards {
            let in_use: Vec<InUse<'a>> = {
                let shard = lock(shard);
                let nodes = (0..shard.fresh).map(|nth| self.number(&shard, nth));
                let placed = nodes.filter(|at| self.name(*at, &shard).is_some());
                placed.map(|at| self.use_again(at)).collect()
            };
            for each in in_use {
                visit(each);
                self.unuse(each);
            }
        }
    }

    /// Checks that every chain contains its objects, and nothing else; for
    /// [`crate::object::ObjectCache::validate`].
    pub(crate) fn validate(&self) -> Result<(), String> {
        let (mut found, count) = (0, self.count());
        for shard in &self.shards {
            let shard = lock(shard);
            for chain in 0..u64::from(self.heads_per_shard) {
                let any = chain | u64::from(shard.own) << 58;
                for at in self.chain(any, &shard) {
                    let is_placed = self.name(at, &shard).is_some();
                    let is_own = is_placed && self.head_of(self.node(at).hash()) == self.head_of(any);
                    ensure(is_own, || format!("node {at} is in a chain that is not its own"))?;
                    found += 1;
                    ensure(found <= count, || "a chain is a cycle".into())?;
                }
            }
        }
        ensure(found == count, || format!("{found} objects found, {count} counted"))
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        for shard in &self.shards {
            let shard = lock(shard);
            for nth in 0..shard.fresh {
                // SAFETY: `fresh` has initialised this node, no thread can use it any more, and it
                // is dropped only once.
                unsafe { self.place_of(self.number(&shard, nth)).drop_in_place() };
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
