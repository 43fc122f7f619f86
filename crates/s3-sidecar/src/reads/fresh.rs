//! The path of a read whose rights the sidecar has checked. The read is served from memory while
//! the object is fresh; afterwards the endpoint is asked whether the object is unchanged.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::header::{
    HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE,
};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use tokio::time::timeout;

use crate::Shared;
use crate::endpoint::asking::{self, Ended, First, Waiting, failed};
use crate::endpoint::upload::Upload;
use crate::endpoint::{Failure, Upstream};
use crate::http::body::{Body, cached, full, whole};
use crate::http::read::Read;
use crate::memory::Found;
use crate::memory::changes::Question;
use crate::memory::filling::Filling;
use crate::memory::generation::{Head, of_this_answer};
use crate::memory::tables::{Answer, Known};
use crate::metrics::Outcome;
use crate::policy::{CachePolicy, Fresh};
use crate::reads::conditions::{Demand, Verdict, decide};
use crate::reads::ready::{self, Origin, Ready};
use crate::reads::serving::{Serving, collect, pass};

type Answered = (Response<Body>, Outcome);

/// The maximum number of times that a reader waits for another reader's response before it sends
/// its own request.
const TURNS_MAX: usize = 3;

/// The maximum time of a request in addition to the connect timeout, if memory can answer as well.
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
    let mut reader = Reader { shared, upstream, read: Arc::new(read), policy, demand, deadline: None };
    match reader.answer(request).await {
        Ok(answered) => answered,
        Err(failure) => (failure.answer(), failure.outcome()),
    }
}

struct Reader<'a> {
    shared: &'a Arc<Shared>,
    upstream: &'a Arc<Upstream>,
    read: Arc<Read>,
    policy: CachePolicy,
    demand: Demand,
    /// The time at which waits for other readers end, once the reader has waited.
    deadline: Option<tokio::time::Instant>,
}

/// The content of memory for a read.
enum Tried {
    /// The response.
    Done(Response<Body>),
    /// Memory has only a part, and the other bytes must be requested from the endpoint.
    Missing,
    /// Only the endpoint can decide about the read.
    Undecided,
}

/// The conditions that the sidecar evaluates.
static CONDITIONS: [HeaderName; 4] = [IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE];

