//! Python clients execute typical requests of applications: the scripts in `clients/`.
//!
//! Their packages are installed once into a virtual environment below the target directory.

use cached_tests::outside;
use cached_tests::program::{Flavour, Program};
use cached_tests::server::{Server, Start};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

const CLIENT_DEADLINE: Duration = Duration::from_secs(300);

#[test]
fn pymemcache() {
    run_python("pymemcache", "everyday_pymemcache.py", &Server::start(""), &[]);
}

/// Clients with auto-discovery find this server, at the address through which they have reached it.
#[test]
fn clients_with_auto_discovery() {
    if Program::under_test().flavour == Flavour::Cached {
        let server = Server::start("-o cluster_discovery");
        run_python("clients_with_auto_discovery", "everyday_elasticache.py", &server, &[]);
    }
}

#[test]
fn python_binary_memcached() {
    run_python("python_binary_memcached", "everyday_bmemcached.py", &Server::start(""), &[]);
}

#[test]
fn python_binary_memcached_with_a_password() {
    if Program::under_test().flavour != Flavour::Cached {
        return;
    }
    let users = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(users.path(), "app:secret word\n").expect("a file");
    let server = Start::new().args("-S").variable("MEMCACHED_SASL_PWDB", users.path()).start();
    let test = "python_binary_memcached_with_a_password";
    run_python(test, "everyday_bmemcached.py", &server, &["app", "secret word"]);
}

fn run_python(test: &str, script: &str, server: &Server, more: &[&str]) {
    let python = match python() {
        Ok(python) => python,
        Err(why) => return outside::skip(test, why),
    };
    let port = server.port().to_string();
    let mut command = Command::new(python);
    command.arg(folder().join(script)).args(["127.0.0.1", &port]).args(more);
    let output = outside::run(&mut command, CLIENT_DEADLINE);
    assert!(output.status.success(), "{script}:\n{}", outside::text(&output));
    print!("{}", outside::text(&output));
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("clients")
}

/// Returns the interpreter of an environment with the clients, or the reason why there is none.
fn python() -> Result<&'static PathBuf, &'static str> {
    static PYTHON: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    PYTHON.get_or_init(install).as_ref().map_err(String::as_str)
}

fn install() -> Result<PathBuf, String> {
    let environment = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-clients");
    Ok(cached_tests::python::install(&environment, &folder().join("requirements.txt"))?.join("python"))
}
