{{- define "cached.name" -}}
{{- contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "cached.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "cached.labels" -}}
{{ include "cached.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "cached.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "cached.name" .) -}}
{{- end -}}

{{- define "cached.adminSecret" -}}
{{- .Values.admin.secretName | default (printf "%s-admin" (include "cached.name" .)) -}}
{{- end -}}

{{/* The keys of a TOML table. JSON strings, numbers, booleans and lists are valid TOML. */}}
{{- define "cached.keys" -}}
{{- range $key, $value := . }}
{{- if kindIs "map" $value }}{{ fail (printf "config.%s: a table is not possible here" $key) }}{{ end }}
{{ $key }} = {{ $value | toJson }}
{{- end }}
{{- end -}}

{{/* A TLS table; its files are in a Secret. The name of a volume must not contain the dots of the table. */}}
{{- define "cached.tls" -}}
{{- if .tls.secretName }}
{{- $directory := printf "/run/secrets/cached/%s-tls" (.table | replace "." "-") }}

[{{ .table }}.tls]
chain_file = "{{ $directory }}/tls.crt"
key_file = "{{ $directory }}/tls.key"
{{- if ne (.tls.clientCertificates | default "none") "none" }}
client_certificates = {{ .tls.clientCertificates | quote }}
ca_file = "{{ $directory }}/ca.crt"
{{- end }}
{{- end }}
{{- end -}}

{{/* The mounted Secrets, as a JSON list of a name in the pod, the Secret, and the path. */}}
{{- define "cached.secrets" -}}
{{- $all := list -}}
{{- range list
    (list "admin" (include "cached.adminSecret" .) true)
    (list "admin-tls" .Values.admin.tls.secretName true)
    (list "memcached-tls" .Values.memcached.tls.secretName true)
    (list "users" .Values.memcached.usersSecretName true)
    (list "ring" .Values.ring.secretName .Values.ring.enabled)
    (list "backend" .Values.objects.backendSecretName .Values.objects.enabled)
    (list "objects-http-tls" .Values.objects.http.tls.secretName (and .Values.objects.enabled .Values.objects.http.enabled))
    (list "objects-http-keys" .Values.objects.http.keysSecretName (and .Values.objects.enabled .Values.objects.http.enabled))
    (list "synapse" .Values.synapse.secretName .Values.synapse.enabled)
    (list "nbd-tls" .Values.nbd.tls.secretName .Values.nbd.enabled)
    (list "s3-tls" .Values.s3.tls.secretName .Values.s3.enabled)
    (list "s3-keys" .Values.s3.keysSecretName .Values.s3.enabled)
    (list "s3-upstream" .Values.s3.upstreamSecretName .Values.s3.enabled) -}}
{{- $name := index . 0 -}}
{{- if and (index . 1) (index . 2) -}}
{{- $all = append $all (dict "name" $name "secret" (index . 1) "path" (printf "/run/secrets/cached/%s" $name)) -}}
{{- end -}}
{{- end -}}
{{- range $index, $secret := .Values.extraSecrets -}}
{{- $name := printf "extra-%d" $index -}}
{{- $all = append $all (dict "name" $name "secret" $secret "path" (printf "/run/secrets/extra/%s" $secret)) -}}
{{- end -}}
{{- $all | toJson -}}
{{- end -}}

{{/* Refuses values that contradict each other. */}}
{{- define "cached.check" -}}
{{- $objects := .Values.objects -}}
{{- $nbd := .Values.nbd -}}
{{- $s3 := .Values.s3 -}}
{{- if and .Values.synapse.enabled (not $objects.enabled) }}{{ fail "synapse.enabled needs objects.enabled" }}{{ end -}}
{{- if and .Values.synapse.enabled (not .Values.synapse.secretName) }}{{ fail "synapse.enabled needs synapse.secretName" }}{{ end -}}
{{- if and .Values.volumes.enabled (not $objects.enabled) }}{{ fail "volumes.enabled needs objects.enabled" }}{{ end -}}
{{- if and $nbd.enabled (not .Values.volumes.enabled) }}{{ fail "nbd.enabled needs volumes.enabled" }}{{ end -}}
{{- if and $nbd.enabled (not $nbd.config.allow_exposed) (or (not $nbd.tls.secretName) (ne $nbd.tls.clientCertificates "require")) -}}
{{- fail "nbd.enabled needs nbd.tls.secretName with nbd.tls.clientCertificates require, or allow_exposed in nbd.config" -}}
{{- end -}}
{{- if and $objects.enabled (eq $objects.backend.kind "file") (not .Values.persistence.enabled) -}}
{{- fail "objects.backend.kind file needs persistence.enabled" -}}
{{- end -}}
{{- if and $objects.backendSecretName (not (has $objects.backend.kind (list "rados" "s3" "synapse"))) -}}
{{- fail (printf "objects.backendSecretName is of no use to objects.backend.kind %s" $objects.backend.kind) -}}
{{- end -}}
{{- $http := $objects.http -}}
{{- if and $http.enabled (not $objects.enabled) }}{{ fail "objects.http.enabled needs objects.enabled" }}{{ end -}}
{{- if and $http.enabled (not $http.keysSecretName) (not $http.config.allow_exposed) -}}
{{- fail "objects.http.enabled needs objects.http.keysSecretName, or allow_exposed in objects.http.config" -}}
{{- end -}}
{{- /* The largest request is at least a page of a listing, of 2 MiB. */ -}}
{{- $least := add (mul 2 (max 2 (int $objects.objectMiBMax))) (div (add (int $http.connectionsMax) 15) 16) -}}
{{- if and $http.enabled (lt (int64 $http.bytesMiBMax) $least) -}}
{{- fail (printf "objects.http.bytesMiBMax must be at least %d: twice objects.objectMiBMax, and 64 KiB for each of objects.http.connectionsMax" $least) -}}
{{- end -}}
{{- if and $objects.journal.enabled (not $objects.enabled) }}{{ fail "objects.journal.enabled needs objects.enabled" }}{{ end -}}
{{- /* Of several writers that claim the same namespaces, the last one fences the others off with their dirty data. */ -}}
{{- $claims := or $objects.journal.enabled (eq ($objects.config.writer | default "callers") "cache") -}}
{{- if and $objects.enabled $claims (has $objects.backend.kind (list "rados" "s3" "synapse")) (gt (int .Values.replicas) 1) -}}
{{- fail (printf "objects.journal.enabled and writer cache in objects.config need replicas 1 with objects.backend.kind %s: all pods use the same store" $objects.backend.kind) -}}
{{- end -}}
{{- if and $objects.election.enabled (not (and $objects.enabled .Values.synapse.enabled)) }}{{ fail "objects.election.enabled needs objects.enabled and synapse.enabled" }}{{ end -}}
{{- if and $objects.election.enabled (or (gt (int .Values.replicas) 1) (hasKey $objects.config "writer")) -}}
{{- fail "objects.election.enabled needs replicas 1 and no writer in objects.config: each host of the election is a release" -}}
{{- end -}}
{{- if .Values.ring.enabled -}}
{{- if not .Values.ring.secretName }}{{ fail "ring.enabled needs ring.secretName" }}{{ end -}}
{{- if $objects.election.enabled }}{{ fail "ring.enabled and objects.election.enabled need different releases" }}{{ end -}}
{{- if and (eq .Values.ring.registry.kind "store") (not $objects.enabled) -}}
{{- fail "ring.registry.kind store needs objects.enabled: the registry is in the store of the objects" -}}
{{- end -}}
{{- end -}}
{{- if and $s3.enabled (not $s3.upstream) }}{{ fail "s3.enabled needs s3.upstream" }}{{ end -}}
{{- /* A pod has no credentials in its environment. */ -}}
{{- if and $s3.enabled $s3.keysSecretName (not $s3.upstreamSecretName) (not $s3.config.upstream_auth) -}}
{{- fail "s3.keysSecretName needs s3.upstreamSecretName, or upstream_auth in s3.config" -}}
{{- end -}}
{{- if and $s3.enabled $s3.upstreamSecretName (not $s3.keysSecretName) (not $s3.config.auth) -}}
{{- fail "s3.upstreamSecretName needs s3.keysSecretName, or auth in s3.config" -}}
{{- end -}}
{{- if ne (empty $s3.upstreamAccessKey) (empty $s3.upstreamSecretName) -}}
{{- fail "s3.upstreamAccessKey and s3.upstreamSecretName need each other" -}}
{{- end -}}
{{- end -}}

{{/* The connections from one other pod of a ring: at least as many as it has threads. */}}
{{- define "cached.lanes" -}}
{{- .Values.ring.config.peer_lanes_max | default (max 16 (int .Values.memcached.threads)) | int -}}
{{- end -}}

{{/* cached.toml. Helm reads numbers as floats and prints large ones as 1e+06, which int64 prevents. */}}
{{- define "cached.config" -}}
{{- include "cached.check" . -}}
[log]
level = {{ .Values.log.level | quote }}
format = {{ .Values.log.format | quote }}

[memcached]
listen = [{{ printf "*:%v" .Values.memcached.port | quote }}]
memory_bytes_max = {{ printf "%d MiB" (int64 .Values.memcached.memoryMiB) | quote }}
item_bytes_max = {{ printf "%d MiB" (int64 .Values.memcached.itemMiBMax) | quote }}
threads = {{ .Values.memcached.threads }}
connections_max = {{ int64 .Values.memcached.connectionsMax }}
{{- if .Values.memcached.usersSecretName }}
auth_file = "/run/secrets/cached/users/users"
sasl_file = "/run/secrets/cached/users/users"
{{- end }}
{{- include "cached.keys" .Values.memcached.config }}
{{- include "cached.tls" (dict "table" "memcached" "tls" .Values.memcached.tls) }}

{{- with .Values.ring }}
{{- if .enabled }}
{{- /* The names of the pods are those of the nodes. */}}
{{- $host := printf "{node}.%s.%s.svc" (include "cached.name" $) $.Release.Namespace }}

[ring]
address = {{ printf "%s:%v" $host .port | quote }}
clients = {{ printf "%s:%v" $host $.Values.memcached.port | quote }}
listen = [{{ printf "*:%v" .port | quote }}]
secret_file = "/run/secrets/cached/ring/secret"
peer_lanes_max = {{ include "cached.lanes" $ }}
{{- include "cached.keys" (omit .config "peer_lanes_max") }}

[registry]
{{- include "cached.keys" .registry }}
{{- end }}
{{- end }}

[admin]
listen = [{{ printf "0.0.0.0:%v" .Values.admin.port | quote }}]
token_file = "/run/secrets/cached/admin/token"
{{- include "cached.tls" (dict "table" "admin" "tls" .Values.admin.tls) }}
{{- if .Values.objects.enabled }}

[objects]
memory_bytes_max = {{ printf "%d MiB" (int64 .Values.objects.memoryMiB) | quote }}
objects_count_max = {{ int64 .Values.objects.countMax }}
object_bytes_max = {{ printf "%d MiB" (int64 .Values.objects.objectMiBMax) | quote }}
shutdown_flush_secs = {{ .Values.objects.shutdownFlushSecs }}
{{- if and .Values.objects.journal.enabled (not (hasKey .Values.objects.config "writer")) }}
writer = "cache"
{{- end }}
{{- if .Values.objects.election.enabled }}
writer = "elected"
{{- end }}
{{- include "cached.keys" .Values.objects.config }}

[objects.backend]
{{- include "cached.keys" .Values.objects.backend }}
{{- $kind := .Values.objects.backend.kind }}
{{- /* The pod's volume is mounted before the program starts, so an empty volume is a new one. */}}
{{- range $key, $value := index (dict "file" (dict "path" "/var/lib/cached" "create" true)) $kind }}
{{- if not (hasKey $.Values.objects.backend $key) }}
{{ $key }} = {{ $value | toJson }}
{{- end }}
{{- end }}
{{- if .Values.objects.backendSecretName }}
{{- $files := index (dict "rados" (dict "conf" "ceph.conf" "keyring" "keyring") "s3" (dict "credentials_file" "credentials") "synapse" (dict "secret_file" "secret")) $kind }}
{{- range $key, $file := $files }}
{{- if not (hasKey $.Values.objects.backend $key) }}
{{ $key }} = {{ printf "/run/secrets/cached/backend/%s" $file | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.objects.journal }}
{{- if .enabled }}

[objects.journal]
directory = "/var/lib/cached-journal"
create = true
{{- include "cached.keys" .config }}
{{- end }}
{{- end }}
{{- with .Values.objects.http }}
{{- if .enabled }}

[objects.http]
listen = [{{ printf "0.0.0.0:%v" .port | quote }}]
{{- if .keysSecretName }}
keys_file = "/run/secrets/cached/objects-http-keys/keys.toml"
{{- end }}
bytes_max = {{ printf "%d MiB" (int64 .bytesMiBMax) | quote }}
connections_max = {{ int64 .connectionsMax }}
{{- include "cached.keys" .config }}
{{- include "cached.tls" (dict "table" "objects.http" "tls" .tls) }}
{{- end }}
{{- end }}
{{- range .Values.objects.namespaces }}

[[objects.namespaces]]
{{- include "cached.keys" . }}
{{- end }}
{{- if .Values.objects.election.enabled }}
{{- $name := include "cached.name" . }}

[objects.election]
address = {{ printf "%s-0.%s.%s.svc:%v" $name $name .Release.Namespace .Values.synapse.port | quote }}
{{- include "cached.keys" .Values.objects.election.config }}

[registry]
{{- include "cached.keys" .Values.objects.election.registry }}
{{- end }}
{{- end }}
{{- if .Values.synapse.enabled }}

[synapse]
listen = [{{ printf "0.0.0.0:%v" .Values.synapse.port | quote }}]
secret_file = "/run/secrets/cached/synapse/secret"
bytes_max = {{ printf "%d MiB" (int64 .Values.synapse.bytesMiBMax) | quote }}
payload_pool_bytes_max = {{ printf "%d MiB" (int64 .Values.synapse.poolMiBMax) | quote }}
connections_max = {{ int64 .Values.synapse.connectionsMax }}
sessions_max = {{ int64 .Values.synapse.sessionsMax }}
{{- include "cached.keys" .Values.synapse.config }}
{{- end }}
{{- if .Values.volumes.enabled }}

[volumes]
{{- include "cached.keys" .Values.volumes.config }}
{{- end }}
{{- if .Values.nbd.enabled }}

[nbd]
listen = [{{ printf "0.0.0.0:%v" .Values.nbd.port | quote }}]
bytes_max = {{ printf "%d MiB" (int64 .Values.nbd.bytesMiBMax) | quote }}
payload_pool_bytes_max = {{ printf "%d MiB" (int64 .Values.nbd.poolMiBMax) | quote }}
connections_max = {{ int64 .Values.nbd.connectionsMax }}
{{- if and .Values.nbd.tls.secretName (not (hasKey .Values.nbd.config "tls_required")) }}
tls_required = true
{{- end }}
{{- include "cached.keys" .Values.nbd.config }}
{{- include "cached.tls" (dict "table" "nbd" "tls" .Values.nbd.tls) }}
{{- end }}
{{- if .Values.s3.enabled }}

[s3]
listen = [{{ printf "0.0.0.0:%v" .Values.s3.port | quote }}]
upstream = {{ .Values.s3.upstream | quote }}
memory_bytes_max = {{ printf "%d MiB" (int64 .Values.s3.memoryMiB) | quote }}
heads_bytes_max = {{ printf "%d MiB" (int64 .Values.s3.headsMiB) | quote }}
connections_max = {{ int64 .Values.s3.connectionsMax }}
{{- if .Values.s3.keysSecretName }}
auth = "listener"
keys_file = "/run/secrets/cached/s3-keys/keys.toml"
{{- end }}
{{- if .Values.s3.upstreamSecretName }}
upstream_access_key = {{ .Values.s3.upstreamAccessKey | quote }}
upstream_secret_file = "/run/secrets/cached/s3-upstream/secret"
{{- end }}
{{- include "cached.keys" .Values.s3.config }}
{{- include "cached.tls" (dict "table" "s3" "tls" .Values.s3.tls) }}
{{- range .Values.s3.buckets }}

[[s3.buckets]]
{{- include "cached.keys" . }}
{{- end }}
{{- end }}
{{- with .Values.extraConfig }}

{{ . | trim }}
{{- end }}
{{- end -}}

{{/* Memory in MiB in addition to the items and their index: connections, threads, objects, the process itself. */}}
{{- define "cached.memory.beside" -}}
{{- $connections := int .Values.memcached.connectionsMax -}}
{{- $item := int .Values.memcached.itemMiBMax -}}
{{- $buffers := max (min (max (div $connections 16) 16) 256) (add $item 1) -}}
{{- $sum := add $buffers (div (mul $connections 2) 1024) 1 (int .Values.memcached.threads) 32 -}}
{{- /* Insight: samples of keys. */ -}}
{{- $sum = add $sum 20 (div (int .Values.memcached.threads) 4) -}}
{{- /* The admin listener. */ -}}
{{- $sum = add $sum 16 -}}
{{- if .Values.ring.enabled -}}
{{- /* Connections to and from each other pod, and two more; values that are passed on; moves to and from this pod. */ -}}
{{- $peers := sub (max 1 (int .Values.replicas)) 1 -}}
{{- $outbound := div (mul $peers (int .Values.memcached.threads) 17) 16 -}}
{{- $inbound := div (mul (add $peers 2) (include "cached.lanes" . | int) 5) 8 -}}
{{- $sum = add $sum $outbound $inbound (div (int .Values.memcached.threads) 5) (div $buffers 8) (mul $item 7) 75 -}}
{{- end -}}
{{- if .Values.objects.enabled -}}
{{- $memory := int .Values.objects.memoryMiB -}}
{{- $chunks := mul (int .Values.objects.objectMiBMax) 4 -}}
{{- $objects := div (mul (int .Values.objects.countMax) (add 350 (mul $chunks 280))) 1048576 -}}
{{- $sum = add $sum $memory (div (mul $memory 24) 4096) $objects (int .Values.objects.backendMiB) 2 -}}
{{- /* The election has its own connection to the store. */ -}}
{{- if .Values.objects.election.enabled }}{{ $sum = add $sum (int .Values.objects.backendMiB) }}{{ end -}}
{{- with .Values.objects.http -}}
{{- /* A connection's 80 KiB and four heads of 16 KiB. */ -}}
{{- if .enabled }}{{ $sum = add $sum (int .bytesMiBMax) (div (mul (int .connectionsMax) 144) 1024) 1 }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if .Values.synapse.enabled -}}
{{- $sum = add $sum (int .Values.synapse.bytesMiBMax) (int .Values.synapse.poolMiBMax) -}}
{{- $sum = add $sum (div (int .Values.synapse.connectionsMax) 2) (div (mul (int .Values.synapse.sessionsMax) 48) 1024) 2 -}}
{{- end -}}
{{- if .Values.nbd.enabled -}}
{{- $sum = add $sum (int .Values.nbd.bytesMiBMax) (int .Values.nbd.poolMiBMax) (div (mul (int .Values.nbd.connectionsMax) 6) 10) 2 -}}
{{- end -}}
{{- if .Values.s3.enabled -}}
{{- $sum = add $sum (int .Values.s3.memoryMiB) (int .Values.s3.headsMiB) (div (mul (int .Values.s3.connectionsMax) 272) 1024) 2 -}}
{{- /* Multi-object deletions, absent objects; the access log. */ -}}
{{- if or .Values.s3.keysSecretName (ne (.Values.s3.config.auth | default "gateway") "gateway") }}{{ $sum = add $sum 48 }}{{ end -}}
{{- if .Values.s3.config.access_log }}{{ $sum = add $sum 16 }}{{ end -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* The maximum: the index of the smallest items takes half of their memory. */}}
{{- define "cached.memory.limit" -}}
{{- $items := int .Values.memcached.memoryMiB -}}
{{- printf "%dMi" (add $items (div $items 2) 1 (include "cached.memory.beside" . | int)) -}}
{{- end -}}

{{/* The usual amount: an index of an eighth. */}}
{{- define "cached.memory.request" -}}
{{- $items := int .Values.memcached.memoryMiB -}}
{{- printf "%dMi" (add $items (div $items 8) 1 (include "cached.memory.beside" . | int)) -}}
{{- end -}}

{{/* The time for replies, for dirty data, and a margin. */}}
{{- define "cached.grace" -}}
{{- add 15 (int .Values.preStopSleepSecs) (.Values.objects.enabled | ternary (int .Values.objects.shutdownFlushSecs) 0) -}}
{{- end -}}
