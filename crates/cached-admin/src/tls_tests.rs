//! TLS of the admin listener, as seen by a client.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use cached_tls::{ServerTls, TlsSettings};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::{AdminConfig, AdminServer, Tokens};

const REQUEST: &[u8] = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

fn connect(port: u16) -> std::net::TcpStream {
    std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("a connection")
}

/// Beyond loopback, requests must use TLS; on loopback, they do not use it.
#[test]
fn addresses_beyond_loopback_have_tls() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    let own = params.self_signed(&key).expect("a certificate");
    fs::write(path("chain"), own.pem()).expect("a file");
    fs::write(path("key"), key.serialize_pem()).expect("a file");
    fs::write(path("token"), "0123456789abcdef0123456789abcdef").expect("a file");
    let settings = TlsSettings { chain_file: path("chain"), key_file: path("key"), ..TlsSettings::default() };
    let config = AdminConfig {
        listen: vec!["0.0.0.0:0".into(), "127.0.0.1:0".into()],
        tokens: Some(Tokens::from_file(path("token")).expect("a token")),
        tls: Some(Arc::new(ServerTls::load(settings, &[]).expect("a pair"))),
        ..AdminConfig::default()
    };
    let server = AdminServer::start(config, "test", "0").expect("an admin listener");
    let schemes: Vec<bool> = server.urls().iter().map(|url| url.starts_with("https://")).collect();
    assert_eq!(schemes, [true, false]);
    let ports: Vec<u16> = server.addresses().iter().map(SocketAddr::port).collect();
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
