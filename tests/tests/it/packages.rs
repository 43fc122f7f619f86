//! Installation: the Debian packages, the images and the units, built from this build's programs
//! and tested by the scripts in `deploy`.

use cached_tests::{outside, program};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The time limit, which includes the download of a clean Debian.
const DEADLINE: Duration = Duration::from_secs(1200);

/// Returns whether the test runs as root, and these programs of these Debian packages are
/// installed; otherwise prints that the test is skipped.
fn possible(test: &str, programs: &[(&str, &str)]) -> bool {
    // SAFETY: the call accesses no memory.
    if unsafe { libc::geteuid() } != 0 {
        outside::skip(test, "only root can make namespaces and file systems");
        return false;
    }
    for (name, package) in programs {
        if outside::find_program(name).is_none() {
            outside::skip(test, &format!("{name} is not installed (Debian package {package})"));
            return false;
        }
    }
    true
}

/// Runs a script of `deploy` and returns its output.
fn deploy(script: &str, arguments: &[&Path]) -> String {
    let mut command = Command::new(program::repository().join("deploy").join(script));
    // These packages are temporary, so the compression is fast.
    let fast =
        [("DPKG_DEB_COMPRESSOR_TYPE", "gzip"), ("DPKG_DEB_COMPRESSOR_LEVEL", "1"), ("GZIP_LEVEL", "1")];
    command.args(arguments).envs(fast);
    let output = outside::run(&mut command, DEADLINE);
    let text = outside::text(&output);
    assert!(output.status.success(), "{script}:\n{text}");
    text
}

fn packages(output: &Path, revision: &str, more: &[&str]) -> Vec<PathBuf> {
    let programs = program::workspace_programs();
    let mut arguments =
        vec![Path::new("--programs"), programs, Path::new("--output"), output, Path::new("--revision")];
    arguments.push(Path::new(revision));
    arguments.extend(more.iter().map(Path::new));
    let text = deploy("package/deb", &arguments);
    text.lines().filter(|line| line.ends_with(".deb")).map(PathBuf::from).collect()
}

const DEB: [(&str, &str); 4] =
    [("dpkg-deb", "dpkg"), ("dpkg-shlibdeps", "dpkg-dev"), ("objcopy", "binutils"), ("lintian", "lintian")];

#[test]
#[ignore = "long: packages, which are built and installed"]
fn packages_are_clean_and_the_same_each_time() {
    let test = "packages_are_clean_and_the_same_each_time";
    if !possible(test, &DEB) {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    let built = packages(&first, "1", &[]);
    assert_eq!(built.len(), 6, "three packages and their symbols: {built:?}");
    for other in packages(&second, "1", &["--without-symbols"]) {
        let one = first.join(other.file_name().expect("a name"));
        assert!(fs::read(&one).ok() == fs::read(&other).ok(), "{} differs when built again", one.display());
    }
    let mut lintian = Command::new("lintian");
    // Symbol packages are not linted, because those that debhelper builds have the same form.
    let linted = built.iter().filter(|path| !path.to_string_lossy().contains("-dbgsym"));
    lintian.args(["--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0"]).args(linted);
    let output = outside::run(&mut lintian, DEADLINE);
    assert!(output.status.success(), "{}", outside::text(&output));
}

/// On a clean Debian with systemd, the test covers installation, hardening, a wrong file, an
/// upgrade under traffic, removal, and purge.
#[test]
#[ignore = "long: packages, which are built and installed"]
fn packages_are_installed_upgraded_and_removed() {
    let test = "packages_are_installed_upgraded_and_removed";
    let more = [("mmdebstrap", "mmdebstrap"), ("systemd-nspawn", "systemd-container")];
    if !possible(test, &DEB) || !possible(test, &more) {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    packages(&old, "1", &["--without-symbols"]);
    packages(&new, "2", &["--without-symbols"]);
    let kept = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("packages");
    let text = deploy("package/try", &[&old, &new, &kept]);
    assert!(text.contains("everything is as it should be"), "{text}");
    print!("{text}");
}

#[test]
#[ignore = "long: packages, which are built and installed"]
fn images_answer_requests() {
    let tools =
        [("skopeo", "skopeo"), ("jq", "jq"), ("ip", "iproute2"), ("dpkg-deb", "dpkg"), ("strip", "binutils")];
    if !possible("images_answer_requests", &tools) {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let programs = program::workspace_programs();
    for variant in ["", "--rados"] {
        let mut arguments = vec![Path::new("--programs"), programs, Path::new("--output"), dir.path()];
        arguments.extend((!variant.is_empty()).then_some(Path::new(variant)));
        let text = deploy("image/build", &arguments);
        let image = text.lines().find(|line| line.ends_with(".oci.tar"));
        let image = image.unwrap_or_else(|| panic!("{text}"));
        let text = deploy("image/try", &[Path::new(image)]);
        assert!(text.contains("everything is as it should be"), "{text}");
    }
}

/// The units, each with its maximum exposure as rated by systemd, from 0 (sealed) to 100 (exposed),
/// in tenths. A `cached` that hands over to its child permits the child to notify the service
/// manager.
const UNITS: [(&str, u32); 2] = [("cached.service", 15), ("synapsed.service", 14)];

#[test]
#[ignore = "long: packages, which are built and installed"]
fn units_are_hardened() {
    if !possible("units_are_hardened", &[("systemd-analyze", "systemd")]) {
        return;
    }
    for (unit, exposure_max) in UNITS {
        let path = program::repository().join("deploy").join(unit);
        let mut command = Command::new("systemd-analyze");
        command.args(["security", "--offline=yes", "--no-pager"]).arg(path);
        let text = outside::text(&outside::run(&mut command, DEADLINE));
        let level =
            text.split(&format!("exposure level for {unit}: ")).nth(1).unwrap_or_else(|| panic!("{text}"));
        let tenths: String = level.chars().take_while(|c| !c.is_whitespace()).filter(|c| *c != '.').collect();
        let tenths: u32 = tenths.parse().unwrap_or_else(|_| panic!("{text}"));
        assert!(tenths <= exposure_max, "{unit} has {tenths} tenths:\n{text}");
    }
}
