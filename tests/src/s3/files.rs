//! An S3 endpoint in this process that treats keys as a file system does: empty and dot segments
//! are ignored, and on request letter case or Unicode forms are folded. It verifies no signatures.
//!
//! `Last-Modified` counts changes instead of time, so that two changes are never within one second.

use crate::s3::wire::{line, read_headers};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Starts an endpoint, which ends with the process, and returns its URL.
///
/// # Panics
/// Panics if no loopback port is free.
pub fn start(folds_letters: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("its address"));
    let files = Arc::new(Files { folds_letters, state: Mutex::default() });
    thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let files = Arc::clone(&files);
            // A failed connection is closed.
            thread::spawn(move || drop(files.serve(&socket)));
        }
    });
    url
}

struct Files {
    folds_letters: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    buckets: HashMap<String, BTreeMap<String, Object>>,
    changes: u64,
}

#[derive(Clone)]
struct Object {
    /// The key with which the object was created, as shown in listings.
    name: String,
    body: Vec<u8>,
    etag: String,
    /// The number of the change that created the object.
    changed: u64,
    headers: Vec<(String, String)>,
    checksum: Option<String>,
    tags: Vec<(String, String)>,
}

struct Request {
    method: String,
    path: String,
    query: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(each, _)| each == name).map(|(_, value)| value.as_str())
    }

    fn has(&self, parameter: &str) -> bool {
        self.query.split('&').any(|each| each.split('=').next() == Some(parameter))
    }
}

impl Answer {
    fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into() }
    }

    fn error(status: u16, code: &str) -> Self {
        Self::new(status, format!("<Error><Code>{code}</Code></Error>"))
    }

    fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

impl Files {
    fn serve(&self, socket: &TcpStream) -> io::Result<()> {
        socket.set_nodelay(true)?;
        let mut reader = BufReader::new(socket.try_clone()?);
        let mut writer = socket.try_clone()?;
        loop {
            let first = line(&mut reader)?;
            let mut parts = first.split(' ');
            let [method, target] = [(); 2].map(|()| parts.next().unwrap_or_default().to_owned());
            let (path, query) = target.split_once('?').unwrap_or((&target, ""));
            let (path, query) = (path.to_owned(), query.to_owned());
            let headers = read_headers(&mut reader)?;
            let mut request = Request { method, path, query, headers, body: Vec::new() };
            let is_last = request.header("connection").is_some_and(|value| value.contains("close"));
            let (answer, is_over) = match read_body(&mut reader, &request)? {
                Ok(body) => {
                    request.body = body;
                    (self.answer(&request), is_last)
                }
                // The end of the request cannot be determined.
                Err(answer) => (answer, true),
            };
            let mut head = format!("HTTP/1.1 {} x\r\nx-amz-request-id: 1\r\n", answer.status);
            if is_over {
                head += "Connection: close\r\n";
            }
            for (name, value) in &answer.headers {
                let _ = write!(head, "{name}: {value}\r\n");
            }
            if ![204, 304].contains(&answer.status) {
                let _ = write!(head, "Content-Length: {}\r\n", answer.body.len());
            }
            let has_body = request.method != "HEAD" && ![204, 304].contains(&answer.status);
            let body = if has_body { &answer.body[..] } else { b"" };
            writer.write_all(&[head.as_bytes(), b"\r\n", body].concat())?;
            if is_over {
                return Ok(());
            }
        }
    }

