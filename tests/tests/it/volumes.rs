//! Volumes of `cached`: created and managed through the admin listener, used over NBD, and kept
//! across restarts.

use cached_tests::daemon::{DEADLINE, Daemon, wait_for};
use cached_tests::http;
use cached_tests::nbd::Disk;
use cached_tests::outside::{are_installed, run, text};
use cached_tests::reference;
use serde_json::{Value, json};
use std::process::Command;

const MIB: u64 = 1 << 20;

/// Returns the configuration of an object cache over a file store, optionally with a journal, and
/// of volumes at a unix socket. The age of dirty data causes no flush.
fn configuration(place: &str, has_journal: bool, more: &str) -> String {
    let journal = format!(
        "[objects.journal]\ncreate = true\ndirectory = \"{place}/journal\"\nsegment_bytes = \"1 MiB\"\nlimit_bytes = \"12 MiB\"\n\
         direct = false\njournaled_bytes_max = \"256 KiB\"\n"
    );
    format!(
        "[objects]\nwrite = \"back\"\nwriter = \"cache\"\nmemory_bytes_max = \"16 MiB\"\ndirty_bytes_max = \"2 MiB\"\n\
         object_bytes_max = \"64 KiB\"\ndirty_age_ms_max = 86400000\n{}[objects.backend]\nkind = \"file\"\ncreate = true\n\
         path = \"{place}/store\"\n[volumes]\n[nbd]\nlisten = [\"unix:{place}/nbd\"]\nthreads = 2\n{more}",
        if has_journal { &journal } else { "" }
    )
}

fn start(has_journal: bool) -> Daemon {
    Daemon::start("cached", |place| configuration(place, has_journal, ""))
}

/// Sends a request that must succeed.
fn done(daemon: &Daemon, path: &str, body: Value) -> Value {
    let (status, answer) = daemon.post(path, &body);
    assert_eq!(status, 200, "{path} {body}: {answer}");
    answer
}

fn create(daemon: &Daemon, name: &str) {
    let body = json!({ "name": name, "size_bytes": 8 * MIB });
    assert_eq!(done(daemon, "/volumes/create", body), json!({ "done": true }));
}

fn connect(daemon: &Daemon, export: &str) -> Disk {
    Disk::connect(&daemon.path("nbd"), export).expect("a connection")
}

/// Waits until a volume has neither a connection nor an owner.
fn wait_until_detached(daemon: &Daemon, name: &str) {
    wait_for("the volume is given up", || {
        let shown = daemon.json(&format!("/volumes/show?name={name}"));
        (shown["connections"] == 0 && shown["attached"] == false).then_some(())
    });
}

