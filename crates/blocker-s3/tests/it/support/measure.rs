//! Measures a server's handling of conditions, ETags and listings with separately signed requests,
//! and compares it with the table in `docs/s3.md`.

use std::path::Path as File;
use std::time::Duration;

use blocker_s3::object_store::HeaderValue;
use blocker_s3::object_store::aws::{AwsAuthorizer, AwsCredential};
use blocker_s3::object_store::client::{HttpRequest, HttpRequestBody};
use blocker_s3::object_store::signer::{HeaderName, Method};
use cached_http::{Client, Route};
use futures_util::future::join_all;
use http_body_util::BodyExt;

/// The number of repetitions of a race.
const ROUNDS: usize = 10;
/// The number of participants in a race.
const RACERS: usize = 8;
/// An ETag that no object has.
const WRONG: &str = "\"00000000000000000000000000000000\"";

/// A plain client, which signs and sends exactly the given request.
pub(crate) struct Plain {
    endpoint: String,
    credential: AwsCredential,
    http: Client,
}

struct Answer {
    status: u16,
    etag: String,
    body: String,
}

impl Answer {
    fn is_done(&self) -> bool {
        (200..300).contains(&self.status)
    }

    fn is_refused_for_its_condition(&self) -> bool {
        matches!(self.status, 409 | 412)
    }

    /// Returns the text between two tags.
    fn element(&self, name: &str) -> &str {
        let (_, rest) = self.body.split_once(&format!("<{name}>")).unwrap_or_default();
        rest.split_once("</").map_or("", |(text, _)| text)
    }
}

impl Plain {
    pub(crate) fn new(endpoint: &str, (key_id, secret_key): (&str, &str)) -> Self {
        let route = Route::new(Duration::from_secs(5));
        let connector = route.with_tls(cached_tls::client::no_authorities(), true);
        let http = Client::new(&cached_http::builder(), connector);
        let credential = AwsCredential { key_id: key_id.into(), secret_key: secret_key.into(), token: None };
        Self { endpoint: endpoint.to_owned(), credential, http }
    }

    async fn send(&self, method: Method, target: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut request = HttpRequest::new(HttpRequestBody::from(body.to_owned().into_bytes()));
        *request.method_mut() = method;
        *request.uri_mut() = format!("{}/bucket/{target}", self.endpoint).parse().unwrap();
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            request.headers_mut().insert(name, HeaderValue::from_str(value).unwrap());
        }
        AwsAuthorizer::new(&self.credential, "s3", "us-east-1").try_authorize(&mut request, None).unwrap();
        let answer = self.http.request(request).await.unwrap();
        let status = answer.status().as_u16();
        let etag = answer.headers().get("etag").map(|etag| etag.to_str().unwrap().to_owned());
        let body =
            answer.into_body().collect().await.map_or(String::new(), |body| {
                String::from_utf8_lossy(&body.to_bytes()).replace("&quot;", "\"")
            });
        Answer { status, etag: etag.unwrap_or_default(), body }
    }

    async fn put(&self, key: &str, headers: &[(&str, &str)]) -> Answer {
        // No two bodies are equal, so no two ETags are.
        let body = format!("{:032x}", rand::random::<u128>());
        self.send(Method::PUT, key, headers, &body).await
    }

    /// Returns the ETag of an object from a read; empty if there is none.
    async fn etag(&self, key: &str) -> String {
        self.send(Method::GET, key, &[], "").await.etag
    }
}

/// Returns a table cell: the effect of a condition that holds, and of one that does not.
fn verdict(right: &Answer, wrong: &Answer) -> String {
    match (right.is_done(), wrong.is_refused_for_its_condition()) {
        (true, true) => "yes".into(),
        (true, false) if wrong.is_done() => "ignored".into(),
        (false, true) if right.is_refused_for_its_condition() => "never matches".into(),
        _ => format!("no: {} and {}", right.status, wrong.status),
    }
}

async fn put_if_match(plain: &Plain, is_bare: bool) -> String {
    let etag = plain.put("put", &[]).await.etag;
    let wrong = plain.put("put", &[("if-match", WRONG)]).await;
    let shown = if is_bare { etag.trim_matches('"') } else { &etag };
    let right = plain.put("put", &[("if-match", shown)]).await;
    verdict(&right, &wrong)
}

