//! What this process knows of volumes that it does not have: with which heads it has given them up, by which it finds out
//! whether another owner has had them since; and up to which snapshot caches below have nothing of before.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::format::entry::VolumeId;

/// The most volumes that are remembered. Of a further one it is assumed that another owner has had it, and that caches below
/// have something of before its snapshots.
const VOLUMES_MAX: usize = 16 * 1024;

/// The numbers of the heads with which volumes were given up, and of the newest snapshots that are known. All clones are
/// the same.
#[derive(Clone, Default)]
pub(crate) struct Left {
    sequences: Arc<Mutex<HashMap<VolumeId, u64>>>,
    snapshots: Arc<Mutex<HashMap<VolumeId, u64>>>,
}

impl Left {
    /// Notes that a volume is given up with a head of this number.
    pub(crate) fn note(&self, volume: VolumeId, sequence: u64) {
        let mut sequences = self.sequences.lock();
        if sequences.len() < VOLUMES_MAX || sequences.contains_key(&volume) {
            sequences.insert(volume, sequence);
        }
    }

    /// Forgets a volume that is gone.
    pub(crate) fn forget(&self, volume: VolumeId) {
        self.sequences.lock().remove(&volume);
        self.snapshots.lock().remove(&volume);
    }

    /// Notes that caches below have nothing of a volume that is older than its snapshot of this number, and can be read.
    pub(crate) fn know(&self, volume: VolumeId, snapshot: u64) {
        let mut snapshots = self.snapshots.lock();
        if snapshots.len() < VOLUMES_MAX || snapshots.contains_key(&volume) {
            let newest = snapshots.entry(volume).or_default();
            *newest = snapshot.max(*newest);
        }
    }

    /// Returns whether what caches below have of a snapshot is what it has. An object of a snapshot is the same from the
    /// snapshot on, so that a newer one that is known is enough.
    pub(crate) fn knows(&self, volume: VolumeId, snapshot: u64) -> bool {
        self.snapshots.lock().get(&volume).is_some_and(|newest| snapshot <= *newest)
    }

    /// Returns the number of the head with which the volume was given up last.
    pub(crate) fn of(&self, volume: VolumeId) -> Option<u64> {
        self.sequences.lock().get(&volume).copied()
    }
}
