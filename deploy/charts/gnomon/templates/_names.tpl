{{- define "gnomon.common" -}}
app.kubernetes.io/part-of: gnomon
app.kubernetes.io/version: {{ .Chart.AppVersion }}
{{- end }}

{{- define "gnomon.gateway" -}}
app.kubernetes.io/name: gnomon
app.kubernetes.io/component: gateway
{{- end }}
