//! TLS on the memcached listener: versions, certificates, resumption, renewal, and peers that break the rules.

use cached_tests::conn::{Conn, DEADLINE};
use cached_tests::outside;
use cached_tests::program::{Flavour, Program};
use cached_tests::server::{Address, START_STOP_DEADLINE, Server, Start, own_address};
use cached_tests::tls::{BOTH, Certificates, ONLY_12, ONLY_13, TlsClient, Validity};
use rustls::{ClientConfig, HandshakeKind, ProtocolVersion};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn is_cached() -> bool {
    Program::under_test().flavour == Flavour::Cached
}

fn address(server: &Server) -> SocketAddr {
    ([127, 0, 0, 1], server.port()).into()
}

/// Returns a client of the server with other settings than `server.connect()`.
fn client(server: &Server, config: &Arc<ClientConfig>) -> TlsClient {
    TlsClient::connect(address(server), config).expect("a connection")
}

/// Sends a request and returns the first bytes of the reply, or the reason why there is no reply.
fn ask(client: &mut TlsClient, request: &[u8]) -> Result<Vec<u8>, String> {
    client.handshake(DEADLINE).map_err(|error| error.to_string())?;
    client.write_some(request).map_err(|error| error.to_string())?;
    let mut reply = vec![0; 4096];
    match client.read_some(&mut reply, DEADLINE) {
        Ok(0) => Err("closed in order".into()),
        Ok(count) => Ok(reply[..count].to_vec()),
        Err(error) => Err(error.to_string()),
    }
}

fn is_served(server: &Server, config: &Arc<ClientConfig>) -> bool {
    ask(&mut client(server, config), b"mn\r\n").as_deref() == Ok(b"MN\r\n")
}