    fn answer(&self, request: &Request) -> Answer {
        let (bucket, key) = request
            .path
            .strip_prefix('/')
            .unwrap_or_default()
            .split_once('/')
            .unwrap_or((request.path.strip_prefix('/').unwrap_or_default(), ""));
        let Some(key) = decoded(key) else { return Answer::error(400, "InvalidURI") };
        let mut state = self.state.lock().expect("no thread has panicked");
        let State { buckets, changes } = &mut *state;
        if bucket.is_empty() {
            return match request.method.as_str() {
                "GET" => Answer::new(200, "<ListAllMyBucketsResult/>"),
                _ => Answer::error(405, "MethodNotAllowed"),
            };
        }
        if key.is_empty() && request.method == "PUT" {
            buckets.entry(bucket.to_owned()).or_default();
            return Answer::new(200, "");
        }
        let source = self.source(request, buckets);
        let Some(objects) = buckets.get_mut(bucket) else { return Answer::error(404, "NoSuchBucket") };
        if key.is_empty() {
            return match request.method.as_str() {
                "GET" => list(objects, &request.query),
                "POST" if request.has("delete") => self.delete_many(objects, &request.body),
                _ => Answer::error(405, "MethodNotAllowed"),
            };
        }
        let place = self.folded(&key);
        match (request.method.as_str(), objects.get_mut(&place)) {
            ("GET" | "PUT" | "DELETE", object) if request.has("tagging") => match object {
                Some(object) => tagging(object, request),
                None => Answer::error(404, "NoSuchKey"),
            },
            ("GET" | "HEAD", Some(object)) => object.read(request),
            ("GET" | "HEAD", None) => Answer::error(404, "NoSuchKey"),
            ("DELETE", _) => {
                objects.remove(&place);
                Answer::new(204, "")
            }
            ("PUT", known) => {
                let made = match source {
                    Some(source) => source.ok_or((404, "NoSuchKey")),
                    None => Object::made(request).ok_or((400, "IncompleteBody")),
                };
                let mut object = match made {
                    Ok(object) => object,
                    Err((status, code)) => return Answer::error(status, code),
                };
                *changes += 1;
                object.changed = *changes;
                object.name = known.map_or_else(|| path(&key), |known| known.name.clone());
                let etag = object.etag.clone();
                objects.insert(place, object);
                let body = match request.header("x-amz-copy-source") {
                    Some(_) => format!("<CopyObjectResult><ETag>{etag}</ETag></CopyObjectResult>"),
                    None => String::new(),
                };
                Answer::new(200, body).with("ETag", etag)
            }
            _ => Answer::error(405, "MethodNotAllowed"),
        }
    }

    /// Returns the source of a copy, if the source exists; `None` if the request is not a copy. As
    /// in servers that get headers through CGI, separators in the header's name are treated as
    /// equal.
    fn source(
        &self,
        request: &Request,
        buckets: &HashMap<String, BTreeMap<String, Object>>,
    ) -> Option<Option<Object>> {
        let is_source = |name: &str| name.replace('_', "-") == "x-amz-copy-source";
        let (_, source) = request.headers.iter().find(|(name, _)| is_source(name))?;
        let (bucket, key) = source.trim_start_matches('/').split_once('/')?;
        Some(decoded(key).and_then(|key| buckets.get(bucket)?.get(&self.folded(&key)).cloned()))
    }

    /// Returns the folded form, which is common to all names of an object.
    fn folded(&self, key: &str) -> String {
        let path = path(key);
        // This is the only letter in the tests with two Unicode forms.
        if self.folds_letters { path.to_lowercase().replace('\u{fc}', "u\u{308}") } else { path }
    }

    fn delete_many(&self, objects: &mut BTreeMap<String, Object>, body: &[u8]) -> Answer {
        let mut result = String::from("<DeleteResult>");
        let text = String::from_utf8_lossy(body);
        for part in text.split("<Key>").skip(1) {
            let key = part.split("</Key>").next().unwrap_or_default();
            objects.remove(&self.folded(key));
            let _ = write!(result, "<Deleted><Key>{key}</Key></Deleted>");
        }
        Answer::new(200, result + "</DeleteResult>")
    }
}

