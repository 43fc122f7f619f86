//! The process: user, memory, terminal; the file with its process ID; and the sockets that a
//! service manager passes to it.

use cached_process::files::write_whole;
use cached_process::log::{Level, print_err};
use cached_process::{Exit, Failure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

/// Requests the shutdown of another process by SIGTERM.
///
/// # Errors
/// Fails if the process no longer exists.
pub fn request_end(pid: u32) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(rustix::process::kill_process(pid, rustix::process::Signal::TERM)?)
}

/// Returns whether the process has root's privileges.
pub fn is_root() -> bool {
    rustix::process::getuid().is_root() || rustix::process::geteuid().is_root()
}

/// Returns the IDs of a user and of its group.
///
/// # Errors
/// Fails if the user does not exist.
pub fn user(name: &str) -> io::Result<(libc::uid_t, libc::gid_t)> {
    let name_c = std::ffi::CString::new(name)?;
    // SAFETY: the name is a valid C string, and the result is read before any other call can
    // overwrite it.
    unsafe {
        let entry = libc::getpwnam(name_c.as_ptr());
        if entry.is_null() {
            let line = format!("can't find the user {name} to switch to");
            return Err(io::Error::new(io::ErrorKind::NotFound, line));
        }
        Ok(((*entry).pw_uid, (*entry).pw_gid))
    }
}

