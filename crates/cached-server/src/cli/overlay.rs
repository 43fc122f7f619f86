//! Flags override the configuration file, which overrides the defaults: each flag replaces one
//! setting, then the settings are checked together.
//!
//! Errors in flags have memcached's messages; errors in the file name its key.

use super::extended::{self, Extended};
use super::{Cli, listen, wrong};
use crate::config::{Config, ConfigError, File, share};
use cached_memcached::Logging;
use cached_memcached::settings::{ListenAddress, Settings, SlabClasses};
use cached_process::{Exit, Failure};
use cached_proto::Protocol;

/// memcached's port.
pub(super) const PORT: i32 = 11211;

impl Cli {
    /// Returns all settings. `bare` is set if none of the flags is a flag of memcached.
    pub(super) fn overlay(self, file: Option<File>, bare: bool) -> Result<Config, Failure> {
        let by_flag = self.keys_given();
        let mut settings = match &file {
            Some(file) => file.settings().map_err(|error| self.blame(error))?,
            None => Settings::default(),
        };
        let mut extended = Extended::over(&settings);
        for list in &self.extended {
            extended.read(&mut settings, list)?;
        }
        let mut notes = Vec::new();
        let (port, udp_port) = self.ports_given(&mut notes)?;
        self.sizes(&mut settings, &mut notes)?;
        self.counts(&mut settings, &mut notes)?;
        self.switches(&mut settings)?;
        self.authentication(&mut settings)?;
        if self.enable_ssl || settings.tls.is_some() {
            settings.tls = Some(extended.tls.clone());
        }
        settings.classes = self.classes(&settings, &mut notes, &extended)?;
        let sizes_given = self.memory_limit.is_some() || self.max_item_size.is_some();
        if settings.item_bytes_max > settings.memory_bytes / 2 {
            let why = "Cannot set item size limit higher than 1/2 of memory max.";
            if file.is_none() || sizes_given {
                return wrong(Exit::Usage, why);
            }
            let why = format!("is more than half of memory_bytes_max, {} bytes", settings.memory_bytes);
            return Err(self.blame(ConfigError::new("memcached.item_bytes_max", why)));
        }
        if let Err(error) = extended.check(&settings) {
            if file.is_none() || sizes_given || !self.extended.is_empty() {
                return Err(error);
            }
            return Err(self.blame(ConfigError::new("memcached.size_class_bytes_max", error)));
        }
        settings.classes.chunk_bytes_max = extended.chunk_bytes_max;
        self.napi_ids(&settings, &mut extended, &mut notes)?;
        match &file {
            Some(file) => self.listen_over(file, &mut settings, port).map_err(|error| {
                if !self.listen.is_empty() {
                    return error;
                }
                self.blame(ConfigError::new("memcached.listen", error))
            })?,
            None => {
                let port = port.or(udp_port.filter(|port| *port != 0)).unwrap_or(PORT);
                self.listen_alone(&mut settings, port, bare)?;
            }
        }
        listen::check_listeners(&settings)?;
        self.udp(file.as_ref(), &mut settings, udp_port, bare)?;
        if settings.tls.is_some() && !settings.udp_listen.is_empty() {
            notes.push("datagrams are not encrypted, unlike connections; -U 0 turns them off".into());
        }
        if settings.tls.is_some() && settings.listen.is_empty() {
            return wrong(Exit::Usage, "ERROR: You cannot enable SSL without a TCP port.");
        }
        if !self.rest.is_empty() {
            notes.push(format!("words without a flag are ignored: {}", self.rest.join(" ")));
        }
        if !extended.without_effect.is_empty() {
            let names = extended.without_effect.join(", ");
            notes.push(format!("accepted, but without effect in this engine: {names}"));
        }
        settings.set_connection_bytes(settings.inert.read_buf_mem_limit);
        // A daemon leaves the directory in which it was started. Without a current directory, the
        // path stays as it is.
        settings.memory_file = settings.memory_file.map(|path| std::path::absolute(&path).unwrap_or(path));
        settings.notes = notes;
        let mut file = file.unwrap_or_default();
        // The memory is the one that flags have set.
        if let Some(table) = &file.shared_memory {
            let shared = share(table, &settings, file.objects.as_mut());
            settings.shared_memory = Some(shared.map_err(|error| self.blame(error))?);
        }
        Ok(Config { settings, file, path: None, text: None, by_flag })
    }

