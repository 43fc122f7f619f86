//! Common clients with a server in this process: qemu's tools, libnbd's, and fio.
//!
//! They are in Debian's packages qemu-utils, libnbd-bin, python3-libnbd and fio. If one is missing,
//! the test prints that it is skipped; with `CACHED_REQUIRE_ALL=1`, it fails.

mod checks;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use blocker::executor::block_on;
use cached_tls::{ClientCertificates, ServerTls, TlsSettings};
use nbd::{Address, Export, MemoryExport, NamedExports, Server, ServerConfig};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use test_kit::outside::{self, are_installed, text};
use tokio::runtime::Runtime;

const SIZE_BYTES: u64 = 64 << 20;

/// A server of the exports `disk` and `read-only`, on a unix socket and a TCP port.
struct Site {
    exports: Arc<NamedExports>,
    server: Server,
    folder: TempDir,
    port: u16,
    runtime: Runtime,
}

impl Site {
    fn new() -> Self {
        let mut disk = MemoryExport::new(SIZE_BYTES);
        disk.snapshot("monday");
        Self::with(disk, ServerConfig::default())
    }

    fn with(disk: MemoryExport, config: ServerConfig) -> Self {
        let mut read_only = MemoryExport::new(SIZE_BYTES);
        read_only.description.read_only = true;
        let exports = NamedExports::one("disk", Arc::new(disk));
        exports.insert("read-only", Arc::new(read_only));
        let exports = Arc::new(exports);
        let folder = TempDir::new().unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (server, port) = serve(&runtime, &exports, folder.path(), config);
        Self { exports, server, folder, port, runtime }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.path("nbd.sock")
    }

    fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }

    /// Returns qemu's options for an export, with `more` added.
    fn qemu(&self, more: &str) -> Vec<String> {
        let options = format!("driver=nbd,export=disk,path={}{more}", self.socket().display());
        vec!["--image-opts".into(), options]
    }

    /// Writes a file as long as the disk, with data and holes; no two blocks of data are equal.
    fn image(&self) -> PathBuf {
        let path = self.path("image");
        let mut image = std::fs::File::create(&path).unwrap();
        let block = |index: u64| {
            let words = (0..8192).map(move |at| ((index << 32) | at).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>()
        };
        for index in [0, 1, 2, 100, 333, 1023] {
            std::os::unix::fs::FileExt::write_all_at(&image, &block(index), index * 65_536).unwrap();
        }
        image.flush().unwrap();
        image.set_len(SIZE_BYTES).unwrap();
        path
    }
}

fn serve(
    runtime: &Runtime,
    exports: &Arc<NamedExports>,
    folder: &Path,
    mut config: ServerConfig,
) -> (Server, u16) {
    // A client may be delayed at any point.
    config.negotiation_timeout = Duration::from_secs(60);
    let server = Server::new(Arc::clone(exports) as _, config).unwrap();
    let socket = Address::Unix(folder.join("nbd.sock"));
    runtime.block_on(server.listen(&socket)).unwrap();
    let tcp = runtime.block_on(server.listen(&"127.0.0.1:0".parse().unwrap())).unwrap();
    let port = tcp.to_string().rsplit(':').next().unwrap().parse().unwrap();
    (server, port)
}

/// Runs a program until it exits, which must be successful, and returns its output.
fn run<S: AsRef<std::ffi::OsStr>>(program: &str, arguments: impl IntoIterator<Item = S>) -> String {
    let output = outcome(program, arguments);
    assert!(output.status.success(), "{program}: {}\n{}", output.status, text(&output));
    text(&output)
}

fn outcome<S: AsRef<std::ffi::OsStr>>(program: &str, arguments: impl IntoIterator<Item = S>) -> Output {
    outside::run(Command::new(program).args(arguments), Duration::from_secs(120))
}

