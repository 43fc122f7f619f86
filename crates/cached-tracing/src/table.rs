//! The table `[tracing]` of a configuration file. Without it, nothing is traced.

use cached_config::{ConfigError, invalid};
use serde::{Deserialize, Serialize};

/// The table, with the same keys in `cached` and `synapsed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct TracingTable {
    /// The collector: `http://HOST:PORT`. Spans are sent to `/v1/traces` there.
    pub otlp_endpoint: String,
    /// The share of requests to trace, 0 to 1, among those that their client does not trace
    /// already.
    pub sample_ratio: f64,
}

impl Default for TracingTable {
    fn default() -> Self {
        TracingTable { otlp_endpoint: "http://127.0.0.1:4318".into(), sample_ratio: 0.01 }
    }
}

impl TracingTable {
    /// Checks the values.
    ///
    /// # Errors
    /// Returns the first key with an invalid value.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            let why = format!("is {}; it must be between 0 and 1", self.sample_ratio);
            return invalid("tracing.sample_ratio", why);
        }
        let endpoint = &self.otlp_endpoint;
        let wrong = |why: &str| invalid("tracing.otlp_endpoint", format!("is \"{endpoint}\"; {why}"));
        if endpoint.starts_with("https://") {
            return wrong(
                "only http:// collectors are supported: run a collector on this host that forwards over TLS",
            );
        }
        let Some(authority) = endpoint.strip_prefix("http://").map(|rest| rest.trim_end_matches('/')) else {
            return wrong("it must be http://HOST:PORT, as in \"http://127.0.0.1:4318\"");
        };
        if authority.contains('/') {
            return wrong("it must have no path: /v1/traces is appended");
        }
        match authority.parse::<cached_http::http::uri::Authority>() {
            Ok(parsed) if !parsed.host().is_empty() && !authority.contains('@') => Ok(()),
            _ => wrong("it must be http://HOST:PORT, as in \"http://127.0.0.1:4318\""),
        }
    }

    /// Returns the URL to which spans are sent.
    #[must_use]
    pub(crate) fn url(&self) -> String {
        format!("{}/v1/traces", self.otlp_endpoint.trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(change: impl FnOnce(&mut TracingTable)) -> String {
        let mut table = TracingTable::default();
        change(&mut table);
        table.check().expect_err("it is wrong").to_string()
    }

    #[test]
    fn mistakes_are_one_line_with_what_would_be_right() {
        TracingTable::default().check().expect("the default works");
        for ratio in [-0.1, 1.1, f64::NAN] {
            let error = error(|table| table.sample_ratio = ratio);
            assert!(error.starts_with("tracing.sample_ratio: is "), "{error}");
        }
        for endpoint in ["", "127.0.0.1:4318", "http://", "http://a b", "grpc://h:4317", "http://u:hidden@h"]
        {
            let error = error(|table| table.otlp_endpoint = endpoint.into());
            assert!(error.contains("it must be http://HOST:PORT") && !error.contains("hidden"), "{error}");
        }
        assert!(error(|table| table.otlp_endpoint = "https://h:4318".into()).contains("only http://"));
        assert!(error(|table| table.otlp_endpoint = "http://h/v1/traces".into()).contains("no path"));
    }

    #[test]
    fn spans_go_to_the_path_of_the_protocol() {
        let table = TracingTable { otlp_endpoint: "http://[::1]:4318/".into(), ..TracingTable::default() };
        table.check().expect("it works");
        assert_eq!(table.url(), "http://[::1]:4318/v1/traces");
    }
}
