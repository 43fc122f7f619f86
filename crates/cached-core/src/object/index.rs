//! The index of objects: a bounded number of preallocated nodes, found by name.
//!
//! Sharded by the name's hash; each shard has its own nodes, a chained table as large as they are many,
//! and one lock, held for a lookup. Entering a full shard succeeds by evicting: a hand goes round the
//! nodes and takes the first that nobody uses, that holds nothing the store lacks, and that has not been
//! asked for since the hand came by last (CLOCK). An object that would go but is dirty or busy is marked
//! *leaving*: its flush is hurried, and it goes when that is done; asked for meanwhile, it stays.
//!
//! Lock order: shard → (try) the object's turn → {queue, registry, free stack}. In an object's turn no
//! shard is locked.

use std::cell::UnsafeCell;
use std::sync::OnceLock;

use blocker::{Name, ObjectId};

use super::serial::Serial;
use super::state::Object;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, lock};

const CHUNK_NODES: usize = 256;
const SHARD_NODES_MIN: u32 = 1024;
const SHARDS_MAX: u32 = 64;
/// `Node::marks`.
const USED: u32 = 1;
const LEAVING: u32 = 2;

/// The place of one object.
pub(crate) struct Node {
    pub(crate) serial: Serial<Object>,
    hash: AtomicU64,
    /// Who uses it beside the index.
    refs: AtomicU32,
    marks: AtomicU32,
    /// The next of its chain, plus one; guarded by the shard's lock.
    next: AtomicU32,
    /// Written under the shard's lock while nobody uses the node; read under it, or while it is used.
    id: UnsafeCell<Option<ObjectId>>,
}

// SAFETY: all fields but `id` are `Sync`. `id` is written only by `Index::place` and `Index::remove`,
// under the shard's lock, when `refs` is 0 and the node is in no chain, so no reader exists; it is read
// under that lock or by holders of a count, who keep those two away.
unsafe impl Sync for Node {}

#[cfg(not(shuttle))]
const _: () = assert!(size_of::<Node>() <= 336);

