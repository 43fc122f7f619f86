//! Reading, verifying and replacing certificates.

use super::*;
use rcgen::{CertificateParams, KeyPair};
use std::fs;
use std::path::Path;
use std::sync::Arc;

fn write_pair(dir: &Path, name: &str) -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
    let chain = params.self_signed(&key).expect("a certificate").pem();
    fs::write(dir.join("chain.pem"), &chain).expect("a file");
    fs::write(dir.join("key.pem"), key.serialize_pem()).expect("a file");
    (chain, key.serialize_pem())
}

/// Replaces a file as tools that renew certificates do. The inode changes, so the resolution of the
/// file system's timestamps does not matter.
fn replace(path: &Path, text: impl AsRef<[u8]>) {
    let draft = path.with_extension("draft");
    fs::write(&draft, text).expect("a file");
    fs::rename(draft, path).expect("a file");
}

fn settings(dir: &Path) -> TlsSettings {
    let (chain_file, key_file) = (dir.join("chain.pem"), dir.join("key.pem"));
    TlsSettings { chain_file, key_file, ..TlsSettings::default() }
}

fn error(settings: TlsSettings) -> String {
    ServerTls::load(settings, &[]).expect_err("it is wrong").to_string()
}

#[test]
fn mistakes_are_one_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path();
    write_pair(path, "a");
    let at = |name: &str| path.join(name).display().to_string();
    fs::write(path.join("empty"), "").expect("a file");
    fs::write(path.join("noise"), "-----BEGIN CERTIFICATE-----\n!\n").expect("a file");
    let chain = |name: &str| error(TlsSettings { chain_file: path.join(name), ..settings(path) });
    let prefix = "Error loading the certificate chain: ";
    assert_eq!(chain("absent"), format!("{prefix}{} : No such file or directory", at("absent")));
    assert_eq!(
        chain("empty"),
        format!("{prefix}{} : the file contains no certificate; it must be PEM", at("empty"))
    );
    assert_eq!(chain("."), format!("{prefix}{} : it is a directory, not a regular file", at(".")));
    assert!(chain("noise").starts_with(prefix));
    assert_eq!(error(TlsSettings::default()), format!("{prefix} : no file is named"));
    let key = |name: &str| error(TlsSettings { key_file: path.join(name), ..settings(path) });
    assert!(key("absent").starts_with("Error loading the key: "));
    assert!(key("chain.pem").contains("the file contains no private key"));
    let key = error(TlsSettings { key_format: KeyFormat::Der, ..settings(path) });
    assert!(key.starts_with("Error loading the key: "), "{key}");
    let ca = error(TlsSettings { ca_file: path.join("empty"), ..settings(path) });
    assert!(ca.starts_with("Error loading the CA certificate: "), "{ca}");
    for policy in [ClientCertificates::Request, ClientCertificates::Require] {
        let lonely = error(TlsSettings { client_certificates: policy, ..settings(path) });
        assert!(lonely.contains("name a file of them"), "{lonely}");
    }
    let suite = error(TlsSettings { cipher_suites: vec!["AES".into()], ..settings(path) });
    assert!(suite.starts_with("AES is not a cipher suite; expected one of TLS13_"), "{suite}");
    let old = TlsSettings {
        cipher_suites: vec!["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256".into()],
        min_version: MinVersion::Tls13,
        ..settings(path)
    };
    assert!(error(old).contains("belongs to an accepted version"));
    assert!(!error(TlsSettings { cipher_suites: vec!["x\ny".into()], ..settings(path) }).is_empty());
}

#[test]
fn a_key_may_be_in_the_file_of_the_chain() {
    let dir = tempfile::tempdir().expect("a directory");
    let (chain, key) = write_pair(dir.path(), "a");
    fs::write(dir.path().join("both.pem"), chain + &key).expect("a file");
    let settings = TlsSettings { chain_file: dir.path().join("both.pem"), ..TlsSettings::default() };
    ServerTls::load(settings, &[]).expect("both in one file");
}

#[test]
fn a_key_of_another_certificate_is_refused_and_the_old_pair_stays() {
    let dir = tempfile::tempdir().expect("a directory");
    write_pair(dir.path(), "a");
    let tls = ServerTls::load(settings(dir.path()), &[]).expect("a pair");
    let first = tls.config(ClientCertificates::None).expect("the policy of the settings");
    assert!(!tls.reload_if_changed().expect("nothing has changed"));
    let other = KeyPair::generate().expect("a key").serialize_pem();
    let right = fs::read(dir.path().join("key.pem")).expect("a file");
    replace(&dir.path().join("key.pem"), other);
    let error = tls.reload_if_changed().expect_err("they do not belong together").to_string();
    assert!(error.starts_with("Error validating the certificate: the key does not belong"), "{error}");
    assert!(!tls.reload_if_changed().expect("the same files are not tried again"));
    assert!(tls.reload().is_err(), "unless that is requested");
    let kept = tls.config(ClientCertificates::None).expect("the policy of the settings");
    assert!(Arc::ptr_eq(&first, &kept));
    replace(&dir.path().join("key.pem"), right);
    assert!(tls.reload_if_changed().expect("the right key is back"));
    let fresh = tls.config(ClientCertificates::None).expect("the policy of the settings");
    assert!(!Arc::ptr_eq(&first, &fresh));
    assert!(Arc::ptr_eq(&first.ticketer, &fresh.ticketer), "tickets outlive a certificate");
}

