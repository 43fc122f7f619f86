//! Admission: pure functions, shared by all stores, that decide which changes a store accepts.
//!
//! A store calls [`admit`] under the lock that makes its check and its change one atomic step.
//! [`Claims`] holds the epochs in force; the store makes them durable.
//!
//! ```
//! use blocker::admission::{Claims, Head, admit};
//! use blocker::{ChangeTerms, Epoch, Error, ObjectId, Scope, WriterId};
//!
//! let mut claims = Claims::default();
//! let disk: ObjectId = "vm/disk".parse()?;
//! claims.raise(&Scope::Object(disk.clone()), Epoch(3), WriterId::random())?;
//! let unstamped = ChangeTerms::default();
//! let refused = admit(Head::ABSENT, claims.in_force(&disk, None), &unstamped);
//! assert_eq!(refused, Err(Error::Fenced { epoch: Epoch(3) }));
//! # Ok::<_, Error>(())
//! ```

use std::collections::HashMap;

use crate::{
    Capabilities, ChangeTerms, Condition, Epoch, Error, Name, Namespace, ObjectId, OrderDomain, Result, Run,
    Scope, Stamp, Version, WriterId,
};

/// The state of an object that admission depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// The object's version; `None` if the object does not exist.
    pub version: Option<Version>,
    /// The stamp that the object carries, or that its deletion carried.
    pub stamp: Option<Stamp>,
}

impl Head {
    /// The head of an object that neither exists nor has a remembered deletion.
    pub const ABSENT: Self = Self { version: None, stamp: None };
}

/// Checks whether a change on these terms may be applied to an object with `head`, where the epoch
/// `claimed` is in force.
///
/// # Errors
/// In this order: [`Error::Fenced`], [`Error::Invalid`] (see [`EPOCH_STEP_MAX`]),
/// [`Error::Superseded`], then those of [`check_condition`].
#[inline]
pub fn admit(head: Head, claimed: Epoch, terms: &ChangeTerms) -> Result<()> {
    let carried = head.stamp.map_or(Epoch(0), |stamp| stamp.epoch);
    let in_force = claimed.max(carried);
    let epoch = terms.stamp.map_or(Epoch(0), |stamp| stamp.epoch);
    if epoch < in_force {
        return Err(Error::Fenced { epoch: in_force });
    }
    check_epoch_step(in_force, epoch)?;
    if let (Some(new), Some(old)) = (terms.stamp, head.stamp)
        && new <= old
    {
        return Err(Error::Superseded { stamp: old });
    }
    check_condition(head.version, terms.condition)
}

/// The largest step from the epoch in force to the next one. Epochs may be taken from a clock:
/// microseconds since 1970 stay below this step until the year 2041. Even with such steps, the
/// largest epoch is thousands of claims away.
pub const EPOCH_STEP_MAX: u64 = 1 << 51;

/// Checks whether `epoch` may follow the one in force.
///
/// # Errors
/// [`Error::Invalid`] if it is more than [`EPOCH_STEP_MAX`] above it.
#[inline]
pub fn check_epoch_step(in_force: Epoch, epoch: Epoch) -> Result<()> {
    match epoch.0.saturating_sub(in_force.0) <= EPOCH_STEP_MAX {
        true => Ok(()),
        false => Err(step_too_large(in_force, epoch)),
    }
}

#[cold]
fn step_too_large(in_force: Epoch, epoch: Epoch) -> Error {
    let text = format!(
        "epoch {epoch} is more than {EPOCH_STEP_MAX} above the current epoch {in_force}; a writer claims the next one"
    );
    Error::Invalid(text.into())
}

