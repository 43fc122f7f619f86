//! An S3 server with real connections, in this process, that fails on request: responses that are
//! late, truncated or lost, errors before and after the work is done, and requests to slow down. It
//! either serves requests itself, or is a proxy for another server.
//!
//! By itself the server supports the requests of the store: conditional puts, gets with ranges and
//! conditions, removals, and paged listings. Signatures are not checked. ETags derive from the
//! content, as in S3, and the clock does not advance until a test advances it.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// The time limit for a condition. It is generous, because the machine may be busy.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// The fate of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
    /// The request is served normally.
    None,
    /// The request is not executed; the response has this status and code.
    Refused(&'static str, &'static str),
    /// The request is executed, but the response is an error.
    DoneAndFailed,
    /// The request is not executed, and the connection is closed.
    CutBefore,
    /// The request is executed, and the connection is closed.
    CutAfter,
    /// The request is executed, and half of the response is sent.
    CutWithin,
    /// The request waits until the test releases it, and is then executed.
    HeldBefore,
    /// The request is executed, and its response waits until the test releases it.
    HeldAfter,
    /// The request is executed after this delay.
    LateBefore(Duration),
    /// The request is executed, and the response follows after this delay.
    LateAfter(Duration),
}

/// A request to slow down.
pub(crate) const SLOW_DOWN: Trouble = Trouble::Refused("503 Slow Down", "SlowDown");

/// One request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) method: String,
    /// The key, without the bucket; empty for the bucket itself.
    pub(crate) key: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
    /// Everything except the body, as received.
    head: String,
}

impl Asked {
    /// Returns the size of the request on the network, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Returns a value from the request's query.
    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str)
    }

    /// Returns the size of the request's body, in bytes.
    pub(crate) fn body_bytes(&self) -> usize {
        self.body.len()
    }
}

struct Stored {
    body: Vec<u8>,
    etag: String,
    /// Seconds since the server's first moment.
    at_secs: u64,
}

type Plan = Box<dyn FnMut(&Asked) -> Trouble + Send>;

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Stored>,
    plan: Option<Plan>,
    now_secs: u64,
    ignores_conditions_of_removals: bool,
    ignores_ranges: bool,
    /// The method of requests whose responses have no ETag.
    hides_etags_of: Option<&'static str>,
    /// The number of requests held or just released, and how many of them may continue.
    held: usize,
    release: usize,
    /// The server that does the work, if this one is a proxy.
    upstream: Option<String>,
    /// The number of requests in progress.
    busy: usize,
}

/// An S3 server in memory. Its threads end with the process.
pub(crate) struct Double {
    pub(crate) address: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
}

struct Answer {
    status: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Answer {
    fn new(status: &'static str) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new() }
    }

    fn error(status: &'static str, code: &str) -> Self {
        let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>.</Message></Error>");
        Self { body: body.into_bytes(), ..Self::new(status) }
    }

    fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    fn into_bytes(self, is_head: bool) -> Vec<u8> {
        let mut bytes = format!("HTTP/1.1 {}\r\n", self.status);
        for (name, value) in &self.headers {
            let _ = write!(bytes, "{name}: {value}\r\n");
        }
        let is_bodiless = self.status.starts_with("304") || self.status.starts_with("204");
        if !is_bodiless && self.headers.iter().all(|(name, _)| *name != "Content-Length") {
            let _ = write!(bytes, "Content-Length: {}\r\n", self.body.len());
        }
        bytes.push_str("\r\n");
        let mut bytes = bytes.into_bytes();
        if !is_head {
            bytes.extend_from_slice(&self.body);
        }
        bytes
    }
}

impl Double {
    pub(crate) fn new() -> Self {
        Self::start(None)
    }

    /// Returns a proxy for the server at `upstream`, `HOST:PORT`.
    pub(crate) fn before(upstream: &str) -> Self {
        Self::start(Some(upstream.to_owned()))
    }

