//! The tests of `synapsed` as a program.

mod daemon;
mod restart;

/// Returns a directory in memory, if there is one. A daemon has five seconds to record in its store that
/// it has ended in order, which a slow disk may exceed.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}
