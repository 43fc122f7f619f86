//! The contract's rules, each broken by a layer over the memory backend.
//!
//! For each rule the conformance suite must fail on a backend that breaks the rule; otherwise the
//! suite does not check it.

use std::sync::Arc;
use std::time::Duration;

use super::{Memory, MemoryConfig, RUNS_MAX};
use crate::admission::range_end;
use crate::conformance::{Options, Plain, run};
use crate::executor::block_on;
use crate::{
    Blocker, Call, Capabilities, Change, ChangeReply, ChangeRequest, ChangeTerms, ClaimReply, ClaimRequest,
    Condition, Durability, Error, Event, EventHub, FlushReply, FlushRequest, Info, InfoRequest,
    InvalidateReply, InvalidateRequest, ListEntry, ListReply, ListRequest, OBJECT_BYTES_MAX_DEFAULT,
    ObjectId, ReadReply, ReadRequest, Reply, Result, Run, RunContent, Segments, Stamp, Subscription,
    SystemClock, Version, WriteRequest,
};

macro_rules! mutations {
    ($($name:ident,)*) => {
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        enum Mutation { Nothing, $($name,)* }

        const ALL: &[Mutation] = &[$(Mutation::$name,)*];
    };
}

mutations! {
    // Content.
    ReadPastEndPadded,
    ReadConditionIgnored,
    HolesNotZero,
    EmptyWriteIgnored,
    EmptyWriteExtends,
    ZeroesNeverExtend,
    RunsLastIgnored,
    RunsZeroesIgnored,
    RunsGapsZeroed,
    DiscardExtends,
    DiscardKeepsBytes,
    CompareIgnored,
    MismatchWrites,
    MismatchOffsetRelative,
    FullWriteKeepsTail,
    TruncateCreates,
    TruncateNeverShrinks,
    TruncateRevealsOld,
    DeleteOfMissingWorks,
    CopyKeepsTail,
    CopyMoves,
    CopyTakesStamp,
    InfoRounded,
    // Rules of names and listings.
    NamespacesMixed,
    ListUnordered,
    ListRepeats,
    ListStopsEarly,
    ListPrefixIgnored,
    // Rules of conditions and versions.
    VersionConditionIgnored,
    AbsentConditionIgnored,
    PresentConditionIgnored,
    ConditionCheckedTooEarly,
    VersionKept,
    VersionReusedAfterDelete,
    // Fencing.
    ClaimIgnored,
    ClaimLowers,
    ClaimShared,
    EpochStepIgnored,
    DomainClaimIgnored,
    UnstampedNeverFenced,
    StampEpochIgnored,
    SequenceIgnored,
    StampNotKept,
    TombstoneForgotten,
    RunsUnfenced,
    TruncateUnfenced,
    DeleteUnfenced,
    CopyUnfenced,
    // Rules of atomicity, limits, deadlines, events and capabilities.
    WriteTorn,
    RunsTorn,
    RunsUnchecked,
    RunsOverstated,
    LimitOffByOne,
    LimitOverstated,
    CompareOverstated,
    DeadlineIgnored,
    DurabilityUnderstated,
    ClaimSilent,
    InvalidateSilent,
}

use Mutation::*;

/// A memory backend that breaks one rule, or none (`Nothing`).
struct Mutant {
    memory: Memory,
    broken: Mutation,
    /// Publishes the events that remain if claims or invalidations are silent.
    events: EventHub,
}

/// An object's state before a change.
#[derive(Default)]
struct Before {
    data: Option<Vec<u8>>,
    version: Option<Version>,
    stamp: Option<Stamp>,
}

impl Mutant {
    fn new(broken: Mutation) -> Self {
        let object_bytes_max = OBJECT_BYTES_MAX_DEFAULT + u64::from(broken == LimitOffByOne);
        let config = MemoryConfig { object_bytes_max, ..MemoryConfig::default() };
        Self { memory: Memory::new(config, Arc::new(SystemClock)), broken, events: EventHub::new() }
    }

    fn call(&self, call: Call) -> Call {
        Call { deadline: call.deadline.filter(|_| self.broken != DeadlineIgnored), ..call }
    }

    fn before(&self, object: &ObjectId) -> Before {
        let model = self.memory.model.lock();
        let Some(record) = model.objects.get(object) else { return Before::default() };
        let content = record.content.as_ref();
        Before {
            data: content.map(|content| content.data.clone()),
            version: content.map(|content| content.version),
            stamp: record.stamp,
        }
    }