    fn start(upstream: Option<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = State { upstream, ..State::default() };
        let state = Arc::new((Mutex::new(state), Condvar::new()));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let state = Arc::clone(&shared);
                let Ok(connection) = connection else { continue };
                std::thread::spawn(move || while serve(&connection, &state).is_some() {});
            }
        });
        Self { address, state }
    }

    /// Lets `plan` decide the fate of each request from now on.
    pub(crate) fn trouble(&self, plan: impl FnMut(&Asked) -> Trouble + Send + 'static) {
        self.state.0.lock().plan = Some(Box::new(plan));
    }

    /// Serves all requests normally from now on; held requests stay held.
    pub(crate) fn heal(&self) {
        self.state.0.lock().plan = None;
    }

    /// Waits until `count` requests are held.
    pub(crate) fn wait_held(&self, count: usize) {
        let mut state = self.state.0.lock();
        let deadline = Instant::now() + DEADLINE;
        while state.held < count {
            // If the client of the test has failed, no request comes; its own error is reported at the end of the
            // test.
            let waited = self.state.1.wait_until(&mut state, deadline);
            assert!(!waited.timed_out(), "{} requests are held, not {count}", state.held);
        }
    }

    pub(crate) fn held(&self) -> usize {
        self.state.0.lock().held
    }

    /// Releases all held requests, and waits until they are done.
    pub(crate) fn release(&self) {
        let mut state = self.state.0.lock();
        state.release = state.held;
        self.state.1.notify_all();
        while state.held > 0 {
            self.state.1.wait(&mut state);
        }
    }

    /// Waits until no request is in progress, including requests of disconnected clients.
    pub(crate) fn wait_idle(&self) {
        let mut state = self.state.0.lock();
        while state.busy > 0 {
            self.state.1.wait(&mut state);
        }
    }

    /// Executes removals regardless of their conditions.
    pub(crate) fn ignore_conditions_of_removals(&self) {
        self.state.0.lock().ignores_conditions_of_removals = true;
    }

    /// Omits the ETag from responses to requests with this method.
    pub(crate) fn hide_etags_of(&self, method: &'static str) {
        self.state.0.lock().hides_etags_of = Some(method);
    }

    /// Responds to reads with the whole object.
    pub(crate) fn ignore_ranges(&self) {
        self.state.0.lock().ignores_ranges = true;
    }

    /// Advances the server's time.
    pub(crate) fn advance(&self, secs: u64) {
        self.state.0.lock().now_secs += secs;
    }

    /// Returns all keys that start with `prefix`.
    pub(crate) fn keys(&self, prefix: &str) -> Vec<String> {
        let state = self.state.0.lock();
        state.objects.keys().filter(|key| key.starts_with(prefix)).cloned().collect()
    }

    /// Returns an object's content.
    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.state.0.lock().objects.get(key).map(|stored| stored.body.clone())
    }

    /// Puts an object, bypassing the plan.
    pub(crate) fn put(&self, key: &str, body: &[u8]) {
        self.state.0.lock().put(key.to_owned(), body.to_vec());
    }
}

/// Counts a request as in progress while this value exists.
struct Busy<'a>(&'a (Mutex<State>, Condvar));

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.0.lock().busy -= 1;
        self.0.1.notify_all();
    }
}

/// Serves one request of a connection; `None` at the connection's end.
fn serve(connection: &TcpStream, state: &(Mutex<State>, Condvar)) -> Option<()> {
    // Each request is read completely. Nothing of the next one is lost, because a client sends it
    // after the answer.
    let asked = read(connection)?;
    let (trouble, upstream) = {
        let mut state = state.0.lock();
        state.busy += 1;
        (state.plan.as_mut().map_or(Trouble::None, |plan| plan(&asked)), state.upstream.clone())
    };
    let _busy = Busy(state);
    let is_head = asked.method == "HEAD";
    let work = || match &upstream {
        Some(upstream) => forward(upstream, &asked),
        None => Some(state.0.lock().answer(&asked).into_bytes(is_head)),
    };
    let bytes = match trouble {
        Trouble::CutBefore => return None,
        Trouble::Refused(status, code) => Answer::error(status, code).into_bytes(is_head),
        Trouble::HeldBefore => {
            hold(state);
            let bytes = work();
            let_go(state);
            bytes?
        }
        Trouble::LateBefore(late) => {
            std::thread::sleep(late);
            work()?
        }
        _ => work()?,
    };
    let bytes = match trouble {
        Trouble::CutAfter => return None,
        Trouble::DoneAndFailed => {
            Answer::error("500 Internal Server Error", "InternalError").into_bytes(is_head)
        }
        Trouble::HeldAfter => {
            hold(state);
            let_go(state);
            bytes
        }
        Trouble::LateAfter(late) => {
            std::thread::sleep(late);
            bytes
        }
        _ => bytes,
    };
    let mut connection = connection;
    if trouble == Trouble::CutWithin {
        let _ = connection.write_all(&bytes[..bytes.len() / 2]);
        return None;
    }
    connection.write_all(&bytes).ok()
}

