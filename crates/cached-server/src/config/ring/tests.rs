//! Tables that become settings, the line for each mistake in them, and what a reload takes.

use super::*;
use crate::config::Config;
use std::path::Path;

const MAP: &str = "\
    \"ring/main/meta\" = { format = 1, version = 7 }\n\
    \"ring/main/nodes/a\" = { ring = \"127.0.0.1:21311\", address = \"127.0.0.1:21211\" }\n\
    \"ring/main/nodes/b\" = { ring = \"127.0.0.2:21311\", address = \"10.0.0.2:21211\" }\n";

/// Files in a directory of their own, and the lines of a table `[ring]` that names them.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Files {
        let files = Files(tempfile::tempdir().expect("a directory"));
        files.write("map", MAP);
        files
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).expect("a file");
    }

    fn key(&self, key: &str, name: &str) -> String {
        format!("{key} = {:?}\n", self.0.path().join(name))
    }

    /// Loads a configuration with the map, and with these lines in `[ring]` and further tables.
    fn load(&self, lines: &str) -> Result<RingSettings, String> {
        let text = format!("[ring]\n{}{lines}", self.key("map_file", "map"));
        let file = File::parse(Path::new("cached.toml"), &text).map_err(|error| error.to_string())?;
        let mut settings = file.settings().expect("settings");
        if text.contains("listen = []\n#") {
            settings.listen.clear();
        }
        let config = Config { settings, file, path: Some("cached.toml".into()), ..Config::default() };
        let loaded = config.load().map_err(|failure| failure.to_string())?;
        Ok(loaded.ring.expect("a ring"))
    }

    /// Returns the error of [`load`](Self::load), in which `DIR` is the directory.
    fn mistake(&self, lines: &str) -> String {
        let line = self.load(lines).expect_err(lines);
        line.replace(&*self.0.path().to_string_lossy(), "DIR")
    }
}

#[test]
fn a_table_becomes_settings() {
    let files = Files::new();
    let ring = files.load("node = \"a\"").expect("settings");
    assert_eq!((ring.node.as_str(), ring.map.version(), ring.peer_lanes_max), ("a", 7, 16));
    assert_eq!((ring.listen[0].host.as_deref(), ring.listen[0].port), (Some("127.0.0.1"), 21311));
    assert_eq!(ring.peer_timeout, Duration::from_secs(2));
    assert!(warnings(&ring).is_empty());
    files.write("secret", "0123456789abcdef\n");
    let secret = files.key("secret_file", "secret");
    let ring =
        files.load(&format!("node = \"b\"\n{secret}listen = [\"*:5\", \"[::1]:6\"]")).expect("settings");
    assert_eq!((ring.listen[0].host.as_deref(), ring.listen[0].port), (None, 5));
    assert_eq!((ring.listen[1].host.as_deref(), ring.listen[1].port), (Some("::1"), 6));
    let warning = warnings(&ring).concat();
    assert!(warning.starts_with("[ring]: *:5 can be reached from other machines; the secret"), "{warning}");
}