/// Returns a key as a path, without segments that a file system ignores.
fn path(key: &str) -> String {
    let mut all = Vec::new();
    for segment in key.split('/') {
        match segment {
            "" | "." => (),
            ".." => drop(all.pop()),
            segment => all.push(segment),
        }
    }
    all.join("/")
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| *byte == b'%').and_then(|text| std::str::from_utf8(text).ok());
        match digits {
            Some(digits) => {
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                rest = &after[2..];
            }
            None => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// Reads the body of a request. Returns the error response if the end of the body is unknown.
fn read_body(reader: &mut impl BufRead, request: &Request) -> io::Result<Result<Vec<u8>, Answer>> {
    let all = |wanted: &str| -> Vec<&str> {
        let named = request.headers.iter().filter(|(name, _)| name == wanted);
        named.map(|(_, value)| value.as_str()).collect()
    };
    let mut body = Vec::new();
    match (&all("transfer-encoding")[..], &all("content-length")[..]) {
        ([], []) => (),
        ([], [len]) if !len.is_empty() && len.bytes().all(|byte| byte.is_ascii_digit()) => {
            body = vec![0; len.parse().map_err(io::Error::other)?];
            reader.read_exact(&mut body)?;
        }
        ([], _) => return Ok(Err(Answer::error(400, "InvalidRequest"))),
        ([coding], []) if coding.eq_ignore_ascii_case("chunked") => loop {
            let text = line(reader)?;
            let len = usize::from_str_radix(text.split(';').next().unwrap_or_default(), 16);
            let mut chunk = vec![0; len.map_err(io::Error::other)? + 2];
            reader.read_exact(&mut chunk)?;
            if chunk.len() == 2 {
                break;
            }
            body.extend_from_slice(&chunk[..chunk.len() - 2]);
        },
        _ => return Ok(Err(Answer::error(501, "NotImplemented"))),
    }
    Ok(Ok(body))
}

/// Removes S3's chunk framing from a body; returns the bytes and the trailing checksum, or `None`
/// if the body is incomplete.
fn without_chunks(mut body: &[u8]) -> Option<(Vec<u8>, Option<String>)> {
    let (mut bytes, mut checksum) = (Vec::new(), None);
    loop {
        let head = line(&mut body).ok()?;
        let len = usize::from_str_radix(head.split(';').next()?, 16).ok()?;
        if len == 0 {
            break;
        }
        bytes.extend_from_slice(body.get(..len)?);
        body = body.get(len..)?.strip_prefix(b"\r\n")?;
    }
    while let Ok(text) = line(&mut body) {
        checksum =
            text.strip_prefix("x-amz-checksum-crc32:").map(|value| value.trim().to_owned()).or(checksum);
    }
    Some((bytes, checksum))
}

fn pairs(text: &str) -> Vec<(String, String)> {
    let parts = text.split('&').filter_map(|part| part.split_once('='));
    parts.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Lists the objects whose names begin with a prefix.
fn list(objects: &BTreeMap<String, Object>, query: &str) -> Answer {
    let prefix = pairs(query).into_iter().find(|(name, _)| name == "prefix").map(|(_, prefix)| prefix);
    let prefix = prefix.as_deref().and_then(decoded).unwrap_or_default();
    let listed = objects.values().filter(|object| object.name.starts_with(&prefix));
    let each = |object: &Object| format!("<Key>{}</Key><ETag>{}</ETag>", object.name, object.etag);
    let contents: Vec<String> = listed.map(each).collect();
    let (count, contents) = (contents.len(), contents.concat());
    Answer::new(
        200,
        format!(
            "<ListBucketResult><Prefix>{prefix}</Prefix><KeyCount>{count}</KeyCount>{contents}</ListBucketResult>"
        ),
    )
}

fn tagging(object: &mut Object, request: &Request) -> Answer {
    match request.method.as_str() {
        "GET" => {
            let each = |(key, value): &(String, String)| {
                format!("<Tag><Key>{key}</Key><Value>{value}</Value></Tag>")
            };
            let tags: String = object.tags.iter().map(each).collect();
            Answer::new(200, format!("<Tagging><TagSet>{tags}</TagSet></Tagging>"))
        }
        "PUT" => {
            let text = String::from_utf8_lossy(&request.body);
            let value = text.split("<Value>").nth(1).and_then(|rest| rest.split("</Value>").next());
            object.tags = vec![("a".into(), value.unwrap_or_default().into())];
            Answer::new(200, "")
        }
        _ => {
            object.tags.clear();
            Answer::new(204, "")
        }
    }
}

/// The headers that are stored with an object, apart from its metadata.
const KEPT: [&str; 5] =
    ["cache-control", "content-disposition", "content-encoding", "content-language", "content-type"];

/// The day of all changes; the number of a change is its second on this day.
const DAY: &str = "Mon, 01 Jan 2024 ";

impl Object {
    /// Returns the object that a request creates; `None` if the body is incomplete.
    fn made(request: &Request) -> Option<Object> {
        let is_chunked =
            request.header("x-amz-content-sha256").is_some_and(|hash| hash.starts_with("STREAMING-"));
        let (body, checksum) =
            if is_chunked { without_chunks(&request.body)? } else { (request.body.clone(), None) };
        let is_kept = |name: &str| KEPT.contains(&name) || name.starts_with("x-amz-meta-");
        let headers = request.headers.iter().filter(|(name, value)| is_kept(name) && value != "aws-chunked");
        let hash = body.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
        Some(Object {
            name: String::new(),
            etag: format!("\"{hash:016x}{:08x}\"", body.len()),
            changed: 0,
            headers: headers.cloned().collect(),
            checksum,
            tags: request.header("x-amz-tagging").map(pairs).unwrap_or_default(),
            body,
        })
    }

    fn read(&self, request: &Request) -> Answer {
        let seconds = self.changed;
        let modified = format!("{DAY}{:02}:{:02}:{:02} GMT", seconds / 3600, seconds / 60 % 60, seconds % 60);
        // The result is `None` for a date in the future.
        let is_changed_since = |name: &str| {
            let since = request.header(name)?.strip_prefix(DAY)?;
            Some(modified[DAY.len()..] > *since)
        };
        let has_tag = |name: &str| request.header(name).map(|tag| tag == self.etag);
        if has_tag("if-match") == Some(false)
            || has_tag("if-match").is_none() && is_changed_since("if-unmodified-since") == Some(true)
        {
            return Answer::error(412, "PreconditionFailed");
        }
        if has_tag("if-none-match") == Some(true)
            || has_tag("if-none-match").is_none() && is_changed_since("if-modified-since") == Some(false)
        {
            return Answer::new(304, "").with("ETag", &self.etag).with("Last-Modified", modified);
        }
        let size = self.body.len();
        let range = request.header("range").and_then(|range| {
            let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
            match (first.parse::<usize>(), last.parse::<usize>()) {
                (Ok(first), Ok(last)) => Some(first..size.min(last + 1)),
                (Ok(first), Err(_)) => Some(first..size),
                (Err(_), Ok(count)) => Some(size.saturating_sub(count)..size),
                (Err(_), Err(_)) => None,
            }
        });
        if range.as_ref().is_some_and(|range| range.start >= range.end) {
            return Answer::error(416, "InvalidRange");
        }
        let bytes = range.clone().unwrap_or(0..size);
        let mut answer = match &range {
            None => Answer::new(200, &self.body[..]),
            Some(_) => Answer::new(206, &self.body[bytes.clone()])
                .with("Content-Range", format!("bytes {}-{}/{size}", bytes.start, bytes.end - 1)),
        };
        answer = answer.with("ETag", &self.etag).with("Last-Modified", modified);
        answer.headers.extend(self.headers.iter().cloned());
        if !self.tags.is_empty() {
            answer = answer.with("x-amz-tagging-count", self.tags.len().to_string());
        }
        match &self.checksum {
            Some(checksum) if request.header("x-amz-checksum-mode").is_some() && bytes == (0..size) => {
                answer.with("x-amz-checksum-crc32", checksum)
            }
            _ => answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_folded_as_they_are_asked_to_be() {
        for (folds_letters, key, folded) in [
            (false, "//q/./y/", "q/y"),
            (false, "x/../../R", "R"),
            (true, "R", "r"),
            (true, "\u{dc} b", "u\u{308} b"),
            (true, "u\u{308} b", "u\u{308} b"),
        ] {
            let files = Files { folds_letters, state: Mutex::default() };
            assert_eq!(files.folded(key), folded);
        }
    }

    #[test]
    fn chunks_are_taken_off() {
        let body = b"2\r\nhi\r\n1\r\n!\r\n0\r\nx-amz-checksum-crc32:abc\r\n\r\n";
        assert_eq!(without_chunks(body), Some((b"hi!".to_vec(), Some("abc".into()))));
        assert_eq!(without_chunks(b"2\r\nh"), None);
    }
}
