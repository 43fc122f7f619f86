//! Exclusive epochs: that no two writers hold the same epoch in scopes that overlap.
//!
//! A claim is recorded with its writer: that of a scope on the scope's own RADOS object (`%scope`,
//! `%domain.*`), that of an object on the object itself. Two claims of one scope are decided by comparing
//! that one record. Scopes that overlap (a wider and a narrower one; a domain and any object of its
//! namespace) have records on different RADOS objects, which no operation spans. So a claim of epoch e
//!  1. looks whether the epoch is taken elsewhere, and is refused if it is, before it has changed anything;
//!  2. writes its own record, as *asked for*;
//!  3. *announces* itself: raises to e, on the `%scope` of every wider scope, the highest epoch that was ever
//!     claimed of something narrower (apart for domains and objects, which overlap each other);
//!  4. looks again, and is refused if the epoch is taken elsewhere by now;
//!  5. marks its record as *held*. A writer that finds its own record so, or that of a wider scope, holds the
//!     epoch: when it claims again, only a newer epoch stands against it.
//!
//! To look is to read the records of the wider scopes, and where the announcement of the narrower ones is not
//! below e, the narrower records themselves, which takes a walk. A claim of an epoch above all that were ever
//! announced, which is what writers make, walks nothing. A record stands against another writer in either
//! state.
//!
//! *Claim: of two overlapping claims of epoch e by different writers, at most one comes to hold it.* If one
//! is of a wider scope, let it write its record at w and read the announcements at r > w; the other, of a
//! narrower one, writes its record at w', announces at a' > w', and reads the wider scope's record at r' >
//! a'. If r < a', then w < r', and the narrower claim meets the wider one's record. If r > a', the wider
//! claim sees an announcement that is not below e, walks, and meets the record of w'. For a domain and an
//! object, take the announcements of each: w < a < r and w' < a' < r', and a < r' or a' < r. A wider record
//! that has been raised above e since refuses the narrower claim as well; a narrower record that has been,
//! holds e no longer. ∎
//!
//! Both may be refused, and leave their records: a later epoch is to be had. A record that an older version
//! has written names no writer, and excludes every writer; what older versions have claimed of narrower
//! scopes is not announced.

use std::ffi::{CStr, CString};
use std::sync::Arc;

use blocker::{Epoch, Error, Namespace, Result, Scope, WriterId};
use futures_util::StreamExt;

use super::{Core, Space};
use crate::format::{self, Claim, DOMAINS, EPOCH, NAMESPACE, NARROWER, OBJECTS, SCOPE};
use crate::librados::aio::{ReadOp, WriteOp};
use crate::librados::ffi::{COMPARE_GT, errno};

/// How often an announcement is tried that others make at the same time.
const TRIES: u32 = 100;
/// How many objects a walk asks about at once.
const LOOKS: usize = 64;

/// The record of a scope in an object of the store's own.
#[derive(Default)]
pub(crate) struct Record {
    /// The claim of the scope itself; epoch 0 if there was none.
    pub(crate) claim: Claim,
    /// The same as it is written; empty where it is not.
    pub(crate) claim_bytes: Vec<u8>,
    /// The highest epochs announced by narrower claims: of anything, of domains, of objects.
    narrower: u64,
    domains: u64,
    objects: u64,
}

/// What a claim finds in the wider scopes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Above {
    /// The highest epoch.
    pub(crate) in_force: u64,
    /// Whether the writer holds the epoch that it claims already, there or in the scope itself.
    pub(crate) is_held: bool,
}

fn refuse(found: Claim, (epoch, writer): (u64, WriterId)) -> Result<()> {
    if found.excludes(epoch, writer) { Err(Error::Fenced { epoch: Epoch(epoch) }) } else { Ok(()) }
}

impl Core {
    /// Returns the record in the store's own object of this name; `None` if there is none.
    pub(crate) async fn record(self: &Arc<Self>, space: &Space, name: &CStr) -> Result<Option<Record>> {
        let op = ReadOp { attributes: true, ..ReadOp::default() };
        let (outcome, found) = self.limits.read(&space.ioctx, name, op).await;
        if outcome.code < 0 {
            return match self.failed_read(space, outcome.code) {
                Error::Missing => Ok(None),
                error => Err(error),
            };
        }
        let unreadable = || Error::Corrupt("the epoch of a scope is not as this program writes it".into());
        let mut record = Record::default();
        for (name, value) in found.attributes {
            let number = || format::u64_of(&value).ok_or_else(unreadable);
            match name.as_slice() {
                name if name == EPOCH.to_bytes() => {
                    record.claim = Claim::decode(&value).ok_or_else(unreadable)?;
                    record.claim_bytes = value;
                }
                name if name == NARROWER.to_bytes() => record.narrower = number()?,
                name if name == DOMAINS.to_bytes() => record.domains = number()?,
                name if name == OBJECTS.to_bytes() => record.objects = number()?,
                _ => {}
            }
        }
        Ok(Some(record))
    }

