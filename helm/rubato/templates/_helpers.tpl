{{- define "rubato.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* Kept short: names of Services have at most 63 characters, and suffixes are added. */}}
{{- define "rubato.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "rubato.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "rubato.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "rubato.installation" -}}
{{- default (include "rubato.fullname" . | replace "." "-") .Values.installation }}
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
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rubato.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: rubato
{{ include "rubato.selector" . }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "rubato.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}
{{- end }}

{{- /* Pods of jobs keep what they are told for life. The kubelet sets NAME_SERVICE_HOST for each Service of the
namespace: an address without DNS. By its name the Service is found when it was deleted and made again. */}}
{{- define "rubato.coordinators" -}}
{{- $service := printf "%s-coordinator" (include "rubato.fullname" .) }}
{{- $port := int .Values.coordinator.port }}
{{- printf "$(%s_SERVICE_HOST):%d,%s.%s.svc:%d" ($service | upper | replace "-" "_") $port $service .Release.Namespace $port }}
{{- end }}
