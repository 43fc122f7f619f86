//! A volume's map in memory: 2 MiB for each TiB. Maps of one tree share the pages in which they agree.

use std::ops::Range;
use std::sync::Arc;

use crate::format::entry::Entry;
use crate::format::{PAGE_ENTRIES, Page};

/// The entries of a volume; `None` is a page of holes. A clone of a map shares all pages until they change.
#[derive(Clone, Default)]
pub(crate) struct Map {
    pub(crate) pages: Vec<Option<Arc<Page>>>,
}

impl Map {
    /// Returns a map of holes.
    pub(crate) fn of_holes(pages: usize) -> Self {
        Self { pages: vec![None; pages] }
    }

    /// Returns the entry of a place; a hole beyond the end.
    pub(crate) fn get(&self, index: u32) -> Entry {
        let (page, at) = place(index);
        self.pages.get(page).and_then(Option::as_ref).map_or(Entry::HOLE, |page| page[at])
    }

    /// Changes the entry of a place within the map.
    pub(crate) fn set(&mut self, index: u32, entry: Entry) {
        let (page, at) = place(index);
        let page = self.pages[page].get_or_insert_with(|| Arc::new([Entry::HOLE; PAGE_ENTRIES]));
        Arc::make_mut(page)[at] = entry;
    }

    /// Returns the map with holes where it has other pages.
    pub(crate) fn within(&self, pages: Range<usize>) -> Self {
        let kept = self.pages.iter().enumerate().take(pages.end);
        Self { pages: kept.map(|(at, page)| page.clone().filter(|_| pages.contains(&at))).collect() }
    }

    /// Returns whether a page is the same memory, or holes, in both.
    pub(crate) fn shares_page(&self, other: &Self, page: usize) -> bool {
        match (self.page(page), other.page(page)) {
            (Some(one), Some(two)) => Arc::ptr_eq(one, two),
            (None, None) => true,
            _ => false,
        }
    }

    pub(crate) fn page(&self, page: usize) -> Option<&Arc<Page>> {
        self.pages.get(page).and_then(Option::as_ref)
    }

    /// Returns all places with an object, and their entries.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (u32, Entry)> + '_ {
        let pages = self.pages.iter().enumerate().filter_map(|(at, page)| Some((at, page.as_ref()?)));
        pages.flat_map(|(at, page)| {
            let entries = page.iter().enumerate().filter(|(_, entry)| !entry.is_hole());
            entries.map(move |(in_page, entry)| (index_of(at, in_page), *entry))
        })
    }

    /// Returns the places at which this map has an object that `other` has not.
    pub(crate) fn objects_not_in<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (u32, Entry)> + 'a {
        let pages = self.pages.iter().enumerate().filter(|(at, _)| !self.shares_page(other, *at));
        let pages = pages.filter_map(|(at, page)| Some((at, page.as_ref()?)));
        pages.flat_map(move |(at, page)| {
            let entries = page.iter().enumerate().filter(|(_, entry)| !entry.is_hole());
            let entries = entries.map(move |(in_page, entry)| (index_of(at, in_page), *entry));
            entries.filter(move |(index, entry)| other.get(*index) != *entry)
        })
    }
}

/// Returns the page that has the entry of a place.
pub(crate) fn page_of(index: u32) -> usize {
    place(index).0
}

fn place(index: u32) -> (usize, usize) {
    (index as usize / PAGE_ENTRIES, index as usize % PAGE_ENTRIES)
}

fn index_of(page: usize, in_page: usize) -> u32 {
    // A map has at most 65 536 pages of 4 032 entries.
    (page * PAGE_ENTRIES + in_page) as u32
}
