//! `cachectl`'s operator commands, each with a running `cached` and a running `synapsed`.

use blocker::executor::block_on;
use blocker::{Blocker, BlockerExt, ObjectId, ReadRequest, WriteRequest};
use cached_tests::daemon::{DEADLINE, Daemon, wait_for};
use cached_tests::ending::SetOnDrop;
use cached_tests::program::workspace_programs;
use cached_tests::server::Server;
use cached_tests::tls::Certificates;
use cached_tests::{http, object_client, outside};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use synapse::{Address, ClientConfig, SynapseBlocker};

/// A write-back cache over a file store.
const CACHE: &str = "[objects]\nwrite = \"back\"\ndirty_age_ms_max = 3600000\n";

/// A placeholder for limits of the synapse listener.
const LIMITS: &str = "# limits\n# end of limits\n";

fn cached() -> Daemon {
    cached_with(|text| text)
}

fn cached_with(change: impl FnOnce(String) -> String) -> Daemon {
    Daemon::start("cached", |place| {
        change(format!(
            "[insight]\nsampled_share = 1.0\n{CACHE}[objects.backend]\nkind = \"file\"\ncreate = true\npath = \"{place}/store\"\n\
             [synapse]\nlisten = [\"unix:{place}/synapse\"]\n{LIMITS}"
        ))
    })
}

fn synapsed() -> Daemon {
    synapsed_with(|text| text)
}

fn synapsed_with(change: impl FnOnce(String) -> String) -> Daemon {
    Daemon::start("synapsed", |place| {
        change(format!(
            "backend = {{ kind = \"file\", create = true, path = \"{place}/store\" }}\n[insight]\nsampled_share = 1.0\n{CACHE}memory_bytes_max = \"1 MiB\"\n\
             dirty_bytes_max = \"256 KiB\"\n[synapse]\nlisten = [\"unix:{place}/synapse\"]\n{LIMITS}"
        ))
    })
}

fn connect(socket: &Path) -> SynapseBlocker {
    let client = SynapseBlocker::connect_on_thread(object_client::config(Address::Unix(socket.into())));
    client.expect("a connection")
}

fn write(socket: &Path) {
    let client = connect(socket);
    let object: ObjectId = "vm/disk".parse().expect("a name");
    block_on(client.write(WriteRequest::new(object, 0, vec![7; 8192]))).expect("it is written");
}

#[test]
fn both_programs_are_watched_changed_and_ended_by_the_same_commands() {
    for daemon in [cached(), synapsed()] {
        assert_eq!(daemon.cachectl(&["health"]).0, 0);
        write(&daemon.path("synapse"));
        let status = daemon.json("/status.json");
        let vm = &status["objects"]["namespaces"][0];
        assert_eq!((vm["namespace"].as_str(), vm["write"].as_str()), (Some("vm"), Some("back")), "{status}");
        assert_eq!(vm["dirty_bytes"], status["objects"]["dirty_bytes"]);
        assert_eq!((vm["cached_bytes"].as_u64(), vm["writes_cached"].as_u64()), (Some(8192), Some(1)));
        let series = |name: &str| daemon.metric(&format!("cached_objects_namespace_{name}"));
        assert_eq!(series("dirty_bytes{namespace=\"vm\"}"), vm["dirty_bytes"].as_f64());
        assert_eq!(series("writes_total{durability=\"cached\",namespace=\"vm\"}"), Some(1.0));
        let (code, top) = daemon.cachectl(&["top", "--once"]);
        assert_eq!((code, top.contains("vm")), (0, true), "{top}");
        daemon.configure(|text| text.replace("dirty_age_ms_max = 3600000", "dirty_age_ms_max = 1800000"));
        let (code, report) = daemon.cachectl(&["reload"]);
        let is_named = report.contains("objects.dirty_age_ms_max 3600000 -> 1800000");
        assert_eq!((code, is_named), (0, true), "{report}");
        let (code, config) = daemon.cachectl(&["config", "dirty_age"]);
        assert_eq!((code, config.contains("objects.dirty_age_ms_max = 1800000")), (0, true), "{config}");
        daemon.configure(|text| text.replace("dirty_age_ms_max = 1800000", "dirty_age_ms_max = \"long\""));
        let (code, report) = daemon.cachectl(&["reload"]);
        assert_ne!(code, 0, "{report}");
        assert!(report.contains("dirty_age_ms_max"), "{report}");
        let (code, report) = daemon.cachectl(&["drain"]);
        assert_eq!(code, 0, "{report}");
        let (status, log) = daemon.wait();
        assert!(status.success(), "{log}");
    }
}

