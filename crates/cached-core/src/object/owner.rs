//! Where the cache is the writer: the epochs it has claimed, and whether they are still in force.
//!
//! ```text
//!                      refused, or news of a newer epoch
//!  (none) ──claim──> Held ─────────────────────────────> Doubted ──claimed again──> Held
//!                                                           │ another writer has it
//!                                                           └──> Deposed: every change is refused, until a restart
//! ```
//! A namespace is claimed before its first change is acknowledged, so that nothing is acknowledged that no store
//! would take. What was read before the claim may have been changed by the writer before, and is dropped.

use std::collections::HashMap;

use blocker::{ClaimRequest, Epoch, Error, Event, Namespace, ObjectId, Result, Scope, Stamp, WriterId};

use super::config::Writer;
use super::doubt::dropped;
use super::order;
use super::shared::Shared;
use super::state::Object;
use super::wait::Permits;
use super::whole::drop_clean;
use crate::sync::{Arc, AtomicU32, AtomicU64, Mutex, Ordering, lock};

/// Claims of one namespace in a row that others may come before.
const CLAIM_TRIES_MAX: u32 = 32;

/// What this cache is to a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Own {
    /// Its writer, with this epoch.
    Held(Epoch),
    /// Perhaps its writer: the store must be asked before anything more is acknowledged.
    Doubted(Epoch),
    /// Its writer no more; this epoch is in force.
    Deposed(Epoch),
}

/// See the module.
pub(crate) struct Owner {
    writer: WriterId,
    namespaces: Mutex<HashMap<Namespace, Own>>,
    /// Rises whenever an epoch is doubted. Objects remember under which they were last looked up.
    generation: AtomicU32,
    claiming: Permits,
    sequence: AtomicU64,
}

impl Owner {
    pub(crate) fn new() -> Self {
        Self {
            writer: WriterId::random(),
            namespaces: Mutex::ranked(HashMap::new(), &order::EPOCHS),
            generation: AtomicU32::new(1),
            claiming: Permits::new(1),
            sequence: AtomicU64::new(0),
        }
    }

