//! The routes of volumes.
//!
//! | route | |
//! |---|---|
//! | `GET /volumes` | all volumes |
//! | `GET /volumes/show?name=` | one, with its snapshots and what it uses |
//! | `GET /volumes/diff?name=&from=&to=&offset=` | what differs between two snapshots; without `to`, from the volume as it is stored |
//! | `GET /volumes/job?id=` | what has become of a request that took long |
//! | `POST /volumes/create`, `clone`, `resize`, `set`, `delete`, `detach`, `hand-over`, `take-over`, `flatten` | |
//! | `POST /volumes/snapshot`, `delete-snapshot`, `rollback` | |
//! | `POST /volumes/check` | what is wrong with the volumes |
//!
//! Bodies are JSON, as [`Body::FORM`] shows them; so are the answers, errors too: `{"error": "one line"}`. A request that
//! takes longer than 20 seconds is answered 202 with `{"job": NUMBER}`, and goes on.

use super::Managed;
use super::failure::Failure;
use super::jobs::Outcome;
use super::requests::{
    Body, Check, Create, Delete, DeleteSnapshot, Detach, Flatten, HandOver, MakeClone, MakeSnapshot, Resize,
    Rollback, Set, TakeOver, diff, list, show,
};
use cached_admin::{Access, Request, Response, Routes};
use std::sync::{Arc, Weak};

/// Adds the routes. They keep nothing open.
pub(super) fn add(routes: &Routes, managed: &Arc<Managed>) {
    get(routes, "/volumes", managed, |managed, _| async move { Ok(list(managed).await) });
    get(routes, "/volumes/show", managed, |managed, request| async move {
        Ok(show(managed, needed(&request, "name")?).await)
    });
    get(routes, "/volumes/diff", managed, |managed, request| async move {
        let given = |name: &str| request.query(name).filter(|value| !value.is_empty());
        let offset = match given("offset") {
            Some(text) => number(&text, "offset")?,
            None => 0,
        };
        Ok(diff(managed, needed(&request, "name")?, given("from"), given("to"), offset).await)
    });
    let jobs = Arc::downgrade(managed);
    routes.get("/volumes/job", Access::Read, move |request| {
        let response = job(&jobs, &request);
        async move { response }
    });
    post::<Create>(routes, "/volumes/create", managed);
    post::<MakeClone>(routes, "/volumes/clone", managed);
    post::<Resize>(routes, "/volumes/resize", managed);
    post::<Set>(routes, "/volumes/set", managed);
    post::<Delete>(routes, "/volumes/delete", managed);
    post::<Detach>(routes, "/volumes/detach", managed);
    post::<HandOver>(routes, "/volumes/hand-over", managed);
    post::<TakeOver>(routes, "/volumes/take-over", managed);
    post::<Flatten>(routes, "/volumes/flatten", managed);
    post::<MakeSnapshot>(routes, "/volumes/snapshot", managed);
    post::<DeleteSnapshot>(routes, "/volumes/delete-snapshot", managed);
    post::<Rollback>(routes, "/volumes/rollback", managed);
    post::<Check>(routes, "/volumes/check", managed);
}

/// Adds a route that shows something.
fn get<F>(
    routes: &Routes,
    path: &str,
    managed: &Arc<Managed>,
    shown: impl Fn(Arc<Managed>, Request) -> F + Send + Sync + Copy + 'static,
) where
    F: Future<Output = Result<Outcome, Failure>> + Send + 'static,
{
    let managed = Arc::downgrade(managed);
    routes.get(path, Access::Read, move |request| {
        let managed = managed.upgrade();
        async move {
            let Some(managed) = managed else { return Failure::ended().response() };
            let jobs = managed.jobs.clone();
            // Let go before the answer is there: the cache may end meanwhile.
            let shown = shown(managed, request);
            jobs.run(|_| async move { shown.await? }).await.response()
        }
    });
}

/// Adds a route that changes something. Each request is logged with the client's address.
fn post<B: Body>(routes: &Routes, path: &'static str, managed: &Arc<Managed>) {
    let managed = Arc::downgrade(managed);
    routes.post(path, move |request| {
        let managed = managed.upgrade();
        async move {
            let Some(managed) = managed else { return Failure::ended().response() };
            let body = match serde_json::from_slice::<B>(request.body()) {
                Ok(body) => body,
                Err(error) => return Failure::new(400, format!("give {}: {error}", B::FORM)).response(),
            };
            tracing::info!(peer = %request.peer(), path, request = ?body, "the admin listener changes volumes");
            let jobs = managed.jobs.clone();
            jobs.run(|progress| async move {
                let outcome = body.run(managed, progress).await;
                match &outcome {
                    Ok(_) => tracing::info!(path, "a change of volumes is done"),
                    Err(failure) => tracing::info!(path, cause = failure.line, "a change of volumes is refused"),
                }
                outcome
            })
            .await
            .response()
        }
    });
}

fn job(managed: &Weak<Managed>, request: &Request) -> Response {
    let Some(managed) = managed.upgrade() else { return Failure::ended().response() };
    let number = match needed(request, "id").and_then(|text| number(&text, "id")) {
        Ok(number) => number,
        Err(failure) => return failure.response(),
    };
    match managed.jobs.state(number) {
        Some(state) => Response::json(&state),
        None => Failure::new(404, format!("there is no job {number}; the last outcomes are kept")).response(),
    }
}

/// Returns a parameter that must be there.
fn needed(request: &Request, name: &str) -> Result<String, Failure> {
    match request.query(name).filter(|value| !value.is_empty()) {
        Some(value) => Ok(value),
        None => Err(Failure::new(400, format!("give the parameter {name}"))),
    }
}

fn number(text: &str, name: &str) -> Result<u64, Failure> {
    text.parse().map_err(|_| Failure::new(400, format!("{name} is {text:?}; it must be a number")))
}
