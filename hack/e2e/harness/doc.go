// Package harness starts what the end-to-end tests need: a real etcd and
// kube-apiserver, kube-dns as built from this repository, and dnsmasq as the
// upstream nameserver. It also asks DNS questions and plays case files.
//
// All listens on loopback, on free ports. What is started by a function with a
// testing.TB ends with the test; a ControlPlane ends when its Stop is called.
// Nothing outlives the test binary, however it ends.
package harness
