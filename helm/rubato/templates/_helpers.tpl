{{- /* Kept short: a label has at most 63 characters, and "-operator" is added. */}}
{{- define "rubato.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 54 | trimSuffix "-" }}
{{- end }}

{{- /* Kept short: names of Services have at most 63 characters, and suffixes are added. They begin with a letter and
have no dot, which names of releases and nameOverride may have. */}}
{{- define "rubato.fullname" -}}
{{- $name := .Values.fullnameOverride }}
{{- if not $name }}
{{- $name = .Release.Name | replace "." "-" }}
{{- $own := include "rubato.name" . | replace "." "-" }}
{{- if not (contains $own $name) }}
{{- $name = printf "%s-%s" $name $own }}
{{- end }}
{{- end }}
{{- if not (regexMatch "^[a-z]" $name) }}
{{- fail (printf "the name of a Service begins with a letter, which %s does not: set fullnameOverride" $name) }}
{{- end }}
{{- $name | trunc 40 | trimAll "-" }}
{{- end }}

{{- define "rubato.installation" -}}
{{- default (include "rubato.fullname" .) .Values.installation }}
{{- end }}

{{- define "rubato.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (printf "%s-operator" (include "rubato.fullname" .)) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name: name the account to use, or set serviceAccount.create" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "rubato.selector" -}}
app.kubernetes.io/name: {{ include "rubato.name" . }}-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- /* A list of maps as one, in which no key is twice; a later map wins. */}}
{{- define "rubato.merged" -}}
{{- $all := dict }}
{{- range . }}{{ range $key, $value := . }}{{ $_ := set $all $key $value }}{{ end }}{{ end }}
{{- toYaml $all }}
{{- end }}

{{- define "rubato.labels" -}}
{{- $ours := dict "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_") }}
{{- $_ := set $ours "app.kubernetes.io/managed-by" .Release.Service }}
{{- $_ := set $ours "app.kubernetes.io/version" .Chart.AppVersion }}
{{- $_ := set $ours "app.kubernetes.io/part-of" "rubato" }}
{{- include "rubato.merged" (list $ours .Values.commonLabels (include "rubato.selector" . | fromYaml)) }}
{{- end }}

{{- define "rubato.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}
{{- end }}

{{- /* Pods of jobs keep what they are told for life. The kubelet sets NAME_SERVICE_HOST for each Service of the
namespace: an address without DNS, in brackets because it may be IPv6. By its name the Service is found when it was
deleted and made again. */}}
{{- define "rubato.coordinators" -}}
{{- $service := printf "%s-coordinator" (include "rubato.fullname" .) }}
{{- $port := int .Values.coordinator.port }}
{{- printf "[$(%s_SERVICE_HOST)]:%d,%s.%s.svc:%d" ($service | upper | replace "-" "_") $port $service .Release.Namespace $port }}
{{- end }}
