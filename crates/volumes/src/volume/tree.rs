//! The volume and its snapshots: taking snapshots, rolling back, and deleting snapshots in any
//! order.
//!
//! Snapshots and the live volume are nodes of a tree. If two nodes have an object, all nodes on the
//! path between them have it. So when a node is removed, an object of it is removed as well if
//! neither its predecessor nor its successor has it; a node with two or more successors stays,
//! without a name, because it connects them.

use async_lock::{MutexGuard, RwLockWriteGuard};
use blocker::{Condition, Durability};

use super::state::{FLUSH_REMOVALS_MAX, Status};
use super::{Inner, Recorder, Volume};
use crate::catalog::check_owner_name;
use crate::error::{Error, Result};
use crate::format::entry::{ALLOCATION_MAX, Entry, Kind, VolumeId};
use crate::format::map::Map;
use crate::format::{NODES_MAX, Node, Origin, Owner, encode_root};
use crate::space::{if_supported, load_node, release_limits};

/// The state of a volume at the instant of a snapshot.
#[derive(Clone)]
pub(super) struct Frozen {
    pub(super) id: u64,
    size_bytes: u64,
    map: Map,
    /// The map of the previous snapshot.
    parent: Map,
    /// The mark of the objects that no map named at that instant.
    drops: u64,
}

/// Takes a snapshot of several volumes at one instant, in the order of their numbers. Each volume
/// is given only once. Either all volumes have the snapshot or none, provided that the store is
/// reachable.
pub(crate) async fn snapshot_all(volumes: &[&Inner], name: &str, made_unix_seconds: u64) -> Result<()> {
    debug_assert!(volumes.is_sorted_by(|a, b| a.space.volume < b.space.volume));
    let mut recorders: Vec<MutexGuard<'_, Recorder>> = Vec::new();
    for volume in volumes {
        volume.ensure_allocations().await?;
        recorders.push(volume.recorder().await?);
        volume.look_ahead_at_quota().await;
    }
    for recorder in &recorders {
        if recorder.head.named(name).is_some() {
            return Err(Error::Exists(name.to_owned()));
        }
        if recorder.head.nodes.len() >= NODES_MAX {
            return Err(Error::Limit(format!("a volume has at most {NODES_MAX} snapshots: delete some")));
        }
    }
    // Snapshots have no overlays: all objects are merged first, most of them concurrently with
    // client writes.
    let mut kept_out = Vec::new();
    for (volume, recorder) in volumes.iter().zip(&mut recorders) {
        kept_out.push(volume.merged_for_snapshot(recorder).await?);
    }
    let frozen = {
        let mut barriers: Vec<RwLockWriteGuard<'_, ()>> = Vec::new();
        for volume in volumes {
            barriers.push(volume.barrier.write().await);
        }
        // Checked before the first volume is frozen, so that all of them can be frozen.
        for volume in volumes {
            volume.state.lock().current_allocation()?;
        }
        let frozen = volumes.iter().map(|volume| volume.freeze()).collect::<Result<Vec<_>>>()?;
        drop(kept_out);
        // If this future is dropped, the next use of the recorder resolves and undoes the snapshot.
        for (recorder, frozen) in recorders.iter_mut().zip(&frozen) {
            recorder.frozen = Some(frozen.clone());
        }
        frozen
    };
    let mut error = None;
    for ((volume, recorder), frozen) in volumes.iter().zip(&mut recorders).zip(&frozen) {
        if let Err(why) = volume.store_snapshot(recorder, frozen, name, made_unix_seconds).await {
            error = Some(why);
            break;
        }
    }
    let Some(error) = error else {
        drop(recorders);
        for volume in volumes {
            volume.remove_drops(FLUSH_REMOVALS_MAX).await;
        }
        return Ok(());
    };
    for ((volume, recorder), frozen) in volumes.iter().zip(&mut recorders).zip(&frozen) {
        // Every volume is handled, whatever the result of others: the first error is the result.
        // The next use of a recorder does what cannot be done now.
        if volumes.len() > 1 {
            recorder.unwanted = Some(frozen.id);
        }
        if volume.resolve(recorder).await.is_ok() && recorder.head.node(frozen.id).is_some() {
            let _ = volume.delete_snapshot_named(recorder, name).await;
        }
    }
    Err(error)
}

