//! A new process of the program takes over from the running one: sockets, memory file, connections.
//!
//! ```text
//!  old process                                     new process: a child of the old one
//!  SIGUSR2: starts the program at its own path ──► reads its configuration
//!  offers its sockets ───────────────────────────► opens those that are missing
//!                     ◄─────────────────────────── Prepared
//!  stores what is dirty, releases the store
//!  StoreFree ────────────────────────────────────► opens journal and store, begins their recovery
//!                     ◄─────────────────────────── StoreOpen
//!  stops between two requests
//!  clock, memory file, connections ──────────────► rebuilds the index, starts its threads
//!                     ◄─────────────────────────── Ready
//!  Go ───────────────────────────────────────────► has the memory, and serves, objects too
//!                     ◄─────────────────────────── Serving
//!  ends                                            writes the pid file; is the main process of the unit
//! ```
//! Before `Go` the old process can continue at any moment, with the memory as it was: it does so if the new one ends,
//! sends an unexpected message, or is late; it ends the new one first, and waits until it is gone. From `Go` on the
//! new process has the memory; if it ends before it serves, the old one ends with an error, and the next start finds
//! the items in the memory file.
//!
//! A store of objects, its claims and its journal can be open in one process only. So the old one releases them before
//! the new one opens them (`objects/thread.rs`), and opens them again if the new one fails: before `Go` that one
//! serves no object, so it has acknowledged nothing that could be lost with it. What can be checked without the store
//! is checked before `Prepared`. Requests for items are served all that time; those for objects wait from the moment
//! at which the old process's listener ends: the sockets stay open, and clients wait in their queues.
//!
//! | module | content |
//! |---|---|
//! | `message`, `channel` | the messages between the processes, and the socket that carries them |
//! | `give`, `take` | the old process; the new one |

pub(crate) mod channel;
pub(crate) mod give;
pub(crate) mod message;
mod take;

pub(crate) use take::{Offered, Taken, Taking};
pub use take::{TakeOver, TakeOverError};

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set for a new process: its standard input is the socket.
pub(crate) const VARIABLE: &str = "CACHED_HAND_OVER";

/// The program and the arguments of this process.
#[derive(Debug, Clone)]
pub struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// Returns the program that `arguments` name, the first of them, as a shell would find it. To be called before
    /// the working directory changes.
    #[must_use]
    pub fn of_this_process(arguments: &[OsString]) -> Program {
        let name = arguments.first().map_or(OsStr::new(""), |name| name);
        // The path as it was given, not what it leads to: an upgrade may change a link.
        let path = found(name).or_else(|| env::current_exe().ok()).unwrap_or_else(|| name.into());
        Program { path, arguments: arguments.to_vec() }
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a command that starts it with the same arguments.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        if let Some((name, rest)) = self.arguments.split_first() {
            command.arg0(name).args(rest);
        }
        command
    }
}

/// Returns the absolute path that a command's name stands for.
fn found(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return std::path::absolute(name).ok();
    }
    let is_program = |path: &PathBuf| !name.is_empty() && path.is_file();
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(name)).find(is_program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_as_a_shell_finds_it() {
        let path = |name: &str| Program::of_this_process(&[name.into(), "-v".into()]).path().to_owned();
        assert_eq!(path("/no/such/cached"), Path::new("/no/such/cached"), "as it was given");
        assert_eq!(path("bin/cached"), env::current_dir().expect("a directory").join("bin/cached"));
        assert!(path("sh").is_absolute() && path("sh").ends_with("sh"));
        assert_eq!(path("no-such-program-anywhere"), env::current_exe().expect("a path"));
    }
}
