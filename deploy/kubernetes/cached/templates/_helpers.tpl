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

{{/* cached.toml */}}
{{- define "cached.config" -}}
[memcached]
listen = [{{ printf "*:%v" .Values.memcached.port | quote }}]
memory_bytes_max = {{ printf "%v MiB" .Values.memcached.memoryMiB | quote }}
item_bytes_max = {{ printf "%v MiB" .Values.memcached.itemMiBMax | quote }}
threads = {{ .Values.memcached.threads }}
connections_max = {{ .Values.memcached.connectionsMax }}
{{- include "cached.keys" .Values.memcached.config }}

[admin]
listen = [{{ printf "0.0.0.0:%v" .Values.admin.port | quote }}]
token_file = "/run/secrets/cached/admin/token"
{{- if .Values.objects.enabled }}

[objects]
memory_bytes_max = {{ printf "%v MiB" .Values.objects.memoryMiB | quote }}
objects_count_max = {{ .Values.objects.countMax }}
object_bytes_max = {{ printf "%v MiB" .Values.objects.objectMiBMax | quote }}
shutdown_flush_secs = {{ .Values.objects.shutdownFlushSecs }}
{{- include "cached.keys" .Values.objects.config }}

[objects.backend]
{{- include "cached.keys" .Values.objects.backend }}
{{- /* The pod's volume is mounted before the program starts, so an empty volume is a new one. */}}
{{- if and (eq .Values.objects.backend.kind "file") (not (hasKey .Values.objects.backend "create")) }}
create = true
{{- end }}
{{- with .Values.objects.journal }}

[objects.journal]
{{- include "cached.keys" . }}
{{- if not (hasKey . "create") }}
create = true
{{- end }}
{{- end }}
{{- range .Values.objects.namespaces }}

[[objects.namespaces]]
{{- include "cached.keys" . }}
{{- end }}
{{- end }}
{{- if .Values.synapse.enabled }}

[synapse]
listen = [{{ printf "0.0.0.0:%v" .Values.synapse.port | quote }}]
secret_file = "/run/secrets/cached/synapse/secret"
bytes_max = {{ printf "%v MiB" .Values.synapse.bytesMiBMax | quote }}
payload_pool_bytes_max = {{ printf "%v MiB" .Values.synapse.poolMiBMax | quote }}
connections_max = {{ .Values.synapse.connectionsMax }}
sessions_max = {{ .Values.synapse.sessionsMax }}
{{- include "cached.keys" .Values.synapse.config }}
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
{{- if .Values.objects.enabled -}}
{{- $memory := int .Values.objects.memoryMiB -}}
{{- $chunks := mul (int .Values.objects.objectMiBMax) 4 -}}
{{- $objects := div (mul (int .Values.objects.countMax) (add 350 (mul $chunks 280))) 1048576 -}}
{{- $sum = add $sum $memory (div (mul $memory 24) 4096) $objects (int .Values.objects.backendMiB) 2 -}}
{{- end -}}
{{- if .Values.synapse.enabled -}}
{{- $sum = add $sum (int .Values.synapse.bytesMiBMax) (int .Values.synapse.poolMiBMax) -}}
{{- $sum = add $sum (div (int .Values.synapse.connectionsMax) 2) (div (mul (int .Values.synapse.sessionsMax) 48) 1024) 2 -}}
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
