//! Commands of operators and other programs to a running sidecar, and its status.

use std::borrow::Cow;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use blocker::Namespace;
use percent_encoding::percent_decode_str;
use serde::Deserialize;

use crate::Shared;
use crate::metrics::BucketCounts;
use crate::policy::{BucketTerms, CachePolicy, Rule};

/// A handle to a running sidecar. It does not keep the sidecar alive: after the sidecar has ended,
/// every command fails. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SidecarControl {
    shared: Weak<Shared>,
}

/// The target of an invalidation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// An object.
    Key {
        /// The name of the object's bucket.
        bucket: String,
        /// The object's key.
        key: String,
    },
    /// All objects of a bucket whose keys begin with a prefix.
    Prefix {
        /// The name of the bucket.
        bucket: String,
        /// The prefix, which is empty for the whole bucket.
        prefix: String,
    },
    /// All objects.
    All,
}

/// The reason why a command to a sidecar failed, as one line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The sidecar has ended.
    #[error("the S3 sidecar has ended")]
    Ended,
    /// The endpoint is asked for each read, so there is nothing to invalidate.
    #[error(
        "s3.auth is \"gateway\": the endpoint is asked at each read, and nothing needs to be invalidated"
    )]
    AlwaysAsks,
    /// The command is invalid.
    #[error("{0}")]
    Wrong(String),
}

/// The endpoint as the last requests to it have shown it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointState {
    /// It responds.
    Serving,
    /// It does not respond in time to requests that memory can answer.
    Slow,
    /// It has not been reachable for this long, and is retried by at most one request per second.
    Away(Duration),
}

/// The status of a sidecar, besides its [`Counts`](crate::Counts).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SidecarStatus {
    /// The state of the endpoint.
    pub endpoint: EndpointState,
    /// The number of objects whose headers are cached.
    pub objects: u64,
    /// The memory in use for headers and bodies, in bytes.
    pub memory_bytes: u64,
    /// The maximum memory for headers and bodies, in bytes.
    pub memory_bytes_max: u64,
    /// The buckets that were used, ordered by name: at most 256, and one named `/others` for the
    /// requests for all others.
    pub buckets: Vec<BucketStatus>,
}

