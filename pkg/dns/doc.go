// Package dns serves the records of a cluster's Services. KubeDNS takes the
// objects that a source delivers, makes a Service's records again whenever
// something they depend on has changed, and replaces them in the tree as a
// whole, so that the order of events does not matter.
//
// The package only puts the parts together. Each has a package of its own:
// objects, source (apiserver, manifests, snapshot), records, treecache and
// skydns. How questions arrive and answers are written is left to package
// server, configuration to package config.
//
// KubeDNS.Run starts one worker that makes records, the writing of snapshots,
// and what the source starts.
package dns
