//! Sends the same random requests to an endpoint and through the sidecar to an equal endpoint, and
//! compares the responses.
//!
//! Names are random variants of a few keys that endpoints may treat as equal; headers include S3's
//! and similar ones; framing includes what HTTP allows and forbids. Every allowed difference is an
//! [`Excuse`], which names the clause that allows it.

use crate::s3::endpoint::{Endpoint, Kind, User};
use crate::s3::files;
use crate::s3::sidecar::Sidecar;
use crate::s3::wire::{Answer, Connection, Request};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// The way in which requests reach the second endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The endpoint authorises each request. Changes may bypass the sidecar.
    Gateway,
    /// The sidecar checks signatures, and revalidates at each read. Changes may bypass the sidecar.
    Asking,
    /// The sidecar checks signatures, and serves objects from memory for an hour.
    Fresh,
}

impl Way {
    /// Every way.
    pub const ALL: [Way; 3] = [Way::Gateway, Way::Asking, Way::Fresh];

    /// Returns the way's name.
    pub const fn name(self) -> &'static str {
        match self {
            Way::Gateway => "gateway",
            Way::Asking => "asking",
            Way::Fresh => "fresh",
        }
    }
}

/// The reason why two responses may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Excuse {
    /// RFC 9112, 6.1: a server that does not know a transfer coding responds with 501, and may
    /// refuse a request that also has a length.
    Coding,
    /// RFC 9112, 6.3: two lengths are an unrecoverable error, whose status the server chooses.
    Lengths,
    /// RFC 9110, 7.6.1: `Connection` must not name a header for all recipients.
    Nominated,
    /// RFC 9110, 15.4.5: a 304 may contain only the validators, so a response derived from it lacks
    /// other headers.
    NotModified,
    /// S3, "Authenticating requests": every `x-amz-` header must be signed; the endpoint does not
    /// check this.
    Unsigned,
    /// S3, error code `InvalidRequest`: a header that is not implemented; the endpoint ignores it.
    Unknown,
    /// S3, "Naming objects": segments of dots are not supported; the sidecar refuses those that lead out of the bucket.
    Dots,
    /// S3, "Listing buckets": the sidecar forwards no other requests to the endpoint itself.
    Service,
    /// S3, "Transferring payload in multiple chunks": `aws-chunked` is not stored with the object; versitygw stores it.
    Chunks,
    /// RFC 9110, 13.2.2: a range is evaluated after the conditions; versitygw evaluates it before.
    Order,
    /// RFC 9110, 9.3.1: content in a GET has no meaning, and a server may refuse it.
    Content,
}

impl fmt::Display for Excuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The statistics of a run.
#[derive(Clone, Debug, Default)]
pub struct Played {
    /// The number of requests.
    pub requests: u64,
    /// The number of allowed differences, by reason.
    pub excused: BTreeMap<Excuse, u64>,
}

/// Two endpoints of the same kind, and in front of the second one a sidecar for each way.
#[derive(Debug)]
pub struct Both {
    sidecars: Vec<(Way, Sidecar)>,
    alone: String,
    behind: String,
    user: User,
    /// The endpoints, if they are programs.
    _programs: Vec<Endpoint>,
}

/// The kind of the compared endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// versitygw, which keeps objects as files, and verifies signatures.
    Versitygw,
    /// An endpoint in this process that keeps objects as files.
    Files,
    /// An endpoint in this process over a file system that folds letter case and Unicode forms.
    FoldingFiles,
}

impl Before {
    /// Every kind.
    pub const ALL: [Before; 3] = [Before::Versitygw, Before::Files, Before::FoldingFiles];

    /// Returns the endpoint's name.
    pub const fn name(self) -> &'static str {
        match self {
            Before::Versitygw => "versitygw",
            Before::Files => "files",
            Before::FoldingFiles => "folding-files",
        }
    }

    /// Returns the value of the setting `names` for this kind of endpoint.
    pub const fn names(self) -> &'static str {
        if matches!(self, Before::FoldingFiles) { "folded" } else { "exact" }
    }
}

/// The keys: inside and outside of folders, with encoded letters, and with letters that differ only
/// in case or Unicode form.
const KEYS: [&str; 9] = ["k", "q/y", "q/z", "q/s/t", "r", "R", "q/Y", "%C3%BC%20b%2B", "u%CC%88%20b%2B"];

