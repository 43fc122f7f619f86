//! Making acknowledged changes stored: the object's file, then the directory that names it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Store, count};
use crate::error::{Error, Result};
use crate::file::object::Object;
use crate::order::Durability;
use crate::request::Scope;
use crate::response::FlushReply;

impl Store {
    pub(super) fn sync_object(&self, object: &Arc<Object>, with_version: bool) -> Result<()> {
        object.sync(with_version)?;
        count(&self.counters.syncs);
        if let Some(dir) = object.path.parent() {
            self.sync_dir(dir)?;
        }
        // Changed again meanwhile: then it has entered itself again, or will.
        let mut unsynced = self.unsynced.lock();
        if !object.unsynced.load(Ordering::Acquire) {
            unsynced.remove(&object.id);
        }
        Ok(())
    }

    /// Stores a directory's entries, if there is anything to store. It stays among the unsynced until
    /// that is done, so that nobody else takes it for stored meanwhile.
    pub(super) fn sync_dir(&self, dir: &Path) -> Result<()> {
        let Some(entered) = self.unsynced_dirs.lock().get(dir).copied() else { return Ok(()) };
        match self.disk.sync_dir(dir) {
            // Its entries were removed, and then it: nothing is left to store.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::NotStored(format!("sync of {}: {error}", dir.display()).into()))
            }
            _ => {
                let mut dirs = self.unsynced_dirs.lock();
                if dirs.get(dir) == Some(&entered) {
                    dirs.remove(dir);
                }
                Ok(())
            }
        }
    }

    pub(super) fn entry_changed(&self, path: &Path) {
        if let Some(dir) = path.parent() {
            *self.unsynced_dirs.lock().entry(dir.to_path_buf()).or_default() += 1;
        }
    }

    pub(super) fn unsynced_dirs(&self) -> Vec<PathBuf> {
        self.unsynced_dirs.lock().keys().cloned().collect()
    }

    pub(in crate::file) fn flush(&self, scope: &Scope) -> Result<FlushReply> {
        self.check_open()?;
        // A domain's changes are all in its namespace: flush that.
        let wider = match scope {
            Scope::Domain(namespace, _) => Scope::Namespace(namespace.clone()),
            scope => scope.clone(),
        };
        let objects: Vec<_> = {
            let unsynced = self.unsynced.lock();
            unsynced.values().filter(|object| wider.covers(&object.id, None)).cloned().collect()
        };
        let mut first_error = None;
        for object in objects {
            if let Err(error) = self.sync_object(&object, false) {
                first_error.get_or_insert(error);
            }
        }
        // A flush that runs beside another may find an object clean whose directory is not yet.
        for dir in self.unsynced_dirs() {
            if let Err(error) = self.sync_dir(&dir) {
                first_error.get_or_insert(error);
            }
        }
        first_error.map_or(Ok(FlushReply::new(Durability::Stored)), Err)
    }
}