    /// Returns the failure for a mistake outside of the flags: in a key of the file or, without a
    /// file, in a combination of flags.
    pub(super) fn blame(&self, error: ConfigError) -> Failure {
        match &self.config {
            Some(path) => error.in_file(path).into(),
            None => Failure::new(Exit::Usage, error.why),
        }
    }

    /// Returns the keys of what flags name.
    fn keys_given(&self) -> Vec<&'static str> {
        let has_tls = self.enable_ssl || self.extended.iter().any(|list| list.contains("ssl_"));
        let given = [
            ("process.user", self.user.is_some()),
            ("memcached.listen", !self.listen.is_empty() || self.port.is_some()),
            ("memcached.udp_listen", self.udp_port.is_some()),
            ("memcached.unix_path", self.unix_socket.is_some()),
            ("memcached.auth_file", self.auth_file.is_some()),
            ("memcached.sasl_file", self.enable_sasl),
            ("memcached.tls", has_tls),
            ("memcached.memory_file", self.memory_file.is_some()),
        ];
        given.into_iter().filter_map(|(key, is_given)| is_given.then_some(key)).collect()
    }

    /// Returns the values of `-p` and `-U`, if they are given.
    fn ports_given(&self, notes: &mut Vec<String>) -> Result<(Option<i32>, Option<i32>), Failure> {
        let mut port = |flag: &str, text: &Option<String>, what: &str| {
            let Some(text) = text else { return Ok(None) };
            match number(flag, text, notes)? {
                port if flag == "-p" && port > 65535 => {
                    wrong(Exit::Usage, format!("ERROR: Invalid port number {port}."))
                }
                port @ -1..=65535 => Ok(Some(port as i32)),
                port => wrong(Exit::Usage, format!("{flag} {port}: {what}, or -1 for any free one")),
            }
        };
        Ok((
            port("-p", &self.port, "the TCP port must be 0 to 65535")?,
            port("-U", &self.udp_port, "the UDP port must be 0 (off) to 65535")?,
        ))
    }

    /// Applies `-a`, `-m` and `-I`.
    fn sizes(&self, settings: &mut Settings, notes: &mut Vec<String>) -> Result<(), Failure> {
        if let Some(text) = &self.unix_mask {
            let Ok(mask) = u32::from_str_radix(text.trim(), 8) else {
                return wrong(Exit::Usage, format!("-a {text}: the access mask must be octal"));
            };
            settings.unix_mask = mask & 0o777;
        }
        if let Some(text) = &self.memory_limit {
            let mib = number("-m", text, notes)?.max(0);
            if mib > 4 << 20 {
                return wrong(
                    Exit::Usage,
                    format!("-m {mib}: item memory must be at most 4194304 megabytes"),
                );
            }
            settings.memory_bytes = (mib as usize) << 20;
        }
        if let Some(text) = &self.max_item_size {
            settings.item_bytes_max = item_size(text, settings.memory_bytes)?;
        }
        Ok(())
    }

    /// Applies `-c`, `-t`, `-R` and `-b`.
    fn counts(&self, settings: &mut Settings, notes: &mut Vec<String>) -> Result<(), Failure> {
        if let Some(text) = &self.conn_limit {
            settings.connections_max = positive("-c", text, "Maximum connections", notes)? as usize;
        }
        if let Some(text) = &self.threads {
            let threads = positive("-t", text, "Number of threads", notes)?;
            if threads > 1024 {
                return wrong(
                    Exit::Usage,
                    format!("-t {threads}: the number of threads must be at most 1024"),
                );
            }
            settings.threads = threads as usize;
        }
        if let Some(text) = &self.max_reqs_per_event {
            let requests = positive("-R", text, "Number of requests per event", notes)? as u32;
            settings.requests_per_wake = Some(requests);
        }
        if let Some(text) = &self.listen_backlog {
            settings.backlog = number("-b", text, notes)?.clamp(0, i64::from(i32::MAX)) as u32;
        }
        Ok(())
    }

    /// Applies flags that enable or disable features, and names.
    fn switches(&self, settings: &mut Settings) -> Result<(), Failure> {
        if let Some(name) = &self.protocol {
            settings.protocol = match name.trim() {
                "auto" => None,
                "ascii" => Some(Protocol::Text),
                "binary" => Some(Protocol::Binary),
                other => {
                    let line = format!(
                        "Invalid value for binding protocol: {other} -- should be one of auto, binary, or ascii"
                    );
                    return wrong(Exit::Usage, line);
                }
            };
        }
        if let Some(text) = &self.prefix_delimiter {
            let Some(delimiter) = text.trim_start().bytes().next() else {
                return wrong(Exit::FlagValue, "No delimiter specified");
            };
            settings.prefix_delimiter = Some(delimiter);
        }
        if let Some(user) = &self.user {
            settings.user = Some(user.clone()).filter(|user| !user.is_empty());
        }
        if let Some(path) = &self.pidfile {
            settings.pid_file = Some(path.clone());
        }
        if let Some(path) = &self.memory_file {
            if path.as_os_str().is_empty() {
                return wrong(Exit::Usage, "-e names no file");
            }
            settings.memory_file = Some(path.clone());
        }
        let loud = usize::from(self.verbose) + self.verbose_long.len();
        if loud > 0 {
            settings.verbosity = loud.min(3) as u8;
            settings.log.level = Logging::level(settings.log.level, settings.verbosity);
        }
        settings.huge_pages |= self.enable_largepages;
        settings.lock_memory |= self.lock_memory;
        settings.evict &= !self.disable_evictions;
        settings.cas &= !self.disable_cas;
        settings.flush_enabled &= !self.disable_flush_all;
        settings.dump_enabled &= !self.disable_dumping;
        settings.watch_enabled &= !self.disable_watch;
        settings.shutdown_command |= self.enable_shutdown;
        settings.debug_clock |= self.debug_clock;
        settings.daemon |= self.daemon;
        settings.core_dumps |= self.enable_coredumps;
        Ok(())
    }

    /// Reads `-f`, `-n`, and the chunk options of `-o`, which define the size classes of reports
    /// only.
    fn classes(
        &self,
        settings: &Settings,
        notes: &mut Vec<String>,
        extended: &Extended,
    ) -> Result<SlabClasses, Failure> {
        let mut classes = settings.classes.clone();
        if let Some(text) = &self.slab_growth_factor {
            classes.factor = extended::leading_f64(text);
            if classes.factor.is_nan() || classes.factor <= 1.0 {
                return wrong(Exit::FlagValue, "Factor must be greater than 1");
            }
        }
        if let Some(text) = &self.slab_min_size {
            let bytes = positive("-n", text, "Chunk size", notes)?;
            classes.chunk_bytes_min = usize::try_from(bytes).unwrap_or(usize::MAX).min(1 << 20);
        }
        classes.chunk_bytes_max = extended.chunk_bytes_max;
        Ok(classes)
    }

    /// Applies `-N`.
    fn napi_ids(
        &self,
        settings: &Settings,
        extended: &mut Extended,
        notes: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let Some(text) = &self.napi_ids else { return Ok(()) };
        let ids = number("-N", text, notes)?;
        if ids <= 0 {
            return wrong(Exit::FlagValue, "Maximum number of NAPI IDs must be greater than 0");
        }
        let threads = settings.threads;
        if ids > threads as i64 {
            let line =
                format!("Number of napi_ids({ids}) cannot be greater than number of threads({threads})");
            return wrong(Exit::Usage, line);
        }
        extended.without_effect.push(format!("-N {ids}"));
        Ok(())
    }

    /// Sets the addresses to listen on without a file, as memcached does.
    fn listen_alone(&self, settings: &mut Settings, port: i32, bare: bool) -> Result<(), Failure> {
        settings.interface = match self.listen.is_empty() {
            true => bare.then(|| "127.0.0.1".into()),
            false => Some(self.listen.join(",")),
        };
        settings.port = port;
        settings.unix_path = self.unix_socket.clone();
        settings.listen = match &settings.unix_path {
            Some(_) => Vec::new(),
            None => listen::addresses(&self.listen, port, settings.protocol, settings.tls.is_some(), bare)?,
        };
        Ok(())
    }

    /// Sets the addresses to listen on with a file: `-s` and `-l` replace those of the file, `-p`
    /// alone changes their port.
    fn listen_over(&self, file: &File, settings: &mut Settings, port: Option<i32>) -> Result<(), Failure> {
        if let Some(path) = &self.unix_socket {
            settings.unix_path = Some(path.clone());
            settings.interface = None;
            settings.listen = Vec::new();
            settings.port = port.unwrap_or(PORT);
            return Ok(());
        }
        let own = &file.memcached.listen;
        let has_tls = settings.tls.is_some();
        let texts = if self.listen.is_empty() { own } else { &self.listen };
        settings.interface = (!texts.is_empty()).then(|| texts.join(","));
        settings.listen = match port {
            Some(0) => Vec::new(),
            // The file has no listener, and the command line has a port, so the server listens on
            // this host only.
            Some(port) if texts.is_empty() => listen::addresses(&[], port, settings.protocol, has_tls, true)?,
            None if texts.is_empty() => Vec::new(),
            port => listen::addresses(texts, port.unwrap_or(PORT), settings.protocol, has_tls, false)?,
        };
        if let Some(port) = port.filter(|_| self.listen.is_empty()) {
            move_to(&mut settings.listen, u16::try_from(port).unwrap_or(0));
        }
        settings.port = shown_port(&settings.listen);
        Ok(())
    }
}

