{{/* A scalar as the text of a variable: numbers of a values file are floats, and 15000000 would become 1.5e+07 */}}
{{- define "stretto.text" -}}
{{- if and (kindIs "float64" .) (eq (float64 (int64 .)) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end }}

{{/* How to reach the bus, for a service or a Job: (dict "root" $), as YAML: name -> text */}}
{{- define "stretto.settings.bus" -}}
STRETTO_NATS_URL: {{ .root.Values.nats.url | quote }}
{{- if .root.Values.nats.credentials.secretPrefix }}
STRETTO_NATS_CREDENTIALS: /run/stretto/bus.creds
{{- end }}
{{- if .root.Values.nats.ca.secret }}
STRETTO_NATS_CA: /run/stretto/ca.crt
{{- end }}
STRETTO_LOG_LEVEL: {{ .root.Values.logLevel }}
STRETTO_STATE_FOLDER: /var/lib/stretto
{{- end }}

{{/* The settings of a service: (dict "root" $ "name" "planner"), as YAML: name -> text or valueFrom */}}
{{- define "stretto.settings" -}}
{{- $values := .root.Values -}}
{{ include "stretto.settings.bus" . }}
STRETTO_HEALTH_HOST: 0.0.0.0
STRETTO_HEALTH_PORT: "8080"
# numeric libraries would start a thread per core of the node
OMP_NUM_THREADS: "1"
OPENBLAS_NUM_THREADS: "1"
{{- with $values.tracing.endpoint }}
OTEL_EXPORTER_OTLP_ENDPOINT: {{ . | quote }}
{{- end }}
{{- if has .name (list "planner" "arbiter") }}
STRETTO_{{ upper .name }}_CPU_CORES: {{ include "stretto.text" $values.cluster.cpuCores | quote }}
STRETTO_{{ upper .name }}_MEMORY_BYTES: {{ mulf (default 0 $values.cluster.memoryGiB) 1073741824 | int64 | quote }}
{{- end }}
{{- if has .name (list "planner" "arbiter" "gateway" "actuator") }}
STRETTO_EXTENDED_RESOURCES: {{ toJson $values.cluster.extended | quote }}
{{- with $values.cluster.deviceTypes }}
STRETTO_DEVICE_TYPES: {{ toJson . | quote }}
{{- end }}
{{- end }}
{{- if and $values.quickstart.enabled (not $values.redis.secret) (eq .name "checkpoints") }}
STRETTO_CHECKPOINTS_REDIS_URL: redis://{{ include "stretto.fullname" .root }}-redis:6379/0
{{- end }}
{{- if and $values.redis.secret (eq .name "checkpoints") }}
STRETTO_CHECKPOINTS_REDIS_URL:
  secretKeyRef: {name: {{ $values.redis.secret }}, key: {{ $values.redis.key }}}
{{- end }}
{{- if has .name (list "checkpoints" "actuator") }}
STRETTO_{{ upper .name }}_STORE_URL: {{ $values.store.url | default "file:///var/lib/stretto/checkpoints" | quote }}
{{- end }}
{{- if has .name (list "gateway" "checkpoints" "actuator") }}
{{ include "stretto.settings.allowed" .root }}
{{- end }}
{{- if has .name (list "gateway" "arbiter") }}
STRETTO_TEAMS_QUOTAS: {{ toJson $values.teams.quotas | quote }}
STRETTO_TEAMS_QUOTA_HOLDER: {{ $values.teams.quotaHolder }}
{{- end }}
{{- if eq .name "actuator" }}
{{ include "stretto.settings.actuator" .root }}
{{- end }}
{{- if eq .name "gateway" }}
{{ include "stretto.settings.gateway" .root }}
{{- end }}
{{- if eq .name "forwarder" }}
STRETTO_FORWARDER_ENDPOINTS_FILE: /run/stretto/endpoints.yaml
{{- end }}
{{- if eq .name "decider" }}
STRETTO_DECIDER_KUBERNETES_NAMESPACE: {{ $values.decider.namespace | default (include "stretto.trainer.namespace" .root) }}
STRETTO_DECIDER_KINDS: {{ toJson $values.decider.kinds | quote }}
STRETTO_DECIDER_KUEUE: {{ $values.decider.kueue | quote }}
STRETTO_DECIDER_REFUSED_AFTER_S: {{ include "stretto.text" $values.decider.refusedAfterSeconds | quote }}
{{- end }}
{{- end }}

{{/* Lists of names that a job may use: those of the values, and those that it would get anyway */}}
{{- define "stretto.settings.allowed" -}}
{{- $allowed := .Values.allowed -}}
{{- $trainer := .Values.trainer -}}
{{- $account := printf "%s-trainer" (include "stretto.fullname" .) -}}
{{- $lists := dict
      "STORES" $allowed.stores
      "RESTORES" $allowed.restores
      "IMAGES" $allowed.images
      "PRIORITY_CLASSES" (append $allowed.priorityClasses $trainer.priorityClassName)
      "TOLERATIONS" $allowed.tolerations
      "IMAGE_PULL_SECRETS" (concat $allowed.pullSecrets .Values.image.pullSecrets)
      "SERVICE_ACCOUNTS" (append $allowed.serviceAccounts $account)
      "QUEUES" (append $allowed.queues $trainer.queue)
      "SECRETS" $allowed.secrets
      "VOLUMES" $allowed.volumes
      "CODE" $allowed.code
      "REQUIREMENTS" $allowed.requirements -}}
{{- range $name, $entries := $lists }}
STRETTO_ALLOWED_{{ $name }}: {{ compact $entries | join "," | quote }}
{{- end }}
{{- end }}

{{- define "stretto.settings.actuator" -}}
{{- $trainer := .Values.trainer -}}
{{- $pods := dict
      "service_account" (printf "%s-trainer" (include "stretto.fullname" .))
      "node_selector" $trainer.nodeSelector
      "tolerations" $trainer.tolerations
      "image_pull_secrets" .Values.image.pullSecrets -}}
{{- with $trainer.priorityClassName }}{{ $_ := set $pods "priority_class" . }}{{ end -}}
{{- with $trainer.queue }}{{ $_ := set $pods "queue" . }}{{ end -}}
STRETTO_ACTUATOR_BACKEND: kubernetes
STRETTO_ACTUATOR_INSTALLATION: {{ .Release.Name | quote }}
STRETTO_ACTUATOR_POD_IMAGE: {{ include "stretto.image" (dict "root" . "name" "trainer" "image" $trainer.image) | quote }}
STRETTO_ACTUATOR_POD_ENVIRONMENT: {{ $trainer.environment | quote }}
STRETTO_ACTUATOR_KUBERNETES: {{ toJson $pods | quote }}
STRETTO_ACTUATOR_KUBERNETES_NAMESPACE: {{ include "stretto.trainer.namespace" . }}
STRETTO_ACTUATOR_KUBERNETES_OWNER: {{ include "stretto.owner" . }}
STRETTO_ACTUATOR_KUBERNETES_NETWORK_POLICIES: {{ .Values.networkPolicy.enabled | quote }}
STRETTO_ACTUATOR_PLANE_ENCRYPTED: {{ ternary "required" "off" $trainer.encrypted | quote }}
STRETTO_ACTUATOR_EGRESS: {{ $trainer.egress | quote }}
STRETTO_ACTUATOR_METADATA_ADDRESSES: {{ join "," .Values.networkPolicy.metadata | quote }}
{{- if ne (include "stretto.trainer.namespace" .) .Release.Namespace }}
STRETTO_ACTUATOR_KUBERNETES_DNS_SEARCHES: {{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}
{{- with .Values.store.claim }}
STRETTO_ACTUATOR_KUBERNETES_CHECKPOINTS_CLAIM: {{ . }}
{{- end }}
{{- with .Values.nats.podUrl }}
STRETTO_ACTUATOR_POD_NATS_URL: {{ . | quote }}
{{- end }}
{{- if .Values.nats.credentials.secretPrefix }}
STRETTO_ACTUATOR_SIGNING_KEY_FILE: /run/stretto/pods.seed
STRETTO_ACTUATOR_CONNECTIONS_CREDENTIALS: /run/stretto/connections.creds
{{- end }}
{{- end }}

{{- define "stretto.settings.gateway" -}}
{{- $gateway := .Values.gateway -}}
STRETTO_GATEWAY_HOST: 0.0.0.0
STRETTO_GATEWAY_PORT: "8000"
{{- with $gateway.proxies }}
STRETTO_GATEWAY_PROXIES: {{ . | quote }}
{{- end }}
{{- if $gateway.token.secret }}
STRETTO_GATEWAY_TOKEN_FILE: /run/stretto/token
{{- end }}
{{- if $gateway.tokens.secret }}
STRETTO_GATEWAY_TOKENS_FILE: /run/stretto/tokens.json
{{- end }}
{{- with $gateway.oidc }}
{{- if .issuer }}
STRETTO_GATEWAY_OIDC_ISSUER: {{ .issuer | quote }}
STRETTO_GATEWAY_OIDC_AUDIENCE: {{ .audience | quote }}
STRETTO_GATEWAY_OIDC_CLIENT_ID: {{ .clientId | quote }}
STRETTO_GATEWAY_OIDC_SCOPES: {{ .scopes | quote }}
STRETTO_GATEWAY_OIDC_TEAM_CLAIM: {{ .teamClaim | quote }}
STRETTO_GATEWAY_OIDC_ROLE_CLAIM: {{ .roleClaim | quote }}
STRETTO_GATEWAY_OIDC_ROLES: {{ toJson .roles | quote }}
{{- end }}
{{- end }}
{{- with .Values.tracing.query }}
STRETTO_GATEWAY_TRACES_URL: {{ . | quote }}
{{- end }}
{{- if $gateway.tls.secret }}
STRETTO_GATEWAY_TLS_CERTIFICATE: /run/stretto/tls.crt
STRETTO_GATEWAY_TLS_KEY: /run/stretto/tls.key
{{- end }}
{{- if $gateway.trainingJobs }}
STRETTO_GATEWAY_TRAININGJOBS: "true"
STRETTO_GATEWAY_INSTALLATION: {{ .Release.Name | quote }}
STRETTO_GATEWAY_TRAININGJOBS_NAMESPACE: {{ include "stretto.trainer.namespace" . }}
{{- end }}
{{- end }}

{{/* A map of settings as the `env` of a container */}}
{{- define "stretto.env" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  {{- if kindIs "map" $value }}
  valueFrom:
    {{- toYaml $value | nindent 4 }}
  {{- else }}
  value: {{ include "stretto.text" $value | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Sources of the files below /run/stretto: (dict "root" $ "name" "planner"); nothing where none are needed */}}
{{- define "stretto.files" -}}
{{- $values := .root.Values -}}
{{- with $values.nats.credentials.secretPrefix }}
- secret:
    name: {{ . }}-{{ $.name }}
    items:
      - {key: bus.creds, path: bus.creds}
      {{- if eq $.name "actuator" }}
      - {key: pods.seed, path: pods.seed}
      {{- end }}
{{- if eq $.name "actuator" }}
- secret: # a Secret of an earlier version lacks it; the actuator then warns
    name: {{ . }}-actuator
    optional: true
    items:
      - {key: connections.creds, path: connections.creds}
{{- end }}
{{- end }}
{{- with $values.nats.ca.secret }}
- secret:
    name: {{ . }}
    items:
      - {key: {{ $values.nats.ca.key }}, path: ca.crt}
{{- end }}
{{- if eq .name "forwarder" }}
- secret:
    name: {{ $values.forwarder.endpoints.secret }}
{{- end }}
{{- if eq .name "gateway" }}
{{- with $values.gateway.token }}
{{- if .secret }}
- secret:
    name: {{ .secret }}
    items:
      - {key: {{ .key }}, path: token}
{{- end }}
{{- end }}
{{- with $values.gateway.tokens }}
{{- if .secret }}
- secret:
    name: {{ .secret }}
    items:
      - {key: {{ .key }}, path: tokens.json}
{{- end }}
{{- end }}
{{- with $values.gateway.tls.secret }}
- secret:
    name: {{ . }}
    items:
      - {key: tls.crt, path: tls.crt}
      - {key: tls.key, path: tls.key}
{{- end }}
{{- end }}
{{- end }}
