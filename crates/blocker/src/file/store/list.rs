//! Listing, and a memory of listed names.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::Ordering;

use crate::file::disk::{Found, found};
use crate::file::object::{Object, check_header, check_len, foreign};
use crate::file::slot::{HEADER_BYTES, data_at};
use crate::file::store::Store;
use crate::file::{Access, path};
use crate::{Error, ListEntry, ListReply, ListRequest, Name, Namespace, ObjectId, Result, Stamp, Version};

/// The meaning of a name in a directory.
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
            // One entry more than requested shows whether there are more.
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

    /// Returns the object with a name. An object that is not in memory is read from disk but not
    /// added to the table, because a listing must not close files that are in use.
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
            // If another operation has entered the object in the meantime, the object may have
            // changed between the reads of its header and of its length.
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
            self.counters.copies_damaged.increment();
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

    /// Removes a tombstone that was seen with `stamp`, if a claim has made the tombstone
    /// unnecessary. The tombstone is checked again under the locks of a change, because it may have
    /// been replaced since.
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
        // If the removal fails, a later listing repeats it.
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

    /// Returns a page of names, from a window of names in memory that one walk of the namespace's
    /// directory fills.
    fn names_from(
        &self,
        namespace: &Namespace,
        dir: &Path,
        from: &[u8],
        prefix: &[u8],
        count: usize,
    ) -> Result<FoundNames> {
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
        found.ok_or_else(|| Error::Retryable("the listed names changed too fast".into()))
    }

    /// Calls `each` for every name encoded below `dir`.
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

    /// Returns the namespaces that have a directory or a claim.
    pub(in crate::file) fn namespaces(&self) -> Result<Vec<Namespace>> {
        self.check_open()?;
        let mut names = BTreeSet::<Box<[u8]>>::new();
        self.walk(&self.root.join("objects"), true, path::NAMESPACE_SUFFIX, &mut |name| {
            names.insert(name.into());
        })?;
        for (scope, ..) in self.claims.read().claims.iter() {
            names.extend(scope.namespace().map(|namespace| namespace.as_bytes().into()));
        }
        names.into_iter().map(Namespace::new).collect()
    }
}

/// The largest window, in bytes.
const WINDOW_BYTES_MAX: usize = 16 << 20;
/// The approximate memory use of a name in addition to its bytes.
const NAME_COST_BYTES: usize = 48;
/// The number of windows that are kept.
const WINDOWS_MAX: usize = 4;

#[derive(Default)]
pub(super) struct Names {
    /// The most recently used window is first.
    windows: VecDeque<Window>,
    last_id: u64,
}

/// The names of one namespace from `first` to `last`, inclusive.
struct Window {
    id: u64,
    namespace: Namespace,
    first: Vec<u8>,
    /// The last name, or `None` if the window ends with the last name of the namespace.
    last: Option<Vec<u8>>,
    names: Sorted,
    /// Whether a walk has completed the window.
    is_filled: bool,
}

/// Names in order, and their memory.
#[derive(Default)]
pub(super) struct Sorted {
    names: BTreeSet<Box<[u8]>>,
    bytes: usize,
}

/// A page from a window.
pub(super) struct FoundNames {
    pub(super) names: Vec<Box<[u8]>>,
    /// The name at which the next page begins; `None` if there is no next page.
    pub(super) next: Option<Vec<u8>>,
}

/// Returns the smallest name after `name`.
pub(super) fn after(name: &[u8]) -> Vec<u8> {
    [name, &[0]].concat()
}

impl Sorted {
    pub(super) fn insert(&mut self, name: &[u8]) {
        if self.names.insert(name.into()) {
            self.bytes += NAME_COST_BYTES + name.len();
        }
    }

    fn remove(&mut self, name: &[u8]) {
        if self.names.remove(name) {
            self.bytes -= NAME_COST_BYTES + name.len();
        }
    }

    /// Drops names from the end until the rest fits. Returns whether it dropped any.
    pub(super) fn fit(&mut self) -> bool {
        let mut dropped = false;
        while self.bytes > WINDOW_BYTES_MAX
            && let Some(name) = self.names.pop_last()
        {
            self.bytes -= NAME_COST_BYTES + name.len();
            dropped = true;
        }
        dropped
    }
}

impl Window {
    fn covers(&self, namespace: &Namespace, name: &[u8]) -> bool {
        self.namespace == *namespace
            && *self.first <= *name
            && self.last.as_ref().is_none_or(|last| *name <= **last)
    }

    fn fit(&mut self) {
        if self.names.fit() {
            // The dropped names are no longer covered by the window.
            let last = self.names.names.last().map_or_else(|| self.first.clone(), |last| last.to_vec());
            self.last = Some(last);
        }
    }
}

impl Names {
    /// Returns up to `count` names that begin with `prefix`, from `from` on; `None` if no window
    /// covers them.
    pub(super) fn page(
        &mut self,
        namespace: &Namespace,
        from: &[u8],
        prefix: &[u8],
        count: usize,
    ) -> Option<FoundNames> {
        let at = self.windows.iter().position(|window| window.is_filled && window.covers(namespace, from))?;
        let window = self.windows.remove(at)?;
        let range = (Bound::Included(from), Bound::Unbounded);
        let mut names = Vec::new();
        let mut next = window.last.as_deref().map(after);
        for name in window.names.names.range::<[u8], _>(range) {
            if !name.starts_with(prefix) {
                next = None;
                break;
            }
            if names.len() == count {
                next = Some(name.to_vec());
                break;
            }
            names.push(name.clone());
        }
        self.windows.push_front(window);
        Some(FoundNames { names, next })
    }

