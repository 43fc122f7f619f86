//! The syntax of volumes, snapshots, sizes and settings on the command line.

use std::str::FromStr;
use std::sync::Arc;

use blocker::executor::block_on;
use blocker::{WriteMode, WriterId};
use cached_config::{Size, parse_number, suggestion};
use clap::Args;
use serde_json::{Value, json};
use volumes::{Fencing, OpenOptions, Options, Settings, Volume, Volumes};

use crate::command::volume::Context;
use crate::output::{About, Failure};

/// A snapshot: `VOLUME@SNAPSHOT`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SnapshotName {
    pub(super) volume: String,
    pub(super) snapshot: String,
}

impl FromStr for SnapshotName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('@') {
            Some((volume, snapshot)) => {
                Ok(Self { volume: part(volume, "volume")?, snapshot: part(snapshot, "snapshot")? })
            }
            None => Err("expected a snapshot: VOLUME@SNAPSHOT".into()),
        }
    }
}

/// A volume, or a snapshot of it: `VOLUME` or `VOLUME@SNAPSHOT`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Source {
    pub(crate) volume: String,
    pub(crate) snapshot: Option<String>,
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.contains('@') {
            return Ok(Self { volume: part(text, "volume")?, snapshot: None });
        }
        let SnapshotName { volume, snapshot } = text.parse()?;
        Ok(Self { volume, snapshot: Some(snapshot) })
    }
}

impl Source {
    /// Returns the source as it was written.
    pub(super) fn shown(&self) -> String {
        self.snapshot.as_ref().map_or_else(|| self.volume.clone(), |name| format!("{}@{name}", self.volume))
    }
}

/// Parses the name of a volume.
pub(super) fn volume_name(text: &str) -> Result<String, String> {
    if text.contains('@') {
        return Err("expected a volume, not a snapshot".into());
    }
    part(text, "volume")
}

/// Parses the name of a snapshot whose volume is known.
pub(super) fn snapshot_name(text: &str) -> Result<String, String> {
    part(text, "snapshot")
}

fn part(text: &str, what: &str) -> Result<String, String> {
    let is_plain = text.chars().all(|letter| !letter.is_control() && letter != '/' && letter != '@');
    if is_plain && (1..=200).contains(&text.len()) {
        return Ok(text.to_owned());
    }
    Err(format!("the name of a {what} must have 1 to 200 bytes without control characters, \"/\" and \"@\""))
}

/// Formats a number of bytes for people, in the largest unit that keeps it short.
pub(crate) fn shown_size(bytes: u64) -> String {
    let whole = Size(bytes).to_string();
    if bytes < 1024 || whole.len() <= 8 && whole.ends_with('B') {
        return if bytes < 1024 { format!("{bytes} bytes") } else { whole };
    }
    let units = [("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let (name, shift) = units.into_iter().find(|(_, shift)| bytes >> shift > 0).unwrap_or(("KiB", 10));
    format!("{:.1} {name}", bytes as f64 / (1_u64 << shift) as f64)
}

/// A setting of a volume: its name and its value in the server's form. `null` means no value.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Setting {
    key: &'static str,
    value: Value,
}

const KEYS: [&str; 7] = [
    "is_read_only",
    "write",
    "quota_bytes_max",
    "object_bytes",
    "store_requests_per_second_max",
    "store_bytes_per_second_max",
    "store_burst_ms",
];

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
        let unknown = || {
            format!("{key:?} is not a setting{}; expected one of {}", suggestion(key, KEYS), KEYS.join(", "))
        };
        let key = *KEYS.iter().find(|known| **known == key).ok_or_else(unknown)?;
        let wrong = |right: &str| format!("{key} must be {right}, not {value:?}");
        let value = match (key, value) {
            ("is_read_only", _) => json!(value.parse::<bool>().map_err(|_| wrong("true or false"))?),
            (_, "none") if key != "object_bytes" => Value::Null,
            ("write", _) => {
                let mode = value.parse().ok().filter(|mode: &WriteMode| *mode != WriteMode::ReadOnly);
                let right = "back, through, around or none (is_read_only=true refuses changes)";
                json!(mode.ok_or_else(|| wrong(right))?.to_string())
            }
            _ => json!(parse_number(key, value).map_err(|why| format!("{key}: {why}"))?),
        };
        Ok(Self { key, value })
    }
}

