//! TLS on the server's side, and between peers: the configurations for new connections, and their
//! replacement.

use crate::settings::{
    ClientCertificates, Material, MinVersion, TlsError, TlsFile, TlsSettings, certificates_of, stamps,
};
use named_file::{FileError, Stamp};
use parking_lot::{Mutex, MutexGuard, RwLock};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, ProducesTickets, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    ServerConfig, SignatureScheme, SupportedCipherSuite, SupportedProtocolVersion,
};
use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The number of tickets that a TLS 1.3 client receives after a full handshake.
const TICKETS: usize = 2;

/// TLS for a server. Any thread may use it.
pub struct ServerTls {
    settings: TlsSettings,
    /// The policies that listeners need.
    policies: Vec<ClientCertificates>,
    /// Whether the certificate is also shown to those to which this process connects.
    has_peers: bool,
    in_force: RwLock<InForce>,
    /// The states of the files at the last attempt to read them, other than one that failed for a
    /// reason that may pass. Locked while they are read, so that reloads take effect in order.
    read: Mutex<[Stamp; 3]>,
}

/// The configurations for new connections.
struct InForce {
    configs: HashMap<ClientCertificates, Arc<ServerConfig>>,
    /// For connections to peers, if there are any.
    client: Option<Arc<ClientConfig>>,
    authorities: Vec<CertificateDer<'static>>,
    since: Instant,
    /// The earliest expiry, in seconds since 1970.
    expiry: Option<u64>,
}

impl ServerTls {
    /// Reads the files, and checks that the key belongs to the chain. `policies` are those for
    /// which listeners need a [`config`](Self::config) in addition to that of the settings.
    ///
    /// # Errors
    /// Returns [`TlsError`], a one-line message.
    pub fn load(settings: TlsSettings, policies: &[ClientCertificates]) -> Result<ServerTls, TlsError> {
        ServerTls::load_as(settings, policies, false)
    }

    /// Reads the files, also for connections that this process opens: their
    /// [`client_config`](Self::client_config) presents the same certificate, and trusts the authorities
    /// that sign clients' certificates. `settings` are those [of peers](TlsSettings::of_peers).
    ///
    /// # Errors
    /// Returns [`TlsError`], a one-line message.
    pub fn load_for_peers(settings: TlsSettings) -> Result<ServerTls, TlsError> {
        ServerTls::load_as(settings, &[], true)
    }

    fn load_as(
        settings: TlsSettings,
        policies: &[ClientCertificates],
        has_peers: bool,
    ) -> Result<ServerTls, TlsError> {
        let mut all = vec![settings.client_certificates];
        for policy in policies {
            if !all.contains(policy) {
                all.push(*policy);
            }
        }
        let read = stamps(&settings);
        let in_force = InForce::load(&settings, &all, has_peers, None)?;
        let (in_force, read) = (RwLock::new(in_force), Mutex::new(read));
        Ok(ServerTls { settings, policies: all, has_peers, in_force, read })
    }

    /// Returns the settings.
    pub fn settings(&self) -> &TlsSettings {
        &self.settings
    }

    /// Returns the configuration for a new connection with this policy; `None` if `load` was not
    /// given the policy.
    pub fn config(&self, policy: ClientCertificates) -> Option<Arc<ServerConfig>> {
        let in_force = self.in_force.read();
        in_force.configs.get(&policy).cloned()
    }

    /// Returns the configuration for a new connection to a peer; `None` if the files were not
    /// [loaded for peers](Self::load_for_peers).
    pub fn client_config(&self) -> Option<Arc<ClientConfig>> {
        self.in_force.read().client.clone()
    }

    /// Returns whether no client can be served with this policy, because it requires certificates
    /// and no authority is configured.
    pub fn refuses_all(&self, policy: ClientCertificates) -> bool {
        policy == ClientCertificates::Require && self.settings.ca_file.as_os_str().is_empty()
    }

    /// Returns for how long the current certificates have been in use.
    pub fn age(&self) -> Duration {
        self.in_force.read().since.elapsed()
    }

    /// Returns the earliest expiry of the chain's certificates, in seconds since 1970; `None` if no
    /// date can be read.
    pub fn expiry(&self) -> Option<u64> {
        self.in_force.read().expiry
    }

