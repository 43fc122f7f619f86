//! A Debian guest under emulation, without KVM, that boots from a clone of a volume of `cached`,
//! over NBD. The guest's work is done by its service (`work.sh`), which reports on a serial port.

mod content;
mod debian;
mod image;
mod lines;
mod scenario;
mod succeeded;
mod system;

use crate::outside::kill_with_thread;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub use content::content;
pub use image::Image;
use lines::Lines;
pub use scenario::{Report, run};
pub use system::System;

/// The beginnings of the guest's reports: a file is synced (followed by its number), fio has
/// verified its data (followed by the number of the pass), or the guest cannot continue.
const SYNCED: &str = "SYNCED ";
const VERIFIED: &str = "VERIFIED ";
const FAILED: &str = "FAILED";

/// The time limit for one step of a guest or a server. It is generous, because an emulated
/// processor is slow on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(600);

/// A running guest. Dropping this value kills the guest.
#[derive(Debug)]
pub struct VirtualMachine {
    child: Child,
    reports: Lines,
    /// The console output of the guest's kernel and init.
    console: PathBuf,
    /// The number of the last file reported as synced.
    synced: u32,
    /// The number of the last reported pass of fio.
    verified: u32,
}

impl VirtualMachine {
    /// Starts a guest that boots from `export` of the server at `socket`, and writes its console to
    /// a file. While the server is unavailable, the guest's requests wait.
    ///
    /// # Panics
    /// Panics if the emulator cannot be started.
    pub fn start(system: &System, socket: &Path, export: &str, console: &Path) -> Self {
        // Without `no_timer_check`, a guest whose emulator gets no processor time for a while
        // assumes that its timer is broken.
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
        kill_with_thread(&mut command);
        let mut child = command.spawn().expect("qemu-system-x86_64 starts");
        let reports = Lines::of(child.stdout.take().expect("piped"));
        Self { child, reports, console: console.to_path_buf(), synced: 0, verified: 0 }
    }

    /// Waits until the guest has written a line that begins with `begin`; returns the rest of the
    /// line.
    ///
    /// # Panics
    /// Panics if the guest reports a failure or exits, or the line does not arrive within the
    /// deadline.
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

    /// Waits until the guest has reported `files` more synced files than before the call; returns
    /// the number of the last file.
    ///
    /// # Panics
    /// Panics if [`Self::wait_for`] panics.
    pub fn sync_more(&mut self, files: u32) -> u32 {
        self.note_waiting();
        let wanted = self.synced + files;
        while self.synced < wanted {
            self.wait_for(SYNCED);
        }
        self.synced
    }

    /// Waits until fio has reported `passes` more verifications of all its data than before the
    /// call; returns the number of the last pass.
    ///
    /// # Panics
    /// Panics if [`Self::wait_for`] panics.
    pub fn verify_more(&mut self, passes: u32) -> u32 {
        self.note_waiting();
        let wanted = self.verified + passes;
        while self.verified < wanted {
            self.wait_for(VERIFIED);
        }
        self.verified
    }

    /// Kills the guest immediately; returns the number of the last file that it has reported as
    /// synced.
    ///
    /// # Panics
    /// Panics if the guest has already ended, or reported a failure.
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
