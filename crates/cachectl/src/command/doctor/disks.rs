//! Checks of the directories of the store and the journal, and of their file systems.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Check;
use super::host::Process;
use super::settings::Settings;
use crate::command::volume::shown_size;

/// A directory of the store or the journal, and the state of its file system.
struct Directory<'a> {
    /// The check's name: `store` or `journal`.
    name: &'static str,
    path: &'a Path,
    /// The directory's permissions, owner and group.
    mode: u32,
    owner: u64,
    group: u64,
    /// The file system's type, and the options of the mount and of the file system.
    kind: String,
    options: Vec<String>,
    free_bytes: u64,
    bytes: u64,
    free_files: u64,
    files: u64,
    /// The space that the part will still allocate; `None` if nothing limits it.
    needed_bytes: Option<u64>,
}

/// Checks the directories that the configuration names.
pub(super) fn all(settings: &Settings, process: Option<&Process>) -> Vec<Check> {
    let in_line = |key: &str| settings.text(key).and_then(|text| text.strip_prefix("file:"));
    let table = |key: &str| settings.text(key);
    let is_file = |kind: &str| settings.text(kind) == Some("file");
    let mut places = Vec::new();
    for backend in ["objects.backend", "backend"] {
        let path = table(&format!("{backend}.path")).filter(|_| is_file(&format!("{backend}.kind")));
        places.extend(path.or_else(|| in_line(backend)).map(|path| ("store", path, 0)));
    }
    let limit = settings.number("objects.journal.limit_bytes").unwrap_or(0);
    places.extend(table("objects.journal.directory").map(|path| ("journal", path, limit)));
    let own = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounts = process.map(|process| &*process.mounts).filter(|mounts| !mounts.is_empty()).unwrap_or(&own);
    let mut checks = Vec::new();
    for (name, path, limit) in places {
        let path = settings.path(path);
        let shown = path.display();
        match Directory::read(name, &path, limit, mounts) {
            Ok(directory) => {
                checks.extend(directory.check(process.map(|process| (process.user(), process.groups()))));
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                let line =
                    format!("{shown}: not checked: {error}; run doctor as root or as the server's user");
                checks.push(Check::warning(name, line));
            }
            Err(error) => {
                checks.push(Check::problem(name, format!("{shown}: {error}: create it, or mount its disk")));
            }
        }
    }
    checks
}

impl<'a> Directory<'a> {
    /// Reads the state of a directory; `limit` is the total space that the part allocates there, or 0
    /// if nothing limits it.
    fn read(name: &'static str, path: &'a Path, limit: u64, mounts: &str) -> std::io::Result<Self> {
        let metadata = std::fs::metadata(path)?;
        let space = rustix::fs::statvfs(path)?;
        let (kind, options) = mount_of(&std::fs::canonicalize(path)?, mounts);
        let used = match limit {
            0 => 0,
            _ => std::fs::read_dir(path)?
                .flatten()
                .filter_map(|entry| entry.metadata().ok())
                .map(|file| file.blocks() * 512)
                .sum(),
        };
        Ok(Self {
            name,
            path,
            mode: metadata.mode() & 0o777,
            owner: metadata.uid().into(),
            group: metadata.gid().into(),
            kind,
            options,
            free_bytes: space.f_bavail.saturating_mul(space.f_frsize),
            bytes: space.f_blocks.saturating_mul(space.f_frsize),
            free_files: space.f_favail,
            files: space.f_files,
            needed_bytes: (limit > 0).then(|| limit.saturating_sub(used)),
        })
    }

    /// Checks the directory; `user` are the user and groups of the server's process, if it runs.
    /// Returns one line if all is well.
    fn check(&self, user: Option<(Option<u64>, Vec<u64>)>) -> Vec<Check> {
        let (name, path) = (self.name, self.path.display());
        let mut checks = Vec::new();
        let has = |option: &str| self.options.iter().any(|found| found == option);
        if has("ro") {
            let line = format!(
                "{path} is mounted read-only: mount -o remount,rw, or ReadWritePaths={path} in the unit"
            );
            checks.push(Check::problem(name, line));
        }
        if !self.is_writable(user) {
            let line =
                format!("the server cannot write to {path} (mode {:03o}): chown or chmod it", self.mode);
            checks.push(Check::problem(name, line));
        }
        match &*self.kind {
            "tmpfs" | "ramfs" => {
                let line = format!(
                    "{path} is in memory ({}): nothing there survives the host; use a disk",
                    self.kind
                );
                checks.push(Check::problem(name, line));
            }
            "nfs" | "nfs4" | "cifs" | "smb3" | "9p" | "fuse.sshfs" => {
                let line = format!(
                    "{path} is on a network file system ({}), which may lose synced data: use a local disk",
                    self.kind
                );
                checks.push(Check::warning(name, line));
            }
            _ => {}
        }
        if let Some(option) = ["nobarrier", "barrier=0"].into_iter().find(|option| has(option)) {
            let line = format!(
                "{path} is mounted with {option}: a loss of power loses synced data; remove the option"
            );
            checks.push(Check::problem(name, line));
        }
        let free = shown_size(self.free_bytes);
        match self.needed_bytes {
            Some(needed) if self.free_bytes < needed => {
                let needed = shown_size(needed);
                let line = format!(
                    "{path} has {free} free, and {needed} will be allocated: free space or lower limit_bytes"
                );
                checks.push(Check::problem(name, line));
            }
            // A disk that only the journal uses may be as large as the journal.
            Some(_) => {}
            None if self.free_bytes < self.bytes / 100 => {
                checks.push(Check::problem(name, format!("{path} is full, {free} are free: free space now")));
            }
            None if self.free_bytes < self.bytes / 10 => {
                let line = format!("{path} has only {free} free, less than a tenth: free space");
                checks.push(Check::warning(name, line));
            }
            None => {}
        }
        // Some file systems have no fixed number of files.
        if self.files > 0 && self.free_files < self.files / 100 {
            let line = format!(
                "{path} can have {} more files: remove files, or use a larger file system",
                self.free_files
            );
            checks.push(Check::problem(name, line));
        }
        if checks.is_empty() {
            checks.push(Check::ok(name, format!("{path} is on {}, {free} are free", self.kind)));
        }
        checks
    }

