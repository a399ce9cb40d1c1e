// Package forward asks upstream nameservers the questions that kube-dns cannot
// answer from its own records: names outside the cluster domain, reverse names
// it does not hold, and the names behind ExternalName Services.
//
// # Which nameserver is asked
//
// The nameservers that work take turns: a question starts at the one after
// where the last question started, the very first at a random one, so that
// replicas do not all begin at the same server. A nameserver that is silent
// for Options.Patience is not given up: the next one is asked as well, and the
// first answer of any counts. One that fails outright (connection refused,
// SERVFAIL, REFUSED, a malformed reply) makes room for the next at once. With
// many nameservers the patience shrinks, so that the last of them has been
// asked by half the time.
//
// A nameserver that failed is remembered as failing until it answers. It is
// asked last, after all that work, with one exception by which it is found
// again: when its back-off is over (1 s, doubled by each failure up to 30 s)
// one question asks it first, giving it a head start of some 100 ms. A silence
// counts as a failure only where the nameserver was silent to every question
// meanwhile: one name that cannot be resolved in time does not condemn it.
//
// # Which reply is returned
//
// NOERROR and NXDOMAIN are answers, with or without records, and end the
// question. Any other rcode is returned only when no nameserver has an answer:
// SERVFAIL rather than others, REFUSED last. While such a reply is in hand,
// nameservers that were failing before are waited for Options.Grace only.
//
// # Datagrams
//
// Each try has a new connected socket, so the kernel takes a random source
// port and drops what other addresses send, and a new random ID (RFC 5452).
// What does not match the question is ignored. The question carries EDNS
// (RFC 6891) with a payload size of 1232 octets, no options, and the client's
// DO bit; a nameserver that does not know EDNS is asked without, and
// remembered. A truncated reply is asked for again over TCP (RFC 7766).
//
// The package resolves no names and starts no goroutine that outlives the call
// of Exchange it belongs to. It leaves to its caller: caching, loops (see
// ExcludeSelf), TTLs, the reply's header bits and OPT, and what to tell the client
// when there is no reply.
package forward
