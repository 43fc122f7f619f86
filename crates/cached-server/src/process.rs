//! Settings of the process: descriptors, user, memory, terminal.

use cached_process::{Exit, Failure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};

/// Requests the end of another process, by SIGTERM.
///
/// # Errors
/// If there is no such process any more.
pub fn request_end(pid: u32) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(rustix::process::kill_process(pid, rustix::process::Signal::TERM)?)
}

/// Raises the limit of descriptors for this number of connections and threads, and the rest of the server.
/// Returns the limit that the system allows.
pub fn raise_descriptor_limit(connections: usize, threads: usize) -> u64 {
    // Listeners, log, the acceptor's runtime, and two for each worker's event loop.
    cached_config::raise_descriptor_limit((connections + 32 + 2 * threads) as u64)
}

/// Returns whether the process has root's rights.
pub fn is_root() -> bool {
    rustix::process::getuid().is_root() || rustix::process::geteuid().is_root()
}

/// Returns the numbers of a user and of its group.
///
/// # Errors
/// If there is no such user.
pub fn user(name: &str) -> io::Result<(libc::uid_t, libc::gid_t)> {
    let name_c = std::ffi::CString::new(name)?;
    // SAFETY: the name is a valid C string; the result is read before any other call could overwrite it.
    unsafe {
        let entry = libc::getpwnam(name_c.as_ptr());
        if entry.is_null() {
            let line = format!("can't find the user {name} to switch to");
            return Err(io::Error::new(io::ErrorKind::NotFound, line));
        }
        Ok(((*entry).pw_uid, (*entry).pw_gid))
    }
}

/// Becomes another user. Call before threads are started.
///
/// # Errors
/// If there is no such user, or the system refuses.
pub fn become_user(name: &str) -> io::Result<()> {
    let (uid, gid) = user(name)?;
    // SAFETY: no pointers but a null one for an empty list.
    let refused = unsafe { libc::setgroups(0, std::ptr::null()) != 0 };
    // As in a user namespace, where the privileges are few already.
    if refused && io::Error::last_os_error().raw_os_error() != Some(libc::EPERM) {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: plain numbers.
    if unsafe { libc::setgid(gid) != 0 || libc::setuid(uid) != 0 } {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Allows core files of any size, or of as much as the system lets us.
///
/// # Errors
/// When no core file would be written at all.
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

/// Keeps the process's memory, present and future, from being paged out once it has been used for the first
/// time.
///
/// # Errors
/// If the system refuses, usually for lack of rights.
pub fn lock_memory() -> io::Result<()> {
    // SAFETY: plain numbers.
    match unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The process that has started this one as a daemon. It waits until this one serves, or ends, and ends with its status.
#[derive(Debug)]
pub struct Parent(OwnedFd);

impl Parent {
    /// Lets it end with 0: this process serves.
    pub fn serves(self) {
        self.tell(&[0]);
    }

    /// Lets it print the line of a failure, and end with its status.
    pub fn failed(self, failure: &Failure) {
        let mut told = vec![failure.exit().status()];
        told.extend(failure.to_string().into_bytes());
        self.tell(&told);
    }

    fn tell(self, told: &[u8]) {
        // Fails if it has been killed: then there is none to be told.
        let _ = File::from(self.0).write_all(told);
    }
}

/// Leaves the terminal: continues in a child with a session of its own, while the parent waits for what the child
/// [tells](Parent). With `keep_folder` the working directory stays, with `keep_output` the standard streams do.
///
/// # Errors
/// When the system refuses.
///
/// Call before threads are started.
pub fn daemonize(keep_folder: bool, keep_output: bool) -> io::Result<Parent> {
    let (told, tells) = io::pipe()?;
    // SAFETY: there is one thread only, so the child is as whole as the parent; the parent leaves without
    // running anything that the child continues with.
    match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => drop(told),
        child => {
            drop(tells);
            let status = outcome(told, child);
            // SAFETY: ends the process, nothing else.
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
            // SAFETY: plain numbers; the old streams are closed, and nothing else holds them.
            if unsafe { libc::dup2(null.as_raw_fd(), stream) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(Parent(tells.into()))
}

/// Waits until a daemon serves, or has ended; prints why it has, and returns the exit status.
fn outcome(mut told: io::PipeReader, child: libc::pid_t) -> i32 {
    // Signals end this process while it waits; the daemon reads its own from a descriptor.
    // SAFETY: an all-zero set is a valid value to be overwritten, and the pointers lead to it.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
    let mut words = Vec::new();
    // Ends when the daemon has told something, or its copy of the pipe is gone with it.
    let _ = told.read_to_end(&mut words);
    if let Some((status, line)) = words.split_first() {
        if *status != 0 {
            eprintln!("{}", String::from_utf8_lossy(line));
        }
        return i32::from(*status);
    }
    let mut status = 0;
    // SAFETY: our own child, and the pointer leads to a number.
    if unsafe { libc::waitpid(child, &mut status, 0) } != child {
        return i32::from(Exit::Trouble.status());
    }
    match libc::WIFEXITED(status) {
        true => libc::WEXITSTATUS(status),
        // As a shell shows it.
        false => 128 + libc::WTERMSIG(status),
    }
}
