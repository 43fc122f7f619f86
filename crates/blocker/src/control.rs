//! The control plane: attaching, policies, quotas, metrics, losses. It is called rarely, by
//! operators and by layers that manage others. (A claim is part of the data path because it must be
//! ordered with changes.)

use cached_metrics::Families;

use crate::{
    Capabilities, DirtyData, Epoch, Error, Namespace, NamespacePage, NamespaceSettings, NamespaceState,
    ObjectId, Reason, RemovedNamespace, Reply, WriteMode,
};

/// The cache policy of a namespace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Policy {
    /// How writes are treated.
    pub write: WriteMode,
}

/// The space limit of a namespace, and its usage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Quota {
    /// The namespace's limit in bytes; `None` if it has none.
    pub bytes_max: Option<u64>,
    /// The sum of its objects' sizes, in bytes.
    pub used_bytes: u64,
}

/// The properties of a namespace, as returned when it is attached.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Attachment {
    /// The capabilities of the backend for the namespace.
    pub capabilities: Capabilities,
    /// The epoch with which the whole namespace has been claimed; 0 without a claim.
    pub epoch: Epoch,
}

impl Attachment {
    /// Returns an attachment with these values.
    #[must_use]
    pub fn new(capabilities: Capabilities, epoch: Epoch) -> Self {
        Self { capabilities, epoch }
    }
}

/// Acknowledged changes of one object that can never be stored.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Loss {
    /// The object.
    pub object: ObjectId,
    /// The number of lost changes.
    pub changes: u64,
    /// The bytes that the lost changes had written, in whole buckets.
    pub bytes: u64,
    /// The reason why the store refuses the changes.
    pub reason: Reason,
}

impl Loss {
    /// Returns a loss with these values.
    #[must_use]
    pub fn new(object: ObjectId, changes: u64, bytes: u64, reason: Reason) -> Self {
        Self { object, changes, bytes, reason }
    }
}

/// One page of the losses that have not been repaired.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LossPage {
    /// The losses, in the order of their objects.
    pub losses: Vec<Loss>,
    /// Whether there may be more losses after the last one in this page.
    pub has_more: bool,
    /// The number of objects with losses that no page lists, because there were too many.
    pub unlisted_objects: u64,
    /// The bytes written by the changes of unlisted objects.
    pub unlisted_bytes: u64,
}

/// The control plane of a backend or layer, reached by
/// [`Blocker::control`](crate::Blocker::control).
///
/// By default, every method forwards to [`Self::below`]. A backend has no blocker below; its
/// defaults are `Unsupported`, no metrics, and no losses. All results are [replies](Reply), so that
/// a connection to a server can carry them.
///
/// # Layers
///
/// A layer returns the control plane of the blocker below, and implements only the methods to which
/// it adds something of its own:
///
/// | method | a layer that caches | any other layer |
/// |---|---|---|
/// | `attach` | answers with its own capabilities | forwards, with its own capabilities |
/// | `detach` | stores and drops the namespace's data, then forwards | forwards |
/// | `release` | stores and drops the namespace's data, and forgets its epoch; does not forward | forwards |
/// | `policy`, `set_policy` | answers | forwards |
/// | `quota`, `set_quota`, `namespaces` | forwards | forwards |
/// | `metrics` | its own and those from below | its own, if it has any, and those from below |
/// | `losses` | answers | forwards |
/// | `namespace_state`, `namespace_states`, `change_namespace`, `set_volume`, `remove_namespace` | answers | forwards |
///
/// [`Reply::then`] or [`metrics_above`] adds to a result from below.
///
/// ```
/// use std::sync::Arc;
/// use blocker::{Blocker, Control, Reply, metrics_above};
/// use cached_metrics::Families;
///
/// struct Layer {
///     below: Arc<dyn Blocker>,
/// }
///
/// impl Blocker for Layer {
///     blocker::delegate!(|this| this.below, except control);
///
///     fn control(&self) -> &dyn Control {
///         self
///     }
/// }
///
/// impl Control for Layer {
///     fn below(&self) -> Option<&dyn Control> {
///         Some(self.below.control())
///     }
///
///     fn metrics(&self) -> Reply<Families> {
///         let mut own = Families::new();
///         own.gauge("layers", "Layers.", 1);
///         metrics_above(own, self.below.control())
///     }
/// }
/// ```
pub trait Control: Send + Sync {
    /// Returns the control plane of the blocker below a layer; `None` for a backend.
    fn below(&self) -> Option<&dyn Control> {
        None
    }

