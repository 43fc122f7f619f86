//! Remembers the last known states of objects between changes, and the objects with a change of
//! unknown outcome.
//!
//! A change is prepared from a [`View`] and applied only if the view is still correct (RADOS
//! compares), so an outdated view costs a round trip, never correctness.
//!
//! A change that timed out, or whose caller has stopped waiting, may still be in an OSD's queue and
//! be applied minutes later, over newer data. So its object is *unsettled*, and not read or
//! changed, until [`Core::settle`] has read its head (ordered after all earlier requests) and
//! changed the head's *gate*, if the head is unchanged. Every change compares the head from which
//! it was prepared, including the gate, in the same step in which it is applied. So afterwards
//! either the late change had been applied before the gate changed, and every later read shows it;
//! or it meets another gate, and the store refuses it whenever it arrives. A missing object needs
//! no gate: a change never creates its object by itself (`claims.rs`).

use std::sync::Arc;

use blocker::conditional::Known;
use blocker::conditional::claims::Claim;
use blocker::{Error, ObjectId, OrderDomain, Result, Stamp};

use super::{Core, Space};
use crate::format::{self, HEAD, Head};
use crate::librados::aio::{Found, Outcome, WriteOp};
use crate::librados::ffi::{COMPARE_EQ, errno};

/// The known state of an object.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) head: Head,
    /// The fence; `None` if the object has not been introduced.
    pub(crate) fence: Option<u64>,
    /// The fences of order domains that have changed the object.
    pub(crate) domains: Vec<(OrderDomain, u64)>,
    /// The nonce of an introduction in progress.
    pub(crate) intro: Option<u64>,
    pub(crate) stamp: Option<Stamp>,
    /// The last claim of the object itself; few objects have one.
    pub(crate) claim: Option<Box<Claim>>,
    /// RADOS's version; 0 if the view was derived from this store's own change.
    pub(crate) version: u64,
}

impl View {
    pub(crate) const ABSENT: Self = Self {
        head: Head::Absent,
        fence: None,
        domains: Vec::new(),
        intro: None,
        stamp: None,
        claim: None,
        version: 0,
    };

    /// Returns the view in the result of a read of size and attributes.
    ///
    /// # Errors
    /// Returns `Corrupt` if an attribute has a value that this program never writes.
    pub(crate) fn read(outcome: Outcome, found: &Found) -> Result<Self> {
        let mut view = Self { version: outcome.version, ..Self::ABSENT };
        view.head = Head::Foreign { size_bytes: found.size_bytes };
        for (name, value) in &found.attributes {
            let number = || format::u64_of(value).ok_or_else(|| unreadable(name));
            match name.as_slice() {
                name if name == format::HEAD.to_bytes() => {
                    view.head = Head::decode(value).ok_or_else(|| unreadable(name))?;
                }
                name if name == format::FENCE.to_bytes() => view.fence = Some(number()?),
                name if name == format::INTRO.to_bytes() => view.intro = Some(number()?),
                name if name == format::STAMP.to_bytes() => {
                    view.stamp = Some(format::decode_stamp(value).ok_or_else(|| unreadable(name))?);
                }
                name if name == format::CLAIM.to_bytes() => {
                    let claim = format::decode_claim(value).ok_or_else(|| unreadable(name))?;
                    view.claim = Some(Box::new(claim));
                }
                name => {
                    if let Some(domain) = format::fenced_domain(name) {
                        view.domains.push((domain, number()?));
                    }
                }
            }
        }
        Ok(view)
    }

    pub(crate) fn domain_fence(&self, domain: OrderDomain) -> Option<u64> {
        self.domains.iter().find(|(each, _)| *each == domain).map(|(_, epoch)| *epoch)
    }

    pub(crate) fn set_domain_fence(&mut self, domain: OrderDomain, epoch: u64) {
        self.domains.retain(|(each, _)| *each != domain);
        self.domains.push((domain, epoch));
    }

    /// Returns whether the object exists for readers.
    pub(crate) fn is_there(&self) -> bool {
        self.head.size_bytes().is_some()
    }
}