    fn make(&self, mut request: ChangeRequest) -> Result<ChangeReply> {
        request.call = self.call(request.call);
        let before = self.before(&request.object);
        let size = before.data.as_ref().map_or(0, Vec::len) as u64;
        // Malformed runs are passed on unchanged, so that they are refused as usual.
        let has_valid_runs = request.change.check_runs(|| self.memory.capabilities()).is_ok();
        match (self.broken, &mut request.change) {
            (EmptyWriteIgnored, Change::Write { offset, data }) if data.is_empty() => {
                // The call's terms are checked as for any other change.
                request.call.check(&SystemClock)?;
                range_end(*offset, 0, OBJECT_BYTES_MAX_DEFAULT)?;
                self.memory.model.lock().admit(&request.object, &request.terms)?;
                return Ok(ChangeReply::removed(Durability::Stored));
            }
            (RunsLastIgnored, Change::WriteRuns { runs }) if has_valid_runs && runs.len() > 1 => {
                runs.pop();
            }
            (RunsZeroesIgnored, Change::WriteRuns { runs }) if has_valid_runs => {
                let is_data = |run: &Run| matches!(run.content, RunContent::Data(_));
                if runs.iter().any(is_data) {
                    runs.retain(is_data);
                }
            }
            (RunsGapsZeroed, Change::WriteRuns { runs }) if has_valid_runs => {
                let filled = without_gaps(runs.clone());
                // With more runs the change would be refused.
                if filled.len() <= RUNS_MAX as usize {
                    *runs = filled;
                }
            }
            (TruncateNeverShrinks, Change::Truncate { size_bytes }) => *size_bytes = size.max(*size_bytes),
            (TruncateCreates, Change::Truncate { size_bytes }) if before.data.is_none() => {
                // This change has the same effect, and creates its object.
                let len_bytes = *size_bytes;
                request.change = Change::WriteZeroes { offset: 0, len_bytes };
            }
            _ => {}
        }
        let made = match self.torn(&request) {
            Some(made) => made,
            None => self.waive(&request, &before, block_on(self.memory.change(request.clone()))),
        };
        made.map(|reply| self.tamper(&request, before, reply))
    }

    /// Makes a change in several steps, with other changes in between, like a backend that checks
    /// and changes separately, or that sends the parts of a change individually. Returns `None` if
    /// the rule is not broken in this way.
    fn torn(&self, request: &ChangeRequest) -> Option<Result<ChangeReply>> {
        let ChangeRequest { object, change, terms, .. } = request;
        let unchecked = ChangeTerms { condition: Condition::None, ..*terms };
        let make = |change: Change, terms: ChangeTerms| {
            block_on(self.memory.change(change.request(object.clone()).terms(terms).call(request.call)))
        };
        let (first, second) = match (self.broken, change) {
            (WriteTorn, Change::Write { offset, data }) if data.len_bytes() > 1 => {
                let half = data.len_bytes() / 2;
                let first = Change::Write { offset: *offset, data: data.slice(0..half) };
                let data = data.slice(half..data.len_bytes());
                (first, Change::Write { offset: offset.saturating_add(half as u64), data })
            }
            (RunsTorn, Change::WriteRuns { runs }) if runs.len() > 1 => {
                let of = |runs: &[Run]| Change::WriteRuns { runs: runs.to_vec() };
                (of(&runs[..1]), of(&runs[1..]))
            }
            (ConditionCheckedTooEarly, Change::Write { .. }) => {
                let Condition::Version(version) = terms.condition else {
                    std::thread::yield_now();
                    return None;
                };
                let read = ReadRequest::new(object.clone(), 0, 0).if_version(version);
                if let Err(error) = block_on(self.memory.read(read)) {
                    return Some(Err(error));
                }
                std::thread::yield_now();
                return Some(make(change.clone(), unchecked));
            }
            _ => return None,
        };
        if let Err(error) = make(first, *terms) {
            return Some(Err(error));
        }
        std::thread::yield_now();
        Some(make(second, ChangeTerms { stamp: None, ..unchecked }))
    }

