//! Who may change an object: the one rule that every store applies, as a pure function.
//!
//! A store calls [`admit`] under whatever makes its check and its change one atomic step. [`Claims`]
//! remembers the epochs in force; keeping them safe across a crash is the store's business.

use std::collections::HashMap;

use crate::capabilities::Capabilities;
use crate::error::{Error, Result};
use crate::name::{Name, Namespace, ObjectId};
use crate::order::{Epoch, OrderDomain, Stamp, Version};
use crate::request::{Change, Condition, Run, Scope};

/// What a store knows about an object before it is changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Its version; `None` if it does not exist.
    pub version: Option<Version>,
    /// The stamp it carries, or that its deletion carried.
    pub stamp: Option<Stamp>,
}

impl Head {
    /// Nothing there, and no memory of anything.
    pub const ABSENT: Self = Self { version: None, stamp: None };
}

/// Whether `change` may be applied to an object with `head`, in a scope claimed by `claimed`.
///
/// # Errors
/// In this order: [`Error::Fenced`], [`Error::Superseded`], then those of [`check_condition`].
pub fn admit(head: Head, claimed: Epoch, change: &Change) -> Result<()> {
    let carried = head.stamp.map_or(Epoch(0), |stamp| stamp.epoch);
    let in_force = claimed.max(carried);
    if change.stamp.map_or(Epoch(0), |stamp| stamp.epoch) < in_force {
        return Err(Error::Fenced { epoch: in_force });
    }
    if let (Some(new), Some(old)) = (change.stamp, head.stamp)
        && new <= old
    {
        return Err(Error::Superseded { stamp: old });
    }
    check_condition(head.version, change.condition)
}

/// Whether an object of this version (`None`: absent) meets `condition`.
///
/// # Errors
/// [`Error::Exists`], [`Error::Missing`] or [`Error::ConditionFailed`].
pub fn check_condition(version: Option<Version>, condition: Condition) -> Result<()> {
    match (condition, version) {
        (Condition::None, _) | (Condition::Absent, None) | (Condition::Present, Some(_)) => Ok(()),
        (Condition::Absent, Some(_)) => Err(Error::Exists),
        (Condition::Present | Condition::Version(_), None) => Err(Error::Missing),
        (Condition::Version(wanted), Some(version)) if wanted == version => Ok(()),
        (Condition::Version(_), Some(version)) => Err(Error::ConditionFailed { version }),
    }
}

/// The end of a range, checked against the largest object.
///
/// # Errors
/// [`Error::TooLarge`] if it ends beyond `object_bytes_max`.
pub fn range_end(offset: u64, len_bytes: u64, object_bytes_max: u64) -> Result<u64> {
    let end = offset.checked_add(len_bytes).filter(|end| *end <= object_bytes_max);
    end.ok_or(Error::TooLarge { limit_bytes: object_bytes_max })
}

/// The end of the last of several runs, once they have been checked: each by itself, their order, and against
/// the backend's limits.
///
/// # Errors
/// [`Error::Unsupported`], [`Error::Invalid`] and [`Error::TooLarge`], as [`crate::Blocker::write_runs`] says.
pub fn runs_end(runs: &[Run], can: &Capabilities) -> Result<u64> {
    let invalid = |text: String| Err(Error::Invalid(text.into()));
    if can.runs_max == 0 {
        return Err(Error::Unsupported("no writing of several ranges in one change here".into()));
    }
    if runs.is_empty() {
        return invalid("there is no run to write; at least one is needed".into());
    }
    if runs.len() > can.runs_max as usize {
        return invalid(format!("{} runs in one change, where {} are the most", runs.len(), can.runs_max));
    }
    let (mut end, mut bytes) = (0, 0_u64);
    for (index, run) in runs.iter().enumerate() {
        let len = run.len_bytes();
        if len == 0 {
            return invalid(format!("run {index} at offset {} has no bytes", run.offset));
        }
        if run.offset < end {
            let offset = run.offset;
            return invalid(format!("run {index} begins at {offset}, before the end of the last one, {end}"));
        }
        end = range_end(run.offset, len, can.object_bytes_max)?;
        bytes = bytes.saturating_add(len);
    }
    if bytes > can.request_bytes_max {
        return Err(Error::TooLarge { limit_bytes: can.request_bytes_max });
    }
    Ok(end)
}

/// The epochs that scopes have been claimed with. Bounded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Claims {
    all: Epoch,
    namespaces: HashMap<Namespace, NamespaceClaims, foldhash::fast::RandomState>,
    count: usize,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct NamespaceClaims {
    whole: Epoch,
    domains: HashMap<OrderDomain, Epoch, foldhash::fast::RandomState>,
    objects: HashMap<Name, Epoch, foldhash::fast::RandomState>,
}

/// How many scopes can be claimed at one store.
pub const CLAIMS_COUNT_MAX: usize = 16 * 1024;

impl Claims {
    /// The epoch in force for a change of `object` in `domain`.
    #[must_use]
    pub fn in_force(&self, object: &ObjectId, domain: Option<OrderDomain>) -> Epoch {
        // The common case: nothing but epochs of namespaces, or nothing at all.
        let Some(claims) = self.namespaces.get(&object.namespace) else { return self.all };
        let domain = domain.and_then(|domain| claims.domains.get(&domain)).copied().unwrap_or_default();
        let object = claims.objects.get(&object.name).copied().unwrap_or_default();
        self.all.max(claims.whole).max(domain).max(object)
    }

