//! The client of a server's admin listener: HTTP, one request at a time, JSON answers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use ureq::tls::{PemItem, RootCerts, TlsConfig, TlsProvider, parse_pem};

use crate::exit::Failure;

/// The largest answer that is read.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// The largest error text that is shown.
const REASON_BYTES_MAX: usize = 500;

/// Where the admin listener is, and what authenticates this client.
#[derive(Args, Clone)]
pub(crate) struct AdminArguments {
    /// The admin listener of a cached or synapsed: http://HOST:PORT or HOST:PORT, or https://HOST:PORT with
    /// --admin-ca-file. Without it http://127.0.0.1:9150.
    #[arg(long = "admin", value_name = "URL", env = "CACHECTL_ADMIN", global = true)]
    url: Option<String>,

    /// The file with the token of the admin listener.
    #[arg(long = "admin-token-file", value_name = "FILE", env = "CACHECTL_ADMIN_TOKEN_FILE", global = true)]
    token_file: Option<PathBuf>,

    /// For https: the file (PEM) with the certificates of the authorities that the listener's must be signed by.
    #[arg(long = "admin-ca-file", value_name = "FILE", env = "CACHECTL_ADMIN_CA_FILE", global = true)]
    ca_file: Option<PathBuf>,
}

/// The admin listener that is asked unless another one is given.
const URL_DEFAULT: &str = "http://127.0.0.1:9150";

impl AdminArguments {
    /// Returns whether an admin listener is given.
    pub(crate) fn is_given(&self) -> bool {
        self.url.is_some()
    }
}

/// A client of one admin listener. It keeps its connection open between requests.
pub(crate) struct Admin {
    agent: ureq::Agent,
    base: String,
    authorization: Option<String>,
}

impl Admin {
    /// Returns a client; it connects with its first request. A request may take `timeout`, `None` being
    /// without limit.
    ///
    /// # Errors
    /// The URL, the token file or the file of authorities cannot be used.
    pub(crate) fn new(arguments: &AdminArguments, timeout: Option<Duration>) -> Result<Self, Failure> {
        let base = base_of(arguments.url.as_deref().unwrap_or(URL_DEFAULT))?;
        let tls = match (base.starts_with("https://"), &arguments.ca_file) {
            (true, Some(path)) => Some(tls(path)?),
            (true, None) => {
                return Err(Failure::Usage(format!(
                    "--admin {base}: https needs --admin-ca-file, the certificates of the authorities that the listener's \
                     must be signed by"
                )));
            }
            // It may be set for all servers in the environment.
            (false, _) => None,
        };
        let authorization = match &arguments.token_file {
            Some(path) => {
                let token = std::fs::read_to_string(path).map_err(Failure::io(path.display().to_string()))?;
                let token = token.trim();
                if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                    let path = path.display();
                    return Err(Failure::Usage(format!(
                        "{path}: a token is one line of letters, digits and signs without spaces"
                    )));
                }
                Some(format!("Bearer {token}"))
            }
            None => None,
        };
        let config = ureq::Agent::config_builder()
            .timeout_global(timeout)
            .http_status_as_error(false)
            .max_redirects(0)
            // The listener is this host's or a near one's; a proxy from the environment is not meant for it.
            .proxy(None)
            .user_agent(concat!("cachectl/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls.unwrap_or_default())
            .build();
        Ok(Self { agent: config.new_agent(), base, authorization })
    }

    /// Returns the address of the listener, as a URL without a path.
    pub(crate) fn url(&self) -> &str {
        &self.base
    }

    /// Returns the JSON that `path` answers.
    ///
    /// # Errors
    /// The listener cannot be reached, refuses, or answers something else.
    pub(crate) fn get(&self, path: &str) -> Result<Value, Failure> {
        let request = self.agent.get(format!("{}{path}", self.base)).header("Accept", "application/json");
        let request = match &self.authorization {
            Some(authorization) => request.header("Authorization", authorization),
            None => request,
        };
        self.answer(path, request.call())
    }

    /// Returns the reasons that a probe answers, one line each; none if all is well.
    ///
    /// # Errors
    /// The listener cannot be reached, or answers something else than a probe does.
    pub(crate) fn probe(&self, path: &str) -> Result<Vec<String>, Failure> {
        let url = format!("{}{path}", self.base);
        let failed = |status, text: String| Failure::Admin { what: url.clone(), status, text };
        let mut response = self.agent.get(&url).call().map_err(|error| failed(None, error.to_string()))?;
        let status = response.status();
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        let body = body.map_err(|error| failed(None, error.to_string()))?;
        let printable = |line: &str| -> String {
            line.chars().filter(|letter| !letter.is_control()).take(REASON_BYTES_MAX).collect()
        };
        match status.as_u16() {
            200 => Ok(Vec::new()),
            503 => Ok(body.lines().map(printable).collect()),
            other => Err(failed(Some(other), reason_of(status, &body))),
        }
    }

    /// Sends `body` to `path` and returns the JSON of the answer.
    ///
    /// # Errors
    /// As for [`get`](Self::get). After a timeout the server may have acted all the same.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let request = self.agent.post(format!("{}{path}", self.base)).content_type("application/json");
        let request = match &self.authorization {
            Some(authorization) => request.header("Authorization", authorization),
            None => request,
        };
        self.answer(path, request.send(body.to_string()))
    }