#[test]
fn volumes_are_managed_through_the_admin_listener() {
    let daemon = start(true);
    assert_eq!(daemon.json("/volumes"), json!({ "volumes": [], "damaged": [], "volumes_other": 0 }));
    create(&daemon, "disk");
    let settings = json!({ "write": "through", "object_bytes": 32768 });
    done(&daemon, "/volumes/create", json!({ "name": "b", "size_bytes": MIB, "settings": settings }));
    let listed = daemon.json("/volumes");
    let names: Vec<_> = listed["volumes"].as_array().expect("a list").iter().map(|of| &of["name"]).collect();
    assert_eq!(names, ["b", "disk"]);
    assert_eq!(
        listed["volumes"][1],
        json!({
            "name": "disk", "size_bytes": 8 * MIB, "object_bytes": 65536, "attached": false, "owner": null,
            "connections": 0, "exported": true, "snapshot_count": 0, "origin": null, "usage": null,
            "settings": {
                "is_read_only": false, "write": null, "quota_bytes_max": null, "object_bytes": 65536,
                "store_requests_per_second_max": null, "store_bytes_per_second_max": null, "store_burst_ms": null,
            },
        })
    );
    let mut disk = connect(&daemon, "disk");
    assert_eq!(disk.size_bytes, 8 * MIB);
    disk.write(70_000, &[1; 10_000]).expect("it is written");
    done(&daemon, "/volumes/snapshot", json!({ "volumes": ["disk", "b"], "snapshot": "monday" }));
    disk.write(70_000, &[2; 10_000]).expect("it is written");
    disk.flush().expect("it is flushed");
    let shown = daemon.json("/volumes/show?name=disk");
    assert_eq!((&shown["connections"], &shown["attached"]), (&json!(1), &json!(true)));
    assert_eq!(shown["snapshots"][0]["name"], "monday", "{shown}");
    assert_eq!(shown["usage"]["referenced_bytes"], 65536, "{shown}");
    // A listing of a part of the volumes begins with those that have clients, and includes their
    // usage.
    let listed = daemon.json("/volumes?limit=1");
    let disk_listed = &listed["volumes"][0];
    assert_eq!((&disk_listed["name"], &listed["volumes_other"]), (&json!("disk"), &json!(1)), "{listed}");
    assert_eq!(
        (&disk_listed["usage"], &disk_listed["snapshot_count"]),
        (&shown["usage"], &json!(1)),
        "{listed}"
    );
    let changed = daemon.json("/volumes/diff?name=disk&from=monday&to=");
    assert_eq!(
        changed,
        json!({ "extents": [{ "offset": 65536, "bytes": 65536, "kind": "data" }], "more": false })
    );

    // Operations that would remove a disk that a client uses are refused.
    for (path, body) in [
        ("/volumes/rollback", json!({ "name": "disk", "snapshot": "monday" })),
        ("/volumes/delete", json!({ "name": "disk" })),
        ("/volumes/detach", json!({ "name": "disk" })),
        ("/volumes/resize", json!({ "name": "disk", "size_bytes": MIB, "shrink": true })),
        ("/volumes/set", json!({ "name": "disk", "settings": { "write": "back" } })),
    ] {
        let (status, answer) = daemon.post(path, &body);
        let line = answer["error"].as_str().unwrap_or_default();
        assert_eq!(status, 409, "{path}: {answer}");
        assert!(line.starts_with("1 NBD connection uses the volume; end it first"), "{path}: {line}");
    }
    done(&daemon, "/volumes/clone", json!({ "source": "disk", "snapshot": "monday", "name": "copy" }));
    let copy = daemon.json("/volumes/show?name=copy");
    assert_eq!(copy["origin"], json!({ "volume": "disk", "snapshot": "monday" }));
    assert_eq!(connect(&daemon, "copy").read(70_000, 10_000).expect("it is read"), [1; 10_000]);
    assert_eq!(disk.read(70_000, 10_000).expect("it is read"), [2; 10_000]);
    drop(disk);
    wait_until_detached(&daemon, "disk");
    wait_until_detached(&daemon, "copy");
    done(&daemon, "/volumes/flatten", json!({ "name": "copy" }));
    assert_eq!(daemon.json("/volumes/show?name=copy")["origin"], Value::Null);
    done(&daemon, "/volumes/rollback", json!({ "name": "disk", "snapshot": "monday" }));
    assert_eq!(connect(&daemon, "disk").read(70_000, 10_000).expect("it is read"), [1; 10_000]);
    wait_until_detached(&daemon, "disk");
    done(&daemon, "/volumes/resize", json!({ "name": "disk", "size_bytes": 16 * MIB }));
    let (status, answer) = daemon.post("/volumes/resize", &json!({ "name": "disk", "size_bytes": MIB }));
    assert!(status == 409 && answer["error"].as_str().is_some_and(|line| line.contains("\"shrink\": true")));
    done(&daemon, "/volumes/resize", json!({ "name": "disk", "size_bytes": 2 * MIB, "shrink": true }));
    assert_eq!(connect(&daemon, "disk").size_bytes, 2 * MIB);
    wait_until_detached(&daemon, "disk");
    done(&daemon, "/volumes/set", json!({ "name": "disk", "settings": { "is_read_only": true } }));
    let error = connect(&daemon, "disk").write(0, &[1]).expect_err("it is read-only");
    assert!(error.to_string().contains("error 1"), "{error}");
    wait_until_detached(&daemon, "disk");
    assert_eq!(daemon.post("/volumes/delete-snapshot", &json!({ "name": "b", "snapshot": "x" })).0, 404);
    done(&daemon, "/volumes/delete-snapshot", json!({ "name": "b", "snapshot": "monday" }));
    done(&daemon, "/volumes/delete", json!({ "name": "disk" }));
    let report = done(&daemon, "/volumes/check", json!({ "repair": true }));
    assert_eq!((&report["problems"], &report["births_met"]), (&json!([]), &json!(0)), "{report}");
    let error = Disk::connect(&daemon.path("nbd"), "disk").expect_err("it is gone");
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{error}");
}

