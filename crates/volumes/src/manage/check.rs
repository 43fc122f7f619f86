//! Checks the volumes of a store, and repairs the remains of interrupted operations.

use std::collections::{HashMap, HashSet};

use blocker::{Blocker, BlockerExt, Durability, Scope};

use crate::error::{Error, Result};
use crate::format::entry::{Kind, VolumeId};
use crate::format::{Head, Origin};
use crate::manage::Volumes;
use crate::manage::attach::claim;
use crate::manage::operations::{Lease, steadily};
use crate::settings::Fencing;
use crate::space::{Space, if_supported};
use crate::volume::View;

/// The maximum number of problems that a report lists.
const PROBLEMS_MAX: usize = 1000;

/// The kind of a problem with an object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum ProblemKind {
    /// A map names the object, but the object does not exist: data are lost. Cannot be repaired.
    Missing,
    /// The object fails its checks. Cannot be repaired.
    Damaged,
    /// The object is written in place, although another volume or snapshot refers to it as well.
    /// Cannot be repaired.
    Shared,
    /// No map names the object: an interrupted operation has left it behind. A repair removes it.
    Leftover,
}

/// One problem.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Problem {
    /// The kind of the problem.
    pub kind: ProblemKind,
    /// The object, or the reason, as text for users.
    pub what: String,
}

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// The number of volumes that were checked, including deleted volumes that are kept for clones.
    pub volumes: u64,
    /// The number of objects of these volumes.
    pub objects: u64,
    /// The problems found, whether repaired or not. At most 1 000 are listed.
    pub problems: Vec<Problem>,
    /// The number of unlisted problems.
    pub unlisted: u64,
    /// The number of leftovers that were removed.
    pub repaired: u64,
    /// The number of times that, in a volume that is open now, a new object met an existing object
    /// with the same name. Any value other than 0 indicates a bug in this program.
    pub births_met: u64,
    /// The volumes that were not checked, because another owner has them, or because they cannot be
    /// attached for the reason that follows the name.
    pub skipped: Vec<String>,
}

impl Report {
    fn note(&mut self, kind: ProblemKind, what: impl ToString) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(Problem { kind, what: what.to_string() });
        } else {
            self.unlisted += 1;
        }
    }
}

/// All objects that maps name, with the number of nodes that name each of them.
type Names = HashMap<(VolumeId, Kind), u32>;

impl Volumes {
    /// Checks that every object that a map names exists, that a map names every object, and that no
    /// shared object is written in place. With `repair`, objects that no map names are removed, and
    /// interrupted deletions are completed. Changes of volumes that are open here continue, but
    /// wait while maps are compared with listings. Without `repair` nothing is written, unless an
    /// owner has ended without releasing a volume; with `repair`, every volume that is not open is
    /// attached. Other owners' volumes are skipped. This and other owners may create, clone and
    /// delete volumes at the same time; a creation that coincides with the check may fail with
    /// `Retryable`. Only one owner at a time may check with `repair`; here a second such check waits
    /// for the first.
    ///
    /// # Errors
    /// See [`Volumes`]. Problems with volumes are not errors; they are in the report.
    pub async fn check(&self, repair: bool) -> Result<Report> {
        // Two repairs would withdraw deletions that the other one has recorded.
        let _alone = match repair {
            true => Some(self.repairing.lock().await),
            false => None,
        };
        steadily(|| self.check_once(repair)).await
    }

    async fn check_once(&self, repair: bool) -> Result<Report> {
        let mut report = Report::default();
        // An outdated name of another owner's volume would hide a different volume that has the
        // name now.
        self.pool.refresh_catalog().await?;
        let (named, damaged) = self.pool.names_and_damaged().await?;
        let named: HashMap<VolumeId, String> =
            named.into_iter().map(|(name, volume)| (volume, name)).collect();
        let is_catalog_whole = damaged.is_empty();
        damaged.into_iter().for_each(|volume| report.note(ProblemKind::Damaged, volume.why));
        let remains = self.pool.remains().await?;
        let mut volumes: Vec<VolumeId> = named.keys().chain(&remains).copied().collect();
        volumes.sort_unstable();
        volumes.dedup();
        let mut leases = Vec::new();
        for volume in &volumes {
            // Everything is gone except the record of the deletion.
            if !named.contains_key(volume) && !self.pool.has_head(*volume).await? {
                continue;
            }
            let lease = match repair {
                true => self.lease(*volume, true).await,
                false => self.lease_to_look(*volume).await,
            };
            match lease {
                Ok(lease) => leases.push((*volume, lease)),
                Err(Error::InUse { .. }) => report.skipped.push(name_of(&named, *volume)),
                Err(Error::Damaged(why)) => report.note(ProblemKind::Damaged, why),
                // The error concerns only this volume; the store is reachable.
                Err(error) if is_of_one_volume(&error) => {
                    report.skipped.push(format!("{}: {error}", name_of(&named, *volume)));
                }
                Err(error) => return end_all(leases, Err(error)).await.map(|()| report),
            }
        }
        let checked = async {
            remove_clone_snapshots(&mut report, &leases, repair).await?;
            self.check_leased(&mut report, &leases, &named, repair).await
        };
        let checked = checked.await;
        end_all(leases, checked).await?;
        // With a damaged catalog, a volume whose name cannot be read would be mistaken for one that
        // was never created.
        if is_catalog_whole {
            self.check_catalog(&mut report, &named, &remains, repair).await?;
        }
        Ok(report)
    }

