//! TLS on both sides: a sidecar whose endpoint is another sidecar, which listens with TLS.

use std::fs;
use std::sync::Arc;

use crate::support::{Endpoint, ask, object, pattern};
use cached_tls::{ServerTls, TlsSettings};

#[test]
fn an_endpoint_with_tls_is_verified_and_used() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    for (chain, key_file) in [("chain", "key"), ("other", "other-key")] {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        fs::write(path(chain), params.self_signed(&key).unwrap().pem()).unwrap();
        fs::write(path(key_file), key.serialize_pem()).unwrap();
    }
    let settings = TlsSettings { chain_file: path("chain"), key_file: path("key"), ..TlsSettings::default() };
    let tls = Arc::new(ServerTls::load(settings, &[]).unwrap());

    let endpoint = Endpoint::start();
    endpoint.put("/b/k", object("a", pattern(500_000, 0)));
    let behind = endpoint.sidecar(|config| config.tls = Some(tls));
    let url = format!("https://localhost:{}", behind.addresses()[0].port());
    let before = |ca_file: &str| {
        endpoint.sidecar(|config| {
            config.upstream = url.parse().unwrap();
            config.upstream_ca_file = Some(path(ca_file));
        })
    };
    let trusting = before("chain");
    for _ in 0..2 {
        let answer = ask(&trusting, "GET /b/k", &[]);
        assert!(answer.status == 200 && answer.body == pattern(500_000, 0), "{}", answer.status);
    }
    assert_eq!((trusting.counts().hits.get(), behind.counts().bytes_from_upstream.get()), (1, 500_000));
    let distrusting = before("other");
    let answer = ask(&distrusting, "GET /b/k", &[]);
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(answer.status == 502 && text.contains("ertificate"), "{text}");
}