/// Clients read and write while the cache is detached and reattached: no request fails, and each
/// client reads its last write.
#[test]
fn the_cache_is_taken_out_and_put_back_under_load() {
    for daemon in [cached(), synapsed()] {
        let socket = daemon.path("synapse");
        let is_over = AtomicBool::new(false);
        let work = |client: usize| {
            let (store, object) =
                (connect(&socket), format!("vm/disk-{client}").parse::<ObjectId>().expect("a name"));
            let mut round = 0_u8;
            while !is_over.load(Ordering::Relaxed) {
                round = round.wrapping_add(1);
                let data = vec![round; 8192];
                block_on(store.write(WriteRequest::new(object.clone(), 4096, data.clone())))
                    .expect("a write");
                let read =
                    block_on(store.read(ReadRequest::new(object.clone(), 4096, 8192))).expect("a read");
                assert_eq!(read.data.to_bytes(), data, "client {client}, round {round}");
            }
        };
        std::thread::scope(|scope| {
            let work = &work;
            let end = SetOnDrop(&is_over);
            let clients: Vec<_> = (0..3).map(|client| scope.spawn(move || work(client))).collect();
            for _ in 0..5 {
                for (command, state) in
                    [("detach", "detached: requests go"), ("attach", "attached: requests go")]
                {
                    let (code, shown) = daemon.cachectl(&["cache", command]);
                    assert_eq!((code, shown.contains(state)), (0, true), "{shown}");
                    let (code, shown) = daemon.cachectl(&["cache", "show"]);
                    assert_eq!((code, shown.contains(state)), (0, true), "{shown}");
                }
            }
            drop(end);
            clients.into_iter().for_each(|client| client.join().expect("a client"));
        });
        assert_eq!(daemon.cachectl(&["cache", "detach"]).0, 0);
        assert_eq!(daemon.json("/status.json")["objects"]["dirty_bytes"], 0, "all is stored");
        assert_eq!(daemon.cachectl(&["cache", "attach"]).0, 0);
    }
}

/// A cache with `attached = false` is detached from the start, and every status display reports
/// this.
#[test]
fn a_cache_starts_detached_and_is_named_until_it_is_attached() {
    let out = |text: String| text.replace("[objects]\n", "[objects]\nattached = false\n");
    for daemon in [cached_with(out), synapsed_with(out)] {
        wait_for("a detached cache", || {
            (daemon.metric("cached_objects_attached") == Some(0.0)).then_some(())
        });
        let is_named = |is: bool| {
            let (status, body) = http::get(&daemon.admin, "/readyz");
            assert_eq!((status, body.contains("the object cache is detached")), (200, is), "{body}");
            let (code, top) = daemon.cachectl(&["top", "--once"]);
            assert_eq!((code, top.contains("the object cache is detached")), (0, is), "{top}");
        };
        is_named(true);
        assert_eq!(daemon.json("/status.json")["objects"]["attach_state"], "detached");
        assert!(daemon.log().contains("attached = false"), "{}", daemon.log());
        write(&daemon.path("synapse"));
        assert_eq!(daemon.json("/status.json")["objects"]["dirty_bytes"], 0);
        daemon.configure(|text| text.replace("attached = false", "attached = true"));
        let (code, report) = daemon.cachectl(&["reload"]);
        assert_eq!((code, report.contains("objects.attached false -> true")), (0, true), "{report}");
        wait_for("an attached cache", || {
            (daemon.json("/status.json")["objects"]["attach_state"] == "attached").then_some(())
        });
        is_named(false);
        write(&daemon.path("synapse"));
        assert_eq!(daemon.json("/status.json")["objects"]["dirty_bytes"], 8192);
    }
}

