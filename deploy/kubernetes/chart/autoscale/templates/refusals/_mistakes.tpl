{{/* Checks before the installation. Those for other programs need the cluster, so they are skipped if the chart is only
     rendered. */}}
{{- define "autoscale.refuseMistakes" -}}
{{- if .Values.release -}}
{{- if and .Values.agent.node.enabled .Values.agent.sidecar.enabled -}}
{{- fail "agent.node and agent.sidecar are both enabled: two agents would resize the same VM. Disable one of them." -}}
{{- end -}}
{{- include "autoscale.refuseWrongTexts" . -}}
{{- include "autoscale.refuseContradictions" . -}}
{{- if and .Values.scheduler.enabled .Values.certificates.enabled .Values.agent.sidecar.enabled (not .Values.certificates.leaveHttpAgents) (include "autoscale.actsAlone" .) -}}
{{- fail "agents in existing VM pods use http until the pods are recreated: their VMs would not be resized before they are migrated or restarted. --set certificates.enabled=false keeps http; --set certificates.leaveHttpAgents=true continues anyway." -}}
{{- end -}}
{{- if not .Values.besideOthers -}}
{{- range (lookup "apps/v1" "Deployment" "" "").items -}}
{{- if and (eq .metadata.name "autoscale-scheduler") .spec.replicas -}}
{{- fail (printf "Deployment autoscale-scheduler exists in namespace %s: another scheduler schedules the same pods. See docs/operations-cluster.md, taking over; --set besideOthers=true continues anyway." .metadata.namespace) -}}
{{- end -}}
{{- if and $.Values.neonvm.enabled (eq .metadata.name "neonvm-controller") (ne .metadata.namespace $.Release.Namespace) .spec.replicas -}}
{{- fail (printf "Deployment neonvm-controller exists in namespace %s: a cluster can have only one. --set neonvm.enabled=false leaves the VMs to that one; --set besideOthers=true continues anyway." .metadata.namespace) -}}
{{- end -}}
{{- end -}}
{{- range (lookup "apps/v1" "DaemonSet" "" "").items -}}
{{- if eq .metadata.name "autoscaler-agent" -}}
{{- fail (printf "DaemonSet autoscaler-agent exists in namespace %s: other agents resize the same VMs. See docs/operations-cluster.md, taking over; --set besideOthers=true continues anyway." .metadata.namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