/// Texts that an endpoint with path-like keys treats like a slash, or ignores before or after a
/// key.
const SLASHES: [&str; 6] = ["//", "///", "%2F", "%2F%2F", "/./", "/%2e/"];

impl Both {
    /// Starts the endpoints, and sidecars whose setting `names` states how the endpoint
    /// distinguishes keys. Programs keep their state below `parent`. If a program is not installed,
    /// returns `None`, and prints that `test` is skipped.
    pub fn start(before: Before, ways: &[Way], names: &str, test: &str, parent: &Path) -> Option<Both> {
        let user = User::new(Kind::Versitygw, "owner", 0);
        let mut programs = Vec::new();
        let [alone, behind] = match before {
            Before::Files | Before::FoldingFiles => {
                [(); 2].map(|()| files::start(before == Before::FoldingFiles))
            }
            Before::Versitygw => {
                for _ in 0..2 {
                    programs.push(Endpoint::start(Kind::Versitygw, test, parent)?);
                }
                programs.iter().for_each(|program| program.add(&user));
                [0, 1].map(|at: usize| programs[at].url().to_owned())
            }
        };
        let users = std::slice::from_ref(&user);
        let names = format!("names = \"{names}\"\n");
        let sidecar = |way| match way {
            Way::Gateway => Sidecar::before(&behind, ""),
            Way::Asking => Sidecar::with_keys(&behind, users, &user, &names),
            Way::Fresh => {
                let more = format!("{names}fresh_secs = 3600\nnegative_secs = 3600");
                Sidecar::with_keys(&behind, users, &user, &more)
            }
        };
        let sidecars = ways.iter().map(|way| (*way, sidecar(*way))).collect();
        Some(Both { sidecars, alone, behind, user, _programs: programs })
    }

    /// Plays a sequence of requests in a bucket of its own.
    ///
    /// # Errors
    /// Returns the first difference that is not allowed, with the requests that led to it.
    pub fn play(&self, way: Way, seed: u64, count: usize, played: &mut Played) -> Result<(), String> {
        let (_, sidecar) = self.sidecars.iter().find(|(each, _)| *each == way).ok_or("no such way")?;
        let mut ends = Ends {
            alone: Connection::to(&self.alone),
            through: Connection::to(&sidecar.url),
            past: Connection::to(&self.behind),
            user: &self.user,
        };
        let mut drawing = Drawing {
            rng: SmallRng::seed_from_u64(seed),
            bucket: format!("{}-{seed}", way.name()),
            way,
            etags: Vec::new(),
            count: 0,
        };
        let make = Request { method: "PUT", path: format!("/{}", drawing.bucket), ..Request::default() };
        for end in [&mut ends.alone, &mut ends.past] {
            let made = end.ask(&make, &self.user).map_err(|error| format!("no bucket: {error}"))?;
            if made.status != 200 {
                return Err(format!("no bucket: {made:?}"));
            }
        }
        let mut before = Vec::new();
        for step in 0..count {
            let Drawn { request, is_past, excuses } = drawing.draw();
            let shown = format!("{}{request:?}", if is_past { "past the sidecar: " } else { "" });
            before.push(shown.chars().take(400).collect::<String>());
            let [direct, through] = ends.ask(&request, is_past);
            played.requests += 1;
            match (direct, through) {
                (Ok(direct), Ok(through)) => {
                    drawing.learn(&direct);
                    match difference(&request, &direct, &through, way) {
                        Compared::Same => (),
                        Compared::Excused(excuse) => *played.excused.entry(excuse).or_default() += 1,
                        Compared::Different(_) if excuses.iter().any(|one| one.allows(&direct, &through)) => {
                            let excuse = excuses.into_iter().find(|one| one.allows(&direct, &through));
                            excuse.into_iter().for_each(|one| *played.excused.entry(one).or_default() += 1);
                            if excuses_change(&request) && direct.status < 300 {
                                // The sidecar has refused a change, and only the endpoint has made
                                // it.
                                return Ok(());
                            }
                        }
                        Compared::Different(what) => {
                            let last = before.len().saturating_sub(12);
                            return Err(format!(
                                "{} with seed {seed}, step {step}: {what}\nbefore it:\n{}\nalone: {}\nthrough: {}",
                                way.name(),
                                before[last..].join("\n"),
                                show(&direct),
                                show(&through)
                            ));
                        }
                    }
                }
                // After some requests the connection ends without a response.
                (Err(_), Err(_)) => (),
                (direct, through) if excuses.is_empty() => {
                    return Err(format!(
                        "{} with seed {seed}, step {step}: one has no answer\n{}\nalone: {direct:?}\nthrough: {through:?}",
                        way.name(),
                        before.last().map_or("", String::as_str)
                    ));
                }
                _ => *played.excused.entry(excuses[0]).or_default() += 1,
            }
        }
        Ok(())
    }
}