/// The requests for a bucket since the start.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BucketStatus {
    /// The name of the bucket.
    pub bucket: String,
    /// Requests answered from memory.
    pub hits: u64,
    /// Reads served by the endpoint, and cached.
    pub misses: u64,
    /// All other requests.
    pub others: u64,
    /// The memory in use for the bodies of the bucket's objects, in bytes.
    pub cached_bytes: u64,
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

    /// Returns the status.
    ///
    /// # Errors
    /// [`ControlError::Ended`].
    pub fn status(&self) -> Result<SidecarStatus, ControlError> {
        let shared = self.shared()?;
        let now = Instant::now();
        let endpoint = match shared.breaker.open_for(now) {
            Some(time) => EndpointState::Away(time),
            None if shared.slow.is_open() => EndpointState::Slow,
            None => EndpointState::Serving,
        };
        let (objects, heads_bytes) = shared.knowledge.heads.sizes();
        let spaces = shared.pieces.by_bucket();
        let bytes_of = |bucket: &str| {
            let named = |name: &Namespace| name.as_bytes() == bucket.as_bytes();
            let space = spaces.iter().find(|space| space.namespace.as_ref().is_some_and(named));
            space.map_or(0, |space| space.cached_bytes)
        };
        let status = |(bucket, counts): (String, Arc<BucketCounts>)| BucketStatus {
            cached_bytes: bytes_of(&bucket),
            hits: counts.hits.get(),
            misses: counts.misses.get(),
            others: counts.others.get(),
            bucket,
        };
        Ok(SidecarStatus {
            endpoint,
            objects: objects as u64,
            memory_bytes: heads_bytes as u64 + shared.pieces.used_bytes(),
            memory_bytes_max: shared.config.heads_bytes_max as u64 + shared.config.memory_bytes,
            buckets: shared.buckets.all().into_iter().map(status).collect(),
        })
    }

    /// Invalidates cached objects, in constant time. Every read that begins after this returns is
    /// served with a state that the endpoint had after the call.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn invalidate(&self, what: &Invalidation) -> Result<(), ControlError> {
        let shared = self.remembering()?;
        let named = |bucket: &str| match bucket.is_empty() || bucket.contains('/') {
            true => Err(ControlError::Wrong(format!(
                "{bucket:?} is not a bucket name; expected a name such as media"
            ))),
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

    /// Handles a bucket notification of S3, MinIO or radosgw by invalidating the objects that it
    /// names. Returns the number of records in the notification.
    ///
    /// # Errors
    /// [`ControlError`]. In that case nothing was invalidated.
    pub fn take_events(&self, body: &[u8]) -> Result<usize, ControlError> {
        let shared = self.remembering()?;
        let named = parse_notification(body).map_err(ControlError::Wrong)?;
        for one in &named {
            one.keys.iter().for_each(|key| shared.knowledge.changed(&one.bucket, key));
            shared.counts.invalidated_by_event.increment();
        }
        Ok(named.len())
    }

    /// Replaces the policies. Requests in progress continue with the old policies.
    ///
    /// # Errors
    /// [`ControlError::Wrong`]. In that case the old policies stay in force.
    pub fn set_policies(&self, policy: CachePolicy, rules: Vec<Rule>) -> Result<(), ControlError> {
        let shared = self.shared()?;
        let changed = crate::SidecarConfig { policy, rules, ..shared.config.clone() };
        let wrong = |(key, why)| ControlError::Wrong(format!("s3.{key}: {why}"));
        *shared.policies.write() = changed.policies().map_err(wrong)?;
        Ok(())
    }

    /// Replaces the terms of buckets.
    ///
    /// # Errors
    /// [`ControlError::Wrong`]. In that case nothing was changed.
    pub fn set_terms(&self, terms: Vec<BucketTerms>) -> Result<(), ControlError> {
        let shared = self.shared()?;
        let wrong = |why| ControlError::Wrong(format!("s3.buckets: {why}"));
        let changed = crate::SidecarConfig { terms, ..shared.config.clone() };
        changed.check_terms().map_err(|(_, why)| wrong(why))?;
        shared.pieces.set_shares(&changed.terms).map_err(|error| wrong(error.to_string()))?;
        shared.lanes.change(&changed.terms);
        Ok(())
    }

    /// Reopens the file of the access log, which may have been renamed. Does nothing if there is no
    /// access log, or the sidecar has ended.
    pub fn reopen_access_log(&self) {
        if let Ok(shared) = self.shared()
            && let Some(log) = &shared.access_log
        {
            log.reopen();
        }
    }
}

/// The maximum number of records in a notification.
const RECORDS_MAX: usize = 10_000;

/// The maximum length of a key in bytes: three times S3's limit, because the key may be encoded.
const KEY_BYTES_MAX: usize = 3 * 1024;

/// An object named in a notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) bucket: String,
    /// The object's key, in each form that may be meant.
    pub(crate) keys: Vec<Vec<u8>>,
}

/// A notification. Its fields may not occur twice, because only one of two objects would be
/// invalidated.
#[derive(Deserialize)]
struct Notification {
    #[serde(rename = "Records")]
    records: Option<Vec<Record>>,
    #[serde(rename = "Event")]
    event: Option<String>,
}

#[derive(Deserialize)]
struct Record {
    s3: Entity,
}

#[derive(Deserialize)]
struct Entity {
    bucket: Bucket,
    object: Object,
}

#[derive(Deserialize)]
struct Bucket {
    name: String,
}

#[derive(Deserialize)]
struct Object {
    key: String,
}

