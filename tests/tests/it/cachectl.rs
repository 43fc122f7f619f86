//! `cachectl` as an operator uses it with several servers and a cold cache: contexts and `warm`.

use cached_tests::daemon::{DEADLINE, Daemon};
use cached_tests::outside;
use cached_tests::program::workspace_programs;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// The environment and the arguments of a command, its exit status, and a part of its output.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str], i32, &'a str);

/// An address at which nothing listens.
const NOBODY: &str = "127.0.0.1:1";

/// The size of the volume of the test.
const VOLUME_BYTES: usize = 1 << 20;

fn start() -> Daemon {
    Daemon::start("cached", |place| {
        format!(
            "[objects]\nwriter = \"cache\"\nmemory_bytes_max = \"32M\"\nshutdown_flush_secs = \"2 min\"\n[objects.backend]\nkind = \"file\"\n\
             create = true\npath = \"{place}/store\"\n[volumes]\n[synapse]\nlisten = [\"unix:{place}/synapse\"]\n"
        )
    })
}

fn synapse(daemon: &Daemon) -> String {
    format!("synapse:unix:{}", daemon.path("synapse").display())
}

/// Runs `cachectl` with this environment only, and contexts in `home`.
fn cachectl(home: &Path, environment: &[(&str, &str)], arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(workspace_programs().join("cachectl"));
    command.env_clear().env("XDG_CONFIG_HOME", home).envs(environment.iter().copied()).args(arguments);
    let output = outside::run(&mut command, DEADLINE);
    (output.status.code().expect("an exit status"), outside::text(&output))
}

#[test]
fn the_first_of_option_environment_and_context_names_the_server() {
    let daemon = start();
    let dir = tempfile::tempdir().expect("a directory");
    let home = dir.path();
    let (token, backend) = (daemon.path("token").display().to_string(), synapse(&daemon));
    let (token, backend) = (token.as_str(), backend.as_str());
    let run = |environment: &[(&str, &str)], arguments: &[&str]| cachectl(home, environment, arguments);
    let add = ["contexts", "add", "prod", "--admin", &daemon.admin, "--admin-token-file", token, "--backend"];
    let adds: [(&[&str], i32); 10] = [
        (&[&add[..], &[backend]].concat(), 0),
        // The context exists already.
        (&[&add[..], &[backend]].concat(), 4),
        (&[&add[..], &[backend, "--replace"]].concat(), 0),
        (&["contexts", "add", "gone", "--admin", NOBODY], 0),
        (&["contexts", "add", "objects", "--backend", backend], 0),
        (&["-b", backend, "contexts", "add", "before"], 0),
        (&["contexts", "add", "nothing"], 2),
        (&["contexts", "add", "secret", "--backend", "rados:vm,librados.key=secret"], 2),
        (&["contexts", "add", "relative", "--backend", "file:store"], 2),
        (&["contexts", "add", "a/b", "--admin", NOBODY], 2),
    ];
    for (arguments, code) in adds {
        let (found, text) = run(&[], arguments);
        assert_eq!(found, code, "{arguments:?}: {text}");
    }
    let file = home.join("cachectl/contexts.toml");
    let mode = std::fs::metadata(&file).expect("the contexts").permissions().mode() & 0o777;
    let text = std::fs::read_to_string(&file).expect("the contexts");
    let secret = std::fs::read_to_string(token).expect("a token");
    assert!(mode == 0o600 && text.contains(token) && !text.contains(secret.trim()), "{mode:o} {text}");

    std::fs::write(home.join("other"), "another-token-than-that-of-prod\n").expect("a token");
    let other = home.join("other").display().to_string();
    let at_nobody = ("CACHECTL_ADMIN", NOBODY);
    let in_prod = ("CACHECTL_CONTEXT", "prod");
    let cases: &[Case<'_>] = &[
        (&[at_nobody], &["health"], 5, "named by CACHECTL_ADMIN"),
        (&[at_nobody], &["--context", "prod", "health"], 0, "ready"),
        (&[at_nobody, in_prod], &["health"], 5, "named by CACHECTL_ADMIN"),
        (&[in_prod], &["health"], 0, "ready"),
        (&[in_prod], &["--admin", NOBODY, "health"], 5, "named by --admin"),
        (&[in_prod], &["--context", "gone", "health"], 5, "of context gone, named by --context"),
        (&[], &["--context", "prodd", "health"], 2, "did you mean prod?"),
        // The command contacts only the chosen server.
        (
            &[in_prod],
            &["--context", "objects", "health"],
            2,
            "context objects, named by --context, has no admin listener",
        ),
        (&[], &["--context", "gone", "ls"], 2, "has no backend"),
        (&[], &["ls"], 2, "no backend is given"),
        (&[in_prod], &["config", "shutdown_flush"], 0, "objects.shutdown_flush_secs = 120  # file, live"),
        (&[in_prod], &["config", "objects.memory"], 0, "objects.memory_bytes_max = \"32 MiB\"  # file"),
        (&[in_prod], &["config", "memcached.threadz"], 3, "did you mean memcached.threads?"),
        (&[in_prod], &["stats", "read_hitz"], 3, "did you mean cache_read_hits_total?"),
        (&[in_prod], &["ls"], 0, ""),
        (&[in_prod], &["get", "absent"], 3, "of context prod, named by CACHECTL_CONTEXT"),
        // A token in the environment is not used for a context's server.
        (&[in_prod, ("CACHECTL_ADMIN_TOKEN_FILE", &other)], &["reload"], 0, "nothing has changed"),
        (&[in_prod], &["--admin-token-file", &other, "reload"], 4, "the token is not valid"),
        (&[("CACHECTL_CONTEXT", "objects")], &["namespace", "list"], 0, ""),
        (&[("CACHECTL_CONTEXT", "before")], &["namespace", "list"], 0, ""),
        // The variable names a backend other than the context's.
        (
            &[("CACHECTL_CONTEXT", "objects"), ("CACHECTL_BACKEND", backend)],
            &["namespace", "list"],
            2,
            "has no admin listener",
        ),
        (&[], &["use", "gone"], 0, "context gone is in use"),
        (&[], &["health"], 5, "of context gone, named by cachectl use"),
        (&[in_prod], &["health"], 0, "ready"),
        (&[], &["contexts"], 0, "* gone"),
        (&[], &["contexts", "remove", "gone"], 0, "removed"),
        (&[], &["use", "gone"], 2, "there is no context \"gone\""),
        (&[], &["use", "prod"], 0, ""),
        (&[], &["health"], 0, "ready"),
        (&[], &["use", "--none"], 0, "no context is in use"),
        (&[], &["ls"], 2, "no backend is given"),
    ];
    for (environment, arguments, code, words) in cases {
        let (found, text) = run(environment, arguments);
        assert_eq!((found, text.contains(words)), (*code, true), "{environment:?} {arguments:?}: {text}");
    }
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).expect("other permissions");
    let (code, text) = run(&[in_prod], &["health"]);
    assert_eq!((code, text.contains("others may change it (mode 666)")), (2, true), "{text}");
    // No file can be below another file, nor in a directory that this user may not search.
    let (code, text) = cachectl(&file, &[], &["ls"]);
    assert_eq!((code, text.contains("no backend is given")), (2, true), "{text}");
    // If the command line names the server, the file does not matter.
    assert_eq!(run(&[], &["--admin", &daemon.admin, "health"]).0, 0);
    let (status, log) = daemon.end();
    assert!(status.success(), "{log}");
}

