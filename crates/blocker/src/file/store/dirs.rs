//! Directories with entries that are not stored yet.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The directories, each with the number of its last change. A number is never used twice: a sync that began
/// before a change must not pass for one that covers it, even if another sync has struck the directory out in
/// between.
#[derive(Default)]
pub(super) struct UnsyncedDirs {
    dirs: BTreeMap<PathBuf, u64>,
    last: u64,
}

impl UnsyncedDirs {
    /// Notes a change of an entry of `dir`.
    pub(super) fn enter(&mut self, dir: &Path) {
        self.last += 1;
        match self.dirs.get_mut(dir) {
            Some(number) => *number = self.last,
            None => drop(self.dirs.insert(dir.to_path_buf(), self.last)),
        }
    }

    /// The number of the last change of `dir` that is not stored.
    pub(super) fn last_change(&self, dir: &Path) -> Option<u64> {
        self.dirs.get(dir).copied()
    }

    /// The number of the last change of any.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Notes that `dir` is stored as it was after change `number`.
    pub(super) fn note_stored(&mut self, dir: &Path, number: u64) {
        if self.dirs.get(dir).is_some_and(|last| *last <= number) {
            self.dirs.remove(dir);
        }
    }

    /// Notes that all are stored as they were after change `number`.
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
        let dir = Path::new("d");
        let mut dirs = UnsyncedDirs::default();
        dirs.enter(dir);
        let begun = dirs.last_change(dir).unwrap();
        dirs.enter(dir);
        dirs.note_stored(dir, begun);
        assert_eq!(dirs.paths(), [dir], "changed while it was being synced");
        let begun = dirs.last_change(dir).unwrap();
        dirs.note_stored(dir, begun);
        assert!(dirs.paths().is_empty());
    }

    #[test]
    fn a_sync_that_comes_late_covers_no_change_after_its_beginning() {
        let dir = Path::new("d");
        let mut dirs = UnsyncedDirs::default();
        dirs.enter(dir);
        // Two threads sync it; one ends, the directory changes, the other ends.
        let (one, two) = (dirs.last_change(dir).unwrap(), dirs.last_change(dir).unwrap());
        dirs.note_stored(dir, one);
        dirs.enter(dir);
        dirs.note_stored(dir, two);
        assert_eq!(dirs.paths(), [dir]);
        let all = dirs.last();
        dirs.enter(Path::new("e"));
        dirs.note_all_stored(all);
        assert_eq!(dirs.paths(), [Path::new("e")]);
    }
}