#[test]
fn nbdinfo_shows_the_exports_and_what_they_offer() {
    if !are_installed("nbdinfo", &["nbdinfo"]) {
        return;
    }
    let site = Site::new();
    let listed = run("nbdinfo", ["--list".into(), site.uri("")]);
    assert!(listed.contains("export=\"disk\"") && listed.contains("export=\"read-only\""), "{listed}");
    let tcp = format!("nbd://127.0.0.1:{}/disk", site.port);
    for uri in [site.uri("disk"), site.uri(""), tcp] {
        let shown = run("nbdinfo", ["--json".into(), uri]);
        for part in [
            "\"protocol\": \"newstyle-fixed\"",
            "\"structured\": true",
            "\"base:allocation\"",
            "\"qemu:dirty-bitmap:monday\"",
            "\"can_multi_conn\": true",
            "\"can_fast_zero\": true",
            "\"is_read_only\": false",
            "\"block_size_minimum\": 1",
            "\"export-size\": 67108864",
        ] {
            assert!(shown.contains(part), "{part} is missing in {shown}");
        }
    }
    assert!(run("nbdinfo", ["--json".into(), site.uri("read-only")]).contains("\"is_read_only\": true"));
    let refused = outcome("nbdinfo", [site.uri("other")]);
    assert!(
        !refused.status.success() && text(&refused).contains("No such file or directory"),
        "{}",
        text(&refused)
    );
}

#[test]
fn libnbd_gets_features_errors_and_data() {
    // Debian's own interpreter, the only one with the module; another one may be first in PATH.
    let python = "/usr/bin/python3";
    if !Path::new(python).is_file() || !outcome(python, ["-c", "import nbd"]).status.success() {
        return outside::skip("libnbd", "python3-libnbd is missing");
    }
    let site = Site::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/errors.py");
    run(python, [script.into(), site.uri("disk"), site.uri("read-only")]);
    // The command nbdsh is this module.
    let shell = ["-m", "nbd", "-u", &site.uri("disk"), "-c", "print(h.get_size())"].map(String::from);
    assert_eq!(run(python, shell).trim(), SIZE_BYTES.to_string());
}

#[test]
fn nbdcopy_copies_in_and_out_over_several_connections() {
    if !are_installed("nbdcopy", &["nbdcopy", "cmp"]) {
        return;
    }
    let site = Site::new();
    let (image, copy) = (site.image(), site.path("copy"));
    let connections = |source: &str, target: &str| {
        run("nbdcopy", ["--connections=4", "--threads=4", "--requests=32", "--flush", source, target]);
    };
    connections(image.to_str().unwrap(), &site.uri("disk"));
    connections(&site.uri("disk"), copy.to_str().unwrap());
    run("cmp", [&image, &copy]);
    assert!(site.server.metric("nbd_connections_total") >= 4, "one connection was used");
}

#[test]
fn qemu_img_creates_converts_compares_maps_and_measures() {
    if !are_installed("qemu-img", &["qemu-img", "qemu-io"]) {
        return;
    }
    let site = Site::new();
    let (image, uri) = (site.image(), site.uri("disk"));
    let image = image.to_str().unwrap();
    run("qemu-img", ["convert", "-n", "-f", "raw", "-O", "raw", "-m", "16", "-W", image, &uri]);
    let same = run("qemu-img", ["compare", "-f", "raw", "-F", "raw", image, &uri]);
    assert!(same.contains("identical"), "{same}");
    let map = run("qemu-img", [vec!["map".into(), "--output=json".into()], site.qemu("")].concat());
    assert!(
        map.contains("\"start\": 0, \"length\": 196608, \"depth\": 0, \"present\": true, \"zero\": false"),
        "{map}"
    );
    let size = ["-c", "2000", "-d", "32", "-s", "4096", "-f", "raw"];
    for more in [&["-w", "--flush-interval=64"][..], &["-w", "-t", "writethrough"], &[]] {
        run("qemu-img", [&["bench"], &size[..], more, &[&uri]].concat());
    }
    // One of qemu's own formats on the export.
    run("qemu-img", ["create", "-f", "qcow2", &uri, "128M"]);
    run("qemu-io", ["-f", "qcow2", "-c", "write -P 7 100M 1M", "-c", "flush", &uri]);
    run("qemu-io", ["-f", "qcow2", "-c", "read -P 7 100M 1M", "-c", "read -P 0 1M 1M", &uri]);
    assert!(run("qemu-img", ["check", "-f", "qcow2", &uri]).contains("No errors"));
}

