//! The model's state and its operations, each a plain function of the map.
//!
//! An operation first checks limits, fencing, condition and space, and then changes the map. The
//! change itself cannot fail, so an error means that nothing was changed.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

use super::{MemoryConfig, OBJECT_OVERHEAD_BYTES, RUNS_MAX};
use crate::admission::{Claims, Head, admit, check_condition};
use crate::conditional::check;
use crate::{
    BUCKET_BYTES, Capabilities, Change, ChangeTerms, Condition, Epoch, Error, Info, ListEntry, ListReply,
    ListRequest, Namespace, ObjectId, Quota, ReadReply, Result, RunContent, Scope, Stamp, Version, WriterId,
};

/// The maximum number of namespaces with a quota.
const QUOTAS_COUNT_MAX: usize = 4096;

pub(crate) struct Model {
    config: MemoryConfig,
    pub(super) objects: BTreeMap<ObjectId, Record>,
    pub(super) claims: Claims,
    quotas: HashMap<Namespace, u64>,
    pub(super) used_by: HashMap<Namespace, u64>,
    pub(super) version_last: u64,
    pub(super) used_bytes: u64,
    pub(super) change_count: u64,
}

/// An object, or the record of one that was deleted with a stamp.
pub(super) struct Record {
    pub(super) content: Option<Content>,
    pub(super) stamp: Option<Stamp>,
}

pub(super) struct Content {
    pub(super) data: Vec<u8>,
    pub(super) version: Version,
}

impl Record {
    fn head(&self) -> Head {
        Head { version: self.content.as_ref().map(|content| content.version), stamp: self.stamp }
    }
}

type Done = Result<(Version, u64)>;

impl Model {
    pub(super) fn new(config: MemoryConfig) -> Self {
        Self {
            config,
            objects: BTreeMap::new(),
            claims: Claims::default(),
            quotas: HashMap::new(),
            used_by: HashMap::new(),
            version_last: 0,
            used_bytes: 0,
            change_count: 0,
        }
    }

    // ---- reading

    pub(super) fn read(
        &self,
        object: &ObjectId,
        offset: u64,
        len_bytes: u64,
        condition: Condition,
    ) -> Result<ReadReply> {
        let limit_bytes = self.config.object_bytes_max.max(BUCKET_BYTES);
        if len_bytes > limit_bytes {
            return Err(Error::TooLarge { limit_bytes });
        }
        let content = self.content(object)?;
        check_condition(Some(content.version), condition)?;
        let size = content.data.len() as u64;
        let (from, to) = (offset.min(size), offset.saturating_add(len_bytes).min(size));
        let data = Bytes::copy_from_slice(&content.data[from as usize..to as usize]);
        Ok(ReadReply::new(data.into(), size, content.version))
    }

    pub(super) fn info(&self, object: &ObjectId) -> Result<Info> {
        let content = self.content(object)?;
        Ok(Info::new(content.data.len() as u64, content.version, self.objects[object].stamp))
    }

    pub(super) fn list(&self, request: &ListRequest, entries_max: usize) -> ListReply {
        let mut found = self
            .objects
            .iter()
            .filter(|(id, _)| id.namespace == request.namespace)
            .filter(|(id, _)| id.name.as_bytes().starts_with(&request.prefix))
            .filter(|(id, _)| request.after.as_ref().is_none_or(|after| id.name > *after))
            .filter_map(|(id, record)| record.content.as_ref().map(|content| (id, content)));
        let entry = |(id, content): (&ObjectId, &Content)| {
            ListEntry::new(id.name.clone(), content.data.len() as u64, content.version)
        };
        let entries = found.by_ref().take(entries_max).map(entry).collect();
        ListReply::new(entries, found.next().is_some())
    }

    // ---- changing

    /// Makes a change, and returns the object's version and size afterwards.
    pub(super) fn change(&mut self, object: &ObjectId, change: &Change, terms: &ChangeTerms) -> Done {
        check(change, self.config.object_bytes_max)?;
        let can = Capabilities { runs_max: RUNS_MAX, ..Capabilities::full(self.config.object_bytes_max) };
        change.check_runs(|| can)?;
        self.admit(object, terms)?;
        match change {
            Change::Copy { from, from_condition } => {
                let source = self.content(from)?;
                check_condition(Some(source.version), *from_condition)?;
                let data = source.data.clone();
                return self.apply(object, terms, data.len() as u64, |content| *content = data);
            }
            Change::Delete => return self.delete(object, terms),
            Change::CompareAndWrite { offset, expected, .. } => {
                let content = &self.content(object)?.data;
                let from = (*offset).min(content.len() as u64) as usize;
                let to = from.saturating_add(expected.len_bytes()).min(content.len());
                if let Some(at) = expected.first_difference(&content[from..to]) {
                    return Err(Error::Mismatch { offset: offset + at as u64 });
                }
            }
            Change::Truncate { .. } | Change::Discard { .. } => {
                self.content(object)?;
            }
            _ => {}
        }
        let new_size = change.size_after(self.size(object));
        self.apply(object, terms, new_size, |content| write(content, change, new_size))
    }

