// Package qname decides which form a name has: whether it is in the zone, and
// whether it is the name of a Service, a port, an endpoint, a Pod, and so on.
// docs/records.md lists the forms. The server, SkyDNS's backend, package
// explain and the tree's view all ask this package, so that a new form is
// added here and nowhere else.
//
// A form follows from the labels alone. Whether such a Service exists, and
// whether a federation is configured, is for the caller to find out. The
// package is pure: no I/O, no clock, no log, and no goroutines.
//
// Parsing works on a name in wire form and allocates nothing. ParseText takes
// a name in presentation form.
package qname
