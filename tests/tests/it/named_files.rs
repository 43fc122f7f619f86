//! Unusable files, in every place where a configuration, a flag or an environment variable names a file: `cached` and
//! `synapsed` refuse each of them, in the check and at the start, with one line and the exit status for the kind of
//! problem.

use cached_tests::daemon::{DEADLINE, write_secret};
use cached_tests::outside::{are_installed, run};
use cached_tests::program::{Flavour, Program, workspace_programs};
use cached_tests::tls::Certificates;
use std::fs::{File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// A place that names a file, with `FILE` as a placeholder for the path.
enum Place {
    /// The text of a configuration file, and the key that names the file.
    Key(&'static str, &'static str),
    /// Flags, and the exit status for a mistake.
    Flags(&'static str, i32),
    /// Flags, the environment variable that names the file, and the exit status for a mistake.
    Variable(&'static str, &'static str, i32),
    /// The configuration file itself.
    Configuration,
}

use Place::{Configuration, Flags, Key, Variable};

/// The exit status for a mistake in the configuration.
const MISTAKE: i32 = 78;
/// The exit status for a failure that may be temporary.
const TROUBLE: i32 = 75;

/// Replaces `LISTENER`: the table `[s3]` with a listener that authorises requests. The key that
/// names the file follows.
const LISTENER: &str = "[s3]\nlisten = [\"127.0.0.1:0\"]\nupstream = \"http://127.0.0.1:1\"\nauth = \"listener\"\n\
                        upstream_access_key = \"A\"\n";

const OF_CACHED: &[Place] = &[
    Configuration,
    Key("[memcached]\nauth_file = FILE", "memcached.auth_file"),
    Key("[memcached]\nsasl_file = FILE", "memcached.sasl_file"),
    Key("[memcached.tls]\nchain_file = FILE", "memcached.tls.chain_file"),
    Key("[memcached.tls]\nchain_file = CHAIN\nkey_file = FILE", "memcached.tls.key_file"),
    Key("[memcached.tls]\nchain_file = CHAIN\nkey_file = OWN_KEY\nca_file = FILE", "memcached.tls.ca_file"),
    Key("[admin]\ntoken_file = FILE", "admin.token_file"),
    Key("[admin.tls]\nchain_file = FILE", "admin.tls.chain_file"),
    Key("OBJECTS[synapse]\nsecret_file = FILE", "synapse.secret_file"),
    Key("OBJECTS[synapse]\nsecret_file_previous = FILE", "synapse.secret_file_previous"),
    Key("OBJECTS[objects.http]\nkeys_file = FILE", "objects.http.keys_file"),
    Key("OBJECTS[objects.http.tls]\nchain_file = FILE", "objects.http.tls.chain_file"),
    Key("OBJECTS[volumes]\n[nbd.tls]\nchain_file = FILE", "nbd.tls.chain_file"),
    Key(
        "[objects.backend]\nkind = \"synapse\"\naddress = \"h:1\"\nsecret_file = FILE",
        "objects.backend.secret_file",
    ),
    Key(
        "[objects.backend]\nkind = \"s3\"\nbucket = \"disks\"\ncredentials_file = FILE",
        "objects.backend.credentials_file",
    ),
    Key("[objects.backend]\nkind = \"s3\"\nbucket = \"disks\"\nca_file = FILE", "objects.backend.ca_file"),
    Key("[objects.backend]\nkind = \"rados\"\npool = \"p\"\nconf = FILE", "objects.backend.conf"),
    Key("[objects.backend]\nkind = \"rados\"\npool = \"p\"\nkeyring = FILE", "objects.backend.keyring"),
    Key("LISTENERkeys_file = FILE\nupstream_secret_file = SECRET", "s3.keys_file"),
    Key("LISTENERkeys_file = KEYS\nupstream_secret_file = FILE", "s3.upstream_secret_file"),
    Key(
        "LISTENERkeys_file = KEYS\nupstream_secret_file = SECRET\nupstream_ca_file = FILE",
        "s3.upstream_ca_file",
    ),
    Key(
        "LISTENERkeys_file = KEYS\nupstream_secret_file = SECRET\n[s3.tls]\nchain_file = FILE",
        "s3.tls.chain_file",
    ),
    Flags("-Y FILE", 1),
    Variable("-S", "MEMCACHED_SASL_PWDB", 1),
    Flags("-Z -o ssl_chain_cert=FILE", 64),
    Flags("-Z -o ssl_chain_cert=CHAIN,ssl_key=FILE", 64),
    Flags("-Z -o ssl_chain_cert=CHAIN,ssl_key=OWN_KEY,ssl_ca_cert=FILE", 64),
];

const OF_SYNAPSED: &[Place] = &[
    Configuration,
    Key("backend = \"memory:\"\n[synapse]\nsecret_file = FILE", "synapse.secret_file"),
    Key("backend = \"memory:\"\n[synapse]\nsecret_file_previous = FILE", "synapse.secret_file_previous"),
    Key("backend = \"memory:\"\n[objects.http]\nkeys_file = FILE", "objects.http.keys_file"),
    Key("backend = \"memory:\"\n[objects.http.tls]\nchain_file = FILE", "objects.http.tls.chain_file"),
    Key("backend = \"memory:\"\n[admin]\ntoken_file = FILE", "admin.token_file"),
    Key("backend = \"memory:\"\n[admin.tls]\nchain_file = FILE", "admin.tls.chain_file"),
    Key("[backend]\nkind = \"synapse\"\naddress = \"h:1\"\nsecret_file = FILE", "backend.secret_file"),
    Key("[backend]\nkind = \"s3\"\nbucket = \"disks\"\ncredentials_file = FILE", "backend.credentials_file"),
    Key("[backend]\nkind = \"s3\"\nbucket = \"disks\"\nca_file = FILE", "backend.ca_file"),
    Key("[backend]\nkind = \"rados\"\npool = \"p\"\nconf = FILE", "backend.conf"),
    Key("[backend]\nkind = \"rados\"\npool = \"p\"\nkeyring = FILE", "backend.keyring"),
];

/// Returns unusable files: the path, the end of the error line, and whether the problem counts as a
/// mistake.
fn problems(dir: &Path) -> Vec<(String, &'static str, bool)> {
    let path = |name: &str| dir.join(name).display().to_string();
    let large = File::create(path("large")).expect("a file");
    large.set_len((16 << 20) + 1).expect("a sparse file");
    std::fs::write(path("secret"), "x").expect("a file");
    std::fs::set_permissions(path("secret"), Permissions::from_mode(0o000)).expect("a file of this user");
    symlink(path("loop"), path("loop")).expect("a link");
    assert!(run(Command::new("mkfifo").arg(path("fifo")), DEADLINE).status.success());
    std::fs::create_dir(path("directory")).expect("a directory");
    vec![
        (path("missing"), "No such file or directory", true),
        (path("large/file"), "Not a directory", true),
        (path(&"n".repeat(300)), "File name too long", true),
        (path("loop"), "Too many levels of symbolic links", true),
        (path("secret"), "Permission denied", true),
        (path("directory"), "it is a directory, not a regular file", true),
        (path("fifo"), "it is a FIFO, not a regular file", true),
        (path("large"), "it is larger than 16777216 bytes", true),
        ("/dev/zero".into(), "it is a device, not a regular file", true),
        // The first page of this file is not mapped.
        ("/proc/self/mem".into(), "Input/output error", false),
    ]
}

/// Runs a program without root's right to read every file. Returns its exit status and standard error.
fn ended(mut command: Command) -> (Option<i32>, String) {
    command.stdin(Stdio::null());
    // SAFETY: prctl is async-signal-safe and touches no memory of ours.
    unsafe {
        command.pre_exec(|| {
            /// CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH.
            const READ_ALL: [libc::c_ulong; 2] = [1, 2];
            // The call fails for users other than root, who do not have these capabilities.
            for capability in READ_ALL {
                libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
            }
            Ok(())
        });
    }
    let output = run(&mut command, DEADLINE);
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn check(program: &Path, places: &[Place]) {
    let certificates = Certificates::new();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| dir.path().join(name).display().to_string();
    for (name, text) in [
        ("keys", "[[keys]]\naccess_key = \"a\"\nsecret_key = \"0123456789abcdef\"\nread = [\"media\"]\n"),
        ("secret-key", "0123456789abcdef\n"),
    ] {
        write_secret(&dir.path().join(name), text);
    }
    let config = at("config.toml");
    for (number, (file, cause, is_mistake)) in problems(dir.path()).into_iter().enumerate() {
        let with = |text: &str, quote: &str| {
            let quoted = |path: &str| format!("{quote}{path}{quote}");
            let own = |name: &str| quoted(&certificates.path(name).display().to_string());
            text.replace("LISTENER", LISTENER)
                .replace("OBJECTS", "[objects.backend]\nkind = \"memory\"\n")
                .replace("CHAIN", &own("server.pem"))
                .replace("OWN_KEY", &own("server.key"))
                .replace("KEYS", &quoted(&at("keys")))
                .replace("SECRET", &quoted(&at("secret-key")))
                .replace("FILE", &quoted(&file))
        };
        for (of, place) in places.iter().enumerate() {
            let (text, flags, line, status) = match place {
                Key(text, key) => {
                    (with(text, "\""), format!("--config={config}"), format!("{config}: {key}: "), MISTAKE)
                }
                Configuration => {
                    (String::new(), format!("--config={file}"), format!("{file}: cannot be read: "), MISTAKE)
                }
                Flags(flags, status) => (String::new(), with(flags, ""), String::new(), *status),
                Variable(flags, _, status) => (String::new(), (*flags).to_owned(), String::new(), *status),
            };
            std::fs::write(&config, &text).expect("a file");
            // Each place is tested with half of the problems at a check, and with the others at a
            // start.
            let mode = ["--check-config", ""][(number + of) % 2];
            let mut command = Command::new(program);
            command.args(flags.split_whitespace()).args(mode.split_whitespace());
            if let Variable(_, name, _) = place {
                command.env(name, &file);
            }
            let (found, said) = ended(command);
            let said = said.trim_end().trim_start_matches("synapsed: ");
            let case = format!("{flags} {mode}\n{text}\n{said}");
            assert_eq!(found, Some(if is_mistake { status } else { TROUBLE }), "{case}");
            assert_eq!(said.lines().count(), 1, "{case}");
            assert!(said.starts_with(&line) && said.contains(&file) && said.ends_with(cause), "{case}");
        }
    }
}

#[test]
fn cached_reads_no_file_that_it_should_not() {
    let program = Program::under_test();
    // memcached has neither these messages nor a configuration file.
    if program.flavour == Flavour::Cached {
        check(&program.path, OF_CACHED);
    }
}

#[test]
fn synapsed_reads_no_file_that_it_should_not() {
    check(&workspace_programs().join("synapsed"), OF_SYNAPSED);
}

/// A shell's `<(…)` is a pipe, which can be read once.
#[test]
fn a_configuration_may_come_from_a_command() {
    if Program::under_test().flavour != Flavour::Cached
        || !are_installed("a_configuration_may_come_from_a_command", &["bash"])
    {
        return;
    }
    for (program, text) in [("cached", "[memcached]"), ("synapsed", "backend = 'memory:'")] {
        let program = workspace_programs().join(program);
        let script = format!("exec {} --check-config --config <(echo \"{text}\")", program.display());
        let output = run(Command::new("bash").arg("-c").arg(&script), DEADLINE);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("the configuration is valid"),
            "{script}: {output:?}"
        );
    }
}