    fn is_writable(&self, user: Option<(Option<u64>, Vec<u64>)>) -> bool {
        match user {
            // The kernel ignores the mode for root, but a directory that no user may write to is
            // probably a mistake.
            _ if self.mode & 0o222 == 0 => false,
            Some((Some(user), _)) if user == self.owner => self.mode & 0o200 != 0,
            Some((Some(user), groups)) if user != 0 => {
                self.mode & if groups.contains(&self.group) { 0o020 } else { 0o002 } != 0
            }
            _ => true,
        }
    }
}

/// Returns the type of the file system that contains `path`, and the options of the mount and of
/// the file system, from the lines of `mountinfo`.
fn mount_of(path: &Path, mounts: &str) -> (String, Vec<String>) {
    let parse = |line: &str| {
        let (mount, system) = line.split_once(" - ")?;
        let mount: Vec<&str> = mount.split(' ').collect();
        let system: Vec<&str> = system.split(' ').collect();
        let point = unescaped(mount.get(4)?);
        if !path.starts_with(&point) {
            return None;
        }
        let options = [*mount.get(5)?, system.get(2).copied().unwrap_or_default()];
        let options = options.iter().flat_map(|options| options.split(',')).map(str::to_owned).collect();
        Some((point.len(), (system.first()?.to_string(), options)))
    };
    // Of several mounts on one directory, the last one is visible.
    let found = mounts.lines().filter_map(parse).max_by_key(|(length, _)| *length);
    found.map_or_else(|| ("an unknown file system".to_owned(), Vec::new()), |(_, found)| found)
}

/// Returns a path in which `mountinfo` has replaced blanks and backslashes by octal numbers.
fn unescaped(path: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(path.to_owned(), |path, (octal, letter)| path.replace(octal, letter))
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    const GIB: u64 = 1 << 30;

    fn directory() -> Directory<'static> {
        Directory {
            name: "store",
            path: Path::new("/s"),
            mode: 0o700,
            owner: 7,
            group: 8,
            kind: "ext4".into(),
            options: vec!["rw".into(), "relatime".into()],
            free_bytes: 50 * GIB,
            bytes: 100 * GIB,
            free_files: 1000,
            files: 1000,
            needed_bytes: None,
        }
    }

    #[test]
    fn what_is_wrong_with_a_directory_is_named() {
        let with = |change: &dyn Fn(&mut Directory<'_>)| {
            let mut directory = directory();
            change(&mut directory);
            directory.check(Some((Some(7), vec![8])))
        };
        for (checks, level, words) in [
            (with(&|_| {}), Level::Ok, "/s is on ext4, 50 GiB are free"),
            (with(&|of| of.options = vec!["ro".into()]), Level::Problem, "mounted read-only"),
            (with(&|of| of.mode = 0o555), Level::Problem, "cannot write to /s (mode 555)"),
            (with(&|of| of.owner = 9), Level::Problem, "cannot write to /s (mode 700)"),
            (with(&|of| (of.owner, of.mode) = (9, 0o770)), Level::Ok, "ext4"),
            (with(&|of| of.kind = "tmpfs".into()), Level::Problem, "use a disk"),
            (with(&|of| of.kind = "nfs4".into()), Level::Warning, "use a local disk"),
            (with(&|of| of.options = vec!["barrier=0".into()]), Level::Problem, "barrier=0"),
            (with(&|of| of.needed_bytes = Some(51 * GIB)), Level::Problem, "51 GiB will be allocated"),
            (with(&|of| (of.needed_bytes, of.free_bytes) = (Some(0), 0)), Level::Ok, "ext4"),
            (with(&|of| of.free_bytes = 5 * GIB), Level::Warning, "only 5 GiB free"),
            (with(&|of| of.free_bytes = 0), Level::Problem, "full"),
            (with(&|of| of.free_files = 3), Level::Problem, "3 more files"),
        ] {
            assert_eq!((checks.len(), checks[0].level), (1, level), "{checks:?}");
            assert!(checks[0].line.contains(words), "{checks:?}");
        }
        // Root may write to the directories of other users; without a process, no user is compared.
        assert!(directory().is_writable(Some((Some(0), vec![0]))) && directory().is_writable(None));
    }

    #[test]
    fn the_innermost_mount_counts() {
        let mounts = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
            30 22 8:2 / /var/lib/a\\040b ro,nosuid - xfs /dev/sdb rw,nobarrier\n\
            31 22 0:1 / /var/lib/abc rw - tmpfs none rw\nbroken\n";
        let (kind, options) = mount_of(Path::new("/var/lib/a b/store"), mounts);
        assert_eq!((kind.as_str(), options.join(",").as_str()), ("xfs", "ro,nosuid,rw,nobarrier"));
        assert_eq!(mount_of(Path::new("/var/lib/a"), mounts).0, "ext4");
        assert_eq!(mount_of(Path::new("/x"), "").0, "an unknown file system");
    }
}
