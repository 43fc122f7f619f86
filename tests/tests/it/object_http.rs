//! The object service over HTTP, with curl, with raw sockets, and beside `cachectl`.

use cached_tests::daemon::{Daemon, wait_for, write_secret};
use cached_tests::outside::{are_installed, run, text};
use cached_tests::program::workspace_programs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use test_kit::framing::{AMBIGUOUS, BOTH_LENGTHS, REFUSED, SMUGGLED};

/// The time limit of a response. It is generous, because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// A program that serves objects in a file store over HTTP and synapse.
pub(crate) struct Node {
    pub(crate) daemon: Daemon,
    /// The address of the HTTP listener.
    pub(crate) http: String,
}

impl Node {
    /// Starts `cached` or `synapsed`. `objects` are lines of `[objects]`, `http` of `[objects.http]`,
    /// `tables` further tables.
    pub(crate) fn start(program: &str, objects: &str, http: impl Fn(&str) -> String, tables: &str) -> Node {
        let daemon = Daemon::start(program, |place| {
            let http = http(place);
            let cache = format!(
                "[objects]\nmemory_bytes_max = \"16 MiB\"\nobject_bytes_max = \"1 MiB\"\n{objects}\n\
                 [objects.http]\nlisten = [\"127.0.0.1:0\"]\nthreads = 2\n{http}\n\
                 [synapse]\nlisten = [\"unix:{place}/socket\"]\nthreads = 1\n{}",
                tables.replace("PLACE", place)
            );
            let store = format!("kind = \"file\", create = true, path = \"{place}/store\"");
            match program {
                "synapsed" => format!("backend = {{ {store} }}\n{cache}"),
                _ => format!("{cache}\n[objects.backend]\n{}\n", store.replace(", ", "\n")),
            }
        });
        let http = daemon.announced("objects over HTTP on http://");
        Node { daemon, http }
    }

    fn both(test: impl Fn(&Node)) {
        for program in ["cached", "synapsed"] {
            test(&Node::start(program, "", |_| String::new(), ""));
        }
    }

    /// Sends a request on a connection of its own; `headers` are lines that end with CRLF.
    fn ask(&self, line: &str, headers: &str, body: &[u8]) -> Answer {
        self.connect().ask(line, headers, body).unwrap_or_else(|| panic!("{line}: no response"))
    }

    fn put(&self, path: &str, body: &[u8]) -> Answer {
        self.ask(&format!("PUT {path}"), "", body)
    }

    fn get(&self, path: &str) -> Answer {
        self.ask(&format!("GET {path}"), "", b"")
    }

    pub(crate) fn connect(&self) -> Client {
        Client::open(&self.http).expect("a connection")
    }

    /// Runs curl; in an argument, `{}` stands for the address. Returns the status and the output.
    fn curl(&self, arguments: &[&str]) -> (u16, Vec<u8>) {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--path-as-is", "--write-out", "%{stderr}%{http_code}"]);
        command.args(arguments.iter().map(|argument| argument.replace("{}", &self.http)));
        let output = run(&mut command, PATIENCE);
        let status = String::from_utf8_lossy(&output.stderr).trim().parse();
        (status.unwrap_or_else(|_| panic!("{arguments:?}: {}", text(&output))), output.stdout)
    }

    /// Runs `cachectl` for the objects, over synapse.
    fn cachectl(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(workspace_programs().join("cachectl"));
        command.arg(format!("--backend=synapse:unix:{}", self.daemon.path("socket").display()));
        run(command.args(arguments), PATIENCE)
    }
}

pub(crate) struct Client {
    stream: TcpStream,
    read: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn etag(&self) -> String {
        self.header("etag").unwrap_or_else(|| panic!("no ETag: {self:?}")).to_owned()
    }
}

