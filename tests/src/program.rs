//! The server binary under test.
//!
//! `CACHED_TEST_SERVER` names a server; `CACHED_TEST_PROGRAMS` names a directory with all of the
//! workspace's programs. Without these variables each test process lets cargo build the programs
//! once, with its own profile and target directory; after `cargo test --workspace` they are already
//! built.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The expected behaviour, on which intended differences between replies depend.
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
    /// The flavour, which determines the expected replies.
    pub flavour: Flavour,
}

impl Program {
    /// Returns the server at a path; the file name determines its flavour.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let is_memcached =
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("memcached"));
        let flavour = if is_memcached { Flavour::Memcached } else { Flavour::Cached };
        Self { path, flavour }
    }

    /// Returns whether this is the program that makes an entry of a ring of a server: `src/bin/entry`.
    pub fn is_entry(&self) -> bool {
        self.path.file_name().is_some_and(|name| name == "entry")
    }

    /// Returns the server under test; the first call may build it.
    ///
    /// # Panics
    /// Panics if the build fails, which is attempted once.
    pub fn under_test() -> &'static Self {
        static PROGRAM: OnceLock<Program> = OnceLock::new();
        PROGRAM.get_or_init(|| match std::env::var_os("CACHED_TEST_SERVER") {
            Some(path) if !path.is_empty() => Self::at(PathBuf::from(path)),
            _ => Self { path: workspace_programs().join("cached"), flavour: Flavour::Cached },
        })
    }
}

/// Returns the repository's root.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the repository")
}

/// Returns the directory with `cached`, `synapsed` and `cachectl`: `CACHED_TEST_PROGRAMS`, or the
/// directory in which the first call builds this workspace's programs.
///
/// # Panics
/// Panics if the build fails, which is attempted once.
pub fn workspace_programs() -> &'static Path {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| match std::env::var_os("CACHED_TEST_PROGRAMS") {
        Some(folder) if !folder.is_empty() => Ok(PathBuf::from(folder)),
        _ => build(),
    });
    folder.as_deref().unwrap_or_else(|problem| panic!("{problem}"))
}

/// Builds all programs of the workspace and returns their directory, or cargo's output if the build
/// fails.
///
/// The features are those of `cargo test --workspace`, so that its build is reused. Naming the
/// examples makes cargo include the features that dev-dependencies request.
fn build() -> Result<PathBuf, String> {
    let build = this_build();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(repository())
        .args(["build", "--workspace", "--bins", "--examples", "--profile", &build.profile, "--target-dir"])
        .arg(&build.target);
    // `cargo test` sets variables for this package. Without this, the inner cargo would rebuild
    // crates that read them.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST", "CARGO_BIN", "RUSTC_BOOTSTRAP"]
            .iter()
            .any(|begin| text.starts_with(begin))
        {
            cargo.env_remove(&name);
        }
    }
    let output = cargo.output().expect("cargo runs");
    match output.status.success() {
        true => Ok(build.programs),
        false => Err(format!("the programs do not build:\n{}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// The build of the running test or program.
struct Build {
    target: PathBuf,
    profile: String,
    programs: PathBuf,
}

/// Derives the build from the program's path, `<target>/[<triple>/]<profile>/[deps/]<name>`.
fn this_build() -> Build {
    let program = std::env::current_exe().expect("a path of the running program");
    let folder = program.parent().expect("a program lies in a folder");
    let is_test = folder.file_name().is_some_and(|name| name == "deps");
    let programs = if is_test { folder.parent().expect("deps lies in a folder") } else { folder };
    let target = programs
        .ancestors()
        .skip(1)
        .find(|dir| dir.join("CACHEDIR.TAG").exists())
        .or_else(|| programs.parent())
        .expect("a profile lies in a target directory");
    let profile = match programs.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(other) => other,
    };
    Build { target: target.to_path_buf(), profile: profile.to_owned(), programs: programs.to_path_buf() }
}
