//! Clients in other languages execute typical requests of applications: the programs in `clients/`.
//!
//! Each language's own tool downloads the packages once, into a copy below the target directory. A
//! test is skipped with a message if a runtime is missing on this machine, or its registry cannot
//! be reached.

use cached_tests::outside;
use cached_tests::program::{Flavour, Program};
use cached_tests::server::{Server, Start, bring_up};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const INSTALL_DEADLINE: Duration = Duration::from_secs(600);
const CLIENT_DEADLINE: Duration = Duration::from_secs(300);

/// libmemcached is used through Python, in both protocols.
#[test]
#[ignore = "long: clients, from the registries of their languages"]
fn pylibmc() {
    play("pylibmc", prepare_pylibmc);
}

/// The same test runs with a password (`-S`).
#[test]
#[ignore = "long: clients, from the registries of their languages"]
fn pylibmc_with_a_password() {
    play_with_a_password("pylibmc", prepare_pylibmc);
}

fn prepare_pylibmc() -> Result<(Command, Form), String> {
    let python = outside::find_program("python3").ok_or("there is no python3")?;
    let environment = workshop("pylibmc");
    let interpreter = environment.join("bin/python");
    // The client is built against the system's libmemcached, because the binary wheel contains a
    // libsasl without PLAIN.
    once(&environment, b"pylibmc==1.6.3 from source", || {
        install(Command::new(&python).args(["-m", "venv", "--clear"]).arg(&environment))?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-binary=pylibmc"];
        install(Command::new(&interpreter).args(pip).arg("pylibmc==1.6.3"))
    })?;
    let mut command = Command::new(interpreter);
    command.arg(clients().join("everyday_pylibmc.py"));
    Ok((command, Form::HostPort))
}

/// The client of Node uses the binary protocol.
#[test]
#[ignore = "long: clients, from the registries of their languages"]
fn memjs() {
    play("memjs", prepare_memjs);
}

/// The same test runs with a password (`-S`).
#[test]
#[ignore = "long: clients, from the registries of their languages"]
fn memjs_with_a_password() {
    play_with_a_password("memjs", prepare_memjs);
}

fn prepare_memjs() -> Result<(Command, Form), String> {
    let (npm, node) = (program("npm")?, program("node")?);
    let folder = copied("node", &["package.json", "package-lock.json", "everyday.js"])?;
    once(&folder, &read("node/package-lock.json"), || {
        install(Command::new(npm).args(["ci", "--no-audit", "--no-fund"]).current_dir(&folder))
    })?;
    let mut command = Command::new(node);
    command.arg("everyday.js").current_dir(folder);
    Ok((command, Form::Joined))
}

/// The client of Go uses the text protocol.
#[test]
#[ignore = "long: clients, from the registries of their languages"]
fn gomemcache() {
    play("gomemcache", || {
        let go = program("go")?;
        let folder = copied("go", &["go.mod", "go.sum", "everyday.go"])?;
        let mut sources = read("go/go.sum");
        sources.extend(read("go/everyday.go"));
        once(&folder, &sources, || {
            install(Command::new(go).args(["build", "-o", "everyday", "."]).current_dir(&folder))
        })?;
        Ok((Command::new(folder.join("everyday")), Form::Joined))
    });
}

/// Of the clients for Java, spymemcached uses the binary protocol, and xmemcached the text
/// protocol.
#[test]
#[ignore = "long: clients, from the registries of their languages"]
fn spymemcached_and_xmemcached() {
    play("spymemcached_and_xmemcached", || {
        let (maven, java) = (program("mvn")?, program("java")?);
        let folder = copied("java", &["pom.xml", "src/main/java/Everyday.java"])?;
        let mut sources = read("java/pom.xml");
        sources.extend(read("java/src/main/java/Everyday.java"));
        once(&folder, &sources, || {
            let goals =
                ["-q", "-B", "compile", "dependency:build-classpath", "-Dmdep.outputFile=classpath.txt"];
            install(Command::new(maven).args(goals).current_dir(&folder))
        })?;
        let libraries =
            std::fs::read_to_string(folder.join("classpath.txt")).map_err(|err| err.to_string())?;
        let mut command = Command::new(java);
        command.arg("-cp").arg(format!("target/classes:{}", libraries.trim())).arg("Everyday");
        command.current_dir(folder);
        Ok((command, Form::HostPort))
    });
}

/// dalli for Ruby uses the binary protocol, and, if it is new enough, meta commands.
#[test]
#[ignore = "long: clients, from the registries of their languages"]
fn dalli() {
    play("dalli", || {
        let ruby = program("ruby")?;
        let known = Command::new(&ruby).args(["-rdalli", "-e", "exit"]).output();
        if !known.is_ok_and(|output| output.status.success()) {
            return Err("dalli is not installed for ruby".to_owned());
        }
        let mut command = Command::new(ruby);
        command.arg(clients().join("everyday_dalli.rb"));
        Ok((command, Form::HostPort))
    });
}

