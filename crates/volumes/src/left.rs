//! The volumes that this process has given up: by their heads it finds out whether another owner has had them since.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::entry::VolumeId;

/// The most volumes that are remembered. Of a further one it is assumed that another owner has had it.
const VOLUMES_MAX: usize = 16 * 1024;

/// The numbers of the heads with which volumes were given up. All clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Left {
    sequences: Arc<Mutex<HashMap<VolumeId, u64>>>,
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
    }

    /// Returns the number of the head with which the volume was given up last.
    pub(crate) fn of(&self, volume: VolumeId) -> Option<u64> {
        self.sequences.lock().get(&volume).copied()
    }
}
