//! The control plane: attaching, policies, quotas, metrics, losses. Called rarely, by operators and by layers
//! that manage others. (A claim is part of the data path because it must be ordered with changes.)

use cached_metrics::Families;

use crate::capabilities::Capabilities;
use crate::error::{Error, Reason};
use crate::name::{Namespace, ObjectId};
use crate::namespace_settings::{
    DirtyData, NamespacePage, NamespaceSettings, NamespaceState, RemovedNamespace, WriteMode,
};
use crate::order::Epoch;
use crate::reply::Reply;

/// How a namespace is treated.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Policy {
    /// How writes are treated.
    pub write: WriteMode,
}

/// What a namespace may use, and what it uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Quota {
    /// The most that it may use, in bytes; `None` if it has no limit of its own.
    pub bytes_max: Option<u64>,
    /// The sum of its objects' sizes, in bytes.
    pub used_bytes: u64,
}

/// What a namespace's user learns when attaching it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Attachment {
    /// What the backend can do for the namespace.
    pub capabilities: Capabilities,
    /// The epoch with which the whole namespace has been claimed; 0 if it has not.
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
    /// The number of acknowledged changes that are gone.
    pub changes: u64,
    /// How much they had written, in bytes, counted by whole buckets.
    pub bytes: u64,
    /// Why the store does not take them.
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
    /// Whether there may be more after the last of them.
    pub has_more: bool,
    /// The number of objects with losses that no page lists, because there were too many.
    pub unlisted_objects: u64,
    /// How much those had written, in bytes.
    pub unlisted_bytes: u64,
}

/// The control plane of a backend or layer, reached by [`Blocker::control`](crate::Blocker::control).
///
/// Every method has a default that answers for a backend without the notion: `Unsupported`, no metrics, no
/// losses. All answers are [replies](Reply), so that a connection to a server can carry them.
///
/// # Layers
///
/// A layer forwards to the control plane of the blocker below, and adds what it has itself:
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
/// [`delegate_control!`](crate::delegate_control) writes the forwarding methods; [`Reply::then`] or
/// [`metrics_above`] adds to an answer from below.
pub trait Control: Send + Sync {
    /// Announces that the namespace is going to be used, and returns what is known for it.
    ///
    /// # Errors
    /// `Denied`, `Retryable`, `Corrupt`, `Unsupported`.
    fn attach(&self, namespace: Namespace) -> Reply<Attachment> {
        drop(namespace);
        Reply::err(Error::Unsupported("this backend has no attachments".into()))
    }

    /// Announces that the namespace will not be used for a while: everything in it is stored, then what is
    /// held in memory for it is dropped. It can be used again at any time.
    ///
    /// # Errors
    /// Those of a flush of the namespace; `Unsupported`.
    fn detach(&self, namespace: Namespace) -> Reply<()> {
        drop(namespace);
        Reply::err(Error::Unsupported("this backend has no attachments".into()))
    }

    /// Lets another process be the writer of the namespace: everything in it is stored, then what is held in memory for it
    /// is dropped, with the epoch that was claimed for it. The next change claims it anew, whatever other writer has it
    /// then: only for a caller that finds out first whether it may.
    ///
    /// # Errors
    /// Those of a flush of the namespace; `Unsupported` where nothing is claimed for its callers.
    fn release(&self, namespace: Namespace) -> Reply<()> {
        drop(namespace);
        Reply::err(Error::Unsupported("this backend claims nothing for its callers".into()))
    }

    /// Returns the namespace's policy.
    ///
    /// # Errors
    /// `Unsupported` where nothing is cached; `Retryable`.
    fn policy(&self, namespace: Namespace) -> Reply<Policy> {
        drop(namespace);
        Reply::err(Error::Unsupported("this backend has no policies".into()))
    }

    /// Changes the namespace's policy. The answer comes when nothing of the one before is left: every change that
    /// began under it has ended, and what was written back is stored. The new one is in force for changes that
    /// begin after the request, also if the answer is an error or is not waited for.
    ///
    /// # Errors
    /// `Unsupported` where nothing is cached; `OutOfSpace` if too many namespaces have a policy; `Denied`,
    /// `Retryable`, and those of a flush of the namespace.
    fn set_policy(&self, namespace: Namespace, policy: Policy) -> Reply<()> {
        drop((namespace, policy));
        Reply::err(Error::Unsupported("this backend has no policies".into()))
    }

    /// Returns what the namespace may use and what it uses.
    ///
    /// # Errors
    /// `Unsupported` where that is not counted; `Retryable`.
    fn quota(&self, namespace: Namespace) -> Reply<Quota> {
        drop(namespace);
        Reply::err(Error::Unsupported("this backend has no quotas".into()))
    }