impl Client {
    pub(crate) fn open(address: &str) -> std::io::Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        // Heads and bodies are sent in separate packets.
        stream.set_nodelay(true)?;
        Ok(Client { stream, read: Vec::new() })
    }

    /// Sends a request, whose `headers` are lines that end with CRLF. Returns the response; `None` if
    /// the connection ends first.
    pub(crate) fn ask(&mut self, line: &str, headers: &str, body: &[u8]) -> Option<Answer> {
        let length = match line.starts_with("PUT") && !headers.contains("ransfer-Encoding") {
            true => format!("Content-Length: {}\r\n", body.len()),
            false => String::new(),
        };
        let head = format!("{line} HTTP/1.1\r\nHost: localhost\r\n{headers}{length}\r\n");
        // The server may close the connection without reading a refused body.
        let _ = self.stream.write_all(head.as_bytes()).and_then(|()| self.stream.write_all(body));
        self.answer(line.starts_with("HEAD"))
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the request is sent");
    }

    /// Reads a response; `None` if the connection ends first.
    pub(crate) fn answer(&mut self, is_head: bool) -> Option<Answer> {
        let end = loop {
            if let Some(end) = self.read.windows(4).position(|window| window == b"\r\n\r\n") {
                break end;
            }
            self.fill()?;
        };
        let head = String::from_utf8(self.read.drain(..end + 4).collect()).expect("a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let mut answer = Answer { status, head, body: Vec::new() };
        let len = answer.header("content-length").map_or(0, |len| len.parse().expect("a length"));
        let len = if is_head || status == 304 { 0 } else { len };
        while self.read.len() < len {
            self.fill()?;
        }
        answer.body = self.read.drain(..len).collect();
        Some(answer)
    }

    fn fill(&mut self) -> Option<()> {
        let mut bytes = [0; 64 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => None,
            Ok(count) => {
                self.read.extend_from_slice(&bytes[..count]);
                Some(())
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no response in time"),
            Err(_) => None,
        }
    }

    fn is_closed(&mut self) -> bool {
        self.read.is_empty() && self.fill().is_none()
    }
}

/// Returns bytes that identify their position.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

#[test]
fn curl_uses_objects_and_cachectl_sees_the_same_bytes() {
    if !are_installed("curl_uses_objects_and_cachectl_sees_the_same_bytes", &["curl"]) {
        return;
    }
    Node::both(|node| {
        let content = pattern(300_001);
        let file = node.daemon.path("file");
        std::fs::write(&file, &content).expect("a file");
        let file = file.display().to_string();
        let path = "http://{}/vm/disks/a%20b";
        assert_eq!(node.curl(&["--upload-file", &file, path]).0, 201);
        assert_eq!(node.curl(&["-T", &file, "-H", "Transfer-Encoding: chunked", path]).0, 204);
        assert_eq!(node.curl(&[path]), (200, content.clone()));
        assert_eq!(node.curl(&["--range", "4090-200000", path]), (206, content[4090..=200_000].to_vec()));
        let got = node.cachectl(&["-n", "vm", "get", "disks/a b"]);
        assert!(got.status.success() && got.stdout == content, "{}", String::from_utf8_lossy(&got.stderr));
        // Data that `cachectl` writes are visible immediately.
        let changed = node.daemon.path("changed");
        std::fs::write(&changed, &content[1..]).expect("a file");
        let put = node.cachectl(&["-n", "vm", "put", "disks/a b", &changed.display().to_string()]);
        assert!(put.status.success(), "{}", text(&put));
        assert_eq!(node.curl(&[path]), (200, content[1..].to_vec()));
        assert_eq!(node.curl(&["-T", &file, path]).0, 204);
        let (status, head) = node.curl(&["--head", path]);
        let head = String::from_utf8(head).expect("text").to_lowercase();
        assert!(status == 200 && head.contains("content-length: 300001\r\n"), "{head}");
        let destination = "Destination: /vm/copy";
        assert_eq!(node.curl(&["-X", "COPY", "-H", destination, path]).0, 201);
        assert_eq!(node.curl(&["-X", "COPY", "-H", destination, "-H", "Overwrite: F", path]).0, 412);
        assert_eq!(node.cachectl(&["-n", "vm", "get", "copy"]).stdout, content);
        let (status, listing) = node.curl(&["http://{}/vm/?prefix=disks/"]);
        let listing: serde_json::Value = serde_json::from_slice(&listing).expect("JSON");
        assert_eq!((status, &listing["objects"][0]["name"]), (200, &"disks/a b".into()), "{listing}");
        assert_eq!(node.curl(&["-X", "DELETE", path]).0, 204);
        assert_eq!(node.curl(&["-X", "DELETE", path]).0, 404);
        assert_eq!(node.curl(&[path]).0, 404);
        assert!(node.cachectl(&["-n", "vm", "get", "copy"]).status.success());
    });
}

#[test]
fn objects_have_versions_ranges_conditions_and_listings() {
    let node = Node::start("cached", "", |_| String::new(), "");
    let content = pattern(100_000);
    let put = node.ask("PUT /ns/x", "Durability: stored\r\n", &content);
    assert_eq!((put.status, put.header("durability")), (201, Some("stored")), "{put:?}");
    let etag = put.etag();
    let get = node.get("/ns/x");
    assert_eq!((get.status, get.etag(), get.body == content), (200, etag.clone(), true));
    assert_eq!(get.header("content-type"), Some("application/octet-stream"));
    let ask = |line: &str, headers: &str| node.ask(line, headers, b"");
    for (range, status, content_range, bytes) in [
        ("bytes=0-0", 206, "bytes 0-0/100000", &content[..1]),
        ("bytes=70000-", 206, "bytes 70000-99999/100000", &content[70_000..]),
        ("bytes=-5", 206, "bytes 99995-99999/100000", &content[99_995..]),
        ("bytes=99999-200000", 206, "bytes 99999-99999/100000", &content[99_999..]),
        ("bytes=0-1,5-6", 200, "", &content[..]),
        ("lines=0-1", 200, "", &content[..]),
    ] {
        let part = ask("GET /ns/x", &format!("Range: {range}\r\n"));
        let found = (part.status, part.header("content-range").unwrap_or_default());
        assert_eq!(found, (status, content_range), "{range}");
        assert!(part.body == bytes, "{range}");
    }
    let beyond = ask("GET /ns/x", "Range: bytes=100000-\r\n");
    assert_eq!((beyond.status, beyond.header("content-range")), (416, Some("bytes */100000")));
    assert_eq!(ask("GET /ns/x", &format!("If-None-Match: {etag}\r\n")).status, 304);
    assert_eq!(ask("GET /ns/x", "If-Match: \"0\"\r\n").status, 412);
    let head = ask("HEAD /ns/x", "");
    assert_eq!((head.status, head.header("content-length")), (200, Some("100000")));
    // A change whose condition fails changes nothing.
    let change = |line: &str, headers: &str| node.ask(line, headers, b"new").status;
    assert_eq!(change("PUT /ns/x", "If-None-Match: *\r\n"), 412);
    assert_eq!(change("PUT /ns/x", "If-Match: \"0\"\r\n"), 412);
    assert_eq!(change("PUT /ns/missing", "If-Match: *\r\n"), 412);
    assert!(node.get("/ns/x").body == content);
    let replaced = node.ask("PUT /ns/x", &format!("If-Match: {etag}\r\n"), b"new");
    assert_eq!((replaced.status, replaced.etag() != etag), (204, true));
    // If the version has changed, the response is the whole object, so that the client does not
    // combine two versions.
    let whole = ask("GET /ns/x", &format!("Range: bytes=1-\r\nIf-Range: {etag}\r\n"));
    assert_eq!((whole.status, &whole.body[..]), (200, &b"new"[..]));
    // A copy onto itself obeys the same conditions as any other copy.
    let onto_itself = |headers: &str| ask("COPY /ns/x", &format!("Destination: /ns/x\r\n{headers}"));
    assert_eq!(onto_itself(&format!("If-Match: {etag}\r\n")).status, 412);
    assert_eq!(onto_itself(&format!("If-Match: {}\r\nOverwrite: F\r\n", replaced.etag())).status, 412);
    let replaced = onto_itself(&format!("If-Match: {}\r\n", replaced.etag()));
    assert_eq!((replaced.status, node.get("/ns/x").body), (204, b"new".to_vec()));
    assert_eq!(ask("DELETE /ns/x", &format!("If-Match: {etag}\r\n")).status, 412);
    assert_eq!(ask("DELETE /ns/x", &format!("If-Match: {}\r\n", replaced.etag())).status, 204);
    assert_eq!(ask("COPY /ns/x", "Destination: /ns/y\r\n").status, 404);
    assert_eq!(node.put("/ns/empty", b"").status, 201);
    assert_eq!(ask("COPY /ns/x", "Destination: /ns/empty\r\n").status, 404);
    assert_eq!(node.get("/ns/empty").body, b"");
    assert_eq!(ask("GET /ns/empty", "Range: bytes=0-\r\n").status, 416);

    // Names may contain any bytes; each page begins where the previous one ended.
    let names = ["a", "b%2Fc", "b/c/d", "%00", "%FF%FE", "..", "%C3%BC+"];
    names.iter().for_each(|name| assert_eq!(node.put(&format!("/a%2Fb/{name}"), b"1").status, 201, "{name}"));
    let (mut found, mut after) = (Vec::new(), String::new());
    loop {
        let page = node.get(&format!("/a%2Fb/?limit=2&after={after}"));
        assert_eq!((page.status, page.header("content-type")), (200, Some("application/json")));
        let page: serde_json::Value = serde_json::from_slice(&page.body).expect("JSON");
        for object in page["objects"].as_array().expect("a list") {
            assert_eq!(object["size_bytes"], 1);
            found
                .push(object["name"].as_str().or(object["name_base64"].as_str()).expect("a name").to_owned());
        }
        let Some(next) = page["next"].as_str() else { break };
        after = next.replace('\0', "%00").replace('ü', "%C3%BC").replace('+', "%2B").replace('/', "%2F");
    }
    assert_eq!(found, ["\0", "..", "a", "b/c", "b/c/d", "ü+", "//4="]);
    let last = node.get("/a%2Fb/?limit=1&after=%C3%BC%2B").text();
    assert!(last.contains("\"name_base64\":\"//4=\"") && last.contains("\"next\":null"), "{last}");
    assert_eq!(node.get("/unused/").text(), "{\"objects\":[],\"next\":null}\n");

    // The body of an error is one line, which includes the remedy.
    for (line, headers, status, words) in [
        ("GET /ns/none", "", 404, "no such object"),
        ("GET /ns", "", 400, "the path must be /NAMESPACE/NAME"),
        ("GET /ns/%zz", "", 400, "two hexadecimal digits"),
        ("GET /.journal/x", "", 403, "is reserved"),
        ("PUT /%2Ejournal/x", "", 403, "is reserved"),
        ("GET /.journal/", "", 403, "is reserved"),
        ("COPY /ns/empty", "Destination: /.journal/x\r\n", 403, "is reserved"),
        ("POST /ns/x", "", 405, "the method must be one of GET, HEAD, PUT, DELETE, COPY"),
        ("PUT /ns/x", "Durability: safe\r\n", 400, "Durability must be one of"),
        ("GET /ns/x", "Host: rebound.example\r\n", 400, "exactly one Host"),
    ] {
        let answer = ask(line, headers);
        let text = answer.text();
        assert!(answer.status == status && text.contains(words), "{line}: {answer:?} {text}");
        assert!(text.ends_with('\n') && text.lines().count() == 1, "{line}: {text:?}");
    }
    let mut client = node.connect();
    client.send(b"GET /ns/empty HTTP/1.1\r\nHost: rebound.example\r\n\r\n");
    assert_eq!(client.answer(false).expect("a response").status, 403, "a page of another name");
    let requests = |labels: &str| {
        node.daemon.metric(&format!("cached_object_http_requests_total{{{labels}}}")).unwrap_or_default()
    };
    assert!(requests("method=\"get\",status=\"2xx\"") >= 5.0);
    assert!(requests("method=\"put\",status=\"4xx\"") >= 3.0);
    assert!(requests("method=\"list\",status=\"2xx\"") >= 4.0);
}

#[test]
fn one_of_concurrent_creators_succeeds() {
    let node = Node::start("synapsed", "", |_| String::new(), "");
    let start = Barrier::new(4);
    for round in 0..10 {
        let line = format!("PUT /race/{round}");
        let create = |body: &'static [u8], headers: &str| {
            start.wait();
            node.ask(&line, headers, body).status
        };
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let of = |body, headers| scope.spawn(move || create(body, headers));
            let all = [
                of(b"a", "If-None-Match: *\r\n"),
                of(b"b", "If-None-Match: *\r\n"),
                of(b"c", ""),
                of(b"d", ""),
            ];
            all.into_iter().map(|one| one.join().expect("a status")).collect()
        });
        let created = statuses.iter().filter(|status| **status == 201).count();
        assert_eq!(created, 1, "{statuses:?}");
        assert!(statuses.iter().all(|status| [201, 204, 412].contains(status)), "{statuses:?}");
    }
}