/// Switches to another user. Must be called before threads are started.
///
/// # Errors
/// Fails if the user does not exist, or the system refuses.
pub fn become_user(name: &str) -> io::Result<()> {
    let (uid, gid) = user(name)?;
    // SAFETY: the only pointer is the null pointer of an empty list.
    let refused = unsafe { libc::setgroups(0, std::ptr::null()) != 0 };
    // This happens in a user namespace, where the process has few privileges anyway.
    if refused && io::Error::last_os_error().raw_os_error() != Some(libc::EPERM) {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the arguments are plain numbers.
    if unsafe { libc::setgid(gid) != 0 || libc::setuid(uid) != 0 } {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Allows core files of any size, or of the maximum size that the system permits.
///
/// # Errors
/// Fails if no core file would be written at all.
pub fn allow_core_dumps() -> io::Result<()> {
    let limit = getrlimit(Resource::Core);
    if setrlimit(Resource::Core, Rlimit { current: None, maximum: None }).is_err() {
        setrlimit(Resource::Core, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    }
    match getrlimit(Resource::Core).current {
        Some(0) => Err(io::Error::other("failed to ensure corefile creation")),
        _ => Ok(()),
    }
}

/// Keeps the process's memory, present and future, from being paged out after its first use.
///
/// # Errors
/// Fails if the system refuses, usually for lack of privileges.
pub fn lock_memory() -> io::Result<()> {
    // SAFETY: the arguments are plain numbers.
    match unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The process that has started this one as a daemon. It waits until this process serves or ends,
/// and exits with the corresponding status.
#[derive(Debug)]
pub struct Parent(OwnedFd);

impl Parent {
    /// Lets the parent exit with status 0, because this process serves.
    pub fn serves(self) {
        self.tell(&[0]);
    }

    /// Lets the parent print the line of a failure, and exit with its status.
    pub fn failed(self, failure: &Failure) {
        let mut told = vec![failure.exit().status()];
        told.extend(failure.to_string().into_bytes());
        self.tell(&told);
    }

    fn tell(self, told: &[u8]) {
        // This fails if the parent has been killed, in which case there is nobody to tell.
        let _ = File::from(self.0).write_all(told);
    }
}

/// Detaches from the terminal: continues in a child with its own session, while the parent waits
/// for the [outcome](Parent) that the child reports. With `keep_folder`, the working directory
/// stays the same; with `keep_output`, the standard streams stay the same.
///
/// # Errors
/// Fails if the system refuses.
///
/// Must be called before threads are started.
pub fn daemonize(keep_folder: bool, keep_output: bool) -> io::Result<Parent> {
    let (told, tells) = io::pipe()?;
    // SAFETY: there is only one thread, so the child's state is as consistent as the parent's; the
    // parent exits without running anything that the child continues to use.
    match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => drop(told),
        child => {
            drop(tells);
            let status = outcome(told, child);
            // SAFETY: the call only ends the process.
            unsafe { libc::_exit(status) }
        }
    }
    rustix::process::setsid()?;
    if !keep_folder {
        std::env::set_current_dir("/")?;
    }
    if !keep_output {
        let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
        for stream in [libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO] {
            // SAFETY: the arguments are plain numbers; the old streams are closed, and nothing else
            // holds them.
            if unsafe { libc::dup2(null.as_raw_fd(), stream) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(Parent(tells.into()))
}

/// Waits until a daemon serves or has ended. Prints the reason if it has ended, and returns the
/// exit status.
fn outcome(mut told: io::PipeReader, child: libc::pid_t) -> i32 {
    // While this process waits, signals end it; the daemon reads its own from a descriptor. SAFETY:
    // an all-zero set is a valid value to be overwritten, and the pointers lead to it.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
    let mut words = Vec::new();
    // The read ends when the daemon has reported something, or has closed its end of the pipe by
    // exiting.
    let _ = told.read_to_end(&mut words);
    if let Some((status, line)) = words.split_first() {
        if *status != 0 {
            print_err(Level::Error, module_path!(), &String::from_utf8_lossy(line));
        }
        return i32::from(*status);
    }
    let mut status = 0;
    // SAFETY: the process is our child, and the pointer leads to a number.
    if unsafe { libc::waitpid(child, &mut status, 0) } != child {
        return i32::from(Exit::Trouble.status());
    }
    match libc::WIFEXITED(status) {
        true => libc::WEXITSTATUS(status),
        // A shell would show this status.
        false => 128 + libc::WTERMSIG(status),
    }
}

/// Writes the file of `-P`, which contains the process ID. With `is_taking_over`, the file is that
/// of the process that has handed over to this one.
///
/// # Errors
/// Fails if the file cannot be written.
pub fn write_pid_file(path: &Path, is_taking_over: bool) -> io::Result<()> {
    if let Some(pid) = process_in_pid_file(path).filter(|_| !is_taking_over) {
        tracing::warn!(pid, "the pid file contained the ID of a running process");
    }
    write_whole(path, ".tmp", &format!("{}\n", std::process::id()))
}

/// Removes the pid file. Called at shutdown.
pub fn remove_pid_file(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(cause = %error, path = %path.display(), "cannot remove the pid file");
    }
}

/// Returns the ID of the process that the pid file names, if that process exists.
fn process_in_pid_file(path: &Path) -> Option<i32> {
    let pid: i32 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
    // SAFETY: the arguments are plain numbers; signal 0 only checks whether the process exists.
    (pid > 0 && pid != std::process::id() as i32 && unsafe { libc::kill(pid, 0) } == 0).then_some(pid)
}

/// The first inherited descriptor.
const FIRST_FD: RawFd = 3;
/// The maximum number of inherited descriptors that are accepted.
const FDS_MAX: usize = 64;

/// Returns the sockets of `LISTEN_FDS`, inherited from a service manager (systemd's
/// `sd_listen_fds`), if they are meant for this process. The server listens on them instead of the
/// addresses in its settings.
///
/// This must be called only once, before anything else opens descriptors and before the process
/// forks.
pub fn inherited_sockets() -> Vec<OwnedFd> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    let (Some(pid), Some(count)) = (number("LISTEN_PID"), number("LISTEN_FDS")) else { return Vec::new() };
    if pid != std::process::id() {
        return Vec::new();
    }
    let descriptors = (FIRST_FD..).take((count as usize).min(FDS_MAX)).filter(|fd| {
        // SAFETY: the arguments are plain numbers; the call sets a flag on a descriptor, or fails.
        unsafe { libc::fcntl(*fd, libc::F_SETFD, libc::FD_CLOEXEC) == 0 }
    });
    // SAFETY: the variables state that these descriptors belong to this process, the check above
    // has shown that they are open, and nothing else in this process uses them.
    descriptors.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect()
}
