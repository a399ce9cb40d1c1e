// Package server answers DNS questions about one zone, over UDP and TCP.
//
// What the tree cache can answer directly is answered in wire format, without
// allocating: names of the zone, and reverse names that the tree holds. Names
// with an asterisk go to SkyDNS's server, with the same tree behind it.
// External names and federations are followed, and every other name is
// forwarded, by goroutines of their own. Around all of these stand, once:
// EDNS, flags, truncation, rotation, metrics, and recovery from a panic.
//
// Which records there are is left to package dns, how upstream nameservers
// are asked to package forward.
package server