/// Returns whether a request that only one side has executed ends the sequence, because the two now
/// have different objects.
fn excuses_change(request: &Request) -> bool {
    !["GET", "HEAD", "OPTIONS"].contains(&request.method)
}

fn show(answer: &Answer) -> String {
    let body: String = String::from_utf8_lossy(&answer.body).chars().take(300).collect();
    format!("{} {:?} {} bytes: {body}", answer.status, answer.headers, answer.body.len())
}

/// The connections.
struct Ends<'a> {
    alone: Connection,
    through: Connection,
    /// The connection that bypasses the sidecar.
    past: Connection,
    user: &'a User,
}

impl Ends<'_> {
    fn ask(&mut self, request: &Request, is_past: bool) -> [std::io::Result<Answer>; 2] {
        let other = if is_past { &mut self.past } else { &mut self.through };
        [self.alone.ask(request, self.user), other.ask(request, self.user)]
    }
}

impl Excuse {
    /// Returns whether the reason allows this difference: the sidecar must have refused the request
    /// with one of the reason's statuses. The endpoint's response does not matter.
    fn allows(self, _direct: &Answer, through: &Answer) -> bool {
        let statuses: &[u16] = match self {
            Excuse::Coding => &[501, 400],
            Excuse::Lengths | Excuse::Nominated | Excuse::Unknown | Excuse::Dots => &[400],
            Excuse::Unsigned => &[400, 403],
            Excuse::Service => &[403],
            Excuse::Content => &[411],
            Excuse::NotModified | Excuse::Chunks | Excuse::Order => &[],
        };
        statuses.contains(&through.status)
    }
}

enum Compared {
    Same,
    Excused(Excuse),
    Different(String),
}

/// The compared headers, apart from S3's own.
const HEADERS: [&str; 9] = [
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-range",
    "content-type",
    "etag",
    "expires",
];

/// S3 headers that only one of the two responses may have.
const OF_ONE_ANSWER: [&str; 3] = ["x-amz-request-id", "x-amz-id-2", "x-amz-bucket-region"];

fn difference(request: &Request, direct: &Answer, through: &Answer, way: Way) -> Compared {
    if direct.status == 416 && [304, 412].contains(&through.status) {
        return Compared::Excused(Excuse::Order);
    }
    if direct.status != through.status {
        return Compared::Different(format!("{} is {}", direct.status, through.status));
    }
    let is_read = ["GET", "HEAD"].contains(&request.method) && request.query.is_empty();
    if direct.status >= 400 || !is_read {
        // Tags are a set: versitygw lists those of one object in any order.
        let is_set = request.query.starts_with("tagging");
        for name in ["Code", "Key", "ETag", "TagSet", "Tag", "Prefix", "KeyCount"] {
            let [mut one, mut other] = [direct, through].map(|answer| answer.elements(name));
            for elements in [&mut one, &mut other].into_iter().filter(|_| is_set) {
                elements.sort();
                // Its elements are compared below.
                elements.iter_mut().filter(|_| name == "TagSet").for_each(String::clear);
            }
            if one != other {
                return Compared::Different(format!("{name} {one:?} is {other:?}"));
            }
        }
        return Compared::Same;
    }
    if direct.body != through.body {
        return Compared::Different(format!("the body of {} bytes", direct.body.len()));
    }
    let is_compared =
        |name: &str| HEADERS.contains(&name) || name.starts_with("x-amz-") && !OF_ONE_ANSWER.contains(&name);
    let mut names: Vec<&String> = direct
        .headers
        .iter()
        .chain(&through.headers)
        .map(|(name, _)| name)
        .filter(|name| is_compared(name))
        .collect();
    names.sort();
    names.dedup();
    let mut excused = None;
    for name in names {
        let (one, other) = (direct.header(name), through.header(name));
        // A 304 may have additional headers.
        if one == other || direct.status == 304 && (one.is_none() || other.is_none()) {
            continue;
        }
        let is_settled = !name.starts_with("x-amz-")
            || ["x-amz-meta-", "x-amz-checksum-", "x-amz-version-id"]
                .iter()
                .any(|start| name.starts_with(start));
        if way == Way::Gateway && request.method == "GET" && !is_settled && other.is_none() {
            excused = Some(Excuse::NotModified);
            continue;
        }
        if name == "content-encoding" && one == Some("aws-chunked") && other.is_none() {
            excused = Some(Excuse::Chunks);
            continue;
        }
        return Compared::Different(format!("{name} {one:?} is {other:?}"));
    }
    excused.map_or(Compared::Same, Compared::Excused)
}