#[test]
fn a_response_states_the_durability_that_was_reached() {
    let namespaces = "[[objects.namespaces]]\nname = \"safe\"\nwrite = \"back\"\ndurability = \"journaled\"\n\
         [[objects.namespaces]]\nname = \"fast\"\nwrite = \"back\"\n\
         [objects.journal]\ncreate = true\ndirectory = \"PLACE/journal\"\n";
    let objects = "writer = \"cache\"\ndirty_age_ms_max = 3600000";
    let node = Node::start("cached", objects, |_| String::new(), namespaces);
    for (path, requested, reached) in [
        ("/safe/x", "", "journaled"),
        ("/safe/x", "Durability: cached\r\n", "journaled"),
        ("/safe/x", "Durability: stored\r\n", "stored"),
        ("/fast/x", "", "cached"),
        ("/fast/x", "Durability: journaled\r\n", "journaled"),
        ("/through/x", "Durability: stored\r\n", "stored"),
    ] {
        for line in ["PUT", "COPY", "DELETE"] {
            let headers = match line {
                "COPY" => format!("{requested}Destination: {path}.copy\r\n"),
                _ => requested.to_owned(),
            };
            let answer = node.ask(&format!("{line} {path}"), &headers, b"");
            assert!([201, 204].contains(&answer.status), "{answer:?}");
            let found = answer.header("durability").unwrap_or_default();
            // The effect of a copy and of a removal may be stored immediately.
            let is_right = found == reached || line != "PUT" && rank(found) > rank(reached);
            assert!(is_right, "{line} {path} {requested}: {found}");
        }
    }
}

