//! `cached` before an endpoint.

use crate::daemon::{Daemon, wait_for};
use crate::http;

/// A running sidecar.
#[derive(Debug)]
pub struct Sidecar {
    /// Its process.
    pub daemon: Daemon,
    /// Its URL, by address.
    pub url: String,
}

impl Sidecar {
    /// Starts `cached` before an endpoint, with more lines of `[s3]`.
    ///
    /// # Panics
    /// If it does not start.
    pub fn before(endpoint_url: &str, more: &str) -> Self {
        let daemon = Daemon::start("cached", |_| {
            format!(
                "[memcached]\nthreads = 1\n[s3]\nlisten = [\"127.0.0.1:0\"]\nupstream = \"{endpoint_url}\"\n\
                 memory_bytes_max = \"64 MiB\"\n{more}\n"
            )
        });
        let url = wait_for("the line of the sidecar", || {
            let log = daemon.log();
            let line = log.lines().find_map(|line| line.strip_prefix("S3 on "))?;
            Some(format!("http://{}", line.split(' ').next()?))
        });
        Self { daemon, url }
    }

    /// Returns a count of its metrics, by name and labels.
    ///
    /// # Panics
    /// If there is none of that name.
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
