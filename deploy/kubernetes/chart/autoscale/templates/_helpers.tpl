{{/* Common parts of objects. Names do not contain the release's name: a cluster has one installation, and policies, alerts
     and runbooks refer to its objects by name. */}}

{{/* Labels and annotations of an object: list $ NAME [own annotations [own labels]] */}}
{{- define "autoscale.labelled" -}}
{{- $root := index . 0 -}}
{{- $own := dict -}}
{{- if gt (len .) 2 }}{{ $own = index . 2 | default dict }}{{ end -}}
{{- $labels := dict -}}
{{- if gt (len .) 3 }}{{ $labels = index . 3 | default dict }}{{ end -}}
labels:
  {{- include "autoscale.labels" (list $root (index . 1) $labels) | nindent 2 }}
{{- with merge (dict) $own ($root.Values.commonAnnotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Labels of an object or a pod: list $ NAME [own labels]. Precedence: selector labels and labels that Helm requires, own
     labels, commonLabels, descriptive labels. */}}
{{- define "autoscale.labels" -}}
{{- $root := index . 0 -}}
{{- $fixed := dict "app.kubernetes.io/name" (index . 1) -}}
{{- $described := dict "app.kubernetes.io/component" (index . 1 | trimPrefix "autoscaling-") "app.kubernetes.io/part-of" "autoscaling" -}}
{{- if $root.Values.release -}}
{{- $_ := set $fixed "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- $_ := set $fixed "app.kubernetes.io/version" (include "autoscale.version" $root) -}}
{{- $_ := set $described "app.kubernetes.io/instance" $root.Release.Name -}}
{{- $_ := set $described "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63) -}}
{{- end -}}
{{- $own := dict -}}
{{- if gt (len .) 2 }}{{ $own = index . 2 | default dict }}{{ end -}}
{{- merge (dict) $fixed $own ($root.Values.commonLabels | default dict) $described | toYaml }}
{{- end }}

{{- define "autoscale.version" -}}
{{ .Values.image.tag | default .Chart.AppVersion | replace "+" "_" | trunc 63 }}
{{- end }}

{{/* Reference of one of our images: list $ IMAGE */}}
{{- define "autoscale.image" -}}
{{- $root := index . 0 -}}
{{- include "autoscale.reference" (list $root (index . 1) $root.Values.image.registry ($root.Values.image.tag | default $root.Chart.AppVersion)) -}}
{{- end }}

{{/* Reference of an image with its own registry and tag: list $ IMAGE REGISTRY TAG */}}
{{- define "autoscale.reference" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $registry := $root.Values.global.imageRegistry | default (index . 2) -}}
{{ $registry }}/{{ $image.repository }}:{{ $image.tag | default (index . 3) }}{{ with $image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* A ConfigMap with settings. Settings that were edited in the cluster are kept, unless resetSettings is true.
     list $ NAME KEY TEXT COMPONENT [SECTION: fields that always follow the values]. The annotation is the digest of the text
     that the chart wrote. */}}
{{- define "autoscale.settings" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $key := index . 2 -}}
{{- $text := index . 3 | trim | printf "%s\n" -}}
{{- $written := sha256sum $text -}}
{{- if include "autoscale.changedInCluster" (list $root $name $key) -}}
{{- $live := lookup "v1" "ConfigMap" $root.Release.Namespace $name -}}
{{- $ours := $text -}}
{{- $text = index $live.data $key -}}
{{- if gt (len .) 5 }}{{ $text = include "autoscale.withOurs" (list $text $ours (index . 5)) }}{{ end -}}
{{- $written = index $live.metadata.annotations "autoscaling.neon.tech/settings-written" -}}
{{- end -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  {{- $own := ternary (dict "autoscaling.neon.tech/settings-written" $written) (dict) $root.Values.release }}
  {{- include "autoscale.labelled" (list $root (index . 4) $own) | nindent 2 }}
data:
  {{ $key }}: |
    {{- $text | trim | nindent 4 }}
{{- end }}

{{/* Kept settings with some fields from the values; unchanged if these are equal, or if the settings are not valid YAML.
     list KEPT VALUES {SECTION: fields} */}}
{{- define "autoscale.withOurs" -}}
{{- $kept := fromYaml (index . 0) -}}
{{- $ours := fromYaml (index . 1) -}}
{{- $found := deepCopy $kept -}}
{{- range $section, $fields := index . 2 -}}
{{- range $field := $fields -}}
{{- $found = mergeOverwrite $found (dict $section (dict $field (index $ours $section $field))) -}}
{{- end -}}
{{- end -}}
{{- if or (hasKey $kept "Error") (eq (toYaml $kept) (toYaml $found)) }}{{ index . 0 }}{{ else }}{{ toYaml $found }}{{ end -}}
{{- end }}

{{/* "true" if the settings in the cluster differ from those that the chart wrote: list $ NAME KEY */}}
{{- define "autoscale.changedInCluster" -}}
{{- $root := index . 0 -}}
{{- $live := lookup "v1" "ConfigMap" $root.Release.Namespace (index . 1) -}}
{{- if and $live (not $root.Values.resetSettings) -}}
{{- $written := index ($live.metadata.annotations | default dict) "autoscaling.neon.tech/settings-written" | default "" -}}
{{- $text := index ($live.data | default dict) (index . 2) | default "" -}}
{{- if and $written $text (ne $written (sha256sum $text)) }}true{{ end -}}
{{- end -}}
{{- end }}

{{/* A settings file, merged with the values: list $ FILE VALUES */}}
{{- define "autoscale.settingsText" -}}
{{- $root := index . 0 -}}
{{- $shipped := tpl ($root.Files.Get (index . 1)) $root -}}
{{- with index . 2 -}}
{{- mergeOverwrite (fromYaml $shipped) . | toYaml -}}
{{- else -}}
{{- $shipped -}}
{{- end -}}
{{- end }}

{{/* URL of the scheduler, for agents. */}}
{{- define "autoscale.schedulerUrl" -}}
{{ .Values.certificates.enabled | ternary "https" "http" }}://autoscaling-scheduler.{{ .Release.Namespace }}.svc:10299
{{- end }}

{{/* "true" if the scheduler in the cluster has no leader election. If a Deployment gets more replicas together with a new
     template, it first starts more old pods, and two of these would be active: so the replicas are added later. */}}
{{- define "autoscale.actsAlone" -}}
{{- $live := lookup "apps/v1" "Deployment" .Release.Namespace "autoscaling-scheduler" -}}
{{- if and $live (not (contains "--lease=" (toJson $live.spec.template.spec.containers))) }}true{{ end -}}
{{- end }}

{{/* Names of the installed programs, as JSON. */}}
{{- define "autoscale.programs" -}}
{{- $names := list -}}
{{- if .Values.scheduler.enabled }}{{ $names = append $names "autoscaling-scheduler" }}{{ end -}}
{{- if .Values.agent.node.enabled }}{{ $names = append $names "autoscaling-agent" }}{{ end -}}
{{- if .Values.certificates.enabled }}{{ $names = append $names "autoscaling-injector" }}{{ end -}}
{{- if .Values.groups.enabled }}{{ $names = append $names "autoscaling-groups" }}{{ end -}}
{{- if .Values.dashboard.enabled }}{{ $names = append $names "autoscaling-dashboard" }}{{ end -}}
{{- if .Values.expander.enabled }}{{ $names = append $names "autoscaling-expander" }}{{ end -}}
{{- if .Values.neonvm.enabled }}{{ $names = append $names "neonvm-controller" }}{{ end -}}
{{- if and .Values.neonvm.enabled .Values.neonvm.devices.enabled }}{{ $names = append $names "neonvm-devices" }}{{ end -}}
{{- toJson $names -}}
{{- end }}

{{/* "true" if the dashboard records a history. */}}
{{- define "autoscale.recordsHistory" -}}
{{- with .Values.dashboard.history }}{{ if and .enabled (not .prometheus) }}true{{ end }}{{ end -}}
{{- end }}

{{/* Volume with a certificate. Pods wait until the Secret is filled. */}}
{{- define "autoscale.certificateFiles" -}}
secret:
  secretName: {{ . }}
  defaultMode: 0440
  items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}, {key: ca.crt, path: ca.crt}]
{{- end }}

{{/* Volume with a certificate and the CAs of its peers. A Secret of cert-manager contains only its own CA, which differs from
     others' while the issuer rotates its key; the injector collects all of them in autoscaling-ca. */}}
{{- define "autoscale.peersCertificateFiles" -}}
{{- $root := index . 0 -}}
{{- $secret := index . 1 -}}
{{- if eq $root.Values.certificates.provider "self" -}}
{{- include "autoscale.certificateFiles" $secret -}}
{{- else -}}
projected:
  defaultMode: 0440
  sources:
    - secret: {name: {{ $secret }}, items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]}
    - configMap: {name: autoscaling-ca, items: [{key: ca.crt, path: ca.crt}]} # the pod waits until it is filled
{{- end }}
{{- end }}
