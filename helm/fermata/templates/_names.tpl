{{/* The application, as labels have it. */}}
{{- define "fermata.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* What everything is called. 52 characters: a StatefulSet adds 11 for a label of its pods. */}}
{{- define "fermata.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "fermata.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "fermata.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "fermata.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "fermata.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* What never changes: selectors and volume claims may not. */}}
{{- define "fermata.selectorLabels" -}}
app.kubernetes.io/name: {{ include "fermata.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "fermata.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "fermata.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "fermata.image" -}}
{{- with .Values.image -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{ with .digest }}@{{ . }}{{ end }}
{{- end }}
{{- end }}

{{/* The port in config.listen. */}}
{{- define "fermata.port" -}}
{{- regexFind "[0-9]+$" .Values.config.listen }}
{{- end }}

{{/* The Unix socket for the probes, where TLS is on. */}}
{{- define "fermata.socket" -}}
unix:/run/fermata/fermata.sock
{{- end }}

{{/* The Secret or the ConfigMap with the CA of client certificates; empty where there is none. */}}
{{- define "fermata.clientCa" -}}
{{- with .Values.tls.clientCa }}{{ or .secretName .configMapName }}{{ end }}
{{- end }}

{{/* Whether there are rules: a list without any is one that allows nothing. */}}
{{- define "fermata.hasRules" -}}
{{- if kindIs "slice" .Values.auth.rules }}true{{ end }}
{{- end }}

{{/*
Fails where the server would refuse to start. This is not in the schema: that is checked first, and can only
say which alternatives failed, not what to do.
*/}}
{{- define "fermata.check" -}}
{{- $tls := .Values.tls.secretName }}
{{- $clientCa := include "fermata.clientCa" . }}
{{- $login := or .Values.auth.tokens.secretName $clientCa }}
{{- if and .Values.tls.clientCa.secretName .Values.tls.clientCa.configMapName }}
{{- fail "tls.clientCa: name a Secret or a ConfigMap, not both" }}
{{- end }}
{{- if and $clientCa (not $tls) }}
{{- fail "tls.clientCa: clients show certificates only to a server with TLS: set tls.secretName as well" }}
{{- end }}
{{- if and (include "fermata.hasRules" .) (not $login) }}
{{- fail "auth.rules: rules are for clients that are known: set auth.tokens.secretName or tls.clientCa as well" }}
{{- end }}
{{- if not .Values.config.insecure }}
{{- $but := "Or set config.insecure=true if everybody who reaches the port may take and break locks" }}
{{- if not (or $tls $login) }}
{{- fail (print "connections would not be encrypted, and clients would not be known. Set tls.secretName, and "
  "auth.tokens.secretName or tls.clientCa. " $but) }}
{{- else if not $tls }}
{{- fail (print "connections would not be encrypted. Set tls.secretName. " $but) }}
{{- else if not $login }}
{{- fail (print "clients would not be known. Set auth.tokens.secretName or tls.clientCa. " $but) }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The configuration file. Written out setting by setting: toToml would make 64.0 of 64, since numbers of a
values file are floating-point to Helm. JSON's strings are TOML's.
*/}}
{{- define "fermata.toml" -}}
{{- include "fermata.check" . -}}
{{- if .Values.tls.secretName -}}
listen = {{ list .Values.config.listen (include "fermata.socket" .) | toJson }}
{{- else -}}
listen = {{ .Values.config.listen | toJson }}
{{- end }}
insecure = {{ .Values.config.insecure }}
data_dir = "/data"
shutdown_grace = {{ .Values.config.shutdown_grace | toJson }}
{{- if .Values.tls.secretName }}

[tls]
cert_file = "/etc/fermata/tls.crt"
key_file = "/etc/fermata/tls.key"
{{- if include "fermata.clientCa" . }}
client_ca_file = "/etc/fermata/client-ca.crt"
{{- end }}
{{- end }}
{{- if or .Values.auth.tokens.secretName (include "fermata.hasRules" .) }}

[auth]
{{- if .Values.auth.tokens.secretName }}
tokens_file = "/etc/fermata/tokens"
{{- end }}
{{- if include "fermata.hasRules" . }}
rules_file = "/etc/fermata/rules.toml"
{{- end }}
{{- end }}

[store.embedded]
cache_mib = {{ .Values.config.store.embedded.cache_mib | int64 }}

[log]
format = {{ .Values.config.log.format | toJson }}
filter = {{ .Values.config.log.filter | toJson }}
{{- with .Values.config.limits }}

[limits]
{{- range $name, $limit := . }}
{{ $name }} = {{ $limit | int64 }}
{{- end }}
{{- end }}
{{- range $name, $table := .Values.config.tables }}

[tables.{{ $name }}]
{{- with $table.commit }}
commit = {{ . | toJson }}
{{- end }}
{{- end }}
{{- end }}

{{/* The rules. */}}
{{- define "fermata.rules" -}}
{{- range .Values.auth.rules }}

[[rule]]
who = {{ .who | toJson }}
table = {{ .table | toJson }}
{{- with .key_prefix }}
key_prefix = {{ . | toJson }}
{{- end }}
allow = {{ .allow | toJson }}
{{- end }}
{{- end }}

{{/*
Asks the health service, which wants no login: the gRPC probes of Kubernetes know no TLS, so where that is on the program
asks over the Unix socket. The argument: the root, and the service.
*/}}
{{- define "fermata.probe" -}}
{{- $root := index . 0 }}
{{- $service := index . 1 }}
{{- if $root.Values.tls.secretName -}}
exec:
  command: [/usr/bin/fermata, health, {{ $service | quote }}, --timeout, 1s]
{{- else -}}
grpc:
  port: {{ include "fermata.port" $root }}
  service: {{ $service | quote }}
{{- end }}
{{- end }}
