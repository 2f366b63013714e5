{{/* What must not be installed: said before anything is. Other programs are looked for in the cluster alone, so not where
     the chart is only rendered. */}}
{{- define "autoscale.refuseMistakes" -}}
{{- if .Values.release -}}
{{- if and .Values.agent.node.enabled .Values.agent.sidecar.enabled -}}
{{- fail "agent.node and agent.sidecar are both enabled: two agents would size the same VM. Turn one of them off." -}}
{{- end -}}
{{- include "autoscale.refuseWrongTexts" . -}}
{{- include "autoscale.refuseContradictions" . -}}
{{- if and .Values.scheduler.enabled .Values.certificates.enabled .Values.agent.sidecar.enabled (not .Values.certificates.leaveHttpAgents) (include "autoscale.actsAlone" .) -}}
{{- fail "Agents in the pods of VMs ask the scheduler over http until these are made anew: their VMs would keep their size until they are moved or restarted. --set certificates.enabled=false stays with http; --set certificates.leaveHttpAgents=true goes on nevertheless." -}}
{{- end -}}
{{- if not .Values.besideOthers -}}
{{- range (lookup "apps/v1" "Deployment" "" "").items -}}
{{- if and (eq .metadata.name "autoscale-scheduler") .spec.replicas -}}
{{- fail (printf "Deployment autoscale-scheduler runs in namespace %s: another scheduler serves the same pods. See docs/operations-cluster.md, taking over; --set besideOthers=true goes on nevertheless." .metadata.namespace) -}}
{{- end -}}
{{- if and $.Values.neonvm.enabled (eq .metadata.name "neonvm-controller") (ne .metadata.namespace $.Release.Namespace) .spec.replicas -}}
{{- fail (printf "Deployment neonvm-controller runs in namespace %s: a cluster has one. --set neonvm.enabled=false leaves the VMs to that one; --set besideOthers=true goes on nevertheless." .metadata.namespace) -}}
{{- end -}}
{{- end -}}
{{- range (lookup "apps/v1" "DaemonSet" "" "").items -}}
{{- if eq .metadata.name "autoscaler-agent" -}}
{{- fail (printf "DaemonSet autoscaler-agent runs in namespace %s: other agents size the same VMs. See docs/operations-cluster.md, taking over; --set besideOthers=true goes on nevertheless." .metadata.namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