    /// Reads the files again. New connections are then served with them; after an error, the old
    /// files stay in force. Waits for the disk.
    ///
    /// # Errors
    /// Returns [`TlsError`], a one-line message.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.reload_as(self.read.lock(), stamps(&self.settings), || Ok::<_, Infallible>(()))?;
        Ok(())
    }

    /// Reads the files again, and then runs `others`. The new files are used only if `others`
    /// succeeds. Returns the outcome of `others`. Waits for the disk.
    ///
    /// # Errors
    /// Fails if the files cannot be used, in which case `others` is not run.
    pub fn reload_with<T, E>(&self, others: impl FnOnce() -> Result<T, E>) -> Result<Result<T, E>, TlsError> {
        self.reload_as(self.read.lock(), stamps(&self.settings), others)
    }

    /// Reads the files again if any of them has changed since the last attempt. Returns whether any
    /// had changed.
    ///
    /// # Errors
    /// Returns the errors of [`reload`](Self::reload): a mistake once for each change, and a failure
    /// that may pass as often as it occurs, because the next call reads the files again.
    pub fn reload_if_changed(&self) -> Result<bool, TlsError> {
        let (read, now) = (self.read.lock(), stamps(&self.settings));
        if *read == now {
            return Ok(false);
        }
        self.reload_as(read, now, || Ok::<_, Infallible>(()))?;
        Ok(true)
    }

    fn reload_as<T, E>(
        &self,
        mut read: MutexGuard<'_, [Stamp; 3]>,
        now: [Stamp; 3],
        others: impl FnOnce() -> Result<T, E>,
    ) -> Result<Result<T, E>, TlsError> {
        // The attempt is recorded before the files are read, so that the next check notices a
        // change in between.
        let attempted = std::mem::replace(&mut *read, now);
        let fresh =
            InForce::load(&self.settings, &self.policies, self.has_peers, Some(&self.in_force.read()));
        let fresh = fresh.inspect_err(|error| {
            if !error.is_mistake() {
                *read = attempted;
            }
        })?;
        let outcome = others();
        match outcome {
            Ok(_) => *self.in_force.write() = fresh,
            // The files are valid, but not in use.
            Err(_) => *read = attempted,
        }
        Ok(outcome)
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl InForce {
    /// Reads the files; `before` has the configurations that they replace.
    fn load(
        settings: &TlsSettings,
        policies: &[ClientCertificates],
        has_peers: bool,
        before: Option<&InForce>,
    ) -> Result<InForce, TlsError> {
        let material = Material::read(settings)?;
        let provider = Arc::new(provider(settings)?);
        // A session resumed with a ticket shows no certificate, so tickets issued under other
        // authorities become invalid.
        let before = before.filter(|before| before.authorities == material.authorities);
        let mut configs = HashMap::new();
        for policy in policies {
            let earlier = before.and_then(|before| before.configs.get(policy));
            let config = config(settings, &material, *policy, &provider, earlier)?;
            configs.insert(*policy, Arc::new(config));
        }
        let expiry = expiry(&material.chain, &provider);
        let client = match has_peers {
            true => Some(Arc::new(client_config(settings, &material, &provider)?)),
            false => None,
        };
        Ok(InForce { configs, client, authorities: material.authorities, since: Instant::now(), expiry })
    }
}

/// Returns the cryptography, limited to the cipher suites that the settings name.
fn provider(settings: &TlsSettings) -> Result<CryptoProvider, TlsError> {
    let mut provider = crate::provider();
    if settings.cipher_suites.is_empty() {
        return Ok(provider);
    }
    let find = |name: &String| {
        let named = |suite: &&SupportedCipherSuite| format!("{:?}", suite.suite()) == *name;
        ring::ALL_CIPHER_SUITES.iter().find(named).copied().ok_or_else(|| {
            let known = crate::suite_names().join(", ");
            TlsError::Settings(format!("{name} is not a cipher suite; expected one of {known}"))
        })
    };
    provider.cipher_suites = settings.cipher_suites.iter().map(find).collect::<Result<_, _>>()?;
    Ok(provider)
}

/// Returns the configuration for connections to peers.
fn client_config(
    settings: &TlsSettings,
    material: &Material,
    provider: &Arc<CryptoProvider>,
) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider.clone());
    let builder = builder.with_protocol_versions(versions(settings)).map_err(no_suite)?;
    let builder = builder.with_root_certificates(material.roots(settings)?);
    let mut config =
        builder.with_client_auth_cert(material.chain.clone(), material.key.clone_key()).map_err(mismatch)?;
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn versions(settings: &TlsSettings) -> &'static [&'static SupportedProtocolVersion] {
    static ALL: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS12, &rustls::version::TLS13];
    match settings.min_version {
        MinVersion::Tls12 => &ALL,
        MinVersion::Tls13 => &ALL[1..],
    }
}