/// A random request.
struct Drawn {
    request: Request,
    /// Whether the request bypasses the sidecar.
    is_past: bool,
    excuses: Vec<Excuse>,
}

/// The generator of random requests.
struct Drawing {
    rng: SmallRng,
    bucket: String,
    way: Way,
    /// The last `ETag`s seen.
    etags: Vec<String>,
    /// The number of bodies.
    count: u64,
}

impl Drawing {
    fn learn(&mut self, answer: &Answer) {
        if let Some(etag) = answer.header("etag") {
            self.etags.push(etag.to_owned());
            if self.etags.len() > 8 {
                self.etags.remove(0);
            }
        }
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        *of.choose(&mut self.rng).expect("one of several")
    }

    /// Returns one of a key's names, and the differences that this name allows.
    fn key(&mut self, excuses: &mut Vec<Excuse>) -> String {
        let key = self.one(&KEYS).to_owned();
        match self.rng.random_range(0..12) {
            0 => key.replacen('/', self.one(&SLASHES), 1),
            1 => format!("{}{key}", self.one(&["/", "./", "%2F", "//"])),
            2 => format!("{key}{}", self.one(&["/", "/.", "//", "%2F"])),
            3 if self.way != Way::Gateway => {
                excuses.push(Excuse::Dots);
                format!("x/../{}{key}", self.one(&["", "../", "../../"]))
            }
            _ => key,
        }
    }

    fn draw(&mut self) -> Drawn {
        let mut excuses = Vec::new();
        let mut request = match self.rng.random_range(0..100) {
            0..46 => self.read(&mut excuses),
            46..70 => self.put(&mut excuses),
            70..76 => Request { method: "DELETE", path: self.object(&mut excuses), ..Request::default() },
            76..80 => self.copy(&mut excuses),
            80..86 => self.tags(&mut excuses),
            86..90 => self.delete_many(),
            90..95 => self.list(),
            95..97 => self.strange_framing(&mut excuses),
            _ => self.service(&mut excuses),
        };
        self.strange_headers(&mut request, &mut excuses);
        let is_change = excuses_change(&request);
        let is_past =
            is_change && excuses.is_empty() && self.way != Way::Fresh && self.rng.random_ratio(1, 3);
        if request
            .signed
            .iter()
            .chain(&request.unsigned)
            .all(|(name, _)| name != "content-length" && name != "transfer-encoding")
            && (is_change || !request.body.is_empty())
        {
            request.unsigned.push(("Content-Length".into(), request.body.len().to_string()));
        }
        Drawn { request, is_past, excuses }
    }

    fn object(&mut self, excuses: &mut Vec<Excuse>) -> String {
        let key = self.key(excuses);
        format!("/{}/{key}", self.bucket)
    }

    fn read(&mut self, excuses: &mut Vec<Excuse>) -> Request {
        let method = self.one(&["GET", "GET", "GET", "HEAD"]);
        let mut request = Request { method, path: self.object(excuses), ..Request::default() };
        let mut add = |name: &str, value: String| request.signed.push((name.into(), value));
        let etag = self.etags.choose(&mut self.rng).cloned().unwrap_or_else(|| "\"x\"".into());
        match self.rng.random_range(0..16) {
            0 => add("if-none-match", etag),
            1 => add("if-match", etag),
            2 => add(
                "if-modified-since",
                self.one(&["Mon, 01 Jan 2024 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT"]).into(),
            ),
            3 => add(
                "if-unmodified-since",
                self.one(&["Mon, 01 Jan 2024 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT"]).into(),
            ),
            4 => add("cache-control", self.one(&["no-cache", "max-age=0", "no-store"]).into()),
            5 => add("x-amz-checksum-mode", "ENABLED".into()),
            _ => (),
        }
        if method == "GET" && self.rng.random_ratio(1, 4) {
            let ranges = [
                "bytes=0-0",
                "bytes=1-",
                "bytes=-1",
                "bytes=0-4095",
                "bytes=4096-9999",
                "bytes=50000-",
                "bytes=0-999999",
            ];
            add("range", self.one(&ranges).into());
        }
        request
    }

