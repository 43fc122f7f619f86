//! What the process as a whole is told at start: descriptors, user, allocator.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// Makes room for so many connections and what else needs descriptors. The count that is to be had.
pub fn raise_descriptor_limit(connections: usize, threads: usize) -> u64 {
    // Listeners, log, the acceptor's runtime, and two for each worker's event loop.
    let wanted = (connections + 32 + 2 * threads) as u64;
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current.unwrap_or(u64::MAX);
    if current >= wanted {
        return current;
    }
    let maximum = limit.maximum.unwrap_or(u64::MAX).max(wanted);
    if setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: Some(maximum) }).is_ok() {
        return wanted;
    }
    // Not root: as far as the hard limit goes.
    let maximum = limit.maximum.unwrap_or(u64::MAX);
    match setrlimit(Resource::Nofile, Rlimit { current: Some(maximum), maximum: limit.maximum }) {
        Ok(()) => maximum,
        Err(_) => current,
    }
}

/// Keeps the allocator from spreading over one arena per thread: what is freed by one is used by all.
pub fn limit_allocator_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` takes two plain numbers and is called before any other thread exists.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Whether the process has root's rights.
pub fn is_root() -> bool {
    rustix::process::getuid().is_root() || rustix::process::geteuid().is_root()
}

/// Becomes another user. Call before threads are started.
///
/// # Errors
/// When there is no such user, or the system refuses.
pub fn become_user(name: &str) -> io::Result<()> {
    let name_c = std::ffi::CString::new(name)?;
    // SAFETY: the name is a valid C string; the result is looked at before any other call could overwrite it.
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
