//! Runs the procedures of the pages for operators: the shell examples of each page in order, in a
//! separate network namespace with directories of their own. Each command must have the status and
//! the form of output that the page shows; numbers may differ.

use cached_tests::page::{Shell, Step, blocks, can_run, has_form, localized, make_directories, steps};
use cached_tests::program::{repository, workspace_programs};
use std::fs;
use std::os::unix::fs::symlink;

/// The programs that the examples need in addition to the workspace's own.
const OUTSIDE: [&str; 9] = ["unshare", "bash", "ip", "nc", "openssl", "qemu-io", "jq", "install", "curl"];

/// The pages, without the ending.
const PAGES: [&str; 11] = [
    "operations",
    "operations/run",
    "operations/size",
    "operations/watch",
    "operations/mend",
    "cache-control",
    "http",
    "journal",
    "restart",
    "ring",
    "volumes",
];

/// A server with all parts that the pages use.
const SERVER: [&str; 4] = [
    "(umask 077; head -c 18 /dev/urandom | base64 > /etc/cached/token)",
    r#"cat > /etc/cached/cached.toml <<'END'
[memcached]
listen = ["127.0.0.1:11211"]
threads = 4
connections_max = 1024
[insight]
sampled_share = 1.0
[objects]
write = "back"
writer = "cache"
backend = { kind = "file", path = "/var/lib/cached/store", create = true }
journal = { directory = "/var/lib/cached/journal", create = true, direct = false, segment_bytes = "1 MiB", limit_bytes = "272 MiB" }
[[objects.namespaces]]
name = "vm"
quota_bytes_max = "10 GiB"
[[objects.namespaces]]
name = "scratch"
write = "through"
[objects.http]
listen = ["127.0.0.1:11380"]
[synapse]
listen = ["127.0.0.1:11311"]
[volumes]
owner = "node1"
[nbd]
listen = ["127.0.0.1:10809"]
[admin]
listen = ["127.0.0.1:9150"]
token_file = "/etc/cached/token"
END"#,
    "mkdir /var/lib/cached && cached --config /etc/cached/cached.toml &",
    "export CACHECTL_ADMIN_TOKEN_FILE=/etc/cached/token",
];

/// A shell in directories of its own, for one page.
struct Procedures {
    shell: Shell,
    place: tempfile::TempDir,
}

impl Procedures {
    /// Returns the shell after these commands; `None` if the test is skipped.
    fn prepare(page: &str, commands: &[&str]) -> Option<Procedures> {
        let test = format!("the procedures of docs/{page}.md");
        if !can_run(&test, &OUTSIDE) {
            return None;
        }
        let place = tempfile::Builder::new().prefix("page").tempdir_in(env!("CARGO_TARGET_TMPDIR"));
        let place = place.expect("a directory");
        make_directories(place.path());
        let (installed, programs) = (place.path().join("usr/bin"), place.path().join("programs"));
        for name in ["cached", "cachectl"] {
            symlink(workspace_programs().join(name), programs.join(name)).expect("a link");
        }
        let others = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{}:{others}", installed.display(), programs.display());
        let shell = Shell::start(place.path(), &path);
        let mut procedures = Procedures { shell, place };
        for command in commands {
            let (status, lines) = procedures.run(command);
            assert_eq!(status, "0", "`{command}`:\n{}\n{}", lines.join("\n"), procedures.shell.errors());
        }
        Some(procedures)
    }

    fn run(&mut self, command: &str) -> (String, Vec<String>) {
        let root = self.place.path().display().to_string();
        let (status, lines) = self.shell.run(&localized(command, &root));
        (status, lines.iter().map(|line| line.replace(&root, "")).collect())
    }

    /// Runs the examples of a page. A step fails if its last line is an error of `cachectl`; all
    /// other steps succeed.
    fn run_page(&mut self, page: &str) {
        let text = fs::read_to_string(repository().join(format!("docs/{page}.md"))).expect(page);
        let steps = steps(&text);
        assert!(!steps.is_empty(), "docs/{page}.md has no examples");
        for step in steps {
            let Step { command, shown } = &step;
            let (status, lines) = match step.starts_server() {
                true => self.run(command),
                false => self.run(&format!("{{ {command}\n}} 2>&1")),
            };
            let fails = shown.last().is_some_and(|line| line.starts_with("cachectl: "));
            let errors = self.shell.errors();
            assert_eq!(status != "0", fails, "docs/{page}.md: `{command}`: {status}\n{lines:#?}\n{errors}");
            assert!(
                shown.is_empty() || has_form(shown, &lines),
                "docs/{page}.md: `{command}` has printed\n{lines:#?}\nthe page shows\n{shown:#?}\n{errors}"
            );
        }
    }
}