#[test]
fn files_that_cannot_be_read_for_now_are_read_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let (chain, _) = write_pair(dir.path(), "a");
    let tls = ServerTls::load(settings(dir.path()), &[]).expect("a pair");
    let first = tls.config(ClientCertificates::None).expect("the policy of the settings");
    // Its first page is not mapped, so a read fails with EIO.
    std::os::unix::fs::symlink("/proc/self/mem", dir.path().join("link")).expect("a link");
    fs::rename(dir.path().join("link"), dir.path().join("chain.pem")).expect("a file");
    for _ in 0..2 {
        let error = tls.reload_if_changed().expect_err("it is not readable");
        assert!(!error.is_mistake(), "{error}");
    }
    assert!(tls.reload().is_err());
    assert!(tls.reload_if_changed().is_err(), "it is not in force yet");
    replace(&dir.path().join("chain.pem"), chain);
    assert!(tls.reload_if_changed().expect("it is readable again"));
    let fresh = tls.config(ClientCertificates::None).expect("the policy of the settings");
    assert!(!Arc::ptr_eq(&first, &fresh));
    assert!(!tls.reload_if_changed().expect("nothing has changed"));
}

/// In the settings, such a certificate is a mistake. A separate listener (`mtls:`) starts
/// nevertheless, and serves no client.
#[test]
fn certificates_that_nothing_can_verify_are_required_by_single_listeners_only() {
    let dir = tempfile::tempdir().expect("a directory");
    let (chain, _) = write_pair(dir.path(), "a");
    let (none, request, require) =
        (ClientCertificates::None, ClientCertificates::Request, ClientCertificates::Require);
    let tls = ServerTls::load(settings(dir.path()), &[require]).expect("a pair");
    assert!(tls.refuses_all(require) && !tls.refuses_all(none));
    assert!(tls.config(require).is_some() && tls.config(none).is_some());
    tls.reload().expect("the same files");
    assert!(ServerTls::load(settings(dir.path()), &[request]).is_err());
    fs::write(dir.path().join("ca.pem"), &chain).expect("a file");
    let with = TlsSettings { ca_file: dir.path().join("ca.pem"), ..settings(dir.path()) };
    assert!(!ServerTls::load(with, &[require]).expect("a pair").refuses_all(require));
}

#[test]
fn tickets_end_with_the_authorities_and_at_the_border_of_a_policy() {
    let dir = tempfile::tempdir().expect("a directory");
    let (chain, _) = write_pair(dir.path(), "a");
    fs::write(dir.path().join("ca.pem"), &chain).expect("a file");
    let settings = TlsSettings { ca_file: dir.path().join("ca.pem"), ..settings(dir.path()) };
    let (none, require) = (ClientCertificates::None, ClientCertificates::Require);
    let tls = ServerTls::load(settings, &[require, none]).expect("a pair");
    let ticketer = |policy| tls.config(policy).expect("a known policy").ticketer.clone();
    let (first_none, first_require) = (ticketer(none), ticketer(require));
    assert!(!Arc::ptr_eq(&first_none, &first_require));
    assert!(tls.config(ClientCertificates::Request).is_none(), "no listener needs it");
    tls.reload().expect("the same files");
    assert!(Arc::ptr_eq(&first_require, &ticketer(require)));
    let key = KeyPair::generate().expect("a key");
    let other = CertificateParams::new(vec!["b".to_owned()]).expect("a name").self_signed(&key);
    fs::write(dir.path().join("ca.pem"), other.expect("a certificate").pem()).expect("a file");
    tls.reload().expect("another authority");
    assert!(!Arc::ptr_eq(&first_require, &ticketer(require)));
}

#[test]
fn nothing_is_kept_for_resumption_and_no_early_data_is_taken() {
    let dir = tempfile::tempdir().expect("a directory");
    write_pair(dir.path(), "a");
    let tls = ServerTls::load(settings(dir.path()), &[]).expect("a pair");
    let config = tls.config(ClientCertificates::None).expect("the policy of the settings");
    assert_eq!(config.max_early_data_size, 0);
    assert!(!config.session_storage.can_cache() && config.ticketer.enabled());
    let without = TlsSettings { session_tickets: false, ..settings(dir.path()) };
    let tls = ServerTls::load(without, &[]).expect("a pair");
    let config = tls.config(ClientCertificates::None).expect("the policy of the settings");
    assert!(!config.ticketer.enabled() && config.send_tls13_tickets == 0);
}

#[test]
fn the_first_end_in_the_chain_is_known() {
    // 1 January of each year, in seconds since 1970.
    const ENDS: [(i32, u64); 3] = [(2031, 1_924_992_000), (2052, 2_587_680_000), (2001, 978_307_200)];
    let dir = tempfile::tempdir().expect("a directory");
    let mut chain = String::new();
    let mut earliest = u64::MAX;
    for (year, end) in ENDS {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec!["a".to_owned()]).expect("a name");
        params.not_before = rcgen::date_time_ymd(1999, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        if !chain.is_empty() {
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        } else {
            fs::write(dir.path().join("key.pem"), key.serialize_pem()).expect("a file");
        }
        chain += &params.self_signed(&key).expect("a certificate").pem();
        fs::write(dir.path().join("chain.pem"), &chain).expect("a file");
        earliest = earliest.min(end);
        let tls = ServerTls::load(settings(dir.path()), &[]).expect("certificates");
        assert_eq!(tls.expiry(), Some(earliest), "with {year}");
        assert_eq!(crate::expiry_of(&dir.path().join("chain.pem")), Ok(Some(earliest)), "with {year}");
    }
}
