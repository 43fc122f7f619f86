//! The sidecar in front of an S3 endpoint as a part of the program, and its routes of the admin
//! listener. Each request to these routes is logged with the client's address.
//!
//! | route | body | |
//! |---|---|---|
//! | `POST /s3/invalidate` | `{"bucket": "…", "key": "…"}`, or `"prefix"`, or the bucket alone | drops what is known of these objects |
//! | `POST /s3/events` | event records of S3 | the same for the objects that they name |

use crate::config::{Config, File, S3Table, SidecarSecrets};
use cached_admin::sources::Shown;
use cached_admin::status::document::{BucketPart, ListenerPart, Memory, S3Part};
use cached_admin::status::{Document, Source};
use cached_admin::{AdminServer, Request, Response, Routes};
use cached_metrics::{Collect, Families};
use cached_process::{Exit, Failure};
use cached_tls::ServerTls;
use s3_sidecar::{
    BucketStatus, ControlError, Counts, EndpointState, Invalidation, Sidecar, SidecarControl, SidecarError,
};
use serde::Deserialize;
use serde_json::json;
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

/// The settings of a sidecar that can change at run time.
#[derive(Clone, Debug)]
pub struct LiveSidecar(SidecarControl);

impl LiveSidecar {
    /// Puts the policies and the settings of individual buckets in force, and reopens the access
    /// log file, which may have been renamed.
    ///
    /// # Errors
    /// Returns a one-line message. In that case nothing has changed.
    pub(crate) fn change(&self, after: &File) -> Result<(), String> {
        let Some(table) = &after.s3 else { return Ok(()) };
        let (policy, rules) = table.policies();
        let set = self.0.set_terms(table.terms()).and_then(|()| self.0.set_policies(policy, rules));
        match set {
            Ok(()) => self.0.reopen_access_log(),
            // The sidecar is shutting down, and so is the program.
            Err(ControlError::Ended) => (),
            Err(error) => return Err(error.to_string()),
        }
        Ok(())
    }
}

/// The sidecar. Dropping this value ends it.
#[derive(Debug)]
pub struct RunningSidecar {
    // This is dropped before the sidecar ends.
    _shown: Option<Shown>,
    sidecar: Sidecar,
    table: S3Table,
}

impl RunningSidecar {
    /// Starts the sidecar that `[s3]` describes, if there is one, and shows its metrics and its
    /// status on the admin listener.
    ///
    /// # Errors
    /// Fails if the configuration is invalid, or the system refuses a thread or a socket.
    pub fn start(
        config: &Config,
        tls: Option<Arc<ServerTls>>,
        secrets: SidecarSecrets,
        admin: Option<&AdminServer>,
    ) -> Result<Option<RunningSidecar>, Failure> {
        let Some(table) = &config.file.s3 else { return Ok(None) };
        let drain_timeout = Duration::from_secs(config.settings.drain.timeout_secs);
        let sidecar = table.sidecar(tls, secrets, drain_timeout);
        let sidecar = sidecar.map_err(|error| config.mistake(error, Exit::Configuration))?;
        let sidecar = Sidecar::start(sidecar).map_err(|error| match error {
            SidecarError::Config { key, why } => {
                config.mistake(S3Table::wrong((key, why)), Exit::Configuration)
            }
            error @ SidecarError::Thread(_) => Failure::new(Exit::Trouble, error),
            error => Failure::new(Exit::Refused, error),
        })?;
        let shown = admin.map(|admin| {
            add_routes(admin.routes(), &sidecar.control());
            Shown::new(admin, &Arc::new(SidecarSource::new(&sidecar, table)))
        });
        Ok(Some(RunningSidecar { _shown: shown, sidecar, table: table.clone() }))
    }

    /// Returns a line that states the address of the sidecar, and the maximum memory that it uses,
    /// in bytes.
    pub fn announcement(&self) -> (String, u64) {
        let (addresses, endpoint) = (addresses(&self.sidecar), endpoint(&self.table));
        (format!("S3 on {addresses} before {endpoint}"), self.table.bytes_max())
    }

    /// Returns the sidecar's settings that can change at run time.
    pub fn live(&self) -> LiveSidecar {
        LiveSidecar(self.sidecar.control())
    }

    /// Closes the sidecar's listeners; requests in flight continue.
    pub fn request_end(&self) {
        self.sidecar.request_end();
    }
}

/// Returns the addresses of the sidecar, as a list on one line.
fn addresses(sidecar: &Sidecar) -> String {
    let addresses: Vec<String> = sidecar.addresses().iter().map(ToString::to_string).collect();
    addresses.join(", ")
}

/// Returns the host and the port of the endpoint.
fn endpoint(table: &S3Table) -> &str {
    table.upstream.split("://").last().unwrap_or_default()
}

/// The maximum number of buckets that the status document shows.
const SHOWN_MAX: usize = 50;

