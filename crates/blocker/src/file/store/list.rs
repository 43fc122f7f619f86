//! Names found on disk: the objects of a namespace in pages, and the namespaces.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::Ordering;

use super::names::{self, Sorted, after};
use super::{Store, count};
use crate::error::{Error, Result};
use crate::file::Access;
use crate::file::disk::{Found, found};
use crate::file::object::{Object, check_header, check_len, foreign};
use crate::file::path;
use crate::file::slot::{HEADER_BYTES, data_at};
use crate::name::{Name, Namespace, ObjectId};
use crate::order::{Stamp, Version};
use crate::request::{ListRequest, Scope};
use crate::response::{ListEntry, ListReply};

/// What a name in a directory stands for.
enum Entry {
    Object { size_bytes: u64, version: Version },
    Tombstone(Stamp),
    Nothing,
}

impl Store {
    pub(in crate::file) fn list(&self, request: &ListRequest, entries_max: usize) -> Result<ListReply> {
        self.check_open()?;
        let ListRequest { namespace, prefix, .. } = request;
        let dir = self.namespace_dir(namespace);
        let mut entries = Vec::new();
        let mut from = request.after.as_ref().map(|name| after(name.as_bytes())).unwrap_or_default();
        if *from < **prefix {
            from = prefix.to_vec();
        }
        loop {
            // One more than fits, to know whether there is more.
            let found = self.names_from(namespace, &dir, &from, prefix, entries_max + 1 - entries.len())?;
            for name in found.names {
                let id = ObjectId::new(namespace.clone(), Name::copy_from(&name)?);
                match self.entry(&id, &dir)? {
                    Entry::Object { size_bytes, version } => {
                        entries.push(ListEntry::new(id.name, size_bytes, version));
                    }
                    Entry::Tombstone(stamp) => self.bury(&id, stamp)?,
                    Entry::Nothing => {}
                }
            }
            match found.next {
                Some(next) if entries.len() <= entries_max => from = next,
                _ => break,
            }
        }
        let has_more = entries.len() > entries_max;
        entries.truncate(entries_max);
        Ok(ListReply::new(entries, has_more))
    }

    /// What is there under a name. An object that is not in memory is looked up on disk and not entered: a
    /// listing must not close the files that are in use.
    fn entry(&self, id: &ObjectId, dir: &Path) -> Result<Entry> {
        let shard = self.shard(id);
        for _ in 0..3 {
            let entered = shard.entered.load(Ordering::Acquire);
            let known = shard.objects.read().get(id).cloned();
            if let Some(object) = known {
                return self.entry_in_memory(&object);
            }
            let path = path::encode(dir, id.name.as_bytes(), path::OBJECT_SUFFIX);
            let entry = self.entry_on_disk(id, &path);
            // If the object was entered meanwhile, it may have been changed between the looks at its header
            // and at its length.
            if shard.entered.load(Ordering::Acquire) == entered {
                return entry;
            }
        }
        self.entry_in_memory(&*self.object(id)?)
    }

    fn entry_in_memory(&self, object: &Object) -> Result<Entry> {
        let state = self.loaded(object)?;
        Ok(match (state.alive, state.stamp) {
            (true, _) => Entry::Object { size_bytes: state.size_bytes, version: state.version },
            (false, Some(stamp)) => Entry::Tombstone(stamp),
            (false, None) => Entry::Nothing,
        })
    }