    fn answer(
        &self,
        path: &str,
        response: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<Value, Failure> {
        let failed =
            |status, text: String| Failure::Admin { what: format!("{}{path}", self.base), status, text };
        let mut response = response.map_err(|error| failed(None, error.to_string()))?;
        let status = response.status();
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        let body = body.map_err(|error| failed(None, error.to_string()))?;
        if !status.is_success() {
            // Some routes answer with the reason alone, as JSON.
            let reason = serde_json::from_str::<Value>(&body).ok();
            if let Some(reason) = reason.as_ref().and_then(|reason| reason["error"].as_str()) {
                let text = line_of(reason);
                return Err(Failure::Refused { what: self.base.clone(), status: status.as_u16(), text });
            }
            return Err(failed(Some(status.as_u16()), reason_of(status, &body)));
        }
        serde_json::from_str(&body)
            .map_err(|error| failed(Some(status.as_u16()), format!("the answer is not JSON: {error}")))
    }
}

/// Returns the first line of a reason, without what a terminal would obey.
pub(crate) fn line_of(reason: &str) -> String {
    let line = reason.lines().next().unwrap_or_default();
    line.chars().filter(|letter| !letter.is_control()).take(REASON_BYTES_MAX).collect()
}

/// Returns one line about an answer that reports a failure.
fn reason_of(status: ureq::http::StatusCode, body: &str) -> String {
    let reason = line_of(body);
    let hint = match status.as_u16() {
        401 | 403 => "; give the token with --admin-token-file",
        404 => "; this server has no such page",
        _ => "",
    };
    if reason.is_empty() { format!("{status}{hint}") } else { format!("{status}: {reason}{hint}") }
}

/// Returns the client's side of TLS that trusts the authorities in a file.
fn tls(path: &Path) -> Result<TlsConfig, Failure> {
    let text = std::fs::read(path).map_err(Failure::io(path.display().to_string()))?;
    let wrong = |why: String| Failure::Usage(format!("--admin-ca-file {}: {why}", path.display()));
    let mut authorities = Vec::new();
    for item in parse_pem(&text) {
        match item.map_err(|error| wrong(error.to_string()))? {
            PemItem::Certificate(authority) => authorities.push(authority),
            _ => return Err(wrong("it has something else than certificates".into())),
        }
    }
    if authorities.is_empty() {
        return Err(wrong("there is no certificate in it; it must be PEM".into()));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config =
        TlsConfig::builder().provider(TlsProvider::Rustls).unversioned_rustls_crypto_provider(provider);
    Ok(config.root_certs(RootCerts::new_with_certs(&authorities)).build())
}

/// Returns the URL without a path of what the user has given.
fn base_of(given: &str) -> Result<String, Failure> {
    let wrong = || {
        Failure::Usage(format!(
            "--admin {given}: give http://HOST:PORT or https://HOST:PORT, for example http://127.0.0.1:9150"
        ))
    };
    let (scheme, host) = match given.strip_prefix("https://") {
        Some(host) => ("https", host),
        None => ("http", given.strip_prefix("http://").unwrap_or(given)),
    };
    let host = host.trim_end_matches('/');
    let base = format!("{scheme}://{host}");
    let uri: ureq::http::Uri = base.parse().map_err(|_| wrong())?;
    let plain = uri.path() == "/" && uri.query().is_none() && !host.contains('@');
    if !plain || uri.host().is_none_or(str::is_empty) {
        return Err(wrong());
    }
    Ok(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_needs_no_scheme() {
        for (given, base) in [
            ("127.0.0.1:9150", "http://127.0.0.1:9150"),
            ("http://node1:9150/", "http://node1:9150"),
            ("[::1]:9150", "http://[::1]:9150"),
            ("https://node1:9150/", "https://node1:9150"),
        ] {
            assert_eq!(base_of(given).expect(given), base);
        }
    }

    #[test]
    fn what_is_no_listener_is_refused() {
        for given in [
            "",
            "https://",
            "ftp://node1:9150",
            "http://",
            "node1:9150/metrics",
            "a b",
            "user:secret@node1:9150",
        ] {
            assert!(base_of(given).is_err(), "{given}");
        }
    }

    #[test]
    fn https_needs_the_certificates_of_authorities() {
        let new = |ca_file: Option<&Path>| {
            let ca_file = ca_file.map(Path::to_path_buf);
            let arguments =
                AdminArguments { url: Some("https://node1:9150".into()), token_file: None, ca_file };
            Admin::new(&arguments, None).map(drop)
        };
        assert!(matches!(new(None), Err(Failure::Usage(line)) if line.contains("--admin-ca-file")));
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert!(
            matches!(new(Some(file.path())), Err(Failure::Usage(line)) if line.contains("no certificate"))
        );
        std::fs::write(file.path(), "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
            .expect("a file");
        assert!(
            matches!(new(Some(file.path())), Err(Failure::Usage(line)) if line.contains("something else"))
        );
        assert!(new(Some(Path::new("/nonexistent"))).is_err());
    }

    #[test]
    fn a_reason_is_one_printable_line() {
        let status = ureq::http::StatusCode::UNAUTHORIZED;
        let reason = reason_of(status, "no\u{1b}[31m token\nsecond line");
        assert_eq!(reason, "401 Unauthorized: no[31m token; give the token with --admin-token-file");
    }
}
