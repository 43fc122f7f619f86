//! The client that speaks HTTP to the server.

use std::path::Path;
use std::sync::Arc;

use blocker::{Clock, Error, Result};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::{BackoffConfig, Certificate, ClientOptions, RetryConfig};

use crate::config::S3Config;
use crate::credentials::FileCredentials;
use crate::text::one_line;

impl S3Config {
    /// Returns the client. Reads the files that are named, and sends nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`], also for credentials that are half there.
    pub(crate) fn client(&self, clock: &Arc<dyn Clock>) -> Result<AmazonS3> {
        // Repeating is for the store: it knows what may be repeated.
        let retry = RetryConfig {
            max_retries: 0,
            retry_timeout: self.request_timeout,
            backoff: BackoffConfig::default(),
        };
        let mut builder = AmazonS3Builder::from_env()
            .with_client_options(self.client_options()?)
            .with_retry(retry)
            .with_bucket_name(&self.bucket)
            .with_virtual_hosted_style_request(self.virtual_host)
            .with_skip_signature(self.anonymous)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            // One removal, one request: not every server has the other.
            .with_disable_bulk_delete(true);
        if let Some(endpoint) = &self.endpoint {
            // AWS_ENDPOINT_URL_S3 would win over `with_endpoint`.
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

    pub(crate) fn client_options(&self) -> Result<ClientOptions> {
        let mut options = ClientOptions::new()
            .with_allow_http(self.allow_http)
            .with_connect_timeout(self.connect_timeout)
            .with_timeout(self.request_timeout)
            .with_pool_max_idle_per_host(self.requests_in_flight_max as usize);
        for certificate in self.ca_file.as_deref().map_or(Ok(Vec::new()), authorities)? {
            options = options.with_root_certificate(certificate);
        }
        Ok(options)
    }

    /// The endpoint as `object_store` takes it: with the bucket in the server's name where it belongs there.
    fn endpoint_of_bucket(&self, endpoint: &str) -> String {
        let endpoint = endpoint.trim_end_matches('/');
        match endpoint.split_once("://").filter(|_| self.virtual_host) {
            Some((scheme, host)) => format!("{scheme}://{}.{host}", self.bucket),
            None => endpoint.to_owned(),
        }
    }
}

fn authorities(path: &Path) -> Result<Vec<Certificate>> {
    let wrong = |why: String| Error::Invalid(format!("ca_file {}: {why}", path.display()).into());
    let pem = std::fs::read(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let found = Certificate::from_pem_bundle(&pem).map_err(|error| wrong(one_line(&error)))?;
    if found.is_empty() { Err(wrong("has no certificate in PEM".into())) } else { Ok(found) }
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