/// Checks whether an object of this version (`None`: absent) meets `condition`.
///
/// # Errors
/// [`Error::Exists`], [`Error::Missing`] or [`Error::ConditionFailed`].
#[inline]
pub fn check_condition(version: Option<Version>, condition: Condition) -> Result<()> {
    match (condition, version) {
        (Condition::None, _) | (Condition::Absent, None) | (Condition::Present, Some(_)) => Ok(()),
        (Condition::Absent, Some(_)) => Err(Error::Exists),
        (Condition::Present | Condition::Version(_), None) => Err(Error::Missing),
        (Condition::Version(wanted), Some(version)) if wanted == version => Ok(()),
        (Condition::Version(_), Some(version)) => Err(Error::ConditionFailed { version }),
    }
}

/// Returns the end of a range, checked against the largest object.
///
/// # Errors
/// [`Error::TooLarge`] if it ends beyond `object_bytes_max`.
#[inline]
pub fn range_end(offset: u64, len_bytes: u64, object_bytes_max: u64) -> Result<u64> {
    let end = offset.checked_add(len_bytes).filter(|end| *end <= object_bytes_max);
    end.ok_or(Error::TooLarge { limit_bytes: object_bytes_max })
}

/// Checks each run, the order of the runs, and their number and length against the capabilities.
/// Returns the end of the last run.
///
/// # Errors
/// Returns [`Error::Unsupported`], [`Error::Invalid`] and [`Error::TooLarge`], as
/// [`crate::Change::WriteRuns`] documents.
pub fn runs_end(runs: &[Run], can: &Capabilities) -> Result<u64> {
    let invalid = |text: String| Err(Error::Invalid(text.into()));
    if can.runs_max == 0 {
        return Err(Error::Unsupported("this backend cannot write several ranges in one change".into()));
    }
    if runs.is_empty() {
        return invalid("the request has no runs; it needs at least one".into());
    }
    if runs.len() > can.runs_max as usize {
        return invalid(format!("the request has {} runs; at most {} are allowed", runs.len(), can.runs_max));
    }
    let (mut end, mut bytes) = (0, 0_u64);
    for (index, run) in runs.iter().enumerate() {
        let len = run.len_bytes();
        if len == 0 {
            return invalid(format!("run {index} at offset {} has no bytes", run.offset));
        }
        if run.offset < end {
            let offset = run.offset;
            return invalid(format!(
                "run {index} begins at {offset}, before the end {end} of the previous run"
            ));
        }
        end = range_end(run.offset, len, can.object_bytes_max)?;
        bytes = bytes.saturating_add(len);
    }
    if bytes > can.request_bytes_max {
        return Err(Error::TooLarge { limit_bytes: can.request_bytes_max });
    }
    Ok(end)
}

/// The claimed scopes, at most [`CLAIMS_COUNT_MAX`], each with its epoch and the writer that
/// claimed it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Claims {
    all: Claimed,
    namespaces: HashMap<Namespace, NamespaceClaims, foldhash::fast::RandomState>,
    count: usize,
}

/// The highest claim of one scope; epoch 0 if the scope was never claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Claimed {
    epoch: Epoch,
    /// `None` if the claim's record names no writer.
    writer: Option<WriterId>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct NamespaceClaims {
    whole: Claimed,
    domains: HashMap<OrderDomain, Claimed, foldhash::fast::RandomState>,
    objects: HashMap<Name, Claimed, foldhash::fast::RandomState>,
}

impl NamespaceClaims {
    fn domain(&self, domain: OrderDomain) -> Epoch {
        self.domains.get(&domain).copied().unwrap_or_default().epoch
    }

    fn object(&self, name: &Name) -> Epoch {
        self.objects.get(name).copied().unwrap_or_default().epoch
    }
}

/// Returns whether a change may belong to both scopes.
fn overlap(one: &Scope, other: &Scope) -> bool {
    match (one, other) {
        (Scope::Domain(..), Scope::Domain(..)) | (Scope::Object(_), Scope::Object(_)) => one == other,
        // A domain may contain any object of its namespace.
        _ => match (one.namespace(), other.namespace()) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        },
    }
}

