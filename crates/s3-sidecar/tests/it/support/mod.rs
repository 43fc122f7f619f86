//! An S3-like endpoint in this process whose responses the tests control, and a client that sends
//! arbitrary bytes.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use s3_sidecar::{Auth, Fresh, Sidecar, SidecarConfig};
use socket2::{Domain, Socket, Type};

pub mod signer;

/// How long anything may take before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// An object of the endpoint.
#[derive(Clone, Debug)]
pub struct Object {
    pub body: Vec<u8>,
    pub etag: String,
    pub modified: String,
    pub headers: Vec<(String, String)>,
}

/// Returns an object with this body.
pub fn object(etag: &str, body: impl Into<Vec<u8>>) -> Object {
    let modified = "Mon, 01 Jan 2024 00:00:00 GMT".to_owned();
    Object { body: body.into(), etag: format!("\"{etag}\""), modified, headers: Vec::new() }
}

/// Returns bytes that identify their position.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8 ^ seed).collect()
}

/// A request as the endpoint saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub line: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Seen {
    pub fn method(&self) -> &str {
        self.line.split(' ').next().unwrap_or_default()
    }

    pub fn target(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }
}

/// The treatment of a request by the endpoint.
#[derive(Clone)]
pub enum Act {
    /// Answers like S3.
    Serve,
    /// Answers like S3 once the gate is open.
    ServeAfter(Arc<Gate>),
    /// Prepares its response immediately, and sends it once the gate is open.
    Late(Arc<Gate>),
    /// Prepares its answer, and yields to other threads this many times before it sends it.
    Lagging(u64),
    /// Sends the head and this many bytes of the body, and the rest once the gate is open.
    PauseAt(usize, Arc<Gate>),
    /// Sends the head and this many bytes of the body, and closes.
    CutAt(usize),
    /// Sends these bytes and closes.
    Raw(Vec<u8>),
    /// Like radosgw, answers with these bytes without reading the body, at once or when the body
    /// has started to arrive, and treats what follows as the next request.
    Refuse { bytes: Vec<u8>, is_late: bool },
    /// Reads only the head, sends these bytes, and closes.
    RefuseAndClose(Vec<u8>),
    /// Closes without an answer.
    Hang,
}

/// A gate that tests open.
#[derive(Debug, Default)]
pub struct Gate {
    is_open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    pub fn new() -> Arc<Gate> {
        Arc::default()
    }

    pub fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn wait(&self) {
        let open = self.is_open.lock().unwrap();
        let (open, _) = self.changed.wait_timeout_while(open, PATIENCE, |open| !*open).unwrap();
        assert!(*open, "the gate was never opened");
    }
}

type Hook = Box<dyn Fn(&Seen) -> Act + Send + Sync>;

#[derive(Default)]
struct State {
    objects: Mutex<HashMap<String, Object>>,
    seen: Mutex<Vec<Seen>>,
    seen_changed: Condvar,
    hook: Mutex<Option<Arc<Hook>>>,
    /// Whether status 100 is sent to clients that expect it.
    continues: Mutex<bool>,
    /// Whether keys are treated as paths.
    folds: AtomicBool,
    /// Whether keys that differ only in letter case are the same.
    folds_letters: AtomicBool,
}

/// The endpoint.
#[derive(Clone)]
pub struct Endpoint {
    state: Arc<State>,
    address: SocketAddr,
}