    async fn check_leased(
        &self,
        report: &mut Report,
        leases: &[(VolumeId, Lease)],
        named: &HashMap<VolumeId, String>,
        repair: bool,
    ) -> Result<()> {
        let mut views: Vec<View<'_>> = Vec::new();
        let mut looked_at = HashSet::new();
        for (volume, lease) in leases {
            match lease.inner.view().await {
                Ok(view) => {
                    views.push(view);
                    looked_at.extend(lease.is_looked_at.then_some(*volume));
                }
                Err(Error::Damaged(why)) => {
                    let head = lease.inner.head().await;
                    match lease.is_looked_at && !self.is_still(&head).await? {
                        true => report.skipped.push(attached_meanwhile(named, *volume)),
                        false => report.note(ProblemKind::Damaged, why),
                    }
                }
                Err(error) => return Err(error),
            }
        }
        let mut names = Names::new();
        for view in &views {
            view.each_name(|volume, kind| *names.entry((volume, kind)).or_default() += 1);
        }
        for view in &views {
            view.each_own(|volume, kind| {
                if names.get(&(volume, kind)) != Some(&1) {
                    report.note(ProblemKind::Shared, self.pool.object(volume, kind));
                }
            });
        }
        for view in &views {
            // If another owner has attached the volume in the meantime, the apparent problems may
            // be that owner's changes.
            let before = (report.volumes, report.objects, report.problems.len(), report.unlisted);
            report.volumes += 1;
            report.births_met += view.births_met();
            let found = self.pool.objects(view.volume()).await?;
            report.objects += found.len() as u64;
            let kinds: HashSet<Kind> = found.iter().filter_map(|object| Kind::of(&object.name)).collect();
            let wanted = names.keys().filter(|(volume, _)| *volume == view.volume());
            let mut missing: Vec<_> = wanted.filter(|(_, kind)| !kinds.contains(kind)).collect();
            missing.sort_unstable();
            for (volume, kind) in missing {
                let object = self.pool.object(*volume, *kind);
                // A listing is assembled from several responses, so only a query of the store shows
                // whether an object is missing.
                self.pool.invalidate(Scope::Object(object.clone())).await?;
                match self.pool.store.exists(&object).await? {
                    true => report.objects += 1,
                    false => report.note(ProblemKind::Missing, object),
                }
            }
            for object in found {
                let kind = Kind::of(&object.name);
                let is_named = kind.is_some_and(|kind| {
                    let is_one = kind == Kind::Head || view.is_logged(kind);
                    is_one || names.contains_key(&(view.volume(), kind))
                });
                // Objects that clones share are also named by one of the volume's own nodes, which
                // is kept for the clones. So clones that were not read name no other objects here.
                if is_named {
                    continue;
                }
                report.note(ProblemKind::Leftover, &object);
                if let Some(kind) = kind.filter(|_| repair) {
                    view.remove(kind).await?;
                    report.repaired += 1;
                }
            }
            if repair {
                view.flush().await?;
            }
            if looked_at.contains(&view.volume()) && !self.is_still(view.head()).await? {
                (report.volumes, report.objects, _, report.unlisted) = before;
                report.problems.truncate(before.2);
                report.skipped.push(attached_meanwhile(named, view.volume()));
            }
        }
        Ok(())
    }

