//! `-o`: memcached's extended options.
//!
//! Options that tune slabs, LRU threads and the hash table are checked as memcached checks them and
//! shown by `stats settings`; they have no other effect. `ssl_…` keeps memcached's names and
//! messages.

use super::wrong;
use cached_config::{ConfigError, eviction_policy};
use cached_memcached::settings::{
    ClientCertificates, IO_URING_SOCKETS_MAX, InertSettings, KeyFormat, MinVersion, PAGE_BYTES, Settings,
    TlsSettings,
};
use cached_process::{Exit, Failure};

/// The default size of the largest chunk.
const CHUNK_BYTES_MAX: usize = PAGE_BYTES / 2;

/// The `-o` options that are applied after all flags have been read. The other options change the
/// settings immediately.
#[derive(Debug, Clone)]
pub(super) struct Extended {
    pub(super) chunk_bytes_max: usize,
    chunk_changed: bool,
    /// The settings of TLS, which are in effect with `-Z`, or with `[memcached.tls]` in the file.
    pub(super) tls: TlsSettings,
    /// The given options that have no effect.
    pub(super) without_effect: Vec<String>,
}

impl Extended {
    /// Reads one list of options.
    pub(super) fn over(settings: &Settings) -> Extended {
        Extended {
            chunk_bytes_max: settings.classes.chunk_bytes_max,
            chunk_changed: settings.classes.chunk_bytes_max != CHUNK_BYTES_MAX,
            tls: settings.tls.clone().unwrap_or_default(),
            without_effect: Vec::new(),
        }
    }

