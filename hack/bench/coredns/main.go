// The coredns that `make bench` measures beside kube-dns: CoreDNS as its
// module has it, with its stock plugins.
package main

import (
	_ "github.com/coredns/coredns/core/plugin" // the stock plugins
	"github.com/coredns/coredns/coremain"
)

func main() { coremain.Run() }