/// Returns the exit status and the output of `cachectl namespace` over synapse.
fn over_synapse(socket: &Path, arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(workspace_programs().join("cachectl"));
    command.arg("-b").arg(format!("synapse:unix:{}", socket.display())).arg("namespace");
    let output = outside::run(command.args(arguments), DEADLINE);
    (output.status.code().expect("an exit status"), outside::text(&output))
}

/// Over synapse every client can list namespaces, and change them if the server's configuration
/// allows it.
#[test]
fn namespaces_are_managed_over_synapse() {
    for daemon in [cached(), synapsed()] {
        let socket = daemon.path("synapse");
        let namespace = |arguments: &[&str]| over_synapse(&socket, arguments);
        write(&socket);
        let (code, listed) = namespace(&["list"]);
        assert_eq!(
            (code, listed.starts_with("vm  back, 1 objects, 8192 bytes cached")),
            (0, true),
            "{listed}"
        );
        let (code, refused) = namespace(&["set", "vm", "quota_bytes_max=16KiB"]);
        assert_eq!((code, refused.contains("allow_namespace_changes")), (4, true), "{refused}");
    }
    let allowed = |text: String| text.replace(LIMITS, "allow_namespace_changes = true\n");
    for daemon in [cached_with(allowed), synapsed_with(allowed)] {
        let socket = daemon.path("synapse");
        let namespace = |arguments: &[&str]| over_synapse(&socket, arguments);
        write(&socket);
        assert_eq!(namespace(&["create", "vm", "--write", "through"]).0, 4, "it is there");
        let (code, set) = namespace(&["create", "new", "--write", "back", "store_weight=3"]);
        assert_eq!((code, set.contains("store_weight=3")), (0, true), "{set}");
        assert_eq!(namespace(&["set", "vm", "quota_bytes_max=16KiB"]).0, 0);
        // The lists have the same settings that the admin listener shows.
        for name in ["vm", "new"] {
            let (code, by_admin) = daemon.cachectl(&["namespace", "show", name]);
            // The two outputs agree except for ages, and for the sources of settings, which synapse
            // does not transfer.
            let lines = |text: &str| -> Vec<String> {
                let lines = text.lines().filter(|line| !line.contains("dirty_age_ms"));
                lines.map(|line| line.split(" (").next().unwrap_or_default().to_owned()).collect()
            };
            assert_eq!((code, by_admin.contains("(command)")), (0, true), "{by_admin}");
            assert_eq!(lines(&namespace(&["show", name]).1), lines(&by_admin));
        }
        let (code, wrong) = namespace(&["set", "vm", "store_weight=0"]);
        assert_eq!((code, wrong.contains("store_weight")), (2, true), "{wrong}");
        let (code, refused) = namespace(&["remove", "vm"]);
        assert_eq!((code, refused.contains("not stored")), (4, true), "{refused}");
        let (code, removed) = namespace(&["remove", "vm", "--flush"]);
        assert_eq!((code, removed.contains("8192 bytes were dropped")), (0, true), "{removed}");
        assert_eq!(namespace(&["show", "none"]).0, 3);
        assert_eq!(daemon.cachectl(&["namespace", "show", "none"]).0, 3);
        let (code, set) = daemon.cachectl(&["namespace", "create", "other", "store_weight=2"]);
        assert_eq!((code, set.contains("store_weight=2")), (0, true), "{set}");
    }
}

