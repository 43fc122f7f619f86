//! What is not data path: attaching, policy, quota, statistics. Asked rarely, by operators and by the
//! layer that manages others. (A claim is a data-path call because it must be ordered with changes.)

use crate::capabilities::Capabilities;
use crate::error::{Error, Result};
use crate::name::Namespace;
use crate::order::Epoch;
use crate::reply::Reply;

/// How a cache treats writes to a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum WriteMode {
    /// Acknowledged from the cache, stored later.
    Back,
    /// Done below, as safe as was asked for, before it is acknowledged; and kept.
    #[default]
    Through,
    /// Done below, as safe as was asked for; not kept.
    Around,
}

/// How a namespace is treated.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Policy {
    /// How writes are treated.
    pub write: WriteMode,
}

/// What a namespace may use, and what it does use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Quota {
    /// The most it may use; `None`: no limit of its own.
    pub bytes_max: Option<u64>,
    /// What its objects' sizes add up to.
    pub used_bytes: u64,
}

/// Figures of a backend, each with the name under which every output shows it. A list, so that layers
/// add theirs to those from below.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Name and value; counters only rise.
    pub figures: Vec<(&'static str, u64)>,
}

impl Statistics {
    /// The figure called `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.figures.iter().find(|(each, _)| *each == name).map(|(_, value)| *value)
    }
}

/// What someone who attaches a namespace learns about it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Attachment {
    /// What the backend can do for it.
    pub capabilities: Capabilities,
    /// The epoch that the whole namespace has been claimed with.
    pub epoch: Epoch,
}

impl Attachment {
    /// With these values.
    #[must_use]
    pub fn new(capabilities: Capabilities, epoch: Epoch) -> Self {
        Self { capabilities, epoch }
    }
}

/// A backend's other face. What a backend has no notion of it answers with `Unsupported`, which is
/// what the default methods do.
pub trait Control: Send + Sync {
    /// Says that the namespace is going to be used, and what for it is known.
    ///
    /// # Errors
    /// `Denied`, `Retryable`, `Corrupt`.
    fn attach(&self, namespace: Namespace) -> Reply<Attachment>;

    /// Says that the namespace will not be used for a while: everything in it is stored, then what is
    /// held in memory for it is let go. It can be used again at any time.
    ///
    /// # Errors
    /// As a flush of the namespace.
    fn detach(&self, namespace: Namespace) -> Reply<()>;

    /// The namespace's policy.
    ///
    /// # Errors
    /// `Unsupported` where nothing is cached.
    fn policy(&self, _namespace: &Namespace) -> Result<Policy> {
        Err(Error::Unsupported("this backend has no policies".into()))
    }

    /// Changes the namespace's policy.
    ///
    /// # Errors
    /// `Unsupported` where nothing is cached.
    fn set_policy(&self, _namespace: Namespace, _policy: Policy) -> Reply<()> {
        Reply::err(Error::Unsupported("this backend has no policies".into()))
    }

    /// What the namespace may use and does use.
    ///
    /// # Errors
    /// `Unsupported` where that is not counted.
    fn quota(&self, _namespace: &Namespace) -> Result<Quota> {
        Err(Error::Unsupported("this backend has no quotas".into()))
    }

    /// Limits the namespace; `None` takes the limit away. What it uses already stays.
    ///
    /// # Errors
    /// `Unsupported` where that is not counted.
    fn set_quota(&self, _namespace: Namespace, _bytes_max: Option<u64>) -> Reply<()> {
        Reply::err(Error::Unsupported("this backend has no quotas".into()))
    }

    /// Figures from here and below.
    fn statistics(&self) -> Statistics;

    /// The namespaces that have objects or claims, in bytewise order.
    ///
    /// # Errors
    /// `Retryable`, `Corrupt`.
    fn namespaces(&self) -> Reply<Vec<Namespace>>;
}