    /// Returns unused bytes, or no bytes. If two changes within a second leave the `ETag`
    /// unchanged, the second change may go unnoticed (RFC 9110, 8.8.2.2).
    fn bytes(&mut self) -> Vec<u8> {
        let len = self.one(&[0, 8, 9, 100, 4096, 10_000, 70_000, 200_000]);
        let mut bytes: Vec<u8> = (0..len).map(|at: usize| (at ^ (at >> 8)) as u8).collect();
        self.count += 1;
        bytes.iter_mut().zip(self.count.to_le_bytes()).for_each(|(byte, digit)| *byte = digit);
        bytes
    }

    fn put(&mut self, excuses: &mut Vec<Excuse>) -> Request {
        let (path, body) = (self.object(excuses), self.bytes());
        let mut request = Request { method: "PUT", path, body, ..Request::default() };
        if request.body.is_empty() {
            return request;
        }
        let mut add = |name: &str, value: &str| request.signed.push((name.into(), value.into()));
        for (name, values) in [
            ("content-type", &["text/plain", "application/x"][..]),
            ("cache-control", &["max-age=5", "no-cache"]),
            ("content-disposition", &["attachment"]),
            ("content-language", &["de"]),
            ("x-amz-tagging", &["a=1", "a=1&b=2"]),
            ("x-amz-meta-my_key", &["1", "2"]),
        ] {
            if self.rng.random_ratio(1, 5) {
                add(name, self.one(values));
            }
        }
        let entries = self.one(&[0, 0, 0, 3, 120, 300]);
        (0..entries).for_each(|number| add(&format!("x-amz-meta-n{number}"), "v"));
        match self.rng.random_range(0..8) {
            0 => request.payload = "UNSIGNED-PAYLOAD".into(),
            1 | 2 => {
                let has_trailer = self.rng.random_ratio(2, 3);
                chunked(&mut request, has_trailer);
            }
            _ => (),
        }
        request
    }

    fn copy(&mut self, excuses: &mut Vec<Excuse>) -> Request {
        let key = self.one(&KEYS);
        let source = format!("/{}/{key}", self.bucket);
        let signed = vec![("x-amz-copy-source".to_owned(), source)];
        Request { method: "PUT", path: self.object(excuses), signed, ..Request::default() }
    }

    fn tags(&mut self, excuses: &mut Vec<Excuse>) -> Request {
        let method = self.one(&["PUT", "PUT", "GET", "DELETE"]);
        let body = match method {
            "PUT" => format!(
                "<Tagging><TagSet><Tag><Key>a</Key><Value>{}</Value></Tag></TagSet></Tagging>",
                self.rng.random_range(0..9)
            ),
            _ => String::new(),
        };
        Request {
            method,
            path: self.object(excuses),
            query: "tagging=".into(),
            body: body.into(),
            ..Request::default()
        }
    }

    fn delete_many(&mut self) -> Request {
        let keys: String = (0..self.rng.random_range(1..3))
            .map(|_| {
                let key = self.one(&["k", "q/y", "q/z", "q//y", "./q/y", "q/./z", "r", "R", "u\u{308} b+"]);
                format!("<Object><Key>{key}</Key></Object>")
            })
            .collect();
        let path = format!("/{}", self.bucket);
        let body = format!("<Delete>{keys}</Delete>").into_bytes();
        Request { method: "POST", path, query: "delete=".into(), body, ..Request::default() }
    }

    fn list(&mut self) -> Request {
        let prefix = self.one(&["", "&prefix=q%2F", "&prefix=r", "&prefix=q%2F%2F"]);
        let query = format!("list-type=2{prefix}");
        Request { method: "GET", path: format!("/{}", self.bucket), query, ..Request::default() }
    }

    fn service(&mut self, excuses: &mut Vec<Excuse>) -> Request {
        let (method, query) = self.one(&[
            ("POST", ""),
            ("POST", "Action=AssumeRole"),
            ("DELETE", ""),
            ("GET", "Action=ListUsers"),
        ]);
        if self.way != Way::Gateway {
            excuses.push(Excuse::Service);
        }
        Request {
            method,
            path: "/".into(),
            query: query.into(),
            is_anonymous: self.rng.random(),
            ..Request::default()
        }
    }

