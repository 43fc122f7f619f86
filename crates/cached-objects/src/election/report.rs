//! What operators see of an election, and how they ask the leader to step down.
//!
//! | route | |
//! |---|---|
//! | `GET /leader.json` | this host's part, the leader, since when and why |
//! | `GET /registry.json` | the documents of the registry |
//! | `POST /leader/step-down` | stores everything, then leaves the lead to any other host |
//! | `POST /leader/prefer` | the same, but for one host: `{"node": "NAME"}` |

use super::settle::OwnJournal;
use super::{REQUESTS_MAX, Standing, StepDown};
use blocker::metrics::{Collect, Families, LabelledMetric};
use cached_admin::sources::Shown;
use cached_admin::status::Document;
use cached_admin::status::document::{ElectionPart, LeaderPart};
use cached_admin::{Access, AdminServer, Request, Response, WAIT_MAX};
use cached_registry::election::{Elector, LeaderDocument, Leadership, Part, Release};
use cached_registry::{Listing, Registry};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, oneshot, watch};

/// The election as reports show it. Outlives a candidacy.
pub(crate) struct Reported {
    node: String,
    address: String,
    lease: Duration,
    /// The present candidacy's; `None` while another process of this host takes over.
    present: Mutex<Option<Present>>,
    /// Acknowledged data, in bytes, that ended leaderships could not store.
    lost_bytes: AtomicU64,
    /// The directories of the journals of this host that were set aside.
    overtaken_journals: Mutex<Vec<String>>,
}

/// What reports use of a candidacy.
struct Present {
    elector: Elector,
    registry: Registry,
    requests: mpsc::Sender<StepDown>,
}

impl Reported {
    /// Returns the report of an election that has not begun, and shows it on the admin listener
    /// until the other result is dropped.
    pub(crate) fn new(
        standing: &Standing,
        admin: Option<&Arc<AdminServer>>,
    ) -> (Arc<Reported>, Option<Shown>) {
        let reported = Arc::new(Reported {
            node: standing.node.clone(),
            address: standing.address.clone(),
            lease: standing.lease,
            present: Mutex::default(),
            lost_bytes: AtomicU64::new(0),
            overtaken_journals: Mutex::default(),
        });
        let shown = admin.map(|admin| {
            let checked = Arc::clone(&reported);
            admin.health().check_readiness(move || checked.not_ready());
            let read = Arc::clone(&reported);
            admin.routes().get_now("/leader.json", Access::Read, move |_| Response::json(&read.part()));
            let listed = Arc::clone(&reported);
            admin.routes().get("/registry.json", Access::Read, move |_| {
                let registry = listed.present.lock().as_ref().map(|present| present.registry.clone());
                async move { documents(registry).await }
            });
            for path in ["/leader/step-down", "/leader/prefer"] {
                let asked = Arc::clone(&reported);
                admin.routes().post(path, move |request| step_down(Arc::clone(&asked), request, path));
            }
            Shown::new(admin, &reported)
        });
        (reported, shown)
    }

    /// Shows this candidacy from now on; returns the requests to step down.
    pub(super) fn set(&self, elector: &Elector, registry: &Registry) -> mpsc::Receiver<StepDown> {
        let (requests, received) = mpsc::channel(REQUESTS_MAX);
        let present = Present { elector: elector.clone(), registry: registry.clone(), requests };
        *self.present.lock() = Some(present);
        received
    }

    /// Shows that there is no candidacy, and lets go of it.
    pub(super) fn clear(&self) {
        *self.present.lock() = None;
    }

