//! A Linux guest under emulation, without KVM: its disk is an export over NBD, and what it does is its init
//! script's (`init.sh`), which reports on the serial console.

mod content;
mod disks;
mod lines;
mod system;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub use content::content;
pub use disks::{Image, Server};
use lines::Lines;
pub use system::System;

/// How the guest reports that a file is synced, whose number follows; and that it cannot go on.
const SYNCED: &str = "SYNCED ";
const FAILED: &str = "FAILED";

/// How long a guest or a server may take for one step. Generous: an emulated processor on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(300);

/// A running guest. Dropping it kills it.
#[derive(Debug)]
pub struct VirtualMachine {
    child: Child,
    console: Lines,
    /// The last file that it has reported as synced.
    synced: u32,
}

impl VirtualMachine {
    /// Starts a guest that does `work` (a case of `init.sh`) with `export` of the server at `socket` as its
    /// disk. If the server goes away, the guest's requests wait until it is there again.
    ///
    /// # Panics
    /// If the emulator cannot be started.
    pub fn start(system: &System, work: &str, socket: &Path, export: &str) -> Self {
        let console = "console=ttyS0 quiet panic=-1";
        // Without it a guest whose emulator gets no processor time for a while takes its timer for broken.
        let arguments = format!("{console} no_timer_check work={work}");
        let disk = format!(
            "driver=nbd,node-name=disk,server.type=unix,server.path={},export={export},reconnect-delay=300,open-timeout=60",
            socket.display()
        );
        let mut child = Command::new("qemu-system-x86_64")
            .args(["-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot"])
            .args(["-accel", "tcg", "-smp", "1", "-m", "256"])
            .arg("-kernel")
            .arg(&system.kernel)
            .arg("-initrd")
            .arg(&system.initramfs)
            .args(["-append", &arguments])
            .args(["-blockdev", &disk, "-device", "virtio-blk-pci,drive=disk"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("qemu-system-x86_64 starts");
        let console = Lines::of(child.stdout.take().expect("piped"), "the guest");
        Self { child, console, synced: 0 }
    }

    /// Waits until the guest has written a line that begins with `begin`; returns the rest of it.
    ///
    /// # Panics
    /// If it reports a failure, ends, or does not do so within the deadline.
    pub fn wait_for(&mut self, begin: &str) -> String {
        self.console.wait_for(begin, FAILED)
    }

    /// Waits until the guest has synced so many files more than it has reported until now; returns the number of
    /// the last one.
    ///
    /// # Panics
    /// As [`Self::wait_for`].
    pub fn sync_more(&mut self, files: u32) -> u32 {
        self.note_synced();
        let wanted = self.synced + files;
        while self.synced < wanted {
            self.synced = self.wait_for(SYNCED).parse().expect("the number of a file");
        }
        self.synced
    }

    fn note_synced(&mut self) {
        let numbers = self.console.waiting().into_iter();
        let last = numbers.filter_map(|line| line.strip_prefix(SYNCED)?.parse().ok()).max();
        self.synced = self.synced.max(last.unwrap_or(0));
    }

    /// Waits until the guest has switched itself off.
    ///
    /// # Panics
    /// If the emulator reports a failure.
    pub fn has_ended(mut self) {
        self.console.read_to_end();
        assert!(!self.console.waiting().iter().any(|line| line.starts_with(FAILED)), "{:?}", self.console);
        let status = self.child.wait().expect("the emulator's end");
        assert!(status.success(), "the emulator ended with {status}");
    }

    /// Kills the guest at once; returns the number of the last file that it has reported as synced.
    ///
    /// # Panics
    /// If it has ended before.
    pub fn kill(mut self) -> u32 {
        assert!(self.child.try_wait().expect("the guest's state").is_none(), "the guest ended by itself");
        self.child.kill().expect("the emulator is there");
        self.child.wait().expect("the emulator's end");
        self.console.read_to_end();
        self.note_synced();
        self.synced
    }
}

impl Drop for VirtualMachine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
