//! The table of objects in memory: found by name, loaded from disk at the first use, closed to
//! limit open files.
//!
//! A shard's lock guards the set of objects, an object's own lock its state. An object may leave
//! only while no thread uses it, which its reference count shows; a thread that uses an object
//! without counting a reference holds the shard's lock, shared, during that time.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{SHARDS, Shard, Store};
use crate::file::Access;
use crate::file::object::{Object, State};
use crate::file::path;
use crate::file::ranked::{ReadGuard, WriteGuard};
use crate::{Error, Namespace, ObjectId, Result, Scope};

impl Store {
    pub(super) fn shard(&self, id: &ObjectId) -> &Shard {
        // The map has a proper hash function. The end of the name suffices to spread objects over a
        // few locks.
        let name = id.name.as_bytes();
        let last = name.last().copied().unwrap_or(0);
        &self.shards[(usize::from(last) ^ name.len()) % SHARDS]
    }

    /// Returns the object if it is in memory.
    pub(in crate::file) fn known(&self, id: &ObjectId) -> Option<Arc<Object>> {
        let object = Arc::clone(self.shard(id).objects.read().get(id)?);
        self.note_use(&object);
        Some(object)
    }

    pub(super) fn note_use(&self, object: &Object) {
        // The field is written only when its value changes, so that hits do not all write one cache
        // line.
        let now = self.evictions.load(Ordering::Relaxed);
        if object.used.load(Ordering::Relaxed) != now {
            object.used.store(now, Ordering::Relaxed);
        }
    }

    pub(super) fn object(&self, id: &ObjectId) -> Result<Arc<Object>> {
        if let Some(object) = self.known(id) {
            return Ok(object);
        }
        self.make_room(self.shard(id))?;
        let shard = self.shard(id);
        let mut objects = shard.objects.write();
        let object = objects.entry(id.clone()).or_insert_with(|| {
            shard.entered.fetch_add(1, Ordering::Relaxed);
            Arc::new(Object::new(id.clone(), self.path_of(id)))
        });
        let object = Arc::clone(object);
        drop(objects);
        // A new object is the most recently used one.
        self.note_use(&object);
        Ok(object)
    }

    pub(super) fn namespace_dir(&self, namespace: &Namespace) -> PathBuf {
        path::encode(&self.root.join("objects"), namespace.as_bytes(), path::NAMESPACE_SUFFIX)
    }

    fn path_of(&self, id: &ObjectId) -> PathBuf {
        path::encode(&self.namespace_dir(&id.namespace), id.name.as_bytes(), path::OBJECT_SUFFIX)
    }

    /// If the limit of open files is reached, closes the least recently used files that have no
    /// unstored changes. If there are no such files, first stores all open files together.
    fn make_room(&self, shard: &Shard) -> Result<()> {
        let shard_max = self.config.open_files_max.div_ceil(SHARDS).max(2);
        if shard.objects.read().len() < shard_max || self.close_settled(shard, shard_max) {
            return Ok(());
        }
        {
            let _turn = self.turn.lock();
            // The previous holder of the lock may have stored these files as well.
            if !self.close_settled(shard, shard_max) {
                let unsettled = self.unsettled();
                // An object that cannot be synced stays, and its flush reports the error.
                if !self.sync_together(&unsettled, true).unwrap_or(false) {
                    let here = unsettled.iter().filter(|object| std::ptr::eq(self.shard(&object.id), shard));
                    for object in here.take(shard_max.div_ceil(4)) {
                        let _ = self.sync_object(object, true);
                    }
                }
            }
        }
        self.close_settled(shard, shard_max);
        if shard.objects.read().len() >= 4 * shard_max {
            return Err(Error::Retryable("too many objects are in use at once".into()));
        }
        Ok(())
    }