/// Returns the port that `stats settings` shows: 0 if there is no port, -1 for any free port.
pub(super) fn shown_port(listen: &[ListenAddress]) -> i32 {
    match listen.first() {
        None => 0,
        Some(ListenAddress { port: 0, .. }) => -1,
        Some(first) => first.port.into(),
    }
}

/// Changes the port of all addresses, and keeps only one address for each host.
pub(super) fn move_to(listen: &mut Vec<ListenAddress>, port: u16) {
    let mut moved: Vec<ListenAddress> = Vec::new();
    for address in listen.drain(..) {
        let address = ListenAddress { port, ..address };
        if !moved.contains(&address) {
            moved.push(address);
        }
    }
    *listen = moved;
}

/// Reads a number as `atoi` does. Letters after the number are ignored, as in `atoi`, and reported
/// in the log.
pub(super) fn number(flag: &str, text: &str, notes: &mut Vec<String>) -> Result<i64, Failure> {
    let Some((number, rest)) = extended::leading_number(text) else {
        return wrong(Exit::Usage, format!("{flag} {text}: must be a number"));
    };
    if !rest.is_empty() {
        notes.push(format!("{flag} {text} is read as {number}"));
    }
    Ok(number)
}

fn positive(flag: &str, text: &str, what: &str, notes: &mut Vec<String>) -> Result<i64, Failure> {
    match number(flag, text, notes) {
        Ok(number @ 1..=0x7fff_ffff) => Ok(number),
        Ok(number @ 0x8000_0000..) => wrong(Exit::FlagValue, format!("{flag} {number}: too large")),
        _ => wrong(Exit::FlagValue, format!("{what} must be greater than 0")),
    }
}

/// Reads `-I`: bytes, or kibi-, mebi-, gibibytes with a letter.
fn item_size(text: &str, memory_bytes: usize) -> Result<usize, Failure> {
    let (number, rest) = extended::leading_number(text).unwrap_or((0, ""));
    let unit = match rest {
        "k" | "K" => 1i64 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        _ => 1,
    };
    let bytes = number.saturating_mul(unit);
    if bytes < 1024 {
        return wrong(Exit::Usage, "Item max size cannot be less than 1024 bytes.");
    }
    if bytes > (memory_bytes / 2) as i64 {
        return wrong(Exit::Usage, "Cannot set item size limit higher than 1/2 of memory max.");
    }
    if bytes > 1 << 30 {
        return wrong(Exit::Usage, "Cannot set item size limit higher than a gigabyte.");
    }
    Ok(bytes as usize)
}