    /// Waives the refusal of a change.
    fn waive(
        &self,
        request: &ChangeRequest,
        before: &Before,
        made: Result<ChangeReply>,
    ) -> Result<ChangeReply> {
        let Err(error) = made else { return made };
        let (change, terms) = (&request.change, &request.terms);
        let is_fenced = matches!(error, Error::Fenced { .. });
        let is_waived = match self.broken {
            VersionConditionIgnored => matches!(error, Error::ConditionFailed { .. }),
            AbsentConditionIgnored => error == Error::Exists,
            PresentConditionIgnored => error == Error::Missing && terms.condition != Condition::None,
            UnstampedNeverFenced => is_fenced && terms.stamp.is_none(),
            StampEpochIgnored => is_fenced && terms.stamp.is_some() && terms.stamp < before.stamp,
            DomainClaimIgnored => {
                is_fenced && terms.domain.is_some() && terms.stamp.is_some() && terms.stamp >= before.stamp
            }
            SequenceIgnored => matches!(error, Error::Superseded { .. }),
            RunsUnfenced => is_fenced && matches!(change, Change::WriteRuns { .. }),
            TruncateUnfenced => is_fenced && matches!(change, Change::Truncate { .. }),
            DeleteUnfenced => is_fenced && matches!(change, Change::Delete),
            CopyUnfenced => is_fenced && matches!(change, Change::Copy { .. }),
            _ => false,
        };
        if is_waived {
            return self.unchecked(request);
        }
        match (self.broken, &error, change) {
            (RunsUnchecked, Error::Invalid(_), Change::WriteRuns { .. })
            | (DeleteOfMissingWorks, Error::Missing, Change::Delete) => {
                // Admission is a separate rule, which may be the reason for the refusal.
                self.memory.model.lock().admit(&request.object, terms)?;
                return Ok(ChangeReply::removed(Durability::Stored));
            }
            (
                CompareIgnored | MismatchWrites,
                Error::Mismatch { .. },
                Change::CompareAndWrite { offset, data, .. },
            ) => {
                let write = WriteRequest::new(request.object.clone(), *offset, data.clone()).terms(*terms);
                let reply = block_on(self.memory.change(write.into()))?;
                if self.broken == CompareIgnored {
                    return Ok(reply);
                }
            }
            (
                MismatchOffsetRelative,
                Error::Mismatch { offset: at },
                Change::CompareAndWrite { offset, .. },
            ) => {
                return Err(Error::Mismatch { offset: at - offset });
            }
            _ => {}
        }
        Err(error)
    }

    /// Makes a change without its admission.
    fn unchecked(&self, request: &ChangeRequest) -> Result<ChangeReply> {
        let mut model = self.memory.model.lock();
        let claims = std::mem::take(&mut model.claims);
        let stamp = model.objects.get_mut(&request.object).and_then(|record| record.stamp.take());
        let terms = ChangeTerms { condition: Condition::None, ..request.terms };
        let done = model.change(&request.object, &request.change, &terms);
        model.claims = claims;
        if let Some(record) = model.objects.get_mut(&request.object) {
            record.stamp = record.stamp.or(stamp);
        }
        done.map(|(version, size_bytes)| ChangeReply::new(version, size_bytes, Durability::Stored))
    }