/// Forwards the request to the server behind this one. Returns its whole response; `None` if there
/// is none.
fn forward(upstream: &str, asked: &Asked) -> Option<Vec<u8>> {
    let mut connection = TcpStream::connect(upstream).ok()?;
    // Each request has its own connection: the end of the response is the end of the connection.
    let (line, headers) = asked.head.split_once("\r\n")?;
    let headers = headers.split("\r\n").filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
    let head = std::iter::once(line).chain(["Connection: close"]).chain(headers).collect::<Vec<_>>();
    connection.write_all(head.join("\r\n").as_bytes()).ok()?;
    connection.write_all(&asked.body).ok()?;
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).ok()?;
    (!answer.is_empty()).then_some(answer)
}

fn hold((state, changed): &(Mutex<State>, Condvar)) {
    let mut state = state.lock();
    state.held += 1;
    changed.notify_all();
    while state.release == 0 {
        changed.wait(&mut state);
    }
    state.release -= 1;
}

fn let_go((state, changed): &(Mutex<State>, Condvar)) {
    state.lock().held -= 1;
    changed.notify_all();
}

fn read(connection: &TcpStream) -> Option<Asked> {
    let mut from = BufReader::new(connection);
    let mut line = String::new();
    from.read_line(&mut line).ok().filter(|len| *len > 0)?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let query = pairs.map(|(key, value)| (key.to_owned(), decode(value))).collect();
    let key = path.trim_start_matches('/').split_once('/').map_or("", |(_, key)| key);
    let mut asked = Asked { method, key: decode(key), query, ..Asked::default() };
    asked.head.clone_from(&line);
    loop {
        line.clear();
        from.read_line(&mut line).ok().filter(|len| *len > 0)?;
        asked.head.push_str(&line);
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        asked.headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let len: u64 = asked.headers.get("content-length").map_or(0, |len| len.parse().unwrap());
    from.take(len).read_to_end(&mut asked.body).ok().filter(|read| *read as u64 == len)?;
    Some(asked)
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
            }
            b'+' => bytes.push(b' '),
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).unwrap()
}

/// Converts a time in seconds, within the server's first month, to the day and the time of day.
fn clock(secs: u64) -> (u64, String) {
    let text = format!("{:02}:{:02}:{:02}", secs / 3600 % 24, secs / 60 % 60, secs % 60);
    (1 + secs / 86_400, text)
}

impl State {
    fn put(&mut self, key: String, body: Vec<u8>) -> String {
        let mut hasher = DefaultHasher::new();
        body.hash(&mut hasher);
        let etag = format!("\"{:016x}\"", hasher.finish());
        let stored = Stored { body, etag: etag.clone(), at_secs: self.now_secs };
        self.objects.insert(key, stored);
        etag
    }

    fn answer(&mut self, asked: &Asked) -> Answer {
        let mut answer = self.whole_answer(asked);
        if self.hides_etags_of == Some(asked.method.as_str()) {
            answer.headers.retain(|(name, _)| *name != "ETag");
        }
        answer
    }

