//! Storing acknowledged changes: first the object's file, then the directories that lead to the
//! file; or many objects together, by a sync of the file system.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::file::object::Object;
use crate::file::store::Store;
use crate::{Durability, Error, FlushReply, Result, Scope};

/// The number of objects from which one sync of everything is cheaper than a sync of each.
const TOGETHER_MIN: usize = 32;

impl Store {
    pub(super) fn sync_object(&self, object: &Arc<Object>, with_version: bool) -> Result<()> {
        self.trim(object)?;
        self.counters.syncs.increment();
        object.sync(with_version)?;
        let objects = self.root.join("objects");
        for dir in object.path.ancestors().skip(1).take_while(|dir| dir.starts_with(&objects)) {
            self.sync_dir(dir)?;
        }
        self.forget_synced(object);
        Ok(())
    }

    /// Removes the object from the unsynced objects, unless a concurrent change has made it
    /// unsynced again: that change has added it, or will add it.
    fn forget_synced(&self, object: &Object) {
        let mut unsynced = self.unsynced.lock();
        if !object.unsynced.load(Ordering::Acquire) {
            unsynced.remove(&object.id);
        }
    }

    /// Truncates bytes that a failed change has left beyond an object's end: the stored file must
    /// end there too.
    fn trim(&self, object: &Object) -> Result<()> {
        if !object.state.read().excess || object.state.write().trim() {
            return Ok(());
        }
        let text = format!("{} could not be truncated after a failed write", object.path.display());
        Err(Error::NotStored(text.into()))
    }

    /// Stores several objects, together if there are many. Continues after an error.
    ///
    /// # Errors
    /// Returns the first error.
    pub(super) fn sync_many(&self, objects: &[Arc<Object>], with_version: bool) -> Result<()> {
        if objects.len() >= TOGETHER_MIN {
            let _turn = self.turn.lock();
            // The error may concern any file of the file system, so each file is then synced
            // individually.
            if self.sync_together(objects, with_version).unwrap_or(false) {
                let lost = objects.iter().map(|object| object.check_not_lost());
                return lost.fold(Ok(()), Result::and);
            }
        }
        let synced = objects.iter().map(|object| self.sync_object(object, with_version));
        synced.fold(Ok(()), Result::and)
    }

    /// Stores objects, and every directory, by syncs of the whole file system: one for the data,
    /// then one for the headers. Returns whether this is possible here. Concurrent changes
    /// continue, and are not stored. The caller holds the lock `turn`.
    ///
    /// # Errors
    /// Returns an error if a sync failed, for any file: each file must then be synced by itself.
    pub(super) fn sync_together(&self, objects: &[Arc<Object>], with_version: bool) -> io::Result<bool> {
        let dirs_before = self.unsynced_dirs.lock().last();
        let snapshots: Vec<_> =
            objects.iter().filter_map(|object| Some((object, object.snapshot()?))).collect();
        self.counters.syncs.increment();
        if !self.disk.sync_all()? {
            return Ok(false);
        }
        let mut has_written = false;
        for (object, snapshot) in &snapshots {
            has_written |= object.write_slot_of(snapshot, with_version, || self.mark_unsynced(object))?;
        }
        if has_written {
            self.counters.syncs.increment();
            self.disk.sync_all()?;
        }
        for (object, snapshot) in &snapshots {
            object.note_stored(snapshot);
            self.forget_synced(object);
        }
        self.unsynced_dirs.lock().note_all_stored(dirs_before);
        // The other objects are handled individually: an object that has lost data reports the
        // loss, and one with bytes beyond its end is truncated first.
        Ok(objects.len() == snapshots.len())
    }