    /// Begins a window, which a later walk fills; names created in the meantime are added
    /// immediately. Returns the window's number.
    pub(super) fn begin(&mut self, namespace: &Namespace, first: Vec<u8>) -> u64 {
        self.last_id += 1;
        self.windows.retain(|window| !window.is_filled || !window.covers(namespace, &first));
        // Windows that are being filled are not counted: each listing thread has at most one.
        let mut filled = 0;
        self.windows.retain(|window| {
            filled += usize::from(window.is_filled);
            !window.is_filled || filled < WINDOWS_MAX
        });
        self.windows.push_front(Window {
            id: self.last_id,
            namespace: namespace.clone(),
            first,
            last: None,
            names: Sorted::default(),
            is_filled: false,
        });
        self.last_id
    }

    /// Removes a window that could not be filled.
    pub(super) fn abandon(&mut self, id: u64) {
        self.windows.retain(|window| window.id != id);
    }

    /// Frees the memory of a namespace's names.
    pub(super) fn forget(&mut self, namespace: &Namespace) {
        self.windows.retain(|window| !window.is_filled || window.namespace != *namespace);
    }

    /// Adds the names that the walk has found; `is_whole` if the walk has omitted none.
    pub(super) fn fill(&mut self, id: u64, found: Sorted, is_whole: bool) {
        let Some(window) = self.windows.iter_mut().find(|window| window.id == id) else { return };
        if !is_whole {
            window.last = Some(found.names.last().map_or_else(|| window.first.clone(), |last| last.to_vec()));
        }
        if window.names.names.is_empty() {
            window.names = found;
        } else {
            found.names.iter().for_each(|name| window.names.insert(name));
        }
        window.fit();
        window.is_filled = true;
    }

    /// Records that a file with this name exists.
    pub(super) fn note_made(&mut self, namespace: &Namespace, name: &[u8]) {
        for window in self.windows.iter_mut().filter(|window| window.covers(namespace, name)) {
            window.names.insert(name);
            window.fit();
        }
    }

    /// Records that no file with this name exists.
    pub(super) fn note_gone(&mut self, namespace: &Namespace, name: &[u8]) {
        for window in self.windows.iter_mut().filter(|window| window.covers(namespace, name)) {
            window.names.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace() -> Namespace {
        Namespace::new("n").unwrap()
    }

    fn sorted(names: &[&str]) -> Sorted {
        let mut sorted = Sorted::default();
        names.iter().for_each(|name| sorted.insert(name.as_bytes()));
        sorted
    }

    fn page(
        names: &mut Names,
        from: &str,
        prefix: &str,
        count: usize,
    ) -> Option<(Vec<String>, Option<String>)> {
        let found = names.page(&namespace(), from.as_bytes(), prefix.as_bytes(), count)?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Some((found.names.iter().map(|name| text(name)).collect(), found.next.map(|next| text(&next))))
    }

    #[test]
    fn a_window_gives_pages_and_is_kept_up_to_date() {
        let mut names = Names::default();
        assert!(page(&mut names, "", "", 9).is_none());
        let id = names.begin(&namespace(), Vec::new());
        assert!(page(&mut names, "", "", 9).is_none(), "not filled yet");
        names.note_made(&namespace(), b"during");
        names.fill(id, sorted(&["a", "b1", "b2", "c"]), true);
        names.note_made(&namespace(), b"b3");
        names.note_gone(&namespace(), b"c");
        names.note_made(&Namespace::new("other").unwrap(), b"other");
        let all = ["a", "b1", "b2", "b3", "during"].map(String::from).to_vec();
        assert_eq!(page(&mut names, "", "", 9), Some((all.clone(), None)));
        assert_eq!(page(&mut names, "b", "b", 2), Some((all[1..3].to_vec(), Some("b3".into()))));
        assert_eq!(page(&mut names, "b3", "b", 2), Some((all[3..4].to_vec(), None)));
    }

    #[test]
    fn a_window_that_is_too_large_says_where_it_ends() {
        let mut names = Names::default();
        let id = names.begin(&namespace(), b"b".to_vec());
        names.fill(id, sorted(&["b", "c"]), false);
        assert!(page(&mut names, "a", "", 9).is_none());
        assert!(page(&mut names, "d", "", 9).is_none());
        let wanted = vec!["b".to_owned(), "c".to_owned()];
        assert_eq!(page(&mut names, "b", "", 9), Some((wanted.clone(), Some("c\0".into()))));
        names.note_made(&namespace(), b"d");
        assert_eq!(page(&mut names, "b", "", 9), Some((wanted, Some("c\0".into()))));
        // The names are twice as many as fit: the window is cut and marked as cut.
        for number in 0..WINDOW_BYTES_MAX / (NAME_COST_BYTES + 200) * 2 {
            names.note_made(&namespace(), format!("b{number:0>199}").as_bytes());
        }
        let (found, next) = page(&mut names, "b", "", usize::MAX).unwrap();
        assert!(found.len() * (NAME_COST_BYTES + 200) <= WINDOW_BYTES_MAX + 1000);
        assert_eq!(next, found.last().map(|last| format!("{last}\0")));
        assert!(page(&mut names, "c", "", 9).is_none());
    }

    #[test]
    fn few_windows_are_kept() {
        let mut names = Names::default();
        for number in 0..10 {
            let namespace = Namespace::new(format!("n{number}")).unwrap();
            let id = names.begin(&namespace, Vec::new());
            names.fill(id, Sorted::default(), true);
        }
        assert_eq!(names.windows.len(), WINDOWS_MAX);
    }
}
