// Package sidecar reports the health of a kube-dns pod: it probes the pod's DNS
// servers with real queries, serves the results over HTTP for liveness probes,
// and exports them and dnsmasq's counters to Prometheus.
//
// A Sidecar's Run starts one goroutine for each probe, one that polls dnsmasq
// and those of its HTTP server, and returns when all have ended. It restarts
// nothing: the kubelet acts on a failing health path. Package counters queries
// dnsmasq for its counters.
package sidecar
