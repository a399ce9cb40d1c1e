// Package dnsmasq keeps a dnsmasq running and gives it its servers: stub
// domains and upstream nameservers as a ConfigMap's directory has them, or the
// nameservers of resolv.conf. It is what the program dnsmasq-nanny does.
//
// Servers change without a restart. dnsmasq has them from a file that it reads
// again on SIGHUP, and two things make this lose no query:
//
//   - dnsmasq drops the answer of a server that it no longer has. It is
//     therefore started with --fast-dns-retry, so that it asks the new server
//     itself and does not wait for its client to ask again.
//   - It forgets the queries in flight to a server whose entry goes away. A
//     domain's entries therefore never become fewer while dnsmasq runs: the
//     remaining servers are repeated, and a domain that is gone has the servers
//     that are asked for it now (see keepEntryCount).
//
// That dnsmasq has loaded the new servers can be seen: the file ends with a name
// that only dnsmasq answers for, and that name is different for each content
// (see markerName).
//
// A change goes down this list, each type using the next:
//
//   - directory, resolvConf and names report what has changed;
//   - reloader decides which configuration counts;
//   - active makes dnsmasq's servers of it, and sends SIGHUP or restarts dnsmasq;
//   - takeover waits until dnsmasq has loaded them;
//   - supervisor starts one process after the other and probes it.
//
// Nanny puts these together, drains and stops. If it is killed, the guard ends
// dnsmasq.
//
// What the operator has set stays: the nanny reads dnsmasq's own arguments and
// the files that --conf-file and --conf-dir name, once, at its start (see
// arguments). It logs what it cannot read, such as the output of --conf-script.
//
// What the package leaves to others: the configuration's form is package
// config's, dnsmasq's counters are package counters', flags are the program's.
//
// Nanny.Run starts goroutines for the supervision of dnsmasq, its statistics, the
// directory, resolv.conf, each server that has a name in place of an address,
// metrics, and the changes that come of these. All have ended when it returns.
package dnsmasq
