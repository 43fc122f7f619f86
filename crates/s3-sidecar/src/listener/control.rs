//! What operators and other programs may do to a running sidecar.

use std::fmt;
use std::sync::{Arc, Weak};

use crate::listener::events;
use crate::policy::{CachePolicy, Policies, Rule};
use crate::shared::Shared;
use crate::terms::BucketTerms;

/// A handle on a running sidecar. It keeps nothing of it: after its end every command fails. Cheap to clone.
#[derive(Clone)]
pub struct SidecarControl {
    shared: Weak<Shared>,
}

/// What is to be invalidated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// An object.
    Key {
        /// The name of its bucket.
        bucket: String,
        /// Its key.
        key: String,
    },
    /// All objects of a bucket whose keys begin with this.
    Prefix {
        /// The name of the bucket.
        bucket: String,
        /// The beginning; empty for the whole bucket.
        prefix: String,
    },
    /// All objects.
    All,
}

/// Why a command to a sidecar fails: one line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The sidecar has ended.
    #[error("the S3 sidecar has ended")]
    Ended,
    /// The endpoint is asked at each read, so that there is nothing to invalidate.
    #[error(
        "s3.auth is \"gateway\": the endpoint is asked at each read, and nothing needs to be invalidated"
    )]
    AlwaysAsks,
    /// The command cannot be understood.
    #[error("{0}")]
    Wrong(String),
}

impl SidecarControl {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::downgrade(shared) }
    }

    fn shared(&self) -> Result<Arc<Shared>, ControlError> {
        self.shared.upgrade().ok_or(ControlError::Ended)
    }

    fn remembering(&self) -> Result<Arc<Shared>, ControlError> {
        let shared = self.shared()?;
        if shared.config.auth.is_here() { Ok(shared) } else { Err(ControlError::AlwaysAsks) }
    }

    /// Makes void what is known of objects, in a time that does not depend on their number. Every read that begins after this
    /// returns is answered with what the endpoint had after it was called.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn invalidate(&self, what: &Invalidation) -> Result<(), ControlError> {
        let shared = self.remembering()?;
        let named = |bucket: &str| match bucket.is_empty() || bucket.contains('/') {
            true => Err(ControlError::Wrong(format!("{bucket:?} is no name of a bucket; media would be"))),
            false => Ok(()),
        };
        match what {
            Invalidation::Key { bucket, key } => {
                named(bucket)?;
                shared.knowledge.changed(bucket, key.as_bytes());
            }
            Invalidation::Prefix { bucket, prefix } => {
                named(bucket)?;
                shared.knowledge.changed_wide(Some(bucket), prefix.as_bytes());
            }
            Invalidation::All => shared.knowledge.changed_wide(None, b""),
        }
        shared.counts.invalidated_by_command.increment();
        Ok(())
    }

    /// Takes a notification of a bucket, as S3, MinIO and radosgw send them: what is known of the objects that it names is void.
    /// Returns the number of its records.
    ///
    /// # Errors
    /// [`ControlError`]; then none of it was taken.
    pub fn take_events(&self, body: &[u8]) -> Result<usize, ControlError> {
        let shared = self.remembering()?;
        let named = events::parse(body).map_err(ControlError::Wrong)?;
        for one in &named {
            one.keys.iter().for_each(|key| shared.knowledge.changed(&one.bucket, key));
            shared.counts.invalidated_by_event.increment();
        }
        Ok(named.len())
    }

    /// Replaces the policies. Requests under way go on with the old ones.
    ///
    /// # Errors
    /// [`ControlError::Wrong`]; then the old ones stay.
    pub fn set_policies(&self, policy: CachePolicy, rules: Vec<Rule>) -> Result<(), ControlError> {
        let shared = self.shared()?;
        let changed = crate::SidecarConfig { policy, rules, ..shared.config.clone() };
        let policies =
            changed.policies().map_err(|(key, why)| ControlError::Wrong(format!("s3.{key}: {why}")))?;
        let _: Policies = std::mem::replace(&mut *shared.policies.write(), policies);
        Ok(())
    }

    /// Replaces what buckets have for themselves.
    ///
    /// # Errors
    /// [`ControlError::Wrong`]; then nothing has changed.
    pub fn set_terms(&self, terms: Vec<BucketTerms>) -> Result<(), ControlError> {
        let shared = self.shared()?;
        let wrong = |why| ControlError::Wrong(format!("s3.buckets: {why}"));
        let changed = crate::SidecarConfig { terms, ..shared.config.clone() };
        changed.check_terms().map_err(|(_, why)| wrong(why))?;
        shared.pieces.set_shares(&changed.terms).map_err(|error| wrong(error.to_string()))?;
        shared.lanes.change(&changed.terms);
        Ok(())
    }

    /// Has the file of the access log opened anew, for it may have been renamed. Does nothing without one, or after the end.
    pub fn reopen_access_log(&self) {
        if let Ok(shared) = self.shared()
            && let Some(log) = &shared.access_log
        {
            log.reopen();
        }
    }
}

impl fmt::Debug for SidecarControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SidecarControl")
    }
}
