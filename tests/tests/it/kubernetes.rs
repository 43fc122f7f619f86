//! The Helm chart: helm accepts it, its manifests match Kubernetes' schemas, `cached` accepts the
//! generated configuration, and the memory limit is above the configuration's maximum.

use cached_tests::etcd::Etcd;
use cached_tests::outside;
use cached_tests::program::{Program, repository};
use cached_tests::server::START_STOP_DEADLINE;
use cached_tests::tls::Certificates;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(300);
/// The version of Kubernetes whose schemas are used.
const KUBERNETES: &str = "1.37";

/// Values that enable everything in the chart, with sizes that differ from the defaults.
const EVERYTHING: &str = r#"
replicas: 3
image: {repository: registry.example/cached, tag: "1"}
imagePullSecrets: [{name: registry}]
memcached: {port: 21211, memoryMiB: 4096, threads: 4, connectionsMax: 20000, itemMiBMax: 8, tls: {secretName: cert, clientCertificates: request}, usersSecretName: users, config: {eviction_policy: lru, idle_timeout_secs: 60}}
objects: {enabled: true, memoryMiB: 2048, countMax: 200000, config: {write: back, dirty_bytes_max: 512 MiB}, journal: {enabled: true, size: 20Gi, storageClassName: fast, config: {limit_bytes: 2 GiB, direct: false}}, backend: {kind: file, path: /var/lib/cached/store}, namespaces: [{name: scratch, write: through}], http: {enabled: true, keysSecretName: http-keys, tls: {secretName: http-cert, clientCertificates: request}, connectionsMax: 1000, bytesMiBMax: 128, config: {threads: 2}}}
synapse: {enabled: true, secretName: synapse, config: {threads: 2}}
volumes: {enabled: true, config: {prefix: disks}}
nbd: {enabled: true, tls: {secretName: nbd-cert}, connectionsMax: 100, config: {threads: 2}}
s3: {enabled: true, upstream: "http://gateway:7480", headsMiB: 128, connectionsMax: 2000, keysSecretName: keys, upstreamAccessKey: cached, upstreamSecretName: s3, tls: {secretName: s3-cert}, buckets: [{name: media, fresh_secs: 60}], config: {domains: [s3.example.com], access_log: "-"}}
admin: {secretName: admin, tls: {secretName: admin-cert}}
log: {level: warn, format: json}
extraConfig: |
  [insight]
  slow_request_ms = 50
extraSecrets: [ca]
persistence: {enabled: true, storageClassName: fast}
resources: {requests: {cpu: "2"}, limits: {cpu: "4"}}
networkPolicy: {clients: [{podSelector: {matchLabels: {app: web}}}], monitoring: [{namespaceSelector: {matchLabels: {name: monitoring}}}]}
podMonitor: {enabled: true, labels: {release: prometheus}, tlsConfig: {insecureSkipVerify: true}}
prometheusRule: {enabled: true, labels: {release: prometheus}}
dashboard: {enabled: true}
serviceAccount: {annotations: {note: "1"}}
podAnnotations: {note: "1"}
podLabels: {team: storage}
nodeSelector: {disk: ssd}
tolerations: [{key: cache, operator: Exists}]
priorityClassName: high
topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app.kubernetes.io/name: cached}}}]
"#;
/// Values for stores outside the cluster, whose credentials are in a Secret.
const STORES: [&str; 4] = [
    "objects: {enabled: true, backend: {kind: rados, pool: cached, user: cached}, backendSecretName: ceph}",
    "objects: {enabled: true, backend: {kind: s3, bucket: cached, endpoint: \"https://s3.example\"}, backendSecretName: s3}",
    "objects: {enabled: true, backend: {kind: synapse, address: \"node1:11311\"}, backendSecretName: node}",
    include_str!("../../../deploy/kubernetes/pair.yaml"),
];
/// A ring, with sizes of its memory that differ from the defaults.
const RING: &str = "{replicas: 5, updateStrategy: OnDelete, memcached: {threads: 20, itemMiBMax: 8}, ring: {enabled: true, secretName: ring, registry: {kind: etcd, endpoints: [\"http://etcd:2379\"]}, config: {peer_timeout_ms: 1000}}}";
/// Numbers that helm would print with an exponent.
const LARGE: &str = "{memcached: {memoryMiB: 1048576, connectionsMax: 1000000}, persistence: {enabled: true}, objects: {enabled: true, memoryMiB: 2097152, countMax: 4000000}}";
/// Values that yield the fewest manifests.
const NOTHING: &str = "{podDisruptionBudget: {enabled: false}, networkPolicy: {enabled: false}, preStopSleepSecs: 0, serviceAccount: {name: default}, admin: {secretName: admin}}";

