//! The cluster to connect to, and the limits.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use blocker::{Error, OBJECT_BYTES_MAX_DEFAULT, Result};

/// The maximum number of notifications under way. They have a limit of their own, because one that
/// waits for an unreachable watcher must not keep an operation waiting.
pub(crate) const NOTIFICATIONS_MAX: usize = 256;

/// The location and the limits of a store on RADOS. Written as text (`FromStr`) it is
/// `POOL[,key=value]...`, with the keys that [`RadosConfig::KEYS`] names.
#[derive(Clone, Debug)]
pub struct RadosConfig {
    /// The pool.
    pub pool: String,
    /// Ceph's configuration file, or `None` for `$CEPH_CONF` or else the usual places.
    pub conf_file: Option<PathBuf>,
    /// The user without `client.`.
    pub user: String,
    /// The file with the user's key, or `None` for the keyring named by Ceph's configuration file.
    pub keyring: Option<PathBuf>,
    /// The RADOS namespace that contains everything, at most 50 characters, without `/` and `%`. If
    /// it is empty, each namespace has a RADOS namespace with its own name.
    pub root: String,
    /// The prefix of all RADOS object names: at most 50 printable characters without `%`.
    pub prefix: String,
    /// The maximum size of an object, which may not exceed the limit of the OSDs
    /// (`osd_max_object_size`, 128 MiB).
    pub object_bytes_max: u64,
    /// The maximum time to wait for a monitor when connecting.
    pub connect_timeout: Duration,
    /// The time without a response from the OSD after which an operation fails: a read as
    /// `Retryable`, a change as `OutcomeUnknown`. With zero, an operation waits until its caller's
    /// deadline, or forever.
    pub op_timeout: Duration,
    /// The maximum number of concurrent operations; further operations are queued.
    pub ops_in_flight_max: u32,
    /// The maximum number of payload bytes of concurrent operations.
    pub bytes_in_flight_max: u64,
    /// The number of objects whose heads are remembered between changes, at about 150 bytes each.
    pub heads_remembered_max: usize,
    /// Whether to exchange claims and invalidations with other clients, through a RADOS watch.
    pub watch: bool,
    /// Settings passed to librados unchanged.
    pub librados: Vec<(String, String)>,
}

impl Default for RadosConfig {
    fn default() -> Self {
        Self {
            pool: String::new(),
            conf_file: None,
            user: "admin".into(),
            keyring: None,
            root: String::new(),
            prefix: String::new(),
            object_bytes_max: OBJECT_BYTES_MAX_DEFAULT,
            connect_timeout: Duration::from_secs(10),
            op_timeout: Duration::from_secs(30),
            ops_in_flight_max: 512,
            bytes_in_flight_max: 64 << 20,
            heads_remembered_max: 64 * 1024,
            watch: false,
            librados: Vec::new(),
        }
    }
}

impl RadosConfig {
    /// The keys of the text form, separated by commas.
    pub const KEYS: &str = "conf, user, keyring, root, prefix, object_bytes_max, connect_timeout_secs, \
        op_timeout_secs, ops_in_flight_max, bytes_in_flight_max, heads_remembered_max, watch, \
        librados.KEY";

    /// Returns a configuration for `pool`, with default values.
    #[must_use]
    pub fn new(pool: impl Into<String>) -> Self {
        Self { pool: pool.into(), ..Self::default() }
    }