#[test]
fn a_mistake_is_one_line() {
    let files = Files::new();
    files.write("short", "secret");
    files.write("broken", "\"ring/main/meta\" = ");
    let table = "cached.toml: ring";
    for (lines, line) in [
        (
            String::from("node = \"a b\""),
            ".node: \"a b\" is not a name; expected 1 to 64 letters, digits and -_.",
        ),
        ("name = \"\"".into(), ".name: \"\" is not a name; expected 1 to 64 letters, digits and -_."),
        (
            "node = \"a\"\nlisten = [\"x\"]".into(),
            ".listen: \"x\" is not an address; expected HOST:PORT, [V6]:PORT or *:PORT",
        ),
        (
            "node = \"a\"\npeer_timeout_ms = 99".into(),
            ".peer_timeout_ms: is 99; it must be between 100 and 60000",
        ),
        (
            "node = \"a\"\nlease_secs = 9".into(),
            ".lease_secs: is set with map_file; only a map in the registry has leases, so set one of the two",
        ),
        (
            "node = \"a\"\nconnect_timeout_ms = 9".into(),
            ".connect_timeout_ms: is 9; it must be between 10 and 60000",
        ),
        ("node = \"a\"\npeer_lanes_max = 0".into(), ".peer_lanes_max: is 0; it must be between 1 and 1024"),
        (
            "node = \"c\"".into(),
            ".map_file: DIR/map: ring/main/nodes/c: is missing; the map has the nodes a, b",
        ),
        (
            "node = \"a\"\nname = \"east\"".into(),
            ".map_file: DIR/map: ring/east/meta: is missing; expected { format = 1, version = NUMBER }; there are \
             the rings main",
        ),
        (
            "node = \"a\"\nlisten = [\"*:21311\"]".into(),
            ".secret_file: is missing; *:21311 can be reached from other machines, so the nodes must share a \
             secret, for example the output of: openssl rand -hex 32; or show certificates, which [ring.tls] names",
        ),
        (
            format!("node = \"a\"\n{}", files.key("secret_file", "short")),
            ".secret_file: DIR/short: a secret of 6 bytes can be guessed; give at least 16 random ones, for example \
             the output of: openssl rand -hex 32",
        ),
        (
            format!("node = \"a\"\n{}", files.key("secret_file", "none")),
            ".secret_file: cannot read DIR/none: No such file or directory",
        ),
        (
            "node = \"a\"\nlisten = [\"127.0.0.1:11211\"]".into(),
            ".listen: 127.0.0.1:11211 is also an address of memcached.listen (127.0.0.1:11211); each listener needs \
             a separate one",
        ),
        (
            "node = \"a\"\npeer_lanes_max = 3\n[memcached]\nthreads = 4".into(),
            ".peer_lanes_max: is 3; it must be at least the number of threads (4), because each thread of a node \
             has a connection to every other node",
        ),
        (
            "node = \"a\"\n[ring.tls]\nca_file = \"/ca\"".into(),
            ".tls.chain_file: is missing; it must name the file of the certificate chain",
        ),
        (
            "node = \"a\"\n[ring.tls]\nchain_file = \"/no/chain\"".into(),
            ".tls.ca_file: is missing; it must name the certificates of the authorities that sign client \
             certificates",
        ),
        (
            "node = \"a\"\nlisten = [\"*:21311\"]\n[ring.tls]\nchain_file = \"/no/chain\"\nca_file = \"/ca\""
                .into(),
            ".tls.chain_file: Error loading the certificate chain: /no/chain : No such file or directory",
        ),
        (
            "node = \"a\"\n[memcached]\nlisten = []\n#".into(),
            ": requires a listener for memcached's clients; set memcached.listen (-p, -l)",
        ),
    ] {
        assert_eq!(files.mistake(&lines), format!("{table}{line}"), "{lines}");
    }
    let previous = format!("node = \"a\"\n{}", files.key("secret_file_previous", "map"));
    assert_eq!(
        files.mistake(&previous),
        format!("{table}.secret_file_previous: is set without secret_file; set both")
    );
    let both = files.mistake("node = \"a\"\nweight = 2");
    assert_eq!(both, format!("{table}.weight: is set with map_file, whose map says it; set one of the two"));
    files.write("users", "app:secret\n");
    let password = format!("node = \"a\"\n[memcached]\n{}", files.key("auth_file", "users"));
    let needs = "so the nodes must share a secret, for example the output of: openssl rand -hex 32; or show \
                 certificates, which [ring.tls] names";
    let why = format!("{table}.secret_file: is missing; clients need a password, {needs}");
    assert_eq!(files.mistake(&password), why);
    // The map's own address is named by the key of the map.
    files.write("map", &MAP.replace("127.0.0.1:21311", "127.0.0.1:11211"));
    let clash = files.mistake("node = \"a\"");
    assert!(
        clash.starts_with(&format!("{table}.map_file: 127.0.0.1:11211 is also an address of")),
        "{clash}"
    );
    files.write("map", &MAP.replace("127.0.0.2", "10.0.0.2"));
    let far = "10.0.0.2:21311 can be reached from other machines";
    assert_eq!(files.mistake("node = \"a\""), format!("{table}.secret_file: is missing; {far}, {needs}"));
    files.write("map", "\"ring/main/meta\" = ");
    let broken = files.mistake("node = \"a\"");
    assert!(broken.starts_with("cached.toml: ring.map_file: DIR/map: "), "{broken}");
    std::fs::remove_file(files.0.path().join("map")).expect("it was there");
    assert_eq!(
        files.mistake("node = \"a\""),
        format!("{table}.map_file: DIR/map: No such file or directory")
    );
}

/// Loads a configuration of a ring without a map file.
fn in_registry(ring: &str, more: &str) -> Result<RingSettings, String> {
    let text = format!("[ring]\nnode = \"a\"\n{ring}\n{more}");
    let file = File::parse(Path::new("cached.toml"), &text).map_err(|error| error.to_string())?;
    let mut settings = file.settings().expect("settings");
    settings.listen = ["*:21211", "127.0.0.1:21212"].map(|text| listen_address(text).expect(text)).into();
    let config = Config { settings, file, path: Some("cached.toml".into()), ..Config::default() };
    let loaded = config.load().map_err(|failure| failure.to_string())?;
    Ok(loaded.ring.expect("a ring"))
}

const DISK: &str = "[registry]\nkind = \"disk\"\npath = \"/no/such/disk\"\nnodes = 2";

