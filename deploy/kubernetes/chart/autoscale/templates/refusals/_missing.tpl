{{/* Values without which templates cannot be rendered, or omit what the chart installs by default. A test compares them with
     values.yaml. */}}
{{- define "autoscale.requiredValues" -}}
global image.registry clusterDomain release definitions.virtualMachines definitions.groups
deployments daemonSets certificates.enabled certificates.provider injector.image.repository
injector.replicas scheduler.image.repository scheduler.enabled scheduler.replicas
kubeScheduler.percentageOfNodesToScore kubeScheduler.image.registry kubeScheduler.image.repository
agent.image.repository agent.node.enabled agent.node.maxUnavailable agent.sidecar
pods.cgroupRoot pods.reclaimer.enabled neonvm.enabled
neonvm.addresses neonvm.guestResource neonvm.kubeletRoot neonvm.runner.image.repository
neonvm.controller.image.repository neonvm.controller.replicas neonvm.network.isolation
neonvm.network.image.repository neonvm.network.enabled neonvm.devices.image.repository
neonvm.devices.enabled neonvm.policy.enabled groups.image.repository groups.replicas
dashboard.image.repository dashboard.history.enabled dashboard.history.size
expander.image.repository policies.enabled policies.network policies.permits monitoring.dashboards
test.image.repository podSecurityContext
{{- end }}

{{/* Checked before anything is rendered: a missing section would fail with a nil pointer error. */}}
{{- define "autoscale.refuseMissingValues" -}}
{{- $missing := list -}}
{{- range regexSplit "\\s+" (include "autoscale.requiredValues" . | trim) -1 -}}
{{- $value := $.Values -}}
{{- range splitList "." . -}}
{{- $value = ternary (get ($value | default dict) .) "" (and (kindIs "map" $value) (hasKey $value .)) -}}
{{- end -}}
{{- if or (kindIs "invalid" $value) (eq (toString $value) "") }}{{ $missing = append $missing . }}{{ end -}}
{{- end -}}
{{- with $missing -}}
{{- fail (printf "missing values: %s. Either they are null or \"\", or --reuse-values kept the values of an older chart, which does not have them: upgrade with --reset-then-reuse-values instead." (join ", " .)) -}}
{{- end -}}
{{- end }}
