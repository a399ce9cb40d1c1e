package main

import (
	"fmt"
	"os"
	"kubedns/hack/bench/cluster"
	"kubedns/hack/bench/fakeapi"
	"time"
)

func main() {
	shape := cluster.Small
	if len(os.Args) > 2 && os.Args[2] == "large" {
		shape = cluster.Large
	}
	c := cluster.New(shape)
	s, err := fakeapi.New(c)
	if err != nil { panic(err) }
	f, err := s.WriteKubeconfig(os.Args[1])
	if err != nil { panic(err) }
	fmt.Println(f, c.Services[0].DNSName(), c.Services[0].ClusterIP)
	for range time.Tick(50*time.Millisecond) {
		for _, t := range s.Listed() { fmt.Println("listed", t.Format("15:04:05.000000")) }
		s.ForgetLists()
	}
}
