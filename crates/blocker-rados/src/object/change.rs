//! One change, from request to reply: read the state, decide, apply the change if the observed
//! state is unchanged, and otherwise retry.
//!
//! ```text
//! settle ── look (or recall) ── introduce? ── admit ── one RADOS operation ──┬─ applied: remember, reply
//!    ▲                                                                       └─ refused: something else had
//!    └───────────────────────────────────────────────────────────────────────   changed; look again
//! ```
//!
//! [`conditional::admit`] decides on the observed state; the operation compares everything on which
//! the decision depends, and RADOS applies it as a whole or not at all. So decision and change are
//! one step, and the reply is exact, because the new size follows from the compared head.

use std::sync::Arc;

use blocker::conditional::claims::Scopes;
use blocker::conditional::{self, Progress};
use blocker::{Change, ChangeTerms, Condition, Error, ObjectId, Result, Run, RunContent, Segments, Version};

use super::view::View;
use super::{Core, Space};
use crate::format::{self, FENCE, HEAD, Head, INTRO, STAMP};
use crate::librados::aio::{ReadOp, WriteOp};
use crate::librados::ffi::{COMPARE_EQ, COMPARE_GT, errno};

/// The maximum number of times that a change is prepared again because of concurrent changes. Each
/// time, a change of another client was applied.
const TRIES: u32 = 200;

/// Adds the steps that change bytes.
fn add_change(op: WriteOp, change: &Change, size: u64) -> WriteOp {
    match change {
        Change::Write { data, .. } if data.is_empty() => op,
        Change::Write { offset, data } => with_bytes(data, |bytes| op.write(*offset, bytes)),
        Change::WriteRuns { runs } => add_runs(op, runs, size),
        Change::CompareAndWrite { offset, expected, data } => {
            let op = if expected.is_empty() { op } else { op.compare_bytes(*offset, &expected.to_bytes()) };
            if data.is_empty() { op } else { with_bytes(data, |bytes| op.write(*offset, bytes)) }
        }
        Change::WriteZeroes { offset, len_bytes } | Change::Discard { offset, len_bytes } => {
            let from = (*offset).min(size);
            let to = offset.saturating_add(*len_bytes).min(size);
            let op = if from < to { op.zero(from, to - from) } else { op };
            // Zeroing a range up to the object's end would truncate the object.
            let new_size = change.size_after(size);
            let cuts = from < to && to == size;
            if cuts || new_size > size { op.truncate(new_size) } else { op }
        }
        Change::WriteFull { data } => with_bytes(data, |bytes| op.write_full(bytes)),
        Change::Truncate { size_bytes } => op.truncate(*size_bytes),
        Change::Delete | Change::Copy { .. } => op,
    }
}

/// Adds the steps of several runs to an object of `size` bytes. Tracks the size that RADOS has
/// after each step, because zeroing a range that reaches the end truncates the object.
fn add_runs(mut op: WriteOp, runs: &[Run], size: u64) -> WriteOp {
    let (mut now, mut wanted) = (size, size);
    for run in runs {
        let end = run.end();
        wanted = wanted.max(end);
        match &run.content {
            RunContent::Data(data) => {
                op = with_bytes(data, |bytes| op.write(run.offset, bytes));
                now = now.max(end);
            }
            RunContent::Zeroes(_) if run.offset < now => {
                let to = end.min(now);
                op = op.zero(run.offset, to - run.offset);
                now = if to == now { run.offset } else { now };
            }
            RunContent::Zeroes(_) => (),
        }
    }
    if now == wanted { op } else { op.truncate(wanted) }
}

/// Passes the bytes as one slice, without a copy if they are in one segment.
fn with_bytes<R>(data: &Segments, use_them: impl FnOnce(&[u8]) -> R) -> R {
    match data.as_slice() {
        [one] => use_them(one.as_slice()),
        _ => use_them(&data.to_vec()),
    }
}

/// An introduction that is completed by the change itself.
struct Introduced {
    nonce: u64,
    scopes: Scopes,
}

/// One change, which is prepared again until it is applied to the state for which it was prepared.
struct Work<'a> {
    core: &'a Arc<Core>,
    space: &'a Space,
    object: &'a ObjectId,
    change: &'a Change,
    terms: &'a ChangeTerms,
    progress: &'a Progress,
}