/// Returns helm, from `PATH` or as installed by `.ci/long`. If it is missing, prints that the test
/// is skipped.
fn helm(test: &str) -> Option<PathBuf> {
    let own = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("tools/helm");
    let found = outside::find_program("helm").or_else(|| own.is_file().then_some(own));
    if found.is_none() {
        outside::skip(test, "helm is not installed (go install helm.sh/helm/v3/cmd/helm@v3.22.0)");
    }
    found
}

fn chart() -> PathBuf {
    repository().join("deploy/kubernetes/cached")
}

/// Runs helm on the chart with these values; returns its standard output, or both streams if it fails.
fn run_helm(helm: &Path, before: &[&str], values: &str, after: &[&str]) -> Result<String, String> {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(file.path(), values).expect("a file");
    let mut command = Command::new(helm);
    command.args(before).arg(chart()).arg("--values").arg(file.path()).args(after);
    let output = outside::run(&mut command, DEADLINE);
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).expect("UTF-8")),
        false => Err(outside::text(&output)),
    }
}

fn template(helm: &Path, values: &str) -> Result<String, String> {
    run_helm(helm, &["template", "cached"], values, &["--namespace", "caches", "--kube-version", KUBERNETES])
}

/// Returns `cached.toml` from the manifests.
fn configuration(manifests: &str) -> String {
    let lines = manifests.lines().skip_while(|line| *line != "  cached.toml: |").skip(1);
    let lines = lines.take_while(|line| line.starts_with("    ") || line.is_empty());
    lines.map(|line| format!("{}\n", line.trim_start())).collect()
}

/// Returns the pod's memory limit in MiB.
fn limit(manifests: &str) -> u64 {
    let limits = manifests.split("limits:").nth(1).expect("limits");
    let memory = limits.split("memory: ").nth(1).expect("memory");
    memory.split("Mi").next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{memory}"))
}

/// Returns a virtual environment with the validator, below the target directory.
fn validator() -> Result<PathBuf, String> {
    let requirements = repository().join("tests/clients/kubernetes.txt");
    let environment = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kubernetes");
    Ok(cached_tests::python::install(&environment, &requirements)?.join("kubernetes-validate"))
}

/// Returns the validator's output about these manifests; `None` if the manifests are valid.
fn invalid(validator: &Path, manifests: &str) -> Option<String> {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(file.path(), manifests).expect("a file");
    let mut command = Command::new(validator);
    command.args(["--strict", "--no-warn", "--kubernetes-version", KUBERNETES]).arg(file.path());
    let output = outside::run(&mut command, DEADLINE);
    (!output.status.success()).then(|| outside::text(&output))
}

#[test]
#[ignore = "long: kubernetes, by helm"]
fn helm_finds_nothing_wrong() {
    let Some(helm) = helm("helm_finds_nothing_wrong") else { return };
    for values in ["{}", EVERYTHING, NOTHING, RING] {
        let result = run_helm(&helm, &["lint", "--strict"], values, &["--kube-version", KUBERNETES]);
        result.unwrap_or_else(|text| panic!("{text}"));
    }
}

