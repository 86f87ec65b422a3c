{{/* The reference of an image: its registry or the global one, its repository, its tag. */}}
{{- define "hami-webhook.image" -}}
{{- $registry := .root.Values.global.imageRegistry | default .image.registry -}}
{{- if $registry }}{{ $registry }}/{{ end }}{{ .image.repository }}:{{ .tag }}
{{- end }}

{{/* Our own image, and when it is pulled. */}}
{{- define "hami-webhook.ownImage" -}}
{{- $tag := coalesce .Values.image.tag .Values.global.imageTag .Chart.AppVersion -}}
image: {{ include "hami-webhook.image" (dict "root" . "image" .Values.image "tag" $tag) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{/* kube-scheduler's image: of the cluster's version, less what its distribution adds to that. */}}
{{- define "hami-webhook.kubeSchedulerImage" -}}
{{- $image := .Values.scheduler.kubeScheduler.image -}}
{{- $tag := $image.tag | default (regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version) -}}
image: {{ include "hami-webhook.image" (dict "root" . "image" $image "tag" $tag) | quote }}
imagePullPolicy: {{ $image.pullPolicy }}
{{- end }}

{{/* Where pods run: `pod` has its values. */}}
{{- define "hami-webhook.where" -}}
{{- with .root.Values.global.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- with .pod.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .pod.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pod.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{/* Where replicas of a component run: preferably on different nodes. */}}
{{- define "hami-webhook.placement" -}}
{{- include "hami-webhook.where" . }}
affinity:
  {{- if .pod.affinity }}
  {{- toYaml .pod.affinity | nindent 2 }}
  {{- else }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {app.kubernetes.io/component: {{ .component }}}
  {{- end }}
{{- end }}

{{/* The arguments that enable vendors. */}}
{{- define "hami-webhook.vendors" -}}
{{- if .Values.devices.ascend.enabled }}
- --enable-ascend
{{- end }}
{{- if .Values.devices.iluvatar.enabled }}
- --enable-iluvatar
{{- end }}
{{- end }}

{{/* The arguments that every role has, and `more`, the user's, of which the last one of a name wins. */}}
{{- define "hami-webhook.args" -}}
- --device-config-file=/etc/hami-device-config/device-config.yaml
- --policy-file=/etc/hami-webhook/policy.yaml
{{- include "hami-webhook.vendors" .root }}
- --kube-qps=200
- --kube-burst=400
{{- with .root.Values.scheduler }}
{{- with .defaultSchedulerPolicy.nodeSchedulerPolicy }}
- --node-scheduler-policy={{ . }}
{{- end }}
{{- with .defaultSchedulerPolicy.gpuSchedulerPolicy }}
- --gpu-scheduler-policy={{ . }}
{{- end }}
{{- if not .forceOverwriteDefaultScheduler }}
- --force-overwrite-default-scheduler=false
{{- end }}
{{- end }}
{{- include "hami-webhook.more" . }}
{{- end }}

{{/* `more` arguments, the user's values at `path`, each of a flag that `hami-webhook serve` has. */}}
{{- define "hami-webhook.more" -}}
{{- $known := (.root.Files.Get "files/names.yaml" | fromYaml).flags -}}
{{- $path := .path -}}
{{- range $index, $argument := .more }}
{{- $flag := regexReplaceAll "^(-[a-z])[0-9]+$" (regexFind "^[^=]*" $argument) "$1" -}}
{{- if not (has $flag $known) -}}
{{- $near := include "hami-webhook.nearest" (dict "word" $flag "known" $known) -}}
{{- $hint := ternary (printf "did you mean %s?" $near) "docs/reference.md lists all" (ne $near "") -}}
{{- fail (printf "%s[%d]: hami-webhook serve has no flag %s; %s" $path $index $flag $hint) -}}
{{- end }}
- {{ $argument | quote }}
{{- end }}
{{- end }}

{{/* The known word that shares most pairs of neighbouring letters with `word`, if that is the most of both; or nothing. */}}
{{- define "hami-webhook.nearest" -}}
{{- $pairs := include "hami-webhook.pairs" .word | fromJsonArray -}}
{{- $best := dict "word" "" "score" 60 -}}
{{- range $known := .known -}}
{{- $others := include "hami-webhook.pairs" $known | fromJsonArray -}}
{{- $shared := 0 -}}
{{- range $pairs -}}{{- if has . $others -}}{{- $shared = add1 $shared -}}{{- end -}}{{- end -}}
{{- $score := div (mul 200 $shared) (max 1 (add (len $pairs) (len $others))) -}}
{{- if gt $score (int64 $best.score) -}}
{{- $_ := set $best "word" $known -}}
{{- $_ := set $best "score" $score -}}
{{- end -}}
{{- end -}}
{{- $best.word -}}
{{- end }}

{{- define "hami-webhook.pairs" -}}
{{- $word := . -}}
{{- $pairs := list -}}
{{- range $at := until (max 0 (sub (len $word) 1) | int) -}}
{{- $pairs = append $pairs (substr $at (int (add $at 2)) $word) -}}
{{- end -}}
{{- $pairs | toJson -}}
{{- end }}

{{/* The device configuration as text: the given one, which charges claims where the value says so. */}}
{{- define "hami-webhook.deviceConfig" -}}
{{- $text := .Values.deviceConfig | default (.Files.Get "files/device-config.yaml") -}}
{{- if not (kindIs "string" $text) -}}
{{- $text = toYaml $text -}}
{{- end -}}
{{- $config := $text | fromYaml -}}
{{- if hasKey $config "Error" -}}
{{- fail (printf "deviceConfig: must be HAMi's device-config.yaml, a mapping of sections: %s" $config.Error) -}}
{{- end -}}
{{- $dra := $config.dra | default dict -}}
{{- if not (kindIs "map" $dra) -}}
{{- fail "deviceConfig.dra: must be a mapping, such as {enabled: true}" -}}
{{- end -}}
{{- $enabled := $dra.enabled | default false -}}
{{- if and $enabled (not .Values.claims.enabled) -}}
{{- fail "claims.enabled: must be true where deviceConfig.dra.enabled is: it brings the rights and the webhooks for claims" -}}
{{- end -}}
{{- if ne $enabled .Values.claims.enabled -}}
{{- $text = set $config "dra" (set $dra "enabled" true) | toYaml -}}
{{- end -}}
{{- $text -}}
{{- end }}

{{/* The resource names in a device configuration (`in`, found at `path`), a line each: the text of every key like
resourceCountName or resourceNameGCU. */}}
{{- define "hami-webhook.resourceNames" -}}
{{- $path := .path -}}
{{- if kindIs "map" .in -}}
{{- range $key, $value := .in -}}
{{- $here := printf "%s.%s" $path $key -}}
{{- if and (kindIs "string" $value) (regexMatch "^resource.*Name" $key) -}}
{{- if and $value (not (regexMatch "^([a-z0-9.-]+/)?[A-Za-z0-9][A-Za-z0-9._-]*$" $value)) -}}
{{- fail (printf "%s: %q must be the name of a resource, such as nvidia.com/gpu" $here $value) -}}
{{- end -}}
{{- $value }}{{ "\n" -}}
{{- else -}}
{{- include "hami-webhook.resourceNames" (dict "in" $value "path" $here) -}}
{{- end -}}
{{- end -}}
{{- else if kindIs "slice" .in -}}
{{- range $index, $value := .in -}}
{{- include "hami-webhook.resourceNames" (dict "in" $value "path" (printf "%s[%d]" $path $index)) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The conditions of the webhook `name`, as for the built-in device configuration, with the resource names of the given
one beside those of that. The controller makes them exact. */}}
{{- define "hami-webhook.matchConditions" -}}
{{- $builtin := .root.Files.Get "files/match-conditions.yaml" | fromYaml -}}
{{- $config := include "hami-webhook.deviceConfig" .root | fromYaml -}}
{{- $names := include "hami-webhook.resourceNames" (dict "in" $config "path" "deviceConfig") | splitList "\n" -}}
{{- $lines := list -}}
{{- range concat $builtin.resourceNames $names | compact | uniq | sortAlpha | chunk 4 -}}
{{- $lines = append $lines (printf "  '%s'" (join "', '" .)) -}}
{{- end -}}
{{- $domains := $builtin.domains -}}
{{- range $names -}}
{{- if not (has . $builtin.resourceNames) -}}
{{- $domains = append $domains (regexFind "^[^/]+/" .) -}}
{{- end -}}
{{- end -}}
{{- $prefixes := list -}}
{{- range $domains | compact | uniq | sortAlpha | chunk 4 -}}
{{- $prefixes = append $prefixes (printf "  '%s'" (join "', '" .)) -}}
{{- end -}}
{{- $drivers := $builtin.drivers -}}
{{- $classes := $builtin.deviceClasses -}}
{{- range ($config.dra | default dict).devices -}}
{{- $drivers = append $drivers .driver -}}
{{- $classes = concat $classes (.deviceClasses | default list) -}}
{{- end -}}
{{- $classes = $classes | compact | uniq | sortAlpha -}}
{{- $schedulers := concat $builtin.schedulers (($config.kai | default dict).schedulerNames | default list) -}}
{{- $resources := list -}}
{{- range $classes -}}
{{- $resources = append $resources (printf "deviceclass.resource.kubernetes.io/%s" .) -}}
{{- end -}}
{{- range get $builtin.matchConditions .name }}
{{- $text := .expression | replace "RESOURCE_NAMES" (join ",\n" $lines) | replace "DOMAINS" (join ",\n" $prefixes) }}
{{- $text = $text | replace "CLASS_RESOURCES" (printf "  '%s'" (join "', '" $resources)) }}
{{- $text = $text | replace "DEVICE_CLASSES" (printf "  '%s'" (join "', '" $classes)) }}
{{- $text = $text | replace "DRIVERS" (printf "  '%s'" ($drivers | compact | uniq | sortAlpha | join "', '")) }}
{{- $text = $text | replace "SCHEDULERS" (printf "  '%s'" ($schedulers | compact | uniq | sortAlpha | join "', '")) }}
- name: {{ .name }}
  expression: {{ $text | toJson }}
{{- end }}
{{- end }}

{{/* Which namespaces a webhook is asked about. */}}
{{- define "hami-webhook.namespaceSelector" -}}
{{- $webhook := .Values.scheduler.admissionWebhook -}}
{{- with $webhook.namespaceSelector.matchLabels -}}
matchLabels: {{- toYaml . | nindent 2 }}
{{ end -}}
matchExpressions:
- {key: kubernetes.io/metadata.name, operator: NotIn, values: {{ concat (list .Release.Namespace "kube-system") $webhook.whitelistNamespaces | uniq | toJson }}}
- {key: hami.io/webhook, operator: NotIn, values: [ignore]}
{{- with $webhook.namespaceSelector.matchExpressions }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Which pods NetworkPolicies let read metrics. */}}
{{- define "hami-webhook.metricsReaders" -}}
- namespaceSelector: {{- include "hami-webhook.selector" .Values.prometheus.namespaceSelector | nindent 4 }}
  podSelector: {{- include "hami-webhook.selector" .Values.prometheus.podSelector | nindent 4 }}
{{- end }}

{{/* A label selector without its empty parts. */}}
{{- define "hami-webhook.selector" -}}
{{- $selector := dict -}}
{{- range $part, $value := . -}}
{{- if $value }}{{ $_ := set $selector $part $value }}{{ end -}}
{{- end -}}
{{- toYaml $selector -}}
{{- end }}