    /// Raises the epoch of `scope`. Whether that changed anything.
    ///
    /// # Errors
    /// [`Error::Fenced`] if a newer epoch is in force; [`Error::OutOfSpace`] beyond
    /// [`CLAIMS_COUNT_MAX`] scopes.
    pub fn raise(&mut self, scope: &Scope, epoch: Epoch) -> Result<bool> {
        let in_force = self.scope_epoch(scope);
        if epoch < in_force {
            return Err(Error::Fenced { epoch: in_force });
        }
        if epoch == in_force {
            return Ok(false);
        }
        if self.count >= CLAIMS_COUNT_MAX {
            return Err(Error::OutOfSpace("too many scopes have been claimed".into()));
        }
        let slot = self.slot(scope);
        let is_new = *slot == Epoch(0);
        *slot = epoch;
        self.count += usize::from(is_new);
        Ok(true)
    }

    /// Every claimed scope and its epoch, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Scope, Epoch)> + '_ {
        let all = (self.all > Epoch(0)).then_some((Scope::All, self.all));
        all.into_iter().chain(self.namespaces.iter().flat_map(|(namespace, claims)| {
            let whole =
                (claims.whole > Epoch(0)).then(|| (Scope::Namespace(namespace.clone()), claims.whole));
            let domains = claims.domains.iter();
            let objects = claims.objects.iter();
            whole
                .into_iter()
                .chain(domains.map(|(domain, epoch)| (Scope::Domain(namespace.clone(), *domain), *epoch)))
                .chain(objects.map(|(name, epoch)| {
                    (Scope::Object(ObjectId::new(namespace.clone(), name.clone())), *epoch)
                }))
        }))
    }

    /// The epoch that a claim of `scope` must not fall below.
    fn scope_epoch(&self, scope: &Scope) -> Epoch {
        let of = |namespace| self.namespaces.get(namespace);
        match scope {
            Scope::All => self.all,
            Scope::Namespace(namespace) => {
                self.all.max(of(namespace).map_or(Epoch(0), |claims| claims.whole))
            }
            Scope::Object(object) => self.in_force(object, None),
            Scope::Domain(namespace, domain) => of(namespace).map_or(self.all, |claims| {
                let domain = claims.domains.get(domain).copied().unwrap_or_default();
                self.all.max(claims.whole).max(domain)
            }),
        }
    }

    fn slot(&mut self, scope: &Scope) -> &mut Epoch {
        match scope {
            Scope::All => &mut self.all,
            Scope::Namespace(namespace) => &mut self.namespaces.entry(namespace.clone()).or_default().whole,
            Scope::Domain(namespace, domain) => {
                self.namespaces.entry(namespace.clone()).or_default().domains.entry(*domain).or_default()
            }
            Scope::Object(object) => {
                let claims = self.namespaces.entry(object.namespace.clone()).or_default();
                claims.objects.entry(object.name.clone()).or_default()
            }
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
        let with = |stamp: Option<Stamp>| admit(head, Epoch(2), &Change { stamp, ..Change::default() });
        assert_eq!(with(Some(Stamp::new(3, 8))), Ok(()));
        assert_eq!(with(Some(Stamp::new(4, 0))), Ok(()));
        assert_eq!(with(Some(Stamp::new(3, 7))), Err(Error::Superseded { stamp: Stamp::new(3, 7) }));
        assert_eq!(with(Some(Stamp::new(2, 9))), Err(Error::Fenced { epoch: Epoch(3) }));
        assert_eq!(with(None), Err(Error::Fenced { epoch: Epoch(3) }));
        assert_eq!(admit(Head::ABSENT, Epoch(2), &Change::default()), Err(Error::Fenced { epoch: Epoch(2) }));
        assert_eq!(admit(Head::ABSENT, Epoch(0), &Change::default()), Ok(()));
    }

    #[test]
    fn claims_only_rise_and_wider_scopes_bind_narrower_ones() {
        let mut claims = Claims::default();
        let namespace = object("a").namespace;
        assert_eq!(claims.raise(&Scope::Object(object("a")), Epoch(5)), Ok(true));
        assert_eq!(claims.raise(&Scope::Namespace(namespace.clone()), Epoch(3)), Ok(true));
        assert_eq!(claims.raise(&Scope::Namespace(namespace.clone()), Epoch(3)), Ok(false));
        let domain = Scope::Domain(namespace, OrderDomain(1));
        assert_eq!(claims.raise(&domain, Epoch(2)), Err(Error::Fenced { epoch: Epoch(3) }));
        assert_eq!(claims.raise(&domain, Epoch(4)), Ok(true));
        assert_eq!(claims.in_force(&object("a"), None), Epoch(5));
        assert_eq!(claims.in_force(&object("b"), None), Epoch(3));
        assert_eq!(claims.in_force(&object("b"), Some(OrderDomain(1))), Epoch(4));
        assert_eq!(claims.raise(&Scope::All, Epoch(9)), Ok(true));
        assert_eq!(claims.in_force(&object("a"), None), Epoch(9));
        assert_eq!(claims.iter().count(), 4);
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
        assert_eq!(kind(&can, &[(0, 1), (1, 1), (98, 2)]), "100", "they may touch");
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