#[test]
#[ignore = "long: kubernetes, by helm"]
fn wrong_values_are_refused() {
    let Some(helm) = helm("wrong_values_are_refused") else { return };
    for (values, expected) in [
        ("synapse: {enabled: true, secretName: s}", "synapse.enabled needs objects.enabled"),
        ("{objects: {enabled: true}, synapse: {enabled: true}}", "synapse.enabled needs synapse.secretName"),
        ("memcached: {memoryMib: 5}", "memoryMib"),
        ("memcached: {memoryMiB: 64 MiB}", "memoryMiB"),
        ("memcached: {config: {a: {b: 1}}}", "config"),
        ("{volumes: {enabled: true}}", "volumes.enabled needs objects.enabled"),
        ("{objects: {enabled: true}}", "objects.backend.kind file needs persistence.enabled"),
        ("{nbd: {enabled: true}}", "nbd.enabled needs volumes.enabled"),
        (
            "{persistence: {enabled: true}, objects: {enabled: true}, volumes: {enabled: true}, nbd: {enabled: true}}",
            "nbd.enabled needs nbd.tls.secretName",
        ),
        ("{objects: {http: {enabled: true}}}", "objects.http.enabled needs objects.enabled"),
        (
            "{objects: {enabled: true, backend: {kind: memory}, http: {enabled: true}}}",
            "objects.http.enabled needs objects.http.keysSecretName",
        ),
        (
            "{objects: {enabled: true, backend: {kind: memory}, http: {enabled: true, keysSecretName: a, bytesMiBMax: 23}}}",
            "objects.http.bytesMiBMax must be at least 24",
        ),
        ("{objects: {http: {listen: a}}}", "listen"),
        ("{ring: {enabled: true}}", "ring.enabled needs ring.secretName"),
        (
            "{ring: {enabled: true, secretName: s, registry: {kind: store}}}",
            "ring.registry.kind store needs objects.enabled",
        ),
        ("{ring: {registry: {kind: disk}}}", "kind"),
        ("{updateStrategy: Never}", "updateStrategy"),
        ("{s3: {enabled: true}}", "s3.enabled needs s3.upstream"),
        (
            "{s3: {enabled: true, upstream: \"http://a\", keysSecretName: a}}",
            "s3.keysSecretName needs s3.upstreamSecretName",
        ),
        (
            "{s3: {enabled: true, upstream: \"http://a\", upstreamAccessKey: a, upstreamSecretName: a}}",
            "s3.upstreamSecretName needs s3.keysSecretName",
        ),
        ("{s3: {upstreamAccessKey: a}}", "s3.upstreamAccessKey and s3.upstreamSecretName need each other"),
        ("{objects: {journal: {enabled: true}}}", "objects.journal.enabled needs objects.enabled"),
        (
            "{replicas: 2, objects: {enabled: true, backend: {kind: rados, pool: a}, journal: {enabled: true}}}",
            "need replicas 1 with objects.backend.kind rados",
        ),
        (
            "{replicas: 2, objects: {enabled: true, backend: {kind: s3, bucket: a}, config: {writer: cache}}}",
            "need replicas 1 with objects.backend.kind s3",
        ),
        (
            "{objects: {enabled: true, backend: {kind: rados, pool: a}, election: {enabled: true}}}",
            "objects.election.enabled needs objects.enabled and synapse.enabled",
        ),
        (
            "{replicas: 2, objects: {enabled: true, backend: {kind: rados, pool: a}, election: {enabled: true}}, synapse: {enabled: true, secretName: s}}",
            "objects.election.enabled needs replicas 1",
        ),
        ("{objects: {election: {registry: {kind: file}}}}", "kind"),
        ("{objects: {journal: {directory: /journal}}}", "directory"),
        ("{objects: {backend: {kind: tape}}}", "kind"),
        ("{s3: {tls: {secret: cert}}}", "secret"),
        ("{nbd: {tls: {clientCertificates: maybe}}}", "clientCertificates"),
    ] {
        let refused = template(&helm, values).expect_err(values);
        let lines = refused.lines().filter(|line| line.contains(expected));
        assert_eq!(lines.count(), 1, "{values}: {refused}");
    }
}

#[test]
#[ignore = "long: kubernetes, by helm"]
fn manifests_are_valid() {
    let Some(helm) = helm("manifests_are_valid") else { return };
    let validator = match validator() {
        Ok(validator) => validator,
        Err(why) => return outside::skip("manifests_are_valid", &why),
    };
    for values in ["{}", EVERYTHING, NOTHING, STORES[0], STORES[3], RING] {
        let manifests = template(&helm, values).unwrap_or_else(|text| panic!("{text}"));
        // Kubernetes has no schemas for the Prometheus operator's kinds.
        let own: Vec<&str> =
            manifests.split("---\n").filter(|part| !part.contains("monitoring.coreos.com")).collect();
        let own = own.join("---\n");
        assert_eq!(invalid(&validator, &own), None, "{own}");
        let wrong = own.replace("readOnlyRootFilesystem", "readOnlyRootFileSystem");
        assert!(invalid(&validator, &wrong).is_some(), "the validator finds a key that does not exist");
    }
}

