//! Signatures and rights that the listener checks, and requests that the sidecar signs.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::signer::{self, ACCESS_KEY, SECRET_KEY, Signer, Unsigned, sha256};
use crate::support::{Answer, Client, Endpoint, Seen, object, pattern, request};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use s3_sidecar::{Auth, Credentials, Keys, Sidecar};
use sha2::{Digest, Sha256};

const OWN_KEY: &str = "own-key";
const OWN_SECRET: &str = "own-secret";

fn write_keys(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

fn key(read: &str, write: &str) -> String {
    format!(
        "[[keys]]\naccess_key = \"{ACCESS_KEY}\"\nsecret_key = \"{SECRET_KEY}\"\nread = [{read}]\nwrite = [{write}]\n"
    )
}

/// A sidecar with its own keys file.
struct Guarded {
    endpoint: Endpoint,
    sidecar: Sidecar,
    directory: tempfile::TempDir,
}

fn guarded(keys: &str) -> Guarded {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys.toml");
    write_keys(&path, keys);
    let endpoint = Endpoint::start();
    let sidecar = endpoint.sidecar(|config| {
        config.auth = Auth::Listener;
        config.domains = vec!["s3.example.com".into()];
        config.secrets.keys = Some(Keys::from_file(&path).unwrap());
        config.secrets.credentials = Some(Credentials::new(OWN_KEY.into(), OWN_SECRET.into(), None));
    });
    Guarded { endpoint, sidecar, directory }
}

fn open() -> Guarded {
    guarded(&key("\"*\"", "\"*\""))
}

impl Guarded {
    fn send(&self, bytes: impl AsRef<[u8]>) -> Answer {
        let mut client = Client::of(&self.sidecar);
        // The request may be refused before it has been sent completely.
        let _ = client.try_send(bytes.as_ref());
        client.answer()
    }

    fn ask(&self, line: &str) -> Answer {
        let mut client = Client::of(&self.sidecar);
        client.send(Signer::default().request(line, &[]));
        let head = client.head().unwrap();
        client.finish(head, line.starts_with("HEAD "))
    }

    fn refused(&self, label: &str) -> u64 {
        self.sidecar.counts().refusals.of(label)
    }
}

fn code(answer: &Answer) -> String {
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let found = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    found.map(|(code, _)| code.to_owned()).unwrap_or_default()
}

/// Checks that a request has the sidecar's own signature, and nothing of the client's.
fn assert_own_signature(seen: &Seen, endpoint: &Endpoint) {
    let value = seen.header("authorization").expect("a signature");
    let listed = value.split("SignedHeaders=").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    let headers =
        listed.split(';').map(|name| (name.to_owned(), seen.header(name).unwrap_or_default().to_owned()));
    let (path, query) = seen.target().split_once('?').unwrap_or((seen.target(), ""));
    let unsigned = Unsigned {
        method: seen.method(),
        path,
        query,
        headers: headers.collect(),
        payload: seen.header("x-amz-content-sha256").unwrap().into(),
    };
    let stamp = seen.header("x-amz-date").unwrap();
    let expected = signer::sign(&unsigned, OWN_KEY, OWN_SECRET, "us-east-1", stamp);
    assert_eq!(value, expected.authorization);
    for (name, _) in &seen.headers {
        let name = name.to_ascii_lowercase();
        assert!(!name.starts_with("x-amz-") || listed.split(';').any(|each| each == name), "{name}");
    }
    assert_eq!(format!("http://{}", seen.header("host").unwrap()), endpoint.url());
}

#[test]
fn a_signed_read_becomes_one_of_the_sidecars_own() {
    let guarded = open();
    let body = pattern(100_000, 1);
    guarded.endpoint.put("/bucket/a/k%2B%20y", object("v1", body.clone()));
    for host in ["localhost", "bucket.s3.example.com"] {
        let path = if host == "localhost" { "/bucket/a/k%2B%20y" } else { "/a/k%2B%20y" };
        let signer = Signer { host: host.into(), ..Signer::default() };
        let answer = guarded.send(signer.request(&format!("GET {path}"), &[("range", "bytes=5-99")]));
        assert_eq!((answer.status, &answer.body[..]), (206, &body[5..100]), "{}", code(&answer));
        for seen in guarded.endpoint.take_seen() {
            assert_eq!(seen.target(), "/bucket/a/k%2B%20y");
            assert_own_signature(&seen, &guarded.endpoint);
        }
    }
    // A second read comes from memory, because the endpoint confirms that it is unchanged.
    guarded.ask("GET /bucket/a/k%2B%20y");
    let revalidated = guarded.sidecar.counts().revalidated.get();
    assert_eq!(guarded.ask("GET /bucket/a/k%2B%20y").body, body);
    assert_eq!(guarded.sidecar.counts().revalidated.get(), revalidated + 1);
}

#[test]
fn a_presigned_url_is_a_signature_and_none_of_it_is_forwarded() {
    let guarded = open();
    guarded.endpoint.put("/bucket/k", object("v1", "hello"));
    let stamp = signer::stamp();
    let query = |expires: u32| {
        format!(
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={ACCESS_KEY}%2F{}%2Fus-east-1%2Fs3%2Faws4_request\
             &X-Amz-Date={stamp}&X-Amz-Expires={expires}&X-Amz-SignedHeaders=host&versionId=a%2Fb",
            &stamp[..8]
        )
    };
    let unsigned = |query: &str| {
        let unsigned = Unsigned {
            method: "GET",
            path: "/bucket/k",
            query,
            headers: vec![("host".into(), "localhost".into())],
            payload: "UNSIGNED-PAYLOAD".into(),
        };
        signer::sign(&unsigned, ACCESS_KEY, SECRET_KEY, "us-east-1", &stamp).signature
    };
    let query_600 = query(600);
    let line = format!("GET /bucket/k?{query_600}&X-Amz-Signature={}", unsigned(&query_600));
    assert_eq!(guarded.send(request(&line, &[])).body, b"hello");
    let seen = guarded.endpoint.take_seen();
    assert_eq!(seen[0].target(), "/bucket/k?versionId=a%2Fb");
    assert_own_signature(&seen[0], &guarded.endpoint);
    let later = line.replace("Expires=600", "Expires=601");
    assert_eq!(code(&guarded.send(request(&later, &[]))), "SignatureDoesNotMatch");
    let too_long = query(604_801);
    let line = format!("GET /bucket/k?{too_long}&X-Amz-Signature={}", unsigned(&too_long));
    let answer = guarded.send(request(&line, &[]));
    assert_eq!((answer.status, &*code(&answer)), (400, "AuthorizationQueryParametersError"));
    assert!(guarded.endpoint.take_seen().is_empty());
}

#[test]
fn what_is_signed_wrongly_never_reaches_the_endpoint() {
    let guarded = open();
    guarded.endpoint.put("/bucket/k", object("v1", "hello"));
    let answer_to = |signer: Signer| guarded.send(signer.request("GET /bucket/k", &[]));
    let wrong_secret = answer_to(Signer { secret: "client-secret-0123456780".into(), ..Signer::default() });
    assert_eq!((wrong_secret.status, &*code(&wrong_secret)), (403, "SignatureDoesNotMatch"));
    let wrong_key = answer_to(Signer { access_key: "another".into(), ..Signer::default() });
    assert_eq!((wrong_key.status, &*code(&wrong_key)), (403, "InvalidAccessKeyId"));
    let anonymous = guarded.send(request("GET /bucket/k", &[]));
    assert_eq!((anonymous.status, &*code(&anonymous)), (403, "AccessDenied"));
    let unknown_host = answer_to(Signer { host: "elsewhere.example.com".into(), ..Signer::default() });
    assert_eq!((unknown_host.status, &*code(&unknown_host)), (400, "InvalidURI"));
    let form = guarded.send(Signer::default().upload("POST /bucket", b"x", &[]));
    assert_eq!((form.status, &*code(&form)), (501, "NotImplemented"));
    assert!(guarded.endpoint.take_seen().is_empty());
    let counted = ["signature", "unknown_key", "anonymous", "malformed", "unsupported"]
        .map(|label| guarded.refused(label));
    assert_eq!(counted, [1, 1, 1, 1, 1]);
    assert_eq!(guarded.sidecar.counts().refused.get(), 5);
}

#[test]
fn an_upload_is_verified_before_it_is_whole() {
    let guarded = open();
    let body = pattern(300_000, 3);
    let right = Signer::default().upload("PUT /bucket/k", &body, &[("content-type", "text/plain")]);
    assert_eq!(guarded.send(&right).status, 200);
    let seen = guarded.endpoint.take_seen();
    assert!(seen[0].body == body);
    assert_eq!(seen[0].header("x-amz-content-sha256"), Some(&*sha256(&body)));
    assert_own_signature(&seen[0], &guarded.endpoint);
    for at in [0, 150_000, 299_999] {
        let mut wrong = right.clone();
        let from = wrong.len() - body.len();
        wrong[from + at] ^= 1;
        let answer = guarded.send(&wrong);
        assert_eq!((answer.status, &*code(&answer)), (400, "XAmzContentSHA256Mismatch"), "{at}");
    }
    // The endpoint never received a complete request.
    assert!(guarded.endpoint.take_seen().is_empty());
    assert_eq!(guarded.refused("body"), 3);
    let empty = Signer::default().head("PUT /bucket/k", &sha256(b"x"), &[("content-length", "0")]).0;
    assert_eq!(code(&guarded.send(empty)), "XAmzContentSHA256Mismatch");
    assert!(guarded.endpoint.take_seen().is_empty());
}

#[test]
fn chunks_are_verified_and_taken_off() {
    let guarded = open();
    let body = pattern(200_000, 5);
    let (first, second) = body.split_at(130_000);
    let signer = Signer::default();
    let (right, begin) = signer.chunked("PUT /bucket/k", &[first, second], None);
    assert_eq!(guarded.send(&right).status, 200);
    let seen = guarded.endpoint.take_seen();
    assert!(seen[0].body == body);
    assert_eq!(seen[0].header("content-length"), Some("200000"));
    assert_eq!(seen[0].header("x-amz-content-sha256"), Some("UNSIGNED-PAYLOAD"));
    for name in ["content-encoding", "x-amz-decoded-content-length", "transfer-encoding"] {
        assert_eq!(seen[0].header(name), None, "{name}");
    }
    assert_own_signature(&seen[0], &guarded.endpoint);
    for at in [begin + 200, begin + 130_200, right.len() - 80] {
        let mut wrong = right.clone();
        wrong[at] ^= 1;
        let answer = guarded.send(&wrong);
        assert!([400, 403].contains(&answer.status), "{at}: {} {}", answer.status, code(&answer));
    }
    assert!(guarded.endpoint.take_seen().is_empty());
    // There is nothing to withhold of a body without bytes.
    let (right, _) = signer.chunked("PUT /bucket/empty", &[], None);
    assert_eq!(guarded.send(&right).status, 200);
    assert_eq!(guarded.endpoint.take_seen()[0].header("content-length"), Some("0"));
    let mut wrong = right.clone();
    let last = wrong.len() - 10;
    wrong[last] ^= 1;
    assert!(guarded.send(&wrong).status >= 400);
    assert!(guarded.endpoint.take_seen().is_empty());
}

#[test]
fn a_checksum_at_the_end_is_verified_and_goes_on() {
    let guarded = open();
    let trailer = ("x-amz-checksum-crc32", "y/Q5Jg==");
    let (right, _) = Signer::default().chunked("PUT /bucket/k", &[b"12345", b"6789"], Some(trailer));
    let answer = guarded.send(&right);
    assert_eq!(answer.status, 200, "{}", code(&answer));
    let seen = guarded.endpoint.take_seen();
    assert_eq!(seen[0].body, b"9\r\n123456789\r\n0\r\nx-amz-checksum-crc32:y/Q5Jg==\r\n\r\n");
    assert_eq!(seen[0].header("x-amz-content-sha256"), Some("STREAMING-UNSIGNED-PAYLOAD-TRAILER"));
    assert_eq!(seen[0].header("x-amz-decoded-content-length"), Some("9"));
    assert_eq!(seen[0].header("content-encoding"), Some("aws-chunked"));
    assert_own_signature(&seen[0], &guarded.endpoint);
    let wrong = ("x-amz-checksum-crc32", "y/Q5Jh==");
    let (wrong, _) = Signer::default().chunked("PUT /bucket/k", &[b"123456789"], Some(wrong));
    let answer = guarded.send(&wrong);
    assert_eq!((answer.status, &*code(&answer)), (400, "BadDigest"));
    let unknown = ("x-amz-checksum-md5", "x");
    let (unknown, _) = Signer::default().chunked("PUT /bucket/k", &[b"123456789"], Some(unknown));
    assert_eq!(guarded.send(&unknown).status, 501);
    assert!(guarded.endpoint.take_seen().is_empty());
}

#[test]
fn rights_are_those_of_the_file() {
    let keys = key("\"data\", \"logs/2024/\"", "\"inbox/new/\"") + "[anonymous]\nread = [\"public/www/\"]\n";
    let guarded = guarded(&keys);
    for (path, body) in [("/data/k", "1"), ("/logs/2024/k", "2"), ("/public/www/k", "3"), ("/secret/k", "4")]
    {
        guarded.endpoint.put(path, object("v", body));
    }
    for (line, status) in [
        ("GET /data/k", 200),
        ("HEAD /data/k", 200),
        ("GET /logs/2024/k", 200),
        ("GET /logs/2023/k", 403),
        ("GET /secret/k", 403),
        ("HEAD /secret/k", 403),
        ("GET /public/www/k", 403),
        ("DELETE /data/k", 403),
        ("DELETE /inbox/new/k", 204),
        ("DELETE /inbox/old", 403),
        ("GET /", 403),
    ] {
        assert_eq!(guarded.ask(line).status, status, "{line}");
    }
    let anonymous = |line: &str| guarded.send(request(line, &[])).status;
    assert_eq!(anonymous("GET /public/www/k"), 200);
    assert_eq!(anonymous("GET /public/k"), 403);
    assert_eq!(anonymous("GET /public/www/k?response-content-type=text/html"), 403);
    assert_eq!(anonymous("PUT /public/www/k"), 403);
    // A browser's preflight request is forwarded unsigned; a presigned URL's signature is that of
    // the request that follows.
    guarded.endpoint.take_seen();
    let presigned = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=unknown%2F20130524%2Fus-east-1%2Fs3%2Faws4_request\
                     &X-Amz-Date=20130524T000000Z&X-Amz-Expires=600&X-Amz-SignedHeaders=host&x-amz-acl=private&X-Amz-Signature=00";
    let headers = [("origin", "https://example.com"), ("access-control-request-method", "PUT")];
    for (query, headers) in [("", &headers[..]), (presigned, &headers[..]), (presigned, &[])] {
        assert_eq!(guarded.send(request(&format!("OPTIONS /data/k?{query}"), headers)).status, 200);
        let seen = guarded.endpoint.take_seen().remove(0);
        assert_eq!(seen.header("authorization"), None);
        assert_eq!(seen.target(), if query.is_empty() { "/data/k" } else { "/data/k?x-amz-acl=private" });
        assert_eq!(seen.header("origin").is_some(), !headers.is_empty());
    }
}

#[test]
fn headers_that_are_not_known_reach_no_endpoint() {
    let guarded = guarded(&key("\"data\"", "\"data\""));
    let endpoint = &guarded.endpoint;
    endpoint.put("/data/k", object("v", "hello"));
    let unauthenticated = endpoint.sidecar(|config| config.auth = Auth::None);
    let signer = Signer::default();
    for name in [
        "x-amz_copy-source",
        "X-Amz-Copy_Source",
        "x_amz_copy_source",
        "x-amz.copy-source",
        "x-amz-new-thing",
        "x-minio-extract",
        "x-rgw_x",
        "x-goog-copy-source",
        "x-http-method-override",
        "x-http_method",
        "x-original_url",
        "x-rewrite-url",
        "content_length",
        "transfer_encoding",
    ] {
        let header = format!("\r\n{name}: /other/secret\r\n");
        for line in ["PUT /data/k", "GET /data/k"] {
            let unsigned = signer.request(line, &[]).replacen("\r\n", &header, 1);
            let lower = name.to_ascii_lowercase();
            let signed = signer.request(line, &[(&lower, "/other/secret")]);
            for bytes in [unsigned, signed] {
                let answer = guarded.send(&bytes);
                assert!([400, 403].contains(&answer.status) && !code(&answer).is_empty(), "{line} {name}");
            }
            let answer = Client::of(&unauthenticated).ask(line, &[(name, "/other/secret")]);
            assert_eq!((answer.status, &*code(&answer)), (400, "InvalidRequest"), "{line} {name}");
        }
    }
    assert!(endpoint.take_seen().is_empty());
    // Parameters unknown to S3 are left out, and those that S3 knows pass, including metadata with
    // any name.
    let others = [
        ("x-forwarded-for", "1.2.3.4"),
        ("cookie", "a=b"),
        ("traceparent", "0"),
        ("x-amzn-trace-id", "Root=1"),
        ("amz-sdk-request", "attempt=1"),
    ];
    let own = [
        ("x-amz-meta-my_key", "1"),
        ("x-amz-storage-class", "STANDARD"),
        ("content-type", "text/plain"),
        ("content-md5", "x"),
        ("user-agent", "me"),
    ];
    let answer = guarded.send(signer.request("PUT /data/k", &[&others[..], &own].concat()));
    assert_eq!(answer.status, 200, "{}", code(&answer));
    let seen = endpoint.take_seen().remove(0);
    assert_own_signature(&seen, endpoint);
    for (name, value) in own {
        assert_eq!(seen.header(name), Some(value), "{name}");
    }
    for (name, _) in others {
        assert_eq!(seen.header(name), None, "{name}");
    }
}

#[test]
fn the_sidecars_own_credentials_administer_nothing() {
    let endpoint = Endpoint::start();
    let sidecar = endpoint.sidecar(|config| {
        config.auth = Auth::None;
        config.secrets.credentials = Some(Credentials::new(OWN_KEY.into(), OWN_SECRET.into(), None));
    });
    let mut client = Client::of(&sidecar);
    for line in
        ["POST /", "POST /?Action=AssumeRole", "PUT /", "DELETE /", "GET /?Action=ListUsers", "GET /?x&x"]
    {
        let answer = client.ask(line, &[]);
        assert!([400, 403].contains(&answer.status) && !code(&answer).is_empty(), "{line}");
    }
    assert!(endpoint.take_seen().is_empty());
    for line in ["GET /", "GET /?max-buckets=2&prefix=a", "OPTIONS /"] {
        client.ask(line, &[]);
        assert_eq!(endpoint.take_seen().len(), 1, "{line}");
    }
}

#[test]
fn unsigned_chunks_need_no_trailer() {
    let guarded = open();
    let send = |trailer: Option<&str>, end: &str| {
        let mut headers = vec![("x-amz-decoded-content-length", "5")];
        headers.extend(trailer.map(|name| ("x-amz-trailer", name)));
        let (head, ..) =
            Signer::default().head("PUT /bucket/k", "STREAMING-UNSIGNED-PAYLOAD-TRAILER", &headers);
        let body = format!("5\r\nhello\r\n0\r\n{end}");
        let head = head.replacen("\r\n", &format!("\r\ncontent-length: {}\r\n", body.len()), 1);
        guarded.send(format!("{head}{body}"))
    };
    let answer = send(None, "\r\n");
    assert_eq!(answer.status, 200, "{}", code(&answer));
    let seen = guarded.endpoint.take_seen().remove(0);
    assert_eq!(
        (&seen.body[..], seen.header("x-amz-content-sha256")),
        (&b"hello"[..], Some("UNSIGNED-PAYLOAD"))
    );
    assert_own_signature(&seen, &guarded.endpoint);
    // A trailer that is not announced does not count, and an announced one must come.
    for (trailer, end) in
        [(None, "x-amz-checksum-crc32:NhCmhg==\r\n\r\n"), (Some("x-amz-checksum-crc32"), "\r\n")]
    {
        let answer = send(trailer, end);
        assert_eq!((answer.status, &*code(&answer)), (400, "MalformedTrailerError"), "{end}");
    }
    assert!(guarded.endpoint.take_seen().is_empty());
}

#[test]
fn keys_in_a_deletion_of_many_are_decided_one_by_one() {
    let guarded = guarded(&key("", "\"data/in/\""));
    let body = |keys: &[&str]| {
        let each: String = keys.iter().map(|key| format!("<Object><Key>{key}</Key></Object>")).collect();
        format!("<Delete>{each}</Delete>").into_bytes()
    };
    let delete =
        |keys: &[&str]| guarded.send(Signer::default().upload("POST /data?delete=", &body(keys), &[]));
    assert_eq!(delete(&["in/a", "in/b"]).status, 200);
    let seen = guarded.endpoint.take_seen();
    assert_eq!(seen[0].body, body(&["in/a", "in/b"]));
    assert_own_signature(&seen[0], &guarded.endpoint);
    for keys in [&["in/a", "out/b"][..], &["in/../out"], &["in"]] {
        let answer = delete(keys);
        assert_eq!((answer.status, &*code(&answer)), (403, "AccessDenied"), "{keys:?}");
    }
    let long = "x".repeat(5 << 19);
    let answer = delete(&[&long]);
    assert_eq!((answer.status, &*code(&answer)), (400, "MalformedXML"));
    assert!(guarded.endpoint.take_seen().is_empty());
}

#[test]
fn a_chunked_deletion_is_forwarded_whole_with_its_checksum() {
    let guarded = guarded(&key("", "\"data/in/\""));
    let body = b"<Delete><Object><Key>in/a</Key></Object></Delete>";
    let checksum = BASE64_STANDARD.encode(Sha256::digest(body));
    for trailer in [None, Some(("x-amz-checksum-sha256", checksum.as_str()))] {
        let (first, rest) = body.split_at(20);
        let (request, _) = Signer::default().chunked("POST /data?delete=", &[first, rest], trailer);
        let answer = guarded.send(request);
        assert_eq!(answer.status, 200, "{trailer:?} {}", code(&answer));
        let seen = guarded.endpoint.take_seen().remove(0);
        assert_eq!(seen.body, body);
        assert_eq!(seen.header("x-amz-checksum-sha256"), trailer.map(|(_, value)| value));
        for name in ["content-encoding", "x-amz-trailer", "x-amz-decoded-content-length"] {
            assert_eq!(seen.header(name), None, "{name}");
        }
        assert_own_signature(&seen, &guarded.endpoint);
    }
    let wrong = Some(("x-amz-checksum-sha256", "AAAA"));
    let (request, _) = Signer::default().chunked("POST /data?delete=", &[body], wrong);
    let answer = guarded.send(request);
    assert_eq!((answer.status, &*code(&answer)), (400, "BadDigest"));
    assert!(guarded.endpoint.take_seen().is_empty());
}

#[test]
fn deletions_that_arrive_slowly_keep_no_others_waiting() {
    let guarded = guarded(&key("", "\"data\""));
    let body = b"<Delete><Object><Key>k</Key></Object></Delete>";
    let mut slow = Vec::new();
    for _ in 0..32 {
        let mut client = Client::of(&guarded.sidecar);
        let expect = [("expect", "100-continue")];
        let upload = Signer::default().upload("POST /data?delete=", body, &expect);
        client.send(&upload[..upload.len() - body.len()]);
        // The sidecar waits for the body now.
        assert_eq!(client.head().unwrap().status, 100);
        slow.push(client);
    }
    assert_eq!(guarded.send(Signer::default().upload("POST /data?delete=", body, &[])).status, 200);
}

#[test]
fn no_right_to_a_bucket_deletes_what_is_outside_of_it() {
    for rights in ["\"data\"", "\"*\""] {
        let guarded = guarded(&key(rights, rights));
        let delete = |query: &str, key: &str| {
            let [one, other] = ["in/a", key].map(|key| format!("<Object><Key>{key}</Key></Object>"));
            let body = format!("<Delete>{one}{other}</Delete>");
            guarded.send(Signer::default().upload(&format!("POST /data?{query}"), body.as_bytes(), &[]))
        };
        assert_eq!(delete("delete=", "a/../b").status, 200);
        guarded.endpoint.take_seen();
        for query in ["delete=", "Delete=", "delete=&more="] {
            for key in ["../other/k", "in/../../other/k", "&#46;./other/k", ".."] {
                let answer = delete(query, key);
                assert_eq!((answer.status, &*code(&answer)), (400, "InvalidURI"), "{query} {key}");
            }
            // An endpoint could read other keys in it than the sidecar.
            let answer = delete(query, "<![CDATA[../other/k]]>");
            assert_eq!((answer.status, &*code(&answer)), (400, "MalformedXML"), "{query}");
        }
        assert!(guarded.endpoint.take_seen().is_empty());
    }
}

#[test]
fn keys_are_replaced_while_the_sidecar_runs() {
    let guarded = open();
    guarded.endpoint.put("/bucket/k", object("v1", "hello"));
    assert_eq!(guarded.ask("GET /bucket/k").status, 200);
    let path = guarded.directory.path().join("keys.toml");
    write_keys(&path, "[[keys]]\naccess_key = 1\n");
    assert!(guarded.sidecar.secrets().read_again().unwrap_err().starts_with("s3.keys_file: "));
    assert_eq!(guarded.ask("GET /bucket/k").status, 200);
    write_keys(&path, &key("\"other\"", ""));
    let changed = guarded.sidecar.secrets().read_again().unwrap().put_in_force();
    assert_eq!(changed, ["s3.keys_file"]);
    assert_eq!(guarded.ask("GET /bucket/k").status, 403);
}

#[test]
fn without_authentication_every_request_becomes_the_sidecars_own() {
    let endpoint = Endpoint::start();
    let sidecar = endpoint.sidecar(|config| {
        config.auth = Auth::None;
        config.secrets.credentials =
            Some(Credentials::new(OWN_KEY.into(), OWN_SECRET.into(), Some("a-token".into())));
    });
    endpoint.put("/bucket/k", object("v1", "hello"));
    let mut client = Client::of(&sidecar);
    let foreign = Signer { secret: "whatever-it-is-it-does-not-count".into(), ..Signer::default() };
    for head in [request("GET /bucket/k", &[]), foreign.request("GET /bucket/k", &[])] {
        client.send(head);
        assert_eq!(client.answer().body, b"hello");
        let seen = endpoint.take_seen();
        assert_own_signature(&seen[0], &endpoint);
        assert_eq!(seen[0].header("x-amz-security-token"), Some("a-token"));
    }
    let (upload, _) = foreign.chunked("PUT /bucket/new", &[b"some ", b"bytes"], None);
    client.send(upload);
    assert_eq!(client.answer().status, 200);
    assert_eq!(endpoint.take_seen()[0].body, b"some bytes");
    assert_eq!(client.ask("GET /admin/user", &[]).status, 400);
    let anonymous = endpoint.sidecar(|config| config.auth = Auth::None);
    let mut client = Client::of(&anonymous);
    client.send(foreign.request("GET /bucket/k", &[]));
    assert_eq!(client.answer().body, b"hello");
    let seen = endpoint.take_seen();
    assert_eq!((seen[0].header("authorization"), seen[0].header("x-amz-date")), (None, None));
}