    fn delete(&mut self, object: &ObjectId, terms: &ChangeTerms) -> Done {
        self.content(object)?;
        self.change_count += 1;
        self.account(object, None);
        self.objects.remove(object);
        if terms.stamp.is_some() {
            self.adopt(object.clone(), None, terms.stamp);
        }
        Ok((Version(0), 0))
    }

    pub(super) fn claim(&mut self, scope: &Scope, epoch: Epoch, writer: WriterId) -> Result<bool> {
        let claimed = self.claims.raise(scope, epoch, writer)?;
        if claimed {
            // Deletions with an older epoch need not be remembered, because writers that could undo
            // them are fenced.
            let (claims, used_bytes) = (&self.claims, &mut self.used_bytes);
            self.objects.retain(|object, record| {
                let is_kept = record.content.is_some()
                    || record.stamp.is_some_and(|stamp| stamp.epoch >= claims.in_force(object, None));
                *used_bytes -= if is_kept { 0 } else { overhead(object) };
                is_kept
            });
        }
        Ok(claimed)
    }

    // ---- functions that the operations share

    /// Checks whether a change of the object may be made on these terms.
    pub(super) fn admit(&self, object: &ObjectId, terms: &ChangeTerms) -> Result<()> {
        let head = self.objects.get(object).map_or(Head::ABSENT, Record::head);
        admit(head, self.claims.in_force(object, terms.domain), terms)
    }

    fn content(&self, object: &ObjectId) -> Result<&Content> {
        self.objects.get(object).and_then(|record| record.content.as_ref()).ok_or(Error::Missing)
    }

    pub(super) fn size(&self, object: &ObjectId) -> u64 {
        self.content(object).map_or(0, |content| content.data.len() as u64)
    }

    /// Changes or creates an object whose change is admitted, if there is space for `new_size`
    /// bytes.
    fn apply(
        &mut self,
        object: &ObjectId,
        terms: &ChangeTerms,
        new_size: u64,
        act: impl FnOnce(&mut Vec<u8>),
    ) -> Done {
        self.check_room(object, new_size, terms.settles)?;
        self.account(object, Some(new_size));
        self.change_count += 1;
        let version = self.fresh_version();
        let record = self.objects.entry(object.clone()).or_insert(Record { content: None, stamp: None });
        let content = record.content.get_or_insert_with(|| Content { data: Vec::new(), version });
        act(&mut content.data);
        content.version = version;
        record.stamp = terms.stamp.or(record.stamp);
        Ok((version, content.data.len() as u64))
    }

    fn check_room(&self, object: &ObjectId, new_size: u64, settles: bool) -> Result<()> {
        let (old, new) = (self.charge(object), overhead(object) + new_size);
        if new <= old {
            return Ok(());
        }
        if self.used_bytes - old + new > self.config.bytes_max {
            return Err(Error::OutOfSpace("the memory backend has reached its limit".into()));
        }
        let Quota { bytes_max, used_bytes, .. } = self.quota(&object.namespace);
        let used_bytes = used_bytes - self.size(object) + new_size;
        if !settles && bytes_max.is_some_and(|bytes_max| used_bytes > bytes_max) {
            return Err(Error::OutOfSpace("the namespace has used up its quota".into()));
        }
        Ok(())
    }

    /// Returns the charge for the object.
    pub(super) fn charge(&self, object: &ObjectId) -> u64 {
        self.objects.get(object).map_or(0, |_| overhead(object) + self.size(object))
    }

    /// Updates the counts for a change of the object's size to `new_size`, or for its removal.
    fn account(&mut self, object: &ObjectId, new_size: Option<u64>) {
        let (old_charge, old_size) = (self.charge(object), self.size(object));
        let new_charge = new_size.map_or(0, |size| overhead(object) + size);
        self.used_bytes = self.used_bytes - old_charge + new_charge;
        let used = self.used_by.entry(object.namespace.clone()).or_default();
        *used = *used - old_size + new_size.unwrap_or(0);
    }

