// Package client declares the one part of etcd's v2 client that SkyDNS's
// server refers to: the error with which a backend says that a name does not
// exist. It stands in for github.com/coreos/etcd/client (see go.mod), which
// does not build with current Go and would bring a gRPC stack along.
package client

import "fmt"

// ErrorCodeKeyNotFound is the code of an Error that SkyDNS answers NXDOMAIN.
const ErrorCodeKeyNotFound = 100

// Error is what SkyDNS looks for in a backend's error; with another Code than
// ErrorCodeKeyNotFound it becomes NODATA.
type Error struct {
	Code    int
	Message string
	Cause   string
	Index   uint64
}

// Error has the code, the message and the cause.
func (e Error) Error() string {
	return fmt.Sprintf("%d: %s (%s)", e.Code, e.Message, e.Cause)
}
