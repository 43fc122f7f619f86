//! Snapshots of volumes that this process does not have: what caches below have of them may be older than they are.
//!
//! Their owners have written objects in place until the snapshot was made, and of that no cache of another host learns. From
//! then on an object of the snapshot stays as it is. So a cache is asked once for each new snapshot to read anew, and a
//! golden image stays warm.

use blocker::Scope;

use crate::error::{Error, Result};
use crate::format::entry::{Kind, VolumeId};
use crate::format::{Head, Origin};
use crate::space::Pool;

impl Pool {
    /// Lets the caches below read anew what they may have of a snapshot, and of those that it came from, of before.
    pub(crate) async fn refresh(&self, snapshot: Option<Origin>) -> Result<()> {
        let mut next = snapshot;
        let mut refreshed = Vec::new();
        while let Some(Origin { volume, node }) = next.take() {
            // Those before it were refreshed with it.
            if self.left.knows(volume, node) {
                break;
            }
            self.invalidate(Scope::Namespace(self.namespace(volume))).await?;
            refreshed.push((volume, node));
            match self.head_if_any(volume).await {
                Ok(Some((head, _))) => next = head.origin,
                // Where it came from cannot be found out.
                Ok(None) | Err(Error::Damaged(_)) => self.invalidate(Scope::All).await?,
                Err(error) => return Err(error),
            }
        }
        for (volume, node) in refreshed {
            self.left.know(volume, node);
        }
        Ok(())
    }

    /// Returns the head of a volume that another owner may have, as the store has it.
    pub(crate) async fn fresh_head(&self, volume: VolumeId) -> Result<Option<Head>> {
        self.invalidate(Scope::Object(self.object(volume, Kind::Head))).await?;
        Ok(self.head_if_any(volume).await?.map(|(head, _)| head))
    }

    /// Checks that a volume still has a snapshot, after what was read of it: from the loss of its name on, its owner may
    /// write over it.
    pub(crate) async fn check_there(&self, volume: VolumeId, node: u64, name: &str) -> Result<()> {
        let head = self.fresh_head(volume).await?;
        match head.as_ref().and_then(|head| head.named(name)) {
            Some(found) if found.id == node => Ok(()),
            _ => Err(Error::NoSuchSnapshot(name.to_owned())),
        }
    }
}