    /// Returns a version that was never used before.
    pub(crate) fn fresh_version(&mut self) -> Version {
        self.version_last += 1;
        Version(self.version_last)
    }

    /// Adds an object, or a remembered deletion, without any check.
    pub(crate) fn adopt(
        &mut self,
        object: ObjectId,
        content: Option<(Vec<u8>, Version)>,
        stamp: Option<Stamp>,
    ) {
        self.account(&object, Some(content.as_ref().map_or(0, |(data, _)| data.len() as u64)));
        let content = content.map(|(data, version)| Content { data, version });
        self.objects.insert(object, Record { content, stamp });
    }

    /// Removes everything except the record of used versions.
    #[cfg(feature = "faulty")]
    pub(crate) fn forget_all(&mut self) {
        self.objects.clear();
        self.used_by.clear();
        self.used_bytes = 0;
        self.claims = Claims::default();
    }

    // ---- metrics and quotas

    pub(super) fn namespace_epoch(&self, namespace: &Namespace) -> Epoch {
        self.claims.scope_epoch(&Scope::Namespace(namespace.clone()))
    }

    pub(super) fn quota(&self, namespace: &Namespace) -> Quota {
        let used_bytes = self.used_by.get(namespace).copied().unwrap_or(0);
        Quota { bytes_max: self.quotas.get(namespace).copied(), used_bytes }
    }

    pub(super) fn set_quota(&mut self, namespace: Namespace, bytes_max: Option<u64>) -> Result<()> {
        match bytes_max {
            Some(_) if self.quotas.len() >= QUOTAS_COUNT_MAX && !self.quotas.contains_key(&namespace) => {
                return Err(Error::OutOfSpace("too many namespaces have a quota".into()));
            }
            Some(bytes_max) => self.quotas.insert(namespace, bytes_max),
            None => self.quotas.remove(&namespace),
        };
        Ok(())
    }

    pub(super) fn object_count(&self) -> usize {
        self.objects.values().filter(|record| record.content.is_some()).count()
    }

    pub(super) fn namespaces(&self) -> Vec<Namespace> {
        let claimed = self.claims.iter().filter_map(|(scope, ..)| scope.namespace().cloned());
        let mut all: Vec<_> = self.objects.keys().map(|id| id.namespace.clone()).chain(claimed).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Checks that the counts of used bytes equal the sums over the objects.
    #[cfg(test)]
    pub(super) fn validate(&self) {
        let charge: u64 = self.objects.keys().map(|object| self.charge(object)).sum();
        assert_eq!(self.used_bytes, charge, "used_bytes is the sum of what the objects are counted with");
        for (namespace, used) in &self.used_by {
            let sizes = self.objects.keys().filter(|id| id.namespace == *namespace).map(|id| self.size(id));
            assert_eq!(*used, sizes.sum::<u64>(), "the use of {namespace} is the sum of its sizes");
        }
    }
}

/// Returns the charge for an object in addition to its content.
fn overhead(object: &ObjectId) -> u64 {
    OBJECT_OVERHEAD_BYTES + object.name.as_bytes().len() as u64
}

/// Applies a change to the content of an object that will have `new_size` bytes.
fn write(content: &mut Vec<u8>, change: &Change, new_size: u64) {
    content.resize(new_size as usize, 0);
    let within = |offset: u64, len_bytes: u64| {
        offset.min(new_size) as usize..offset.saturating_add(len_bytes).min(new_size) as usize
    };
    match change {
        Change::Write { offset, data } | Change::CompareAndWrite { offset, data, .. } => {
            data.copy_to(&mut content[within(*offset, data.len_bytes() as u64)]);
        }
        Change::WriteFull { data } => data.copy_to(content),
        Change::WriteZeroes { offset, len_bytes } | Change::Discard { offset, len_bytes } => {
            content[within(*offset, *len_bytes)].fill(0);
        }
        Change::WriteRuns { runs } => {
            for run in runs {
                let target = &mut content[within(run.offset, run.len_bytes())];
                match &run.content {
                    RunContent::Data(data) => data.copy_to(target),
                    RunContent::Zeroes(_) => target.fill(0),
                }
            }
        }
        Change::Truncate { .. } | Change::Delete | Change::Copy { .. } => {}
    }
}