fn rank(durability: &str) -> Option<usize> {
    ["cached", "journaled", "stored"].iter().position(|name| *name == durability)
}

const KEYS: &str = r#"
[[keys]]
access_key = "editor"
secret_key = "secret-of-the-editor"
read = ["docs", "shared/in/"]
write = ["docs/drafts/"]

[anonymous]
read = ["public"]
"#;

#[test]
fn keys_decide_what_a_client_may_do() {
    if !are_installed("keys_decide_what_a_client_may_do", &["curl"]) {
        return;
    }
    let node = Node::start(
        "synapsed",
        "",
        |place| {
            write_secret(&Path::new(place).join("keys.toml"), KEYS);
            format!("keys_file = \"{place}/keys.toml\"")
        },
        "",
    );
    let by_editor =
        |arguments: &[&str]| node.curl(&[&["--user", "editor:secret-of-the-editor"], arguments].concat()).0;
    for (name, status) in [("docs/drafts/a", 201), ("docs/b", 403), ("public/c", 403), ("shared/in/x", 403)] {
        let url = format!("http://{{}}/{name}");
        assert_eq!(by_editor(&["--upload-file", "/dev/null", &url]), status, "{name}");
        let anonymous = node.curl(&["--upload-file", "/dev/null", &url]).0;
        assert_eq!(anonymous, 401, "{name}");
    }
    for (path, editor, anonymous) in [
        ("docs/drafts/a", 200, 401),
        ("docs/", 200, 401),
        ("shared/in/x", 404, 401),
        ("shared/out", 403, 401),
        ("shared/", 403, 401),
        ("shared/?prefix=in/", 200, 401),
        ("public/c", 403, 404),
        ("public/", 403, 200),
        (".journal/x", 403, 403),
    ] {
        let url = format!("http://{{}}/{path}");
        assert_eq!((by_editor(&[&url]), node.curl(&[&url]).0), (editor, anonymous), "{path}");
    }
    let copy =
        |to: &str| by_editor(&["-X", "COPY", "-H", &format!("Destination: {to}"), "http://{}/docs/drafts/a"]);
    assert_eq!((copy("/docs/drafts/b"), copy("/docs/b")), (201, 403));
    let refused = node.ask("GET /docs/x", "Authorization: Basic ZWRpdG9yOndyb25n\r\n", b"");
    assert_eq!(refused.status, 401);
    assert!(refused.header("www-authenticate").is_some_and(|value| value.starts_with("Basic ")));
    assert!(node.daemon.metric("cached_object_http_requests_denied_total").is_some_and(|count| count > 9.0));

    // After SIGHUP the new keys are in force; a file with a mistake changes nothing.
    let keys = node.daemon.path("keys.toml");
    write_secret(&keys, &KEYS.replace("docs/drafts/", "docs"));
    node.daemon.signal(libc::SIGHUP);
    wait_for("the new keys", || {
        (by_editor(&["--upload-file", "/dev/null", "http://{}/docs/b"]) == 201).then_some(())
    });
    write_secret(&keys, "[[keys]]");
    node.daemon.signal(libc::SIGHUP);
    wait_for("the mistake", || node.daemon.log().contains("objects.http.keys_file: ").then_some(()));
    assert_eq!(by_editor(&["http://{}/docs/b"]), 200);
    assert!(!node.daemon.log().contains("secret-of-the"), "a secret is in the log");
}

