//! Reloading the configuration while `synapsed` runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use blocker::trace::Tracer;
use cached_admin::insight::slow::SlowLog;
use cached_admin::{Tokens, TokensRead};
use cached_config::{ConfigError, HttpTable, LIVE_KEYS, parse_config, raise_descriptor_limit, read_config};
use cached_objects::ReloadObjects;
use cached_process::log::Log;
use cached_process::reload::{LiveSecs, Program, Source};
use parking_lot::Mutex;
use toml::Table;

use crate::config::{Config, in_this_file, key_of_this_file};

/// The parts of the daemon that its configuration can change.
pub(crate) struct Synapsed {
    pub(crate) path: PathBuf,
    pub(crate) log: Log,
    /// The delay of the shutdown, and the time limit for requests in progress.
    pub(crate) drain: (LiveSecs, LiveSecs),
    pub(crate) objects: ReloadObjects,
    /// The keys of the HTTP listener for objects.
    pub(crate) http_keys: Option<object_http::Keys>,
    /// The tokens of the admin listener.
    pub(crate) tokens: Option<Tokens>,
    /// Creates spans if requests are traced.
    pub(crate) tracer: Option<Tracer>,
    /// The log of slow requests to the store.
    pub(crate) slow: Arc<SlowLog>,
    /// The active configuration.
    pub(crate) in_force: Mutex<Config>,
}

/// Returns the source of a configuration parsed from `text`, the contents of the file `path`.
///
/// # Errors
/// Returns an error of one line if `config` was not parsed from this text.
pub(crate) fn source(config: &Config, path: &Path, text: &str) -> Result<Source, String> {
    let file: Table = parse_config(path, text).map_err(|error| error.to_string())?;
    let effective = Table::try_from(config).map_err(|error| error.to_string())?;
    Ok(Source { without_flags: effective.clone(), effective, file })
}

impl Program for Synapsed {
    fn read(&self) -> Result<Source, String> {
        let text = read_config(&self.path).map_err(|error| error.to_string())?;
        let config = Config::parse(&self.path, &text).map_err(|error| error.to_string())?;
        source(&config, &self.path, &text)
    }

    fn file(&self) -> Option<PathBuf> {
        Some(self.path.clone())
    }

    fn is_live(&self, key: &str) -> bool {
        LIVE_KEYS.contains(&key) || key == "insight.slow_request_ms"
    }

    fn apply(&self, table: &Table) -> Result<Vec<String>, String> {
        let line = |error: ConfigError| error.in_file(&self.path).to_string();
        let text = toml::to_string(table).map_err(|error| error.to_string())?;
        let after = Config::parse(&self.path, &text).map_err(|error| error.to_string())?;
        let secrets = after.secrets().map_err(line)?;
        let mut in_force = self.in_force.lock();
        let objects = after.cache().map_err(line)?;
        // Everything that can be refused comes first: the files are read, then the object cache
        // changes, or nothing does.
        let tokens = self.tokens.as_ref().map(Tokens::read_again).transpose()?;
        let http_keys = HttpTable::keys_again(self.http_keys.as_ref())?;
        let files = self.objects.change(objects.as_ref(), Some(&after.synapse), secrets);
        let files = files.map_err(|error| line(in_this_file(error)))?;
        let mut files: Vec<String> = files.into_iter().map(key_of_this_file).collect();
        if tokens.is_some_and(TokensRead::put_in_force) {
            files.push("admin.token_file".into());
        }
        files.extend(http_keys.map(|put_in_force| put_in_force()));
        let descriptors = after.descriptors_max();
        if descriptors > in_force.descriptors_max() {
            let possible = raise_descriptor_limit(descriptors);
            if possible < descriptors {
                tracing::warn!(
                    descriptors = possible,
                    wanted = descriptors,
                    "fewer file descriptors than connections and files may need"
                );
            }
        }
        self.log.set(after.log);
        self.slow.set_threshold(after.insight.slow_threshold());
        if let (Some(tracer), Some(table)) = (&self.tracer, &after.tracing) {
            tracer.set_ratio(table.sample_ratio);
        }
        self.drain.0.set(after.process.delay_secs);
        self.drain.1.set(after.process.timeout_secs);
        *in_force = after;
        Ok(files)
    }

    fn filled_in(&self, table: &Table) -> Table {
        let text = toml::to_string(table).unwrap_or_default();
        let filled_in = Config::parse(&self.path, &text).ok().map(|config| config.effective());
        filled_in.and_then(|text| text.parse().ok()).unwrap_or_else(|| table.clone())
    }
}
