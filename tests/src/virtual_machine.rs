//! A Debian guest under emulation, without KVM, that boots from a clone of a volume of `cached`, over NBD. What it
//! does is its service's (`work.sh`), which reports on a serial port.

mod content;
mod debian;
mod image;
mod lines;
mod scenario;
mod succeeded;
mod system;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub use content::content;
pub use image::Image;
use lines::Lines;
pub use scenario::{Report, run};
pub use system::System;

/// How the guest reports that a file is synced, whose number follows; that fio has found what it has written, with the number
/// of the pass; and that the guest cannot go on.
const SYNCED: &str = "SYNCED ";
const VERIFIED: &str = "VERIFIED ";
const FAILED: &str = "FAILED";

/// How long a guest or a server may take for one step. Generous: an emulated processor on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(600);

/// A running guest. Dropping it kills it.
#[derive(Debug)]
pub struct VirtualMachine {
    child: Child,
    reports: Lines,
    /// What the guest's kernel and init write.
    console: PathBuf,
    /// The last file that it has reported as synced.
    synced: u32,
    /// The last pass of fio that it has reported.
    verified: u32,
}

impl VirtualMachine {
    /// Starts a guest that boots from `export` of the server at `socket`, and keeps its console in a file. If
    /// the server goes away, the guest's requests wait until it is there again.
    ///
    /// # Panics
    /// If the emulator cannot be started.
    pub fn start(system: &System, socket: &Path, export: &str, console: &Path) -> Self {
        // Without `no_timer_check` a guest whose emulator gets no processor time for a while takes its timer for broken.
        let arguments = "console=ttyS1 quiet panic=-1 no_timer_check";
        let disk = format!(
            "driver=nbd,node-name=disk,server.type=unix,server.path={},export={export},reconnect-delay=600,open-timeout=60",
            socket.display()
        );
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(["-nodefaults", "-display", "none", "-no-reboot"])
            .args(["-serial", "stdio", "-serial", &format!("file:{}", console.display())])
            .args(["-accel", "tcg", "-smp", "1", "-m", "384"])
            .arg("-kernel")
            .arg(&system.kernel)
            .arg("-initrd")
            .arg(&system.initramfs)
            .args(["-append", arguments])
            .args(["-blockdev", &disk, "-device", "virtio-blk-pci,drive=disk"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        // SAFETY: prctl is async-signal-safe and touches no memory of ours.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let mut child = command.spawn().expect("qemu-system-x86_64 starts");
        let reports = Lines::of(child.stdout.take().expect("piped"));
        Self { child, reports, console: console.to_path_buf(), synced: 0, verified: 0 }
    }

    /// Waits until the guest has written a line that begins with `begin`; returns the rest of it.
    ///
    /// # Panics
    /// If it reports a failure, ends, or does not do so within the deadline.
    pub fn wait_for(&mut self, begin: &str) -> String {
        loop {
            let line = self.reports.next(DEADLINE);
            let line =
                line.unwrap_or_else(|why| panic!("the guest: {why} before {begin:?}\n{}", self.words()));
            self.note(&line);
            if let Some(rest) = line.strip_prefix(begin) {
                return rest.to_owned();
            }
        }
    }

    /// Waits until the guest has synced so many files more than it has reported until now; returns the number of
    /// the last one.
    ///
    /// # Panics
    /// As [`Self::wait_for`].
    pub fn sync_more(&mut self, files: u32) -> u32 {
        self.note_waiting();
        let wanted = self.synced + files;
        while self.synced < wanted {
            self.wait_for(SYNCED);
        }
        self.synced
    }

    /// Waits until fio has found all that it has written in so many passes more than it has reported until now; returns the
    /// number of the last one.
    ///
    /// # Panics
    /// As [`Self::wait_for`].
    pub fn verify_more(&mut self, passes: u32) -> u32 {
        self.note_waiting();
        let wanted = self.verified + passes;
        while self.verified < wanted {
            self.wait_for(VERIFIED);
        }
        self.verified
    }

    /// Kills the guest at once; returns the number of the last file that it has reported as synced.
    ///
    /// # Panics
    /// If it has ended before, or reported a failure.
    pub fn kill(mut self) -> u32 {
        let status = self.child.try_wait().expect("the guest's state");
        assert!(status.is_none(), "the guest ended by itself\n{}", self.words());
        self.child.kill().expect("the emulator is there");
        self.child.wait().expect("the emulator's end");
        while let Ok(line) = self.reports.next(DEADLINE) {
            self.note(&line);
        }
        self.synced
    }

    fn note_waiting(&mut self) {
        for line in self.reports.waiting() {
            self.note(&line);
        }
    }

    fn note(&mut self, line: &str) {
        assert!(!line.starts_with(FAILED), "the guest: {line}\n{}", self.words());
        let number = |begin| line.strip_prefix(begin)?.parse().ok();
        self.synced = self.synced.max(number(SYNCED).unwrap_or(0));
        self.verified = self.verified.max(number(VERIFIED).unwrap_or(0));
    }

    /// Returns the last reports, and the end of the console.
    fn words(&self) -> String {
        let console = std::fs::read(&self.console).unwrap_or_default();
        let end = String::from_utf8_lossy(&console[console.len().saturating_sub(3000)..]).into_owned();
        format!("--- its reports end:\n{}\n--- its console ends:\n{end}", self.reports.tail())
    }
}

impl Drop for VirtualMachine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