/// Without Helm, a user applies `deploy/kubernetes/cached.yaml`, which must equal the chart's
/// output.
#[test]
#[ignore = "long: kubernetes, by helm"]
fn the_plain_manifests_are_those_of_the_chart() {
    let Some(helm) = helm("the_plain_manifests_are_those_of_the_chart") else { return };
    let manifests =
        template(&helm, "admin: {secretName: cached-admin}").unwrap_or_else(|text| panic!("{text}"));
    let path = repository().join("deploy/kubernetes/cached.yaml");
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let committed = committed.split_once("---\n").map_or("", |(_, manifests)| manifests);
    let made = manifests.trim_start_matches("---\n");
    let different = committed.lines().zip(made.lines()).find(|(committed, made)| committed != made);
    assert_eq!(
        different,
        None,
        "{}: left committed, right the chart's; its first lines state how",
        path.display()
    );
    assert_eq!(committed.len(), made.len(), "{} is complete", path.display());
}

/// Creates the files of all Secrets in a directory, as Kubernetes mounts them in `/run/secrets`.
fn secrets(dir: &Path) {
    let certificates = Certificates::shared();
    let read = |name: &str| fs::read_to_string(certificates.path(name)).expect(name);
    let (chain, key, ca) = (read("server.pem"), read("server.key"), read("ca.pem"));
    let token = "0123456789abcdef0123456789abcdef";
    let keys = format!("[[keys]]\naccess_key = \"reports\"\nsecret_key = \"{token}\"\nread = [\"*\"]\n");
    let mut files = vec![
        ("admin/token", token),
        ("synapse/secret", token),
        ("ring/secret", token),
        ("users/users", "app:secret\n"),
        ("s3-keys/keys.toml", keys.as_str()),
        ("objects-http-keys/keys.toml", keys.as_str()),
        ("s3-upstream/secret", token),
        ("backend/ceph.conf", "[global]\n"),
        ("backend/keyring", "[client.cached]\n"),
        ("backend/credentials", "[default]\naws_access_key_id = a\naws_secret_access_key = b\n"),
        ("backend/secret", token),
    ];
    let tables = ["memcached", "admin", "objects-http", "nbd", "s3"].map(|table| format!("{table}-tls"));
    let names: Vec<(String, &str)> = tables
        .iter()
        .flat_map(|table| {
            [("tls.crt", &chain), ("tls.key", &key), ("ca.crt", &ca)].map(|(name, text)| (table, name, text))
        })
        .map(|(table, name, text)| (format!("{table}/{name}"), text.as_str()))
        .collect();
    files.extend(names.iter().map(|(name, text)| (name.as_str(), *text)));
    for (name, text) in files {
        let path = dir.join("run/secrets/cached").join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o440)).expect("permissions");
    }
}

/// Writes the configuration of the pod with this number to a file, adapted to this machine: with free
/// ports, and with the pod's directories in `dir`. A mounted Secret contains each file that the
/// configuration names.
fn local(manifests: &str, pod: usize, dir: &Path) -> PathBuf {
    let text = configuration(manifests);
    assert!(text.contains("[memcached]") && text.contains("[admin]"), "{text}");
    let mounts = manifests.lines().filter_map(|line| line.trim().strip_prefix("mountPath: "));
    let mounts: Vec<String> = mounts.map(|path| format!("\"{path}/")).collect();
    for line in text.lines().filter(|line| line.contains("\"/run/secrets/")) {
        assert!(mounts.iter().any(|mount| line.contains(mount)), "{line}: mounted are {mounts:?}");
    }
    for (path, line) in [("/var/lib/cached\n", "path = "), ("/var/lib/cached-journal\n", "directory = ")] {
        let is_used = text.lines().any(|found| found.starts_with(line));
        assert!(!is_used || manifests.contains(&format!("mountPath: {path}")), "{path} is not mounted");
    }
    let place = |path: &str| format!("\"{}{path}", dir.display());
    let mut table = "";
    let own = text.lines().map(|line| {
        table = if line.starts_with('[') { line } else { table };
        match line.split_once(" = ") {
            // Other nodes know the port of a ring.
            Some(("listen", _)) if table != "[ring]" => "listen = [\"127.0.0.1:0\"]\n".to_owned(),
            // The name of the pod is that of its host.
            None if line == "[ring]" => format!("[ring]\nnode = \"cached-{pod}\"\n"),
            _ => line.replace("\"/run/", &place("/run/")).replace("\"/var/", &place("/var/")) + "\n",
        }
    });
    let text: String = own.collect();
    let file = dir.join("cached.toml");
    fs::write(&file, text).expect("a file");
    file
}

