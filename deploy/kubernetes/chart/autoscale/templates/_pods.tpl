{{/* Common parts of pods. */}}

{{/* Metadata of a pod template: list $ COMPONENT NAME [PORT for Prometheus, or 0 [TEMPLATE whose changes restart the pods,
     because they read it only at start]]. With PodMonitors there are no annotations for Prometheus, which would scrape the
     pods twice. */}}
{{- define "autoscale.podMetadata" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $annotations := dict -}}
{{- if and (gt (len .) 3) (index . 3) (not $root.Values.monitoring.enabled) -}}
{{- $annotations = dict "prometheus.io/scrape" "true" "prometheus.io/port" (index . 3 | toString) -}}
{{- end -}}
{{- if and (gt (len .) 4) $root.Values.release -}}
{{- $read := include (printf "%s/%s" $root.Template.BasePath (index . 4)) $root | sha256sum -}}
{{- $_ := set $annotations (printf "checksum/%s" (index . 4 | base | trimSuffix ".yaml")) $read -}}
{{- end -}}
labels:
  {{- include "autoscale.labels" (list $root (index . 2) $component.podLabels) | nindent 2 }}
{{- with merge (dict) ($component.podAnnotations | default dict) $annotations ($root.Values.commonAnnotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Placement of a Deployment's pods: list $ COMPONENT NAME [true if two may run at once. A pod without leader election may
     still be active on an unreachable node, so it stays there as long as the cluster's default.] */}}
{{- define "autoscale.placement" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $shared := $root.Values.deployments -}}
{{- if and (gt (len .) 3) (not (index . 3)) -}}
{{- $kept := list -}}
{{- range $shared.tolerations -}}
{{- if not (and (hasKey . "tolerationSeconds") (has .key (list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable"))) -}}
{{- $kept = append $kept . -}}
{{- end -}}
{{- end -}}
{{- $shared = set (deepCopy $shared) "tolerations" $kept -}}
{{- end -}}
{{- include "autoscale.placementOf" (list $root $component $shared) }}
topologySpreadConstraints:
  {{- if $component.topologySpreadConstraints }}
  {{- toYaml $component.topologySpreadConstraints | nindent 2 }}
  {{- else }}
  {{- $name := index . 2 }}
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {app.kubernetes.io/name: {{ $name }}}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
  {{- end }}
{{- end }}

{{/* Placement of a DaemonSet's pods: list $ COMPONENT */}}
{{- define "autoscale.placementOnNodes" -}}
{{- $root := index . 0 -}}
{{- include "autoscale.placementOf" (list $root (index . 1) $root.Values.daemonSets) }}
{{- end }}

{{- define "autoscale.placementOf" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $shared := index . 2 -}}
priorityClassName: {{ $component.priorityClassName | default $shared.priorityClassName }}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $component.nodeSelector | default $shared.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $component.tolerations | default $shared.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $component.affinity | default $shared.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Common fields of our containers: image, pull policy, and the last log lines as termination message: list $ COMPONENT */}}
{{- define "autoscale.container" -}}
{{- $root := index . 0 -}}
image: {{ include "autoscale.image" (list $root (index . 1).image) }}
{{- with $root.Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
terminationMessagePolicy: FallbackToLogsOnError
{{- end }}

{{/* Security context of a non-root pod: list $ COMPONENT */}}
{{- define "autoscale.nonRoot" -}}
securityContext:
  {{- include "autoscale.over" (list (index . 0).Values.podSecurityContext (index . 1).podSecurityContext) | nindent 2 }}
{{- end }}

{{/* Security context of a root pod on each node: COMPONENT */}}
{{- define "autoscale.onNode" -}}
securityContext:
  {{- include "autoscale.over" (list (dict "seccompProfile" (dict "type" "RuntimeDefault")) .podSecurityContext) | nindent 2 }}
{{- end }}

{{/* Security context of an unprivileged container: COMPONENT */}}
{{- define "autoscale.locked" -}}
securityContext:
  {{- include "autoscale.over" (list (include "autoscale.noRights" . | fromYaml) .securityContext) | nindent 2 }}
{{- end }}

{{- define "autoscale.noRights" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Security context of an agent in a VM pod, whose own security context the chart does not set: $ */}}
{{- define "autoscale.sidecarSecurity" -}}
{{- $base := include "autoscale.noRights" . | fromYaml -}}
{{- $pod := pick .Values.podSecurityContext "runAsNonRoot" "runAsUser" "runAsGroup" "seccompProfile" "seLinuxOptions" -}}
{{- include "autoscale.over" (list (merge $base $pod) .Values.agent.sidecar.securityContext) -}}
{{- end }}

{{/* A security context with overrides; null removes a field: list BASE OVERRIDES */}}
{{- define "autoscale.over" -}}
{{- $merged := deepCopy (index . 0) -}}
{{- range $field, $value := index . 1 -}}
{{- if kindIs "invalid" $value }}{{ $_ := unset $merged $field }}{{ else }}{{ $_ := set $merged $field $value }}{{ end -}}
{{- end -}}
{{- toYaml $merged -}}
{{- end }}

{{/* Probes of a container with /healthz and /readyz: PORT NAME */}}
{{- define "autoscale.probes" -}}
startupProbe: {httpGet: {path: /healthz, port: {{ . }}}, periodSeconds: 1, timeoutSeconds: 5, failureThreshold: 120}
livenessProbe: {httpGet: {path: /healthz, port: {{ . }}}, periodSeconds: 10, timeoutSeconds: 5}
readinessProbe: {httpGet: {path: /readyz, port: {{ . }}}, periodSeconds: 2, timeoutSeconds: 2}
{{- end }}