#[test]
fn without_a_map_file_the_map_is_in_the_registry_which_a_check_does_not_open() {
    let ring = in_registry("address = \"127.0.0.1:21311\"\nweight = 3", DISK).expect("settings");
    let own = &ring.map.nodes()[0];
    assert_eq!((own.name.as_str(), own.ring.as_str(), own.weight), ("a", "127.0.0.1:21311", 3));
    assert_eq!(own.address, "127.0.0.1:21212", "the first one that names a host");
    assert_eq!((ring.listen[0].host.as_deref(), ring.listen[0].port), (Some("127.0.0.1"), 21311));
    let named =
        "address = \"{node}.example:2\"\nclients = \"{node}.cache.example:1\"\nlisten = [\"127.0.0.1:7\"]";
    let files = Files::new();
    files.write("secret", "0123456789abcdef\n");
    let lines = format!("{named}\n{}", files.key("secret_file", "secret"));
    let ring = in_registry(&lines, DISK).expect("settings");
    let own = &ring.map.nodes()[0];
    assert_eq!((own.ring.as_str(), own.address.as_str()), ("a.example:2", "a.cache.example:1"));
    assert_eq!(ring.listen[0].port, 7);
}

#[test]
fn a_mistake_of_a_ring_in_the_registry_is_one_line() {
    let address = "address = \"127.0.0.1:21311\"";
    for (ring, more, line) in [
        (
            address,
            "",
            "ring: needs a [registry] that all nodes share, for example kind = \"etcd\", or a map_file",
        ),
        (
            address,
            "[registry]\nkind = \"file\"\npath = \"/f\"",
            "registry.kind: is \"file\", which nodes cannot change; a ring needs etcd, disk or store, or ring.map_file",
        ),
        (
            address,
            "[registry]\nkind = \"store\"",
            "registry.kind: is \"store\", but there is no [objects.backend]",
        ),
        (
            address,
            "[registry]\nkind = \"store\"\n[objects.backend]\nkind = \"memory\"",
            "registry.kind: is \"store\", but other nodes do not reach the store memory:; use etcd or disk",
        ),
        (
            "",
            DISK,
            "ring.address: is missing; without map_file it must be HOST:PORT, as other nodes reach this one",
        ),
        (
            "address = \"0.0.0.0:21311\"",
            DISK,
            "ring.address: is \"0.0.0.0:21311\"; expected HOST:PORT or [V6]:PORT, as others reach this node",
        ),
        (
            "address = \"127.0.0.1:21311\"\nclients = \"*:1\"",
            DISK,
            "ring.clients: is \"*:1\"; expected HOST:PORT or [V6]:PORT, as others reach this node",
        ),
        (
            "address = \"127.0.0.1:21311\"\nweight = 10001",
            DISK,
            "ring.weight: is 10001; it must be between 0 and 10000",
        ),
        (
            "address = \"127.0.0.1:21212\"\nclients = \"cache.example:1\"",
            DISK,
            "ring.address: 127.0.0.1:21212 is also an address of memcached.listen",
        ),
        (
            "address = \"10.0.0.1:21311\"",
            DISK,
            "ring.secret_file: is missing; 10.0.0.1:21311 can be reached from other machines, so the nodes must",
        ),
    ] {
        let mistake = in_registry(ring, more).expect_err(line);
        assert!(mistake.starts_with(&format!("cached.toml: {line}")), "{mistake}");
    }
}

#[test]
fn a_reload_takes_a_later_map_with_the_same_address() {
    let files = Files::new();
    let text = format!("node = \"a\"\n{}", files.key("map_file", "map"));
    let table: RingTable = toml::from_str(&text).expect("a table");
    let settings = Settings::default();
    let in_force = table.read("a", &settings).expect("the map").map;
    let again = |map: &str| {
        files.write("map", map);
        let read = table.read_again("a", &in_force, &settings);
        read.map(|files| files.map.version())
            .map_err(|error| error.why.replace(&*files.0.path().to_string_lossy(), "DIR"))
    };
    assert_eq!(again(MAP), Ok(7));
    assert_eq!(again(&MAP.replace("version = 7", "version = 8").replace("10.0.0.2", "10.0.0.3")), Ok(8));
    assert_eq!(
        again(&MAP.replace("10.0.0.2", "10.0.0.3")).unwrap_err(),
        "DIR/map: ring/main/meta: version: is 7; it must be above 7, the version in force, because the map differs"
    );
    assert_eq!(
        again(&MAP.replace("version = 7", "version = 8").replace("127.0.0.1:21311", "127.0.0.1:3"))
            .unwrap_err(),
        "DIR/map: ring/main/nodes/a: ring: changes from 127.0.0.1:21311 to 127.0.0.1:3, which requires a restart"
    );
}
