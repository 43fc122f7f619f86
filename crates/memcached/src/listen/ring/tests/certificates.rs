//! Two nodes of one process with certificates: whom they accept, and what each says if it does not.

use super::super::{Accepted, dial_copy};
use super::{OTHER, Place, SECRET, next, opened, pass, run, secret, served};
use crate::connections::Command;
use crate::settings::{RingSecrets, ServerTls, TlsSettings};
use crate::shared::Shared;
use crate::stream::{Link, Transport};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::rc::Rc;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// An authority, and the certificates that it has signed.
struct Authority {
    dir: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca"), params.self_signed(&key).unwrap().pem()).unwrap();
        Authority { dir, issuer: Issuer::new(params, key) }
    }

    /// Returns a certificate for `host`, for a node that accepts those of the authority `accepts`.
    fn certificate(&self, host: &str, is_expired: bool, accepts: &Authority) -> Option<Arc<ServerTls>> {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([host.to_owned()]).unwrap();
        if is_expired {
            params.not_before = rcgen::date_time_ymd(2001, 1, 1);
            params.not_after = rcgen::date_time_ymd(2002, 1, 1);
        }
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        let chain = self.dir.path().join(format!("{host}-{is_expired}"));
        std::fs::write(&chain, signed.pem() + &key.serialize_pem()).unwrap();
        let settings = TlsSettings::of_peers(chain, "".into(), accepts.dir.path().join("ca"));
        Some(Arc::new(ServerTls::load_for_peers(settings).unwrap()))
    }

    fn own(&self) -> Option<Arc<ServerTls>> {
        self.certificate("127.0.0.1", false, self)
    }
}

/// Accepts one connection at `b`. Returns what it says of the other side if it does not serve it.
async fn accept_once(listener: TcpListener, b: Arc<Shared>) -> Option<String> {
    let (stream, _) = listener.accept().await.unwrap();
    let (ring, settings) = (b.ring.as_ref().unwrap(), b.settings.ring.as_ref().unwrap());
    let admitted = Accepted::default().admit(&b, ring, settings, stream, &mut None).await;
    admitted.err().map(|failure| failure.to_string())
}

/// Lets `a` connect to `b` once. Returns what each says if they get no lane, and otherwise the lane.
async fn meet(
    place: &Place,
    a: &Arc<Shared>,
    b: &Arc<Shared>,
) -> Result<(Link, Link), (String, Option<String>)> {
    let listener = TcpListener::from_std(place.socket.try_clone().unwrap()).unwrap();
    let accepting = tokio::task::spawn_local(accept_once(listener, b.clone()));
    let dialling = tokio::task::spawn_local(super::dial(a.clone()));
    match next(a).await {
        Command::OpenLane(lane) => {
            let accepted = served(b).await;
            dialling.abort();
            Ok((lane.link, accepted.link))
        }
        Command::NoLane(none) => {
            dialling.abort();
            Err((none.why, accepting.await.unwrap()))
        }
        _ => panic!("another command"),
    }
}

#[test]
fn nodes_of_one_authority_get_lanes_and_copy_sessions_with_tls() {
    let authority = Authority::new("ours");
    let secrets = || RingSecrets::new(secret(SECRET), None);
    run(async || {
        let place = Place::new();
        let (a, b) = (
            place.node_with("a", secrets(), authority.own()),
            place.node_with("b", secrets(), authority.own()),
        );
        let (from, to) = meet(&place, &a, &b).await.expect("a lane");
        let (mut to, mut from) = pass(from, to).await;
        assert!(from.io(&mut None).is_encrypted() && to.io(&mut None).is_encrypted());
        drop(pass(to, from).await);
        // The node accepts further connections by itself.
        tokio::task::spawn_local(super::accept(place.listener(), b.clone(), Rc::<Accepted>::default()));
        let dialled = tokio::task::spawn_blocking(move || dial_copy(&a, "b", &|| false).map(drop));
        dialled.await.unwrap().expect("a copy session");
        crate::copy::end(&b);
    });
}

