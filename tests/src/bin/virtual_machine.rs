//! A virtual machine whose disk is a clone of a volume: servers and guests are killed, and what the guest's
//! `fsync` has acknowledged is there, in a file system without a fault. It ends with a panic if that is not so.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use cached_tests::virtual_machine::{Image, Server, System, VirtualMachine, content};

/// Files that the guest syncs between one event and the next.
const FILES: u32 = 15;
/// How often the server is killed.
const KILLS: u32 = 4;

fn main() -> ExitCode {
    match System::prepare() {
        Ok(system) => kill_servers_and_guests(&system),
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn kill_servers_and_guests(system: &System) {
    let begin = Instant::now();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| directory.path().join(name);
    let (store, socket) = (at("store"), at("nbd.sock"));
    let serve = || Server::start(&store, &socket, 256);

    let mut server = serve();
    let making = VirtualMachine::start(system, "make", &socket, "base");
    making.has_ended();
    server.command("snapshot base made");
    server.command("clone base made disk");
    let base = Image::of(&socket, "base", at("base.img"));

    let mut guest = VirtualMachine::start(system, "write", &socket, "disk");
    guest.wait_for("MOUNTED");
    let before_snapshot = guest.sync_more(FILES);
    server.command("snapshot disk middle");
    server.command("clone disk middle first-look");
    let first_look = Image::of(&socket, "first-look", at("first-look.img"));
    // The guest goes on writing: what it does now happens beside the copy, and after it.
    guest.sync_more(FILES);
    for kill in 0..KILLS {
        // From here on every object is a snapshot's, so what the guest writes is born anew.
        server.command(&format!("snapshot disk before-kill-{kill}"));
        guest.sync_more(2);
        server.kill();
        // The guest's requests wait for it.
        server = serve();
    }
    guest.sync_more(FILES);
    let synced = guest.kill();
    server.kill();

    let mut server = serve();
    let disk = Image::of(&socket, "disk", at("disk.img"));
    disk.check_after_replay();
    disk.extract(&at("disk"));
    assert_files(&at("disk"), synced);

    server.command("clone disk middle second-look");
    let second_look = Image::of(&socket, "second-look", at("second-look.img"));
    assert!(second_look.is_same(&first_look), "the snapshot has changed");
    second_look.check_after_replay();
    second_look.extract(&at("second-look"));
    assert_files(&at("second-look"), before_snapshot);
    assert!(!at("second-look").join(format!("file{synced}")).exists(), "the snapshot has what came later");

    assert!(Image::of(&socket, "base", at("base-after.img")).is_same(&base), "the origin has changed");
    println!(
        "{synced} files were synced, {before_snapshot} before the snapshot; {KILLS} kills of the server; {:.0?}",
        begin.elapsed()
    );
}

/// Checks the files up to the last that was reported as synced.
#[track_caller]
fn assert_files(folder: &Path, synced: u32) {
    for file in 0..=synced {
        let found = std::fs::read(folder.join(format!("file{file}"))).unwrap_or_default();
        assert!(found == content(file), "file {file} of {synced} has {} bytes", found.len());
    }
    let last = std::fs::read_to_string(folder.join("last")).expect("the number of the last file");
    let last: u32 = last.parse().unwrap_or_else(|error| panic!("{last:?}: {error}"));
    assert!(last >= synced, "{last}, and {synced} was synced");
}