impl Setting {
    /// Returns settings in the server's form.
    pub(super) fn values(all: &[Self]) -> Value {
        Value::Object(all.iter().map(|one| (one.key.to_owned(), one.value.clone())).collect())
    }

    /// Checks that a volume with these settings can be filled.
    pub(super) fn check_writable(all: &[Self]) -> Result<(), String> {
        if all.iter().any(|one| one.key == "is_read_only" && one.value == true) {
            return Err(
                "a read-only volume cannot be filled: set is_read_only with `cachectl volume set` afterwards"
                    .into(),
            );
        }
        Ok(())
    }

    /// Returns settings in the library's form.
    pub(super) fn settings(all: &[Self]) -> Settings {
        let mut settings = Settings::default();
        for Self { key, value } in all {
            let number = value.as_u64();
            match *key {
                "is_read_only" => settings.is_read_only = *value == true,
                "write" => settings.write = value.as_str().and_then(|mode| mode.parse().ok()),
                "quota_bytes_max" => settings.quota_bytes_max = number,
                "object_bytes" => settings.object_bytes = number,
                "store_requests_per_second_max" => settings.rates.store_requests_per_second_max = number,
                "store_bytes_per_second_max" => settings.rates.store_bytes_per_second_max = number,
                _ => settings.rates.store_burst_ms = number,
            }
        }
        settings
    }
}

/// The access to volumes directly in the store.
#[derive(Args)]
pub(crate) struct StoreArguments {
    /// The prefix of the names of the volumes' namespaces: `prefix` in [volumes] of the server's
    /// configuration.
    #[arg(long, value_name = "NAME", default_value = "volumes")]
    prefix: String,

    /// Claim each volume with a separate epoch, as a server with writer = "callers" does over a
    /// shared store.
    #[arg(long)]
    claim: bool,
}

/// How a command handles a volume that has another owner.
#[derive(Args)]
pub(crate) struct TakeOver {
    /// Attach the volume even if its owner has not detached it. The owner is fenced off: use this
    /// only if the owner is gone.
    #[arg(long)]
    take_over: bool,
}

impl TakeOver {
    pub(super) fn options(&self) -> OpenOptions {
        OpenOptions { take_over: self.take_over }
    }
}

impl StoreArguments {
    /// Returns the volumes of the store.
    ///
    /// # Errors
    /// Fails if the store cannot hold volumes.
    pub(super) fn volumes(&self, context: &Context<'_>) -> Result<Volumes, Failure> {
        // Each command is an owner with a name of its own, so that it does not take a volume from
        // another command that is still working.
        let host = rustix::system::uname();
        let host: String = host.nodename().to_string_lossy().chars().take(60).collect();
        let owner = format!("cachectl on {host}, {:08x}", WriterId::random().0 as u32);
        let fencing = if self.claim { Fencing::Stamps } else { Fencing::Below };
        let options = Options { owner, fencing, ..Options::new(&self.prefix) };
        Volumes::new(Arc::clone(&context.opened.backend), options).about("")
    }
}

/// Creates a volume and opens it.
///
/// # Errors
/// Returns the failure of either step, with the state of the volume.
pub(super) fn made(
    volumes: &Volumes,
    name: &str,
    size_bytes: u64,
    settings: Settings,
) -> Result<Volume, Failure> {
    block_on(volumes.create(name, size_bytes, settings)).about(name)?;
    block_on(volumes.open(name, OpenOptions::default())).about(name).map_err(|failure| {
        failure.leaves(match block_on(volumes.delete(name)) {
            Ok(()) => format!("nothing is left of {name}"),
            Err(_) => format!("{name} is left empty"),
        })
    })
}

/// Stores the data of a volume that was filled, and detaches it; after a failure, undoes the
/// changes.
///
/// # Errors
/// Returns the failure, with the state of the volume.
pub(super) fn ended(
    volume: &Volume,
    name: &str,
    done: Result<(), Failure>,
    undo: impl FnOnce() -> Result<String, Failure>,
) -> Result<(), Failure> {
    let done = done.and_then(|()| block_on(volume.close()).about(name));
    done.map_err(|failure| match undo() {
        Ok(left) => failure.leaves(left),
        Err(second) => failure.leaves(format!("{name} is left unfinished: {second}")),
    })
}

