{{/* Names of the CRD files to install, as JSON. */}}
{{- define "autoscale.kinds" -}}
{{- $kinds := list -}}
{{- if .Values.definitions.virtualMachines }}{{ $kinds = concat $kinds (list "virtualmachines" "virtualmachinemigrations") }}{{ end -}}
{{- if and .Values.definitions.groups .Values.groups.enabled -}}
{{- $kinds = concat $kinds (list "hvpas" "tortoises" "virtualmachinegroups") -}}
{{- end -}}
{{- toJson $kinds -}}
{{- end }}

{{/* "true" if something else installed the CRD: NeonVM, plain manifests, another release. list $ NAME */}}
{{- define "autoscale.isOfOthers" -}}
{{- $root := index . 0 -}}
{{- $live := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" (index . 1) -}}
{{- if and $live (not $root.Values.definitions.adopt) -}}
{{- $notes := $live.metadata.annotations | default dict -}}
{{- $owner := printf "%s/%s" (index $notes "meta.helm.sh/release-namespace" | default "") (index $notes "meta.helm.sh/release-name" | default "") -}}
{{- if ne $owner (printf "%s/%s" $root.Release.Namespace $root.Release.Name) }}true{{ end -}}
{{- end -}}
{{- end }}