impl Inner {
    /// Returns the pages and the map of a snapshot of this volume. For 0, these are holes.
    pub(super) async fn map_of_node(&self, recorder: &Recorder, node: u64) -> Result<(Vec<Entry>, Map)> {
        if node == 0 {
            return Ok(Default::default());
        }
        let recorded = self.state.lock().recorded.clone();
        let near = (recorder.head.root.as_slice(), &recorded);
        load_node(&self.space.pool, self.space.volume, node, near).await
    }

    /// Freezes the volume's state. From now on none of its objects is written in place. The caller
    /// holds the barrier exclusively.
    fn freeze(&self) -> Result<Frozen> {
        let mut state = self.state.lock();
        debug_assert!(state.overlays.is_empty());
        let id = state.current_allocation()?;
        state.allocation += 1;
        let map = state.live.clone();
        let parent = std::mem::replace(&mut state.parent, map.clone());
        Ok(Frozen { id, size_bytes: state.size_bytes, map, parent, drops: state.drops.mark() })
    }

    /// Undoes [`Self::freeze`] if the snapshot was not taken.
    pub(super) async fn thaw(&self, recorder: &mut Recorder) {
        // Otherwise a write that copies an object, which is becoming own again, would leave it
        // behind.
        let _barrier = self.barrier.write().await;
        let Some(frozen) = recorder.frozen.take() else { return };
        let mut state = self.state.lock();
        state.parent = frozen.parent.clone();
        // Objects replaced meanwhile because they seemed to be shared.
        let replaced: Vec<_> = frozen.map.objects_not_in(&state.live).collect();
        for (index, entry) in replaced {
            if state.owns(index, entry) {
                state.drops.queue.push_back(Kind::Data(entry.allocation(), index));
            }
        }
        state.drops.queue.push_back(Kind::Root(frozen.id));
    }

    /// Stores a snapshot. After an error, either the snapshot was not taken, or a head is in
    /// flight.
    async fn store_snapshot(
        &self,
        recorder: &mut Recorder,
        frozen: &Frozen,
        name: &str,
        made_unix_seconds: u64,
    ) -> Result<()> {
        self.record_map(recorder, &frozen.map).await?;
        // The new pages belong to the snapshot: later ones get other names.
        self.state.lock().allocation += 1;
        let root = encode_root(&recorder.head.root);
        // A snapshot beyond the quota is refused, because it adds new pages of the map.
        let terms = self.space.terms(Durability::Stored, Condition::Absent);
        let put = self.space.put_as(Kind::Root(frozen.id), root, terms).await;
        put.map_err(|error| self.noted(error))?;
        let mut head = recorder.head.clone();
        let (id, parent) = (frozen.id, head.parent);
        let name = name.to_owned();
        head.nodes.push(Node { id, parent, size_bytes: frozen.size_bytes, made_unix_seconds, name });
        head.parent = id;
        self.commit(recorder, head).await?;
        self.note_snapshot(recorder);
        Ok(())
    }

    /// Records that the snapshot for which the volume was frozen has been stored.
    pub(super) fn note_snapshot(&self, recorder: &mut Recorder) {
        recorder.parent_root = recorder.head.root.clone();
        recorder.page_versions.clear();
        if let Some(frozen) = recorder.frozen.take() {
            self.state.lock().drops.cover(frozen.drops);
            self.space.pool.left.know(self.space.volume, frozen.id);
        }
    }

    /// Restores the volume to the snapshot's state. Later snapshots stay.
    pub(crate) async fn rollback(&self, name: &str) -> Result<()> {
        self.check_writable()?;
        self.ensure_allocations().await?;
        let mut recorder = self.recorder().await?;
        let node = recorder.head.named(name).ok_or_else(|| Error::NoSuchSnapshot(name.to_owned()))?.clone();
        let (root, map) = self.map_of_node(&recorder, node.id).await?;
        self.look_ahead_at_quota().await;
        let barrier = self.barrier.write().await;
        let mut head = recorder.head.clone();
        (head.root, head.parent, head.size_bytes) = (root.clone(), node.id, node.size_bytes);
        // Records over objects that the rollback restores would be valid again, so a new log is
        // begun.
        let log = self.new_log(&mut self.state.lock())?;
        head.logs = log.into_iter().collect();
        let old_root = recorder.head.root.clone();
        self.commit(&mut recorder, head).await?;
        {
            let mut state = self.state.lock();
            let pages = lost_pages(self.space.volume, &old_root, &[&recorder.parent_root]);
            state.replace(pages, map.clone(), map);
            if let Some(log) = log {
                state.overlays.logs.begin(log, &self.space.pool.capabilities);
            }
            state.size_bytes = node.size_bytes;
            // Names of objects that are removed now are not reused.
            state.allocation += 1;
        }
        recorder.parent_root = root;
        recorder.page_versions.clear();
        drop(barrier);
        self.record(&mut recorder).await?;
        drop(recorder);
        self.remove_drops(usize::MAX).await;
        Ok(())
    }

