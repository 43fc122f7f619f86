//! `[objects.backend]` with `kind = "s3"`: a bucket of S3, or of a server that implements its
//! protocol.

use std::path::PathBuf;

#[cfg(feature = "s3")]
use blocker_s3::S3Config;

use crate::config_file::{ConfigError, require};
use crate::config_keys;
use crate::quantity::Size;

config_keys! {
    /// The keys of `kind = "s3"`. An empty text means the default. The defaults are those of
    /// `blocker-s3`; a test compares them.
    pub struct S3Table over S3Config, if "s3";

    /// The bucket; required.
    pub bucket: String = same(bucket) or String::new();
    /// The URL of the server; empty for AWS.
    pub endpoint: String = optional(endpoint) or String::new();
    /// The region; if empty, the one in the environment.
    pub region: String = optional(region) or String::new();
    /// The prefix of the keys of all S3 objects.
    pub prefix: String = same(prefix) or String::new();
    /// Whether the bucket is a part of the host name instead of the path.
    pub virtual_host: bool = same(virtual_host) or false;
    /// Whether an endpoint without TLS is allowed.
    pub allow_http: bool = same(allow_http) or false;
    /// Whether requests are sent without a signature.
    pub anonymous: bool = same(anonymous) or false;
    /// The file with the credentials; if empty, those in the environment.
    pub credentials_file: PathBuf = optional(credentials_file) or PathBuf::new();
    /// The profile in that file.
    pub profile: String = same(profile) or "default".into();
    /// The certificates of additional authorities, in PEM.
    pub ca_file: PathBuf = optional(ca_file) or PathBuf::new();
    /// The maximum time to wait for a connection.
    pub connect_timeout_secs: u64 = secs(connect_timeout) or 5;
    /// The maximum time for which an attempt waits for a response before it fails.
    pub request_timeout_secs: u64 = secs(request_timeout) or 30;
    /// The maximum number of retries of a request that may be repeated.
    pub retries: u32 = same(retries) or 3;
    /// The maximum duration of a call, including all its requests and their retries.
    pub call_timeout_secs: u64 = secs(call_timeout) or 120;
    /// The maximum number of requests in flight.
    pub requests_in_flight_max: u32 = same(requests_in_flight_max) or 128;
    /// The maximum payload in flight.
    pub bytes_in_flight_max: Size = size(bytes_in_flight_max) or Size(256 << 20);
    /// The memory for cached information about objects between changes.
    pub heads_bytes_max: Size = size(heads_bytes_max) or Size(32 << 20);
    /// The interval between two sweeps; 0 for never.
    pub sweep_interval_secs: u64 = secs(sweep_interval) or 24 * 60 * 60;
    /// The minimum age of a leftover to be removed by a sweep.
    pub sweep_age_secs: u64 = secs(sweep_age) or 60 * 60;
    /// The maximum size of an object, if no other key sets it.
    pub object_bytes_max: Option<Size> = own(None);
}

impl S3Table {
    /// Checks the values as far as this is possible without the server.
    ///
    /// # Errors
    /// Returns the first key with an invalid value.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        require(!self.bucket.is_empty(), "objects.backend.bucket", || {
            "is missing; it must name a bucket".into()
        })?;
        // In a build without S3, the kind itself is invalid.
        require(cfg!(feature = "s3"), "objects.backend.kind", || {
            "is \"s3\", but this program was built without it; build with --features s3".into()
        })?;
        crate::config_file::read("objects.backend.credentials_file", &self.credentials_file)?;
        crate::config_file::read("objects.backend.ca_file", &self.ca_file)?;
        self.check_store()
    }

    #[cfg(not(feature = "s3"))]
    fn check_store(&self) -> Result<(), ConfigError> {
        Ok(())
    }

    #[cfg(not(feature = "s3"))]
    pub(crate) fn check_files(&self) -> Result<(), ConfigError> {
        Ok(())
    }
}

#[cfg(feature = "s3")]
mod store {
    use super::S3Table;
    use crate::config_file::ConfigError;
    use crate::quantity::Size;
    use blocker_s3::S3Config;
    use cached_process::Exit;
    use std::str::FromStr;

    impl S3Table {
        /// Returns the configuration of the store.
        #[must_use]
        pub fn store(&self, object_bytes_max: u64) -> S3Config {
            let mut config = S3Config::default();
            self.apply(&mut config);
            config.object_bytes_max = self.object_bytes_max.map_or(object_bytes_max, |size| size.0);
            config
        }