fn unreadable(name: &[u8]) -> Error {
    Error::Corrupt(
        format!(
            "the attribute {} of an object has a value that this program never writes",
            name.escape_ascii()
        )
        .into(),
    )
}

/// Remembered views, and the unsettled objects. A change that ends without an answer adds its object
/// until the object is used again.
pub(crate) type Objects = Known<View, ()>;

/// The number of unsettled objects from which on each change first settles one.
const UNSETTLED_MAX: usize = 64 * 1024;

/// Returns a memory of at most `remembered_max` views.
pub(crate) fn objects(remembered_max: usize) -> Objects {
    Known::new(remembered_max, |_, _| 1, UNSETTLED_MAX)
}

// ---- changes in doubt

/// The maximum number of attempts to change a gate while others change the object.
const TRIES: u32 = 20;

impl Core {
    /// Settles an unsettled object, if there are too many. Called before each change begins.
    ///
    /// # Errors
    /// Returns `Retryable` if the cluster does not allow that now.
    pub(crate) async fn settle_overdue(self: &Arc<Self>) -> Result<()> {
        let Some(object) = self.objects.overdue() else { return Ok(()) };
        let settled = match self.space(&object.namespace) {
            Ok(space) => self.settle(&space, &object).await,
            Err(error) => Err(error),
        };
        settled.map_err(|error| {
            let text = format!(
                "{} changes have unknown outcomes, and that of {object} cannot be read: {error}",
                self.objects.unsettled_count()
            );
            Error::Retryable(text.into())
        })
    }

    /// Ensures that no earlier change of `object` can still be applied. Cancel safe; concurrent
    /// calls are allowed.
    ///
    /// # Errors
    /// Returns the errors of a read, except `Missing`: the object is still unsettled.
    pub(crate) async fn settle(self: &Arc<Self>, space: &Space, object: &ObjectId) -> Result<()> {
        let Some(doubt) = self.objects.unsettled(object) else { return Ok(()) };
        for _ in 0..TRIES {
            let view = self.look(space, &object.name, true).await?;
            let moved = match view.head {
                Head::Absent | Head::Foreign { .. } => {
                    // If there is no head, none of this store's changes can be applied either,
                    // because they compare the head.
                    self.objects.settled(object, &doubt);
                    return Ok(());
                }
                Head::Ghost { .. } => Head::Ghost { gate: format::nonce() },
                Head::Live { size_bytes, .. } => Head::Live { size_bytes, gate: format::nonce() },
            };
            let (Some(old), Some(new)) = (view.head.encode(), moved.encode()) else { continue };
            let op = WriteOp::new(&space.ioctx.cluster.api).compare(HEAD, COMPARE_EQ, &old).set(HEAD, &new);
            match self.change_own(space, &self.layout.object(&object.name), op).await.code {
                0.. => {
                    self.limits.stats.settled.increment();
                    self.objects.settled(object, &doubt);
                    return Ok(());
                }
                errno::CANCELED | errno::NOENT => {}
                code => return Err(self.failed_read(space, code)),
            }
        }
        Err(Error::Retryable("too many concurrent changes to this object".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_become_a_view_or_are_corrupt() {
        let outcome = Outcome { code: 0, version: 9 };
        let with = |name: &[u8], value: &[u8]| Found {
            size_bytes: 5,
            attributes: vec![(name.to_vec(), value.to_vec()), (b"other".to_vec(), vec![1])],
            ..Found::default()
        };
        let view = View::read(outcome, &with(b"cached.fence", &7_u64.to_be_bytes())).unwrap();
        assert_eq!((view.head, view.fence, view.version), (Head::Foreign { size_bytes: 5 }, Some(7), 9));
        let domain = format::domain_fence(OrderDomain(3));
        let view = View::read(outcome, &with(domain.as_bytes(), &8_u64.to_be_bytes())).unwrap();
        assert_eq!(view.domain_fence(OrderDomain(3)), Some(8));
        for name in [format::HEAD, format::FENCE, format::STAMP, format::INTRO, format::CLAIM] {
            let read = View::read(outcome, &with(name.to_bytes(), b"?"));
            assert!(matches!(read, Err(Error::Corrupt(_))), "{name:?}");
        }
    }
}