    /// Reads one list.
    pub(super) fn read(&mut self, settings: &mut Settings, list: &str) -> Result<(), Failure> {
        for part in list.trim_start().split(',').filter(|part| !part.is_empty()) {
            let (name, value) = match part.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (part, None),
            };
            self.option(settings, part, name, value)?;
        }
        Ok(())
    }

    fn option(
        &mut self,
        settings: &mut Settings,
        part: &str,
        name: &str,
        value: Option<&str>,
    ) -> Result<(), Failure> {
        match name {
            "maxconns_fast" => settings.connections_max_fast = true,
            "no_maxconns_fast" => settings.connections_max_fast = false,
            "track_sizes" => settings.track_sizes = true,
            // memcached does not have this option and the next four.
            "eviction_policy" => {
                let known = eviction_policy(name, value.unwrap_or_default());
                let mistake = |error: ConfigError| wrong(Exit::FlagValue, format!("{name} {}", error.why));
                settings.eviction_policy = known.or_else(mistake)?;
            }
            "io_uring_sockets_min" => {
                settings.io_uring_sockets_min = unsigned(name, value)?;
                require(
                    settings.io_uring_sockets_min <= IO_URING_SOCKETS_MAX,
                    &format!("{name} must be at most {IO_URING_SOCKETS_MAX}"),
                )?;
            }
            "pin_workers" => settings.pin_workers = true,
            "no_pin_workers" => settings.pin_workers = false,
            "cluster_discovery" => {
                let parsed = value.unwrap_or("reached").parse();
                settings.cluster_discovery = parsed
                    .or_else(|why: String| wrong(Exit::FlagValue, format!("cluster_discovery {why}")))?;
            }
            "idle_timeout" => {
                let secs = integer(given(value, "Missing numeric argument for idle_timeout")?);
                settings.inert.idle_timeout = secs;
                settings.idle_timeout_secs = u32::try_from(secs).unwrap_or(0);
            }
            "watcher_logbuf_size" => settings.watcher_buffer_bytes = kibibytes(name, value)?,
            "worker_logbuf_size" => settings.worker_buffer_bytes = kibibytes(name, value)?,
            "read_buf_mem_limit" => {
                settings.inert.read_buf_mem_limit = unsigned(name, value)?.saturating_mul(1 << 20);
            }
            "slab_sizes" => settings.classes.sizes = slab_sizes(value)?,
            "slab_chunk_max" => {
                self.chunk_bytes_max = chunk_max(value)?;
                self.chunk_changed = true;
            }
            "no_chunked_items" => self.chunk_bytes_max = PAGE_BYTES,
            // This program does not drop privileges by system call filters, so the option to keep
            // them is accepted.
            "modern"
            | "no_inline_ascii_resp"
            | "inline_ascii_resp"
            | "resp_obj_mem_limit"
            | "no_drop_privileges"
            | "drop_privileges"
            | "relaxed_privileges" => self.ignore(name),
            _ if name.starts_with("ssl_") && read_ssl(&mut self.tls, &mut settings.inert, name, value)? => {
                if matches!(name, "ssl_wbuf_size" | "ssl_kernel_tls") {
                    self.ignore(name);
                }
            }
            _ if name.starts_with("ext_") => {
                return wrong(Exit::Usage, format!("-o {name}: this server has no external storage yet."));
            }
            _ if self.tuning(settings, name, value)? => self.ignore(name),
            _ => return wrong(Exit::FlagValue, format!("Illegal suboption \"{part}\"")),
        }
        Ok(())
    }

    fn ignore(&mut self, name: &str) {
        self.without_effect.push(format!("-o {name}"));
    }

    /// Reads an option of a part that this engine does not have; returns false for a name that
    /// memcached does not know either.
    fn tuning(&mut self, settings: &mut Settings, name: &str, value: Option<&str>) -> Result<bool, Failure> {
        let inert = &mut settings.inert;
        match name {
            "hashpower" => {
                let power = integer(given(value, "Missing numeric argument for hashpower")?);
                let multiplier = format!("Initial hashtable multiplier of {power}");
                require(power >= 12, &format!("{multiplier} is too low"))?;
                require(power <= 32, &format!("{multiplier} is too high"))?;
                inert.hashpower_init = power;
            }
            "no_hashexpand" => {}
            "slab_reassign" => inert.slab_reassign = true,
            "no_slab_reassign" => inert.slab_reassign = false,
            "slab_automove" => {
                inert.slab_automove = value.map_or(1, integer);
                require((0..=2).contains(&inert.slab_automove), "slab_automove must be between 0 and 2")?;
            }
            "no_slab_automove" => inert.slab_automove = 0,
            "slab_automove_ratio" => {
                let ratio = leading_f64(given(value, "Missing slab_automove_ratio argument")?);
                require(ratio > 0.0 && ratio <= 1.0, "slab_automove_ratio must be > 0 and < 1")?;
                inert.slab_automove_ratio = ratio;
            }
            "slab_automove_window" => {
                let window = integer(given(value, "Missing slab_automove_window argument")?);
                require((3..=1800).contains(&window), "slab_automove_window must be > 2 and < 1800")?;
                inert.slab_automove_window = window;
            }
            "slab_automove_freeratio" => {
                inert.slab_automove_freeratio =
                    leading_f64(given(value, "Missing slab_automove_freeratio argument")?);
            }
            "tail_repair_time" => {
                let secs = integer(given(value, "Missing numeric argument for tail_repair_time")?);
                require(secs >= 10, "Cannot set tail_repair_time to less than 10 seconds")?;
                inert.tail_repair_time = secs;
            }
            "hash_algorithm" => {
                let name = given(value, "Missing hash_algorithm argument")?;
                let is_known = ["jenkins", "murmur3", "xxh3"].contains(&name);
                require(is_known, "Unknown hash_algorithm option (jenkins, murmur3, xxh3)")?;
            }
            "lru_crawler" => inert.lru_crawler = true,
            "no_lru_crawler" => inert.lru_crawler = false,
            "lru_crawler_sleep" => {
                let micros = integer(given(value, "Missing lru_crawler_sleep value")?);
                let is_short = (0..=1_000_000).contains(&micros);
                require(is_short, "LRU crawler sleep must be between 0 and 1 second")?;
                inert.lru_crawler_sleep = micros as u32;
            }
            "lru_crawler_tocrawl" => {
                let count = given(value, "Missing lru_crawler_tocrawl value")?.parse();
                require(count.is_ok(), "lru_crawler_tocrawl takes a numeric 32bit value")?;
                inert.lru_crawler_tocrawl = count.unwrap_or(0);
            }
            "lru_maintainer" => (inert.lru_maintainer, inert.lru_segmented) = (true, true),
            "no_lru_maintainer" => (inert.lru_maintainer, inert.lru_segmented) = (false, false),
            "hot_lru_pct" => inert.hot_lru_pct = percentage(name, value)?,
            "warm_lru_pct" => inert.warm_lru_pct = percentage(name, value)?,
            "hot_max_factor" => inert.hot_max_factor = factor(name, value)?,
            "warm_max_factor" => inert.warm_max_factor = factor(name, value)?,
            "temporary_ttl" => {
                inert.temp_lru = true;
                inert.temporary_ttl = integer(given(value, "Missing temporary_ttl argument")?) as u32;
            }
            "no_modern" => {
                if !self.chunk_changed {
                    self.chunk_bytes_max = PAGE_BYTES;
                }
                settings.connections_max_fast = false;
                (inert.slab_reassign, inert.slab_automove) = (false, 0);
                (inert.lru_crawler, inert.lru_maintainer, inert.lru_segmented) = (false, false, false);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks options that depend on each other.
    pub(super) fn check(&mut self, settings: &Settings) -> Result<(), Failure> {
        let (item, chunk) = (settings.item_bytes_max, self.chunk_bytes_max);
        if item > PAGE_BYTES && !self.chunk_changed {
            self.chunk_bytes_max = CHUNK_BYTES_MAX;
        }
        let mistake = match self.chunk_changed {
            true if chunk > item => Some(format!(
                "slab_chunk_max (bytes: {chunk}) cannot be larger than -I (item_size_max {item})"
            )),
            true if !item.is_multiple_of(chunk) => Some(format!(
                "-I (item_size_max: {item}) must be evenly divisible by slab_chunk_max (bytes: {chunk})"
            )),
            true if !PAGE_BYTES.is_multiple_of(chunk) => Some(format!(
                "slab_chunk_max (bytes: {chunk}) must divide evenly into {PAGE_BYTES} (slab_page_size)"
            )),
            _ => None,
        };
        if let Some(mistake) = mistake {
            return wrong(Exit::Usage, mistake);
        }
        let inert = &settings.inert;
        if inert.hot_lru_pct + inert.warm_lru_pct > 80 {
            return wrong(Exit::Usage, "hot_lru_pct + warm_lru_pct cannot be more than 80% combined");
        }
        if inert.temp_lru && !inert.lru_maintainer {
            return wrong(Exit::Usage, "temporary_ttl requires lru_maintainer to be enabled");
        }
        Ok(())
    }
}

fn require(holds: bool, otherwise: &str) -> Result<(), Failure> {
    if holds { Ok(()) } else { wrong(Exit::FlagValue, otherwise) }
}

fn given<'a>(value: Option<&'a str>, otherwise: &str) -> Result<&'a str, Failure> {
    value.map_or_else(|| wrong(Exit::FlagValue, otherwise), Ok)
}

