//! Python packages for a test, in a separate virtual environment.

use crate::outside;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

const INSTALL_DEADLINE: Duration = Duration::from_secs(600);

/// Installs the packages of a requirements file into a virtual environment at `environment`, unless
/// it exists. Returns the directory of its programs.
///
/// # Errors
/// The reason why there is no environment: missing Python, or the installer's output.
pub fn install(environment: &Path, requirements: &Path) -> Result<PathBuf, String> {
    // Concurrent tests may need the same environment.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let wanted = std::fs::read(requirements).map_err(|error| error.to_string())?;
    let programs = environment.join("bin");
    // Written last, so that an interrupted installation is repeated.
    let done = environment.join("installed.txt");
    if std::fs::read(&done).is_ok_and(|installed| installed == wanted) {
        return Ok(programs);
    }
    make(environment, &["--without-pip"])?;
    outside::fetch(pip(environment)?.arg("install").arg("--requirement").arg(requirements), INSTALL_DEADLINE)
        .map_err(|why| format!("cannot install what {} lists: {why}", requirements.display()))?;
    std::fs::write(&done, wanted).map_err(|error| error.to_string())?;
    Ok(programs)
}

/// Returns pip, which installs into the environment at `environment`.
///
/// # Errors
/// The reason why there is no pip.
pub fn pip(environment: &Path) -> Result<Command, String> {
    // One for all environments, because to install pip takes longer than most packages.
    static PIP: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let own = PIP.get_or_init(|| {
        let own = environment.with_file_name("pip");
        let pip = own.join("bin/pip");
        let answers = || Command::new(&pip).arg("--version").output().is_ok_and(|it| it.status.success());
        if !answers() {
            make(&own, &[])?;
        }
        Ok(pip)
    });
    let mut pip = Command::new(own.as_ref().map_err(Clone::clone)?);
    pip.arg("--python").arg(environment.join("bin/python"));
    pip.args(["--quiet", "--disable-pip-version-check"]);
    Ok(pip)
}

fn make(environment: &Path, options: &[&str]) -> Result<(), String> {
    let system = outside::find_program("python3").ok_or("there is no python3")?;
    let mut make = Command::new(system);
    make.args(["-m", "venv", "--clear"]).args(options).arg(environment);
    let made = outside::fetch(&mut make, INSTALL_DEADLINE);
    made.map_err(|why| format!("cannot make the environment {}: {why}", environment.display()))
}
