//! Exclusive epochs: that no two writers hold the same epoch in scopes that overlap.
//!
//! A claim is recorded with its writer: that of a scope in the scope's record, that of an object in its head.
//! Two claims of one scope are decided by the one object that has it. Scopes that overlap (a wider and a
//! narrower one; a domain and any object of its namespace) have records in different objects, which no
//! request spans. So a claim of epoch e
//!  1. looks whether the epoch is taken elsewhere, and is refused if it is, before it has changed anything;
//!  2. writes its own record, as *asked for*;
//!  3. *announces* itself: raises to e, in the record of every wider scope, the highest epoch that was ever
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
//! Both may be refused, and leave their records: a later epoch is to be had.

use blocker::{Epoch, Error, Namespace, ObjectId, OrderDomain, Result, Scope, WriterId};
use bytes::Bytes;
use futures_util::StreamExt;
use object_store::path::Path;

use super::swap::Seen;
use super::{CONCURRENT, Core, Progress};
use crate::format::head::{Claim, RECORD_BYTES_MAX, Record};
use crate::format::layout::Layout;
use crate::server::requests::{Got, Put};

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
    /// Looks at the scopes that are wider than `scope`.
    ///
    /// # Errors
    /// `Fenced` if one of them has a newer epoch, or this one by another writer; the latter only if `is_held`
    /// does not report that the writer holds the epoch already.
    pub(crate) async fn look_above(
        &self,
        scope: &Scope,
        (epoch, writer): (u64, WriterId),
        is_held: bool,
    ) -> Result<Above> {
        let namespace = match scope {
            Scope::All => return Ok(Above { in_force: 0, is_held }),
            Scope::Namespace(namespace) | Scope::Domain(namespace, _) => namespace,
            Scope::Object(object) => &object.namespace,
            _ => return Err(Error::Unsupported("a claim of that scope".into())),
        };
        let mut wider = vec![self.record(Place::All).await?.claim];
        if !matches!(scope, Scope::Namespace(_)) {
            wider.push(self.record(Place::Namespace(namespace)).await?.claim);
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
    pub(crate) async fn look_beside(
        &self,
        scope: &Scope,
        claim: (u64, WriterId),
        progress: &Progress,
    ) -> Result<()> {
        let (namespace, domains, objects) = match scope {
            Scope::All => {
                if self.record(Place::All).await?.narrower < claim.0 {
                    return Ok(());
                }
                for namespace in self.namespaces().await? {
                    let whole = self.record(Place::Namespace(&namespace)).await?;
                    refuse(whole.claim, claim)?;
                    self.look_within(&namespace, &whole, (true, true), claim, progress).await?;
                }
                return Ok(());
            }
            Scope::Namespace(namespace) => (namespace, true, true),
            Scope::Domain(namespace, _) => (namespace, false, true),
            Scope::Object(object) => (&object.namespace, true, false),
            _ => return Err(Error::Unsupported("a claim of that scope".into())),
        };
        let whole = self.record(Place::Namespace(namespace)).await?;
        self.look_within(namespace, &whole, (domains, objects), claim, progress).await
    }

    /// Checks the domains of a namespace, its objects, or both, where an announcement shows that they may
    /// matter.
    async fn look_within(
        &self,
        namespace: &Namespace,
        whole: &Record,
        (domains, objects): (bool, bool),
        claim: (u64, WriterId),
        progress: &Progress,
    ) -> Result<()> {
        if domains && whole.domains >= claim.0 {
            let records = self.requests.list(&self.layout.records(namespace), None, usize::MAX).await?;
            for record in records.iter().filter(|record| Layout::domain_of(&record.location).is_some()) {
                refuse(self.record_at(&record.location).await?.0.claim, claim)?;
                progress.step();
            }
        }
        if objects && whole.objects >= claim.0 {
            let mut walk = self.walk(namespace);
            while let Some(objects) = walk.next(self).await? {
                let seen = futures_util::stream::iter(objects).map(|object| self.look_owned(object));
                let mut seen = std::pin::pin!(seen.buffer_unordered(CONCURRENT));
                while let Some(seen) = seen.next().await {
                    refuse(seen?.map_or_else(Claim::default, |seen| seen.head.claim), claim)?;
                    progress.step();
                }
            }
        }
        Ok(())
    }

    async fn look_owned(&self, object: ObjectId) -> Result<Option<Seen>> {
        self.look(&object).await
    }

    /// Lets claims of wider scopes know that something in `scope` has been claimed with `epoch`.
    pub(crate) async fn announce(&self, scope: &Scope, epoch: u64) -> Result<()> {
        match scope {
            Scope::Namespace(_) => {}
            Scope::Domain(namespace, _) => {
                self.raise(Place::Namespace(namespace), epoch, |record| &mut record.domains).await?;
            }
            Scope::Object(object) => {
                let place = Place::Namespace(&object.namespace);
                self.raise(place, epoch, |record| &mut record.objects).await?;
            }
            _ => return Ok(()),
        }
        self.raise(Place::All, epoch, |record| &mut record.narrower).await
    }

    async fn raise(&self, place: Place<'_>, epoch: u64, field: fn(&mut Record) -> &mut u64) -> Result<()> {
        let raise = |found: &Record| {
            let mut next = found.clone();
            let highest = field(&mut next);
            if *highest >= epoch {
                return Ok(Update::Leave);
            }
            *highest = epoch;
            Ok(Update::Put(next))
        };
        // Repeated, it comes to the same.
        self.update_record(place, raise).await.map(drop).map_err(|error| match error {
            Error::OutcomeUnknown(reason) => Error::Retryable(reason),
            error => error,
        })
    }
}

// ---- records of scopes

/// How often a record is tried that others change at the same time.
const TRIES: u32 = 100;

/// What [`Core::update_record`] is to do with what it finds.
pub(crate) enum Update {
    /// Nothing.
    Leave,
    /// To put this in its place.
    Put(Record),
}

/// Where the record of a scope lies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    All,
    Namespace(&'a Namespace),
    Domain(&'a Namespace, OrderDomain),
}

impl Core {
    fn record_path(&self, place: Place<'_>) -> Path {
        match place {
            Place::All => self.layout.record_of_all(),
            Place::Namespace(namespace) => self.layout.record(namespace),
            Place::Domain(namespace, domain) => self.layout.domain(namespace, domain),
        }
    }

    /// Returns the record of a scope; an empty one if there is none.
    ///
    /// # Errors
    /// Those of reads, but `Missing`.
    pub(crate) async fn record(&self, place: Place<'_>) -> Result<Record> {
        self.record_at(&self.record_path(place)).await.map(|(record, _)| record)
    }

    /// Returns the record at a path, and its ETag; an empty one if there is none.
    ///
    /// # Errors
    /// As [`Self::record`].
    pub(crate) async fn record_at(&self, path: &Path) -> Result<(Record, Option<String>)> {
        match self.requests.get(path, None, RECORD_BYTES_MAX).await? {
            Got::Missing => Ok((Record::default(), None)),
            Got::Found(bytes, Some(etag)) => {
                let record = Record::decode(&bytes).ok_or_else(|| {
                    Error::Corrupt(format!("{path} is no record as this program writes it").into())
                })?;
                Ok((record, Some(etag)))
            }
            Got::Found(_, None) | Got::Same => Err(Error::Corrupt("the server names no ETag".into())),
        }
    }

    /// Changes the record of a scope. What `update` returns for the record that was found is put in its
    /// place, if it is still there; otherwise `update` is asked again. An `update` that is repeated must find
    /// its own work done. Whether a put was made that may have changed something.
    ///
    /// # Errors
    /// Those of `update`; `Retryable`, `Denied`.
    pub(crate) async fn update_record(
        &self,
        place: Place<'_>,
        mut update: impl FnMut(&Record) -> Result<Update>,
    ) -> Result<bool> {
        let path = self.record_path(place);
        let mut is_put = false;
        let mut failed = 0;
        for attempt in 0..TRIES {
            let (found, etag) = self.record_at(&path).await?;
            let Update::Put(mut next) = update(&found)? else { return Ok(is_put) };
            if let Place::Namespace(namespace) | Place::Domain(namespace, _) = place {
                next.namespace = Bytes::copy_from_slice(namespace.as_bytes());
            }
            let put = match &etag {
                Some(etag) => self.requests.replace(&path, &next.encode(), etag).await,
                None => self.requests.create(&path, &next.encode()).await,
            };
            match put {
                Put::Done(_) => return Ok(true),
                Put::Lost => {}
                Put::Refused(error) => return Err(error),
                Put::Unknown(error) if failed >= 3 => {
                    return Err(Error::OutcomeUnknown(error.to_string().into()));
                }
                Put::Unknown(_) => {
                    is_put = true;
                    failed += 1;
                }
            }
            if attempt > 1 {
                self.requests.delay((attempt / 4).min(3)).await;
            }
        }
        Err(Error::Retryable("too many concurrent claims of this scope".into()))
    }
}
