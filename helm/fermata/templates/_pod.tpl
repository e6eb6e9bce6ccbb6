{{/* A file of a Secret in /etc/fermata. The argument: the name of the Secret, and pairs of key and path. */}}
{{- define "fermata.secretFiles" -}}
- secret:
    name: {{ index . 0 }}
    items:
      {{- range rest . }}
      - key: {{ index . 0 }}
        path: {{ index . 1 }}
      {{- end }}
{{- end }}

{{/* A CA in /etc/fermata. The argument: a Secret, a ConfigMap and the key, and the path. */}}
{{- define "fermata.caFile" -}}
{{- $ca := index . 0 -}}
- {{ ternary "secret" "configMap" (not (empty $ca.secretName)) }}:
    name: {{ or $ca.secretName $ca.configMapName }}
    items:
      - key: {{ $ca.key }}
        path: {{ index . 1 }}
{{- end }}

{{/* The files for Cassandra: the password, the CA, and the certificate. */}}
{{- define "fermata.cassandraFiles" -}}
{{- with .Values.cassandra }}
{{- with .credentials }}
{{- if .secretName }}
{{ include "fermata.secretFiles" (list .secretName (list .passwordKey "cassandra-password")) }}
{{- end }}
{{- end }}
{{- if include "fermata.hasCa" .tls.ca }}
{{ include "fermata.caFile" (list .tls.ca "cassandra-ca.crt") }}
{{- end }}
{{- with .tls.secretName }}
{{ include "fermata.secretFiles" (list . (list "tls.crt" "cassandra.crt") (list "tls.key" "cassandra.key")) }}
{{- end }}
{{- end }}
{{- end }}

{{/* All files for a server, beside the ConfigMap. */}}
{{- define "fermata.serverFiles" -}}
{{- with include "fermata.tlsSecret" . }}
{{ include "fermata.secretFiles" (list . (list "tls.crt" "tls.crt") (list "tls.key" "tls.key")) }}
{{- end }}
{{- with .Values.tls.clientCa }}
{{- if include "fermata.hasCa" . }}
{{ include "fermata.caFile" (list . "client-ca.crt") }}
{{- end }}
{{- end }}
{{- with .Values.auth.tokens }}
{{- if .secretName }}
{{ include "fermata.secretFiles" (list .secretName (list .key "tokens")) }}
{{- end }}
{{- end }}
{{- if include "fermata.isCassandra" . }}
{{- with .Values.peers.secret }}
{{ include "fermata.secretFiles" (list .secretName (list .key "peers.secret")) }}
{{- end }}
{{- with include "fermata.peersTlsSecret" . }}
{{ include "fermata.secretFiles" (list . (list "tls.crt" "peers.crt") (list "tls.key" "peers.key") (list "ca.crt" "peers-ca.crt")) }}
{{- end }}
{{- include "fermata.cassandraFiles" . }}
{{- end }}
{{- end }}

{{/* Access of the files of a volume: of the group fsGroup, which the process has. If the cluster assigns it, it is not known. */}}
{{- define "fermata.fileMode" -}}
{{- if dig "fsGroup" false (.Values.podSecurityContext | default dict) }}0440{{ else }}0444{{ end }}
{{- end }}

{{/* The login for Cassandra, as the server and the schema Job take it. */}}
{{- define "fermata.cassandraUser" -}}
{{- with .Values.cassandra.credentials }}
{{- if .secretName -}}
- name: FERMATA_CFG_STORE__CASSANDRA__USER
  valueFrom:
    secretKeyRef:
      name: {{ .secretName }}
      key: {{ .userKey }}
{{- end }}
{{- end }}
{{- end }}

{{/* Name, address and zone of a replica, from its pod. Without TLS the address is an IP, because the DNS of a cluster may answer the
     previous one for half a minute. A certificate can only name the host. */}}
{{- define "fermata.replica" -}}
{{- $listen := .Values.config.peers.listen }}
{{- $port := include "fermata.port" $listen -}}
- name: FERMATA_CFG_PEERS__NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: FERMATA_CFG_ADVERTISE
  value: {{ printf "$(FERMATA_CFG_PEERS__NAME).%s:%s" (include "fermata.podDomain" .) (include "fermata.port" .Values.config.listen) | quote }}
{{- if include "fermata.peersTlsSecret" . }}
- name: FERMATA_CFG_PEERS__ADVERTISE
  value: {{ printf "$(FERMATA_CFG_PEERS__NAME).%s:%s" (include "fermata.podDomain" .) $port | quote }}
{{- else }}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: FERMATA_CFG_PEERS__ADVERTISE
  value: {{ printf (ternary "[$(POD_IP)]:%s" "$(POD_IP):%s" (hasPrefix "[" $listen)) $port | quote }}
{{- end }}
{{- if not .Values.config.peers.zone }}
# Empty before Kubernetes 1.35.
- name: FERMATA_CFG_PEERS__ZONE
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['topology.kubernetes.io/zone']
{{- end }}
{{- end }}

{{/* What all pods of the release have in common. */}}
{{- define "fermata.podSpec" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
automountServiceAccountToken: false
# A service called fermata-cfg would set FERMATA_CFG_PORT, which is no setting.
enableServiceLinks: false
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Where pods go rather than elsewhere: the values, or else different nodes. */}}
{{- define "fermata.affinity" -}}
{{- if kindIs "map" .Values.affinity }}
{{- with .Values.affinity }}{{ toYaml . }}{{ end }}
{{- else if include "fermata.isCassandra" . -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "fermata.selectorLabels" . | nindent 12 }}
{{- end }}
{{- end }}

{{/* How pods spread: the values, or else over zones. */}}
{{- define "fermata.spread" -}}
{{- if kindIs "slice" .Values.topologySpreadConstraints }}
{{- with .Values.topologySpreadConstraints }}{{ toYaml . }}{{ end }}
{{- else if include "fermata.isCassandra" . -}}
- maxSkew: 1
  topologyKey: topology.kubernetes.io/zone
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "fermata.selectorLabels" . | nindent 6 }}
{{- end }}
{{- end }}
