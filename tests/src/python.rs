//! Python packages for a test, in a separate virtual environment.

use crate::outside;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
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
    let system = outside::find_program("python3").ok_or("there is no python3")?;
    let mut make = Command::new(system);
    make.args(["-m", "venv", "--clear"]).arg(environment);
    let mut fill = Command::new(programs.join("python"));
    fill.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]);
    fill.arg(requirements);
    for step in [&mut make, &mut fill] {
        outside::fetch(step, INSTALL_DEADLINE)
            .map_err(|why| format!("cannot install what {} lists: {why}", requirements.display()))?;
    }
    std::fs::write(&done, wanted).map_err(|error| error.to_string())?;
    Ok(programs)
}