/// The maximum number of scopes that can be claimed at one store.
pub const CLAIMS_COUNT_MAX: usize = 16 * 1024;

impl Claims {
    /// Returns the epoch in force for a change of `object` in `domain`.
    #[must_use]
    pub fn in_force(&self, object: &ObjectId, domain: Option<OrderDomain>) -> Epoch {
        // In the common case, the namespace has no claim.
        let Some(claims) = self.namespaces.get(&object.namespace) else { return self.all.epoch };
        let domain = domain.map_or(Epoch(0), |domain| claims.domain(domain));
        self.all.epoch.max(claims.whole.epoch).max(domain).max(claims.object(&object.name))
    }

    /// Returns the lowest epoch that a claim of `scope` may have: the epoch of the scope or of a
    /// wider one.
    #[must_use]
    pub fn scope_epoch(&self, scope: &Scope) -> Epoch {
        let claims = scope.namespace().and_then(|namespace| self.namespaces.get(namespace));
        let wider = claims.map_or(self.all.epoch, |claims| self.all.epoch.max(claims.whole.epoch));
        wider.max(self.own_epoch(scope))
    }

    /// Raises the epoch of `scope` for `writer`. Returns whether the claims have changed: they do
    /// not change if the writer already holds the epoch, or for epoch 0, which only queries.
    ///
    /// # Errors
    /// Returns [`Error::Fenced`] if a newer epoch is in force, or another writer has claimed this
    /// epoch in an overlapping scope; [`Error::Invalid`] beyond [`EPOCH_STEP_MAX`];
    /// [`Error::OutOfSpace`] beyond [`CLAIMS_COUNT_MAX`] scopes.
    pub fn raise(&mut self, scope: &Scope, epoch: Epoch, writer: WriterId) -> Result<bool> {
        let in_force = self.scope_epoch(scope);
        if epoch < in_force {
            return Err(Error::Fenced { epoch: in_force });
        }
        if epoch == Epoch(0) {
            return Ok(false);
        }
        // A claim without a known writer counts as another writer's.
        let is_taken = self
            .iter()
            .any(|(other, claimed, by)| claimed == epoch && by != Some(writer) && overlap(scope, &other));
        if is_taken {
            return Err(Error::Fenced { epoch });
        }
        if epoch == in_force {
            return Ok(false);
        }
        check_epoch_step(in_force, epoch)?;
        self.record(scope, epoch, Some(writer))
    }

    /// Records a claim that was admitted elsewhere or earlier. Returns whether its epoch is above
    /// the scope's recorded epoch.
    ///
    /// # Errors
    /// Returns [`Error::OutOfSpace`] beyond [`CLAIMS_COUNT_MAX`] scopes.
    pub fn record(&mut self, scope: &Scope, epoch: Epoch, writer: Option<WriterId>) -> Result<bool> {
        let before = self.own_epoch(scope);
        if epoch <= before {
            return Ok(false);
        }
        let is_known = before > Epoch(0);
        if !is_known && self.count >= CLAIMS_COUNT_MAX {
            return Err(Error::OutOfSpace("too many scopes have been claimed".into()));
        }
        *self.slot(scope) = Claimed { epoch, writer };
        self.count += usize::from(!is_known);
        Ok(true)
    }

    /// Undoes a [`Self::record`]: sets the epoch of `scope` back to `before`, if it is still
    /// `epoch`.
    pub fn undo_record(&mut self, scope: &Scope, epoch: Epoch, before: Epoch) {
        if epoch > before && self.own_epoch(scope) == epoch {
            *self.slot(scope) = Claimed { epoch: before, writer: None };
            self.count -= usize::from(before == Epoch(0));
        }
    }