impl Node {
    fn new() -> Self {
        Self {
            serial: Serial::new(Object::default()),
            hash: AtomicU64::new(0),
            refs: AtomicU32::new(0),
            marks: AtomicU32::new(0),
            next: AtomicU32::new(0),
            id: UnsafeCell::new(None),
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

/// All objects.
pub(crate) struct Index {
    shards: Box<[Mutex<Shard>]>,
    /// Nodes in chunks, made when first used.
    chunks: Box<[OnceLock<Box<[Node]>>]>,
    per_shard: u32,
    count: AtomicU64,
}

struct Shard {
    /// The first of each chain, plus one.
    heads: Box<[u32]>,
    free: Vec<u32>,
    /// Nodes from here on were never used.
    fresh: u32,
    hand: u32,
    first: u32,
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
    pub(crate) fn new(count: u32) -> Self {
        let shards = (count / SHARD_NODES_MIN).clamp(1, SHARDS_MAX);
        let shards = 1 << shards.ilog2();
        let per_shard = count.div_ceil(shards);
        let shard = |index: u32| {
            let heads = vec![0; per_shard.next_power_of_two() as usize].into_boxed_slice();
            Mutex::new(Shard { heads, free: Vec::new(), fresh: 0, hand: 0, first: index * per_shard })
        };
        let chunks = (u64::from(per_shard) * u64::from(shards)).div_ceil(CHUNK_NODES as u64);
        Self {
            shards: (0..shards).map(shard).collect(),
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            per_shard,
            count: AtomicU64::new(0),
        }
    }

    /// How many objects are known.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The node of this number.
    #[inline]
    pub(crate) fn node(&self, at: u32) -> &Node {
        let chunk = &self.chunks[at as usize / CHUNK_NODES];
        let chunk = chunk.get_or_init(|| (0..CHUNK_NODES).map(|_| Node::new()).collect());
        &chunk[at as usize % CHUNK_NODES]
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        &self.shards[(hash >> 58) as usize & (self.shards.len() - 1)]
    }

    fn chain_of(shard: &Shard, hash: u64) -> usize {
        hash as usize & (shard.heads.len() - 1)
    }

    /// The object called `id`, in use; and whether it was leaving.
    #[inline]
    pub(crate) fn get(&self, hash: u64, id: &ObjectId) -> Option<(InUse<'_>, bool)> {
        let shard = lock(self.shard(hash));
        self.find(&shard, hash, id)
    }

    fn find(&self, shard: &Shard, hash: u64, id: &ObjectId) -> Option<(InUse<'_>, bool)> {
        let mut next = shard.heads[Self::chain_of(shard, hash)];
        while let Some(at) = next.checked_sub(1) {
            let node = self.node(at);
            // SAFETY: we hold the shard's lock.
            if node.hash() == hash && unsafe { &*node.id.get() }.as_ref() == Some(id) {
                node.refs.fetch_add(1, Ordering::Relaxed);
                let marks = node.marks.load(Ordering::Relaxed);
                if marks != USED {
                    node.marks.store(USED, Ordering::Relaxed);
                }
                return Some((InUse { node, at }, marks & LEAVING != 0));
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
        unsafe { &*self.node(at).id.get() }.as_ref()?;
        Some(self.use_again(at))
    }

    /// The shard that a node belongs to, for ever.
    fn shard_of(&self, at: u32) -> &Mutex<Shard> {
        &self.shards[(at / self.per_shard) as usize]
    }

    /// Ends a use.
    #[inline]
    pub(crate) fn unuse(&self, in_use: InUse<'_>) {
        in_use.node.refs.fetch_sub(1, Ordering::Release);
    }

    /// The name of a node that is in use.
    pub(crate) fn id<'a>(&self, in_use: InUse<'a>) -> &'a ObjectId {
        debug_assert!(in_use.node.refs.load(Ordering::Relaxed) > 0);
        // SAFETY: the node is in use, so nobody writes its name.
        unsafe { &*in_use.node.id.get() }.as_ref().expect("a node in use has a name")
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
        let (at, evicted) = if let Some(at) = shard.free.pop() {
            (at, None)
        } else if shard.fresh < self.per_shard {
            shard.fresh += 1;
            (shard.first + shard.fresh - 1, None)
        } else {
            match self.evict(shard, &clear, &mut leaving) {
                Some((at, id)) => (at, Some(id)),
                None => return Entered::Full { leaving },
            }
        };
        // The name is copied: it must not keep a receive buffer alive.
        let name = Name::copy_from(id.name.as_bytes()).expect("it was a name before");
        self.place(shard, at, hash, ObjectId::new(id.namespace.clone(), name));
        Entered::Placed { in_use: InUse { node: self.node(at), at }, evicted }
    }

    fn place(&self, shard: &mut Shard, at: u32, hash: u64, id: ObjectId) {
        let node = self.node(at);
        // SAFETY: the node is in no chain and not in use, and we hold the shard's lock.
        unsafe { *node.id.get() = Some(id) };
        node.hash.store(hash, Ordering::Relaxed);
        node.refs.store(1, Ordering::Relaxed);
        node.marks.store(USED, Ordering::Relaxed);
        let chain = Self::chain_of(shard, hash);
        node.next.store(shard.heads[chain], Ordering::Relaxed);
        shard.heads[chain] = at + 1;
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a node out of its chain; its name goes.
    fn remove(&self, shard: &mut Shard, at: u32) -> Option<ObjectId> {
        let node = self.node(at);
        let chain = Self::chain_of(shard, node.hash());
        let next = node.next.load(Ordering::Relaxed);
        if shard.heads[chain] == at + 1 {
            shard.heads[chain] = next;
        } else {
            let mut before = shard.heads[chain].checked_sub(1)?;
            while self.node(before).next.load(Ordering::Relaxed) != at + 1 {
                before = self.node(before).next.load(Ordering::Relaxed).checked_sub(1)?;
            }
            self.node(before).next.store(next, Ordering::Relaxed);
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: nobody uses the node (its caller has checked), it is in no chain any more, and we
        // hold the shard's lock.
        unsafe { (*node.id.get()).take() }
    }

    /// Whether the node is in a chain and nobody uses it. Under the shard's lock nobody can begin to.
    fn is_unused(&self, at: u32) -> bool {
        let node = self.node(at);
        // SAFETY: called under the shard's lock only.
        let is_placed = unsafe { &*node.id.get() }.is_some();
        is_placed && node.refs.load(Ordering::Acquire) == 0
    }

    fn evict(
        &self,
        shard: &mut Shard,
        clear: &impl Fn(u32, u64, &mut Object) -> bool,
        leaving: &mut Vec<u32>,
    ) -> Option<(u32, ObjectId)> {
        for _ in 0..2 * self.per_shard {
            let at = shard.first + shard.hand;
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
                let placed = (shard.first..shard.first + shard.fresh).filter(|at| {
                    // SAFETY: under the shard's lock.
                    unsafe { &*self.node(*at).id.get() }.is_some()
                });
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
            for (chain, head) in shard.heads.iter().enumerate() {
                let mut next = *head;
                while let Some(at) = next.checked_sub(1) {
                    let node = self.node(at);
                    // SAFETY: under the shard's lock.
                    if unsafe { &*node.id.get() }.is_none() || Self::chain_of(&shard, node.hash()) != chain {
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

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use blocker::Namespace;

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
        let index = Index::new(3);
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
        assert_eq!(index.id(held), &id(0));
        index.validate().unwrap();
        assert_eq!(index.count(), 3);
    }

    #[test]
    fn what_is_dirty_leaves_later_or_stays_if_it_is_asked_for() {
        let index = Index::new(2);
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