    /// Returns whether a volume's head is unchanged, which means that no owner has attached the
    /// volume in the meantime.
    async fn is_still(&self, head: &Head) -> Result<bool> {
        match self.pool.fresh_head(head.volume).await {
            Ok(found) => Ok(found.as_ref() == Some(head)),
            Err(Error::Damaged(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Completes interrupted deletions, and removes clone records and namespaces of volumes that
    /// were never created.
    async fn check_catalog(
        &self,
        report: &mut Report,
        named: &HashMap<VolumeId, String>,
        remains: &[VolumeId],
        repair: bool,
    ) -> Result<()> {
        let mut named: HashSet<VolumeId> = named.keys().copied().collect();
        if !remains.is_empty() {
            // A volume that was created after the names were read, and whose deletion has failed
            // after its record, has a name.
            self.pool.refresh_catalog().await?;
            named.extend(self.pool.names().await?.into_iter().map(|(_, volume)| volume));
        }
        for volume in remains {
            let (head, is_named) = match self.pool.head(*volume).await {
                Ok((head, _)) => (Some(head), named.contains(volume)),
                Err(Error::Damaged(_)) => (None, named.contains(volume)),
                Err(error) => return Err(error),
            };
            let is_kept = match &head {
                Some(head) => head.is_deleted && !head.nodes.is_empty(),
                // A damaged volume, which is already in the report.
                None => self.pool.has_head(*volume).await?,
            };
            if is_kept && !is_named {
                if repair {
                    self.finish_deletion(*volume).await?;
                }
                continue;
            }
            report.note(ProblemKind::Leftover, format!("the record of the deletion of volume {volume}"));
            if !repair {
                continue;
            }
            match head {
                Some(_) if !is_named => self.finish_deletion(*volume).await?,
                Some(_) => self.withdraw_deletion(*volume).await?,
                // The deletion has removed everything else, so only this record is left.
                None => self.pool.remove_remains(*volume).await?,
            }
            report.repaired += 1;
        }
        // Volumes created or deleted since are read again. The names are read first, because a
        // deletion records the volume before it removes its name.
        self.pool.refresh_catalog().await?;
        named.extend(self.pool.names().await?.into_iter().map(|(_, volume)| volume));
        let mut deleted: HashSet<VolumeId> = remains.iter().copied().collect();
        deleted.extend(self.pool.remains().await?);
        let mut clones = Vec::new();
        let mut needed = HashSet::new();
        for (origin, clone) in self.pool.clones().await? {
            if self.needs(origin, clone, &named, &deleted).await? {
                needed.insert(origin.volume);
            } else {
                clones.push((origin, clone));
            }
        }
        let namespaces = self.namespaces_but(&named, &deleted).await?;
        let mut unmade: HashSet<VolumeId> = clones.iter().map(|(_, clone)| *clone).collect();
        unmade.extend(&namespaces);
        unmade.retain(|volume| !deleted.contains(volume) && !named.contains(volume));
        if repair {
            unmade = self.keep_unmade(unmade).await?;
        }
        // The volume had a name when the deletion record disappeared, so the record exists again.
        unmade.retain(|volume| !needed.contains(volume));
        let is_gone =
            |volume: &VolumeId| unmade.contains(volume) || deleted.contains(volume) || named.contains(volume);
        for (origin, clone) in clones.into_iter().filter(|(_, clone)| is_gone(clone)) {
            report
                .note(ProblemKind::Leftover, format!("the mark of {clone} as a clone of {}", origin.volume));
            if repair {
                self.release(origin, clone).await?;
                report.repaired += 1;
            }
        }
        for volume in namespaces.into_iter().filter(|volume| unmade.contains(volume)) {
            let epoch = match self.options.fencing {
                // An owner may have claimed the namespace, so objects are removed only under a
                // newer claim.
                Fencing::Stamps if repair => Some(claim(&self.pool, volume, self.writer, None).await?),
                _ => None,
            };
            let space = Space::new(self.pool.clone(), volume, epoch);
            let objects = space.objects().await?;
            objects.iter().for_each(|object| report.note(ProblemKind::Leftover, object));
            if repair {
                space.remove_all(&objects).await?;
                space.flush(Durability::Stored).await?;
                report.repaired += objects.len() as u64;
            }
        }
        if repair {
            for volume in unmade {
                self.pool.remove_remains(volume).await?;
            }
        }
        Ok(())
    }

    /// Returns whether a clone depends on its origin, as far as this can be determined.
    async fn needs(
        &self,
        origin: Origin,
        clone: VolumeId,
        named: &HashSet<VolumeId>,
        deleted: &HashSet<VolumeId>,
    ) -> Result<bool> {
        match self.pool.fresh_head(clone).await {
            Ok(Some(head)) => {
                let is_made = named.contains(&clone) || deleted.contains(&clone) || head.is_deleted;
                Ok(head.origin == Some(origin) && is_made)
            }
            // The clone may depend on it.
            Ok(None) => Ok(named.contains(&clone)),
            Err(Error::Damaged(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Returns the volumes with namespaces that are in neither set.
    async fn namespaces_but(
        &self,
        named: &HashSet<VolumeId>,
        deleted: &HashSet<VolumeId>,
    ) -> Result<Vec<VolumeId>> {
        // Not every store can list its namespaces.
        let listed = if_supported(self.pool.store.control().namespaces().await)?;
        let namespaces = listed.unwrap_or_default();
        let volumes = namespaces.iter().filter_map(|namespace| self.pool.volume_of(namespace));
        Ok(volumes.filter(|volume| !named.contains(volume) && !deleted.contains(volume)).collect())
    }

    /// Records the deletion of volumes without a name, so that a creation in progress cannot
    /// complete; see [`Self::make`]. Returns the volumes that still have no name.
    async fn keep_unmade(&self, volumes: HashSet<VolumeId>) -> Result<HashSet<VolumeId>> {
        let mut kept = HashSet::new();
        for volume in volumes {
            if self.pool.add_new_remains(volume).await? {
                kept.insert(volume);
            }
        }
        if kept.is_empty() {
            return Ok(kept);
        }
        self.pool.refresh_catalog().await?;
        for (_, volume) in self.pool.names().await? {
            if kept.remove(&volume) {
                self.pool.remove_remains(volume).await?;
            }
        }
        Ok(kept)
    }

    /// Removes the record of a deletion that has not started.
    async fn withdraw_deletion(&self, volume: VolumeId) -> Result<()> {
        let lease = match self.lease(volume, true).await {
            Ok(lease) => lease,
            // The deletion may be in progress.
            Err(Error::InUse { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let withdrawn = async {
            if self.pool.names().await?.iter().any(|(_, named)| *named == volume) {
                self.pool.remove_remains(volume).await?;
            }
            Ok(())
        };
        let withdrawn = withdrawn.await;
        lease.end(withdrawn).await
    }

    /// Completes a deletion. A damaged volume's objects are kept while it has clones.
    async fn finish_deletion(&self, volume: VolumeId) -> Result<()> {
        let finished = match self.lease(volume, true).await {
            Ok(lease) => self.destroy(lease, volume).await,
            Err(error) => Err(error),
        };
        match finished {
            Err(Error::InUse { .. }) => Ok(()),
            // The deletion has ended meanwhile.
            Err(Error::Damaged(_)) if !self.pool.has_head(volume).await? => Ok(()),
            // The damage is already in the report.
            Err(Error::Damaged(_)) => match self.wipe(volume).await {
                Err(Error::Invalid(_) | Error::InUse { .. }) => Ok(()),
                wiped => wiped,
            },
            finished => finished,
        }
    }
}

/// Removes the snapshots of clones whose creation did not end. A creation that is in progress notices
/// it.
async fn remove_clone_snapshots(
    report: &mut Report,
    leases: &[(VolumeId, Lease)],
    repair: bool,
) -> Result<()> {
    for (volume, lease) in leases {
        let head = lease.inner.head().await;
        for node in head.nodes.iter().filter(|node| node.is_for_clone()) {
            report
                .note(ProblemKind::Leftover, format!("a snapshot of {volume} for a clone that was not made"));
            if repair {
                lease.inner.delete_snapshot(&node.name).await?;
                report.repaired += 1;
            }
        }
    }
    Ok(())
}

fn name_of(named: &HashMap<VolumeId, String>, volume: VolumeId) -> String {
    named.get(&volume).cloned().unwrap_or_else(|| format!("number {volume}"))
}

fn attached_meanwhile(named: &HashMap<VolumeId, String>, volume: VolumeId) -> String {
    format!("{}: it was attached meanwhile", name_of(named, volume))
}

/// Returns whether an error of attaching a volume concerns only that volume.
fn is_of_one_volume(error: &Error) -> bool {
    use blocker::Error as Store;
    let is_io = |error: &Store| matches!(error, Store::Corrupt(_) | Store::Denied(_) | Store::Invalid(_));
    match error {
        Error::NoSpace(_) | Error::Limit(_) | Error::Invalid(_) | Error::Unsupported(_) => true,
        Error::Io(error) => is_io(error),
        _ => false,
    }
}

async fn end_all(leases: Vec<(VolumeId, Lease)>, mut result: Result<()>) -> Result<()> {
    for (_, lease) in leases {
        result = lease.end(result).await;
    }
    result
}