    /// Announces that the namespace will be used, and returns its properties.
    ///
    /// # Errors
    /// Returns `Denied`, `Retryable`, `Corrupt`, `Unsupported`.
    fn attach(&self, namespace: Namespace) -> Reply<Attachment> {
        ask(self.below(), "this backend has no attachments", |below| below.attach(namespace))
    }

    /// Announces that the namespace will not be used for a while: its data are stored, then its
    /// memory is freed. It can be used again at any time.
    ///
    /// # Errors
    /// Returns the errors of a flush of the namespace; `Unsupported`.
    fn detach(&self, namespace: Namespace) -> Reply<()> {
        ask(self.below(), "this backend has no attachments", |below| below.detach(namespace))
    }

    /// Releases the namespace to another writer: its data are stored, then its memory is freed and
    /// its claimed epoch forgotten. The next change claims the namespace again, even from another
    /// writer, so the caller must first check that it may write.
    ///
    /// # Errors
    /// Returns the errors of a flush of the namespace; `Unsupported` if this blocker claims nothing
    /// for its callers.
    fn release(&self, namespace: Namespace) -> Reply<()> {
        ask(self.below(), "this backend makes no claims for its callers", |below| below.release(namespace))
    }

    /// Returns the namespace's policy.
    ///
    /// # Errors
    /// Returns `Unsupported` if nothing is cached; `Retryable`.
    fn policy(&self, namespace: Namespace) -> Reply<Policy> {
        ask(self.below(), "this backend has no policies", |below| below.policy(namespace))
    }

    /// Changes the namespace's policy. The reply is sent when the old policy has ended: every
    /// change that began under it has ended, and its dirty data are stored. The new policy applies
    /// to changes that begin after the request, even if the reply is an error or the caller does
    /// not wait for it.
    ///
    /// # Errors
    /// Returns `Unsupported` if nothing is cached; `OutOfSpace` if too many namespaces have a
    /// policy; `Denied`, `Retryable`, and the errors of a flush of the namespace.
    fn set_policy(&self, namespace: Namespace, policy: Policy) -> Reply<()> {
        ask(self.below(), "this backend has no policies", |below| below.set_policy(namespace, policy))
    }

    /// Returns the namespace's limit and usage.
    ///
    /// # Errors
    /// Returns `Unsupported` if usage is not counted; `Retryable`.
    fn quota(&self, namespace: Namespace) -> Reply<Quota> {
        ask(self.below(), "this backend has no quotas", |below| below.quota(namespace))
    }

    /// Limits the namespace to `bytes_max` bytes; `None` removes the limit. Existing data stay.
    ///
    /// # Errors
    /// Returns `Unsupported` if usage is not counted; `OutOfSpace` if too many namespaces have a
    /// quota; `Denied`, `Retryable`.
    fn set_quota(&self, namespace: Namespace, bytes_max: Option<u64>) -> Reply<()> {
        ask(self.below(), "this backend has no quotas", |below| below.set_quota(namespace, bytes_max))
    }

    /// Returns the metrics of this blocker and of those below it.
    ///
    /// # Errors
    /// Returns `Retryable` if the metrics cannot be fetched from below.
    fn metrics(&self) -> Reply<Families> {
        self.below().map_or_else(|| Reply::ok(Families::new()), |below| below.metrics())
    }

    /// Returns a page of the acknowledged changes that can never be stored and have not been
    /// repaired, beginning after the object `after` if it is given.
    ///
    /// # Errors
    /// Returns `Unsupported` if losses cannot be listed; `Retryable` if they cannot be fetched from
    /// below.
    fn losses(&self, after: Option<ObjectId>) -> Reply<LossPage> {
        self.below().map_or_else(|| Reply::ok(LossPage::default()), |below| below.losses(after))
    }

    /// Returns a namespace's settings and its state in the cache.
    ///
    /// # Errors
    /// Returns `Missing` if the namespace is neither configured nor has been used; `Unsupported` if
    /// nothing is cached; `Retryable`.
    fn namespace_state(&self, namespace: Namespace) -> Reply<NamespaceState> {
        ask(self.below(), NO_CACHE, |below| below.namespace_state(namespace))
    }