    fn whole_answer(&mut self, asked: &Asked) -> Answer {
        let lost = Answer::error("412 Precondition Failed", "PreconditionFailed");
        let missing = Answer::error("404 Not Found", "NoSuchKey");
        let found = self.objects.get(&asked.key);
        let header = |name: &str| asked.headers.get(name).map(String::as_str);
        match asked.method.as_str() {
            "PUT" => {
                match (header("if-match"), found) {
                    (Some(_), None) => return missing,
                    (Some(wanted), Some(found)) if wanted != found.etag => return lost,
                    _ => {}
                }
                if header("if-none-match") == Some("*") && found.is_some() {
                    return lost;
                }
                Answer::new("200 OK").header("ETag", self.put(asked.key.clone(), asked.body.clone()))
            }
            "DELETE" => {
                if let (Some(wanted), Some(found)) = (header("if-match"), found)
                    && wanted != found.etag
                    && !self.ignores_conditions_of_removals
                {
                    return lost;
                }
                self.objects.remove(&asked.key);
                Answer::new("204 No Content")
            }
            _ if asked.key.is_empty() => self.list(&asked.query),
            _ => {
                let Some(found) = found else { return missing };
                if header("if-none-match") == Some(&found.etag) {
                    return Answer::new("304 Not Modified").header("ETag", &found.etag);
                }
                let (day, time) = clock(found.at_secs);
                let dated = |answer: Answer| {
                    let answer = answer.header("ETag", &found.etag);
                    answer.header("Last-Modified", format!("Thu, {day:02} Jan 2026 {time} GMT"))
                };
                let len = found.body.len();
                let asked_range = header("range").filter(|_| !self.ignores_ranges);
                let Some(range) = asked_range.and_then(|range| range.strip_prefix("bytes=")) else {
                    let answer = dated(Answer::new("200 OK")).header("Content-Length", len.to_string());
                    return Answer { body: found.body.clone(), ..answer };
                };
                let (first, last) = range.split_once('-').unwrap();
                let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
                if first >= len {
                    return Answer::error("416 Range Not Satisfiable", "InvalidRange");
                }
                let last = last.min(len - 1);
                let body = found.body[first..=last].to_vec();
                let answer = dated(Answer::new("206 Partial Content"));
                Answer { body, ..answer.header("Content-Range", format!("bytes {first}-{last}/{len}")) }
            }
        }
    }

    fn list(&self, query: &BTreeMap<String, String>) -> Answer {
        let get = |name: &str| query.get(name).cloned().unwrap_or_default();
        let (prefix, delimiter) = (get("prefix"), get("delimiter"));
        let after = get("continuation-token").max(get("start-after"));
        let max: usize = get("max-keys").parse().unwrap_or(1000);
        let mut body = "<ListBucketResult>".to_owned();
        let (mut last, mut count, mut is_cut) = (String::new(), 0, false);
        for (key, stored) in self.objects.range::<str, _>((Bound::Excluded(&*after), Bound::Unbounded)) {
            let Some(rest) = key.strip_prefix(&*prefix) else { continue };
            let common = rest.split_once('/').filter(|_| !delimiter.is_empty());
            if let Some((directory, _)) = common {
                let common = format!("{prefix}{directory}/");
                if last.starts_with(&common) || after.starts_with(&common) {
                    continue;
                }
                if count == max {
                    is_cut = true;
                    break;
                }
                let _ = write!(body, "<CommonPrefixes><Prefix>{common}</Prefix></CommonPrefixes>");
            } else {
                if count == max {
                    is_cut = true;
                    break;
                }
                let (day, time) = clock(stored.at_secs);
                let etag = stored.etag.trim_matches('"');
                let _ = write!(
                    body,
                    "<Contents><Key>{key}</Key><Size>{}</Size><ETag>&quot;{etag}&quot;</ETag>\
                     <LastModified>2026-01-{day:02}T{time}.000Z</LastModified></Contents>",
                    stored.body.len()
                );
            }
            last.clone_from(key);
            count += 1;
        }
        if is_cut {
            let _ = write!(body, "<NextContinuationToken>{last}</NextContinuationToken>");
        }
        let _ = write!(body, "<IsTruncated>{is_cut}</IsTruncated></ListBucketResult>");
        Answer { body: body.into_bytes(), ..Answer::new("200 OK").header("Content-Type", "application/xml") }
    }
}
