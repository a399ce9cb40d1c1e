// Package skydns answers SkyDNS's server from the tree of records: it is the
// backend that SkyDNS asks for what it looked up in etcd, and nothing else of
// SkyDNS. It starts no goroutines. The server in package server asks SkyDNS only
// what it does not answer itself.
//
// The folder etcdclient is a stand-in for etcd's client package, see its
// README.
package skydns
