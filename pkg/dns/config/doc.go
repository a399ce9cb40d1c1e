// Package config has the configuration that kube-dns and dnsmasq-nanny read
// from a ConfigMap: its parsing and validation, and the sources of it that need
// no cluster, which are the flags and the directory where a ConfigMap is
// mounted. Watching the ConfigMap itself is package configmap's part, so that
// the nanny does without client-go. What is done with a configuration is up to
// the programs.
//
// A source's Run reads, and watches, in the goroutine of its caller; the
// directory's also runs fsnotify's goroutine, which has ended when Run returns.
package config
