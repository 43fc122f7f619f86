//! `cached` in front of an endpoint.

use crate::daemon::{Daemon, write_secret};
use crate::http;
use crate::s3::endpoint::User;
use std::fmt::Write as _;
use std::path::Path;

/// A running sidecar.
#[derive(Debug)]
pub struct Sidecar {
    /// The process.
    pub daemon: Daemon,
    /// The URL, with an IP address.
    pub url: String,
}

impl Sidecar {
    /// Starts `cached` in front of an endpoint, with additional lines in `[s3]`.
    ///
    /// # Panics
    /// Panics if the sidecar does not start.
    pub fn before(endpoint_url: &str, more: &str) -> Self {
        Self::configured(endpoint_url, |_| more.to_owned())
    }

    /// Starts `cached` in front of an endpoint: the sidecar verifies the signatures of `users`,
    /// each of whom has all rights, and signs its own requests as `own`.
    ///
    /// # Panics
    /// Panics if the sidecar does not start.
    pub fn with_keys(endpoint_url: &str, users: &[User], own: &User, more: &str) -> Self {
        let mut keys = String::new();
        for User { access_key, secret_key, .. } in users {
            let _ = write!(
                keys,
                "[[keys]]\naccess_key = \"{access_key}\"\nsecret_key = \"{secret_key}\"\nread = [\"*\"]\nwrite = [\"*\"]\n"
            );
        }
        Self::configured(endpoint_url, |place| {
            let [keys_file, secret_file] = ["keys.toml", "secret"].map(|name| format!("{place}/{name}"));
            write_secret(Path::new(&keys_file), &keys);
            write_secret(Path::new(&secret_file), &own.secret_key);
            let access_key = &own.access_key;
            format!(
                "auth = \"listener\"\nkeys_file = \"{keys_file}\"\nupstream_access_key = \"{access_key}\"\n\
                 upstream_secret_file = \"{secret_file}\"\n{more}"
            )
        })
    }

    // S3 permits more user metadata than fit into the default number of headers.
    fn configured(endpoint_url: &str, more: impl FnOnce(&str) -> String) -> Self {
        let daemon = Daemon::start("cached", |place| {
            format!(
                "[memcached]\nthreads = 1\n[s3]\nlisten = [\"127.0.0.1:0\"]\nupstream = \"{endpoint_url}\"\n\
                 memory_bytes_max = \"64 MiB\"\nheaders_max = 1200\n{}\n",
                more(place)
            )
        });
        let url = format!("http://{}", daemon.announced("S3 on "));
        Self { daemon, url }
    }

    /// Returns the value of a metric, by name and labels.
    ///
    /// # Panics
    /// Panics if the metric does not exist.
    pub fn metric(&self, name: &str) -> u64 {
        let (_, shown) = http::get(&self.daemon.admin, "/metrics");
        let line = shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in\n{shown}")).parse().expect("a number")
    }

    /// Returns the number of requests with this result.
    pub fn requests(&self, result: &str) -> u64 {
        self.metric(&format!("cached_s3_sidecar_requests_total{{result=\"{result}\"}}"))
    }
}
