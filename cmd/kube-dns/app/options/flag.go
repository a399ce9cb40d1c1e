package options

import "strings"

// hidden stands in for what is not shown.
const hidden = "xxxxx"

// Flag is a flag or an environment variable as it was given. A value that may
// not be shown is xxxxx, set or not, and so is its default.
type Flag struct {
	Name    string `json:"name"` // "domain", "PROMETHEUS_PORT"
	Value   string `json:"value"`
	Default string `json:"default"`
	Set     bool   `json:"set"` // false: Value is Default
}

func newFlag(name, value, byDefault string, set bool) Flag {
	if !shown(name) {
		return Flag{Name: name, Value: hidden, Default: hidden, Set: set}
	}
	return Flag{Name: name, Value: hideSecrets(value), Default: byDefault, Set: set}
}

// shown reports whether people may read the value of a flag or of an
// environment variable, and of a URL only what hideSecrets leaves of it. A new
// one is hidden until it is listed here; before it is, think of what somebody
// could write into it. Files are shown by name, never by content.
func shown(name string) bool {
	switch name {
	case "domain", "ttl", "negative-ttl", "dns-service", "federations",
		"nameservers", "max-forwarded",
		"dns-bind-address", "dns-port", "udp-size", "udp-sockets", "max-answers-per-second",
		"max-tcp-connections", "max-tcp-connections-per-client", "tcp-idle-timeout",
		"kubecfg-file", "kube-master-url", "manifests", "snapshot-file",
		"config-map", "config-map-namespace", "config-dir", "config-period",
		"healthz-port", "initial-sync-timeout", "drain-period", "profiling", "version":
		return true
	case "log-flush-frequency",
		// glog's
		"alsologtostderr", "log-backtrace-at", "log-dir", "log-link", "logbuflevel", "logtostderr",
		"stderrthreshold", "v", "vmodule":
		return true
	case "PROMETHEUS_NAMESPACE", "PROMETHEUS_PATH", "PROMETHEUS_PORT", "PROMETHEUS_SUBSYSTEM":
		return true
	}
	return false
}

// hideSecrets replaces the user and the query of s if it is a URL, as that of
// --kube-master-url is. Environment variables in it stand as they were written,
// not expanded.
func hideSecrets(s string) string {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return s
	}
	rest, _, query := strings.Cut(rest, "?")
	if query {
		rest += "?" + hidden
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	if at := strings.LastIndexByte(rest[:end], '@'); at >= 0 {
		rest = hidden + rest[at:]
	}
	return scheme + "://" + rest
}