    /// Limits the namespace to `bytes_max` bytes; `None` removes the limit. What it uses already stays.
    ///
    /// # Errors
    /// `Unsupported` where that is not counted; `OutOfSpace` if too many namespaces have a quota; `Denied`,
    /// `Retryable`.
    fn set_quota(&self, namespace: Namespace, bytes_max: Option<u64>) -> Reply<()> {
        drop((namespace, bytes_max));
        Reply::err(Error::Unsupported("this backend has no quotas".into()))
    }

    /// Returns the metrics of this blocker and of those below it.
    ///
    /// # Errors
    /// `Retryable` if they have to be fetched and cannot be.
    fn metrics(&self) -> Reply<Families> {
        Reply::ok(Families::new())
    }

    /// Returns acknowledged changes that can never be stored and have not been repaired: the first page of
    /// those after the object `after`, or of all of them.
    ///
    /// # Errors
    /// `Unsupported` where they cannot be listed; `Retryable` if they have to be fetched and cannot be.
    fn losses(&self, after: Option<ObjectId>) -> Reply<LossPage> {
        drop(after);
        Reply::ok(LossPage::default())
    }

    /// Returns what the cache has of a namespace, and its settings.
    ///
    /// # Errors
    /// `Missing` if it is neither configured nor has been used; `Unsupported` where nothing is cached; `Retryable`.
    fn namespace_state(&self, namespace: Namespace) -> Reply<NamespaceState> {
        drop(namespace);
        Reply::err(no_cache())
    }

    /// Returns the first page of the namespaces after `after`, or of all, that are configured or have been used,
    /// with what the cache has of them.
    ///
    /// # Errors
    /// `Unsupported` where nothing is cached; `Retryable`.
    fn namespace_states(&self, after: Option<Namespace>) -> Reply<NamespacePage> {
        drop(after);
        Reply::err(no_cache())
    }

    /// Sets the write mode of a namespace, other settings, or both; a namespace that is new comes into being with it.
    /// Settings are in force at once; the answer comes as that of [`set_policy`](Self::set_policy). Executed again,
    /// it changes nothing.
    ///
    /// # Errors
    /// `Invalid` if a value does not go with the others: then nothing has changed; those of
    /// [`set_policy`](Self::set_policy).
    fn change_namespace(&self, namespace: Namespace, settings: NamespaceSettings) -> Reply<()> {
        drop((namespace, settings));
        Reply::err(no_cache())
    }

    /// Sets all that a volume has set for its namespace, in place of what it had set before; the namespace cannot be removed
    /// as long as the volume is attached, that is until `None` is set. What a command or the configuration has set stays.
    /// `attachment` tells one attachment of the volume from another: `None` ends the same one, and no other.
    ///
    /// # Errors
    /// `Unsupported` where nothing is cached, or a cache is not told of volumes; those of
    /// [`change_namespace`](Self::change_namespace).
    fn set_volume(
        &self,
        namespace: Namespace,
        attachment: u64,
        settings: Option<NamespaceSettings>,
    ) -> Reply<()> {
        drop((namespace, attachment, settings));
        Reply::err(no_cache())
    }

    /// Drops what the cache has of a namespace, and the write mode and settings that commands, and a volume that is not
    /// attached, have set for it. What the store has stays, and so does what the configuration has set.
    ///
    /// # Errors
    /// `Missing` if it has not been used; `Denied` if a volume in it is attached, or it has dirty data and they are to be
    /// refused; `Unsupported` where nothing is cached; those of a flush of the namespace.
    fn remove_namespace(&self, namespace: Namespace, dirty_data: DirtyData) -> Reply<RemovedNamespace> {
        drop((namespace, dirty_data));
        Reply::err(no_cache())
    }

    /// Returns the namespaces that have objects or claims in the store, in bytewise order. One whose objects
    /// are all in a write-back cache is missing until they are stored.
    ///
    /// # Errors
    /// `Retryable`, `Corrupt`, `Unsupported`.
    fn namespaces(&self) -> Reply<Vec<Namespace>> {
        Reply::err(Error::Unsupported("this backend cannot list its namespaces".into()))
    }
}

fn no_cache() -> Error {
    Error::Unsupported("this backend caches nothing, and has no settings of namespaces".into())
}

/// The control plane of a blocker that has none: every method is the trait's default.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoControl;

impl Control for NoControl {}

/// Returns the metrics of a layer and of the blocker below it: `own`, then those of `below`.
///
/// Where those from below cannot be had, the answer is `own` alone.
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
