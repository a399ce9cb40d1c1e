// Package sidecar tells the health of a kube-dns pod: it probes its DNS
// servers with real questions, serves what came of them over HTTP for liveness
// probes, and exports the probes' results and dnsmasq's counters to Prometheus.
//
// A Sidecar's Run starts one goroutine for each probe, one that polls dnsmasq
// and those of its HTTP server, and returns when all have ended. It restarts
// nothing: to act on a failing health path is kubelet's task. How dnsmasq is
// asked for its counters is package counters' affair.
package sidecar
