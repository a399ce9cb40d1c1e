package site

// Hostile is what a ConfigMap or an error can have in it.
const Hostile = `</dd><script>alert("1")</script>'&`

// What / and /config answer.
type (
	StatusPage = status
	ConfigPage = configuration
)
