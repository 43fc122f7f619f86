//! The listener through its socket, as seen by a client.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use cached_admin::{Access, AdminConfig, AdminError, AdminServer, Response, Tokens};
use cached_tls::{ServerTls, TlsSettings};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn start(change: impl FnOnce(&mut AdminConfig)) -> AdminServer {
    let mut config = AdminConfig::default();
    config.listen = vec!["127.0.0.1:0".into()];
    change(&mut config);
    AdminServer::start(config, "test", "1.2.3").expect("the listener starts")
}

fn with_token(dir: &tempfile::TempDir) -> Tokens {
    let path = dir.path().join("token");
    std::fs::write(&path, TOKEN).expect("the file");
    Tokens::from_file(path).expect("a token")
}

fn connect(admin: &AdminServer) -> TcpStream {
    let address: SocketAddr = admin.addresses()[0];
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    stream
}

/// Sends `bytes` and returns everything up to the end of the connection.
fn exchange(admin: &AdminServer, bytes: &str) -> String {
    let mut stream = connect(admin);
    stream.write_all(bytes.as_bytes()).expect("it is sent");
    let mut answer = Vec::new();
    // The read fails if the listener closes the connection before it has read everything.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).expect("the answer is text")
}

fn get(admin: &AdminServer, path: &str, headers: &str) -> String {
    exchange(admin, &format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{headers}\r\n"))
}

fn status(answer: &str) -> u16 {
    let words = answer.strip_prefix("HTTP/1.1 ").unwrap_or_else(|| panic!("no status: {answer:?}"));
    words[..3].parse().expect("a status")
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").expect("a body").1
}

#[test]
fn probes_follow_the_state() {
    let admin = start(|_| {});
    assert_eq!(status(&get(&admin, "/livez", "")), 200);
    assert_eq!(status(&get(&admin, "/startupz", "")), 503);
    let answer = get(&admin, "/readyz", "");
    assert_eq!((status(&answer), body(&answer)), (503, "the program is starting\n"));
    admin.health().set_started();
    for probe in ["/startupz", "/readyz", "/livez"] {
        let answer = get(&admin, probe, "");
        assert_eq!((status(&answer), body(&answer)), (200, "ok\n"));
    }
    admin.health().set_draining("the end was requested");
    let answer = get(&admin, "/readyz", "");
    assert_eq!((status(&answer), body(&answer)), (503, "the end was requested\n"));
    assert_eq!(status(&get(&admin, "/livez", "")), 200);
}

#[test]
fn metrics_come_in_the_format_that_is_asked_for() {
    let admin = start(|_| {});
    let plain = get(&admin, "/metrics", "");
    assert!(plain.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{plain}");
    assert!(plain.contains("\ncached_build_info{program=\"test\",version=\"1.2.3\"} 1\n"), "{plain}");
    assert!(plain.contains("\n# TYPE process_cpu_seconds_total counter\n"), "{plain}");
    let open = get(&admin, "/metrics", "Accept: application/openmetrics-text; version=1.0.0\r\n");
    assert!(open.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"));
    assert!(open.contains("\n# TYPE process_cpu_seconds counter\n") && open.ends_with("\n# EOF\n"), "{open}");
}

#[test]
fn the_status_is_json_and_is_not_cached() {
    let admin = start(|_| {});
    let answer = get(&admin, "/status.json", "");
    let document: serde_json::Value = serde_json::from_str(body(&answer)).expect("JSON");
    assert_eq!(document["program"], "test");
    for header in ["cache-control: no-store", "x-content-type-options: nosniff", "content-security-policy: "]
    {
        assert!(answer.contains(header), "{header}: {answer}");
    }
}

#[test]
fn a_change_needs_a_token() {
    let dir = tempfile::tempdir().expect("a directory");
    let tokens = with_token(&dir);
    let admin = start(|config| config.tokens = Some(tokens.clone()));
    admin.routes().post("/reload", |request| async move {
        Response::text(format!("{} {}", request.has_token, String::from_utf8_lossy(&request.body)))
    });
    let post = |authorization: &str| {
        let text = format!(
            "POST /reload HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: 2\r\n\
             {authorization}\r\nhi"
        );
        exchange(&admin, &text)
    };
    let refused = post("");
    assert_eq!(status(&refused), 401);
    assert!(refused.contains("www-authenticate: Bearer\r\n"), "{refused}");
    assert_eq!(status(&post("Authorization: Bearer 0123\r\n")), 401);
    let done = post(&format!("Authorization: Bearer {TOKEN}\r\n"));
    assert_eq!((status(&done), body(&done)), (200, "true hi"));
    std::fs::write(dir.path().join("token"), "another-token-of-some-length").expect("the file");
    assert!(tokens.read_again().expect("the file is right").put_in_force());
    assert_eq!(status(&post(&format!("Authorization: Bearer {TOKEN}\r\n"))), 401, "it has been replaced");
    let metrics = get(&admin, "/metrics", "");
    assert!(metrics.contains("\ncached_admin_requests_unauthorized_total 3\n"), "{metrics}");
}

#[test]
fn without_tokens_nothing_can_be_changed() {
    let admin = start(|_| {});
    admin.routes().post("/reload", |_| async { Response::text("done") });
    let answer = exchange(
        &admin,
        "POST /reload HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    );
    assert_eq!(status(&answer), 403);
    assert!(body(&answer).contains("token_file"), "{answer}");
}

#[test]
fn beyond_loopback_everything_but_the_probes_needs_a_token() {
    let dir = tempfile::tempdir().expect("a directory");
    let exposed = |config: &mut AdminConfig| config.listen = vec!["0.0.0.0:0".into()];
    let mut config = AdminConfig::default();
    exposed(&mut config);
    let refused = AdminServer::start(config, "test", "1.2.3").expect_err("it is not opened");
    assert!(matches!(refused, AdminError::Exposed { .. }), "{refused}");
    assert!(refused.to_string().contains("name a token_file"), "{refused}");
    let tokens = with_token(&dir);
    let admin = start(|config| {
        exposed(config);
        config.tokens = Some(tokens);
    });
    assert_eq!(status(&get(&admin, "/livez", "")), 200);
    assert_eq!(status(&get(&admin, "/readyz", "")), 503);
    assert_eq!(status(&get(&admin, "/metrics", "")), 401);
    assert_eq!(status(&get(&admin, "/status.json", "")), 401);
    assert_eq!(status(&get(&admin, "/metrics", &format!("Authorization: Bearer {TOKEN}\r\n"))), 200);
}

#[test]
fn a_page_that_names_this_host_otherwise_reads_nothing() {
    let admin = start(|_| {});
    let answer = exchange(&admin, "GET /metrics HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    assert_eq!(status(&answer), 403);
    let answer = exchange(&admin, "GET /metrics HTTP/1.0\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    let absolute = "GET http://evil.example/metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(status(&exchange(&admin, absolute)), 403);
}

#[test]
fn paths_and_methods_are_exact() {
    let admin = start(|_| {});
    for path in ["/x", "/metrics/", "/Metrics", "/livez/x", "//livez", "/%6civez"] {
        assert_eq!(status(&get(&admin, path, "")), 404, "{path}");
    }
    let close = "HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    let answer = exchange(&admin, &format!("DELETE /metrics {close}\r\n"));
    assert_eq!(status(&answer), 405);
    assert!(answer.contains("allow: GET\r\n"), "{answer}");
    let head = exchange(&admin, &format!("HEAD /livez {close}\r\n"));
    assert_eq!((status(&head), body(&head)), (200, ""));
    assert!(head.contains("content-length: 3\r\n"), "{head}");
}

#[test]
fn heads_and_bodies_are_limited() {
    let dir = tempfile::tempdir().expect("a directory");
    let tokens = with_token(&dir);
    let admin = start(|config| {
        config.tokens = Some(tokens);
        config.body_bytes_max = 1000;
    });
    admin.routes().post("/take", |request| async move { Response::text(request.body.len().to_string()) });
    assert_eq!(status(&get(&admin, "/livez", &format!("x-long: {}\r\n", "x".repeat(64 << 10)))), 431);
    assert_eq!(status(&get(&admin, "/livez", &"x-many: 1\r\n".repeat(100))), 431);
    assert_eq!(status(&get(&admin, &format!("/{}", "x".repeat(64 << 10)), "")), 431);
    let post = |length: usize| {
        let head = format!(
            "POST /take HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n\
             Content-Length: {length}\r\n\r\n"
        );
        exchange(&admin, &(head + &"x".repeat(length)))
    };
    assert_eq!(body(&post(1000)), "1000");
    assert_eq!(status(&post(1001)), 413);
    assert_eq!(status(&exchange(&admin, "no HTTP at all\r\n\r\n")), 400);
    assert_eq!(status(&get(&admin, "/livez", "")), 200, "the listener goes on");
}

#[test]
fn a_client_that_sends_nothing_and_an_answer_that_does_not_come_end_in_time() {
    let admin = start(|config| {
        config.request_timeout = Duration::from_secs(1);
        config.is_held = true;
    });
    admin.routes().get("/slow", Access::Read, |_| std::future::pending::<Response>());
    // The request is sent before the connection is accepted, so a delayed client does not exceed
    // the time limit itself.
    let mut stream = connect(&admin);
    stream
        .write_all(b"GET /slow HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        .expect("it is sent");
    admin.accept();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert_eq!((status(&answer), body(&answer)), (503, "the response takes too long\n"));
    // The read ends when the listener closes the connection.
    exchange(&admin, "GET /livez HTTP/1.1\r\nHo");
    exchange(&admin, "");
}

#[test]
fn connections_are_limited() {
    let admin = start(|config| {
        config.connections_max = 2;
        // The first two keep their places.
        config.request_timeout = Duration::from_secs(600);
    });
    let (first, second) = (connect(&admin), connect(&admin));
    for mut stream in [&first, &second] {
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it is sent");
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1 200");
    }
    let refused = exchange(&admin, "");
    assert_eq!((status(&refused), body(&refused)), (503, "the admin listener has no place free.\n"));
    drop((first, second));
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while status(&get(&admin, "/livez", "")) != 200 {
        assert!(std::time::Instant::now() < deadline, "no place becomes free");
    }
    let metrics = get(&admin, "/metrics", "");
    let refused = metrics.lines().find(|line| line.starts_with("cached_admin_connections_refused_total"));
    assert_ne!(refused, Some("cached_admin_connections_refused_total 0"));
}

#[test]
fn it_ends_with_open_connections() {
    // A separate address, so that no other test's listener gets the port in between.
    let admin = start(|config| config.listen = vec!["127.0.0.95:0".into()]);
    let mut stream = connect(&admin);
    let address = admin.addresses()[0];
    drop(admin);
    let mut rest = Vec::new();
    // Both an end and a reset are correct.
    let _ = stream.read_to_end(&mut rest);
    assert!(TcpStream::connect(address).is_err(), "the address is free");
}

#[test]
fn an_address_in_use_is_named() {
    let admin = start(|_| {});
    let mut config = AdminConfig::default();
    config.listen = vec![admin.addresses()[0].to_string()];
    let error = AdminServer::start(config, "test", "1.2.3").expect_err("it is in use").to_string();
    assert!(
        error.starts_with(&format!("admin.listen: cannot listen on {}", admin.addresses()[0])),
        "{error}"
    );
}

/// Another process continues with the same socket, and accepts connections only when told to.
#[test]
fn sockets_are_passed_on_and_held() {
    let mut first = start(|_| {});
    let address = first.addresses()[0];
    let sockets = first.take_sockets();
    assert_eq!(sockets.len(), 1);
    let second = start(|config| {
        let inherited = sockets.into_iter().map(|(name, socket)| (name, Arc::new(socket.into())));
        config.inherited = inherited.collect();
        config.is_held = true;
    });
    assert_eq!(second.addresses(), [address]);
    first.health().set_started();
    // Two listeners share one socket; the second one does not accept yet.
    for _ in 0..20 {
        assert_eq!(status(&get(&first, "/startupz", "")), 200);
    }
    drop(first);
    let mut waiting = connect(&second);
    waiting.write_all(b"GET /livez HTTP/1.0\r\n\r\n").expect("it is sent");
    second.accept();
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).expect("an answer");
    assert!(answer.contains(" 200 "), "{answer}");
    // A passed socket that other machines can reach also needs a token.
    let open = std::net::TcpListener::bind("0.0.0.0:0").expect("a socket");
    let mut config = AdminConfig::default();
    config.listen = vec!["127.0.0.1:0".into()];
    config.inherited = vec![("127.0.0.1:0".into(), Arc::new(open))];
    assert!(matches!(AdminServer::start(config, "test", "1.2.3"), Err(AdminError::Exposed { .. })));
}

/// Beyond loopback, requests must use TLS; on loopback, they do not use it.
#[test]
fn addresses_beyond_loopback_have_tls() {
    const REQUEST: &[u8] = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    let own = params.self_signed(&key).expect("a certificate");
    std::fs::write(path("chain"), own.pem()).expect("a file");
    std::fs::write(path("key"), key.serialize_pem()).expect("a file");
    let settings = TlsSettings { chain_file: path("chain"), key_file: path("key"), ..TlsSettings::default() };
    let server = start(|config| {
        config.listen = vec!["0.0.0.0:0".into(), "127.0.0.1:0".into()];
        config.tokens = Some(with_token(&dir));
        config.tls = Some(Arc::new(ServerTls::load(settings, &[]).expect("a pair")));
    });
    let schemes: Vec<bool> = server.urls().iter().map(|url| url.starts_with("https://")).collect();
    assert_eq!(schemes, [true, false]);
    let ports: Vec<u16> = server.addresses().iter().map(SocketAddr::port).collect();
    let connect = |port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("a connection");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(own)).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let tls = ClientConnection::new(Arc::new(client), name).expect("a client");
    let mut stream = StreamOwned::new(tls, connect(ports[0]));
    stream.write_all(REQUEST).expect("the server reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an end in order");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    for (port, is_served) in [(ports[0], false), (ports[1], true)] {
        let mut plain = connect(port);
        plain.write_all(REQUEST).expect("room in the socket");
        let mut answer = Vec::new();
        // The connection may be reset, because the data sent is not read.
        let _ = plain.read_to_end(&mut answer);
        assert_eq!(answer.starts_with(b"HTTP/1.1 200 OK"), is_served, "port {port}");
    }
}