#[test]
fn mistakes_in_requests_are_one_line() {
    let daemon = start(true);
    create(&daemon, "disk");
    for (path, body, status, line) in [
        ("create", json!({ "name": "disk", "size_bytes": MIB }), 409, "\"disk\" exists already"),
        ("create", json!({ "name": "a/b", "size_bytes": MIB }), 400, "invalid: the name \"a/b\""),
        ("create", json!({ "name": "x", "size_bytes": 0 }), 400, "invalid: a volume with objects of"),
        (
            "create",
            json!({ "name": "x", "size_bytes": MIB, "settings": { "object_bytes": 5000 } }),
            400,
            "invalid: object_bytes is 5000, and must be a power of two from 4096 to 65536",
        ),
        (
            "create",
            json!({ "name": "x" }),
            400,
            "give {\"name\": \"NAME\", \"size_bytes\": 1073741824}: missing",
        ),
        (
            "create",
            json!({ "name": "x", "size_bytes": MIB, "settings": { "store_bytes_per_second_max": 1 } }),
            400,
            "invalid: store_bytes_per_second_max is 1, and must be from 4096",
        ),
        ("delete", json!({ "name": "x" }), 404, "there is no volume \"x\""),
        ("resize", json!({ "name": "x", "size_bytes": 1 }), 404, "there is no volume \"x\""),
        (
            "clone",
            json!({ "source": "disk", "snapshot": "s", "name": "y" }),
            404,
            "there is no snapshot \"s\"",
        ),
        ("rollback", json!({ "name": "disk", "snapshot": "s" }), 404, "there is no snapshot \"s\""),
        ("snapshot", json!({ "volumes": [], "snapshot": "s" }), 400, "volumes: is empty"),
        ("set", json!({ "name": "disk", "settings": { "x": 1 } }), 400, "settings.x: is unknown"),
    ] {
        let (given, answer) = daemon.post(&format!("/volumes/{path}"), &body);
        let error = answer["error"].as_str().unwrap_or_default();
        assert_eq!(given, status, "{path} {body}: {answer}");
        assert!(error.starts_with(line), "{path} {body}: {error}");
    }
    let ask = |path: &str| http::get(&daemon.admin, path);
    assert_eq!(ask("/volumes/show?name=x").0, 404);
    assert_eq!(ask("/volumes/show").0, 400);
    assert_eq!(ask("/volumes/job?id=77").0, 404);
    // A change needs the token, and is logged with the address of the client.
    let (status, _) = http::post(&daemon.admin, "/volumes/delete", "", "{\"name\": \"disk\"}");
    assert_eq!(status, 401);
    done(&daemon, "/volumes/delete", json!({ "name": "disk" }));
    let log = daemon.log();
    assert!(log.contains("the admin listener changes volumes"), "{log}");
    assert!(log.contains("peer=127.0.0.1:"), "{log}");
}

#[test]
fn a_volume_has_the_quota_and_rates_that_are_set_for_it() {
    let daemon = start(true);
    let (code, text) = daemon.cachectl(&["volume", "create", "disk", "8M", "quota_bytes_max=1M"]);
    assert_eq!(code, 0, "{text}");
    let set = ["volume", "set", "disk", "store_requests_per_second_max=500", "store_burst_ms=1000"];
    let (code, text) = daemon.cachectl(&set);
    assert_eq!(code, 0, "{text}");
    let in_force = |daemon: &Daemon| {
        let shown = daemon.json("/namespaces.json?name=volumes.0000001");
        ["quota_bytes_max", "store_requests_per_second_max", "store_burst_ms"]
            .map(|key| shown["settings"][key].as_u64())
    };
    let mut disk = connect(&daemon, "disk");
    assert_eq!(in_force(&daemon), [Some(MIB), Some(500), Some(1000)]);
    // While the volume is attached, its settings apply, and its namespace cannot be removed.
    let shown = || daemon.json("/namespaces.json?name=volumes.0000001");
    assert_eq!(shown()["sources"]["quota_bytes_max"], "volume");
    let remove = ["namespace", "remove", "volumes.0000001", "--flush"];
    let (code, refused) = daemon.cachectl(&remove);
    assert_eq!((code, refused.contains("detach the volume first")), (4, true), "{refused}");
    assert_eq!(in_force(&daemon), [Some(MIB), Some(500), Some(1000)]);
    // Each block is in its own object of 64 KiB.
    let error = (0..64).find_map(|block| disk.write(block * 65536, &[1; 65536]).err()).expect("the quota");
    assert!(error.to_string().contains("error 28"), "{error}");
    drop(disk);
    wait_until_detached(&daemon, "disk");
    // The cache learns of the problem once the store detects it.
    let (code, text) =
        wait_for("the removal", || Some(daemon.cachectl(&remove)).filter(|(code, _)| *code != 4));
    assert_eq!(code, 0, "{text}");
    assert_eq!((in_force(&daemon), shown()["sources"]["quota_bytes_max"].is_null()), ([None; 3], true));
    // The settings belong to the volume, so they apply again after a restart once the volume is
    // attached.
    let daemon = daemon.restart("cached", libc::SIGTERM);
    let disk = connect(&daemon, "disk");
    assert_eq!(in_force(&daemon), [Some(MIB), Some(500), Some(1000)]);
    drop(disk);
    wait_until_detached(&daemon, "disk");
    let (code, text) =
        daemon.cachectl(&["volume", "set", "disk", "quota_bytes_max=none", "store_burst_ms=none"]);
    assert_eq!(code, 0, "{text}");
    let mut disk = connect(&daemon, "disk");
    assert_eq!(in_force(&daemon), [None, Some(500), None]);
    disk.write(4 * MIB, &[1; 65536]).expect("there is no quota");
}

