//! Names found on disk: the objects of a namespace in pages, and the namespaces.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::Store;
use crate::error::{Error, Result};
use crate::file::path;
use crate::name::{Name, Namespace, ObjectId};
use crate::order::Version;
use crate::request::{ListRequest, Scope};
use crate::response::{ListEntry, ListReply};

impl Store {
    pub(in crate::file) fn list(&self, request: &ListRequest, entries_max: usize) -> Result<ListReply> {
        self.check_open()?;
        let mut entries = Vec::new();
        let mut after = request.after.clone();
        loop {
            // One more than fits, to know whether there is more.
            let wanted = entries_max + 1 - entries.len();
            let names = self.names_after(&request.namespace, &request.prefix, after.as_ref(), wanted)?;
            let is_last = names.len() < wanted;
            after = names.last().cloned().or(after);
            for name in names {
                let id = ObjectId::new(request.namespace.clone(), name);
                if let Some((size_bytes, version)) = self.entry(&id)? {
                    entries.push(ListEntry::new(id.name, size_bytes, version));
                }
            }
            if is_last || entries.len() > entries_max {
                break;
            }
        }
        let has_more = entries.len() > entries_max;
        entries.truncate(entries_max);
        Ok(ListReply::new(entries, has_more))
    }

    /// Size and version of an object that is there. A tombstone that a claim has made needless goes.
    fn entry(&self, id: &ObjectId) -> Result<Option<(u64, Version)>> {
        let object = self.object(id)?;
        let needless = {
            let state = self.loaded(&object)?;
            if state.alive {
                return Ok(Some((state.size_bytes, state.version)));
            }
            let in_force = self.claims.read().in_force(id, None);
            state.file.is_some() && state.stamp.is_some_and(|stamp| stamp.epoch < in_force)
        };
        if needless {
            let mut state = object.state.write();
            if !state.alive && state.file.take().is_some() {
                // If it stays, it is found and removed another time.
                let _ = self.disk.unlink(&object.path);
                self.entry_changed(&object.path);
                state.stamp = None;
                object.reset_slot(None);
            }
        }
        Ok(None)
    }

    /// The first `count` names after `after`, in order. Reads the whole namespace's directory: the cost
    /// of a page is that of its namespace; the memory, that of the page.
    fn names_after(
        &self,
        namespace: &Namespace,
        prefix: &[u8],
        after: Option<&Name>,
        count: usize,
    ) -> Result<Vec<Name>> {
        let mut first = BTreeSet::new();
        self.walk(&self.namespace_dir(namespace), false, path::OBJECT_SUFFIX, &mut |name, _| {
            let is_wanted =
                name.starts_with(prefix) && after.is_none_or(|after| name.as_slice() > after.as_bytes());
            if is_wanted && (first.len() < count || first.last().is_some_and(|last| name < *last)) {
                first.insert(name);
                if first.len() > count {
                    first.pop_last();
                }
            }
        })?;
        first.into_iter().map(Name::new).collect()
    }

    /// Every name encoded below `dir`, and where the last piece of it lies.
    fn walk(
        &self,
        dir: &Path,
        last_is_dir: bool,
        suffix: &str,
        each: &mut dyn FnMut(Vec<u8>, PathBuf),
    ) -> Result<()> {
        let mut left = vec![(dir.to_path_buf(), String::new())];
        while let Some((dir, before)) = left.pop() {
            let listed = self.disk.read_dir(&dir, &mut |file_name, is_dir| match path::entry(
                &before,
                file_name,
                last_is_dir,
                is_dir,
                suffix,
            ) {
                Some(path::Entry::More(text)) => {
                    let file_name = String::from_utf8_lossy(file_name);
                    left.push((dir.join(&*file_name), text));
                }
                Some(path::Entry::Last(text)) => {
                    if let Some(name) = path::decode(&text) {
                        each(name, dir.join(&*String::from_utf8_lossy(file_name)));
                    }
                }
                None => {}
            });
            listed.map_err(|error| Error::from_io(&error, "listing a namespace"))?;
        }
        Ok(())
    }

    /// The namespaces that have a directory, or a claim.
    pub(in crate::file) fn namespaces(&self) -> Result<Vec<Namespace>> {
        self.check_open()?;
        let mut names = BTreeSet::new();
        self.walk(&self.root.join("objects"), true, path::NAMESPACE_SUFFIX, &mut |name, _| {
            names.insert(name);
        })?;
        for (scope, _, _) in self.claims.read().iter() {
            match scope {
                Scope::Namespace(namespace) | Scope::Domain(namespace, _) => {
                    names.insert(namespace.as_bytes().to_vec())
                }
                Scope::Object(object) => names.insert(object.namespace.as_bytes().to_vec()),
                Scope::All => false,
            };
        }
        names.into_iter().map(Namespace::new).collect()
    }
}
