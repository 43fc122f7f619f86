//! The catalog: the names of volumes, and the records of which clones depend on which snapshots.
//! The catalog has a namespace of its own, which no volume's owner claims.

use std::time::{SystemTime, UNIX_EPOCH};

use blocker::{
    BlockerExt, Condition, DeleteRequest, Durability, Error as Store, FlushRequest, ListRequest, Name,
    Namespace, ObjectId, Scope, Version, WriteFullRequest,
};
use futures_util::TryStreamExt;

use crate::error::{Error, Result};
use crate::format::entry::{Kind, VOLUME_MAX, VolumeId};
use crate::format::{Head, NAME_BYTES_MAX, Origin, decode_number, encode_number};
use crate::settings::DamagedVolume;
use crate::space::{Pool, damaged, unreadable};

/// The maximum number of attempts to change a record that others change at the same time.
const TRIES: u32 = 64;

/// Checks the name of a volume or a snapshot.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let is_plain = name.chars().all(|c| !c.is_control() && c != '/' && c != '@');
    if is_plain && (1..=NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    let wanted = format!("1 to {NAME_BYTES_MAX} bytes without control characters, \"/\" and \"@\"");
    Err(Error::Invalid(format!("the name {name:?}: a name has {wanted}")))
}

/// Checks the name of a new volume or snapshot, which must be displayed unambiguously. Volumes with
/// older names that fail this check can still be found and removed.
pub(crate) fn check_new_name(name: &str) -> Result<()> {
    check_name(name)?;
    if name.chars().all(is_shown) {
        return Ok(());
    }
    let why = "has characters that are invisible or change how text is shown";
    Err(Error::Invalid(format!("the name {name:?} {why}: a name has none")))
}

/// Returns whether a character is displayed unambiguously. Control characters, invisible
/// characters, and characters that change the direction of the text, such as U+202E, are not
/// displayed unambiguously.
#[must_use]
pub fn is_shown(letter: char) -> bool {
    if letter.is_ascii() {
        return !letter.is_ascii_control();
    }
    // Tested after a letter, because of combining characters.
    let after = String::from_iter(['a', letter]);
    after.escape_debug().eq(after.chars())
}