impl Endpoint {
    pub fn start() -> Endpoint {
        Endpoint::start_on(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    fn start_on(listener: TcpListener) -> Endpoint {
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        *state.continues.lock().unwrap() = true;
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for socket in listener.incoming() {
                let (socket, state) = (socket.unwrap(), Arc::clone(&shared));
                // Ends with its connection.
                thread::spawn(move || {
                    let _ended = serve(&socket, &state);
                });
            }
        });
        Endpoint { state, address }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn put(&self, path: &str, object: Object) {
        self.state.objects.lock().unwrap().insert(path.into(), object);
    }

    pub fn remove(&self, path: &str) {
        self.state.objects.lock().unwrap().remove(path);
    }

    /// Sets the function that decides about each request from now on.
    pub fn on_request(&self, hook: impl Fn(&Seen) -> Act + Send + Sync + 'static) {
        *self.state.hook.lock().unwrap() = Some(Arc::new(Box::new(hook)));
    }

    pub fn answer_no_expectation(&self) {
        *self.state.continues.lock().unwrap() = false;
    }

    /// Treats keys as paths from now on, like an endpoint that keeps objects as files.
    pub fn fold_paths(&self) {
        self.state.folds.store(true, Ordering::Relaxed);
    }

    /// Treats keys that differ only in letter case as the same from now on. Existing keys must be
    /// in lower case.
    pub fn fold_letters(&self) {
        self.state.folds_letters.store(true, Ordering::Relaxed);
    }

    /// Returns the requests since the last call.
    pub fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.state.seen.lock().unwrap())
    }

    /// Waits until there are that many requests since the last call of `take_seen`.
    pub fn wait_for_requests(&self, count: usize) {
        let seen = self.state.seen.lock().unwrap();
        let (seen, _) =
            self.state.seen_changed.wait_timeout_while(seen, PATIENCE, |seen| seen.len() < count).unwrap();
        assert!(seen.len() >= count, "only {} requests came", seen.len());
    }

    /// Starts a sidecar in front of it that decides about rights, and keeps objects fresh for
    /// `fresh`.
    pub fn fresh_sidecar(&self, fresh: Fresh, change: impl FnOnce(&mut SidecarConfig)) -> Sidecar {
        self.sidecar(|config| {
            config.auth = Auth::None;
            config.policy.fresh = fresh;
            change(config);
        })
    }

    /// Starts a sidecar in front of it, with short time limits where tests wait for them.
    pub fn sidecar(&self, change: impl FnOnce(&mut SidecarConfig)) -> Sidecar {
        let mut config = SidecarConfig::new(self.url().parse().unwrap());
        config.listen = vec!["127.0.0.1:0".into()];
        config.memory_bytes = 64 << 20;
        config.drain_timeout = Duration::from_millis(1);
        (config.share_wait_max, config.continue_wait_max) = (PATIENCE, PATIENCE);
        change(&mut config);
        Sidecar::start(config).unwrap()
    }
}

/// The address of an unavailable endpoint, which refuses connections.
pub struct Away(Socket);

impl Away {
    pub fn new() -> Away {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        Away(socket)
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().unwrap().as_socket().unwrap())
    }

    /// Starts the endpoint.
    pub fn come_back(self) -> Endpoint {
        self.0.listen(64).unwrap();
        Endpoint::start_on(self.0.into())
    }
}

fn header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(each, _)| each.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

fn read_head(reader: &mut impl BufRead) -> Option<(String, Vec<(String, String)>)> {
    let mut line = String::new();
    if reader.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let mut headers = Vec::new();
    loop {
        let mut text = String::new();
        reader.read_line(&mut text).ok()?;
        let text = text.trim_end_matches(['\r', '\n']);
        if text.is_empty() {
            return Some((line.trim_end().to_owned(), headers));
        }
        let (name, value) = text.split_once(':')?;
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
}

fn read_chunked(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let len = usize::from_str_radix(line.trim().split(';').next()?, 16).ok()?;
        let mut chunk = vec![0; len + 2];
        reader.read_exact(&mut chunk).ok()?;
        body.extend_from_slice(&chunk[..len]);
        if len == 0 {
            return Some(body);
        }
    }
}

