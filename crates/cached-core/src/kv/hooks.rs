//! The hooks that observe changes. They are added and removed while the store is in use.
//!
//! Each change is reported under the lock of the key's hash bucket. So a thread that adds a hook and
//! then [scans](super::Kv::scan) the store misses nothing: a change precedes the scan of its hash
//! bucket, which sees the result, or follows it, and is reported.
//!
//! | operation | reported as |
//! |---|---|
//! | a store, an import, a value created by a fetch | [`Stored`](Change::Stored) |
//! | arithmetic, in place or in a new entry | [`Stored`](Change::Stored); a new expiry also as [`Touched`](Change::Touched) |
//! | a touch, the stale mark, the right to refresh an item | [`Touched`](Change::Touched) |
//! | a deletion | [`Deleted`](Change::Deleted), or [`Absent`](Change::Absent) if there is no item |
//! | an emptied value | [`Stored`](Change::Stored) |
//! | the removal of an item that has ended | [`Expired`](Change::Expired), [`Flushed`](Change::Flushed), [`Evicted`](Change::Evicted) |
//!
//! Not reported are a use of an item (its time, and that it has been read), and a flush: its items are
//! reported when they are removed, and [`Kv::flushes`](super::Kv::flushes) counts it. An operation that
//! changes nothing is not reported, except for a deletion without an item: a copy of the store may
//! still have the item.

use std::sync::Arc;

use super::Kv;
use super::inner::Inner;
use super::lock_ranks;
use super::request::{Change, ChangeHook};
use crate::sync::{AtomicU32, Mutex, Ordering, lock, thread_number};

/// The hooks of a store.
pub(super) struct ChangeHooks {
    /// The number of hooks. If there is none, changes read only this.
    count: AtomicU32,
    /// The hook of the configuration, which stays.
    configured: Option<Arc<dyn ChangeHook>>,
    /// Several copies of the list of other hooks, each of which is for some threads.
    added: Box<[HooksCopy]>,
}

/// A copy of the list, on a separate cache line.
#[repr(align(128))]
struct HooksCopy(Mutex<Vec<Arc<dyn ChangeHook>>>);

impl ChangeHooks {
    /// Returns hooks with `copies` copies of the list.
    pub(super) fn new(configured: Option<Arc<dyn ChangeHook>>, copies: usize) -> ChangeHooks {
        let copy = |number| HooksCopy(Mutex::ranked_nth(Vec::new(), &lock_ranks::HOOKS, number));
        ChangeHooks {
            count: AtomicU32::new(configured.is_some().into()),
            configured,
            added: (0..copies.max(1) as u32).map(copy).collect(),
        }
    }

    /// Returns whether there is a hook.
    #[inline]
    pub(super) fn exist(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Calls all hooks. The caller holds the lock of the key's hash bucket.
    #[cold]
    pub(super) fn call(&self, change: Change, key: &[u8], version: u64) {
        if let Some(hook) = &self.configured {
            hook.on_change(change, key, version);
        }
        let added = lock(&self.added[thread_number() % self.added.len()].0);
        added.iter().for_each(|hook| hook.on_change(change, key, version));
    }
}

/// A hook that was added to a store. It is removed when this is dropped.
#[must_use = "the hook is removed when this is dropped"]
pub struct AddedHook {
    inner: Arc<Inner>,
    hook: Arc<dyn ChangeHook>,
}

impl Kv {
    /// Adds a hook, which is called at every change that begins after this call, until the result is
    /// dropped.
    ///
    /// A change of an item that a later [`Kv::scan`] does not see is reported. See [`ChangeHook`].
    ///
    /// ```
    /// use cached_core::kv::{Change, ChangeHook, Kv};
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// #[derive(Default)]
    /// struct Count(AtomicU64);
    ///
    /// impl ChangeHook for Count {
    ///     fn on_change(&self, _change: Change, _key: &[u8], _version: u64) {
    ///         self.0.fetch_add(1, Ordering::Relaxed);
    ///     }
    /// }
    ///
    /// let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// let count = Arc::new(Count::default());
    /// let added = kv.add_change_hook(count.clone());
    /// kv.set(b"k", b"v")?;
    /// drop(added);
    /// kv.set(b"k", b"w")?;
    /// assert_eq!(count.0.load(Ordering::Relaxed), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_change_hook(&self, hook: Arc<dyn ChangeHook>) -> AddedHook {
        let hooks = &self.inner.change_hooks;
        hooks.added.iter().for_each(|copy| lock(&copy.0).push(hook.clone()));
        // A thread that locks a hash bucket after this one has unlocked it reads this value or a later one.
        hooks.count.fetch_add(1, Ordering::SeqCst);
        AddedHook { inner: self.inner.clone(), hook }
    }
}

impl Drop for AddedHook {
    /// Removes the hook. Calls of it have returned when this returns.
    fn drop(&mut self) {
        let hooks = &self.inner.change_hooks;
        hooks.count.fetch_sub(1, Ordering::SeqCst);
        for copy in &hooks.added {
            let mut added = lock(&copy.0);
            if let Some(at) = added.iter().position(|hook| Arc::ptr_eq(hook, &self.hook)) {
                added.swap_remove(at);
            }
        }
    }
}

impl std::fmt::Debug for AddedHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AddedHook")
    }
}