/// Checks the name of an owner.
pub(crate) fn check_owner_name(name: &str) -> Result<()> {
    if (1..=NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    Err(Error::Invalid(format!("the owner {name:?} must have 1 to {NAME_BYTES_MAX} bytes")))
}

/// Returns the time in seconds since 1970.
pub(crate) fn now_unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Pool {
    fn in_catalog(&self, name: String) -> ObjectId {
        ObjectId::new(self.catalog(), Name::new(name).expect("names were checked"))
    }

    fn name_object(&self, name: &str) -> ObjectId {
        self.in_catalog(format!("v/{name}"))
    }

    fn remains_object(&self, volume: VolumeId) -> ObjectId {
        self.in_catalog(format!("x/{volume}"))
    }

    fn clone_object(&self, origin: Origin, clone: VolumeId) -> ObjectId {
        self.in_catalog(format!("c/{}/{:09x}/{clone}", origin.volume, origin.node))
    }

    /// Writes a record. The record is *stored* when this returns.
    async fn put_record(&self, object: ObjectId, bytes: Vec<u8>, condition: Condition) -> Result<(), Store> {
        let durability = Durability::Stored.min(self.capabilities.durability_max);
        let request =
            WriteFullRequest::new(object.clone(), bytes).durability(durability).condition(condition);
        let reply = self.store.write_full(request).await?;
        if reply.durability < Durability::Stored {
            self.store.flush(FlushRequest::new(Scope::Object(object))).await?;
        }
        Ok(())
    }

    /// Removes a record, if it exists; the removal is *stored* when this returns.
    async fn remove_record(&self, object: ObjectId) -> Result<()> {
        self.remove_record_if(object, Condition::None).await
    }

    /// Removes a record as [`Self::remove_record`] does, on a condition.
    async fn remove_record_if(&self, object: ObjectId, condition: Condition) -> Result<()> {
        let durability = Durability::Stored.min(self.capabilities.durability_max);
        let request = DeleteRequest::new(object.clone()).durability(durability).condition(condition);
        match self.store.delete(request).await {
            Ok(reply) if reply.durability < Durability::Stored => {
                self.store.flush(FlushRequest::new(Scope::Object(object))).await?;
                Ok(())
            }
            Ok(_) | Err(Store::Missing) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns a number that no volume has ever had.
    pub(crate) async fn new_volume_id(&self) -> Result<VolumeId> {
        let object = self.in_catalog("next".to_owned());
        for _ in 0..TRIES {
            let (volume, condition) = match self.get(object.clone()).await {
                Ok((bytes, version)) => {
                    let what = || format!("the catalog's record {object}");
                    let volume = decode_number(&bytes.to_vec()).map_err(|why| damaged(&what(), &why))?;
                    (volume, Condition::Version(version))
                }
                Err(Store::Missing) => (VolumeId(1), Condition::Absent),
                Err(error) => return Err(error.into()),
            };
            if volume.0 == VOLUME_MAX {
                return Err(Error::Limit("the catalog has no volume numbers left".into()));
            }
            let next = encode_number(VolumeId(volume.0 + 1));
            match self.put_record(object.clone(), next, condition).await {
                Ok(()) => return Ok(volume),
                // Another caller was first, or the outcome is unknown: in either case the next
                // number is tried.
                Err(
                    Store::ConditionFailed { .. }
                    | Store::Exists
                    | Store::OutcomeUnknown(_)
                    | Store::NotStored(_),
                ) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Io(Store::Retryable("too many volumes are being created at the same time".into())))
    }

    /// Returns the number of the volume with this name.
    pub(crate) async fn find(&self, name: &str) -> Result<VolumeId> {
        check_name(name)?;
        let what = || format!("the catalog's record of volume {name:?}");
        match self.get(self.name_object(name)).await {
            Ok((bytes, _)) => decode_number(&bytes.to_vec()).map_err(|why| damaged(&what(), &why)),
            Err(Store::Missing) => Err(Error::NoSuchVolume(name.to_owned())),
            Err(error) => Err(unreadable(error, &what())),
        }
    }

    /// Returns the number as [`Self::find`] does, but reads it from the store and not from a cache
    /// below.
    pub(crate) async fn find_fresh(&self, name: &str) -> Result<VolumeId> {
        check_name(name)?;
        self.invalidate(Scope::Object(self.name_object(name))).await?;
        self.find(name).await
    }

    /// Gives a volume its name. If this fails, the volume does not have the name.
    pub(crate) async fn publish(&self, name: &str, volume: VolumeId) -> Result<()> {
        let bytes = encode_number(volume);
        let mut tries = 0;
        loop {
            tries += 1;
            match self.put_record(self.name_object(name), bytes.clone(), Condition::Absent).await {
                Ok(()) => return Ok(()),
                Err(Store::OutcomeUnknown(_) | Store::NotStored(_) | Store::Exists) if tries <= TRIES => {}
                Err(error) => return Err(error.into()),
            }
            match self.find_fresh(name).await {
                Ok(found) if found == volume => {
                    self.store.flush(FlushRequest::new(Scope::Object(self.name_object(name)))).await?;
                    return Ok(());
                }
                Ok(_) => return Err(Error::Exists(name.to_owned())),
                Err(Error::NoSuchVolume(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes its name from a volume. If another volume has the name by now, it keeps it.
    pub(crate) async fn unpublish(&self, name: &str, volume: VolumeId) -> Result<()> {
        let object = self.name_object(name);
        for _ in 0..TRIES {
            self.invalidate(Scope::Object(object.clone())).await?;
            let (bytes, version) = match self.get(object.clone()).await {
                Ok(found) => found,
                Err(Store::Missing) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            if decode_number(&bytes.to_vec()).is_ok_and(|named| named != volume) {
                return Ok(());
            }
            match self.remove_record_if(object.clone(), Condition::Version(version)).await {
                Err(Error::Io(Store::ConditionFailed { .. })) => {}
                removed => return removed,
            }
        }
        Err(Error::Io(Store::Retryable(format!("the volume {name:?} is being changed by others").into())))
    }

    /// Removes the damaged record of a name.
    pub(crate) async fn unpublish_damaged(&self, name: &str) -> Result<()> {
        self.remove_record(self.name_object(name)).await
    }

    /// Returns the names and numbers of all volumes, in the order of the names.
    ///
    /// # Errors
    /// The store's errors; `Damaged` if a record is damaged.
    pub(crate) async fn names(&self) -> Result<Vec<(String, VolumeId)>> {
        let (names, damaged) = self.names_and_damaged().await?;
        match damaged.into_iter().next() {
            Some(DamagedVolume { why, .. }) => Err(Error::Damaged(why)),
            None => Ok(names),
        }
    }

    /// Returns the names and numbers of the volumes with readable records, and the damaged volumes.
    pub(crate) async fn names_and_damaged(&self) -> Result<(Vec<(String, VolumeId)>, Vec<DamagedVolume>)> {
        let entries: Vec<_> = self.store.entries(self.catalog(), "v/").try_collect().await?;
        let (mut names, mut damaged) = (Vec::new(), Vec::new());
        for entry in entries {
            let name = String::from_utf8_lossy(&entry.name.as_bytes()[2..]).into_owned();
            match self.find(&name).await {
                Ok(volume) => names.push((name, volume)),
                // Deleted meanwhile.
                Err(Error::NoSuchVolume(_)) => {}
                // `Invalid`: no volume can have this name.
                Err(Error::Damaged(why) | Error::Invalid(why)) => damaged.push(DamagedVolume { name, why }),
                Err(error) => return Err(error),
            }
        }
        Ok((names, damaged))
    }

    /// Makes caches below re-read the catalog, because another owner may have changed it.
    pub(crate) async fn refresh_catalog(&self) -> Result<()> {
        self.invalidate(Scope::Namespace(self.catalog())).await
    }

    /// Records that a clone depends on a snapshot.
    pub(crate) async fn add_clone(&self, origin: Origin, clone: VolumeId) -> Result<()> {
        let object = self.clone_object(origin, clone);
        Ok(self.put_record(object, encode_number(clone), Condition::None).await?)
    }

    pub(crate) async fn remove_clone(&self, origin: Origin, clone: VolumeId) -> Result<()> {
        self.remove_record(self.clone_object(origin, clone)).await
    }

    /// Returns whether the catalog records that this clone depends on this snapshot.
    pub(crate) async fn is_clone(&self, origin: Origin, clone: VolumeId) -> Result<bool> {
        Ok(self.store.exists(&self.clone_object(origin, clone)).await?)
    }

    /// Returns whether any clone depends on a snapshot.
    pub(crate) async fn has_clones(&self, origin: Origin) -> Result<bool> {
        let prefix = format!("c/{}/{:09x}/", origin.volume, origin.node);
        let request = ListRequest::new(self.catalog()).prefix(prefix).entries_max(1);
        Ok(!self.store.list(request).await?.entries.is_empty())
    }

    /// Records that a volume is being deleted, or is kept without a name for its clones.
    pub(crate) async fn add_remains(&self, volume: VolumeId) -> Result<()> {
        let object = self.remains_object(volume);
        Ok(self.put_record(object, encode_number(volume), Condition::None).await?)
    }

    /// Returns whether a volume is being deleted, or is kept without a name for its clones.
    pub(crate) async fn is_in_remains(&self, volume: VolumeId) -> Result<bool> {
        Ok(self.store.exists(&self.remains_object(volume)).await?)
    }

    /// Records the same as [`Self::add_remains`], and returns whether the record is new.
    pub(crate) async fn add_new_remains(&self, volume: VolumeId) -> Result<bool> {
        let object = self.remains_object(volume);
        match self.put_record(object, encode_number(volume), Condition::Absent).await {
            Ok(()) => Ok(true),
            Err(Store::Exists | Store::ConditionFailed { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) async fn remove_remains(&self, volume: VolumeId) -> Result<()> {
        self.remove_record(self.remains_object(volume)).await
    }

    /// Returns whether a volume with this number exists, with or without a name.
    pub(crate) async fn has_head(&self, volume: VolumeId) -> Result<bool> {
        Ok(self.store.exists(&self.object(volume, Kind::Head)).await?)
    }

    /// Returns a volume's head and its version.
    pub(crate) async fn head(&self, volume: VolumeId) -> Result<(Head, Version)> {
        let what = || format!("head {} of a volume", self.object(volume, Kind::Head));
        self.head_if_any(volume).await?.ok_or_else(|| damaged(&what(), "it is missing"))
    }

    /// Returns a volume's head and the head's version, or `None` if the volume has no head.
    pub(crate) async fn head_if_any(&self, volume: VolumeId) -> Result<Option<(Head, Version)>> {
        let object = self.object(volume, Kind::Head);
        let what = || format!("head {object} of a volume");
        match self.get(object.clone()).await {
            Ok((bytes, version)) => {
                let head = Head::decode(&bytes.to_vec()).map_err(|why| damaged(&what(), &why))?;
                if head.volume != volume {
                    return Err(damaged(&what(), "it belongs to another volume"));
                }
                Ok(Some((head, version)))
            }
            Err(Store::Missing) => Ok(None),
            Err(error) => Err(unreadable(error, &what())),
        }
    }
}

impl Pool {
    /// Returns the volumes that are being deleted, or are kept without a name for their clones.
    pub(crate) async fn remains(&self) -> Result<Vec<VolumeId>> {
        let names = self.catalog_names("x/").await?;
        Ok(names.iter().filter_map(|name| number(name.strip_prefix("x/")?)).collect())
    }

    /// Returns the recorded dependences of clones.
    pub(crate) async fn clones(&self) -> Result<Vec<(Origin, VolumeId)>> {
        let mark = |name: &String| {
            let mut parts = name.strip_prefix("c/")?.split('/');
            let (volume, node) = (number(parts.next()?)?, u64::from_str_radix(parts.next()?, 16).ok()?);
            Some((Origin { volume, node }, number(parts.next()?)?))
        };
        Ok(self.catalog_names("c/").await?.iter().filter_map(mark).collect())
    }

    async fn catalog_names(&self, prefix: &'static str) -> Result<Vec<String>> {
        let entries: Vec<_> = self.store.entries(self.catalog(), prefix).try_collect().await?;
        Ok(entries.iter().map(|entry| String::from_utf8_lossy(entry.name.as_bytes()).into_owned()).collect())
    }

    /// Returns the volume to which this namespace belongs.
    pub(crate) fn volume_of(&self, namespace: &Namespace) -> Option<VolumeId> {
        let bytes = namespace.as_bytes();
        let catalog = self.catalog();
        let rest = bytes.strip_prefix(catalog.as_bytes())?.strip_prefix(b".")?;
        let id = number(std::str::from_utf8(rest).ok()?)?;
        (self.namespace(id) == *namespace).then_some(id)
    }
}

fn number(text: &str) -> Option<VolumeId> {
    u32::from_str_radix(text, 16).ok().filter(|number| *number != 0).map(VolumeId)
}

// ---- volumes of other owners
//
// Until a snapshot is made, the volume's owner may write the objects in place, which a cache on
// another host does not notice. After the snapshot its objects never change. So a cache re-reads
// the volume once for each new snapshot, and a golden image stays cached.

impl Pool {
    /// Makes caches below drop older copies of a snapshot's objects, and of the objects of the
    /// snapshots from which its volume was cloned.
    pub(crate) async fn refresh(&self, snapshot: Option<Origin>) -> Result<()> {
        let mut next = snapshot;
        let mut refreshed = Vec::new();
        while let Some(Origin { volume, node }) = next.take() {
            // The snapshots from which it was cloned were refreshed together with it.
            if self.left.knows(volume, node) {
                break;
            }
            self.invalidate(Scope::Namespace(self.namespace(volume))).await?;
            refreshed.push((volume, node));
            match self.head_if_any(volume).await {
                Ok(Some((head, _))) => next = head.origin,
                // The origin cannot be determined.
                Ok(None) | Err(Error::Damaged(_)) => self.invalidate(Scope::All).await?,
                Err(error) => return Err(error),
            }
        }
        for (volume, node) in refreshed {
            self.left.know(volume, node);
        }
        Ok(())
    }

    /// Returns the head of a volume that another owner may have attached, read from the store.
    pub(crate) async fn fresh_head(&self, volume: VolumeId) -> Result<Option<Head>> {
        self.invalidate(Scope::Object(self.object(volume, Kind::Head))).await?;
        Ok(self.head_if_any(volume).await?.map(|(head, _)| head))
    }

    /// Checks after a read of a snapshot that the volume still has it: once the snapshot's name is
    /// gone, the owner may overwrite its objects.
    pub(crate) async fn check_there(&self, volume: VolumeId, node: u64, name: &str) -> Result<()> {
        let head = self.fresh_head(volume).await?;
        match head.as_ref().and_then(|head| head.named(name)) {
            Some(found) if found.id == node => Ok(()),
            _ => Err(Error::NoSuchSnapshot(name.to_owned())),
        }
    }
}