fn serve(socket: &TcpStream, state: &State) -> Option<()> {
    socket.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(socket.try_clone().ok()?);
    let mut writer = socket.try_clone().ok()?;
    while let Some((line, headers)) = read_head(&mut reader) {
        let expects = header(&headers, "expect").is_some() && *state.continues.lock().unwrap();
        let mut seen = Seen { line, headers, body: Vec::new() };
        let hook = state.hook.lock().unwrap().clone();
        let act = hook.map_or(Act::Serve, |hook| hook(&seen));
        if !matches!(act, Act::Raw(_) | Act::Refuse { .. } | Act::RefuseAndClose(_)) {
            if expects {
                writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
            }
            if seen.header("transfer-encoding").is_some() {
                seen.body = read_chunked(&mut reader)?;
            } else if let Some(len) = seen.header("content-length") {
                seen.body = vec![0; len.parse().ok()?];
                reader.read_exact(&mut seen.body).ok()?;
            }
        }
        // The answer is prepared when the request is seen, unless that has to wait.
        let made_up =
            (!matches!(act, Act::ServeAfter(_) | Act::Raw(_) | Act::Refuse { .. } | Act::RefuseAndClose(_)))
                .then(|| answer(&seen, state));
        state.seen.lock().unwrap().push(seen.clone());
        state.seen_changed.notify_all();
        match &act {
            Act::ServeAfter(gate) => gate.wait(),
            Act::Raw(bytes) => {
                writer.write_all(bytes).ok()?;
                return socket.shutdown(Shutdown::Both).ok();
            }
            // With unread bytes, the connection is reset.
            Act::RefuseAndClose(bytes) => return writer.write_all(bytes).ok(),
            _ => (),
        }
        let (head, mut body) = made_up.unwrap_or_else(|| answer(&seen, state));
        if seen.method() == "HEAD" {
            body.clear();
        }
        match act {
            Act::Serve | Act::ServeAfter(_) | Act::Late(_) | Act::Lagging(_) => {
                match act {
                    Act::Late(gate) => gate.wait(),
                    Act::Lagging(turns) => (0..turns).for_each(|_| thread::yield_now()),
                    _ => (),
                }
                writer.write_all(&head).ok()?;
                writer.write_all(&body).ok()?;
            }
            Act::PauseAt(at, gate) => {
                writer.write_all(&head).ok()?;
                writer.write_all(&body[..at]).ok()?;
                gate.wait();
                writer.write_all(&body[at..]).ok()?;
            }
            Act::CutAt(at) => {
                writer.write_all(&head).ok()?;
                writer.write_all(&body[..at]).ok()?;
                return socket.shutdown(Shutdown::Both).ok();
            }
            // The request has been answered already.
            Act::Raw(_) | Act::RefuseAndClose(_) => (),
            Act::Refuse { bytes, is_late } => {
                if is_late {
                    reader.fill_buf().ok()?;
                }
                writer.write_all(&bytes).ok()?;
            }
            Act::Hang => return socket.shutdown(Shutdown::Both).ok(),
        }
    }
    Some(())
}

/// Returns a path without the parts that file systems ignore.
fn fold(path: &str) -> String {
    let mut folded = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => (),
            ".." => drop(folded.pop()),
            segment => folded.push(segment),
        }
    }
    format!("/{}", folded.join("/"))
}