#[test]
fn what_was_flushed_survives_kill_9_from_the_journal() {
    let daemon = start(true);
    create(&daemon, "a");
    create(&daemon, "b");
    let (mut a, mut b) = (connect(&daemon, "a"), connect(&daemon, "b"));
    for (disk, byte) in [(&mut a, 1), (&mut b, 2)] {
        disk.write(0, &[byte; 100_000]).expect("it is written");
        disk.flush().expect("it is flushed");
        // This write is made in place: the journal has the data, and the store does not.
        disk.write(1000, &[byte + 2; 50_000]).expect("it is written");
        disk.flush().expect("it is flushed");
        disk.write_durably(60_000, &[byte + 4; 100]).expect("it is written");
    }
    let dirty = daemon.json("/status.json")["objects"]["dirty_bytes"].as_u64();
    assert!(dirty >= Some(100_000), "the flushes were answered by the journal: {dirty:?}");
    let daemon = daemon.restart("cached", libc::SIGKILL);
    for (name, byte) in [("a", 1_u8), ("b", 2)] {
        let found = connect(&daemon, name).read(0, 100_000).expect("it is read");
        let mut wanted = vec![byte; 100_000];
        wanted[1000..51_000].fill(byte + 2);
        wanted[60_000..60_100].fill(byte + 4);
        assert!(found == wanted, "volume {name} has other bytes");
    }
    wait_until_detached(&daemon, "a");
    wait_until_detached(&daemon, "b");
    let report = done(&daemon, "/volumes/check", json!({}));
    let problems = report["problems"].as_array().expect("a list");
    assert!(problems.iter().all(|problem| problem["kind"] == "leftover"), "{report}");
}

#[test]
fn a_client_that_reconnects_after_kill_9_finds_what_was_acknowledged() {
    for (kept, has_journal) in
        [("write = \"back\"\ndurability = \"journaled\"", true), ("write = \"through\"", false)]
    {
        let daemon = Daemon::start("cached", |place| {
            configuration(place, has_journal, "").replacen("write = \"back\"", kept, 1)
        });
        create(&daemon, "disk");
        connect(&daemon, "disk").write(0, &[1; 300_000]).expect("it is written");
        wait_until_detached(&daemon, "disk");
        done(&daemon, "/volumes/snapshot", json!({ "volumes": ["disk"], "snapshot": "monday" }));
        let mut disk = connect(&daemon, "disk");
        // These writes go to objects that the snapshot shares, and to new ones, without a flush.
        disk.write(1000, &[2; 100_000]).expect("it is written");
        disk.write(1 << 20, &[3; 100_000]).expect("it is written");
        let daemon = daemon.restart("cached", libc::SIGKILL);
        let mut disk = connect(&daemon, "disk");
        assert!(disk.read(1000, 100_000).expect("it is read") == [2; 100_000], "{kept}");
        assert!(disk.read(1 << 20, 100_000).expect("it is read") == [3; 100_000], "{kept}");
        disk.flush().expect("it is flushed");
    }
}