    /// Looks at the scopes that are wider than `scope`.
    ///
    /// # Errors
    /// `Fenced` if one of them has a newer epoch, or this one by another writer; the latter only if `is_held`
    /// does not report that the writer holds the epoch already.
    pub(crate) async fn look_above(
        self: &Arc<Self>,
        scope: &Scope,
        (epoch, writer): (u64, WriterId),
        is_held: bool,
    ) -> Result<Above> {
        let own = self.layout.internal(SCOPE);
        let namespace = match scope {
            Scope::All => return Ok(Above { in_force: 0, is_held }),
            Scope::Namespace(namespace) | Scope::Domain(namespace, _) => namespace,
            Scope::Object(object) => &object.namespace,
            _ => return Err(Error::Unsupported("a claim of that scope".into())),
        };
        let mut wider = vec![self.record(&self.pool().root, &own).await?.unwrap_or_default().claim];
        if !matches!(scope, Scope::Namespace(_)) {
            let space = self.space(namespace)?;
            wider.push(self.record(&space, &own).await?.unwrap_or_default().claim);
        }
        let in_force = wider.iter().map(|claim| claim.epoch).max().unwrap_or(0);
        if in_force > epoch {
            return Err(Error::Fenced { epoch: Epoch(in_force) });
        }
        let is_held = is_held || wider.iter().any(|claim| claim.is_held_by(epoch, writer));
        if !is_held && wider.iter().any(|claim| claim.excludes(epoch, writer)) {
            return Err(Error::Fenced { epoch: Epoch(epoch) });
        }
        Ok(Above { in_force, is_held })
    }

    /// Looks at all other scopes that overlap with `scope`: narrower ones, and of domains and objects the
    /// others.
    ///
    /// # Errors
    /// `Fenced` if another writer has claimed the epoch of one.
    pub(crate) async fn look_beside(self: &Arc<Self>, scope: &Scope, claim: (u64, WriterId)) -> Result<()> {
        let own = self.layout.internal(SCOPE);
        let (namespace, domains, objects) = match scope {
            Scope::All => {
                let root = self.record(&self.pool().root, &own).await?.unwrap_or_default();
                if root.narrower < claim.0 {
                    return Ok(());
                }
                for namespace in self.namespaces().await? {
                    let space = self.space(&namespace)?;
                    let whole = self.record(&space, &own).await?.unwrap_or_default();
                    refuse(whole.claim, claim)?;
                    self.look_within(&space, &whole, (true, true), claim).await?;
                }
                return Ok(());
            }
            Scope::Namespace(namespace) => (namespace, true, true),
            Scope::Domain(namespace, _) => (namespace, false, true),
            Scope::Object(object) => (&object.namespace, true, false),
            _ => return Err(Error::Unsupported("a claim of that scope".into())),
        };
        let space = self.space(namespace)?;
        let whole = self.record(&space, &own).await?.unwrap_or_default();
        self.look_within(&space, &whole, (domains, objects), claim).await
    }

    /// Checks the domains of a namespace, its objects, or both, where an announcement shows that they may
    /// matter.
    async fn look_within(
        self: &Arc<Self>,
        space: &Arc<Space>,
        whole: &Record,
        (domains, objects): (bool, bool),
        claim: (u64, WriterId),
    ) -> Result<()> {
        if domains && whole.domains >= claim.0 {
            for name in self.domain_records(space).await? {
                refuse(self.record(space, &name).await?.unwrap_or_default().claim, claim)?;
            }
        }
        if objects && whole.objects >= claim.0 {
            let found = self.find_all(&self.pool(), Some(Arc::clone(space)))?;
            let views = found.map(|found| async {
                let found = found?;
                self.look(&found.space, &found.name, false).await
            });
            let mut views = std::pin::pin!(views.buffer_unordered(LOOKS));
            while let Some(view) = views.next().await {
                refuse(view?.claim.map_or_else(Claim::default, |claim| *claim), claim)?;
            }
        }
        Ok(())
    }

    /// Lets claims of wider scopes know that something in `scope` has been claimed with `epoch`.
    pub(crate) async fn announce(self: &Arc<Self>, scope: &Scope, epoch: u64) -> Result<()> {
        let (namespace, attribute) = match scope {
            Scope::Namespace(namespace) => (namespace, None),
            Scope::Domain(namespace, _) => (namespace, Some(DOMAINS)),
            Scope::Object(object) => (&object.namespace, Some(OBJECTS)),
            _ => return Ok(()),
        };
        if let Some(attribute) = attribute {
            let space = self.space(namespace)?;
            self.raise_attribute(&space, attribute, epoch, Some(namespace)).await?;
        }
        let root = Arc::clone(&self.pool().root);
        self.raise_attribute(&root, NARROWER, epoch, None).await
    }

    async fn raise_attribute(
        self: &Arc<Self>,
        space: &Space,
        attribute: &CStr,
        epoch: u64,
        namespace: Option<&Namespace>,
    ) -> Result<()> {
        let name: CString = self.layout.internal(SCOPE);
        let bytes = epoch.to_be_bytes();
        let mut is_there = true;
        for _ in 0..TRIES {
            let op = WriteOp::new(&space.ioctx.cluster.api);
            let op = match (is_there, namespace) {
                (true, _) => op.compare(attribute, COMPARE_GT, &bytes),
                (false, Some(namespace)) => op.create().set(NAMESPACE, namespace.as_bytes()),
                (false, None) => op.create(),
            };
            match self.change_own(space, &name, op.set(attribute, &bytes)).await.code {
                // Cancelled: it is not below.
                0.. | errno::CANCELED => return Ok(()),
                errno::EXIST => is_there = true,
                errno::NOENT => match self.failed_read(space, errno::NOENT) {
                    Error::Missing => is_there = false,
                    gone => return Err(gone),
                },
                // Repeated, it comes to the same.
                code => return Err(self.failed_read(space, code)),
            }
        }
        Err(Error::Retryable("too many concurrent claims of this scope".into()))
    }
}
