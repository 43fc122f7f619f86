//! More clients with typical requests: PHP, Perl, further Python clients and Django, Rust,
//! libmemcached's command-line tools, and two intermediaries, twemproxy and nginx.

use cached_tests::outside;
use cached_tests::program::Program;
use cached_tests::server::{Server, bring_up, free_port};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(300);

fn clients() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("clients/more")
}

/// Runs a client with the server's host and port after its arguments.
fn play(test: &str, command: &mut Command) {
    let mut server = Server::start("");
    command.args(["127.0.0.1", &server.port().to_string()]);
    let output = outside::run(command, DEADLINE);
    assert!(output.status.success(), "{test}:\n{}", outside::text(&output));
    print!("{}", outside::text(&output));
    server.assert_serves(test);
}

/// Returns the program, or prints that the test is skipped.
fn tool(test: &str, name: &str, package: &str) -> Option<Command> {
    let path = outside::find_program(name);
    if path.is_none() {
        outside::skip(test, &format!("{name} is not installed (Debian package {package})"));
    }
    path.map(Command::new)
}

#[test]
#[ignore = "long: clients, from the registries of their languages"]
fn aiomcache() {
    run_python("aiomcache", "everyday_aiomcache.py");
}

#[test]
#[ignore = "long: clients, from the registries of their languages"]
fn emcache() {
    run_python("emcache", "everyday_emcache.py");
}

#[test]
#[ignore = "long: clients, from the registries of their languages"]
fn python_memcached() {
    run_python("python_memcached", "everyday_python_memcached.py");
}

#[test]
#[ignore = "long: clients, from the registries of their languages"]
fn django() {
    run_python("django", "everyday_django.py");
}

fn run_python(test: &str, script: &str) {
    static PYTHON: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match PYTHON.get_or_init(install) {
        Ok(python) => play(test, Command::new(python).arg(clients().join(script))),
        Err(why) => outside::skip(test, why),
    }
}

/// Returns the interpreter of an environment with the clients, or the reason why there is none.
fn install() -> Result<PathBuf, String> {
    let environment = Path::new(env!("CARGO_TARGET_TMPDIR")).join("more-python-clients");
    Ok(cached_tests::python::install(&environment, &clients().join("requirements.txt"))?.join("python"))
}

/// Both of PHP's extensions are used: memcached, which uses libmemcached in text and binary, and
/// memcache.
#[test]
#[ignore = "long: clients, from the registries of their languages"]
fn php() {
    let Some(mut command) = tool("php", "php", "php-cli") else { return };
    let modules = outside::run(Command::new(command.get_program()).arg("-m"), DEADLINE);
    let modules = String::from_utf8_lossy(&modules.stdout).into_owned();
    for name in ["memcached", "memcache"] {
        if !modules.lines().any(|line| line == name) {
            return outside::skip("php", &format!("PHP has no {name} (Debian package php-{name})"));
        }
    }
    play("php", command.arg(clients().join("everyday.php")));
}

/// Three clients for Perl are used.
#[test]
#[ignore = "long: clients, from the registries of their languages"]
fn perl() {
    let Some(mut command) = tool("perl", "perl", "perl") else { return };
    for module in ["Cache::Memcached", "Cache::Memcached::Fast", "Memcached::libmemcached"] {
        let known = Command::new(command.get_program()).args([&format!("-M{module}"), "-e", "1"]).output();
        if !known.is_ok_and(|output| output.status.success()) {
            return outside::skip("perl", &format!("Perl has no {module}"));
        }
    }
    play("perl", command.arg(clients().join("everyday.pl")));
}

/// Rust's blocking client is used, in the text and in the binary protocol.
#[test]
fn rust_memcache() {
    let mut server = Server::start("");
    everyday_memcache(server.port());
    server.assert_serves("rust_memcache");
}

