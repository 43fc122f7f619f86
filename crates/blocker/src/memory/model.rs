//! The model's state and its operations, each a plain function of the map.
//!
//! An operation first decides (limits, fencing, condition, space), then changes. Changes cannot
//! fail, so an error means that nothing happened.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use bytes::Bytes;

use super::mutation::Mutation;
use super::{MemoryConfig, OBJECT_OVERHEAD_BYTES, RUNS_MAX, full};
use crate::admission::{Claims, Head, admit, check_condition, range_end, runs_end};
use crate::capabilities::{BUCKET_BYTES, Capabilities};
use crate::change::{Change, ChangeTerms, Run, RunContent};
use crate::control::Quota;
use crate::error::{Error, Result};
use crate::name::{Namespace, ObjectId};
use crate::order::{Epoch, Stamp, Version, WriterId};
use crate::request::{Condition, ListRequest, Scope};
use crate::response::{Info, ListEntry, ListReply, ReadReply};
use crate::segment::Segments;

/// The largest number of namespaces with a quota.
const QUOTAS_COUNT_MAX: usize = 4096;

pub(super) struct Model {
    config: MemoryConfig,
    objects: BTreeMap<ObjectId, Record>,
    claims: Claims,
    quotas: HashMap<Namespace, u64>,
    used_by: HashMap<Namespace, u64>,
    version_last: u64,
    used_bytes: u64,
    change_count: u64,
    #[cfg(test)]
    pub(super) broken: Option<Mutation>,
}

/// An object, or the record of one that was deleted with a stamp.
struct Record {
    content: Option<Content>,
    stamp: Option<Stamp>,
}

