{{/*
Fails if the server would refuse to start, or if values contradict each other. The schema cannot say what to do, so it has
none of this.
*/}}
{{- define "fermata.check" -}}
{{- $tls := include "fermata.tlsSecret" . }}
{{- $peersTls := include "fermata.peersTlsSecret" . }}
{{- $clientCa := include "fermata.hasCa" .Values.tls.clientCa }}
{{- $login := or .Values.auth.tokens.secretName $clientCa }}
{{- range $name, $ca := dict "tls.clientCa" .Values.tls.clientCa "cassandra.tls.ca" .Values.cassandra.tls.ca }}
{{- if and $ca.secretName $ca.configMapName }}
{{- fail (print $name ": name a Secret or a ConfigMap, not both") }}
{{- end }}
{{- end }}
{{- if and $clientCa (not $tls) }}
{{- fail "tls.clientCa: clients show certificates only to a server with TLS: set tls.secretName or tls.certificate as well" }}
{{- end }}
{{- if and (include "fermata.hasRules" .) (not $login) }}
{{- fail "auth.rules: rules are for clients that are known: set auth.tokens.secretName or tls.clientCa as well" }}
{{- end }}
{{- if include "fermata.isCassandra" . }}
{{- if not .Values.config.store.cassandra.contact_points }}
{{- fail "config.store.cassandra.contact_points: name at least one node of the cluster" }}
{{- end }}
{{- if not .Values.peers.secret.secretName }}
{{- fail "peers.secret.secretName: name a Secret with a text that all replicas share" }}
{{- end }}
{{- if and .Values.cassandra.tls.secretName (not (include "fermata.hasCa" .Values.cassandra.tls.ca)) }}
{{- fail "cassandra.tls.secretName: certificates are shown on encrypted connections only: set cassandra.tls.ca as well" }}
{{- end }}
{{- else }}
{{- if .Values.config.store.cassandra.contact_points }}
{{- fail "config.store.cassandra.contact_points is set, but mode is embedded: set mode to cassandra" }}
{{- end }}
{{- if .Values.autoscaling.enabled }}
{{- fail "autoscaling.enabled: the embedded store is for one replica: several need mode cassandra" }}
{{- end }}
{{- end }}
{{- if not .Values.config.insecure }}
{{- $but := "Or set config.insecure=true if everybody who reaches the port may take and break locks" }}
{{- $set := "Set tls.secretName or tls.certificate" }}
{{- $know := "auth.tokens.secretName or tls.clientCa" }}
{{- if not (or $tls $login) }}
{{- fail (printf "connections would not be encrypted, and clients would not be known. %s, and %s. %s" $set $know $but) }}
{{- else if not $tls }}
{{- fail (printf "connections would not be encrypted. %s. %s" $set $but) }}
{{- else if not $login }}
{{- fail (printf "clients would not be known. Set %s. %s" $know $but) }}
{{- else if and (include "fermata.isCassandra" .) (not $peersTls) }}
{{- fail (printf "calls between replicas would not be encrypted. Set peers.tls.secretName or peers.tls.certificate. %s" $but) }}
{{- end }}
{{- end }}
{{- end }}