#[test]
fn qemu_io_finds_the_patterns_that_it_wrote() {
    if !are_installed("qemu-io", &["qemu-io"]) {
        return;
    }
    let site = Site::new();
    let io = |commands: &[&str]| {
        let commands = commands.iter().flat_map(|command| ["-c", command]);
        run("qemu-io", ["-f", "raw"].into_iter().chain(commands).chain([&*site.uri("disk")]));
    };
    io(&[
        "write -P 0x5a 1M 64k",
        "write -f -P 1 3M 4k",
        "write -P 2 10000 1000",
        "writev -P 3 20M 4k 8k 12k",
        "write -P 4 24M 40M",
        "write -z -u 25M 1M",
        "write -z 27M 4k",
        "write -z -u -n 28M 1M",
        "discard 30M 1M",
        "aio_write -P 5 40M 1M",
        "aio_write -P 6 41M 1M",
        "aio_flush",
        "flush",
    ]);
    io(&[
        "read -P 0x5a 1M 64k",
        "read -P 1 3M 4k",
        "read -P 2 10000 1000",
        "read -P 0 11000 1000",
        "read -P 3 20M 24k",
        "read -P 4 24M 1M",
        "read -P 0 25M 1M",
        "read -P 4 26M 1M",
        "read -P 0 27M 4k",
        "read -P 0 28M 1M",
        "read -P 5 40M 1M",
        "read -P 6 41M 1M",
        "read -P 4 42M 22M",
    ]);
    assert!(site.server.metric("nbd_flushes_total") >= 1);
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !are_installed("fio", &["fio"]) {
        return;
    }
    let site = Site::new();
    let uri = format!("--uri={}", site.uri("disk"));
    for shape in [
        &["--rw=randwrite", "--bs=4k", "--size=8m", "--iodepth=32"][..],
        &["--rw=randwrite", "--bsrange=512-256k", "--bs_unaligned", "--size=32m", "--iodepth=16"],
        &["--rw=randtrim", "--bs=64k", "--size=8m", "--iodepth=8"],
    ] {
        let verify =
            ["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--serialize_overlap=1"];
        let verify = if shape[0].ends_with("trim") { &[] } else { &verify[..] };
        run("fio", [&["--name=verify", "--ioengine=nbd", "--thread", &uri], shape, verify].concat());
    }
}

#[test]
fn backup_tools_see_what_changed_since_a_snapshot() {
    if !are_installed("dirty bitmaps", &["nbdinfo", "qemu-img", "qemu-io"]) {
        return;
    }
    let disk = MemoryExport::new(SIZE_BYTES);
    block_on(disk.write(0, vec![1; 1 << 20].into(), false)).unwrap();
    let mut disk = disk;
    disk.snapshot("monday");
    block_on(disk.write(128 << 10, vec![2; 64 << 10].into(), false)).unwrap();
    disk.snapshot("tuesday");
    let site = Site::with(disk, ServerConfig::default());
    run("qemu-io", ["-f", "raw", "-c", "write 32M 64k", "-c", "discard 64k 64k", &site.uri("disk")]);
    let changed = |snapshot: &str| {
        let map = format!("--map=qemu:dirty-bitmap:{snapshot}");
        let shown = run("nbdinfo", [map, site.uri("disk")]);
        let words =
            |line: &str| line.split_whitespace().take(3).map(str::to_owned).collect::<Vec<_>>().join(" ");
        shown.lines().map(words).filter(|line| line.ends_with(" 1")).collect::<Vec<_>>()
    };
    assert_eq!(changed("monday"), ["65536 131072 1", "33554432 65536 1"]);
    assert_eq!(changed("tuesday"), ["65536 65536 1", "33554432 65536 1"]);
    // qemu shows the bitmap instead of the allocation: dirty ranges as holes.
    let options = site.qemu(",x-dirty-bitmap=qemu:dirty-bitmap:tuesday");
    let map = run("qemu-img", [vec!["map".into(), "--output=json".into()], options].concat());
    assert!(map.contains("\"start\": 65536, \"length\": 65536"), "{map}");
}