#[test]
fn requests_that_two_readers_could_understand_differently_are_refused() {
    let node = Node::start("cached", "", |_| String::new(), "");
    assert_eq!(node.put("/bucket/secret", b"secret").status, 201);
    for both in BOTH_LENGTHS {
        let mut client = node.connect();
        client.send(format!("PUT /b/k HTTP/1.1\r\nHost: localhost\r\n{both}\r\n\r\n{SMUGGLED}").as_bytes());
        let answer = client.answer(false).expect("a response");
        assert!([201, 204].contains(&answer.status), "{answer:?}");
        assert!(client.is_closed(), "{both}");
        assert_eq!(node.get("/b/k").body, b"", "the chunks count");
    }
    let refused = REFUSED.map(|(head, status)| (head, Some(status)));
    for (head, status) in AMBIGUOUS.map(|head| (head, None)).into_iter().chain(refused) {
        let mut client = node.connect();
        // The connection may have been closed already.
        let _ = client.stream.write_all(format!("{head}{SMUGGLED}").as_bytes());
        let answer = client.answer(false).map(|answer| answer.status);
        assert!(answer == status || (status.is_none() && answer == Some(400)), "{head}: {answer:?}");
        assert!(client.is_closed(), "{head}");
    }
    // These bodies have invalid framing.
    let bodies = [
        ("3\r\nabc\r\n0\r\n\r\n", true),
        ("3;x=y\r\nabc\r\n0\r\nTrailer: x\r\n\r\n", true),
        ("x\r\nabc\r\n0\r\n\r\n", false),
        ("-3\r\nabc\r\n0\r\n\r\n", false),
        ("3\r\nabcd\r\n0\r\n\r\n", false),
        ("fffffffffffffffff\r\nabc", false),
        ("3\nabc\r\n0\r\n\r\n", false),
    ];
    for (number, (body, is_whole)) in bodies.into_iter().enumerate() {
        let path = format!("/chunks/{number}");
        let mut client = node.connect();
        let head = format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.send(head.as_bytes());
        let _ = client.stream.write_all(body.as_bytes());
        // A client that shuts down its sending side early may get no response.
        if !is_whole {
            let _ = client.stream.shutdown(std::net::Shutdown::Write);
        }
        let status = client.answer(false).map(|answer| answer.status);
        assert_eq!(status == Some(201), is_whole, "{body:?}: {status:?}");
        assert_eq!(node.get(&path).status, if is_whole { 200 } else { 404 }, "{body:?}");
    }
    // A body that ends early does not change the object.
    let mut client = node.connect();
    client.send(b"PUT /cut/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc");
    client.stream.shutdown(std::net::Shutdown::Write).expect("a half-closed connection");
    let status = client.answer(false).map(|answer| answer.status);
    assert!(status.is_none_or(|status| status == 400), "{status:?}");
    assert_eq!(node.get("/cut/x").status, 404);
    let mut client = node.connect();
    let long = "x".repeat(20 << 10);
    client.send(format!("GET /b/k HTTP/1.1\r\nHost: localhost\r\nX-Long: {long}\r\n\r\n").as_bytes());
    // The rest of the head may end the connection before the response is read.
    let status = client.answer(false).map(|answer| answer.status);
    assert!(status.is_none_or(|status| status == 431), "{status:?}");
    let many: String = (0..70).map(|number| format!("X-{number}: a\r\n")).collect();
    assert_eq!(node.ask("GET /b/k", &many, b"").status, 431);
    // Requests on one connection are answered in order, however they arrive.
    let mut client = node.connect();
    let one = "GET /bucket/secret HTTP/1.1\r\nHost: localhost\r\n\r\n";
    client.send(one.repeat(20).as_bytes());
    for _ in 0..20 {
        assert_eq!(client.answer(false).expect("a response").body, b"secret");
    }
}

