//! The operator's commands, and nodes that do not belong to the ring.

use super::{READS, is_cached, slots_of, under_load};
use cached_tests::daemon::{wait_for, write_secret};
use cached_tests::moves::clients::store_all;
use cached_tests::moves::registers::Registers;
use cached_tests::moves::{By, Cluster, Options};
use std::io::Write;
use std::net::TcpStream;

/// Weights, a pause, and nodes that are taken out.
#[test]
fn weights_pauses_and_removals() {
    if !is_cached() {
        return;
    }
    let mut cluster = Cluster::start(&["a", "b"], By::Disk, Options::default());
    let registers = Registers::new(300, 3, 70_000);
    cluster.wait_until_connected();
    cluster.settle("the start");
    cluster.tell(&registers);
    store_all(&registers, "the start");
    under_load(&mut cluster, &registers, READS, "a weight", |cluster| {
        cluster.order(1, &["weight", "b", "3"]);
    });
    assert_eq!((slots_of(&cluster, "a"), slots_of(&cluster, "b")), (4096, 12288));
    // While the ring is paused, nothing moves, and a node can join.
    cluster.order(0, &["pause"]);
    cluster.order(0, &["weight", "b", "1"]);
    cluster.add("c", "weight = 2");
    cluster.wait_until_connected();
    cluster.tell(&registers);
    for node in 0..3 {
        let report = cluster.report(node);
        assert_eq!(report["nodes"][2]["slots"], 0, "{report}");
        assert_eq!(report["own_slots"], [4096, 12288, 0][node], "{report}");
    }
    under_load(&mut cluster, &registers, READS, "the pause ends", |cluster| {
        cluster.order(2, &["resume"]);
    });
    assert_eq!(slots_of(&cluster, "c"), 8192);
    // Slots that are wished for a node go there, and others make up for them.
    assert_eq!(cluster.command(1, &["plan"]), (0, "no slots would move\n".to_owned()));
    let (code, plan) = cluster.command(1, &["plan", "--weight", "a=0"]);
    assert!(code == 0 && plan.starts_with("FROM  TO  SLOTS  ITEMS  MIB\na "), "{plan}");
    under_load(&mut cluster, &registers, READS, "a wish", |cluster| {
        cluster.order(1, &["move", "100-199,16383", "a"]);
        wait_for("the wish", || cluster.report(0)["wishes"][0]["node"].as_str().map(drop));
    });
    let (_, map) = cluster.command(2, &["map"]);
    let wished: Vec<&str> = map.lines().filter(|line| line.ends_with("(wished for a)")).collect();
    assert_eq!(wished, ["100-199 a (wished for a)", "16383-16383 a (wished for a)"]);
    assert_eq!([slots_of(&cluster, "a"), slots_of(&cluster, "c")], [4096, 8192]);
    // Commands that make no sense.
    for arguments in [
        &["weight", "d", "1"][..],
        &["drain", "d"],
        &["remove", "d"],
        &["remove", "c"],
        &["fail", "d", "--yes"],
        &["fail", "c", "--yes"],
        &["fail", "c"],
        &["move", "1", "d"],
        &["move", "0-9999", "a"],
        &["move", "--cancel", "1"],
    ] {
        let (code, said) = cluster.command(0, arguments);
        assert!(code != 0 && said.trim_end().lines().count() == 1, "{arguments:?}: {code} {said}");
    }
    cluster.order(0, &["move", "--cancel"]);
    // A node that owns nothing is taken out and ended.
    under_load(&mut cluster, &registers, READS, "b is drained", |cluster| {
        cluster.order(0, &["drain", "b"]);
    });
    let out = cluster.nodes.remove(1);
    assert!(registers.tell(1, None).is_some());
    cluster.order(0, &["remove", "b"]);
    out.process.end();
    wait_for("b is out", || {
        let nodes = cluster.report(1)["nodes"].as_array()?.len();
        (nodes == 2).then_some(())
    });
    cluster.settle("b is out");
    cluster.end();
}

/// A node with another secret, and bytes that no node sends: they get no slots, and harm nothing.
#[test]
fn strangers_get_no_slots() {
    if !is_cached() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let secret = |name: &str, text: &str| {
        let path = dir.path().join(name);
        write_secret(&path, text);
        format!("secret_file = \"{}\"", path.display())
    };
    let right = secret("right", "0123456789abcdef0123456789abcdef");
    let wrong = secret("wrong", "fedcba9876543210fedcba9876543210");
    let mut cluster = Cluster::start(&[], By::Disk, Options::default());
    cluster.add("a", &right);
    cluster.add("b", &right);
    let registers = Registers::new(300, 2, 70_000);
    cluster.wait_until_connected();
    cluster.settle("the start");
    cluster.tell(&registers);
    store_all(&registers, "the start");
    under_load(&mut cluster, &registers, READS, "strangers", |cluster| {
        cluster.add("c", &wrong);
        wait_for("the refusal", || {
            let logs = cluster.nodes[0].process.log();
            logs.lines().any(|line| line.contains("node c") && line.contains("secret")).then_some(())
        });
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 600], &[0; 600], b"\x40\x00\x01cachring"] {
            let mut stream = TcpStream::connect(cluster.nodes[0].ring).expect("a connection");
            // The node may have closed the connection.
            let _ = stream.write_all(bytes);
        }
        registers.more(100, "strangers");
        assert_eq!(slots_of(cluster, "c"), 0);
        cluster.order(0, &["drain", "c"]);
        cluster.kill(2);
    });
    cluster.end();
}