/// The Prometheus exporter reads the statistics, and its output can be parsed.
#[test]
#[ignore = "long: clients, from the registries of their languages"]
fn memcached_exporter() {
    const PACKAGE: &str = "github.com/prometheus/memcached_exporter/cmd/memcached_exporter";
    let test = "memcached_exporter";
    let built = program("go").and_then(|go| {
        let folder = copied("exporter", &["go.mod", "go.sum"])?;
        once(&folder, &read("exporter/go.sum"), || {
            install(Command::new(go).args(["build", "-o", "exporter", PACKAGE]).current_dir(&folder))
        })?;
        Ok(folder.join("exporter"))
    });
    let exporter = match built {
        Ok(exporter) => exporter,
        Err(why) => return outside::skip(test, &why),
    };
    let server = Server::start("");
    let mut conn = server.connect();
    conn.ask(b"set a 0 0 1\r\nx\r\nget a\r\n", b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    let page = bring_up("the exporter", |port| {
        let mut command = Command::new(&exporter);
        command.arg(format!("--memcached.address=127.0.0.1:{}", server.port()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}")).arg("--memcached.timeout=60s");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut child = child.expect("the exporter starts");
        let page = metrics(&mut child, port);
        let _ = child.kill();
        let _ = child.wait();
        page.expect("the exporter answers")
    });
    let metrics: BTreeMap<&str, f64> = page
        .lines()
        .filter(|line| line.starts_with("memcached_"))
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            (name, value.parse().unwrap_or_else(|_| panic!("no number: {line}")))
        })
        .collect();
    let number = |name: &str| *metrics.get(name).unwrap_or_else(|| panic!("no {name} in\n{page}"));
    assert_eq!(number("memcached_up"), 1.0);
    assert_eq!(number("memcached_current_items"), 1.0);
    assert_eq!(number("memcached_limit_bytes"), 67_108_864.0);
    assert_eq!(number("memcached_max_connections"), 1024.0);
    assert_eq!(number("memcached_commands_total{command=\"get\",status=\"hit\"}"), 1.0);
    assert_eq!(number("memcached_slab_current_items{slab=\"1\"}"), 1.0);
    assert_eq!(number("memcached_slab_chunk_size_bytes{slab=\"1\"}"), 96.0);
    assert!(page.contains("memcached_version{version=\"1.6.45\"} 1"), "{page}");
    println!("memcached_exporter: {} metrics, memcached_up 1", metrics.len());
}

/// Returns the metrics page once the exporter serves it; `None` if the exporter has exited.
///
/// # Errors
/// Returns the reason why the page is missing.
fn metrics(exporter: &mut Child, port: u16) -> std::io::Result<Option<String>> {
    let deadline = Instant::now() + CLIENT_DEADLINE;
    loop {
        if exporter.try_wait()?.is_some() {
            return Ok(None);
        }
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(mut stream) => {
                stream.set_read_timeout(Some(CLIENT_DEADLINE))?;
                stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
                let mut page = String::new();
                stream.read_to_string(&mut page)?;
                return Ok(Some(page));
            }
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// The form in which a client expects the server's address.
enum Form {
    HostPort,
    Joined,
}

/// Installs a client if necessary, and runs it against a new server.
fn play(test: &str, prepare: impl FnOnce() -> Result<(Command, Form), String>) {
    let (mut command, form) = match prepare() {
        Ok(prepared) => prepared,
        Err(why) => return outside::skip(test, &why),
    };
    let mut server = Server::start("");
    let port = server.port();
    match form {
        Form::HostPort => command.args(["127.0.0.1", &port.to_string()]),
        Form::Joined => command.arg(format!("127.0.0.1:{port}")),
    };
    let output = outside::run(&mut command, CLIENT_DEADLINE);
    assert!(output.status.success(), "{test}:\n{}", outside::text(&output));
    print!("{}", outside::text(&output));
    server.assert_serves(test);
}

/// Like [`play`], with a server that requires a password, which memjs reads from environment
/// variables.
fn play_with_a_password(test: &str, prepare: impl FnOnce() -> Result<(Command, Form), String>) {
    if Program::under_test().flavour != Flavour::Cached {
        return;
    }
    let (mut command, form) = match prepare() {
        Ok(prepared) => prepared,
        Err(why) => return outside::skip(test, &why),
    };
    let users = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(users.path(), "app:secret word\n").expect("a file");
    let server = Start::new().args("-S").variable("MEMCACHED_SASL_PWDB", users.path()).start();
    let port = server.port();
    match form {
        Form::HostPort => command.args(["127.0.0.1", &port.to_string()]),
        Form::Joined => command.arg(format!("127.0.0.1:{port}")),
    };
    command.envs([("MEMCACHE_USERNAME", "app"), ("MEMCACHE_PASSWORD", "secret word")]);
    let output = outside::run(&mut command, CLIENT_DEADLINE);
    assert!(output.status.success(), "{test}:\n{}", outside::text(&output));
}

fn clients() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("clients")
}

fn workshop(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-client"))
}

fn program(name: &str) -> Result<PathBuf, String> {
    outside::find_program(name).ok_or_else(|| format!("there is no {name}"))
}

fn read(file: &str) -> Vec<u8> {
    std::fs::read(clients().join(file)).unwrap_or_else(|err| panic!("{file}: {err}"))
}

/// Returns a copy of a client's sources, into which the tools of its language may write.
fn copied(name: &str, files: &[&str]) -> Result<PathBuf, String> {
    let folder = workshop(name);
    for file in files {
        let to = folder.join(file);
        std::fs::create_dir_all(to.parent().unwrap_or(&folder)).map_err(|err| err.to_string())?;
        std::fs::copy(clients().join(name).join(file), to).map_err(|err| format!("{file}: {err}"))?;
    }
    Ok(folder)
}

/// Does work once for these sources. Interrupted work starts again.
fn once(folder: &Path, sources: &[u8], work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    // Two tests may prepare the same client.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let done = folder.join("installed.txt");
    if std::fs::read(&done).is_ok_and(|found| found == sources) {
        return Ok(());
    }
    work()?;
    std::fs::write(&done, sources).map_err(|err| err.to_string())
}

fn install(command: &mut Command) -> Result<(), String> {
    outside::fetch(command, INSTALL_DEADLINE).map_err(|text| {
        // The last lines of the output contain the reason.
        let lines: Vec<&str> = text.trim().lines().collect();
        format!("cannot be installed: {}", lines[lines.len().saturating_sub(5)..].join("\n"))
    })
}