fn no_suite(_: Error) -> TlsError {
    TlsError::Settings("none of the cipher suites belongs to an accepted version of TLS".into())
}

fn mismatch(error: Error) -> TlsError {
    match error {
        Error::InconsistentKeys(_) => {
            TlsError::Mismatch("the key does not belong to the first certificate of the chain".into())
        }
        error => TlsError::Mismatch(error.to_string()),
    }
}

fn config(
    settings: &TlsSettings,
    material: &Material,
    policy: ClientCertificates,
    provider: &Arc<CryptoProvider>,
    earlier: Option<&Arc<ServerConfig>>,
) -> Result<ServerConfig, TlsError> {
    let builder = ServerConfig::builder_with_provider(provider.clone());
    let builder = builder.with_protocol_versions(versions(settings)).map_err(no_suite)?;
    let builder = match policy {
        ClientCertificates::None => builder.with_no_client_auth(),
        ClientCertificates::Require
            if material.authorities.is_empty() && settings.client_certificates != policy =>
        {
            // As in memcached, this is a separate listener, which accepts no client while the other
            // listeners serve theirs.
            builder.with_client_cert_verifier(Arc::new(NoAuthorities(provider.clone())))
        }
        ClientCertificates::Request | ClientCertificates::Require => {
            if material.authorities.is_empty() {
                let why = "client certificates cannot be verified without CA certificates: name a file of \
                           them (ssl_ca_cert, ca_file)";
                return Err(TlsError::Settings(why.into()));
            }
            let roots = Arc::new(material.roots(settings)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
            let verifier = match policy {
                ClientCertificates::Require => verifier,
                _ => verifier.allow_unauthenticated(),
            };
            let wrong = |cause| TlsFile::Authorities.error(&settings.ca_file, FileError::mistake(cause));
            builder.with_client_cert_verifier(verifier.build().map_err(|error| wrong(error.to_string()))?)
        }
    };
    let single = builder.with_single_cert(material.chain.clone(), material.key.clone_key());
    let mut config = single.map_err(mismatch)?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.max_early_data_size = 0;
    config.send_tls13_tickets = 0;
    if settings.session_tickets {
        config.send_tls13_tickets = TICKETS;
        // Each policy has its own tickets: a client that showed no certificate must not resume a
        // session on a listener that requires one.
        config.ticketer = match earlier {
            Some(earlier) => earlier.ticketer.clone(),
            None => tickets()?,
        };
    }
    Ok(config)
}

/// Returns ticket keys that change every six hours.
fn tickets() -> Result<Arc<dyn ProducesTickets>, TlsError> {
    ring::Ticketer::new()
        .map_err(|error| TlsError::Settings(format!("cannot create keys for session tickets: {error}")))
}

/// Requires a certificate and refuses every one, for a listener that requires client certificates
/// while no authority is configured: no client can be verified, so none is served.
#[derive(Debug)]
struct NoAuthorities(Arc<CryptoProvider>);

impl ClientCertVerifier for NoAuthorities {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Err(CertificateError::UnknownIssuer.into())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(CertificateError::UnknownIssuer.into())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(CertificateError::UnknownIssuer.into())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A time by which every certificate has expired, since dates have four digits for the year.
const AFTER_ALL_SECS: u64 = 1 << 40;

/// Returns the earliest expiry of the certificates in a PEM file, in seconds since 1970; `None` if
/// no date can be read.
///
/// # Errors
/// Fails if the file cannot be read, or contains no certificate.
pub fn expiry_of(path: &Path) -> Result<Option<u64>, FileError> {
    Ok(expiry(&certificates_of(path)?, &crate::provider()))
}

/// Returns the earliest expiry of these certificates, in seconds since 1970; `None` if no date can
/// be read.
fn expiry(chain: &[CertificateDer<'_>], provider: &CryptoProvider) -> Option<u64> {
    chain.iter().filter_map(|certificate| not_after(certificate, provider)).min()
}

/// Determines the expiry by verifying the certificate: verification checks the date first, and
/// reports it if it has passed. rustls has no other means of reading it.
fn not_after(certificate: &CertificateDer<'_>, provider: &CryptoProvider) -> Option<u64> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    let late = UnixTime::since_unix_epoch(Duration::from_secs(AFTER_ALL_SECS));
    let algorithms = provider.signature_verification_algorithms.all;
    match verify_server_cert_signed_by_trust_anchor(&parsed, &RootCertStore::empty(), &[], late, algorithms) {
        Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
            Some(not_after.as_secs())
        }
        _ => None,
    }
}
