//! The server: the HTTP client, requests with their time limits and retries, limits on concurrent
//! requests, and the meaning of refusals. This module does not know the contract's objects.
//!
//! The HTTP client is `object_store`'s requests over this project's HTTP client, and requests that
//! `object_store` lacks: conditional removals, and listings limited to the requested length.

pub(crate) mod credentials;
pub(crate) mod limits;
pub(crate) mod refusal;
pub(crate) mod requests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use blocker::{Clock, Error, Result, SystemClock};
use cached_http::{Client, Route};
use http_body_util::BodyExt;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::signer::{HeaderName, Method, Signer};
use object_store::{BackoffConfig, ClientOptions, HeaderValue, ObjectMeta, RetryConfig};
use tokio::runtime::Handle;

use crate::config::S3Config;
use credentials::{FileCredentials, unusable};
use refusal::one_line;

/// The name of this client in servers' logs.
const USER_AGENT: HeaderValue = HeaderValue::from_static(concat!("cached/", env!("CARGO_PKG_VERSION")));

impl S3Config {
    /// Checks the configured files, and the environment's credentials, as the first step of opening
    /// a store does.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`], also for incomplete credentials.
    pub fn check_files(&self) -> Result<()> {
        self.client(&(Arc::new(SystemClock) as _), &Connector::new(self)?).map(drop)
    }

    /// Returns the client. Reads the configured files, and sends nothing.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`], also for incomplete credentials.
    pub(crate) fn client(&self, clock: &Arc<dyn Clock>, connector: &Connector) -> Result<AmazonS3> {
        // The store itself retries, because it knows which requests are idempotent.
        let retry = RetryConfig {
            max_retries: 0,
            retry_timeout: self.request_timeout,
            backoff: BackoffConfig::default(),
        };
        let options =
            ClientOptions::new().with_allow_http(self.allow_http).with_connect_timeout(self.connect_timeout);
        let mut builder = AmazonS3Builder::from_env()
            .with_client_options(options)
            .with_http_connector(connector.clone())
            .with_retry(retry)
            .with_bucket_name(&self.bucket)
            .with_virtual_hosted_style_request(self.virtual_host)
            .with_skip_signature(self.anonymous)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            // Each removal is a request of its own, because not every server supports bulk
            // deletion.
            .with_disable_bulk_delete(true);
        if let Some(endpoint) = &self.endpoint {
            // AWS_ENDPOINT_URL_S3 would override `with_endpoint`.
            builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, self.endpoint_of_bucket(endpoint));
        }
        if let Some(region) = &self.region {
            builder = builder.with_region(region);
        } else if builder.get_config_value(&AmazonS3ConfigKey::Region).is_none() {
            builder = builder.with_region("us-east-1");
        }
        if let Some(path) = &self.credentials_file {
            let credentials = FileCredentials::open(path, &self.profile, Arc::clone(clock))?;
            builder = builder.with_credentials(Arc::new(credentials));
        }
        builder.build().map_err(|error| Error::Invalid(one_line(&error).into()))
    }

    /// Returns the endpoint for `object_store`. With virtual hosts, the bucket is in the host name.
    fn endpoint_of_bucket(&self, endpoint: &str) -> String {
        let endpoint = endpoint.trim_end_matches('/');
        match endpoint.split_once("://").filter(|_| self.virtual_host) {
            Some((scheme, host)) => format!("{scheme}://{}.{host}", self.bucket),
            None => endpoint.to_owned(),
        }
    }
}

/// Returns whether no connection uses TLS, neither to the endpoint nor to a network source of
/// credentials. In that case the system's authorities, a few hundred certificates, are not read.
fn is_plain(config: &S3Config) -> bool {
    let has_credentials = config.anonymous
        || config.credentials_file.is_some()
        || std::env::var_os("AWS_ACCESS_KEY_ID").is_some();
    let is_http = config.endpoint.as_deref().is_some_and(|url| url.starts_with("http://"));
    is_http && has_credentials && config.ca_file.is_none()
}

/// Creates the clients that `object_store` requests: the store's, and those of sources of
/// credentials.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    tls: rustls::ClientConfig,
    allow_http: bool,
    connect_timeout: Duration,
    request_timeout: Duration,
    idle_connections_max: usize,
}

impl Connector {
    /// Returns the connector of a configuration. Reads `ca_file`.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the file is unusable, or an endpoint with TLS would have no
    /// trusted authority.
    pub(crate) fn new(config: &S3Config) -> Result<Self> {
        let tls = match is_plain(config) {
            true => Ok(cached_tls::client::no_authorities()),
            false => cached_tls::client::with_further_authorities(config.ca_file.as_deref()),
        };
        let tls = match tls {
            Ok(tls) => tls,
            // A minimal image has no root certificates, and plain HTTP needs none.
            Err(_) if config.allow_http && config.ca_file.is_none() => cached_tls::client::no_authorities(),
            Err(error) if config.ca_file.is_some() => {
                return Err(unusable(error.reworded(|why| format!("ca_file {why}"))));
            }
            Err(error) => return Err(unusable(error)),
        };
        Ok(Self {
            tls,
            allow_http: config.allow_http,
            connect_timeout: config.connect_timeout,
            request_timeout: config.request_timeout,
            idle_connections_max: config.requests_in_flight_max as usize,
        })
    }