/// Sends the requests of an application with Rust's blocking client, in both protocols.
pub(crate) fn everyday_memcache(port: u16) {
    for protocol in ["ascii", "binary"] {
        let url = format!("memcache://127.0.0.1:{port}?protocol={protocol}&timeout=120");
        let client = memcache::connect(url).expect("a connection");
        client.flush().expect("flush");
        client.set("a", "value", 100).expect("set");
        assert_eq!(client.get::<String>("a").expect("get"), Some("value".into()));
        assert_eq!(client.get::<String>("none").expect("a miss"), None);
        // This client treats a refusal in the text protocol as success, and in the binary protocol
        // as an error.
        let _ = client.add("a", "x", 0);
        assert_eq!(client.get::<String>("a").expect("get"), Some("value".into()));
        client.replace("a", "new", 0).expect("replace");
        client.append("a", "-end").and_then(|()| client.prepend("a", "start-")).expect("append");
        let found = client.gets::<(Vec<u8>, u32, Option<u64>)>(&["a"]).expect("gets");
        let (bytes, _, token) = &found["a"];
        assert_eq!(bytes, b"start-new-end");
        let token = token.expect("a token");
        assert!(client.cas("a", "swapped", 0, token).expect("cas"));
        assert!(!client.cas("a", "late", 0, token).expect("an old token"));
        client.set("n", 10, 0).expect("set");
        assert_eq!(client.increment("n", 5).expect("incr"), 15);
        assert_eq!(client.decrement("n", 20).expect("decr"), 0);
        assert!(client.touch("a", 1000).expect("touch"));
        let large = vec![b'x'; 900_000];
        client.set("large", &large[..], 0).expect("a large value");
        assert_eq!(client.get::<Vec<u8>>("large").expect("a large value"), Some(large));
        let names: Vec<String> = (0..200).map(|number| format!("many:{number}")).collect();
        for name in &names {
            client.set(name, name.as_str(), 0).expect("set");
        }
        let keys: Vec<&str> = names.iter().map(String::as_str).collect();
        let many = client.gets::<String>(&keys).expect("many at once");
        assert_eq!((many.len(), &many["many:199"]), (200, &"many:199".to_owned()));
        assert!(client.delete("a").expect("delete") && !client.delete("a").expect("delete"));
        let (_, version) = &client.version().expect("version")[0];
        assert!(version.starts_with("1.6"), "{version}");
    }
}

/// Rust's asynchronous client is used.
#[test]
fn rust_async_memcached() {
    use async_memcached::{AsciiProtocol, Client};
    let mut server = Server::start("");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let address = format!("tcp://127.0.0.1:{}", server.port());
        let mut client = Client::new(address).await.expect("a connection");
        client.set("a", "value", Some(100), Some(7)).await.expect("set");
        let found = client.get("a").await.expect("get").expect("a value");
        assert_eq!((found.data.as_deref(), found.flags), (Some(&b"value"[..]), Some(7)));
        assert!(client.get("none").await.expect("a miss").is_none());
        assert!(client.add("a", "x", None, None).await.is_err());
        client.set("n", 10_u64, None, None).await.expect("set");
        assert_eq!(client.increment("n", 5).await.expect("incr"), 15);
        assert_eq!(client.decrement("n", 20).await.expect("decr"), 0);
        let names: Vec<String> = (0..200).map(|number| format!("many:{number}")).collect();
        let pairs: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), name.as_str())).collect();
        client.set_multi(&pairs, None, None).await.expect("many at once");
        let many = client.get_multi(&names).await.expect("many at once");
        assert_eq!(many.len(), 200);
        client.delete("a").await.expect("delete");
        assert!(client.get("a").await.expect("a miss").is_none());
        assert!(client.version().await.expect("version").starts_with("1.6"));
        client.flush_all().await.expect("flush");
        assert!(client.get("many:1").await.expect("a miss").is_none());
    });
    server.assert_serves("rust_async_memcached");
}

