//! The files with which a guest starts: a kernel of Debian's cloud images, a small initramfs, and
//! the disk.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::debian;
use super::succeeded::succeeded;
use crate::outside::find_program;
use crate::program::repository;
use crate::server::is_root;

/// The kernel modules that the guest loads, because the kernel does not have them built in.
const MODULES: [&str; 6] =
    ["virtio_ring", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio", "virtio_pci", "virtio_blk"];
/// The programs that guests and their disks need, each with its package.
const PROGRAMS: [(&str, &str); 9] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("fio", "fio"),
    ("mkfs.ext4", "e2fsprogs"),
    ("debugfs", "e2fsprogs"),
    ("mmdebstrap", "mmdebstrap"),
    ("nbdcopy", "libnbd-bin"),
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
];
/// The number of attempts to download the kernel's package.
const TRIES: u32 = 4;

/// See the module.
#[derive(Debug)]
pub struct System {
    /// The kernel's image.
    pub(super) kernel: PathBuf,
    /// The initramfs, a compressed or plain archive.
    pub(super) initramfs: PathBuf,
    /// The image of the Debian disk.
    pub(super) disk: PathBuf,
    _directory: tempfile::TempDir,
}

impl System {
    /// Returns the files with which guests start; the packages of the kernel and of Debian are
    /// downloaded unless they are present.
    ///
    /// # Errors
    /// The error names the program or package that this machine lacks.
    ///
    /// # Panics
    /// Panics if files cannot be written.
    pub fn prepare() -> Result<Self, String> {
        if !cfg!(target_arch = "x86_64") {
            return Err("the guest is an x86-64 one".into());
        }
        if !is_root() {
            return Err("Debian's files belong to several users, which only root can make".into());
        }
        for (program, package) in PROGRAMS {
            find_program(program).ok_or_else(|| format!("{program} is not installed ({package})"))?;
        }
        let files = unpacked()?;
        let kernel = found(&files.join("boot"), "vmlinuz-").ok_or("the package has no kernel")?;
        let directory = tempfile::tempdir().expect("a temporary directory");
        let initramfs = initramfs(&files, directory.path())?;
        let disk = debian::image(directory.path())?;
        Ok(Self { kernel, initramfs, disk, _directory: directory })
    }
}

/// Returns the directory with the files of the kernel's package.
fn unpacked() -> Result<PathBuf, String> {
    let folder = repository().join("target/tmp/virtual-machine");
    let files = folder.join("files");
    if files.is_dir() {
        return Ok(files);
    }
    fs::create_dir_all(&folder).expect("a folder for the kernel");
    let mut why = String::new();
    for _ in 0..TRIES {
        // The directory is unique, because another process may be doing the same.
        let attempt = tempfile::tempdir_in(&folder).expect("a temporary directory");
        match download(attempt.path()) {
            Ok(unpacked) if fs::rename(&unpacked, &files).is_ok() || files.is_dir() => return Ok(files),
            Ok(_) => why = "the package cannot be put in its place".into(),
            Err(error) => why = error,
        }
        // The package lists of a new machine may be missing or outdated; without the rights to
        // update them this has no effect.
        let _ = succeeded(Command::new("apt-get").args(["update", "-q"]));
    }
    Err(why)
}

fn download(into: &Path) -> Result<PathBuf, String> {
    let package = newest_package()?;
    let mut fetch = Command::new("apt-get");
    fetch.args(["-o", "APT::Sandbox::User=root", "download", &package]).current_dir(into);
    succeeded(&mut fetch)?;
    let archive = found(into, &package).ok_or("apt-get download left no package")?;
    let files = into.join("files");
    succeeded(Command::new("dpkg-deb").arg("-x").arg(archive).arg(&files))?;
    Ok(files)
}

/// Returns the name of the newest kernel package in this machine's sources.
fn newest_package() -> Result<String, String> {
    let mut search = Command::new("apt-cache");
    search.args(["depends", "--important", "linux-image-cloud-amd64"]);
    let depends = succeeded(&mut search)?;
    let newest = depends.lines().find_map(|line| {
        let package = line.trim().strip_prefix("Depends: ")?;
        package.starts_with("linux-image-").then(|| package.to_owned())
    });
    newest.ok_or_else(|| format!("apt-cache names no kernel:\n{depends}"))
}

/// Creates the archive of the init script, busybox and the kernel modules.
fn initramfs(files: &Path, into: &Path) -> Result<PathBuf, String> {
    let root = into.join("root");
    let put = |from: &Path, to: &str| {
        let to = root.join(to.trim_start_matches('/'));
        fs::create_dir_all(to.parent().expect("a file in a folder")).expect("a folder");
        fs::copy(from, &to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    };
    put(&find_program("busybox").ok_or("busybox is not installed")?, "bin/busybox");
    for module in MODULES {
        let name = format!("{module}.ko");
        let drivers = found_below(&files.join("lib/modules"), &name)
            .ok_or_else(|| format!("the package of the kernel has no {name}"))?;
        put(&drivers, &format!("modules/{name}"));
    }
    let init = root.join("init");
    fs::write(&init, include_str!("init.sh")).expect("the init script");
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).expect("permissions of the init script");
    let archive = into.join("initramfs");
    let mut pack = Command::new("sh");
    pack.args(["-c", "find . | busybox cpio -o -H newc > ../initramfs"]).current_dir(&root);
    succeeded(&mut pack)?;
    Ok(archive)
}

/// Returns the file of a directory whose name begins with a prefix.
fn found(folder: &Path, begin: &str) -> Option<PathBuf> {
    let mut files = fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    files.find(|file| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(begin)))
}

/// Returns the file with this name in a directory or below it.
fn found_below(folder: &Path, name: &str) -> Option<PathBuf> {
    fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path())).find_map(|path| {
        if path.is_dir() {
            return found_below(&path, name);
        }
        path.file_name().is_some_and(|file| file == name).then_some(path)
    })
}
