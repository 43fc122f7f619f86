//! A volume and all its snapshots, held still, for a check.

use async_lock::{MutexGuard, RwLockWriteGuard};

use super::{Inner, Recorder};
use crate::error::Result;
use crate::format::Head;
use crate::format::entry::{Entry, Kind, VolumeId};
use crate::format::map::Map;

/// See the module. While it lives, the volume takes no changes here.
pub(crate) struct View<'a> {
    inner: &'a Inner,
    /// The pages and the map of each node; the live volume's first.
    nodes: Vec<(Option<u64>, Vec<Entry>, Map)>,
    parent_root: Vec<Entry>,
    recorder: MutexGuard<'a, Recorder>,
    /// No copy is being made that nothing names yet.
    _merges: RwLockWriteGuard<'a, ()>,
    _turn: RwLockWriteGuard<'a, ()>,
}

impl Inner {
    /// Returns the head of the volume, as it is stored.
    pub(crate) async fn head(&self) -> Head {
        self.recorder.lock().await.head.clone()
    }

    /// Records everything and holds the volume still.
    pub(crate) async fn view(&self) -> Result<View<'_>> {
        let mut recorder = self.recorder().await?;
        let merges = self.merges.write().await;
        let turn = self.turn.write().await;
        self.record(&mut recorder).await?;
        self.remove_drops(usize::MAX).await;
        self.removals_ended().await;
        let live = self.state.lock().live.clone();
        let mut nodes = vec![(None, recorder.head.root.clone(), live)];
        for node in &recorder.head.nodes {
            let (root, map) = self.map_of_node(&recorder, node.id).await?;
            nodes.push((Some(node.id), root, map));
        }
        let parent_root = recorder.parent_root.clone();
        Ok(View { inner: self, nodes, parent_root, recorder, _merges: merges, _turn: turn })
    }
}

impl View<'_> {
    pub(crate) fn volume(&self) -> VolumeId {
        self.inner.space.volume
    }

    /// Returns the head of the volume.
    pub(crate) fn head(&self) -> &Head {
        &self.recorder.head
    }

    /// Returns how many births met an object of their name.
    pub(crate) fn births_met(&self) -> u64 {
        self.inner.state.lock().births_met
    }

    /// Calls `each` for every object that a node of the volume names, once for each node.
    pub(crate) fn each_name(&self, mut each: impl FnMut(VolumeId, Kind)) {
        for (id, root, map) in &self.nodes {
            if let Some(id) = id {
                each(self.volume(), Kind::Root(*id));
            }
            for (page, at) in root.iter().enumerate().filter(|(_, at)| !at.is_hole()) {
                each(at.volume(), Kind::Page(at.birth(), page as u32));
            }
            for (index, entry) in map.objects() {
                each(entry.volume(), Kind::Data(entry.birth(), index));
            }
        }
    }

    /// Returns whether an object is a part of a log that the volume has. Not all parts need be there.
    pub(crate) fn is_logged(&self, kind: Kind) -> bool {
        let births = self.recorder.head.logs.iter().map(|log| log.birth);
        matches!(kind, Kind::Overlay(birth, _) if births.into_iter().any(|log| log == birth))
    }

    /// Calls `each` for every object that the live volume writes in place.
    pub(crate) fn each_own(&self, mut each: impl FnMut(VolumeId, Kind)) {
        let (_, root, map) = &self.nodes[0];
        let state = self.inner.state.lock();
        for (index, entry) in map.objects().filter(|(index, entry)| state.owns(*index, *entry)) {
            each(entry.volume(), Kind::Data(entry.birth(), index));
        }
        for (page, at) in root.iter().enumerate() {
            if at.volume() == self.volume() && self.parent_root.get(page) != Some(at) {
                each(at.volume(), Kind::Page(at.birth(), page as u32));
            }
        }
    }

    /// Removes an object that nothing names.
    pub(crate) async fn remove(&self, kind: Kind) -> Result<()> {
        self.inner.space.remove(kind).await.map_err(|error| self.inner.noted(error))
    }

    pub(crate) async fn flush(&self) -> Result<()> {
        self.inner.space.flush(blocker::Durability::Stored).await.map_err(|error| self.inner.noted(error))
    }
}