/// Answers like S3: reads with conditions and one range, puts, deletes, and a plain list of words
/// for everything else.
fn answer(seen: &Seen, state: &State) -> (Vec<u8>, Vec<u8>) {
    let path = seen.target().split('?').next().unwrap_or_default();
    let path = if state.folds.load(Ordering::Relaxed) { fold(path) } else { path.to_owned() };
    let path = if state.folds_letters.load(Ordering::Relaxed) { path.to_lowercase() } else { path };
    let mut objects = state.objects.lock().unwrap();
    let plain = |status: &str, body: &str| {
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nx-amz-request-id: r\r\n\r\n", body.len());
        (head.into_bytes(), body.as_bytes().to_vec())
    };
    match seen.method() {
        "PUT" => {
            let etag = format!(
                "{:x}",
                seen.body
                    .iter()
                    .fold(7_u64, |sum, byte| { sum.wrapping_mul(0x100_0000_01b3) ^ u64::from(*byte) })
            );
            objects.insert(path, object(&etag, seen.body.clone()));
            plain(&format!("200 OK\r\nETag: \"{etag}\""), "")
        }
        "DELETE" => {
            objects.remove(&path);
            ("HTTP/1.1 204 No Content\r\n\r\n".into(), Vec::new())
        }
        "GET" | "HEAD" => {
            let Some(object) = objects.get(&path) else {
                return plain("404 Not Found", "<Code>NoSuchKey</Code>");
            };
            if seen.header("if-match").is_some_and(|etag| etag != object.etag) {
                return plain("412 Precondition Failed", "<Code>PreconditionFailed</Code>");
            }
            let own = format!("ETag: {}\r\nLast-Modified: {}\r\n", object.etag, object.modified);
            if seen.header("if-none-match").is_some_and(|etag| etag == object.etag) {
                let head = format!("HTTP/1.1 304 Not Modified\r\n{own}x-amz-request-id: fresh\r\n\r\n");
                return (head.into_bytes(), Vec::new());
            }
            let size = object.body.len();
            let range = seen.header("range").and_then(|range| {
                let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
                match (first, last) {
                    ("", count) => Some(size.saturating_sub(count.parse().ok()?)..size),
                    (first, "") => Some(first.parse().ok()?..size),
                    (first, last) => Some(first.parse().ok()?..(last.parse::<usize>().ok()? + 1).min(size)),
                }
            });
            let range = range.filter(|_| seen.header("if-range").is_none_or(|etag| etag == object.etag));
            if range.as_ref().is_some_and(|range| range.start >= range.end) {
                return plain("416 Range Not Satisfiable", "<Code>InvalidRange</Code>");
            }
            let (status, part, content_range) = match range {
                None => ("200 OK", 0..size, String::new()),
                Some(range) => {
                    let text = format!("Content-Range: bytes {}-{}/{size}\r\n", range.start, range.end - 1);
                    ("206 Partial Content", range, text)
                }
            };
            let more: String =
                object.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            let head = format!(
                "HTTP/1.1 {status}\r\n{own}{content_range}Content-Length: {}\r\nx-amz-request-id: first\r\n{more}\r\n",
                part.len()
            );
            (head.into_bytes(), object.body[part].to_vec())
        }
        _ => plain("200 OK", &format!("{} of {} bytes", seen.line, seen.body.len())),
    }
}

/// A response, as seen by a client.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Whether the body ended early.
    pub is_cut: bool,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }
}

/// A connection of a client.
pub struct Client {
    reader: BufReader<TcpStream>,
}

impl Client {
    pub fn of(sidecar: &Sidecar) -> Client {
        let socket = TcpStream::connect(sidecar.addresses()[0]).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Client { reader: BufReader::new(socket) }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.reader.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    /// Sends as much as the other side accepts.
    pub fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.reader.get_mut().write_all(bytes)
    }

    /// Reads the head of an answer.
    pub fn head(&mut self) -> Option<Answer> {
        let (line, headers) = read_head(&mut self.reader)?;
        let status = line.split(' ').nth(1)?.parse().ok()?;
        Some(Answer { status, headers, body: Vec::new(), is_cut: false })
    }

    /// Reads the next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.reader.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Reads the rest of a response whose head was read.
    pub fn finish(&mut self, mut answer: Answer, is_head: bool) -> Answer {
        if is_head || [100, 204, 304].contains(&answer.status) {
            return answer;
        }
        if answer.header("transfer-encoding").is_some() {
            match read_chunked(&mut self.reader) {
                Some(body) => answer.body = body,
                None => answer.is_cut = true,
            }
            return answer;
        }
        let len: usize = answer.header("content-length").map_or(0, |len| len.parse().unwrap());
        let mut limited = (&mut self.reader).take(len as u64);
        // The connection may be reset.
        let ended = limited.read_to_end(&mut answer.body);
        answer.is_cut = ended.is_err() || answer.body.len() < len;
        answer
    }

    pub fn answer(&mut self) -> Answer {
        let head = self.head().expect("an answer");
        self.finish(head, false)
    }

    /// Sends a request without a body and reads its answer.
    pub fn ask(&mut self, line: &str, headers: &[(&str, &str)]) -> Answer {
        self.send(request(line, headers));
        let head = self.head().expect("an answer");
        self.finish(head, line.starts_with("HEAD "))
    }

    /// Returns whether the other side has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        matches!(self.reader.read(&mut byte), Ok(0) | Err(_))
    }
}

/// Returns a request without a body.
pub fn request(line: &str, headers: &[(&str, &str)]) -> String {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("{line} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n")
}

/// Sends one request on its own connection.
pub fn ask(sidecar: &Sidecar, line: &str, headers: &[(&str, &str)]) -> Answer {
    Client::of(sidecar).ask(line, headers)
}