#[track_caller]
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + START_STOP_DEADLINE;
    while !holds() {
        assert!(Instant::now() < end, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn tls_1_2_and_1_3_are_spoken() {
    let certificates = Certificates::shared();
    let server = Start::new().tls().start();
    for (versions, expected) in [
        (BOTH, ProtocolVersion::TLSv1_3),
        (ONLY_13, ProtocolVersion::TLSv1_3),
        (ONLY_12, ProtocolVersion::TLSv1_2),
    ] {
        let mut client = client(&server, &certificates.client(None, versions));
        assert_eq!(ask(&mut client, b"mn\r\n").as_deref(), Ok(&b"MN\r\n"[..]));
        assert_eq!(client.tls().protocol_version(), Some(expected));
    }
    let only_13 = Start::new()
        .tls_with(
            &format!("{} -o ssl_min_version=3", certificates.server_args()),
            certificates.client(None, BOTH),
        )
        .start();
    assert!(is_served(&only_13, &certificates.client(None, ONLY_13)));
    assert!(!is_served(&only_13, &certificates.client(None, ONLY_12)));
}

/// The test covers the modes 0 to 3 of `ssl_verify_mode`, and clients without a certificate, with a
/// valid one, and with invalid ones.
#[test]
fn client_certificates_are_verified_as_the_mode_says() {
    let certificates = Certificates::new();
    certificates.issue("good", Validity::Valid);
    certificates.issue("expired", Validity::Expired);
    let strangers = Certificates::new();
    strangers.issue("stranger", Validity::Valid);
    for ending in ["pem", "key"] {
        let name = format!("stranger.{ending}");
        fs::copy(strangers.path(&name), certificates.path(&name)).expect("a file");
    }
    for (mode, absent, wrong) in [(0, true, true), (1, true, false), (2, false, false), (3, false, false)] {
        let ca = certificates.path("ca.pem");
        let args =
            format!("{} -o ssl_verify_mode={mode},ssl_ca_cert={}", certificates.server_args(), ca.display());
        let good = certificates.client(Some("good"), BOTH);
        let mut server = Start::new().tls_with(&args, good).start();
        for versions in [ONLY_12, ONLY_13] {
            let served = |own| is_served(&server, &certificates.client(own, versions));
            assert!(served(Some("good")), "mode {mode}");
            assert_eq!(served(None), absent, "mode {mode}: without a certificate");
            assert_eq!(served(Some("expired")), wrong, "mode {mode}: expired");
            assert_eq!(served(Some("stranger")), wrong, "mode {mode}: of another authority");
        }
        server.assert_serves("clients with wrong certificates");
        // A client may receive the alert before the worker has counted it.
        match wrong {
            true => assert_eq!(server.stat("ssl_handshake_errors"), 0, "mode {mode}"),
            false => wait_until("they are counted", || server.stat("ssl_handshake_errors") > 0),
        }
    }
}

#[test]
fn a_client_notices_a_server_of_another_authority() {
    let server = Start::new().tls().start();
    assert!(!is_served(&server, &Certificates::new().client(None, BOTH)));
    wait_until("its alert is counted", || server.stat("ssl_handshake_errors") == 1);
}

#[test]
fn listeners_differ_in_tls_and_in_client_certificates() {
    let certificates = Certificates::new();
    certificates.issue("good", Validity::Valid);
    let [plain, without, with] = [(); 3].map(|()| own_address());
    let args = format!(
        "{} -o ssl_ca_cert={} -l notls:{plain},btls:{without},mtls:proto[ascii]:{with}",
        certificates.server_args(),
        certificates.path("ca.pem").display()
    );
    let server = Start::new().tls_with(&args, certificates.client(None, BOTH)).start();
    let mut conn = Conn::open(&Address::Tcp(plain)).expect("a connection");
    conn.ask(b"mn\r\n", b"MN\r\n");
    let served = |address: SocketAddr, own| {
        let config = certificates.client(own, BOTH);
        let client = TlsClient::connect(address, &config);
        ask(&mut client.expect("a connection"), b"mn\r\n").as_deref() == Ok(b"MN\r\n")
    };
    assert!(served(address(&server), None));
    assert!(served(without, None) && served(without, Some("good")));
    assert!(served(with, Some("good")) && !served(with, None));
    assert!(!served(plain, None));
    if !is_cached() {
        return;
    }
    // A session that began without a certificate cannot be resumed on a listener that requires one.
    let config = certificates.client(None, BOTH);
    let connect = |address| TlsClient::connect(address, &config).expect("a connection");
    for _ in 0..2 {
        assert!(ask(&mut connect(without), b"mn\r\n").is_ok());
    }
    assert!(ask(&mut connect(with), b"mn\r\n").is_err());
}

/// As in memcached, the server starts, and its other listeners serve.
#[test]
fn a_listener_for_certificates_that_nothing_can_verify_serves_no_client() {
    let certificates = Certificates::new();
    certificates.issue("good", Validity::Valid);
    let with = own_address();
    let args = format!("{} -l mtls:{with}", certificates.server_args());
    let server = Start::new().tls_with(&args, certificates.client(None, BOTH)).start();
    for versions in [ONLY_12, ONLY_13] {
        for own in [None, Some("good")] {
            let config = certificates.client(own, versions);
            let mut client = TlsClient::connect(with, &config).expect("a connection");
            assert!(ask(&mut client, b"mn\r\n").is_err(), "{own:?}");
            assert!(is_served(&server, &config), "{own:?}, at the other listener");
        }
    }
    if is_cached() {
        assert!(server.log().contains("the listener serves no client"), "{}", server.log());
        // If no certificate can be verified for any listener, the start fails.
        let args = format!("{} -o ssl_verify_mode=2", certificates.server_args());
        let (status, text) = Start::new().args(&args).run_to_exit();
        assert_eq!((status.code(), text.trim_end().lines().count()), (Some(64), 1), "{text}");
    }
}

#[test]
fn sessions_are_resumed_on_any_worker() {
    let certificates = Certificates::shared();
    let server = Start::new().args("-t 4 -o ssl_session_cache").tls().start();
    for versions in [ONLY_12, ONLY_13] {
        let config = certificates.client(None, versions);
        let mut kinds = Vec::new();
        for _ in 0..9 {
            let mut client = client(&server, &config);
            assert_eq!(ask(&mut client, b"mn\r\n").as_deref(), Ok(&b"MN\r\n"[..]));
            kinds.push(client.tls().handshake_kind());
            client.finish_sending();
        }
        assert_eq!(kinds[0], Some(HandshakeKind::Full));
        assert!(kinds[1..].iter().all(|kind| *kind == Some(HandshakeKind::Resumed)), "{kinds:?}");
    }
    if is_cached() {
        // Two handshakes by these clients, and one by `stat`.
        assert_eq!(server.stat("ssl_new_sessions"), 3);
    }
}

#[test]
fn early_data_is_not_taken() {
    let certificates = Certificates::shared();
    let server = Start::new().args("-o ssl_session_cache").tls().start();
    let mut config = (*certificates.client(None, ONLY_13)).clone();
    config.enable_early_data = true;
    let config = Arc::new(config);
    for _ in 0..3 {
        let mut client = client(&server, &config);
        assert!(ask(&mut client, b"mn\r\n").is_ok());
        assert!(!client.tls().is_early_data_accepted());
    }
}

/// Returns the certificate that the server presents.
fn shown(server: &Server, config: &Arc<ClientConfig>) -> Vec<u8> {
    let mut client = client(server, config);
    client.handshake(DEADLINE).expect("a handshake");
    client.tls().peer_certificates().expect("a certificate")[0].to_vec()
}

#[test]
fn certificates_are_replaced_while_clients_are_served() {
    let certificates = Certificates::new();
    let config = certificates.client(None, BOTH);
    let server = Start::new().tls_with(&certificates.server_args(), config.clone()).start();
    let mut conn = server.connect();
    conn.ask(b"mn\r\n", b"MN\r\n");
    let first = shown(&server, &config);
    certificates.issue("server", Validity::Valid);
    assert_eq!(shown(&server, &config), first, "files alone change nothing at once");
    conn.ask(b"refresh_certs\r\n", b"OK\r\n");
    let second = shown(&server, &certificates.client(None, BOTH));
    assert_ne!(second, first);
    assert!(server.stat("time_since_server_cert_refresh") < 3600);
    conn.ask(b"mn\r\n", b"MN\r\n");
    // The key does not belong to the certificate, so the old pair stays in force.
    let key = fs::read(certificates.path("server.key")).expect("a file");
    certificates.issue("other", Validity::Valid);
    fs::copy(certificates.path("other.key"), certificates.path("server.key")).expect("a file");
    conn.send(b"refresh_certs\r\n");
    let line = String::from_utf8_lossy(&conn.read_line()).into_owned();
    assert!(line.starts_with("Error validating the certificate: "), "{line}");
    assert_eq!(shown(&server, &certificates.client(None, BOTH)), second);
    fs::write(certificates.path("server.key"), key).expect("a file");
    fs::remove_file(certificates.path("server.pem")).expect("a file");
    conn.send(b"refresh_certs\r\n");
    let line = String::from_utf8_lossy(&conn.read_line()).into_owned();
    assert!(line.starts_with("Error loading the certificate chain: "), "{line}");
    assert_eq!(shown(&server, &certificates.client(None, BOTH)), second);
    certificates.issue("server", Validity::Valid);
    server.signal(libc::SIGHUP);
    wait_until("the third certificate", || shown(&server, &certificates.client(None, BOTH)) != second);
    conn.ask(b"mn\r\n", b"MN\r\n");
}

#[test]
fn refresh_certs_without_tls_is_refused() {
    if is_cached() {
        Server::start("").connect().ask(b"refresh_certs\r\n", b"Error TLS not enabled\r\n");
    }
}

/// Records and handshakes are sent one byte at a time.
#[test]
fn single_bytes_add_up_to_records() {
    let certificates = Certificates::shared();
    let server = Start::new().args(if is_cached() { "--debug-clock" } else { "" }).tls().start();
    if is_cached() {
        // Handshakes have ten seconds; this machine may need more.
        server.connect().ask(b"debugtime p\r\n", b"OK\r\n");
    }
    for versions in [ONLY_12, ONLY_13] {
        let mut socket = TcpStream::connect(address(&server)).expect("a connection");
        socket.set_nodelay(true).expect("a flag");
        let name = rustls::pki_types::ServerName::try_from("localhost").expect("a name");
        let mut tls =
            rustls::ClientConnection::new(certificates.client(None, versions), name).expect("a client");
        tls.writer().write_all(b"set k 0 0 5\r\nhello\r\nget k\r\n").expect("no limit");
        let mut reply = Vec::new();
        while !reply.ends_with(b"END\r\n") {
            let mut records = Vec::new();
            while tls.wants_write() {
                tls.write_tls(&mut records).expect("memory");
            }
            for byte in records.chunks(1) {
                socket.write_all(byte).expect("the server reads");
            }
            assert!(tls.read_tls(&mut socket).expect("the server writes") > 0);
            tls.process_new_packets().expect("records");
            // The loop ends with an error once nothing more has arrived.
            let _ = tls.reader().read_to_end(&mut reply);
        }
        assert_eq!(reply, b"STORED\r\nVALUE k 0 5\r\nhello\r\nEND\r\n");
    }
}

/// All requests in one record are executed, even if nothing more arrives.
#[test]
fn a_hundred_sets_in_one_record_are_answered() {
    let server = Start::new().tls().start();
    let mut conn = server.connect();
    conn.ask(
        &b"set k 0 0 50\r\n12345678901234567890123456789012345678901234567890\r\n".repeat(100),
        &b"STORED\r\n".repeat(100),
    );
    let large = [&b"set l 0 0 500000\r\n"[..], &vec![b'x'; 500_000], b"\r\n"].concat();
    conn.ask(&large.repeat(5), &b"STORED\r\n".repeat(5));
    let reply = [&b"VALUE l 0 500000\r\n"[..], &vec![b'x'; 500_000], b"\r\nEND\r\n"].concat();
    conn.ask(&b"get l\r\n".repeat(20), &reply.repeat(20));
}

#[test]
fn a_client_that_has_ended_its_side_gets_its_replies() {
    let server = Start::new().tls().start();
    let mut conn = server.connect();
    conn.send(b"set k 0 0 5\r\nhello\r\nget k\r\n");
    conn.finish_sending();
    assert_eq!(conn.read_to_end(), b"STORED\r\nVALUE k 0 5\r\nhello\r\nEND\r\n");
}

#[test]
fn an_end_is_announced_and_a_cut_is_counted() {
    let certificates = Certificates::shared();
    let server = Start::new().tls().start();
    let config = certificates.client(None, BOTH);
    let mut in_order = client(&server, &config);
    assert!(ask(&mut in_order, b"mn\r\n").is_ok());
    in_order.write_some(b"quit\r\n").expect("the server reads");
    // Without close_notify, the read would fail with `UnexpectedEof`.
    assert!(matches!(in_order.read_some(&mut [0; 16], DEADLINE), Ok(0)));
    let mut cut = client(&server, &config);
    assert!(ask(&mut cut, b"mn\r\n").is_ok());
    let before = server.stat("ssl_proto_errors");
    cut.socket().shutdown(std::net::Shutdown::Write).expect("half closed");
    let end = cut.read_some(&mut [0; 16], DEADLINE);
    assert!(matches!(&end, Err(error) if error.kind() == ErrorKind::UnexpectedEof), "{end:?}");
    wait_until("it is counted", || server.stat("ssl_proto_errors") > before);
}

/// Whatever arrives instead of a handshake, the server's only reply is an alert, and it serves
/// other clients.
#[test]
fn what_is_not_tls_is_answered_with_an_alert() {
    let mut server = Start::new().tls().start();
    let mut hello = b"\x16\x03\x01\x40\x00\x01\xff\xff\xff".to_vec();
    hello.resize(200_000, 0x16);
    for input in
        [&b"get k\r\n"[..], b"\x80\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", &[0; 5000], &hello]
    {
        let mut socket = TcpStream::connect(address(&server)).expect("a connection");
        // The server may close before it has read everything.
        let _ = socket.write_all(input);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        let mut reply = Vec::new();
        let _ = socket.read_to_end(&mut reply);
        assert!(reply.is_empty() || reply[0] == 21, "an alert: {reply:?}");
    }
    server.assert_serves("bytes that are not TLS");
}

#[test]
fn a_client_too_many_is_refused_without_plaintext() {
    if !is_cached() {
        return;
    }
    let server = Start::new().args("-c 2").tls().start();
    let mut conns = [server.connect(), server.connect()];
    conns.iter_mut().for_each(|conn| conn.ask(b"mn\r\n", b"MN\r\n"));
    let mut socket = TcpStream::connect(address(&server)).expect("a connection");
    let mut reply = Vec::new();
    let _ = socket.read_to_end(&mut reply);
    assert_eq!(reply, [21, 3, 3, 0, 2, 2, 80], "the alert internal_error");
}

#[test]
fn watchers_and_dumps_go_through_tls() {
    let server = Start::new().tls().start();
    let mut watcher = server.connect();
    watcher.ask(b"watch fetchers\r\n", b"OK\r\n");
    let mut conn = server.connect();
    let mut last = String::new();
    // The client sends as many lines in one piece as fit into the server's buffers.
    for numbers in (0..3000).collect::<Vec<_>>().chunks(500) {
        for number in numbers {
            conn.ask(format!("get key{number}\r\n").as_bytes(), b"END\r\n");
        }
        for number in numbers {
            last = String::from_utf8_lossy(&watcher.read_line()).into_owned();
            assert!(last.contains(&format!("key=key{number} ")), "{last}");
        }
    }
    drop(watcher);
    let value = "x".repeat(100);
    let sets: String =
        (0..5000).map(|number| format!("set key{number} 0 0 100 noreply\r\n{value}\r\n")).collect();
    conn.send(sets.as_bytes());
    conn.ask(b"mn\r\n", b"MN\r\n");
    conn.send(b"lru_crawler metadump all\r\n");
    if is_cached() {
        conn.expect(b"OK\r\n", "the reply to a dump");
    }
    let mut keys = 0;
    loop {
        let line = conn.read_line();
        match line.starts_with(b"key=") {
            true => keys += 1,
            false => break,
        }
    }
    assert_eq!(keys, 5000);
    wait_until("the watcher is gone", || server.stat("log_watchers") == 0);
    assert!(!last.is_empty());
}

/// A watcher that does not read uses limited memory, and receives the number of skipped lines
/// later.
#[test]
fn a_watcher_that_does_not_read_skips_lines() {
    if !is_cached() {
        return;
    }
    let server = Start::new().args("-o watcher_logbuf_size=8").tls().start();
    let mut watcher = server.connect();
    watcher.ask(b"watch fetchers\r\n", b"OK\r\n");
    let mut conn = server.connect();
    let key = "k".repeat(240);
    let gets = format!("get {key}\r\n").repeat(500);
    wait_until("lines are skipped", || {
        conn.ask(gets.as_bytes(), &b"END\r\n".repeat(500));
        server.stat("log_watcher_skipped") > 0
    });
    let mut line = Vec::new();
    while !line.starts_with(b"skipped=") {
        line = watcher.read_line();
        if !line.starts_with(b"skipped=") {
            // The server receives further lines only through new events.
            conn.ask(b"get another\r\n", b"END\r\n");
        }
    }
}

/// Stalled handshakes do not delay established clients, and end.
#[test]
fn a_flood_of_handshakes_leaves_others_alone_and_ends() {
    if !is_cached() {
        return;
    }
    let server = Start::new().args("-t 1 --debug-clock").tls().start();
    let mut conn = server.connect();
    // Handshakes have ten seconds; this machine may need more for all of what follows.
    conn.ask(b"debugtime p\r\n", b"OK\r\n");
    let name = || rustls::pki_types::ServerName::try_from("localhost").expect("a name");
    let config = Certificates::shared().client(None, BOTH);
    let mut hello = Vec::new();
    let mut tls = rustls::ClientConnection::new(config, name()).expect("a client");
    tls.write_tls(&mut hello).expect("memory");
    let mut flood: Vec<TcpStream> = (0..300)
        .map(|number| {
            let mut socket = TcpStream::connect(address(&server)).expect("a connection");
            let count = if number % 3 == 0 { 0 } else { hello.len() - number % 2 };
            socket.write_all(&hello[..count]).expect("room in the socket");
            socket
        })
        .collect();
    for _ in 0..100 {
        conn.ask(b"mn\r\n", b"MN\r\n");
    }
    // Each connection has received the server's part of the handshake, although there are so many.
    for socket in flood.iter_mut().skip(2).step_by(6) {
        let mut first = [0];
        socket.read_exact(&mut first).expect("the server's part of the handshake");
        assert_eq!(first, [22]);
    }
    let mut late = server.connect();
    late.ask(b"mn\r\n", b"MN\r\n");
    assert!(server.stat("curr_connections") >= 302);
    conn.ask(b"debugtime r\r\ndebugtime 12\r\n", b"OK\r\nOK\r\n");
    for socket in &mut flood {
        let mut rest = Vec::new();
        // The connection is closed, or reset because the server has not read all of the input.
        let _ = socket.read_to_end(&mut rest);
    }
    conn.ask(b"mn\r\n", b"MN\r\n");
    late.ask(b"mn\r\n", b"MN\r\n");
    wait_until("only three are left", || server.stat("curr_connections") == 3);
    wait_until("they are counted", || server.stat("ssl_handshake_errors") >= 300);
}

#[test]
fn the_end_answers_what_was_received_and_is_announced() {
    let mut server = Start::new().args("-A").tls().start();
    let mut conn = server.connect();
    conn.ask(b"mn\r\n", b"MN\r\n");
    let mut begun = TcpStream::connect(address(&server)).expect("a connection");
    begun.write_all(&[22, 3, 1]).expect("room in the socket");
    conn.send(b"set k 0 0 5\r\nhello\r\nget k\r\nshutdown graceful\r\n");
    if is_cached() {
        // Without close_notify this would be the error `UnexpectedEof`, which also counts as an
        // end.
        assert_eq!(conn.read_to_end(), b"STORED\r\nVALUE k 0 5\r\nhello\r\nEND\r\n");
    }
    assert!(server.wait_exit().success());
}

#[test]
fn mistakes_stop_the_start_with_one_line() {
    if !is_cached() {
        return;
    }
    let certificates = Certificates::new();
    certificates.issue("other", Validity::Valid);
    let path = |name: &str| certificates.path(name).display().to_string();
    for (args, line) in [
        ("-Z".to_owned(), "Error loading the certificate chain:  : no file is named".to_owned()),
        (
            format!("-Z -o ssl_chain_cert={}", path("absent")),
            format!("Error loading the certificate chain: {} : No such file or directory", path("absent")),
        ),
        (
            format!("-Z -o ssl_chain_cert={},ssl_key={}", path("server.pem"), path("other.key")),
            "Error validating the certificate: the key does not belong to the first certificate of the chain"
                .into(),
        ),
    ] {
        let (status, text) = Start::new().args(&args).run_to_exit();
        assert_eq!((status.code(), text.trim_end()), (Some(64), line.as_str()), "{args}");
    }
}

#[test]
fn the_configuration_file_has_all_of_it() {
    if !is_cached() {
        return;
    }
    let certificates = Certificates::new();
    certificates.issue("good", Validity::Valid);
    let path = |name: &str| certificates.path(name).display().to_string();
    let file = certificates.path("cached.toml");
    let text = format!(
        "[memcached.tls]\nchain_file = \"{}\"\nkey_file = \"{}\"\nca_file = \"{}\"\nclient_certificates = \"require\"\n\
         min_version = \"1.3\"\ncipher_suites = [\"TLS13_CHACHA20_POLY1305_SHA256\"]\nsession_tickets = false\n",
        path("server.pem"),
        path("server.key"),
        path("ca.pem")
    );
    fs::write(&file, text).expect("a file");
    let good = certificates.client(Some("good"), BOTH);
    let args = format!("--config={}", file.display());
    let server = Start::new().tls_with(&args, good.clone()).start();
    for _ in 0..2 {
        let mut client = client(&server, &good);
        assert!(ask(&mut client, b"mn\r\n").is_ok());
        let suite = client.tls().negotiated_cipher_suite().expect("a suite").suite();
        assert_eq!(suite, rustls::CipherSuite::TLS13_CHACHA20_POLY1305_SHA256);
        assert_eq!(client.tls().handshake_kind(), Some(HandshakeKind::Full), "no tickets");
    }
    assert!(!is_served(&server, &certificates.client(None, BOTH)));
    assert!(!is_served(&server, &certificates.client(Some("good"), ONLY_12)));
    let printed =
        Command::new(&Program::under_test().path).args([&args, "--print-config"]).output().expect("it runs");
    let printed = outside::text(&printed);
    assert!(printed.contains("[memcached.tls]") && printed.contains("min_version = \"1.3\""), "{printed}");
}

/// Runs `openssl s_client` with these arguments and this input.
fn s_client(server: &Server, words: &[&str], input: &[u8]) -> Option<Output> {
    let openssl = outside::find_program("openssl")?;
    let ca = Certificates::shared().path("ca.pem");
    let mut child = Command::new(openssl)
        .args(["s_client", "-connect", &format!("127.0.0.1:{}", server.port()), "-CAfile"])
        .arg(ca)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("openssl runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    // This fails if the server has already refused the client.
    let _ = stdin.write_all(input);
    drop(stdin);
    Some(child.wait_with_output().expect("openssl ends"))
}

#[test]
fn openssl_speaks_both_versions_and_no_older_one() {
    let server = Start::new().tls().start();
    let commands = b"set k 0 0 5\r\nhello\r\nget k\r\nquit\r\n";
    for version in ["-tls1_2", "-tls1_3"] {
        let Some(output) = s_client(&server, &["-quiet", "-verify_return_error", version], commands) else {
            return outside::skip("openssl", "there is no openssl");
        };
        let text = outside::text(&output);
        assert!(text.contains("STORED\r\nVALUE k 0 5\r\nhello\r\nEND\r\n"), "{version}: {text}");
    }
    for older in [
        &["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"][..],
        &["-tls1", "-cipher", "ALL:@SECLEVEL=0"],
        &["-tls1_2", "-cipher", "AES128-SHA:@SECLEVEL=0"],
        &["-tls1_2", "-cipher", "NULL:@SECLEVEL=0"],
    ] {
        let output = s_client(&server, older, commands).expect("openssl was there");
        let text = outside::text(&output);
        assert!(!text.contains("STORED") && text.contains("alert"), "{older:?}: {text}");
    }
}

#[test]
fn renegotiation_and_downgrades_are_refused() {
    let mut server = Start::new().tls().start();
    // A line with the single letter R requests renegotiation.
    let input = b"R\nmn\r\nquit\r\n";
    let Some(output) = s_client(&server, &["-tls1_2", "-legacy_renegotiation"], input) else {
        return outside::skip("renegotiation", "there is no openssl");
    };
    let text = outside::text(&output);
    assert!(text.contains("RENEGOTIATING") && !text.contains("MN\r\n"), "{text}");
    server.assert_serves("renegotiation");
    // A client that falls back to TLS 1.2, although both sides support 1.3, is refused (RFC 7507),
    // or detects the marker in the server's random bytes (RFC 8446, 4.1.3).
    let output = s_client(&server, &["-tls1_2", "-fallback_scsv", "-quiet"], b"mn\r\nquit\r\n");
    let text = outside::text(&output.expect("openssl was there"));
    assert!(!text.contains("MN\r\n") && text.contains("inappropriate fallback"), "{text}");
    server.assert_serves("a downgrade");
}

#[test]
fn pythons_ssl_module_in_everyday_use() {
    let Some(python) = outside::find_program("python3") else {
        return outside::skip("python ssl", "there is no python3");
    };
    let server = Start::new().args("-o ssl_session_cache").tls().start();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/tls.py");
    let ca = Certificates::shared().path("ca.pem");
    let mut command = Command::new(python);
    command.arg(script).arg(server.port().to_string()).arg(ca);
    let output = outside::run(&mut command, Duration::from_secs(300));
    assert!(output.status.success(), "{}", outside::text(&output));
}
