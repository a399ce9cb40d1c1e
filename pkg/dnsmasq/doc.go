// Package dnsmasq keeps a dnsmasq running and gives it its servers: stub
// domains and upstream nameservers as a ConfigMap's directory has them, or the
// nameservers of resolv.conf. It is what the program dnsmasq-nanny does.
//
// Servers change without a restart. dnsmasq has them from a file that it reads
// again on SIGHUP, and two things make this lose no question:
//
//   - dnsmasq drops the answer of a server that it no longer has. It is
//     therefore started with --fast-dns-retry, so that it asks the new server
//     itself where it would otherwise wait for its client to ask again.
//   - It forgets the questions on their way to a server whose entry goes away.
//     A domain's entries therefore never become fewer while dnsmasq runs: the
//     remaining servers are repeated, and a domain that is gone has the servers
//     that are asked for it now (see pad).
//
// dnsmasq has the new servers once it says so: the file ends with a name that
// only dnsmasq itself answers for, and that name is different for each content
// (see inForceName).
//
// What the package leaves to others: the configuration's form is package
// config's, dnsmasq's counters are package counters', flags are the program's.
//
// Nanny.Run starts one goroutine each for the supervision of dnsmasq, for the
// directory, resolv.conf, each server that has a name in place of an address,
// metrics, and the changes that come of all of these. All have ended when it
// returns.
package dnsmasq