#[test]
fn run() {
    let more = [
        "ip addr add 10.0.0.5/32 dev lo",
        r"printf 'set session:eu:1 0 0 1\r\n1\r\nset session:us:1 0 0 1\r\n1\r\nquit\r\n' | nc 127.0.0.1 11211",
        // This stands for the operator's editor, and makes the changes that the page names.
        "export EDITOR='sed -i -e s/1024/4096/ -e s/^threads.*/threads=8/'",
    ];
    let Some(mut procedures) = Procedures::prepare("operations/run", &[&SERVER[..], &more].concat()) else {
        return;
    };
    procedures.run_page("operations/run");
}

#[test]
fn size() {
    let load = r"(for i in $(seq 100); do printf 'set k%d 0 0 1\r\n1\r\nget k%d\r\nget j%d\r\n' $i $i $i; done; printf 'quit\r\n') | nc 127.0.0.1 11211";
    let Some(mut procedures) = Procedures::prepare("operations/size", &[&SERVER[..], &[load]].concat())
    else {
        return;
    };
    procedures.run_page("operations/size");
}

#[test]
fn watch() {
    let Some(mut procedures) = Procedures::prepare("operations/watch", &SERVER) else { return };
    procedures.run_page("operations/watch");
}

#[test]
fn mend() {
    // No map contains this object.
    let leftover = "cachectl volume create disk 1G && qemu-io -f raw nbd://127.0.0.1/disk -c 'write 0 4k' -c flush && \
                    cachectl -b synapse:127.0.0.1:11311 --namespace volumes.0000001 put d/000000012/00000007 /etc/cached/token";
    let Some(mut procedures) = Procedures::prepare("operations/mend", &[&SERVER[..], &[leftover]].concat())
    else {
        return;
    };
    procedures.run_page("operations/mend");
}

#[test]
fn cache_control() {
    let objects = "for name in vm scratch; do cachectl -b synapse:127.0.0.1:11311 --namespace $name put one /etc/cached/token; done";
    let Some(mut procedures) = Procedures::prepare("cache-control", &[&SERVER[..], &[objects]].concat())
    else {
        return;
    };
    procedures.run_page("cache-control");
}

#[test]
fn http() {
    let files = "head -c 48213 /dev/urandom > report.pdf && cp report.pdf sent && echo 1 > first && echo 2 > next && echo 3 > data";
    let Some(mut procedures) = Procedures::prepare("http", &[&SERVER[..], &[files]].concat()) else { return };
    procedures.run_page("http");
    // curl exits with status 0 whatever the status of the response.
    for outcome in [
        "cmp sent report.pdf",
        "head -c 100 sent | cmp - begin",
        "curl -sf http://127.0.0.1:11380/docs/last | cmp - sent",
        "test $(curl -so gone -w '%{http_code}' http://127.0.0.1:11380/docs/2026/report.pdf) = 404",
        "curl -sf http://127.0.0.1:11380/docs/counter | cmp - next",
    ] {
        let (status, lines) = procedures.run(outcome);
        assert_eq!(status, "0", "{outcome}: {lines:?}");
    }
}

#[test]
fn journal() {
    let Some(mut procedures) = Procedures::prepare("journal", &[]) else { return };
    procedures.run_page("journal");
}

#[test]
fn restart() {
    let programs = "cp $PROGRAMS/cached /usr/bin/cached && cp $PROGRAMS/cached cached-new";
    let Some(mut procedures) = Procedures::prepare("restart", &[programs]) else { return };
    procedures.run_page("restart");
    // The last step is the upgrade.
    procedures.shell.wait_for_start("the upgrade");
    let get = r"printf 'get greeting\r\nquit\r\n' | nc 127.0.0.1 11211";
    let (_, lines) = procedures.run(get);
    assert_eq!(lines, ["VALUE greeting 0 5", "hello", "END"], "{}", procedures.shell.errors());
}

#[test]
fn ring() {
    let Some(mut procedures) = Procedures::prepare("ring", &[]) else { return };
    procedures.run_page("ring");
}

#[test]
fn volumes() {
    let volumes = "cachectl volume create data 1G && cachectl volume create log 1G && head -c 4M /dev/urandom > debian.raw";
    let Some(mut procedures) = Procedures::prepare("volumes", &[&SERVER[..], &[volumes]].concat()) else {
        return;
    };
    procedures.run_page("volumes");
}

/// This test runs every block of commands without a language. Other blocks name a language, and
/// blocks of commands among them also the reason why no test runs them.
#[test]
fn every_block_is_run_or_states_why_not() {
    for page in PAGES {
        let text = fs::read_to_string(repository().join(format!("docs/{page}.md"))).expect(page);
        for (language, block) in blocks(&text) {
            let known = match language.split_once(' ') {
                Some(("sh", reason)) => reason.starts_with('(') && reason.ends_with(')'),
                Some(_) => false,
                None => language.is_empty() || ["json", "toml", "yaml", "text"].contains(&language),
            };
            assert!(
                known,
                "docs/{page}.md: ```{language} must name a language, and for sh (the reason):\n{block}"
            );
            if let Some(reason) = language.strip_prefix("sh ") {
                println!("docs/{page}.md, not run {reason}:\n{block}");
            }
        }
    }
}