/// The sidecar, as the admin listener shows it.
struct SidecarSource {
    control: SidecarControl,
    counts: Arc<Counts>,
    metrics: Arc<dyn Collect>,
    addresses: String,
    endpoint: String,
}

impl SidecarSource {
    fn new(sidecar: &Sidecar, table: &S3Table) -> SidecarSource {
        SidecarSource {
            control: sidecar.control(),
            counts: Arc::clone(sidecar.counts()),
            metrics: sidecar.metrics(),
            addresses: addresses(sidecar),
            endpoint: endpoint(table).to_owned(),
        }
    }
}

impl Collect for SidecarSource {
    fn collect(&self, into: &mut Families) {
        self.metrics.collect(into);
    }
}

impl Source for SidecarSource {
    fn fill(&self, document: &mut Document) {
        let Ok(status) = self.control.status() else { return };
        let counts = &*self.counts;
        document.listeners.push(ListenerPart {
            listener: self.addresses.clone(),
            protocol: "s3",
            connections: counts.connections_now.get() as u64,
            accepted: counts.connections.get(),
            refused: counts.connections_refused.get(),
        });
        document.memory.push(Memory {
            owner: "s3",
            used_bytes: status.memory_bytes,
            limit_bytes: status.memory_bytes_max,
        });
        let (state, away) = match status.endpoint {
            EndpointState::Serving => ("serving", Duration::ZERO),
            EndpointState::Slow => ("slow", Duration::ZERO),
            EndpointState::Away(time) => ("away", time),
        };
        let mut buckets = status.buckets;
        buckets.sort_by_key(|of| Reverse(of.hits + of.misses + of.others));
        let buckets_other = buckets.len().saturating_sub(SHOWN_MAX) as u64;
        buckets.truncate(SHOWN_MAX);
        let part = |of: BucketStatus| BucketPart {
            hits: of.hits,
            misses: of.misses,
            others: of.others,
            cached_bytes: of.cached_bytes,
            bucket: of.bucket,
        };
        document.s3 = Some(S3Part {
            endpoint: self.endpoint.clone(),
            state,
            away_ms: u64::try_from(away.as_millis()).unwrap_or(u64::MAX),
            objects: status.objects,
            hits: counts.hits.get(),
            revalidated: counts.revalidated.get(),
            stale: counts.stale.get(),
            absent: counts.absent.get(),
            misses: counts.misses.get(),
            passed: counts.passed.get(),
            refused: counts.refused.get(),
            failed: counts.failed.get(),
            memory_bytes: counts.bytes_from_memory.get(),
            endpoint_bytes: counts.bytes_from_upstream.get(),
            buckets: buckets.into_iter().map(part).collect(),
            buckets_other,
        });
    }
}

/// The body of `/s3/invalidate`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    bucket: String,
    key: Option<String>,
    prefix: Option<String>,
}

/// Adds the routes.
fn add_routes(routes: &Routes, control: &SidecarControl) {
    let own = control.clone();
    routes.post_now("/s3/invalidate", move |request| invalidate(&own, &request));
    let own = control.clone();
    routes.post_now("/s3/events", move |request| take_events(&own, &request));
}

fn invalidate(control: &SidecarControl, request: &Request) -> Response {
    let right = "give {\"bucket\": \"...\"}, and \"key\" or \"prefix\"";
    let what = match serde_json::from_slice(&request.body) {
        Err(error) => return Response::failure(400, format_args!("{right}: {error}")),
        Ok(Body { key: Some(_), prefix: Some(_), .. }) => {
            return Response::failure(400, format_args!("{right}: not both"));
        }
        Ok(Body { bucket, key: Some(key), prefix: None }) => Invalidation::Key { bucket, key },
        Ok(Body { bucket, key: None, prefix }) => {
            Invalidation::Prefix { bucket, prefix: prefix.unwrap_or_default() }
        }
    };
    let done = control.invalidate(&what);
    let outcome = done.as_ref().map_or_else(ToString::to_string, |()| "done".into());
    // `/log.json` shows this field completely only with the token.
    tracing::info!(peer = %request.peer, object = ?what, outcome, "the admin listener invalidates objects of S3");
    done.map_or_else(failure, |()| Response::json(&json!({ "invalidated": true })))
}

fn take_events(control: &SidecarControl, request: &Request) -> Response {
    let taken = control.take_events(&request.body);
    match &taken {
        Ok(records) => tracing::debug!(peer = %request.peer, records, "events of S3"),
        Err(error) => tracing::info!(peer = %request.peer, cause = %error, "events of S3 are refused"),
    }
    taken.map_or_else(failure, |records| Response::json(&json!({ "records": records })))
}

fn failure(error: ControlError) -> Response {
    let status = match error {
        ControlError::Wrong(_) => 400,
        ControlError::AlwaysAsks => 409,
        _ => 503,
    };
    Response::failure(status, error)
}
