//! Claims on S3: [`blocker::conditional::claims`] has the protocol and its proofs; this module has
//! the operations that it needs.
//!
//! An object's fence is in its head, and a change replaces exactly the head from which it was
//! prepared. An object is introduced by its head: if it has none, a ghost is put on the condition
//! that none exists, and the mark of an introduction is the body of the head. So a claim that finds
//! a head without a fence replaces it by the same head with another nonce. Only a sweep
//! (`sweep.rs`) removes a ghost, and only if it is byte for byte one whose fence is not above the
//! epochs of its scopes, and that was never claimed itself.
//!
//! Costs: nothing for an object that was changed before; three more requests, two of them
//! concurrent, for the first change of an object; for a claim of a scope, a read of every head in
//! it and a put of every head whose fence it raises.

use blocker::conditional::Progress;
use blocker::conditional::claims::{self, Announced, Claim, Claims, Found, Place, Scopes};
use blocker::event::Event;
use blocker::{ClaimReply, ClaimRequest, Epoch, Error, Namespace, ObjectId, OrderDomain, Result, WriterId};
use bytes::Bytes;
use futures_util::StreamExt;
use object_store::path::Path;

use super::swap::{Seen, Swap};
use super::{CONCURRENT, Core, TRIES};
use crate::format::head::{RECORD_BYTES_MAX, Record};
use crate::format::layout::{Layout, RECORD_OF_ALL};
use crate::server::requests::{Got, Put};

/// The maximum number of attempts to change a record that others change at the same time.
const RECORD_TRIES: u32 = 100;

/// A claim in progress.
struct Claiming<'a> {
    core: &'a Core,
    progress: &'a Progress,
}

impl Core {
    pub(crate) async fn claim(&self, request: ClaimRequest, progress: &Progress) -> Result<ClaimReply> {
        let ClaimRequest { scope, epoch, writer, .. } = request;
        let claiming = Claiming { core: self, progress };
        claims::claim(&claiming, &scope, epoch, writer).await?;
        if self.reported.is_first(&scope, epoch) {
            self.events.publish(&Event::Fenced(scope, epoch));
        }
        Ok(ClaimReply::new(epoch))
    }

    /// Puts a ghost if there is no head. Returns `None` if a head exists by now.
    pub(crate) async fn introduce(&self, object: &ObjectId) -> Result<Option<Seen>> {
        self.requests.stats.introduced.increment();
        self.name_namespace(&object.namespace).await?;
        match self.create(object).await {
            Swap::Done(seen) => Ok(Some(seen)),
            Swap::Lost => Ok(None),
            Swap::Failed(error) | Swap::Unknown(error) => Err(error),
        }
    }

    /// Records the name of a namespace, if its keys do not contain it.
    async fn name_namespace(&self, namespace: &Namespace) -> Result<()> {
        if self.layout.has_name(namespace) {
            return Ok(());
        }
        let name = |found: &Record| Ok(found.namespace.is_empty().then(|| found.clone()));
        self.update_record(Place::Namespace(namespace), name).await.map(drop)
    }

    /// Returns the current epochs.
    pub(crate) async fn scopes(&self, namespace: &Namespace, domain: Option<OrderDomain>) -> Result<Scopes> {
        let (all, own, domain) = futures_util::future::join3(
            self.record(Place::All),
            self.record(Place::Namespace(namespace)),
            async {
                match domain {
                    Some(domain) => self.record(Place::Domain(namespace, domain)).await,
                    None => Ok(Record::default()),
                }
            },
        )
        .await;
        let (all, own, domain) = (all?.claim.epoch, own?.claim.epoch, domain?.claim.epoch);
        Ok(Scopes { whole: all.max(own), domain })
    }

    // ---- records of scopes

    fn record_path(&self, place: Place<'_>) -> Path {
        match place {
            Place::All => self.layout.path(RECORD_OF_ALL),
            Place::Namespace(namespace) => self.layout.record(namespace),
            Place::Domain(namespace, domain) => self.layout.domain(namespace, domain),
        }
    }

    /// Returns the record of a scope, or an empty record if there is none.
    async fn record(&self, place: Place<'_>) -> Result<Record> {
        self.record_at(&self.record_path(place)).await.map(|(record, _)| record)
    }

