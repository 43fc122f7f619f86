//! `[objects.backend]` with `kind = "s3"`: a bucket of S3, or of a server that speaks its protocol.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, require};
use crate::tables::Size;

/// The keys of `kind = "s3"`. An empty text means the default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct S3Table {
    /// The bucket; required.
    pub bucket: String,
    /// The server's URL; empty is AWS.
    pub endpoint: String,
    /// The region; empty is that of the environment.
    pub region: String,
    /// What the keys of all S3 objects begin with.
    pub prefix: String,
    /// Whether the bucket is a part of the server's name, not of the path.
    pub virtual_host: bool,
    /// Whether the endpoint may be without TLS.
    pub allow_http: bool,
    /// Whether requests are sent without a signature.
    pub anonymous: bool,
    /// The file with the credentials; empty is the environment.
    pub credentials_file: PathBuf,
    /// The profile in that file.
    pub profile: String,
    /// Certificates of further authorities, PEM.
    pub ca_file: PathBuf,
    /// How long to wait for a connection.
    pub connect_timeout_secs: u64,
    /// How long an attempt may wait for an answer before it fails.
    pub request_timeout_secs: u64,
    /// How often a request that may be repeated is repeated.
    pub retries: u32,
    /// How long a call may take, with all its requests and their repetitions.
    pub call_timeout_secs: u64,
    /// The largest number of requests under way.
    pub requests_in_flight_max: u32,
    /// The most payload under way.
    pub bytes_in_flight_max: Size,
    /// Memory for what is remembered of objects between changes.
    pub heads_bytes_max: Size,
    /// The time between two sweeps; 0 is never.
    pub sweep_interval_secs: u64,
    /// How old a left-over must be to be removed by a sweep.
    pub sweep_age_secs: u64,
    /// The largest object, where no other key sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_bytes_max: Option<Size>,
}

impl Default for S3Table {
    /// The defaults of `blocker-s3`, which a test compares.
    fn default() -> Self {
        S3Table {
            bucket: String::new(),
            endpoint: String::new(),
            region: String::new(),
            prefix: String::new(),
            virtual_host: false,
            allow_http: false,
            anonymous: false,
            credentials_file: PathBuf::new(),
            profile: "default".into(),
            ca_file: PathBuf::new(),
            connect_timeout_secs: 5,
            request_timeout_secs: 30,
            retries: 3,
            call_timeout_secs: 120,
            requests_in_flight_max: 128,
            bytes_in_flight_max: Size(256 << 20),
            heads_bytes_max: Size(32 << 20),
            sweep_interval_secs: 24 * 60 * 60,
            sweep_age_secs: 60 * 60,
            object_bytes_max: None,
        }
    }
}

