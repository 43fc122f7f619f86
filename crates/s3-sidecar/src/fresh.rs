//! The way of a read whose rights were decided here: it is answered from memory while what is known is fresh, and the endpoint
//! is asked whether it holds afterwards.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::header::{IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Response, StatusCode};
use tokio::time::timeout;

use crate::absent::Answer;
use crate::asking::{First, Turn};
use crate::body::{Body, cached, full};
use crate::changes::Question;
use crate::conditions::{ForChange, Stated, ask_for_change};
use crate::demand::Demand;
use crate::filling::Filling;
use crate::generation::Head;
use crate::heads::Known;
use crate::knowledge::Found;
use crate::local::{self, Origin};
use crate::outcome::Outcome;
use crate::passing::{collect, pass};
use crate::policy::CachePolicy;
use crate::preconditions::{Verdict, decide};
use crate::read::Read;
use crate::ready::{self, Ready};
use crate::serving::Serving;
use crate::shared::Shared;
use crate::upload::Upload;
use crate::upstream::{Failure, Upstream};

type Answered = (Response<Body>, Outcome);

/// How often a reader waits for another one's answer before it asks itself.
const TURNS_MAX: usize = 3;

/// How much longer than connecting a question may take that memory can answer as well.
const BEYOND_CONNECTING: Duration = Duration::from_secs(1);

/// Answers a read.
pub(crate) async fn answer(
    shared: &Arc<Shared>,
    upstream: &Arc<Upstream>,
    request: Parts,
    read: Read,
    policy: CachePolicy,
) -> Answered {
    let demand = Demand::of(&request.headers);
    let mut reader = Reader { shared, upstream, read: Arc::new(read), policy, demand };
    match reader.answer(request).await {
        Ok(answered) => answered,
        Err(failure) => (failure.answer(), Outcome::Failed),
    }
}

struct Reader<'a> {
    shared: &'a Arc<Shared>,
    upstream: &'a Arc<Upstream>,
    read: Arc<Read>,
    policy: CachePolicy,
    demand: Demand,
}

/// What memory has for a read.
enum Tried {
    /// The answer.
    Done(Response<Body>),
    /// Some of it; the endpoint must be asked for the bytes.
    Missing,
    /// What only the endpoint can decide.
    Undecided,
}

