//! Flushing: new objects are recorded in the map once they are stored.
//!
//! The order is: (1) take the current map; (2) flush the data; (3) store the map's changed entries,
//! and the head if a page is new; (4) remove objects that no map names any more (`state.rs`). So an
//! entry is stored after the object that it names, and no object is removed while a stored entry
//! names it.

use blocker::{
    BlockerExt, Condition, Durability, Error as Store, InfoRequest, Run, Version, WriteRequest,
    WriteRunsRequest,
};

use super::state::FLUSH_REMOVALS_MAX;
use super::{Inner, Recorder};
use crate::error::{Error, Result};
use crate::format::entry::{Entry, Kind};
use crate::format::map::Map;
use crate::format::{PAGE_BYTES, Page, PageName, SECTOR_BYTES, SECTOR_ENTRIES, encode_sector};

/// The maximum number of attempts to write a page that was found changed, or whose outcome was
/// unknown.
const TRIES: u32 = 3;

/// The new pages of a record. Unless the record is stored, their names are not reused, because the
/// pages may exist.
struct NewPages<'a> {
    inner: &'a Inner,
    /// The number, allocation ID and version of each page.
    pages: Vec<(u32, u64, Version)>,
    has_lost_names: bool,
}

impl Drop for NewPages<'_> {
    fn drop(&mut self) {
        if self.has_lost_names {
            self.inner.state.lock().allocation += 1;
        }
    }
}

impl Inner {
    /// Makes everything acknowledged before the call durable.
    pub(super) async fn flush_as(&self, durability: Durability) -> Result<()> {
        let has_overlays = {
            let state = self.state.lock();
            state.check()?;
            // Logged changes are flushed with the log.
            !state.overlays.is_empty() && !state.overlays.logs.is_open()
        };
        if has_overlays {
            self.merge_overlays().await?;
        }
        let has_unrecorded = {
            let state = self.state.lock();
            state.check()?;
            state.has_unrecorded()
        };
        if !has_unrecorded {
            // Objects allocated from now on belong to changes that were not yet acknowledged.
            self.flush_data(durability).await?;
            return self.check_held().await;
        }
        {
            let mut recorder = self.recorder().await?;
            self.record(&mut recorder).await?;
        }
        // The recorder is released first, because this may take long.
        self.remove_drops(FLUSH_REMOVALS_MAX).await;
        self.check_held().await
    }

    /// Flushes all changes of the volume. If some of them are lost, another owner may have the
    /// volume; a cache below that is the writer then first learns that it has been deposed.
    async fn flush_data(&self, durability: Durability) -> Result<()> {
        match self.space.flush(durability).await {
            Ok(()) => Ok(()),
            Err(error @ Store::WritesLost(_)) => {
                self.check_owner_stored().await?;
                Err(self.noted(error))
            }
            Err(error) => Err(self.noted(error)),
        }
    }

    /// Flushes the data, and records all allocations made so far. Afterwards objects that no map
    /// names can be removed.
    pub(super) async fn record(&self, recorder: &mut Recorder) -> Result<()> {
        let (frozen, mark) = {
            let state = self.state.lock();
            state.check()?;
            (state.live.clone(), state.drops.mark())
        };
        self.record_map(recorder, &frozen).await?;
        self.state.lock().drops.cover(mark);
        Ok(())
    }

    /// Flushes the data and stores the entries of `frozen`, an earlier state of the map.
    pub(super) async fn record_map(&self, recorder: &mut Recorder, frozen: &Map) -> Result<()> {
        self.flush_data(Durability::Stored).await?;
        let recorded = self.state.lock().recorded.clone();
        let mut new_pages = NewPages { inner: self, pages: Vec::new(), has_lost_names: false };
        let stored = self.store_pages(recorder, frozen, &recorded, &mut new_pages).await;
        let committed = match stored {
            Ok(()) if new_pages.pages.is_empty() => Ok(()),
            Ok(()) => {
                let mut head = recorder.head.clone();
                for (page, allocation, _) in &new_pages.pages {
                    head.root[*page as usize] = Entry::new(self.space.volume, *allocation);
                }
                self.commit(recorder, head).await
            }
            Err(error) => Err(error),
        };
        let mut state = self.state.lock();
        if let Err(error) = committed {
            if state.in_flight.is_none() {
                let pages = new_pages.pages.iter();
                let pages = pages.map(|(page, allocation, _)| Kind::Page(*allocation, *page));
                state.drops.queue.extend(pages);
            }
            drop(state);
            return Err(error);
        }
        new_pages.has_lost_names = false;
        for (page, _, version) in &new_pages.pages {
            recorder.page_versions.insert(*page, *version);
            state.recorded.pages[*page as usize] = frozen.page(*page as usize).cloned();
        }
        state.forget_recorded();
        Ok(())
    }

    /// Stores the changed pages of `frozen`: own pages in place, other pages as new pages, which
    /// are added to `new_pages`.
    async fn store_pages(
        &self,
        recorder: &mut Recorder,
        frozen: &Map,
        recorded: &Map,
        new_pages: &mut NewPages<'_>,
    ) -> Result<()> {
        let root = recorder.head.root.clone();
        for (page, at) in root.iter().enumerate() {
            let Some(entries) = frozen.page(page).filter(|_| !frozen.shares_page(recorded, page)) else {
                continue;
            };
            let is_own = at.volume() == self.space.volume && recorder.parent_root.get(page) != Some(at);
            // A map has at most 65 536 pages.
            let number = page as u32;
            if is_own {
                let old = recorded.page(page).map(|page| &**page);
                self.write_page(recorder, number, at.allocation(), entries, old).await?;
                let mut state = self.state.lock();
                state.recorded.pages[page] = Some(entries.clone());
                // Forgotten immediately: during a snapshot, from now on the copy itself may get an
                // overlay and be replaced.
                state.forget_recorded();
            } else {
                new_pages.has_lost_names = true;
                let (allocation, version) = self.allocate_page(number, entries).await?;
                new_pages.pages.push((number, allocation, version));
            }
        }
        Ok(())
    }