    /// Deletes a snapshot, and the objects that only it has.
    pub(crate) async fn delete_snapshot(&self, name: &str) -> Result<()> {
        {
            let mut recorder = self.recorder().await?;
            self.delete_snapshot_named(&mut recorder, name).await?;
        }
        // Flushes continue meanwhile.
        self.remove_drops(usize::MAX).await;
        Ok(())
    }

    pub(super) async fn delete_snapshot_named(&self, recorder: &mut Recorder, name: &str) -> Result<()> {
        let mut head = recorder.head.clone();
        let node = head.nodes.iter_mut().find(|node| node.name == name && !name.is_empty());
        node.ok_or_else(|| Error::NoSuchSnapshot(name.to_owned()))?.name.clear();
        // The name is removed first: a clone being made checks the name after it has recorded its
        // dependence.
        self.commit(recorder, head).await?;
        self.collect_nodes(recorder).await
    }

    /// Removes nameless snapshots that are no longer needed.
    pub(crate) async fn collect(&self) -> Result<()> {
        {
            let mut recorder = self.recorder().await?;
            self.collect_nodes(&mut recorder).await?;
        }
        self.remove_drops(usize::MAX).await;
        Ok(())
    }

    async fn collect_nodes(&self, recorder: &mut Recorder) -> Result<()> {
        while let Some(node) = self.unneeded(recorder).await? {
            self.splice(recorder, node).await?;
        }
        Ok(())
    }

    /// Returns a nameless snapshot with no clone and at most one child.
    async fn unneeded(&self, recorder: &Recorder) -> Result<Option<u64>> {
        let head = &recorder.head;
        for node in head.nodes.iter().filter(|node| node.name.is_empty()) {
            let children = head.nodes.iter().filter(|other| other.parent == node.id).count();
            let is_live = usize::from(head.parent == node.id && !head.is_deleted);
            let origin = Origin { volume: self.space.volume, node: node.id };
            if children + is_live <= 1 && !self.space.pool.has_clones(origin).await? {
                return Ok(Some(node.id));
            }
        }
        Ok(None)
    }

    /// Removes a snapshot with at most one child from the tree.
    async fn splice(&self, recorder: &mut Recorder, id: u64) -> Result<()> {
        let mut head = recorder.head.clone();
        let at = head.nodes.iter().position(|node| node.id == id).expect("found by the caller");
        let node = head.nodes.remove(at);
        let (root, map) = self.map_of_node(recorder, id).await?;
        let (before_root, before) = self.map_of_node(recorder, node.parent).await?;
        let is_live = recorder.head.parent == id && !recorder.head.is_deleted;
        let child = head.nodes.iter().find(|other| other.parent == id).map(|child| child.id);
        let (after_root, after) = self.map_of_node(recorder, child.unwrap_or(0)).await?;
        head.nodes.iter_mut().filter(|other| other.parent == id).for_each(|child| child.parent = node.parent);
        if head.parent == id {
            head.parent = node.parent;
        }
        self.commit(recorder, head).await?;
        let volume = self.space.volume;
        let live_root = if is_live { recorder.head.root.clone() } else { Vec::new() };
        {
            let _barrier = self.barrier.write().await;
            let mut state = self.state.lock();
            let lost = map.objects_not_in(&before).filter(|(index, entry)| {
                let is_live = is_live && state.live.get(*index) == *entry;
                entry.volume() == volume && after.get(*index) != *entry && !is_live
            });
            let lost: Vec<_> = lost.map(|(index, entry)| Kind::Data(entry.allocation(), index)).collect();
            state.drops.queue.extend(lost);
            state.drops.queue.extend(lost_pages(volume, &root, &[&before_root, &after_root, &live_root]));
            state.drops.queue.push_back(Kind::Root(id));
            if is_live {
                state.parent = before;
            }
        }
        if is_live {
            recorder.parent_root = before_root;
            recorder.page_versions.clear();
        }
        // Objects that the stored map still names are removed only after it no longer does.
        self.record(recorder).await
    }