fn unsigned(name: &str, value: Option<&str>) -> Result<usize, Failure> {
    let text = given(value, &format!("Missing {name} argument"))?;
    let number = text.parse::<u32>().map(|number| number as usize);
    number.or_else(|_| wrong(Exit::FlagValue, format!("could not parse argument to {name}")))
}

fn kibibytes(name: &str, value: Option<&str>) -> Result<usize, Failure> {
    /// The maximum number of kibibytes. A larger number is more likely a mistake.
    const KIBIBYTES_MAX: usize = 1 << 20;
    let kibibytes = unsigned(name, value)?;
    require(kibibytes <= KIBIBYTES_MAX, &format!("{name} must be at most {KIBIBYTES_MAX} kilobytes"))?;
    // The buffer is large enough for one line.
    Ok((kibibytes << 10).max(4 << 10))
}

fn percentage(name: &str, value: Option<&str>) -> Result<u32, Failure> {
    let number = integer(given(value, &format!("Missing {name} argument"))?);
    require((1..80).contains(&number), &format!("{name} must be > 1 and < 80"))?;
    Ok(number as u32)
}

fn factor(name: &str, value: Option<&str>) -> Result<f64, Failure> {
    let number = leading_f64(given(value, &format!("Missing {name} argument"))?);
    require(number > 0.0, &format!("{name} must be > 0"))?;
    Ok(number)
}

fn chunk_max(value: Option<&str>) -> Result<usize, Failure> {
    let text = given(value, "Missing slab_chunk_max argument")?;
    let Ok(kibibytes) = text.parse::<i32>() else {
        return wrong(Exit::FlagValue, "could not parse argument to slab_chunk_max");
    };
    require(kibibytes > 0, "slab_chunk_max must be >= 0")?;
    require(kibibytes <= 1 << 10, "slab_chunk_max must be specified in kilobytes.")?;
    Ok((kibibytes as usize) << 10)
}

