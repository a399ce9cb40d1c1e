// Package soak is a model of a cluster in time, and of what kube-dns answers
// about it: [History] remembers every object a test wrote and when, and
// [Model] says whether an answer is right for some state that the cluster had
// when the question was asked. It shares no code with kube-dns.
//
// # When an answer is right
//
// Each object has versions. A version may be answered from the moment that the
// API's write call for it was begun, until [Grace] after the write call that
// replaced it returned. A question asked at t0 and answered at t1 is right
// when there is a choice of one version of each object, every one of them
// answerable at some moment of [t0, t1], that gives the answer: kube-dns hears
// of each object by itself, Services and EndpointSlices over different
// watches, so that any mixture may stand for a moment.
//
// While kube-dns is cut off from the API server, nothing that was answerable at
// the cut grows old: what a write replaces stays answerable. A resource counts
// as cut off from the moment before the fault is made, and besides whenever
// none of kube-dns's watches of it is open, as the API server's audit log has
// it; until [Relist] after the API server has answered a list of it that was
// asked for after the cut, or has opened a watch of it. A list that no watch
// follows does not count. What had been replaced for longer than Grace at the
// cut is not answerable: no answer may be older than the state before the cut.
//
// A machine that does not give the programs its processors delays everything.
// [Stall] measures how long threads of the programs waited for one, and by that
// much, [MaxExcuse] at most, versions stay answerable for longer.
package soak
