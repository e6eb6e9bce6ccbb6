{{/*
A section of a TOML file, and the sections below it. The argument: its path, and its settings. Not toToml, because Helm reads all
numbers of a values file as floating-point, and that would print 64.0. A string of JSON is one of TOML.
*/}}
{{- define "fermata.section" -}}
{{- $path := index . 0 }}
{{- $settings := index . 1 }}
{{- range $name, $value := $settings }}
{{- if kindIs "float64" $value }}
{{ $name }} = {{ int64 $value }}
{{- else if not (or (kindIs "map" $value) (kindIs "invalid" $value)) }}
{{ $name }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- range $name, $value := $settings }}
{{- if kindIs "map" $value }}
{{- $below := print $path $name }}

[{{ $below }}]
{{- include "fermata.section" (list (print $below ".") $value) }}
{{- end }}
{{- end }}
{{- end }}

{{/* The configuration file: the values in `config`, and the files that are mounted. */}}
{{- define "fermata.toml" -}}
{{- include "fermata.check" . }}
{{- $values := .Values }}
{{- $config := deepCopy $values.config }}
{{- $store := dict "kind" $values.mode $values.mode (get $config.store $values.mode) }}
{{- $_ := set $config "store" $store }}
{{- if include "fermata.tlsSecret" . }}
{{- $_ := set $config "listen" (list $config.listen (include "fermata.socket" .)) }}
{{- $_ := set $config "tls" (dict "cert_file" "/etc/fermata/tls.crt" "key_file" "/etc/fermata/tls.key") }}
{{- if include "fermata.hasCa" $values.tls.clientCa }}
{{- $_ := set $config.tls "client_ca_file" "/etc/fermata/client-ca.crt" }}
{{- end }}
{{- end }}
{{- $auth := dict }}
{{- if $values.auth.tokens.secretName }}
{{- $_ := set $auth "tokens_file" "/etc/fermata/tokens" }}
{{- end }}
{{- if include "fermata.hasRules" . }}
{{- $_ := set $auth "rules_file" "/etc/fermata/rules.toml" }}
{{- end }}
{{- with $auth }}
{{- $_ := set $config "auth" . }}
{{- end }}
{{- if include "fermata.isCassandra" . }}
{{- if $values.cassandra.credentials.secretName }}
{{- $_ := set $store.cassandra "password_file" "/etc/fermata/cassandra-password" }}
{{- end }}
{{- if include "fermata.hasCa" $values.cassandra.tls.ca }}
{{- $tls := $store.cassandra.tls | default dict }}
{{- $_ := set $tls "ca_file" "/etc/fermata/cassandra-ca.crt" }}
{{- if $values.cassandra.tls.secretName }}
{{- $_ := set $tls "cert_file" "/etc/fermata/cassandra.crt" }}
{{- $_ := set $tls "key_file" "/etc/fermata/cassandra.key" }}
{{- end }}
{{- $_ := set $store.cassandra "tls" $tls }}
{{- end }}
{{- $_ := set $config.peers "secret_file" "/etc/fermata/peers.secret" }}
{{- if include "fermata.peersTlsSecret" . }}
{{- $tls := dict "ca_file" "/etc/fermata/peers-ca.crt" "cert_file" "/etc/fermata/peers.crt" "key_file" "/etc/fermata/peers.key" }}
{{- $_ := set $config.peers "tls" $tls }}
{{- end }}
{{- else }}
{{- $_ := unset $config "peers" }}
{{- $_ := set $config "data_dir" "/data" }}
{{- end }}
{{- include "fermata.section" (list "" $config) | trim }}
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