/// Through either listener, a flush stores the dirty data of a single namespace, whose write mode
/// stays.
#[test]
fn one_namespace_is_flushed_and_others_stay_dirty() {
    for daemon in [cached(), synapsed()] {
        let socket = daemon.path("synapse");
        let object: ObjectId = "other/disk".parse().expect("a name");
        block_on(connect(&socket).write(WriteRequest::new(object, 0, vec![7; 4096]))).expect("it is written");
        let dirty =
            |name: &str| daemon.json(&format!("/namespaces.json?name={name}"))["dirty_bytes"].as_u64();
        let other = dirty("other");
        assert!(other >= Some(4096), "{other:?}");
        let by_admin = |name: &str| daemon.cachectl(&["namespace", "flush", name]);
        let by_synapse = |name: &str| over_synapse(&socket, &["flush", name]);
        for flush in [&by_admin as &dyn Fn(&str) -> (i32, String), &by_synapse] {
            write(&socket);
            assert!(dirty("vm") >= Some(8192));
            let (code, shown) = flush("vm");
            assert_eq!((code, shown.trim()), (0, "vm is flushed: its data are stored"));
            assert_eq!((dirty("vm"), dirty("other")), (Some(0), other));
            assert_eq!(daemon.json("/namespaces.json?name=vm")["write"], "back");
            let (code, why) = flush("none");
            assert_eq!((code, why.contains("none: no such namespace is configured")), (3, true), "{why}");
        }
    }
}

/// A quota set at run time limits the data, and dirty data are dropped only on explicit request.
#[test]
fn a_namespace_gets_a_quota_and_is_removed_with_what_is_dirty() {
    for daemon in [cached(), synapsed()] {
        let socket = daemon.path("synapse");
        write(&socket);
        let (code, shown) = daemon.cachectl(&["namespace", "set", "vm", "quota_bytes_max=16KiB"]);
        assert_eq!((code, shown.contains("quota_bytes_max=16384")), (0, true), "{shown}");
        let beyond = WriteRequest::new("vm/other".parse::<ObjectId>().expect("a name"), 0, vec![1; 12 << 10]);
        let refused = block_on(connect(&socket).write(beyond)).expect_err("beyond the quota");
        assert!(matches!(refused, blocker::Error::OutOfSpace(_)), "{refused}");
        let (code, shown) = daemon.cachectl(&["namespace", "set", "vm", "quota=1"]);
        assert_eq!((code != 0, shown.contains("quota")), (true, true), "{shown}");
        let (code, shown) = daemon.cachectl(&["namespace", "remove", "vm"]);
        assert_eq!((code != 0, shown.contains("not stored")), (true, true), "{shown}");
        let (code, shown) = daemon.cachectl(&["namespace", "remove", "vm", "--discard-dirty"]);
        assert_eq!((code, shown.contains("were discarded")), (0, true), "{shown}");
        let object: ObjectId = "vm/disk".parse().expect("a name");
        let read = block_on(connect(&socket).read(ReadRequest::new(object, 0, 4096)));
        assert!(matches!(read, Err(blocker::Error::Missing)), "it was never stored: {read:?}");
    }
}