    /// Deletes the volume itself and the names of its snapshots. Returns whether nothing of the
    /// volume is left.
    pub(crate) async fn destroy(&self) -> Result<bool> {
        let mut recorder = self.recorder().await?;
        let _barrier = self.barrier.write().await;
        let old_root = recorder.head.root.clone();
        if !recorder.head.is_deleted {
            let mut head = recorder.head.clone();
            head.is_deleted = true;
            head.logs.clear();
            head.parent = 0;
            head.root.fill(Entry::HOLE);
            head.nodes.iter_mut().for_each(|node| node.name.clear());
            self.commit(&mut recorder, head).await?;
        }
        {
            let pages = lost_pages(self.space.volume, &old_root, &[&recorder.parent_root]);
            let holes = Map::of_holes(recorder.head.root.len());
            self.state.lock().replace(pages, holes, Map::default());
        }
        recorder.parent_root.clear();
        recorder.page_versions.clear();
        self.record(&mut recorder).await?;
        drop(_barrier);
        self.collect_nodes(&mut recorder).await?;
        self.remove_drops(usize::MAX).await;
        Ok(recorder.head.nodes.is_empty())
    }

    /// Removes the head of a volume that no node needs any more, and any objects left by a crash.
    /// Returns the volume's origin.
    pub(crate) async fn remove_head(&self) -> Result<Option<Origin>> {
        let recorder = self.recorder().await?;
        self.space.clear().await.map_err(|error| self.noted(error))?;
        self.state.lock().set_status(Status::Closed);
        self.space.pool.left.forget(self.space.volume);
        Ok(recorder.head.origin)
    }

    /// Makes the volume independent of its origin by giving it objects of its own. Calls `progress`
    /// with the number of objects completed and the total number. Returns the origin.
    pub(crate) async fn flatten(&self, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<Option<Origin>> {
        self.check_writable()?;
        {
            let recorder = self.recorder().await?;
            if recorder.head.origin.is_none() {
                return Ok(None);
            }
            if !recorder.head.nodes.is_empty() {
                let why = "its snapshots depend on the origin as well: delete them first";
                return Err(Error::Invalid(format!("the volume cannot be flattened: {why}")));
            }
        }
        let foreign: Vec<u32> = {
            let state = self.state.lock();
            let foreign = state.live.objects().filter(|(_, entry)| entry.volume() != self.space.volume);
            foreign.map(|(index, _)| index).collect()
        };
        let count = foreign.len() as u64;
        for (done, index) in (0..).zip(foreign) {
            progress(done, count);
            self.ensure_allocations().await?;
            let _barrier = self.barrier.read().await;
            let _alone = self.lock_of(index).write().await;
            let entry = {
                let state = self.state.lock();
                // The volume may have been closed since: an object allocated after that would have
                // no entry.
                state.check()?;
                state.live.get(index)
            };
            if !entry.is_hole() && entry.volume() != self.space.volume {
                self.allocate_copy(index).await?;
            }
        }
        let mut recorder = self.recorder().await?;
        if !recorder.head.nodes.is_empty() {
            return Err(Error::Invalid("a snapshot was made while the volume was flattened".into()));
        }
        self.record(&mut recorder).await?;
        let origin = recorder.head.origin;
        let mut head = recorder.head.clone();
        head.origin = None;
        // A remaining page of the origin has only holes.
        head.root
            .iter_mut()
            .filter(|page| page.volume() != self.space.volume)
            .for_each(|page| *page = Entry::HOLE);
        self.commit(&mut recorder, head).await?;
        Ok(origin)
    }
}

// ---- release

impl Volume {
    /// Closes the volume as [`Self::close`] does, but for the owner named `to`: afterwards only
    /// that owner can open it without a takeover. Most data are stored while changes continue;
    /// changes wait only while the rest is stored.
    ///
    /// # Errors
    /// The errors of [`Self::close`]; `Invalid` if no owner can have this name; `Closed` if the
    /// volume was already closed. A repeated call for the same owner completes an earlier one.
    pub async fn hand_over(&self, to: &str) -> Result<()> {
        check_owner_name(to)?;
        let inner = &*self.inner;
        // If an earlier call failed after the release, the rest remains to be done.
        if !inner.was_handed_over(to).await {
            // Most data are stored here, while changes continue.
            inner.flush_as(Durability::Stored).await?;
            inner.clear_drops().await?;
            inner.release(Some(to)).await?;
        }
        let space = &inner.space;
        if space.is_stamped() {
            return Ok(());
        }
        // A cache below is no longer the writer: after a crash a journal there must not find that
        // another one has claimed it.
        let namespace = space.pool.namespace(space.volume);
        if_supported(space.store().control().release(namespace).await).map(drop)
    }
}

impl Inner {
    /// Stores everything and releases the volume.
    pub(crate) async fn close(&self) -> Result<()> {
        if self.is_open() {
            // This part takes long, so it is done while changes continue.
            self.clear_drops().await?;
        }
        self.release(None).await
    }

