{{/* The application, as labels have it. */}}
{{- define "fermata.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The name of all objects. 52 characters: a StatefulSet adds 11 for a label of its pods. */}}
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

{{/* The labels of the servers that never change: selectors and volume claims may not. */}}
{{- define "fermata.selectorLabels" -}}
app.kubernetes.io/name: {{ include "fermata.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end }}

{{/* The labels of all servers of the namespace: several releases may share a keyspace. */}}
{{- define "fermata.serverLabels" -}}
app.kubernetes.io/name: {{ include "fermata.name" . }}
app.kubernetes.io/component: server
{{- end }}

{{/* The labels of the pods that are no servers. The argument: the root, and the component. */}}
{{- define "fermata.componentLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "fermata.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "fermata.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/name: {{ include "fermata.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* Name, namespace and labels of an object. The argument: the root, and what follows the full name. */}}
{{- define "fermata.metadata" -}}
{{- $root := index . 0 -}}
name: {{ include "fermata.fullname" $root }}{{ index . 1 }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "fermata.labels" $root | nindent 2 }}
{{- end }}

{{- define "fermata.image" -}}
{{- with .Values.image -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{ with .digest }}@{{ . }}{{ end }}
{{- end }}
{{- end }}

{{- define "fermata.isCassandra" -}}
{{- if eq .Values.mode "cassandra" }}true{{ end }}
{{- end }}

{{/* The port of an address to listen on. */}}
{{- define "fermata.port" -}}
{{- regexFind "[0-9]+$" . }}
{{- end }}

{{/* The host of the Service inside of the cluster. */}}
{{- define "fermata.host" -}}
{{ include "fermata.fullname" . }}.{{ .Release.Namespace }}.svc
{{- end }}

{{/* The domain of the pods. */}}
{{- define "fermata.podDomain" -}}
{{ include "fermata.fullname" . }}-headless.{{ .Release.Namespace }}.svc
{{- end }}

{{/* A Secret for a certificate: the one that is named, or the one of cert-manager, or none. The argument: the root, the values of
     the certificate, and what follows the full name. */}}
{{- define "fermata.certificateSecret" -}}
{{- $tls := index . 1 }}
{{- if $tls.secretName }}
{{- $tls.secretName }}
{{- else if $tls.certificate.issuerRef.name }}
{{- include "fermata.fullname" (index . 0) }}{{ index . 2 }}
{{- end }}
{{- end }}

{{/* The Secret with the certificate for clients. */}}
{{- define "fermata.tlsSecret" -}}
{{- include "fermata.certificateSecret" (list . .Values.tls "-tls") }}
{{- end }}

{{/* The Secret with the certificate for other replicas. */}}
{{- define "fermata.peersTlsSecret" -}}
{{- include "fermata.certificateSecret" (list . .Values.peers.tls "-peers-tls") }}
{{- end }}

{{/* Whether there is a CA. The argument: a Secret, a ConfigMap, and the key. */}}
{{- define "fermata.hasCa" -}}
{{- if or .secretName .configMapName }}true{{ end }}
{{- end }}

{{/* Whether there are rules. An empty list is one that allows nothing. */}}
{{- define "fermata.hasRules" -}}
{{- if kindIs "slice" .Values.auth.rules }}true{{ end }}
{{- end }}

{{/* The Unix socket for commands in the pod, if TLS is on. */}}
{{- define "fermata.socket" -}}
unix:/run/fermata/fermata.sock
{{- end }}