    /// Returns a request whose end is ambiguous.
    fn strange_framing(&mut self, excuses: &mut Vec<Excuse>) -> Request {
        let (method, excuse, lines, body) = self.one(&[
            ("PUT", Excuse::Coding, &[("transfer-encoding", "gzip, chunked")][..], "2\r\nhi\r\n0\r\n\r\n"),
            ("PUT", Excuse::Coding, &[("transfer-encoding", "chunked, chunked")], "2\r\nhi\r\n0\r\n\r\n"),
            ("PUT", Excuse::Coding, &[("transfer-encoding", "identity"), ("content-length", "2")], "hi"),
            ("PUT", Excuse::Lengths, &[("content-length", "2"), ("content-length", "3")], "hi!"),
            ("PUT", Excuse::Lengths, &[("content-length", "+2")], "hi"),
            ("GET", Excuse::Content, &[("transfer-encoding", "chunked")], "2\r\nhi\r\n0\r\n\r\n"),
            ("GET", Excuse::Nominated, &[("connection", "close, content-md5"), ("content-md5", "x")], ""),
            ("GET", Excuse::Nominated, &[("connection", "x-amz-date")], ""),
            ("GET", Excuse::Nominated, &[("connection", "range"), ("range", "bytes=0-0")], ""),
        ]);
        excuses.push(excuse);
        let unsigned = lines.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        // However the endpoint interprets this request, it must not change an object.
        let path = format!("/{}/never", self.bucket);
        let payload = "UNSIGNED-PAYLOAD".into();
        Request {
            method,
            path,
            unsigned,
            payload,
            body: body.into(),
            is_anonymous: true,
            is_last: true,
            ..Request::default()
        }
    }

    fn strange_headers(&mut self, request: &mut Request, excuses: &mut Vec<Excuse>) {
        if !self.rng.random_ratio(1, 12) {
            return;
        }
        let name = self.one(&[
            "x-amz_copy-source",
            "x-amz-copy_source",
            "x_amz_acl",
            "x-amz-new-thing",
            "x-minio-extract",
            "x-rgw_x",
            "x-http-method-override",
            "x-original_url",
            "x-forwarded-for",
            "x-mine",
            "cookie",
        ]);
        let is_foreign = ["x-forwarded-for", "x-mine", "cookie"].contains(&name);
        if self.way != Way::Gateway && !is_foreign {
            excuses.extend([Excuse::Unsigned, Excuse::Unknown]);
        }
        let header = (name.to_owned(), "/other/secret".to_owned());
        if self.rng.random() { request.signed.push(header) } else { request.unsigned.push(header) }
    }
}

/// Converts the body to unsigned chunks, optionally followed by a checksum.
fn chunked(request: &mut Request, has_trailer: bool) {
    let decoded = request.body.len();
    let mut body = format!("{decoded:x}\r\n").into_bytes();
    body.extend_from_slice(&request.body);
    body.extend_from_slice(b"\r\n0\r\n");
    if has_trailer {
        let crc = base64(&crc32(&request.body).to_be_bytes());
        body.extend_from_slice(format!("x-amz-checksum-crc32:{crc}\r\n").as_bytes());
        request.signed.push(("x-amz-trailer".into(), "x-amz-checksum-crc32".into()));
    }
    body.extend_from_slice(b"\r\n");
    request.signed.push(("content-encoding".into(), "aws-chunked".into()));
    request.signed.push(("x-amz-decoded-content-length".into(), decoded.to_string()));
    request.payload = "STREAMING-UNSIGNED-PAYLOAD-TRAILER".into();
    request.body = body;
}

/// Returns the CRC-32 of bytes, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let crc = bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    });
    !crc
}

/// Returns four bytes as text.
fn base64(bytes: &[u8; 4]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = u64::from(u32::from_be_bytes(*bytes)) << 4;
    let digit = |at: u32| char::from(DIGITS[(bits >> (30 - 6 * at)) as usize & 63]);
    (0..6).map(digit).collect::<String>() + "=="
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_a_trailer_is_the_documented_one() {
        assert_eq!(base64(&crc32(b"123456789").to_be_bytes()), "y/Q5Jg==");
    }
}