#[test]
fn bodies_have_limits() {
    let node = Node::start(
        "cached",
        "",
        // The limit covers the shares of 16 connections, and two requests of the maximum size.
        |_| "connections_max = 16\npeer_connections_max = 16\nbytes_max = \"5 MiB\"".into(),
        "",
    );
    let limit = 1 << 20;
    assert_eq!(node.put("/big/most", &pattern(limit)).status, 201);
    assert!(node.get("/big/most").body == pattern(limit));
    // The request is refused before its body arrives.
    let mut client = node.connect();
    let head = format!("PUT /big/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n", limit + 1);
    client.send(format!("{head}Expect: 100-continue\r\n\r\n").as_bytes());
    let refused = client.answer(false).expect("a response");
    assert_eq!(refused.status, 413);
    assert!(refused.text().contains("at most 1048576 bytes"), "{refused:?}");
    let chunks = "80000\r\n".to_owned() + &"x".repeat(0x8_0000) + "\r\n";
    let chunked = chunks.repeat(3) + "0\r\n\r\n";
    assert_eq!(node.ask("PUT /big/x", "Transfer-Encoding: chunked\r\n", chunked.as_bytes()).status, 413);
    assert_eq!(node.get("/big/x").status, 404);

    // Some clients announce bodies that they do not send, others do not read. The server takes
    // memory for the other clients from the slowest of them.
    let head = format!("PUT /big/slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: {limit}\r\n\r\nabc");
    let mut idle: Vec<Client> = (0..4).map(|_| node.connect()).collect();
    idle.iter_mut().for_each(|client| client.send(head.as_bytes()));
    let get = b"GET /big/most HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(8);
    let mut deaf: Vec<Client> = (0..3).map(|_| node.connect()).collect();
    deaf.iter_mut().for_each(|client| client.send(&get));
    // Small objects do not wait.
    assert_eq!(node.put("/small/x", b"small").status, 201);
    assert!(node.get("/big/most").body == pattern(limit), "served nevertheless");
    assert_eq!(node.put("/big/other", &pattern(limit)).status, 201);
    wait_for("a connection that is closed", || {
        let stalled = node.daemon.metric("cached_object_http_connections_stalled_total");
        stalled.is_some_and(|count| count >= 1.0).then_some(())
    });
    drop((idle, deaf));
    assert_eq!(node.get("/big/slow").status, 404);
}