/// The configuration's settings for a namespace stay active when the namespace is removed: data
/// acknowledged afterwards survive a kill.
#[test]
fn a_removed_namespace_is_treated_as_the_file_has_it_and_loses_nothing_by_a_kill() {
    let own = "namespaces = [{ name = \"vm\", write = \"through\", quota_bytes_max = \"1 MiB\" }, \
               { name = \"archive\", write = \"read-only\" }]\n";
    for (daemon, program) in [
        (cached_with(move |text| text.replace(CACHE, &format!("{CACHE}{own}"))), "cached"),
        (synapsed_with(move |text| text.replace(CACHE, &format!("{CACHE}{own}"))), "synapsed"),
    ] {
        let socket = daemon.path("synapse");
        let write = |name: &str, byte: u8| {
            let object: ObjectId = name.parse().expect("a name");
            block_on(connect(&socket).write(WriteRequest::new(object, 0, vec![byte; 8192])))
        };
        let stored = |written: blocker::Result<blocker::ChangeReply>| {
            written.expect("it is written");
            let shown = daemon.json("/namespaces.json?name=vm");
            assert_eq!(shown["dirty_bytes"], 0, "the store has it: {shown}");
        };
        let namespace = |arguments: &[&str]| {
            let all: Vec<&str> = ["namespace"].iter().chain(arguments).copied().collect();
            let (code, text) = daemon.cachectl(&all);
            assert_eq!(code, 0, "{arguments:?}: {text}");
            text
        };
        stored(write("vm/disk", 1));
        let listed = namespace(&["list"]);
        assert!(listed.contains("vm  through,") && !listed.contains("changing"), "{listed}");
        namespace(&["remove", "vm"]);
        stored(write("vm/disk", 2));
        // This command removes only settings that were made by commands.
        namespace(&["set", "vm", "--write", "back", "quota_bytes_max=16KiB"]);
        let shown = namespace(&["show", "vm"]);
        assert!(shown.contains("back (command)") && shown.contains("= 16384 (command)"), "{shown}");
        let (_, report) = daemon.cachectl(&["reload"]);
        assert!(namespace(&["show", "vm"]).contains("back (command)"), "{report}");
        namespace(&["remove", "vm", "--flush"]);
        let shown = namespace(&["show", "vm"]);
        assert!(shown.contains("through (file)") && shown.contains("= 1048576 (file)"), "{shown}");
        stored(write("vm/disk", 3));
        let refused = write("archive/disk", 4);
        assert!(matches!(refused, Err(blocker::Error::Denied(_))), "{refused:?}");
        let daemon = daemon.restart(program, libc::SIGKILL);
        let object: ObjectId = "vm/disk".parse().expect("a name");
        let read = block_on(connect(&daemon.path("synapse")).read(ReadRequest::new(object, 0, 8192)));
        assert_eq!(read.expect("it was stored").data.to_vec(), [3; 8192]);
    }
}

/// A backend in the environment applies to object commands: operator commands still use the admin
/// listener.
#[test]
fn namespaces_are_asked_for_by_the_admin_listener_whatever_backend_the_environment_has() {
    let daemon = cached();
    write(&daemon.path("synapse"));
    let cachectl = |arguments: &[&str]| {
        let mut command = Command::new(workspace_programs().join("cachectl"));
        command.env("CACHECTL_BACKEND", format!("synapse:unix:{}", daemon.path("synapse").display()));
        command.env("CACHECTL_ADMIN", &daemon.admin).env("CACHECTL_ADMIN_TOKEN_FILE", daemon.path("token"));
        let output = outside::run(command.args(arguments), DEADLINE);
        (output.status.code().expect("an exit status"), outside::text(&output))
    };
    let (code, set) = cachectl(&["namespace", "set", "vm", "store_weight=3"]);
    assert_eq!(code, 0, "not over synapse, where changes are refused: {set}");
    let backend = format!("synapse:unix:{}", daemon.path("synapse").display());
    let (code, refused) = cachectl(&["-b", &backend, "namespace", "set", "vm", "store_weight=4"]);
    assert_eq!((code, refused.contains("sent over synapse")), (4, true), "{refused}");
}