impl Reader<'_> {
    async fn answer(&mut self, request: Parts) -> Result<Answered, Failure> {
        for _ in 0..TURNS_MAX {
            let turn = match self.shared.knowledge.find(&self.read) {
                Some(Found::Object(known)) if self.is_fresh(&known) => {
                    let origin = Origin::Memory(known.asked.at.elapsed());
                    match self.try_memory(&request, &known.head, origin, false).await {
                        Tried::Done(response) => return Ok((response, Outcome::Hit)),
                        Tried::Missing => self.turn(false),
                        Tried::Undecided => return self.ask(request, None).await,
                    }
                }
                Some(Found::Object(known)) => match self.turn(true) {
                    Ok(first) => return self.verify(request, known, first, true).await,
                    Err(waited) => Err(waited),
                },
                Some(Found::Uncertain(known)) => return self.verify(request, known, None, false).await,
                Some(Found::Absent(absent)) if self.is_known_absent(&absent.answer, absent.asked.at) => {
                    let age = absent.asked.at.elapsed();
                    return Ok((local::absent(&absent.answer, &request.method, age), Outcome::Absent));
                }
                Some(Found::Absent(_)) | None => self.turn(false),
            };
            match turn {
                Ok(first) => return self.ask(request, first).await,
                Err(mut answered) => {
                    // Ends with an error when the other reader's answer has begun, or failed.
                    let _ = answered.changed().await;
                    self.policy = self.shared.policies.read().of(&self.read.bucket, &self.read.name);
                }
            }
        }
        // It has waited for others long enough.
        match self.shared.knowledge.find(&self.read) {
            Some(Found::Object(known)) => self.verify(request, known, None, true).await,
            Some(Found::Uncertain(known)) => self.verify(request, known, None, false).await,
            Some(Found::Absent(_)) | None => self.ask(request, None).await,
        }
    }

    fn is_fresh(&self, known: &Known) -> bool {
        let age = known.asked.at.elapsed();
        !known.head.is_always_verified && self.policy.fresh.holds(age) && self.demand.takes(age)
    }

    fn is_known_absent(&self, answer: &Answer, asked: Instant) -> bool {
        let age = asked.elapsed();
        age < self.policy.negative && self.demand.takes(age) && answer.suits(&self.method())
    }

    fn method(&self) -> Method {
        if self.read.is_head { Method::HEAD } else { Method::GET }
    }

    /// Returns whether the reader is to ask now, as the first one or as one of several, or what it is to wait for.
    fn turn(&self, is_verification: bool) -> Result<Option<First>, tokio::sync::watch::Receiver<()>> {
        // Another reader's answer would not be fresh.
        if self.demand.asks() || (is_verification && !self.policy.fresh.is_ever()) {
            return Ok(None);
        }
        match self.shared.asking.turn(&self.read, is_verification) {
            Turn::First(first) => Ok(Some(first)),
            Turn::After(answered) => Err(answered),
        }
    }

    /// Answers from memory, if that has enough. `is_alone` states that the endpoint cannot be asked for what is missing.
    async fn try_memory(
        &self,
        request: &Parts,
        head: &Arc<Head>,
        origin: Origin<'_>,
        is_alone: bool,
    ) -> Tried {
        match decide(&request.headers, head) {
            Verdict::Send => (),
            Verdict::NotModified => return Tried::Done(local::not_modified(head, origin)),
            Verdict::Failed => return Tried::Done(local::precondition_failed()),
            Verdict::Unknown => return Tried::Undecided,
        }
        if self.read.is_head {
            return match head.is_of_whole {
                true => Tried::Done(local::whole(head, origin, full(""))),
                false => Tried::Missing,
            };
        }
        let Some(ready) = ready::ready(self.shared, &request.headers, &self.read, head).await else {
            return Tried::Missing;
        };
        if is_alone && !ready.is_whole() && !ready.is_all_here(self.shared).await {
            return Tried::Missing;
        }
        match self.body(request, ready).await {
            Some((ready, body)) => Tried::Done(local::part(head, &ready.bytes, ready.is_part, origin, body)),
            None => Tried::Missing,
        }
    }

    /// Returns the body of what is at hand; the rest of it follows from elsewhere.
    async fn body(&self, request: &Parts, mut ready: Ready) -> Option<(Ready, Body)> {
        if ready.bytes.is_empty() {
            return Some((ready, full("")));
        }
        if ready.is_whole() {
            let segments = ready.segments.take()?;
            return Some((ready, cached(segments)));
        }
        let (mut request, read) = (request.clone(), Arc::clone(&self.read));
        // They are decided; what is left is asked for by its tag.
        for name in [IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE] {
            request.headers.remove(name);
        }
        let (head, segments) = (Arc::clone(&ready.head), ready.segments.take());
        let upstreams = (self.shared, self.upstream);
        let mut serving = Serving::new(upstreams, request, read, head, ready.bytes.clone(), segments);
        if let Err(cause) = serving.prepare().await {
            tracing::debug!(%cause, "an object from memory cannot be had");
            return None;
        }
        Some((ready, serving.into_body()))
    }

    /// Asks the endpoint whether what is known of the object holds.
    async fn verify(
        &self,
        request: Parts,
        known: Known,
        first: Option<First>,
        may_be_stale: bool,
    ) -> Result<Answered, Failure> {
        let Known { head, asked } = known;
        let mut asking = request.clone();
        // They are decided here, when it is known what the object is.
        for name in [IF_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE] {
            asking.headers.remove(name);
        }
        let for_change = if self.read.is_head {
            // A whole answer is no longer than one that leaves out what has changed besides the body.
            asking.headers.remove(IF_NONE_MATCH);
            ForChange::default()
        } else {
            ask_for_change(&mut asking, &self.read, &head)
        };
        let question = self.shared.knowledge.question(&self.read);
        let age = asked.at.elapsed();
        let is_demanded = head.is_always_verified || !self.demand.takes(age);
        let is_usable = may_be_stale && !is_demanded && self.policy.is_usable_without_endpoint(age);
        let answer = if is_usable {
            self.send_briefly(asking).await
        } else {
            self.upstream.send(asking, Upload::none()).await
        };
        let is_away = answer.as_ref().map_or(true, |answer| is_of_endpoint_away(answer.status()));
        if is_usable && is_away {
            let origin = Origin::Stale(asked.at.elapsed());
            if let Tried::Done(response) = self.try_memory(&request, &head, origin, true).await {
                return Ok((response, Outcome::Stale));
            }
            if matches!(answer, Err(Failure::Late)) {
                // Only the endpoint has the bytes: it gets the time that it has for any read.
                drop(question);
                return self.ask(request, first).await;
            }
        }
        let answer = answer?;
        match for_change.stated(&answer, &self.read, &head) {
            Stated::Same => (),
            Stated::Other => {
                self.shared.knowledge.forget(&self.read, &head);
                drop(question);
                return self.ask(request, first).await;
            }
            Stated::Answered => return Ok(self.take(answer, &question, Some(&request.headers)).await),
        }
        self.shared.knowledge.renew(&self.read, &head, &question);
        // Those who wait find it renewed.
        drop((question, first));
        match self.try_memory(&request, &head, Origin::Verified(answer.headers()), false).await {
            Tried::Done(response) => Ok((response, Outcome::Revalidated)),
            Tried::Missing | Tried::Undecided => self.ask(request, None).await,
        }
    }

    /// Sends a question that memory can answer if the endpoint does not.
    async fn send_briefly(&self, asking: Parts) -> Result<Response<Incoming>, Failure> {
        let slow = &self.shared.slow;
        if !slow.admits(Instant::now()) {
            return Err(Failure::Late);
        }
        let config = &self.shared.config;
        let patience = (config.connect_timeout + BEYOND_CONNECTING).min(config.response_timeout);
        match timeout(patience, self.upstream.send(asking, Upload::none())).await {
            Ok(answer) => {
                slow.succeeded();
                answer
            }
            Err(_) => {
                slow.failed(Instant::now());
                Err(Failure::Late)
            }
        }
    }

    /// Asks the endpoint for the object.
    async fn ask(&self, request: Parts, first: Option<First>) -> Result<Answered, Failure> {
        let question = self.shared.knowledge.question(&self.read);
        let answer = self.upstream.send(request, Upload::none()).await?;
        let taken = self.take(answer, &question, None).await;
        // Now others know what it states.
        drop((question, first));
        Ok(taken)
    }

    /// Passes an answer on, and keeps what it states and brings. `conditions` are those of the client that the endpoint was not
    /// asked for.
    async fn take(
        &self,
        answer: Response<Incoming>,
        question: &Question,
        conditions: Option<&HeaderMap>,
    ) -> Answered {
        let (shared, read) = (self.shared, &self.read);
        if answer.status() == StatusCode::NOT_FOUND {
            return self.take_absent(answer, question).await;
        }
        let Some((head, bytes)) = Head::of(read, &answer) else {
            return (pass(shared, answer, None), Outcome::Passed);
        };
        let head = shared.knowledge.enter(read, head, question);
        match conditions.map(|headers| decide(headers, &head)) {
            Some(Verdict::NotModified) => {
                return (local::not_modified(&head, Origin::Verified(answer.headers())), Outcome::Miss);
            }
            Some(Verdict::Failed) => return (local::precondition_failed(), Outcome::Miss),
            _ => (),
        }
        if read.is_head {
            return (pass(shared, answer, None), Outcome::Miss);
        }
        let filling = Filling::begin(&shared.pieces, &shared.fills, &head, bytes);
        (pass(shared, answer, Some(filling)), Outcome::Miss)
    }

    async fn take_absent(&self, answer: Response<Incoming>, question: &Question) -> Answered {
        let knowledge = &self.shared.knowledge;
        if self.policy.negative == Duration::ZERO {
            knowledge.enter_absent(&self.read, None, question);
            return (pass(self.shared, answer, None), Outcome::Passed);
        }
        let (answer, body) = collect(self.shared, answer, self.read.is_head).await;
        let kept =
            body.and_then(|body| Answer::of(answer.headers(), Some(body).filter(|_| !self.read.is_head)));
        knowledge.enter_absent(&self.read, kept, question);
        (answer, Outcome::Passed)
    }
}

/// Returns whether an answer states that the endpoint cannot serve at the moment.
fn is_of_endpoint_away(status: StatusCode) -> bool {
    [500, 502, 503, 504].contains(&status.as_u16())
}