    fn entry_on_disk(&self, id: &ObjectId, path: &Path) -> Result<Entry> {
        let mut header = [0; HEADER_BYTES as usize];
        let head = found(self.disk.head(path, &mut header));
        let failed = |error| Error::from_read(&error, &format!("reading {}", path.display()));
        let (read, len) = match head.map_err(failed)? {
            Found::File(head) => head,
            Found::Absent => return Ok(Entry::Nothing),
            Found::Foreign(kind) => return Err(foreign(path, kind)),
        };
        let Some((slot, one_damaged)) = check_header(path, id, &header[..read])? else {
            return Ok(Entry::Nothing);
        };
        check_len(path, &slot, len, self.version_floor)?;
        if one_damaged {
            count(&self.counters.copies_damaged);
        }
        Ok(match (slot.tombstone, slot.stamp) {
            (true, Some(stamp)) => Entry::Tombstone(stamp),
            (true, None) => Entry::Nothing,
            (false, _) => Entry::Object {
                size_bytes: len.saturating_sub(data_at(slot.packed)),
                version: Version(slot.version.0.max(self.version_floor)),
            },
        })
    }

    /// Removes a tombstone, which has been seen with `stamp`, if a claim has made it needless. It is judged
    /// as it is now, under the locks of a change: it may have been renewed since.
    fn bury(&self, id: &ObjectId, stamp: Stamp) -> Result<()> {
        if stamp.epoch >= self.claims.read().claims.in_force(id, None) {
            return Ok(());
        }
        let object = self.object(id)?;
        let held = self.claims.read();
        self.check_open()?;
        let mut state = self.loaded_mut(&object)?;
        let in_force = held.claims.in_force(id, None);
        let is_needless = state.stamp.is_some_and(|stamp| stamp.epoch < in_force);
        // If it stays, it is found and removed another time.
        if self.config.access != Access::Read
            && !state.alive
            && is_needless
            && state.file.is_some()
            && self.disk.unlink(&object.path).is_ok()
        {
            self.forget_file(&object, &mut state);
        }
        Ok(())
    }

    /// A page of names: from a window of those in memory, which one walk of the namespace's directory fills.
    fn names_from(
        &self,
        namespace: &Namespace,
        dir: &Path,
        from: &[u8],
        prefix: &[u8],
        count: usize,
    ) -> Result<names::Found> {
        let id = {
            let mut names = self.names.lock();
            if let Some(found) = names.page(namespace, from, prefix, count) {
                return Ok(found);
            }
            names.begin(namespace, from.to_vec())
        };
        let (mut found, mut is_whole) = (Sorted::default(), true);
        let walked = self.walk(dir, false, path::OBJECT_SUFFIX, &mut |name| {
            if *name >= *from {
                found.insert(&name);
                is_whole &= !found.fit();
            }
        });
        let mut names = self.names.lock();
        if let Err(error) = walked {
            names.abandon(id);
            return Err(error);
        }
        names.fill(id, found, is_whole);
        let found = names.page(namespace, from, prefix, count);
        found.ok_or_else(|| Error::Retryable("the names to be listed changed too fast".into()))
    }

    /// Every name encoded below `dir`.
    fn walk(&self, dir: &Path, last_is_dir: bool, suffix: &str, each: &mut dyn FnMut(Vec<u8>)) -> Result<()> {
        let mut left = vec![(dir.to_path_buf(), String::new())];
        while let Some((dir, before)) = left.pop() {
            let listed = self.disk.read_dir(&dir, &mut |file_name, kind| match path::entry(
                &before,
                file_name,
                last_is_dir,
                kind,
                suffix,
            ) {
                Some(path::Entry::More(text)) => {
                    let file_name = String::from_utf8_lossy(file_name);
                    left.push((dir.join(&*file_name), text));
                }
                Some(path::Entry::Last(text)) => {
                    path::decode(&text).into_iter().for_each(&mut *each);
                }
                None => {}
            });
            listed.map_err(|error| Error::from_read(&error, &format!("listing {}", dir.display())))?;
        }
        Ok(())
    }

    /// The namespaces that have a directory, or a claim.
    pub(in crate::file) fn namespaces(&self) -> Result<Vec<Namespace>> {
        self.check_open()?;
        let mut names = BTreeSet::new();
        self.walk(&self.root.join("objects"), true, path::NAMESPACE_SUFFIX, &mut |name| {
            names.insert(name);
        })?;
        for (scope, _, _) in self.claims.read().claims.iter() {
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