/// libmemcached's command-line tools are used as scripts use them, in both protocols.
#[test]
fn libmemcached_tools() {
    let test = "libmemcached_tools";
    let names = [
        "memccp",
        "memccat",
        "memcexist",
        "memctouch",
        "memcrm",
        "memcdump",
        "memcping",
        "memcstat",
        "memcflush",
    ];
    if !outside::are_installed(test, &names) {
        return;
    }
    let mut server = Server::start("");
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("greeting");
    std::fs::write(&file, "hello, world").expect("a file");
    let servers = format!("--servers=127.0.0.1:{}", server.port());
    let run = |name: &str, arguments: &[&str]| {
        let output = outside::run(Command::new(name).arg(&servers).args(arguments), DEADLINE);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    for protocol in [&[][..], &["--binary"]] {
        let with = |arguments: &[&'static str]| [protocol, arguments].concat();
        let path = file.to_str().expect("a path");
        let copied = outside::run(Command::new("memccp").arg(&servers).args(protocol).arg(path), DEADLINE);
        assert!(copied.status.success(), "memccp: {}", outside::text(&copied));
        let (status, text) = run("memccat", &with(&["greeting"]));
        assert_eq!((status, text.trim_end()), (Some(0), "hello, world"));
        assert_eq!(run("memcexist", &with(&["greeting"])).0, Some(0));
        assert_ne!(run("memcexist", &with(&["none"])).0, Some(0));
        assert_eq!(run("memctouch", &with(&["--expire=1000", "greeting"])).0, Some(0));
        assert_eq!(run("memcping", &[]).0, Some(0));
        let (status, text) = run("memcstat", &with(&[]));
        assert!(status == Some(0) && text.contains("curr_items: "), "{text}");
        assert_eq!(run("memcrm", &with(&["greeting"])).0, Some(0));
        assert_ne!(run("memccat", &with(&["greeting"])).1.trim_end(), "hello, world");
        let again = outside::run(Command::new("memccp").arg(&servers).arg(path), DEADLINE);
        assert!(again.status.success(), "memccp: {}", outside::text(&again));
        // An entry of a ring lists its own items only.
        let listed = if Program::under_test().is_entry() { vec!["", "greeting"] } else { vec!["greeting"] };
        assert!(listed.contains(&run("memcdump", &[]).1.trim_end()), "it needs the text protocol");
        assert_eq!(run("memcflush", &with(&[])).0, Some(0));
        assert_ne!(run("memcexist", &with(&["greeting"])).0, Some(0));
    }
    server.assert_serves(test);
}

/// A program of the test. Dropping this value kills the program and waits for it.
struct Running(Child);

impl Running {
    fn start(command: &mut Command, log: &Path) -> Running {
        let log = std::fs::File::create(log).expect("a log");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        Running(command.spawn().expect("the program starts"))
    }

    /// Waits until the program accepts connections; returns `None` if it has exited.
    fn connect(&mut self, port: u16, log: &Path) -> Option<TcpStream> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if self.0.try_wait().expect("its state").is_some() {
                println!("it has ended: {:?}", std::fs::read_to_string(log));
                return None;
            }
            if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
                stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
                return Some(stream);
            }
            assert!(Instant::now() < deadline, "{:?}", std::fs::read_to_string(log));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn exchange(stream: &mut TcpStream, request: &[u8], reply: &[u8]) {
    stream.write_all(request).expect("a request");
    let mut found = vec![0; reply.len()];
    stream.read_exact(&mut found).expect("a reply");
    assert_eq!(String::from_utf8_lossy(&found), String::from_utf8_lossy(reply));
}

/// twemproxy distributes keys over several servers, and ejects a server that ends.
#[test]
#[ignore = "long: clients, from the registries of their languages"]
fn twemproxy() {
    let Some(program) = tool("twemproxy", "nutcracker", "nutcracker") else { return };
    let servers = [Server::start(""), Server::start(""), Server::start("")];
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("log");
    let (_proxy, mut stream) = bring_up("twemproxy", |port| {
        let mut text = format!(
            "pool:\n  listen: 127.0.0.1:{port}\n  hash: md5\n  distribution: ketama\n  auto_eject_hosts: false\n  \
             timeout: 60000\n  servers:\n"
        );
        for server in &servers {
            text += &format!("   - 127.0.0.1:{}:1\n", server.port());
        }
        let configuration = directory.path().join("nutcracker.yml");
        std::fs::write(&configuration, text).expect("a configuration");
        let mut command = Command::new(program.get_program());
        let stats = free_port().port().to_string();
        command.arg("-c").arg(&configuration).args(["-s", &stats, "-a", "127.0.0.1"]);
        let mut proxy = Running::start(&mut command, &log);
        let stream = proxy.connect(port, &log)?;
        Some((proxy, stream))
    });
    for number in 0..200 {
        let request = format!("set many:{number} 3 0 {}\r\n{number}\r\n", number.to_string().len());
        exchange(&mut stream, request.as_bytes(), b"STORED\r\n");
    }
    let keys: Vec<String> = (0..200).map(|number| format!("many:{number}")).collect();
    stream.write_all(format!("get {}\r\n", keys.join(" ")).as_bytes()).expect("a request");
    let mut reply = Vec::new();
    while !reply.ends_with(b"END\r\n") {
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer).expect("a reply");
        assert!(count > 0, "the proxy has closed: {:?}", std::fs::read_to_string(&log));
        reply.extend(&buffer[..count]);
    }
    assert_eq!(String::from_utf8_lossy(&reply).matches("VALUE many:").count(), 200);
    exchange(&mut stream, b"incr many:7 5\r\n", b"12\r\n");
    exchange(&mut stream, b"touch many:7 100\r\n", b"TOUCHED\r\n");
    exchange(&mut stream, b"append many:7 0 0 1\r\nx\r\n", b"STORED\r\n");
    exchange(&mut stream, b"get many:7\r\n", b"VALUE many:7 3 3\r\n12x\r\nEND\r\n");
    exchange(&mut stream, b"delete many:7\r\n", b"DELETED\r\n");
    let items: Vec<u64> = servers.iter().map(|server| server.stat("curr_items")).collect();
    let is_right = items.iter().all(|items| *items > 0) && items.iter().sum::<u64>() == 199;
    assert!(is_right || Program::under_test().is_entry(), "{items:?}");
}

/// nginx serves responses from the cache, and forwards misses to the application.
#[test]
#[ignore = "long: clients, from the registries of their languages"]
fn nginx() {
    let Some(program) = tool("nginx", "nginx", "nginx-light") else { return };
    let server = Server::start("");
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path().display();
    let (cache, log) = (server.port(), directory.path().join("log"));
    let text = |port: u16| {
        format!(
            "daemon off; master_process off; error_log stderr; pid {root}/pid;\nevents {{}}\nhttp {{\n  access_log off;\n  \
             client_body_temp_path {root}/a; proxy_temp_path {root}/b; fastcgi_temp_path {root}/c; uwsgi_temp_path {root}/d; \
             scgi_temp_path {root}/e;\n  upstream cache {{ server 127.0.0.1:{cache}; keepalive 4; }}\n  server {{\n    \
             listen 127.0.0.1:{port};\n    location / {{ set $memcached_key page:$uri; memcached_pass cache; \
             memcached_gzip_flag 2; default_type text/plain; error_page 404 502 504 = @missing; }}\n    \
             location @missing {{ return 200 \"made by the application\"; }}\n  }}\n}}\n"
        )
    };
    let configuration = directory.path().join("nginx.conf");
    let (port, mut running) = bring_up("nginx", |port| {
        std::fs::write(&configuration, text(port)).expect("a configuration");
        let mut command = Command::new(program.get_program());
        command.arg("-c").arg(&configuration).arg("-p").arg(directory.path());
        let mut running = Running::start(&mut command, &log);
        running.connect(port, &log)?;
        Some((port, running))
    });
    let page = "page ".repeat(20_000);
    let mut conn = server.connect();
    conn.send(format!("set page:/known 0 0 {}\r\n{page}\r\n", page.len()).as_bytes());
    conn.expect(b"STORED\r\n", "set");
    let mut get = |path: &str| {
        let mut stream = running.connect(port, &log).expect("nginx runs");
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).expect("a request");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text.split_once("\r\n\r\n").map_or_else(|| panic!("no body: {text:?}"), |(_, body)| body.to_owned())
    };
    // The requests are repeated over nginx's persistent connections.
    for _ in 0..20 {
        assert!(get("/known") == page, "the page");
        assert_eq!(get("/unknown"), "made by the application");
    }
    let counted = (server.stat("get_hits"), server.stat("get_misses"));
    assert!(counted == (20, 20) || Program::under_test().is_entry(), "{counted:?}");
    assert!(server.stat("total_connections") < 30, "connections are kept");
    println!("nginx over {}: all as expected", Program::under_test().path.display());
}