/// Returns the objects named in a notification.
///
/// # Errors
/// A one-line message that states why the body is not a notification.
pub(crate) fn parse_notification(body: &[u8]) -> Result<Vec<Named>, String> {
    let form = "expected an event record of S3, with Records[].s3.bucket.name and .object.key";
    let notification: Notification =
        serde_json::from_slice(body).map_err(|error| format!("{error}; {form}"))?;
    let records = match (notification.records, notification.event.as_deref()) {
        (Some(records), _) => records,
        // S3 sends this event when notifications are configured.
        (None, Some("s3:TestEvent")) => Vec::new(),
        (None, _) => return Err(format!("it has no list of Records; {form}")),
    };
    if records.len() > RECORDS_MAX {
        return Err(format!("it has {} records; at most {RECORDS_MAX} are allowed", records.len()));
    }
    let named = |(number, Record { s3 }): (usize, Record)| {
        let (bucket, key) = (s3.bucket.name, s3.object.key);
        if bucket.is_empty() || bucket.len() > 255 || key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(format!("record {number} has a bucket or a key that is empty or too long"));
        }
        Ok(Named { bucket, keys: forms(&key) })
    };
    records.into_iter().enumerate().map(named).collect()
}

/// Returns the keys that a key in a record may denote. S3 and MinIO form-encode the key; radosgw
/// does not always do so.
fn forms(key: &str) -> Vec<Vec<u8>> {
    let spaced = key.replace('+', " ");
    let decode = |text: &str| Cow::<[u8]>::from(percent_decode_str(text)).into_owned();
    let mut forms = vec![decode(&spaced), decode(key), key.as_bytes().to_vec()];
    forms.dedup();
    forms
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(body: &str) -> Vec<(String, Vec<String>)> {
        let text = |key: &Vec<u8>| String::from_utf8(key.clone()).unwrap();
        let all = parse_notification(body.as_bytes()).unwrap();
        all.iter().map(|named| (named.bucket.clone(), named.keys.iter().map(text).collect())).collect()
    }

    #[test]
    fn records_of_several_makers_are_read() {
        let aws = r#"{"Records":[{"eventVersion":"2.1","eventName":"ObjectCreated:Put","s3":{"bucket":{"name":"b",
            "arn":"x"},"object":{"key":"a%2Fb+c%C3%BC","size":1}}},{"s3":{"bucket":{"name":"d"},"object":{"key":"k"}}}]}"#;
        assert_eq!(
            keys(aws),
            [
                ("b".into(), vec!["a/b cü".into(), "a/b+cü".into(), "a%2Fb+c%C3%BC".into()]),
                ("d".into(), vec!["k".into()])
            ]
        );
        let minio = r#"{"EventName":"s3:ObjectRemoved:Delete","Key":"b/k","Records":[{"s3":{"bucket":{"name":"b"},
            "object":{"key":"k","userMetadata":{"x":"y"}}}}]}"#;
        assert_eq!(keys(minio), [("b".into(), vec!["k".into()])]);
        assert!(keys(r#"{"Service":"Amazon S3","Event":"s3:TestEvent","Bucket":"b"}"#).is_empty());
    }

    #[test]
    fn what_is_no_notification_is_refused() {
        let long = format!(
            r#"{{"Records":[{{"s3":{{"bucket":{{"name":"b"}},"object":{{"key":"{}"}}}}}}]}}"#,
            "x".repeat(4000)
        );
        let many = format!(
            r#"{{"Records":[{}]}}"#,
            vec![r#"{"s3":{"bucket":{"name":"b"},"object":{"key":"k"}}}"#; RECORDS_MAX + 1].join(",")
        );
        for body in [
            "",
            "[]",
            "{}",
            r#"{"Event":"other"}"#,
            r#"{"Records":[{}]}"#,
            r#"{"Records":[{"s3":{"bucket":{"name":"b"},"object":{}}}]}"#,
            r#"{"Records":[{"s3":{"bucket":{"name":""},"object":{"key":"k"}}}]}"#,
            r#"{"Records":[{"s3":{"bucket":{"name":"b"},"object":{"key":"k"}}}"#,
            r#"{"Records":[{"s3":{"bucket":{"name":"b"},"object":{"key":"k","key":"l"}}}]}"#,
            &long,
            &many,
        ] {
            assert!(parse_notification(body.as_bytes()).is_err(), "{body}");
        }
    }
}