    /// For [`Shared::owns`]: read before the namespace is looked up.
    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::SeqCst)
    }

    fn get(&self, namespace: &Namespace) -> Option<Own> {
        lock(&self.namespaces).get(namespace).copied()
    }

    fn set(&self, namespace: &Namespace, own: Own) {
        lock(&self.namespaces).insert(namespace.clone(), own);
        if !matches!(own, Own::Held(_)) {
            self.generation.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The epoch that is held, or was until it was doubted.
    fn epoch(&self, namespace: &Namespace) -> Option<Epoch> {
        match self.get(namespace)? {
            Own::Held(epoch) | Own::Doubted(epoch) => Some(epoch),
            Own::Deposed(_) => None,
        }
    }

    /// Doubts every epoch below `newer` that is held in a namespace that `is_meant`.
    fn doubt(&self, newer: Epoch, is_meant: impl Fn(&Namespace) -> bool) {
        let mut has_doubts = false;
        for (namespace, own) in lock(&self.namespaces).iter_mut() {
            if let Own::Held(epoch) = *own
                && epoch < newer
                && is_meant(namespace)
            {
                *own = Own::Doubted(epoch);
                has_doubts = true;
            }
        }
        if has_doubts {
            self.generation.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Whether nobody else can have changed the namespace since it was claimed.
    pub(crate) fn holds(&self, namespace: &Namespace) -> bool {
        matches!(self.get(namespace), Some(Own::Held(_)))
    }

    fn held(&self) -> Vec<Namespace> {
        let namespaces = lock(&self.namespaces);
        let held = namespaces.iter().filter(|(_, own)| matches!(own, Own::Held(_)));
        held.map(|(namespace, _)| namespace.clone()).collect()
    }
}

impl Shared {
    /// Whether an object's change may be acknowledged as far as the writer goes: callers are the writers, or its
    /// namespace has been looked up since an epoch was last doubted.
    #[inline]
    pub(crate) fn owns(&self, object: &Object) -> bool {
        self.config.writer == Writer::Callers || object.head.owned == self.owner.generation()
    }

    /// The stamp for the next change of this cache in `namespace`; `None` where callers are the writers.
    ///
    /// # Errors
    /// As [`Self::own_epoch`].
    pub(crate) async fn own_stamp(self: &Arc<Self>, namespace: &Namespace) -> Result<Option<Stamp>> {
        if self.config.writer == Writer::Callers {
            return Ok(None);
        }
        let epoch = self.own_epoch(namespace).await?;
        let sequence = self.owner.sequence.fetch_add(1, Ordering::Relaxed);
        Ok(Some(Stamp { epoch, sequence }))
    }

    /// The epoch that this cache holds in `namespace`; claims it at first use.
    ///
    /// # Errors
    /// `Fenced` once another writer has taken over, or where no epoch is left; `Retryable`, and the store's.
    pub(crate) async fn own_epoch(self: &Arc<Self>, namespace: &Namespace) -> Result<Epoch> {
        match self.owner.get(namespace) {
            Some(Own::Held(epoch)) => Ok(epoch),
            Some(Own::Deposed(epoch)) => Err(Error::Fenced { epoch }),
            Some(Own::Doubted(_)) | None => {
                let _alone = Permits::acquire(&self.owner.claiming).await?;
                match self.owner.get(namespace) {
                    Some(Own::Held(epoch)) => Ok(epoch),
                    Some(Own::Deposed(epoch)) => Err(Error::Fenced { epoch }),
                    Some(Own::Doubted(epoch)) => self.claim_again(namespace, epoch).await,
                    None => self.claim_first(namespace).await,
                }
            }
        }
    }

    /// Takes a namespace over with an epoch above whatever is in force there.
    async fn claim_first(self: &Arc<Self>, namespace: &Namespace) -> Result<Epoch> {
        let scope = Scope::Namespace(namespace.clone());
        let mut in_force = self.ask_epoch(scope.clone()).await?;
        for tries in 0..CLAIM_TRIES_MAX {
            // Further each time: epochs just above may be in force in parts of the namespace.
            let epoch = Epoch(in_force.0.saturating_add(1 << tries));
            if epoch == in_force {
                tracing::error!(%namespace, %in_force, "the last epoch there is has been claimed: nothing can be changed");
                return Err(Error::Fenced { epoch: in_force });
            }
            match self.claim_below(&scope, epoch).await {
                Ok(()) => {
                    drop_clean(self, &scope).await?;
                    self.owner.set(namespace, Own::Held(epoch));
                    return Ok(epoch);
                }
                Err(Error::Fenced { epoch: newer }) => in_force = newer.max(epoch),
                Err(error) => return Err(error),
            }
        }
        let why = format!(
            "{CLAIM_TRIES_MAX} claims of {namespace} in a row came too late: other writers claim it too"
        );
        Err(Error::Retryable(why.into()))
    }

    /// Claims once more what was claimed before: whether it is in force still.
    async fn claim_again(self: &Arc<Self>, namespace: &Namespace, epoch: Epoch) -> Result<Epoch> {
        let scope = Scope::Namespace(namespace.clone());
        match self.claim_below(&scope, epoch).await {
            Ok(()) => {
                self.owner.set(namespace, Own::Held(epoch));
                Ok(epoch)
            }
            Err(Error::Fenced { epoch: newer }) => {
                self.owner.set(namespace, Own::Deposed(newer));
                tracing::error!(
                    %namespace, own = %epoch, in_force = %newer,
                    "another writer has taken over: changes are refused until this cache is started again"
                );
                self.hub.publish(&Event::Fenced(scope.clone(), newer));
                // What the new writer changes this cache does not learn. Not here: a flush must not wait for memory.
                let own = Arc::clone(self);
                self.background.adopt(Box::pin(async move { dropped(drop_clean(&own, &scope).await) }));
                Err(Error::Fenced { epoch: newer })
            }
            Err(error) => Err(error),
        }
    }

    async fn claim_below(&self, scope: &Scope, epoch: Epoch) -> Result<()> {
        let request = ClaimRequest::new(scope.clone(), epoch, self.owner.writer);
        match self.below.claim(request).await {
            Ok(_) => Ok(()),
            // The same writer may claim it again.
            Err(Error::OutcomeUnknown(why)) => Err(Error::Retryable(why)),
            Err(error) => Err(error),
        }
    }

    /// The store has refused a change of an object because `newer` is in force: of the object alone, or of more.
    pub(crate) fn was_fenced(&self, object: &ObjectId, newer: Epoch) {
        if self.config.writer == Writer::Callers {
            return;
        }
        if self.owner.epoch(&object.namespace).is_some_and(|own| own < newer) {
            self.note_claim(&Scope::Object(object.clone()), newer);
            self.owner.doubt(newer, |namespace| *namespace == object.namespace);
        }
    }

    /// The store says that a scope has been claimed.
    pub(crate) fn heard_of_claim(&self, scope: &Scope, epoch: Epoch) {
        if self.fences_callers() {
            return self.note_claim(scope, epoch);
        }
        if self.config.writer == Writer::Callers {
            return;
        }
        match scope {
            Scope::Object(ObjectId { namespace, .. }) | Scope::Domain(namespace, _) => {
                if self.owner.epoch(namespace).is_some_and(|own| own < epoch) {
                    self.note_claim(scope, epoch);
                }
            }
            Scope::Namespace(namespace) => self.owner.doubt(epoch, |it| it == namespace),
            _ => self.owner.doubt(epoch, |_| true),
        }
    }

    /// News were missed, perhaps of claims. Nobody waits for this: what is held stays so until the store says otherwise.
    pub(crate) async fn check_epochs(self: &Arc<Self>) {
        for namespace in self.owner.held() {
            let Ok(_alone) = Permits::acquire(&self.owner.claiming).await else { return };
            if let Some(Own::Held(epoch)) = self.owner.get(&namespace) {
                // An answer that does not come changes nothing: the next flush is refused if it must be.
                let _ = self.claim_again(&namespace, epoch).await;
            }
        }
    }
}