#[test]
fn a_client_reconnects_to_a_server_that_was_restarted_and_loses_nothing() {
    if !are_installed("reconnect", &["qemu-img", "qemu-io"]) {
        return;
    }
    let mut site = Site::new();
    let options = site.qemu(",reconnect-delay=60");
    let mut bench = Command::new("timeout")
        .args(["120", "qemu-img", "bench", "-w", "-c", "40000", "-d", "16", "-s", "4096", "--pattern=7"])
        .args(options)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    for round in 0..3 {
        while site.server.metric("nbd_requests_total") < 100 {
            assert_eq!(bench.try_wait().unwrap(), None, "it ended before restart {round}");
            std::thread::yield_now();
        }
        assert!(site.runtime.block_on(site.server.shutdown(Duration::from_secs(60))));
        let config = ServerConfig::default();
        (site.server, site.port) = serve(&site.runtime, &site.exports, site.folder.path(), config);
    }
    assert!(bench.wait().unwrap().success());
    assert!(site.server.metric("nbd_requests_total") > 0);
    // 40 000 blocks in order, continuing at the start after the end of the disk.
    run("qemu-io", ["-f", "raw", "-c", "read -P 7 0 64M", &site.uri("disk")]);
}

/// Writes the files that users of GnuTLS expect in a directory: `ca-cert.pem`, and a certificate
/// with its key.
fn certificates(folder: &Path) {
    let authority_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "authority of a test");
    let own = params.self_signed(&authority_key).unwrap();
    std::fs::write(folder.join("ca-cert.pem"), own.pem()).unwrap();
    let authority = Issuer::new(params, authority_key);
    for name in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let signed = params.signed_by(&key, &authority).unwrap();
        std::fs::write(folder.join(format!("{name}-cert.pem")), signed.pem()).unwrap();
        std::fs::write(folder.join(format!("{name}-key.pem")), key.serialize_pem()).unwrap();
    }
}

#[test]
fn tls_by_certificates_of_both_sides() {
    if !are_installed("TLS", &["nbdinfo", "nbdcopy", "qemu-io", "cmp"]) {
        return;
    }
    let folder = TempDir::new().unwrap();
    certificates(folder.path());
    let path = |name: &str| folder.path().join(name);
    let settings = TlsSettings {
        chain_file: path("server-cert.pem"),
        key_file: path("server-key.pem"),
        ca_file: path("ca-cert.pem"),
        client_certificates: ClientCertificates::Require,
        ..TlsSettings::default()
    };
    let mut config = ServerConfig::default();
    config.tls = Some(Arc::new(ServerTls::load(settings, &[]).unwrap()));
    config.tls_required = true;
    let site = Site::with(MemoryExport::new(SIZE_BYTES), config.clone());
    let plain = outcome("nbdinfo", [site.uri("disk")]);
    assert!(!plain.status.success() && text(&plain).contains("TLS"), "{}", text(&plain));
    let uri = format!("nbds://localhost:{}/disk?tls-certificates={}", site.port, folder.path().display());
    assert!(run("nbdinfo", ["--json", &uri]).contains("\"TLS\": true"));
    let (image, copy) = (site.image(), site.path("copy"));
    run("nbdcopy", [image.to_str().unwrap(), &uri]);
    run("nbdcopy", [&uri, copy.to_str().unwrap()]);
    run("cmp", [&image, &copy]);
    let credentials = format!("tls-creds-x509,id=tls0,endpoint=client,dir={}", folder.path().display());
    let options = format!("driver=nbd,host=localhost,port={},export=disk,tls-creds=tls0", site.port);
    let io = ["-c", "write -P 3 5M 9M", "-c", "read -P 3 5M 9M"];
    run("qemu-io", [&["--object", &credentials, "--image-opts", &options], &io[..]].concat());

    // If TLS is optional, both kinds of clients are served.
    config.tls_required = false;
    let site = Site::with(MemoryExport::new(SIZE_BYTES), config);
    let uri = format!("nbds://localhost:{}/disk?tls-certificates={}", site.port, folder.path().display());
    assert!(run("nbdinfo", ["--json", &uri]).contains("\"TLS\": true"));
    assert!(run("nbdinfo", ["--json", &site.uri("disk")]).contains("\"TLS\": false"));
}

#[test]
fn the_corpus_of_the_fuzzer_again() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/nbd");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        checks::client(&bytes);
        // Cut off at any position, it is like a client that disconnects.
        (0..bytes.len()).for_each(|end| checks::client(&bytes[..end]));
        count += 1;
    }
    assert!(count >= 5, "the corpus is not there");
}