/// With TLS on the admin listener, `cachectl` needs https, and a certificate from a known
/// authority.
#[test]
fn cachectl_asks_by_https() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let path = |name: &str| certificates.path(name).display().to_string();
    std::fs::write(certificates.path("token"), "0123456789abcdef0123\n").expect("a token");
    let text = format!(
        "[admin]\nlisten = [\"0.0.0.0:0\"]\ntoken_file = \"{}\"\n[admin.tls]\nchain_file = \"{}\"\nkey_file = \"{}\"\n",
        path("token"),
        path("server.pem"),
        path("server.key")
    );
    std::fs::write(certificates.path("cached.toml"), text).expect("a configuration");
    let server = Server::start(&format!("--config={}", path("cached.toml")));
    let log = server.log();
    let port =
        log.lines().find_map(|line| line.strip_prefix("admin on https://0.0.0.0:")).expect("its address");
    let ask = |scheme: &str, more: &[&str]| {
        let url = format!("{scheme}://127.0.0.1:{}", port.trim());
        let mut command = std::process::Command::new(workspace_programs().join("cachectl"));
        command.args(["--admin", &url, "--admin-token-file", &path("token")]).args(more);
        let output = outside::run(command.args(["config", "threads"]), DEADLINE);
        (output.status.code().expect("an exit status"), outside::text(&output))
    };
    let (code, shown) = ask("https", &["--admin-ca-file", &path("ca.pem")]);
    assert_eq!((code, shown.contains("memcached.threads = ")), (0, true), "{shown}");
    let other = others.path("ca.pem").display().to_string();
    let (code, shown) = ask("https", &["--admin-ca-file", &other]);
    assert_eq!((code != 0, shown.contains("invalid peer certificate")), (true, true), "{shown}");
    let (code, shown) = ask("https", &[]);
    assert_eq!((code, shown.contains("https needs --admin-ca-file")), (2, true), "{shown}");
    let (code, shown) = ask("http", &["--admin-ca-file", &path("ca.pem")]);
    assert!(code != 0 && !shown.contains("memcached.threads"), "{shown}");
}

#[test]
fn a_cache_knows_what_is_hot_what_was_missed_and_what_more_memory_would_give() {
    let cached = cached();
    let mut stream = UnixStream::connect(cached.path("memcached")).expect("a connection");
    for _ in 0..2000 {
        stream.write_all(b"get nothing\r\n").expect("a request");
        let mut reply = [0; 5];
        stream.read_exact(&mut reply).expect("a reply");
    }
    wait_for("a hot key", || cached.cachectl(&["hot"]).1.contains("nothing").then_some(()));
    wait_for("the misses", || {
        let (code, report) = cached.cachectl(&["misses"]);
        assert_eq!(code, 0, "{report}");
        report.contains("2000").then_some(())
    });
    let (code, curve) = cached.cachectl(&["mrc", "items"]);
    assert_eq!((code, curve.contains("items")), (0, true), "{curve}");
    let (code, slow) = cached.cachectl(&["slow"]);
    assert_eq!(code, 0, "{slow}");
    assert_eq!(cached.json("/status.json")["insight"], true);
}