    /// Stores a directory's entries, if any are unstored. Until this is done, the directory stays
    /// in the unsynced set, so that no other thread assumes that it is stored.
    pub(super) fn sync_dir(&self, dir: &Path) -> Result<()> {
        let Some(last_change) = self.unsynced_dirs.lock().last_change(dir) else { return Ok(()) };
        self.counters.syncs.increment();
        match self.disk.sync_dir(dir) {
            // The directory was removed after its entries, so nothing is left to store.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::NotStored(format!("sync of {}: {error}", dir.display()).into()))
            }
            _ => {
                self.unsynced_dirs.lock().note_stored(dir, last_change);
                Ok(())
            }
        }
    }

    /// Records that the entry `path` has been created, replaced or removed.
    pub(super) fn entry_changed(&self, path: &Path) {
        self.unsynced_dirs.lock().entry_changed(path);
    }

    pub(super) fn unsynced_dirs(&self) -> Vec<PathBuf> {
        self.unsynced_dirs.lock().paths()
    }

    pub(in crate::file) fn flush(&self, scope: &Scope) -> Result<FlushReply> {
        self.check_open()?;
        // All changes of a domain are in its namespace, so the namespace is flushed.
        let wider = match scope {
            Scope::Domain(namespace, _) => Scope::Namespace(namespace.clone()),
            scope => scope.clone(),
        };
        let mut objects: Vec<_> = {
            let unsynced = self.unsynced.lock();
            unsynced.values().filter(|object| wider.covers(&object.id, None)).cloned().collect()
        };
        // The order is the same in every run, so that a failure can be replayed.
        objects.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        let mut synced = self.sync_many(&objects, false);
        // A concurrent flush may find an object clean while its directory is not yet stored.
        for dir in self.unsynced_dirs() {
            synced = synced.and(self.sync_dir(&dir));
        }
        synced.map(|()| FlushReply::new(Durability::Stored))
    }
}

/// Unstored directories, each with the number of its last change. A number is never reused: a sync
/// that began before a change must not count as covering it, even if another sync has removed the
/// directory from the list in between.
#[derive(Default)]
pub(in crate::file) struct UnsyncedDirs {
    /// In the same order in every run, as the objects of a flush.
    dirs: BTreeMap<PathBuf, u64>,
    last: u64,
}

impl UnsyncedDirs {
    /// Records that the entry `path` has changed, which makes its directory unsynced.
    pub(super) fn entry_changed(&mut self, path: &Path) {
        if let Some(dir) = path.parent() {
            self.last += 1;
            self.dirs.insert(dir.to_path_buf(), self.last);
        }
    }

    /// Returns the number of the last unstored change of `dir`.
    pub(super) fn last_change(&self, dir: &Path) -> Option<u64> {
        self.dirs.get(dir).copied()
    }

    /// Returns the number of the last change of any directory.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Records that changes of `dir` up to `number` are stored.
    pub(super) fn note_stored(&mut self, dir: &Path, number: u64) {
        if self.dirs.get(dir).is_some_and(|last| *last <= number) {
            self.dirs.remove(dir);
        }
    }

    /// Records that changes of all directories up to `number` are stored.
    pub(super) fn note_all_stored(&mut self, number: u64) {
        self.dirs.retain(|_, last| *last > number);
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.dirs.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_covers_what_came_before_it_and_no_more() {
        let (dir, entry) = (Path::new("d"), Path::new("d/a"));
        let mut dirs = UnsyncedDirs::default();
        dirs.entry_changed(entry);
        let begun = dirs.last_change(dir).unwrap();
        dirs.entry_changed(entry);
        dirs.note_stored(dir, begun);
        assert_eq!(dirs.paths(), [dir], "changed while it was being synced");
        let begun = dirs.last_change(dir).unwrap();
        dirs.note_stored(dir, begun);
        assert!(dirs.paths().is_empty());
    }

    #[test]
    fn directories_are_stored_in_the_same_order_in_every_run() {
        let mut dirs = UnsyncedDirs::default();
        for dir in ["c", "e", "a", "d", "b"] {
            dirs.entry_changed(&Path::new(dir).join("x"));
        }
        assert_eq!(dirs.paths(), ["a", "b", "c", "d", "e"].map(Path::new));
    }

    #[test]
    fn a_sync_that_comes_late_covers_no_change_after_its_beginning() {
        let (dir, entry) = (Path::new("d"), Path::new("d/a"));
        let mut dirs = UnsyncedDirs::default();
        dirs.entry_changed(entry);
        // Two threads sync the directory; one ends, the directory changes, the other ends.
        let (one, two) = (dirs.last_change(dir).unwrap(), dirs.last_change(dir).unwrap());
        dirs.note_stored(dir, one);
        dirs.entry_changed(entry);
        dirs.note_stored(dir, two);
        assert_eq!(dirs.paths(), [dir]);
        let all = dirs.last();
        dirs.entry_changed(Path::new("e/a"));
        dirs.note_all_stored(all);
        assert_eq!(dirs.paths(), [Path::new("e")]);
    }
}