    /// Stores a new page. Returns its allocation ID and version.
    async fn allocate_page(&self, page: u32, entries: &Page) -> Result<(u64, Version)> {
        for _ in 0..TRIES {
            let allocation = self.state.lock().current_allocation()?;
            let name = PageName { volume: self.space.volume, allocation, page };
            let bytes: Vec<u8> =
                (0..PAGE_BYTES / SECTOR_BYTES).flat_map(|at| encode_sector(name, entries, at)).collect();
            match self.space.put(Kind::Page(allocation, page), bytes, Condition::Absent).await {
                Ok(version) => return Ok((allocation, version)),
                Err(
                    error @ (Store::Exists
                    | Store::OutcomeUnknown(_)
                    | Store::NotStored(_)
                    | Store::Superseded { .. }),
                ) => {
                    // The name is not reused. An existing object with this name is left unchanged.
                    let mut state = self.state.lock();
                    state.allocation = state.allocation.max(allocation + 1);
                    if error == Store::Exists {
                        state.births_met += 1;
                    } else {
                        state.drops.queue.push_back(Kind::Page(allocation, page));
                    }
                }
                Err(error) => return Err(self.noted(error)),
            }
        }
        Err(Error::Io(Store::Retryable("a page of the map was not stored".into())))
    }

    /// Stores the sectors of an own page that differ from `old`.
    async fn write_page(
        &self,
        recorder: &mut Recorder,
        page: u32,
        allocation: u64,
        entries: &Page,
        old: Option<&Page>,
    ) -> Result<()> {
        let name = PageName { volume: self.space.volume, allocation, page };
        let kind = Kind::Page(allocation, page);
        let mut is_whole = false;
        for _ in 0..TRIES {
            let version = match recorder.page_versions.get(&page) {
                Some(version) => *version,
                None => {
                    // An earlier write may have failed in part, or been dropped, so all sectors are
                    // written.
                    is_whole = true;
                    let info = self.space.store().info(InfoRequest::new(self.space.object(kind))).await;
                    let version = info.map_err(|error| self.noted(error))?.version;
                    if !self.space.is_stamped() {
                        // The version may be one that the next owner has given to the page: see
                        // `attach.rs`.
                        self.check_head(recorder).await?;
                    }
                    version
                }
            };
            recorder.page_versions.remove(&page);
            let is_changed = |sector: &usize| {
                let range = sector * SECTOR_ENTRIES..(sector + 1) * SECTOR_ENTRIES;
                is_whole || old.is_none_or(|old| old[range.clone()] != entries[range])
            };
            let sectors: Vec<usize> = (0..PAGE_BYTES / SECTOR_BYTES).filter(is_changed).collect();
            match self.send_sectors(name, entries, &sectors, Condition::Version(version)).await {
                Ok(version) => {
                    recorder.page_versions.insert(page, version);
                    return Ok(());
                }
                // An earlier attempt may have been partly executed, or may still be executed. Its
                // condition fails after this attempt.
                Err(
                    Store::ConditionFailed { .. }
                    | Store::OutcomeUnknown(_)
                    | Store::Superseded { .. }
                    | Store::NotStored(_),
                ) => {
                    self.check_owner(recorder).await?;
                    is_whole = true;
                }
                Err(error) => return Err(self.noted(error)),
            }
        }
        Err(Error::Io(Store::Retryable("a page of the map was not stored".into())))
    }

    /// Sends sectors of a page in one change, which is *stored* when this returns.
    async fn send_sectors(
        &self,
        name: PageName,
        entries: &Page,
        sectors: &[usize],
        condition: Condition,
    ) -> Result<Version, Store> {
        let kind = Kind::Page(name.allocation, name.page);
        let (Some(first), Some(last)) = (sectors.first(), sectors.last()) else {
            let info = self.space.store().info(InfoRequest::new(self.space.object(kind)));
            return info.await.map(|info| info.version);
        };
        let terms = self.space.settling(Durability::Stored, condition);
        let offset = |sector: &usize| (sector * SECTOR_BYTES) as u64;
        let bytes = |sector: &usize| encode_sector(name, entries, *sector);
        let reply = if sectors.len() as u64 <= u64::from(self.space.pool.capabilities.runs_max) {
            let runs =
                sectors.iter().map(|sector| Run::data(offset(sector), bytes(sector).to_vec())).collect();
            let request = WriteRunsRequest::new(self.space.object(kind), runs).terms(terms);
            self.space.store().write_runs(request).await?
        } else {
            let all: Vec<u8> = (*first..=*last).flat_map(|sector| bytes(&sector)).collect();
            let request = WriteRequest::new(self.space.object(kind), offset(first), all).terms(terms);
            self.space.store().write(request).await?
        };
        self.space.ensure_stored(kind, reply.durability).await?;
        Ok(reply.version)
    }

    /// Checks that the stored head is this owner's.
    async fn check_owner(&self, recorder: &mut Recorder) -> Result<()> {
        let head = recorder.head.clone();
        self.commit(recorder, head).await
    }
}