    /// Modifies the stored state or the reply after a change, as the broken rule requires.
    fn tamper(&self, request: &ChangeRequest, before: Before, mut reply: ChangeReply) -> ChangeReply {
        let mut model = self.memory.model.lock();
        let old = before.data.unwrap_or_default();
        match (self.broken, &request.change) {
            (CopyMoves, Change::Copy { from, .. }) => drop(model.objects.remove(from)),
            (TombstoneForgotten, Change::Delete) => drop(model.objects.remove(&request.object)),
            (VersionReusedAfterDelete, Change::Delete) => model.version_last = 0,
            _ => {}
        }
        let source_stamp = match &request.change {
            Change::Copy { from, .. } => model.objects.get(from).and_then(|record| record.stamp),
            _ => None,
        };
        if let Some(record) = model.objects.get_mut(&request.object) {
            match (self.broken, &request.change) {
                (CopyTakesStamp, Change::Copy { .. }) => record.stamp = source_stamp,
                (StampNotKept, change) if !matches!(change, Change::Delete) => record.stamp = before.stamp,
                _ => {}
            }
            if let Some(content) = &mut record.content {
                let len = content.data.len();
                let data = &mut content.data;
                match (self.broken, &request.change) {
                    (HolesNotZero, Change::Write { offset, .. }) if *offset as usize > old.len() => {
                        data[old.len()..(*offset as usize).min(len)].fill(0xAA);
                    }
                    (EmptyWriteExtends, Change::Write { offset, data: written }) if written.is_empty() => {
                        data.resize(len.max(*offset as usize), 0);
                    }
                    (ZeroesNeverExtend, Change::WriteZeroes { .. }) => data.truncate(old.len()),
                    (DiscardExtends, Change::Discard { offset, len_bytes }) => {
                        let end = offset.saturating_add(*len_bytes).min(OBJECT_BYTES_MAX_DEFAULT);
                        data.resize(len.max(end as usize), 0);
                    }
                    (DiscardKeepsBytes, Change::Discard { .. }) => *data = old,
                    (FullWriteKeepsTail, Change::WriteFull { .. }) | (CopyKeepsTail, Change::Copy { .. }) => {
                        data.extend_from_slice(old.get(len..).unwrap_or_default());
                    }
                    (TruncateRevealsOld, Change::Truncate { .. }) if len > old.len() => {
                        data[old.len()..].fill(old.last().copied().unwrap_or(1));
                    }
                    _ => {}
                }
                if let (VersionKept, Some(version)) = (self.broken, before.version) {
                    (content.version, reply.version) = (version, version);
                }
                // If the lengths are equal, the reply keeps its size, because another change may
                // have followed.
                if content.data.len() != len {
                    reply.size_bytes = content.data.len() as u64;
                }
            }
        }
        // The counts are adapted, so that only the violation of the mutated rule is noticed.
        model.used_by.clear();
        model.used_bytes = 0;
        let objects: Vec<ObjectId> = model.objects.keys().cloned().collect();
        for object in objects {
            model.used_bytes += model.charge(&object);
            let size = model.size(&object);
            *model.used_by.entry(object.namespace).or_default() += size;
        }
        if self.broken == DurabilityUnderstated {
            reply.durability = Durability::Cached;
        }
        reply
    }
}

/// Returns runs with zeros in the gaps between them.
fn without_gaps(runs: Vec<Run>) -> Vec<Run> {
    let (mut filled, mut end) = (Vec::new(), None);
    for run in runs {
        if let Some(end) = end.filter(|end| *end < run.offset) {
            filled.push(Run::zeroes(end, run.offset - end));
        }
        end = Some(run.end());
        filled.push(run);
    }
    filled
}