    /// # Errors
    /// Returns [`Error::Invalid`], with the mistake and the valid values.
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |text: String| Err(Error::Invalid(text.into()));
        let printable = |text: &str, no: &str| {
            text.len() <= 50
                && text.bytes().all(|byte| byte.is_ascii_graphic())
                && !text.contains(|c| no.contains(c))
        };
        if self.pool.is_empty() {
            return wrong("the pool is missing; expected rados:POOL".into());
        }
        if self.user.is_empty() || self.user.starts_with("client.") {
            return wrong(format!(
                "user is {:?}; expected a name without client., for example user=admin",
                self.user
            ));
        }
        if !printable(&self.root, "%/") {
            return wrong("root must have at most 50 printable ASCII characters, without / and %".into());
        }
        if !printable(&self.prefix, "%") {
            return wrong("prefix must have at most 50 printable ASCII characters, without %".into());
        }
        if !(4096..=1 << 30).contains(&self.object_bytes_max) {
            return wrong("object_bytes_max must be from 4096 bytes to 1 GiB".into());
        }
        if !(1..=65_536).contains(&self.ops_in_flight_max) {
            return wrong("ops_in_flight_max must be from 1 to 65536".into());
        }
        if self.bytes_in_flight_max < self.object_bytes_max || self.bytes_in_flight_max > 1 << 40 {
            return wrong("bytes_in_flight_max must be from object_bytes_max to 1 TiB".into());
        }
        if self.heads_remembered_max < 1024 {
            return wrong("heads_remembered_max must be at least 1024".into());
        }
        Ok(())
    }

    /// Returns the time that an operation waits for an OSD before the monitors are asked for the
    /// OSD's new address.
    fn map_timeout(&self) -> Duration {
        const LONGEST: Duration = Duration::from_secs(3);
        // Timeouts are in whole seconds, the smallest unit of librados.
        let some = Duration::from_secs(self.op_timeout.as_secs() / 3).max(Duration::from_secs(1));
        if self.op_timeout.is_zero() { LONGEST } else { some.min(LONGEST) }
    }

    /// Returns the settings for librados.
    pub(crate) fn options(&self) -> Vec<(String, String)> {
        let seconds = |time: Duration| time.as_secs_f64().to_string();
        let notifications = NOTIFICATIONS_MAX as u64;
        let mut options: Vec<(String, String)> = [
            ("client_mount_timeout", seconds(self.connect_timeout)),
            ("rados_mon_op_timeout", seconds(self.connect_timeout)),
            ("rados_osd_op_timeout", seconds(self.op_timeout)),
            // librados's own limit on operations would block the caller's thread, so this store's
            // limits must be lower.
            ("objecter_inflight_ops", (u64::from(self.ops_in_flight_max) * 2 + notifications).to_string()),
            ("objecter_inflight_op_bytes", (self.bytes_in_flight_max * 2).to_string()),
            // An OSD may restart before the monitors notice its absence. librados asks for the next
            // map once. If that map does not show the OSD's new address, librados asks again only
            // when an operation is older than this timeout, which must happen before the operation
            // fails.
            ("objecter_tick_interval", "1".into()),
            ("objecter_timeout", seconds(self.map_timeout())),
            // librados must not print errors, because the caller reports them.
            ("log_to_stderr", "false".into()),
            ("err_to_stderr", "false".into()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into();
        options.extend(self.keyring.iter().map(|file| ("keyring".into(), file.display().to_string())));
        options.extend(self.librados.iter().cloned());
        options
    }
}

impl FromStr for RadosConfig {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let mut parts = text.split(',');
        let mut config = Self::new(parts.next().unwrap_or_default());
        for part in parts {
            let (key, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is not KEY=VALUE"))?;
            config.set(key, value)?;
        }
        config.check().map_err(|error| match error {
            Error::Invalid(reason) => reason.into_owned(),
            other => other.to_string(),
        })?;
        Ok(config)
    }
}

impl RadosConfig {
    fn set(&mut self, key: &str, value: &str) -> std::result::Result<(), String> {
        fn number<T: FromStr>(key: &str, value: &str) -> std::result::Result<T, String> {
            value.parse().map_err(|_| format!("{key}={value}: expected a whole number"))
        }
        let flag = || value.parse().map_err(|_| format!("{key}={value}: expected true or false"));
        let seconds = || number::<u32>(key, value).map(|n| Duration::from_secs(n.into()));
        match key {
            "conf" => self.conf_file = Some(value.into()),
            "user" | "id" => value.clone_into(&mut self.user),
            "keyring" => self.keyring = Some(value.into()),
            "root" => value.clone_into(&mut self.root),
            "prefix" => value.clone_into(&mut self.prefix),
            "object_bytes_max" => self.object_bytes_max = number(key, value)?,
            "connect_timeout_secs" => self.connect_timeout = seconds()?,
            "op_timeout_secs" => self.op_timeout = seconds()?,
            "ops_in_flight_max" => self.ops_in_flight_max = number(key, value)?,
            "bytes_in_flight_max" => self.bytes_in_flight_max = number(key, value)?,
            "heads_remembered_max" => self.heads_remembered_max = number(key, value)?,
            "watch" => self.watch = flag()?,
            _ => {
                let unknown = || format!("{key:?} is not a key of rados:; expected {}", Self::KEYS);
                let name = key.strip_prefix("librados.").ok_or_else(unknown)?;
                self.librados.push((name.to_owned(), value.to_owned()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_names_pool_and_keys() {
        let config: RadosConfig =
            "vm,conf=/etc/c,user=u,root=r,prefix=p.,op_timeout_secs=5,watch=true,librados.ms_async_op_threads=1"
                .parse()
                .unwrap();
        assert_eq!((config.pool.as_str(), config.user.as_str(), config.root.as_str()), ("vm", "u", "r"));
        assert_eq!((config.op_timeout, config.watch), (Duration::from_secs(5), true));
        let options = config.options();
        assert!(options.contains(&("ms_async_op_threads".into(), "1".into())));
        assert!(options.contains(&("rados_osd_op_timeout".into(), "5".into())));
        assert_eq!("vm,id=u".parse::<RadosConfig>().unwrap().user, "u");
    }

    #[test]
    fn the_monitors_are_asked_for_a_new_map_before_an_operation_fails() {
        for (op_timeout_secs, wanted) in [(0, "3"), (1, "1"), (5, "1"), (6, "2"), (30, "3")] {
            let config: RadosConfig = format!("vm,op_timeout_secs={op_timeout_secs}").parse().unwrap();
            let options = config.options();
            assert!(
                options.contains(&("objecter_timeout".into(), wanted.into())),
                "{op_timeout_secs}: {options:?}"
            );
        }
        // The operator's own settings come last and take precedence.
        let config: RadosConfig = "vm,librados.objecter_timeout=60".parse().unwrap();
        assert_eq!(config.options().last(), Some(&("objecter_timeout".into(), "60".into())));
    }

    #[test]
    fn mistakes_are_told() {
        for (text, word) in [
            ("", "pool"),
            ("p,x", "KEY=VALUE"),
            ("p,x=1", "not a key"),
            ("p,op_timeout_secs=soon", "whole number"),
            ("p,user=client.u", "without client."),
            ("p,id=", "without client."),
            ("p,root=a/b", "root"),
            ("p,prefix=%", "prefix"),
            ("p,object_bytes_max=1", "object_bytes_max"),
            ("p,bytes_in_flight_max=5000", "bytes_in_flight_max"),
            ("p,watch=maybe", "true or false"),
        ] {
            let error = text.parse::<RadosConfig>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
