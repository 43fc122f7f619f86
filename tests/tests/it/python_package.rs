//! The Python package `clients/python`: its own tests, against running servers.
//!
//! The packages that its tests need are installed once into a virtual environment below the target
//! directory.

use cached_tests::daemon::{Daemon, write_secret};
use cached_tests::outside::{self, fetch};
use cached_tests::program::repository;
use cached_tests::tls::Certificates;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(300);
const SECRET: &str = "secret of the Python tests";
const OBJECT_BYTES_MAX: u64 = 1 << 20;
/// The beginning of the line with the URL of the listener for objects.
const OBJECTS: &str = "objects over HTTP on ";

/// The test runs without zarr, whose dependencies are large.
#[test]
fn python_package() {
    let environment = match environment("python-package", "requirements.txt") {
        Ok(environment) => environment,
        Err(why) => return outside::skip("python_package", &why),
    };
    let mut pytest = python(&environment);
    pytest.env("PYTHONPATH", package().join("src"));
    pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]);
    pytest.args(["--ignore=tests/test_zarr.py", "--ignore=tests/test_readme.py"]);
    run_with_servers(&mut pytest);
}

/// All tests run, including zarr's own, with the package as it would be published, and with its
/// types.
#[test]
#[ignore = "long: clients, because zarr, numpy and mypy are large"]
fn python_package_whole() {
    let environment = match environment("python-package-whole", "requirements-whole.txt") {
        Ok(environment) => environment,
        Err(why) => return outside::skip("python_package_whole", &why),
    };
    let installed = tempfile::tempdir().expect("a temporary directory");
    let mut pip = cached_tests::python::pip(environment.parent().expect("the environment"));
    pip.current_dir(package()).args(["install", "--no-deps", "--no-build-isolation", "--target"]);
    pip.arg(installed.path()).arg(".");
    fetch(&mut pip, DEADLINE).expect("the package is built and installed");
    let names = ["cached_objects/py.typed", "cached_objects-0.1.0.dist-info/licenses/LICENSE-MIT"];
    for name in names {
        assert!(installed.path().join(name).is_file(), "the package has no {name}");
    }
    let mut types = python(&environment);
    let output = outside::run(types.args(["-m", "mypy", "--cache-dir=/dev/null"]), DEADLINE);
    assert!(output.status.success(), "mypy --strict:\n{}", outside::text(&output));
    let mut pytest = python(&environment);
    pytest.env("PYTHONPATH", installed.path()).args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]);
    run_with_servers(&mut pytest);
}

/// Runs the package's tests, which find the servers in variables.
fn run_with_servers(pytest: &mut Command) {
    let certificates = Certificates::shared();
    let plain = start("");
    let tls = start(&format!(
        "[objects.http.tls]\nchain_file = \"{}\"\nkey_file = \"{}\"\n",
        certificates.path("server.pem").display(),
        certificates.path("server.key").display()
    ));
    let token = std::fs::read_to_string(plain.path("token")).expect("a token");
    pytest
        .env("CACHED_TEST_HTTP", plain.announced(OBJECTS))
        .env("CACHED_TEST_UNIX", format!("unix:{}", plain.path("http").display()))
        .env("CACHED_TEST_TLS", tls.announced(OBJECTS))
        .env("CACHED_TEST_CA", certificates.path("ca.pem"))
        .env("CACHED_TEST_ADMIN", format!("http://{}", plain.admin))
        .env("CACHED_TEST_TOKEN", token.trim())
        .env("CACHED_TEST_SECRET", SECRET)
        .env("CACHED_TEST_OBJECT_BYTES_MAX", OBJECT_BYTES_MAX.to_string());
    let output = outside::run(pytest, DEADLINE);
    assert!(output.status.success(), "pytest:\n{}", outside::text(&output));
    print!("{}", outside::text(&output));
}

/// Starts a server with volumes and with the keys `app`, which has every right, and `reader`.
fn start(tls: &str) -> Daemon {
    Daemon::start("cached", |place| {
        let keys = Path::new(place).join("keys.toml");
        let text = format!(
            "[[keys]]\naccess_key = \"app\"\nsecret_key = \"{SECRET}\"\nread = [\"*\"]\nwrite = [\"*\"]\n\
             [[keys]]\naccess_key = \"reader\"\nsecret_key = \"{SECRET}\"\nread = [\"*\"]\n"
        );
        write_secret(&keys, &text);
        format!(
            "[objects]\nmemory_bytes_max = \"16 MiB\"\nobject_bytes_max = {OBJECT_BYTES_MAX}\n\
             [objects.backend]\nkind = \"file\"\ncreate = true\npath = \"{place}/store\"\n[volumes]\n\
             [objects.http]\nlisten = [\"127.0.0.1:0\", \"unix:{place}/http\"]\nkeys_file = \"{}\"\n{tls}",
            keys.display()
        )
    })
}

fn package() -> PathBuf {
    repository().join("clients/python")
}

fn environment(name: &str, requirements: &str) -> Result<PathBuf, String> {
    let environment = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    cached_tests::python::install(&environment, &package().join("tests").join(requirements))
}

/// Returns the environment's interpreter, for use in the package's directory, which stays
/// unchanged.
fn python(environment: &Path) -> Command {
    let mut command = Command::new(environment.join("python"));
    command.current_dir(package()).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}