#[test]
fn a_warm_cache_answers_without_the_store() {
    let daemon = start();
    let backend = synapse(&daemon);
    let run = |arguments: &[&str]| daemon.cachectl(&[&["--json", "-b", &backend][..], arguments].concat());
    let count = |name: &str| daemon.json("/status.json")["objects"][name].as_u64().expect("a count");
    // The object is larger than one read, so that it is warmed in several ranges.
    let large: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    for (name, content) in [("a/large", &large[..]), ("a/1", &[1; 5000]), ("b/1", &[2; 5000])] {
        std::fs::write(daemon.path("input"), content).expect("a file");
        let (code, text) = run(&["put", name, &daemon.path("input").display().to_string()]);
        assert_eq!(code, 0, "{text}");
    }
    let empty = || {
        for command in ["detach", "attach"] {
            let (code, text) = daemon.cachectl(&["cache", command]);
            assert_eq!(code, 0, "{text}");
        }
        assert_eq!(count("clean_bytes"), 0, "the cache is empty");
    };
    empty();
    let (code, text) = run(&["warm", "a/", "--concurrency", "2", "--rate", "1GiB"]);
    let warmed: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!((code, &warmed["objects"], &warmed["bytes"]), (0, &Value::from(2), &Value::from(3_005_000)));
    let (hits, misses) = (count("read_hits"), count("read_misses"));
    let (code, text) = run(&["get", "a/large", &daemon.path("output").display().to_string()]);
    assert_eq!(code, 0, "{text}");
    assert!(std::fs::read(daemon.path("output")).expect("a file") == large, "other content");
    assert_eq!(count("read_misses"), misses, "no read needed the store");
    assert!(count("read_hits") > hits);
    assert_eq!(run(&["get", "b/1", &daemon.path("output").display().to_string()]).0, 0);
    assert!(count("read_misses") > misses, "what was not warmed needs the store");

    // The clone's data belong to another volume.
    std::fs::write(daemon.path("image"), vec![7; VOLUME_BYTES]).expect("an image");
    let image = daemon.path("image").display().to_string();
    let commands: [&[&str]; 3] = [
        &["volume", "import", "disk", &image],
        &["volume", "snapshot", "disk@gold"],
        &["volume", "clone", "disk@gold", "copy"],
    ];
    for arguments in commands {
        let (code, text) = run(arguments);
        assert_eq!(code, 0, "{arguments:?}: {text}");
    }
    for volume in ["copy", "disk@gold"] {
        empty();
        let (code, text) = run(&["warm", "--volume", volume]);
        assert_eq!(code, 0, "{text}");
        assert!(count("clean_bytes") >= VOLUME_BYTES as u64, "{volume}: {text}");
    }

    let cases: [(&[&str], i32, &str); 4] = [
        (&["-b", &backend, "warm", "--volume", "none"], 3, "there is no volume"),
        (&["-b", &backend, "warm", "a/", "--volume", "copy"], 2, "cannot be used with"),
        (&["-b", &backend, "warm", "--rate", "fast"], 2, "is not a size"),
        (&["-b", "memory:", "warm"], 2, "no cache"),
    ];
    for (arguments, code, words) in cases {
        let (found, text) = daemon.cachectl(arguments);
        assert_eq!((found, text.contains(words)), (code, true), "{arguments:?}: {text}");
    }
    // With one of these seeds the list succeeds, and a read fails.
    let with_seed = |seed: u32| {
        let failing = format!("faulty:seed={seed},error_permille=400:{backend}");
        let (code, text) = daemon.cachectl(&["-b", &failing, "warm", "--concurrency", "1"]);
        text.contains("could not be read").then_some(code)
    };
    assert_eq!((1..50).find_map(with_seed), Some(5));
    let (status, log) = daemon.end();
    assert!(status.success(), "{log}");
}
