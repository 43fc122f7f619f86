//! Requests to the steward: of operators, through the admin listener, and of the hand-over to another
//! process. Each request that changes something is logged with the client's address.
//!
//! | route | body | |
//! |---|---|---|
//! | `POST /ring/weight` | `{"node": "…", "weight": 1}` | sets the weight of a node, by which slots move; 0 drains it |
//! | `POST /ring/move` | `{"node": "…", "slots": "0-99,200"}` | wishes for slots at a node |
//! | `POST /ring/cancel` | `{"slots": "0-99,200"}`, or `{}` for all | cancels wishes |
//! | `POST /ring/remove` | `{"node": "…"}` | removes a node that owns nothing |
//! | `POST /ring/fail` | `{"node": "…"}` | gives the slots of a lost node to the others, without items |
//! | `POST /ring/pause`, `/ring/resume` | `{}` | whether further moves may begin |

use super::documents::{Alive, DocumentsError};
use cached_admin::{Response, Routes, WAIT_MAX};
use cached_ring::{Map, MapError, NotARun, SlotSet};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

/// The maximum number of requests that wait.
const REQUESTS_MAX: usize = 16;

/// A change of the ring by an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    Weight { node: String, weight: u32 },
    Remove { node: String },
    Fail { node: String },
    Wish { node: String, slots: SlotSet },
    Cancel { slots: Option<SlotSet> },
    Pause(bool),
}

impl Change {
    /// Returns the map after the change.
    pub(super) fn of(&self, map: &Map, alive: &Alive) -> Result<Map, MapError> {
        match self {
            Change::Weight { node, weight } => map.set_weight(node, *weight),
            Change::Remove { node } => map.remove(node),
            Change::Fail { node } => map.fail(node, &|node| alive.has(node)),
            Change::Wish { node, slots } => map.wish(node, slots),
            Change::Cancel { slots } => map.cancel_wishes(slots.as_ref()),
            Change::Pause(is_paused) => map.set_paused(*is_paused),
        }
    }
}

/// Slots in a request, as runs.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Slots(SlotSet);

impl TryFrom<String> for Slots {
    type Error = NotARun;

    fn try_from(text: String) -> Result<Slots, NotARun> {
        text.parse().map(Slots)
    }
}

/// A request to the steward.
#[derive(Debug)]
pub(super) enum Request {
    /// Changes the ring; the answer is the map, or a status of HTTP and a line.
    Change(Change, oneshot::Sender<Result<Map, (u16, String)>>),
    /// Ends moves, because another process takes over.
    Hold(oneshot::Sender<Result<(), String>>),
    /// Permits moves again, because the other process has ended.
    Resume,
}

/// A handle for requests to the steward, which may have ended.
#[derive(Clone, Debug)]
pub struct RingControl {
    node: String,
    requests: mpsc::Sender<Request>,
}

impl RingControl {
    pub(super) fn new(node: &str) -> (RingControl, mpsc::Receiver<Request>) {
        let (requests, received) = mpsc::channel(REQUESTS_MAX);
        (RingControl { node: node.to_owned(), requests }, received)
    }

    /// Ends moves to and from this node. Blocks until this is done; no slot becomes another node's
    /// afterwards, until [`resume`](Self::resume).
    ///
    /// # Errors
    /// Returns the reason why moves go on, as a part of a line.
    pub fn hold(&self) -> Result<(), String> {
        let (answer, held) = oneshot::channel();
        // Both fail if the steward has ended.
        let sent = self.requests.blocking_send(Request::Hold(answer)).is_ok();
        let held = if sent { held.blocking_recv().ok() } else { None };
        held.unwrap_or_else(|| Err("the steward of the ring has ended".into()))
    }

    /// Permits moves again.
    pub fn resume(&self) {
        // Fails if the process ends.
        let _ = self.requests.try_send(Request::Resume);
    }

    /// Adds the routes of operators.
    pub(super) fn add_routes(&self, routes: &Routes) {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Weight {
            node: String,
            weight: u32,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Named {
            node: String,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Wish {
            node: String,
            slots: Slots,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Cancel {
            #[serde(default)]
            slots: Option<Slots>,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Nothing {}
        self.add(
            routes,
            "/ring/weight",
            "{\"node\": \"NAME\", \"weight\": NUMBER}",
            |Weight { node, weight }| Change::Weight { node, weight },
        );
        self.add(
            routes,
            "/ring/move",
            "{\"node\": \"NAME\", \"slots\": \"0-99,200\"}",
            |Wish { node, slots: Slots(slots) }| Change::Wish { node, slots },
        );
        self.add(routes, "/ring/cancel", "{\"slots\": \"0-99,200\"}, or {}", |Cancel { slots }| {
            Change::Cancel { slots: slots.map(|Slots(slots)| slots) }
        });
        let named = "{\"node\": \"NAME\"}";
        self.add(routes, "/ring/remove", named, |Named { node }| Change::Remove { node });
        self.add(routes, "/ring/fail", named, |Named { node }| Change::Fail { node });
        self.add(routes, "/ring/pause", "{}", |Nothing {}| Change::Pause(true));
        self.add(routes, "/ring/resume", "{}", |Nothing {}| Change::Pause(false));
    }

    fn add<T: DeserializeOwned>(
        &self,
        routes: &Routes,
        path: &'static str,
        form: &'static str,
        change: impl Fn(T) -> Change + Send + Sync + 'static,
    ) {
        let control = self.clone();
        routes.post(path, move |request| {
            let change = serde_json::from_slice(&request.body).map(&change);
            let (control, peer) = (control.clone(), request.peer);
            async move {
                match change {
                    Err(error) => Response::failure(400, format_args!("give {form}: {error}")),
                    Ok(change) => {
                        tracing::info!(%peer, path, ?change, "the admin listener is asked to change the ring");
                        control.change(change).await
                    }
                }
            }
        });
    }

    async fn change(&self, change: Change) -> Response {
        if matches!(&change, Change::Fail { node } if *node == self.node) {
            let why = "this node answers, so it is not lost; stop it, and ask another node";
            return Response::failure(409, format_args!("{}: {why}", self.node));
        }
        let (answer, changed) = oneshot::channel();
        if self.requests.try_send(Request::Change(change, answer)).is_err() {
            return Response::failure(503, "the registry does not answer, or this process ends");
        }
        match tokio::time::timeout(WAIT_MAX, changed).await {
            Ok(Ok(Ok(map))) => Response::json(&json!({ "map_version": map.version() })),
            Ok(Ok(Err((status, line)))) => Response::failure(status, line),
            Ok(Err(_)) => Response::failure(503, "this process ends"),
            Err(_) => {
                Response::failure(503, "the registry does not answer in time; the change may still be made")
            }
        }
    }
}

/// Returns the status of HTTP and the line for an error.
pub(super) fn failure(error: DocumentsError) -> (u16, String) {
    let status = if matches!(error, DocumentsError::Registry(_)) { 503 } else { 409 };
    (status, error.to_string())
}
