// Package e2e holds the end-to-end tests of kube-dns: the programs as they are
// built, against a real kube-apiserver and etcd. `make e2e` runs them.
package e2e