    /// Returns a separate client.
    pub(crate) fn client(&self) -> HttpClient {
        self.client_for(self.allow_http, self.connect_timeout)
    }

    fn client_for(&self, allow_http: bool, connect_timeout: Duration) -> HttpClient {
        let route = Route::new(connect_timeout).through_proxies_of_environment();
        let connector = route.with_tls(self.tls.clone(), allow_http);
        let mut settings = cached_http::builder();
        settings.pool_max_idle_per_host(self.idle_connections_max);
        let client = Client::new(&settings, connector);
        HttpClient::new(Http { client, timeout: self.request_timeout })
    }
}

impl HttpConnector for Connector {
    /// `object_store` sets both options for the instance metadata, which is served nearby without
    /// TLS.
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let option = |key| options.get_config_value(&key);
        let allow_http = option(ClientConfigKey::AllowHttp).is_some_and(|value| value == "true");
        let timeout = option(ClientConfigKey::ConnectTimeout);
        let timeout = timeout.and_then(|value| humantime::parse_duration(&value).ok());
        Ok(self.client_for(allow_http, timeout.unwrap_or(self.connect_timeout)))
    }
}

/// The client with `object_store`'s interface.
#[derive(Debug)]
struct Http {
    client: Client,
    /// The time limit for the head of a response. The store limits its attempts itself, but sources
    /// of credentials do not.
    timeout: Duration,
}

#[async_trait]
impl HttpService for Http {
    async fn call(&self, mut request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        request.headers_mut().insert("user-agent", USER_AGENT);
        let answer = tokio::time::timeout(self.timeout, self.client.request(request)).await;
        let answer = answer.map_err(|error| HttpError::new(HttpErrorKind::Timeout, error))?;
        let answer = answer.map_err(|error| {
            let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Request };
            HttpError::new(kind, Cause(cached_http::whole_text(&error)))
        })?;
        let broken = |error| HttpError::new(HttpErrorKind::Interrupted, error);
        Ok(answer.map(|body| HttpResponseBody::new(body.map_err(broken))))
    }
}

/// An error whose text includes its causes, because `object_store` prints only the first error of a
/// chain.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Cause(String);

// ---- conditional removals

/// Removes objects conditionally: requests signed in their URL, with the condition as a header, for
/// which `object_store` has no call.
pub(crate) struct Remover {
    pub(crate) signer: AmazonS3,
    pub(crate) http: HttpClient,
    pub(crate) handle: Handle,
    pub(crate) timeout: Duration,
}

impl Remover {
    /// Removes an object if it has this ETag. Returns whether the object was removed.
    pub(crate) async fn remove_if(&self, path: &Path, etag: &str) -> Result<bool> {
        let (signer, http, path) = (self.signer.clone(), self.http.clone(), path.clone());
        let (etag, timeout) = (HeaderValue::from_str(etag), self.timeout);
        let asked = async move {
            let url = signer.signed_url(Method::DELETE, &path, timeout).await.map_err(failed)?;
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.method_mut() = Method::DELETE;
            *request.uri_mut() = url.as_str().parse().map_err(failed)?;
            request.headers_mut().insert(HeaderName::from_static("if-match"), etag.map_err(failed)?);
            let answer = tokio::time::timeout(timeout, http.execute(request)).await.map_err(failed)?;
            match answer.map_err(failed)?.status().as_u16() {
                200 | 204 => Ok(true),
                404 | 409 | 412 => Ok(false),
                status => Err(failed(format!("the server answers {status} to a conditional removal"))),
            }
        };
        // The task fails only if the runtime has ended together with the store.
        self.handle.spawn(asked).await.map_err(failed)?
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Retryable(one_line(&error).into())
}

// ---- listings

/// The maximum number of keys in one response, which is the servers' limit.
const KEYS_MAX: usize = 1000;

/// The paginated listing, if the store has one.
pub(crate) type Pages = Option<Arc<dyn PaginatedListStore>>;

/// Returns at most `count` objects below `under`, in order, after the key `after`.
/// [`object_store::ObjectStore::list`] would make the server send a thousand keys at a time, even
/// if the caller needs one.
///
/// # Errors
/// Returns the store's errors.
pub(crate) async fn listed(
    pages: &dyn PaginatedListStore,
    under: &Path,
    after: Option<&Path>,
    count: usize,
) -> object_store::Result<Vec<ObjectMeta>> {
    let prefix = format!("{under}/");
    let mut found = Vec::new();
    let mut token = None;
    loop {
        let options = PaginatedListOptions {
            offset: after.map(ToString::to_string),
            max_keys: Some((count - found.len()).min(KEYS_MAX)),
            page_token: token,
            ..PaginatedListOptions::default()
        };
        let page = pages.list_paginated(Some(&prefix), options).await?;
        found.extend(page.result.objects);
        // Some servers return more than requested.
        found.truncate(count);
        token = page.page_token;
        if token.is_none() || found.len() == count {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_is_in_the_servers_name_where_that_is_asked_for() {
        let mut config = S3Config::new("disks");
        assert_eq!(config.endpoint_of_bucket("https://s3.example:9000/"), "https://s3.example:9000");
        config.virtual_host = true;
        assert_eq!(config.endpoint_of_bucket("https://s3.example:9000/"), "https://disks.s3.example:9000");
    }
}
