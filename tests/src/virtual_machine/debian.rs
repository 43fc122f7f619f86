//! The boot disk of the guests: a small Debian with the harness's service.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::content::content;
use super::succeeded::succeeded;
use crate::outside::{fetch, find_program};
use crate::program::repository;

/// The time limit for the download of the guest's packages.
const FETCH_DEADLINE: std::time::Duration = std::time::Duration::from_secs(900);
/// Files of packages that the guest does not need.
const LEFT_OUT: [&str; 5] =
    ["./usr/share/doc", "./usr/share/locale", "./usr/share/man", "./var/lib/apt/lists", "./var/cache/apt"];
/// Units that would wait for a login, or for udev, which is not installed.
const MASKED: [&str; 3] = ["getty.target", "console-getty.service", "serial-getty@.service"];
/// The size of the disk.
const DISK_BYTES: u64 = 640 << 20;

/// Creates an image of the disk in a directory.
pub(super) fn image(into: &Path) -> Result<PathBuf, String> {
    let root = into.join("debian");
    fs::create_dir(&root).expect("a folder for Debian");
    let mut unpack = Command::new("tar");
    unpack.arg("-C").arg(&root).args(LEFT_OUT.map(|path| format!("--exclude={path}")));
    succeeded(unpack.arg("-xf").arg(archive()?))?;
    put_fio(&root.join("work/fio"))?;
    let files = root.join("work/files");
    fs::create_dir(&files).expect("a folder for files");
    fs::write(files.join("file0"), content(0)).expect("the first file");
    fs::write(files.join("last"), "00000000").expect("the number of the last file");
    fs::write(root.join("work/work.sh"), include_str!("work.sh")).expect("the service's script");
    let system = root.join("etc/systemd/system");
    fs::write(system.join("work.service"), include_str!("work.service")).expect("the service");
    let wanted = system.join("multi-user.target.wants");
    fs::create_dir_all(&wanted).expect("a folder for links");
    symlink("../work.service", wanted.join("work.service")).expect("the service is enabled");
    for unit in MASKED {
        let _ = fs::remove_file(system.join(unit));
        symlink("/dev/null", system.join(unit)).expect("a unit is masked");
    }
    // On a busy machine an emulated guest can exceed any time limit.
    fs::create_dir_all(root.join("etc/systemd/system.conf.d")).expect("a folder for the manager");
    let patience = "[Manager]\nDefaultTimeoutStartSec=infinity\nDefaultDeviceTimeoutSec=infinity\n";
    fs::write(root.join("etc/systemd/system.conf.d/patience.conf"), patience).expect("the manager's limits");
    let image = into.join("debian.img");
    fs::File::create(&image).and_then(|file| file.set_len(DISK_BYTES)).expect("an image");
    let mut make = Command::new("mkfs.ext4");
    make.args(["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-d"]).arg(&root).arg(&image);
    succeeded(&mut make)?;
    fs::remove_dir_all(&root).expect("the folder of Debian is removed");
    Ok(image)
}

/// Returns the archive of a clean Debian, which the first call creates.
fn archive() -> Result<PathBuf, String> {
    // The tests of the packages use the same archive.
    let folder = repository().join("target/tmp/packages");
    let script = repository().join("deploy/package/clean-debian");
    fetch(Command::new(&script).arg(&folder), FETCH_DEADLINE)?;
    Ok(succeeded(Command::new(&script).arg(&folder))?.trim().into())
}

/// Copies this machine's fio with its libraries, so that the guest needs no packages for it.
fn put_fio(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).expect("a folder for fio");
    let fio = find_program("fio").ok_or("fio is not installed")?;
    let copy = |from: &Path, name: &str| {
        fs::copy(from, folder.join(name)).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    };
    copy(&fio, "fio");
    for library in succeeded(Command::new("ldd").arg(&fio))?.split_whitespace() {
        let path = Path::new(library);
        let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|_| path.is_absolute())
        else {
            continue;
        };
        copy(path, if name.starts_with("ld-linux") { "ld.so" } else { name });
    }
    Ok(())
}
