package app

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"strconv"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

func TestClientGoLogsToGlog(t *testing.T) {
	if err := logToGlog(); err != nil {
		t.Fatal(err)
	}
	defer klog.ClearLogger()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr := os.Stderr
	os.Stderr = w
	klog.ErrorS(errors.New("no route"), "watching", "resource", "services")
	os.Stderr = stderr
	w.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(r); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); !strings.HasPrefix(got, "E") || !strings.Contains(got, `client-go: watching resource="services" err="no route"`) {
		t.Errorf("the log has %q", got)
	}
}

// TestClientGoVerbosity: client-go says as much as kube-dns, up to where its
// timing of requests begins.
func TestClientGoVerbosity(t *testing.T) {
	before := flag.Lookup("v").Value.String()
	defer klog.ClearLogger()
	defer func() {
		if err := errors.Join(flag.Set("v", before), logToGlog()); err != nil {
			t.Error(err)
		}
	}()
	for v := range 12 {
		if err := errors.Join(flag.Set("v", strconv.Itoa(v)), logToGlog()); err != nil {
			t.Fatal(err)
		}
		said := 0
		for klog.V(klog.Level(said + 1)).Enabled() {
			said++
		}
		if want := min(v, 8); said != want {
			t.Errorf("with -v=%d client-go has %d, want %d", v, said, want)
		}
	}
}
