//! The program that takes over: the file that this process was started from, as it is then.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

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
