//! Python packages for a test, in a separate virtual environment.

use crate::outside;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const INSTALL_DEADLINE: Duration = Duration::from_secs(600);

/// Installs the packages of a requirements file into a virtual environment at `environment`, unless
/// the environment exists. Returns the directory of its programs.
///
/// # Errors
/// Returns the reason why there is no environment: missing Python, or the installer's output.
pub fn install(environment: &Path, requirements: &Path) -> Result<PathBuf, String> {
    // Concurrent tests, also those of other processes, may need the same environment, and all need
    // pip.
    let lock = File::create(environment.with_file_name("python.lock")).map_err(|error| error.to_string())?;
    lock.lock().map_err(|error| error.to_string())?;
    let wanted = std::fs::read(requirements).map_err(|error| error.to_string())?;
    let programs = environment.join("bin");
    // This file is written last, so that an interrupted installation starts again.
    let done = environment.join("installed.txt");
    if std::fs::read(&done).is_ok_and(|installed| installed == wanted) {
        return Ok(programs);
    }
    let mut version = Command::new(place_of_pip(environment).join("bin/pip"));
    if !version.arg("--version").output().is_ok_and(|it| it.status.success()) {
        make(&place_of_pip(environment), &[])?;
    }
    make(environment, &["--without-pip"])?;
    outside::fetch(pip(environment).arg("install").arg("--requirement").arg(requirements), INSTALL_DEADLINE)
        .map_err(|why| format!("cannot install what {} lists: {why}", requirements.display()))?;
    std::fs::write(&done, wanted).map_err(|error| error.to_string())?;
    Ok(programs)
}

/// Returns pip for the environment at `environment`, which [`install`] provides.
#[must_use]
pub fn pip(environment: &Path) -> Command {
    let mut pip = Command::new(place_of_pip(environment).join("bin/pip"));
    pip.arg("--python").arg(environment.join("bin/python"));
    pip.args(["--quiet", "--disable-pip-version-check"]);
    pip
}

/// Returns the environment of pip. All other environments share it, because installing pip takes
/// longer than installing most packages.
fn place_of_pip(environment: &Path) -> PathBuf {
    environment.with_file_name("pip")
}

fn make(environment: &Path, options: &[&str]) -> Result<(), String> {
    let system = outside::find_program("python3").ok_or("there is no python3")?;
    let mut make = Command::new(system);
    make.args(["-m", "venv", "--clear"]).args(options).arg(environment);
    let made = outside::fetch(&mut make, INSTALL_DEADLINE);
    made.map_err(|why| format!("cannot make the environment {}: {why}", environment.display()))
}