#[test]
fn who_is_refused_is_told_why_in_one_line() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let host = "127.0.0.1";
    let expired = "the TLS handshake has failed: invalid peer certificate: certificate expired";
    let unknown = "the TLS handshake has failed: invalid peer certificate: UnknownIssuer";
    let alert = "the TLS handshake has failed: received fatal alert";
    let no_tls = "it does not speak TLS, as this node does ([ring.tls])";
    let tls = "it speaks TLS, and this node does not: [ring.tls] is missing";
    for (a, b, at_a, at_b) in [
        (ours.own(), None, no_tls, tls),
        (None, ours.own(), tls, no_tls),
        (ours.own(), theirs.certificate(host, false, &ours), unknown, alert),
        (theirs.certificate(host, false, &ours), ours.own(), alert, unknown),
        (ours.own(), ours.certificate(host, true, &ours), expired, alert),
        (ours.certificate(host, true, &ours), ours.own(), alert, expired),
        (
            ours.own(),
            ours.certificate("b.example", false, &ours),
            "the TLS handshake has failed: invalid peer certificate: certificate not valid for name \"127.0.0.1\"",
            alert,
        ),
    ] {
        run(async || {
            let place = Place::new();
            let none = RingSecrets::default;
            let (a, b) = (place.node_with("a", none(), a), place.node_with("b", none(), b));
            let (why, theirs) = meet(&place, &a, &b).await.map(drop).expect_err("no lane");
            let theirs = theirs.expect("no lane");
            assert!(why.starts_with(at_a) && theirs.starts_with(at_b), "{why:?}, {theirs:?}");
            assert!(!why.contains('\n') && !theirs.contains('\n'), "{why:?}, {theirs:?}");
        });
    }
}

/// A certificate does not replace the secret, nor the secret a certificate.
#[test]
fn with_a_secret_both_are_needed() {
    let authority = Authority::new("ours");
    run(async || {
        let place = Place::new();
        let a = place.node_with("a", RingSecrets::new(secret(OTHER), None), authority.own());
        let b = place.node_with("b", RingSecrets::new(secret(SECRET), None), authority.own());
        let (why, theirs) = meet(&place, &a, &b).await.map(drop).expect_err("no lane");
        assert!(why.contains("secret") && theirs.expect("no lane").contains("secret"), "{why}");
    });
    run(async || {
        let place = Place::new();
        let same = || RingSecrets::new(secret(SECRET), None);
        let a = place.node_with("a", same(), None);
        let b = place.node_with("b", same(), authority.own());
        assert!(meet(&place, &a, &b).await.is_err());
    });
}

/// Who shows no certificate, or sends what is not TLS, learns nothing and leaves nothing.
#[test]
fn strangers_get_nothing_but_an_alert() {
    let authority = Authority::new("ours");
    run(async || {
        let place = Place::new();
        let b = place.node_with("b", RingSecrets::default(), authority.own());
        let accepted = Rc::<Accepted>::default();
        tokio::task::spawn_local(super::accept(place.listener(), b.clone(), accepted.clone()));
        let address = place.socket.local_addr().unwrap();
        let mut hello = vec![22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff];
        hello.resize(60_000, 0);
        let cases =
            [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 600], &[22, 3, 1, 0, 5, 1, 0], &hello, &hello[..9], b""];
        for bytes in cases {
            let mut stranger = tokio::net::TcpStream::connect(address).await.unwrap();
            // The node may have closed the connection.
            let _ = stranger.write_all(bytes).await;
            let _ = stranger.shutdown().await;
            let mut reply = Vec::new();
            let _ = stranger.read_to_end(&mut reply).await;
            assert!(reply.is_empty() || reply[0] == 21, "{reply:?}");
        }
        let roots = cached_tls::client::with_authorities(Some(&authority.dir.path().join("ca"))).unwrap();
        let anonymous = tokio::task::spawn_blocking(move || {
            let mut socket = std::net::TcpStream::connect(address).unwrap();
            let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
            let mut client = rustls::ClientConnection::new(Arc::new(roots), name).unwrap();
            let mut stream = rustls::Stream::new(&mut client, &mut socket);
            std::io::Read::read(&mut stream, &mut [0; 8]).map_err(|error| error.to_string())
        });
        let refused = anonymous.await.unwrap().expect_err("no certificate");
        assert!(refused.contains("CertificateRequired"), "{refused}");
        assert!(b.connections.queue(0).take().is_empty() && accepted.nodes.borrow().is_empty());
        // Nobody else is kept out.
        let a = place.node_with("a", RingSecrets::default(), authority.own());
        tokio::task::spawn_local(super::dial(a.clone()));
        let from = served(&b).await;
        drop(pass(opened(&a).await.link, from.link).await);
    });
}