    /// Returns a page of the states of namespaces that are configured or have been used, beginning
    /// after `after` if it is given.
    ///
    /// # Errors
    /// Returns `Unsupported` if nothing is cached; `Retryable`.
    fn namespace_states(&self, after: Option<Namespace>) -> Reply<NamespacePage> {
        ask(self.below(), NO_CACHE, |below| below.namespace_states(after))
    }

    /// Sets the write mode of a namespace, other settings, or both; creates the namespace if it is
    /// new. Settings apply immediately; the reply is sent as for [`set_policy`](Self::set_policy).
    /// The operation is idempotent.
    ///
    /// # Errors
    /// Returns `Invalid` if a value contradicts other values, in which case nothing has changed;
    /// the errors of [`set_policy`](Self::set_policy).
    fn change_namespace(&self, namespace: Namespace, settings: NamespaceSettings) -> Reply<()> {
        ask(self.below(), NO_CACHE, |below| below.change_namespace(namespace, settings))
    }

    /// Replaces all settings that a volume has set for its namespace. The namespace cannot be
    /// removed while the volume is attached, that is, until `None` is set. Settings by command or
    /// configuration stay. `attachment` identifies an attachment of the volume; `None` ends only
    /// this attachment.
    ///
    /// # Errors
    /// Returns `Unsupported` if nothing is cached, or the cache does not support volumes; the
    /// errors of [`change_namespace`](Self::change_namespace).
    fn set_volume(
        &self,
        namespace: Namespace,
        attachment: u64,
        settings: Option<NamespaceSettings>,
    ) -> Reply<()> {
        ask(self.below(), NO_CACHE, |below| below.set_volume(namespace, attachment, settings))
    }

    /// Drops a namespace from the cache, together with its write mode and settings that were set by
    /// commands or by a volume that is no longer attached. Data in the store and settings in the
    /// configuration stay.
    ///
    /// # Errors
    /// Returns `Missing` if the namespace has not been used; `Denied` if a volume in it is
    /// attached, or it has dirty data and `dirty_data` says to refuse; `Unsupported` if nothing is
    /// cached; the errors of a flush of the namespace.
    fn remove_namespace(&self, namespace: Namespace, dirty_data: DirtyData) -> Reply<RemovedNamespace> {
        ask(self.below(), NO_CACHE, |below| below.remove_namespace(namespace, dirty_data))
    }

    /// Returns the namespaces that have objects or claims in the store, in bytewise order. A
    /// namespace whose objects are only in a write-back cache is missing until they are stored.
    ///
    /// # Errors
    /// Returns `Retryable`, `Corrupt`, `Unsupported`.
    fn namespaces(&self) -> Reply<Vec<Namespace>> {
        ask(self.below(), "this backend cannot list its namespaces", |below| below.namespaces())
    }
}

const NO_CACHE: &str = "this backend is not a cache, and has no namespace settings";

/// Forwards to the control plane below. Without one, the function is unsupported, for the reason
/// `why`.
fn ask<'a, T>(
    below: Option<&'a dyn Control>,
    why: &'static str,
    ask: impl FnOnce(&'a dyn Control) -> Reply<T>,
) -> Reply<T> {
    below.map_or_else(|| Reply::err(Error::Unsupported(why.into())), ask)
}

/// The control plane of a backend that has none: every method is the trait's default.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoControl;

impl Control for NoControl {}

/// Returns the metrics of a layer and of the blocker below it: `own`, then those of `below`.
///
/// If the metrics from below cannot be fetched, the result is `own` alone.
///
/// ```
/// use blocker::executor::block_on;
/// use blocker::{Blocker, Memory, metrics_above};
/// use cached_metrics::Families;
///
/// let store = Memory::default();
/// let mut own = Families::new();
/// own.counter("layer_reads_total", "Reads that passed the layer.", 3);
/// let all = block_on(metrics_above(own, store.control()))?;
/// assert!(all.get("layer_reads_total").is_some() && all.get("memory_objects").is_some());
/// # Ok::<_, blocker::Error>(())
/// ```
pub fn metrics_above(mut own: Families, below: &dyn Control) -> Reply<Families> {
    below.metrics().then(|answer| {
        if let Ok(below) = answer {
            own.append(below);
        }
        Ok(own)
    })
}