    pub(crate) fn add_lost(&self, bytes: u64) {
        self.lost_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn elector(&self) -> Option<Elector> {
        self.present.lock().as_ref().map(|present| present.elector.clone())
    }

    /// Returns the reason why this host serves no objects; `None` if it leads.
    fn not_ready(&self) -> Option<String> {
        let Some(elector) = self.elector() else {
            return Some(
                "standby: the election has not begun, or another process of this host takes part".into(),
            );
        };
        let status = elector.status();
        let error = status.error.map_or_else(String::new, |error| format!("; the registry: {error}"));
        let line = match status.leadership.part {
            Part::Leading { lease, .. } if lease.holds() => return None,
            Part::Leading { .. } | Part::Standby { leader: None } => "standby: no host leads".into(),
            Part::Taking(epoch) => format!("standby: this host claims the store with epoch {epoch}"),
            Part::Standby { leader: Some(leader) } => {
                format!("standby: {} at {} leads", leader.node, leader.address)
            }
        };
        Some(line + &error)
    }

    /// Returns the line for a request that only the leader can fulfil.
    pub(super) fn not_leading(&self) -> String {
        let why = self.not_ready().unwrap_or_else(|| "standby: it begins to lead; ask again".into());
        format!("this host does not lead: {}", why.trim_start_matches("standby: "))
    }

    fn part(&self) -> ElectionPart {
        let mut part = ElectionPart {
            role: "standby",
            node: self.node.clone(),
            address: self.address.clone(),
            lease_ms: millis(self.lease),
            lost_bytes: self.lost_bytes.load(Ordering::Relaxed),
            overtaken_journals: self.overtaken_journals.lock().clone(),
            ..ElectionPart::default()
        };
        let Some(elector) = self.elector() else { return part };
        let status = elector.status();
        let Leadership { part: now, since, cause } = status.leadership;
        part.since_unix_ms = millis(since.duration_since(UNIX_EPOCH).unwrap_or_default());
        part.reason = cause.to_string();
        part.lease_remaining_ms = millis(status.lease_remaining);
        part.changes = status.changes.iter().map(|(cause, count)| (cause.name(), *count)).collect();
        part.registry_error = status.error;
        match now {
            Part::Standby { leader } => {
                part.leader = leader.map(|LeaderDocument { node, address, epoch, .. }| LeaderPart {
                    node,
                    address,
                    epoch,
                });
            }
            Part::Taking(epoch) => (part.role, part.epoch) = ("taking", Some(epoch.0)),
            Part::Leading { epoch, .. } => {
                (part.role, part.epoch) = ("leader", Some(epoch.0));
                let (node, address) = (self.node.clone(), self.address.clone());
                part.leader = Some(LeaderPart { node, address, epoch: epoch.0 });
            }
        }
        part
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

const CHANGES: LabelledMetric<1> = LabelledMetric::new(
    "leader_changes_total",
    ["reason"],
    "Changes of this host's part in the election of the writer; docs/election.md explains the reasons.",
);

impl Collect for Reported {
    fn collect(&self, into: &mut Families) {
        let part = self.part();
        let leads = part.role == "leader" && part.lease_remaining_ms > 0;
        into.gauge("leader", "1 if this host is the elected writer, else 0.", u64::from(leads));
        let known = part.leader.is_some();
        let help = "1 if this host knows a host that is the elected writer, itself or another one, else 0.";
        into.gauge("leader_known", help, u64::from(known));
        let help = "The epoch of the elected writer, as far as this host knows; 0 if it knows none.";
        into.gauge("leader_epoch", help, part.leader.map_or(0, |leader| leader.epoch));
        let help = "The time for which this host leads without a further renewal of its lease.";
        into.measure("leader_lease_remaining_seconds", help, &Duration::from_millis(part.lease_remaining_ms));
        let help = "Acknowledged data that were not stored when a leadership of this host ended.";
        into.counter("leader_lost_bytes_total", help, part.lost_bytes);
        let help = "Journals of this host that were set aside, with changes that are not stored.";
        into.gauge("leader_overtaken_journals", help, part.overtaken_journals.len() as u64);
        for (reason, count) in part.changes {
            into.measure(CHANGES.of([reason]), "", &count);
        }
    }
}

impl cached_admin::status::Source for Reported {
    fn fill(&self, document: &mut Document) {
        document.election = Some(self.part());
    }
}

async fn documents(registry: Option<Registry>) -> Response {
    let Some(registry) = registry else {
        return Response::failure(
            503,
            "the registry is not open: this process starts, or another one of this host takes over",
        );
    };
    match tokio::time::timeout(WAIT_MAX, registry.list("")).await {
        Ok(Ok(Listing { documents, revision })) => {
            let shown = documents.iter().map(|document| {
                json!({
                    "key": document.key.as_str(),
                    "revision": document.revision.0,
                    "lease": document.lease.map(|lease| lease.to_string()),
                    "value": String::from_utf8_lossy(&document.value),
                })
            });
            Response::json(&json!({ "revision": revision.0, "documents": shown.collect::<Vec<_>>() }))
        }
        Ok(Err(error)) => Response::failure(503, error),
        Err(_) => Response::failure(503, "the registry does not answer in time"),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Prefer {
    node: String,
}

async fn step_down(reported: Arc<Reported>, request: Request, path: &'static str) -> Response {
    let to = match path {
        "/leader/prefer" => match serde_json::from_slice(&request.body) {
            Ok(Prefer { node }) => Release::To(node),
            Err(error) => {
                return Response::failure(400, format_args!("give {{\"node\": \"NAME\"}}: {error}"));
            }
        },
        _ => Release::Anyone,
    };
    if to == Release::To(reported.node.clone()) {
        return Response::failure(409, format_args!("{} is this host itself", reported.node));
    }
    tracing::info!(peer = %request.peer, path, to = ?to, "the admin listener asks this host to step down");
    let requests = reported.present.lock().as_ref().map(|present| present.requests.clone());
    let Some(requests) = requests else {
        return Response::failure(409, reported.not_leading());
    };
    let (done, answer) = oneshot::channel();
    if requests.try_send(StepDown { to, done }).is_err() {
        return Response::failure(409, "this host steps down already, or ends");
    }
    match tokio::time::timeout(WAIT_MAX, answer).await {
        Ok(Ok(Ok(()))) => Response::json(&json!({ "done": true, "leader": reported.part() })),
        Ok(Ok(Err(why))) => Response::failure(409, why),
        Ok(Err(_)) => Response::failure(503, "this process ends, or takes part no longer"),
        Err(_) => {
            let why = "dirty data are still being stored; this host steps down afterwards";
            Response::json(&json!({ "done": false, "why": why, "leader": reported.part() }))
        }
    }
}

/// The interval at which this host looks for journals that were set aside.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Keeps the report of the journals that were set aside up to date, for as long as it is polled: an
/// operator may remove them at any time.
pub(super) async fn look_for_overtaken(journal: Option<OwnJournal>, reported: Arc<Reported>) {
    let Some(journal) = journal else { return std::future::pending().await };
    loop {
        let own = journal.clone();
        // The disk may not respond.
        if let Ok(overtaken) = tokio::task::spawn_blocking(move || own.overtaken()).await {
            *reported.overtaken_journals.lock() = overtaken;
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Logs each change of this host's part, until the election ends.
pub(super) async fn log_changes(mut now: watch::Receiver<Leadership>, node: String) {
    let mut last = SystemTime::now();
    while now.changed().await.is_ok() {
        let Leadership { part, since, cause } = now.borrow_and_update().clone();
        let before_ms = millis(since.duration_since(last).unwrap_or_default());
        last = since;
        match part {
            // After a restart, or while the release is being written.
            Part::Standby { leader: Some(leader) } if leader.node == node => {
                let epoch = leader.epoch;
                tracing::info!(node, epoch, %cause, before_ms, "standby: an earlier leadership of this host ends");
            }
            Part::Standby { leader: Some(leader) } => {
                let (leader, address, epoch) = (leader.node, leader.address, leader.epoch);
                tracing::info!(node, leader, address, epoch, %cause, before_ms, "standby: another host leads");
            }
            Part::Standby { leader: None } => {
                tracing::warn!(node, %cause, before_ms, "standby: no host leads");
            }
            Part::Taking(epoch) => {
                tracing::info!(node, %epoch, %cause, before_ms, "this host takes the lead, and claims the store");
            }
            Part::Leading { epoch, .. } => {
                tracing::info!(node, %epoch, %cause, before_ms, "this host leads");
            }
        }
    }
}