    /// Returns the record at a path, and its ETag, or an empty record if there is none.
    ///
    /// # Errors
    /// Returns an error if the request fails, and `Corrupt` if the content is not a record.
    pub(crate) async fn record_at(&self, path: &Path) -> Result<(Record, Option<String>)> {
        match self.requests.get(path, None, RECORD_BYTES_MAX).await? {
            Got::Missing => Ok((Record::default(), None)),
            Got::Found(bytes, Some(etag)) => {
                let record = Record::decode(&bytes).ok_or_else(|| {
                    Error::Corrupt(format!("{path} is not a record that this program writes").into())
                })?;
                Ok((record, Some(etag)))
            }
            Got::Found(_, None) | Got::Same => Err(Error::Corrupt("the server returns no ETag".into())),
        }
    }

    /// Changes a scope's record: replaces the record with the result of `update` if the record is
    /// unchanged, and otherwise calls `update` again. A repeated `update` must recognise its own
    /// work. Returns whether a put was made that may have changed the record.
    ///
    /// # Errors
    /// Returns the errors of `update`; `Retryable`, `Denied`.
    async fn update_record(
        &self,
        place: Place<'_>,
        mut update: impl FnMut(&Record) -> Result<Option<Record>> + Send,
    ) -> Result<bool> {
        let path = self.record_path(place);
        let mut is_put = false;
        let mut failed = 0;
        for attempt in 0..RECORD_TRIES {
            let (found, etag) = self.record_at(&path).await?;
            let Some(mut next) = update(&found)? else { return Ok(is_put) };
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
            self.give_way(attempt).await;
        }
        Err(Error::Retryable("too many concurrent claims of this scope".into()))
    }

    /// Waits before a retry after concurrent changes.
    pub(super) async fn give_way(&self, attempt: u32) {
        if attempt > 1 {
            self.requests.delay((attempt / 4).min(3)).await;
        }
    }

    /// Applies a claim to an object found in a listing.
    async fn meet(&self, object: ObjectId, domain: Option<OrderDomain>, epoch: u64) -> Result<()> {
        for attempt in 0..TRIES {
            let Some(seen) = self.look(&object).await? else { return Ok(()) };
            let fence = domain.map_or(seen.head.fence, |domain| seen.head.domain_fence(domain));
            let mut next = seen.head.next();
            match (fence, domain) {
                (Some(fence), _) if fence >= epoch => return Ok(()),
                (Some(_), None) => next.fence = Some(epoch),
                (Some(_), Some(domain)) => {
                    next.set_domain_fence(domain, epoch);
                }
                // A different nonce suffices.
                (None, _) => {}
            }
            match self.swap(&object, &seen, next).await {
                Swap::Done(_) => return Ok(()),
                Swap::Lost => {}
                Swap::Failed(error) => return Err(error),
                Swap::Unknown(error) => return Err(Error::Retryable(error.to_string().into())),
            }
            self.give_way(attempt).await;
        }
        Err(Error::Retryable("too many concurrent changes to an object".into()))
    }

    async fn look_owned(&self, object: ObjectId) -> Result<Option<Seen>> {
        self.look(&object).await
    }
}