/// Nothing else is requested over HTTP here: on a slow machine each request could take as long.
#[test]
fn clients_that_stand_still_are_closed() {
    let node = Node::start("cached", "", |_| "stall_timeout_ms = 4000".into(), "");
    let begun = Instant::now();
    let mut endless = node.connect();
    endless.send(b"GET /big/most HTTP/1.1\r\nHost: loc");
    let mut idle: Vec<Client> = (0..4).map(|_| node.connect()).collect();
    for client in &mut idle {
        client.send(b"PUT /big/slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\nabc");
    }
    for client in &mut idle {
        let status = client.answer(false).map(|answer| answer.status);
        assert!(status.is_none_or(|status| status == 408), "{status:?}");
        assert!(client.is_closed());
    }
    assert!(endless.is_closed());
    assert!(begun.elapsed() >= Duration::from_secs(4), "they had their time");
    let file = node.daemon.path("file");
    std::fs::write(&file, "content").expect("a file");
    let put = node.cachectl(&["-n", "big", "put", "other", &file.display().to_string()]);
    assert!(put.status.success(), "{}", text(&put));
    let listed = node.cachectl(&["-n", "big", "ls"]);
    let names = String::from_utf8_lossy(&listed.stdout);
    assert!(names.contains("other") && !names.contains("slow"), "{}", text(&listed));
}