    /// Returns whether the volume was released for the owner with this name.
    async fn was_handed_over(&self, to: &str) -> bool {
        let recorder = self.recorder.lock().await;
        let is_its = recorder.head.owner.as_ref().is_some_and(|owner| owner.name == to);
        is_its && self.state.lock().status == Status::HandedOver
    }

    /// Allows the volume's namespace to be removed from the cache again.
    async fn release_limits(&self) {
        release_limits(&self.space.pool, self.space.volume, self.attachment).await;
    }

    async fn release(&self, to: Option<&str>) -> Result<()> {
        let mut recorder = self.recorder.lock().await;
        let status = self.state.lock().status;
        match status {
            Status::Open => {}
            Status::Closed | Status::HandedOver => return Ok(()),
            Status::Interrupted => {
                self.release_limits().await;
                self.state.lock().set_status(Status::Closed);
                return Ok(());
            }
            Status::Fenced(epoch) => {
                self.release_limits().await;
                return Err(Error::Fenced { epoch });
            }
        }
        self.resolve(&mut recorder).await?;
        let _kept_out = self.merged(&mut recorder).await?;
        let _barrier = self.barrier.write().await;
        self.record(&mut recorder).await?;
        // The maps contain everything, so no log is needed.
        let is_used = {
            let mut state = self.state.lock();
            let is_used = state.overlays.logs.is_used();
            state.overlays.logs.end();
            // If the volume stays open, another log is due.
            state.overlays.wake();
            is_used
        };
        if is_used {
            let mut head = recorder.head.clone();
            head.logs.clear();
            self.commit(&mut recorder, head).await?;
            {
                let mut state = self.state.lock();
                let logs = state.overlays.clear();
                state.drop_logs(logs);
            }
            self.record(&mut recorder).await?;
        }
        self.remove_drops(usize::MAX).await;
        let mut head = recorder.head.clone();
        head.logs.clear();
        // The epoch saves the next owner a query.
        let epoch = head.owner.as_ref().map_or(0, |owner| owner.epoch);
        head.owner = to.map(|name| Owner { epoch, writer: 0, name: name.to_owned() });
        {
            let mut state = self.state.lock();
            head.allocation_limit = (state.allocation + 1).min(ALLOCATION_MAX + 1);
            // If the volume stays open, it reserves allocation IDs again.
            state.allocation_limit = head.allocation_limit;
        }
        self.commit(&mut recorder, head).await?;
        self.space.pool.left.note(self.space.volume, recorder.head.sequence);
        self.release_limits().await;
        let status = if to.is_some() { Status::HandedOver } else { Status::Closed };
        self.state.lock().set_status(status);
        Ok(())
    }
}

/// Returns the pages of `volume` in `root` that none of `others` has.
fn lost_pages(volume: VolumeId, root: &[Entry], others: &[&[Entry]]) -> Vec<Kind> {
    let lost = root.iter().enumerate().filter(|(page, at)| {
        let is_kept = others.iter().any(|other| other.get(*page) == Some(*at));
        !at.is_hole() && at.volume() == volume && !is_kept
    });
    // A map has at most 65 536 pages.
    lost.map(|(page, at)| Kind::Page(at.allocation(), page as u32)).collect()
}