impl Claims for Claiming<'_> {
    type Seen = Option<Seen>;

    async fn record(&self, place: Place<'_>) -> Result<claims::Record> {
        let Record { claim, narrower, domains, objects, .. } = self.core.record(place).await?;
        Ok(claims::Record { claim, narrower, domains, objects })
    }

    async fn update_claim(
        &self,
        place: Place<'_>,
        mut decide: impl FnMut(Claim) -> Result<Option<Claim>> + Send,
    ) -> Result<bool> {
        let update = |found: &Record| Ok(decide(found.claim)?.map(|claim| Record { claim, ..found.clone() }));
        self.core.update_record(place, update).await
    }

    async fn raise(&self, place: Place<'_>, announced: Announced, epoch: u64) -> Result<()> {
        let raise = |found: &Record| {
            let mut next = found.clone();
            let highest = match announced {
                Announced::Narrower => &mut next.narrower,
                Announced::Domains => &mut next.domains,
                Announced::Objects => &mut next.objects,
            };
            if *highest >= epoch {
                return Ok(None);
            }
            *highest = epoch;
            Ok(Some(next))
        };
        // Raising the epoch again has the same effect.
        self.core.update_record(place, raise).await.map(drop).map_err(|error| match error {
            Error::OutcomeUnknown(reason) => Error::Retryable(reason),
            error => error,
        })
    }

    async fn scopes(&self, namespace: &Namespace, domain: Option<OrderDomain>) -> Result<Scopes> {
        self.core.scopes(namespace, domain).await
    }

    async fn name_namespace(&self, namespace: &Namespace) -> Result<()> {
        self.core.name_namespace(namespace).await
    }

    async fn namespaces(&self) -> Result<Vec<Namespace>> {
        self.core.namespaces().await
    }

    async fn refuse_domains(&self, namespace: &Namespace, claim: (u64, WriterId)) -> Result<()> {
        let records = self.core.layout.records(namespace);
        let records = self.core.requests.list(&records, None, usize::MAX).await?;
        for record in records.iter().filter(|record| Layout::domain_of(&record.location).is_some()) {
            self.core.record_at(&record.location).await?.0.claim.refuse(claim)?;
            self.progress.step();
        }
        Ok(())
    }

    async fn refuse_objects(&self, namespace: &Namespace, claim: (u64, WriterId)) -> Result<()> {
        let mut walk = self.core.walk(namespace);
        while let Some(objects) = walk.next().await? {
            let seen = futures_util::stream::iter(objects).map(|object| self.core.look_owned(object));
            let mut seen = std::pin::pin!(seen.buffer_unordered(CONCURRENT));
            while let Some(seen) = seen.next().await {
                seen?.map_or_else(Claim::default, |seen| seen.head.claim).refuse(claim)?;
                self.progress.step();
            }
        }
        Ok(())
    }

    async fn find(&self, object: &ObjectId) -> Result<Found<Option<Seen>>> {
        let seen = self.core.look(object).await?;
        let head = seen.as_ref().map(|seen| &seen.head);
        let (fence, claim) = head.map(|head| (head.fence, head.claim)).unwrap_or_default();
        Ok(Found { fence, claim, seen })
    }

    async fn put_claim(
        &self,
        object: &ObjectId,
        found: Found<Option<Seen>>,
        claim: Claim,
        fence: Option<u64>,
    ) -> Result<()> {
        let seen = match found.seen {
            Some(seen) => seen,
            None => match self.core.introduce(object).await? {
                Some(ghost) => ghost,
                None => return Ok(()),
            },
        };
        let mut next = seen.head.next();
        next.claim = claim;
        if let Some(fence) = fence {
            if seen.head.fence.is_none() {
                let whole = self.core.scopes(&object.namespace, None).await?.whole;
                if whole > fence {
                    return Err(Error::Fenced { epoch: Epoch(whole) });
                }
            }
            next.fence = Some(fence);
        }
        match self.core.swap(object, &seen, next).await {
            Swap::Done(_) | Swap::Lost => Ok(()),
            Swap::Failed(error) => Err(error),
            Swap::Unknown(error) => Err(Error::OutcomeUnknown(error.to_string().into())),
        }
    }

    async fn meet_all(&self, place: Place<'_>, epoch: u64) -> Result<()> {
        let (namespaces, domain) = match place {
            Place::All => (self.core.namespaces().await?, None),
            Place::Namespace(namespace) => (vec![namespace.clone()], None),
            Place::Domain(namespace, domain) => (vec![namespace.clone()], Some(domain)),
        };
        for namespace in namespaces {
            let mut walk = self.core.walk(&namespace);
            while let Some(objects) = walk.next().await? {
                let met =
                    futures_util::stream::iter(objects).map(|object| self.core.meet(object, domain, epoch));
                let mut met = std::pin::pin!(met.buffer_unordered(CONCURRENT));
                while let Some(done) = met.next().await {
                    done?;
                    self.progress.step();
                }
            }
        }
        Ok(())
    }

    async fn pause(&self, attempt: u32) {
        self.core.give_way(attempt).await;
    }
}