#[test]
fn synapsed_knows_which_objects_are_hot_why_they_were_missed_and_what_more_memory_would_give() {
    // Where the disk is slow, the cache would read ahead, and nothing that is read ahead is missed.
    let synapsed = synapsed_with(|text| text.replace(CACHE, &format!("{CACHE}read_ahead_bytes_max = 0\n")));
    let client = connect(&synapsed.path("synapse"));
    let object = |name: &str| -> ObjectId { format!("vm/{name}").parse().expect("a name") };
    // The data are 4 MiB in a cache of 1 MiB, read twice in order, so that all data are evicted
    // before they are read again.
    let names: Vec<String> = (0..64).map(|n| format!("disk-{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        // This prevents full sample queues, however slow the server's own thread is.
        if n % 16 == 0 {
            synapsed.json("/mrc.json");
        }
        block_on(client.put(&object(name), &[7; 64 << 10])).expect("it is written");
    }
    for (n, name) in names.iter().chain(&names).enumerate() {
        if n % 16 == 0 {
            synapsed.json("/mrc.json");
        }
        assert_eq!(block_on(client.get(&object(name))).expect("it is there").len(), 64 << 10);
    }
    for _ in 0..2000 {
        block_on(client.get(&object("disk-0"))).expect("it is there");
    }
    wait_for("a hot object", || {
        let document = synapsed.json("/hot.json");
        let is_found = document["keys"][0]["key"] == "vm/disk-0";
        (is_found && document["prefixes"][0]["prefix"] == "vm").then_some(())
    });
    let (_, without_token) = http::get(&synapsed.admin, "/hot.json");
    assert!(without_token.contains("vm/d…") && !without_token.contains("vm/disk-0"), "{without_token}");
    let (code, hot) = synapsed.cachectl(&["hot"]);
    assert_eq!((code, hot.contains("vm/disk-0")), (0, true), "{hot}");
    let (code, misses) = synapsed.cachectl(&["misses"]);
    assert_eq!((code, misses.contains("evicted")), (0, true), "{misses}");
    let evicted =
        synapsed.metric("cached_objects_misses_by_reason{reason=\"evicted\"}").expect("it is there");
    assert!(evicted >= 1024.0, "{evicted}, not even half of the 2 x 1024 buckets that were read");
    let curve = synapsed.json("/mrc.json");
    let point = |scope: &str, at: usize| -> f64 {
        let curves = curve["curves"].as_array().expect("curves");
        let curve = curves.iter().find(|one| one["scope"] == scope).expect("the curve");
        curve["points"][at]["miss_ratio"].as_f64().expect("a ratio")
    };
    for scope in ["objects", "objects:vm"] {
        assert!(point(scope, 4) < point(scope, 2), "more memory keeps them: {curve}");
    }
    let (code, mrc) = synapsed.cachectl(&["mrc", "objects"]);
    assert_eq!((code, mrc.contains("the memory it has")), (0, true), "{mrc}");
    assert_eq!(synapsed.cachectl(&["slow"]).0, 0);
    assert_eq!(synapsed.json("/status.json")["insight"], true);
    drop(client);
    assert_eq!(synapsed.cachectl(&["drain"]).0, 0);
    let (status, log) = synapsed.wait();
    assert!(status.success(), "what is shown keeps no handle of the cache: {log}");
}

#[test]
fn the_limits_of_the_synapse_listener_change_while_clients_are_connected() {
    for daemon in [cached(), synapsed()] {
        let socket = daemon.path("synapse");
        let client = connect(&socket);
        let disk: ObjectId = "vm/disk".parse().expect("a name");
        block_on(client.put(&disk, &[7; 8192])).expect("it is written");
        let of = |limits: &str| {
            daemon.configure(|text| {
                let (before, rest) = text.split_once("# limits\n").expect("the place");
                let (_, after) = rest.split_once("# end of limits").expect("its end");
                format!("{before}# limits\n{limits}\n# end of limits{after}")
            });
            daemon.cachectl(&["reload"])
        };
        let (code, report) = of("connections_max = 1");
        assert_eq!((code, report.contains("synapse.connections_max 1024 -> 1")), (0, true), "{report}");
        assert!(block_on(client.get(&disk)).is_ok(), "the client stays");
        let mut config = ClientConfig::new(Address::Unix(socket.clone()));
        config.connect_timeout = std::time::Duration::from_secs(1);
        assert!(SynapseBlocker::connect_on_thread(config).is_err(), "there is no second place");
        let (code, report) =
            of("connections_max = 64\nbytes_max = \"64 MiB\"\nsession_bytes_max = \"32 MiB\"");
        assert_eq!((code, report.contains("synapse.bytes_max")), (0, true), "{report}");
        let second = connect(&socket);
        for client in [&client, &second] {
            assert_eq!(block_on(client.get(&disk)).expect("it is there").len(), 8192);
        }
        // The shares of 4 000 connections exceed the memory, so the whole reload is refused.
        let (code, report) = of(
            "connections_max = 4000\nbytes_max = \"64 MiB\"\nsession_bytes_max = \"32 MiB\"\npeer_timeout_ms = 1234",
        );
        assert_ne!(code, 0, "{report}");
        assert!(report.contains("synapse.bytes_max: must be at least"), "{report}");
        let (_, config) = daemon.cachectl(&["config", "peer_timeout"]);
        assert!(config.contains("30000"), "nothing of it is in force: {config}");
    }
}

#[test]
fn the_absence_and_the_return_of_a_server_below_are_logged() {
    let store = Daemon::start("synapsed", |place| {
        format!("backend = \"memory:\"\n[synapse]\nlisten = [\"unix:{place}/synapse\"]\n")
    });
    let below = store.path("synapse").display().to_string();
    let cache = Daemon::start("cached", |_| {
        format!("[objects]\n[objects.backend]\nkind = \"synapse\"\naddress = \"unix:{below}\"\n")
    });
    let logged = |words: &str| cache.log().lines().filter(|line| line.contains(words)).count();
    assert_eq!(logged("the server is unreachable"), 0);
    let store = store.restart("synapsed", libc::SIGKILL);
    wait_for("the line about its return", || (logged("the server is reachable again") == 1).then_some(()));
    let log = cache.log();
    let away = log.lines().find(|line| line.contains("the server is unreachable"));
    assert!(away.is_some_and(|line| line.contains(&below) && line.contains("cause=")), "{log}");
    drop(store);
}

#[test]
fn a_cache_whose_store_stalls_is_not_ready_until_its_dirty_data_are_stored() {
    let store = Daemon::start("synapsed", |place| {
        format!(
            "backend = {{ kind = \"file\", create = true, path = \"{place}/store\" }}\n[synapse]\nlisten = [\"unix:{place}/synapse\"]\n"
        )
    });
    let below = store.path("synapse").display().to_string();
    let cache = Daemon::start("cached", |place| {
        format!(
            "[objects]\nwrite = \"back\"\ndirty_age_ms_max = 100\n[objects.backend]\nkind = \"synapse\"\n\
             address = \"unix:{below}\"\n[synapse]\nlisten = [\"unix:{place}/synapse\"]\n"
        )
    });
    let client = connect(&cache.path("synapse"));
    let disk: ObjectId = "vm/disk".parse().expect("a name");
    let change = || block_on(client.write(WriteRequest::new(disk.clone(), 0, vec![7; 8192])));
    change().expect("it is written");
    let age = || cache.metric("cached_objects_dirty_age_seconds").expect("it is there");
    wait_for("the flush of the first change", || (age() == 0.0).then_some(()));
    assert_eq!(http::get(&cache.admin, "/readyz").0, 200);
    // The stopped server keeps its connections, and sends no replies.
    store.signal(libc::SIGSTOP);
    change().expect("it is in the cache");
    // Nothing waits for this: the age limit below is 30 s. Half of the time is reserved for the reply.
    let (code, why) = cache.cachectl(&["--timeout", "12", "namespace", "flush", "vm"]);
    assert_eq!((code, why.contains("its dirty data are not stored yet")), (5, true), "{why}");
    let reasons = || http::get(&cache.admin, "/readyz");
    let waits_for = |words: &str| wait_for(words, || reasons().1.contains(words).then_some(()));
    waits_for("the store has not answered for ");
    // The wait is twice the age limit of dirty data, plus 30 s.
    let is_named = reasons().1.contains("dirty data are");
    assert!(!is_named || age() > 30.0, "too early: {:?}", reasons());
    waits_for("dirty data are ");
    assert_eq!((reasons().0, age() > 30.0), (503, true));
    let (code, report) = cache.cachectl(&["health"]);
    assert_eq!((code, report.contains("dirty data are")), (5, true), "{report}");
    assert_eq!(http::get(&cache.admin, "/livez").0, 200, "a restart would lose them");
    store.signal(libc::SIGCONT);
    assert_eq!(cache.cachectl(&["namespace", "flush", "vm"]).0, 0);
    wait_for("the flush", || (reasons().0 == 200 && age() == 0.0).then_some(()));
    assert!(cache.end().0.success());
}