/// `cached` accepts the pod's configuration and starts with it, and its maximum memory is below the
/// pod's limit.
#[test]
#[ignore = "long: kubernetes, by helm"]
fn the_configuration_is_accepted_and_fits_into_the_limit() {
    let test = "the_configuration_is_accepted_and_fits_into_the_limit";
    let Some(helm) = helm(test) else { return };
    let Some(etcd) = Etcd::start(test) else { return };
    let dir = tempfile::tempdir().expect("a temporary directory");
    let dir = dir.path();
    secrets(dir);
    fs::create_dir_all(dir.join("var/lib/cached")).expect("a directory");
    let ring = RING.replace("etcd:2379", &format!("127.0.0.1:{}", etcd.port));
    // The values, and the number of pods that start one after the other. The last pod of a ring takes most
    // memory: it has connections to and from all others.
    let started =
        [("{}", 1), ("memcached: {memoryMiB: 64, connectionsMax: 100}", 1), (EVERYTHING, 1), (&ring, 5)];
    let checked = STORES.iter().chain([&LARGE]).map(|values| (*values, 0));
    for (values, pods) in started.into_iter().chain(checked) {
        let manifests = template(&helm, values).unwrap_or_else(|text| panic!("{text}"));
        let file = local(&manifests, 0, dir);
        let mut check = Command::new(&Program::under_test().path);
        let output = outside::run(check.arg("--check-config").arg("--config").arg(&file), DEADLINE);
        assert!(output.status.success(), "{values}: {}", outside::text(&output));
        let taken = (0..pods).fold(None, |_, pod| Some(memory_at_most(&local(&manifests, pod, dir))));
        let Some(taken) = taken else { continue };
        let limit = limit(&manifests);
        // The limit covers the process with 32 MiB, and exceeds what is necessary by at most a
        // quarter.
        assert!(taken + 32 <= limit, "{values}: {taken} MiB at most and 32 MiB, the limit is {limit} MiB");
        assert!(limit <= (taken + 32) * 5 / 4, "{values}: {taken} MiB at most, the limit is {limit} MiB");
    }
}

/// The chart knows the values in the commands of docs/operations/run.md and of the chart's README.
#[test]
#[ignore = "long: kubernetes, by helm"]
fn the_documented_commands_are_possible() {
    let Some(helm) = helm("the_documented_commands_are_possible") else { return };
    let pages = [repository().join("docs/operations/run.md"), chart().join("README.md")];
    let page = pages.map(|page| fs::read_to_string(page).expect("a page")).concat().replace("\\\n", "");
    let commands = page
        .lines()
        .filter_map(|line| line.strip_prefix("helm install ").or_else(|| line.strip_prefix("helm upgrade ")));
    let mut count = 0;
    for words in commands {
        let mut command = Command::new(&helm);
        // These values are the ones that the installation uses.
        let words = words.split_whitespace().filter(|word| *word != "--reuse-values");
        command.arg("template").args(words).args(["--kube-version", KUBERNETES]).current_dir(repository());
        let output = outside::run(&mut command, DEADLINE);
        assert!(output.status.success(), "{command:?}: {}", outside::text(&output));
        count += 1;
    }
    assert_eq!(count, 6);
}

/// Starts the server, reads the maximum of its memory, in MiB, from its first lines, and ends the
/// server.
fn memory_at_most(config: &Path) -> u64 {
    let mut command = Command::new(&Program::under_test().path);
    command.arg("--config").arg(config).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = command.spawn().expect("the server starts");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    // If the server does not start, the loop ends at the end of the output.
    let found = lines.map_while(Result::ok).find_map(|line| {
        // The limit is given as text, or inside an object.
        let (_, rest) = line.split_once("memory: ")?;
        rest.split(' ').next()?.parse().ok()
    });
    let pid = child.id() as libc::pid_t;
    // SAFETY: touches no memory; the child has not been waited for.
    unsafe { libc::kill(pid, libc::SIGTERM) };
    let ended = std::time::Instant::now() + START_STOP_DEADLINE;
    while child.try_wait().expect("a child").is_none() {
        assert!(std::time::Instant::now() < ended, "the server does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    found.expect("a line about memory")
}