struct Content {
    data: Vec<u8>,
    version: Version,
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
            #[cfg(test)]
            broken: None,
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
        if !self.is_broken(Mutation::ReadConditionIgnored) {
            check_condition(Some(content.version), condition)?;
        }
        let size = content.data.len() as u64;
        let (from, to) = (offset.min(size), offset.saturating_add(len_bytes).min(size));
        let mut data = Segments::from(Bytes::copy_from_slice(&content.data[from as usize..to as usize]));
        if self.is_broken(Mutation::ReadPastEndPadded) {
            let missing = (len_bytes - (to - from)) as usize;
            Segments::zeros(missing).iter().for_each(|zeros| data.push(zeros.clone()));
        }
        Ok(ReadReply::new(data, size, content.version))
    }

    pub(super) fn info(&self, object: &ObjectId) -> Result<Info> {
        let content = self.content(object)?;
        let mut size_bytes = content.data.len() as u64;
        if self.is_broken(Mutation::InfoRounded) {
            size_bytes = size_bytes.next_multiple_of(BUCKET_BYTES);
        }
        Ok(Info::new(size_bytes, content.version, self.objects[object].stamp))
    }

    pub(super) fn list(&self, request: &ListRequest, entries_max: usize) -> ListReply {
        let from = match &request.after {
            Some(after) if self.is_broken(Mutation::ListRepeats) => Bound::Included(after.as_bytes()),
            Some(after) if after.as_bytes() >= &*request.prefix => Bound::Excluded(after.as_bytes()),
            _ => Bound::Included(&*request.prefix),
        };
        let everywhere = self.is_broken(Mutation::NamespacesMixed);
        let any_prefix = self.is_broken(Mutation::ListPrefixIgnored);
        let mut found = self
            .objects
            .iter()
            .filter(|(id, _)| everywhere || id.namespace == request.namespace)
            .filter(|(id, _)| match from {
                Bound::Excluded(after) => id.name.as_bytes() > after,
                Bound::Included(first) => id.name.as_bytes() >= first,
                Bound::Unbounded => true,
            })
            .filter(|(id, _)| any_prefix || id.name.as_bytes().starts_with(&request.prefix))
            .filter_map(|(id, record)| record.content.as_ref().map(|content| (id, content)));
        let mut entries: Vec<ListEntry> = found
            .by_ref()
            .take(entries_max)
            .map(|(id, content)| ListEntry::new(id.name.clone(), content.data.len() as u64, content.version))
            .collect();
        let has_more = found.next().is_some() && !self.is_broken(Mutation::ListStopsEarly);
        if self.is_broken(Mutation::ListUnordered) {
            entries.reverse();
        }
        ListReply::new(entries, has_more)
    }

    // ---- changing

    /// Makes a change, and returns the object's version and size afterwards.
    pub(super) fn change(&mut self, object: &ObjectId, change: &Change, terms: &ChangeTerms) -> Done {
        match change {
            Change::Write { offset, data } => self.write(object, *offset, data, terms),
            Change::WriteZeroes { offset, len_bytes } => {
                self.write_zeroes(object, *offset, *len_bytes, terms)
            }
            Change::WriteRuns { runs } => self.write_runs(object, runs, terms),
            Change::Discard { offset, len_bytes } => self.discard(object, *offset, *len_bytes, terms),
            Change::CompareAndWrite { offset, expected, data } => {
                self.compare_and_write(object, *offset, expected, data, terms)
            }
            Change::WriteFull { data } => self.write_full(object, data, terms),
            Change::Truncate { size_bytes } => self.truncate(object, *size_bytes, terms),
            Change::Delete => self.delete(object, terms).map(|()| (Version(0), 0)),
            Change::Copy { from, from_condition } => self.copy(from, *from_condition, object, terms),
        }
    }

    fn write(&mut self, object: &ObjectId, offset: u64, data: &Segments, terms: &ChangeTerms) -> Done {
        let len = data.len_bytes() as u64;
        let mut limit = self.config.object_bytes_max;
        if self.is_broken(Mutation::LimitOffByOne) {
            limit += 1;
        }
        let end = range_end(offset, len, limit)?;
        self.admit(object, terms)?;
        if len == 0 && self.is_broken(Mutation::EmptyWriteIgnored) {
            return Ok((Version(0), 0));
        }
        let old_size = self.size(object);
        let mut new_size = if len == 0 { old_size } else { old_size.max(end) };
        if len == 0 && self.is_broken(Mutation::EmptyWriteExtends) {
            new_size = new_size.max(offset);
        }
        let hole = if self.is_broken(Mutation::HolesNotZero) { 0xAA } else { 0 };
        self.apply(object, terms, new_size, |content| {
            content.resize(new_size as usize, hole);
            if len > 0 {
                data.copy_to(&mut content[offset as usize..end as usize]);
            }
        })
    }

    fn write_zeroes(&mut self, object: &ObjectId, offset: u64, len_bytes: u64, terms: &ChangeTerms) -> Done {
        let end = range_end(offset, len_bytes, self.config.object_bytes_max)?;
        self.admit(object, terms)?;
        let old_size = self.size(object);
        let mut new_size = if len_bytes == 0 { old_size } else { old_size.max(end) };
        if self.is_broken(Mutation::ZeroesNeverExtend) {
            new_size = old_size;
        }
        self.apply(object, terms, new_size, |content| {
            content.resize(new_size as usize, 0);
            content[offset.min(new_size) as usize..end.min(new_size) as usize].fill(0);
        })
    }

    fn write_runs(&mut self, object: &ObjectId, runs: &[Run], terms: &ChangeTerms) -> Done {
        let mut can = Capabilities::full(self.config.object_bytes_max);
        can.runs_max = RUNS_MAX;
        let end = match runs_end(runs, &can) {
            Err(Error::Invalid(_)) if self.is_broken(Mutation::RunsUnchecked) => self.size(object),
            checked => checked?,
        };
        if !self.is_broken(Mutation::RunsUnfenced) {
            self.admit(object, terms)?;
        }
        let new_size = self.size(object).max(end);
        let (skips_last, skips_zeroes) =
            (self.is_broken(Mutation::RunsLastIgnored), self.is_broken(Mutation::RunsZeroesIgnored));
        let fills_gaps = self.is_broken(Mutation::RunsGapsZeroed);
        let unchecked = self.is_broken(Mutation::RunsUnchecked);
        self.apply(object, terms, new_size, |content| {
            content.resize(new_size as usize, 0);
            let mut before = None;
            for (index, run) in runs.iter().enumerate() {
                let range = run.offset as usize..run.end() as usize;
                if skips_last && index > 0 && index + 1 == runs.len()
                    || unchecked && range.end > content.len()
                {
                    continue;
                }
                if let (Some(before), true) = (before, fills_gaps) {
                    content[before..range.start].fill(0);
                }
                before = Some(range.end);
                match &run.content {
                    RunContent::Data(data) => data.copy_to(&mut content[range]),
                    RunContent::Zeroes(_) if skips_zeroes => (),
                    RunContent::Zeroes(_) => content[range].fill(0),
                }
            }
        })
    }

    fn discard(&mut self, object: &ObjectId, offset: u64, len_bytes: u64, terms: &ChangeTerms) -> Done {
        self.admit(object, terms)?;
        self.content(object)?;
        let mut size = self.size(object);
        if self.is_broken(Mutation::DiscardExtends) {
            size = size.max(range_end(offset, len_bytes, self.config.object_bytes_max)?);
        }
        let keeps = self.is_broken(Mutation::DiscardKeepsBytes);
        let (from, to) = (offset.min(size), offset.saturating_add(len_bytes).min(size));
        self.apply(object, terms, size, |content| {
            content.resize(size as usize, 0);
            if !keeps {
                content[from as usize..to as usize].fill(0);
            }
        })
    }

    fn compare_and_write(
        &mut self,
        object: &ObjectId,
        offset: u64,
        expected: &Segments,
        data: &Segments,
        terms: &ChangeTerms,
    ) -> Done {
        if expected.len_bytes() as u64 > BUCKET_BYTES {
            return Err(Error::TooLarge { limit_bytes: BUCKET_BYTES });
        }
        range_end(offset, data.len_bytes() as u64, self.config.object_bytes_max)?;
        self.admit(object, terms)?;
        let content = &self.content(object)?.data;
        let from = offset.min(content.len() as u64) as usize;
        let to = from.saturating_add(expected.len_bytes()).min(content.len());
        let differs = expected.first_difference(&content[from..to]);
        if let Some(at) = differs
            && !self.is_broken(Mutation::CompareIgnored)
        {
            if self.is_broken(Mutation::MismatchWrites) {
                self.write(object, offset, data, terms)?;
            }
            let at = if self.is_broken(Mutation::MismatchOffsetRelative) { 0 } else { offset } + at as u64;
            return Err(Error::Mismatch { offset: at });
        }
        self.write(object, offset, data, terms)
    }

    fn write_full(&mut self, object: &ObjectId, data: &Segments, terms: &ChangeTerms) -> Done {
        let mut new_size = range_end(0, data.len_bytes() as u64, self.config.object_bytes_max)?;
        self.admit(object, terms)?;
        let data_len = data.len_bytes();
        if self.is_broken(Mutation::FullWriteKeepsTail) {
            new_size = new_size.max(self.size(object));
        }
        self.apply(object, terms, new_size, |content| {
            content.resize(new_size as usize, 0);
            data.copy_to(&mut content[..data_len]);
        })
    }

    fn truncate(&mut self, object: &ObjectId, size_bytes: u64, terms: &ChangeTerms) -> Done {
        range_end(0, size_bytes, self.config.object_bytes_max)?;
        if !self.is_broken(Mutation::TruncateUnfenced) {
            self.admit(object, terms)?;
        }
        if !self.is_broken(Mutation::TruncateCreates) {
            self.content(object)?;
        }
        let only_grows = self.is_broken(Mutation::TruncateNeverShrinks);
        let size = if only_grows { size_bytes.max(self.size(object)) } else { size_bytes };
        let ghosts = self.is_broken(Mutation::TruncateRevealsOld);
        self.apply(object, terms, size, |content| {
            if ghosts && size as usize > content.len() {
                let last = content.last().copied().unwrap_or(1);
                content.resize(size as usize, last);
            }
            content.resize(size as usize, 0);
        })
    }

    fn delete(&mut self, object: &ObjectId, terms: &ChangeTerms) -> Result<()> {
        if !self.is_broken(Mutation::DeleteUnfenced) {
            self.admit(object, terms)?;
        }
        if self.content(object).is_err() && self.is_broken(Mutation::DeleteOfMissingWorks) {
            return Ok(());
        }
        self.content(object)?;
        self.change_count += 1;
        self.account(object, None);
        self.objects.remove(object);
        let remembered = terms.stamp.filter(|_| !self.is_broken(Mutation::TombstoneForgotten));
        if remembered.is_some() {
            self.account(object, Some(0));
            self.objects.insert(object.clone(), Record { content: None, stamp: remembered });
        }
        if self.is_broken(Mutation::VersionReusedAfterDelete) {
            self.version_last = 0;
        }
        Ok(())
    }

    fn copy(
        &mut self,
        from: &ObjectId,
        from_condition: Condition,
        to: &ObjectId,
        terms: &ChangeTerms,
    ) -> Done {
        if !self.is_broken(Mutation::CopyUnfenced) {
            self.admit(to, terms)?;
        }
        let source = self.content(from)?;
        check_condition(Some(source.version), from_condition)?;
        let mut data = source.data.clone();
        if self.is_broken(Mutation::CopyKeepsTail)
            && let Ok(old) = self.content(to)
            && old.data.len() > data.len()
        {
            data.extend_from_slice(&old.data[data.len()..]);
        }
        if self.is_broken(Mutation::CopyMoves) {
            self.objects.remove(from);
        }
        let size = data.len() as u64;
        let stamp = self.objects.get(from).and_then(|record| record.stamp);
        let done = self.apply(to, terms, size, |content| *content = data)?;
        if self.is_broken(Mutation::CopyTakesStamp)
            && let Some(record) = self.objects.get_mut(to)
        {
            record.stamp = stamp;
        }
        Ok(done)
    }

    pub(super) fn claim(&mut self, scope: &Scope, epoch: Epoch, writer: WriterId) -> Result<bool> {
        if self.is_broken(Mutation::ClaimIgnored) {
            return Ok(true);
        }
        let claimed = match self.claims.raise(scope, epoch, writer) {
            Err(Error::Fenced { epoch: in_force })
                if in_force == epoch && self.is_broken(Mutation::ClaimShared) =>
            {
                Ok(true)
            }
            Err(Error::Fenced { .. }) if self.is_broken(Mutation::ClaimLowers) => Ok(true),
            Err(Error::Invalid(_)) if self.is_broken(Mutation::EpochStepIgnored) => {
                self.claims.record(scope, epoch, Some(writer))
            }
            claimed => claimed,
        }?;
        if !claimed {
            // Nothing was raised, so a query does not cost the walk.
            return Ok(false);
        }
        // Deletions with an older epoch need not be remembered: writers that could undo them are
        // fenced.
        let (claims, mut forgotten) = (&self.claims, Vec::new());
        self.objects.retain(|object, record| {
            let keep = record.content.is_some()
                || record.stamp.is_some_and(|stamp| stamp.epoch >= claims.in_force(object, None));
            if !keep {
                forgotten.push(object.clone());
            }
            keep
        });
        for object in forgotten {
            self.used_bytes -= OBJECT_OVERHEAD_BYTES + object.name.as_bytes().len() as u64;
        }
        Ok(claimed)
    }

    // ---- what the operations share

    #[cfg(test)]
    fn is_broken(&self, mutation: Mutation) -> bool {
        self.broken == Some(mutation)
    }

    /// Outside tests no rule is ever broken.
    #[cfg(not(test))]
    #[inline(always)]
    fn is_broken(&self, _: Mutation) -> bool {
        false
    }

    fn content(&self, object: &ObjectId) -> Result<&Content> {
        self.objects.get(object).and_then(|record| record.content.as_ref()).ok_or(Error::Missing)
    }

    fn size(&self, object: &ObjectId) -> u64 {
        self.content(object).map_or(0, |content| content.data.len() as u64)
    }

    fn admit(&self, object: &ObjectId, terms: &ChangeTerms) -> Result<()> {
        let head = self.objects.get(object).map_or(Head::ABSENT, Record::head);
        let admitted = admit(head, self.claims.in_force(object, terms.domain), terms);
        let waived = match &admitted {
            Err(Error::Fenced { .. }) if terms.stamp.is_none() => Mutation::UnstampedNeverFenced,
            Err(Error::Fenced { .. }) if head.stamp.is_some_and(|s| terms.stamp < Some(s)) => {
                Mutation::StampEpochIgnored
            }
            Err(Error::Fenced { .. }) if terms.domain.is_some() => Mutation::DomainClaimIgnored,
            Err(Error::Superseded { .. }) => Mutation::SequenceIgnored,
            Err(Error::ConditionFailed { .. }) => Mutation::VersionConditionIgnored,
            Err(Error::Exists) => Mutation::AbsentConditionIgnored,
            Err(Error::Missing) => Mutation::PresentConditionIgnored,
            _ => return admitted,
        };
        if self.is_broken(waived) { Ok(()) } else { admitted }
    }

    /// Changes (or creates) an admitted object, if there is space for `new_size` bytes.
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
        let mut version = self.fresh_version();
        let keeps_version = self.is_broken(Mutation::VersionKept);
        let keeps_stamp = self.is_broken(Mutation::StampNotKept);
        let record = self.objects.entry(object.clone()).or_insert(Record { content: None, stamp: None });
        let content = record.content.get_or_insert_with(|| Content { data: Vec::new(), version });
        if keeps_version {
            version = content.version;
        }
        act(&mut content.data);
        content.version = version;
        if !keeps_stamp {
            record.stamp = terms.stamp.or(record.stamp);
        }
        Ok((version, content.data.len() as u64))
    }

    fn check_room(&self, object: &ObjectId, new_size: u64, settles: bool) -> Result<()> {
        let old = self.charge(object);
        let new = OBJECT_OVERHEAD_BYTES + object.name.as_bytes().len() as u64 + new_size;
        if new <= old {
            return Ok(());
        }
        if self.used_bytes - old + new > self.config.bytes_max {
            return Err(full("the memory backend has reached its limit"));
        }
        let quota = self.quotas.get(&object.namespace).copied().unwrap_or(u64::MAX);
        let used = self.used_by.get(&object.namespace).copied().unwrap_or(0);
        if !settles && used - self.size(object) + new_size > quota {
            return Err(full("the namespace has used up its quota"));
        }
        Ok(())
    }

    /// Returns the object's charge.
    fn charge(&self, object: &ObjectId) -> u64 {
        let charged = |_| OBJECT_OVERHEAD_BYTES + object.name.as_bytes().len() as u64 + self.size(object);
        self.objects.get(object).map_or(0, charged)
    }

    /// Updates the counts for a change of the object's size to `new_size`, or for its removal.
    fn account(&mut self, object: &ObjectId, new_size: Option<u64>) {
        let (old_charge, old_size) = (self.charge(object), self.size(object));
        let overhead = OBJECT_OVERHEAD_BYTES + object.name.as_bytes().len() as u64;
        let new_charge = new_size.map_or(0, |size| overhead + size);
        self.used_bytes = self.used_bytes - old_charge + new_charge;
        let used = self.used_by.entry(object.namespace.clone()).or_default();
        *used = *used - old_size + new_size.unwrap_or(0);
    }

    pub(super) fn fresh_version(&mut self) -> Version {
        self.version_last += 1;
        Version(self.version_last)
    }

    #[cfg(feature = "faulty")]
    pub(super) fn adopt(
        &mut self,
        object: ObjectId,
        content: Option<(Vec<u8>, Version)>,
        stamp: Option<Stamp>,
    ) {
        self.account(&object, Some(content.as_ref().map_or(0, |(data, _)| data.len() as u64)));
        let content = content.map(|(data, version)| Content { data, version });
        self.objects.insert(object, Record { content, stamp });
    }

    #[cfg(feature = "faulty")]
    pub(super) fn forget_all(&mut self) {
        self.objects.clear();
        self.used_by.clear();
        self.used_bytes = 0;
        self.claims = Claims::default();
    }

    // ---- metrics and quotas

    pub(super) fn namespace_epoch(&self, namespace: &Namespace) -> Epoch {
        let whole = Scope::Namespace(namespace.clone());
        let of_it = |(scope, epoch, _)| (scope == whole || scope == Scope::All).then_some(epoch);
        self.claims.iter().filter_map(of_it).max().unwrap_or_default()
    }

    pub(super) fn quota(&self, namespace: &Namespace) -> Quota {
        let used_bytes = self.used_by.get(namespace).copied().unwrap_or(0);
        Quota { bytes_max: self.quotas.get(namespace).copied(), used_bytes }
    }

    pub(super) fn set_quota(&mut self, namespace: Namespace, bytes_max: Option<u64>) -> Result<()> {
        match bytes_max {
            Some(_) if self.quotas.len() >= QUOTAS_COUNT_MAX && !self.quotas.contains_key(&namespace) => {
                return Err(full("too many namespaces have a quota"));
            }
            Some(bytes_max) => self.quotas.insert(namespace, bytes_max),
            None => self.quotas.remove(&namespace),
        };
        Ok(())
    }

    pub(super) fn object_count(&self) -> usize {
        self.objects.values().filter(|record| record.content.is_some()).count()
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    pub(super) fn change_count(&self) -> u64 {
        self.change_count
    }

    pub(super) fn namespaces(&self) -> Vec<Namespace> {
        let claimed = self.claims.iter().filter_map(|(scope, _, _)| match scope {
            Scope::Namespace(namespace) | Scope::Domain(namespace, _) => Some(namespace),
            Scope::Object(object) => Some(object.namespace),
            Scope::All => None,
        });
        let mut all: Vec<_> = self.objects.keys().map(|id| id.namespace.clone()).chain(claimed).collect();
        all.sort();
        all.dedup();
        all
    }

    /// Checks that the counts equal the sums.
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
