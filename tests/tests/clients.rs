//! Python clients execute the usual requests of applications: the scripts in `clients/`.
//!
//! Their packages are installed once into a virtual environment below the target directory.

use cached_tests::outside;
use cached_tests::server::Server;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

const INSTALL_DEADLINE: Duration = Duration::from_secs(300);
const CLIENT_DEADLINE: Duration = Duration::from_secs(120);

#[test]
fn pymemcache() {
    run_python("pymemcache", "everyday_pymemcache.py");
}

#[test]
fn python_binary_memcached() {
    run_python("python_binary_memcached", "everyday_bmemcached.py");
}

fn run_python(test: &str, script: &str) {
    let python = match python() {
        Ok(python) => python,
        Err(why) => return outside::skip(test, why),
    };
    let server = Server::start("");
    let port = server.port().to_string();
    let mut command = Command::new(python);
    command.arg(folder().join(script)).args(["127.0.0.1", &port]);
    let output = outside::run(&mut command, CLIENT_DEADLINE);
    assert!(output.status.success(), "{script}:\n{}", outside::text(&output));
    print!("{}", outside::text(&output));
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("clients")
}

/// Returns the interpreter of an environment with the clients, or why there is none.
fn python() -> Result<&'static PathBuf, &'static str> {
    static PYTHON: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    PYTHON.get_or_init(install).as_ref().map_err(String::as_str)
}

fn install() -> Result<PathBuf, String> {
    let requirements = folder().join("requirements.txt");
    let wanted = std::fs::read(&requirements).map_err(|err| err.to_string())?;
    let environment = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("python-clients");
    let python = environment.join("bin/python");
    // Written last, so that an interrupted installation is repeated.
    let done = environment.join("installed.txt");
    if std::fs::read(&done).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    let system = outside::find_program("python3").ok_or("there is no python3")?;
    let mut make = Command::new(system);
    make.args(["-m", "venv", "--clear"]).arg(&environment);
    let mut fill = Command::new(&python);
    fill.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"])
        .arg(&requirements);
    for step in [&mut make, &mut fill] {
        let output = outside::run(step, INSTALL_DEADLINE);
        if !output.status.success() {
            return Err(format!("cannot install the clients: {}", outside::text(&output)));
        }
    }
    std::fs::write(&done, wanted).map_err(|err| err.to_string())?;
    Ok(python)
}