        pub(super) fn check_store(&self) -> Result<(), ConfigError> {
            self.store(blocker::OBJECT_BYTES_MAX_DEFAULT).check().or_else(mistake)
        }

        /// Reads the files of credentials and authorities.
        ///
        /// # Errors
        /// Returns the problem with one of the files.
        pub(crate) fn check_files(&self) -> Result<(), ConfigError> {
            self.store(blocker::OBJECT_BYTES_MAX_DEFAULT).check_files().or_else(mistake)
        }
    }

    /// Converts an error of the store, whose message begins with the name of the key.
    fn mistake(error: blocker::Error) -> Result<(), ConfigError> {
        let new = |why: &str| ConfigError::new("objects.backend", why);
        Err(match error {
            blocker::Error::Invalid(why) => new(&why),
            blocker::Error::Retryable(why) => ConfigError { exit: Exit::Trouble, ..new(&why) },
            other => new(&other.to_string()),
        })
    }

    impl FromStr for S3Table {
        type Err = String;

        /// Parses `BUCKET[,KEY=VALUE]...`.
        fn from_str(text: &str) -> Result<Self, String> {
            let config: S3Config = text.parse()?;
            let default = S3Config::default();
            let size = Some(config.object_bytes_max).filter(|bytes| *bytes != default.object_bytes_max);
            Ok(S3Table { object_bytes_max: size.map(Size), ..S3Table::from(&config) })
        }
    }
}

#[cfg(all(test, feature = "s3"))]
mod tests {
    use super::*;
    use crate::backend::BackendTable;
    use blocker_s3::S3Config;

    #[test]
    fn the_defaults_are_those_of_blocker_s3() {
        let own = S3Config::new("disks");
        let ours = S3Table { bucket: "disks".into(), ..S3Table::default() };
        assert_eq!(format!("{:?}", ours.store(own.object_bytes_max)), format!("{own:?}"));
    }

    #[test]
    fn one_line_has_every_key_of_the_table() {
        let line = "disks,endpoint=http://h:9,region=r,prefix=p,virtual_host=true,allow_http=true,\
                    credentials_file=/c,profile=o,ca_file=/a,connect_timeout_secs=1,request_timeout_secs=2,\
                    retries=4,call_timeout_secs=60,requests_in_flight_max=5,bytes_in_flight_max=67108864,heads_bytes_max=1048576,\
                    sweep_interval_secs=0,sweep_age_secs=7200,object_bytes_max=8192";
        let table: S3Table = line.parse().unwrap();
        let config: S3Config = line.parse().unwrap();
        assert_eq!(format!("{:?}", table.store(1)), format!("{config:?}"));
        let default =
            toml::Table::try_from(S3Table { object_bytes_max: Some(Size(1)), ..S3Table::default() });
        let table = toml::Table::try_from(&table).unwrap();
        for (key, value) in default.unwrap() {
            assert!(table[&key] != value || key == "anonymous", "{key} is as without the line");
            let is_named = S3Config::KEYS.split(", ").any(|own| own == key) || key == "bucket";
            assert!(is_named, "{key} is none of the line's");
        }
    }

    #[test]
    fn what_cannot_work_is_named_with_its_key() {
        let check = |keys: &str| {
            let text = format!("kind = \"s3\"\n{keys}");
            let table: BackendTable = toml::from_str(&text).unwrap();
            table.check().unwrap_err().to_string()
        };
        for (keys, wanted) in [
            ("", "objects.backend.bucket: is missing"),
            ("bucket = \"b\"", "objects.backend: bucket must be a name"),
            (
                "bucket = \"disks\"\nendpoint = \"http://h\"",
                "objects.backend: endpoint does not use TLS; set allow_http = true to allow this",
            ),
            (
                "bucket = \"disks\"\ncredentials_file = \"/no/file\"",
                "objects.backend.credentials_file: cannot read /no/file: No such file",
            ),
            ("bucket = \"disks\"\nca_file = \"/no/file\"", "objects.backend.ca_file: cannot read /no/file: "),
            ("bucket = \"disks\"\nsweep_age_secs = 60", "objects.backend: sweep_age_secs must be"),
        ] {
            let found = check(keys);
            assert!(found.starts_with(wanted) && !found.contains('\n'), "{keys}: {found}");
        }
    }
}
