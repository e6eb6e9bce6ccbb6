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

{{/*
The configuration file. Written out setting by setting: toToml would make 64.0 of 64, since numbers of a
values file are floating-point to Helm. JSON's strings are TOML's.
*/}}
{{- define "fermata.toml" -}}
{{- if not .Values.config.insecure }}
{{- fail "config.insecure must be true: a pod must be reached by others, and the chart sets up neither encryption nor authentication yet. networkPolicy says who may reach it" }}
{{- end -}}
listen = {{ .Values.config.listen | toJson }}
insecure = true
data_dir = "/data"
shutdown_grace = {{ .Values.config.shutdown_grace | toJson }}

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
{{- range $name, $_ := .Values.config.tables }}

[tables.{{ $name }}]
{{- end }}
{{- end }}
