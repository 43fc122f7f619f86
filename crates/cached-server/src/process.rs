//! Settings of the process: descriptors, user, memory, terminal.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::os::fd::AsRawFd;

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

/// Becomes another user. Call before threads are started.
///
/// # Errors
/// If there is no such user, or the system refuses.
pub fn become_user(name: &str) -> io::Result<()> {
    let name_c = std::ffi::CString::new(name)?;
    // SAFETY: the name is a valid C string; the result is read before any other call could overwrite it.
    let (uid, gid) = unsafe {
        let entry = libc::getpwnam(name_c.as_ptr());
        if entry.is_null() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("can't find the user {name} to switch to"),
            ));
        }
        ((*entry).pw_uid, (*entry).pw_gid)
    };
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

/// Leaves the terminal: continues in a child with a session of its own, while the parent exits. With
/// `keep_folder` the working directory stays, with `keep_output` the standard streams do.
///
/// # Errors
/// When the system refuses.
///
/// Call before threads are started.
pub fn daemonize(keep_folder: bool, keep_output: bool) -> io::Result<()> {
    // SAFETY: there is one thread only, so the child is as whole as the parent; the parent leaves without
    // running anything that the child continues with.
    match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => {}
        // SAFETY: ends the process, nothing else.
        _ => unsafe { libc::_exit(0) },
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
    Ok(())
}