impl S3Table {
    /// Checks the values, as far as that is possible without the server.
    ///
    /// # Errors
    /// The first key whose value cannot work.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        require(!self.bucket.is_empty(), "objects.backend.bucket", || {
            "is missing; it must name a bucket".into()
        })?;
        // In a build without S3 the kind itself is wrong.
        require(cfg!(feature = "s3"), "objects.backend.kind", || {
            "is \"s3\", which this program was built without; build it with --features s3".into()
        })?;
        crate::error::can_be_read("objects.backend.credentials_file", &self.credentials_file)?;
        crate::error::can_be_read("objects.backend.ca_file", &self.ca_file)?;
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
    use crate::error::{ConfigError, invalid};
    use crate::tables::Size;
    use blocker_s3::S3Config;
    use std::path::PathBuf;
    use std::str::FromStr;
    use std::time::Duration;

    impl S3Table {
        /// Returns the configuration of the store.
        #[must_use]
        pub fn store(&self, object_bytes_max: u64) -> S3Config {
            let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
            let path = |path: &PathBuf| Some(path.clone()).filter(|path| !path.as_os_str().is_empty());
            let mut config = S3Config::new(&self.bucket);
            config.endpoint = text(&self.endpoint);
            config.region = text(&self.region);
            config.prefix.clone_from(&self.prefix);
            config.virtual_host = self.virtual_host;
            config.allow_http = self.allow_http;
            config.anonymous = self.anonymous;
            config.credentials_file = path(&self.credentials_file);
            config.profile.clone_from(&self.profile);
            config.ca_file = path(&self.ca_file);
            config.connect_timeout = Duration::from_secs(self.connect_timeout_secs);
            config.request_timeout = Duration::from_secs(self.request_timeout_secs);
            config.retries = self.retries;
            config.call_timeout = Duration::from_secs(self.call_timeout_secs);
            config.requests_in_flight_max = self.requests_in_flight_max;
            config.bytes_in_flight_max = self.bytes_in_flight_max.0;
            config.heads_bytes_max = self.heads_bytes_max.0;
            config.sweep_interval = Duration::from_secs(self.sweep_interval_secs);
            config.sweep_age = Duration::from_secs(self.sweep_age_secs);
            config.object_bytes_max = self.object_bytes_max.map_or(object_bytes_max, |size| size.0);
            config
        }

        pub(super) fn check_store(&self) -> Result<(), ConfigError> {
            self.store(blocker::OBJECT_BYTES_MAX_DEFAULT).check().or_else(mistake)
        }

        /// Reads the files of credentials and authorities.
        ///
        /// # Errors
        /// What is wrong with one of them.
        pub(crate) fn check_files(&self) -> Result<(), ConfigError> {
            self.store(blocker::OBJECT_BYTES_MAX_DEFAULT).check_files().or_else(mistake)
        }
    }

    /// The text of the error begins with the name of the key.
    fn mistake(error: blocker::Error) -> Result<(), ConfigError> {
        match error {
            blocker::Error::Invalid(why) => invalid("objects.backend", why),
            other => invalid("objects.backend", other.to_string()),
        }
    }

    impl FromStr for S3Table {
        type Err = String;

        /// Parses `BUCKET[,KEY=VALUE]...`.
        fn from_str(text: &str) -> Result<Self, String> {
            let config: S3Config = text.parse()?;
            let default = S3Config::default();
            let size = Some(config.object_bytes_max).filter(|bytes| *bytes != default.object_bytes_max);
            Ok(S3Table {
                bucket: config.bucket,
                endpoint: config.endpoint.unwrap_or_default(),
                region: config.region.unwrap_or_default(),
                prefix: config.prefix,
                virtual_host: config.virtual_host,
                allow_http: config.allow_http,
                anonymous: config.anonymous,
                credentials_file: config.credentials_file.unwrap_or_default(),
                profile: config.profile,
                ca_file: config.ca_file.unwrap_or_default(),
                connect_timeout_secs: config.connect_timeout.as_secs(),
                request_timeout_secs: config.request_timeout.as_secs(),
                retries: config.retries,
                call_timeout_secs: config.call_timeout.as_secs(),
                requests_in_flight_max: config.requests_in_flight_max,
                bytes_in_flight_max: Size(config.bytes_in_flight_max),
                heads_bytes_max: Size(config.heads_bytes_max),
                sweep_interval_secs: config.sweep_interval.as_secs(),
                sweep_age_secs: config.sweep_age.as_secs(),
                object_bytes_max: size.map(Size),
            })
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
            let is_named = S3Config::KEYS.iter().any(|(name, ..)| *name == key) || key == "bucket";
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
            ("bucket = \"b\"", "objects.backend: bucket must name one"),
            (
                "bucket = \"disks\"\nendpoint = \"http://h\"",
                "objects.backend: endpoint is without TLS; allow_http = true allows that",
            ),
            (
                "bucket = \"disks\"\ncredentials_file = \"/no/file\"",
                "objects.backend.credentials_file: is /no/file, which cannot be read",
            ),
            ("bucket = \"disks\"\nca_file = \"/no/file\"", "objects.backend.ca_file: is /no/file"),
            ("bucket = \"disks\"\nsweep_age_secs = 60", "objects.backend: sweep_age_secs must be"),
        ] {
            let found = check(keys);
            assert!(found.starts_with(wanted) && !found.contains('\n'), "{keys}: {found}");
        }
    }
}
