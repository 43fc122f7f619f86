//! The registry in etcd, through its HTTP gateway for version 3 of its interface, which etcd itself
//! serves at the addresses of its clients.
//!
//! | module | content |
//! |---|---|
//! | `client` | requests: endpoints, login, errors |
//! | `watch` | a watch: a stream of events that is resumed when it breaks |
//!
//! A document is an etcd key with a common prefix, and its revision is etcd's revision of the last
//! change. Keys below the prefix that do not belong to this registry are ignored.

mod client;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use blocker::Clock;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::document::{Change, Document, Expect, Key, Lease, LeaseId, Listing, Revision};
use crate::error::{Error, Result};

pub(crate) use client::{EtcdClient, Login};
pub(crate) use watch::EtcdWatch;

use client::Effect;

/// The maximum number of documents of a listing.
const LIST_MAX: usize = 10_000;

/// A registry in etcd.
pub(crate) struct EtcdBody {
    client: EtcdClient,
    /// The common prefix of all keys.
    prefix: String,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for EtcdBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdBody")
            .field("client", &self.client)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl EtcdBody {
    pub(crate) fn new(client: EtcdClient, prefix: &str, clock: Arc<dyn Clock>) -> Self {
        Self { client, prefix: prefix.to_owned(), clock }
    }

    pub(crate) async fn get(&self, key: &Key) -> Result<Option<Document>> {
        let answer = self
            .client
            .call("kv/range", &json!({ "key": self.name(key.as_str()) }), Effect::Repeatable)
            .await?;
        Ok(self.documents(&answer)?.pop())
    }

    pub(crate) async fn list(&self, prefix: &str) -> Result<Listing> {
        let (first, end) = self.range(prefix);
        let request = json!({ "key": first, "range_end": end, "limit": LIST_MAX.to_string() });
        let answer = self.client.call("kv/range", &request, Effect::Repeatable).await?;
        if answer["more"] == true {
            return Err(Error::TooLarge(
                format!("more than {LIST_MAX} documents begin with {prefix:?}").into(),
            ));
        }
        Ok(Listing { documents: self.documents(&answer)?, revision: revision_of(&answer) })
    }

    /// Returns the number of keys with a prefix after the changes of `revision`.
    async fn count(&self, prefix: &str, revision: Revision) -> Result<u64> {
        if revision == Revision(0) {
            // etcd would interpret this value as the present.
            return Ok(0);
        }
        let (first, end) = self.range(prefix);
        let request = json!({
            "key": first, "range_end": end, "revision": revision.to_string(), "count_only": true
        });
        Ok(number(&self.client.call("kv/range", &request, Effect::Repeatable).await?["count"]))
    }

    /// Returns whether a key with a prefix has changed after `after`, the number of keys with the
    /// prefix, and the revision of this state.
    async fn changed_after(&self, prefix: &str, after: Revision) -> Result<(bool, u64, Revision)> {
        let (first, end) = self.range(prefix);
        let request = json!({
            "key": first, "range_end": end, "keys_only": true,
            "min_mod_revision": after.0.saturating_add(1).to_string(),
        });
        let answer = self.client.call("kv/range", &request, Effect::Repeatable).await?;
        let has_changed = answer["kvs"].as_array().is_some_and(|found| !found.is_empty());
        Ok((has_changed, number(&answer["count"]), revision_of(&answer)))
    }

    pub(crate) async fn change(&self, changes: &[Change]) -> Result<Revision> {
        let compare: Vec<Value> = changes.iter().map(|change| self.compare(change)).collect();
        let success = changes.iter().filter(|change| !change.is_guard);
        let success: Vec<Value> = success.map(|change| self.operation(change)).collect();
        // If a comparison fails, the response contains the documents' present state.
        let failure = changes.iter().map(
            |change| json!({ "request_range": { "key": self.name(change.key.as_str()), "keys_only": true } }),
        );
        let failure: Vec<Value> = failure.collect();
        let request = json!({ "compare": compare, "success": success, "failure": failure });
        let answer = self.client.call("kv/txn", &request, Effect::Change).await?;
        if answer["succeeded"] == true {
            return Ok(revision_of(&answer));
        }
        for (index, change) in changes.iter().enumerate() {
            let found = &answer["responses"][index]["response_range"]["kvs"][0];
            let found = found.is_object().then(|| Revision(number(&found["mod_revision"])));
            if !change.expect.is_met(found) {
                return Err(Error::Conflict { key: change.key.clone(), found });
            }
        }
        Err(Error::Unavailable("etcd has refused a change without naming the reason".into()))
    }

    pub(crate) async fn grant(&self, duration: Duration) -> Result<Lease> {
        let sent = self.clock.now();
        let secs = duration.as_secs_f64().ceil();
        let request = json!({ "TTL": format!("{secs:.0}") });
        // If the response is lost, its lease expires by itself.
        let answer = self.client.call("lease/grant", &request, Effect::Repeatable).await?;
        let (id, secs) = (number(&answer["ID"]), number(&answer["TTL"]));
        Ok(Lease::new(LeaseId(id), Duration::from_secs(secs), sent))
    }

    pub(crate) async fn renew(&self, lease: &Lease) -> Result<Lease> {
        let sent = self.clock.now();
        let request = json!({ "ID": lease.id.0.to_string() });
        let answer = self.client.call("lease/keepalive", &request, Effect::Repeatable).await?;
        match number(&answer["result"]["TTL"]) {
            0 => Err(Error::LeaseEnded),
            secs => Ok(Lease::new(lease.id, Duration::from_secs(secs), sent)),
        }
    }

    pub(crate) async fn revoke(&self, lease: LeaseId) -> Result<()> {
        let request = json!({ "ID": lease.0.to_string() });
        match self.client.call("lease/revoke", &request, Effect::Repeatable).await {
            Err(Error::LeaseEnded) => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// Returns etcd's name of a key or of a prefix.
    fn name(&self, key: &str) -> String {
        STANDARD.encode(format!("{}{key}", self.prefix))
    }

    /// Returns etcd's names of the first key with a prefix, and of the first key after all of them.
    fn range(&self, prefix: &str) -> (String, String) {
        let mut end = format!("{}{prefix}", self.prefix).into_bytes();
        // A key of this registry has no byte above 'z'.
        end.push(0xff);
        (self.name(prefix), STANDARD.encode(end))
    }

    fn compare(&self, change: &Change) -> Value {
        let key = self.name(change.key.as_str());
        match change.expect {
            Expect::Absent => {
                json!({ "key": key, "result": "EQUAL", "target": "CREATE", "create_revision": "0" })
            }
            Expect::At(revision) => {
                json!({ "key": key, "result": "EQUAL", "target": "MOD", "mod_revision": revision.to_string() })
            }
        }
    }

    fn operation(&self, change: &Change) -> Value {
        let key = self.name(change.key.as_str());
        let Some(value) = &change.value else { return json!({ "request_delete_range": { "key": key } }) };
        let lease = change.lease.map_or(0, |lease| lease.0).to_string();
        json!({ "request_put": { "key": key, "value": STANDARD.encode(value), "lease": lease } })
    }

    fn documents(&self, answer: &Value) -> Result<Vec<Document>> {
        let found = answer["kvs"].as_array().map(Vec::as_slice).unwrap_or_default();
        found.iter().filter_map(|found| self.document(found).transpose()).collect()
    }

    /// Converts a key of etcd; `None` if the key is not one of this registry.
    fn document(&self, found: &Value) -> Result<Option<Document>> {
        let Some(key) = self.key(found)? else { return Ok(None) };
        let lease = Some(number(&found["lease"])).filter(|lease| *lease > 0).map(LeaseId);
        let (value, revision) = (decode(&found["value"])?, Revision(number(&found["mod_revision"])));
        Ok(Some(Document { key, value, revision, lease }))
    }

    fn key(&self, found: &Value) -> Result<Option<Key>> {
        let name = decode(&found["key"])?;
        let key = std::str::from_utf8(&name).ok().and_then(|name| name.strip_prefix(&self.prefix));
        Ok(key.and_then(|key| Key::new(key).ok()))
    }
}

/// Returns a number in etcd's JSON. It is encoded as a string, and is omitted if it is 0.
fn number(value: &Value) -> u64 {
    let text = value.as_str().and_then(|text| text.parse().ok());
    text.or_else(|| value.as_u64()).unwrap_or(0)
}

fn revision_of(answer: &Value) -> Revision {
    Revision(number(&answer["header"]["revision"]))
}

/// Returns bytes in etcd's JSON. They are encoded in base64, and are omitted if they are empty.
fn decode(value: &Value) -> Result<Bytes> {
    let text = value.as_str().unwrap_or_default();
    let bytes = STANDARD.decode(text).map_err(|error| {
        Error::Unavailable(format!("a response of etcd has invalid base64: {error}").into())
    });
    bytes.map(Bytes::from)
}
