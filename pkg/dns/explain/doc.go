// Package explain says why a name answers as it does: what a client gets now,
// which way the question takes, what the answer is made of, and where there is
// none, what is missing.
//
// The replies it shows come from the server's own code (server.Inspect), so
// that they cannot differ from what the DNS port answers. The words around
// them come from the tree, from the objects behind it, and from what a
// nameserver said. An explanation changes nothing: no metric counts it, no
// bound, and it asks the upstream nameservers at most one question,
// through a forwarder of its own.
//
// How it is shown is left to its caller; Explanation.WriteText is for a
// terminal, and its JSON is for programs. The package starts no goroutine of
// its own.
package explain