/// Removes a volume that this command has created. Returns a line about what remains.
///
/// # Errors
/// Fails if the volume cannot be removed.
pub(super) fn removed(volumes: &Volumes, volume: &Volume, name: &str) -> Result<String, Failure> {
    block_on(async {
        // The discard leaves less to be stored at the end. The deletion removes whatever remains.
        let _ = volume.discard(0, volume.size_bytes()).await;
        volume.close().await?;
        volumes.delete(name).await
    })
    .about(name)?;
    Ok(format!("nothing is left of {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_volumes_and_their_snapshots() {
        let snapshot: SnapshotName = "disk 1@monday".parse().unwrap();
        assert_eq!((snapshot.volume.as_str(), snapshot.snapshot.as_str()), ("disk 1", "monday"));
        let source: Source = "disk".parse().unwrap();
        assert_eq!((source.snapshot.as_deref(), source.shown().as_str()), (None, "disk"));
        assert_eq!("disk@m".parse::<Source>().unwrap().shown(), "disk@m");
        for wrong in ["", "disk", "@monday", "disk@", "a@b@c", "a/b@c", "a@\u{1b}"] {
            assert!(wrong.parse::<SnapshotName>().is_err(), "{wrong}");
        }
        assert!(
            "a@".parse::<Source>().is_err() && volume_name("a@b").is_err() && snapshot_name("a@b").is_err()
        );
    }

    #[test]
    fn sizes_are_shown_in_the_largest_unit_that_keeps_them_short() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (20 << 30, "20 GiB"),
            (1536 << 20, "1536 MiB"),
            ((20 << 30) + 4096, "20.0 GiB"),
            (5_000_000, "4.8 MiB"),
            (1025, "1.0 KiB"),
        ] {
            assert_eq!(shown_size(bytes), text);
        }
    }

    #[test]
    fn settings_have_the_names_of_the_server() {
        let all = ["is_read_only=true", "write=back", "quota_bytes_max=40G", "object_bytes=64K"];
        let all: Vec<Setting> = all.iter().map(|text| text.parse().unwrap()).collect();
        let wanted = json!({
            "is_read_only": true, "write": "back", "quota_bytes_max": 40_u64 << 30, "object_bytes": 65536,
        });
        assert_eq!(Setting::values(&all), wanted);
        let none: Vec<Setting> =
            ["write=none", "quota_bytes_max=none"].map(|text| text.parse().unwrap()).to_vec();
        assert_eq!(Setting::values(&none), json!({ "write": null, "quota_bytes_max": null }));
        assert_eq!(Setting::settings(&none), volumes::Settings::default());
        let settings = Setting::settings(&all);
        assert!(settings.is_read_only && settings.write == Some(WriteMode::Back));
        assert_eq!((settings.quota_bytes_max, settings.object_bytes), (Some(40 << 30), Some(65536)));
        let rates =
            ["store_requests_per_second_max=500", "store_bytes_per_second_max=1M", "store_burst_ms=none"];
        let rates: Vec<Setting> = rates.iter().map(|text| text.parse().unwrap()).collect();
        let wanted = json!({
            "store_requests_per_second_max": 500, "store_bytes_per_second_max": 1 << 20, "store_burst_ms": null,
        });
        assert_eq!(Setting::values(&rates), wanted);
        let rates = Setting::settings(&rates).rates;
        assert_eq!(
            (rates.store_requests_per_second_max, rates.store_bytes_per_second_max, rates.store_burst_ms),
            (Some(500), Some(1 << 20), None)
        );
        for (wrong, why) in [
            ("write", "KEY=VALUE"),
            ("store_burst_ms=soon", "store_burst_ms: \"soon\" is not a duration"),
            ("object_bytes=none", "is not a size"),
            ("write=sideways", "through"),
            ("write=read-only", "is_read_only=true"),
            ("is_read_only=1", "true or false"),
            ("colour=1", "store_burst_ms"),
            ("quota=1G", "did you mean quota_bytes_max?"),
            ("object_bytes=big", "\"256 MiB\""),
        ] {
            let error = wrong.parse::<Setting>().unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