async fn race(plain: &Plain, is_create: bool) -> String {
    let mut winners = Vec::new();
    for round in 0..ROUNDS {
        let key = format!("race-{is_create}-{round}");
        let condition = if is_create {
            ("if-none-match", "*".to_owned())
        } else {
            // The store sends the ETag back in this form if the server compares it that way.
            let etag = plain.put(&key, &[]).await.etag;
            let bare = etag.trim_matches('"').to_owned();
            let quoted = plain.put(&key, &[("if-match", &etag)]).await;
            if quoted.is_done() { ("if-match", quoted.etag) } else { ("if-match", bare) }
        };
        let headers = [(condition.0, condition.1.as_str())];
        let answers = join_all((0..RACERS).map(|_| plain.put(&key, &headers))).await;
        winners.push(answers.iter().filter(|answer| answer.is_done()).count());
    }
    if winners.iter().all(|count| *count == 1) { "one".into() } else { format!("no: {winners:?}") }
}

async fn delete_if_match(plain: &Plain) -> String {
    let etag = plain.put("delete", &[]).await.etag;
    let wrong = plain.send(Method::DELETE, "delete", &[("if-match", WRONG)], "").await;
    if plain.etag("delete").await.is_empty() {
        return "ignored".into();
    }
    let right = plain.send(Method::DELETE, "delete", &[("if-match", &etag)], "").await;
    if !plain.etag("delete").await.is_empty() {
        return "never matches".into();
    }
    verdict(&right, &wrong)
}

/// Completes an upload of one part for an existing or missing object, with a condition.
async fn complete(plain: &Plain, key: &str, headers: &[(&str, &str)]) -> Answer {
    let begun = plain.send(Method::POST, &format!("{key}?uploads="), &[], "").await;
    let upload = begun.element("UploadId");
    let part = plain.send(Method::PUT, &format!("{key}?partNumber=1&uploadId={upload}"), &[], "bytes").await;
    let body = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{}</ETag></Part></CompleteMultipartUpload>",
        part.etag
    );
    let answer = plain.send(Method::POST, &format!("{key}?uploadId={upload}"), headers, &body).await;
    if !answer.is_done() {
        plain.send(Method::DELETE, &format!("{key}?uploadId={upload}"), &[], "").await;
    }
    // Some servers begin their answer before they know the outcome.
    if answer.body.contains("<Error>") { Answer { status: 412, ..answer } } else { answer }
}

async fn complete_if_none_match(plain: &Plain) -> String {
    plain.put("there", &[]).await;
    let right = complete(plain, "not-there", &[("if-none-match", "*")]).await;
    let wrong = complete(plain, "there", &[("if-none-match", "*")]).await;
    verdict(&right, &wrong)
}

async fn complete_if_match(plain: &Plain) -> String {
    let etag = plain.put("there", &[]).await.etag;
    let wrong = complete(plain, "there", &[("if-match", WRONG)]).await;
    let etag = if wrong.is_done() { plain.etag("there").await } else { etag };
    let right = complete(plain, "there", &[("if-match", &etag)]).await;
    verdict(&right, &wrong)
}

async fn get_if_none_match(plain: &Plain) -> String {
    let etag = plain.put("get", &[]).await.etag;
    let same = plain.send(Method::GET, "get", &[("if-none-match", &etag)], "").await.status;
    let other = plain.send(Method::GET, "get", &[("if-none-match", WRONG)], "").await.status;
    if (same, other) == (304, 200) { "yes".into() } else { format!("no: {same} and {other}") }
}

/// Tests whether a listing shows puts and removals immediately, in byte order, and starts at the
/// requested key.
async fn listing(plain: &Plain) -> String {
    let mut names =
        ["A", "B", "_", "a", "a-b", "a.b", "ab", "e-1", "e/1", "e0"].map(|name| format!("l/{name}"));
    for name in &names {
        plain.put(name, &[]).await;
    }
    names.sort();
    let listed = async |after: &str| {
        let answer = plain.send(Method::GET, &format!("?list-type=2&prefix=l%2F{after}"), &[], "").await;
        let keys = answer.body.split("<Key>").skip(1).map(|rest| rest.split('<').next().unwrap().to_owned());
        keys.collect::<Vec<_>>()
    };
    if listed("").await != names {
        return format!("no: {:?}", listed("").await);
    }
    if listed("&start-after=l%2Fa").await != names[4..] {
        return format!("start-after: {:?}", listed("&start-after=l%2Fa").await);
    }
    plain.send(Method::DELETE, "l/B", &[], "").await;
    if listed("").await.contains(&names[1]) {
        "shows what is gone".into()
    } else {
        "immediately consistent, bytewise".into()
    }
}