/// Reads sizes separated by `-`, in rising order and more than a pointer apart.
fn slab_sizes(value: Option<&str>) -> Result<Vec<usize>, Failure> {
    const CHUNK_BYTES_MIN: usize = 48;
    let text = given(value, "Missing slab_sizes argument")?;
    let mut sizes: Vec<usize> = Vec::new();
    for part in text.split('-') {
        let size = part.parse().unwrap_or(0);
        let after = sizes.last().copied().unwrap_or(0);
        if !(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&size) {
            let line = format!("slab size {part} is not within {CHUNK_BYTES_MIN}-{CHUNK_BYTES_MAX}");
            return wrong(Exit::Usage, line);
        }
        if size <= after + 8 && after > 0 {
            let line = format!("slab size {size} cannot be less than or equal to {after} or too close to it");
            return wrong(Exit::Usage, line);
        }
        sizes.push(size);
    }
    require(sizes.len() < 63, "too many slab sizes")?;
    Ok(sizes)
}

/// Returns the number at the start of a string, and the rest of the string.
pub(super) fn leading_number(text: &str) -> Option<(i64, &str)> {
    let text = text.trim_start();
    let digits_from = usize::from(text.starts_with(['-', '+']));
    let end = text[digits_from..].find(|letter: char| !letter.is_ascii_digit());
    let (number, rest) = text.split_at(end.map_or(text.len(), |end| digits_from + end));
    number.parse().ok().map(|number| (number, rest))
}

/// Reads a number as `atoi` does, which is 0 if there is no number.
fn integer(text: &str) -> i32 {
    leading_number(text).map_or(0, |(number, _)| number.clamp(i32::MIN.into(), i32::MAX.into()) as i32)
}

/// Reads a number as `atof` does, in its plain form.
pub(super) fn leading_f64(text: &str) -> f64 {
    let text = text.trim_start();
    let end = text.find(|letter: char| !letter.is_ascii_digit() && !matches!(letter, '.' | '-' | '+'));
    text[..end.unwrap_or(text.len())].parse().unwrap_or(0.0)
}

/// Reads one option. Returns false for a name that memcached does not know either.
fn read_ssl(
    tls: &mut TlsSettings,
    inert: &mut InertSettings,
    name: &str,
    value: Option<&str>,
) -> Result<bool, Failure> {
    let given = || match value {
        Some(text) => Ok(text),
        None => wrong(Exit::FlagValue, format!("Missing {name} argument")),
    };
    let number = || -> Result<i64, Failure> {
        given()?
            .trim()
            .parse()
            .or_else(|_| wrong(Exit::FlagValue, format!("could not parse argument to {name}")))
    };
    let invalid = || wrong(Exit::FlagValue, format!("Invalid {name}. Use help to see valid options."));
    match name {
        "ssl_chain_cert" => tls.chain_file = given()?.into(),
        "ssl_key" => tls.key_file = given()?.into(),
        "ssl_ca_cert" => tls.ca_file = given()?.into(),
        "ssl_keyformat" => {
            tls.key_format = match given()?.trim() {
                "1" | "PEM" => KeyFormat::Pem,
                "2" | "DER" => KeyFormat::Der,
                _ => return wrong(Exit::FlagValue, format!("could not parse argument to {name}")),
            };
        }
        "ssl_verify_mode" => {
            tls.client_certificates = match number()? {
                0 => ClientCertificates::None,
                1 => ClientCertificates::Request,
                // The value 3 requests a certificate once per session; without renegotiation, 2
                // does the same.
                2 | 3 => ClientCertificates::Require,
                _ => return invalid(),
            };
        }
        "ssl_min_version" => {
            tls.min_version = match number()? {
                0 | 1 => {
                    let line = format!(
                        "{name}: TLS 1.0 and 1.1 are not safe and not available; use 2 (TLS 1.2) or 3 (TLS 1.3)"
                    );
                    return wrong(Exit::FlagValue, line);
                }
                2 => MinVersion::Tls12,
                3 => MinVersion::Tls13,
                _ => return invalid(),
            };
        }
        "ssl_session_cache" => tls.session_tickets = true,
        "ssl_wbuf_size" => match u32::try_from(number()?) {
            Ok(kibibytes) => inert.ssl_wbuf_size = (kibibytes as usize).saturating_mul(1 << 10),
            Err(_) => return wrong(Exit::FlagValue, format!("could not parse argument to {name}")),
        },
        "ssl_kernel_tls" => {}
        "ssl_ciphers" => {
            given()?;
            let line = format!(
                "{name}: lists of ciphers in OpenSSL's language are not read; the safe ones are chosen without it, and \
                 cipher_suites in [memcached.tls] of a configuration file names some of them"
            );
            return wrong(Exit::FlagValue, line);
        }
        _ => return Ok(false),
    }
    Ok(true)
}
