// Package dns keeps the records of a cluster's Services. It watches Services
// and EndpointSlices (and Nodes while a federation is configured), makes each
// Service's records anew whenever something it depends on has changed, and
// replaces them in the tree cache as a whole. It is the backend of SkyDNS's
// server.
//
// How questions arrive and answers are written is left to package server,
// configuration to package config. KubeDNS.Run starts the goroutines: for each
// resource a reflector's and one that reads its watch, and one worker.
package dns
