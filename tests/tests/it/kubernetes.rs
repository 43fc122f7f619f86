//! The Helm chart: helm accepts it, its manifests match Kubernetes' schemas, `cached` accepts the
//! generated configuration, and the memory limit is above the configuration's maximum.

use cached_tests::outside;
use cached_tests::program::{Program, repository};
use cached_tests::server::START_STOP_DEADLINE;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(300);
/// The version of Kubernetes whose schemas are used.
const KUBERNETES: &str = "1.37";

/// Values that enable everything in the chart, with non-default sizes.
const EVERYTHING: &str = r#"
replicas: 3
image: {repository: registry.example/cached, tag: "1"}
imagePullSecrets: [{name: registry}]
memcached: {port: 21211, memoryMiB: 4096, threads: 4, connectionsMax: 20000, itemMiBMax: 8, config: {eviction_policy: lru, idle_timeout_secs: 60}}
objects: {enabled: true, memoryMiB: 2048, countMax: 200000, config: {write: back, writer: cache, dirty_bytes_max: 512 MiB}, journal: {directory: /var/lib/cached/journal, limit_bytes: 2 GiB, direct: false}, backend: {kind: file, path: /var/lib/cached/store}, namespaces: [{name: scratch, write: through}]}
synapse: {enabled: true, secretName: synapse, config: {threads: 2}}
admin: {secretName: admin}
persistence: {enabled: true, storageClassName: fast}
resources: {requests: {cpu: "2"}, limits: {cpu: "4"}}
networkPolicy: {clients: [{podSelector: {matchLabels: {app: web}}}], monitoring: [{namespaceSelector: {matchLabels: {name: monitoring}}}]}
podMonitor: {enabled: true, labels: {release: prometheus}}
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
/// Values that yield the fewest manifests.
const NOTHING: &str = "{podDisruptionBudget: {enabled: false}, networkPolicy: {enabled: false}, preStopSleepSecs: 0, serviceAccount: {name: default}, admin: {secretName: admin}}";

/// Returns helm, from `PATH` or as installed by `.ci/long`, or prints that the test is skipped.
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

/// Returns the validator's output about these manifests, or `None` if they are valid.
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
    for values in ["{}", EVERYTHING, NOTHING] {
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
    ] {
        let refused = template(&helm, values).expect_err(values);
        assert!(refused.contains(expected), "{values}: {refused}");
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
    for values in ["{}", EVERYTHING, NOTHING] {
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

/// Without Helm, a user applies `deploy/kubernetes/cached.yaml`.
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

/// `cached` starts with the pod's configuration, and its maximum memory is below the pod's limit.
#[test]
#[ignore = "long: kubernetes, by helm"]
fn the_configuration_is_accepted_and_fits_into_the_limit() {
    let test = "the_configuration_is_accepted_and_fits_into_the_limit";
    let Some(helm) = helm(test) else { return };
    let dir = tempfile::tempdir().expect("a temporary directory");
    let secret = dir.path().join("secret");
    fs::write(&secret, "0123456789abcdef0123456789abcdef").expect("a file");
    for values in ["{}", "memcached: {memoryMiB: 64, connectionsMax: 100}", EVERYTHING] {
        let manifests = template(&helm, values).unwrap_or_else(|text| panic!("{text}"));
        // On this machine: free ports, and files that exist.
        let text: String = configuration(&manifests)
            .lines()
            .map(|line| match line.split_once(" = ") {
                Some(("listen", value)) if value.starts_with('[') => {
                    "listen = [\"127.0.0.1:0\"]\n".to_owned()
                }
                Some(("listen", _)) => "listen = \"127.0.0.1:0\"\n".to_owned(),
                Some((key @ ("secret_file" | "token_file"), _)) => format!("{key} = {:?}\n", secret),
                Some(("directory", _)) => format!("directory = {:?}\n", dir.path().join("journal")),
                Some(("path", _)) => format!("path = {:?}\n", dir.path().join("store")),
                _ => format!("{line}\n"),
            })
            .collect();
        assert!(text.contains("[memcached]") && text.contains("[admin]"), "{text}");
        let file = dir.path().join("cached.toml");
        fs::write(&file, &text).expect("a file");
        let taken = memory_at_most(&file);
        let limit = limit(&manifests);
        // 32 MiB for the process, and at most a quarter above the necessary limit.
        assert!(taken + 32 <= limit, "{values}: {taken} MiB at most and 32 MiB, the limit is {limit} MiB");
        assert!(limit <= (taken + 32) * 5 / 4, "{values}: {taken} MiB at most, the limit is {limit} MiB");
    }
}

/// Starts the server, reads the maximum of its memory, in MiB, from its first lines, and ends it.
fn memory_at_most(config: &Path) -> u64 {
    let mut command = Command::new(&Program::under_test().path);
    command.arg("--config").arg(config).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = command.spawn().expect("the server starts");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    // If the server does not start, the loop ends at the end of the output.
    let found = lines.map_while(Result::ok).find_map(|line| {
        let rest = line.strip_prefix("memory: ")?;
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
