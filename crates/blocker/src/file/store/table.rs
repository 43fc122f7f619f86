//! The table of objects in memory: found by name, loaded from disk the first time, closed to make room.
//!
//! A shard's lock guards which objects there are, an object's own lock what is known of it. An object
//! may leave only while nobody works on it: its reference count tells, and whoever does without a count
//! of its own keeps the shard's lock, shared, meanwhile.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{SHARDS, Store, Table, count};
use crate::error::{Error, Result};
use crate::file::object::{Object, State};
use crate::file::path;
use crate::name::{Namespace, ObjectId};
use crate::request::Scope;

impl Store {
    pub(super) fn shard(&self, id: &ObjectId) -> &RwLock<Table> {
        // The map hashes properly; to spread objects over a few locks the end of the name will do.
        let name = id.name.as_bytes();
        let last = name.last().copied().unwrap_or(0);
        &self.shards[(usize::from(last) ^ name.len()) % SHARDS]
    }

    /// The object if it is in memory.
    pub(in crate::file) fn known(&self, id: &ObjectId) -> Option<Arc<Object>> {
        let object = Arc::clone(self.shard(id).read().get(id)?);
        self.note_use(&object);
        Some(object)
    }

    pub(super) fn note_use(&self, object: &Object) {
        // Written only when it changes: a hit must not write what every hit writes.
        let now = self.evictions.load(Ordering::Relaxed);
        if object.used.load(Ordering::Relaxed) != now {
            object.used.store(now, Ordering::Relaxed);
        }
    }

    pub(super) fn object(&self, id: &ObjectId) -> Result<Arc<Object>> {
        if let Some(object) = self.known(id) {
            return Ok(object);
        }
        self.make_room(id)?;
        let object = || Arc::new(Object::new(id.clone(), self.path_of(id)));
        Ok(Arc::clone(self.shard(id).write().entry(id.clone()).or_insert_with(object)))
    }

    pub(super) fn namespace_dir(&self, namespace: &Namespace) -> PathBuf {
        path::encode(&self.root.join("objects"), namespace.as_bytes(), path::NAMESPACE_SUFFIX)
    }

    fn path_of(&self, id: &ObjectId) -> PathBuf {
        path::encode(&self.namespace_dir(&id.namespace), id.name.as_bytes(), path::OBJECT_SUFFIX)
    }

    /// Closes the files that were used least, if as many are open as may be. What a closed object has
    /// not written is written first: its version must not fall back.
    fn make_room(&self, id: &ObjectId) -> Result<()> {
        let shard_max = self.config.open_files_max.div_ceil(SHARDS).max(2);
        let shard = self.shard(id);
        let mut oldest: Vec<Arc<Object>> = {
            let shard = shard.read();
            if shard.len() < shard_max {
                return Ok(());
            }
            shard.values().cloned().collect()
        };
        count(&self.evictions);
        oldest.sort_by_key(|object| object.used.load(Ordering::Relaxed));
        oldest.truncate(shard_max.div_ceil(4));
        for object in oldest {
            // An object that cannot be synced stays, and says so to whoever flushes it.
            if self.sync_object(&object, true).is_err() {
                continue;
            }
            let mut shard = shard.write();
            // Two: the table's and ours. More: someone is at work on it. (Who works on it under the
            // shard's lock has let go by now.)
            if Arc::strong_count(&object) == 2 && !object.unsynced.load(Ordering::Acquire) {
                shard.remove(&object.id);
            }
        }
        if shard.read().len() >= 4 * shard_max {
            return Err(Error::Retryable("too many objects are in use at once".into()));
        }
        Ok(())
    }

    /// The object's state, loaded, shared.
    pub(super) fn loaded<'a>(&self, object: &'a Object) -> Result<RwLockReadGuard<'a, State>> {
        loop {
            let state = object.state.read();
            if state.loaded {
                return Ok(state);
            }
            drop(state);
            object.load(&mut object.state.write(), &*self.disk, self.version_floor)?;
        }
    }

    pub(super) fn loaded_mut<'a>(&self, object: &'a Object) -> Result<RwLockWriteGuard<'a, State>> {
        let mut state = object.state.write();
        object.load(&mut state, &*self.disk, self.version_floor)?;
        Ok(state)
    }

    /// Enters the object among those with something to store. Under its lock.
    pub(super) fn mark_unsynced(&self, object: &Arc<Object>) {
        if !object.unsynced.swap(true, Ordering::AcqRel) {
            self.unsynced.lock().insert(object.id.clone(), Arc::clone(object));
        }
    }

    /// Lets go of a namespace's open files, having stored what they hold.
    pub(in crate::file) fn detach(&self, namespace: &Namespace) -> Result<()> {
        self.flush(&Scope::Namespace(namespace.clone()))?;
        for shard in &self.shards {
            let objects: Vec<_> =
                shard.read().values().filter(|object| object.id.namespace == *namespace).cloned().collect();
            for object in objects {
                self.sync_object(&object, true)?;
                let mut shard = shard.write();
                if Arc::strong_count(&object) == 2 && !object.unsynced.load(Ordering::Acquire) {
                    shard.remove(&object.id);
                }
            }
        }
        Ok(())
    }

    pub(in crate::file) fn open_count(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read().len() as u64).sum()
    }

    pub(in crate::file) fn unsynced_count(&self) -> u64 {
        self.unsynced.lock().len() as u64
    }
}
