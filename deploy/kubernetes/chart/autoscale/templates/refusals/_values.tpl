{{/* Checks that a schema cannot express, or only with an incomprehensible pattern. */}}
{{- define "autoscale.refuseWrongTexts" -}}
{{- range $name, $registry := dict "image.registry" .Values.image.registry "global.imageRegistry" .Values.global.imageRegistry "kubeScheduler.image.registry" .Values.kubeScheduler.image.registry -}}
{{- if not (regexMatch "^[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)*$" ($registry | default "localhost")) -}}
{{- fail (printf "%s is %q: expected HOST[:PORT][/PATH], without a scheme such as https:// and without a trailing slash." $name $registry) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.scheduler.enabled (not .Values.kubeScheduler.image.tag) (not .Values.kubeScheduler.image.digest) (not (regexMatch "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version)) -}}
{{- fail (printf "the Kubernetes version %s has no patch release (Argo CD omits it), and there is no image kube-scheduler:%s. Set kubeScheduler.image.tag to the server version in `kubectl version`, such as %s.1." .Capabilities.KubeVersion.Version .Capabilities.KubeVersion.Version .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if regexMatch "^0+%?$" (toString .Values.agent.node.maxUnavailable) -}}
{{- fail (printf "agent.node.maxUnavailable is %v, so agents could not be upgraded: expected a number of nodes or a percentage above 0." .Values.agent.node.maxUnavailable) -}}
{{- end -}}
{{- include "autoscale.refuseAddresses" .Values.neonvm.addresses -}}
{{- $size := .Values.dashboard.history.size -}}
{{- if lt (mul (regexFind "^[0-9]+" $size | int64) (ternary 1024 1 (hasSuffix "Gi" $size))) 16 -}}
{{- fail (printf "dashboard.history.size is %s: expected at least 16Mi." $size) -}}
{{- end -}}
{{- range $name, $namespaces := dict "agent.sidecar.namespaces" .Values.agent.sidecar.namespaces "neonvm.policy.namespaces" .Values.neonvm.policy.namespaces -}}
{{- if has "" $namespaces }}{{ fail (printf "%s contains an empty name: expected names of namespaces." $name) }}{{ end -}}
{{- end -}}
{{- include "autoscale.refuseLabels" . -}}
{{- include "autoscale.refuseVariables" . -}}
{{- end }}

{{/* Duplicate environment variables of a container: server-side apply, which Argo CD and Flux use, rejects the object. */}}
{{- define "autoscale.refuseVariables" -}}
{{- $set := dict "scheduler" (list "POD_IP" "NODE_NAME") "agent.node" (list "AGENT_MODE" "NODE_NAME" "AGENT_CONFIG" "CGROUP_ROOT" "RECLAIMER_SOCKET") "neonvm.network" (list "NODE_NAME" "NODE_IP") "dashboard" (list "SQLITE_TMPDIR") -}}
{{- range $path := list "injector" "scheduler" "agent.node" "agent.sidecar" "neonvm.controller" "neonvm.network" "neonvm.devices" "groups" "dashboard" "expander" -}}
{{- $component := $.Values -}}
{{- range splitList "." $path }}{{ $component = get $component . }}{{ end -}}
{{- $known := get $set $path | default list -}}
{{- range $component.env -}}
{{- if has .name $known }}{{ fail (printf "%s.env sets %s twice, or the chart sets it already: each variable can be set once." $path .name) }}{{ end -}}
{{- $known = append $known .name -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Address range of VMs: FIRST-LAST */}}
{{- define "autoscale.refuseAddresses" -}}
{{- $ends := list -}}
{{- range splitList "-" . -}}
{{- $number := 0 -}}
{{- $parts := splitList "." . -}}
{{- range $parts -}}
{{- if or (not (regexMatch "^[0-9]{1,3}$" .)) (gt (atoi .) 255) (ne (len $parts) 4) }}{{ fail (printf "neonvm.addresses is %s: %s is not an IPv4 address. Expected FIRST-LAST, such as 10.111.0.1-10.111.254.254." $ (join "." $parts)) }}{{ end -}}
{{- $number = add (mul $number 256) (atoi .) -}}
{{- end -}}
{{- $ends = append $ends $number -}}
{{- end -}}
{{- if gt (index $ends 0) (index $ends 1) }}{{ fail (printf "neonvm.addresses is %s: the first address is above the last. Expected FIRST-LAST." .) }}{{ end -}}
{{- if ne (div (index $ends 0) 65536) (div (index $ends 1) 65536) }}{{ fail (printf "neonvm.addresses is %s: both ends must be in the same /16, such as 10.111.0.1-10.111.254.254." .) }}{{ end -}}
{{- end }}

{{/* Labels with which our programs and policies identify VM pods and the endpoints of Services. */}}
{{- define "autoscale.refuseLabels" -}}
{{- $given := dict "commonLabels" .Values.commonLabels -}}
{{- range $path := list "injector" "scheduler" "agent.node" "neonvm.controller" "neonvm.network" "neonvm.devices" "groups" "dashboard" "expander" -}}
{{- $component := $.Values -}}
{{- range splitList "." $path }}{{ $component = get $component . }}{{ end -}}
{{- $_ := set $given (printf "%s.podLabels" $path) $component.podLabels -}}
{{- end -}}
{{- range $name, $labels := $given -}}
{{- range $key, $_ := $labels -}}
{{- if regexMatch "^(vm|autoscaling|internal\\.autoscaling)\\.neon\\.tech/" $key }}{{ fail (printf "%s has %s: labels of this domain are reserved for the programs." $name $key) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Values that contradict each other. */}}
{{- define "autoscale.refuseContradictions" -}}
{{- $certificates := .Values.certificates -}}
{{- if $certificates.issuer -}}
{{- if not (and $certificates.enabled (eq $certificates.provider "cert-manager")) -}}
{{- fail (printf "certificates.issuer is set, but certificates.enabled is %v and certificates.provider is %s: the issuer would not be used. Set certificates.provider=cert-manager, or remove the issuer." $certificates.enabled $certificates.provider) -}}
{{- end -}}
{{- if not $certificates.issuer.name -}}
{{- fail "certificates.issuer has no name: the release's own Issuer would be used instead. Set certificates.issuer.name." -}}
{{- end -}}
{{- end -}}
{{- if not .Values.scheduler.enabled -}}
{{- range $name, $agents := dict "agent.node" .Values.agent.node "agent.sidecar" .Values.agent.sidecar -}}
{{- $urls := list (dig "agent" "schedulerUrl" "" $.Values.injector.settings) -}}
{{- range $agents.env }}{{ if eq .name "SCHEDULER_URL" }}{{ $urls = append $urls .value }}{{ end }}{{ end -}}
{{- if and $agents.enabled (not (without $urls "" nil)) -}}
{{- fail (printf "%s.enabled is true and scheduler.enabled is false: without a scheduler, no VM can grow. Set scheduler.enabled=true or %s.enabled=false, or set SCHEDULER_URL of another scheduler in %s.env." $name $name $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $name, $each := dict "injector.settings" (list "injector" .Values.injector.settings .Values.injector.existingConfigMap) "scheduler.settings" (list "scheduler" .Values.scheduler.settings .Values.scheduler.existingConfigMap) "agent.policy" (list "agent.node" .Values.agent.policy .Values.agent.node.existingConfigMap) "groups.settings" (list "groups" .Values.groups.settings .Values.groups.existingConfigMap) "expander.settings" (list "expander" .Values.expander.settings .Values.expander.existingConfigMap) -}}
{{- if and (index $each 1) (index $each 2) -}}
{{- fail (printf "%s and %s.existingConfigMap are both set: only the ConfigMap %s would be used. Remove one of them." $name (index $each 0) (index $each 2)) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.neonvm.policy.namespaces (not .Values.neonvm.enabled) -}}
{{- fail "neonvm.policy.namespaces is set, but neonvm.enabled is false: no NetworkPolicy would be created. See docs/from-neon.md for those of another controller, or remove the namespaces." -}}
{{- end -}}
{{- if and .Values.pods.enabled (not .Values.agent.node.enabled) -}}
{{- fail "pods.enabled is true and agent.node.enabled is false: only a node's agent resizes postgres pods. Set agent.node.enabled=true, or pods.enabled=false." -}}
{{- end -}}
{{- $history := .Values.dashboard.history -}}
{{- if and $history.prometheus (or $history.persistent $history.existingClaim) -}}
{{- fail "dashboard.history.prometheus and a volume (persistent or existingClaim) are both set: with Prometheus, the dashboard records nothing. Remove one of them." -}}
{{- end -}}
{{- if and $history.storageClass (or (not $history.persistent) $history.existingClaim) -}}
{{- fail "dashboard.history.storageClass is set, but no claim is created. Set dashboard.history.persistent=true without existingClaim, or remove the class." -}}
{{- end -}}
{{- end }}
