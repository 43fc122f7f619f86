//! `cache`: a running server's object cache in and out of the path of requests, by its admin listener.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::until_done::until_done;
use crate::admin::{Admin, AdminArguments};
use crate::exit::Failure;
use crate::output::Output;

#[derive(Args)]
pub(crate) struct Cache {
    #[command(subcommand)]
    command: CacheCommand,
}

#[derive(Subcommand)]
enum CacheCommand {
    /// Show whether requests go to the cache (attached), to the store (detached), or on the way from one to the other.
    Show,
    /// Take the cache out of the path of requests: everything is stored, then requests go to the store.
    ///
    /// Requests go on meanwhile, and none fails for it. If --timeout passes before, the exit code is not 0, and it goes on in
    /// the background: while the store is away, the cache answers as before. `cache attach` undoes it at any time. It holds
    /// until the server restarts; a server with objects.attached = false starts detached.
    Detach,
    /// Put the cache back into the path of requests. It begins empty, with the write modes that are set.
    Attach,
}

impl Cache {
    pub(crate) fn run(
        &self,
        arguments: &AdminArguments,
        timeout: Option<Duration>,
        output: &Output,
    ) -> Result<(), Failure> {
        // One request waits for 20 seconds at most; `timeout` is for all of them together.
        let admin = Admin::new(arguments, timeout)?;
        let answer = match &self.command {
            CacheCommand::Show => admin.get("/cache.json")?,
            CacheCommand::Detach => until_done(&admin, "/cache/detach", &json!({}), timeout)?,
            CacheCommand::Attach => until_done(&admin, "/cache/attach", &json!({}), timeout)?,
        };
        let lasts = if matches!(self.command, CacheCommand::Detach) { LASTS } else { "" };
        output.write(format!("{}{lasts}", shown(&answer)), &answer)
    }
}

/// What the line does not show: the server keeps no record of a detachment.
const LASTS: &str =
    "\nuntil the server restarts; objects.attached = false in its configuration holds beyond that";

fn shown(of: &Value) -> String {
    let state = match of["state"].as_str().unwrap_or_default() {
        "attached" => "attached: requests go to the cache",
        "storing" => "being detached: what is dirty is stored, requests go to the cache as before",
        "transit" => "being detached: changes go to the store, reads to the cache",
        "detached" => "detached: requests go to the store",
        other => other,
    };
    let why = of["why"].as_str().map_or_else(String::new, |why| format!("; {why}"));
    format!("{state}; {} bytes cached, {} dirty{why}", of["cached_bytes"], of["dirty_bytes"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_shown_in_words() {
        let of = json!({"state": "storing", "why": "the store is away", "cached_bytes": 8192, "dirty_bytes": 4096});
        let wanted = "being detached: what is dirty is stored, requests go to the cache as before; 8192 bytes cached, 4096 \
                      dirty; the store is away";
        assert_eq!(shown(&of), wanted);
    }
}
