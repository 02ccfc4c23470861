{{- define "stretto.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $whole := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- default $whole .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{/* Labels that select the pods of a component: (dict "root" $ "component" "planner") */}}
{{- define "stretto.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "stretto.labels" -}}
{{ include "stretto.selector" . }}
app.kubernetes.io/part-of: stretto
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* Labels that the actuator gives to the training pods of this release */}}
{{- define "stretto.trainer.selector" -}}
app.kubernetes.io/managed-by: stretto
stretto.dev/installation: {{ .Release.Name }}
{{- end }}

{{/* End of the names of everything that the actuator makes: stretto_actuator.kubernetes.manifest.Installation.name_of */}}
{{- define "stretto.trainer.suffix" -}}
-{{ sha256sum .Release.Name | trunc 6 }}
{{- end }}

{{/* Namespace of training pods; one of their own unless it is named */}}
{{- define "stretto.trainer.namespace" -}}
{{ default (printf "%s-pods" (include "stretto.fullname" .)) .Values.trainer.namespace }}
{{- end }}

{{/* The values of a service over the defaults: (dict "root" $ "name" "planner"), as YAML */}}
{{- define "stretto.service" -}}
{{ mergeOverwrite (deepCopy .root.Values.defaults) (deepCopy (index .root.Values.services .name)) | toYaml }}
{{- end }}

{{/* An image: (dict "root" $ "name" "planner" "image" (dict "repository" ... "tag" ... "digest" ...)) */}}
{{- define "stretto.image" -}}
{{- $global := .root.Values.image -}}
{{- $repository := default (printf "%s/%s" $global.repository .name) .image.repository -}}
{{- $tag := .image.tag | default $global.tag | default .root.Chart.AppVersion -}}
{{- /* a released chart knows the registry and the digests of its own images, not of those that somebody names */ -}}
{{- $elsewhere := or $global.registry .image.repository (ne $global.repository "stretto") -}}
{{- $registry := empty $elsewhere | ternary .root.Values.released.registry $global.registry -}}
{{- $whole := printf "%s%s" (empty $registry | ternary "" (printf "%s/" $registry)) $repository -}}
{{- if not (regexMatch "^([^/]*[.:][^/]*|localhost)/" $whole) -}}
{{- fail (printf "image.registry: say where %s is: build Stretto's images with `make images`, push them to a registry of yours and name it, such as registry.example.com; without a name a node would take them from a namespace of Docker Hub that is not ours" $whole) -}}
{{- end -}}
{{- if eq $tag "latest" }}{{ fail "image.tag: latest says nothing about what runs; name a version" }}{{ end -}}
{{- $released := or $elsewhere .image.tag $global.tag | empty | ternary (get .root.Values.released.digests .name) "" -}}
{{ $whole }}{{ with .image.digest | default $released }}@{{ . }}{{ else }}:{{ $tag }}{{ end }}
{{- end }}

{{- define "stretto.gateway.scheme" -}}
{{ empty .Values.gateway.tls.secret | ternary "HTTP" "HTTPS" }}
{{- end }}

{{- define "stretto.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Owner of the jobs' pods: they are deleted with it */}}
{{- define "stretto.owner" -}}
{{ include "stretto.fullname" . }}-pods
{{- end }}

{{- define "stretto.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "stretto.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Parts of the pods of `helm test`: labels of a job, annotations with the order, the pod, its container */}}
{{- define "stretto.test.job" -}}
{{ include "stretto.trainer.selector" . }}
stretto.dev/job: helm-test
{{- end }}

{{- define "stretto.test.hook" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{- define "stretto.test.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- include "stretto.podSecurity" . | nindent 2 }}
{{ include "stretto.pullSecrets" . }}
{{- end }}

{{- define "stretto.test.container" -}}
resources:
  {{- toYaml .Values.provision.resources | nindent 2 }}
securityContext:
  {{- include "stretto.containerSecurity" . | nindent 2 }}
{{- end }}

{{/* Required values: the first missing one ends the rendering */}}
{{- define "stretto.check" -}}
{{- $enabled := dict -}}
{{- range $name, $_ := .Values.services -}}
{{- $service := include "stretto.service" (dict "root" $ "name" $name) | fromYaml -}}
{{- $_ := set $enabled $name $service.enabled -}}
{{- if and $service.enabled $service.autoscaling.enabled (ne $name "gateway") (not $.Values.monitoring.prometheus.url) -}}
{{- fail (printf "monitoring.prometheus.url: give Prometheus' address, or leave services.%s.autoscaling off: KEDA asks Prometheus for the backlog" $name) -}}
{{- end -}}
{{- end -}}
{{- if not .Values.nats.url }}{{ fail "nats.url: say where NATS is, such as nats://nats:4222" }}{{ end -}}
{{- if and .Values.provision.external (not .Values.nats.credentials.secretPrefix) -}}
{{- fail "provision.external: tools outside need an account of their own: make keys and give nats.credentials.secretPrefix" -}}
{{- end -}}
{{- if and (not .Values.nats.credentials.secretPrefix) (not .Values.nats.insecure) -}}
{{- fail "nats.credentials.secretPrefix: make keys with `python -m stretto_installation keys` and name their Secrets; without them anyone who reaches NATS can do everything, which nats.insecure=true accepts" -}}
{{- end -}}
{{- if and (or $enabled.checkpoints $enabled.actuator) (not .Values.store.url) (not .Values.store.claim) -}}
{{- fail "store: say where checkpoints are kept: store.url, such as s3://bucket/stretto, or store.claim" -}}
{{- end -}}
{{- if and .Values.store.claim (not .Values.trainer.namespace) -}}
{{- fail "store.claim: training pods mount it, too: name in trainer.namespace a namespace that has a claim of this name, beside the release's" -}}
{{- end -}}
{{- if and .Values.store.url .Values.store.claim -}}
{{- fail "store: checkpoints are kept in one place; give store.url or store.claim, not both" -}}
{{- end -}}
{{- if and (or $enabled.planner $enabled.arbiter) (not (and .Values.cluster.cpuCores .Values.cluster.memoryGiB)) -}}
{{- fail "cluster.cpuCores and cluster.memoryGiB: say what training jobs may have together, such as 64 and 256" -}}
{{- end -}}
{{- $gateway := .Values.gateway -}}
{{- if and $enabled.gateway (not (or $gateway.token.secret $gateway.tokens.secret $gateway.oidc.issuer)) -}}
{{- fail "gateway: say whom it lets in: gateway.token.secret, gateway.tokens.secret or gateway.oidc.issuer" -}}
{{- end -}}
{{- if and $enabled.gateway $gateway.ingress.enabled (not $gateway.proxies) -}}
{{- fail "gateway.proxies: name the network of the ingress controller's pods, such as 10.0.0.0/8: else all callers count as one address, which has a hundred connections" -}}
{{- end -}}
{{- $monitoring := .Values.monitoring -}}
{{- $watched := or $monitoring.serviceMonitor.enabled $monitoring.alerts.enabled $monitoring.prometheus.url -}}
{{- if and $watched .Values.networkPolicy.enabled (not .Values.networkPolicy.metrics) -}}
{{- fail "networkPolicy.metrics: name Prometheus' pods, such as [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]: otherwise it does not reach the metrics, and no alert fires" -}}
{{- end -}}
{{- range .Values.allowed.volumes -}}
{{- if and (hasPrefix "folder:" .) (not $.Values.trainer.namespace) -}}
{{- fail (printf "allowed.volumes: restricted Pod Security of the namespace that the chart makes forbids folders of nodes such as %s; name in trainer.namespace one that allows them, or use a claim" .) -}}
{{- end -}}
{{- end -}}
{{- range .Values.allowed.secrets -}}
{{- if and (hasSuffix "*" (first (splitList "=" .))) (eq (include "stretto.trainer.namespace" $) $.Release.Namespace) -}}
{{- fail (printf "allowed.secrets: name Secrets one by one instead of %s, or give training pods a namespace of their own (trainer.namespace): the release's holds its own Secrets, too" .) -}}
{{- end -}}
{{- end -}}
{{- $forwarder := include "stretto.service" (dict "root" . "name" "forwarder") | fromYaml -}}
{{- if and $forwarder.enabled (not .Values.forwarder.endpoints.secret) -}}
{{- fail "forwarder.endpoints.secret: name a Secret that says whom the forwarder posts to" -}}
{{- end -}}
{{- if and $forwarder.enabled $forwarder.autoscaling.enabled -}}
{{- fail "services.forwarder.autoscaling: leave it off: an endpoint gets one event after the other, however many replicas there are" -}}
{{- end -}}
{{- end }}