/// Measures the maximum length of the last part of a key with which an object can be put and
/// replaced.
async fn longest_segment(plain: &Plain) -> String {
    const LONGEST: usize = 900;
    let mut longest = 0;
    for len in [100, 202, 227, 228, 255, LONGEST] {
        let key = format!("segment/{}", "s".repeat(len));
        if !plain.put(&key, &[]).await.is_done() || !plain.put(&key, &[]).await.is_done() {
            break;
        }
        longest = len;
    }
    if longest == LONGEST { format!("{longest} bytes or more") } else { format!("{longest} bytes") }
}

/// Tests whether one key may equal the part of another one before a slash.
async fn key_below_key(plain: &Plain) -> String {
    plain.put("below", &[]).await;
    let below = plain.put("below/it", &[]).await;
    if below.is_done() { "yes".into() } else { format!("no: {}", below.status) }
}

/// Tests how many keys a listing shows per page, and whether it shows all of them.
async fn long_listing(plain: &Plain) -> String {
    const KEYS: usize = 1100;
    const AT_ONCE: usize = 16;
    let names: Vec<String> = (0..KEYS).map(|number| format!("long/{number:04}")).collect();
    for some in names.chunks(AT_ONCE) {
        join_all(some.iter().map(|name| plain.put(name, &[]))).await;
    }
    let page = async |rest: &str| {
        let answer = plain.send(Method::GET, &format!("?list-type=2&prefix=long%2F{rest}"), &[], "").await;
        let keys = answer.body.split("<Key>").skip(1).map(|rest| rest.split('<').next().unwrap().to_owned());
        (keys.collect::<Vec<_>>(), encoded(answer.element("NextContinuationToken")))
    };
    if page("&max-keys=7").await.0 != names[..7] {
        return "no: max-keys is ignored".into();
    }
    let (mut found, mut token) = page("").await;
    let first = found.len();
    while !token.is_empty() {
        let (more, next) = page(&format!("&continuation-token={token}")).await;
        found.extend(more);
        token = next;
    }
    if found == names { format!("{first} at a time") } else { format!("no: {} of {KEYS}", found.len()) }
}

/// Encodes a value for a query.
fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// Measures all rows of the table, in `bucket`.
pub(crate) async fn rows(plain: &Plain) -> Vec<(&'static str, String)> {
    let absent = plain.put("created", &[("if-none-match", "*")]).await;
    let present = plain.put("created", &[("if-none-match", "*")]).await;
    vec![
        ("put, `If-None-Match: *`", verdict(&absent, &present)),
        ("put, `If-Match` with the ETag as it came", put_if_match(plain, false).await),
        ("put, `If-Match` with the ETag without quotes", put_if_match(plain, true).await),
        ("winners of 8 racing puts, `If-None-Match: *`", race(plain, true).await),
        ("winners of 8 racing puts, `If-Match`", race(plain, false).await),
        ("get, `If-None-Match`", get_if_none_match(plain).await),
        ("delete, `If-Match`", delete_if_match(plain).await),
        ("complete-multipart, `If-None-Match: *`", complete_if_none_match(plain).await),
        ("complete-multipart, `If-Match`", complete_if_match(plain).await),
        ("listing", listing(plain).await),
        ("listing of 1 100 keys", long_listing(plain).await),
        ("longest segment of a key", longest_segment(plain).await),
        ("keys `a` and `a/b` at the same time", key_below_key(plain).await),
    ]
}

/// Compares the measurements with the column of `server` in the table of `docs/s3.md`.
pub(crate) fn compare(server: &str, rows: &[(&str, String)]) {
    let docs = File::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/s3.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    let table: Vec<Vec<String>> = docs.lines().filter(|line| line.starts_with('|')).map(cells).collect();
    let column = table
        .iter()
        .find_map(|cells: &Vec<String>| cells.iter().position(|cell| cell.split(' ').next() == Some(server)));
    let column = column.unwrap_or_else(|| panic!("docs/s3.md has no column for {server}"));
    for (row, measured) in rows {
        println!("| {row} | {measured} |");
    }
    for (row, measured) in rows {
        let line = table.iter().find(|cells| cells[0] == *row);
        let line = line.unwrap_or_else(|| panic!("docs/s3.md has no row {row:?}"));
        assert_eq!(
            &line[column], measured,
            "docs/s3.md, {server}, {row}: left as written, right as measured"
        );
    }
}