    /// Returns the objects in memory with unstored changes or in use.
    pub(super) fn unsettled(&self) -> Vec<Arc<Object>> {
        let mut unsettled = Vec::new();
        for shard in &self.shards {
            let objects = shard.objects.read();
            unsettled.extend(objects.values().filter(|object| !object.is_settled()).cloned());
        }
        // The order is the same in every run, so that a failure can be replayed.
        unsettled.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        unsettled
    }

    /// Closes up to a quarter of a shard's files: the least recently used ones without unstored
    /// changes. Returns whether the shard is below its limit now.
    fn close_settled(&self, shard: &Shard, shard_max: usize) -> bool {
        let mut objects = shard.objects.write();
        if objects.len() < shard_max {
            return true;
        }
        self.evictions.fetch_add(1, Ordering::Relaxed);
        // One reference belongs to the table; more references mean that a thread uses the object.
        // (A thread that used the object under the shard's lock has finished by now.)
        let idle = objects.values().filter(|object| Arc::strong_count(object) == 1 && object.is_settled());
        let mut oldest: Vec<_> =
            idle.map(|object| (object.used.load(Ordering::Relaxed), object.id.clone())).collect();
        oldest.sort_unstable();
        for (_, id) in oldest.iter().take(shard_max.div_ceil(4)) {
            objects.remove(id);
        }
        objects.len() < shard_max
    }

    /// Returns the object's state, loaded and locked shared.
    pub(super) fn loaded<'a>(&self, object: &'a Object) -> Result<ReadGuard<'a, State>> {
        self.loaded_by(object, |object| object.state.read())
    }

    /// Returns the object's state, loaded and locked by `lock`.
    pub(super) fn loaded_by<'a>(
        &self,
        object: &'a Object,
        lock: impl Fn(&'a Object) -> ReadGuard<'a, State>,
    ) -> Result<ReadGuard<'a, State>> {
        loop {
            let state = lock(object);
            if state.loaded {
                return Ok(state);
            }
            drop(state);
            self.load(object, &mut object.state.write_pair())?;
        }
    }

    pub(super) fn loaded_mut<'a>(&self, object: &'a Object) -> Result<WriteGuard<'a, State>> {
        let mut state = object.state.write();
        self.load(object, &mut state)?;
        Ok(state)
    }

    pub(super) fn load(&self, object: &Object, state: &mut State) -> Result<()> {
        if state.loaded {
            return Ok(());
        }
        if object.load(state, &*self.disk, self.version_floor)? {
            self.counters.copies_damaged.increment();
        }
        if object.lost.load(Ordering::Acquire) && self.config.access != Access::Read {
            // An earlier process has lost data, and this one has not served the object yet.
            return self.renew(object, state).inspect_err(|_| state.loaded = false);
        }
        Ok(())
    }

    /// Adds the object to the unsynced ones. The caller holds the object's lock.
    pub(super) fn mark_unsynced(&self, object: &Arc<Object>) {
        if !object.unsynced.swap(true, Ordering::AcqRel) {
            self.unsynced.lock().insert(object.id.clone(), Arc::clone(object));
        }
    }

    /// Closes a namespace's open files, after storing their changes.
    pub(in crate::file) fn detach(&self, namespace: &Namespace) -> Result<()> {
        self.flush(&Scope::Namespace(namespace.clone()))?;
        self.names.lock().forget(namespace);
        for shard in &self.shards {
            let objects: Vec<_> = {
                let objects = shard.objects.read();
                let of_it = objects.values().filter(|object| object.id.namespace == *namespace);
                of_it.filter(|object| !object.is_settled()).cloned().collect()
            };
            self.sync_many(&objects, true)?;
            drop(objects);
            shard.objects.write().retain(|_, object| {
                let is_idle = Arc::strong_count(object) == 1 && object.is_settled();
                object.id.namespace != *namespace || !is_idle
            });
        }
        Ok(())
    }

    pub(in crate::file) fn open_count(&self) -> u64 {
        self.shards.iter().map(|shard| shard.objects.read().len() as u64).sum()
    }

    pub(in crate::file) fn unsynced_count(&self) -> u64 {
        self.unsynced.lock().len() as u64
    }
}
