//! Deletion of an item, and the variants that leave it stale or empty.

use super::link::{Inherited, Replaces};
use crate::KeyHash;
use crate::clock::Expiry;
use crate::kv::hook::Change;
use crate::kv::item::state;
use crate::kv::{DeleteOptions, DeleteOutcome, Kv, Miss, StoreMode, StoreOptions, StoreOutcome};
use crate::stores;

impl Kv {
    /// Deletes an item, or marks it stale, or empties it, depending on the options.
    ///
    /// ```
    /// use cached_core::kv::{Kv, DeleteOptions, DeleteOutcome};
    /// # let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// kv.set(b"k", b"v")?;
    /// let (_, cas) = kv.get_with_cas(b"k").expect("just set");
    /// let only_this = DeleteOptions { compare: Some(cas + 1), ..DeleteOptions::default() };
    /// assert_eq!(kv.delete(b"k", kv.hash(b"k"), &only_this), DeleteOutcome::Exists);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn delete(&self, key: &[u8], hash: KeyHash, options: &DeleteOptions) -> DeleteOutcome {
        let inner = &self.inner;
        loop {
            let now = inner.now();
            let locked = inner.index.shard(hash).lock(hash);
            let Ok(found) = inner.find(&locked, hash, key, now) else { return DeleteOutcome::NotFound };
            let item = found.item;
            if options.compare.is_some_and(|cas| cas != item.cas()) {
                return DeleteOutcome::Exists;
            }
            if options.clear_value {
                let (location, cas) = (found.location, item.cas());
                let key_binary = item.shape().fields().key_binary;
                drop(locked);
                match self.clear_value(key, hash, options, location, cas, key_binary) {
                    Some(outcome) => return outcome,
                    None => continue,
                }
            }
            if !options.invalidate {
                if inner.insight.sampler.takes(hash.0) {
                    inner.sample_delete(hash);
                }
                inner.remove(&locked, found, Change::Deleted);
                return DeleteOutcome::Done;
            }
            if let Some(expiry) = options.expiry
                && !inner.set_expiry(item, found.location, expiry)
            {
                drop(locked);
                match self.give_expiry_room(key, hash) {
                    Err(Miss::OutOfMemory) => return DeleteOutcome::OutOfMemory,
                    _ => continue,
                }
            }
            // In this order a restart finds no stale item with the CAS value that it had before.
            item.set_cas(inner.next_cas(&locked, options.new_cas));
            stores::fence();
            item.set_state(item.state() & !state::TOKEN_SENT | state::STALE);
            inner.notify(Change::Touched, key, item.cas());
            return DeleteOutcome::Done;
        }
    }

    /// Replaces the item at `location` with an empty one; `None` if it is no longer there.
    fn clear_value(
        &self,
        key: &[u8],
        hash: KeyHash,
        options: &DeleteOptions,
        location: u32,
        cas: u64,
        key_binary: bool,
    ) -> Option<DeleteOutcome> {
        let store = StoreOptions {
            mode: StoreMode::Set,
            client_flags: options.client_flags,
            expiry: options.expiry.unwrap_or(Expiry::NEVER),
            key_binary,
            // An emptied item keeps its CAS value; only marking it stale changes it.
            new_cas: options.new_cas.or((!options.invalidate).then_some(cas)),
            ..StoreOptions::default()
        };
        let Ok(reservation) = self.reserve_at_once(key, hash, 0, &store) else {
            return Some(DeleteOutcome::OutOfMemory);
        };
        let marks = if options.invalidate { state::STALE } else { 0 };
        let replaces = Replaces { location, cas, number: None, marks, inherited: Inherited::None };
        let outcome = reservation.commit_replacing(replaces)?;
        Some(match outcome {
            StoreOutcome::Stored { .. } => DeleteOutcome::Done,
            _ => DeleteOutcome::OutOfMemory,
        })
    }
}
