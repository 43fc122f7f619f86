//! A ring whose nodes show each other certificates.

use super::{CHANGES, READS, is_cached, slots_of, under_load};
use cached_tests::daemon::wait_for;
use cached_tests::moves::clients::store_all;
use cached_tests::moves::registers::Registers;
use cached_tests::moves::{By, Cluster, Options};
use cached_tests::server::own_address;
use cached_tests::tls::{Certificates, Validity};
use std::io::{Read, Write};
use std::net::TcpStream;

/// Returns the table of a node.
fn table(certificates: &Certificates, name: &str) -> String {
    let path = |file: &str| certificates.path(file).display().to_string();
    format!(
        "[ring.tls]\nchain_file = \"{}\"\nkey_file = \"{}\"\nca_file = \"{}\"\n",
        path(&format!("{name}.pem")),
        path(&format!("{name}.key")),
        path("ca.pem")
    )
}

/// Waits until the log of a node has a line with all of these words.
fn wait_for_line(cluster: &Cluster, node: usize, words: &[&str]) {
    wait_for("a line", || {
        let log = cluster.nodes[node].process.log();
        log.lines().any(|line| words.iter().all(|word| line.contains(word))).then_some(())
    });
}

/// Slots move with their items through TLS, a node is killed and comes back with another certificate,
/// nodes without TLS and of another authority get nothing, nor do bytes that are not TLS.
#[test]
fn slots_move_between_nodes_with_certificates_and_to_no_others() {
    if !is_cached() {
        return;
    }
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let host = own_address().ip().to_string();
    for (authority, name) in [(&certificates, "a"), (&certificates, "b"), (&others, "c")] {
        authority.issue_for(name, &[&host], Validity::Valid);
    }
    let mut cluster = Cluster::start(&[], By::Disk, Options::default());
    cluster.add("a", &table(&certificates, "a"));
    let registers = Registers::new(300, 2, 200_000);
    cluster.tell(&registers);
    store_all(&registers, "the start");
    under_load(&mut cluster, &registers, READS, "b joins", |cluster| {
        cluster.add("b", &table(&certificates, "b"));
        cluster.wait_until_connected();
        cluster.tell(&registers);
    });
    assert_eq!((slots_of(&cluster, "a"), slots_of(&cluster, "b")), (8192, 8192));
    // Connections that are open stay open when the certificates are replaced.
    certificates.issue_for("a", &[&host], Validity::Valid);
    cluster.nodes[0].process.signal(libc::SIGHUP);
    wait_for_line(&cluster, 0, &["ring.tls"]);
    under_load(&mut cluster, &registers, CHANGES, "b is drained", |cluster| {
        cluster.order(0, &["drain", "b"]);
    });
    certificates.issue_for("b", &[&host], Validity::Valid);
    cluster.kill(1);
    cluster.restart(1);
    cluster.wait_until_connected();
    cluster.tell(&registers);
    under_load(&mut cluster, &registers, READS, "strangers", |cluster| {
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 600], &[0; 600], &[22, 3, 1, 255, 255, 1], &[]]
        {
            let mut stream = TcpStream::connect(cluster.nodes[0].ring).expect("a connection");
            // The node may have closed the connection.
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut reply = Vec::new();
            let _ = stream.read_to_end(&mut reply);
            assert!(reply.is_empty() || reply[0] == 21, "an alert: {reply:?}");
        }
        let mut refused = |name: &str, more: &str, theirs: &str, ours: &str| {
            cluster.add(name, more);
            let own = cluster.nodes.len() - 1;
            wait_for_line(cluster, own, &["no connection to node a", theirs]);
            wait_for_line(cluster, 0, &["is not served", ours]);
            assert_eq!(slots_of(cluster, name), 0);
            cluster.order(0, &["drain", name]);
            cluster.kill(own);
        };
        let authority = "the TLS handshake has failed: invalid peer certificate";
        refused("c", &table(&others, "c"), authority, "the TLS handshake has failed: received fatal alert");
        refused("d", "", "it speaks TLS, and this node does not", "it does not speak TLS");
    });
    cluster.end();
}