    /// Forgets the claims of the namespace's objects and order domains whose epoch is at most
    /// `epoch`: a claim of the whole namespace with `epoch` supersedes them.
    pub fn forget_parts(&mut self, namespace: &Namespace, epoch: Epoch) {
        let Some(claims) = self.namespaces.get_mut(namespace) else { return };
        let mut forgotten = 0;
        let mut is_kept = |claimed: &Claimed| {
            forgotten += usize::from(claimed.epoch > Epoch(0) && claimed.epoch <= epoch);
            claimed.epoch > epoch
        };
        claims.domains.retain(|_, claimed| is_kept(claimed));
        claims.objects.retain(|_, claimed| is_kept(claimed));
        self.count -= forgotten;
    }

    /// Returns every claimed scope with its epoch and writer, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (Scope, Epoch, Option<WriterId>)> + '_ {
        let entry = |scope, claimed: Claimed| {
            (claimed.epoch > Epoch(0)).then_some((scope, claimed.epoch, claimed.writer))
        };
        let namespaces = self.namespaces.iter().flat_map(move |(namespace, claims)| {
            let whole = entry(Scope::Namespace(namespace.clone()), claims.whole);
            let domains = claims.domains.iter().filter_map(move |(domain, claimed)| {
                entry(Scope::Domain(namespace.clone(), *domain), *claimed)
            });
            let objects = claims.objects.iter().filter_map(move |(name, claimed)| {
                entry(Scope::Object(ObjectId::new(namespace.clone(), name.clone())), *claimed)
            });
            whole.into_iter().chain(domains).chain(objects)
        });
        entry(Scope::All, self.all).into_iter().chain(namespaces)
    }

    /// Returns the epoch with which this scope itself was claimed, without wider ones.
    #[must_use]
    pub fn own_epoch(&self, scope: &Scope) -> Epoch {
        let claims = scope.namespace().and_then(|namespace| self.namespaces.get(namespace));
        match (scope, claims) {
            (Scope::All, _) => self.all.epoch,
            (_, None) => Epoch(0),
            (Scope::Namespace(_), Some(claims)) => claims.whole.epoch,
            (Scope::Domain(_, domain), Some(claims)) => claims.domain(*domain),
            (Scope::Object(object), Some(claims)) => claims.object(&object.name),
        }
    }

    fn slot(&mut self, scope: &Scope) -> &mut Claimed {
        let Some(namespace) = scope.namespace() else { return &mut self.all };
        let claims = self.namespaces.entry(namespace.clone()).or_default();
        match scope {
            Scope::Domain(_, domain) => claims.domains.entry(*domain).or_default(),
            Scope::Object(object) => claims.objects.entry(object.name.clone()).or_default(),
            Scope::All | Scope::Namespace(_) => &mut claims.whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &'static str) -> ObjectId {
        ObjectId::new(Namespace::new("n").unwrap(), Name::new(name).unwrap())
    }

    #[test]
    fn a_change_needs_an_epoch_in_force_and_a_stamp_above_the_carried_one() {
        let head = Head { version: Some(Version(1)), stamp: Some(Stamp::new(3, 7)) };
        let with =
            |stamp: Option<Stamp>| admit(head, Epoch(2), &ChangeTerms { stamp, ..ChangeTerms::default() });
        assert_eq!(with(Some(Stamp::new(3, 8))), Ok(()));
        assert_eq!(with(Some(Stamp::new(4, 0))), Ok(()));
        assert_eq!(with(Some(Stamp::new(3, 7))), Err(Error::Superseded { stamp: Stamp::new(3, 7) }));
        assert_eq!(with(Some(Stamp::new(2, 9))), Err(Error::Fenced { epoch: Epoch(3) }));
        assert_eq!(with(None), Err(Error::Fenced { epoch: Epoch(3) }));
        assert_eq!(
            admit(Head::ABSENT, Epoch(2), &ChangeTerms::default()),
            Err(Error::Fenced { epoch: Epoch(2) })
        );
        assert_eq!(admit(Head::ABSENT, Epoch(0), &ChangeTerms::default()), Ok(()));
    }

    #[test]
    fn parts_of_a_namespace_are_forgotten_up_to_an_epoch() {
        let mut claims = Claims::default();
        let namespace = object("a").namespace;
        let domain = |number| Scope::Domain(namespace.clone(), OrderDomain(number));
        for (scope, epoch) in [
            (Scope::Object(object("a")), 5),
            (Scope::Object(object("b")), 6),
            (domain(1), 4),
            (domain(2), 7),
            (Scope::Namespace(namespace.clone()), 3),
        ] {
            claims.record(&scope, Epoch(epoch), None).unwrap();
        }
        claims.forget_parts(&Namespace::new("other").unwrap(), Epoch(9));
        claims.forget_parts(&namespace, Epoch(5));
        let epochs = [object("a"), object("b")].map(|object| claims.in_force(&object, None).0);
        assert_eq!((epochs, claims.count, claims.iter().count()), ([3, 6], 3, 3));
        assert_eq!(claims.in_force(&object("a"), Some(OrderDomain(1))), Epoch(3));
        assert_eq!(claims.in_force(&object("a"), Some(OrderDomain(2))), Epoch(7));
    }

    #[test]
    fn claims_only_rise_and_wider_scopes_bind_narrower_ones() {
        let mut claims = Claims::default();
        let mut raise = |scope: &Scope, epoch| claims.raise(scope, Epoch(epoch), WriterId(1));
        let namespace = object("a").namespace;
        assert_eq!(raise(&Scope::Object(object("a")), 5), Ok(true));
        assert_eq!(raise(&Scope::Namespace(namespace.clone()), 3), Ok(true));
        assert_eq!(raise(&Scope::Namespace(namespace.clone()), 3), Ok(false));
        let domain = Scope::Domain(namespace, OrderDomain(1));
        assert_eq!(raise(&domain, 2), Err(Error::Fenced { epoch: Epoch(3) }));
        assert_eq!(raise(&domain, 4), Ok(true));
        assert_eq!(claims.in_force(&object("a"), None), Epoch(5));
        assert_eq!(claims.in_force(&object("b"), None), Epoch(3));
        assert_eq!(claims.in_force(&object("b"), Some(OrderDomain(1))), Epoch(4));
        assert_eq!(claims.raise(&Scope::All, Epoch(9), WriterId(1)), Ok(true));
        assert_eq!(claims.in_force(&object("a"), None), Epoch(9));
        assert_eq!(claims.iter().count(), 4);
    }

    #[test]
    fn an_epoch_in_force_belongs_to_one_writer() {
        let namespace = object("a").namespace;
        let (all, whole) = (Scope::All, Scope::Namespace(namespace.clone()));
        let domain = |number| Scope::Domain(namespace.clone(), OrderDomain(number));
        let (a, b) = (Scope::Object(object("a")), Scope::Object(object("b")));
        let other = Scope::Namespace(Namespace::new("other").unwrap());
        let overlapping = [
            (&all, &whole),
            (&all, &a),
            (&all, &domain(1)),
            (&whole, &a),
            (&whole, &domain(1)),
            (&a, &domain(1)),
        ];
        let fenced = Err(Error::Fenced { epoch: Epoch(5) });
        for (one, two) in overlapping {
            for (held, wanted) in [(one, two), (two, one), (one, one), (two, two)] {
                let mut claims = Claims::default();
                assert_eq!(claims.raise(held, Epoch(5), WriterId(1)), Ok(true));
                assert_eq!(claims.raise(wanted, Epoch(5), WriterId(2)), fenced, "{held:?}, then {wanted:?}");
                assert!(claims.raise(wanted, Epoch(5), WriterId(1)).is_ok(), "{held:?}, then {wanted:?}");
                assert_eq!(claims.raise(wanted, Epoch(6), WriterId(2)), Ok(true));
            }
        }
        for (one, two) in [(&a, &b), (&domain(1), &domain(2)), (&whole, &other)] {
            let mut claims = Claims::default();
            assert_eq!(claims.raise(one, Epoch(5), WriterId(1)), Ok(true));
            assert_eq!(claims.raise(two, Epoch(5), WriterId(2)), Ok(true), "{one:?} and {two:?}");
        }
        // A record without a writer excludes every writer.
        let mut claims = Claims::default();
        claims.record(&whole, Epoch(5), None).unwrap();
        assert_eq!(claims.raise(&whole, Epoch(5), WriterId(0)), fenced);
    }

    #[test]
    fn an_epoch_rises_by_a_limited_step() {
        let mut claims = Claims::default();
        let scope = Scope::Object(object("a"));
        let kind = |result: Result<bool>| result.map_err(|error| error.kind());
        assert_eq!(kind(claims.raise(&scope, Epoch(u64::MAX), WriterId(1))), Err("invalid"));
        assert_eq!(kind(claims.raise(&scope, Epoch(EPOCH_STEP_MAX + 1), WriterId(1))), Err("invalid"));
        assert_eq!(kind(claims.raise(&scope, Epoch(EPOCH_STEP_MAX), WriterId(1))), Ok(true));
        assert_eq!(kind(claims.raise(&scope, Epoch(2 * EPOCH_STEP_MAX), WriterId(1))), Ok(true));
        let stamped = |epoch| ChangeTerms { stamp: Some(Stamp::new(epoch, 1)), ..ChangeTerms::default() };
        let in_force = Epoch(2 * EPOCH_STEP_MAX);
        assert_eq!(admit(Head::ABSENT, in_force, &stamped(3 * EPOCH_STEP_MAX)), Ok(()));
        let far = admit(Head::ABSENT, in_force, &stamped(3 * EPOCH_STEP_MAX + 1));
        assert_eq!(far.map_err(|error| error.kind()), Err("invalid"));
    }

    #[test]
    fn a_range_must_end_within_the_largest_object() {
        assert_eq!(range_end(4, 6, 10), Ok(10));
        assert_eq!(range_end(5, 6, 10), Err(Error::TooLarge { limit_bytes: 10 }));
        assert_eq!(range_end(u64::MAX, 2, 10), Err(Error::TooLarge { limit_bytes: 10 }));
    }

    #[test]
    fn runs_ascend_and_stay_within_every_limit() {
        let mut can = Capabilities::full(100);
        let zeroes =
            |runs: &[(u64, u64)]| runs.iter().map(|(at, len)| Run::zeroes(*at, *len)).collect::<Vec<_>>();
        let kind = |can: &Capabilities, runs: &[(u64, u64)]| match runs_end(&zeroes(runs), can) {
            Ok(end) => end.to_string(),
            Err(error) => error.kind().to_owned(),
        };
        assert_eq!(kind(&can, &[(0, 1)]), "unsupported");
        (can.runs_max, can.request_bytes_max) = (3, 50);
        assert_eq!(kind(&can, &[(0, 1), (1, 1), (98, 2)]), "100", "adjacent runs");
        assert_eq!(kind(&can, &[]), "invalid");
        assert_eq!(kind(&can, &[(0, 1), (2, 0)]), "invalid");
        assert_eq!(kind(&can, &[(0, 2), (1, 1)]), "invalid");
        assert_eq!(kind(&can, &[(5, 1), (0, 1)]), "invalid");
        assert_eq!(kind(&can, &[(0, 1), (2, 1), (4, 1), (6, 1)]), "invalid", "too many");
        assert_eq!(kind(&can, &[(0, 1), (99, 2)]), "too_large");
        assert_eq!(kind(&can, &[(0, 1), (u64::MAX, 2)]), "too_large");
        assert_eq!(kind(&can, &[(0, 25), (30, 26)]), "too_large", "51 bytes");
    }
}
