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
//! The index is sharded by the hash of the name, with a lock for each shard. A thread that adds,
//! removes, or begins to use an object holds the lock. A hit does not: it follows the chain, enters
//! the exclusive section of the node that it finds ([`Index::enter_section`]), and only there compares
//! the name, because the node may have got another object in the meantime. A section keeps an object
//! in the index just as a use does: a node gets and loses its name in the node's section. If a hit
//! misses an object because the chain changes at that moment, the caller looks again under the lock.
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

use std::sync::atomic::AtomicU32;

use blocker::ObjectId;

use self::node::PackedName;
use super::Object;
use crate::arena::{Memory, prefetch};
use crate::ensure;
use crate::object::control::records::NamespaceTable;
use crate::object::lock_ranks;
use crate::object::tasks::serial::ExclusiveSection;
use crate::sync::{Mutex, Ordering, lock};

pub(crate) use node::InUse;
use node::{Found, LEAVING, Node, USED};

const SHARD_NODES_MIN: u32 = 1024;
const SHARDS_MAX: u32 = 64;
const LINE_BYTES: usize = 64;
/// The number of cache lines of a node that a read needs.
const NODE_LINES_READ: usize = 3;
/// The maximum number of nodes that a hit looks at: a chain that changes under its eyes may have no end.
const NODES_LOOKED_AT_MAX: usize = 64;

/// All objects.
pub(crate) struct Index {
    shards: Box<[Mutex<Shard>]>,
    /// The heads of all chains (the first node of each, plus one), followed by all nodes. Chains are
    /// changed under their shard's lock. A node is initialised under that lock when it is first
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

    /// Returns the head of a hash's chain. It is not an atomic of `crate::sync`, because zeroed memory
    /// is none of shuttle's.
    #[inline]
    fn head(&self, hash: u64) -> &AtomicU32 {
        let shard = self.shard_index(hash);
        let chain = hash as usize & (self.heads_per_shard as usize - 1);
        // SAFETY: both are below their bounds, so the head lies within the mapping, which was zeroed and
        // has only atomics there.
        unsafe { &*self.memory.base().cast::<AtomicU32>().add(shard * self.heads_per_shard as usize + chain) }
    }

