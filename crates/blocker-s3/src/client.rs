//! The client that speaks HTTP to the server.

use blocker::{Error, Result};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::{BackoffConfig, ClientOptions, RetryConfig};

use crate::config::S3Config;
use crate::text::one_line;

impl S3Config {
    /// Returns the client. Sends nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Denied`] for credentials that are half there.
    pub(crate) fn client(&self) -> Result<AmazonS3> {
        // Repeating is for the store: it knows what may be repeated.
        let retry = RetryConfig {
            max_retries: 0,
            retry_timeout: self.request_timeout,
            backoff: BackoffConfig::default(),
        };
        let options = ClientOptions::new()
            .with_allow_http(self.allow_http)
            .with_connect_timeout(self.connect_timeout)
            .with_timeout(self.request_timeout)
            .with_pool_max_idle_per_host(self.requests_in_flight_max as usize);
        let mut builder = AmazonS3Builder::from_env()
            .with_client_options(options)
            .with_retry(retry)
            .with_bucket_name(&self.bucket)
            .with_virtual_hosted_style_request(self.virtual_host)
            .with_skip_signature(self.anonymous)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            // One removal, one request: not every server has the other.
            .with_disable_bulk_delete(true);
        if let Some(endpoint) = &self.endpoint {
            // AWS_ENDPOINT_URL_S3 would win over `with_endpoint`.
            builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, endpoint.trim_end_matches('/'));
        }
        if let Some(region) = &self.region {
            builder = builder.with_region(region);
        } else if builder.get_config_value(&AmazonS3ConfigKey::Region).is_none() {
            builder = builder.with_region("us-east-1");
        }
        builder.build().map_err(|error| Error::Invalid(one_line(&error).into()))
    }
}
