//! Deleting a volume that cannot be read: by what its namespace has, and not by its map.

use crate::error::{Error, Result};
use crate::format::entry::VolumeId;
use crate::manage::Volumes;
use crate::manage::attach::{attach_below, check_owner, claim};
use crate::settings::Fencing;
use crate::space::Space;

impl Volumes {
    /// Deletes a volume and its snapshots, also where its head, its map or its record in the catalog is damaged: then
    /// everything in its namespace is removed. Of one whose record in the catalog is damaged the name goes, and the next
    /// [`Self::check`] that repairs removes the rest.
    ///
    /// Where its head cannot be read it is not known whether another owner has the volume. That owner is fenced off where
    /// the store can ([`Fencing::Stamps`]); otherwise the caller makes sure that there is none.
    ///
    /// # Errors
    /// As [`Self::delete`]; `Invalid` if it is damaged and there are clones of it, which need what cannot be found any more:
    /// flatten or delete them first. A volume that has lost its name by then is removed by [`Self::check`].
    pub async fn delete_damaged(&self, name: &str) -> Result<()> {
        let volume = match self.pool.find_fresh(name).await {
            Err(Error::Damaged(_)) => return self.pool.unpublish(name).await,
            found => found?,
        };
        match self.delete(name).await {
            Err(Error::Damaged(_)) => {}
            done => return done,
        }
        self.check_without_clones(volume).await?;
        self.pool.add_remains(volume).await?;
        // The deletion may have got as far as that, and the name may be another volume's since.
        if self.pool.find_fresh(name).await.is_ok_and(|named| named == volume) {
            self.pool.unpublish(name).await?;
        }
        self.wipe(volume).await
    }

    /// Removes everything of a volume that has no name, whose deletion is recorded, and which is not open.
    ///
    /// # Errors
    /// `InUse` if its head can be read and another owner has it; `Invalid` if there are clones of it.
    pub(crate) async fn wipe(&self, volume: VolumeId) -> Result<()> {
        let _turn = self.turn(volume).lock_arc().await;
        if self.opened(volume).is_some() {
            return Err(Error::InUse { owner: self.options.owner.clone() });
        }
        self.check_without_clones(volume).await?;
        match self.pool.fresh_head(volume).await {
            Ok(Some(head)) => check_owner(&head, &self.options, false, true)?,
            Ok(None) | Err(Error::Damaged(_)) => {}
            Err(error) => return Err(error),
        }
        let epoch = match self.options.fencing {
            Fencing::Stamps => Some(claim(&self.pool, volume, self.writer, None).await?),
            Fencing::Below => {
                attach_below(&self.pool, volume, false).await?;
                None
            }
        };
        let space = Space::new(self.pool.clone(), volume, epoch);
        space.clear().await?;
        self.pool.left.forget(volume);
        for (origin, clone) in self.pool.clones().await? {
            if clone == volume {
                self.release(origin, volume).await?;
            }
        }
        self.pool.remove_remains(volume).await
    }

    /// Checks that no clone depends on a volume of which it cannot be found out what they need.
    async fn check_without_clones(&self, volume: VolumeId) -> Result<()> {
        let clones = self.pool.clones().await?;
        let mut clones = clones.into_iter().filter(|(origin, _)| origin.volume == volume);
        let Some((_, clone)) = clones.next() else { return Ok(()) };
        let (names, _) = self.pool.names_and_damaged().await?;
        let name = names.into_iter().find(|(_, named)| *named == clone).map(|(name, _)| format!("{name:?}"));
        let (name, more) = (name.unwrap_or_else(|| format!("number {clone}")), clones.count());
        let and = if more == 0 { String::new() } else { format!(" and {more} more") };
        Err(Error::Invalid(format!(
            "the volume is damaged, and clones may need what cannot be found: flatten or delete them first ({name}{and})"
        )))
    }
}