    /// Begins an exclusive section with a node that had an object of this hash when it was found; `None`
    /// if none was found, or a thread is inside. The caller compares the name, so that it can first
    /// prefetch the needed parts of the object.
    #[inline]
    pub(crate) fn enter_section(&self, hash: u64) -> Option<Found<'_>> {
        let mut looked_at = self.chain(hash).take(NODES_LOOKED_AT_MAX);
        let at = looked_at.find(|at| self.node(*at).hash() == hash)?;
        let node = self.node(at);
        let section = node.serial.try_enter()?;
        Self::mark_used(node);
        Some(Found { section, node, at })
    }

    /// Returns the nodes of a hash's chain, and prefetches each. Without the shard's lock, nodes of other
    /// chains may follow, or none.
    #[inline]
    fn chain(&self, hash: u64) -> impl Iterator<Item = u32> {
        // Acquire, here and for the next one: the thread that stored the number has seen the node
        // initialised.
        let mut next = self.head(hash).load(Ordering::Acquire);
        std::iter::from_fn(move || {
            let at = next.checked_sub(1)?;
            let place = self.place_of(at);
            (0..NODE_LINES_READ).for_each(|line| prefetch(place.wrapping_byte_add(line * LINE_BYTES)));
            next = self.node(at).next.load(Ordering::Acquire);
            Some(at)
        })
    }

    /// Returns the name of the object in a node of this shard, if there is one.
    #[inline]
    fn name<'a>(&'a self, at: u32, _shard: &'a Shard) -> Option<&'a PackedName> {
        // SAFETY: the owner of `_shard` holds the shard's lock, and `place` and `remove`, which alone write
        // names, borrow the shard exclusively, so they cannot write while the result lives.
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
        let in_use = self.use_again(self.chain(hash).find(matches)?);
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
        let free = self.free(shard).map(|(at, section)| (at, section, None));
        let Some((at, section, evicted)) = free.or_else(|| self.evict(shard, &clear, &mut leaving)) else {
            return Entered::Full { leaving };
        };
        self.place(shard, (at, section), hash, PackedName::of(id), namespace);
        Entered::Placed { in_use: InUse { node: self.node(at), at }, evicted }
    }

    /// Takes a node without an object, and enters its section. A hit may be inside one that had an object;
    /// it wakes the tasks that wait for a node when it leaves.
    fn free<'a>(&'a self, shard: &mut Shard) -> Option<(u32, ExclusiveSection<'a, Object>)> {
        let enter = |at: u32| Some((at, self.node(at).serial.try_enter()?));
        let found = shard.free.iter().enumerate().rev().find_map(|(nth, at)| Some((nth, enter(*at)?)));
        match found {
            Some((nth, entered)) => {
                shard.free.swap_remove(nth);
                Some(entered)
            }
            None => self.fresh(shard).and_then(enter),
        }
    }

    /// Gives a node to an object; the node's section ends.
    fn place(
        &self,
        _shard: &mut Shard,
        (at, _section): (u32, ExclusiveSection<'_, Object>),
        hash: u64,
        name: PackedName,
        namespace: u16,
    ) {
        let node = self.node(at);
        // SAFETY: the node is in no chain and not in use, and this thread holds the shard's lock and is in
        // the node's section.
        unsafe { *node.name.get() = Some(name) };
        node.hash.store(hash, Ordering::Relaxed);
        node.refs.store(1, Ordering::Relaxed);
        node.marks.store(USED, Ordering::Relaxed);
        node.namespace.store(namespace.into(), Ordering::Relaxed);
        let head = self.head(hash);
        node.next.store(head.load(Ordering::Relaxed), Ordering::Release);
        head.store(at + 1, Ordering::Release);
        self.namespaces.record(namespace).objects.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a node from its chain in the node's section; returns its name.
    fn remove(
        &self,
        _shard: &mut Shard,
        at: u32,
        _section: &ExclusiveSection<'_, Object>,
    ) -> Option<ObjectId> {
        let node = self.node(at);
        let next = node.next.load(Ordering::Relaxed);
        let before = self.chain(node.hash()).take_while(|each| *each != at).last();
        match before {
            None => self.head(node.hash()).store(next, Ordering::Release),
            Some(before) => self.node(before).next.store(next, Ordering::Release),
        }
        self.namespaces.record(self.namespace_of(at)).objects.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: the node is not in use (the caller has checked), and this thread holds the shard's lock
        // and is in the node's section.
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
    ) -> Option<(u32, ExclusiveSection<'_, Object>, Option<ObjectId>)> {
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
            if let Some(mut section) = node.serial.try_enter()
                && clear(at, node.hash(), section.value())
            {
                let evicted = self.remove(shard, at, &section);
                return Some((at, section, evicted));
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
        let mut section = node.serial.try_enter()?;
        if !clear(at, node.hash(), section.value()) {
            return None;
        }
        let id = self.remove(&mut shard, at, &section);
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
    #[inline]
    pub(crate) fn validate(&self) -> Result<(), String> {
        let (mut found, count) = (0, self.count());
        for shard in &self.shards {
            let shard = lock(shard);
            for chain in 0..u64::from(self.heads_per_shard) {
                let any = chain | u64::from(shard.own) << 58;
                for at in self.chain(any) {
                    let is_placed = self.name(at, &shard).is_some();
                    let is_own = is_placed && std::ptr::eq(self.head(self.node(at).hash()), self.head(any));
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

#[cfg(all(test, shuttle))]
mod shuttle_tests;
#[cfg(all(test, not(shuttle)))]
mod tests;
