//! The server binary under test.
//!
//! `CACHED_TEST_SERVER` names one; without it the workspace's own `cached` is built once per test process,
//! with the profile and target directory of this test; cargo itself reports its path. `CACHED_TEST_PROGRAMS` names
//! a directory with all of the workspace's programs, for the tests that need several.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The server whose behaviour is expected: replies that differ on purpose depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// The server of this workspace.
    Cached,
    /// memcached itself: `CACHED_TEST_SERVER` names a file called `memcached…`.
    Memcached,
}

/// A server binary and its flavour.
#[derive(Clone, Debug)]
pub struct Program {
    /// The file to run.
    pub path: PathBuf,
    /// The flavour, which decides on the expected replies.
    pub flavour: Flavour,
}

impl Program {
    /// Returns the server at a path; its file name decides on the flavour.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let is_memcached =
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("memcached"));
        let flavour = if is_memcached { Flavour::Memcached } else { Flavour::Cached };
        Self { path, flavour }
    }

    /// Returns the server under test; the first call may build it.
    ///
    /// # Panics
    /// If it does not build; it is tried once.
    pub fn under_test() -> &'static Self {
        static PROGRAM: OnceLock<Result<Program, String>> = OnceLock::new();
        let program = PROGRAM.get_or_init(|| match std::env::var_os("CACHED_TEST_SERVER") {
            Some(path) if !path.is_empty() => Ok(Self::at(PathBuf::from(path))),
            _ => build("cached-server", "cached").map(|path| Self { path, flavour: Flavour::Cached }),
        });
        program.as_ref().unwrap_or_else(|problem| panic!("{problem}"))
    }
}

/// Returns the repository's root.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the repository")
}

/// Returns the directory with `cached`, `synapsed` and `cachectl`: `CACHED_TEST_PROGRAMS`, or where the first call
/// builds this workspace's.
///
/// # Panics
/// If one of them does not build; it is tried once.
pub fn workspace_programs() -> &'static Path {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        if let Some(folder) = std::env::var_os("CACHED_TEST_PROGRAMS") {
            return Ok(PathBuf::from(folder));
        }
        let packages =
            [("cached-server", "cached"), ("cached-synapsed", "synapsed"), ("cachectl", "cachectl")];
        let mut folder = PathBuf::new();
        for (package, program) in packages {
            folder = build(package, program)?.parent().map(Path::to_path_buf).unwrap_or_default();
        }
        Ok(folder)
    });
    folder.as_deref().unwrap_or_else(|problem| panic!("{problem}"))
}

/// Builds a program and returns its path, or cargo's output if that fails.
fn build(package: &str, program: &str) -> Result<PathBuf, String> {
    let (target_dir, profile) = this_build();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(repository())
        .args(["build", "--package", package, "--bin", program, "--message-format", "json"])
        .args(["--profile", &profile, "--target-dir"])
        .arg(target_dir);
    // Variables that `cargo test` sets for this package would make the inner cargo see a changed environment
    // and rebuild crates that read them.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_")
            || text.starts_with("CARGO_MANIFEST")
            || text.starts_with("CARGO_BIN")
        {
            cargo.env_remove(&name);
        }
    }
    let output = cargo.output().expect("cargo runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let path = stdout
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == program)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from));
    match path {
        Some(path) if output.status.success() => Ok(path),
        _ => Err(format!("`{program}` does not build:\n{}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// Returns the target directory and profile of the running test or program:
/// `<target>/[<triple>/]<profile>/[deps/]<name>`.
fn this_build() -> (PathBuf, String) {
    let program = std::env::current_exe().expect("a path of the running program");
    let folder = program.parent().expect("a program lies in a folder");
    let is_test = folder.file_name().is_some_and(|name| name == "deps");
    let profile_dir = if is_test { folder.parent().expect("deps lies in a folder") } else { folder };
    let target_dir = profile_dir
        .ancestors()
        .skip(1)
        .find(|dir| dir.join("CACHEDIR.TAG").exists())
        .or_else(|| profile_dir.parent())
        .expect("a profile lies in a target directory");
    let profile = match profile_dir.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(other) => other,
    };
    (target_dir.to_path_buf(), profile.to_owned())
}