impl Core {
    /// Applies one change. Returns the object's version and size afterwards.
    pub(crate) async fn change(
        self: &Arc<Self>,
        object: &ObjectId,
        change: &Change,
        terms: &ChangeTerms,
        progress: &Progress,
    ) -> Result<(Version, u64)> {
        conditional::check(change, self.config.object_bytes_max)?;
        self.settle_overdue().await?;
        let space = self.space(&object.namespace)?;
        let work = Work { core: self, space: &space, object, change, terms, progress };
        let mut recalled = self.objects.recall(object);
        for attempt in 0..TRIES {
            if attempt > 0 {
                self.limits.stats.retried.increment();
            }
            if self.objects.is_unsettled(object) {
                recalled = None;
                self.settle(&space, object).await?;
            }
            let is_fresh = recalled.is_none();
            let view = match recalled.take() {
                Some(view) => view,
                None => self.look(&space, &object.name, false).await?,
            };
            match work.attempt(view, is_fresh).await? {
                Some(done) => return Ok(done),
                None => self.objects.forget(object),
            }
        }
        Err(Error::Retryable("too many concurrent changes to this object".into()))
    }
}

impl Work<'_> {
    /// Makes one attempt from the observed state; returns `None` if the state has changed.
    async fn attempt(&self, mut view: View, is_fresh: bool) -> Result<Option<(Version, u64)>> {
        let Self { core, space, object, change, terms, progress } = *self;
        let seen_version = view.version;
        let lacks_fence = view.head.encode().is_none()
            || view.fence.is_none()
            || terms.domain.is_some_and(|domain| view.domain_fence(domain).is_none());
        let mut introduced = None;
        if lacks_fence {
            if !is_fresh {
                // The next steps need the object's version, which only a read returns.
                return Ok(None);
            }
            // Without an introduction the change will be refused; the read determines the reason.
            let is_introduced = view.is_there() || conditional::may_create(change, terms);
            if is_introduced {
                let Some(introduced) = core.introduce(space, object, view).await? else { return Ok(None) };
                view = introduced;
            }
            let scopes = core.scopes(space, &object.namespace, terms.domain).await?;
            let intro = view.intro.filter(|_| is_introduced);
            introduced = intro.map(|nonce| Introduced { nonce, scopes });
            if let Err(error) = self.decide(&view, seen_version, scopes) {
                core.withdraw(space, object, &view).await;
                return Err(error);
            }
        } else if let Err(error) = self.decide(&view, seen_version, Scopes::default()) {
            return if is_fresh { Err(error) } else { Ok(None) };
        }
        if let Change::CompareAndWrite { offset, expected, .. } = change
            && let Some(size) = view.head.size_bytes()
            && !expected.is_empty()
            && offset.saturating_add(expected.len_bytes() as u64) > size
        {
            if !is_fresh {
                return Ok(None);
            }
            // RADOS treats bytes beyond the end as zeros.
            return self.mismatch_at_end(*offset, expected, view.version).await;
        }
        let after = self.after(&view, introduced.as_ref());
        let Some(op) = self.prepare(&view, introduced.as_ref(), &after) else { return Ok(None) };
        let outcome = core.change_object(space, object, op, || progress.set_begun(true)).await;
        match outcome.code {
            0.. => {
                let size_bytes = after.head.size_bytes().unwrap_or(0);
                if after.head == Head::Absent {
                    core.objects.forget(object);
                } else if !core.objects.is_unsettled(object) {
                    core.objects.remember(object, after);
                }
                Ok(Some((core.version(space, outcome.version), size_bytes)))
            }
            errno::CANCELED | errno::RANGE | errno::OVERFLOW | errno::EXIST => {
                progress.set_begun(false);
                Ok(None)
            }
            errno::NOENT => {
                progress.set_begun(false);
                match core.failed_read(space, errno::NOENT) {
                    Error::Missing => Ok(None),
                    gone => Err(gone),
                }
            }
            code => match change {
                Change::CompareAndWrite { offset, .. } if code <= errno::MISMATCH => {
                    let at = u64::from((errno::MISMATCH - code).unsigned_abs());
                    Err(Error::Mismatch { offset: offset + at })
                }
                _ => Err(core.failed_change(space, code)),
            },
        }
    }

    /// Checks whether the change may be applied to the observed state.
    fn decide(&self, view: &View, seen_version: u64, scopes: Scopes) -> Result<()> {
        // A view derived from this store's own change has no version, so the operation asserts the
        // required one.
        let version = match (view.is_there(), seen_version, self.terms.condition) {
            (false, ..) => None,
            (true, 0, Condition::Version(wanted)) => Some(wanted),
            (true, ..) => Some(self.core.version(self.space, seen_version)),
        };
        let seen = conditional::Seen {
            version,
            stamp: view.stamp,
            fence: view.fence,
            domain_fence: self.terms.domain.and_then(|domain| view.domain_fence(domain)),
        };
        conditional::admit(self.change, self.terms, seen, scopes)
    }

    /// Returns the state after the change has been applied.
    fn after(&self, view: &View, introduced: Option<&Introduced>) -> View {
        let terms = self.terms;
        let epoch = terms.stamp.map_or(0, |stamp| stamp.epoch.0);
        let mut after = View { intro: None, version: 0, stamp: terms.stamp.or(view.stamp), ..view.clone() };
        let fence = view.fence.or(introduced.map(|introduced| introduced.scopes.whole)).unwrap_or(0);
        after.fence = Some(fence.max(epoch));
        if let (Some(domain), Some(introduced)) = (terms.domain, introduced)
            && view.domain_fence(domain).is_none()
        {
            after.set_domain_fence(domain, introduced.scopes.domain);
        }
        let size_bytes = self.change.size_after(view.head.size_bytes().unwrap_or(0));
        after.head = match (self.change, view.head) {
            (Change::Delete, _) if terms.stamp.is_some() => Head::Ghost { gate: format::nonce() },
            (Change::Delete, _) => Head::Absent,
            (_, Head::Live { gate, .. }) => Head::Live { size_bytes, gate },
            _ => Head::Live { size_bytes, gate: format::nonce() },
        };
        after
    }

    /// Returns the operation from `view` to `after`, which compares everything on which it depends.
    /// Returns `None` if the change is conditional on a version that this pool cannot have.
    fn prepare(&self, view: &View, introduced: Option<&Introduced>, after: &View) -> Option<WriteOp> {
        let Self { core, space, change, terms, .. } = *self;
        let value = |epoch: Option<u64>| epoch.map_or_else(Vec::new, |epoch| epoch.to_be_bytes().to_vec());
        let mut op = WriteOp::new(&space.ioctx.cluster.api);
        // ---- the conditions that must still hold
        op = op.compare(HEAD, COMPARE_EQ, &view.head.encode()?);
        op = op.compare(FENCE, COMPARE_EQ, &value(view.fence));
        let domain = terms.domain.map(|domain| (domain, format::domain_fence(domain)));
        if let Some((domain, name)) = &domain {
            op = op.compare(name, COMPARE_EQ, &value(view.domain_fence(*domain)));
        }
        if let Some(Introduced { nonce, .. }) = introduced {
            op = op.compare(INTRO, COMPARE_EQ, &nonce.to_be_bytes());
        }
        if let Some(stamp) = terms.stamp {
            op = op.compare(STAMP, COMPARE_GT, &format::encode_stamp(stamp));
        }
        if let Condition::Version(wanted) = terms.condition {
            // An introduction has just given the object another version; it asserted the observed
            // one.
            let wanted = if view.version > 0 { view.version } else { core.rados_version(space, wanted)? };
            op = op.assert_version(wanted);
        }
        // ---- the change
        if after.head == Head::Absent {
            return Some(op.remove());
        }
        op = add_change(op, change, view.head.size_bytes().unwrap_or(0));
        if let Change::Delete = change {
            op = op.truncate(0);
        }
        if let Some(stamp) = terms.stamp {
            op = op.set(STAMP, &format::encode_stamp(stamp));
        }
        if after.fence != view.fence {
            op = op.set(FENCE, &value(after.fence));
        }
        if introduced.is_some() {
            op = op.unset(INTRO);
        }
        if let Some((domain, name)) = &domain
            && view.domain_fence(*domain).is_none()
        {
            op = op.set(name, &value(after.domain_fence(*domain)));
        }
        let changes_no_byte = match change {
            Change::Copy { .. } => true,
            Change::Write { data, .. } => data.is_empty(),
            // Cutting the range may have made it empty.
            Change::WriteZeroes { .. }
            | Change::WriteRuns { .. }
            | Change::Discard { .. }
            | Change::CompareAndWrite { .. } => true,
            _ => false,
        };
        if after.head != view.head || changes_no_byte {
            op = op.set(HEAD, &after.head.encode()?);
        }
        Some(op)
    }

    /// Returns the first difference if a comparison that goes beyond the object's end fails; `None`
    /// if the object has changed.
    async fn mismatch_at_end(
        &self,
        offset: u64,
        expected: &Segments,
        version: u64,
    ) -> Result<Option<(Version, u64)>> {
        let Self { core, space, object, .. } = *self;
        let version = (version > 0).then_some(version);
        let op =
            ReadOp { version, stat: true, range: clip(offset, expected.len_bytes()), ..ReadOp::default() };
        let (outcome, found) = core.limits.read(&space.ioctx, &core.layout.object(&object.name), op).await;
        match outcome.code {
            0.. => match expected.first_difference(&found.data) {
                Some(at) => Err(Error::Mismatch { offset: offset + at as u64 }),
                // The object has grown since, and now has the expected bytes.
                None => Ok(None),
            },
            errno::RANGE | errno::OVERFLOW => Ok(None),
            code => match core.failed_read(space, code) {
                Error::Missing => Ok(None),
                error => Err(error),
            },
        }
    }
}

/// Returns a range for RADOS, whose offsets are signed.
pub(crate) fn clip(offset: u64, len_bytes: usize) -> (u64, usize) {
    let end_max = i64::MAX as u64;
    if offset >= end_max - len_bytes as u64 { (0, 0) } else { (offset, len_bytes) }
}