impl Blocker for Mutant {
    crate::delegate!(|this| this.memory, except capabilities read change info list flush claim invalidate subscribe);

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.memory.capabilities();
        match self.broken {
            RunsOverstated => capabilities.runs_max += 1,
            LimitOverstated => capabilities.object_bytes_max += 1,
            CompareOverstated => capabilities.compare_bytes_max *= 2,
            LimitOffByOne => {
                capabilities.object_bytes_max -= 1;
                capabilities.request_bytes_max -= 1;
            }
            _ => {}
        }
        capabilities
    }

    fn read(&self, mut request: ReadRequest) -> Reply<ReadReply> {
        request.call = self.call(request.call);
        if self.broken == ReadConditionIgnored {
            request.condition = Condition::None;
        }
        let len_bytes = request.len_bytes as usize;
        let pads = self.broken == ReadPastEndPadded;
        self.memory.read(request).then(move |answer| {
            answer.map(|mut reply| {
                if pads {
                    reply.data.append(Segments::zeros(len_bytes - reply.data.len_bytes()));
                }
                reply
            })
        })
    }

    fn change(&self, request: ChangeRequest) -> Reply<ChangeReply> {
        self.make(request).into()
    }

    fn info(&self, mut request: InfoRequest) -> Reply<Info> {
        request.call = self.call(request.call);
        let rounds = self.broken == InfoRounded;
        self.memory.info(request).then(move |answer| {
            answer.map(|mut info| {
                if rounds {
                    info.size_bytes = info.size_bytes.next_multiple_of(4096);
                }
                info
            })
        })
    }

    fn list(&self, mut request: ListRequest) -> Reply<ListReply> {
        request.call = self.call(request.call);
        if self.broken == ListPrefixIgnored {
            request.prefix = bytes::Bytes::new();
        }
        let mut reply = match block_on(self.memory.list(request.clone())) {
            Ok(reply) => reply,
            Err(error) => return Reply::err(error),
        };
        match (self.broken, &request.after) {
            (NamespacesMixed, _) => {
                let mut namespaces = self.memory.model.lock().namespaces();
                namespaces.retain(|namespace| *namespace != request.namespace);
                for namespace in namespaces {
                    let other = ListRequest { namespace, ..request.clone() };
                    reply.entries.extend(block_on(self.memory.list(other)).unwrap().entries);
                }
                reply.entries.sort_by(|a, b| a.name.cmp(&b.name));
            }
            (ListUnordered, _) => reply.entries.reverse(),
            (ListStopsEarly, _) => reply.has_more = false,
            (ListRepeats, Some(after)) => {
                let object = ObjectId::new(request.namespace.clone(), after.clone());
                if let Ok(info) = block_on(self.memory.info(InfoRequest::new(object))) {
                    reply.entries.insert(0, ListEntry::new(after.clone(), info.size_bytes, info.version));
                    let entries_max = request.entries_max.max(1) as usize;
                    reply.has_more |= reply.entries.len() > entries_max;
                    reply.entries.truncate(entries_max);
                }
            }
            _ => {}
        }
        Reply::ok(reply)
    }

    fn flush(&self, mut request: FlushRequest) -> Reply<FlushReply> {
        request.call = self.call(request.call);
        self.memory.flush(request)
    }

    fn claim(&self, mut request: ClaimRequest) -> Reply<ClaimReply> {
        request.call = self.call(request.call);
        let ClaimRequest { scope, epoch, writer, .. } = request.clone();
        if self.broken == ClaimIgnored {
            if let Err(error) = request.call.check(&SystemClock) {
                return Reply::err(error);
            }
            self.memory.events.publish(&Event::Fenced(scope, epoch));
            return Reply::ok(ClaimReply::new(epoch));
        }
        match (self.broken, block_on(self.memory.claim(request))) {
            (ClaimLowers, Err(Error::Fenced { .. })) => Reply::ok(ClaimReply::new(epoch)),
            (ClaimShared, Err(Error::Fenced { epoch: in_force })) if in_force == epoch => {
                Reply::ok(ClaimReply::new(epoch))
            }
            (EpochStepIgnored, Err(Error::Invalid(_))) => {
                let recorded = self.memory.model.lock().claims.record(&scope, epoch, Some(writer));
                recorded.map(|_| ClaimReply::new(epoch)).into()
            }
            (InvalidateSilent, Ok(reply)) => {
                self.events.publish(&Event::Fenced(scope, epoch));
                Reply::ok(reply)
            }
            (_, answer) => answer.into(),
        }
    }

    fn invalidate(&self, mut request: InvalidateRequest) -> Reply<InvalidateReply> {
        request.call = self.call(request.call);
        let scope = request.scope.clone();
        let invalidated = block_on(self.memory.invalidate(request));
        if self.broken == ClaimSilent && invalidated.is_ok() {
            self.events.publish(&Event::Changed(scope));
        }
        invalidated.into()
    }

    fn subscribe(&self) -> Subscription {
        match self.broken {
            ClaimSilent | InvalidateSilent => self.events.subscribe(),
            _ => self.memory.subscribe(),
        }
    }
}

#[test]
fn the_suite_notices_every_broken_rule() {
    let mut unnoticed = Vec::new();
    for mutation in ALL {
        let mut options = Options { fail_fast: true, ..Options::default() };
        if matches!(mutation, ClaimSilent | InvalidateSilent) {
            // This case detects missing events.
            options.filter = "events::subscribers_receive".into();
            options.timeout = Duration::from_secs(2);
        }
        let report = run(&Plain::new(Arc::new(Mutant::new(*mutation))), &options);
        match report.failures().next() {
            Some(failure) => println!("{mutation:?}: {} ({failure})", failure.name),
            None => unnoticed.push(mutation),
        }
    }
    assert!(unnoticed.is_empty(), "the suite passes although these rules are broken: {unnoticed:?}");
}

#[test]
fn the_suite_passes_where_no_rule_is_broken() {
    let memory = Arc::new(Memory::default());
    run(&Plain::new(Arc::clone(&memory) as _), &Options::default()).assert_passed();
    memory.model.lock().validate();
    // The layer itself must pass the suite, so that it is not the reason for failures.
    let layer = Arc::new(Mutant::new(Nothing));
    run(&Plain::new(Arc::clone(&layer) as _), &Options::default()).assert_passed();
    layer.memory.model.lock().validate();
}