// Questions to the endpoint have futures of their own, so that futures of hits, which are moved for
// each request, stay small.
impl Reader<'_> {
    async fn answer(&mut self, request: Parts) -> Result<Answered, Failure> {
        for _ in 0..TURNS_MAX {
            let turn = match self.shared.knowledge.find(&self.read) {
                Some(Found::Object(known)) => {
                    let age = known.asked.at.elapsed();
                    if self.is_fresh(&known.head, age) {
                        match self.try_memory(&request, &known.head, Origin::Memory(age), false).await {
                            Tried::Done(response) => return Ok((response, Outcome::Hit)),
                            Tried::Missing => self.turn(false),
                            Tried::Undecided => return Box::pin(self.ask(request, None)).await,
                        }
                    } else {
                        match self.turn(true) {
                            Ok(first) => return Box::pin(self.verify(request, known, first, true)).await,
                            Err(waiting) => Err(waiting),
                        }
                    }
                }
                Some(Found::Uncertain(known)) => {
                    return Box::pin(self.verify(request, known, None, false)).await;
                }
                Some(Found::Absent(absent)) if self.is_known_absent(&absent.answer, absent.asked.at) => {
                    let age = absent.asked.at.elapsed();
                    return Ok((ready::absent(&absent.answer, &request.method, age), Outcome::Absent));
                }
                Some(Found::Absent(_)) | None => self.turn(false),
            };
            match turn {
                Ok(first) => return Box::pin(self.ask(request, first)).await,
                Err(waiting) => {
                    let deadline = self.deadline();
                    self.deadline = Some(deadline);
                    let ended = waiting.end(deadline).await;
                    self.policy = self.shared.policies.read().of(&self.read.bucket, &self.read.name);
                    match ended {
                        Ended::LookAgain => (),
                        Ended::Apart => break,
                        Ended::Late => return self.after_late(&request).await,
                    }
                }
            }
        }
        // The reader has waited for others long enough.
        match self.shared.knowledge.find(&self.read) {
            Some(Found::Object(known)) => Box::pin(self.verify(request, known, None, true)).await,
            Some(Found::Uncertain(known)) => Box::pin(self.verify(request, known, None, false)).await,
            Some(Found::Absent(_)) | None => Box::pin(self.ask(request, None)).await,
        }
    }

    /// Returns the response after the endpoint has not responded to another reader's request.
    async fn after_late(&self, request: &Parts) -> Result<Answered, Failure> {
        let Some(Found::Object(known)) = self.shared.knowledge.find(&self.read) else {
            return Err(Failure::Late);
        };
        let age = known.asked.at.elapsed();
        if self.is_fresh(&known.head, age)
            && let Tried::Done(response) =
                self.try_memory(request, &known.head, Origin::Memory(age), true).await
        {
            return Ok((response, Outcome::Hit));
        }
        self.stale(request, &known).await.ok_or(Failure::Late)
    }

    /// Returns a response from memory while the endpoint is unreachable, if that is allowed.
    async fn stale(&self, request: &Parts, known: &Known) -> Option<Answered> {
        let age = known.asked.at.elapsed();
        if !self.is_usable_without_endpoint(&known.head, age) {
            return None;
        }
        match self.try_memory(request, &known.head, Origin::Stale(age), true).await {
            Tried::Done(response) => Some((response, Outcome::Stale)),
            Tried::Missing | Tried::Undecided => None,
        }
    }

    fn is_usable_without_endpoint(&self, head: &Head, age: Duration) -> bool {
        let is_demanded = head.is_always_verified || !self.demand.takes(age);
        !is_demanded && self.policy.is_usable_without_endpoint(age)
    }

    fn is_fresh(&self, head: &Head, age: Duration) -> bool {
        !head.is_always_verified && self.policy.fresh.holds(age) && self.demand.takes(age)
    }

    fn is_known_absent(&self, answer: &Answer, asked: Instant) -> bool {
        let age = asked.elapsed();
        age < self.policy.negative && self.demand.takes(age) && answer.suits(&self.method())
    }

    fn deadline(&self) -> tokio::time::Instant {
        self.deadline.unwrap_or_else(|| asking::deadline(&self.shared.config))
    }

    fn bucket(&self) -> Option<&str> {
        Some(&self.read.bucket)
    }

    fn method(&self) -> Method {
        if self.read.is_head { Method::HEAD } else { Method::GET }
    }

    /// Returns whether the reader should send a request now, alone or as the first of several
    /// readers, or what the reader has to wait for.
    fn turn(&self, is_verification: bool) -> Result<Option<First>, Waiting> {
        // Another reader's response would not be fresh.
        if self.demand.asks() || (is_verification && self.policy.fresh == Fresh::For(Duration::ZERO)) {
            return Ok(None);
        }
        self.shared.asking.turn(&self.read, is_verification).map(Some)
    }

    /// Serves the read from memory, if memory has enough. `is_alone` states that missing bytes
    /// cannot be requested from the endpoint.
    async fn try_memory(
        &self,
        request: &Parts,
        head: &Arc<Head>,
        origin: Origin<'_>,
        is_alone: bool,
    ) -> Tried {
        match decide(&request.headers, head) {
            Some(Verdict::Send) => (),
            Some(Verdict::NotModified) => return Tried::Done(ready::not_modified(head, origin)),
            Some(Verdict::Failed) => return Tried::Done(ready::precondition_failed()),
            None => return Tried::Undecided,
        }
        if self.read.is_head {
            return match head.is_of_whole {
                true => Tried::Done(ready::whole(head, origin, full(""))),
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
            Some((ready, body)) => Tried::Done(ready::part(head, &ready.bytes, ready.is_part, origin, body)),
            None => Tried::Missing,
        }
    }

    /// Returns the body of the available bytes; the rest follows from elsewhere.
    async fn body(&self, request: &Parts, mut ready: Ready) -> Option<(Ready, Body)> {
        if ready.bytes.is_empty() {
            return Some((ready, full("")));
        }
        if ready.is_whole() {
            let segments = ready.segments.take()?;
            return Some((ready, whole(cached(segments))));
        }
        let (mut request, read) = (request.clone(), Arc::clone(&self.read));
        // These conditions are already evaluated; the rest is requested by the object's tag.
        for name in &CONDITIONS {
            request.headers.remove(name);
        }
        let (head, segments) = (Arc::clone(&ready.head), ready.segments.take());
        let upstreams = (self.shared, self.upstream);
        let mut serving = Serving::new(upstreams, request, read, head, ready.bytes.clone(), segments);
        if let Err(cause) = Box::pin(serving.prepare()).await {
            tracing::debug!(%cause, "the missing bytes of a cached object are not available");
            return None;
        }
        Some((ready, serving.into_body()))
    }

    /// Asks the endpoint whether the object is unchanged.
    ///
    /// The question is a HEAD, because tags, locks and the like change without `ETag` and
    /// `Last-Modified`, and a 304 would omit them.
    async fn verify(
        &self,
        request: Parts,
        known: Known,
        first: Option<First>,
        may_be_stale: bool,
    ) -> Result<Answered, Failure> {
        let mut asking = request.clone();
        asking.method = Method::HEAD;
        if let Ok(uri) = asking.uri.path().parse() {
            // The URI's parameters name the client's operation.
            asking.uri = uri;
        }
        // The sidecar evaluates these conditions once the object is known.
        for name in CONDITIONS.iter().chain([&RANGE, &IF_RANGE]) {
            asking.headers.remove(name);
        }
        let question = self.shared.knowledge.question(&self.read);
        let is_usable =
            may_be_stale && self.is_usable_without_endpoint(&known.head, known.asked.at.elapsed());
        let answer = if is_usable {
            self.send_briefly(asking).await
        } else {
            self.upstream.send(self.bucket(), asking, Upload::none()).await
        };
        let is_away = answer.as_ref().map_or(true, |answer| is_of_endpoint_away(answer.status()));
        if is_usable && is_away {
            if let Some(stale) = self.stale(&request, &known).await {
                return Ok(stale);
            }
            if matches!(answer, Err(Failure::Late)) {
                // Only the endpoint has the bytes, so it gets the usual time for a read. Memory may
                // have bytes for other readers.
                drop((question, first));
                return self.ask_in_turn(request).await;
            }
        }
        let answer = match answer {
            Ok(answer) => answer,
            Err(failure) => return Err(failed(failure, first)),
        };
        let stated = Head::of(&self.read, true, &answer).map(|(head, _)| head);
        let Some(mut stated) = stated.filter(|stated| stated.generation == known.head.generation) else {
            if self.read.is_head && !CONDITIONS.iter().any(|name| request.headers.contains_key(name)) {
                return Ok(self.conclude(answer, question, first).await);
            }
            // The object has changed, or is gone. It is requested in the client's form.
            if answer.status().is_success() {
                self.shared.knowledge.forget(&self.read, &known.head);
            }
            drop(question);
            return self.ask(request, first).await;
        };
        stated.is_claimed_empty &= known.head.is_claimed_empty;
        let head = self.shared.knowledge.enter(&self.read, stated, &question);
        let own = of_this_answer(answer.headers());
        // Waiting readers find the entry renewed.
        drop((question, first));
        match self.try_memory(&request, &head, Origin::Verified(&own), false).await {
            Tried::Done(response) => Ok((response, Outcome::Revalidated)),
            Tried::Missing | Tried::Undecided => self.ask(request, None).await,
        }
    }

    /// Sends a request that memory can answer if the endpoint does not respond.
    async fn send_briefly(&self, asking: Parts) -> Result<Response<Incoming>, Failure> {
        let slow = &self.shared.slow;
        if !slow.admits(Instant::now()) {
            return Err(Failure::Late);
        }
        let config = &self.shared.config;
        let patience = (config.connect_timeout + BEYOND_CONNECTING).min(config.response_timeout);
        match timeout(patience, self.upstream.send(self.bucket(), asking, Upload::none())).await {
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

    /// Asks the endpoint for the object, unless another reader does.
    async fn ask_in_turn(&self, request: Parts) -> Result<Answered, Failure> {
        match self.turn(false) {
            Ok(first) => self.ask(request, first).await,
            Err(waiting) => match waiting.end(self.deadline()).await {
                Ended::Late => Err(Failure::Late),
                Ended::LookAgain | Ended::Apart => self.ask(request, None).await,
            },
        }
    }

    /// Asks the endpoint for the object.
    async fn ask(&self, request: Parts, first: Option<First>) -> Result<Answered, Failure> {
        let question = self.shared.knowledge.question(&self.read);
        let answer = match self.upstream.send(self.bucket(), request, Upload::none()).await {
            Ok(answer) => answer,
            Err(failure) => return Err(failed(failure, first)),
        };
        Ok(self.conclude(answer, question, first).await)
    }

    /// Forwards the response to a question, and ends the question.
    async fn conclude(
        &self,
        answer: Response<Incoming>,
        question: Question,
        first: Option<First>,
    ) -> Answered {
        let is_away = is_of_endpoint_away(answer.status());
        let (answered, is_known) = self.take(answer, &question).await;
        // Now other readers can use the response.
        drop(question);
        if let Some(first) = first {
            first.end(if is_known || is_away { Ended::LookAgain } else { Ended::Apart });
        }
        answered
    }

    /// Forwards a response, and keeps its head and its bytes. Returns whether the response is useful
    /// to other readers.
    async fn take(&self, answer: Response<Incoming>, question: &Question) -> (Answered, bool) {
        let (shared, read) = (self.shared, &self.read);
        if answer.status() == StatusCode::NOT_FOUND {
            return self.take_absent(answer, question).await;
        }
        let Some((head, bytes)) = Head::of(read, read.is_head, &answer) else {
            if answer.status().is_success() {
                shared.knowledge.enter_unkept(read, question);
            }
            return ((pass(shared, answer, None), Outcome::Passed), false);
        };
        let head = shared.knowledge.enter(read, head, question);
        let filling = (!read.is_head).then(|| Filling::begin(&shared.pieces, &shared.fills, &head, bytes));
        ((pass(shared, answer, filling), Outcome::Miss), true)
    }

    async fn take_absent(&self, answer: Response<Incoming>, question: &Question) -> (Answered, bool) {
        let knowledge = &self.shared.knowledge;
        if self.policy.negative == Duration::ZERO {
            knowledge.enter_absent(&self.read, None, question);
            return ((pass(self.shared, answer, None), Outcome::Passed), false);
        }
        let (answer, body) = collect(self.shared, answer, self.read.is_head).await;
        let kept =
            body.and_then(|body| Answer::of(answer.headers(), Some(body).filter(|_| !self.read.is_head)));
        let is_known = kept.is_some();
        knowledge.enter_absent(&self.read, kept, question);
        ((answer, Outcome::Passed), is_known)
    }
}

/// Returns whether a status means that the endpoint cannot serve at the moment.
fn is_of_endpoint_away(status: StatusCode) -> bool {
    [500, 502, 503, 504].contains(&status.as_u16())
}
