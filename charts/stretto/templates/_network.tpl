{{/* Egress to peers at TCP ports, no peers meaning anywhere: (dict "to" list "ports" list) */}}
{{- define "stretto.egress" -}}
- ports:
    {{- range .ports }}
    - {protocol: TCP, port: {{ int . }}}
    {{- end }}
  {{- with .to }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* Ports of the addresses in a text: (dict "text" "nats://a:4222,nats://b" "default" 4222), as a YAML list */}}
{{- define "stretto.ports" -}}
{{- $default := .default -}}
{{- $ports := list -}}
{{- range splitList "," .text -}}
{{- $ports = append $ports (regexFind ":[0-9]+(/|$)" . | trimPrefix ":" | trimSuffix "/" | default $default | int) -}}
{{- end -}}
{{ uniq $ports | toJson }}
{{- end }}

{{/* Egress that services and training pods share: DNS, the bus, and the collector of spans */}}
{{- define "stretto.egress.common" -}}
{{- $policy := .Values.networkPolicy -}}
- ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
  {{- with $policy.dns }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- $anywhere := include "stretto.anywhere" . | fromYamlArray }}
{{ include "stretto.egress" (dict "to" ($policy.nats | default $anywhere) "ports" (include "stretto.ports" (dict "text" .Values.nats.url "default" 4222) | fromJsonArray)) }}
{{- with .Values.tracing.endpoint }}
{{ include "stretto.egress" (dict "to" ($policy.tracing | default $anywhere) "ports" (include "stretto.ports" (dict "text" . "default" 4318) | fromJsonArray)) }}
{{- end }}
{{- end }}

{{- define "stretto.egress.redis" -}}
{{- $peers := .Values.networkPolicy.redis | default (include "stretto.anywhere" . | fromYamlArray) -}}
{{ include "stretto.egress" (dict "to" $peers "ports" (list .Values.networkPolicy.redisPort)) }}
{{- end }}

{{- define "stretto.egress.store" -}}
{{- $peers := .Values.networkPolicy.store | default (include "stretto.anywhere" . | fromYamlArray) -}}
{{ include "stretto.egress" (dict "to" $peers "ports" .Values.networkPolicy.storePorts) }}
{{- end }}

{{/* Peers: all pods, and every address but those of cloud metadata */}}
{{- define "stretto.anywhere" -}}
- namespaceSelector: {}
{{- range $everything, $mark := dict "0.0.0.0/0" "." "::/0" ":" }}
- ipBlock:
    cidr: {{ $everything | quote }}
    {{- $closed := list }}
    {{- range $.Values.networkPolicy.metadata }}
    {{- if contains $mark . }}{{ $closed = append $closed . }}{{ end }}
    {{- end }}
    {{- with $closed }}
    except:
      {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end }}
{{- end }}