#[test]
fn an_orderly_end_stores_what_was_not_flushed() {
    let daemon = start(false);
    create(&daemon, "disk");
    let mut disk = connect(&daemon, "disk");
    disk.write(0, &[7; 200_000]).expect("it is written");
    let daemon = daemon.restart("cached", libc::SIGTERM);
    let error = disk.flush().expect_err("the server has closed the connection");
    drop(error);
    assert_eq!(daemon.json("/volumes/show?name=disk")["owner"], Value::Null, "it was given up");
    assert_eq!(connect(&daemon, "disk").read(0, 200_000).expect("it is read"), vec![7; 200_000]);
    wait_until_detached(&daemon, "disk");
    let report = done(&daemon, "/volumes/check", json!({}));
    assert_eq!(report["problems"], json!([]));
}

/// The process that has taken over. Dropping this value ends it.
struct Successor(i32);

impl Drop for Successor {
    fn drop(&mut self) {
        // SAFETY: kill accesses no memory. The process is an orphan of this test, which has waited
        // for its parent.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }
}

#[test]
fn an_upgrade_gives_volumes_up_and_goes_on_with_them() {
    let daemon = start(true);
    create(&daemon, "disk");
    let mut disk = connect(&daemon, "disk");
    disk.write(0, &[9; 100_000]).expect("it is written");
    let before = daemon.pid();
    daemon.signal(libc::SIGUSR2);
    // From now on the admin listener's socket belongs to the new process.
    let pid = wait_for("the new process", || {
        let (_, body) = http::try_get(&daemon.admin, "/status.json")?;
        let status: Value = serde_json::from_str(&body).ok()?;
        let pid = status["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        pid.filter(|pid| *pid != before)
    });
    let _successor = Successor(pid);
    disk.read(0, 1).expect_err("the old process has closed the connection");
    let mut disk = wait_for("a connection", || Disk::connect(&daemon.path("nbd"), "disk").ok());
    assert_eq!(disk.read(0, 100_000).expect("it is read"), vec![9; 100_000]);
    disk.write(0, &[8; 100]).expect("it is written");
    disk.flush().expect("it is flushed");
}

#[test]
fn a_flush_stores_what_clients_have_written() {
    let daemon = start(true);
    create(&daemon, "disk");
    let mut disk = connect(&daemon, "disk");
    let dirty = || daemon.json("/status.json")["objects"]["dirty_bytes"].as_u64();
    // The first write to an object stores it with the map; the writes below are made in place.
    disk.write(0, &[1; 100_000]).expect("it is written");
    for (path, body) in [
        ("/volumes/flush", json!({ "name": "disk" })),
        // The request flushes the namespace with the most dirty data, which is the volume's.
        ("/namespaces/flush", Value::Null),
    ] {
        disk.write(1000, &[7; 50_000]).expect("it is written");
        assert!(dirty() >= Some(50_000), "{path}: {:?}", dirty());
        let most = daemon.json("/namespaces.json")["namespaces"][0]["namespace"].clone();
        done(&daemon, path, if body.is_null() { json!({ "namespace": most }) } else { body });
        assert_eq!(dirty(), Some(0), "{path}");
    }
    drop(disk);
    wait_until_detached(&daemon, "disk");
    done(&daemon, "/volumes/flush", json!({ "name": "disk" }));
    assert_eq!(daemon.post("/volumes/flush", &json!({ "name": "none" })).0, 404);
}

#[test]
fn clients_have_the_exports_that_are_named_and_are_counted() {
    let daemon = Daemon::start("cached", |place| configuration(place, false, "exports = [\"disk\"]\n"));
    create(&daemon, "disk");
    create(&daemon, "other");
    assert_eq!(daemon.json("/volumes/show?name=other")["exported"], false);
    Disk::connect(&daemon.path("nbd"), "other").expect_err("it is not exported");
    // The only export is also the default one, without a name.
    let mut disk = connect(&daemon, "");
    disk.write(0, &[1; 4096]).expect("it is written");
    disk.read(0, 8192).expect("it is read");
    disk.flush().expect("it is flushed");
    let metric = |series: &str| daemon.metric(series).unwrap_or_else(|| panic!("no {series}"));
    assert_eq!(metric("cached_volume_connections{volume=\"disk\"}"), 1.0);
    assert_eq!(metric("cached_volume_written_bytes_total{volume=\"disk\"}"), 4096.0);
    assert_eq!(metric("cached_volume_read_bytes_total{volume=\"disk\"}"), 8192.0);
    for command in ["read", "write", "flush"] {
        assert_eq!(
            metric(&format!("cached_volume_requests_total{{command=\"{command}\",volume=\"disk\"}}")),
            1.0
        );
    }
    // The refused connection is counted until its socket is closed.
    wait_for("the end of the refused connection", || {
        (daemon.metric("cached_nbd_connections_open") == Some(1.0)).then_some(())
    });
    let status = daemon.json("/status.json");
    assert_eq!(
        status["volumes"],
        json!({
            "connected": 1, "jobs": 0, "volumes_other": 0,
            "volumes": [{
                "volume": "disk", "connections": 1, "reads": 1, "writes": 1, "flushes": 1,
                "read_bytes": 8192, "written_bytes": 4096,
            }],
        })
    );
    let listeners = status["listeners"].as_array().expect("a list");
    let nbd = listeners.iter().find(|listener| listener["protocol"] == "nbd").expect("the listener");
    assert_eq!(
        (&nbd["connections"], nbd["listener"].as_str().map(|at| at.ends_with("/nbd"))),
        (&json!(1), Some(true))
    );
    let of_volumes = |name: &str| name.starts_with("cached_nbd_") || name.starts_with("cached_volume");
    reference::compare(&http::get(&daemon.admin, "/metrics").1, of_volumes, |_| false);
    drop(disk);
    wait_for("the end of the connection", || {
        (daemon.metric("cached_volume_connections{volume=\"disk\"}") == Some(0.0)).then_some(())
    });
    assert_eq!(
        metric("cached_volume_written_bytes_total{volume=\"disk\"}"),
        4096.0,
        "what was counted stays"
    );
}

#[test]
fn the_clients_that_people_use_get_their_data_back() {
    let programs = ["qemu-io", "qemu-img", "nbdcopy", "nbdinfo"];
    if !are_installed("the_clients_that_people_use_get_their_data_back", &programs) {
        return;
    }
    let daemon = start(true);
    create(&daemon, "disk");
    let uri = |name: &str| format!("nbd+unix:///{name}?socket={}", daemon.path("nbd").display());
    let succeed = |program: &str, arguments: &[&str]| {
        let output = run(Command::new(program).args(arguments), DEADLINE);
        assert!(output.status.success(), "{program} {arguments:?}: {}", text(&output));
        let all = text(&output);
        assert!(!all.contains("Pattern verification failed"), "{program} {arguments:?}: {all}");
        all
    };
    let qemu_io = |name: &str, commands: &[&str]| {
        let uri = uri(name);
        let mut arguments = vec!["-f", "raw", uri.as_str()];
        commands.iter().for_each(|command| arguments.extend(["-c", *command]));
        succeed("qemu-io", &arguments);
    };
    qemu_io("disk", &["write -P 0x11 0 1M", "write -P 0x22 3M 100k", "flush", "read -P 0x11 0 1M"]);
    done(&daemon, "/volumes/snapshot", json!({ "volumes": ["disk"], "snapshot": "monday" }));
    qemu_io("disk", &["write -P 0x33 512k 1M", "write -z 3M 64k", "discard 0 256k", "flush"]);
    done(&daemon, "/volumes/clone", json!({ "source": "disk", "snapshot": "monday", "name": "copy" }));
    qemu_io("copy", &["read -P 0x11 0 1M", "read -P 0 1M 2M", "read -P 0x22 3M 100k"]);
    qemu_io("disk", &["read -P 0x33 512k 1M", "read -P 0 3M 64k", "read -P 0x22 3136k 36k"]);
    let info = succeed("nbdinfo", &[&uri("disk")]);
    assert!(info.contains("qemu:dirty-bitmap:monday"), "{info}");
    let image = daemon.path("image").display().to_string();
    succeed("nbdcopy", &[&uri("copy"), &image]);
    let compared = succeed("qemu-img", &["compare", "-f", "raw", "-F", "raw", &image, &uri("copy")]);
    assert!(compared.contains("Images are identical."), "{compared}");
    wait_until_detached(&daemon, "disk");
    done(&daemon, "/volumes/rollback", json!({ "name": "disk", "snapshot": "monday" }));
    let compared = succeed("qemu-img", &["compare", "-f", "raw", "-F", "raw", &image, &uri("disk")]);
    assert!(compared.contains("Images are identical."), "{compared}");
}
