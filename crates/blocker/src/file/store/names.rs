//! The names of a namespace in order, kept between the pages of a listing.
//!
//! A directory gives its entries in no order, so a page of a listing would cost a walk of them all. One walk
//! therefore fills a *window*: the names from some first one on, as many as there may be in memory. Files
//! that come into being are entered at once, so a window stays complete; names of files that were removed may
//! stay, and the thread that reads them finds that out.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound;

use crate::name::Namespace;

/// The largest window, in bytes.
const WINDOW_BYTES_MAX: usize = 16 << 20;
/// About what a name takes besides its bytes.
const NAME_COST_BYTES: usize = 48;
/// How many windows are kept.
const WINDOWS_MAX: usize = 4;

#[derive(Default)]
pub(super) struct Names {
    /// The one used last in front.
    windows: VecDeque<Window>,
    last_id: u64,
}

/// The names of one namespace from `first` to `last`, both included.
struct Window {
    id: u64,
    namespace: Namespace,
    first: Vec<u8>,
    /// Nothing: to the end.
    last: Option<Vec<u8>>,
    names: Sorted,
    /// A walk has filled it.
    is_filled: bool,
}

/// Names in order, and the bytes they take.
#[derive(Default)]
pub(super) struct Sorted {
    names: BTreeSet<Box<[u8]>>,
    bytes: usize,
}

/// What a window knows about a page.
pub(super) struct Found {
    pub(super) names: Vec<Box<[u8]>>,
    /// Where to go on; nothing if there are no more.
    pub(super) next: Option<Vec<u8>>,
}

/// The smallest name after `name`.
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

    /// Drops names from the end until the rest fits. Returns whether any were dropped.
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
            // What was dropped is no longer covered.
            let last = self.names.names.last().map_or_else(|| self.first.clone(), |last| last.to_vec());
            self.last = Some(last);
        }
    }
}

impl Names {
    /// Up to `count` names that begin with `prefix`, from `from` on. `None` if no window has them.
    pub(super) fn page(
        &mut self,
        namespace: &Namespace,
        from: &[u8],
        prefix: &[u8],
        count: usize,
    ) -> Option<Found> {
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
        Some(Found { names, next })
    }

    /// Begins a window that a walk, begun after this, will fill: names that come into being meanwhile are
    /// entered already. Returns its number.
    pub(super) fn begin(&mut self, namespace: &Namespace, first: Vec<u8>) -> u64 {
        self.last_id += 1;
        self.windows.retain(|window| !window.is_filled || !window.covers(namespace, &first));
        // Those that are being filled are as many as there are threads that list.
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

    /// Gives up a window that could not be filled.
    pub(super) fn abandon(&mut self, id: u64) {
        self.windows.retain(|window| window.id != id);
    }

    /// Gives back the memory of a namespace's names.
    pub(super) fn forget(&mut self, namespace: &Namespace) {
        self.windows.retain(|window| !window.is_filled || window.namespace != *namespace);
    }

    /// Enters what the walk has found; `is_whole` if nothing beyond was left out.
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

    /// Notes that there is a file of this name.
    pub(super) fn note_made(&mut self, namespace: &Namespace, name: &[u8]) {
        for window in self.windows.iter_mut().filter(|window| window.covers(namespace, name)) {
            window.names.insert(name);
            window.fit();
        }
    }

    /// Notes that there is no file of this name.
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
        // Twice as many as it may have: it is cut and marked as cut.
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
