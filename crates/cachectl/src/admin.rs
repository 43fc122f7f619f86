//! The client of a server's admin listener: HTTP, one request at a time, JSON responses.

use std::path::PathBuf;
use std::time::Duration;

use cached_http::http::{Request, Response, StatusCode, Uri, request};
use cached_http::{Blocking, RequestError, Route};
use clap::Args;
use named_file::{Kinds, NamedFile};
use serde_json::Value;

use crate::output::Failure;
use crate::servers::{AdminServer, Origin};

/// The maximum size of a response.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// The maximum time for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum length of an error text that is shown.
const REASON_BYTES_MAX: usize = 500;

/// The options for the admin listener, and for what authenticates both sides.
#[derive(Args, Clone)]
pub(crate) struct AdminArguments {
    /// The admin listener of a cached or synapsed: http://HOST:PORT or HOST:PORT, or
    /// https://HOST:PORT with --admin-ca-file. See --context for the default.
    #[arg(long = "admin", value_name = "URL", env = "CACHECTL_ADMIN", global = true)]
    pub(crate) url: Option<String>,

    /// The file with the token of the admin listener.
    #[arg(long = "admin-token-file", value_name = "FILE", env = "CACHECTL_ADMIN_TOKEN_FILE", global = true)]
    pub(crate) token_file: Option<PathBuf>,

    /// For https: the PEM file with the certificates of the authorities that sign the listener's
    /// certificate.
    #[arg(long = "admin-ca-file", value_name = "FILE", env = "CACHECTL_ADMIN_CA_FILE", global = true)]
    pub(crate) ca_file: Option<PathBuf>,
}

/// A client of one admin listener. It keeps its connection open between requests.
pub(crate) struct Admin {
    client: Blocking,
    base: String,
    /// The source of the listener's address.
    origin: Origin,
    authorization: Option<String>,
}

impl Admin {
    /// Returns a client, which connects with its first request. A request may take up to `timeout`;
    /// `None` means no limit.
    ///
    /// # Errors
    /// Fails if the URL, the token file or the file of authorities cannot be used.
    pub(crate) fn new(server: AdminServer, timeout: Option<Duration>) -> Result<Self, Failure> {
        let base = base_of(&server.url)?;
        let tls = match (base.starts_with("https://"), &server.ca_file) {
            (true, Some(path)) => cached_tls::client::with_authorities(Some(path))
                .map_err(|why| Failure::usage(format!("--admin-ca-file {why}")))?,
            (true, None) => {
                return Err(Failure::usage(format!(
                    "--admin {base}: https needs --admin-ca-file, the certificates of the authorities that sign the \
                     listener's certificate"
                )));
            }
            // The environment may name the file of authorities, for all servers.
            (false, _) => cached_tls::client::no_authorities(),
        };
        let authorization = match &server.token_file {
            Some(path) => {
                let token = named_file::open(path, Kinds::RegularOrPipe).and_then(NamedFile::text);
                let token = token.map_err(std::io::Error::other);
                let token = token.map_err(Failure::io(path.display()))?;
                let token = token.trim();
                if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                    let path = path.display();
                    return Err(Failure::usage(format!(
                        "{path}: expected a token: one line of letters, digits and signs without spaces"
                    )));
                }
                Some(format!("Bearer {token}"))
            }
            None => None,
        };
        // The listener is on this host or nearby, so proxies in the environment do not apply to it.
        let connector = Route::new(CONNECT_TIMEOUT).with_tls(tls, true);
        let client = Blocking::new(connector, concat!("cachectl/", env!("CARGO_PKG_VERSION")), timeout)
            .map_err(Failure::io("starting the HTTP client"))?;
        Ok(Self { client, base, origin: server.origin, authorization })
    }

    /// Returns the address of the listener, as a URL without a path.
    pub(crate) fn url(&self) -> &str {
        &self.base
    }

    /// Returns what named the listener, for errors.
    fn asked(&self) -> String {
        format!("the admin listener is {}", self.origin)
    }

    /// Returns the JSON response of `path`.
    ///
    /// # Errors
    /// Fails if the listener cannot be reached, refuses the request, or does not respond with JSON.
    pub(crate) fn get(&self, path: &str) -> Result<Value, Failure> {
        let request = Request::get(format!("{}{path}", self.base)).header("accept", "application/json");
        self.answer(path, request, String::new())
    }

    /// Returns the reasons in the response of a probe, one line each; none if all is well.
    ///
    /// # Errors
    /// Fails if the listener cannot be reached, or its response is not that of a probe.
    pub(crate) fn probe(&self, path: &str) -> Result<Vec<String>, Failure> {
        let request = Request::get(format!("{}{path}", self.base));
        let response = self.client.send(request, Default::default(), ANSWER_BYTES_MAX);
        let (status, body) = whole(response).map_err(|error| self.failed(path, None, error))?;
        match status.as_u16() {
            200 => Ok(Vec::new()),
            503 => Ok(body.lines().map(line_of).collect()),
            other => Err(self.failed(path, Some(other), reason_of(status, &body))),
        }
    }

    /// Sends `body` to `path` and returns the JSON response.
    ///
    /// # Errors
    /// Returns the errors of [`get`](Self::get). After a timeout, the server may have acted
    /// nevertheless.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let request =
            Request::post(format!("{}{path}", self.base)).header("content-type", "application/json");
        self.answer(path, request, body.to_string())
    }

    /// Returns the response of `path` as text.
    ///
    /// # Errors
    /// Returns the errors of [`get`](Self::get).
    pub(crate) fn text(&self, path: &str) -> Result<String, Failure> {
        self.send(path, Request::get(format!("{}{path}", self.base)), String::new()).map(|(_, body)| body)
    }

    fn answer(&self, path: &str, request: request::Builder, body: String) -> Result<Value, Failure> {
        let (status, body) = self.send(path, request, body)?;
        serde_json::from_str(&body).map_err(|error| {
            self.failed(path, Some(status.as_u16()), format!("the response is not JSON: {error}"))
        })
    }

    fn failed(&self, path: &str, status: Option<u16>, text: String) -> Failure {
        Failure::admin(format_args!("{}{path}", self.base), status, text).leaves(self.asked())
    }

    /// Returns the status and the body of a response that reports success.
    fn send(
        &self,
        path: &str,
        request: request::Builder,
        body: String,
    ) -> Result<(StatusCode, String), Failure> {
        let request = match &self.authorization {
            Some(authorization) => request.header("authorization", authorization),
            None => request,
        };
        let response = self.client.send(request, body.into(), ANSWER_BYTES_MAX);
        let (status, body) = whole(response).map_err(|error| self.failed(path, None, error))?;
        if !status.is_success() {
            // The response of some routes consists only of the reason, as JSON.
            let reason = serde_json::from_str::<Value>(&body).ok();
            if let Some(reason) = reason.as_ref().and_then(|reason| reason["error"].as_str()) {
                let text = line_of(reason);
                return Err(Failure::refused(&self.base, status.as_u16(), text).leaves(self.asked()));
            }
            return Err(self.failed(path, Some(status.as_u16()), reason_of(status, &body)));
        }
        Ok((status, body))
    }
}

