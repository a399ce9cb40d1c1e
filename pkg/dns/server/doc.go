// Package server answers DNS questions about one zone, over UDP and TCP.
//
// A question takes one of five routes. Names in the zone, and reverse names that
// the tree holds, are answered from the tree at once, in wire form and without
// allocating (zone.go). The others are answered on goroutines of their own
// (async.go): names with an asterisk by SkyDNS's server, which reads the same
// tree; external names and names of federations by following them; every other
// name by the upstream nameservers. EDNS, flags, truncation, metrics and recovery
// from panics are the same for all routes (server.go).
//
// Package qname tells which form a name has, package dns which records there are,
// and package forward asks the upstream nameservers.
package server