/// Returns the elements of a list in a response; no elements if the list is missing.
pub(crate) fn list<'a>(of: &'a Value, key: &str) -> &'a [Value] {
    of[key].as_array().map_or(&[], Vec::as_slice)
}

/// Returns text from a response with a replacement for each character that a terminal would
/// interpret.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

/// Encodes a name as a part of a query.
pub(crate) fn encoded(name: &str) -> String {
    let letter = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        other => format!("%{other:02x}"),
    };
    name.bytes().map(letter).collect()
}

/// Returns the status and the text of a response.
fn whole<B: AsRef<[u8]>>(
    response: Result<Response<B>, RequestError>,
) -> Result<(StatusCode, String), String> {
    let response = response.map_err(|error| error.to_string())?;
    Ok((response.status(), String::from_utf8_lossy(response.body().as_ref()).into_owned()))
}

/// Returns the first line of a reason, without characters that a terminal would interpret.
pub(crate) fn line_of(reason: &str) -> String {
    let line = reason.lines().next().unwrap_or_default();
    line.chars().filter(|letter| !letter.is_control()).take(REASON_BYTES_MAX).collect()
}

/// Returns one line about a response that reports a failure.
fn reason_of(status: StatusCode, body: &str) -> String {
    let reason = line_of(body);
    let hint = match status.as_u16() {
        401 | 403 => "; name the file of the token with --admin-token-file",
        // This text is used if the server gives no reason.
        404 if reason.is_empty() || reason.contains("there is nothing here") => {
            "; this server has no such page"
        }
        _ => "",
    };
    if reason.is_empty() { format!("{status}{hint}") } else { format!("{status}: {reason}{hint}") }
}

/// Returns the URL that the user has given, without a path.
pub(crate) fn base_of(given: &str) -> Result<String, Failure> {
    let wrong = || {
        Failure::usage(format!(
            "--admin {given}: expected http://HOST:PORT or https://HOST:PORT, for example http://127.0.0.1:9150"
        ))
    };
    let (scheme, host) = match given.strip_prefix("https://") {
        Some(host) => ("https", host),
        None => ("http", given.strip_prefix("http://").unwrap_or(given)),
    };
    let host = host.trim_end_matches('/');
    let base = format!("{scheme}://{host}");
    let uri: Uri = base.parse().map_err(|_| wrong())?;
    let plain = uri.path() == "/" && uri.query().is_none() && !host.contains('@');
    if !plain || uri.host().is_none_or(str::is_empty) {
        return Err(wrong());
    }
    Ok(base)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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
            let (url, origin) = ("https://node1:9150".into(), Origin::Given("--admin"));
            Admin::new(AdminServer { url, token_file: None, ca_file, origin }, None)
                .err()
                .map(|failure| failure.to_string())
                .unwrap_or_default()
        };
        assert!(new(None).contains("--admin-ca-file"));
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert!(new(Some(file.path())).contains("no certificate"));
        std::fs::write(file.path(), "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
            .expect("a file");
        assert!(new(Some(file.path())).contains("no certificate"));
        assert!(new(Some(Path::new("/nonexistent"))).contains("No such file"));
    }

    #[test]
    fn names_are_encoded() {
        assert_eq!(encoded("a/b c-1"), "a%2fb%20c-1");
    }

    #[test]
    fn a_reason_is_one_printable_line() {
        let status = StatusCode::UNAUTHORIZED;
        let reason = reason_of(status, "no\u{1b}[31m token\nsecond line");
        assert_eq!(
            reason,
            "401 Unauthorized: no[31m token; name the file of the token with --admin-token-file"
        );
    }
}
